"""The server of a deployment: batches come in any order, late, or never."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.model import Estimate, Node
from overhand.plan import Plan
from overhand.summation.numbers import Numbers
from overhand.trees import RegularTree


@dataclass(frozen=True)
class NodeSum:
    """What is known of a node's users: a sum, its noise, and how far it may be off beyond that."""

    value: Any
    variance: float
    fourth_cumulant: float
    slack: float

    def with_weight(self, weight: float) -> NodeSum:
        return NodeSum(
            weight * self.value,
            weight**2 * self.variance,
            weight**4 * self.fourth_cumulant,
            weight * self.slack,
        )

    def __add__(self, other: NodeSum) -> NodeSum:
        return NodeSum(
            self.value + other.value,
            self.variance + other.variance,
            self.fourth_cumulant + other.fourth_cumulant,
            self.slack + other.slack,
        )


@dataclass(frozen=True)
class Gathered:
    """An estimate from the batches so far, and whether it had to do without one of the cover.

    The four batches of two users are there, and the one of all eight is not yet:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(54, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> sums = GatheredSums(plan)
    >>> for number in range(4):
    ...     sums.receive(level=1, number=number, value=1.0)
    >>> first = sums.latest()
    >>> sums.receive(level=2, number=0, value=4.0)
    >>> second = sums.latest()
    >>> first.is_fallback, second.is_fallback, second.estimate.std < first.estimate.std
    (True, False, True)
    """

    estimate: Estimate
    is_fallback: bool


@dataclass(frozen=True)
class _Known:
    """A batch that came: its own sum and the best one, both None if it was lost."""

    own: NodeSum | None
    best: NodeSum | None
    is_settled: bool
    """Whether no other batch can make it better."""


class GatheredSums:
    """Adds up whatever batches there are: the same estimates as `SumServer`'s if all of them are.

    Where a batch is missing, those below it stand in, with the larger error bar that is theirs;
    where a lowest batch is missing, the estimate waits for one above it. A plan with a regular
    tree only: there a batch is a level and a number.

    What no later estimate can need is forgotten: batches below one that is settled, and settled
    ones that every estimate begins with. So memory grows with batches that are missing, not with
    those that came.

    The second batch is late, and what came after it waits:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(54, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> sums = GatheredSums(plan)
    >>> for number in (0, 2, 1):
    ...     sums.receive(level=1, number=number, value=1.0)
    ...     print(sums.latest().estimate.t, list(sums.missing(level=1, below=3)))
    2 [1, 2]
    2 [1]
    6 []
    """

    def __init__(self, plan: Plan) -> None:
        if not isinstance(plan.tree, RegularTree):
            raise errors.InvalidValue("a deployment needs a plan with a regular tree")
        self.plan = plan
        self._tree = plan.tree
        self._sizes = [plan.tree.sizes(level)[0] for level in range(1, plan.tree.levels + 1)]
        self._came = [Numbers() for _ in self._sizes]
        self._known: list[dict[int, _Known]] = [{} for _ in self._sizes]
        self._begin = 0  # every estimate begins with the same sum of so many users
        self._beginning: NodeSum | None = None
        self._lost_stop = math.inf  # where the first lost batch ends that the beginning went into
        self._is_blocked = False  # all batches of some user are lost: no estimate goes past it

    def copy(self) -> GatheredSums:
        """Another one that has received the same."""
        result = GatheredSums(self.plan)
        result._came = [came.copy() for came in self._came]
        result._known = [known.copy() for known in self._known]
        result._begin, result._beginning = self._begin, self._beginning
        result._lost_stop, result._is_blocked = self._lost_stop, self._is_blocked
        return result

    @property
    def kept(self) -> int:
        """How many batches and intervals of batches are in memory."""
        intervals = sum(came.intervals for came in self._came)
        return intervals + sum(len(known) for known in self._known)

    @property
    def reach(self) -> int:
        """Where the last batch that came ends."""
        ends = (size * came.stop for size, came in zip(self._sizes, self._came, strict=True))
        return max(ends)

    def missing(self, level: int, below: int) -> Iterator[int]:
        """The numbers below this of the batches of a level that did not come."""
        return self._came[level - 1].gaps(below)

    def node(self, level: int, number: int) -> Node:
        """The batch of this number, from 0, among those of its level."""
        level = errors.whole("level", level, least=1, most=len(self._sizes))
        size = self._sizes[level - 1]
        number = errors.whole("number", number, least=0, most=self._tree.horizon // size - 1)
        return Node(level, number * size, (number + 1) * size)

    def receive(self, level: int, number: int, value: Any, slack: float = 0.0) -> None:
        """The analyzed sum of a batch, which may be off by `slack` beyond its noise."""
        node = self._new(level, number)
        if np.shape(value) != self.plan.values.shape:
            raise errors.InvalidValue(
                f"a sum of shape {np.shape(value)} where one of shape "
                f"{self.plan.values.shape} is due"
            )
        mechanism = self.plan.mechanism(node)
        self._take(node, NodeSum(value, mechanism.variance, mechanism.fourth_cumulant, slack))

    def lose(self, level: int, number: int) -> None:
        """A batch came, and its sum cannot be told: no estimate waits for it."""
        self._take(self._new(level, number), None)

    def _new(self, level: int, number: int) -> Node:
        node = self.node(level, number)
        if number in self._came[level - 1]:
            raise ProtocolViolation(f"{node} received twice")
        return node

    def _take(self, node: Node, own: NodeSum | None) -> None:
        number = node.start // node.size
        self._came[node.level - 1].add(number)
        if self._is_blocked or self._is_covered(node):
            return
        self._known[node.level - 1][number] = _Known(own, own, own is None)
        self._improve(node.level, number)
        self._extend_beginning()

    def _is_covered(self, node: Node) -> bool:
        """Whether every estimate from now on has another sum of these users."""
        return node.stop <= self._begin or any(
            known is not None and known.is_settled and known.best is not None
            for known in self._above(node)
        )

    def _above(self, node: Node) -> Iterator[_Known | None]:
        for level in range(node.level + 1, len(self._sizes) + 1):
            yield self._known[level - 1].get(node.start // self._sizes[level - 1])

    def _improve(self, level: int, number: int) -> None:
        """Combine a node with its children, and then the nodes above that this makes better."""
        known = self._known[level - 1][number]
        if known.own is not None:
            best, is_settled = self._best(level, number, known.own)
            self._known[level - 1][number] = _Known(known.own, best, is_settled)
            if is_settled:
                self._forget_below(level, number)
        if level < len(self._sizes):
            parent = number // self._tree.degrees[level]
            above = self._known[level].get(parent)
            if above is not None and not above.is_settled:
                self._improve(level + 1, parent)

    def _best(self, level: int, number: int, own: NodeSum) -> tuple[NodeSum, bool]:
        """The best sum of a node that came, and whether it stays so."""
        if level == 1 or not self.plan.combine:
            return own, True
        degree = self._tree.degrees[level - 1]
        numbers = range(number * degree, (number + 1) * degree)
        children = [self._known[level - 2].get(child) for child in numbers]
        there = [child for child in children if child is not None]
        sums = [child.best for child in there if child.best is not None]
        if len(sums) < len(there):
            return own, True  # one is lost, so they never add up to this node
        if len(there) < degree:
            return own, False
        total = sums[0]
        for child in sums[1:]:
            total = total + child
        return _combined(own, total), all(child.is_settled for child in there)

    def _forget_below(self, level: int, number: int) -> None:
        for below in range(1, level):
            ratio = self._sizes[level - 1] // self._sizes[below - 1]
            known = self._known[below - 1]
            for child in range(number * ratio, (number + 1) * ratio):
                known.pop(child, None)

    def _extend_beginning(self) -> None:
        """Add up what every later estimate will begin with."""
        while (node := self._settled_next()) is not None:
            best = self._known[node.level - 1].pop(node.start // node.size).best
            assert best is not None
            self._beginning = best if self._beginning is None else self._beginning + best
            self._begin = node.stop
            for level in range(node.level + 1, len(self._sizes) + 1):  # those are lost
                if node.start % self._sizes[level - 1] == 0:
                    self._known[level - 1].pop(node.start // self._sizes[level - 1], None)

    def _settled_next(self) -> Node | None:
        """The batch that follows the beginning, if nothing can take its place any more."""
        place = self._begin
        if self._is_blocked or place + self._sizes[0] > self._tree.horizon:
            return None
        for node in self._starting_at(place, self._tree.horizon):
            known = self._known[node.level - 1].get(node.start // node.size)
            if known is None or not known.is_settled:
                return None
            if known.best is not None:
                return node
            self._lost_stop = min(self._lost_stop, node.stop)
        self._is_blocked = True
        for level in self._known:
            level.clear()
        return None

    def latest(self) -> Gathered | None:
        """The sum of as many users as the batches so far reach without a gap."""
        place, total, cover = self._begin, self._beginning, list[Node]()
        while (found := self._next(place)) is not None:
            node, best = found
            total = best if total is None else total + best
            cover.append(node)
            place = node.stop
        if total is None:
            return None
        kurtosis = max(0.0, total.fourth_cumulant / total.variance**2) if total.variance else 0.0
        std = math.sqrt(total.variance)
        estimate = Estimate(place, total.value, std, total.slack, 0, kurtosis, self.plan.unit)
        return Gathered(estimate, place >= self._lost_stop or cover != self._cover(place))

    def _next(self, place: int) -> tuple[Node, NodeSum] | None:
        """The highest batch that is there and starts at this place."""
        for node in self._starting_at(place, self._tree.horizon):
            known = self._known[node.level - 1].get(node.start // node.size)
            if known is not None and known.best is not None:
                return node, known.best
        return None

    def _cover(self, stop: int) -> list[Node]:
        """The nodes of V*_stop (Definition 3.1) after the beginning."""
        place, cover = self._begin, list[Node]()
        while place < stop:
            cover.append(next(self._starting_at(place, stop)))
            place = cover[-1].stop
        return cover

    def _starting_at(self, place: int, stop: int) -> Iterator[Node]:
        """The batches that start at a place and end by another, highest first."""
        for level in range(len(self._sizes), 0, -1):
            size = self._sizes[level - 1]
            if place % size == 0 and place + size <= stop:
                yield Node(level, place, place + size)


def _combined(own: NodeSum, children: NodeSum) -> NodeSum:
    """The estimate of least variance: see `Combination`."""
    if own.variance + children.variance == 0:
        return own
    weight = children.variance / (own.variance + children.variance)
    return own.with_weight(weight) + children.with_weight(1 - weight)
