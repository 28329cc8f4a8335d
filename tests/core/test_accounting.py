"""What one mechanism costs: against every outcome of every coin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from overhand.accounting.divergence import profile
from overhand.noise import CoinNoise
from support.divergences import delta, hockey_stick
from support.enumeration import (
    MOST,
    cut_off,
    delta_by_enumeration,
    fair,
    opposed,
    pair,
    probabilities,
    skewed,
)

TINY = {
    "one coin": fair(1),
    "two coins": fair(2),
    "five coins": fair(5),
    "ten coins": fair(10),
    "skewed": skewed(9),
    "skewed upwards": skewed(7, MOST),
    "opposed": opposed(4),
}
EPSILONS = [0.1, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", TINY)
def test_delta_is_that_of_every_outcome(kind: str, shift: int, epsilon: float) -> None:
    noise = TINY[kind]
    up = delta_by_enumeration(noise, epsilon, shift)
    down = delta_by_enumeration(noise, epsilon, -shift)
    assert math.isclose(
        delta(noise, epsilon, shift=shift), max(up, down), rel_tol=1e-12, abs_tol=1e-15
    )


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", TINY)
def test_the_profile_is_the_delta_of_each_direction(kind: str, shift: int) -> None:
    noise = TINY[kind]
    epsilons = np.linspace(-4, 4, 33)
    up, down = profile(noise, shift, epsilons)
    for i, epsilon in enumerate(epsilons):
        for claimed, signed in ((up[i], shift), (down[i], -shift)):
            truth = delta_by_enumeration(noise, float(epsilon), signed)
            assert math.isclose(claimed, truth, rel_tol=1e-10, abs_tol=1e-13)


def test_the_directions_of_a_skewed_law_differ() -> None:
    """The mutant of the two tests above: an accountant that forgets a direction."""
    up, down = (delta_by_enumeration(TINY["skewed"], 1.0, shift) for shift in (1, -1))
    assert down > 1.5 * up
    up, down = (delta_by_enumeration(TINY["skewed upwards"], 1.0, shift) for shift in (1, -1))
    assert up > 1.5 * down


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("trials", [1, 2, 5, 10])
def test_hockey_stick_is_one_direction_of_the_definition(trials: int, epsilon: float) -> None:
    moved, still = pair(fair(trials), 1)
    truth = delta_by_enumeration(fair(trials), epsilon, 1)
    assert math.isclose(hockey_stick(moved, still, epsilon), truth, rel_tol=1e-12, abs_tol=1e-15)


def test_hockey_stick_of_a_law_with_itself_is_zero_and_with_another_is_their_distance() -> None:
    one, other = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert hockey_stick(one, one, 0.0) == 0.0
    assert hockey_stick(one, other, 0.0) == 0.5
    assert hockey_stick(other, one, 50.0) == 0.5


@given(st.sampled_from(list(TINY)), st.integers(1, 2), st.floats(0, 5), st.floats(0, 1))
def test_delta_falls_as_epsilon_grows_and_rises_with_the_shift(
    kind: str, shift: int, epsilon: float, more: float
) -> None:
    noise = TINY[kind]
    here = delta(noise, epsilon, shift=shift)
    assert delta(noise, epsilon + more, shift=shift) <= here + 1e-15
    assert delta(noise, epsilon, shift=shift + 1) >= here - 1e-15


@pytest.mark.parametrize("kind", ["one coin", "skewed", "opposed"])
def test_a_shift_beyond_all_noise_is_always_seen(kind: str) -> None:
    noise = TINY[kind]
    shift = len(probabilities(noise)) + 1
    assert math.isclose(delta(noise, 1.0, shift=shift), 1.0, rel_tol=1e-12)
    up, down = profile(noise, shift, np.array([-1.0, 0.0, 1.0]))
    assert np.allclose(up, 1.0, rtol=0, atol=1e-12)
    assert np.allclose(down, 1.0, rtol=0, atol=1e-12)


def test_outcomes_outside_the_window_count_as_seen() -> None:
    whole, cut = cut_off(probabilities(fair(9)), 0.0), cut_off(probabilities(fair(9)), 0.125)
    assert math.isclose(delta(cut, 1.0), delta(whole, 1.0) + 0.125, rel_tol=1e-12)
    epsilons = np.linspace(-3, 3, 13)
    for less, more in zip(profile(whole, 1, epsilons), profile(cut, 1, epsilons), strict=True):
        assert np.allclose(more, np.minimum(1.0, less + 0.125), rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [fair(40_000), skewed(40_000), opposed(9_000)], ids=repr)
def test_delta_of_many_coins_is_that_of_scipy_s_binomial(noise: CoinNoise) -> None:
    law = np.ones(1)
    for trials, p in noise.binomials:
        law = np.convolve(law, stats.binom(trials, float(p)).pmf(range(trials + 1)))
    moved, still = np.concatenate([[0.0], law]), np.concatenate([law, [0.0]])
    for epsilon in (0.01, 0.03):
        truth = max(hockey_stick(moved, still, epsilon), hockey_stick(still, moved, epsilon))
        assert math.isclose(delta(noise, epsilon), truth, rel_tol=1e-8)
        up, down = profile(noise, 1, np.array([epsilon]))
        assert math.isclose(max(up[0], down[0]), truth, rel_tol=1e-8)


@pytest.mark.parametrize(
    ("epsilon", "target", "coins"),
    [
        (1.0, 1e-3, 30),
        (1.0, 1e-6, 80),
        (1.0, 1e-9, 136),
        (0.5, 1e-3, 88),
        (0.5, 1e-6, 268),
        (0.5, 1e-9, 470),
    ],
)
def test_the_fewest_fair_coins_for_a_guarantee(epsilon: float, target: float, coins: int) -> None:
    assert delta(fair(coins), epsilon) <= target < delta(fair(coins - 1), epsilon)


def test_a_larger_shift_is_hidden_at_a_larger_epsilon_only() -> None:
    assert delta(fair(80), 2.5, shift=2) <= 1e-6 < delta(fair(80), 1.0, shift=2)
