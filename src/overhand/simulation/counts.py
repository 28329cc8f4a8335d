"""The `counts` engine: the noise of a node is drawn once, and estimates are filled in by array."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import Mechanism
from overhand.plan import Plan
from overhand.randomness import Random, generator_of
from overhand.simulation.alias import AliasTable
from overhand.simulation.rounding import RoundingErrors
from overhand.trees.tree import Closing, Walk

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANY = 8192  # draws for which a table pays
_LARGE = 1 << 21  # elements for which a second thread pays


class CountsRun:
    """One run over a stream, fed in whole blocks (but for the last users).

    An estimate is the true sum of the completed blocks, plus the noise of the cover (and what
    rounding adds to its nodes), plus the middle of what the pending users may hold. Only the
    noise needs the tree, and only once a block.

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
    memory does not grow with the horizon. It is the noise of one run, or, with `runs`, of so many
    side by side: rows and noise then have an axis of runs after that of users or blocks. If
    `gaussian`, normal noise of the same variance stands in for that of the mechanisms.
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
        exact = plan.values.is_whole or gaussian
        self._rounding = None if exact else RoundingErrors(plan, random, self._shape)

    def at(self, first: int, last: int, rows: NDArray[Any]) -> Floats:
        """The noise of the cover after `first`, `first` + 1, ..., `last` blocks of these rows."""
        walk = self._advance(first, last, rows)
        result = np.empty((last - first + 1, *self._shape))
        if last > first:
            self._fill(first, last, walk, result[:-1])
        result[-1] = self._at_end(last)
        return result

    def after(self, first: int, last: int, rows: NDArray[Any]) -> Floats:
        """Only that after the last of them."""
        self._advance(first, last, rows)
        return self._at_end(last)

    def _advance(self, first: int, last: int, rows: NDArray[Any]) -> Walk:
        walk = self._tree.walk(first, last)
        if self._rounding is not None:
            self._rounding.advance(first, rows)
        self._draw(last - first, walk)
        if self._rounding is not None:
            self._rounding.forget(last)
        return walk

    def _at_end(self, last: int) -> Floats:
        """The noise of the cover, and nothing before it is needed any more."""
        end = np.array([last], np.int64)
        closed, covering = self._tree.closed(end), self._tree.in_cover(end)
        total = np.zeros(self._shape)
        for level, c, k in zip(self._levels, closed, covering, strict=True):
            first = int(c[0] - k[0])
            level.forget(first)
            if k[0]:
                total += level.after(first)
        return total

    def _draw(self, blocks: int, walk: Walk) -> None:
        """Draw the noise of all nodes that close along the walk, children first."""
        lowest, *above = self._levels
        lowest.draw_equal(blocks, self._rounding)
        below = lowest
        for level, closing in zip(above, walk.closing, strict=True):
            level.draw(closing, below, lowest, self._rounding)
            below = level

    def _fill(self, first: int, last: int, walk: Walk, result: Floats) -> None:
        """The upper levels are constant over a run, the lowest goes on from its start."""
        lowest, *above = self._levels
        constant = -lowest.until(walk.starts)
        for level, closed, covering in zip(above, walk.closed, walk.covering, strict=True):
            constant += level.between(closed - covering, closed)
        lengths = np.diff(np.append(np.maximum(walk.starts, first), last))
        np.add(np.repeat(constant, lengths, axis=0), lowest.stretch(first, last), out=result)


class _LevelNoise:
    """Running sums of the noise of one level's node estimates, in the order of their closing."""

    def __init__(
        self,
        plan: Plan,
        level: int,
        random: Random,
        shape: tuple[int, ...],
        *,
        gaussian: bool,
    ) -> None:
        self._random = random
        self._gaussian = gaussian
        self._level = level
        self._shape = shape
        self._mechanisms = {m.size: m for m in plan.mechanisms[level - 1]}
        self._tables: dict[int, AliasTable] = {}
        self._own_weights = {
            m.size: plan.node_estimates[level, m.size][0] for m in plan.mechanisms[level - 1]
        }
        self._first = 0
        self._running = np.zeros((1, *self._shape))  # before node `first`, before the next one, ...

    def draw_equal(self, count: int, rounding: RoundingErrors | None) -> None:
        """Nodes of the level's only size."""
        (mechanism,) = self._mechanisms.values()
        noise = self._of_size(mechanism, count)
        self._append(noise if rounding is None else noise + rounding.of_blocks())

    def draw(
        self,
        closing: Closing,
        below: _LevelNoise,
        lowest: _LevelNoise,
        rounding: RoundingErrors | None,
    ) -> None:
        """Nodes that close, each combined with its children if the plan says so."""
        if len(closing.sizes) == 0:
            return
        noise, own = np.empty((len(closing.sizes), *self._shape)), np.empty(len(closing.sizes))
        for size in np.unique(closing.sizes):
            of_size = closing.sizes == size
            count = int(np.count_nonzero(of_size))
            noise[of_size] = self._of_size(self._mechanisms[int(size)], count)
            own[of_size] = self._own_weights[int(size)]
        if rounding is not None:
            noise += rounding.of_closing(self._level, closing.sizes, closing.stops)
        if (own < 1.0).any():
            children = below.between(closing.first_children, closing.after_children)
            if closing.last_blocks is not None:
                children += lowest.between(closing.last_blocks, closing.last_blocks + 1)
            own = own.reshape(-1, *[1] * len(self._shape))
            noise = own * noise + (1 - own) * children
        self._append(noise)

    def _append(self, noise: Floats) -> None:
        known = len(self._running)
        grown = np.empty((known + len(noise), *self._shape))
        grown[:known] = self._running
        np.cumsum(noise, axis=0, out=grown[known:])
        grown[known:] += self._running[-1]
        self._running = grown

    def _of_size(self, mechanism: Mechanism, count: int) -> Floats:
        shape = (count, *self._shape)
        draws = math.prod(shape)
        if self._gaussian:
            return generator_of(self._random).normal(0.0, math.sqrt(mechanism.variance), shape)
        if draws < _MANY or not mechanism.noise().is_tabulated:
            batches = draws // mechanism.values.dimension
            return mechanism.draw_noise(self._random, batches).reshape(shape)
        if mechanism.size not in self._tables:
            self._tables[mechanism.size] = AliasTable(mechanism.noise())
        drawn = self._tables[mechanism.size].draw(self._random, draws)
        return mechanism.scaled(drawn).reshape(shape)

    def until(self, nodes: Counts) -> Floats:
        return self._running[nodes - self._first]

    def between(self, start: Counts, stop: Counts) -> Floats:
        return self.until(stop) - self.until(start)

    def after(self, node: int) -> Floats:
        """The noise of all nodes from this one on."""
        return np.asarray(self._running[-1] - self._running[node - self._first])

    def stretch(self, start: int, stop: int) -> Floats:
        return self._running[start - self._first : stop - self._first]

    def forget(self, before: int) -> None:
        """Drop what no later cover needs."""
        self._running = self._running[before - self._first :].copy()
        self._first = before
