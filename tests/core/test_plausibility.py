"""Sums that honest users cannot have are not believed, and what one client can do is bounded."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.model import Node
from overhand.noise import CoinNoise, LaplaceNoise, Noise
from overhand.planning import Plan
from overhand.randomness import BinaryFraction
from overhand.values import BITS, Histogram, Reals, Values

PRIVACY = oh.Privacy(1.0, 1e-6)
USERS = 2_000


def planned(values: Values = BITS, **options: Any) -> Plan:
    return Plan.best(USERS, 3, PRIVACY, values=values, **({"mechanism": "shares"} | options))


PLANS = [
    pytest.param(planned(), id="shares"),
    pytest.param(planned(mechanism="coins"), id="coins"),
    pytest.param(planned(Histogram(3)), id="histogram"),
    pytest.param(planned(Reals(-2.0, 5.0)), id="reals"),
]
BLOCKS = [
    pytest.param(planned(mechanism="pairs"), id="pairs"),
    pytest.param(planned(mechanism="ballots"), id="ballots"),
    pytest.param(planned(Histogram(3), mechanism="ballots"), id="histogram of ballots"),
    pytest.param(planned(Reals(-2.0, 5.0), mechanism="pairs"), id="reals by pairs"),
]


def sums_of(plan: Plan, seed: int) -> list[tuple[Node, Any]]:
    """The sums of all batches of users who hold either end, in the order in which they fill."""
    random = oh.seeded_random(seed)
    bits = (random.uniforms(plan.horizon) < 0.5).astype(np.uint8)
    steps = plan.values.running_sums(plan.values.opposites(bits))
    zero = np.zeros_like(steps[:1])
    running = np.concatenate([zero, steps])
    ends = range(plan.tree.lowest, plan.horizon + 1, plan.tree.lowest)
    nodes = [node for t in ends for node in plan.tree.closes(t)]
    if plan.noise_by == "services":
        noise, _ = plan.mechanisms[0].draw_services_noise(random, len(nodes))
    else:
        noise = np.stack([plan.mechanism(node).draw_noise(random, 1)[0] for node in nodes])
    return [
        (node, running[node.stop] - running[node.start] + of_node)
        for node, of_node in zip(nodes, noise, strict=True)
    ]


def received(plan: Plan, sums: list[tuple[Node, Any]], *, checks: bool = True) -> oh.SumServer:
    server = oh.SumServer(plan, checks=checks)
    for node, value in sums:
        server.receive_sum(node, float(value) if plan.values.is_scalar else value)
    return server


def poisoned(sums: list[tuple[Node, Any]], user: int, added: list[float]) -> Any:
    """One user adds so much to its batch of every level."""
    return [
        (node, value + added[node.level - 1] if node.start <= user < node.stop else value)
        for node, value in sums
    ]


# The law's reach.


LAWS: list[Noise] = [
    LaplaceNoise(Fraction(2), 0.7),
    CoinNoise(((30, BinaryFraction(1, 3)), (30, BinaryFraction(7, 3)))),
    CoinNoise(((50, BinaryFraction(1, 4)),)),
]


@pytest.mark.parametrize("law", LAWS)
@given(st.floats(1e-12, 0.5))
def test_the_exact_reach_is_the_least(law: Noise, probability: float) -> None:
    pmf = law.pmf
    distances = np.abs(pmf.first + np.arange(len(pmf.probabilities)) - law.mean)
    reach = law.exact_tail_quantile(probability)

    def beyond(distance: float) -> float:
        return float(pmf.probabilities[distances > distance].sum())

    assert beyond(reach) <= probability
    if reach > distances.min():
        assert beyond(reach - 1e-9) + pmf.missing > probability * (1 - 1e-9)


# Honest sums.


@pytest.mark.parametrize("plan", [*PLANS, *BLOCKS])
def test_honest_sums_are_believed(plan: Plan) -> None:
    for seed in range(4):
        sums = sums_of(plan, seed)
        checked, unchecked = (received(plan, sums, checks=on) for on in (True, False))
        assert not checked.distrusted
        assert checked.estimate() == unchecked.estimate()


@pytest.mark.slow
def test_a_thousand_honest_plans_have_no_false_alarm() -> None:
    kinds = ("shares", "coins", "pairs", "ballots")
    plans = [planned(mechanism=kinds[seed % 4]) for seed in range(1000)]
    alarms = [received(plan, sums_of(plan, seed)) for seed, plan in enumerate(plans)]
    assert sum(len(server.distrusted) for server in alarms) == 0


# Poisoned ones.


@pytest.mark.parametrize("plan", [*PLANS, *BLOCKS])
def test_a_lowest_sum_that_is_impossible_counts_as_the_middle(plan: Plan) -> None:
    sums = sums_of(plan, 7)
    last = plan.tree.node(1, plan.horizon // plan.tree.lowest - 1)
    sums = [(node, value + 1e6 * (node == last)) for node, value in sums]
    server = received(plan, sums)
    assert server.distrusted == [last]
    assert server.lost_users == last.size
    honest = received(plan, [pair for pair in sums if pair[0] != last])
    added = np.asarray(server.estimate().value) - honest.estimate().value
    assert added == pytest.approx(last.size * np.asarray(plan.imputed))
    assert np.min(server.estimate().bias_bound) >= last.size * np.min(plan.pending_bias_bound)


@pytest.mark.parametrize("plan", PLANS)
def test_a_parent_that_disagrees_gives_way_to_its_children(plan: Plan) -> None:
    sums = sums_of(plan, 8)
    parent = plan.tree.node(2, 0)
    bad = [(node, value + 1e6 * (node == parent)) for node, value in sums]
    server = received(plan, bad)
    assert server.distrusted == [parent]
    without = oh.SumServer(plan)
    for node, value in sums:
        if node == parent:
            without.lose(node)
        else:
            without.receive_sum(node, float(value) if plan.values.is_scalar else value)
    assert server.estimate() == without.estimate()
    mutant = received(plan, bad, checks=False).estimate()
    assert np.max(np.abs(np.asarray(mutant.value) - without.estimate().value)) > 1e4


@pytest.mark.parametrize("order", [1, -1])
def test_it_does_not_matter_whether_a_parent_comes_first(order: int) -> None:
    plan = planned()
    parent = plan.tree.node(2, 0)
    sums = [(n, v + 900.0 * (n == parent)) for n, v in sums_of(plan, 9) if n.stop <= parent.stop]
    server = received(plan, sorted(sums, key=lambda pair: order * pair[0].level))
    assert parent in server.distrusted


LEVELS = planned().tree.levels
SPREAD = planned().influence


@given(
    st.sampled_from([planned(), planned(mechanism="pairs")]),
    st.integers(0, 400),
    st.lists(
        st.floats(-2 * SPREAD, 2 * SPREAD) | st.sampled_from([0.0, 1e5, -1e5]),
        min_size=LEVELS,
        max_size=LEVELS,
    ),
)
def test_one_client_moves_no_estimate_by_more_than_the_bound(
    plan: Plan, user: int, added: list[float]
) -> None:
    """Whatever it adds to its batches: at every level it is noticed, or within the bound.

    The bound is on how far its batches are off the truth; the noise of others is not its doing.
    """
    sums = sums_of(plan, 10)
    honest = received(plan, sums, checks=False).estimate()
    server = received(plan, poisoned(sums, user, (added * 3)[: plan.tree.levels]))
    noise = plan.error_bound(1e-9)
    off = abs(server.estimate().value - honest.value)
    assert off <= plan.influence + noise
    assert plan.influence < 0.7 * plan.horizon


def test_a_bound_that_is_printed_is_about_a_lowest_batch_and_the_reach() -> None:
    plan = Plan.best(10**5, 4, PRIVACY, mechanism="shares")
    checks, lowest = plan.plausibility, plan.tree.lowest
    assert lowest + checks.reaches[0] < plan.influence < lowest + 8 * checks.reaches[0]
    assert plan.influence < max(m.influence for m in plan.mechanisms) / 10
    pairs = Plan.best(10**5, privacy=PRIVACY, mechanism="pairs")
    assert pairs.influence == pairs.tree.lowest + pairs.plausibility.reaches[0]
    assert pairs.influence < pairs.mechanisms[0].influence < plan.influence
    assert Plan.best(10**5, privacy=PRIVACY, mechanism="ballots").influence == 1.0


def test_absent_users_widen_no_range() -> None:
    plan = planned(Reals(2.0, 4.0), mechanism="pairs")
    node, reach = plan.tree.node(1, 0), plan.plausibility.reaches[0]
    server = oh.SumServer(plan, checks=True)
    server.receive_sum(node, 2.0 - 0.9 * reach, own=node.size - 1)
    assert not server.distrusted
    full = oh.SumServer(plan, checks=True)
    full.receive_sum(node, 2.0 * node.size - 1.1 * reach)
    assert full.distrusted == [node]


def test_what_is_refused_is_not_half_received() -> None:
    plan = planned()
    server = received(plan, sums_of(plan, 3))
    before = server.state()
    with pytest.raises(oh.ProtocolViolation, match="received twice"):
        server.receive_sum(plan.tree.node(1, 0), math.inf)
    assert server.state() == before
