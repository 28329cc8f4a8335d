"""Batches that came, all of them kept, and everything computed from them each time: slow truth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

import overhand as oh
from overhand.mechanisms import CoinSum
from overhand.model import Node
from overhand.noise import Coins
from overhand.planning import NodeSum, Plan
from overhand.randomness import BinaryFraction
from overhand.sums import SumServer
from overhand.tree import RegularTree
from support.small_plans import PRIVACY

ZERO = NodeSum(0.0, 0.0, 0.0, 0.0)


def skewed_plan(tree: RegularTree, *, combine: bool, hold: bool = False) -> Plan:
    """Coins of probability 1/8, whose fourth cumulant is above 0, other ones at every level."""
    mechanisms = tuple(
        CoinSum(size, Coins(2 * (1 + level % 3), BinaryFraction(1, 3)))
        for level, size in enumerate(tree.sizes)
    )
    return Plan(tree, mechanisms, PRIVACY, tree.levels, combine=combine, hold=hold)


def nodes_of(plan: Plan) -> list[Node]:
    """All batches, in the order in which they become full."""
    return [node for t in range(1, plan.horizon + 1) for node in plan.tree.closes(t)]


def value_of(node: Node) -> float:
    """Something that tells batches apart: about their size, with noise."""
    return node.size + 0.1 * math.sin(7 * node.start + 3 * node.level)


def bias_bound_of(node: Node) -> float:
    """Some batches have garbage in them."""
    return 0.25 * node.level if (node.start + node.level) % 4 == 0 else 0.0


def own_of(node: Node) -> int:
    """Some batches have reports of the shuffling service itself."""
    return node.size // 2 if node.start % 5 == 0 else 0


class ForgetsNothing:
    """The definition of what a server knows, whichever batches came."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.sums, self.lost = plan, dict[Node, NodeSum](), set[Node]()
        self.bests: dict[Node, list[NodeSum]] = {}
        """What each batch was worth, from when it came on."""

    def receive(self, node: Node, bias_bound: float = 0.0) -> None:
        mechanism = self.plan.mechanism(node)
        self.sums[node] = NodeSum(
            value_of(node), mechanism.variance, mechanism.fourth_cumulant, bias_bound
        )
        for held in self.plan.tree.joins(node.start + 1):
            best = self.best(held)
            if best is not None:
                self.bests.setdefault(held, []).append(best)

    def lose(self, node: Node) -> None:
        self.lost.add(node)

    def best(self, node: Node) -> NodeSum | None:
        """Its own sum, and with combination that of its children, if all of them are there."""
        own = self.sums.get(node)
        if own is None or node.level == 1 or not self.plan.combine:
            return own
        size = self.plan.tree.sizes[node.level - 2]
        starts = range(node.start, node.stop, size)
        children = [self.best(Node(node.level - 1, start, start + size)) for start in starts]
        total = ZERO
        for child in children:
            if child is None:
                return own
            total = total.plus(child)
        weight = total.variance / (own.variance + total.variance)
        return NodeSum(
            weight * own.value + (1 - weight) * total.value,
            weight**2 * own.variance + (1 - weight) ** 2 * total.variance,
            weight**4 * own.fourth_cumulant + (1 - weight) ** 4 * total.fourth_cumulant,
            weight * own.bias_bound + (1 - weight) * total.bias_bound,
        )

    def highest(self) -> Iterator[Node]:
        """The batches there are, the highest first at each place, up to a gap.

        A lost one counts where it is a lowest one and no other starts there.
        """
        place = 0
        while starting := [n for n in self.sums if n.start == place] or [
            n for n in self.lost if n.start == place and n.level == 1
        ]:
            node = max(starting, key=lambda node: node.level)
            yield node
            place = node.stop

    def estimate(self, t: int | None = None) -> Known:
        """The sum of the first users."""
        cover, total, lost_users = list(self.highest()), ZERO, 0
        for node in cover:
            best = self.best(node)
            if best is None:
                lost_users += node.size - own_of(node)
            else:
                total = total.plus(best)
        covered = cover[-1].stop if cover else 0
        t = covered if t is None else t
        estimate = imputed(self.plan, total, t - covered + lost_users, 0, t)
        whole = [node for node in cover if node in self.sums]
        is_fallback = whole != list(self.plan.tree.cover(covered))
        return Known(estimate, total.value, lost_users, is_fallback)


class Known(NamedTuple):
    """An estimate, the sum over its cover, how many users are lost, and whether a batch is."""

    estimate: oh.Estimate
    cover_sum: float
    lost_users: int
    is_fallback: bool


def imputed(plan: Plan, total: NodeSum, rest: int, start: int, stop: int) -> oh.Estimate:
    """The estimate of a range in which so many users are in no batch."""
    kurtosis = total.fourth_cumulant / total.variance**2 if total.variance else 0.0
    value = total.value + (0.0 if plan.hold else rest / 2)
    bias_bound = total.bias_bound + rest * (1.0 if plan.hold else 0.5)
    return oh.Estimate(
        stop, value, math.sqrt(total.variance), bias_bound, start, kurtosis, plan.unit
    )


TREES = [
    RegularTree(100, (3, 2, 4)),
    RegularTree(41, (2, 2, 2, 2)),
    RegularTree(30, (2, 7)),
    RegularTree(12, (1,)),
]
SMALL = [skewed_plan(tree, combine=combine) for tree in TREES for combine in (True, False)]
PLAN, PLAIN = SMALL[:2]

Coming = list[tuple[Node, bool]]
"""Batches in the order in which they come, and whether each is lost."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One of a tree that is small, but may have many levels."""
    if draw(st.booleans()):
        return draw(st.sampled_from(SMALL))
    degrees = [draw(st.integers(1, 3))]
    while len(degrees) < 5 and math.prod(degrees) <= 16 and draw(st.booleans()):
        degrees.append(draw(st.integers(2, 4)))
    size = math.prod(degrees)
    tree = RegularTree(size + draw(st.integers(0, size + 3)), tuple(degrees))
    return skewed_plan(tree, combine=draw(st.booleans()), hold=draw(st.booleans()))


@st.composite
def fates(draw: st.DrawFn) -> tuple[Plan, Coming]:
    """A plan and its batches in an order in which they come, some of them lost, some never."""
    plan = draw(plans())
    nodes = nodes_of(plan)
    if draw(st.booleans()):
        nodes = draw(st.permutations(nodes))
    never = draw(st.sets(st.sampled_from(nodes), max_size=6))
    lost = draw(lost_batches(nodes))
    return plan, [(node, node in lost) for node in nodes if node not in never]


def lost_batches(nodes: list[Node]) -> st.SearchStrategy[set[Node]]:
    """Some of them, or all that hold one of some users: what garbage does at all levels."""
    places = st.sets(st.sampled_from([node.start for node in nodes]), max_size=4)
    alone = st.sets(st.sampled_from(nodes), max_size=12)
    held = places.map(lambda of: {n for n in nodes if any(n.start <= p < n.stop for p in of)})
    return st.one_of(alone, held, st.builds(set.union, alone, held), st.just(set(nodes)))


def deliver(server: SumServer, node: Node, is_lost: bool) -> None:
    if is_lost:
        server.lose(node, own_of(node))
    else:
        server.receive_sum(node, value_of(node), bias_bound_of(node))


def assert_same(told: oh.Estimate, truth: oh.Estimate) -> None:
    assert (told.start, told.t, told.unit) == (truth.start, truth.t, truth.unit)
    for one, other in (
        (told.value, truth.value),
        (told.std, truth.std),
        (told.bias_bound, truth.bias_bound),
    ):
        assert one == pytest.approx(other, rel=1e-11, abs=1e-11)
    assert told.kurtosis == pytest.approx(truth.kurtosis, rel=1e-9)
