"""What every tree answers, by integer arithmetic: no tree is ever built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Node

Counts = NDArray[np.int64]


Weights = Sequence[Sequence[float]]
"""What a node weighs: by its level, from 1 on, and by its size, in the order of `sizes`."""


class Closing(NamedTuple):
    """Nodes of one level in the order in which they become full, after `stops` blocks.

    A node's children are nodes of the level below, by their numbers in that order, and, in a path
    tree, a last block that only is a lowest node.
    """

    sizes: Counts
    stops: Counts
    first_children: Counts
    after_children: Counts
    last_blocks: Counts | None = None


class Walk(NamedTuple):
    """The levels above the lowest, along a stretch of blocks.

    Their part of the cover changes only from run to run; within a run the cover gains a lowest
    node with every block. All lists start at level 2.
    """

    starts: Counts
    """First blocks of the runs, the first of them holding the first block of the stretch."""
    closed: list[Counts]
    """How many nodes are full where a run starts."""
    covering: list[Counts]
    """How many of the last of these are in the cover."""
    closing: list[Closing]
    """The nodes that become full after the stretch's start, up to its end."""


class Tree(ABC):
    """A family of batches in which any two are nested or disjoint, one shuffler to a level.

    Level 1 is the lowest: consecutive batches of `lowest` users, called blocks. Users are
    counted from 1 (`t`), places from 0. A batch that would outlast the horizon does not exist.

    The most batches that any sum is made of, with two levels and 1,000 users:

    >>> from overhand.trees import PathTree, RegularTree
    >>> regular = RegularTree(horizon=1000, degrees=(1, 32))
    >>> path = PathTree(horizon=1000, levels=2, terms=44, block=1)
    >>> [max(len(list(tree.cover(t))) for t in range(900, 1001)) for tree in (regular, path)]
    [61, 44]
    """

    horizon: int
    levels: int
    lowest: int

    @abstractmethod
    def sizes(self, level: int) -> tuple[int, ...]:
        """The distinct batch sizes of a level, ascending."""

    @abstractmethod
    def nodes_above(self, place: int) -> list[Node]:
        """The nodes above the lowest level that hold this place, lowest first."""

    @abstractmethod
    def opening(self, place: int) -> list[Node]:
        """The nodes above the lowest level that start at this place, lowest first."""

    def following(self, node: Node) -> list[Node]:
        """The nodes above the lowest level that open where this one closes, lowest first.

        `node` is the highest of those that close there.
        """
        return self.opening(node.stop) if node.stop < self.horizon else []

    @abstractmethod
    def in_cover(self, blocks: Counts) -> list[Counts]:
        """For every level, how many of its nodes are in the cover after so many blocks."""

    @abstractmethod
    def closed(self, blocks: Counts) -> list[Counts]:
        """For every level, how many of its nodes are full after so many blocks."""

    @abstractmethod
    def walk(self, first: int, last: int) -> Walk:
        """What happens above the lowest level between the block boundaries `first` and `last`."""

    @abstractmethod
    def cover_weight(self, blocks: Counts, weights: Weights) -> NDArray[np.float64]:
        """The total weight of the cover after so many blocks."""

    @abstractmethod
    def mean_weight(self, weights: Weights) -> float:
        """The total weight of cover(t), averaged over t = 1 .. horizon."""

    @abstractmethod
    def heaviest_cover(self, weights: Weights) -> float:
        """The largest total weight of any cover(t)."""

    @abstractmethod
    def children_weights(
        self, level: int, below: Sequence[float], lowest: float
    ) -> NDArray[np.float64]:
        """For each size of a level, the total weight of a node's children.

        `below` are the weights of the level below, by size; `lowest` is that of a lowest node.
        """

    def mean_cover(self) -> NDArray[np.float64]:
        """For every level, its number of nodes in cover(t), averaged over t = 1 .. horizon."""
        return np.array(
            [
                self.mean_weight(
                    [[float(level == other)] * len(self.sizes(other)) for other in self._levels()]
                )
                for level in self._levels()
            ]
        )

    def _levels(self) -> range:
        return range(1, self.levels + 1)

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """The parameters, ready for JSON."""

    def nodes_of(self, place: int) -> list[Node]:
        """All nodes that hold this place, lowest first."""
        start = place // self.lowest * self.lowest
        if start + self.lowest > self.horizon:
            return []
        return [Node(1, start, start + self.lowest), *self.nodes_above(place)]

    def joins(self, t: int) -> list[Node]:
        """The nodes that user `t` sends to, lowest first: at most one of every level."""
        t = errors.whole("t", t, least=1, most=self.horizon)
        return self.nodes_of(t - 1)

    def closes(self, t: int) -> list[Node]:
        """The nodes that are full once user `t` has sent, lowest first."""
        return [node for node in self.joins(t) if node.stop == t]

    def cover(self, start: int, stop: int | None = None) -> Iterator[Node]:
        """The fewest full batches that partition a range as far as blocks can.

        `cover(t)` is V*_t of Definition 3.1: the batches whose sums are added at time t.
        `cover(start, stop)` covers the users at places start .. stop - 1; up to `lowest` - 1
        users at either end are in no batch of the range and stay uncovered.
        """
        if stop is None:
            start, stop = 0, start
        start = errors.whole("start", start, least=0, most=self.horizon)
        stop = errors.whole("stop", stop, least=start, most=self.horizon)
        return self._covering_nodes(start, stop)

    def _covering_nodes(self, start: int, stop: int) -> Iterator[Node]:
        place = -(-start // self.lowest) * self.lowest
        while place + self.lowest <= stop:
            node = Node(1, place, place + self.lowest)
            for above in self.opening(place):
                if above.stop <= stop:
                    node = above
            yield node
            place = node.stop

    def mean_pending_square(self) -> float:
        """Mean over t of the squared number of users that no full block holds."""
        full, rest = divmod(self.horizon + 1, self.lowest)  # t = 0 .. horizon; t = 0 adds 0
        return (full * _square_sum(self.lowest) + _square_sum(rest)) / self.horizon

    @property
    def most_pending(self) -> int:
        """The largest number of users that no full block holds."""
        return min(self.lowest - 1, self.horizon)

    @property
    def blocks(self) -> int:
        """How many blocks become full."""
        return self.horizon // self.lowest

    @property
    def covered(self) -> int:
        """How many users are in blocks that become full: the others stay pending for good."""
        return self.blocks * self.lowest


def _square_sum(below: int) -> int:
    """0^2 + 1^2 + ... + (below - 1)^2."""
    return (below - 1) * below * (2 * below - 1) // 6 if below > 0 else 0
