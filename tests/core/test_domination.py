"""Vectors: the Gaussian that stands for their noise, against every outcome of every coin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from overhand.accounting import (
    Level,
    certified_delta,
    gaussian_delta,
    gaussian_variance,
    least_scale,
    spent_delta,
)
from overhand.accounting import domination as domination_module
from overhand.accounting.composition import quick_delta, search_delta
from overhand.accounting.domination import dominated_delta, slope
from overhand.errors import InvalidValue
from overhand.mechanisms import CoinSum
from overhand.model import Privacy
from overhand.noise import CoinNoise
from overhand.randomness import HALF, BinaryFraction
from overhand.values import Sensitivity
from support.divergences import hockey_stick
from support.enumeration import (
    MOST,
    Pair,
    assert_bounds,
    cut_off,
    fair,
    level,
    opposed,
    pair,
    probabilities,
    product,
    skewed,
)

Moves = tuple[int, ...]

EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0)


# --- the slow truth -------------------------------------------------------------------------------


def moves(change: Sensitivity, reports: int = 1) -> list[Moves]:
    """Every way in which so many reports can move the counts of one batch, up and down."""
    assert change.l2 is not None
    each = range(-reports * int(change.linf), reports * int(change.linf) + 1)
    return [
        move
        for move in itertools.product(each, repeat=change.l0)
        if any(move) and math.hypot(*move) <= reports * change.l2
    ]


def meetings(level: Level) -> Iterator[list[Pair]]:
    """What one person may do to one level: its reports in one batch, or each in its own."""
    together = [[move] for move in moves(level.sensitivity, level.reports)]
    apart = itertools.product(moves(level.sensitivity), repeat=level.reports)
    for placed in [*together, *map(list, apart)]:
        yield [pair(level.law, shift) for move in placed for shift in move if shift]


@cache
def worst_by_enumeration(levels: tuple[Level, ...]) -> dict[float, float]:
    """By epsilon, the delta of the worst move. Moves go both ways, so directions need no more."""
    worst = dict.fromkeys(EPSILONS, 0.0)
    for chain in itertools.product(*map(meetings, levels)):
        upper, lower = map(product, zip(*itertools.chain(*chain), strict=True))
        for epsilon in EPSILONS:
            worst[epsilon] = max(worst[epsilon], hockey_stick(upper, lower, epsilon))
    return worst


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
    exact = certified_delta([Level(law, sensitivity=Sensitivity(shift))], 0.2)
    bound = dominated_delta([level(law, largest=shift, norm=float(shift))], Privacy(0.2, 1e-6))
    assert exact <= bound <= 1.1 * exact


@pytest.mark.parametrize(("shift", "most"), [(1, 1.16), (4, 1.02), (20, 1.02)])
def test_the_noise_for_a_guarantee_is_near_that_of_exact_accounting(
    shift: int, most: float
) -> None:
    privacy = Privacy(1.0, 1e-6)

    def least(change: Sensitivity) -> float:
        return least_scale(
            lambda v: [Level(CoinSum.with_variance(100, v).noise(), sensitivity=change)],
            privacy,
            start=gaussian_variance(privacy) * shift**2,
        )

    exact, bounded = least(Sensitivity(shift)), least(Sensitivity(shift, 1, float(shift)))
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
    bounded, counted = level(fair(400), largest=1, norm=1.0), Level(fair(400))
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
    bounded, counted = level(fair(400), largest=1, norm=1.0), Level(fair(100))
    assert spent_delta([bounded], privacy) == dominated_delta([bounded], privacy)
    assert quick_delta([bounded], privacy) == dominated_delta([bounded], privacy)
    assert spent_delta([counted], privacy) == certified_delta([counted], 1.0)
    assert quick_delta([counted], privacy) == search_delta([counted], 1.0)


# --- where there is little to hide behind ---------------------------------------------------------

BARE = CoinNoise(((0, HALF),))
RARE = CoinNoise(((5, BinaryFraction(1, 60)),))


@pytest.mark.parametrize("noise", [BARE, RARE, fair(1), fair(4), skewed(2)], ids=repr)
@pytest.mark.parametrize("shift", [1, 5])
def test_noise_too_narrow_for_the_shift_hides_nothing(noise: CoinNoise, shift: int) -> None:
    assert slope(noise, shift, 1e-9) == math.inf
    few = level(noise, largest=shift, norm=float(shift))
    enough = level(fair(40_000), largest=shift, norm=float(shift))
    for levels in ([few], [enough, few], [few, enough]):
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
    assert slope(fair(4096), 8, 1e-20) == math.inf  # below what the pmf leaves out


@pytest.mark.parametrize("left_out", [1e-12, 1e-8, 1e-5])
@pytest.mark.parametrize("noise", [fair(100), skewed(150), opposed(60)], ids=repr)
def test_outcomes_outside_the_window_are_never_counted_on(
    noise: CoinNoise, left_out: float
) -> None:
    law = probabilities(noise)
    inside = (np.cumsum(law) > left_out / 2) & (np.cumsum(law[::-1])[::-1] > left_out / 2)
    missing = float(law[~inside].sum())
    cut = cut_off(law[inside] / law[inside].sum(), missing, is_symmetric=noise.is_symmetric)
    whole = cut_off(law, 0.0, is_symmetric=noise.is_symmetric)
    for log in (-10.0, -7.0, -4.5, -3.0):
        assert slope(cut, 2, 10**log) >= slope(whole, 2, 10**log) * (1 - 1e-9)
    if left_out < 1e-9:
        assert slope(cut, 2, 1e-4) <= 1.001 * slope(whole, 2, 1e-4)


# --- mutants: bounds that the tests above must catch ----------------------------------------------

Bound = Callable[[Sequence[Level], Privacy], float]


def of_shift_one(levels: Sequence[Level], privacy: Privacy) -> float:
    """Looks at the smallest shift only."""
    smallest = [
        Level(v.law, v.reports, Sensitivity(1, v.sensitivity.l0, v.sensitivity.l2)) for v in levels
    ]
    return dominated_delta(smallest, privacy)


def of_one_level(levels: Sequence[Level], privacy: Privacy) -> float:
    return dominated_delta(levels[:1], privacy)


def of_one_report(levels: Sequence[Level], privacy: Privacy) -> float:
    return dominated_delta([Level(v.law, 1, v.sensitivity) for v in levels], privacy)


def of_one_coordinate(levels: Sequence[Level], privacy: Privacy) -> float:
    """Takes the largest move of a coordinate for the move of all."""
    alone = [
        Level(
            v.law,
            v.reports,
            Sensitivity(v.sensitivity.linf, 1, v.sensitivity.linf),
        )
        for v in levels
    ]
    return dominated_delta(alone, privacy)


def exception_for_free(levels: Sequence[Level], privacy: Privacy) -> float:
    """Excepts much, and does not charge for it."""
    square = 0.0
    for of in levels:
        norm, largest = domination_module._largest_move(of)
        square += (norm * slope(of.law, largest, 0.03)) ** 2
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
