"""Noise for a guarantee: the Gaussian limit, shares of a budget, and the least scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from overhand.accounting import (
    SMALLEST_DELTA,
    Level,
    advanced_share,
    certified_delta,
    gaussian_delta,
    gaussian_mu,
    gaussian_variance,
    least_scale,
)
from overhand.accounting.composition import search_delta
from overhand.accounting.divergence import check_delta
from overhand.errors import Infeasible
from overhand.mechanisms import CoinSum
from overhand.model import Privacy
from support.divergences import delta
from support.enumeration import ACCOUNTANTS, fair, one_law

# --- the Gaussian limit ---------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_gaussian_delta_is_the_divergence_of_two_normals(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, float(stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x)))

    start = epsilon / mu + mu / 2  # from here on the likelihood ratio is above e^epsilon
    truth, _ = quad(excess, start, start + 12, epsabs=1e-14)
    assert math.isclose(gaussian_delta(mu, epsilon), truth, rel_tol=1e-8, abs_tol=1e-13)


def test_gaussian_mu_at_one_and_a_millionth() -> None:
    assert round(gaussian_mu(Privacy(1.0, 1e-6)), 4) == 0.2367
    assert round(gaussian_variance(Privacy(1.0, 1e-6)), 2) == 17.85
    assert round(gaussian_variance(Privacy(1.0, 1e-6), levels=5), 1) == 89.2


@given(st.floats(0.01, 10), st.floats(-12, -0.1))
def test_gaussian_mu_and_delta_are_inverse(epsilon: float, exponent: float) -> None:
    privacy = Privacy(epsilon, 10**exponent)
    mu = gaussian_mu(privacy)
    assert math.isclose(gaussian_delta(mu, epsilon), privacy.delta, rel_tol=1e-6)
    assert math.isclose(gaussian_variance(privacy, levels=3), 3 / mu**2, rel_tol=1e-12)
    assert gaussian_delta(mu, epsilon) <= privacy.delta  # and never above it


def test_gaussian_mu_is_found_for_the_smallest_budgets_too() -> None:
    privacy = Privacy(1e-9, 1e-12)
    assert math.isclose(gaussian_delta(gaussian_mu(privacy), 1e-9), 1e-12, rel_tol=1e-3)


def relative_to_the_limit(accountant: str, levels: int, mu: float) -> float:
    """In the limit, `levels` mechanisms of variance levels / mu^2 are one normal shift by mu."""
    noise = CoinSum.with_variance(1000, levels / mu**2).noise()
    claimed = ACCOUNTANTS[accountant](one_law(*[noise] * levels), 4 * mu)
    return claimed / gaussian_delta(mu, 4 * mu)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("levels", [1, 2, 5, 12])
def test_many_coins_cost_what_gaussian_noise_costs(accountant: str, levels: int) -> None:
    # The noise lives on the integers: at one level that alone is worth about 1 / (2 std).
    assert math.isclose(relative_to_the_limit(accountant, levels, 0.02), 1.0, rel_tol=0.01)


def test_half_of_the_levels_would_be_far_from_the_gaussian_limit() -> None:
    mu = 0.02
    noise = CoinSum.with_variance(1000, 12 / mu**2).noise()
    assert search_delta(one_law(*[noise] * 6), 4 * mu) < 0.2 * gaussian_delta(mu, 4 * mu)


# --- shares ---------------------------------------------------------------------------------------


def composed_worst(share: Privacy, levels: int, epsilon: float) -> float:
    """The delta of so many mechanisms that use up their shares: the worst there are.

    Each shows everything with probability delta, and else a randomised response of epsilon; every
    mechanism of that guarantee is a post-processing of it (Kairouz, Oh and Viswanath 2015).
    """
    finite = (1 - share.delta) ** levels
    odds = math.exp(share.epsilon)
    seen = math.fsum(
        math.comb(levels, ones)
        * max(0.0, odds**ones - math.exp(epsilon) * odds ** (levels - ones))
        / (1 + odds) ** levels
        for ones in range(levels + 1)
    )
    return -math.expm1(levels * math.log1p(-share.delta)) + finite * seen


SHARES: dict[str, Callable[[Privacy, int], Privacy]] = {
    "simple": Privacy.share,
    "advanced": advanced_share,
}


@pytest.mark.parametrize("levels", [1, 2, 3, 10, 40, 200])
@pytest.mark.parametrize(
    "privacy", [Privacy(1.0, 1e-6), Privacy(0.1, 1e-9), Privacy(5.0, 1e-3)], ids=str
)
@pytest.mark.parametrize("kind", SHARES)
def test_the_worst_mechanisms_within_a_share_stay_within_the_whole(
    kind: str, privacy: Privacy, levels: int
) -> None:
    share = SHARES[kind](privacy, levels)
    assert composed_worst(share, levels, privacy.epsilon) <= privacy.delta * (1 + 1e-9)


def test_a_share_for_half_of_the_levels_would_be_caught() -> None:
    """The mutant: a share that is not divided by all of the levels."""
    privacy = Privacy(1.0, 1e-6)
    for kind, levels in (("simple", 2), ("simple", 4), ("advanced", 200)):
        share = SHARES[kind](privacy, levels // 2)
        assert composed_worst(share, levels, privacy.epsilon) > 2 * privacy.delta


@pytest.mark.parametrize("levels", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", SHARES)
def test_coins_that_meet_their_share_meet_the_whole(kind: str, levels: int) -> None:
    privacy = Privacy(1.0, 1e-6)
    share = SHARES[kind](privacy, levels)
    coins = 2
    while delta(fair(coins), share.epsilon) > share.delta:
        coins += 2 + coins // 20
    assert certified_delta(one_law(*[fair(coins)] * levels), privacy.epsilon) <= privacy.delta


def test_the_advanced_share_solves_the_bound_of_its_theorem() -> None:
    privacy, levels = Privacy(1.0, 1e-6), 200
    share = advanced_share(privacy, levels)
    slack = privacy.delta - levels * share.delta
    assert math.isclose(slack, privacy.delta / 2, rel_tol=1e-9)
    e = share.epsilon
    total = math.sqrt(2 * levels * math.log(1 / slack)) * e + levels * e * (math.exp(e) - 1)
    assert math.isclose(total, privacy.epsilon, rel_tol=1e-9)
    assert e > 2 * privacy.share(levels).epsilon


def test_for_few_levels_the_advanced_share_is_the_simple_one() -> None:
    for levels in (1, 2, 5):
        assert advanced_share(Privacy(1.0, 1e-6), levels) == Privacy(1.0, 1e-6).share(levels)


# --- calibration ----------------------------------------------------------------------------------


def levels_of(size: int, levels: int, reports: int = 1) -> Callable[[float], list[Level]]:
    return lambda variance: [Level(CoinSum.with_variance(size, variance).noise(), reports)] * levels


@pytest.mark.parametrize(
    ("size", "levels", "privacy"),
    [
        (100, 1, Privacy(1.0, 1e-6)),
        (10, 3, Privacy(1.0, 1e-6)),
        (1000, 5, Privacy(0.5, 1e-9)),
        (50, 2, Privacy(3.0, 1e-3)),
    ],
    ids=lambda value: str(value),
)
def test_the_least_scale_gives_the_guarantee_and_a_hundredth_less_does_not(
    size: int, levels: int, privacy: Privacy
) -> None:
    levels_at = levels_of(size, levels)
    scale = least_scale(levels_at, privacy, start=gaussian_variance(privacy, levels))
    # The scale is found to 2e-5 of itself, and delta moves at most some thirty times as fast.
    assert search_delta(levels_at(scale), privacy.epsilon) <= privacy.delta * (1 + 1e-3)
    assert search_delta(levels_at(scale * (1 + 1e-4)), privacy.epsilon) <= privacy.delta
    assert search_delta(levels_at(0.99 * scale), privacy.epsilon) > privacy.delta
    assert certified_delta(levels_at(scale * (1 + 1e-3)), privacy.epsilon) <= privacy.delta


@pytest.mark.parametrize("factor", [0.05, 0.3, 0.97, 1.0, 1.04, 3.0, 10.0, 50.0, 2000.0])
def test_the_start_of_the_search_only_saves_time(factor: float) -> None:
    privacy = Privacy(1.0, 1e-6)
    levels_at = levels_of(100, 2)
    scale = least_scale(levels_at, privacy, start=factor * gaussian_variance(privacy, 2))
    assert search_delta(levels_at(scale), privacy.epsilon) <= privacy.delta * (1 + 1e-3)
    assert search_delta(levels_at(0.99 * scale), privacy.epsilon) > privacy.delta


def test_a_guarantee_that_no_noise_gives_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="no noise"):
        least_scale(lambda scale: one_law(fair(10)), Privacy(1.0, 1e-6), start=10.0)


def test_a_delta_that_cannot_be_vouched_for_is_refused() -> None:
    check_delta(Privacy(1.0, SMALLEST_DELTA))
    assert SMALLEST_DELTA == 1e-12
    for too_small in (9.99e-13, 1e-15, 1e-300):
        with pytest.raises(Infeasible, match="below 1e-12"):
            check_delta(Privacy(1.0, too_small))
        with pytest.raises(Infeasible, match="below 1e-12"):
            least_scale(levels_of(10, 1), Privacy(1.0, too_small), start=10.0)
