"""Plans for reals, histograms and vectors: what they promise, what they spend and how they err."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

import overhand as oh
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.mechanisms import CoinSum, Mechanism, SharesSum
from overhand.model import Floats
from overhand.noise import Coins
from overhand.planning import Composition, TreeKind
from overhand.randomness import HALF
from overhand.tree import published_degrees
from overhand.values import (
    BITS,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
    values_of,
)
from support.small_plans import PRIVACY

MILLION = 10**6
KINDS: list[Values] = [
    Reals(),
    Reals(-3.0, 7.0),
    Histogram(2),
    Histogram(200),
    Vectors(1),
    Vectors(3),
    Vectors(20),
    SymmetricMatrices(3),
    RegressionStatistics(2),
]
FEW: list[Values] = [Reals(), Histogram(5), Vectors(3)]


NO_COINS = Coins(0, HALF)


def best(
    values: Values, horizon: int = 300, shufflers: int = 2, tree: TreeKind = "regular"
) -> oh.Plan:
    return oh.Plan.best(horizon, shufflers, PRIVACY, values=values, tree=tree)


def all_mechanisms(plan: oh.Plan) -> list[CoinSum]:
    found = [mechanism for mechanism in plan.mechanisms if isinstance(mechanism, CoinSum)]
    assert len(found) == plan.tree.levels
    return found


# --- what is spent --------------------------------------------------------------------------------


@pytest.mark.parametrize(("tree", "horizon"), [("regular", 97), ("paper", 400)])
@pytest.mark.parametrize("values", KINDS, ids=str)
def test_a_plan_for_any_kind_wastes_little_of_its_delta(
    values: Values, tree: TreeKind, horizon: int
) -> None:
    plan = best(values, horizon, 3, tree)
    assert tree == "regular" or plan.tree.degrees == published_degrees(horizon, 3)
    assert 0.8 * PRIVACY.delta <= plan.delta_spent <= PRIVACY.delta


@pytest.mark.parametrize("privacy", [oh.Privacy(0.1, 1e-9), oh.Privacy(12.0, 1e-3)], ids=str)
@pytest.mark.parametrize("values", FEW, ids=str)
def test_so_does_one_for_any_budget(values: Values, privacy: oh.Privacy) -> None:
    plan = oh.Plan.best(200, 2, privacy, values=values)
    assert 0.8 * privacy.delta <= plan.delta_spent <= privacy.delta


def noise_of(parts: list[dict[str, Any]]) -> Floats:
    """The law of a level's noise, but for outcomes twelve standard deviations out."""
    law = np.ones(1)
    for part in parts:
        binomial = stats.binom(part["trials"], part["probability"])
        half = 12 * binomial.std()
        first, last = math.floor(binomial.mean() - half), math.ceil(binomial.mean() + half)
        law = np.convolve(law, binomial.pmf(np.arange(max(0, first), last + 1)))
    return np.asarray(law / law.sum())


def moved_by_coordinate(summary: dict[str, Any], coordinates: int) -> float:
    """What `plan --json` claims, recomputed by dp-accounting from the printed levels."""
    composed: Any = None
    for level in summary["levels"]:
        kept = {i: math.log(p) for i, p in enumerate(noise_of(level["noise"])) if p > 1e-18}
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            kept,
            {i + level["steps"]: log for i, log in kept.items()},
            pessimistic_estimate=True,
            value_discretization_interval=1e-4,
            symmetric=False,
        )
        for _ in range(coordinates):
            composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_delta_for_epsilon(summary["epsilon"]))


def moved_in_norm(summary: dict[str, Any], values: Values) -> float:
    """The same for vectors: every level and coordinate is dominated by a Gaussian, but for d0."""
    runs = values.dimension * len(summary["levels"])
    exception = 0.01 * float(summary["delta"]) / runs
    square = 0.0
    for level in summary["levels"]:
        law = noise_of(level["noise"])
        below, above = np.cumsum(law), np.cumsum(law[::-1])[::-1] - law
        norm = values.sensitivity.norm / level["unit"] + math.sqrt(values.dimension)
        slopes: list[float] = []
        for shift in range(1, level["steps"] + 1):
            wrong_if_still = above[shift:] / (1 - exception)
            wrong_if_moved = below[:-shift] / (1 - exception)
            tests = (wrong_if_still < 1) & (wrong_if_moved < 1)
            unmoved = stats.norm.isf(wrong_if_still[tests])
            moved = stats.norm.ppf(wrong_if_moved[tests])
            slopes.append(float(np.max(unmoved - moved)) / shift)
        square += (max(slopes) * norm) ** 2
    return gaussian_delta(math.sqrt(square), summary["epsilon"]) + runs * exception


def recomputed(summary: dict[str, Any]) -> float:
    values = values_of(summary["values"])
    if values.sensitivity.l2 is None:
        return moved_by_coordinate(summary, values.sensitivity.l0)
    return moved_in_norm(summary, values)


@pytest.mark.parametrize(
    "values", [Reals(), Histogram(5), Vectors(1), Vectors(3), RegressionStatistics(2)], ids=str
)
def test_the_guarantee_follows_from_what_is_printed(values: Values) -> None:
    plan = best(values, 300, 2)
    assert recomputed(plan.summary()) == pytest.approx(plan.delta_spent, rel=0.02)


@pytest.mark.parametrize("values", FEW, ids=str)
def test_the_recomputation_sees_half_the_noise(values: Values) -> None:
    summary = best(values, 300, 2).summary()
    for level in summary["levels"]:
        for part in level["noise"]:
            part["trials"] //= 2
    assert recomputed(summary) > 10 * PRIVACY.delta


@pytest.mark.parametrize("values", [Reals(), Vectors(3), RegressionStatistics(2)], ids=str)
def test_more_steps_behind_the_same_coins_spend_more(values: Values) -> None:
    plan = best(values)
    finer = tuple(replace(m, steps=2 * m.steps) for m in all_mechanisms(plan))
    assert replace(plan, mechanisms=finer).delta_spent > 100 * PRIVACY.delta


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("values", FEW, ids=str)
def test_a_level_without_coins_spends_everything(values: Values, level: int) -> None:
    plan = best(values, 300, 2)
    bare = tuple(
        replace(mechanism, noise_share=NO_COINS) if i == level else mechanism
        for i, mechanism in enumerate(all_mechanisms(plan))
    )
    assert replace(plan, mechanisms=bare).delta_spent == pytest.approx(1.0)


def test_a_plan_of_values_that_differ_is_refused() -> None:
    plan = best(Reals(), 300, 2)
    first, second = all_mechanisms(plan)
    with pytest.raises(oh.InvalidValue, match="the same values"):
        replace(plan, mechanisms=(first, replace(second, values=Reals(0.0, 2.0))))


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_the_published_plan_of_any_kind_keeps_its_promise(values: Values) -> None:
    plan = oh.Plan.published(1000, 2, PRIVACY, values=values)
    assert plan.delta_spent <= PRIVACY.delta
    assert plan.values == values


@pytest.mark.parametrize(
    ("values", "composition"),
    [
        (Reals(), "simple"),
        (Histogram(5), "simple"),
        (Vectors(3), "simple"),
        (Vectors(3), "advanced"),
    ],
    ids=str,
)
def test_looser_composition_costs_noise_and_is_still_certified(
    values: Values, composition: Composition
) -> None:
    loose = oh.Plan.best(300, 2, PRIVACY, values=values, composition=composition)
    assert loose.delta_spent < 0.1 * PRIVACY.delta
    assert loose.rms_error > 1.25 * best(values, 300, 2).rms_error


@pytest.mark.parametrize("values", FEW, ids=str)
def test_only_the_coins_of_honest_users_count(values: Values) -> None:
    everyone = best(values, 300, 2)
    plan = oh.Plan.best(300, 2, PRIVACY, values=values, honest=0.5)
    assert 0.8 * PRIVACY.delta <= plan.delta_spent <= PRIVACY.delta
    assert plan.rms_error == pytest.approx(1.3 * everyone.rms_error, rel=0.1)
    assert replace(everyone, honest=0.5).delta_spent > 10 * PRIVACY.delta


@pytest.mark.parametrize("values", FEW, ids=str)
def test_several_reports_of_one_person_cost_noise(values: Values) -> None:
    one = best(values, 300, 2)
    two = oh.Plan.best(300, 2, PRIVACY, values=values, reports=2)
    assert 0.8 * PRIVACY.delta <= two.delta_spent <= PRIVACY.delta
    assert two.rms_error > 1.5 * one.rms_error
    assert replace(one, reports=2).delta_spent > 100 * PRIVACY.delta


# --- how much they err ----------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["regular", "paper"])
def test_reals_err_hardly_more_than_bits(tree: TreeKind) -> None:
    bits, reals = (best(values, MILLION, 5, tree) for values in (BITS, Reals()))
    assert bits.rms_error < reals.rms_error <= 1.15 * bits.rms_error


@pytest.mark.parametrize("tree", ["regular", "paper"])
def test_a_histogram_errs_as_if_it_had_two_buckets(tree: TreeKind) -> None:
    bits, many = (best(values, MILLION, 5, tree) for values in (BITS, Histogram(200)))
    assert many.rms_error <= 1.45 * bits.rms_error


def test_buckets_cost_messages_and_no_noise() -> None:
    two, many = (best(Histogram(buckets), 400, 3) for buckets in (2, 200))
    assert many.rms_error == two.rms_error
    assert many.messages_per_user == 100 * two.messages_per_user


@pytest.mark.parametrize(
    ("values", "horizon"),
    [(Vectors(20), MILLION), (Vectors(1), 400), (RegressionStatistics(2), 400)],
    ids=str,
)
def test_vectors_need_hardly_more_noise_than_gaussian_vectors(values: Values, horizon: int) -> None:
    plan = best(values, horizon, 5 if horizon == MILLION else 3)
    precision = sum(1 / m.noise_variance for m in plan.mechanisms)
    gaussian = values.sensitivity.norm / gaussian_mu(PRIVACY)
    assert gaussian < math.sqrt(1 / precision) <= 1.10 * gaussian


def test_published_vectors_err_a_hundred_times_as_much() -> None:
    plan = oh.Plan.published(MILLION, 5, PRIVACY, values=Vectors(20))
    assert plan.rms_error > 100 * best(Vectors(20), MILLION, 5).rms_error


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_rounding_adds_at_most_a_twentieth_to_the_noise(values: Values) -> None:
    plans = [best(values, 97, 3), best(values, 400, 3, "paper")]
    for mechanism in (m for plan in plans for m in all_mechanisms(plan)):
        assert mechanism.rounding_variance <= 0.05 * mechanism.noise_variance
        assert mechanism.variance == mechanism.noise_variance + mechanism.rounding_variance


@pytest.mark.parametrize("values", [Reals(), Vectors(20)], ids=str)
def test_of_a_million_users_too(values: Values) -> None:
    for mechanism in all_mechanisms(best(values, MILLION, 5)):
        assert mechanism.rounding_variance <= 0.05 * mechanism.noise_variance


@pytest.mark.parametrize(
    ("values", "scaled", "factor"),
    [
        (Reals(), Reals(-3.0, 7.0), 10.0),
        (Reals(), Reals(1e6, 1e6 + 0.25), 0.25),
        (Reals(), Reals(-1e-9, 0.0), 1e-9),
        (Vectors(3), Vectors(3, 5.0), 5.0),
        (Vectors(3), Vectors(3, 1e-6), 1e-6),
        (SymmetricMatrices(3), SymmetricMatrices(3, 0.3), 0.3),
    ],
    ids=str,
)
def test_the_unit_in_which_values_are_measured_does_not_matter(
    values: Values, scaled: Values, factor: float
) -> None:
    plan, other = best(values), best(scaled)
    assert other.tree == plan.tree
    assert [replace(m, values=values) for m in all_mechanisms(other)] == all_mechanisms(plan)
    assert other.rms_error == pytest.approx(factor * plan.rms_error)
    assert other.worst_std == pytest.approx(factor * plan.worst_std)
    assert other.error_bound() == pytest.approx(factor * plan.error_bound())
    assert other.delta_spent == pytest.approx(plan.delta_spent)


def test_a_matrix_is_planned_as_the_vector_it_is() -> None:
    matrix, vector = best(SymmetricMatrices(3)), best(Vectors(6))
    assert (matrix.rms_error, matrix.delta_spent) == (vector.rms_error, vector.delta_spent)


@pytest.mark.parametrize("values", [Reals(), Histogram(5), Vectors(3)], ids=str)
def test_accuracy_first_finds_the_smallest_epsilon(values: Values) -> None:
    error = best(values, 100, 1).rms_error
    plan = oh.Plan.for_error(100, 1, error, 1e-6, values=values)
    assert 0.95 * error <= plan.rms_error <= error
    assert plan.privacy.epsilon == pytest.approx(1.0, rel=0.06)
    assert plan.delta_spent <= 1e-6


@pytest.mark.parametrize(
    "values", [Vectors(1), Vectors(20), SymmetricMatrices(3), RegressionStatistics(2)], ids=str
)
def test_accuracy_first_reaches_what_is_wanted(values: Values) -> None:
    error = 0.8 * best(values, 300, 1).rms_error
    plan = oh.Plan.for_error(300, 1, error, 1e-6, values=values)
    assert 0.9 * error <= plan.rms_error <= error
    assert plan.delta_spent <= 1e-6


# --- how much is sent -----------------------------------------------------------------------------


@pytest.mark.parametrize("values", [*FEW, Vectors(1), RegressionStatistics(2)], ids=str)
def test_fewer_messages_cost_accuracy_and_a_limit_is_kept(values: Values) -> None:
    free = best(values, 200, 2)
    errors = [free.rms_error]
    for share in (0.6, 0.3):
        limit = int(share * free.messages_per_user)
        plan = oh.Plan.best(200, 2, PRIVACY, values=values, max_messages=limit)
        assert plan.messages_per_user <= limit
        assert plan.delta_spent <= PRIVACY.delta
        errors.append(plan.rms_error)
    assert errors == sorted(errors)
    assert errors[-1] > errors[0]


@pytest.mark.parametrize("values", [Histogram(5), Vectors(3)], ids=str)
def test_a_limit_that_is_no_limit_changes_little(values: Values) -> None:
    free = best(values, 300, 2)
    limit = 4 * free.messages_per_user
    plan = oh.Plan.best(300, 2, PRIVACY, values=values, max_messages=limit)
    assert plan.rms_error <= 1.02 * free.rms_error


@pytest.mark.parametrize("values", FEW, ids=str)
def test_a_limit_below_a_value_and_two_coins_is_refused(values: Values) -> None:
    limit = 3 * values.dimension - 1
    with pytest.raises(oh.Infeasible, match=f"max_messages={limit}"):
        oh.Plan.best(300, 2, PRIVACY, values=values, max_messages=limit)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [*KINDS, Reals(0.0, 0.1, clip=True), Vectors(2, 0.7, True)],
                         ids=str)  # fmt: skip
def test_a_plan_of_any_kind_survives_its_file(values: Values, tmp_path: Path) -> None:
    plan = best(values, 97, 3)
    plan.save(tmp_path / "plan.json")
    loaded = oh.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.values == values
    assert loaded.digest == plan.digest
    assert loaded.delta_spent == plan.delta_spent


def test_plans_of_different_kinds_have_different_digests() -> None:
    kinds = [*KINDS, Reals(clip=True), Vectors(3, 2.0), Vectors(3, clip=True)]
    assert len({best(values, 97, 3).digest for values in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("kind", "clip"),
    [("vector:2", False), ("vector:3:2.0", False), ("matrix:2", False), ("vector:3", True),
     ("histogram:3", False), ("oak", False), ("vector:x", False), (7, False)],
    ids=str,
)  # fmt: skip
def test_a_plan_with_other_values_is_refused(kind: Any, clip: bool) -> None:
    saved = json.loads(best(Vectors(3), 97, 3).to_json())
    saved["values"] = {"kind": kind, "clip": clip}
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


@pytest.mark.parametrize("steps", [1, 1000, 0, -3, 2.5, None], ids=str)
def test_a_plan_with_other_steps_is_refused(steps: Any) -> None:
    saved = json.loads(best(Vectors(3), 97, 3).to_json())
    saved["mechanisms"][0]["steps"] = steps
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


LARGE = [Reals(-1000.0, 1000.0), Vectors(1000, 2.5), SymmetricMatrices(100), Histogram(1 << 20)]


@pytest.mark.parametrize("values", [BITS, *KINDS, *LARGE], ids=str)
@pytest.mark.parametrize("kind", ["coins", "shares"])
def test_a_plan_of_any_kind_is_shown_in_a_line(values: Values, kind: str) -> None:
    tree = oh.RegularTree(MILLION, (20, 30, 40))
    made: dict[str, tuple[Mechanism, ...]] = {
        "coins": tuple(CoinSum(n, NO_COINS, values) for n in tree.sizes),
        "shares": tuple(
            SharesSum(n, NO_COINS, values, shares=9, modulus_bits=40, honest=n) for n in tree.sizes
        ),
    }
    plan = oh.Plan(tree, made[kind], PRIVACY, shufflers=5)
    assert len(repr(plan)) <= 100
    assert "\n" not in repr(plan)
    for part in ("1000000", values, "3 of 5 shufflers", PRIVACY, kind, plan.digest[:12]):
        assert str(part) in repr(plan)
    assert repr(replace(plan, honest=0.5)) != repr(plan)
