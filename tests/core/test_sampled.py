"""The sampled assertions accept the truth and reject a lie, both at the promised rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from support.sampling import (
    FALSE_FAIL,
    FALSE_PASS,
    SAMPLES,
    Outcomes,
    TooFewSamples,
    assert_follows,
    assert_normal,
    assert_probability,
    assert_uniform_over,
    kolmogorov,
    samples_for,
)

LAW = stats.binom(12, 0.5)
LIES = {"shifted": (12, 0.5, 1), "half the noise": (6, 0.5, 3), "other coins": (12, 0.55, 0)}
SEEDS = range(20230, 20240)


def rejects(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


def test_too_few_samples_is_no_assertion_error() -> None:
    assert not issubclass(TooFewSamples, AssertionError)


def test_samples_for_leaves_room_for_both_rates() -> None:
    count = samples_for(0.08)
    fail, passes = (math.sqrt(math.log(2 / r) / (2 * count)) for r in (FALSE_FAIL, FALSE_PASS))
    assert fail + passes <= 0.08
    assert samples_for(0.04) >= 4 * count - 4


@pytest.mark.parametrize("seed", SEEDS)
def test_assert_follows_accepts_the_truth(seed: int) -> None:
    samples = np.random.default_rng(seed).binomial(12, 0.5, samples_for(0.07))
    assert_follows(samples, LAW, discrepancy=0.07)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_assert_follows_rejects_a_lie(lie: str, seed: int) -> None:
    trials, probability, offset = LIES[lie]
    law = stats.binom(trials, probability, loc=offset)
    assert kolmogorov(LAW, law, range(-1, 15)) >= 0.07
    samples = np.random.default_rng(seed).binomial(trials, probability, samples_for(0.07))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples + offset, LAW, discrepancy=0.07)


@pytest.mark.parametrize("truth", [0.5, 0.25, 0.9])
def test_assert_follows_keeps_both_rates_on_a_coin(truth: float) -> None:
    """The CDF of a coin strays as far as its frequency does, so the rates are binomial tails."""
    discrepancy = 0.4
    count = samples_for(discrepancy)
    rejected = np.array(
        [
            rejects(
                lambda ones=ones: assert_follows(  # type: ignore[misc]
                    np.repeat(np.array([0, 1]), [count - ones, ones]),
                    stats.bernoulli(truth),
                    discrepancy=discrepancy,
                )
            )
            for ones in range(count + 1)
        ]
    )
    outcomes = np.arange(count + 1)
    assert stats.binom(count, truth).pmf(outcomes)[rejected].sum() <= FALSE_FAIL
    for lie in (truth - discrepancy, truth + discrepancy):
        if 0 <= lie <= 1:
            assert stats.binom(count, lie).pmf(outcomes)[~rejected].sum() <= FALSE_PASS


def test_assert_follows_sees_mass_between_and_beyond_the_points_of_the_law() -> None:
    samples = np.full(samples_for(0.5), 100)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, LAW, discrepancy=0.5)


def test_assert_follows_refuses_one_sample_less() -> None:
    with pytest.raises(TooFewSamples):
        assert_follows(np.zeros(samples_for(0.1) - 1, np.int64), LAW, discrepancy=0.1)


@pytest.mark.parametrize(
    ("trials", "truth", "discrepancy"),
    [(400, 0.5, 0.31), (400, 0.02, 0.18), (1000, 0.999, 0.1)],
    ids=["fair", "rare", "nearly certain"],
)
def test_assert_probability_keeps_both_rates(trials: int, truth: float, discrepancy: float) -> None:
    rejected = np.array(
        [
            rejects(
                lambda ones=ones: assert_probability(  # type: ignore[misc]
                    ones, trials, truth, discrepancy=discrepancy
                )
            )
            for ones in range(trials + 1)
        ]
    )
    outcomes = np.arange(trials + 1)
    assert stats.binom(trials, truth).pmf(outcomes)[rejected].sum() <= FALSE_FAIL
    for lie in (truth - discrepancy, truth + discrepancy):
        if 0 <= lie <= 1:
            assert stats.binom(trials, lie).pmf(outcomes)[~rejected].sum() <= FALSE_PASS


def test_assert_probability_refuses_a_sample_that_cannot_tell() -> None:
    with pytest.raises(TooFewSamples):
        assert_probability(50, 100, 0.5, discrepancy=0.1)
    with pytest.raises(TooFewSamples):
        assert_probability(0, 0, 0.5, discrepancy=0.5)
    with pytest.raises(ValueError, match="no probability differs"):
        assert_probability(0, 0, 0.5, discrepancy=0.6)


@pytest.mark.parametrize("seed", SEEDS)
def test_assert_uniform_over_accepts_the_truth(seed: int) -> None:
    samples = np.random.default_rng(seed).integers(24, size=20_000).tolist()
    assert_uniform_over(samples, range(24), discrepancy=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_assert_uniform_over_rejects_a_lie_of_the_stated_discrepancy(seed: int) -> None:
    chances = np.full(24, (1 - 1 / 24 - 0.02) / 23)
    chances[7] = 1 / 24 + 0.02
    samples = np.random.default_rng(seed).choice(24, p=chances, size=20_000).tolist()
    with pytest.raises(AssertionError, match="7 shows"):
        assert_uniform_over(samples, range(24), discrepancy=0.02)


def test_assert_uniform_over_rejects_what_is_outside_the_support_or_never_seen() -> None:
    samples = np.random.default_rng(20230).integers(3, size=2_000).tolist()
    with pytest.raises(AssertionError, match="outside the support"):
        assert_uniform_over([*samples, 3], range(3), discrepancy=0.3)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(samples, range(4), discrepancy=0.2)


def test_assert_uniform_over_refuses_a_sample_that_cannot_tell() -> None:
    with pytest.raises(TooFewSamples):
        assert_uniform_over([0, 1] * 50, range(2), discrepancy=0.1)
    with pytest.raises(TooFewSamples):
        assert_uniform_over([], range(4), discrepancy=0.2)


def test_outcomes_have_the_cdf_of_their_probabilities() -> None:
    points = np.arange(-3, 20)
    table = Outcomes(0, LAW.pmf(np.arange(13)))
    assert np.allclose(table.cdf(points), LAW.cdf(points), rtol=0, atol=1e-15)
    assert kolmogorov(table, LAW, range(-3, 20)) < 1e-15
    moved = Outcomes(5, LAW.pmf(np.arange(13)))
    assert np.allclose(moved.cdf(points), LAW.cdf(points - 5), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("scale", "mean", "words"),
    [(1.0, 0.0, None), (1.08, 0.0, "ratio"), (0.92, 0.0, "ratio"), (1.0, 0.1, "mean")],
)
def test_the_assertion_on_normal_samples_sees(scale: float, mean: float, words: str | None) -> None:
    samples = np.random.default_rng(1).normal(mean, scale, SAMPLES)
    if words is None:
        assert_normal(samples, 1.0)
    else:
        with pytest.raises(AssertionError, match=words):
            assert_normal(samples, 1.0)
    with pytest.raises(TooFewSamples):
        assert_normal(samples[:1000], 1.0)
