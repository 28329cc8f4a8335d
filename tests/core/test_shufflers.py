"""What a shuffler does: all messages of a batch, each as it was, in uniformly random order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from overhand.mechanisms import CoinSum
from overhand.model import Messages, Shuffled
from overhand.noise import Coins
from overhand.randomness import HALF, Random, restore_random, seeded_random
from overhand.shuffle import shuffle
from support.sampling import assert_probability, assert_uniform_over


def keyed(key: int) -> Random:
    return restore_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


def rows(*first: int, width: int = 3) -> Messages:
    """One row of messages per user, told apart by their numbers."""
    return Messages.of(np.array([[10 * f + i for i in range(width)] for f in first]))


def test_a_batch_keeps_its_messages() -> None:
    shuffled = shuffle(rows(1, 2, 3).gather(3), keyed(1))
    assert shuffled.sealed.shape == (1, 9)
    assert sorted(shuffled.sealed[0].tolist()) == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_no_message_moves_to_another_batch() -> None:
    shuffled = shuffle(rows(1, 2, 3, 4).gather(2), keyed(1))
    assert [sorted({m // 10 for m in batch}) for batch in shuffled.sealed.tolist()] == [
        [1, 2],
        [3, 4],
    ]


def test_the_messages_of_vectors_stay_whole() -> None:
    users = Messages.of(np.array([[[1, 2, 3]], [[4, 5, 6]]]))
    shuffled = shuffle(users.gather(2), keyed(1))
    assert sorted(shuffled.sealed[0].tolist()) == [[1, 2, 3], [4, 5, 6]]


def test_what_is_in_the_clear_stays_as_it_is() -> None:
    clear = np.array([[7, 8]], np.uint64)
    assert np.array_equal(shuffle(Messages(rows(1).sealed, clear), keyed(1)).clear, clear)


# --- the order ------------------------------------------------------------------------------------

Shuffle = Callable[[Messages, Random], Shuffled]


def leave_the_order(users: Messages, random: Random) -> Shuffled:
    return Shuffled(*users.gather(len(users.sealed)))


def permute_users_only(users: Messages, random: Random) -> Shuffled:
    """Keeps the messages of one user together."""
    permuted = Messages(random.permute(users.sealed), users.clear)
    return Shuffled(*permuted.gather(len(users.sealed)))


def permute_messages(users: Messages, random: Random) -> Shuffled:
    return shuffle(users.gather(len(users.sealed)), random)


def released_orders(permute: Shuffle, random: Random) -> list[tuple[int, ...]]:
    """Of many batches of two users with two messages each."""
    users = rows(1, 2, width=2)
    return [tuple(permute(users, random).sealed[0].tolist()) for _ in range(6_000)]


ORDERS = list(itertools.permutations((10, 11, 20, 21)))


@pytest.mark.parametrize("start", [keyed, seeded_random], ids=["secure", "seeded"])
def test_a_batch_is_released_in_uniformly_random_order(start: Any) -> None:
    orders = released_orders(permute_messages, start(20230))
    assert_uniform_over(orders, ORDERS, discrepancy=0.04)


@pytest.mark.parametrize(
    ("mutant", "likeliest"),
    [(leave_the_order, 1.0), (permute_users_only, 0.5)],
    ids=["identity shuffle", "users only"],
)
def test_the_test_of_the_order_sees(mutant: Shuffle, likeliest: float) -> None:
    assert likeliest - 1 / 24 > 0.04
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(released_orders(mutant, keyed(20230)), ORDERS, discrepancy=0.04)


def first_is_the_bit(permute: Shuffle, random: Random) -> int:
    """How often the first message of a batch of one-bit messages is the single one."""
    users = Messages.of(np.array([[1, 0], [0, 0]], np.uint8))
    return sum(int(permute(users, random).sealed[0, 0]) for _ in range(3_000))


def test_one_bit_messages_are_released_in_random_order_too() -> None:
    ones = first_is_the_bit(permute_messages, keyed(20230))
    assert_probability(ones, 3_000, 1 / 4, discrepancy=0.11)


def test_the_test_of_one_bit_messages_sees_the_identity_shuffle() -> None:
    ones = first_is_the_bit(leave_the_order, keyed(20230))
    with pytest.raises(AssertionError, match="successes"):
        assert_probability(ones, 3_000, 1 / 4, discrepancy=0.11)


def test_every_encoding_has_noise_of_its_own() -> None:
    """Two shufflers get the same value with independent coins: they agree half of the time."""
    coin, random = CoinSum(1, Coins(1, HALF, opposed=False)), keyed(20230)
    counts = [
        [np.count_nonzero(coin.encode_many([0], random).sealed) for _ in range(2)]
        for _ in range(2_000)
    ]
    agree = sum(one == other for one, other in counts)
    assert_probability(agree, 2_000, 0.5, discrepancy=0.15)
    with pytest.raises(AssertionError, match="successes"):  # one encoding, sent twice
        assert_probability(2_000, 2_000, 0.5, discrepancy=0.15)
