"""What one client or some garbage can do to a sum, and what a known sender gives away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import overhand as oh
from overhand.errors import InvalidValue, LostBatch
from overhand.mechanisms import BallotSum, CoinSum, Mechanism, PairsSum, SharesSum
from overhand.model import Counts, Messages
from overhand.noise import Coins, CorrelatedNoise, IndependentNoise, Polya
from overhand.randomness import HALF, BinaryFraction, seeded_random
from overhand.shuffle import shuffle
from overhand.values import BITS, Histogram, Reals, Values, values_of
from support.chosen_coins import QUARTER, one_batch

COIN_SUMS = [
    CoinSum(4, Coins(2, HALF)),
    CoinSum(4, Coins(2, HALF), values_of("real:-1:3"), 3),
    CoinSum(3, Coins(2, HALF), Histogram(3)),
    CoinSum(3, Coins(2, HALF), values_of("regression:2"), 4),
]
each_coin_sum = pytest.mark.parametrize("mechanism", COIN_SUMS, ids=lambda m: m.values.spec)
NO_NOISE = Coins(0, HALF)


def batch_of(mechanism: Mechanism) -> NDArray[np.uint64]:
    values = mechanism.values.uniform(seeded_random(1), mechanism.size)
    messages = mechanism.encode_rows(values, seeded_random(2))
    return messages.sealed.reshape(-1).astype(np.uint64)


def summed(mechanism: Mechanism, messages: NDArray[Any], garbage: int) -> tuple[Any, int]:
    """The sum, and how many steps it may be off."""
    repaired, missing = mechanism.repair(one_batch(messages), garbage)
    return mechanism.sum_of(repaired), missing


# Garbage.


@each_coin_sum
@given(data=st.data())
@settings(max_examples=40)
def test_changed_messages_move_a_sum_of_coins_by_their_number(
    mechanism: CoinSum, data: st.DataObject
) -> None:
    """b changed messages: b steps a coordinate, 2 b in all, and no one of others is lost."""
    whole = batch_of(mechanism)
    changed = data.draw(st.lists(st.integers(0, len(whole) - 1), unique=True))
    kinds = st.integers(0, (1 << mechanism.layout.message_bits) - 1)
    lies = data.draw(st.lists(st.none() | kinds, min_size=len(changed), max_size=len(changed)))
    others = np.delete(whole, changed)
    readable = [lie for lie in lies if lie is not None]
    tampered = np.concatenate([others, np.array(readable, np.uint64)])
    total, missing = summed(mechanism, tampered, len(whole) - len(tampered))
    without, missing_without = summed(mechanism, others, len(changed))
    moved = (total - summed(mechanism, whole, 0)[0]) / mechanism.quantizer.unit
    assert np.all(np.abs(moved) <= len(changed) + 1e-9)
    assert np.sum(np.abs(moved)) <= 2 * len(changed) + 1e-9
    assert np.all(total >= without - 1e-9)
    assert len(whole) - len(tampered) <= missing <= len(changed)
    assert missing_without == len(changed)


@each_coin_sum
def test_a_batch_without_garbage_is_summed_as_ever(mechanism: CoinSum) -> None:
    batch = batch_of(mechanism)
    expected = mechanism.sum_of(one_batch(batch.astype(np.int64)))
    total, missing = summed(mechanism, batch, 0)
    assert np.array_equal(total, expected)
    assert isinstance(total, float) == mechanism.values.is_scalar
    assert missing == 0


@each_coin_sum
def test_a_repaired_batch_is_one_that_users_could_have_sent(mechanism: CoinSum) -> None:
    """Also one that is repaired already, and what is clear stays as it is."""
    garbage = mechanism.layout.messages_per_user
    lost = one_batch(batch_of(mechanism)[garbage:])
    repaired, missing = mechanism.repair(lost, garbage)
    assert missing == garbage
    again, nothing = mechanism.repair(repaired, 0)
    assert nothing == 0
    assert np.array_equal(again.sealed, repaired.sealed)
    assert repaired.clear is lost.clear
    mechanism.analyze(repaired)


def test_a_batch_of_nothing_but_garbage_is_a_batch_of_zeros() -> None:
    mechanism = COIN_SUMS[0]
    nothing = np.empty(0, np.uint64)
    assert summed(mechanism, nothing, 12) == (0 - mechanism.noise().mean, 12)
    real = COIN_SUMS[1]
    total, missing = summed(real, nothing, 20)
    assert total == pytest.approx(4 * -1.0 - real.noise().mean * real.quantizer.unit)
    assert missing * real.quantizer.unit == pytest.approx(20 * 4 / 3)


@pytest.mark.parametrize("garbage", [1, -1, 12])
def test_messages_and_garbage_must_make_a_batch(garbage: int) -> None:
    shares = SharesSum(3, NO_NOISE, shares=4, modulus_bits=8, honest=3)
    for mechanism in (COIN_SUMS[0], shares):
        with pytest.raises(InvalidValue, match="garbage"):
            summed(mechanism, batch_of(mechanism), garbage)


def test_a_batch_of_shares_is_lost_with_any_of_them() -> None:
    mechanism = SharesSum(3, Coins(2, HALF), Histogram(3), shares=4, modulus_bits=8, honest=3)
    batch = batch_of(mechanism)
    assert np.array_equal(summed(mechanism, batch, 0)[0], mechanism.sum_of(one_batch(batch)))
    with pytest.raises(LostBatch, match="1 messages of a batch are garbage"):
        summed(mechanism, batch[1:], 1)
    for label in (0, 2, 3):  # of another coordinate, or of none
        relabelled = batch.copy()
        relabelled[4] = (relabelled[4] & np.uint64(255)) | np.uint64(label << 8)
        with pytest.raises(LostBatch, match="do not fit together"):
            summed(mechanism, relabelled, 0)


# One client that sends what it likes.


def farthest_move(mechanism: CoinSum, lies: list[NDArray[np.uint64]]) -> float:
    """How far a client moves a coordinate between any two of these lists of its messages."""
    others = batch_of(mechanism)[: -mechanism.layout.messages_per_user]
    sums = [summed(mechanism, np.concatenate([others, lie]), 0)[0] for lie in lies]
    return float(max(np.max(np.abs(np.subtract(a, b))) for a in sums for b in sums))


def assert_bounded(mechanism: CoinSum, lies: list[NDArray[np.uint64]]) -> None:
    moved = farthest_move(mechanism, lies)
    assert moved <= mechanism.influence * (1 + 1e-9), "moved by more than its influence"


@each_coin_sum
@given(data=st.data())
@settings(max_examples=40)
def test_no_client_moves_a_sum_of_coins_by_more_than_its_influence(
    mechanism: CoinSum, data: st.DataObject
) -> None:
    kinds = st.integers(0, (1 << mechanism.layout.message_bits) - 1)
    row = st.lists(
        kinds,
        min_size=mechanism.layout.messages_per_user,
        max_size=mechanism.layout.messages_per_user,
    )
    assert_bounded(mechanism, [np.array(data.draw(row), np.uint64) for _ in range(3)])


def extremes(mechanism: CoinSum) -> list[NDArray[np.uint64]]:
    """All messages alike: zeros or ones of every coordinate."""
    count = mechanism.layout.messages_per_user
    return [np.full(count, kind, np.uint64) for kind in range(2 * mechanism.values.dimension)]


class CountsItsValueOnly(CoinSum):
    """As if a client could only lie about what it holds."""

    @property
    def influence(self) -> float:
        return self.steps * self.quantizer.unit


class CountsOneCoordinate(CoinSum):
    """As if messages could not be sent for other coordinates than their own."""

    @property
    def influence(self) -> float:
        return (self.steps + self.noise_share.bits) * self.quantizer.unit


@each_coin_sum
def test_its_influence_is_reached_by_a_client_whose_messages_are_all_alike(
    mechanism: CoinSum,
) -> None:
    assert_bounded(mechanism, extremes(mechanism))
    if mechanism.values.is_scalar:
        assert farthest_move(mechanism, extremes(mechanism)) == pytest.approx(mechanism.influence)


@pytest.mark.parametrize(
    ("mutant", "sound"),
    [(CountsItsValueOnly, m) for m in COIN_SUMS]
    + [(CountsOneCoordinate, m) for m in COIN_SUMS if not m.values.is_scalar],
    ids=str,
)
def test_an_influence_that_is_too_small_would_be_caught(
    mutant: type[CoinSum], sound: CoinSum
) -> None:
    mechanism = mutant(sound.size, sound.noise_share, sound.values, sound.steps)
    with pytest.raises(AssertionError, match="more than its influence"):
        assert_bounded(mechanism, extremes(mechanism))


def test_one_share_moves_a_sum_to_wherever_its_sender_wants() -> None:
    mechanism = SharesSum(3, NO_NOISE, Reals(0.0, 2.0), 2, shares=4, modulus_bits=6, honest=3)
    batch = batch_of(mechanism)
    reached = []
    for share in range(64):
        batch[0] = share
        reached.append(summed(mechanism, batch, 0)[0] / mechanism.quantizer.unit)
    assert sorted(reached) == list(range(-29, 35))
    assert max(reached) - min(reached) < mechanism.influence / mechanism.quantizer.unit == 64


# Messages whose sender is known.

KNOWN: list[tuple[Values, int, Any, list[list[int]]]] = [
    (BITS, 1, [1, 0, 1], [[1], [0], [1]]),
    (Reals(-2.0, 6.0), 4, [-2, 2, 6], [[0], [2], [4]]),
    (Histogram(3), 1, [2, 0, 2], [[0, 0, 1], [1, 0, 0], [0, 0, 1]]),
]
each_known = pytest.mark.parametrize(
    ("values", "steps", "raw", "expected"), [pytest.param(*c, id=str(c[0])) for c in KNOWN]
)


@each_known
def test_coins_hide_nothing_of_a_sender_who_is_known(
    values: Values, steps: int, raw: Any, expected: list[list[int]]
) -> None:
    mechanism = CoinSum(3, Coins(6, QUARTER), values, steps)
    for seed in range(20):
        messages = mechanism.encode_many(raw, seeded_random(seed))
        assert mechanism.own_steps(messages).tolist() == expected


@each_known
def test_shares_of_a_known_sender_show_its_steps_and_noise(
    values: Values, steps: int, raw: Any, expected: list[list[int]]
) -> None:
    bare = SharesSum(3, NO_NOISE, values, steps, shares=4, modulus_bits=10, honest=3)
    assert bare.own_steps(bare.encode_many(raw, seeded_random(1))).tolist() == expected
    noisy = SharesSum(3, Polya(6, 3, 0.5), values, steps, shares=4, modulus_bits=10, honest=3)
    below_zero = 0
    for seed in range(20):
        messages = noisy.encode_many(raw, seeded_random(seed))
        own = noisy.own_steps(messages)
        seen = noisy.step_sums(shuffle(messages.gather(3), seeded_random(seed)))
        assert own.sum(axis=0).tolist() == seen[0].tolist()
        below_zero += int((own < 0).sum())
    assert below_zero > 0


class CountsCoinsToo(CoinSum):
    def own_steps(self, messages: Messages) -> Counts:
        return np.asarray((messages.sealed & 1).sum(axis=1, keepdims=True))


def test_coins_counted_as_values_would_be_caught() -> None:
    mutant = CountsCoinsToo(3, Coins(6, QUARTER))
    shown = [mutant.own_steps(mutant.encode_many([1, 0, 1], seeded_random(s))) for s in range(20)]
    assert any(steps.tolist() != [[1], [0], [1]] for steps in shown)


# A planted fault: less noise than there should be.

NOISY: list[Mechanism] = [
    CoinSum(100, Coins(8, HALF)),
    CoinSum(100, Coins(8, BinaryFraction(3, 4)), Reals(0.0, 2.0), 5),
    SharesSum(100, Coins(8, QUARTER), Histogram(3), shares=5, modulus_bits=20, honest=90),
    SharesSum(100, Polya(1, 100, 0.9), shares=5, modulus_bits=20, honest=90),
    SharesSum(100, Polya(2, 90, 0.9), Reals(-1.0, 1.0), 7, shares=5, modulus_bits=20, honest=90),
    PairsSum(100, IndependentNoise(Polya(1, 1, 0.9), cap=50), modulus_bits=20),
    PairsSum(100, CorrelatedNoise.of(50.0, blocks=1000), Reals(-1.0, 1.0), 7, modulus_bits=20),
    BallotSum(100, CorrelatedNoise.of(50.0, blocks=1000), Histogram(3), dummies=99, bound=30),
]


@pytest.mark.parametrize("part", [0.5, 0.25, 0.9])
@pytest.mark.parametrize("mechanism", NOISY, ids=str)
def test_a_reduced_mechanism_has_that_part_of_the_variance_and_is_the_same_else(
    mechanism: Any, part: float
) -> None:
    reduced = mechanism.reduce(part)
    assert type(reduced) is type(mechanism)
    assert reduced.noise().variance == pytest.approx(part * mechanism.noise().variance, rel=3e-4)
    kept = {name: value for name, value in mechanism.entry().items() if name != "noise"}
    assert kept.items() <= reduced.entry().items()
    assert reduced.values == mechanism.values


def test_skewed_coins_are_reduced_by_their_number() -> None:
    mechanism = CoinSum(100, Coins(8, QUARTER, opposed=False))
    assert mechanism.reduce(0.5) == CoinSum(100, Coins(4, QUARTER, opposed=False))
    assert mechanism.reduce(0.01).noise_share.bits == 1


def test_less_noise_spends_more() -> None:
    plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), mechanism="shares")
    faulty = tuple(mechanism.reduce(0.5) for mechanism in plan.mechanisms)
    spent = oh.Plan(plan.tree, faulty, plan.privacy, plan.shufflers).delta_spent
    assert spent > 100 * plan.delta_spent
