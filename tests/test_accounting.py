"""What mechanisms cost: against every outcome of every coin, alone and together."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.integrate import quad

from overhand.accounting import (
    SMALLEST_DELTA,
    Level,
    advanced_share,
    certified_delta,
    delta,
    gaussian_delta,
    gaussian_mu,
    gaussian_variance,
    hockey_stick,
    least_scale,
    satisfies,
)
from overhand.accounting import composition as composition_module
from overhand.accounting.composition import check_delta, search_delta
from overhand.accounting.divergence import NoiseLaw, profile, shifted_pair
from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import CoinNoise, CoinSum
from overhand.model import Change, Privacy
from overhand.randomness import HALF, BinaryFraction

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]

EIGHTH, QUARTER, MOST = BinaryFraction(1, 3), BinaryFraction(1, 2), BinaryFraction(7, 3)


@pytest.fixture(autouse=True)
def _no_curves_of_other_tests() -> Iterator[None]:
    """Some tests replace what the cached curves are made of."""
    composition_module._curves.cache_clear()
    yield
    composition_module._curves.cache_clear()


def fair(coins: int) -> CoinNoise:
    return CoinNoise(((coins, HALF),))


def skewed(coins: int, probability: BinaryFraction = EIGHTH) -> CoinNoise:
    return CoinNoise(((coins, probability),))


def opposed(coins: int) -> CoinNoise:
    return CoinNoise(((coins, EIGHTH), (coins, MOST)))


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

# --- the slow truth -------------------------------------------------------------------------------


@cache
def law_by_enumeration(noise: CoinNoise) -> dict[int, Fraction]:
    """The number of ones, over every outcome of every coin."""
    chances = [Fraction(p.numerator, 2**p.bits) for n, p in noise.terms for _ in range(n)]
    law: dict[int, Fraction] = {}
    for coins in itertools.product((0, 1), repeat=len(chances)):
        chance = Fraction(1)
        for coin, p in zip(coins, chances, strict=True):
            chance *= p if coin else 1 - p
        law[sum(coins)] = law.get(sum(coins), Fraction(0)) + chance
    return law


def delta_by_enumeration(noise: CoinNoise, epsilon: float, shift: int) -> float:
    """The least delta of one direction: noise + shift against noise, as the definition reads."""
    law, scale = law_by_enumeration(noise), Fraction(math.exp(epsilon))
    moved = {outcome + shift: chance for outcome, chance in law.items()}
    excess = (chance - scale * law.get(outcome, Fraction(0)) for outcome, chance in moved.items())
    return float(sum((max(Fraction(0), e) for e in excess), Fraction(0)))


def probabilities(noise: NoiseLaw) -> Floats:
    """The same law as `law_by_enumeration`, coin after coin, for laws of more coins."""
    assert isinstance(noise, CoinNoise)
    law = np.ones(1)
    for trials, p in noise.terms:
        for _ in range(trials):
            law = np.convolve(law, [1 - float(p), float(p)])
    return law


def pair(noise: NoiseLaw, shift: int) -> Pair:
    """The laws of noise + shift and of noise; the other way round if the shift is down."""
    law, gap = probabilities(noise), np.zeros(abs(shift))
    moved, still = np.concatenate([gap, law]), np.concatenate([law, gap])
    return (moved, still) if shift >= 0 else (still, moved)


def composed(pairs: Sequence[Pair], epsilon: float) -> float:
    """The delta of all together: over every combination of their outcomes."""
    upper = lower = np.ones(1)
    for moved, still in pairs:
        upper, lower = np.outer(upper, moved).ravel(), np.outer(lower, still).ravel()
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put the items into batches."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [first, *group], *groups[i + 1 :]]


def composed_by_enumeration(levels: Sequence[Level], epsilon: float) -> float:
    """The worst case over the laws that are met, who is in which batch, and what changes how."""
    reports = levels[0].reports
    placements: list[list[list[tuple[list[int], NoiseLaw]]]] = [
        [
            list(zip(groups, laws, strict=True))
            for groups in partitions(range(reports))
            for laws in itertools.product(level.laws, repeat=len(groups))
        ]
        for level in levels
    ]
    worst = 0.0
    for signs in itertools.product((1, -1), repeat=reports):
        for chain in itertools.product(*placements):
            pairs = [
                pair(law, sum(signs[report] for report in group))
                for placed in chain
                for group, law in placed
            ]
            worst = max(worst, composed(pairs, epsilon))
    return worst


def assert_accounts_for(claimed: float, truth: float) -> None:
    """Never below the truth, and close to it where it can be resolved."""
    assert claimed >= truth * (1 - 1e-12), f"{claimed:g} understates {truth:g}"
    if truth > 1e-9:
        assert claimed <= 1.01 * truth, f"{claimed:g} overstates {truth:g}"


# --- one mechanism --------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class CutOff:
    """Noise whose window leaves some outcomes out."""

    probabilities: Floats
    missing: float
    variance: float = 1.0
    is_symmetric: bool = False

    @property
    def window(self) -> CutOff:
        return self

    def at_most(self, variance: float) -> CutOff:
        return self


def test_outcomes_outside_the_window_count_as_seen() -> None:
    whole, cut = CutOff(probabilities(fair(9)), 0.0), CutOff(probabilities(fair(9)), 0.125)
    assert math.isclose(delta(cut, 1.0), delta(whole, 1.0) + 0.125, rel_tol=1e-12)
    epsilons = np.linspace(-3, 3, 13)
    for less, more in zip(profile(whole, 1, epsilons), profile(cut, 1, epsilons), strict=True):
        assert np.allclose(more, np.minimum(1.0, less + 0.125), rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [fair(40_000), skewed(40_000), opposed(9_000)], ids=repr)
def test_delta_of_many_coins_is_that_of_scipy_s_binomial(noise: CoinNoise) -> None:
    law = np.ones(1)
    for trials, p in noise.terms:
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
    assert satisfies(fair(coins), Privacy(epsilon, target))
    assert not satisfies(fair(coins - 1), Privacy(epsilon, target))


def test_satisfies_looks_at_the_shift() -> None:
    assert not satisfies(fair(80), Privacy(1.0, 1e-6), shift=2)
    assert satisfies(fair(80), Privacy(2.5, 1e-6), shift=2)


# --- all batches of one user ----------------------------------------------------------------------


def one_law(*laws: CoinNoise, reports: int = 1) -> list[Level]:
    return [Level((law,), reports) for law in laws]


COMPOSED: dict[str, list[Level]] = {
    "one level": one_law(fair(10)),
    "two equal": one_law(fair(10), fair(10)),
    "two of 60 coins": one_law(fair(60), fair(60)),
    "three equal": one_law(fair(12), fair(12), fair(12)),
    "three of 40 coins": one_law(fair(40), fair(40), fair(40)),
    "different noise": one_law(fair(8), fair(14)),
    "three different": one_law(fair(6), fair(9), fair(12)),
    "two of three equal": one_law(fair(9), fair(12), fair(9)),
    "skewed": one_law(skewed(40), skewed(40)),
    "skewed upwards": one_law(skewed(30, MOST), skewed(30, MOST)),
    "three skewed": one_law(skewed(20), skewed(24), skewed(28)),
    "skewed and fair": one_law(skewed(40), fair(20)),
    "skewed both ways": one_law(skewed(40), skewed(40, MOST)),
    "opposed": one_law(opposed(12), opposed(12)),
    "opposed and fair": one_law(opposed(12), fair(12), opposed(12)),
    "several laws": [Level((fair(8), fair(14))), Level((fair(12), fair(9), fair(10)))],
    "several skewed laws": [Level((skewed(40), skewed(50))), Level((skewed(30), skewed(60)))],
}
CROSSING: dict[str, list[Level]] = {
    "fair and skewed": [Level((fair(12), skewed(40)))] * 2,
    "skewed both ways": [Level((skewed(40), skewed(40, MOST))), Level((fair(10),))],
    "fair and opposed": [Level((fair(9), opposed(12))), Level((opposed(10), fair(12)))],
}
"""Levels with laws neither of which is the worse one at every epsilon."""

ACCOUNTANTS: dict[str, Callable[[Sequence[Level], float], float]] = {
    "search": search_delta,
    "certified": certified_delta,
}


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", COMPOSED)
def test_the_composed_delta_is_that_of_every_combination_of_outcomes(
    kind: str, epsilon: float
) -> None:
    truth = composed_by_enumeration(COMPOSED[kind], epsilon)
    for accountant in ACCOUNTANTS.values():
        assert_accounts_for(accountant(COMPOSED[kind], epsilon), truth)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", CROSSING)
def test_laws_that_cross_are_bounded_from_above(kind: str, epsilon: float) -> None:
    """The largest profile of a level is composed, and no chain of laws need have it."""
    truth = composed_by_enumeration(CROSSING[kind], epsilon)
    for accountant in ACCOUNTANTS.values():
        assert truth * (1 - 1e-12) <= accountant(CROSSING[kind], epsilon) <= 1.5 * truth


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    "levels",
    [
        one_law(fair(0)),
        one_law(fair(0), fair(60), fair(0)),
        [Level((fair(60), fair(0)))],
        one_law(fair(1)),
        one_law(fair(1), fair(1)),
        one_law(skewed(1)),
        one_law(skewed(1), skewed(1)),
        one_law(skewed(3, BinaryFraction(1, 4)), skewed(3, BinaryFraction(1, 4))),
        one_law(fair(1), reports=2),
        one_law(fair(1), reports=3),
        one_law(fair(2), fair(3), reports=2),
        one_law(CoinNoise(((1000, BinaryFraction.near(1e-9)),))),
    ],
    ids=[
        "no coin",
        "no coin, twice of three",
        "no coin in one of two batches",
        "one coin",
        "one coin, twice",
        "one skewed coin",
        "one skewed coin, twice",
        "three rare coins, twice",
        "one coin, two reports",
        "one coin, three reports",
        "few coins, two reports",
        "next to no noise",
    ],
)
def test_almost_no_noise_is_never_understated(accountant: str, levels: list[Level]) -> None:
    """Most of the loss is infinite here: nobody wants such a plan, but nobody may be told one."""
    truth = min(1.0, composed_by_enumeration(levels, 1.0))
    claimed = ACCOUNTANTS[accountant](levels, 1.0)
    assert truth * (1 - 1e-12) <= claimed <= max(1.0, truth) * (1 + 1e-9)


REPORTS: dict[str, list[Level]] = {
    "two of one level": one_law(fair(16), reports=2),
    "three of one level": one_law(fair(20), reports=3),
    "two of two levels": one_law(fair(12), fair(13), reports=2),
    "two of an opposed level": one_law(opposed(14), reports=2),
    "two of several laws": [Level((fair(14), fair(18)), reports=2)],
    "two of laws that cross": [Level((fair(12), opposed(14)), reports=2)],
}


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
@pytest.mark.parametrize("kind", REPORTS)
def test_several_reports_of_one_person_are_counted_where_they_hurt_most(
    kind: str, epsilon: float
) -> None:
    truth = composed_by_enumeration(REPORTS[kind], epsilon)
    for accountant in ACCOUNTANTS.values():
        assert_accounts_for(accountant(REPORTS[kind], epsilon), truth)


@pytest.mark.parametrize("epsilon", [0.2, 0.7, 1.5])
def test_two_counts_that_move_opposite_ways_under_skewed_noise(epsilon: float) -> None:
    """Two reports, or one change of a bucket: one count goes up and another down."""
    law = skewed(40)
    moved, still = shifted_pair(law, 1)
    up, down = np.multiply.outer(moved, still), np.multiply.outer(still, moved)
    exact = hockey_stick(up, down, epsilon)
    for level in (Level((law,), reports=2), Level((law,), change=Change(1, coordinates=2))):
        for accountant in ACCOUNTANTS.values():
            assert accountant([level], epsilon) >= exact
    both_up, both_still = np.multiply.outer(moved, moved), np.multiply.outer(still, still)
    alike = hockey_stick(both_up, both_still, epsilon)
    assert not math.isclose(alike, exact, rel_tol=1e-3)  # so one direction would not do


# --- changes of more than one step, or in more than one count -------------------------------------


def choices(change: Change, reports: int) -> list[tuple[int, ...]]:
    """What one report may do: go up or down, or leave a bucket for another."""
    if change.coordinates == 1:
        return [(1,), (-1,)]
    return list(itertools.permutations(range(2 * reports), 2))


def moved_by(change: Change, choice: tuple[int, ...]) -> list[dict[int, int]]:
    """By count, the moves that a report of this choice may come to."""
    if change.coordinates == 1:
        return [{0: choice[0] * steps} for steps in range(1, change.largest + 1)]
    return [{choice[0]: -1, choice[1]: 1}]


def changes_at(level: Level, chosen: Sequence[tuple[int, ...]]) -> Iterator[list[Pair]]:
    """One level, whoever is in which batch, whichever law it has and however values are rounded."""
    for groups in partitions(range(level.reports)):
        for laws in itertools.product(level.laws, repeat=len(groups)):
            for moves in itertools.product(*(moved_by(level.change, c) for c in chosen)):
                yield [
                    pair(law, shift)
                    for group, law in zip(groups, laws, strict=True)
                    for shift in added(moves[report] for report in group)
                ]


def added(moves: Iterable[dict[int, int]]) -> list[int]:
    """How far each count is moved by all of these."""
    total: Counter[int] = Counter()
    for move in moves:
        total.update(move)
    return list(total.values())


@cache
def changed_by_enumeration(levels: tuple[Level, ...], epsilon: float) -> float:
    worst, reports = 0.0, levels[0].reports
    for chosen in itertools.product(choices(levels[0].change, reports), repeat=reports):
        if chosen[0] not in ((1,), (-1,), (0, 1)):
            continue  # buckets have no names
        for chain in itertools.product(*(changes_at(level, chosen) for level in levels)):
            worst = max(worst, composed(list(itertools.chain(*chain)), epsilon))
    return worst


BUCKETS = Change(1, coordinates=2)
CHANGES: dict[str, tuple[Level, ...]] = {
    "three steps": (Level((fair(40),), change=Change(3)),),
    "steps at two levels": (
        Level((fair(30),), change=Change(3)),
        Level((fair(24),), change=Change(2)),
    ),
    "steps of several laws": (Level((fair(30), fair(36)), change=Change(3)),) * 2,
    "skewed steps": (Level((skewed(60),), change=Change(2)),) * 2,
    "skewed steps, upwards": (Level((skewed(60, MOST),), change=Change(2)),) * 2,
    "opposed steps": (Level((opposed(20),), change=Change(2)),) * 2,
    "buckets": (Level((fair(14),), change=BUCKETS),),
    "buckets at two levels": (
        Level((fair(10),), change=BUCKETS),
        Level((fair(12),), change=BUCKETS),
    ),
    "buckets under opposed coins": (Level((opposed(14),), change=BUCKETS),),
    "buckets of several laws": (Level((fair(10), fair(14)), change=BUCKETS),),
    "two reports of steps": (Level((fair(60),), 2, Change(2)),),
    "three reports of steps": (Level((fair(24),), 3, Change(2)),),
    "two reports of buckets": (Level((fair(12),), 2, BUCKETS),),
}


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("kind", CHANGES)
def test_every_change_is_counted_by_how_far_it_moves_and_how_many(
    kind: str, epsilon: float
) -> None:
    truth = changed_by_enumeration(CHANGES[kind], epsilon)
    for accountant in ACCOUNTANTS.values():
        assert_accounts_for(accountant(CHANGES[kind], epsilon), truth)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize(
    "level",
    [
        Level((skewed(40),), change=BUCKETS),
        Level((skewed(30, MOST),), change=BUCKETS),
        Level((skewed(60),), 2, Change(2)),
        Level((skewed(16),), 2, BUCKETS),
    ],
    ids=["buckets", "buckets, upwards", "reports of steps", "reports of buckets"],
)
def test_changes_both_ways_under_skewed_noise_are_bounded(level: Level, epsilon: float) -> None:
    truth = changed_by_enumeration((level,), epsilon)
    for accountant in ACCOUNTANTS.values():
        assert truth * (1 - 1e-12) <= accountant([level], epsilon) <= max(2.2 * truth, truth + 0.3)


def test_a_level_needs_a_law_and_a_guarantee_a_level() -> None:
    with pytest.raises(InvalidValue, match="without a law"):
        Level(())
    for accountant in ACCOUNTANTS.values():
        with pytest.raises(InvalidValue, match="at least one level"):
            accountant([], 1.0)


def test_reports_in_one_batch_hurt_more_than_in_different_ones() -> None:
    noise = fair(16)
    same = composed([pair(noise, 2)], 1.0)
    different = composed([pair(noise, 1), pair(noise, 1)], 1.0)
    assert same > different > composed([pair(noise, 1)], 1.0)
    # Placed apart, the reports cost what two levels cost.
    epsilons = np.linspace(-6.0, 6.0, 12_001)
    of_shift = {1: profile(noise, 1, epsilons)}
    apart, _ = composition_module._placed((1, 1), of_shift, epsilons, 1e-3)
    assert_accounts_for(float(apart[7000]), different)


def test_the_partitions_of_reports_are_all_of_them() -> None:
    for reports in range(1, 7):
        truth = {tuple(sorted(map(len, p), reverse=True)) for p in partitions(range(reports))}
        assert set(composition_module._partitions(reports)) == truth


@given(st.integers(1, 4), st.integers(20, 60), st.floats(0.3, 2.0))
def test_more_levels_cost_more_and_more_noise_costs_less(
    levels: int, coins: int, epsilon: float
) -> None:
    here = search_delta(one_law(*[fair(coins)] * levels), epsilon)
    assert search_delta(one_law(*[fair(coins)] * (levels + 1)), epsilon) >= here
    # Even and odd numbers of coins alternate about the trend, so compare like with like.
    assert search_delta(one_law(*[fair(coins + 2)] * levels), epsilon) <= here * (1 + 1e-9)


# --- mutants: accountants that the tests above must catch -----------------------------------------


@pytest.mark.parametrize("kind", ["two equal", "different noise", "skewed", "two of 60 coins"])
def test_half_of_the_levels_would_be_caught(kind: str) -> None:
    levels = COMPOSED[kind]
    truth = composed_by_enumeration(levels, 1.0)
    assert composed_by_enumeration(levels[: len(levels) // 2], 1.0) < 0.7 * truth
    for accountant in ACCOUNTANTS.values():
        with pytest.raises(AssertionError, match="understates"):
            assert_accounts_for(accountant(levels[: len(levels) // 2], 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(("kind", "forgotten"), [("skewed", 1), ("skewed upwards", 0)])
def test_a_forgotten_direction_would_be_caught(
    monkeypatch: pytest.MonkeyPatch, accountant: str, kind: str, forgotten: int
) -> None:
    def one_sided(law: NoiseLaw, shift: int, epsilons: Floats) -> Pair:
        kept = profile(law, shift, epsilons)[1 - forgotten]
        return kept, kept

    monkeypatch.setattr(composition_module, "profile", one_sided)
    truth = composed_by_enumeration(COMPOSED[kind], 1.0)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](COMPOSED[kind], 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_forgotten_law_would_be_caught(accountant: str) -> None:
    truth = composed_by_enumeration(COMPOSED["several laws"], 1.0)
    for index, forgotten in ((0, 0), (1, 1)):
        levels = list(COMPOSED["several laws"])
        laws = [law for i, law in enumerate(levels[index].laws) if i != forgotten]
        levels[index] = Level(tuple(laws))
        with pytest.raises(AssertionError, match="understates"):
            assert_accounts_for(ACCOUNTANTS[accountant](levels, 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("kind", ["two of one level", "three of one level"])
def test_reports_counted_once_would_be_caught(accountant: str, kind: str) -> None:
    truth = composed_by_enumeration(REPORTS[kind], 1.0)
    once = [Level(level.laws) for level in REPORTS[kind]]
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](once, 1.0), truth)


def as_one_step(level: Level) -> Level:
    return Level(level.laws, level.reports, Change(1, level.change.coordinates))


def as_one_count(level: Level) -> Level:
    return Level(level.laws, level.reports, Change(level.change.largest))


def as_one_report(level: Level) -> Level:
    return Level(level.laws, 1, level.change)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (as_one_step, "three steps"),
        (as_one_step, "steps at two levels"),
        (as_one_step, "two reports of steps"),
        (as_one_count, "buckets"),
        (as_one_count, "buckets at two levels"),
        (as_one_count, "two reports of buckets"),
        (as_one_report, "two reports of steps"),
        (as_one_report, "two reports of buckets"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_change_counted_in_part_would_be_caught(
    accountant: str, mutant: Callable[[Level], Level], kind: str
) -> None:
    truth = changed_by_enumeration(CHANGES[kind], 1.0)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](list(map(mutant, CHANGES[kind])), 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(("probability", "forgotten"), [(EIGHTH, 1), (MOST, 0)], ids=str)
def test_a_forgotten_direction_of_buckets_would_be_caught(
    monkeypatch: pytest.MonkeyPatch, accountant: str, probability: BinaryFraction, forgotten: int
) -> None:
    def one_sided(law: NoiseLaw, shift: int, epsilons: Floats) -> Pair:
        kept = profile(law, shift, epsilons)[1 - forgotten]
        return kept, kept

    level = Level((skewed(40, probability),), change=BUCKETS)
    truth = changed_by_enumeration((level,), 1.0)
    monkeypatch.setattr(composition_module, "profile", one_sided)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant]([level], 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_buckets_that_both_move_up_or_both_down_would_be_caught(
    monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    """Where the coins are nearly fair, one up and one down is the worst of all."""
    level = Level((skewed(7, BinaryFraction(15, 5)),), change=BUCKETS)
    truth = changed_by_enumeration((level,), 0.3)
    assert ACCOUNTANTS[accountant]([level], 0.3) >= truth
    composition_module._curves.cache_clear()
    monkeypatch.setattr(Level, "both_ways", False)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant]([level], 0.3), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_half_the_noise_would_be_caught(accountant: str) -> None:
    truth = composed_by_enumeration(one_law(fair(6), fair(6)), 1.0)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](one_law(fair(12), fair(12)), 1.0), truth)


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
    while not satisfies(fair(coins), share):
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
    return lambda variance: (
        [Level((CoinSum.with_variance(size, variance).noise(),), reports)] * levels
    )


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
