"""From a value to the counts of its batch: no two values are told apart beyond the bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from overhand.accounting import Level, certified_delta
from overhand.accounting.composition import search_delta
from overhand.accounting.domination import dominated_delta
from overhand.mechanisms import CoinSum, Mechanism
from overhand.model import Floats, Privacy
from overhand.noise import Coins
from overhand.randomness import HALF, BinaryFraction, seeded_random
from overhand.values import (
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.divergences import hockey_stick
from support.enumeration import MOST, assert_bounds, probabilities, product

# --- from a value to the counts of its batch, rounding included -----------------------------------


def count_laws(mechanism: Mechanism, row: Floats) -> list[Floats]:
    """The law of every count if one user holds `row` and the others lowest values: all chance."""
    laws = []
    values = mechanism.values
    widths = mechanism.quantizer.coordinate_steps
    exact = (np.atleast_1d(row) - values.lows) / mechanism.quantizer.unit
    if values.is_whole:
        exact = np.asarray(values.coordinates(np.array([row]))[0], np.float64)
    for at, most in zip(exact, widths, strict=True):
        rounded = np.zeros(most + 1)
        below = min(math.floor(at + 1e-12), most)
        rounded[below] += 1 - max(0.0, at - below)
        if below < most:
            rounded[below + 1] += max(0.0, at - below)
        laws.append(np.convolve(rounded, probabilities(mechanism.noise())))
    return laws


def worst_of_values(
    mechanisms: Sequence[Mechanism], rows: Sequence[Floats], epsilon: float
) -> float:
    """The delta of the worst two of these values, over all levels that they are sent to."""
    outcomes = [product([law for m in mechanisms for law in count_laws(m, row)]) for row in rows]
    return max(hockey_stick(p, q, epsilon) for p, q in itertools.permutations(outcomes, 2))


def as_levels(mechanisms: Sequence[Mechanism]) -> list[Level]:
    return [Level(m.noise(), sensitivity=m.quantizer.sensitivity) for m in mechanisms]


def disc(points: int, radii: Sequence[float]) -> list[Floats]:
    angles = np.linspace(0, 2 * np.pi, points, endpoint=False)
    around = [np.array([math.cos(a), math.sin(a)]) for a in angles]
    return [np.zeros(2), *(r * at for r in radii for at in around)]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_no_two_vectors_are_told_apart_beyond_the_bound(steps: int, epsilon: float) -> None:
    mechanism = CoinSum(4, Coins(10 * steps, HALF), Vectors(2), steps)
    truth = worst_of_values([mechanism], disc(8, (0.45, 1.0)), epsilon)
    claimed = dominated_delta(as_levels([mechanism]), Privacy(epsilon, 0.05))
    assert_bounds(claimed, truth)
    if steps == 6:
        assert claimed <= 6 * truth  # the norm allows for rounding: 7.4 steps, not 6


def test_no_two_vectors_are_told_apart_at_two_levels_beyond_the_bound() -> None:
    mechanisms = [CoinSum(2, Coins(12, HALF), Vectors(2), steps) for steps in (1, 2)]
    truth = worst_of_values(mechanisms, disc(6, (1.0,)), 1.0)
    assert_bounds(dominated_delta(as_levels(mechanisms), Privacy(1.0, 0.5)), truth)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("steps", [2, 5])
def test_no_two_moments_are_told_apart_beyond_the_bound(steps: int, epsilon: float) -> None:
    mechanism = CoinSum(4, Coins(10 * steps, HALF), RegressionStatistics(1), steps)
    xs, ys = (-1.0, -0.6, 0.3, 1.0), (-1.0, 0.2, 1.0)
    rows = list(RegressionStatistics(1).rows([[x, y] for x in xs for y in ys]))
    truth = worst_of_values([mechanism], rows, epsilon)
    assert_bounds(dominated_delta(as_levels([mechanism]), Privacy(epsilon, 0.05)), truth)


REALS: dict[str, list[CoinSum]] = {
    "one level": [CoinSum(6, Coins(20, HALF), Reals(-2.0, 5.0), 4)],
    "two levels": [
        CoinSum(6, Coins(10, HALF), Reals(-2.0, 5.0), 2),
        CoinSum(12, Coins(20, HALF), Reals(-2.0, 5.0), 5),
    ],
    "skewed": [CoinSum(6, Coins(40, BinaryFraction(1, 3), opposed=False), Reals(-2.0, 5.0), 3)],
    "skewed, two levels": [CoinSum(6, Coins(24, MOST, opposed=False), Reals(-2.0, 5.0), 2)] * 2,
    "opposed": [CoinSum(6, Coins(20, BinaryFraction(1, 3)), Reals(-2.0, 5.0), 3)],
}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", REALS)
def test_the_ends_of_an_interval_are_told_apart_best_and_are_what_is_counted(
    kind: str, epsilon: float
) -> None:
    mechanisms = REALS[kind]
    rows: list[Any] = list(np.linspace(-2.0, 5.0, 15))
    truth = worst_of_values(mechanisms, rows, epsilon)
    assert truth == pytest.approx(worst_of_values(mechanisms, [rows[0], rows[-1]], epsilon))
    for accountant in (certified_delta, search_delta):
        claimed = accountant(as_levels(mechanisms), epsilon)
        assert_bounds(claimed, truth)
        assert claimed <= 1.01 * truth


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("buckets", "coins"), [(2, (12,)), (3, (12,)), (2, (10, 14))], ids=str)
def test_two_buckets_are_what_a_histogram_counts(
    buckets: int, coins: tuple[int, ...], epsilon: float
) -> None:
    values = Histogram(buckets)
    mechanisms = [CoinSum(1, Coins(n, HALF), values) for n in coins]
    rows = list(values.rows(list(range(buckets))))
    truth = worst_of_values(mechanisms, rows, epsilon)
    for accountant in (certified_delta, search_delta):
        claimed = accountant(as_levels(mechanisms), epsilon)
        assert_bounds(claimed, truth)
        assert claimed <= 1.01 * truth


# --- what the bound is told about a mechanism -----------------------------------------------------

BOUNDED: list[Values] = [
    *(Vectors(1), Vectors(3), Vectors(20, 2.5), SymmetricMatrices(3)),
    *(RegressionStatistics(features) for features in (1, 2, 4)),
]


def farthest(values: Values) -> float:
    """The largest distance found between two values."""
    ends = values.opposites(np.array([0, 1], np.uint8))
    some = np.concatenate([ends, values.uniform(seeded_random(5), 300)])
    return max(float(np.linalg.norm(some - row, axis=1).max()) for row in some)


@pytest.mark.parametrize("values", BOUNDED, ids=str)
def test_no_two_values_are_farther_apart_than_the_sensitivity(values: Values) -> None:
    reached = farthest(values)
    assert reached <= values.sensitivity.norm * (1 + 1e-12)
    if values != RegressionStatistics(1):  # where x and x' cannot be at an angle
        assert reached == pytest.approx(values.sensitivity.norm)


def largest_coupled_move(mechanism: Mechanism, ends: Floats) -> tuple[float, int]:
    """By how much two values move the counts, if both are rounded by the same uniforms."""
    before, after = (
        mechanism.quantizer.to_steps(np.repeat(end[np.newaxis], 4000, axis=0), seeded_random(3))
        for end in ends
    )
    moved = (after - before).astype(np.float64)
    return float(np.linalg.norm(moved, axis=1).max()), int(np.abs(moved).max())


def diagonal(values: Values) -> Floats:
    """Two values as far apart as two can be, and in every coordinate."""
    end = np.full(values.dimension, values.sensitivity.norm / 2 / math.sqrt(values.dimension))
    return np.stack([-end, end])


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
@pytest.mark.parametrize("values", BOUNDED, ids=str)
def test_values_rounded_alike_move_no_farther_than_the_norm(values: Values, steps: int) -> None:
    mechanism = CoinSum(10, Coins(2, HALF), values, steps)
    some = values.uniform(seeded_random(9), 24)
    pairs = [values.opposites(np.array([0, 1], np.uint8)), *some.reshape(12, 2, -1)]
    if isinstance(values, Vectors):
        pairs.append(diagonal(values))
    for ends in pairs:
        norm, largest = largest_coupled_move(mechanism, ends)
        assert mechanism.quantizer.sensitivity.l2 is not None
        assert norm <= mechanism.quantizer.sensitivity.l2
        assert largest <= mechanism.quantizer.sensitivity.linf


# --- mutants: bounds that the tests above must catch ----------------------------------------------


@pytest.mark.parametrize("steps", [2, 7, 30])
@pytest.mark.parametrize("length", [2, 3, 20])
def test_a_norm_that_forgets_rounding_would_be_caught(length: int, steps: int) -> None:
    values = Vectors(length)
    mechanism = CoinSum(10, Coins(2, HALF), values, steps)
    norm, _ = largest_coupled_move(mechanism, diagonal(values))
    assert norm > values.sensitivity.norm / mechanism.quantizer.unit


def test_a_smaller_sensitivity_of_moments_would_be_caught() -> None:
    assert farthest(RegressionStatistics(2)) > 1.05 * 2


@pytest.mark.parametrize("kind", ["one level", "two levels", "opposed"])
def test_reals_that_move_by_one_step_would_be_caught(kind: str) -> None:
    truth = worst_of_values(REALS[kind], [np.array(-2.0), np.array(5.0)], 1.0)
    for accountant in (certified_delta, search_delta):
        with pytest.raises(AssertionError, match="understates"):
            assert_bounds(accountant([Level(m.noise()) for m in REALS[kind]], 1.0), truth)


def test_a_histogram_counted_once_would_be_caught() -> None:
    mechanism = CoinSum(1, Coins(12, HALF), Histogram(2))
    truth = worst_of_values([mechanism], list(Histogram(2).rows([0, 1])), 1.0)
    for accountant in (certified_delta, search_delta):
        with pytest.raises(AssertionError, match="understates"):
            assert_bounds(accountant([Level(mechanism.noise())], 1.0), truth)
