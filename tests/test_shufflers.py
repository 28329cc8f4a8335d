"""One shuffler and many: the life of a batch, every step that is not allowed, the random order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from overhand.errors import InvalidValue, OverhandError, ProtocolViolation
from overhand.mechanisms import Coins, CoinSum, Mechanism
from overhand.model import Messages, Shuffled
from overhand.randomness import HALF, BinaryFraction, Random, restored_random, seeded_random
from overhand.shufflers import ConcurrentShufflers, Shuffler
from support.sampled import assert_probability, assert_uniform_over

THREE = CoinSum(3, Coins(2, BinaryFraction(1, 2)))
PAIR = CoinSum(2, Coins(0, HALF))


def keyed(key: int) -> Random:
    return restored_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


def rows(*first: int, width: int = 3) -> Messages:
    """One row of messages per user, told apart by their numbers."""
    return Messages.of(np.array([[10 * f + i for i in range(width)] for f in first]))


def messages_of(shuffled: Shuffled) -> list[Any]:
    """Of the one batch that a shuffler releases."""
    (batch,) = shuffled.sealed.tolist()
    return list(batch)


def opened(mechanism: Mechanism = THREE, users: int = 0) -> Shuffler:
    shuffler = Shuffler()
    shuffler.activate(mechanism)
    for user in range(1, users + 1):
        shuffler.send(user, rows(user, width=mechanism.messages_per_user))
    return shuffler


# --- the life of a batch --------------------------------------------------------------------------


def test_a_batch_is_opened_filled_released_and_forgotten() -> None:
    shuffler = Shuffler()
    assert (shuffler.is_active, shuffler.is_full) == (False, False)
    shuffler.activate(THREE)
    assert (shuffler.is_active, shuffler.is_full) == (True, False)
    assert shuffler.mechanism is THREE
    for user in (1, 2):
        shuffler.send(user, rows(user))
        assert (shuffler.is_active, shuffler.is_full) == (True, False)
    shuffler.send(3, rows(3))
    assert (shuffler.is_active, shuffler.is_full) == (True, True)
    shuffled = shuffler.release(keyed(1))
    assert shuffled.sealed.shape == (1, 9)
    assert sorted(messages_of(shuffled)) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert (shuffler.is_active, shuffler.is_full) == (False, False)
    with pytest.raises(ProtocolViolation, match="no mechanism"):
        _ = shuffler.mechanism


def test_a_shuffler_is_used_again_with_another_mechanism_and_the_same_users() -> None:
    shuffler = opened(THREE, users=3)
    shuffler.release(keyed(1))
    shuffler.activate(PAIR)
    shuffler.send_many(range(1, 3), rows(7, 8, width=1))
    assert sorted(messages_of(shuffler.release(keyed(1)))) == [70, 80]
    assert not shuffler.is_active


def test_consecutive_users_may_send_together() -> None:
    together, alone = opened(), opened(users=3)
    together.send_many(range(1, 3), rows(1, 2))
    together.send_many(range(3, 4), rows(3))
    assert messages_of(together.release(keyed(1))) == messages_of(alone.release(keyed(1)))


def test_the_messages_of_vectors_stay_whole() -> None:
    shuffler = opened(PAIR)
    shuffler.send(1, Messages.of(np.array([[[1, 2, 3]]])))
    shuffler.send(2, Messages.of(np.array([[[4, 5, 6]]])))
    assert sorted(messages_of(shuffler.release(keyed(1)))) == [[1, 2, 3], [4, 5, 6]]


# --- what is not allowed --------------------------------------------------------------------------


def state_of(shuffler: Shuffler) -> tuple[Any, ...]:
    """All that a shuffler shows, and what it would release once it is full."""
    if not shuffler.is_active:
        return (False,)
    held = sorted(Messages.joined(shuffler._messages).sealed.tolist()) if shuffler._messages else []
    return True, shuffler.is_full, shuffler.mechanism, sorted(shuffler._users), held


VIOLATIONS: dict[str, tuple[Any, Any, str]] = {
    "send to an inactive shuffler": (
        Shuffler,
        lambda s: s.send(1, rows(1)),
        "inactive",
    ),
    "release of an inactive shuffler": (Shuffler, lambda s: s.release(keyed(1)), "inactive"),
    "release of an empty batch": (opened, lambda s: s.release(keyed(1)), "0 of 3 users"),
    "release one user early": (
        lambda: opened(users=2),
        lambda s: s.release(keyed(1)),
        "2 of 3 users",
    ),
    "activation of an open batch": (
        lambda: opened(users=2),
        lambda s: s.activate(PAIR),
        "2 of 3 users",
    ),
    "activation of a full batch": (
        lambda: opened(users=3),
        lambda s: s.activate(THREE),
        "3 of 3 users",
    ),
    "a user twice": (lambda: opened(users=2), lambda s: s.send(2, rows(9)), "user 2 .* twice"),
    "a user twice among others": (
        lambda: opened(users=1),
        lambda s: s.send_many(range(0, 2), rows(8, 9)),
        "user 1 .* twice",
    ),
    "one user too many": (lambda: opened(users=3), lambda s: s.send(4, rows(4)), "holds 3 of 3"),
    "users too many at once": (
        lambda: opened(users=2),
        lambda s: s.send_many(range(3, 5), rows(3, 4)),
        "holds 2 of 3",
    ),
    "a message too few": (opened, lambda s: s.send(1, rows(1, width=2)), "expected"),
    "a message too many": (opened, lambda s: s.send(1, rows(1, width=4)), "expected"),
    "no message": (opened, lambda s: s.send(1, rows(1, width=0)), "expected"),
    "two rows of one user": (opened, lambda s: s.send(1, rows(1, 2)), "expected"),
    "a row less than users": (
        opened,
        lambda s: s.send_many(range(1, 3), rows(1)),
        "expected",
    ),
    "messages without their user's axis": (
        opened,
        lambda s: s.send(1, Messages.of(np.array([1, 2, 3]))),
        "expected",
    ),
    "vectors among numbers": (
        lambda: opened(users=1),
        lambda s: s.send(2, Messages.of(np.zeros((1, 3, 2), np.int64))),
        "shape|expected",
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_refused_and_changes_nothing(name: str) -> None:
    start, step, message = VIOLATIONS[name]
    shuffler = start()
    before = state_of(shuffler)
    with pytest.raises(ProtocolViolation, match=message):
        step(shuffler)
    assert state_of(shuffler) == before


def test_a_batch_is_released_once() -> None:
    shuffler = opened(users=3)
    shuffler.release(keyed(1))
    with pytest.raises(ProtocolViolation, match="nothing to release"):
        shuffler.release(keyed(1))


def test_a_batch_that_could_not_be_permuted_is_not_lost() -> None:
    class Broken(Random):
        def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
            raise OSError("no entropy")

        def spawn(self, count: int) -> list[Random]:
            return []

        @property
        def state(self) -> dict[str, Any]:
            return {}

    shuffler = opened(users=3)
    with pytest.raises(OSError, match="no entropy"):
        shuffler.release(Broken())
    assert shuffler.is_full
    assert len(messages_of(shuffler.release(keyed(1)))) == 9


STEPS = st.one_of(
    st.tuples(st.just("activate"), st.integers(1, 3)),
    st.tuples(st.just("send"), st.integers(1, 4), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("release")),
)


@given(st.lists(STEPS, max_size=25))
def test_any_sequence_of_steps_ends_as_the_model_does(steps: list[tuple[Any, ...]]) -> None:
    """The model: a size or none, and the users that sent. A step is taken whole or refused."""
    shuffler, size = Shuffler(), 0
    users: set[int] = set()
    for step in steps:
        if step[0] == "activate":
            allowed = size == 0
        elif step[0] == "send":
            _, first, count, well_formed = step
            sending = set(range(first, first + count))
            allowed = bool(size) and well_formed and not users & sending
            allowed = allowed and len(users) + count <= size
        else:
            allowed = bool(size) and len(users) == size
        try:
            if step[0] == "activate":
                shuffler.activate(CoinSum(step[1], Coins(2, HALF)))
            elif step[0] == "send":
                shape = rows(*range(first, first + count), width=3 if well_formed else 2)
                shuffler.send_many(range(first, first + count), shape)
            else:
                released = messages_of(shuffler.release(keyed(1)))
                assert sorted({m // 10 for m in released}) == sorted(users)
                assert len(set(released)) == 3 * size
            assert allowed
        except ProtocolViolation:
            assert not allowed
            continue
        if step[0] == "activate":
            size, users = step[1], set()
        elif step[0] == "send":
            users |= sending
        else:
            size, users = 0, set()
        assert shuffler.is_active == bool(size)
        assert shuffler.is_full == (bool(size) and len(users) == size)


# --- the order ------------------------------------------------------------------------------------

FOUR = CoinSum(2, Coins(1, HALF, opposed=False))


class LeavesTheOrder(Shuffler):
    def release(self, random: Random) -> Shuffled:
        held = Messages.joined(self._messages).gathered(self.mechanism.size)
        super().release(random)
        return Shuffled(*held)


class PermutesUsersOnly(Shuffler):
    """Keeps the messages of one user together."""

    def release(self, random: Random) -> Shuffled:
        held = Messages.joined(self._messages)
        shuffled = Messages(random.permute(held.sealed), held.clear)
        super().release(random)
        return Shuffled(*shuffled.gathered(len(held.sealed)))


def releases(kind: type[Shuffler], random: Random) -> list[tuple[int, ...]]:
    """Many batches of two users with two messages each."""
    shuffler, batches = kind(), []
    for _ in range(6_000):
        shuffler.activate(FOUR)
        shuffler.send(1, rows(1, width=2))
        shuffler.send(2, rows(2, width=2))
        batches.append(tuple(messages_of(shuffler.release(random))))
    return batches


ORDERS = list(itertools.permutations((10, 11, 20, 21)))


@pytest.mark.parametrize("start", [keyed, seeded_random], ids=["secure", "seeded"])
def test_a_batch_is_released_in_uniformly_random_order(start: Any) -> None:
    assert_uniform_over(releases(Shuffler, start(20230)), ORDERS, discrepancy=0.04)


@pytest.mark.parametrize(
    ("mutant", "likeliest"),
    [(LeavesTheOrder, 1.0), (PermutesUsersOnly, 0.5)],
    ids=["identity shuffle", "users only"],
)
def test_the_test_of_the_order_sees(mutant: type[Shuffler], likeliest: float) -> None:
    assert likeliest - 1 / 24 > 0.04
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(releases(mutant, keyed(20230)), ORDERS, discrepancy=0.04)


def first_is_the_bit(kind: type[Shuffler], random: Random) -> int:
    """How often the first message of a batch of one-bit messages is the single one."""
    shuffler, first = kind(), 0
    for _ in range(3_000):
        shuffler.activate(FOUR)
        shuffler.send_many(range(1, 3), Messages.of(np.array([[1, 0], [0, 0]], np.uint8)))
        first += int(messages_of(shuffler.release(random))[0])
    return first


def test_one_bit_messages_are_released_in_random_order_too() -> None:
    ones = first_is_the_bit(Shuffler, keyed(20230))
    assert_probability(ones, 3_000, 1 / 4, discrepancy=0.11)


def test_the_test_of_one_bit_messages_sees_the_identity_shuffle() -> None:
    ones = first_is_the_bit(LeavesTheOrder, keyed(20230))
    with pytest.raises(AssertionError, match="successes"):
        assert_probability(ones, 3_000, 1 / 4, discrepancy=0.11)


# --- many shufflers -------------------------------------------------------------------------------


class Recorder:
    """A server that follows a script: which mechanisms to start before which user."""

    def __init__(self, script: Mapping[int, Mapping[int, Mechanism]]) -> None:
        self.script = script
        self.asked: list[tuple[int, frozenset[int]]] = []
        self.received: list[tuple[int, int, int]] = []

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
        self.asked.append((t, idle))
        return self.script.get(t, {})

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        self.received.append((t, shuffler, int(np.count_nonzero(shuffled.sealed))))


def plain(size: int) -> CoinSum:
    """No noise: what arrives can be counted."""
    return CoinSum(size, Coins(0, HALF))


def test_every_user_sends_to_every_active_shuffler() -> None:
    server = Recorder({1: {0: plain(2), 2: plain(4)}, 3: {0: plain(1)}, 4: {1: plain(2)}})
    model = ConcurrentShufflers(3, server, keyed(1))
    for value in (1, 1, 0, 1, 1, 1):
        model.update(value)
    assert model.t == 6
    assert server.received == [(2, 0, 2), (3, 0, 0), (4, 2, 3), (5, 1, 2)]
    assert server.asked == [
        (1, frozenset({0, 1, 2})),
        (2, frozenset({1})),
        (3, frozenset({0, 1})),
        (4, frozenset({0, 1})),
        (5, frozenset({0, 2})),
        (6, frozenset({0, 1, 2})),
    ]
    assert model.idle == frozenset({0, 1, 2})


def test_batches_that_fill_together_are_all_received() -> None:
    server = Recorder({1: {0: plain(3), 1: plain(3)}, 3: {2: plain(1)}})
    model = ConcurrentShufflers(3, server, keyed(1))
    for value in (1, 0, 1):
        model.update(value)
    assert server.received == [(3, 0, 2), (3, 1, 2), (3, 2, 1)]


def test_users_arrive_even_if_the_server_starts_nothing() -> None:
    model = ConcurrentShufflers(2, Recorder({}), keyed(1))
    for _ in range(5):
        model.update(1)
    assert model.t == 5
    assert model.idle == frozenset({0, 1})


class Adaptive:
    """Makes the next batch as large as the last sum, plus one: its choices follow its outputs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sums: list[int] = []

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
        if 0 not in idle:
            return {}
        self.sizes.append(self.sums[-1] + 1 if self.sums else 1)
        return {0: plain(self.sizes[-1])}

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        assert shuffled.sealed.shape == (1, self.sizes[-1])
        self.sums.append(int(np.count_nonzero(shuffled.sealed)))


def test_the_server_may_choose_from_what_earlier_batches_showed_it() -> None:
    server = Adaptive()
    model = ConcurrentShufflers(1, server, keyed(1))
    for value in (1, 1, 1, 0, 0, 1, 0, 1, 1, 1):
        model.update(value)
    # 1 | 1 1 | 0 0 1 | 0 1 | 1 1
    assert server.sizes == [1, 2, 3, 2, 2]
    assert server.sums == [1, 2, 1, 1, 2]


def test_every_encoding_has_noise_of_its_own() -> None:
    """Two shufflers get the same value with independent coins: they agree half of the time."""

    class Tossing(Recorder):
        def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
            return {i: CoinSum(1, Coins(1, HALF, opposed=False)) for i in idle}

    server = Tossing({})
    model = ConcurrentShufflers(2, server, keyed(20230))
    for _ in range(2_000):
        model.update(0)
    counts = [[ones for _, i, ones in server.received if i == shuffler] for shuffler in (0, 1)]
    agree = sum(one == other for one, other in zip(*counts, strict=True))
    assert_probability(agree, 2_000, 0.5, discrepancy=0.15)
    with pytest.raises(AssertionError, match="successes"):  # one encoding, sent twice
        assert_probability(2_000, 2_000, 0.5, discrepancy=0.15)


def test_a_busy_shuffler_cannot_be_activated() -> None:
    server = Recorder({1: {0: plain(3)}, 2: {0: plain(2)}})
    model = ConcurrentShufflers(2, server, keyed(1))
    model.update(1)
    with pytest.raises(ProtocolViolation, match="shuffler 0 is not one of the idle"):
        model.update(1)
    assert model.t == 1


@pytest.mark.parametrize("index", [2, -1, 100])
def test_a_shuffler_that_does_not_exist_cannot_be_activated(index: int) -> None:
    model = ConcurrentShufflers(2, Recorder({1: {index: plain(2)}}), keyed(1))
    with pytest.raises(ProtocolViolation, match="not one of the idle"):
        model.update(1)
    assert model.t == 0


def test_a_refused_activation_activates_no_other_shuffler() -> None:
    server = Recorder({1: {0: plain(3)}, 2: {1: plain(2), 0: plain(2)}})
    model = ConcurrentShufflers(2, server, keyed(1))
    model.update(1)
    with pytest.raises(ProtocolViolation):
        model.update(1)
    assert model.idle == frozenset({1})


@pytest.mark.parametrize("bad", [2, -1, 0.5, "1", None], ids=repr)
def test_a_bad_value_leaves_open_batches_untouched(bad: Any) -> None:
    server = Recorder({1: {0: plain(2), 1: plain(3)}})
    model = ConcurrentShufflers(2, server, keyed(1))
    model.update(1)
    with pytest.raises(InvalidValue):
        model.update(bad)
    assert (model.t, model.idle, server.received) == (1, frozenset(), [])
    for value in (0, 1):
        model.update(value)
    assert model.t == 3
    assert server.received == [(2, 0, 1), (3, 1, 2)]


def test_a_bad_value_opens_no_batch() -> None:
    """As `TreeServer` does, the script starts a batch before user 1, however often it is asked."""
    server = Recorder({1: {0: plain(2)}})
    model = ConcurrentShufflers(2, server, keyed(1))
    with pytest.raises(InvalidValue):
        model.update(2)
    assert (model.t, model.idle) == (0, frozenset({0, 1}))
    model.update(1)
    model.update(1)
    assert server.received == [(2, 0, 2)]


@pytest.mark.parametrize("shufflers", [0, -1, 1.5, True, None], ids=repr)
def test_a_number_of_shufflers_that_is_none_is_refused(shufflers: Any) -> None:
    with pytest.raises(OverhandError, match="shufflers"):
        ConcurrentShufflers(shufflers, Recorder({}), keyed(1))
