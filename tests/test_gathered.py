"""Batches that come in any order, late, or never: `GatheredSums`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import Node
from overhand.plan import Plan
from overhand.summation import GatheredSums, SumServer
from overhand.trees import RegularTree

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
