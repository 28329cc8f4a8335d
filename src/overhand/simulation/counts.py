"""The `counts` engine: the noise of a node is drawn once, and estimates are filled in by array."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import BinarySum
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.simulation.alias import AliasTable
from overhand.summation.blocks import prefix_sums
from overhand.trees import Closing, Walk

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANY = 8192  # draws for which a table pays
_LARGE = 1 << 21  # elements for which a second thread pays


class CountsRun:
    """One run over a stream, fed in whole blocks (but for the last users).

    An estimate is the true sum of the completed blocks, plus the noise of the cover, plus half
    of the pending users. Only the noise needs the tree, and only once a block.
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self.granularity = plan.tree.lowest
        self._plan = plan
        self._noise = CoverNoise(plan, random)
        self._blocks = 0
        self._sum = 0
        self._ramp: Floats = plan.imputed_weight * np.arange(plan.tree.lowest, dtype=np.float64)

    def estimates(self, bits: NDArray[np.uint8]) -> Floats:
        """The estimates after each of the next users."""
        full = len(bits) // self.granularity
        first, last = self._blocks, self._blocks + full
        if len(bits) < _LARGE:
            filled, sums = np.empty((full + 1, self.granularity)), self._sums(bits)
            noise = self._noise.at(first, last)
        else:
            # Half of the time of filling a large new array goes into the first touch of its
            # memory: a second thread does that, and the sums, while the noise is drawn.
            with ThreadPoolExecutor(max_workers=1) as helper:
                touched = helper.submit(np.full, (full + 1, self.granularity), 0.0)
                summed = helper.submit(self._sums, bits)
                noise = self._noise.at(first, last)
                filled, sums = touched.result(), summed.result()
        np.add((sums + noise)[:, np.newaxis], self._ramp, out=filled)
        self._blocks, self._sum = last, int(sums[-1])
        return filled.reshape(-1)[1 : len(bits) + 1]

    def _sums(self, bits: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The true sums at the block boundaries, the first and the last included."""
        return self._sum + prefix_sums(bits, np.arange(0, len(bits) + 1, self.granularity))


class CoverNoise:
    """The noise of the estimates at block boundaries, drawn as the stream goes on.

    Each level keeps running sums of its nodes' noise, from the oldest node of the cover on, so
    memory does not grow with the horizon.
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self._tree = plan.tree
        self._levels = [
            _LevelNoise(plan, level, stream)
            for level, stream in enumerate(random.spawn(plan.tree.levels), start=1)
        ]

    def at(self, first: int, last: int) -> Floats:
        """The noise of the cover after `first`, `first` + 1, ..., `last` blocks."""
        walk = self._tree.walk(first, last)
        self._draw(last - first, walk)
        result = np.empty(last - first + 1)
        if last > first:
            self._fill(first, last, walk, result[:-1])
        end = np.array([last], np.int64)
        closed, covering = self._tree.closed(end), self._tree.in_cover(end)
        result[-1] = 0.0
        for level, c, k in zip(self._levels, closed, covering, strict=True):
            result[-1] += level.between(c - k, c)[0]
            level.forget(int(c[0] - k[0]))
        return result

    def _draw(self, blocks: int, walk: Walk) -> None:
        """Draw the noise of all nodes that close along the walk, children first."""
        lowest, *above = self._levels
        lowest.draw_equal(blocks)
        below = lowest
        for level, closing in zip(above, walk.closing, strict=True):
            level.draw(closing, below, lowest)
            below = level

    def _fill(self, first: int, last: int, walk: Walk, result: Floats) -> None:
        """The upper levels are constant over a run, the lowest goes on from its start."""
        lowest, *above = self._levels
        constant = -lowest.until(walk.starts)
        for level, closed, covering in zip(above, walk.closed, walk.covering, strict=True):
            constant += level.between(closed - covering, closed)
        lengths = np.diff(np.append(np.maximum(walk.starts, first), last))
        np.add(np.repeat(constant, lengths), lowest.stretch(first, last), out=result)


class _LevelNoise:
    """Running sums of the noise of one level's node estimates, in the order of their closing."""

    def __init__(self, plan: Plan, level: int, random: Random) -> None:
        self._random = random
        self._mechanisms = {m.size: m for m in plan.mechanisms[level - 1]}
        self._tables: dict[int, AliasTable] = {}
        self._own_weights = {
            m.size: plan.node_estimates[level, m.size][0] for m in plan.mechanisms[level - 1]
        }
        self._first = 0
        self._running = np.zeros(1)  # before node `first`, before the next one, ...

    def draw_equal(self, count: int) -> None:
        """Nodes of the level's only size."""
        (mechanism,) = self._mechanisms.values()
        self._append(self._of_size(mechanism, count))

    def draw(self, closing: Closing, below: _LevelNoise, lowest: _LevelNoise) -> None:
        """Nodes that close, each combined with its children if the plan says so."""
        noise, own = np.empty(len(closing.sizes)), np.empty(len(closing.sizes))
        for size in np.unique(closing.sizes):
            of_size = closing.sizes == size
            count = int(np.count_nonzero(of_size))
            noise[of_size] = self._of_size(self._mechanisms[int(size)], count)
            own[of_size] = self._own_weights[int(size)]
        if (own < 1.0).any():
            children = below.between(closing.first_children, closing.after_children)
            if closing.last_blocks is not None:
                children += lowest.between(closing.last_blocks, closing.last_blocks + 1)
            noise = own * noise + (1 - own) * children
        self._append(noise)

    def _append(self, noise: Floats) -> None:
        known = len(self._running)
        grown = np.empty(known + len(noise))
        grown[:known] = self._running
        np.cumsum(noise, out=grown[known:])
        grown[known:] += self._running[-1]
        self._running = grown

    def _of_size(self, mechanism: BinarySum, count: int) -> Floats:
        if count < _MANY:
            return mechanism.draw_noise(self._random, count)
        if mechanism.size not in self._tables:
            self._tables[mechanism.size] = AliasTable(mechanism.noise())
        return self._tables[mechanism.size].draw(self._random, count)

    def until(self, nodes: Counts) -> Floats:
        return self._running[nodes - self._first]

    def between(self, start: Counts, stop: Counts) -> Floats:
        return self.until(stop) - self.until(start)

    def stretch(self, start: int, stop: int) -> Floats:
        return self._running[start - self._first : stop - self._first]

    def forget(self, before: int) -> None:
        """Drop what no later cover needs."""
        self._running = self._running[before - self._first :].copy()
        self._first = before
