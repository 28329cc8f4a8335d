"""The `counts` engine: `reference.TreeServer` on arrays, with noise drawn a batch at a time.

The noise of a node is drawn once, from the law of its sum (`reference.sum_law`) instead of message
by message, and estimates are filled in by array.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.model import Counts, Floats
from overhand.noise import SERVICES, Noise, ServiceNoise
from overhand.planning import Plan
from overhand.randomness import WORD_BITS, Random, generator_of
from overhand.tree import combine_sums

_MANY = 8192  # draws for which a table pays
_LARGE = 1 << 21  # elements for which a second thread pays
_BUFFER = 1 << 15  # numbers that are rounded at once: fits the first-level cache


class CountsRun:
    """One run over a stream, fed in whole blocks (except for the last users).

    An estimate is the true sum of the completed blocks, plus the noise of the cover (and what
    rounding adds to its nodes), plus the middle of what the pending users may hold. Only the
    noise needs the tree, and only once per block.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> run = CountsRun(plan, oh.seeded_random(1))
    >>> estimates = run.estimates(np.ones(300, np.uint8))
    >>> bool(abs(estimates - np.arange(1, 301)).max() < plan.error_bound(1e-3))
    True
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self.granularity = plan.tree.lowest
        self._values = plan.values
        self._noise = CoverNoise(plan, random)
        self._blocks = 0
        self._sum: Any = np.zeros(plan.values.shape, np.int64 if plan.values.is_whole else float)
        self._ramp: Floats = np.multiply.outer(
            np.arange(plan.tree.lowest, dtype=np.float64), plan.imputed
        )

    def estimates(self, rows: NDArray[Any]) -> Floats:
        """The estimates after each of the next users."""
        full = len(rows) // self.granularity
        first, last = self._blocks, self._blocks + full
        blocks = rows[: full * self.granularity]
        shape = (full + 1, self.granularity, *self._values.shape)
        if len(rows) * self._values.dimension < _LARGE:
            filled, sums = np.empty(shape), self._sums(blocks)
            noise = self._noise.at(first, last, blocks)
        else:
            # Half of the time of filling a large new array goes into the first touch of its
            # memory: a second thread does that, and the sums, while the noise is drawn.
            with ThreadPoolExecutor(max_workers=1) as helper:
                touched = helper.submit(np.full, shape, 0.0)
                summed = helper.submit(self._sums, blocks)
                noise = self._noise.at(first, last, blocks)
                filled, sums = touched.result(), summed.result()
        np.add((sums + noise)[:, np.newaxis], self._ramp, out=filled)
        self._blocks, self._sum = last, sums[-1]
        return filled.reshape(-1, *self._values.shape)[1 : len(rows) + 1]

    def _sums(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The true sums at the block boundaries, the first and the last included."""
        after = self._values.sums_after_blocks(rows, self.granularity)
        before = np.zeros((1, *self._values.shape), after.dtype)
        return np.asarray(self._sum + np.concatenate([before, after]))


class CoverNoise:
    """The noise of the estimates at block boundaries, drawn as the stream goes on.

    Each level keeps running sums of its nodes' noise, from the oldest node of the cover on, so
    memory does not grow with the horizon. It is the noise of one run, or, with `runs`, of several
    side by side: rows and noise then have an axis of runs after that of users or blocks. If
    `gaussian`, normal noise of the same variance stands in for that of the mechanisms that have
    users make it.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> noise = CoverNoise(plan, oh.seeded_random(1), runs=(2000,)).at(0, 100, np.empty(0))
    >>> noise.shape, bool(0.9 < noise[-1].var() / plan.noise_variance(np.array([300]))[0] < 1.1)
    ((101, 2000), True)
    """

    def __init__(
        self, plan: Plan, random: Random, *, runs: tuple[int, ...] = (), gaussian: bool = False
    ) -> None:
        self._tree = plan.tree
        self._shape = (*runs, *plan.values.shape)
        self._levels = [
            _LevelNoise(plan, level, stream, self._shape, gaussian=gaussian)
            for level, stream in enumerate(random.spawn(plan.tree.levels), start=1)
        ]
        exact = plan.values.is_whole or (gaussian and plan.noise_by == "users")
        self._rounding = None if exact else _RoundingErrors(plan, random, self._shape)

    def at(self, first: int, last: int, rows: NDArray[Any]) -> Floats:
        """The noise of the cover after `first`, `first` + 1, ..., `last` blocks of these rows."""
        self._draw(first, last, rows)
        result = np.empty((last - first + 1, *self._shape))
        if last > first:
            self._fill(first, last, result[:-1])
        result[-1] = self._at_end(last)
        return result

    def after(self, first: int, last: int, rows: NDArray[Any]) -> Floats:
        """Only that after the last of them."""
        self._draw(first, last, rows)
        return self._at_end(last)

    def _draw(self, first: int, last: int, rows: NDArray[Any]) -> None:
        """Draw the noise of all nodes that become full, children first."""
        if self._rounding is not None:
            self._rounding.advance(first, rows)
        below: _LevelNoise | None = None
        for level in self._levels:
            level.draw(first, last, below, self._rounding)
            below = level
        if self._rounding is not None:
            self._rounding.forget(last)

    def _at_end(self, last: int) -> Floats:
        """The noise of the cover, and nothing before it is needed any more."""
        end = np.array([last], np.int64)
        closed, covering = self._tree.closed_nodes(end), self._tree.in_cover(end)
        total = np.zeros(self._shape)
        for level, c, k in zip(self._levels, closed, covering, strict=True):
            total += level.cut(int(c[0] - k[0]))
        return total

    def _fill(self, first: int, last: int, result: Floats) -> None:
        """The upper levels are constant over a run of blocks, the lowest goes on from its start."""
        lowest, *above = self._levels
        length = self._tree.degrees[1] if above else last + 1
        starts = np.arange(first // length * length, last, length, dtype=np.int64)
        constant = -lowest.until(starts)
        closed, covering = self._tree.closed_nodes(starts), self._tree.in_cover(starts)
        for level, c, k in zip(above, closed[1:], covering[1:], strict=True):
            constant += level.until(c) - level.until(c - k)
        lengths = np.diff(np.append(np.maximum(starts, first), last))
        np.add(np.repeat(constant, lengths, axis=0), lowest.stretch(first, last), out=result)


class _LevelNoise:
    """Running sums of the noise of one level's node estimates, in the order of their closing."""

    def __init__(
        self, plan: Plan, level: int, random: Random, shape: tuple[int, ...], *, gaussian: bool
    ) -> None:
        self._random = random
        self._level = level
        self._shape = shape
        self._mechanism = plan.mechanisms[level - 1]
        self._gaussian = gaussian and self._mechanism.noise_by == "users"
        self._state: Counts | None = None  # of the noise of both services, in all runs
        self._blocks = plan.tree.sizes[level - 1] // plan.tree.lowest
        self._degree = plan.tree.degrees[level - 1]
        self._table: AliasTable | None = None
        self._own_weight = plan.combination.own_weights[level - 1]
        self._first = 0
        self._running = np.zeros((1, *self._shape))  # before node `first`, before the next one, ...

    def draw(
        self, first: int, last: int, below: _LevelNoise | None, rounding: _RoundingErrors | None
    ) -> None:
        """Nodes that become full between two boundaries, each combined with its children."""
        start, stop = first // self._blocks, last // self._blocks
        if start == stop:
            return
        noise = self._draw_nodes(stop - start)
        if rounding is not None:
            noise = noise + rounding.of_nodes(self._level, self._blocks, start, stop)
        if below is not None and self._own_weight < 1.0:
            ends = np.arange(start, stop + 1, dtype=np.int64) * self._degree
            noise = combine_sums(noise, np.diff(below.until(ends), axis=0), self._own_weight)
        known = len(self._running)
        grown = np.empty((known + len(noise), *self._shape))
        grown[:known] = self._running
        np.cumsum(noise, axis=0, out=grown[known:])
        grown[known:] += self._running[-1]
        self._running = grown

    def _draw_nodes(self, count: int) -> Floats:
        mechanism, shape = self._mechanism, (count, *self._shape)
        draws = math.prod(shape)
        if mechanism.noise_by == "services":
            return mechanism.quantizer.scale(self._advance(count)).reshape(shape)
        if self._gaussian:
            return generator_of(self._random).normal(0.0, math.sqrt(mechanism.variance), shape)
        if draws < _MANY or not mechanism.noise().is_tabulated:
            batches = draws // mechanism.values.dimension
            return mechanism.draw_noise(self._random, batches).reshape(shape)
        self._table = self._table or AliasTable(mechanism.noise())
        return mechanism.quantizer.scale(self._table.draw(self._random, draws)).reshape(shape)

    def _advance(self, blocks: int) -> Floats:
        """What both services add to the next blocks, a row each: of all runs side by side."""
        if self._state is None:
            share = self._mechanism.noise_share
            assert isinstance(share, ServiceNoise)
            self._state = share.start(self._random, SERVICES * math.prod(self._shape))
        both, self._state = self._mechanism.advance_noise(self._state, self._random, blocks)
        of_both: Counts = both.reshape(blocks, SERVICES, -1).sum(axis=1)
        return of_both.reshape(-1).astype(np.float64)

    def until(self, nodes: Counts) -> Floats:
        return self._running[nodes - self._first]

    def stretch(self, start: int, stop: int) -> Floats:
        return self._running[start - self._first : stop - self._first]

    def cut(self, first: int) -> Floats:
        """The noise of all nodes from this one on; no later cover needs those before it."""
        self._running = self._running[first - self._first :].copy()
        self._first = first
        return np.asarray(self._running[-1] - self._running[0])


class _RoundingErrors:
    """Rounded less true sums of the nodes that become full, for every level.

    A level has one open node at a time, so of the past it keeps what rounding has added to that.
    """

    def __init__(self, plan: Plan, random: Random, shape: tuple[int, ...]) -> None:
        self._tree = plan.tree
        self._values = plan.values
        self._mechanisms = plan.mechanisms
        self._shape = shape  # of a sum, or of those of several runs
        self._streams = random.spawn(plan.tree.levels)
        self._carried: list[Any] = [np.zeros(shape)] * plan.tree.levels
        runs = math.prod(shape) // plan.values.dimension
        self._lows = np.tile(plan.values.lows, runs)[:, np.newaxis, np.newaxis]
        self._errors: list[Floats] = []
        self._first = 0

    def advance(self, first: int, rows: NDArray[Any]) -> None:
        """Round the values of the next blocks, level by level."""
        self._first = first
        quantizers = [mechanism.quantizer for mechanism in self._mechanisms]
        if not self._values.are_rows_points:  # only their kind knows how to round them
            true = self._values.sums_after_blocks(rows, self._tree.lowest)
            self._errors = []
            for quantizer, stream in zip(quantizers, self._streams, strict=True):
                steps = quantizer.round(rows, stream)
                rounded = self._values.sums_after_blocks(steps, self._tree.lowest) * quantizer.unit
                self._errors.append(np.concatenate([np.zeros((1, *self._shape)), rounded - true]))
            return
        # Coordinate by coordinate, so that a block's values of one stand side by side.
        columns = np.ascontiguousarray(rows.reshape(len(rows), math.prod(self._shape)).T)
        columns = columns.reshape(len(columns), -1, self._tree.lowest) - self._lows
        sums = columns.sum(axis=2)
        # One after the other: threads would only wait for each other between the short steps.
        self._errors = [
            _rounding_errors(quantizer.unit, columns, sums, stream).reshape(-1, *self._shape)
            for quantizer, stream in zip(quantizers, self._streams, strict=True)
        ]

    def of_nodes(self, level: int, blocks: int, start: int, stop: int) -> Floats:
        """The errors of nodes of a level, each of this many blocks."""
        errors = self._errors[level - 1]
        ends = np.arange(start, stop + 1, dtype=np.int64) * blocks - self._first
        result = np.diff(errors[np.maximum(ends, 0)], axis=0)
        if ends[0] < 0:
            result[0] += self._carried[level - 1]
        return result

    def forget(self, last: int) -> None:
        """Keep what the nodes that are still open after `last` blocks have gathered."""
        for index, size in enumerate(self._tree.sizes):
            errors, blocks = self._errors[index], size // self._tree.lowest
            start = last // blocks * blocks - self._first
            before = -self._carried[index] if start < 0 else errors[start]
            self._carried[index] = errors[-1] - before


def _rounding_errors(unit: float, columns: Floats, sums: Floats, random: Random) -> Floats:
    """Running sums over blocks of what rounding adds, from 0 on.

    A column is a coordinate's values above its lowest, by block and user, in one run; `sums` are
    over users. Uniforms of 32 bits do: what is deployed has 53, and no simulation can tell.
    """
    coordinates, blocks, users = columns.shape
    rows = columns.reshape(-1, users)
    rounded = np.empty(len(rows))
    piece = max(1, _BUFFER // users)
    for start in range(0, len(rows), piece):
        steps = rows[start : start + piece] * (1 / unit)
        steps += random.words(steps.size, np.uint32).reshape(steps.shape) * 2.0**-32
        np.floor(steps, out=steps)
        np.add.reduce(steps, axis=1, out=rounded[start : start + piece])
    errors = rounded.reshape(coordinates, blocks) * unit - sums
    result = np.zeros((blocks + 1, coordinates))
    np.cumsum(errors.T, axis=0, out=result[1:])
    return result


class AliasTable:
    """Walker's alias method: one word, one comparison and one look-up for every draw.

    Probabilities are rounded to 2^-55 or so, far below what any simulation resolves. What is
    deployed draws its coins one by one instead (`CoinSum.draw_noise`).
    """

    def __init__(self, law: Noise) -> None:
        pmf = law.pmf
        self._first = pmf.first - law.mean
        columns_bits = max(1, (len(pmf.probabilities) - 1).bit_length())
        self._shift = np.uint64(WORD_BITS - columns_bits)
        heights, self._alias = _alias_columns(pmf.probabilities, 1 << columns_bits)
        self._thresholds = (heights * float(1 << int(self._shift))).astype(np.uint64)
        self._mask = np.uint64((1 << int(self._shift)) - 1)

    def draw(self, random: Random, count: int) -> Floats:
        """`count` independent values of the noise, minus its mean."""
        words = random.words(count, np.uint64)
        column = (words >> self._shift).astype(np.intp)
        words &= self._mask
        outcome = np.where(words < self._thresholds[column], column, self._alias[column])
        return outcome + self._first


def _alias_columns(probabilities: Floats, columns: int) -> tuple[Floats, Counts]:
    """Cut the probabilities into columns of equal weight, each of at most two outcomes."""
    heights = np.zeros(columns)
    heights[: len(probabilities)] = probabilities / probabilities.sum() * columns
    alias = np.arange(columns)
    small = [i for i in range(columns) if heights[i] < 1]
    large = [i for i in range(columns) if heights[i] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        alias[low] = high
        heights[high] -= 1 - heights[low]
        if heights[high] < 1:
            small.append(large.pop())
    for rest in (*small, *large):  # what rounding leaves over
        heights[rest] = 1.0
        alias[rest] = rest
    return np.minimum(heights, 1.0), alias
