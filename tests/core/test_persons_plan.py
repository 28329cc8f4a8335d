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
from scipy.stats import norm

import overhand as oh
from overhand.mechanisms import Mechanism
from overhand.noise import CorrelatedNoise

PRIVACY = oh.Privacy(1.0, 1e-3)
REPORTS = 3
SENT: dict[str, dict[str, Any]] = {
    "bits by coins": {"values": oh.Bits()},
    "reals by coins": {"values": oh.Reals(0, 1)},
    "buckets by coins": {"values": oh.Histogram(3)},
    "vectors by coins": {"values": oh.Vectors(2)},
    "bits by shares": {"values": oh.Bits(), "mechanism": "shares"},
    "buckets by shares": {"values": oh.Histogram(3), "mechanism": "shares"},
    "reals by pairs": {"values": oh.Reals(0, 1), "mechanism": "pairs"},
    "bits by ballots": {"values": oh.Bits(), "mechanism": "ballots"},
}
CORRELATED: dict[str, dict[str, Any]] = {
    "vectors by pairs": {"values": oh.Vectors(2), "mechanism": "pairs"},
    "buckets by ballots": {"values": oh.Histogram(3), "mechanism": "ballots"},
    "more buckets by pairs": {"values": oh.Histogram(3), "mechanism": "pairs", "horizon": 1000},
    "more bits by ballots": {"values": oh.Bits(), "mechanism": "ballots", "horizon": 1000},
}
"""For three reports, and for one."""


@cache
def planned(sent: str, reports: int) -> oh.Plan:
    asked: dict[str, Any] = {"horizon": 400, "shufflers": 2, "privacy": PRIVACY}
    asked |= (SENT | CORRELATED)[sent]
    return oh.Plan.best(**asked, reports=reports)


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
    if plan.mu is not None:
        return gaussian_delta(shown_mu(plan, parts))
    first, total = 0, np.ones(1)
    for mechanism in plan.mechanisms:
        chances = mechanism.honest_noise().pmf.probabilities
        chances = chances[chances > 0] / chances.sum()
        for shift in shifts(mechanism, parts):
            seen = chances[: max(0, len(chances) - shift)]  # others tell for certain
            places = np.floor(np.log(seen / chances[shift:]) / STEP).astype(np.int64)
            first += int(places.min())
            total = fftconvolve(total, np.bincount(places - places.min(), weights=seen))
    loss = (first + np.arange(len(total))) * STEP
    excess = -np.expm1(np.minimum(0.0, PRIVACY.epsilon - loss))
    return float(1 - total.sum() + total @ excess)


BLOCKS = 60
"""As many as are looked at."""


def shown_mu(plan: oh.Plan, parts: tuple[int, ...]) -> float:
    """What is told by the first blocks if one after the other has so many reports of a person.

    From the covariance by which errors are predicted, of one service's noise, inverted.
    """
    noise = plan.mechanisms[0].noise_share
    assert isinstance(noise, CorrelatedNoise)
    ends = np.arange(BLOCKS + 1)
    of_sums = noise.covariance(ends[:, np.newaxis], ends)
    of_blocks = np.diff(np.diff(of_sums, axis=0), axis=1)
    moved = np.zeros(BLOCKS)
    moved[: len(parts)] = parts
    shift = plan.mechanisms[0].quantizer.sensitivity.norm
    return shift * math.sqrt(moved @ np.linalg.solve(of_blocks, moved))


def gaussian_delta(mu: float) -> float:
    """What is shown by a number that is Gaussian, and moved by mu deviations."""
    epsilon = PRIVACY.epsilon
    far = norm.cdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * far)


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
            log = np.log(mechanism.honest_noise().pmf.probabilities)
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


@pytest.mark.parametrize("sent", CORRELATED)
def test_nor_does_any_under_noise_that_is_correlated(sent: str) -> None:
    """The first blocks show nearly all that all of them may, and no more than is certified."""
    plan, placements = planned(sent, REPORTS), ((3,), (2, 1), (1, 2), (2, 0, 0, 1), (1, 1, 1))
    assert plan.mu is not None
    assert plan.delta_spent <= PRIVACY.delta
    seen = [shown_mu(plan, parts) for parts in placements]
    assert 0.99 * plan.mu < seen[0] <= plan.mu
    assert seen[0] > seen[1] > seen[3] > seen[4]
    assert seen[0] > seen[2] > seen[4]
    assert gaussian_delta(seen[0]) <= gaussian_delta(plan.mu) <= plan.delta_spent
    for parts in placements:
        assert shown_delta(planned(sent, 1), parts) > 10 * PRIVACY.delta


@pytest.mark.parametrize("sent", CORRELATED)
def test_delta_is_that_of_one_gaussian_number_by_another_route(sent: str) -> None:
    """From mu with dp-accounting alone; what is charged besides is next to nothing of delta."""
    plan = planned(sent, REPORTS)
    assert plan.mu is not None
    bounds = [
        privacy_loss_distribution.from_gaussian_mechanism(
            1 / plan.mu, pessimistic_estimate=is_pessimistic, value_discretization_interval=1e-3
        ).get_delta_for_epsilon(PRIVACY.epsilon)
        for is_pessimistic in (False, True)
    ]
    assert bounds[0] <= plan.delta_spent <= 1.001 * bounds[1] + plan.delta_leaked
    assert plan.delta_leaked <= 0.06 * PRIVACY.delta


@pytest.mark.slow
@pytest.mark.parametrize("sent", [*SENT, *CORRELATED])
def test_more_reports_never_have_less_noise_nor_a_smaller_delta(sent: str) -> None:
    errors = [planned(sent, reports).rms_error for reports in (1, 2, REPORTS)]
    assert errors == sorted(errors)
    assert errors[-1] > 1.4 * errors[0]
    spent = [replace(planned(sent, 2), reports=r).delta_spent for r in (1, 2, 3, 20)]
    assert all(few <= more * (1 + 1e-9) for few, more in itertools.pairwise(spent))
    assert spent[1] <= PRIVACY.delta < spent[3]


@pytest.mark.slow
@pytest.mark.parametrize("reports", [20, 1000])
@pytest.mark.parametrize("sent", [s for s in [*SENT, *CORRELATED] if s != "vectors by coins"])
def test_plans_for_many_reports_are_certified(sent: str, reports: int) -> None:
    asked = {"horizon": 10**5, "shufflers": 3, "privacy": oh.Privacy(1.0, 1e-6)}
    plan = oh.Plan.best(**((SENT | CORRELATED)[sent] | asked), reports=reports)
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
