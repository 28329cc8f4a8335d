"""The paper's tree: every node of a level has the same number of children."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Node
from overhand.trees.tree import Closing, Counts, Tree, Walk, Weights

_NO_CLOSING = Closing(*[np.empty(0, np.int64)] * 4)


@dataclass(frozen=True)
class RegularTree(Tree):
    """A tree with `degrees[0]` users under a lowest node and `degrees[l]` children at level l + 1.

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
            raise errors.InvalidValue("degrees=() must name at least one level")
        for level, degree in enumerate(self.degrees, start=1):
            errors.whole(f"the degree of level {level}", degree, least=1 if level == 1 else 2)
        if self._sizes[-1] > self.horizon:
            raise errors.InvalidValue(
                f"batches of {self._sizes[-1]} users do not fit a horizon of {self.horizon}"
            )

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(self.degrees[: level + 1]) for level in range(len(self.degrees)))

    @property
    def levels(self) -> int:  # type: ignore[override]
        return len(self.degrees)

    @property
    def lowest(self) -> int:  # type: ignore[override]
        return self.degrees[0]

    def sizes(self, level: int) -> tuple[int, ...]:
        errors.whole("level", level, least=1, most=self.levels)
        return (self._sizes[level - 1],)

    def nodes_above(self, place: int) -> list[Node]:
        nodes: list[Node] = []
        for level, size in enumerate(self._sizes[1:], start=2):
            start = place - place % size
            if start + size > self.horizon:
                break
            nodes.append(Node(level, start, start + size))
        return nodes

    def opening(self, place: int) -> list[Node]:
        nodes: list[Node] = []
        for level, size in enumerate(self._sizes[1:], start=2):
            if place % size or place + size > self.horizon:
                break
            nodes.append(Node(level, place, place + size))
        return nodes

    def closed(self, blocks: Counts) -> list[Counts]:
        return [blocks // (size // self.lowest) for size in self._sizes]

    def in_cover(self, blocks: Counts) -> list[Counts]:
        full = self.closed(blocks)
        parents = zip(full[:-1], self.degrees[1:], full[1:], strict=True)
        return [*(own - degree * above for own, degree, above in parents), full[-1]]

    def walk(self, first: int, last: int) -> Walk:
        length = self.degrees[1] if self.levels > 1 else last + 1
        starts = np.arange(first // length * length, last, length, dtype=np.int64)
        return Walk(
            starts,
            self.closed(starts)[1:],
            self.in_cover(starts)[1:],
            [
                self._closing(size, degree, first, last)
                for size, degree in zip(self._sizes[1:], self.degrees[1:], strict=True)
            ],
        )

    def _closing(self, size: int, degree: int, first: int, last: int) -> Closing:
        blocks = size // self.lowest
        if first // blocks == last // blocks:
            return _NO_CLOSING
        nodes = np.arange(first // blocks, last // blocks, dtype=np.int64)
        sizes, after = np.full(len(nodes), size, np.int64), nodes + 1
        return Closing(sizes, after * blocks, nodes * degree, after * degree)

    def cover_weight(self, blocks: Counts, weights: Weights) -> NDArray[np.float64]:
        total = np.zeros(len(blocks))
        for covering, (weight,) in zip(self.in_cover(blocks), weights, strict=True):
            total += covering * weight
        return total

    def mean_weight(self, weights: Weights) -> float:
        full = [_floor_sum(self.horizon, size) / self.horizon for size in self._sizes]
        parents = zip(full[:-1], self.degrees[1:], full[1:], strict=True)
        covering = [*(own - degree * above for own, degree, above in parents), full[-1]]
        return math.fsum(c * weight for c, (weight,) in zip(covering, weights, strict=True))

    def heaviest_cover(self, weights: Weights) -> float:
        heaviest, spare = 0.0, 0.0  # of the first levels: within the horizon's rest, without limit
        for level, (size, (weight,)) in enumerate(zip(self._sizes, weights, strict=True)):
            above = self._sizes[level + 1] if level + 1 < self.levels else math.inf
            here = self.horizon // size if above == math.inf else self.horizon % above // size
            inside = heaviest + here * weight
            if here > 0:
                inside = max(inside, spare + (here - 1) * weight)
            heaviest = inside
            if level + 1 < self.levels:
                spare += (self.degrees[level + 1] - 1) * weight
        return heaviest

    def children_weights(
        self, level: int, below: Sequence[float], lowest: float
    ) -> NDArray[np.float64]:
        return np.array([self.degrees[level - 1] * below[0]])

    def description(self) -> dict[str, Any]:
        return {"kind": "regular", "degrees": list(self.degrees)}


def _floor_sum(horizon: int, size: int) -> int:
    """The sum of t // size over t = 1 .. horizon."""
    full, rest = divmod(horizon + 1, size)
    return size * (full * (full - 1) // 2) + full * rest


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
