"""Plans of the two services: errors, guarantees, sizes of blocks, and what is beyond a horizon."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import overhand as oh
from overhand.accounting import BlocksGuarantee, gaussian_delta
from overhand.mechanisms import BallotSum, PairsSum
from overhand.noise import BEYOND, CorrelatedNoise, IndependentNoise
from overhand.planning import Objective, Requirements
from overhand.planning.blocks import _certify, _cost
from support.divergences import delta

PRIVACY = oh.Privacy(1.0, 1e-6)


def best(horizon: int, mechanism: str = "pairs", **asked: Any) -> oh.Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", oh.errors.WeakDelta)
        return oh.Plan.best(
            horizon, privacy=asked.pop("privacy", PRIVACY), mechanism=mechanism, **asked
        )


@pytest.mark.parametrize(
    ("horizon", "values", "most"),
    [
        (100, "bit", 5.0),
        (1000, "bit", 11.1),
        (3000, "bit", 16.0),
        (10**4, "bit", 18.3),
        (10**6, "bit", 26.8),
        (10**8, "bit", 35.6),
        (10**6, "histogram:200", 37.0),
        (10**6, "vector:20", 53.5),
        (10**6, "regression:9", 56.5),
    ],
)
def test_one_message_has_little_error(horizon: int, values: str, most: float) -> None:
    plan = best(horizon, values=values)
    assert plan.rms_error <= most
    assert (plan.messages_per_user, plan.tree.levels, plan.shufflers) == (1, 1, 1)
    assert plan.delta_spent <= 1e-6


@pytest.mark.parametrize(
    ("values", "most", "opened"), [("bit", 28.5, 4.2), ("histogram:10", 44.0, 14.0)]
)
def test_ballots_have_few_dummies(values: str, most: float, opened: float) -> None:
    plan = best(10**6, "ballots", values=values)
    assert plan.rms_error <= most
    assert plan.costs.opened <= opened
    assert plan.influence == 1


@pytest.mark.parametrize("horizon", [10**4, 10**5, 10**6])
@pytest.mark.parametrize("values", ["bit", "histogram:20", "vector:3"])
def test_ten_times_as_many_users_cost_little(horizon: int, values: str) -> None:
    plan, larger = best(horizon, values=values), best(10 * horizon, values=values)
    assert plan.rms_error_over(10 * horizon) <= 1.28 * larger.rms_error
    assert plan.rms_error_over(horizon) == plan.rms_error


@pytest.mark.parametrize("horizon", [100, 5000, 10**6])
def test_no_other_size_of_blocks_is_better(horizon: int) -> None:
    plan = best(horizon)
    found = plan.rms_error
    for choice in Requirements(PRIVACY, mechanism="pairs", horizon=horizon).choices():
        for size in {1, 2, 5, *range(max(1, plan.tree.lowest - 3), plan.tree.lowest + 4), 60}:
            other = math.sqrt(_cost(choice, _certify(choice, min(size, horizon))))
            assert found <= other * (1 + 1e-4)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"values": "histogram:5"},
        {"values": "vector:4", "reports": 3},
        {"values": "real:0:50"},
        {"mechanism": "ballots"},
        {"mechanism": "ballots", "values": "histogram:7", "reports": 2},
    ],
)
def test_the_certificate_is_that_of_a_gaussian_and_of_what_is_charged(
    asked: dict[str, Any],
) -> None:
    """By SciPy's normal law, from the numbers that the plan's file has."""
    plan = best(100_000, **asked)
    noise = plan.mechanisms[0].noise_share
    assert isinstance(noise, CorrelatedNoise)
    moved = plan.mechanisms[0].quantizer.sensitivity.norm
    registers = sum(float(r.weight) * (r.gain / noise.step) ** 2 for r in noise.rotations)
    mu = plan.reports * moved * math.sqrt(1 + registers) * noise.step / (2**50 * math.sqrt(2))
    normal = stats.norm
    seen = normal.cdf(mu / 2 - 1 / mu) - math.e * normal.cdf(-mu / 2 - 1 / mu)
    charged = BlocksGuarantee(plan.mechanisms[0], plan.reports, plan.privacy).charged_delta(1.0)
    assert plan.mu is not None
    assert math.isclose(plan.mu, mu, rel_tol=1e-9)
    assert math.isclose(plan.delta_spent, seen + charged, rel_tol=1e-6)
    assert 0 < charged < 0.06e-6
    assert plan.delta_leaked == charged
    assert 0.95e-6 < plan.delta_spent <= 1e-6


def test_clipping_is_charged_for_all_blocks_and_buckets_that_there_may_be() -> None:
    plan = best(100_000, "ballots", values="histogram:5")
    votes = plan.mechanisms[0]
    assert isinstance(votes, BallotSum)
    noise = votes.noise_share
    assert isinstance(noise, CorrelatedNoise)
    spread = math.sqrt(noise.law(1).variance)
    least = noise.cap * 5 * stats.norm.sf(votes.bound / spread)
    assert BlocksGuarantee(votes, 1, PRIVACY).charged_delta(1.0) > (1 + math.e) * least
    fewer = replace(plan, mechanisms=(replace(votes, dummies=5 * votes.bound),))
    assert fewer.delta_spent > 1000 * plan.delta_spent  # they show more


def test_more_reports_need_as_many_times_the_noise() -> None:
    one, three = best(10**6), best(10**6, reports=3)
    assert one.mu is not None
    assert three.mu is not None
    assert math.isclose(one.mu, three.mu, rel_tol=1e-4)
    deviations = [plan.mechanisms[0].noise_share.deviation for plan in (one, three)]  # type: ignore[attr-defined]
    assert 2.7 < deviations[1] / deviations[0] < 3.01


@pytest.mark.parametrize("horizon", [50, 300])
def test_few_users_get_noise_without_a_state(horizon: int) -> None:
    plan = best(horizon)
    assert isinstance(plan.mechanisms[0].noise_share, IndependentNoise)
    assert plan.mu is None
    noise = plan.mechanisms[0].noise_share
    assert delta(noise.law(1), 1.0) <= plan.delta_spent <= 1e-6
    assert delta(noise.reduce(0.9, 1).law(1), 1.0) > 1e-6  # one service's noise is just enough


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0, 10.0, 20.0, 76.0])
@pytest.mark.parametrize("mechanism", ["pairs", "ballots"])
def test_a_larger_epsilon_is_never_worse(epsilon: float, mechanism: str) -> None:
    less = best(20_000, mechanism, privacy=oh.Privacy(epsilon, 1e-6))
    more = best(20_000, mechanism, privacy=oh.Privacy(1.3 * epsilon, 1e-6))
    assert more.rms_error <= less.rms_error * 1.03  # blocks of ballots are twice the best
    for plan in (less, more):
        assert plan.delta_spent <= 1e-6
        assert plan.delta_leaked < 0.2e-6
        assert plan.outside_epsilon <= min(plan.privacy.epsilon, 20)


@pytest.mark.parametrize("epsilon", [8.0, 12.0, 30.0, 100.0])
def test_vectors_are_never_refused_for_a_large_epsilon(epsilon: float) -> None:
    """What is charged grows with e^epsilon: from some epsilon on, a smaller one is met instead."""
    plan = best(100_000, values="vector:3", privacy=oh.Privacy(epsilon, 1e-6))
    assert plan.delta_spent <= 1e-6
    assert plan.delta_leaked < 0.2e-6
    assert plan.rms_error < best(100_000, values="vector:3").rms_error / 4


@pytest.mark.parametrize("asked", [{}, {"mechanism": "ballots"}, {"horizon": 200}])
def test_others_are_told_less(asked: dict[str, Any]) -> None:
    plan = best(asked.pop("horizon", 100_000), **asked)
    assert 0.5 < plan.outside_epsilon < 0.95
    if plan.mu is not None:
        assert math.isclose(plan.outside_epsilon, 0.689, abs_tol=0.003)
        seen = gaussian_delta(plan.mu / math.sqrt(2), plan.outside_epsilon)
        blocks = BlocksGuarantee(plan.mechanisms[0], plan.reports, plan.privacy)
        seen += 2 * blocks.charged_delta(plan.outside_epsilon)
        assert math.isclose(seen, 1e-6, rel_tol=1e-6)  # both services' noise may be inexact


def test_a_limit_on_messages_is_met() -> None:
    assert best(10_000, max_messages=1).messages_per_user == 1


@pytest.mark.parametrize("error", [pytest.param(15.0, marks=pytest.mark.slow), 40.0])
def test_accuracy_first_finds_the_epsilon(error: float) -> None:
    plan = oh.Plan.for_error(50_000, error=error, mechanism="services")
    assert 0.97 * error < plan.rms_error <= error
    assert isinstance(plan.mechanisms[0], BallotSum)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ("bit", BallotSum),
        ("histogram:10", BallotSum),
        ("histogram:11", PairsSum),
        ("real", PairsSum),
    ],
)
def test_the_services_send_what_is_cheaper(values: str, kind: type) -> None:
    assert isinstance(best(10_000, "services", values=values).mechanisms[0], kind)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"honest": 0.5}, "honest=0.5 has no meaning for mechanism='pairs'"),
        ({"tree": "paper"}, "tree='paper' has no meaning"),
        ({"composition": "simple"}, "composition='simple' has no meaning"),
        ({"mechanism": "ballots", "values": "real"}, "mechanism='ballots' cannot send real"),
        ({"mechanism": "none"}, "mechanism='none'"),
    ],
)
def test_what_means_nothing_for_blocks_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        best(10_000, **asked)


def test_no_plan_can_have_noise_by_name() -> None:
    with pytest.raises(TypeError, match="noise"):
        oh.Plan.best(1000, epsilon=1.0, noise="services")  # type: ignore[call-arg]


def test_the_objective_chooses_the_blocks() -> None:
    class Impatient(Objective):
        def cost(self, noise: Any, pending: Any) -> Any:
            return noise + 9 * pending**2

    assert best(10**5, objective=Impatient()).tree.lowest < best(10**5).tree.lowest


# Beyond the horizon.


def test_a_plan_goes_on_for_a_hundred_times_its_blocks() -> None:
    plan = best(1000)
    blocks = 1000 // plan.tree.lowest
    assert plan.most_users == BEYOND * blocks * plan.tree.lowest
    assert plan.horizon == 1000
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    total.update_many(np.ones(plan.most_users, np.uint8))
    assert abs(total.estimate.value - plan.most_users) < 6 * total.estimate.rms
    with pytest.raises(oh.InvalidValue, match=f"the {plan.most_users} users that the guarantee"):
        total.update(1)


def test_errors_beyond_the_horizon_are_true() -> None:
    """Measured against what is printed, for ten times as many users as expected."""
    plan = best(2000)
    users = 10 * plan.horizon
    squares = []
    for seed in range(300):
        total = oh.ContinualSum(plan, oh.seeded_random(seed))
        total.update_many(np.zeros(users, np.uint8))
        history = total.hindsight()
        squares.append(np.mean(history.value**2))
    noise = plan.block_errors
    assert noise is not None
    due = noise.noise_variance(np.arange(1, users // plan.tree.lowest + 1)).mean()
    assert abs(math.sqrt(np.mean(squares) / due) - 1) < 0.15


# Files.


@pytest.mark.parametrize(
    "asked", [{}, {"mechanism": "ballots"}, {"horizon": 60}, {"values": "vector:2"}]
)
def test_a_saved_plan_is_the_plan(asked: dict[str, Any]) -> None:
    plan = best(asked.pop("horizon", 30_000), **asked)
    read = oh.Plan.from_json(plan.to_json())
    assert read == plan
    assert read.tree == plan.tree
    assert read.summary()["most_users"] == plan.most_users


def test_a_cap_that_is_not_paid_for_is_refused() -> None:
    plan = best(30_000)
    with pytest.raises(oh.InvalidValue, match="that are paid for"):
        replace(plan, tree=oh.RegularTree(2 * plan.most_users, plan.tree.degrees))
    with pytest.raises(oh.InvalidValue, match="horizon="):
        replace(plan, horizon=plan.most_users + 1)
    size = plan.tree.lowest
    tree = oh.RegularTree(plan.most_users, (size, 2))
    both = plan.mechanisms[0], replace(plan.mechanisms[0], size=2 * size)
    with pytest.raises(oh.InvalidValue, match="services make the noise of one level"):
        replace(plan, tree=tree, mechanisms=both)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("noise", "step"), 1 << 47),
        (("noise", "cap"), 10**9),
        (("noise", "rotations", 0, 4), 12345),
        (("modulus_bits",), 48),
    ],
)
def test_an_edited_plan_is_refused(path: tuple[Any, ...], value: int) -> None:
    saved = json.loads(best(30_000).to_json())
    *way, last = path
    place = saved["mechanisms"][0]
    for step in way:
        place = place[step]
    place[last] = value
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))
