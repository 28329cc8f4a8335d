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
from overhand.trees.tree import Closing, Counts, Tree, Walk, Weights

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
                return self._started(place, level, j)
            left -= reach[j - 1]
        return []

    def following(self, node: Node) -> list[Node]:
        # After a node over T(level - 1, j) comes one over T(level - 1, j - 1), and all that
        # starts with it; after j = 1 there is only the last block.
        j = bisect_left(self._rows[node.level - 1], node.size // self.block) - 1
        return self._started(node.stop, node.level, j) if j else []

    def _started(self, place: int, highest: int, j: int) -> list[Node]:
        """With a node over T(highest - 1, j) start, at once, those over T(l - 1, j) for l below."""
        nodes: list[Node] = []
        for level in range(2, highest + 1):
            stop = place + self.block * self._rows[level - 1][j]
            if stop > self.horizon:
                break
            nodes.append(Node(level, place, stop))
        return nodes

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
        return [up - own for own, up in self._with_parents(paths)]

    def _with_parents(self, paths: list[Counts]) -> Iterator[tuple[Counts, Counts]]:
        """For every level, its path and that of the level above: siblings in between are full."""
        return zip(paths, [*paths[1:], np.full_like(paths[0], self.terms)], strict=True)

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
        for depth, (own, up) in enumerate(self._with_parents(paths)):
            inside = np.concatenate([[0], self._reach[depth + 1][:-1]])  # C(depth + j, depth + 1)
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
        boundaries = zip(paths, closed, [starts, *closed[:-1]], strict=True)
        closing = [
            self._closing(level, path, own, below, starts)
            for level, (path, own, below) in enumerate(boundaries, start=2)
        ]
        inside = slice(None) if starts[-1] < last else slice(-1)
        return Walk(
            starts[inside],
            [full[inside] for full in closed],
            [counts[inside] for counts in self._covering(paths)],
            closing,
        )

    def _closing(
        self, level: int, path: Counts, own: Counts, below: Counts, starts: Counts
    ) -> Closing:
        """Nodes of a level that close where runs start, from what is full there at both levels."""
        closes = own[1:] > own[:-1]
        j, stops, after = path[:-1][closes], starts[1:][closes], below[1:][closes]
        sizes = self.block * self._reach[level - 1][j]
        if level == 2:  # all blocks, the last one too, are of the level below
            return Closing(sizes, stops, after - j - 1, after)
        return Closing(sizes, stops, after - j, after, stops - 1)

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

    def cover_weight(self, blocks: Counts, weights: Weights) -> NDArray[np.float64]:
        total = np.zeros(len(blocks))
        pairs = self._with_parents(self._paths(blocks))
        for (own, up), upto in zip(pairs, self._up_to(weights), strict=True):
            total += upto[up] - upto[own]
        done = blocks == self._reach[self.levels][-1]
        total += done * weights[0][0]  # in the end the last block counts for itself
        return total

    def _up_to(self, weights: Weights) -> list[NDArray[np.float64]]:
        """For every level and j, the weight of nodes over T(level - 1, 1), ..., T(level - 1, j).

        Small j that no full node has weigh nothing.
        """
        result: list[NDArray[np.float64]] = []
        for level, of_level in enumerate(weights, start=1):
            by_j = np.zeros(self.terms + 1)
            by_j[len(by_j) - len(of_level) :] = of_level
            if level == 1:
                by_j[1:] = of_level[0]
            result.append(np.cumsum(by_j))
        return result

    def children_weights(
        self, level: int, below: Sequence[float], lowest: float
    ) -> NDArray[np.float64]:
        # Under a node over T(level - 1, j): nodes over T(level - 2, i), i = j .. 1, and a block.
        by_j = np.full(self.terms, lowest) if level == 2 else np.asarray(below, np.float64)
        inside = np.cumsum(by_j) + lowest
        return np.asarray(inside[len(inside) - len(self.sizes(level)) :])

    def mean_weight(self, weights: Weights) -> float:
        # Boundary x counts for all t with t // block = x: `block` times but at the two ends.
        tail = self.horizon - self.blocks * self.block + 1
        last = float(self.cover_weight(np.array([self.blocks]), weights)[0])
        total = self._weight_sum(self._up_to(weights), self.blocks)
        return (self.block * total + tail * last) / self.horizon

    def _weight_sum(self, up_to: Sequence[NDArray[np.float64]], blocks: int) -> float:
        """Weights of the covers after 0, 1, ..., blocks - 1 blocks, summed up."""
        whole = [np.zeros(self.terms + 1)]  # whole[l][m]: the sum over all of T(l, m)
        for level, upto in enumerate(up_to, start=1):
            size, inside = self._reach[level - 1].astype(np.float64), whole[-1].copy()
            size[0] = inside[0] = 0.0
            sums = upto * (np.cumsum(size) + 1) - np.cumsum(upto * size) + np.cumsum(inside)
            whole.append(sums)
        total, carried, top = 0.0, 0.0, self.terms
        for level in range(self.levels, 0, -1):
            upto = up_to[level - 1]
            for j in range(top, -1, -1):
                size_j = self._rows[level - 1][j] if j else 1
                here = carried + float(upto[top] - upto[j])
                if blocks < size_j:
                    break
                total += here * size_j + (float(whole[level - 1][j]) if j else 0.0)
                blocks -= size_j
                if j == 0:
                    return total
            carried, top = here, j
        return total

    def heaviest_cover(self, weights: Weights) -> float:
        up_to = self._up_to(weights)
        whole = [np.zeros(self.terms + 1)]  # whole[l][m]: the heaviest within T(l, m)
        for upto in up_to:
            before_full = whole[-1] - upto
            before_full[0] = -upto[0]
            whole.append(upto + np.maximum.accumulate(before_full))
        heaviest = self._heaviest(self.levels, self.terms, self.blocks, up_to, whole)
        if self.blocks == self._rows[self.levels][-1]:
            heaviest = max(heaviest, float(up_to[-1][-1]) + weights[0][0])
        return heaviest

    def _heaviest(
        self,
        level: int,
        top: int,
        blocks: int,
        up_to: Sequence[NDArray[np.float64]],
        whole: Sequence[NDArray[np.float64]],
    ) -> float:
        """The heaviest cover within T(level, top) after at most so many of its blocks."""
        if level == 0 or blocks == 0:
            return 0.0
        upto, heaviest = up_to[level - 1], 0.0
        for j in range(top, 0, -1):
            before, size = float(upto[top] - upto[j]), self._rows[level - 1][j]
            heaviest = max(heaviest, before)
            if blocks < size:
                inside = self._heaviest(level - 1, j, blocks, up_to, whole)
                return max(heaviest, before + inside)
            heaviest = max(heaviest, before + float(whole[level - 1][j]))
            blocks -= size
        return max(heaviest, float(upto[top]))

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
