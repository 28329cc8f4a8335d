"""Chance: binary fractions, exact coins and exact binomials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from overhand.errors import Infeasible, InvalidValue
from overhand.randomness import HALF, BinaryFraction, SeededRandom
from support.random_streams import STREAMS, Delegate, Scripted, keyed
from support.sampling import assert_follows, assert_probability, kolmogorov, samples_for

Ints = NDArray[np.int64]


# --- binary fractions -----------------------------------------------------------------------------


def exact(fraction: BinaryFraction) -> Fraction:
    return Fraction(fraction.numerator, 2**fraction.bits)


@given(st.floats(2.0**-60, 1 - 2.0**-32))
def test_the_nearest_fraction_is_near_and_exact_as_a_float(probability: float) -> None:
    fraction = BinaryFraction.near(probability)
    bits = max(-64, math.frexp(probability)[1] - 32)
    assert abs(exact(fraction) - Fraction(probability)) <= Fraction(2) ** bits / 2
    assert Fraction(float(fraction)) == exact(fraction)
    assert fraction.reduce() == fraction


@pytest.mark.parametrize("bits", [1, 2, 31, 32, 33, 53, 64])
def test_powers_of_two_are_met_exactly(bits: int) -> None:
    assert BinaryFraction.near(2.0**-bits) == BinaryFraction(1, bits)
    assert float(BinaryFraction(1, bits)) == 2.0**-bits


@given(
    st.integers(1, 64).flatmap(
        lambda bits: st.tuples(st.integers(1, (1 << bits) - 1), st.just(bits))
    )
)
def test_reducing_changes_no_number(parts: tuple[int, int]) -> None:
    fraction = BinaryFraction(*parts)
    reduced = fraction.reduce()
    assert exact(reduced) == exact(fraction)
    assert reduced.bits == 1 or reduced.numerator % 2 == 1
    assert fraction.is_half == reduced.is_half == (exact(fraction) == Fraction(1, 2))
    assert float(fraction) == float(exact(fraction))


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan, True, "0.5"], ids=repr)
def test_a_probability_that_is_none_is_refused(probability: Any) -> None:
    with pytest.raises(InvalidValue, match="probability"):
        BinaryFraction.near(probability)


def test_a_probability_below_all_words_is_infeasible() -> None:
    for probability in (2.0**-66, 1 - 2.0**-34):
        with pytest.raises(Infeasible, match="is a certainty with"):
            BinaryFraction.near(probability)


@pytest.mark.parametrize(
    ("numerator", "bits"),
    [(1, 0), (1, 65), (-1, 4), (17, 4), (0, 4), (16, 4), (0.5, 1), (1, 1.0), (True, 1)],
    ids=repr,
)
def test_a_fraction_outside_its_bounds_is_refused(numerator: Any, bits: Any) -> None:
    with pytest.raises(InvalidValue):
        BinaryFraction(numerator, bits)


# --- coins ----------------------------------------------------------------------------------------

COINS = {
    "fair": BinaryFraction(1, 1),
    "fair, unreduced": BinaryFraction(8, 4),
    "eighths": BinaryFraction(3, 3),
    "32 bits": BinaryFraction.near(0.7),
    "33 bits": BinaryFraction((1 << 31) - 1, 33),
    "64 bits": BinaryFraction((1 << 63) // 5 * 3 + 1, 64),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", COINS)
def test_coins_show_their_probability(stream: str, kind: str) -> None:
    coins = STREAMS[stream](20230).coins(20_000, COINS[kind])
    assert coins.dtype == np.uint8
    assert set(np.unique(coins)) <= {0, 1}
    assert_probability(int(coins.sum()), 20_000, float(COINS[kind]), discrepancy=0.05)


@pytest.mark.parametrize("stream", STREAMS)
def test_rare_coins_show_their_probability(stream: str) -> None:
    rare = BinaryFraction.near(1e-3)
    coins = STREAMS[stream](20231).coins(500_000, rare)
    assert_probability(int(coins.sum()), 500_000, float(rare), discrepancy=9e-4)


class TwiceTheThreshold(Delegate):
    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        return super().coins(count, BinaryFraction(2 * probability.numerator, probability.bits))


class OpposedCoins(Delegate):
    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        return super().coins(count, probability) ^ np.uint8(1)


class CutToTenBits(Delegate):
    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        shift = max(0, probability.bits - 10)
        return super().coins(count, BinaryFraction(probability.numerator >> shift, 10))


@pytest.mark.parametrize(
    ("mutant", "probability", "wrong", "count", "discrepancy"),
    [
        (TwiceTheThreshold, BinaryFraction.near(0.3), 0.6, 20_000, 0.05),
        (OpposedCoins, BinaryFraction(3, 3), 5 / 8, 20_000, 0.05),
        (TwiceTheThreshold, BinaryFraction.near(1e-3), 2e-3, 500_000, 9e-4),
        (CutToTenBits, BinaryFraction.near(1.9e-3), 1 / 1024, 500_000, 9e-4),
    ],
    ids=["twice as likely", "opposed", "twice as likely, rare", "cut to ten bits, rare"],
)
def test_the_test_of_coins_sees(
    mutant: type[Delegate],
    probability: BinaryFraction,
    wrong: float,
    count: int,
    discrepancy: float,
) -> None:
    assert abs(wrong - float(probability)) > discrepancy
    ones = int(mutant(keyed(20231)).coins(count, probability).sum())
    assert_probability(ones, count, wrong, discrepancy=discrepancy)
    with pytest.raises(AssertionError, match="successes"):
        assert_probability(ones, count, float(probability), discrepancy=discrepancy)


@pytest.mark.parametrize(
    "bit_generator",
    [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937],
    ids=lambda kind: str(kind.__name__),
)
def test_coins_of_any_generator_that_is_accepted_show_their_probability(
    bit_generator: Callable[[int], np.random.BitGenerator],
) -> None:
    try:
        random = SeededRandom(np.random.Generator(bit_generator(20230)))
    except InvalidValue:
        return
    for kind in ("eighths", "64 bits"):
        coins = random.coins(20_000, COINS[kind])
        assert_probability(int(coins.sum()), 20_000, float(COINS[kind]), discrepancy=0.05)


@pytest.mark.parametrize("stream", STREAMS)
def test_words_use_every_bit_evenly(stream: str) -> None:
    words = STREAMS[stream](20230).words(2_000, np.uint64)
    for place in range(64):
        ones = int(np.count_nonzero(words >> np.uint64(place) & np.uint64(1)))
        assert_probability(ones, 2_000, 0.5, discrepancy=0.15)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_as_many_coins_and_words_come_as_were_asked_for(stream: str, count: int) -> None:
    random = STREAMS[stream](20230)
    assert random.coins(count, HALF).shape == (count,)
    assert random.coins(count, BinaryFraction(1, 3)).shape == (count,)
    for dtype in (np.uint8, np.uint32, np.uint64):
        assert random.words(count, dtype).shape == (count,)
        assert random.words(count, dtype).dtype == dtype


# --- binomials ------------------------------------------------------------------------------------

DISCREPANCY = 0.12
TINY = BinaryFraction.near(1e-4)
DEEP = BinaryFraction.near(3e-5)  # more than 32 bits

BINOMIALS: dict[str, tuple[int, BinaryFraction]] = {
    "one fair coin": (1, HALF),
    "63 fair coins": (63, HALF),
    "64 fair coins": (64, HALF),
    "65 fair coins": (65, HALF),
    "1000 fair coins": (1000, HALF),
    "5 skewed coins": (5, BinaryFraction(1, 3)),
    "100 coins of 32 bits": (100, BinaryFraction.near(0.3)),
    "10000 coins of 45 bits": (10_000, TINY),
    "as many coins as one by one goes": (1 << 14, BinaryFraction(5, 12)),
    "more coins than that": ((1 << 14) + 1, BinaryFraction(5, 12)),
    "20001 likely coins": (20_001, BinaryFraction.near(0.9)),
    "40000 tiny coins": (40_000, TINY),
    "100003 tiny coins of 47 bits": (100_003, DEEP),
}


def law_of(trials: int, probability: BinaryFraction) -> Any:
    return stats.binom(trials, float(probability))


def test_the_binomials_take_every_path() -> None:
    most = 1 << 14
    assert {trials % 64 for trials, p in BINOMIALS.values() if p.is_half} >= {0, 1, 63}
    assert {trials > most for trials, p in BINOMIALS.values() if not p.is_half} == {True, False}
    assert {p.bits > 32 for trials, p in BINOMIALS.values() if trials > most} == {True, False}
    assert {p.bits > 32 for trials, p in BINOMIALS.values() if trials <= most} == {True, False}


@pytest.mark.parametrize("kind", BINOMIALS)
@pytest.mark.parametrize("stream", STREAMS)
def test_binomials_follow_their_law(stream: str, kind: str) -> None:
    trials, probability = BINOMIALS[kind]
    samples = STREAMS[stream](20230).binomial(trials, probability, samples_for(DISCREPANCY))
    assert samples.dtype == np.int64
    assert_follows(samples, law_of(trials, probability), discrepancy=DISCREPANCY)


class CountsSpareBits(Delegate):
    """Forgets to shift the bits beyond the last coin out of the last word."""

    def _fair_binomial(self, trials: int, count: int) -> Ints:
        return super()._fair_binomial(-(-trials // 64) * 64, count)


class OneCoinShort(Delegate):
    def binomial(self, trials: int, probability: BinaryFraction, count: int) -> Ints:
        return super().binomial(trials - 1, probability, count)


class RoundsUpToAPowerOfTwo(Delegate):
    """Compares no further than the highest bit of the fraction."""

    def _halved_binomial(self, trials: int, probability: BinaryFraction) -> int:
        places = probability.bits - probability.numerator.bit_length()
        return super()._halved_binomial(trials, BinaryFraction(1, places))


class ComparesUpwards(Delegate):
    """Counts the words above the fraction instead of those below it."""

    def _halved_binomial(self, trials: int, probability: BinaryFraction) -> int:
        return trials - super()._halved_binomial(trials, probability)


class CountsPadding(Delegate):
    """Counts the bits of the last byte that belong to no coin."""

    def _fair_count(self, trials: int) -> int:
        return super()._fair_count(-(-trials // 8) * 8)


MUTANTS: dict[str, tuple[type[Delegate], int, BinaryFraction, Callable[[], Any]]] = {
    "spare bits counted": (CountsSpareBits, 60, HALF, lambda: stats.binom(64, 0.5)),
    "one fair coin short": (OneCoinShort, 3, HALF, lambda: stats.binom(2, 0.5)),
    "one skewed coin short": (
        OneCoinShort,
        3,
        BinaryFraction(3, 3),
        lambda: stats.binom(2, 3 / 8),
    ),
    "the fraction cut off": (
        RoundsUpToAPowerOfTwo,
        40_000,
        TINY,
        lambda: stats.binom(40_000, 2.0**-13),
    ),
    "compared upwards": (
        ComparesUpwards,
        20_001,
        BinaryFraction.near(0.9),
        lambda: stats.binom(20_001, 1 - float(BinaryFraction.near(0.9))),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_test_of_binomials_sees(name: str) -> None:
    mutant, trials, probability, wrong = MUTANTS[name]
    law = law_of(trials, probability)
    assert kolmogorov(law, wrong(), range(-1, 2 * trials + 65)) > DISCREPANCY
    samples = mutant(keyed(20230)).binomial(trials, probability, samples_for(DISCREPANCY))
    assert_follows(samples, wrong(), discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, law, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("trials", [1, 3, 7, 8])
def test_a_fair_count_counts_each_of_its_coins_once(trials: int) -> None:
    """Every content of the byte once: the number of counts is exactly a binomial's."""
    counts = np.zeros(trials + 1, np.int64)
    for content in range(256):
        counts[Scripted([[content]], keyed(1))._fair_count(trials)] += 1
    spare = 2 ** (8 - trials)
    assert counts.tolist() == [spare * math.comb(trials, ones) for ones in range(trials + 1)]


def test_the_test_of_fair_counts_sees_padding() -> None:
    counts = [CountsPadding(Scripted([[c]], keyed(1)))._fair_count(3) for c in range(256)]
    assert max(counts) == 8


@pytest.mark.parametrize(("numerator", "bits"), [(1, 1), (3, 2), (5, 3), (1, 4), (11, 4)])
def test_halving_gives_each_coin_exactly_its_probability(numerator: int, bits: int) -> None:
    """All words of one coin, bit by bit: the share of ones is the fraction itself."""
    ones = 0
    for word in itertools.product((0, 1), repeat=bits):
        # The fair count of one coin reads the highest bit of a byte.
        random = Scripted([[bit << 7] for bit in word], keyed(1))
        ones += random._halved_binomial(1, BinaryFraction(numerator, bits))
    assert ones == numerator
