"""Persons with many reports: where they cost most, against every way to place them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from overhand.accounting import Level, certified_delta
from overhand.accounting import composition as composition_module
from overhand.accounting.composition import search_delta
from overhand.model import Floats
from overhand.noise import GaussianNoise, LaplaceNoise, Noise
from overhand.values import Sensitivity
from support.divergences import hockey_stick
from support.enumeration import (
    ACCOUNTANTS,
    BUCKETS,
    Pair,
    assert_accounts_for,
    composed,
    fair,
    opposed,
    pair,
    skewed,
)

GAUSSIAN = GaussianNoise(2.0)
EPSILONS = (0.0, 0.1, 0.4, 1.0, 2.0, 4.0)


def moved(law: Floats, shift: int, room: int) -> Floats:
    """The law of noise + shift, over outcomes that have room for shifts up to `room` either way."""
    return np.pad(law, (room + shift, room - shift))


def hardness(law: Floats, shifts: Sequence[int]) -> list[float]:
    """How well counts moved so are told from counts at rest, by many epsilons both ways."""
    room = max(map(abs, shifts))
    upper = lower = np.ones(1)
    for shift in shifts:
        upper = np.outer(upper, moved(law, shift, room)).ravel()
        lower = np.outer(lower, moved(law, 0, room)).ravel()
    both = ((upper, lower), (lower, upper))
    return [hockey_stick(*ordered, epsilon) for ordered in both for epsilon in EPSILONS]


def log_concave(steps: Sequence[float]) -> Floats:
    """Probabilities whose logarithms rise by these steps, the largest first."""
    weights = np.exp(np.concatenate([[0.0], np.cumsum(sorted(steps, reverse=True))]))
    return np.asarray(weights / weights.sum())


# --- the lemma ------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-4.0, 4.0), max_size=8).map(log_concave),
    st.integers(-3, 5),
    st.integers(-3, 5),
)
def test_moves_that_are_less_even_are_never_harder_to_see(law: Floats, a: int, b: int) -> None:
    assume(a + 1 >= b)
    pairs = zip(hardness(law, (a, b)), hardness(law, (a + 1, b - 1)), strict=True)
    assert all(even <= uneven + 1e-12 for even, uneven in pairs)


def test_it_takes_noise_that_is_log_concave() -> None:
    """Otherwise a shift by two may be harder to see than two by one."""
    comb = np.array([1.0, 0.0, 1.0, 0.0, 1.0]) / 3
    pairs = zip(hardness(comb, (1, 1)), hardness(comb, (2, 0)), strict=True)
    assert any(even > uneven + 0.1 for even, uneven in pairs)


# --- what the accountants make of it --------------------------------------------------------------


def placements(reports: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `reports` as a sum of numbers from 1 to `most`, largest first."""
    if reports == 0:
        yield ()
    for part in range(min(reports, most), 0, -1):
        for rest in placements(reports - part, part):
            yield (part, *rest)


def window_pair(law: Noise, shift: int) -> Pair:
    probabilities = law.pmf.probabilities
    room = abs(shift)
    return moved(probabilities, shift, room), moved(probabilities, 0, room)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("size", [None, 3, 2, 1])
@pytest.mark.parametrize("law", [fair(24), opposed(12), GAUSSIAN], ids=repr)
def test_reports_are_counted_where_they_hurt_most(
    law: Noise, size: int | None, accountant: str
) -> None:
    """The truth is over all placements; GAUSSIAN, as a law that is not made of coins."""
    reports = 4
    truth = max(
        composed([window_pair(law, part) for part in parts], 1.0)
        for parts in placements(reports, size or reports)
        if len(law.pmf.probabilities) ** len(parts) < 10**6
    )
    claimed = ACCOUNTANTS[accountant]([Level(law, reports, size=size)], 1.0)
    assert_accounts_for(claimed, truth)


@pytest.mark.parametrize("reports", [2, 3])
@pytest.mark.parametrize("law", [skewed(12), skewed(6)], ids=repr)
def test_reports_that_move_both_ways_under_skewed_noise(law: Noise, reports: int) -> None:
    truth = max(
        composed([pair(law, part * sign) for part, sign in zip(parts, signs, strict=True)], 0.5)
        for parts in placements(reports, reports)
        for signs in itertools.product((1, -1), repeat=len(parts))
    )
    for accountant in ACCOUNTANTS.values():
        assert_accounts_for(accountant([Level(law, reports)], 0.5), truth)


def test_every_division_of_reports_is_within_one_that_is_looked_at() -> None:
    for reports in (1, 2, 11, 12, 13, 24, 100, 999, 1000):
        looked_at = list(composition_module._splits(reports))
        assert len(looked_at) <= 13
        assert all(ups + downs <= reports * 13 / 12 + 2 for ups, downs in looked_at)
        for ups in range(reports + 1):
            assert any(u >= ups and d >= reports - ups for u, d in looked_at)


LAWS = {
    "coins": opposed(4000),
    "few coins": fair(40),
    "skewed": skewed(400),
    "laplace": LaplaceNoise(Fraction(1), ratio=0.995),
    "two of laplace": LaplaceNoise(Fraction(2), ratio=0.99),
    "gaussian": GaussianNoise(400.0),
}


@pytest.mark.parametrize("change", [Sensitivity(1), Sensitivity(3), BUCKETS], ids=repr)
@pytest.mark.parametrize("law", LAWS)
def test_more_reports_never_cost_less(law: str, change: Sensitivity) -> None:
    is_quick = LAWS[law].is_symmetric  # where moves both ways need not be told apart
    numbers = (1, 2, 5, 12, 13, 14, 20, 100, 1000) if is_quick else (1, 2, 12, 13)
    for size in (None, 30) if is_quick else (None,):
        levels = [Level(LAWS[law], reports, change, size=size) for reports in numbers]
        costs = [search_delta([level], 1.0) for level in levels]
        assert all(few <= more * (1 + 1e-9) for few, more in itertools.pairwise(costs))
        assert costs[0] < 0.9 * costs[-1]


def test_many_reports_are_one_large_shift() -> None:
    """1,000 reports cost what one report costs that moves a count by 1,000: exactly."""
    law = LaplaceNoise(Fraction(1), ratio=0.9985)
    person, one = Level(law, 1000), Level(law, sensitivity=Sensitivity(1000))
    for accountant in ACCOUNTANTS.values():
        assert accountant([person] * 2, 1.0) == accountant([one] * 2, 1.0)


def test_reports_that_do_not_fit_into_a_batch_cost_less() -> None:
    law = fair(4000)
    costs = [certified_delta([Level(law, 12, size=size)], 1.0) for size in (3, 6, 11, 12, None)]
    assert costs == sorted(costs)
    assert costs[0] < costs[1] < costs[2] < costs[3] == costs[4]
