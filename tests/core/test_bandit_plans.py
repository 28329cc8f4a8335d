"""Plans for learners: what they cost, and the privacy of vector and matrix together."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats
from scipy.signal import fftconvolve
from scipy.special import ndtri

import overhand as oh
from overhand.accounting import gaussian_delta
from overhand.bandits import plan_for_regret
from overhand.errors import InvalidValue
from overhand.mechanisms import CoinSum, SharesSum
from overhand.model import Floats
from overhand.noise import CorrelatedNoise
from overhand.planning.blocks import blocks_tree
from overhand.tree import published_degrees
from overhand.values import RegressionStatistics
from support.learners import WIDEST
from support.share_plans import leaked
from support.small_plans import PRIVACY

# --- plans ----------------------------------------------------------------------------------------


@cache
def regret_plan(
    horizon: int = 10_000,
    shufflers: int = 4,
    dimension: int = 3,
    users_per_std: float = 8.0,
    mechanism: str = "shares",
    **options: Any,
) -> oh.Plan:
    """Unless told otherwise, in the paper's tree."""
    options |= {"users_per_std": users_per_std, "mechanism": mechanism}
    return plan_for_regret(horizon, shufflers, PRIVACY, dimension, **options)


def cost(plan: oh.Plan, users_per_std: float = 8.0) -> float:
    """In users: the root mean square of the noise, at so many each, and of those who wait."""
    assert isinstance(plan.values, RegressionStatistics)
    t = np.arange(1, plan.horizon + 1)
    noise = math.sqrt(float(np.mean(plan.noise_variance(t))))
    waiting = math.sqrt(float(np.mean((t % plan.tree.lowest) ** 2.0)))
    return users_per_std * math.sqrt(plan.values.features) * noise + waiting


@pytest.mark.slow
def test_the_dearer_noise_is_the_larger_are_the_batches() -> None:
    prices = (0.25, 1.0, 4.0, 8.0, 16.0, 64.0)
    plans = [regret_plan(users_per_std=price) for price in prices]
    lowest = [plan.tree.lowest for plan in plans]
    assert lowest == sorted(lowest)
    assert lowest[-1] > 10 * lowest[0]
    for price, plan in zip(prices, plans, strict=True):
        # At its own price, no other of these plans is better.
        assert cost(plan, price) <= 1.01 * min(cost(other, price) for other in plans)


@pytest.mark.parametrize("dimension", [2, pytest.param(9, marks=pytest.mark.slow)])
def test_another_shuffler_is_never_worse(dimension: int) -> None:
    costs = [cost(regret_plan(10_000, shufflers, dimension)) for shufflers in range(1, 6)]
    for more, fewer in itertools.pairwise(reversed(costs)):
        assert more <= 1.001 * fewer
    assert costs[3] < 0.85 * costs[0]


def one_level_costs(plan: oh.Plan) -> dict[int, float]:
    """By the size of a batch, the cost of a tree of one level: any has the noise of this one."""
    t, variance = np.arange(1, plan.horizon + 1), plan.mechanisms[0].variance
    return {
        size: 8 * math.sqrt(3) * math.sqrt(variance * float(np.mean(t // size)))
        + math.sqrt(float(np.mean((t % size) ** 2.0)))
        for size in range(1, plan.horizon // 2, 3)
    }


def test_one_level_has_the_best_of_all_batch_sizes() -> None:
    plan = regret_plan(shufflers=1)
    assert plan.tree.levels == 1
    costs = one_level_costs(plan)
    assert cost(plan) <= 1.01 * min(costs.values())
    assert min(costs[size] for size in costs if size < plan.tree.lowest / 2) > 1.1 * cost(plan)


@pytest.mark.parametrize("dimension", [2, 9])
def test_the_plan_of_a_counter_costs_a_learner_more(dimension: int) -> None:
    counter = oh.Plan.best(
        10_000,
        4,
        PRIVACY,
        values=RegressionStatistics(dimension),
        mechanism="shares",
        tree="regular",
    )
    plan = regret_plan(dimension=dimension)
    assert cost(counter) > 1.1 * cost(plan)
    assert counter.tree.lowest < plan.tree.lowest / 4
    assert counter.rms_error < plan.rms_error


def test_unless_told_otherwise_pairs_go_to_two_services() -> None:
    plan = plan_for_regret(10_000, 4, PRIVACY, 3)
    assert plan == regret_plan(mechanism="pairs", users_per_std=5.0)
    assert plan != regret_plan(mechanism="pairs", users_per_std=50.0)
    assert [mechanism.kind for mechanism in plan.mechanisms] == ["pairs"]
    assert (plan.values, plan.horizon) == (RegressionStatistics(3), 10_000)
    assert (plan.privacy, plan.honest, plan.reports) == (PRIVACY, 1.0, 1)


def test_the_blocks_of_two_services_have_the_best_of_all_sizes() -> None:
    """Each with the noise that hides a user as well in that many blocks."""
    plan = regret_plan(mechanism="pairs")
    sizes = [*range(1, 400, 7), 1000]
    costs = {size: cost(of_blocks(plan, size)) for size in sizes}
    assert cost(plan) <= 1.01 * min(costs.values())
    assert min(costs[1], costs[1000]) > 1.1 * cost(plan)
    shares = [cost(regret_plan(shufflers=shufflers)) for shufflers in (1, 4)]
    assert cost(plan) < min(shares)


def of_blocks(plan: oh.Plan, size: int) -> oh.Plan:
    """The same guarantee for blocks of another size, and as many as there are then."""
    (mechanism,) = plan.mechanisms
    noise = mechanism.noise_share
    assert isinstance(noise, CorrelatedNoise)
    blocks = plan.horizon // size
    norm = CorrelatedNoise.of(1.0, blocks).norm
    other = CorrelatedNoise.of(noise.deviation * norm / noise.norm, blocks)
    fitted = mechanism.with_noise(
        size, other, honest=size, distance=1e-9, values=mechanism.values, steps=mechanism.steps
    )
    return oh.Plan(blocks_tree(fitted), (fitted,), plan.privacy, 1, horizon=plan.horizon)


def test_other_options_are_those_of_any_plan() -> None:
    plan = regret_plan(2000, 2, users_per_std=5.0)
    shares: dict[str, Any] = {"mechanism": "shares"}
    paper = plan_for_regret(2000, 2, PRIVACY, 3, tree="paper", **shares)
    assert paper.tree.degrees == published_degrees(2000, 2) != plan.tree.degrees
    coins = plan_for_regret(2000, 2, PRIVACY, 3, mechanism="coins")
    assert all(isinstance(mechanism, CoinSum) for mechanism in coins.mechanisms)
    assert all(isinstance(mechanism, SharesSum) for mechanism in plan.mechanisms)
    half = plan_for_regret(2000, 2, PRIVACY, 3, honest=0.5, **shares)
    assert half.honest == 0.5
    assert half.mechanisms[0].variance > 1.5 * plan.mechanisms[0].variance
    twice = plan_for_regret(2000, 2, PRIVACY, 3, reports=2, **shares)
    assert twice.reports == 2
    assert twice.mechanisms[0].variance > 3 * plan.mechanisms[0].variance
    for other in (plan, paper, coins, half, twice):
        assert other.delta_spent <= PRIVACY.delta


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"users_per_std": 0.0}, "users_per_std=0"),
        ({"users_per_std": -8}, "users_per_std=-8"),
        ({"users_per_std": math.nan}, "users_per_std=nan"),
        ({"users_per_std": math.inf}, "users_per_std=inf"),
        ({"users_per_std": "8"}, "users_per_std='8'"),
        ({"dimension": 0}, "features=0"),
        ({"dimension": 1.5}, "features=1.5"),
        ({"dimension": True}, "features=True"),
        ({"dimension": "3"}, "features='3'"),
        ({"tree": "oak"}, "oak"),
        ({"tree": "path"}, "path"),
        ({"mechanism": "oak"}, "oak"),
        ({"honest": 0.0}, "honest=0"),
        ({"horizon": 1}, "horizon=1"),
        ({"shufflers": 0}, "shufflers=0"),
    ],
    ids=str,
)
def test_what_no_plan_can_be_made_for_is_refused(options: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"horizon": 1000, "shufflers": 2, "privacy": PRIVACY, "dimension": 3}
    with pytest.raises(InvalidValue, match=re.escape(words)):
        plan_for_regret(**(asked | options))


@pytest.mark.parametrize("options", [{"error": 3.0}, {"error": 3.0, "delta": 1e-6}], ids=str)
def test_accuracy_first_is_not_about_regret(options: dict[str, float]) -> None:
    """Only `Plan.for_error` takes an error, and that has no objective but it."""
    with pytest.raises(TypeError, match="'error'"):
        plan_for_regret(1000, 2, PRIVACY, 3, **options)


# --- the privacy of vector and matrix together ----------------------------------------------------


def coin_law(parts: list[dict[str, Any]], spared: float = 1.0) -> Floats:
    """The law of printed coins, but for outcomes ten standard deviations out."""
    law = np.ones(1)
    for part in parts:
        trials = int(part["trials"] * spared)
        half = 10 * math.sqrt(trials * part["probability"] * (1 - part["probability"]))
        middle = trials * part["probability"]
        points = np.arange(max(0, math.floor(middle - half)), min(trials, math.ceil(middle + half)))
        law = fftconvolve(law, stats.binom.pmf(points, trials, part["probability"]))
    law = np.maximum(law, 1e-300)  # tails below 1e-15 are excepted
    return np.asarray(law / law.sum())


def steepest(law: Floats, largest: int, excepted: float) -> float:
    """The smallest c for which X + s is no easier to tell from X than N(c s, 1) from N(0, 1).

    For a hundred shifts s up to the largest and all thresholds: a test that says "moved" above x is
    wrong with P[X > x] and P[X + s <= x], where all but an excepted part of X is looked at.
    """
    still = np.append(np.cumsum(law[:0:-1])[::-1], 0.0) / (1 - excepted)
    moved = np.cumsum(law) / (1 - excepted)
    on_still = np.where(still < 1, -ndtri(np.minimum(still, 1)), -np.inf)
    on_moved = np.where(moved < 1, ndtri(np.minimum(moved, 1)), np.inf)
    assert still[largest] >= 1  # what is left out of the law would be excepted anyway
    assert moved[-largest - 1] >= 1
    shifts: list[int] = np.unique(np.linspace(1, largest, 100).round().astype(int)).tolist()
    return max(float(np.max(on_still[s:-1] - on_moved[: -s - 1])) / s for s in shifts)


@cache
def joint_delta(plan: oh.Plan, spared: float = 1.0, sensitivity: float = WIDEST) -> float:
    """The guarantee from what is printed: all levels, and all coordinates in one norm."""
    summary = plan.summary()
    features = int(summary["values"].removeprefix("regression:"))
    coordinates = features + features * (features + 1) // 2
    excepted = 0.01 * summary["delta"] / (coordinates * len(summary["levels"]))
    square = 0.0
    for row in summary["levels"]:
        assert row["unit"] == pytest.approx(2 / row["steps"])  # x y goes from -1 to 1
        norm = sensitivity / row["unit"] + math.sqrt(coordinates)
        square += (norm * steepest(coin_law(row["noise"], spared), row["steps"], excepted)) ** 2
    told = gaussian_delta(math.sqrt(square), summary["epsilon"])
    return told + 0.01 * float(summary["delta"]) + leaked(summary)


JOINT = [(10_000, 3), (100_000, 9)]


@pytest.mark.parametrize(("horizon", "dimension"), JOINT)
def test_vector_and_matrix_of_all_levels_are_within_the_budget(
    horizon: int, dimension: int
) -> None:
    plan = regret_plan(horizon, 4, dimension)
    assert len(plan.summary()["levels"]) == plan.tree.levels == 4  # one size a level
    # What is said to be spent is a little more: the slope of the noise is bounded from above.
    assert 0.95 * plan.delta_spent < joint_delta(plan) <= plan.delta_spent <= PRIVACY.delta


@pytest.mark.parametrize(("horizon", "dimension"), JOINT[:1])
def test_a_tenth_less_noise_would_be_over_the_budget(horizon: int, dimension: int) -> None:
    assert joint_delta(regret_plan(horizon, 4, dimension), spared=0.81) > 2 * PRIVACY.delta


def test_two_vectors_of_norm_one_would_be_over_the_budget() -> None:
    """What a user would need if vector and matrix had no joint sensitivity."""
    plan = regret_plan(*JOINT[0][:1], 4, JOINT[0][1])
    assert joint_delta(plan, sensitivity=2 * math.sqrt(2)) > 10 * PRIVACY.delta


def told_apart(plan: oh.Plan, epsilon: float) -> float:
    """The delta of two given users over all levels, by dp-accounting: no bound is used."""
    ends = RegressionStatistics(3).opposites(np.array([0, 1], np.uint8))
    composed: Any = None
    for row in plan.summary()["levels"]:
        law = coin_law(row["noise"])
        kept = {i: math.log(p) for i, p in enumerate(law) if p > 1e-15}
        for shift in np.rint(np.abs(ends[1] - ends[0]) / row["unit"]).astype(int).tolist():
            if shift:
                loss = privacy_loss_distribution.from_two_probability_mass_functions(
                    kept,
                    {i + shift: log for i, log in kept.items()},
                    pessimistic_estimate=False,
                    value_discretization_interval=1e-3,
                    symmetric=False,
                )
                composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_delta_for_epsilon(epsilon))


def test_the_two_users_that_differ_most_are_hardly_better_hidden_than_the_budget_says() -> None:
    """No noise is wasted: what separates the two is the allowance for rounding."""
    plan = regret_plan(2000, 2)
    truth = told_apart(plan, PRIVACY.epsilon)
    assert truth <= plan.delta_spent
    assert truth > 0.3 * plan.delta_spent


def test_the_guarantee_of_the_plan_holds_for_its_file() -> None:
    plan = regret_plan()
    assert oh.Plan.from_json(plan.to_json()) == plan
    assert replace(plan, honest=0.8).delta_spent > PRIVACY.delta
