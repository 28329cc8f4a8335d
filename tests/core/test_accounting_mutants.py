"""Accountants that forget something: the comparisons with every outcome must catch them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from overhand.accounting import Level
from overhand.accounting import composition as composition_module
from overhand.accounting.divergence import profile
from overhand.model import Floats
from overhand.noise import Noise
from overhand.randomness import BinaryFraction
from overhand.values import Sensitivity
from support.chosen_coins import EIGHTH
from support.enumeration import (
    ACCOUNTANTS,
    BUCKETS,
    CHANGES,
    COMPOSED,
    MOST,
    REPORTS,
    Pair,
    assert_accounts_for,
    changed_by_enumeration,
    composed_by_enumeration,
    fair,
    one_law,
    skewed,
)


@pytest.fixture(autouse=True)
def _no_curves_of_other_tests() -> Iterator[None]:
    """Some tests replace what the cached curves are made of."""
    composition_module._curves.cache_clear()
    yield
    composition_module._curves.cache_clear()


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
    def one_sided(law: Noise, shift: int, epsilons: Floats) -> Pair:
        kept = profile(law, shift, epsilons)[1 - forgotten]
        return kept, kept

    monkeypatch.setattr(composition_module, "profile", one_sided)
    truth = composed_by_enumeration(COMPOSED[kind], 1.0)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](COMPOSED[kind], 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("kind", ["two of one level", "three of one level"])
def test_reports_counted_once_would_be_caught(accountant: str, kind: str) -> None:
    truth = composed_by_enumeration(REPORTS[kind], 1.0)
    once = [Level(level.law) for level in REPORTS[kind]]
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant](once, 1.0), truth)


def as_one_step(level: Level) -> Level:
    return Level(level.law, level.reports, Sensitivity(1, level.sensitivity.l0))


def as_one_count(level: Level) -> Level:
    return Level(level.law, level.reports, Sensitivity(int(level.sensitivity.linf)))


def as_one_report(level: Level) -> Level:
    return Level(level.law, 1, level.sensitivity)


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
    def one_sided(law: Noise, shift: int, epsilons: Floats) -> Pair:
        kept = profile(law, shift, epsilons)[1 - forgotten]
        return kept, kept

    level = Level(skewed(40, probability), sensitivity=BUCKETS)
    truth = changed_by_enumeration((level,), 1.0)
    monkeypatch.setattr(composition_module, "profile", one_sided)
    with pytest.raises(AssertionError, match="understates"):
        assert_accounts_for(ACCOUNTANTS[accountant]([level], 1.0), truth)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_buckets_that_both_move_up_or_both_down_would_be_caught(
    monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    """Where the coins are nearly fair, one up and one down is the worst of all."""
    level = Level(skewed(7, BinaryFraction(15, 5)), sensitivity=BUCKETS)
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
