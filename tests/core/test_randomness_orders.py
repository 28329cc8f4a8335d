"""Uniform orders: every permutation of messages is equally likely, ties and all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from overhand.randomness import HALF, BinaryFraction, Random, seeded_random
from support.random_streams import STREAMS, Delegate, Scripted, keyed
from support.sampling import assert_uniform_over


class FewWords(Delegate):
    """Words of eight distinct values: most draws of a few keys have a tie."""

    calls = 0

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        self.calls += 1
        return np.asarray(super().words(count, dtype) & dtype(7))


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
        return np.asarray(np.sort(keys | rows, axis=1) & np.uint32(1), np.uint8)


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
