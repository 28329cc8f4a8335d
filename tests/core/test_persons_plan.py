"""Plans for persons with many reports: every mechanism, every kind of value, by another route."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.signal import fftconvolve

import overhand as oh
from overhand.mechanisms import Mechanism

PRIVACY = oh.Privacy(1.0, 1e-3)
REPORTS = 3
SERVICES: dict[str, Any] = {"noise": "services"}
SENT: dict[str, dict[str, Any]] = {
    "bits by coins": {"values": oh.Bits()},
    "reals by coins": {"values": oh.Reals(0, 1)},
    "buckets by coins": {"values": oh.Histogram(3)},
    "vectors by coins": {"values": oh.Vectors(2)},
    "bits by shares": {"values": oh.Bits(), "mechanism": "shares"},
    "buckets by shares": {"values": oh.Histogram(3), "mechanism": "shares"},
    "reals by pairs": {"values": oh.Reals(0, 1), "mechanism": "pairs"},
    "reals by services' pairs": {"values": oh.Reals(0, 1), **SERVICES},
    "vectors by services' pairs": {"values": oh.Vectors(2), **SERVICES},
    "bits by ballots": {"values": oh.Bits(), **SERVICES},
    "buckets by ballots": {"values": oh.Histogram(3), **SERVICES},
}


@cache
def planned(sent: str, reports: int) -> oh.Plan:
    return oh.Plan.best(400, 2, PRIVACY, reports=reports, **SENT[sent])


def shifts(mechanism: Mechanism, parts: tuple[int, ...]) -> list[int]:
    """What the counts of a level are moved by if so many reports are in a batch each."""
    change = mechanism.quantizer.sensitivity
    if change.l2 is not None:  # all the change in one coordinate
        return [math.floor(part * (change.l2 - math.sqrt(change.l0))) for part in parts]
    return [part * int(change.linf) for part in parts] * change.l0


STEP = 1e-4  # of the privacy loss


def shown_delta(plan: oh.Plan, parts: tuple[int, ...]) -> float:
    """At least this delta is shown by the noise of the plan moved by the shifts of all levels.

    The losses ln P / Q of independent outcomes add up, each rounded down to whole steps.
    """
    first, total = 0, np.ones(1)
    for mechanism in plan.mechanisms:
        chances = mechanism.honest_noise(mechanism.size).pmf.probabilities
        chances = chances[chances > 0] / chances.sum()
        for shift in shifts(mechanism, parts):
            seen = chances[: max(0, len(chances) - shift)]  # others tell for certain
            places = np.floor(np.log(seen / chances[shift:]) / STEP).astype(np.int64)
            first += int(places.min())
            total = fftconvolve(total, np.bincount(places - places.min(), weights=seen))
    loss = (first + np.arange(len(total))) * STEP
    excess = -np.expm1(np.minimum(0.0, PRIVACY.epsilon - loss))
    return float(1 - total.sum() + total @ excess)


@pytest.mark.parametrize("sent", SENT)
def test_no_placement_of_reports_shows_more_than_is_certified(sent: str) -> None:
    """From the laws of the plan's noise; that of a plan for one report shows far more."""
    plan, placements = planned(sent, REPORTS), ((3,), (2, 1), (1, 1, 1))
    assert plan.delta_spent <= PRIVACY.delta
    seen = [shown_delta(plan, parts) for parts in placements]
    assert seen[0] <= plan.delta_spent + 1e-9
    assert seen[0] > seen[1] > seen[2]
    for parts in placements:
        assert shown_delta(planned(sent, 1), parts) > 10 * PRIVACY.delta


@pytest.mark.parametrize("sent", [s for s in SENT if not s.startswith("vectors")])
def test_delta_is_that_of_one_large_shift_by_another_route(sent: str) -> None:
    """From the printed laws with dp-accounting alone, rounded down and rounded up."""
    plan = planned(sent, REPORTS)
    bounds = []
    for is_pessimistic in (False, True):
        composed: Any = None
        for mechanism in plan.mechanisms:
            log = np.log(mechanism.honest_noise(mechanism.size).pmf.probabilities)
            for shift in shifts(mechanism, (REPORTS,)):
                loss = privacy_loss_distribution.from_two_probability_mass_functions(
                    dict(enumerate(log)),
                    {i + shift: chance for i, chance in enumerate(log)},
                    pessimistic_estimate=is_pessimistic,
                    value_discretization_interval=1e-3,
                )
                composed = loss if composed is None else composed.compose(loss)
        bounds.append(float(composed.get_delta_for_epsilon(PRIVACY.epsilon)))
    assert bounds[0] <= plan.delta_spent <= 1.01 * bounds[1] + plan.delta_leaked


@pytest.mark.slow
@pytest.mark.parametrize("sent", SENT)
def test_more_reports_never_have_less_noise_nor_a_smaller_delta(sent: str) -> None:
    errors = [planned(sent, reports).rms_error for reports in (1, 2, REPORTS)]
    assert errors == sorted(errors)
    assert errors[-1] > 1.4 * errors[0]
    spent = [replace(planned(sent, 2), reports=r).delta_spent for r in (1, 2, 3, 20)]
    assert all(few <= more * (1 + 1e-9) for few, more in itertools.pairwise(spent))
    assert spent[1] <= PRIVACY.delta < spent[3]


@pytest.mark.slow
@pytest.mark.parametrize("reports", [20, 1000])
@pytest.mark.parametrize("sent", [s for s in SENT if not s.startswith("vectors")])
def test_plans_for_many_reports_are_certified(sent: str, reports: int) -> None:
    plan = oh.Plan.best(10**5, 3, oh.Privacy(1.0, 1e-6), reports=reports, **SENT[sent])
    assert plan.delta_spent <= 1e-6
    assert oh.Plan.from_json(plan.to_json()).delta_spent <= 1e-6


def test_a_plan_for_fewer_users_than_reports_is_for_all_of_them() -> None:
    """Nobody has more reports than there are places: all 100 users are one person then."""
    plans = [oh.Plan.best(100, 1, PRIVACY, reports=reports) for reports in (100, 1000)]
    assert all(plan.delta_spent <= PRIVACY.delta for plan in plans)
    assert plans[0].rms_error <= plans[1].rms_error


def test_reports_that_no_noise_could_carry_are_refused_with_numbers() -> None:
    words = "reports=1000 at epsilon=0.001.* standard deviation of about .* up to 100,000"
    with pytest.raises(oh.Infeasible, match=words):
        oh.Plan.best(100, 1, oh.Privacy(0.001, 1e-3), reports=1000)
