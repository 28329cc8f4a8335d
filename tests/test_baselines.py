from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import linprog

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.baselines import (
    CapResponse,
    GaussianResponse,
    LocalResponse,
    SquareRoot,
    SubsetResponse,
    WindowResponse,
    local_counter,
    trusted_tree,
)
from overhand.baselines.local import LocalSum
from overhand.baselines.local.answers import just_above
from overhand.baselines.local.caps import Cap, smallest_ball
from overhand.baselines.trusted import _coefficients
from overhand.errors import InvalidValue
from overhand.randomness import BinaryFraction, Random, SeededRandom, secure_random
from overhand.simulation import simulate
from overhand.values import Histogram, Moments, Reals, Vectors, values_of
from plans import PRIVACY
from sampled import (
    FALSE_FAIL,
    FALSE_PASS,
    Outcomes,
    TooFewSamples,
    assert_follows,
    kolmogorov,
    samples_for,
)

Floats = NDArray[np.float64]
EPSILONS = (0.25, 1.0, 4.0)
UNIT = Reals(-1.0, 1.0)


@pytest.mark.parametrize("levels", [8, 10, 12])
def test_the_binary_tree_has_the_variance_of_the_literature(levels: int) -> None:
    """Worst L^2 and mean L^2 / 2, in units of 1 / mu^2, but for the coins' distance to normal."""
    plan = trusted_tree(2**levels, PRIVACY, combine=False)
    unit = gaussian_mu(PRIVACY) ** 2
    assert plan.worst_std**2 * unit == pytest.approx(levels**2, rel=0.01)
    assert plan.rms_error**2 * unit == pytest.approx(levels**2 / 2, rel=0.02)


def test_combining_nodes_with_children_halves_the_variance() -> None:
    plain, combined = (trusted_tree(4096, PRIVACY, combine=c) for c in (False, True))
    assert combined.rms_error**2 < 0.57 * plain.rms_error**2
    assert combined.delta_spent <= PRIVACY.delta


def test_the_square_root_squared_is_the_running_sum() -> None:
    size = 40
    c = _coefficients(size)
    root = np.array([[c[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])
    assert root @ root == pytest.approx(np.tril(np.ones((size, size))))
    assert c[5] == pytest.approx(math.comb(10, 5) / 4**5)


def test_the_square_root_has_the_variance_of_the_literature() -> None:
    unit = gaussian_mu(PRIVACY) ** 2
    for horizon, worst, mean in ((256, 8.0, 7.1), (4096, 13.8, 12.6), (65536, 21.1, 19.7)):
        best = SquareRoot(horizon, PRIVACY)
        assert best.worst_std**2 * unit == pytest.approx(worst, abs=0.06)
        assert best.rms_error**2 * unit == pytest.approx(mean, abs=0.06)


def test_long_square_roots_continue_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = SquareRoot(2**20, PRIVACY)
    errors = exact.rms_error, exact.worst_std
    monkeypatch.setattr("overhand.baselines.trusted._EXACT", 2**16)
    long = SquareRoot(2**20, PRIVACY)
    assert (long.rms_error, long.worst_std) == pytest.approx(errors, rel=1e-5)


def test_local_answers_cost_what_they_say_and_not_more() -> None:
    for epsilon in (0.1, 1.0, 3.0):
        local = LocalResponse.best(100, oh.Privacy(epsilon, 1e-6))
        assert epsilon - 1e-6 < local.epsilon_spent <= epsilon
        expected = math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2
        assert local.user_variance == pytest.approx(expected, rel=1e-6)


def test_the_order_of_the_models_is_the_order_of_trust() -> None:
    horizon = 100_000
    local = LocalResponse.best(horizon, PRIVACY).rms_error
    one = oh.Plan.best(horizon, 1, PRIVACY).rms_error
    five = oh.Plan.best(horizon, 5, PRIVACY).rms_error
    trusted = SquareRoot(horizon, PRIVACY).rms_error
    assert local > 2 * one > 4 * five > 4 * trusted


# The local model, for every kind of value.

KINDS = {
    "real": WindowResponse,
    "real:-3:5": WindowResponse,
    "vector:1:2": WindowResponse,
    "matrix:1": WindowResponse,
    "vector:2": CapResponse,
    "vector:20:3": CapResponse,
    "matrix:4": CapResponse,
    "moments:1": CapResponse,
    "moments:3": CapResponse,
    "histogram:2": SubsetResponse,
    "histogram:200": SubsetResponse,
}


@lru_cache(maxsize=128)
def local(spec: str, epsilon: float = 1.0, horizon: int = 100) -> LocalSum:
    counter = local_counter(horizon, oh.Privacy(epsilon, 1e-6), values_of(spec))
    assert isinstance(counter, LocalSum)
    return counter


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


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("spec", KINDS)
def test_every_kind_has_a_local_mechanism_that_costs_what_it_may(spec: str, epsilon: float) -> None:
    counter = local(spec, epsilon)
    assert type(counter) is KINDS[spec]
    assert epsilon - 1e-8 < counter.epsilon_spent <= epsilon
    assert counter.delta_spent == 0
    assert counter.messages_per_user == 1
    assert counter.rms_error == pytest.approx(math.sqrt(50.5 * counter.user_variance))
    assert counter.user_variance <= counter.worst_variance <= (counter.worst_std / 9.99) ** 2


def test_unknown_kinds_and_empty_horizons_are_refused() -> None:
    unknown: Any = type("Unknown", (), {"__str__": lambda _: "letters"})()
    with pytest.raises(InvalidValue, match="no local mechanism for letters"):
        local_counter(9, PRIVACY, unknown)
    for spec in KINDS:
        with pytest.raises(InvalidValue, match="horizon=0"):
            local(spec, horizon=0)


def test_probabilities_are_rounded_up_by_little() -> None:
    for probability in (1e-9, 0.1, 1 / 3, 0.5 - 2**-40, 0.5, 0.75):
        above = float(just_above(probability))
        assert probability < above <= probability * (1 + 2**-30)


def test_only_a_large_delta_makes_normal_noise_worth_while() -> None:
    for spec in KINDS:
        values = values_of(spec)
        for epsilon in EPSILONS:
            normal = GaussianResponse(100, values, oh.Privacy(epsilon, 1e-6))
            assert normal.user_variance > 5 * local(spec, epsilon).user_variance
        loose = local_counter(100, oh.Privacy(0.05, 0.3), values)
        assert isinstance(loose, GaussianResponse)
        assert loose.delta_spent == pytest.approx(0.3)
        assert loose.epsilon_spent == 0.05


# Reals.


def window_laws(response: WindowResponse) -> Floats:
    """By window, the probability of every place, as it is defined."""
    places, miss = range(len(response.worths)), float(response.miss)
    inside, outside = (1 - miss) / response.window, miss / (len(places) - response.window)
    return np.array(
        [
            [inside if start <= place < start + response.window else outside for place in places]
            for start in range(len(places) - response.window + 1)
        ]
    )


def place_law(response: WindowResponse, value: float) -> Floats:
    """The same for a value: of the two windows whose means are next to it."""
    return place_laws(window_laws(response), np.array(response.worths), value)


def place_laws(laws: Floats, worths: Floats, value: float) -> Floats:
    means = laws @ worths
    above = int(np.clip(np.sum(means <= value), 1, len(means) - 1))
    share = (value - means[above - 1]) / (means[above] - means[above - 1])
    return np.asarray((1 - share) * laws[above - 1] + share * laws[above])


def ranked(response: WindowResponse, law: Floats) -> Outcomes:
    """The law of the rank of an answer among all answers there are."""
    distinct, rank = np.unique(response.worths, return_inverse=True)
    masses = np.bincount(rank, weights=law, minlength=len(distinct))
    return Outcomes(0, np.asarray(masses, np.float64))


def ranks(response: WindowResponse, value: float, users: int, seed: int) -> NDArray[np.int64]:
    answers = response.answers(np.full(users, value), oh.seeded_random(seed))
    return np.searchsorted(np.unique(response.worths), answers)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_answers_about_reals_have_their_mean_variance_and_epsilon(epsilon: float) -> None:
    response = WindowResponse.best(100, oh.Privacy(epsilon, 1e-6), UNIT)
    worths = np.array(response.worths)
    points = np.linspace(-1, 1, 1001)
    windows = window_laws(response)
    laws = np.array([place_laws(windows, worths, point) for point in points])
    assert laws.sum(axis=1) == pytest.approx(np.ones(1001))
    assert laws @ worths == pytest.approx(points)
    variances = laws @ worths**2 - points**2
    assert variances.max() == pytest.approx(response.user_variance, rel=1e-3)
    assert variances.max() <= response.user_variance * (1 + 1e-9)
    assert variances.min() > 0.99 * response.user_variance
    loss = np.log(laws.max(axis=0) / laws.min(axis=0)).max()
    assert loss == pytest.approx(response.epsilon_spent)


def test_wider_intervals_have_larger_errors() -> None:
    unit, wide = (local(spec, 1.0) for spec in ("real:-1:1", "real:-3:5"))
    assert wide.user_variance == pytest.approx(16 * unit.user_variance)
    assert wide.spread == pytest.approx(4 * unit.spread)


BETWEEN = 0.21  # a little off the middle between two means at epsilon 4
REAL = WindowResponse.best(100, oh.Privacy(4.0, 1e-6), UNIT)
# So few that one outside of the window counts as much as one inside.
FEW_PLACES = WindowResponse.with_window(100, oh.Privacy(0.25, 1e-6), UNIT, window=2, places=5)


class NeverRoundsUp(WindowResponse):
    def _rounded(self, points: Floats, random: Random) -> NDArray[np.int64]:
        return np.searchsorted(self._means, points, side="right") - 1


def real_mutants() -> list[tuple[WindowResponse, Floats]]:
    """Mutants, and the laws of their places."""
    less = replace(REAL, miss=BinaryFraction.near(float(REAL.miss) - 0.02))
    lower = NeverRoundsUp(REAL.horizon, UNIT, REAL.window, REAL.worths, REAL.miss)
    laws = window_laws(REAL)
    below = int(np.sum(laws @ REAL.worths <= BETWEEN)) - 1
    return [(less, place_law(less, BETWEEN)), (lower, laws[below])]


@pytest.mark.parametrize("value", [-1.0, BETWEEN, 1.0])
@pytest.mark.parametrize("response", [REAL, FEW_PLACES], ids=["many places", "few places"])
def test_answers_about_reals_follow_their_law(response: WindowResponse, value: float) -> None:
    samples = ranks(response, value, samples_for(0.01), seed=20231)
    assert_follows(samples, ranked(response, place_law(response, value)), discrepancy=0.01)


@pytest.mark.parametrize(("mutant", "law"), real_mutants(), ids=["misses less", "never up"])
def test_the_law_of_reals_sees(mutant: WindowResponse, law: Floats) -> None:
    truth, lie = ranked(REAL, place_law(REAL, BETWEEN)), ranked(REAL, law)
    assert kolmogorov(truth, lie, range(len(REAL.worths))) >= 0.01
    samples = ranks(mutant, BETWEEN, samples_for(0.01), seed=20231)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, truth, discrepancy=0.01)


def duchi(epsilon: float) -> float:
    """Worst at 0, where both answers are as likely."""
    return 1 / math.tanh(epsilon / 2) ** 2


def piecewise(epsilon: float, square: float) -> float:
    """Wang et al. 2019, Lemma 2: at a value of this square."""
    root = math.exp(epsilon / 2)
    return square / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)


def hybrid(epsilon: float) -> float:
    """The mixture whose variance is the same at all values; of no use below epsilon 0.61."""
    share = -math.expm1(-epsilon / 2)
    return share * piecewise(epsilon, 0.0) + (1 - share) * duchi(epsilon)


def test_published_mechanisms_are_windows_with_other_worths() -> None:
    two = WindowResponse.with_window(100, PRIVACY, UNIT, window=1, places=2)
    assert two.user_variance == pytest.approx(duchi(1.0))
    root = math.exp(0.5)
    end = (root + 1) / (root - 1)
    window = round(1000 * (end - 1) / (2 * end))
    worths = tuple(np.linspace(-end, end, 1000).tolist())
    even = WindowResponse(100, UNIT, window, worths, BinaryFraction.near(1 / (root + 1)))
    assert even.epsilon_spent == pytest.approx(1.0, abs=0.01)
    assert even.user_variance == pytest.approx(piecewise(1.0, 1.0), rel=0.01)


@pytest.mark.parametrize("epsilon", [0.05, *EPSILONS, 8.0, 16.0])
def test_no_published_mechanism_for_reals_is_better(epsilon: float) -> None:
    ours = local("real:-1:1", epsilon).user_variance
    rivals = (duchi(epsilon), piecewise(epsilon, 1.0), hybrid(epsilon))
    assert ours < min(rivals)
    assert GaussianResponse(1, UNIT, oh.Privacy(epsilon, 1e-6)).user_variance > ours


def least_variance(epsilon: float, values: int = 21, answers: int = 61) -> float:
    """The best unbiased mechanism on a grid of values and answers, as a linear program.

    Its variables are the probabilities by value and answer, the least probability of every
    answer, and the largest variance.
    """
    root = math.exp(epsilon / 2)
    points = np.linspace(-1, 1, values)
    worths = np.linspace(-1, 1, answers) * (root + 1) / (root - 1)
    each, by_value = np.eye(values * answers), np.eye(values)
    least = np.kron(np.ones((values, 1)), np.eye(answers))
    total, mean, square = (np.kron(by_value, row) for row in (worths**0, worths, worths**2))
    none, unused = np.zeros((values * answers, 1)), np.zeros((values, answers))
    ratios = np.block([[each, -math.exp(epsilon) * least, none], [-each, least, none]])
    variances = np.block([square, unused, -np.ones((values, 1))])
    program = linprog(
        np.eye(ratios.shape[1])[-1],
        A_ub=np.concatenate([ratios, variances]),
        b_ub=np.concatenate([np.zeros(len(ratios)), points**2]),
        A_eq=np.block([[total, unused, none[:values]], [mean, unused, none[:values]]]),
        b_eq=np.concatenate([np.ones(values), points]),
    )
    assert program.fun is not None
    return program.fun


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_reals_are_answered_about_as_well_as_can_be(epsilon: float) -> None:
    assert local("real:-1:1", epsilon).user_variance < 1.02 * least_variance(epsilon)


# Vectors.


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
    response = CapResponse.best(100, oh.Privacy(8.0, 1e-6), Moments(2))
    row = Moments(2).rows([[0.6, -0.5, 0.9]])[0]
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
    values = Moments(features)
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


# Histograms.


def set_law(response: SubsetResponse, bucket: int) -> Floats:
    """The probability of every set of buckets, as a number with a bit for each."""
    buckets, size, miss = response.values.dimension, response.size, float(response.miss)
    law = np.zeros(2**buckets)
    for chosen in itertools.combinations(range(buckets), size):
        number = sum(1 << b for b in chosen)
        if bucket in chosen:
            law[number] = (1 - miss) / math.comb(buckets - 1, size - 1)
        else:
            law[number] = miss / math.comb(buckets - 1, size)
    return law


def sets_of(response: SubsetResponse, bucket: int, random: SeededRandom) -> NDArray[np.int64]:
    answers = response.answers(np.full(samples_for(0.02), bucket), random)
    return np.asarray((answers > 0) @ (1 << np.arange(response.values.dimension)), np.int64)


FIVE = SubsetResponse.best(100, oh.Privacy(0.25, 1e-6), Histogram(5))


def test_answers_about_buckets_have_their_mean_variance_and_epsilon() -> None:
    assert FIVE.size == 2
    laws = np.array([set_law(FIVE, bucket) for bucket in range(5)])
    sets = np.arange(32)[:, np.newaxis] >> np.arange(5) & 1
    worths = (sets - FIVE._other) * FIVE.spread
    assert laws.sum(axis=1) == pytest.approx(np.ones(5))
    assert laws @ worths == pytest.approx(np.eye(5))
    variances = laws @ worths**2 - np.eye(5)
    assert variances.mean(axis=1) == pytest.approx(np.full(5, FIVE.user_variance))
    assert variances.max() == pytest.approx(FIVE.worst_variance)
    sent = laws[:, laws[0] > 0]
    assert np.log(sent.max() / sent.min()) == pytest.approx(FIVE.epsilon_spent)


@pytest.mark.parametrize("bucket", [0, 2, 4])
def test_answers_about_buckets_follow_their_law(bucket: int) -> None:
    samples = sets_of(FIVE, bucket, oh.seeded_random(20234))
    assert_follows(samples, Outcomes(0, set_law(FIVE, bucket)), discrepancy=0.02)


class InOrder(SeededRandom):
    """Shuffles nothing."""

    def permute_rows(self, rows: NDArray[Any], message_bits: int = 1) -> NDArray[Any]:
        return rows


def test_the_law_of_sets_sees_a_wrong_probability_and_others_in_order() -> None:
    truth = Outcomes(0, set_law(FIVE, 2))
    less = replace(FIVE, miss=BinaryFraction.near(float(FIVE.miss) - 0.08))
    ordered = np.zeros(32)
    # others are bits of buckets 0, 1, 4 (in the place of 2) and 3, of which the first are set
    ordered[[0b00101, 0b00011]] = 1 - float(FIVE.miss), float(FIVE.miss)
    mutants = (
        (less, set_law(less, 2), oh.seeded_random(20234)),
        (FIVE, ordered, InOrder(20234)),
    )
    for mutant, lie, random in mutants:
        assert kolmogorov(truth, Outcomes(0, lie), range(32)) >= 0.02
        with pytest.raises(AssertionError, match="Kolmogorov"):
            assert_follows(sets_of(mutant, 2, random), truth, discrepancy=0.02)


def bits_variance(own: float, other: float, buckets: int) -> float:
    """Mean over buckets, if they are answered with these probabilities."""
    total = own * (1 - own) + (buckets - 1) * other * (1 - other)
    return total / (buckets * (own - other) ** 2)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("buckets", [2, 3, 5, 20, 200])
def test_no_published_mechanism_for_buckets_is_better(buckets: int, epsilon: float) -> None:
    ours = local(f"histogram:{buckets}", epsilon).user_variance
    odds, root = math.exp(epsilon), math.exp(epsilon / 2)
    direct = odds / (odds + buckets - 1), 1 / (odds + buckets - 1)
    optimised = 0.5, 1 / (odds + 1)
    symmetric = root / (root + 1), 1 / (root + 1)
    for own, other in (direct, optimised, symmetric):
        assert ours <= bits_variance(own, other, buckets) * (1 + 1e-8)
    one = SubsetResponse(100, Histogram(buckets), 1, BinaryFraction.near(1 - direct[0]))
    assert one.user_variance == pytest.approx(bits_variance(*direct, buckets))


# All kinds: runs.

SIMULATED = {
    "real:-3:5": ("uniform", 1200),
    "vector:20": ("ones", 200),
    "matrix:4": ("zeros", 200),
    "moments:2": ("uniform", 300),
    "histogram:30": ("bernoulli:0.3", 200),
}
ALIKE: list[LocalSum] = [
    local("real", 1.0, 20),
    local("vector:1:2", 4.0, 20),
    local("vector:3", 1.0, 20),
    local("matrix:4", 4.0, 20),
    local("moments:2", 1.0, 20),
    local("histogram:30", 1.0, 20),
    GaussianResponse(20, Histogram(30), PRIVACY),
]
"""Their variance is the same on all values, so that any input will do."""


def squared_errors(counter: LocalSum, rows: NDArray[Any]) -> Floats:
    """The mean squared error of every run over so many users: one long run, cut apart."""
    estimates = counter.start(oh.seeded_random(20235)).estimates(rows)
    errors = (estimates - counter.values.running_sums(rows)).reshape(
        -1, counter.horizon, counter.values.dimension
    )
    before = np.concatenate([np.zeros_like(errors[:1, -1:]), errors[:-1, -1:]])
    return np.asarray(((errors - before) ** 2).mean(axis=(1, 2)))


def assert_errs(squares: Floats, expected: float, *, discrepancy: float) -> None:
    """The mean of these squares is as expected; what is off by `discrepancy` of it is seen."""
    radius = 6.2 * float(squares.std()) / math.sqrt(len(squares))
    if 2 * radius > discrepancy * expected:
        raise TooFewSamples(f"{len(squares)} runs tell {expected} within {radius}")
    assert abs(squares.mean() - expected) <= radius, f"errs by {squares.mean()}, not {expected}"


@pytest.mark.parametrize("counter", ALIKE, ids=lambda c: f"{type(c).__name__}-{c.values}")
def test_local_counters_err_as_they_say(counter: LocalSum) -> None:
    runs = 15_000 // math.ceil(counter.values.dimension / 2)
    rows = counter.values.uniform(oh.seeded_random(20236), 20 * runs)
    squares = squared_errors(counter, rows)
    assert_errs(squares, counter.rms_error**2, discrepancy=0.15)
    for share in (0.82, 1.22):
        with pytest.raises(AssertionError, match="errs by"):
            assert_errs(share * squares, counter.rms_error**2, discrepancy=0.19)


def test_vectors_that_are_not_lifted_err_most_in_the_middle() -> None:
    counter = replace(VECTORS["not lifted"], horizon=20)
    middle, end = (squared_errors(counter, np.tile(row, (10_000 * 20, 1))) for row in (ZERO, LONG))
    assert_errs(middle, counter.rms_error**2, discrepancy=0.15)
    assert end.mean() < 0.5 * middle.mean()


@pytest.mark.parametrize("spec", SIMULATED)
def test_simulations_of_local_counters_err_as_predicted(spec: str) -> None:
    counter = local(spec, 1.0, horizon=20)
    form, runs = SIMULATED[spec]
    squares = [simulate(counter, form, seed=seed).rms_error ** 2 for seed in range(runs)]
    assert_errs(np.array(squares), counter.rms_error**2, discrepancy=0.5)


@pytest.mark.parametrize("spec", ["real", "vector:20", "histogram:30"])
def test_error_bounds_hold_at_their_rate(spec: str) -> None:
    counter = local(spec, 1.0, horizon=40)
    largest = np.array([simulate(counter, "ones", seed=s).max_error for s in range(150)])
    allowed = stats.binom.isf(FALSE_FAIL, 150, 0.2)
    assert (largest > counter.error_bound(0.2)).sum() <= allowed
    assert (largest > counter.error_bound(0.2) / 4).sum() > allowed
    assert counter.error_bound(0.01) > counter.error_bound(0.2)
    with pytest.raises(InvalidValue, match="failure_probability"):
        counter.error_bound(0.0)


def test_error_bounds_are_hoeffding_s_for_few_users_and_bernstein_s_for_many() -> None:
    few, many = local("real", 1.0, 10), local("vector:20", 1.0, 10**6)
    events = math.log(2 * 10 / 0.05)
    assert few.error_bound() == pytest.approx(few.spread * math.sqrt(10 * events / 2))
    events = math.log(2 * 20 * 10**6 / 0.05)
    gaussian = many.worst_std * math.sqrt(2 * events)
    assert gaussian < many.error_bound() < 1.02 * gaussian
    normal = GaussianResponse(10**6, Vectors(20), PRIVACY)
    assert normal.error_bound() == pytest.approx(normal.worst_std * math.sqrt(2 * events))


class Exact(GaussianResponse):
    """Adds no noise."""

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        return np.array(self.values.coordinates(rows), np.float64)


def test_runs_go_on_where_they_stopped() -> None:
    rows = np.random.default_rng(6).integers(0, 3, 50)
    values = Histogram(3)
    run = Exact(50, values, PRIVACY).start(oh.seeded_random(1))
    parts = [run.estimates(part) for part in np.split(rows, [1, 20])]
    assert np.array_equal(np.concatenate(parts), values.running_sums(rows))


@pytest.mark.parametrize("spec", KINDS)
def test_only_answers_made_of_integers_are_deployed(spec: str) -> None:
    counter = local(spec)
    rows = counter.values.opposites(np.ones(100, np.uint8))
    normal = GaussianResponse(100, counter.values, PRIVACY)
    for response in (counter, normal):
        if isinstance(response, WindowResponse | SubsetResponse):
            estimates = response.start(secure_random()).estimates(rows)
            assert estimates.shape == (100, *counter.values.shape)
        else:
            with pytest.raises(InvalidValue, match="never deployed"):
                response.start(secure_random())
