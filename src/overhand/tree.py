"""`reference.Tree`, fast: the paper's tree of batches in integer arithmetic, never built."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from overhand import errors
from overhand.model import Counts, Floats, Node

__all__ = [
    "Combination",
    "RegularTree",
    "Weights",
    "binary_degrees",
    "combine_sums",
    "own_weight",
    "published_degrees",
]

Weights = Sequence[float]
"""The weight of a node, by its level, counted from 1."""


@dataclass(frozen=True)
class RegularTree:
    """A tree with `degrees[0]` users under a lowest node and `degrees[l]` children at level l + 1.

    Any two batches are nested or disjoint, and each level has one shuffler. Level 1 is the lowest:
    consecutive batches of `lowest` users, called blocks. Users are counted from 1 (`t`), places
    from 0. A batch that would outlast the horizon does not exist.

    The root is not a batch: a sum of all users comes too late to be of use. It has as many
    children as the horizon needs, so the horizon need not be a product of the degrees.

    The tree of Figure 2, at times 6, 7 and 8:

    >>> tree = RegularTree(horizon=8, degrees=(2, 2))
    >>> for t in (6, 7, 8):
    ...     print(t, [(node.start + 1, node.stop) for node in tree.cover(t)])
    6 [(1, 4), (5, 6)]
    7 [(1, 4), (5, 6)]
    8 [(1, 4), (5, 8)]
    """

    horizon: int
    degrees: tuple[int, ...]

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)
        if not self.degrees:
            raise errors.InvalidValue("degrees=() must have at least one level")
        for level, degree in enumerate(self.degrees, start=1):
            errors.whole(f"the degree of level {level}", degree, least=1 if level == 1 else 2)
        if self.sizes[-1] > self.horizon:
            raise errors.InvalidValue(
                f"batches of {self.sizes[-1]} users do not fit into a horizon of {self.horizon}"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of users per batch of each level, lowest level first."""
        return tuple(math.prod(self.degrees[: level + 1]) for level in range(len(self.degrees)))

    @property
    def levels(self) -> int:
        return len(self.degrees)

    @property
    def lowest(self) -> int:
        """The number of users per block."""
        return self.degrees[0]

    @property
    def blocks(self) -> int:
        return self.horizon // self.lowest

    @property
    def covered(self) -> int:
        """How many users are in blocks that become full: the others stay pending for good."""
        return self.blocks * self.lowest

    def node(self, level: int, number: int) -> Node:
        """The batch of this number, from 0, among those of its level."""
        level = errors.whole("level", level, least=1, most=self.levels)
        size = self.sizes[level - 1]
        number = errors.whole("number", number, least=0, most=self.horizon // size - 1)
        return Node(level, number * size, (number + 1) * size)

    def joins(self, t: int) -> list[Node]:
        """The nodes that user `t` sends to, lowest first: at most one per level."""
        place = errors.whole("t", t, least=1, most=self.horizon) - 1
        nodes: list[Node] = []
        for level, size in enumerate(self.sizes, start=1):
            start = place - place % size
            if start + size > self.horizon:
                break
            nodes.append(Node(level, start, start + size))
        return nodes

    def closes(self, t: int) -> list[Node]:
        """The nodes that are full once user `t` has sent, lowest first."""
        nodes: list[Node] = []
        for level, size in enumerate(self.sizes, start=1):
            if t % size or not 0 < t <= self.horizon:
                break
            nodes.append(Node(level, t - size, t))
        return nodes

    def starting_at(self, place: int, stop: int) -> Iterator[Node]:
        """The nodes that start at a place and end by another, highest first."""
        for level in range(self.levels, 0, -1):
            size = self.sizes[level - 1]
            if place % size == 0 and place + size <= stop:
                yield Node(level, place, place + size)

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
            node = next(self.starting_at(place, stop))
            yield node
            place = node.stop

    def closed_nodes(self, blocks: Counts) -> list[Counts]:
        """For every level, how many of its nodes are full after this many blocks."""
        return [blocks // (size // self.lowest) for size in self.sizes]

    def in_cover(self, blocks: Counts) -> list[Counts]:
        """For every level, how many of its nodes are in the cover after this many blocks."""
        full = self.closed_nodes(blocks)
        parents = zip(full[:-1], self.degrees[1:], full[1:], strict=True)
        return [*(own - degree * above for own, degree, above in parents), full[-1]]

    def cover_weight(self, blocks: Counts, weights: Weights) -> Floats:
        total = np.zeros(len(blocks))
        for covering, weight in zip(self.in_cover(blocks), weights, strict=True):
            total += covering * weight
        return total

    @cached_property
    def mean_cover(self) -> Floats:
        """For every level, its number of nodes in cover(t), averaged over t = 1 .. horizon."""
        full = [_floor_sum(self.horizon, size) / self.horizon for size in self.sizes]
        parents = zip(full[:-1], self.degrees[1:], full[1:], strict=True)
        return np.array([*(own - degree * above for own, degree, above in parents), full[-1]])

    def mean_weight(self, weights: Weights) -> float:
        """The total weight of cover(t), averaged over t = 1 .. horizon."""
        return math.fsum(c * weight for c, weight in zip(self.mean_cover, weights, strict=True))

    def heaviest_cover(self, weights: Weights) -> float:
        """The largest total weight of any cover(t)."""
        heaviest, spare = 0.0, 0.0  # of the first levels: within the horizon's rest, without limit
        for level, (size, weight) in enumerate(zip(self.sizes, weights, strict=True)):
            above = self.sizes[level + 1] if level + 1 < self.levels else math.inf
            here = self.horizon // size if above == math.inf else self.horizon % above // size
            inside = heaviest + here * weight
            if here > 0:
                inside = max(inside, spare + (here - 1) * weight)
            heaviest = inside
            if level + 1 < self.levels:
                spare += (self.degrees[level + 1] - 1) * weight
        return float(heaviest)

    def mean_pending_square(self) -> float:
        """Mean over t of the squared number of users that no full block holds."""
        full, rest = divmod(self.horizon + 1, self.lowest)  # t = 0 .. horizon; t = 0 adds 0
        return (full * _square_sum(self.lowest) + _square_sum(rest)) / self.horizon

    @property
    def most_pending(self) -> int:
        """The largest number of users that no full block holds."""
        return min(self.lowest - 1, self.horizon)


def _floor_sum(horizon: int, size: int) -> int:
    """The sum of t // size over t = 1 .. horizon."""
    full, rest = divmod(horizon + 1, size)
    return size * (full * (full - 1) // 2) + full * rest


def _square_sum(below: int) -> int:
    """0^2 + 1^2 + ... + (below - 1)^2."""
    return (below - 1) * below * (2 * below - 1) // 6 if below > 0 else 0


def published_degrees(horizon: int, shufflers: int) -> tuple[int, ...]:
    """The degrees of Section 3.2, lowest first: d_low = n^(1/(2k+1)), then d = d_low^2.

    >>> published_degrees(horizon=10**6, shufflers=3)
    (7, 49, 49)
    """
    horizon = errors.whole("horizon", horizon, least=1)
    shufflers = errors.whole("shufflers", shufflers, least=1)
    lowest = max(2, round(horizon ** (1 / (2 * shufflers + 1))))
    degrees = (lowest, *[lowest**2] * (shufflers - 1))
    while len(degrees) > 1 and math.prod(degrees) > horizon:
        degrees = degrees[:-1]
    return (min(degrees[0], horizon), *degrees[1:])


def binary_degrees(horizon: int) -> tuple[int, ...]:
    """The binary tree's log n - 1 internal levels, the root left out (Section 3.1).

    >>> binary_degrees(8), len(binary_degrees(10**6))
    ((2, 2), 19)
    """
    horizon = errors.whole("horizon", horizon, least=2)
    return (2,) * max(1, (horizon - 1).bit_length() - 1)


def own_weight(own: float, children: float) -> float:
    """The weight of a node's own sum, of this variance, relative to its children's estimates.

    The estimate of least variance has weights in proportion to 1 / variance.

    >>> own_weight(1.0, 3.0)
    0.75
    """
    return children / (own + children) if own + children > 0 else 1.0


def combine_sums(own: Any, children: Any, weight: float, *, power: int = 1) -> Any:
    """A node's estimate, from its own sum and the sum of its children's estimates.

    With `power`, for quantities that scale with a power of the weights, as variances do with 2.

    >>> combine_sums(10.0, 14.0, weight=0.75)
    11.0
    """
    return weight**power * own + (1 - weight) ** power * children


@dataclass(frozen=True)
class Combination:
    """The variance-optimal estimate of a node: weights of its own sum and of its children's.

    With s the variance of the own sum and C that of the sum of the children's estimates, the
    estimate has variance V = 1 / (1/s + 1/C), and the own sum has weight V / s. No full ancestor of
    a covering node exists, so adding the covering nodes' estimates is the best linear unbiased
    estimate of a prefix. It halves the variance of a binary tree and does little for large
    degrees. All fields are by level.

    >>> tree = RegularTree(horizon=8, degrees=(2, 2))
    >>> Combination.of(tree, [1.0, 2.0], combine=True)
    Combination(own_weights=(1.0, 0.5), variances=(1.0, 1.0))
    """

    own_weights: tuple[float, ...]
    variances: tuple[float, ...]

    @classmethod
    def of(cls, tree: RegularTree, variances: Weights, *, combine: bool) -> Combination:
        """Weights and variances of the nodes' estimates, from the variances of their own sums."""
        weights = [1.0]
        found = [float(variances[0])]
        for own, degree in zip(variances[1:], tree.degrees[1:], strict=True):
            children = degree * found[-1]
            weights.append(own_weight(own, children) if combine else 1.0)
            found.append(float(combine_sums(own, children, weights[-1], power=2)))
        return cls(tuple(weights), tuple(found))

    def over(self, tree: RegularTree, own: Weights, *, power: int) -> Weights:
        """A quantity of estimates that scales with a power of the weights, from that of sums."""
        found = [float(own[0])]
        levels = zip(own[1:], self.own_weights[1:], tree.degrees[1:], strict=True)
        for of_level, weight, degree in levels:
            found.append(float(combine_sums(of_level, degree * found[-1], weight, power=power)))
        return found
