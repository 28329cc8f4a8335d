"""Local answers about vectors and moments: caps of the sphere, their means and variances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.integrate import quad

import overhand as oh
from overhand.lab.baselines import CapResponse
from overhand.lab.baselines.local import Cap, smallest_ball
from overhand.model import Floats
from overhand.randomness import BinaryFraction, Random
from overhand.values import RegressionStatistics, Vectors
from support.local_mechanisms import EPSILONS, assert_errs, squared_errors
from support.sampling import (
    FALSE_FAIL,
    FALSE_PASS,
    Outcomes,
    TooFewSamples,
    assert_follows,
    kolmogorov,
    samples_for,
)


def assert_mean(samples: Floats, mean: Any, *, low: float, high: float, discrepancy: float) -> None:
    """The columns of samples in [low, high] have these means: Hoeffding, the rate shared out."""
    columns = samples.reshape(len(samples), -1)
    radius = {
        rate: (high - low) * math.sqrt(math.log(2 * columns.shape[1] / rate) / (2 * len(columns)))
        for rate in (FALSE_FAIL, FALSE_PASS)
    }
    if radius[FALSE_FAIL] + radius[FALSE_PASS] > discrepancy:
        raise TooFewSamples(f"{len(columns)} samples tell means within {radius}")
    assert columns.min() >= low - 1e-9
    assert columns.max() <= high + 1e-9
    off = float(np.abs(columns.mean(axis=0) - mean).max())
    assert off <= radius[FALSE_FAIL], f"mean off by {off:.4f} > {radius[FALSE_FAIL]:.4f}"


def cap_at(dimension: int, cosine: float, epsilon: float) -> Cap:
    """The cap of this size with the probability that spends epsilon."""
    share = float(stats.beta((dimension - 1) / 2, (dimension - 1) / 2).sf((1 + cosine) / 2))
    missed = (1 - share) * math.exp(-epsilon)
    return Cap(dimension, cosine, BinaryFraction.near(missed / (missed + share)))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dimension", [2, 3, 21])
def test_caps_have_their_moments_and_epsilon(dimension: int, epsilon: float) -> None:
    """All from the densities inside and outside, and the law of a uniform direction's cosine."""
    cap = Cap.best(dimension, epsilon)
    half = (dimension - 1) / 2
    law = stats.beta(half, half, loc=-1, scale=2)
    share = float(law.sf(cap.cosine))
    inside, outside = (1 - float(cap.miss)) / share, float(cap.miss) / (1 - share)
    assert math.log(inside / outside) == pytest.approx(cap.epsilon_spent)

    def moment(power: int) -> float:
        # w = sin(a) takes away the poles of the density in two dimensions
        scale = math.exp(-math.lgamma(half) - 0.5 * math.log(math.pi) + math.lgamma(half + 0.5))

        def term(angle: float) -> float:
            return math.sin(angle) ** power * math.cos(angle) ** (dimension - 2)

        edge = math.asin(cap.cosine)
        low = quad(term, -math.pi / 2, edge)[0]
        high = quad(term, edge, math.pi / 2)[0]
        return scale * (outside * low + inside * high)

    assert moment(0) == pytest.approx(1)
    assert moment(1) == pytest.approx(cap.mean)
    assert moment(2) == pytest.approx(cap.square)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dimension", [2, 5, 20, 1000])
def test_the_best_cap_is_the_best_and_its_noise_has_no_direction(
    dimension: int, epsilon: float
) -> None:
    best = Cap.best(dimension, epsilon)
    cosines = best.cosine * np.array([0.0, 0.5, 0.9, 0.99, 1.01, 1.1])
    for cosine in np.minimum(cosines, (1 + best.cosine) / 2):
        assert cap_at(dimension, float(cosine), epsilon).mean < best.mean
    expected = (1 / best.mean**2 - 1) / dimension
    assert (best.along, best.across) == pytest.approx((expected, expected), rel=1e-6)


CAP = Cap.best(4, 4.0)
DIRECTION, ACROSS = np.full(4, 0.5), np.array([0.5, -0.5, 0.5, -0.5])
BINS = 32


def binned(cosines: Floats, dimension: int) -> NDArray[np.int64]:
    """In which part of its law the cosine of a uniform direction would be: the largest in 0."""
    half = (dimension - 1) / 2
    tails = stats.beta(half, half).sf((1 + cosines) / 2)
    return np.asarray(np.minimum(tails * BINS, BINS - 1), np.int64)


def cap_law(cap: Cap) -> Outcomes:
    edges = np.linspace(0, 1, BINS + 1)
    inside = (1 - float(cap.miss)) * np.minimum(edges / cap.share, 1)
    outside = float(cap.miss) * np.maximum(edges - cap.share, 0) / (1 - cap.share)
    return Outcomes(0, np.diff(inside + outside))


def cap_points(cap: Cap, users: int, seed: int) -> Floats:
    return cap.points(np.tile(DIRECTION, (users, 1)), oh.seeded_random(seed))


def test_points_follow_the_law_of_the_cap() -> None:
    points = cap_points(CAP, samples_for(0.03), seed=20232)
    assert np.linalg.norm(points, axis=1) == pytest.approx(np.ones(len(points)))
    cosines = points @ DIRECTION
    assert_follows(binned(cosines, 4), cap_law(CAP), discrepancy=0.03)
    around = points @ ACROSS / np.sqrt(1 - cosines**2)
    assert_follows(binned(around, 3), Outcomes(0, np.full(BINS, 1 / BINS)), discrepancy=0.03)


@pytest.mark.parametrize("off", [-0.05, 0.05])
def test_the_law_of_the_cap_sees_a_wrong_probability(off: float) -> None:
    mutant = replace(CAP, miss=BinaryFraction.near(float(CAP.miss) + off))
    assert kolmogorov(cap_law(CAP), cap_law(mutant), range(BINS)) >= 0.03
    points = cap_points(mutant, samples_for(0.03), seed=20232)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(binned(points @ DIRECTION, 4), cap_law(CAP), discrepancy=0.03)


class Biased(Cap):
    """Divides by what is a little too much."""

    @property
    def mean(self) -> float:
        return 1.06 * Cap(self.dimension, self.cosine, self.miss).mean


class KeepsDirections(CapResponse):
    """Takes a short vector for one of full length."""

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        return super().answers(rows / np.linalg.norm(rows, axis=1, keepdims=True), random)


ZERO, SHORT, LONG = [0.0, 0.0, 0.0], [0.3, 0.0, 0.4], [0.0, 0.0, 1.0]
VECTORS = {
    "lifted": CapResponse(100, Vectors(3), Cap.best(4, 4.0), lifted=True),
    "not lifted": CapResponse(100, Vectors(3), Cap.best(3, 4.0), lifted=False),
}


def assert_answers(response: CapResponse, truth: CapResponse, row: Floats, users: int) -> None:
    """The answers of the one have the mean and, as a whole, the square that the other says."""
    answers = response.answers(np.tile(row, (users, 1)), oh.seeded_random(20233))
    reach = truth.spread / 2
    centre = truth.ball[0]
    low, high = float(centre.min()) - reach, float(centre.max()) + reach
    assert_mean(answers, row, low=low, high=high, discrepancy=0.05)
    squares = ((answers - centre) ** 2).sum(axis=1)
    square = len(row) * truth.user_variance
    if truth.lifted:
        square += float(((row - centre) ** 2).sum())
    assert_mean(squares, square, low=0.0, high=reach**2, discrepancy=0.05)


@pytest.mark.parametrize("way", VECTORS)
@pytest.mark.parametrize("row", [ZERO, SHORT, LONG], ids=str)
def test_answers_about_vectors_have_their_mean_and_variance(way: str, row: list[float]) -> None:
    assert_answers(VECTORS[way], VECTORS[way], np.array(row), users=200_000)


def test_answers_about_moments_have_their_mean_and_variance() -> None:
    response = CapResponse.best(100, oh.Privacy(8.0, 1e-6), RegressionStatistics(2))
    row = RegressionStatistics(2).rows([[0.6, -0.5, 0.9]])[0]
    assert_answers(response, response, row, users=300_000)


@pytest.mark.parametrize("way", VECTORS)
def test_the_mean_of_vectors_sees_a_wrong_constant(way: str) -> None:
    truth = VECTORS[way]
    cap = Biased(truth.cap.dimension, truth.cap.cosine, truth.cap.miss)
    assert 1 - 1 / 1.06 > 0.05
    with pytest.raises(AssertionError, match="mean off"):
        assert_answers(replace(truth, cap=cap), truth, np.array(LONG), users=200_000)


@pytest.mark.parametrize("way", VECTORS)
def test_the_mean_of_vectors_sees_lengths_forgotten(way: str) -> None:
    truth = VECTORS[way]
    mutant = KeepsDirections(truth.horizon, truth.values, truth.cap, truth.lifted)
    with pytest.raises(AssertionError, match="mean off"):
        assert_answers(mutant, truth, np.array(SHORT), users=200_000)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("length", [2, 3, 20])
def test_of_the_two_ways_to_the_sphere_the_better_is_taken(length: int, epsilon: float) -> None:
    values = Vectors(length)
    ways = [
        CapResponse(100, values, Cap.best(length + lifted, epsilon), bool(lifted))
        for lifted in (0, 1)
    ]
    best = CapResponse.best(100, oh.Privacy(epsilon, 1e-6), values)
    assert best in ways
    assert best.user_variance == min(way.user_variance for way in ways)
    # Asi, Feldman and Talwar: no unbiased answer has less on the sphere itself.
    on_sphere = (1 / Cap.best(length, epsilon).mean ** 2 - 1) / length
    assert on_sphere < best.user_variance <= (on_sphere + 1 / length) * (1 + 1e-12)


def coordinate_variances(response: CapResponse, row: Floats) -> Floats:
    """From E W^2 along the direction, and what it leaves to the others, by length of the row."""
    cap, length = response.cap, float(np.linalg.norm(row))
    squares = (row / length) ** 2
    kept = cap.square * squares + (1 - cap.square) * (1 - squares) / (cap.dimension - 1)
    spread = length * kept + (1 - length) / cap.dimension
    return np.asarray(spread / cap.mean**2 - row**2)


def test_no_coordinate_of_a_vector_is_worse_than_the_worst() -> None:
    response = VECTORS["not lifted"]
    rows = np.random.default_rng(5).normal(size=(2000, 3))
    lengths = np.linspace(0.01, 1, 2000) / np.linalg.norm(rows, axis=1)
    for row in rows * lengths[:, np.newaxis]:
        variances = coordinate_variances(response, row)
        assert variances.max() < response.worst_variance
        assert variances.mean() < response.user_variance
    axis = np.array([[length, 0.0, 0.0] for length in np.linspace(0.01, 1, 100)])
    worst = max(coordinate_variances(response, row).max() for row in axis)
    assert worst == pytest.approx(response.worst_variance, rel=1e-3)


@pytest.mark.parametrize("features", [1, 2, 5])
def test_moments_are_in_their_ball_and_in_no_smaller_one(features: int) -> None:
    values = RegressionStatistics(features)
    centre, radius = smallest_ball(values)
    rows = values.uniform(oh.seeded_random(4), 2000)
    assert np.linalg.norm(rows - centre, axis=1).max() <= radius
    ends = np.concatenate([np.zeros((1, features + 1)), _corners(features)])
    far = values.rows(ends)
    assert np.linalg.norm(far - centre, axis=1).max() == pytest.approx(radius)
    for share in (0.0, 0.5, 0.9, 1.1, 2.0):
        assert np.linalg.norm(far - share * centre, axis=1).max() > radius + 1e-9


def _corners(features: int) -> Floats:
    """Unit x along the axes, y = 1."""
    return np.concatenate([np.eye(features), np.ones((features, 1))], axis=1)


def test_vectors_that_are_not_lifted_err_most_in_the_middle() -> None:
    counter = replace(VECTORS["not lifted"], horizon=20)
    middle, end = (squared_errors(counter, np.tile(row, (10_000 * 20, 1))) for row in (ZERO, LONG))
    assert_errs(middle, counter.rms_error**2, discrepancy=0.15)
    assert end.mean() < 0.5 * middle.mean()
