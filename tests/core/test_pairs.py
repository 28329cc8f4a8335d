"""Sums by pairs: what users send to either service, what comes back, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import InvalidValue, LostBatch
from overhand.mechanisms import PairsSum, SharesSum, pairs
from overhand.model import Counts, Messages, Rows, Shuffled
from overhand.noise import Coins, CorrelatedNoise, IndependentNoise, Polya, ServiceNoise
from overhand.randomness import HALF, Random, seeded_random
from overhand.shuffle import shuffle, with_added
from overhand.values import BITS, Histogram, Reals, Values
from support.chosen_coins import mean_noise
from support.sampling import Outcomes, assert_follows, assert_uniform_over, samples_for
from support.share_plans import TINY_KINDS, truth

__all__ = ["mean_noise"]

DISCREPANCY = 0.08
NOISE = IndependentNoise(Polya(shape=1, users=1, ratio=0.5), cap=10**6)
CORRELATED = CorrelatedNoise.of(deviation=3.0, blocks=100)
PRIVACY = oh.Privacy(1.0, 1e-6)
each_kind = pytest.mark.parametrize(
    ("values", "steps", "raw"), [pytest.param(*case, id=str(case[0])) for case in TINY_KINDS]
)


def tiny(values: Values = BITS, steps: int = 1, size: int = 3, bits: int = 12) -> PairsSum:
    return PairsSum(size, NOISE, values, steps, modulus_bits=bits)


def fitted(size: int, values: Values = BITS, steps: int = 1) -> PairsSum:
    return PairsSum.with_noise(size, NOISE, honest=1, distance=1e-9, values=values, steps=steps)


def silent(mechanism: PairsSum, blocks: int = 1) -> Counts:
    return np.zeros((blocks, mechanism.values.dimension), np.int64)


def batches_of(
    mechanism: PairsSum, raw: list[Any], random: Random, noise: Counts | None = None
) -> Shuffled:
    """As the server gets them: with the shuffling service's noise, or none."""
    messages = mechanism.encode_many(raw, random).gather(mechanism.size)
    own = silent(mechanism, len(messages.sealed)) if noise is None else noise
    return shuffle(with_added(messages, mechanism, own), random)


@each_kind
def test_without_noise_a_batch_gives_the_very_sum(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps)
    for seed in range(20):
        total = mechanism.sum_of(batches_of(mechanism, raw, seeded_random(seed)))
        assert total == pytest.approx(truth(values, raw))


@pytest.mark.parametrize("modulus_bits", [3, 8, 9, 16, 17, 24, 25, 47, 48])
def test_so_it_does_at_every_modulus(modulus_bits: int) -> None:
    for values, raw in ((BITS, [1, 1, 1]), (Histogram(3), [2, 2, 2])):
        mechanism = tiny(values, bits=modulus_bits)
        total = mechanism.sum_of(batches_of(mechanism, raw, seeded_random(modulus_bits)))
        assert np.array_equal(total, truth(values, raw))


@pytest.mark.parametrize("values", [BITS, Histogram(3), Reals(-2.0, 5.0)], ids=str)
def test_users_send_their_steps_alone(values: Values) -> None:
    """And neither service's noise is in them."""
    mechanism, random = tiny(values, 1 if values.is_whole else 6, size=6), seeded_random(16)
    rows = values.opposites(np.array([1, 0, 1, 1, 0, 0], np.uint8))
    messages = mechanism.encode_rows(rows, random)
    own = mechanism.own_steps(messages)
    sent = mechanism.quantizer.to_steps(rows, random)  # at the ends of a range nothing is rounded
    assert (own == sent.reshape(own.shape)).all()
    exact = mechanism.step_sums(Shuffled(*messages.gather(6)))
    assert (exact == own.sum(axis=0)).all()


@given(st.integers(-(2**62), 2**62), st.integers(1, 48))
def test_the_service_adds_its_noise_to_what_is_masked(noise: int, modulus_bits: int) -> None:
    """And to nothing else; how often a sum wraps around depends on single values: it is not told"""
    mechanism, random = tiny(Histogram(2), bits=modulus_bits), seeded_random(modulus_bits)
    messages = mechanism.encode_many([1, 0, 1], random).gather(3)
    noisy = with_added(messages, mechanism, np.array([[noise, -noise]]))
    assert np.array_equal(noisy.sealed, messages.sealed)
    due = [
        (int(messages.clear[0, j]) + sign * noise) % 2**modulus_bits
        for j, sign in ((0, 1), (1, -1))
    ]
    assert noisy.clear.tolist() == [due]


def test_a_shuffler_tells_no_more_than_the_sum_modulo_the_modulus() -> None:
    """How often masked numbers wrapped around depends on single values."""
    mechanism = tiny(bits=10)
    messages = mechanism.encode_many([1, 0, 1], seeded_random(3))
    assert int(messages.clear.sum()) >= mechanism.modulus  # this seed goes beyond it
    assert int(batches_of(mechanism, [1, 0, 1], seeded_random(3)).clear[0, 0]) < 1024


@each_kind
def test_each_coordinate_has_the_noise_of_both_services(
    values: Values, steps: int, raw: list[Any]
) -> None:
    """The mutant: the server forgets its own."""
    mechanism, count = tiny(values, steps), samples_for(DISCREPANCY)
    random = seeded_random(7)
    rows, _ = mechanism.advance_noise(mechanism.start_noise(random), random, 2 * count)
    shuffled = batches_of(mechanism, raw * count, random, rows[:count])
    law = mechanism.noise().pmf
    due = Outcomes(law.first, law.probabilities)
    for own in (rows[count:], None):
        sums = mechanism.analyze(shuffled, own)
        noise = np.rint((sums - truth(values, raw)) / mechanism.quantizer.unit).astype(np.int64)
        for of_coordinate in noise.reshape(count, -1).T:
            if own is not None:
                assert_follows(of_coordinate, due, discrepancy=DISCREPANCY)
            else:
                with pytest.raises(AssertionError, match="Kolmogorov"):
                    assert_follows(of_coordinate, due, discrepancy=DISCREPANCY)


# Masks.


def stretched(secret: bytes, length: int) -> bytes:
    """AES-128-CTR from 0 on, by its definition: every counter is encrypted on its own."""
    cipher = Cipher(algorithms.AES(hashlib.sha256(secret).digest()[:16]), modes.ECB()).encryptor()
    blocks = (cipher.update(i.to_bytes(16, "big")) for i in range(length // 16 + 1))
    return b"".join(blocks)[:length]


def masks_of(mechanism: PairsSum, seeds: Any) -> list[int]:
    """The sums of the masks of users, number by number."""
    dimension, width = mechanism.values.dimension, -(-mechanism.modulus_bits // 8)
    streams = [stretched(mechanism.context + one.tobytes(), dimension * width) for one in seeds]
    return [
        sum(int.from_bytes(s[j * width : (j + 1) * width], "little") for s in streams)
        for j in range(dimension)
    ]


@given(
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 30),
    st.sampled_from([5, 9, 20]),
    st.sampled_from([3, 20]),
)
def test_masks_are_added_up_alike_in_any_portions(
    batches: int, users: int, at_once: int, modulus_bits: int, buckets: int
) -> None:
    """And are what AES says, number by number, under a key of document and seed."""
    mechanism = tiny(Histogram(buckets), size=users, bits=modulus_bits).bind_to(b"a document")
    seeds = seeded_random(at_once).words(batches * users * 16, np.uint8)
    seeds = seeds.reshape(batches, users, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "_AT_ONCE", at_once)
        found = mechanism.mask_sums(seeds)
        lifted = mechanism.step_sums(Shuffled(seeds, np.zeros((batches, buckets), np.uint64)))
    for batch, sums, steps in zip(seeds, found, lifted, strict=True):
        due = masks_of(mechanism, batch)
        assert [
            (int(one) - other) % 2**modulus_bits for one, other in zip(sums, due, strict=True)
        ] == [0] * buckets
        assert [
            (int(one) - other) % 2**modulus_bits for one, other in zip(steps, due, strict=True)
        ] == [0] * buckets


def test_no_users_have_no_masks() -> None:
    mechanism = tiny(Histogram(3))
    assert mechanism.mask_sums(np.empty((2, 0, 16), np.uint8)).tolist() == [[0] * 3] * 2


def test_a_seed_has_other_masks_under_another_document() -> None:
    mechanism, seeds = tiny(bits=48), seeded_random(1).words(16, np.uint8).reshape(1, 1, 16)
    one, other = (mechanism.bind_to(context).mask_sums(seeds) for context in (b"one", b"other"))
    assert one != other
    messages = mechanism.bind_to(b"one").encode_many([1, 1, 1], seeded_random(2))
    wrong = mechanism.bind_to(b"other").own_steps(messages)
    assert (np.abs(wrong) > 1000).all()
    assert mechanism.bind_to(b"one").own_steps(messages).tolist() == [[1]] * 3


@pytest.mark.parametrize("value", [0, 1])
def test_a_masked_number_alone_is_uniform(value: int) -> None:
    mechanism = tiny(size=30_000, bits=3)
    messages = mechanism.encode_many([value] * 30_000, seeded_random(9))
    assert_uniform_over(messages.clear[:, 0].tolist(), list(range(8)), discrepancy=0.03)


class Unmasked(PairsSum):
    def _masks(self, seeds: Any) -> Any:
        return np.zeros((len(seeds), self.layout.clear_numbers), np.uint64)


class OneSeed(PairsSum):
    """All users have the same seed."""

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        seeds, clear = super().encode_rows(rows, random)
        first = np.repeat(seeds[:1], len(seeds), axis=0)
        return Messages(first, clear + self._masks(seeds) - self._masks(first) & self._mask)


@pytest.mark.parametrize("mutant", [Unmasked, OneSeed])
def test_the_look_at_masked_numbers_sees_those_that_are_not(mutant: type[PairsSum]) -> None:
    mechanism = mutant(30_000, NOISE, modulus_bits=3)
    messages = mechanism.encode_many([1] * 30_000, seeded_random(9))
    with pytest.raises(AssertionError, match="times"):
        assert_uniform_over(messages.clear[:, 0].tolist(), list(range(8)), discrepancy=0.03)


# What the server makes of them.


def test_the_servers_noise_comes_before_lifting() -> None:
    """At the edge of the range a residue is one thing or the other: noise decides which."""
    mechanism = fitted(size=3)
    edge = mechanism.largest_sum + mechanism._room
    seeds = mechanism.encode_many([0, 0, 0], seeded_random(16))
    zero = int(mechanism.own_steps(seeds).sum())
    clear = (seeds.clear.sum(axis=0) + np.uint64(edge - zero)) & np.uint64(mechanism.modulus - 1)
    at_edge = Shuffled(seeds.gather(3).sealed, clear[np.newaxis])
    assert mechanism.step_sums(at_edge).item() == edge
    lifted_first = mechanism.step_sums(at_edge).item() + 1
    assert mechanism.step_sums(at_edge, np.array([[1]])).item() == lifted_first - mechanism.modulus


@pytest.mark.parametrize("noise", [NOISE, CORRELATED], ids=["laplace", "gauss"])
@pytest.mark.parametrize("distance", [1e-6, 1e-15])
def test_the_modulus_holds_both_noises(noise: ServiceNoise, distance: float) -> None:
    mechanism = PairsSum.with_noise(50, noise, honest=1, distance=distance)
    assert mechanism.wrap_probability <= distance
    assert mechanism.noise().variance == pytest.approx(2 * mechanism.honest_noise().variance)
    assert replace(mechanism, modulus_bits=mechanism.modulus_bits - 1).wrap_probability > distance


@pytest.mark.parametrize(
    ("sealed", "clear", "words"),
    [
        ((1, 3, 15), (1, 1), r"seeds of shape \(3, 15\)"),
        ((1, 3), (1, 1), r"seeds of shape \(3,\)"),
        ((1, 3, 16), (1, 2), r"\(2,\) in the clear"),
        ((1, 2, 16), (1, 1), "2 messages in a batch that has 3"),
    ],
)
def test_batches_of_another_shape_are_refused(sealed: Any, clear: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        tiny().step_sums(Shuffled(np.zeros(sealed, np.uint8), np.zeros(clear, np.uint64)))


def test_a_batch_with_garbage_is_lost() -> None:
    mechanism = tiny()
    whole = batches_of(mechanism, [1, 0, 1], seeded_random(1))
    assert mechanism.repair(whole, 0) == (whole, 0)
    with pytest.raises(LostBatch, match="1 messages of a batch are garbage"):
        mechanism.repair(Shuffled(whole.sealed[:, 1:], whole.clear), 1)
    for garbage in (1, -1):
        with pytest.raises(InvalidValue, match="garbage"):
            mechanism.repair(whole, garbage)


def test_one_number_moves_a_sum_to_wherever_its_sender_wants() -> None:
    mechanism = tiny(Reals(0.0, 2.0), 2, bits=6)
    whole, reached = batches_of(mechanism, [0.0, 2.0, 1.0], seeded_random(1)), []
    for sent in range(64):
        moved = Shuffled(whole.sealed, (whole.clear + np.uint64(sent)) & np.uint64(63))
        reached.append(round(mechanism.sum_of(moved) / mechanism.quantizer.unit))
    assert sorted(reached) == list(range(-29, 35))
    assert max(reached) - min(reached) < mechanism.influence / mechanism.quantizer.unit == 64


# Blocks of which not all seeds count.


@given(st.sets(st.integers(0, 5)), st.integers(-50, 50), st.integers(-50, 50), st.integers(0, 99))
def test_the_sum_of_those_that_count_is_that_of_a_block_of_fewer(
    refused: set[int], own: int, servers: int, seed: int
) -> None:
    """The service leaves out the masked numbers of the rest, the server their masks."""
    mechanism = tiny(Reals(-4.0, 6.0), 5, size=6)
    raw = [6.0, -4.0, 6.0, 2.0, 0.0, -2.0]
    seeds, clear = mechanism.encode_many(raw, seeded_random(seed))
    count = [place for place in range(6) if place not in refused]
    masked = (clear[count].sum(axis=0) + np.uint64(own % mechanism.modulus)) % np.uint64(
        mechanism.modulus
    )
    (masks,) = mechanism.mask_sums(seeds[count].reshape(1, len(count), 16))
    few, noise = mechanism.with_users(len(count)), np.array([[servers]])
    due = sum(raw[place] for place in count) + (own + servers) * mechanism.quantizer.unit
    assert few.unmask(masked, masks, noise) == pytest.approx(due)
    block = Shuffled(seeds[count].reshape(1, len(count), 16), masked[np.newaxis])
    assert few.sum_of(block, noise) == pytest.approx(due)


def test_what_is_unmasked_has_the_shape_of_the_values() -> None:
    mechanism = tiny(Histogram(3))
    seeds, clear = mechanism.encode_many([2, 0, 2], seeded_random(1))
    (masks,) = mechanism.mask_sums(seeds.reshape(1, 3, 16))
    total = mechanism.unmask(clear.sum(axis=0), masks, silent(mechanism))
    assert total.tolist() == [1.0, 0.0, 2.0]
    bits = tiny()
    seeds, clear = bits.encode_many([1, 0, 1], seeded_random(1))
    (masks,) = bits.mask_sums(seeds.reshape(1, 3, 16))
    total = bits.unmask(clear.sum(axis=0), masks, silent(bits))
    assert (type(total), total) == (float, 2.0)


@pytest.mark.usefixtures("mean_noise")
def test_a_batch_of_fewer_users_is_read_as_one() -> None:
    """Those who are not there do not count as the low end."""
    mechanism, random = tiny(Reals(-4.0, 6.0), 5, size=20), seeded_random(1)
    for raw in ([6.0, 6.0, -4.0], [6.0], [-4.0] * 7):
        few = mechanism.with_users(len(raw))
        assert few.entry() | {"size": 20} == mechanism.entry()
        own, _ = few.advance_noise(few.start_noise(random), random)
        assert few.sum_of(batches_of(few, raw, random), own) == pytest.approx(sum(raw))
    assert mechanism.with_users(20) is mechanism
    nobody = mechanism.with_users(0)
    assert nobody.unmask(np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.array([[0]])) == 0.0
    for users in (-1, 21):
        with pytest.raises(InvalidValue, match=f"users={users}"):
            mechanism.with_users(users)


def test_users_noise_is_that_of_all_users() -> None:
    coins = Coins(2, HALF)
    shares = SharesSum(10, coins, shares=4, modulus_bits=8, honest=10)
    for mechanism in (oh.CoinSum(10, coins), shares):
        with pytest.raises(InvalidValue, match="a batch of 9 users lacks the noise of 10"):
            mechanism.with_users(9)


def test_best_stays_within_the_shuffle_model() -> None:
    kinds = {
        m.kind
        for values in (BITS, Histogram(50))
        for m in oh.Plan.best(1000, 2, PRIVACY, values=values, mechanism="best").mechanisms
    }
    assert kinds == {"shares"}
