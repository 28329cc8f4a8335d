"""The path tree: as many blocks as k shufflers and m noise terms can serve."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Node
from overhand.trees.tree import Counts, Tree, Walk

_MOST_USERS = 1 << 62  # counts are 64-bit integers


@dataclass(frozen=True)
class PathTree(Tree):
    """T(levels, terms) over blocks of `block` users.

    T(k, m) is one block if k = 0 or m = 0; else it is a node over T(k - 1, m), followed by
    T(k, m - 1). It has C(k + m, k) blocks, no block is in more than k nodes, and after any block
    the cover has at most m nodes: the left siblings on the path. A regular tree of the same
    levels and terms serves fewer blocks.

    The last block of every T(k, m) is in fewer nodes than its neighbours; it uses the spare
    participation for a lowest node of its own, so every block is one.

    A place is found by the number y of blocks from it to the end of T(k, m): it is in the node
    over T(k - 1, j) for the least j with C(k + j, k) >= y, and has y - C(k + j - 1, k) blocks to
    the end of that node. (This is the combinatorial number system.)

    >>> tree = PathTree(horizon=10, levels=2, terms=3, block=1)
    >>> for t in (3, 6, 9):
    ...     print(t, [(node.start, node.stop) for node in tree.cover(t)])
    3 [(0, 1), (1, 2), (2, 3)]
    6 [(0, 4), (4, 5), (5, 6)]
    9 [(0, 4), (4, 7), (7, 9)]
    """

    horizon: int
    levels: int
    terms: int
    block: int

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)
        errors.whole("levels", self.levels, least=1)
        errors.whole("terms", self.terms, least=1)
        errors.whole("block", self.block, least=1, most=self.horizon)
        capacity = self.block * math.comb(self.levels + self.terms, self.levels)
        if capacity > _MOST_USERS:
            raise errors.InvalidValue(
                f"{self.levels} levels and {self.terms} terms serve more than 2^62 users"
            )
        if self.horizon > capacity:
            raise errors.InvalidValue(
                f"{self.levels} levels and {self.terms} terms over blocks of {self.block} serve "
                f"{capacity} users, not {self.horizon}"
            )

    @property
    def lowest(self) -> int:  # type: ignore[override]
        return self.block

    @cached_property
    def _rows(self) -> list[list[int]]:
        """_rows[l][j] = C(l + j, l), the blocks of T(l, j)."""
        return [
            [math.comb(level + j, level) for j in range(self.terms + 1)]
            for level in range(self.levels + 1)
        ]

    @cached_property
    def _reach(self) -> list[Counts]:
        """The same as arrays."""
        return [np.array(row, np.int64) for row in self._rows]

    def sizes(self, level: int) -> tuple[int, ...]:
        errors.whole("level", level, least=1, most=self.levels)
        if level == 1:
            return (self.block,)
        # The first T(level, terms) shows every j, largest first; node j is full after
        # C(level + terms, level) - C(level + j - 1, level) blocks.
        reach, inside = self._reach[level], self._reach[level - 1]
        full = reach[-1] - reach[:-1] <= self.blocks
        return tuple(self.block * int(blocks) for blocks in inside[1:][full])

    def nodes_above(self, place: int) -> list[Node]:
        block = place // self.block
        nodes: list[Node] = []
        left = self._rows[self.levels][-1] - block
        for level in range(self.levels, 1, -1):
            reach = self._rows[level]
            j = bisect_left(reach, left)
            if j == 0:
                break
            start = block - (reach[j] - left)
            stop = self.block * (start + self._rows[level - 1][j])
            if stop <= self.horizon:
                nodes.append(Node(level, start * self.block, stop))
            left -= reach[j - 1]
        return nodes[::-1]

    def opening(self, place: int) -> list[Node]:
        block, inside = divmod(place, self.block)
        if inside:
            return []
        left = self._rows[self.levels][-1] - block
        for level in range(self.levels, 1, -1):
            reach = self._rows[level]
            j = bisect_left(reach, left)
            if j == 0:
                return []
            if reach[j] == left:
                # T(level, j) starts here, and with it, at once, T(l - 1, j) for all l below.
                stops = [place + self.block * row[j] for row in self._rows[1:level]]
                return [
                    Node(above, place, stop)
                    for above, stop in enumerate(stops, start=2)
                    if stop <= self.horizon
                ]
            left -= reach[j - 1]
        return []

    def following(self, node: Node) -> list[Node]:
        # After a node over T(level - 1, j) comes one over T(level - 1, j - 1), and all that
        # starts with it; after j = 1 there is only the last block.
        place, rows = node.stop, self._rows
        j = bisect_left(rows[node.level - 1], (place - node.start) // self.block) - 1
        if j < 1:
            return []
        opening: list[Node] = []
        for level in range(2, node.level + 1):
            stop = place + self.block * rows[level - 1][j]
            if stop > self.horizon:
                break
            opening.append(Node(level, place, stop))
        return opening

    def _paths(self, blocks: Counts, over: int | None = None) -> list[Counts]:
        """For every level, the j of the node over T(level - 1, j) that the next block is in.

        With `over`, the same for the blocks of T(over, terms) in place of the whole tree.
        """
        over = self.levels if over is None else over
        left = self._reach[over][-1] - blocks
        paths: list[Counts] = []
        for level in range(over, 0, -1):
            reach = self._reach[level]
            j = np.searchsorted(reach, left).astype(np.int64)
            left = np.where(j > 0, left - reach[j - 1], left)
            paths.append(j)
        return paths[::-1]

    def in_cover(self, blocks: Counts) -> list[Counts]:
        counts = self._covering(self._paths(blocks))
        # Only once all is done does the last block count for itself.
        counts[0] = counts[0] + (blocks == self._reach[self.levels][-1])
        return counts

    def closed(self, blocks: Counts) -> list[Counts]:
        return [blocks, *self._closed_above(self._paths(blocks)[1:])]

    def _covering(self, paths: list[Counts]) -> list[Counts]:
        above = [*paths[1:], np.full_like(paths[0], self.terms)]
        return [up - own for own, up in zip(paths, above, strict=True)]

    def _closed_above(self, paths: list[Counts]) -> list[Counts]:
        """How many nodes of the levels 2, 3, ... are full, from the paths at these levels."""
        totals: list[Counts] = []
        for skipped in range(len(paths)):
            full = np.zeros_like(paths[0])
            for inside in self._inside_steps(paths[skipped:]):
                full += inside
            totals.append(full)
        return totals

    def _inside_steps(self, paths: list[Counts]) -> Iterator[Counts]:
        """Nodes of the lowest of these levels in the full nodes of each, those before the path.

        d levels up, T(l, j) for j = b + 1 .. a hold C(d + a, d + 1) - C(d + b, d + 1) of them.
        """
        above = [*paths[1:], np.full_like(paths[0], self.terms)]
        for depth, (own, up) in enumerate(zip(paths, above, strict=True)):
            inside = np.array(
                [math.comb(depth + j, depth + 1) for j in range(self.terms + 1)], np.int64
            )
            yield inside[up] - inside[own]

    def walk(self, first: int, last: int) -> Walk:
        if self.levels == 1:
            return Walk(np.zeros(1, np.int64), [], [], [])
        # A run is a T(1, j) of j + 1 blocks. Runs follow each other like the blocks of
        # T(levels - 1, terms): the paths of that tree are those of the levels above the lowest.
        run, start = self._run_of(first)
        end, _ = self._run_of(last)
        paths = self._paths(np.arange(run, end + 1, dtype=np.int64), self.levels - 1)
        starts = start + np.concatenate([[0], np.cumsum(paths[0][:-1] + 1)])
        closed = self._closed_above(paths)
        closing: list[Counts] = []
        for level, (path, full) in enumerate(zip(paths, closed, strict=True), start=2):
            closes = full[1:] > full[:-1]
            closing.append(self.block * self._reach[level - 1][path[:-1][closes]])
        inside = slice(None) if starts[-1] < last else slice(-1)
        return Walk(
            starts[inside],
            [full[inside] for full in closed],
            [counts[inside] for counts in self._covering(paths)],
            closing,
        )

    def _run_of(self, block: int) -> tuple[int, int]:
        """The number of the run that holds a block, and the run's first block."""
        left, above, run = self._rows[self.levels][-1] - block, self.terms, 0
        if left == 0:
            return self._rows[self.levels - 1][-1], block
        for level in range(self.levels, 1, -1):
            j = bisect_left(self._rows[level], left)
            run += self._rows[level - 1][above] - self._rows[level - 1][j]
            if j == 0:
                return run, block
            left -= self._rows[level][j - 1]
            above = j
        return run, block - (above + 1 - left)

    def mean_cover(self) -> NDArray[np.float64]:
        # Boundary x counts for all t with t // block = x: `block` times but at the two ends.
        tail = self.horizon - self.blocks * self.block + 1
        last = [int(c[0]) for c in self.in_cover(np.array([self.blocks]))]
        sums = [
            self._cover_sum(self.levels, self.terms, level, self.blocks)
            for level in range(1, self.levels + 1)
        ]
        return np.array(
            [(self.block * s + tail * e) / self.horizon for s, e in zip(sums, last, strict=True)]
        )

    def _cover_sum(self, over: int, terms: int, level: int, blocks: int) -> int:
        """Nodes of a level in the covers within T(over, terms), summed over its first blocks.

        Over all of T(k, m) the sum is C(k + m, k + 1), the same for every level.
        """
        if blocks >= math.comb(over + terms, over):
            return math.comb(over + terms, over + 1)
        total = 0
        for done, j in enumerate(range(terms, 0, -1)):
            inside = min(blocks, math.comb(over - 1 + j, over - 1))
            if over == level:
                total += done * inside
            else:
                total += self._cover_sum(over - 1, j, level, inside)
            blocks -= inside
            if blocks == 0:
                break
        return total

    def heaviest_cover(self, weights: Sequence[float]) -> float:
        heaviest = self._heaviest(self.levels, self.terms, weights, self.blocks)
        if self.blocks == self._reach[self.levels][-1]:
            heaviest = max(heaviest, self.terms * weights[-1] + weights[0])
        return heaviest

    def _heaviest(self, over: int, terms: int, weights: Sequence[float], blocks: int) -> float:
        """The heaviest cover within T(over, terms) after at most so many of its blocks."""
        if blocks == 0 or over == 0 or terms == 0:
            return 0.0
        heaviest, done = 0.0, 0
        for j in range(terms, 0, -1):
            size = math.comb(over - 1 + j, over - 1)
            if blocks < size:
                inside = self._heaviest(over - 1, j, weights, blocks)
                return max(heaviest, done * weights[over - 1] + inside)
            # Before its last block, T(over - 1, j) shows j terms of any one of its levels.
            inside = j * max(weights[: over - 1], default=0.0)
            heaviest = max(heaviest, done * weights[over - 1] + inside)
            blocks, done = blocks - size, done + 1
            heaviest = max(heaviest, done * weights[over - 1])
        return heaviest

    def description(self) -> dict[str, Any]:
        return {"kind": "path", "levels": self.levels, "terms": self.terms, "block": self.block}


def terms_for(blocks: int, levels: int) -> int:
    """The fewest terms with which so many levels serve so many blocks.

    >>> terms_for(blocks=1000, levels=2)
    44
    """
    blocks = errors.whole("blocks", blocks, least=1)
    levels = errors.whole("levels", levels, least=1)
    low, high = 1, 1
    while math.comb(levels + high, levels) < blocks:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if math.comb(levels + middle, levels) < blocks:
            low = middle + 1
        else:
            high = middle
    return low
