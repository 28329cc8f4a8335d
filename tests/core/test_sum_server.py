"""The server of a running sum: batches in any order, late, lost, or never."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import Node
from overhand.planning import Plan
from overhand.sums import SumServer
from overhand.sums.server import Span
from support.slow_server import (
    PLAIN,
    PLAN,
    Coming,
    ForgetsNothing,
    assert_same,
    bias_bound_of,
    deliver,
    fates,
    nodes_of,
    plans,
    skewed_plan,
    value_of,
)
from support.small_plans import PRIVACY


def assert_agrees(server: SumServer, coming: Coming) -> None:
    """After each batch, every estimate is that of a server that forgets nothing."""
    twin = ForgetsNothing(server.plan)
    horizon = server.plan.horizon
    for node, is_lost in coming:
        deliver(server, node, is_lost)
        if is_lost:
            twin.lose(node)
        else:
            twin.receive(node, bias_bound_of(node))
        truth, cover_sum, lost_users, is_fallback = twin.estimate()
        assert (server.covered, server.is_fallback) == (truth.t, is_fallback)
        assert server.lost_users == lost_users
        assert_same(server.estimate(), truth)
        assert server.cover_sum == pytest.approx(cover_sum, rel=1e-11)
        for t in (truth.t, min(truth.t + 1, horizon), horizon):
            assert_same(server.estimate(t), twin.estimate(t).estimate)


@settings(max_examples=150)
@given(fates())
def test_it_forgets_nothing_that_an_estimate_needs(drawn: tuple[Plan, Coming]) -> None:
    plan, coming = drawn
    assert_agrees(SumServer(plan), coming)


class ForgetsANode(SumServer):
    """A mutant: a block is missing from the cover."""

    def receive_sum(self, node: Node, value: Any, bias_bound: float = 0.0, own: int = 0) -> None:
        is_forgotten = node.level == 1 and node.start == 3
        super().receive_sum(node, 0.0 if is_forgotten else value, bias_bound)


class IgnoresLateParents(SumServer):
    """A mutant: what comes after a batch behind it stays away."""

    def receive_sum(self, node: Node, value: Any, bias_bound: float = 0.0, own: int = 0) -> None:
        if node.level == 1 or self.reach <= node.stop:
            super().receive_sum(node, value, bias_bound)


class CountsTheLost(SumServer):
    """A mutant: a lost batch is one of nothing."""

    def lose(self, node: Node, own: int = 0) -> None:
        self.receive_sum(node, 0.0)


class StopsAtTheLost(SumServer):
    """A mutant: a lost batch is one that never comes."""

    def lose(self, node: Node, own: int = 0) -> None:
        pass


class SureOfTheLost(SumServer):
    """A mutant: users who are lost count as their middle, and nobody hears how far off that is."""

    def estimate(self, t: int | None = None) -> oh.Estimate:
        found = super().estimate(t)
        return replace(found, bias_bound=found.bias_bound - self.lost_users / 2)


class LosesItsOwn(SumServer):
    """A mutant: reports of the service itself count as the middle, too."""

    def lose(self, node: Node, own: int = 0) -> None:
        super().lose(node)


class Stubborn(SumServer):
    """A mutant: users who were lost once stay so, although a batch above has a sum."""

    def _is_covered(self, level: int, start: int, stop: int) -> bool:
        held = [span for place, span in self._spans[0].items() if start <= place < stop]
        return super()._is_covered(level, start, stop) or any(span.is_lost for span in held)


class Overconfident(SumServer):
    """A mutant: children that stand in have the error of the batch that they stand in for."""

    def estimate(self, t: int | None = None) -> oh.Estimate:
        twin = ForgetsNothing(self.plan)
        for node in self.plan.tree.cover(self.covered):
            twin.receive(node)
        return replace(super().estimate(t), std=twin.estimate().estimate.std)


class Careless(SumServer):
    """A mutant: garbage widens no bar."""

    def receive_sum(self, node: Node, value: Any, bias_bound: float = 0.0, own: int = 0) -> None:
        super().receive_sum(node, value)


class Eager(SumServer):
    """A mutant: it settles for a batch before its children had their say."""

    def _with_children(self, level: int, start: int, span: Span) -> Span:
        return super()._with_children(level, start, span)._replace(is_settled=span.own is not None)


class CombinesTheLost(SumServer):
    """A mutant: children, one of which is lost, are combined with their parent's sum."""

    def _put(self, level: int, start: int, span: Span) -> None:
        super()._put(level, start, span._replace(is_lost=span.is_lost and span.best is None))


MUTANTS = [
    *(ForgetsANode, IgnoresLateParents, Overconfident, Careless, Eager),
    *(CountsTheLost, StopsAtTheLost, SureOfTheLost, LosesItsOwn, Stubborn, CombinesTheLost),
]
LATE: Coming = [
    *((Node(1, start, start + 3), False) for start in range(0, 30, 3)),
    (Node(2, 18, 24), False),  # before others of its level, which are late
    (Node(2, 0, 6), False),
    (Node(2, 6, 12), True),
    (Node(3, 24, 48), False),  # before its children
    *((Node(1, start, start + 3), False) for start in range(30, 48, 3)),
    *((Node(2, start, start + 6), False) for start in range(24, 48, 6)),
    (Node(3, 0, 24), False),
    (Node(1, 51, 54), True),  # before the one that it follows
    (Node(1, 48, 51), False),
    (Node(1, 54, 57), True),
    (Node(1, 60, 63), True),
    (Node(2, 48, 54), False),  # better than the middle
    (Node(2, 60, 66), True),
    (Node(1, 57, 60), False),
    (Node(2, 54, 60), True),
    (Node(1, 63, 66), False),
    (Node(1, 69, 72), True),
    (Node(2, 66, 72), False),
    (Node(1, 66, 69), False),
    (Node(3, 48, 72), True),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_twin_sees_a_server_that_is_wrong(mutant: type[SumServer]) -> None:
    assert_agrees(SumServer(PLAN), LATE)
    with pytest.raises(AssertionError):
        assert_agrees(mutant(PLAN), LATE)


def least_squares(plan: Plan, there: list[Node]) -> tuple[float, float]:
    """The best linear unbiased estimate of the sum of all blocks, and its variance."""
    lowest = plan.tree.lowest
    blocks = max(node.stop for node in there) // lowest
    members = np.array(
        [[n.start <= b * lowest < n.stop for b in range(blocks)] for n in there], np.float64
    )
    precision = np.array([1 / plan.mechanism(node).variance for node in there])
    values = np.array([value_of(node) for node in there])
    covariance = np.linalg.inv(members.T * precision @ members)
    ones = np.ones(blocks)
    estimate = ones @ covariance @ (members.T * precision @ values)
    return float(estimate), float(ones @ covariance @ ones)


@settings(max_examples=60)
@given(plans(), st.data())
def test_with_every_batch_it_is_generalised_least_squares(plan: Plan, data: st.DataObject) -> None:
    plan = skewed_plan(plan.tree, combine=True)
    blocks = data.draw(st.integers(1, plan.tree.blocks))
    there = [node for node in nodes_of(plan) if node.stop <= blocks * plan.tree.lowest]
    server = SumServer(plan)
    for node in data.draw(st.permutations(there)):
        server.receive_sum(node, value_of(node))
    value, variance = least_squares(plan, there)
    assert server.covered == blocks * plan.tree.lowest
    assert server.estimate().value == pytest.approx(value, rel=1e-9)
    assert server.estimate().std == pytest.approx(math.sqrt(variance), rel=1e-9)
    assert not server.is_fallback


@given(fates())
def test_every_batch_is_taken_once_and_those_that_are_missing_are_told(
    drawn: tuple[Plan, Coming],
) -> None:
    plan, coming = drawn
    server = SumServer(plan)
    for node, is_lost in coming:
        deliver(server, node, is_lost)
    for node, _ in coming:
        with pytest.raises(ProtocolViolation, match="twice"):
            server.receive_sum(node, value_of(node))
        with pytest.raises(ProtocolViolation, match="twice"):
            server.lose(node)
        if node.level == 1:
            with pytest.raises(ProtocolViolation, match="twice"):
                server.receive_blocks(node.start, 1, value_of(node))
    came = {node for node, _ in coming}
    assert server.reach == max((node.stop for node in came), default=0)
    for level, size in enumerate(plan.tree.sizes, start=1):
        missing = {plan.tree.node(level, n) for n in server.missing(level, plan.horizon // size)}
        assert missing == {n for n in nodes_of(plan) if n.level == level and n not in came}


@given(fates(), st.data())
def test_blocks_at_once_are_blocks_one_by_one(
    drawn: tuple[Plan, Coming], data: st.DataObject
) -> None:
    plan, coming = drawn
    lowest, above = plan.tree.lowest, (*plan.tree.sizes, plan.horizon + 1)[1]
    at_once, single = SumServer(plan), SumServer(plan)
    came = dict(coming)
    waiting = {n for n, is_lost in coming if n.level == 1 and not is_lost}
    for node, is_lost in coming:
        if node.level > 1 or is_lost:
            for server in (at_once, single):
                deliver(server, node, is_lost)
        elif node in waiting:
            run = [node]
            while data.draw(st.integers(0, 3)):
                following = Node(1, run[-1].stop, run[-1].stop + lowest)
                if following not in waiting or came[following] or following.start % above == 0:
                    break
                run.append(following)
            waiting.difference_update(run)
            at_once.receive_blocks(node.start, len(run), sum(map(value_of, run)))
            for each in run:
                single.receive_sum(each, value_of(each))
        assert_same(at_once.estimate(), single.estimate())
        assert at_once.is_fallback == single.is_fallback
    assert list(at_once.missing(1, plan.tree.blocks)) == list(single.missing(1, plan.tree.blocks))


def test_blocks_at_once_are_of_one_batch_above() -> None:
    server = SumServer(PLAN)
    for start, blocks in ((3, 2), (0, 3), (0, 0)):
        with pytest.raises(ProtocolViolation, match="not in one batch above"):
            server.receive_blocks(start, blocks, 6.0)
    for start, blocks in ((1, 1), (99, 1), (-3, 1)):
        with pytest.raises(InvalidValue, match="no batch"):
            server.receive_blocks(start, blocks, 3.0)
    assert (server.reach, server.kept) == (0, 0)


# --- a batch at a time ----------------------------------------------------------------------------


def test_a_lost_batch_has_a_wider_bar_and_says_so() -> None:
    whole, without = SumServer(PLAN), SumServer(PLAN)
    for node in nodes_of(PLAN):
        whole.receive_sum(node, value_of(node))
        if node.level < 3:
            without.receive_sum(node, value_of(node))
    best, fallback = whole.estimate(), without.estimate()
    assert (best.t, fallback.t) == (99, 99)
    assert fallback.std > best.std
    assert (whole.is_fallback, without.is_fallback) == (False, True)


def test_a_missing_lowest_batch_waits_for_the_one_above() -> None:
    server = SumServer(PLAN)
    server.receive_sum(Node(1, 0, 3), 3.0)
    server.receive_sum(Node(1, 6, 9), 3.0)  # the second never comes
    assert server.covered == 3
    server.receive_sum(Node(2, 0, 6), 6.0)
    assert (server.estimate().t, server.estimate().value) == (9, 9.0)


def test_a_lost_lowest_batch_holds_up_nothing_and_the_one_above_makes_it_better() -> None:
    server = SumServer(PLAN)
    server.receive_sum(Node(1, 0, 3), 3.0)
    server.receive_sum(Node(1, 6, 9), 3.0)
    server.lose(Node(1, 3, 6))
    estimate = server.estimate()
    assert (estimate.t, estimate.value, estimate.bias_bound, server.lost_users) == (9, 7.5, 1.5, 3)
    assert server.is_fallback
    server.receive_sum(Node(2, 0, 6), 6.0)
    estimate = server.estimate()
    assert (estimate.t, estimate.value, estimate.bias_bound, server.lost_users) == (9, 9.0, 0.0, 0)
    assert not server.is_fallback


def test_a_sum_of_nothing_but_lost_users_is_anything_that_they_may_hold() -> None:
    server = SumServer(PLAN)
    for node in nodes_of(PLAN):
        server.lose(node)
    estimate = server.estimate()
    assert (estimate.t, estimate.value, estimate.std) == (99, 49.5, 0.0)
    assert estimate.interval() == (0.0, 99.0)


def test_lost_vectors_are_the_middle_by_coordinate() -> None:
    plan = Plan.best(60, 2, PRIVACY, values=oh.RegressionStatistics(2), tree="regular")
    server, first, second = SumServer(plan), plan.tree.node(1, 0), plan.tree.node(1, 1)
    server.lose(first, own=1)
    server.receive_sum(second, np.ones(plan.values.dimension))
    estimate, lost = server.estimate(), first.size - 1
    assert np.array_equal(estimate.value, 1 + lost * plan.imputed)
    assert np.array_equal(estimate.bias_bound, lost * plan.pending_bias_bound)
    again = SumServer.from_state(plan, json.loads(json.dumps(server.state()))).estimate()
    assert np.array_equal(again.interval(), estimate.interval())


def test_own_reports_of_a_lost_batch_are_some_of_its_reports() -> None:
    server = SumServer(PLAN)
    for own in (-1, 4):
        with pytest.raises(InvalidValue, match="own"):
            server.lose(Node(1, 0, 3), own)
    server.lose(Node(1, 0, 3), 3)
    assert (server.estimate().t, server.estimate().value, server.lost_users) == (3, 0.0, 0)


def test_who_is_in_no_batch_that_came_counts_as_the_middle() -> None:
    server = SumServer(PLAIN)
    server.receive_sum(Node(1, 0, 3), 2.0)
    estimate = server.estimate(13)
    assert (estimate.t, estimate.value, estimate.bias_bound) == (13, 7.0, 5.0)
    for t in (2, 0):
        with pytest.raises(ProtocolViolation, match="3 users are already counted"):
            server.estimate(t)
    for wrong in (-1, 101, 3.0):
        with pytest.raises(InvalidValue):
            server.estimate(wrong)  # type: ignore[arg-type]


def test_slack_of_garbage_is_carried_along() -> None:
    server = SumServer(PLAIN)
    server.receive_sum(Node(1, 0, 3), 3.0, bias_bound=2.0)
    server.receive_sum(Node(1, 3, 6), 3.0, bias_bound=0.5)
    estimate = server.estimate()
    assert estimate.bias_bound == 2.5
    low, high = estimate.interval(0.95)
    assert high - low > 5


def test_vectors_are_added_up_by_coordinate() -> None:
    plan = Plan.best(60, 2, PRIVACY, values=oh.Vectors(3), tree="regular")
    server, first, second = SumServer(plan), plan.tree.node(1, 0), plan.tree.node(1, 1)
    server.receive_sum(first, np.array([1.0, 2.0, 3.0]))
    assert server.estimate().value.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(InvalidValue, match=r"\(2,\)"):
        server.receive_sum(second, np.zeros(2))
    server.receive_sum(second, np.array([1.0, 0.0, -1.0]))
    assert server.copy().estimate().value.tolist() == [2.0, 2.0, 2.0]


def test_what_is_no_batch_is_refused() -> None:
    server = SumServer(PLAN)
    server.receive_sum(Node(1, 0, 3), 3.0)
    none = [
        Node(0, 0, 3), Node(4, 0, 24), Node(1, 99, 102), Node(3, 96, 120), Node(1, -3, 0),
        Node(1, 4, 7), Node(1, 3, 9), Node(2, 3, 9), Node(2, 6, 9), Node(1, 6, 6), Node(1, 9, 6),
    ]  # fmt: skip
    for node in none:
        with pytest.raises(InvalidValue, match="no batch of this plan"):
            server.receive_sum(node, 1.0)
        with pytest.raises(InvalidValue, match="no batch of this plan"):
            server.lose(node)
    assert (server.covered, server.reach, list(server.missing(1, 4))) == (3, 3, [1, 2, 3])
