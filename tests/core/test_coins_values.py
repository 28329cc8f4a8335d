"""Sums with coins of values that are not bits: their steps, their messages, every outcome."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from overhand.errors import InvalidValue
from overhand.mechanisms import CoinSum
from overhand.model import Counts, Messages
from overhand.noise import Coins
from overhand.randomness import HALF, seeded_random
from overhand.shuffle import shuffle
from overhand.values import (
    BITS,
    Histogram,
    Reals,
    RegressionStatistics,
    Sensitivity,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.chosen_coins import EIGHTH, QUARTER, Given, one_batch
from support.message_sums import release

# --- values that are not bits: steps --------------------------------------------------------------

PARTS = 64
SILENT = Coins(0, HALF)

KINDS: dict[str, CoinSum] = {
    "bit": CoinSum(3, Coins(4, QUARTER)),
    "real": CoinSum(3, Coins(4, QUARTER), Reals(-2, 6), 4),
    "vector": CoinSum(3, Coins(4, QUARTER), Vectors(2, norm=4), 8),
    "matrix": CoinSum(3, Coins(2, QUARTER), SymmetricMatrices(3), 5),
    "moments": CoinSum(3, Coins(1, QUARTER, opposed=False), RegressionStatistics(2), 3),
    "histogram": CoinSum(3, SILENT, Histogram(5)),
}
ROUNDED = ("real", "vector", "matrix", "moments")
DYADIC = ("real", "vector")  # (value - low) / unit is exact for them


@st.composite
def parts_of_steps(draw: st.DrawFn) -> tuple[CoinSum, list[list[int]]]:
    """Two values of every coordinate, in sixty-fourths of a step."""
    mechanism = KINDS[draw(st.sampled_from(DYADIC))]
    numbers = [st.integers(0, PARTS * int(most)) for most in mechanism.quantizer.coordinate_steps]
    return mechanism, [draw(st.tuples(*numbers).map(list)) for _ in range(2)]


def rounded(mechanism: CoinSum, parts: list[int], uniforms: ArrayLike) -> Counts:
    """The steps of a value that is so many sixty-fourths of a step above the lowest."""
    points = mechanism.values.lows + np.array(parts) * (mechanism.quantizer.unit / PARTS)
    rows = points if mechanism.values.is_scalar else points[np.newaxis]
    return np.asarray(mechanism.quantizer.to_steps(rows, Given(uniforms))).reshape(-1)


@given(parts_of_steps())
def test_rounding_is_unbiased_and_adds_at_most_a_quarter_to_the_variance(
    case: tuple[CoinSum, list[list[int]]],
) -> None:
    """Over sixty-four uniforms, exactly: Hermite's identity is what makes it so."""
    mechanism, (parts, _) = case
    steps = np.array([rounded(mechanism, parts, u / PARTS) for u in range(PARTS)])
    assert steps.dtype == np.int64
    assert (steps >= 0).all()
    assert (steps <= mechanism.quantizer.coordinate_steps).all()
    assert steps.sum(axis=0).tolist() == parts
    variance = PARTS * (steps**2).sum(axis=0) - np.array(parts) ** 2
    assert (4 * variance <= PARTS**2).all()


@given(parts_of_steps(), st.lists(st.integers(0, PARTS - 1), min_size=2, max_size=2))
def test_two_values_rounded_alike_differ_by_their_distance_rounded_up(
    case: tuple[CoinSum, list[list[int]]], uniforms: list[int]
) -> None:
    mechanism, (first, second) = case
    chosen = np.array(uniforms[: len(first)]) / PARTS
    moved = rounded(mechanism, first, chosen) - rounded(mechanism, second, chosen)
    assert (np.abs(moved) <= -(-np.abs(np.subtract(first, second)) // PARTS)).all()


@given(st.sampled_from(list(KINDS)), st.integers(0, 2**32))
def test_no_other_value_moves_the_counts_further_than_stated(kind: str, seed: int) -> None:
    mechanism = KINDS[kind]
    values, change = mechanism.values, mechanism.quantizer.sensitivity
    ends = values.opposites(np.array([0, 1] * 20, np.uint8))
    anywhere = values.uniform(seeded_random(seed), 40)
    rows = np.concatenate([ends[:20], anywhere])
    others = np.concatenate([ends[1:21], values.uniform(seeded_random(seed + 1), 20), ends[:20]])
    steps, moved = (
        mechanism.quantizer.to_steps(r, seeded_random(seed)).astype(int) for r in (rows, others)
    )
    away = np.abs(steps - moved).reshape(len(rows), -1)
    assert away.max() <= int(change.linf)
    assert (away > 0).sum(axis=1).max() <= change.l0
    if change.l2 is not None:
        assert np.linalg.norm(away, axis=1).max() <= change.l2


def test_rounding_can_move_the_counts_by_more_than_the_sensitivity() -> None:
    """So the root of the dimension in `change.l2` is needed."""
    mechanism = CoinSum(1, Coins(2, HALF), Vectors(4), 3)
    ends = np.array([[0.5] * 4, [-0.5] * 4])
    steps = mechanism.quantizer.to_steps(ends, Given(0.125))
    away = float(np.linalg.norm(steps[0] - steps[1]))
    assert mechanism.quantizer.sensitivity.l2 is not None
    assert (
        mechanism.values.sensitivity.norm / mechanism.quantizer.unit
        < away
        <= mechanism.quantizer.sensitivity.l2
    )


def test_the_change_is_as_large_as_the_kind_allows() -> None:
    assert KINDS["bit"].quantizer.sensitivity == Sensitivity(1)
    assert KINDS["real"].quantizer.sensitivity == Sensitivity(4)
    assert KINDS["histogram"].quantizer.sensitivity == Sensitivity(1, 2)
    for kind, norm in (
        ("vector", 8 + math.sqrt(2)),
        ("matrix", 5 + math.sqrt(6)),
        ("moments", 3 / math.sqrt(2) / (2 / 3) + math.sqrt(5)),
    ):
        change = KINDS[kind].quantizer.sensitivity
        assert int(change.linf) == KINDS[kind].steps
        assert change.l0 == KINDS[kind].values.dimension
        assert change.l2 is not None
        assert norm <= change.l2 <= norm * (1 + 1e-8)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("kind", ROUNDED)
def test_the_ends_of_every_interval_stay_within_the_steps(kind: str, uniform: float) -> None:
    mechanism = KINDS[kind]
    values = mechanism.values
    for end in (values.lows, values.highs):
        rows = end if values.is_scalar else end[np.newaxis]
        steps = mechanism.quantizer.to_steps(rows, Given(uniform)).reshape(-1)
        assert (steps >= 0).all()
        assert (steps <= mechanism.quantizer.coordinate_steps).all()
        assert (
            np.abs(steps * mechanism.quantizer.unit - (end - values.lows))
            < mechanism.quantizer.unit
        ).all()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 300))
def test_every_coordinate_has_as_many_steps_as_it_is_wide(
    low: float, width: float, steps: int
) -> None:
    mechanism = CoinSum(2, Coins(2, HALF), Reals(low, low + width), steps)
    assert mechanism.quantizer.coordinate_steps.tolist() == [steps]
    moments = CoinSum(2, Coins(2, HALF), RegressionStatistics(2), steps)
    reached = moments.quantizer.coordinate_steps * moments.quantizer.unit
    widths = moments.values.highs - moments.values.lows
    assert (reached >= widths * (1 - 1e-8)).all()
    assert (reached < widths + moments.quantizer.unit).all()


@pytest.mark.parametrize("values", [BITS, Histogram(3)], ids=str)
def test_whole_values_have_one_step(values: Values) -> None:
    with pytest.raises(InvalidValue, match="steps=2 must be 1"):
        CoinSum(2, Coins(2, HALF), values, 2)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None], ids=repr)
def test_steps_that_are_none_are_refused(steps: Any) -> None:
    with pytest.raises(InvalidValue, match="steps="):
        CoinSum(2, Coins(2, HALF), Reals(), steps)


# --- values that are not bits: messages -----------------------------------------------------------


def some(mechanism: CoinSum, users: int = 3) -> NDArray[Any]:
    return mechanism.values.uniform(seeded_random(20230), users)


def by_coordinate(mechanism: CoinSum, messages: Messages) -> Counts:
    """How many zeros and ones of each coordinate every user sends, counted one by one."""
    counts = np.zeros((len(messages.sealed), mechanism.values.dimension, 2), np.int64)
    for user, row in enumerate(messages.sealed.tolist()):
        for message in row:
            counts[user, message // 2, message % 2] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_every_user_sends_so_many_messages_of_every_coordinate(kind: str) -> None:
    mechanism = KINDS[kind]
    messages = mechanism.encode_rows(some(mechanism, 7), seeded_random(20230))
    assert messages.sealed.shape == (7, mechanism.layout.messages_per_user)
    assert messages.sealed.dtype == np.uint8
    expected = mechanism.quantizer.coordinate_steps + mechanism.noise_share.bits
    assert (by_coordinate(mechanism, messages).sum(axis=2) == expected).all()
    assert mechanism.layout.messages_per_user == expected.sum()
    nobody = mechanism.encode_rows(some(mechanism, 0), seeded_random(20230))
    assert nobody.sealed.shape == (0, mechanism.layout.messages_per_user)


@pytest.mark.parametrize("kind", KINDS)
def test_without_coins_the_ones_are_the_steps(kind: str) -> None:
    bare = replace(KINDS[kind], noise_share=SILENT)
    rows = some(bare)
    steps = bare.quantizer.to_steps(rows, seeded_random(20230)).reshape(len(rows), -1)
    messages = bare.encode_rows(rows, seeded_random(20230))
    assert np.array_equal(by_coordinate(bare, messages)[:, :, 1], steps)
    shuffled = shuffle(messages.gather(3), seeded_random(1))
    total = np.reshape(bare.quantizer.to_values(steps.sum(axis=0), bare.size), bare.values.shape)
    assert np.allclose(bare.sum_of(shuffled), total, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bit", [0, 1, 1]),
        ("real", [-2, 4, 6]),
        ("vector", [[0, -4], [2, 3], [-1, 1]]),
        ("histogram", [4, 0, 4]),
    ],
)
def test_without_coins_values_of_whole_steps_are_summed_exactly(kind: str, values: Any) -> None:
    bare = replace(KINDS[kind], noise_share=SILENT)
    random = seeded_random(20230)
    result = bare.sum_of(release(bare, [bare.encode(v, random) for v in values], random))
    assert np.array_equal(result, bare.values.total(bare.values.rows(values)))
    assert isinstance(result, float) == bare.values.is_scalar


@pytest.mark.parametrize(
    ("dimension", "bits", "dtype"),
    [(2, 2, np.uint8), (3, 3, np.uint8), (128, 8, np.uint8), (129, 9, np.uint16)],
)
def test_messages_are_as_short_as_their_labels_allow(
    dimension: int, bits: int, dtype: type[np.generic]
) -> None:
    mechanism = CoinSum(1, Coins(1, HALF, opposed=False), Histogram(dimension))
    assert mechanism.layout.message_bits == bits
    messages = mechanism.encode(dimension - 1, seeded_random(20230))
    assert messages.sealed.dtype == dtype
    assert 2 ** (bits - 1) <= int(messages.sealed.max()) < 2**bits
    shuffled = shuffle(messages, seeded_random(1), message_bits=mechanism.layout.message_bits)
    assert np.array_equal(np.sort(shuffled.sealed), np.sort(messages.sealed))
    assert mechanism.analyze(shuffled).shape == (1, dimension)


def test_the_labels_of_the_most_buckets_leave_room_for_the_keys_of_a_shuffle() -> None:
    mechanism = CoinSum(1, Coins(1, HALF, opposed=False), Histogram(1 << 20))
    assert mechanism.layout.message_bits == 21
    batch = np.array([[0, (1 << 21) - 1]], np.uint32)
    shuffled = shuffle(
        Messages.of(batch), seeded_random(1), message_bits=mechanism.layout.message_bits
    )
    assert np.array_equal(np.sort(shuffled.sealed), batch)


def test_a_bit_and_a_real_are_sent_as_bits() -> None:
    for kind in ("bit", "real"):
        assert KINDS[kind].layout.message_bits == 1
        messages = KINDS[kind].encode_rows(some(KINDS[kind]), seeded_random(20230))
        assert messages.sealed.max() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_batches_have_no_sums(kind: str) -> None:
    mechanism = KINDS[kind]
    nobody = mechanism.encode_rows(some(mechanism, 0), seeded_random(20230))
    nothing = shuffle(nobody.gather(mechanism.size), seeded_random(1))
    assert mechanism.analyze(nothing).shape == (0, *mechanism.values.shape)
    assert mechanism.draw_noise(seeded_random(1), 0).shape == (0, *mechanism.values.shape)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].values.dimension > 1])
@pytest.mark.parametrize("tampered", [2, -1, -2, 255, 10**12], ids=repr)
def test_a_batch_with_a_message_of_a_wrong_coordinate_is_refused(kind: str, tampered: int) -> None:
    mechanism = KINDS[kind]
    messages = mechanism.encode_rows(some(mechanism), seeded_random(20230))
    batch = messages.sealed.reshape(-1).astype(int)
    mechanism.analyze(one_batch(batch))
    batch[0] = tampered  # where a message of the first coordinate, 0 or 1, was
    with pytest.raises(InvalidValue, match="messages of the wrong coordinates"):
        mechanism.analyze(one_batch(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_a_message_less_is_refused(kind: str) -> None:
    mechanism = KINDS[kind]
    batch = mechanism.encode_rows(some(mechanism), seeded_random(20230)).sealed.reshape(-1)
    with pytest.raises(InvalidValue, match=f"{len(batch) - 1} messages in a batch that has"):
        mechanism.analyze(one_batch(batch[1:]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_that_of_the_coins_and_the_most_of_the_rounding(kind: str) -> None:
    mechanism = KINDS[kind]
    unit = mechanism.values.width / mechanism.steps
    assert mechanism.quantizer.unit == unit
    assert mechanism.noise_variance == mechanism.noise().variance * unit**2
    rounding = 3 * unit**2 / 4 if kind in ROUNDED else 0.0
    assert mechanism.rounding_variance == rounding
    assert mechanism.variance == mechanism.noise_variance + rounding


@pytest.mark.parametrize("kind", KINDS)
def test_steps_become_the_values_they_were(kind: str) -> None:
    mechanism = KINDS[kind]
    values = mechanism.values
    lows = np.reshape(values.lows, values.shape)
    assert np.allclose(mechanism.quantizer.to_values(np.zeros(values.shape), 3), 3 * lows)
    steps = np.reshape(mechanism.quantizer.coordinate_steps, values.shape)
    assert np.allclose(
        mechanism.quantizer.to_values(3 * steps, 3), 3 * (lows + steps * mechanism.quantizer.unit)
    )


@given(st.integers(1, 1000), st.floats(0.1, 1e4), st.sampled_from(ROUNDED), st.integers(1, 50))
def test_a_variance_is_asked_for_in_steps(
    size: int, variance: float, kind: str, steps: int
) -> None:
    mechanism = CoinSum.with_variance(size, variance, values=KINDS[kind].values, steps=steps)
    assert (mechanism.values, mechanism.steps) == (KINDS[kind].values, steps)
    wanted = variance * (mechanism.values.width / steps) ** 2
    assert wanted * (1 - 1e-9) <= mechanism.noise_variance <= wanted * (1 + 1 / 3000)


# --- values that are not bits: every outcome ------------------------------------------------------

ENUMERATED: dict[str, tuple[CoinSum, Any]] = {
    "real": (CoinSum(2, Coins(2, QUARTER), Reals(-1, 1), 2), [-0.75, 0.5]),
    "real, not opposed": (CoinSum(2, Coins(1, EIGHTH, opposed=False), Reals(0, 4), 1), [1.0, 3.0]),
    "vector": (CoinSum(1, Coins(2, QUARTER), Vectors(2, norm=2), 4), [[0.25, -1.5]]),
    "histogram": (CoinSum(2, Coins(2, QUARTER), Histogram(2)), [1, 1]),
    "skewed histogram": (CoinSum(2, Coins(1, EIGHTH, opposed=False), Histogram(3)), [0, 2]),
}


@pytest.mark.parametrize("kind", ENUMERATED)
def test_every_outcome_of_coins_and_rounding_is_unbiased_and_independent(kind: str) -> None:
    """The values are quarters of a step, so four uniforms are as good as all."""
    mechanism, values = ENUMERATED[kind]
    rows, dimension = mechanism.values.rows(values), mechanism.values.dimension
    coins = mechanism.size * mechanism.noise_share.bits * dimension
    quarters = 1 if mechanism.values.is_whole else 4
    outcomes, chances = [], []
    for uniforms in itertools.product(range(quarters), repeat=rows.size):
        for shown in itertools.product((0, 1), repeat=coins):
            random = Given(np.array(uniforms) / 4, shown)
            messages = mechanism.encode_rows(rows, random)
            outcomes.append(np.atleast_1d(mechanism.sum_of(one_batch(messages.sealed))))
            chances.append(float(random.chance) / quarters**rows.size)
    chance, outcome = np.array(chances), np.array(outcomes)
    assert math.isclose(chance.sum(), 1.0, rel_tol=1e-12)
    mean = chance @ outcome
    assert np.allclose(mean, mechanism.values.total(rows), rtol=0, atol=1e-12)
    covariance = (outcome - mean).T @ ((outcome - mean) * chance[:, np.newaxis])
    exact = np.reshape(mechanism.values.coordinates(rows), (len(rows), -1)) - mechanism.values.lows
    fraction = exact / mechanism.quantizer.unit % 1
    spread = mechanism.noise_variance + mechanism.quantizer.unit**2 * (
        fraction * (1 - fraction)
    ).sum(axis=0)
    assert np.allclose(covariance, np.diag(spread), rtol=0, atol=1e-12)
    assert (spread <= mechanism.variance).all()
