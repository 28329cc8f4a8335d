"""The server of a deployment: batches come in any order, late, or never."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.model import Estimate, Node
from overhand.plan import Plan
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
    """An estimate from the batches so far, and whether it had to do without one of the cover."""

    estimate: Estimate
    is_fallback: bool


class GatheredSums:
    """Adds up whatever batches there are: the same estimates as `SumServer`'s if all of them are.

    Where a batch is missing, those below it stand in, with the larger error bar that is theirs;
    where a lowest batch is missing, the estimate waits for one above it. A plan with a regular
    tree only: there a batch is a level and a number.
    """

    def __init__(self, plan: Plan) -> None:
        if not isinstance(plan.tree, RegularTree):
            raise errors.InvalidValue("a deployment needs a plan with a regular tree")
        self.plan = plan
        self._tree = plan.tree
        self._sizes = [plan.tree.sizes(level)[0] for level in range(1, plan.tree.levels + 1)]
        self._own: list[dict[int, NodeSum]] = [{} for _ in self._sizes]
        self._best: list[dict[int, NodeSum]] = [{} for _ in self._sizes]

    def node(self, level: int, number: int) -> Node:
        """The batch of this number, from 0, among those of its level."""
        level = errors.whole("level", level, least=1, most=len(self._sizes))
        size = self._sizes[level - 1]
        number = errors.whole("number", number, least=0, most=self._tree.horizon // size - 1)
        return Node(level, number * size, (number + 1) * size)

    def receive(self, level: int, number: int, value: Any, slack: float = 0.0) -> None:
        """The analyzed sum of a batch, which may be off by `slack` beyond its noise."""
        node = self.node(level, number)
        if number in self._own[level - 1]:
            raise ProtocolViolation(f"{node} received twice")
        if np.shape(value) != self.plan.values.shape:
            raise errors.InvalidValue(
                f"a sum of shape {np.shape(value)} where one of shape "
                f"{self.plan.values.shape} is due"
            )
        mechanism = self.plan.mechanism(node)
        own = NodeSum(value, mechanism.variance, mechanism.fourth_cumulant, slack)
        self._own[level - 1][number] = own
        self._improve(level, number)

    def _improve(self, level: int, number: int) -> None:
        """Combine a node with its children, and then the nodes above that this makes better."""
        own = self._own[level - 1].get(number)
        children = self._children(level, number) if own is None or self.plan.combine else None
        best = _combined(own, children)
        if best is None:
            return
        if own is not None:
            self._best[level - 1][number] = best
        if level < len(self._sizes):
            parent = number // self._tree.degrees[level]
            if parent in self._own[level]:
                self._improve(level + 1, parent)

    def _children(self, level: int, number: int) -> NodeSum | None:
        """The sum of a node's children, if all of them are there."""
        if level == 1:
            return None
        degree = self._tree.degrees[level - 1]
        known = self._best[level - 2]
        numbers = range(number * degree, (number + 1) * degree)
        if not all(child in known for child in numbers):
            return None
        total = known[numbers[0]]
        for child in numbers[1:]:
            total = total + known[child]
        return total

    def latest(self) -> Gathered | None:
        """The sum of as many users as the batches so far reach without a gap."""
        place, total, cover = 0, None, []
        while (node := self._next(place)) is not None:
            known = self._best[node.level - 1][node.start // node.size]
            total = known if total is None else total + known
            cover.append(node)
            place = node.stop
        if total is None:
            return None
        kurtosis = max(0.0, total.fourth_cumulant / total.variance**2) if total.variance else 0.0
        std = math.sqrt(total.variance)
        estimate = Estimate(place, total.value, std, total.slack, 0, kurtosis)
        return Gathered(estimate, cover != list(self._tree.cover(place)))

    def _next(self, place: int) -> Node | None:
        """The highest batch that is there and starts at this place."""
        for level in range(len(self._sizes), 0, -1):
            size = self._sizes[level - 1]
            if place % size == 0 and place // size in self._best[level - 1]:
                return Node(level, place, place + size)
        return None


def _combined(own: NodeSum | None, children: NodeSum | None) -> NodeSum | None:
    """The estimate of least variance: see `Combination`."""
    if own is None or children is None:
        return own if children is None else children
    if own.variance + children.variance == 0:
        return own
    weight = children.variance / (own.variance + children.variance)
    return own.with_weight(weight) + children.with_weight(1 - weight)
