"""What does not open or does not fit is garbage: it is counted, and moves a sum by its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overhand.service.tolerance import LostBatch, tolerant_sum

import overhand as oh
from overhand import errors
from overhand.mechanisms import Coins, SharesSum
from overhand.model import Shuffled
from overhand.randomness import HALF, secure_random, seeded_random
from overhand.service.protocol import (
    Batch,
    LevelFormat,
    Opener,
    Release,
    encode_report,
    open_release,
)
from overhand.service.protocol.reports import readable
from overhand.values import Histogram, values_of
from support.sealed import KEY, coin_document


def test_garbage_is_counted_by_what_is_wrong_with_it() -> None:
    level = LevelFormat(1, 2, 1, 4, 3)
    opened = [b"\0", b"\7", None, b"", b"\1\0", b"\x08", b"\xff", b"\3"]
    assert readable(opened, level).tolist() == [0, 7, 3]
    assert readable([], level).tolist() == []


def test_copied_and_foreign_ciphertexts_of_a_release_are_garbage() -> None:
    document = coin_document()
    formats, level = document.formats, document.formats.level(1)
    reports = [encode_report(document, 1, secure_random()) for _ in range(3)]
    first, _, third = (formats.unpack_report(report) for report in reports)
    body = first[0] + first[0] + third[1]
    release = formats.unpack_release(formats.pack_release(Release(Batch(1, 0), 0, body)))
    messages, garbage = open_release(formats, release, Opener(KEY, formats.digest))
    assert (len(messages), garbage) == (level.messages, 2 * level.messages)


COIN_SUMS = [
    oh.CoinSum(4, 2, HALF),
    oh.CoinSum(4, 2, HALF, values=values_of("real:-1:3"), steps=3),
    oh.CoinSum(3, 2, HALF, values=Histogram(3)),
    oh.CoinSum(3, 2, HALF, values=values_of("moments:2"), steps=4),
]


def batch_of(mechanism: oh.CoinSum) -> Any:
    values = mechanism.values.uniform(seeded_random(1), mechanism.size)
    return mechanism.encode_rows(values, seeded_random(2)).reshape(-1).astype(np.uint64)


@pytest.mark.parametrize("mechanism", COIN_SUMS, ids=lambda m: m.values.spec)
@given(data=st.data())
@settings(max_examples=40)
def test_changed_messages_move_a_sum_of_coins_by_their_number(
    mechanism: oh.CoinSum, data: st.DataObject
) -> None:
    """b changed messages: b steps a coordinate, 2 b in all, and no one of others is lost."""
    whole = batch_of(mechanism)
    changed = data.draw(st.lists(st.integers(0, len(whole) - 1), unique=True))
    kinds = st.integers(0, (1 << mechanism.message_bits) - 1)
    lies = data.draw(st.lists(st.none() | kinds, min_size=len(changed), max_size=len(changed)))
    others = np.delete(whole, changed)
    readable = [lie for lie in lies if lie is not None]
    tampered = np.concatenate([others, np.array(readable, np.uint64)])
    result = tolerant_sum(mechanism, tampered, len(whole) - len(tampered))
    without = tolerant_sum(mechanism, others, len(changed))
    moved = (result.total - tolerant_sum(mechanism, whole, 0).total) / mechanism.unit
    assert np.all(np.abs(moved) <= len(changed) + 1e-9)
    assert np.sum(np.abs(moved)) <= 2 * len(changed) + 1e-9
    assert np.all(result.total >= without.total - 1e-9)
    assert len(whole) - len(tampered) <= result.missing <= len(changed)
    assert without.missing == len(changed)


@pytest.mark.parametrize("mechanism", COIN_SUMS, ids=lambda m: m.values.spec)
def test_a_batch_without_garbage_is_analyzed_as_ever(mechanism: oh.CoinSum) -> None:
    batch = batch_of(mechanism)
    expected = mechanism.analyze(Shuffled(batch.astype(np.int64)))
    assert np.array_equal(tolerant_sum(mechanism, batch, 0).total, expected)


def test_a_batch_of_nothing_but_garbage_is_a_batch_of_zeros() -> None:
    mechanism = COIN_SUMS[0]
    summed = tolerant_sum(mechanism, np.empty(0, np.uint64), 12)
    assert summed == (0 - mechanism.noise().mean, 12)


@pytest.mark.parametrize("garbage", [1, -1, 12])
def test_messages_and_garbage_must_make_a_batch(garbage: int) -> None:
    with pytest.raises(errors.InvalidValue, match="garbage"):
        tolerant_sum(COIN_SUMS[0], batch_of(COIN_SUMS[0]), garbage)


def test_a_batch_of_shares_is_lost_with_any_of_them() -> None:
    mechanism = SharesSum(3, Coins(2, HALF, True), 4, 8, 3, Histogram(3))
    rows = mechanism.values.uniform(seeded_random(1), 3)
    batch = mechanism.encode_rows(rows, seeded_random(2)).reshape(-1)
    assert np.array_equal(
        tolerant_sum(mechanism, batch, 0).total, mechanism.analyze(Shuffled(batch))
    )
    with pytest.raises(LostBatch, match="1 shares"):
        tolerant_sum(mechanism, batch[1:], 1)
    for label in (0, 2, 3):  # of another coordinate, or of none
        relabelled = batch.copy()
        relabelled[4] = (relabelled[4] & np.uint64(255)) | np.uint64(label << 8)
        with pytest.raises(LostBatch, match="do not fit together"):
            tolerant_sum(mechanism, relabelled, 0)
