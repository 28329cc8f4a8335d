"""Vectors: the Gaussian that stands for their noise, against every outcome of every coin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from overhand.accounting import (
    Level,
    certified_delta,
    dominated_delta,
    gaussian_delta,
    gaussian_variance,
    hockey_stick,
    least_scale,
    spent_delta,
)
from overhand.accounting import domination as domination_module
from overhand.accounting.composition import search_delta
from overhand.accounting.divergence import profile
from overhand.accounting.domination import slope
from overhand.accounting.guarantee import quick_delta
from overhand.errors import InvalidValue
from overhand.mechanisms import CoinNoise, CoinSum, Mechanism
from overhand.model import Change, Privacy
from overhand.randomness import HALF, BinaryFraction, seeded_random
from overhand.values import Histogram, Moments, Reals, SymmetricMatrices, Values, Vectors
from test_accounting import MOST, CutOff, Pair, fair, opposed, pair, probabilities, skewed

Floats = NDArray[np.float64]
Moves = tuple[int, ...]

EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0)


def level(
    *laws: CoinNoise, largest: int, norm: float, coordinates: int = 1, reports: int = 1
) -> Level:
    return Level(laws, reports, Change(largest, coordinates, norm))


# --- the slow truth -------------------------------------------------------------------------------


def moves(change: Change, reports: int = 1) -> list[Moves]:
    """Every way in which so many reports can move the counts of one batch, up and down."""
    assert change.norm is not None
    each = range(-reports * change.largest, reports * change.largest + 1)
    return [
        move
        for move in itertools.product(each, repeat=change.coordinates)
        if any(move) and math.hypot(*move) <= reports * change.norm
    ]


def meetings(level: Level) -> Iterator[list[Pair]]:
    """What one person may do to one level: its reports in one batch, or each in its own."""
    together = [[move] for move in moves(level.change, level.reports)]
    apart = itertools.product(moves(level.change), repeat=level.reports)
    for placed in [*together, *map(list, apart)]:
        for laws in itertools.product(level.laws, repeat=len(placed)):
            yield [
                pair(law, shift)
                for move, law in zip(placed, laws, strict=True)
                for shift in move
                if shift
            ]


def product(parts: Sequence[Floats]) -> Floats:
    """The probabilities of all combinations of outcomes."""
    outcomes = np.ones(1)
    for part in parts:
        outcomes = np.multiply.outer(outcomes, part).ravel()
    return outcomes


@cache
def worst_by_enumeration(levels: tuple[Level, ...]) -> dict[float, float]:
    """By epsilon, the delta of the worst move. Moves go both ways, so directions need no more."""
    worst = dict.fromkeys(EPSILONS, 0.0)
    for chain in itertools.product(*map(meetings, levels)):
        upper, lower = map(product, zip(*itertools.chain(*chain), strict=True))
        for epsilon in EPSILONS:
            worst[epsilon] = max(worst[epsilon], hockey_stick(upper, lower, epsilon))
    return worst


@cache
def exact_law(noise: CoinNoise) -> list[Fraction]:
    law = [Fraction(1)]
    for trials, p in noise.terms:
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


def assert_bounds(claimed: float, truth: float) -> None:
    assert claimed >= truth * (1 - 1e-12), f"{claimed:g} understates {truth:g}"


# --- the bound ------------------------------------------------------------------------------------

LEVELS: dict[str, tuple[Level, ...]] = {
    "one coordinate": (level(fair(30), largest=3, norm=3.0),),
    "a coordinate that moves less than the norm": (level(fair(30), largest=2, norm=3.0),),
    "two coordinates": (level(fair(24), largest=2, norm=2.2361, coordinates=2),),
    "three coordinates": (level(fair(16), largest=2, norm=2.2361, coordinates=3),),
    "two levels": (level(fair(24), largest=2, norm=2.0),) * 2,
    "two levels of two coordinates": (level(fair(14), largest=1, norm=1.4143, coordinates=2),) * 2,
    "levels that differ": (
        level(fair(20), largest=2, norm=2.0),
        level(opposed(12), largest=1, norm=1.0),
    ),
    "skewed": (level(skewed(60), largest=2, norm=2.0),),
    "skewed upwards": (level(skewed(60, MOST), largest=2, norm=2.0),),
    "skewed, two coordinates": (level(skewed(48), largest=2, norm=2.0, coordinates=2),),
    "skewed, two levels": (level(skewed(60), largest=2, norm=2.0),) * 2,
    "opposed": (level(opposed(16), largest=2, norm=2.0, coordinates=2),),
    "several laws": (level(fair(20), fair(26), skewed(60), largest=2, norm=2.0),),
    "two reports": (level(fair(40), largest=1, norm=1.0, reports=2),),
    "two reports of two coordinates": (
        level(fair(20), largest=1, norm=1.0, coordinates=2, reports=2),
    ),
    "two reports under skewed noise": (level(skewed(80), largest=1, norm=1.0, reports=2),),
    "two reports at two levels": (level(fair(24), largest=1, norm=1.0, reports=2),) * 2,
}


@pytest.mark.parametrize("kind", LEVELS)
def test_no_move_within_the_norm_costs_more_than_its_bound(kind: str) -> None:
    for epsilon, truth in worst_by_enumeration(LEVELS[kind]).items():
        for precision in (0.5, 0.05, 1e-3, 1e-6):
            assert_bounds(dominated_delta(LEVELS[kind], Privacy(epsilon, precision)), truth)


@pytest.mark.parametrize("kind", ["one coordinate", "two coordinates", "two levels", "opposed"])
def test_for_few_coins_already_the_bound_is_no_formality(kind: str) -> None:
    truth = worst_by_enumeration(LEVELS[kind])[2.0]
    assert dominated_delta(LEVELS[kind], Privacy(2.0, 0.5)) <= 1.6 * truth


@pytest.mark.parametrize("shift", [1, 5, 20])
def test_for_many_coins_the_bound_is_within_percents_of_the_exact_delta(shift: int) -> None:
    law = CoinSum.with_variance(1000, gaussian_variance(Privacy(1.0, 1e-6)) * 25 * shift**2).noise()
    exact = certified_delta([Level((law,), change=Change(shift))], 0.2)
    bound = dominated_delta([level(law, largest=shift, norm=float(shift))], Privacy(0.2, 1e-6))
    assert exact <= bound <= 1.1 * exact


@pytest.mark.parametrize(("shift", "most"), [(1, 1.16), (4, 1.02), (20, 1.02)])
def test_the_noise_for_a_guarantee_is_near_that_of_exact_accounting(
    shift: int, most: float
) -> None:
    privacy = Privacy(1.0, 1e-6)

    def least(change: Change) -> float:
        return least_scale(
            lambda v: [Level((CoinSum.with_variance(100, v).noise(),), change=change)],
            privacy,
            start=gaussian_variance(privacy) * shift**2,
        )

    exact, bounded = least(Change(shift)), least(Change(shift, 1, float(shift)))
    assert exact <= bounded <= most * exact


def test_a_vector_costs_what_its_norm_costs_whatever_its_length() -> None:
    law, privacy = fair(40_000), Privacy(0.5, 1e-6)
    few, many = (
        dominated_delta([level(law, largest=12, norm=12.0, coordinates=length)], privacy)
        for length in (1, 1000)
    )
    assert few == pytest.approx(many, rel=0.05)
    assert few == pytest.approx(gaussian_delta(12 / 100, 0.5), rel=0.05)


def test_each_way_of_counting_refuses_the_changes_of_the_other() -> None:
    bounded, counted = level(fair(400), largest=1, norm=1.0), Level((fair(400),))
    for accountant in (certified_delta, search_delta):
        with pytest.raises(InvalidValue, match="norm"):
            accountant([bounded], 1.0)
    for of_all in (dominated_delta, spent_delta, quick_delta):
        with pytest.raises(InvalidValue, match="without a norm"):
            of_all([bounded, counted], Privacy(1.0, 1e-6))
    with pytest.raises(InvalidValue, match="at least one level"):
        dominated_delta([], Privacy(1.0, 1e-6))


def test_a_guarantee_is_counted_the_way_its_changes_are_bounded() -> None:
    privacy = Privacy(1.0, 1e-6)
    bounded, counted = level(fair(400), largest=1, norm=1.0), Level((fair(100),))
    assert spent_delta([bounded], privacy) == dominated_delta([bounded], privacy)
    assert quick_delta([bounded], privacy) == dominated_delta([bounded], privacy)
    assert spent_delta([counted], privacy) == certified_delta([counted], 1.0)
    assert quick_delta([counted], privacy) == search_delta([counted], 1.0)


# --- the slope ------------------------------------------------------------------------------------


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
    there, back = (
        domination_module._slope(of, 0.0, largest, 10**log) for of in (law, law[::-1].copy())
    )
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


def test_shifts_in_steps_cost_next_to_nothing() -> None:
    noise = CoinSum.with_variance(1000, 2500.0**2).noise()
    window = noise.window
    every = max(
        domination_module._slope(window.probabilities, window.missing, s, 1e-9) for s in (1, 256)
    )
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


# --- where there is little to hide behind ---------------------------------------------------------

BARE = CoinNoise(((0, HALF),))
RARE = CoinNoise(((5, BinaryFraction(1, 60)),))


@pytest.mark.parametrize("noise", [BARE, RARE, fair(1), fair(4), skewed(2)], ids=repr)
@pytest.mark.parametrize("shift", [1, 5])
def test_noise_too_narrow_for_the_shift_hides_nothing(noise: CoinNoise, shift: int) -> None:
    assert slope(noise, shift, 1e-9) == math.inf
    few = level(noise, largest=shift, norm=float(shift))
    enough = level(fair(40_000), largest=shift, norm=float(shift))
    for levels in ([few], [enough, few], [few, enough], [enough, Level((*enough.laws, noise),
                   change=few.change)]):  # fmt: skip
        assert dominated_delta(levels, Privacy(1.0, 1e-6)) == 1.0


@pytest.mark.parametrize("epsilon", [8.0, 16.0, 40.0, 1000.0])
def test_a_large_epsilon_takes_no_noise_away(epsilon: float) -> None:
    """Few coins of many are enough at such an epsilon, but few coins are not Gaussian."""
    for levels in (
        [level(fair(100), largest=1, norm=1.0)],
        [level(fair(100), largest=3, norm=3.0)],
    ):
        assert dominated_delta(levels, Privacy(epsilon, 1e-3)) <= 1.1e-5
    two = [level(fair(30), largest=1, norm=1.0), level(BARE, largest=1, norm=1.0)]
    assert dominated_delta(two, Privacy(epsilon, 1e-3)) == 1.0


@pytest.mark.parametrize("privacy", [Privacy(1e-3, 0.5), Privacy(1e-2, 0.1)], ids=str)
def test_where_all_that_can_be_seen_is_excepted_the_exception_is_the_cost(privacy: Privacy) -> None:
    wide = level(fair(10**9), largest=1, norm=1.0)
    assert dominated_delta([wide], privacy) == pytest.approx(0.01 * privacy.delta)


def test_the_slope_grows_as_the_exception_shrinks() -> None:
    slopes = [slope(fair(4096), 8, 10.0**-log) for log in range(2, 18)]
    assert slopes == sorted(slopes)
    assert slopes[-1] <= 1.01 / 32
    assert slope(fair(4096), 8, 1e-20) == math.inf  # below what the window leaves out


@pytest.mark.parametrize("left_out", [1e-12, 1e-8, 1e-5])
@pytest.mark.parametrize("noise", [fair(100), skewed(150), opposed(60)], ids=repr)
def test_outcomes_outside_the_window_are_never_counted_on(
    noise: CoinNoise, left_out: float
) -> None:
    law = probabilities(noise)
    inside = (np.cumsum(law) > left_out / 2) & (np.cumsum(law[::-1])[::-1] > left_out / 2)
    missing = float(law[~inside].sum())
    cut = CutOff(law[inside] / law[inside].sum(), missing, is_symmetric=noise.is_symmetric)
    whole = CutOff(law, 0.0, is_symmetric=noise.is_symmetric)
    for log in (-10.0, -7.0, -4.5, -3.0):
        assert slope(cut, 2, 10**log) >= slope(whole, 2, 10**log) * (1 - 1e-9)
    if left_out < 1e-9:
        assert slope(cut, 2, 1e-4) <= 1.001 * slope(whole, 2, 1e-4)


# --- from a value to the counts of its batch, rounding included -----------------------------------


def count_laws(mechanism: Mechanism, row: Floats) -> list[Floats]:
    """The law of every count if one user holds `row` and the others lowest values: all chance."""
    laws = []
    values = mechanism.values
    widths = mechanism.coordinate_steps
    exact = (np.atleast_1d(row) - values.lows) / mechanism.unit
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
    return [Level((m.noise(),), change=m.change) for m in mechanisms]


def disc(points: int, radii: Sequence[float]) -> list[Floats]:
    angles = np.linspace(0, 2 * np.pi, points, endpoint=False)
    around = [np.array([math.cos(a), math.sin(a)]) for a in angles]
    return [np.zeros(2), *(r * at for r in radii for at in around)]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_no_two_vectors_are_told_apart_beyond_the_bound(steps: int, epsilon: float) -> None:
    mechanism = CoinSum(4, 10 * steps, HALF, values=Vectors(2), steps=steps)
    truth = worst_of_values([mechanism], disc(8, (0.45, 1.0)), epsilon)
    claimed = dominated_delta(as_levels([mechanism]), Privacy(epsilon, 0.05))
    assert_bounds(claimed, truth)
    if steps == 6:
        assert claimed <= 6 * truth  # the norm allows for rounding: 7.4 steps, not 6


def test_no_two_vectors_are_told_apart_at_two_levels_beyond_the_bound() -> None:
    mechanisms = [CoinSum(2, 12, HALF, values=Vectors(2), steps=steps) for steps in (1, 2)]
    truth = worst_of_values(mechanisms, disc(6, (1.0,)), 1.0)
    assert_bounds(dominated_delta(as_levels(mechanisms), Privacy(1.0, 0.5)), truth)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("steps", [2, 5])
def test_no_two_moments_are_told_apart_beyond_the_bound(steps: int, epsilon: float) -> None:
    mechanism = CoinSum(4, 10 * steps, HALF, values=Moments(1), steps=steps)
    xs, ys = (-1.0, -0.6, 0.3, 1.0), (-1.0, 0.2, 1.0)
    rows = list(Moments(1).rows([[x, y] for x in xs for y in ys]))
    truth = worst_of_values([mechanism], rows, epsilon)
    assert_bounds(dominated_delta(as_levels([mechanism]), Privacy(epsilon, 0.05)), truth)


REALS: dict[str, list[CoinSum]] = {
    "one level": [CoinSum(6, 20, HALF, values=Reals(-2.0, 5.0), steps=4)],
    "two levels": [
        CoinSum(6, 10, HALF, values=Reals(-2.0, 5.0), steps=2),
        CoinSum(12, 20, HALF, values=Reals(-2.0, 5.0), steps=5),
    ],
    "skewed": [CoinSum(6, 40, BinaryFraction(1, 3), False, Reals(-2.0, 5.0), 3)],
    "skewed, two levels": [CoinSum(6, 24, MOST, False, Reals(-2.0, 5.0), 2)] * 2,
    "opposed": [CoinSum(6, 20, BinaryFraction(1, 3), True, Reals(-2.0, 5.0), 3)],
}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", REALS)
def test_the_ends_of_an_interval_are_told_apart_best_and_are_what_is_counted(
    kind: str, epsilon: float
) -> None:
    mechanisms = REALS[kind]
    rows = list(np.linspace(-2.0, 5.0, 15))
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
    mechanisms = [CoinSum(1, n, HALF, values=values) for n in coins]
    rows = list(values.rows(list(range(buckets))))
    truth = worst_of_values(mechanisms, rows, epsilon)
    for accountant in (certified_delta, search_delta):
        claimed = accountant(as_levels(mechanisms), epsilon)
        assert_bounds(claimed, truth)
        assert claimed <= 1.01 * truth


# --- what the bound is told about a mechanism -----------------------------------------------------

BOUNDED: list[Values] = [Vectors(1), Vectors(3), Vectors(20, 2.5), SymmetricMatrices(3), Moments(1),
                         Moments(2), Moments(4)]  # fmt: skip


def farthest(values: Values) -> float:
    """The largest distance found between two values."""
    ends = values.opposites(np.array([0, 1], np.uint8))
    some = np.concatenate([ends, values.uniform(seeded_random(5), 300)])
    return max(float(np.linalg.norm(some - row, axis=1).max()) for row in some)


@pytest.mark.parametrize("values", BOUNDED, ids=str)
def test_no_two_values_are_farther_apart_than_the_sensitivity(values: Values) -> None:
    reached = farthest(values)
    assert reached <= values.sensitivity * (1 + 1e-12)
    if values != Moments(1):  # where x and x' cannot be at an angle
        assert reached == pytest.approx(values.sensitivity)


def largest_coupled_move(mechanism: Mechanism, ends: Floats) -> tuple[float, int]:
    """By how much two values move the counts, if both are rounded by the same uniforms."""
    before, after = (
        mechanism.steps_of(np.repeat(end[np.newaxis], 4000, axis=0), seeded_random(3))
        for end in ends
    )
    moved = (after - before).astype(np.float64)
    return float(np.linalg.norm(moved, axis=1).max()), int(np.abs(moved).max())


def diagonal(values: Values) -> Floats:
    """Two values as far apart as two can be, and in every coordinate."""
    end = np.full(values.dimension, values.sensitivity / 2 / math.sqrt(values.dimension))
    return np.stack([-end, end])


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
@pytest.mark.parametrize("values", BOUNDED, ids=str)
def test_values_rounded_alike_move_no_farther_than_the_norm(values: Values, steps: int) -> None:
    mechanism = CoinSum(10, 2, HALF, values=values, steps=steps)
    some = values.uniform(seeded_random(9), 24)
    pairs = [values.opposites(np.array([0, 1], np.uint8)), *some.reshape(12, 2, -1)]
    if isinstance(values, Vectors):
        pairs.append(diagonal(values))
    for ends in pairs:
        norm, largest = largest_coupled_move(mechanism, ends)
        assert mechanism.change.norm is not None
        assert norm <= mechanism.change.norm
        assert largest <= mechanism.change.largest


# --- mutants: bounds that the tests above must catch ----------------------------------------------

Bound = Callable[[Sequence[Level], Privacy], float]


def of_shift_one(levels: Sequence[Level], privacy: Privacy) -> float:
    """Looks at the smallest shift only."""
    smallest = [
        Level(v.laws, v.reports, Change(1, v.change.coordinates, v.change.norm)) for v in levels
    ]
    return dominated_delta(smallest, privacy)


def of_one_level(levels: Sequence[Level], privacy: Privacy) -> float:
    return dominated_delta(levels[:1], privacy)


def of_one_report(levels: Sequence[Level], privacy: Privacy) -> float:
    return dominated_delta([Level(v.laws, 1, v.change) for v in levels], privacy)


def of_the_first_law(levels: Sequence[Level], privacy: Privacy) -> float:
    return dominated_delta([Level(v.laws[-2:-1], v.reports, v.change) for v in levels], privacy)


def of_one_coordinate(levels: Sequence[Level], privacy: Privacy) -> float:
    """Takes the largest move of a coordinate for the move of all."""
    alone = [
        Level(v.laws, v.reports, Change(v.change.largest, 1, float(v.change.largest)))
        for v in levels
    ]
    return dominated_delta(alone, privacy)


def exception_for_free(levels: Sequence[Level], privacy: Privacy) -> float:
    """Excepts much, and does not charge for it."""
    square = 0.0
    for of in levels:
        norm, largest = domination_module._moved(of)
        square += (norm * max(slope(law, largest, 0.03) for law in of.laws)) ** 2
    return gaussian_delta(math.sqrt(square), privacy.epsilon)


@pytest.mark.parametrize(
    ("mutant", "kind", "epsilon"),
    [
        (of_shift_one, "one coordinate", 2.0),
        (of_one_level, "two levels", 1.0),
        (of_one_level, "two levels of two coordinates", 1.0),
        (of_one_level, "levels that differ", 1.0),
        (of_one_report, "two reports", 1.0),
        (of_one_report, "two reports of two coordinates", 1.0),
        (of_the_first_law, "several laws", 1.0),
        (of_one_coordinate, "two coordinates", 1.0),
        (of_one_coordinate, "three coordinates", 1.0),
        (exception_for_free, "one coordinate", 2.0),
        (exception_for_free, "skewed", 2.0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_bound_that_forgets_would_be_caught(mutant: Bound, kind: str, epsilon: float) -> None:
    truth = worst_by_enumeration(LEVELS[kind])[epsilon]
    assert_bounds(dominated_delta(LEVELS[kind], Privacy(epsilon, 0.5)), truth)
    with pytest.raises(AssertionError, match="understates"):
        assert_bounds(mutant(LEVELS[kind], Privacy(epsilon, 0.5)), truth)


def test_half_the_noise_would_be_caught() -> None:
    truth = worst_by_enumeration((level(fair(15), largest=3, norm=3.0),))[2.0]
    with pytest.raises(AssertionError, match="understates"):
        assert_bounds(dominated_delta(LEVELS["one coordinate"], Privacy(2.0, 0.5)), truth)


@pytest.mark.parametrize("steps", [2, 7, 30])
@pytest.mark.parametrize("length", [2, 3, 20])
def test_a_norm_that_forgets_rounding_would_be_caught(length: int, steps: int) -> None:
    values = Vectors(length)
    mechanism = CoinSum(10, 2, HALF, values=values, steps=steps)
    norm, _ = largest_coupled_move(mechanism, diagonal(values))
    assert norm > values.sensitivity / mechanism.unit


def test_a_smaller_sensitivity_of_moments_would_be_caught() -> None:
    assert farthest(Moments(2)) > 1.05 * 2


@pytest.mark.parametrize("kind", ["one level", "two levels", "opposed"])
def test_reals_that_move_by_one_step_would_be_caught(kind: str) -> None:
    truth = worst_of_values(REALS[kind], [np.array(-2.0), np.array(5.0)], 1.0)
    for accountant in (certified_delta, search_delta):
        with pytest.raises(AssertionError, match="understates"):
            assert_bounds(accountant([Level((m.noise(),)) for m in REALS[kind]], 1.0), truth)


def test_a_histogram_counted_once_would_be_caught() -> None:
    mechanism = CoinSum(1, 12, HALF, values=Histogram(2))
    truth = worst_of_values([mechanism], list(Histogram(2).rows([0, 1])), 1.0)
    for accountant in (certified_delta, search_delta):
        with pytest.raises(AssertionError, match="understates"):
            assert_bounds(accountant([Level((mechanism.noise(),))], 1.0), truth)
