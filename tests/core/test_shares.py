"""Sums by shares: what users send, what comes back, and what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.mechanisms import Mechanism, SharesSum
from overhand.model import Messages, Rows
from overhand.noise import Coins, LaplaceNoise, Polya
from overhand.randomness import HALF, Random
from overhand.shuffle import shuffle
from overhand.values import BITS, Histogram, Reals, Values
from support.chosen_coins import one_batch
from support.random_streams import STREAMS
from support.sampling import Outcomes, assert_follows, assert_uniform_over, kolmogorov, samples_for
from support.share_plans import TINY_KINDS, truth

DISCREPANCY = 0.08
SILENT = Coins(0, HALF)
each_kind = pytest.mark.parametrize(
    ("values", "steps", "raw"), [pytest.param(*case, id=str(case[0])) for case in TINY_KINDS]
)


def tiny(values: Values = BITS, steps: int = 1, noise: Coins | Polya | None = None) -> SharesSum:
    noise = Polya(1, 3, 0.5) if noise is None else noise
    return SharesSum(3, noise, values, steps, shares=3, modulus_bits=10, honest=3)


def sum_of(mechanism: Mechanism, raw: list[Any], random: Random) -> Any:
    """What the server sees of one batch that was sent and shuffled."""
    messages = mechanism.encode_many(raw, random)
    return mechanism.sum_of(shuffle(messages.gather(mechanism.size), random))


@each_kind
def test_without_noise_a_batch_of_shares_gives_the_very_sum(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps, SILENT)
    for seed in range(20):
        assert sum_of(mechanism, raw, oh.seeded_random(seed)) == pytest.approx(truth(values, raw))


@pytest.mark.parametrize("modulus_bits", [3, 24, 25, 48])
def test_so_it_does_at_every_modulus(modulus_bits: int) -> None:
    for values, raw in ((BITS, [1, 1, 1]), (Histogram(3), [2, 2, 2])):
        mechanism = SharesSum(3, SILENT, values, shares=5, modulus_bits=modulus_bits, honest=3)
        got = sum_of(mechanism, raw, oh.seeded_random(modulus_bits))
        assert np.array_equal(got, truth(values, raw))


def noise_seen(mechanism: SharesSum, raw: list[Any], random: Random, count: int) -> Any:
    """The noise, in steps, of so many batches of messages: coordinates one after the other."""
    messages = mechanism.encode_many(raw * count, random).gather(mechanism.size)
    batches = shuffle(messages, random, message_bits=mechanism.layout.message_bits)
    noise = (mechanism.analyze(batches) - truth(mechanism.values, raw)) / mechanism.quantizer.unit
    assert np.abs(noise - np.rint(noise)).max() < 1e-6
    return np.rint(noise).astype(np.int64).reshape(count, -1).T


def law_of(noise: LaplaceNoise) -> Outcomes:
    return Outcomes(noise.pmf.first, noise.pmf.probabilities)


LAW = law_of(Polya(1, 3, 0.5).law(3))


@each_kind
@pytest.mark.parametrize("stream", STREAMS)
def test_each_coordinate_has_the_sum_of_its_users_noise(
    values: Values, steps: int, raw: list[Any], stream: str
) -> None:
    seen = noise_seen(tiny(values, steps), raw, STREAMS[stream](7), samples_for(DISCREPANCY))
    assert len(seen) == values.dimension
    for of_coordinate in seen:
        assert_follows(of_coordinate, LAW, discrepancy=DISCREPANCY)


@each_kind
def test_noise_drawn_for_a_whole_batch_has_the_same_law(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps)
    drawn = (
        mechanism.draw_noise(oh.seeded_random(8), samples_for(DISCREPANCY))
        / mechanism.quantizer.unit
    )
    for of_coordinate in drawn.reshape(len(drawn), -1).T:
        assert_follows(np.rint(of_coordinate).astype(np.int64), LAW, discrepancy=DISCREPANCY)


class LosesAShare(SharesSum):
    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages.sealed[:, 1] = 0
        return messages


def test_the_law_sees_a_lost_share() -> None:
    mutant = LosesAShare(3, Polya(1, 3, 0.5), shares=3, modulus_bits=10, honest=3)
    seen = noise_seen(mutant, [1, 0, 1], oh.seeded_random(7), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen[0], LAW, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("noise", [Polya(2, 3, 0.5), SILENT], ids=["doubled", "missing"])
def test_the_law_sees_other_noise(noise: Coins | Polya) -> None:
    pmf = noise.law(3).pmf
    other = Outcomes(pmf.first, pmf.probabilities)
    assert kolmogorov(LAW, other, range(-100, 101)) > DISCREPANCY
    seen = noise_seen(tiny(noise=noise), [1, 0, 1], oh.seeded_random(7), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen[0], LAW, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_all_shares_but_one_are_uniform(value: int, hidden: int) -> None:
    mechanism = SharesSum(20_000, Polya(1, 20_000, 0.5), shares=3, modulus_bits=2, honest=20_000)
    messages = mechanism.encode_many([value] * 20_000, oh.seeded_random(9))
    others = np.delete(messages.sealed, hidden, axis=1).tolist()
    support = list(itertools.product(range(4), repeat=2))
    assert_uniform_over(map(tuple, others), support, discrepancy=0.03)


def test_all_shares_together_are_not() -> None:
    mechanism = SharesSum(40_000, SILENT, shares=2, modulus_bits=1, honest=40_000)
    messages = mechanism.encode_many([1] * 40_000, oh.seeded_random(9)).sealed.tolist()
    support = list(itertools.product(range(2), repeat=2))
    with pytest.raises(AssertionError, match="shows 0 times"):
        assert_uniform_over(map(tuple, messages), support, discrepancy=0.03)


@given(size=st.integers(1, 40), spare=st.integers(0, 40), seed=st.integers(0, 99))
def test_every_sum_within_the_room_for_noise_is_lifted_to_itself(
    size: int, spare: int, seed: int
) -> None:
    bits = (size + spare).bit_length()
    mechanism = SharesSum(size, SILENT, shares=2, modulus_bits=bits, honest=size)
    room = (mechanism.modulus - 1 - size) // 2
    random = np.random.default_rng(seed)
    for total in (-room, -1 if room else 0, 0, size, size + room):
        batch = random.integers(0, mechanism.modulus, 2 * size, dtype=np.uint64)
        rest = int(batch[1:].sum())
        batch[0] = (total - rest) % mechanism.modulus
        assert mechanism.sum_of(one_batch(batch)) == total


@pytest.mark.parametrize("dimension", [1, 3])
def test_batches_that_no_users_sent_are_refused(dimension: int) -> None:
    values = BITS if dimension == 1 else Histogram(3)
    mechanism = SharesSum(3, SILENT, values, shares=3, modulus_bits=6, honest=3)
    good = mechanism.encode_many([0, 1, 1], oh.seeded_random(1)).sealed.reshape(-1)
    mechanism.analyze(one_batch(good))
    for count in (0, len(good) - 1, len(good) + 1):
        with pytest.raises(oh.InvalidValue, match=f"{count} messages in a batch"):
            mechanism.analyze(one_batch(np.resize(good, count)))
    bad = good.copy()
    bad[-1] = np.uint64(dimension << 6)
    with pytest.raises(oh.InvalidValue, match="not below 64" if dimension == 1 else "wrong coord"):
        mechanism.analyze(one_batch(bad))


def test_a_share_moved_to_another_coordinate_is_seen() -> None:
    mechanism = SharesSum(3, SILENT, Histogram(3), shares=3, modulus_bits=6, honest=3)
    batch = mechanism.encode_many([0, 1, 1], oh.seeded_random(1)).sealed.reshape(-1)
    batch[0] += np.uint64(64)
    with pytest.raises(oh.InvalidValue, match="wrong coordinates"):
        mechanism.analyze(one_batch(batch))


@each_kind
@pytest.mark.parametrize("honest", [30, 100])
@pytest.mark.parametrize("distance", [1e-4, 1e-12])
def test_fitted_shares_keep_to_the_distance_and_are_the_fewest(
    values: Values, steps: int, raw: list[Any], honest: int, distance: float
) -> None:
    noise = Polya(1, 100, 0.9)
    fitted = SharesSum.with_noise(
        100, noise, honest=honest, distance=distance, values=values, steps=steps
    )
    assert fitted.honest == honest
    assert fitted.split_distance <= distance
    assert fitted.wrap_probability <= distance
    assert fitted.sampling_distance <= 1e-20
    assert fitted.view_distance(fitted.honest) <= 2.01 * distance
    assert replace(fitted, shares=fitted.shares - 1).split_distance > distance
    assert fitted.largest_sum == 100 * steps < fitted.modulus
    assert fitted.layout.messages_per_user == values.dimension * fitted.shares
    labels = math.ceil(math.log2(values.dimension))
    assert fitted.layout.message_bits == fitted.modulus_bits + labels
    messages = fitted.encode_many(raw, oh.seeded_random(2))
    assert messages.sealed.shape == (3, fitted.layout.messages_per_user)
    assert int(messages.sealed.max()) < 1 << fitted.layout.message_bits


def test_fewer_honest_users_need_more_shares() -> None:
    by_honest = [
        SharesSum.with_noise(1000, Polya(1, 1000, 0.9), honest=honest, distance=1e-9).shares
        for honest in (5, 30, 1000)
    ]
    assert by_honest == sorted(by_honest, reverse=True)
    assert by_honest[0] > by_honest[-1]


def test_a_sum_does_not_fit_as_often_as_is_claimed_at_most() -> None:
    """The bound against the law itself."""
    for bits in (3, 4, 6, 8):
        mechanism = replace(tiny(), modulus_bits=bits)
        pmf = Polya(1, 3, 0.5).law(3).pmf
        noise = pmf.first + np.arange(len(pmf.probabilities))
        room = (mechanism.modulus - 1 - mechanism.largest_sum) // 2
        exact = float(pmf.probabilities[np.abs(noise) > room].sum())
        assert exact <= mechanism.wrap_probability <= 200 * exact + 1e-15


@pytest.mark.parametrize("size", [2, 3, 5, 100])
def test_a_modulus_below_the_largest_sum_never_fits(size: int) -> None:
    assert (
        SharesSum(size, Polya(1, size, 0.5), shares=3, modulus_bits=1, honest=size).wrap_probability
        == 1.0
    )


@pytest.mark.parametrize(
    "wrong",
    [{"shares": 1}, {"modulus_bits": 0}, {"modulus_bits": 49}, {"honest": 0}, {"honest": 4},
     {"size": 0}, {"steps": 2}],
    ids=str,
)  # fmt: skip
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(oh.InvalidValue):
        replace(tiny(), **wrong)


def test_what_cannot_be_hidden_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="hide nothing"):
        SharesSum.with_noise(3, Polya(1, 3, 0.5), honest=1, distance=1e-6)
    with pytest.raises(oh.Infeasible, match="bits, more than 48"):
        SharesSum.with_noise(100, Polya(1, 100, 0.5), honest=9, distance=1e-6, values=Reals(),
                         steps=1 << 45)  # fmt: skip
