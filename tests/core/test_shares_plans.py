"""Plans of sums by shares: what they reach, and what they spend."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from numpy.typing import NDArray

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.lab.baselines import SquareRoot
from overhand.mechanisms import SharesSum
from overhand.noise import Coins, CorrelatedNoise
from overhand.planning import TreeKind
from overhand.values import BITS, Histogram, Reals, Values, Vectors, values_of
from support.share_plans import TINY_KINDS, leaked, shared
from support.small_plans import PRIVACY

MILLION = 10**6
KINDS: list[Values] = [values for values, *_ in TINY_KINDS]


def all_shares(plan: oh.Plan) -> list[SharesSum]:
    found = [m for m in plan.mechanisms if isinstance(m, SharesSum)]
    assert len(found) == plan.tree.levels
    return found


# Plans: what they reach.


@pytest.mark.parametrize(
    ("shufflers", "error"), [(1, 88.3), (2, 36.0), (3, 29.5), (4, 28.6)], ids=str
)
def test_a_million_bits_err_little_with_few_shufflers(shufflers: int, error: float) -> None:
    plan = shared(BITS, MILLION, shufflers, mechanism="best")
    assert plan.rms_error <= error
    assert plan.delta_spent <= PRIVACY.delta


def test_four_shufflers_come_close_to_the_best_trusted_server() -> None:
    trusted = SquareRoot(MILLION, PRIVACY).rms_error
    assert shared(BITS, MILLION, 4, mechanism="best").rms_error <= 1.3 * trusted


def test_vectors_by_shares_need_few_messages_and_little_more_than_gaussian_noise() -> None:
    values = Vectors(20)
    plan = shared(values, MILLION, 5)
    precision = sum(1 / m.noise_variance for m in plan.mechanisms)
    gaussian = values.sensitivity.norm / gaussian_mu(PRIVACY)
    assert gaussian < math.sqrt(1 / precision) <= 1.10 * gaussian
    assert plan.messages_per_user <= 2000
    assert plan.delta_spent <= PRIVACY.delta


@pytest.mark.slow
def test_reals_by_shares_err_as_bits_do() -> None:
    bits, reals = (shared(values, MILLION, 5) for values in (BITS, Reals()))
    assert bits.rms_error < reals.rms_error <= 1.02 * bits.rms_error


# Plans: what they spend.


def laplace_pmf(noise: dict[str, Any]) -> NDArray[np.float64]:
    """The law as it is printed, by convolution of the geometric laws it is made of."""
    assert noise["law"] == "laplace"
    half = math.ceil(45 / -math.log(noise["ratio"]))
    one = noise["ratio"] ** np.abs(np.arange(-half, half + 1.0))
    law = np.ones(1)
    for _ in range(int(noise["shape"])):
        law = np.convolve(law, one / one.sum())
    return law


def composed(summary: dict[str, Any]) -> float:
    """The delta of the printed laws, by dp-accounting alone."""
    total: Any = None
    for row in summary["levels"]:
        law = laplace_pmf(row["noise"])
        kept = {i: math.log(p) for i, p in enumerate(law) if p > 1e-18}
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            kept,
            {i + row["steps"]: log for i, log in kept.items()},
            pessimistic_estimate=True,
            value_discretization_interval=1e-4,
            symmetric=False,
        )
        for _ in range(values_of(summary["values"]).sensitivity.l0):
            total = loss if total is None else total.compose(loss)
    return float(total.get_delta_for_epsilon(summary["epsilon"]))


@pytest.mark.parametrize("values", KINDS, ids=str)
@pytest.mark.parametrize("tree", ["regular", "paper"])
def test_a_plan_of_shares_keeps_its_promise(values: Values, tree: TreeKind) -> None:
    plan = shared(values, 400, 2, tree)
    assert plan.delta_leaked <= plan.delta_spent <= PRIVACY.delta
    assert 0 < plan.delta_leaked <= 0.0101 * PRIVACY.delta
    assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


def test_so_does_one_for_a_million_users() -> None:
    for plan in (shared(BITS, MILLION, 4, mechanism="best"), shared(Vectors(20), MILLION, 5)):
        assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 0.8])
@pytest.mark.parametrize(
    ("values", "horizon", "shufflers"),
    [(BITS, 300, 1), (BITS, 20_000, 3), (Reals(), 20_000, 2), (Histogram(3), 20_000, 2)],
    ids=str,
)
def test_the_guarantee_follows_from_the_printed_laws(
    values: Values, horizon: int, shufflers: int, epsilon: float
) -> None:
    """At a smaller epsilon: at its own, Laplace noise spends next to nothing or everything."""
    plan = shared(values, horizon, shufflers)
    plan = replace(plan, privacy=oh.Privacy(epsilon, 0.5))
    summary = plan.summary()
    assert composed(summary) == pytest.approx(
        summary["delta_spent"] - summary["delta_leaked"], rel=0.02
    )


def test_the_recomputation_sees_more_noise_than_there_is() -> None:
    summary = replace(shared(BITS, 20_000, 3), privacy=oh.Privacy(0.8, 0.5)).summary()
    for row in summary["levels"]:
        row["noise"]["ratio"] **= 0.9
    assert composed(summary) < 0.9 * (summary["delta_spent"] - summary["delta_leaked"])


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_only_the_shares_and_noise_of_honest_users_count(values: Values) -> None:
    everyone, plan = shared(values, 400), shared(values, 400, honest=0.5)
    assert plan.delta_spent <= PRIVACY.delta
    assert everyone.rms_error < plan.rms_error < 1.6 * everyone.rms_error
    for mechanism in all_shares(plan):
        assert mechanism.honest == mechanism.size // 2
    assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


@pytest.mark.parametrize("values", [BITS, Histogram(3), Vectors(2)], ids=str)
def test_several_reports_of_one_person_cost_noise(values: Values) -> None:
    one, two = shared(values, 400), shared(values, 400, reports=2)
    assert two.delta_spent <= PRIVACY.delta
    assert two.rms_error > 1.4 * one.rms_error
    assert two.delta_leaked == pytest.approx(leaked(two.summary()), rel=1e-9)


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_a_plan_of_shares_survives_its_file(values: Values, tmp_path: Path) -> None:
    plan = shared(values, 400)
    plan.save(tmp_path / "plan.json")
    loaded = oh.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.summary() == plan.summary()
    assert json.loads(json.dumps(plan.summary())) == plan.summary()


@pytest.mark.parametrize(
    ("name", "value"),
    [("shares", 2), ("shares", 200), ("modulus_bits", 40), ("honest", 3), ("honest", 0),
     ("honest", 10**6), ("noise", {"shape": 2, "users": 9, "ratio": "0x1p-1"}), ("noise", {}),
     ("shares", None)],
    ids=str,
)  # fmt: skip
def test_an_edited_plan_of_shares_is_refused(name: str, value: Any) -> None:
    saved = json.loads(shared(BITS, 400).to_json())
    saved["mechanisms"][0][name] = value
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


def test_laplace_noise_is_only_carried_by_shares() -> None:
    saved = json.loads(shared(BITS, 400).to_json())
    saved["mechanisms"][0]["mechanism"] = "coins"
    with pytest.raises(oh.DamagedPlan, match="the noise of coins must be Coins"):
        oh.Plan.from_json(json.dumps(saved))


@pytest.mark.parametrize("mechanism", ["pairs", pytest.param("shares", marks=pytest.mark.slow)])
def test_where_laplace_noise_is_too_wide_another_is_taken(mechanism: str) -> None:
    plan = oh.Plan.best(10_000, 1, oh.Privacy(1e-5, 1e-6), mechanism=mechanism)
    assert isinstance(plan.mechanisms[0].noise_share, Coins | CorrelatedNoise)
    assert plan.delta_spent <= 1e-6
