"""Chance: exact coins, exact binomials, uniform orders, streams that go on or part as they must."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from overhand import randomness
from overhand.errors import Infeasible, InvalidValue
from overhand.randomness import (
    HALF,
    BinaryFraction,
    Random,
    SecureRandom,
    SeededRandom,
    restored_random,
    secure_random,
    seeded_random,
)
from sampled import (
    assert_follows,
    assert_probability,
    assert_uniform_over,
    kolmogorov,
    samples_for,
)

Ints = NDArray[np.int64]


def keyed(key: int) -> Random:
    """The secure stream under a literal key, so that a test repeats."""
    return restored_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


STREAMS: dict[str, Callable[[int], Random]] = {"secure": keyed, "seeded": seeded_random}


class Delegate(Random):
    """A stream with the words of another: what a mutant changes, and what a script replaces."""

    def __init__(self, words: Random) -> None:
        self._words = words

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        return self._words.words(count, dtype)

    @property
    def state(self) -> dict[str, Any]:
        return self._words.state

    def spawn(self, count: int) -> list[Random]:
        return self._words.spawn(count)


class Scripted(Delegate):
    """Hands out the given words, one list a call, and then those of a true stream."""

    def __init__(self, script: Sequence[Sequence[int]], after: Random) -> None:
        super().__init__(after)
        self._script = list(script)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        if not self._script:
            return super().words(count, dtype)
        words = self._script.pop(0)
        assert len(words) == count
        return np.array(words, dtype)


class FewWords(Delegate):
    """Words of eight distinct values: most draws of a few keys have a tie."""

    calls = 0

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        self.calls += 1
        return np.asarray(super().words(count, dtype) & dtype(7))


# --- binary fractions -----------------------------------------------------------------------------


def exact(fraction: BinaryFraction) -> Fraction:
    return Fraction(fraction.numerator, 2**fraction.bits)


@given(st.floats(2.0**-60, 1 - 2.0**-32))
def test_the_nearest_fraction_is_near_and_exact_as_a_float(probability: float) -> None:
    fraction = BinaryFraction.near(probability)
    bits = max(-64, math.frexp(probability)[1] - 32)
    assert abs(exact(fraction) - Fraction(probability)) <= Fraction(2) ** bits / 2
    assert Fraction(float(fraction)) == exact(fraction)
    assert fraction.reduced() == fraction


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
    reduced = fraction.reduced()
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
        with pytest.raises(Infeasible, match="not told from a certainty"):
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


# --- orders ---------------------------------------------------------------------------------------

ORDERS = {2: 3_000, 3: 6_000, 4: 30_000}
NEAR = {2: 0.2, 3: 0.1, 4: 0.016}


def orders(random: Random, messages: int) -> list[tuple[int, ...]]:
    """Many orders of `messages` distinct messages, as `permute` gives them."""
    array = np.arange(10, 10 + messages)
    return [tuple(random.permute(array).tolist()) for _ in range(ORDERS[messages])]


@pytest.mark.parametrize("messages", ORDERS)
@pytest.mark.parametrize("stream", STREAMS)
def test_every_order_of_messages_is_equally_likely(stream: str, messages: int) -> None:
    support = list(itertools.permutations(range(10, 10 + messages)))
    assert_uniform_over(
        orders(STREAMS[stream](20230), messages), support, discrepancy=NEAR[messages]
    )


class LeavesTheOrder(Delegate):
    def permute(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy()


class OnlyRotates(Delegate):
    def permute(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.roll(array, int(self.words(1, np.uint8)[0]))


class SwapsAnyTwo(Delegate):
    """The classical mistake: each place swapped with any other, not with one that is left."""

    def permute(self, array: NDArray[Any]) -> NDArray[Any]:
        others = self.words(len(array), np.uint64) % np.uint64(len(array))
        return np.array(swapped(array.tolist(), others.tolist()))


class KeepsTies(FewWords):
    """Sorts by few distinct keys and lets ties stand."""

    def permute(self, array: NDArray[Any]) -> NDArray[Any]:
        return array[np.argsort(self.words(len(array), np.uint64), kind="stable")]


def swapped(order: list[int], others: Sequence[int]) -> list[int]:
    order = list(order)
    for here, there in enumerate(others):
        order[here], order[there] = order[there], order[here]
    return order


def sorted_by(keys: Sequence[int]) -> list[int]:
    return sorted(range(len(keys)), key=lambda place: keys[place])


WRONG_ORDERS: dict[type[Delegate], list[tuple[int, ...]]] = {
    LeavesTheOrder: [(0, 1, 2, 3)],
    OnlyRotates: [(0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)],
    SwapsAnyTwo: [
        tuple(swapped([0, 1, 2, 3], others)) for others in itertools.product(range(4), repeat=4)
    ],
    KeepsTies: [tuple(sorted_by(keys)) for keys in itertools.product(range(8), repeat=4)],
}
"""The orders of four messages that a mutant gives, each as often as it is likely."""


@pytest.mark.parametrize("mutant", WRONG_ORDERS, ids=lambda mutant: str(mutant.__name__))
def test_the_test_of_orders_sees(mutant: type[Delegate]) -> None:
    law = WRONG_ORDERS[mutant]
    assert max(abs(law.count(order) / len(law) - 1 / 24) for order in set(law)) > NEAR[4]
    support = list(itertools.permutations(range(10, 14)))
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(orders(mutant(keyed(20230)), 4), support, discrepancy=NEAR[4])


ROWS = {"one of two": (1, 0), "two of four": (1, 1, 0, 0), "one of four": (0, 0, 0, 1)}


def arrangements(random: Random, row: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    rows = np.tile(np.array(row, np.uint8), (count, 1))
    return [tuple(arranged) for arranged in random.permute_rows(rows).tolist()]


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("stream", STREAMS)
def test_every_arrangement_of_bits_is_equally_likely(stream: str, kind: str) -> None:
    support = sorted(set(itertools.permutations(ROWS[kind])))
    samples = arrangements(STREAMS[stream](20230), ROWS[kind], 20_000)
    assert_uniform_over(samples, support, discrepancy=0.05)


@pytest.mark.parametrize("stream", STREAMS)
def test_single_bit_messages_are_permuted_as_uniformly_as_others(stream: str) -> None:
    random, array = STREAMS[stream](20230), np.array([1, 1, 0, 0], np.uint8)
    samples = [tuple(random.permute(array).tolist()) for _ in range(3_000)]
    support = sorted(set(itertools.permutations((1, 1, 0, 0))))
    assert_uniform_over(samples, support, discrepancy=0.1)


class LeavesBits(Delegate):
    def permute_rows(self, rows: NDArray[Any], message_bits: int = 1) -> NDArray[Any]:
        return rows.copy()


class SortsTiedBits(FewWords):
    """Sorts few distinct keys with their bits below them and lets ties stand: zeros go first."""

    def permute_rows(self, rows: NDArray[Any], message_bits: int = 1) -> NDArray[Any]:
        keys = self.words(rows.size, np.uint32).reshape(rows.shape) << np.uint32(1)
        return (np.sort(keys | rows, axis=1) & np.uint32(1)).astype(np.uint8)


def test_ties_would_be_further_off_than_the_test_of_bits_allows() -> None:
    """Eight keys for one 1 among four bits: all vectors of keys, sorted as the mutant does."""
    last = 0
    for keys in itertools.product(range(8), repeat=4):
        ordered = sorted((key, bit) for key, bit in zip(keys, ROWS["one of four"], strict=True))
        last += ordered[-1][1]
    assert last / 8**4 - 1 / 4 > 0.05


@pytest.mark.parametrize("mutant", [LeavesBits, SortsTiedBits])
def test_the_test_of_bits_sees(mutant: type[Delegate]) -> None:
    support = sorted(set(itertools.permutations(ROWS["one of four"])))
    samples = arrangements(mutant(keyed(20230)), ROWS["one of four"], 20_000)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(samples, support, discrepancy=0.05)


def test_tied_keys_are_drawn_again_until_none_tie() -> None:
    random = Scripted([[5, 5, 1], [2, 7, 2], [9, 3, 6]], keyed(1))
    assert random.permute(np.array([10, 11, 12])).tolist() == [11, 12, 10]
    random = Scripted([[0, 0], [4, 4], [1, 0]], keyed(1))
    assert random.permute(np.array([[1, 2], [3, 4]])).tolist() == [[3, 4], [1, 2]]


def test_only_the_rows_whose_keys_tie_are_drawn_again() -> None:
    rows = np.array([[1, 0], [0, 1], [1, 0]], np.uint8)
    random = Scripted([[2, 1, 5, 5, 3, 3], [1, 2, 6, 6], [9, 8]], keyed(1))
    # Row 0 is swapped at once; row 1 keeps its order at the second draw; row 2 is swapped at the
    # third.
    assert random.permute_rows(rows).tolist() == [[0, 1], [0, 1], [0, 1]]


def test_keys_that_differ_only_in_the_bit_that_is_lost_are_a_tie() -> None:
    highest = 1 << 31
    random = Scripted([[3, 3 | highest], [5, 4]], keyed(1))
    assert random.permute_rows(np.array([[1, 0]], np.uint8)).tolist() == [[0, 1]]


def test_a_stream_of_few_words_is_uniform_because_ties_are_drawn_again() -> None:
    random = FewWords(keyed(20230))
    support = list(itertools.permutations(range(10, 13)))
    assert_uniform_over(orders(random, 3), support, discrepancy=NEAR[3])
    assert random.calls > 1.2 * ORDERS[3]
    samples = arrangements(random, ROWS["one of four"], 20_000)
    arranged = sorted(set(itertools.permutations(ROWS["one of four"])))
    assert_uniform_over(samples, arranged, discrepancy=0.05)


@pytest.mark.parametrize("length", [0, 1, 2, 4096, 4097, 20_000])
def test_permuting_loses_and_changes_no_message(length: int) -> None:
    random = keyed(20230)
    bits = random.coins(length, BinaryFraction(1, 2))
    values = random.words(length, np.uint64)
    before = bits.copy(), values.copy()
    assert random.permute(bits).sum() == bits.sum()
    assert random.permute(bits).dtype == np.uint8
    assert np.array_equal(np.sort(random.permute(values)), np.sort(values))
    assert np.array_equal(bits, before[0])
    assert np.array_equal(values, before[1])


def test_rows_of_bits_keep_their_own_bits() -> None:
    rows = keyed(20230).coins(50 * 70, HALF).reshape(50, 70)
    assert np.array_equal(keyed(20231).permute_rows(rows).sum(axis=1), rows.sum(axis=1))
    assert keyed(1).permute_rows(np.zeros((0, 5), np.uint8)).shape == (0, 5)
    assert keyed(1).permute_rows(np.zeros((5, 0), np.uint8)).shape == (5, 0)


def test_bytes_that_are_no_bits_are_permuted_whole() -> None:
    array = np.array([0, 1, 2, 255], np.uint8)
    samples = [tuple(sorted(keyed(seed).permute(array).tolist())) for seed in range(20)]
    assert set(samples) == {(0, 1, 2, 255)}


def test_a_vector_of_a_message_stays_together() -> None:
    array = np.arange(12).reshape(4, 3)
    permuted = seeded_random(20230).permute(array)
    assert sorted(permuted.tolist()) == array.tolist()


# --- streams --------------------------------------------------------------------------------------


def future(random: Random) -> list[Any]:
    """Some of everything that a stream can be asked for."""
    return [
        random.words(3, np.uint64).tolist(),
        random.coins(13, HALF).tolist(),
        random.coins(5, BinaryFraction(1, 3)).tolist(),
        random.binomial(100, BinaryFraction(1, 3), 3).tolist(),
        random.binomial(30_000, BinaryFraction(1, 3), 2).tolist(),
        random.permute(np.arange(10)).tolist(),
    ]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("used", [0, 1, 17, 300_000], ids=lambda used: f"{used} bytes used")
def test_a_restored_stream_has_the_same_future(stream: str, used: int) -> None:
    random = STREAMS[stream](20230)
    random.words(used, np.uint8)
    restored = restored_random(random.state)
    assert type(restored) is type(random)
    assert future(restored) == future(random)
    assert future(restored) == future(random)


def test_a_fresh_secure_stream_can_be_restored() -> None:
    random = secure_random()
    future(random)
    assert future(restored_random(random.state)) == future(random)


def test_a_state_is_not_changed_by_what_is_drawn_after_it() -> None:
    for start in STREAMS.values():
        random = start(20230)
        state = random.state
        expected = future(random)
        assert future(restored_random(state)) == expected
        assert future(restored_random(state)) == expected


def test_a_restored_stream_spawns_the_children_it_would_have_had() -> None:
    random = seeded_random(5)
    random.spawn(2)
    restored = restored_random(random.state)
    assert [future(c) for c in restored.spawn(2)] == [future(c) for c in random.spawn(2)]


def test_the_same_seed_gives_the_same_stream_and_another_another() -> None:
    assert future(seeded_random(7)) == future(seeded_random(7))
    assert future(seeded_random(7)) != future(seeded_random(8))
    assert future(SeededRandom(np.random.default_rng(7))) == future(seeded_random(7))


def test_two_secure_streams_differ() -> None:
    assert future(secure_random()) != future(secure_random())


@pytest.mark.parametrize("stream", STREAMS)
def test_spawned_streams_differ_from_each_other_and_from_their_parent(stream: str) -> None:
    parent = STREAMS[stream](20230)
    families = [parent, *parent.spawn(3), *parent.spawn(2)]
    words = [tuple(member.words(4, np.uint64).tolist()) for member in families]
    assert len(set(words)) == len(families) == 6
    assert parent.spawn(0) == []


@pytest.mark.parametrize("stream", STREAMS)
def test_spawned_coins_agree_with_each_other_half_of_the_time(stream: str) -> None:
    first, second = STREAMS[stream](20230).spawn(2)
    agree = first.coins(20_000, HALF) == second.coins(20_000, HALF)
    assert_probability(int(agree.sum()), 20_000, 0.5, discrepancy=0.05)


def test_the_test_of_spawning_sees_one_stream_twice() -> None:
    agree = keyed(20230).coins(20_000, HALF) == keyed(20230).coins(20_000, HALF)
    with pytest.raises(AssertionError, match="successes"):
        assert_probability(int(agree.sum()), 20_000, 0.5, discrepancy=0.05)


def test_a_seed_fixes_the_spawned_streams_too() -> None:
    first, second = ([future(s) for s in seeded_random(5).spawn(2)] for _ in range(2))
    assert first == second


def test_restored_streams_of_different_seeds_spawn_different_streams() -> None:
    children = [restored_random(seeded_random(seed).state).spawn(1)[0] for seed in (5, 6)]
    assert future(children[0]) != future(children[1])


def test_a_restored_stream_spawns_no_stream_that_its_origin_spawned() -> None:
    origin = seeded_random(0)
    spawned = future(origin.spawn(1)[0])
    assert future(restored_random(origin.state).spawn(1)[0]) != spawned


def words_in_a_forked_child(streams: Sequence[Random]) -> list[bytes]:
    """The next words of each stream, drawn by a forked child and sent through a pipe."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sending, b"".join(s.words(32, np.uint8).tobytes() for s in streams))
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        words = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(words) == 32 * len(streams)
    return [words[start : start + 32] for start in range(0, len(words), 32)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_repeat_the_streams_of_its_parent() -> None:
    streams = [secure_random(), keyed(20230), *secure_random().spawn(1)]
    streams[0].words(5, np.uint8)
    first, second = words_in_a_forked_child(streams), words_in_a_forked_child(streams)
    parent = [stream.words(32, np.uint8).tobytes() for stream in streams]
    assert len({*first, *second, *parent}) == 9


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_test_of_forking_sees_a_stream_that_is_copied() -> None:
    copied = seeded_random(20230)
    assert words_in_a_forked_child([copied]) == [copied.words(32, np.uint8).tobytes()]


def test_rekeying_gives_every_live_stream_a_new_key() -> None:
    """What the child does, in this process, where coverage can see it."""
    streams = [keyed(20230), keyed(20230), secure_random()]
    keys = {str(stream.state["key"]) for stream in streams}
    randomness._rekey_after_fork()
    states = [stream.state for stream in streams]
    assert {state["used"] for state in states} == {0}
    assert len(keys | {str(state["key"]) for state in states}) == 2 + 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_the_parent_s_stream_alone() -> None:
    random = keyed(20230)
    state = random.state
    words_in_a_forked_child([random])
    assert random.state == state


@pytest.mark.parametrize("seed", [True, False, -1, 1.0, "1", None, np.float64(1)], ids=repr)
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidValue, match="seed"):
        seeded_random(seed)


@pytest.mark.parametrize("seed", [0, 2**200, np.int64(3)], ids=repr)
def test_any_natural_number_is_a_seed(seed: int) -> None:
    assert future(seeded_random(seed)) == future(seeded_random(int(seed)))


def test_a_secure_stream_takes_no_seed() -> None:
    with pytest.raises(TypeError):
        SecureRandom(1)  # type: ignore[call-arg]
