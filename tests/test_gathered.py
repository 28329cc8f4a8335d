"""Batches that come in any order, late, or never: `GatheredSums`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overhand.summation.gathered import NodeSum, _combined

import overhand as oh
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import Node
from overhand.plan import Plan
from overhand.summation import Gathered, GatheredSums, SumServer
from overhand.trees import RegularTree
from support.plans import coin_plan

PRIVACY = oh.Privacy(1.0, 1e-6)


def plan_of(horizon: int, degrees: tuple[int, ...], *, combine: bool = True) -> Plan:
    from overhand.plan.levels import calibrated
    from overhand.plan.terms import Terms

    tree = RegularTree(horizon, degrees)
    mechanisms = calibrated(tree, [1.0] * len(degrees), Terms(PRIVACY))
    return Plan(tree, mechanisms, PRIVACY, len(degrees), combine=combine)


PLAN = plan_of(100, (3, 2, 4))
PLAIN = plan_of(100, (3, 2, 4), combine=False)


def nodes_of(plan: Plan) -> Iterator[Node]:
    """All batches, in the order in which they become full."""
    for t in range(1, plan.horizon + 1):
        yield from plan.tree.closes(t)


def value_of(node: Node) -> float:
    """Something that tells batches apart: about their size, with noise."""
    return node.size + 0.1 * math.sin(7 * node.start + 3 * node.level)


def number_of(node: Node) -> int:
    return node.start // node.size


@pytest.mark.parametrize("plan", [PLAN, PLAIN], ids=["combined", "plain"])
def test_in_order_it_is_the_sum_servers_estimate(plan: Plan) -> None:
    gathered, server = GatheredSums(plan), SumServer(plan)
    for t in range(1, plan.horizon + 1):
        for node in plan.tree.closes(t):
            gathered.receive(node.level, number_of(node), value_of(node))
            server.receive_sum(node, value_of(node))
        latest = gathered.latest()
        if latest is None:
            assert t < plan.tree.lowest
            continue
        expected = server.estimate(t // plan.tree.lowest * plan.tree.lowest)
        assert latest.estimate.t == expected.t
        assert latest.estimate.value == pytest.approx(expected.value, rel=1e-12)
        assert latest.estimate.std == pytest.approx(expected.std, rel=1e-12)
        assert latest.estimate.kurtosis == pytest.approx(expected.kurtosis, rel=1e-9)
        assert not latest.is_fallback


@given(st.permutations(list(nodes_of(PLAN))))
def test_any_order_ends_at_the_same_estimate(order: list[Node]) -> None:
    gathered, straight = GatheredSums(PLAN), GatheredSums(PLAN)
    for sums, nodes in ((gathered, order), (straight, list(nodes_of(PLAN)))):
        for node in nodes:
            sums.receive(node.level, number_of(node), value_of(node))
    last, expected = gathered.latest(), straight.latest()
    assert last is not None
    assert expected is not None
    assert last.estimate.value == pytest.approx(expected.estimate.value, rel=1e-12)
    assert last.estimate.std == pytest.approx(expected.estimate.std, rel=1e-12)


@given(st.sets(st.sampled_from(list(nodes_of(PLAIN)))))
def test_without_combination_it_adds_up_the_highest_batches_there_are(lost: set[Node]) -> None:
    gathered = GatheredSums(PLAIN)
    there = [node for node in nodes_of(PLAIN) if node not in lost]
    for node in there:
        gathered.receive(node.level, number_of(node), value_of(node))
    place, value, variance = 0, 0.0, 0.0
    while starting := [node for node in there if node.start == place]:
        highest = max(starting, key=lambda node: node.level)
        place, value = highest.stop, value + value_of(highest)
        variance += PLAIN.mechanism(highest).variance
    latest = gathered.latest()
    if place == 0:
        assert latest is None
        return
    assert latest is not None
    assert latest.estimate.t == place
    assert latest.estimate.value == pytest.approx(value)
    assert latest.estimate.std == pytest.approx(math.sqrt(variance))
    assert latest.is_fallback == bool(lost.intersection(PLAIN.tree.cover(place)))


def test_a_lost_batch_has_a_wider_bar_and_says_so() -> None:
    whole, without = GatheredSums(PLAN), GatheredSums(PLAN)
    for node in nodes_of(PLAN):
        for sums in (whole, without):
            if sums is whole or node.level < 3:
                sums.receive(node.level, number_of(node), value_of(node))
    best, fallback = whole.latest(), without.latest()
    assert best is not None
    assert fallback is not None
    assert (best.estimate.t, fallback.estimate.t) == (99, 99)
    assert fallback.estimate.std > best.estimate.std
    assert (best.is_fallback, fallback.is_fallback) == (False, True)


def test_a_lost_lowest_batch_waits_for_the_one_above() -> None:
    gathered = GatheredSums(PLAN)
    gathered.receive(1, 0, 3.0)
    gathered.receive(1, 2, 3.0)  # the second never comes
    latest = gathered.latest()
    assert latest is not None
    assert latest.estimate.t == 3
    gathered.receive(2, 0, 6.0)
    latest = gathered.latest()
    assert latest is not None
    assert (latest.estimate.t, latest.estimate.value) == (9, 9.0)


def test_slack_of_garbage_is_carried_along() -> None:
    gathered = GatheredSums(PLAIN)
    gathered.receive(1, 0, 3.0, slack=2.0)
    gathered.receive(1, 1, 3.0, slack=0.5)
    latest = gathered.latest()
    assert latest is not None
    assert latest.estimate.slack == 2.5
    low, high = latest.estimate.interval(0.95)
    assert high - low > 5


def test_vectors_are_added_up_by_coordinate() -> None:
    plan = Plan.best(60, 2, PRIVACY, values=oh.Vectors(3), tree="regular")
    gathered = GatheredSums(plan)
    gathered.receive(1, 0, np.array([1.0, 2.0, 3.0]))
    latest = gathered.latest()
    assert latest is not None
    assert latest.estimate.value.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidValue, match=r"\(2,\)"):
        gathered.receive(1, 1, np.zeros(2))


def test_what_is_no_batch_is_refused() -> None:
    gathered = GatheredSums(PLAN)
    gathered.receive(1, 0, 3.0)
    with pytest.raises(ProtocolViolation, match="twice"):
        gathered.receive(1, 0, 3.0)
    for level, number in ((0, 0), (4, 0), (1, 33), (3, 4), (1, -1)):
        with pytest.raises(InvalidValue, match="level|number"):
            gathered.receive(level, number, 1.0)
    with pytest.raises(InvalidValue, match="regular"):
        GatheredSums(Plan.best(1000, 3, PRIVACY, tree="path"))
    latest = gathered.latest()
    assert latest is not None
    assert latest.estimate.t == 3


# --- what is forgotten ----------------------------------------------------------------------------


class ForgetsNothing:
    """The definition: every sum is kept, and everything is computed from them, each time."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.sums = plan, dict[Node, NodeSum]()

    def receive(self, node: Node) -> None:
        mechanism = self.plan.mechanism(node)
        self.sums[node] = NodeSum(
            value_of(node), mechanism.variance, mechanism.fourth_cumulant, 0.0
        )

    def best(self, node: Node) -> NodeSum | None:
        own = self.sums.get(node)
        if own is None or node.level == 1 or not self.plan.combine:
            return own
        (size,) = self.plan.tree.sizes(node.level - 1)
        starts = range(node.start, node.stop, size)
        children = [self.best(Node(node.level - 1, start, start + size)) for start in starts]
        known = [child for child in children if child is not None]
        if len(known) < len(children):
            return own
        total = known[0]
        for child in known[1:]:
            total = total + child
        return _combined(own, total)

    def latest(self) -> Gathered | None:
        place, total, cover = 0, None, []
        while starting := [node for node in self.sums if node.start == place]:
            cover.append(max(starting, key=lambda node: node.level))
            best = self.best(cover[-1])
            assert best is not None
            total = best if total is None else total + best
            place = cover[-1].stop
        if total is None:
            return None
        kurtosis = max(0.0, total.fourth_cumulant / total.variance**2)
        std, unit = math.sqrt(total.variance), self.plan.unit
        estimate = oh.Estimate(place, total.value, std, 0.0, 0, kurtosis, unit)
        return Gathered(estimate, cover != list(self.plan.tree.cover(place)))


TREES = [
    RegularTree(100, (3, 2, 4)),
    RegularTree(41, (2, 2, 2, 2)),
    RegularTree(30, (2, 7)),
    RegularTree(12, (1,)),
]
SMALL = [coin_plan(tree, combine=combine) for tree in TREES for combine in (True, False)]


@st.composite
def fates(draw: st.DrawFn) -> tuple[Plan, list[tuple[Node, bool]]]:
    """A plan and its batches in an order in which they come, some of them lost, some never."""
    plan = draw(st.sampled_from(SMALL))
    nodes = list(nodes_of(plan))
    if draw(st.booleans()):
        nodes = draw(st.permutations(nodes))
    never = draw(st.sets(st.sampled_from(nodes), max_size=6))
    lost = draw(st.sets(st.sampled_from(nodes), max_size=12))
    return plan, [(node, node in lost) for node in nodes if node not in never]


@settings(max_examples=150)
@given(fates())
def test_it_forgets_nothing_that_an_estimate_needs(
    drawn: tuple[Plan, list[tuple[Node, bool]]],
) -> None:
    plan, coming = drawn
    gathered, twin = GatheredSums(plan), ForgetsNothing(plan)
    for node, is_lost in coming:
        if is_lost:
            gathered.lose(node.level, number_of(node))
        else:
            gathered.receive(node.level, number_of(node), value_of(node))
            twin.receive(node)
        assert gathered.latest() == twin.latest()  # to the last bit
    for node, _ in coming:
        with pytest.raises(ProtocolViolation, match="twice"):
            gathered.receive(node.level, number_of(node), value_of(node))
        with pytest.raises(ProtocolViolation, match="twice"):
            gathered.lose(node.level, number_of(node))
    came = {node for node, _ in coming}
    for level, (size,) in enumerate(map(plan.tree.sizes, range(1, plan.tree.levels + 1)), 1):
        missing = set(gathered.missing(level, plan.horizon // size))
        assert missing == {
            number_of(node) for node in nodes_of(plan) if node.level == level and node not in came
        }


@given(fates(), st.integers(0, 100))
def test_a_copy_goes_its_own_way(drawn: tuple[Plan, list[tuple[Node, bool]]], after: int) -> None:
    plan, coming = drawn
    straight, copied = GatheredSums(plan), GatheredSums(plan)
    for place, (node, is_lost) in enumerate(coming):
        if place == after:
            copied, before = copied.copy(), copied
            latest, missing = before.latest(), missing_of(before)
        for sums in (straight, copied):
            if is_lost:
                sums.lose(node.level, number_of(node))
            else:
                sums.receive(node.level, number_of(node), value_of(node))
    assert copied.latest() == straight.latest()
    if after < len(coming):
        assert (before.latest(), missing_of(before)) == (latest, missing)


def missing_of(gathered: GatheredSums) -> list[int]:
    """The numbers of batches that did not come, level by level."""
    sizes = [gathered.plan.tree.sizes(level + 1)[0] for level in range(gathered.plan.tree.levels)]
    return [
        number
        for level, size in enumerate(sizes, start=1)
        for number in gathered.missing(level, gathered.plan.horizon // size)
    ]


LONG = [
    coin_plan(RegularTree(6000, degrees), combine=combine)
    for degrees in ((2, 3, 4), (3,), (2, 2, 2, 2, 2))
    for combine in (True, False)
]


@pytest.mark.parametrize("plan", LONG, ids=str)
@pytest.mark.parametrize("way", ["in order", "late by up to 40", "one in 50 lost", "all lost once"])
def test_memory_does_not_grow_with_the_batches_that_came(plan: Plan, way: str) -> None:
    random = np.random.default_rng(7)
    nodes = list(nodes_of(plan))
    if way == "late by up to 40":
        nodes = [
            nodes[i] for i in np.argsort(np.arange(len(nodes)) + random.uniform(0, 40, len(nodes)))
        ]
    gathered, most = GatheredSums(plan), 0
    for node in nodes:
        is_lost = way == "one in 50 lost" and node.level > 1 and random.random() < 0.02
        if is_lost or (way == "all lost once" and node.start <= 1000 < node.stop):
            gathered.lose(node.level, number_of(node))
        else:
            gathered.receive(node.level, number_of(node), value_of(node))
        most = max(most, gathered.kept)
    latest = gathered.latest()
    assert latest is not None
    assert latest.estimate.t == (nodes_at(plan, 1000) if way == "all lost once" else plan.horizon)
    if way == "all lost once":
        assert gathered.kept == plan.tree.levels  # which numbers came, and nothing else
    degrees = sum(plan.tree.degrees) if isinstance(plan.tree, RegularTree) else 0
    assert most <= degrees + 2 * plan.tree.levels + (80 if way == "late by up to 40" else 0)


def nodes_at(plan: Plan, user: int) -> int:
    """Where the lowest batch of a user starts."""
    return user // plan.tree.lowest * plan.tree.lowest
