"""The slope of the Gaussian that stands for a law of noise, by its definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.accounting import domination as domination_module
from overhand.accounting.divergence import profile
from overhand.accounting.domination import dominated_delta, slope
from overhand.mechanisms import CoinSum
from overhand.model import Privacy
from overhand.noise import CoinNoise
from overhand.randomness import BinaryFraction
from support.enumeration import MOST, cut_off, fair, level, opposed, probabilities, skewed


@cache
def exact_law(noise: CoinNoise) -> list[Fraction]:
    law = [Fraction(1)]
    for trials, p in noise.binomials:
        one, zero = p.numerator, (1 << p.bits) - p.numerator
        part = [math.comb(trials, k) * one**k * zero ** (trials - k) for k in range(trials + 1)]
        longer = [Fraction(0)] * (len(law) + trials)
        for i, chance in enumerate(law):
            for k, weight in enumerate(part):
                longer[i + k] += chance * weight
        law = [chance / (1 << p.bits * trials) for chance in longer]
    return law


def quantile(probability: Fraction) -> float:
    """Of the normal distribution, from the side on which a float can tell."""
    if probability <= 0 or probability >= 1:
        return math.copysign(math.inf, probability - Fraction(1, 2))
    if probability < Fraction(1, 2):
        return NormalDist().inv_cdf(float(probability))
    return -NormalDist().inv_cdf(float(1 - probability))


def mu_by_definition(law: Sequence[Fraction], shift: int, exception: Fraction) -> float:
    """The best test of X + shift against X says moved from c on; over all c, and but for d0."""
    total = [Fraction(0), *itertools.accumulate(law)]
    mu = 0.0
    for c in range(len(law) + shift + 1):
        wrong_if_still = (1 - total[min(c, len(law))]) / (1 - exception)
        wrong_if_moved = total[min(max(0, c - shift), len(law))] / (1 - exception)
        if wrong_if_still < 1 and wrong_if_moved < 1:
            mu = max(mu, quantile(1 - wrong_if_still) - quantile(wrong_if_moved))
    return mu


def slope_by_definition(noise: CoinNoise, largest: int, exception: Fraction) -> float:
    law = exact_law(noise)
    return max(mu_by_definition(law, s, exception) / s for s in range(1, largest + 1))


@pytest.mark.parametrize(
    ("coins", "excess"),
    [(64, 0.19), (128, 0.07), (256, 0.032), (1024, 0.007), (4096, 0.0015), (16384, 0.0003)],
)
def test_the_slope_of_fair_coins_nears_that_of_gaussian_noise(coins: int, excess: float) -> None:
    std = math.sqrt(coins) / 2
    assert slope(fair(coins), int(std), 1e-9) * std - 1 == pytest.approx(excess, rel=0.1)


NOISE = st.one_of(
    st.builds(fair, st.integers(1, 100)),
    st.builds(skewed, st.integers(1, 100), st.sampled_from([BinaryFraction(1, 3), MOST])),
    st.builds(opposed, st.integers(1, 40)),
)


@given(NOISE, st.integers(1, 5), st.floats(-8, -1.5))
def test_the_slope_is_that_of_its_definition(noise: CoinNoise, largest: int, log: float) -> None:
    exception = 10**log
    claimed = slope(noise, largest, exception)
    excluded = Fraction(exception * domination_module._EXCLUDED)
    assert claimed == pytest.approx(slope_by_definition(noise, largest, excluded), rel=1e-9)
    assert claimed >= slope_by_definition(noise, largest, Fraction(exception)) * (1 - 1e-9)


@given(NOISE, st.integers(1, 5), st.floats(-8, -2))
def test_of_two_directions_neither_is_easier(noise: CoinNoise, largest: int, log: float) -> None:
    """A Gaussian is as far from its shift as its shift from it: one direction bounds both."""
    law = probabilities(noise)
    there, back = (slope(cut_off(of, 0.0), largest, 10**log) for of in (law, law[::-1].copy()))
    assert there == pytest.approx(back, rel=1e-9)


@given(NOISE, st.floats(-8, -2))
def test_a_smaller_shift_is_never_easier_to_see(noise: CoinNoise, log: float) -> None:
    law, exception = exact_law(noise), Fraction(10**log)
    sizes = [mu_by_definition(law, shift, exception) for shift in range(1, 7)]
    assert sizes == sorted(sizes)
    epsilons = np.linspace(-3, 3, 25)
    for less, more in itertools.pairwise(profile(noise, shift, epsilons) for shift in range(1, 7)):
        assert (np.array(less) <= np.array(more) + 1e-12).all()


@pytest.mark.parametrize("largest", [1, 2, 255, 256, 257, 258, 600, 5000])
def test_every_shift_is_stood_for_by_one_not_smaller(largest: int) -> None:
    shifts = domination_module._shifts(largest)
    stood_for = [s for last, first in shifts for s in range(first, last + 1)]
    assert stood_for == list(range(1, largest + 1))
    assert all(last <= 1.002 * first for last, first in shifts)


@pytest.mark.parametrize("exception", [1e-11, 1e-6, 1e-3])
@pytest.mark.parametrize(
    ("size", "variance", "largest"),
    [(50, 4000.0, 40), (10**6, 4000.0, 40), (40, 1e6, 300), (3, 2000.0, 60)],
)
def test_where_a_wide_law_is_not_steep_nothing_is_missed(
    size: int, variance: float, largest: int, exception: float
) -> None:
    """A part of the law is left out of most shifts: here is all of it, shift by shift."""
    noise = CoinSum.with_variance(size, variance).noise()
    law = noise.pmf
    excluded = exception * domination_module._EXCLUDED - 2 * law.missing
    below = np.cumsum(law.probabilities)
    above = np.append(np.cumsum(law.probabilities[:0:-1])[::-1], 0.0)
    unmoved = -domination_module._quantiles(above - law.missing, below, excluded)
    moved = domination_module._quantiles(below - law.missing, above, excluded)
    first = int(np.argmax(below > excluded + law.missing))
    last = len(above) - 1 - int(np.argmax(above[::-1] > excluded + law.missing))
    steepest = max(
        float(np.max(unmoved[first : last + s + 1] - moved[first - s : last + 1])) / s
        for s in range(1, largest + 1)
    )
    claimed = slope(noise, largest, exception)
    assert steepest * (1 - 1e-12) <= claimed <= steepest * 1.003


def test_shifts_in_steps_cost_next_to_nothing() -> None:
    noise = CoinSum.with_variance(1000, 2500.0**2).noise()
    every = max(slope(noise, s, 1e-9) for s in (1, 256))
    assert every <= slope(noise, 900, 1e-9) <= 1.003 * every


@given(NOISE, st.floats(0.02, 1.0), st.integers(1, 4))
def test_a_part_of_the_noise_never_hides_more(noise: CoinNoise, share: float, shift: int) -> None:
    part = noise.at_most(share * noise.variance)
    assert part.variance <= share * noise.variance * (1 + 1e-12)
    assert part.is_symmetric or not noise.is_symmetric
    epsilons = np.linspace(-3, 3, 25)
    for less, more in zip(
        profile(noise, shift, epsilons), profile(part, shift, epsilons), strict=True
    ):
        assert (less <= more + 1e-12).all()
    assert slope(noise, shift, 1e-3) <= slope(part, shift, 1e-3) * (1 + 1e-9)


def test_noise_that_is_little_is_left_whole() -> None:
    assert fair(40).at_most(10.0) == fair(40)
    assert fair(40).at_most(9.9) == fair(39)
    assert opposed(40).at_most(opposed(40).variance / 2) == opposed(20)


def test_of_very_wide_noise_a_part_is_enough() -> None:
    privacy = Privacy(1.0, 1e-6)
    wide = CoinSum.with_variance(10**6, 1e9).noise()
    spent = dominated_delta([level(wide, largest=1, norm=1.0)], privacy)
    assert spent == pytest.approx(0.01 * privacy.delta, rel=1e-6)  # only what is excepted
