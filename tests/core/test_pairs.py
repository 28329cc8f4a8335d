"""Sums by pairs: what users send to either service, what comes back, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import InvalidValue
from overhand.mechanisms import PairsSum, pairs
from overhand.model import Messages, Rows, Shuffled
from overhand.noise import Coins, Polya
from overhand.randomness import HALF, Random
from overhand.shuffle import shuffle, with_added
from overhand.values import BITS, Histogram, Values
from support.sampling import Outcomes, assert_follows, assert_uniform_over, samples_for
from support.share_plans import TINY_KINDS, truth

DISCREPANCY = 0.08
SILENT = Coins(0, HALF)
PRIVACY = oh.Privacy(1.0, 1e-6)
each_kind = pytest.mark.parametrize(
    ("values", "steps", "raw"), [pytest.param(*case, id=str(case[0])) for case in TINY_KINDS]
)


def tiny(values: Values = BITS, steps: int = 1, noise: Coins | Polya | None = None) -> PairsSum:
    return PairsSum(3, Polya(1, 3, 0.5) if noise is None else noise, values, steps, modulus_bits=10)


def batches_of(mechanism: PairsSum, raw: list[Any], random: Random) -> Shuffled:
    messages = mechanism.encode_many(raw, random).gather(mechanism.size)
    return shuffle(with_added(messages, mechanism, random), random)


@each_kind
def test_without_noise_a_batch_gives_the_very_sum(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps, SILENT)
    for seed in range(20):
        total = mechanism.sum_of(batches_of(mechanism, raw, oh.seeded_random(seed)))
        assert total == pytest.approx(truth(values, raw))


@pytest.mark.parametrize("modulus_bits", [3, 8, 9, 16, 17, 24, 25, 47, 48])
def test_so_it_does_at_every_modulus(modulus_bits: int) -> None:
    for values, raw in ((BITS, [1, 1, 1]), (Histogram(3), [2, 2, 2])):
        mechanism = PairsSum(3, SILENT, values, modulus_bits=modulus_bits)
        total = mechanism.sum_of(batches_of(mechanism, raw, oh.seeded_random(modulus_bits)))
        assert np.array_equal(total, truth(values, raw))


@each_kind
def test_each_coordinate_has_the_sum_of_its_users_noise(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism, count = tiny(values, steps), samples_for(DISCREPANCY)
    sums = mechanism.analyze(batches_of(mechanism, raw * count, oh.seeded_random(7)))
    noise = np.rint((sums - truth(values, raw)) / mechanism.quantizer.unit).astype(np.int64)
    pmf = Polya(1, 3, 0.5).law(3).pmf
    for of_coordinate in noise.reshape(count, -1).T:
        law = Outcomes(pmf.first, pmf.probabilities)
        assert_follows(of_coordinate, law, discrepancy=DISCREPANCY)


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 30), st.sampled_from([5, 9, 20]))
def test_masks_are_added_up_alike_in_any_portions(
    batches: int, users: int, at_once: int, modulus_bits: int
) -> None:
    """And are what SHAKE128 says, number by number."""
    mechanism = PairsSum(
        users, SILENT, Histogram(3), modulus_bits=modulus_bits, context=b"a document"
    )
    seeds = oh.seeded_random(at_once).words(batches * users * 16, np.uint8)
    seeds = seeds.reshape(batches, users, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "_AT_ONCE", at_once)
        found = mechanism.step_sums(Shuffled(seeds, np.zeros((batches, 3), np.uint64)))
    width = -(-modulus_bits // 8)
    for batch, sums in zip(seeds, found, strict=True):
        streams = [hashlib.shake_128(b"a document" + s.tobytes()).digest(3 * width) for s in batch]
        for j in range(3):
            part = slice(j * width, (j + 1) * width)
            total = sum(int.from_bytes(stream[part], "little") for stream in streams)
            assert (int(sums[j]) - total) % 2**modulus_bits == 0


@pytest.mark.parametrize("value", [0, 1])
def test_a_masked_number_alone_is_uniform(value: int) -> None:
    mechanism = PairsSum(30_000, Polya(1, 30_000, 0.5), modulus_bits=3)
    messages = mechanism.encode_many([value] * 30_000, oh.seeded_random(9))
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
    mechanism = mutant(30_000, Polya(1, 30_000, 0.5), modulus_bits=3)
    messages = mechanism.encode_many([1] * 30_000, oh.seeded_random(9))
    with pytest.raises(AssertionError, match="times"):
        assert_uniform_over(messages.clear[:, 0].tolist(), list(range(8)), discrepancy=0.03)


def test_a_shuffler_tells_no_more_than_the_sum_modulo_the_modulus() -> None:
    """How often masked numbers wrapped around depends on single values."""
    mechanism = tiny(noise=SILENT)
    messages = mechanism.encode_many([1, 0, 1], oh.seeded_random(3))
    assert int(messages.clear.sum()) >= mechanism.modulus  # this seed goes beyond it
    assert int(batches_of(mechanism, [1, 0, 1], oh.seeded_random(3)).clear[0, 0]) < 1024


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


def test_best_stays_within_the_shuffle_model() -> None:
    kinds = {
        m.kind
        for values in (BITS, Histogram(50))
        for m in oh.Plan.best(1000, 2, PRIVACY, values=values, mechanism="best").mechanisms
    }
    assert kinds == {"shares"}


@pytest.mark.parametrize("honest", [1.0, 0.02])
def test_a_plan_of_pairs_has_the_error_of_shares_and_one_message_per_level(honest: float) -> None:
    """Even where a batch has one honest user, of whom shares would hide nothing."""
    plan = oh.Plan.best(1000, 2, PRIVACY, mechanism="pairs", honest=honest)
    assert plan.messages_per_user == plan.tree.levels
    assert plan.delta_spent <= 1e-6
    assert oh.Plan.from_json(plan.to_json()) == plan
    if honest == 1.0:
        shares = oh.Plan.best(1000, 2, PRIVACY, mechanism="shares")
        assert plan.rms_error == pytest.approx(shares.rms_error, rel=1e-3)
