"""What all batches of one user cost together: against every combination of outcomes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.accounting import Level, composition, spent_delta
from overhand.accounting.composition import search_delta, spent_epsilon
from overhand.accounting.divergence import shifted_pair
from overhand.errors import InvalidValue
from overhand.model import Privacy
from overhand.noise import CoinNoise, LaplaceNoise
from overhand.randomness import BinaryFraction
from overhand.values import Sensitivity
from support.divergences import hockey_stick
from support.enumeration import (
    ACCOUNTANTS,
    BUCKETS,
    CHANGES,
    COMPOSED,
    MOST,
    REPORTS,
    assert_accounts_for,
    changed_by_enumeration,
    composed_by_enumeration,
    fair,
    one_law,
    skewed,
)

# --- all batches of one user ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", COMPOSED)
def test_the_composed_delta_is_that_of_every_combination_of_outcomes(
    kind: str, epsilon: float
) -> None:
    truth = composed_by_enumeration(COMPOSED[kind], epsilon)
    for accountant in ACCOUNTANTS.values():
        assert_accounts_for(accountant(COMPOSED[kind], epsilon), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    "levels",
    [
        one_law(fair(0)),
        one_law(fair(0), fair(60), fair(0)),
        one_law(fair(60), fair(0)),
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
        "no coin at one of two levels",
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
    for level in (Level(law, reports=2), Level(law, sensitivity=Sensitivity(1, l0=2))):
        for accountant in ACCOUNTANTS.values():
            assert accountant([level], epsilon) >= exact
    both_up, both_still = np.multiply.outer(moved, moved), np.multiply.outer(still, still)
    alike = hockey_stick(both_up, both_still, epsilon)
    assert not math.isclose(alike, exact, rel_tol=1e-3)  # so one direction would not do


# --- changes of more than one step, or in more than one count -------------------------------------


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
        Level(skewed(40), sensitivity=BUCKETS),
        Level(skewed(30, MOST), sensitivity=BUCKETS),
        Level(skewed(60), 2, Sensitivity(2)),
        Level(skewed(16), 2, BUCKETS),
    ],
    ids=["buckets", "buckets, upwards", "reports of steps", "reports of buckets"],
)
def test_changes_both_ways_under_skewed_noise_are_bounded(level: Level, epsilon: float) -> None:
    truth = changed_by_enumeration((level,), epsilon)
    for accountant in ACCOUNTANTS.values():
        assert truth * (1 - 1e-12) <= accountant([level], epsilon) <= max(2.2 * truth, truth + 0.3)


def test_a_guarantee_needs_a_level() -> None:
    for accountant in ACCOUNTANTS.values():
        with pytest.raises(InvalidValue, match="at least one level"):
            accountant([], 1.0)


@given(st.integers(1, 4), st.integers(20, 60), st.floats(0.3, 2.0))
def test_more_levels_cost_more_and_more_noise_costs_less(
    levels: int, coins: int, epsilon: float
) -> None:
    here = search_delta(one_law(*[fair(coins)] * levels), epsilon)
    assert search_delta(one_law(*[fair(coins)] * (levels + 1)), epsilon) >= here
    # Even and odd numbers of coins alternate about the trend, so compare like with like.
    assert search_delta(one_law(*[fair(coins + 2)] * levels), epsilon) <= here * (1 + 1e-9)


# --- epsilon, from delta --------------------------------------------------------------------------


def test_no_epsilon_is_told_that_was_not_certified() -> None:
    """Almost nothing is hidden: the only epsilon that is known is that of the guarantee."""
    bare = [Level(LaplaceNoise(Fraction(1), math.exp(-80)))]
    assert spent_delta(bare, Privacy(64.0, 1e-6)) > 0.9
    assert spent_epsilon(bare, Privacy(90.0, 1e-6)) == 90.0


def test_no_epsilon_is_looked_for_on_ever_finer_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where delta is large any epsilon will do, and the grid of a tiny one would fill memory."""
    asked: list[float] = []

    def nothing(levels: Any, privacy: Privacy) -> float:
        asked.append(privacy.epsilon)
        return 0.0

    for name in ("quick_delta", "spent_delta"):
        monkeypatch.setattr(composition, name, nothing)
    level = Level(LaplaceNoise(Fraction(1), 0.6))
    assert 0.1 < spent_epsilon([level], Privacy(1.0, 1e-6)) == min(asked) < 0.2
