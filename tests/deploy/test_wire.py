"""Fixed formats: what is packed comes back, and nothing else is taken for it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand import errors
from overhand.deploy.protocol import wire
from overhand.deploy.protocol.wire import (
    RELEASE_MAGIC,
    REPORT_MAGIC,
    SEAL_BYTES,
    Batch,
    Formats,
    LevelFormat,
    Release,
    Report,
    WrongPlan,
)
from overhand.mechanisms import SharesSum
from overhand.noise import Coins
from overhand.randomness import HALF, seeded_random
from overhand.values import Vectors
from support.loopback_system import System, run
from support.server_stores import waiting
from support.services_noise_plans import served
from support.small_plans import REGULAR, coin_plan

RELEASE_HEADER = 4 + 32 + 1 + 8 + 4
ID = bytes(range(16))


@lru_cache
def formats() -> Formats:
    """Three levels: batches of 3, 6 and 24 users, 5 one-bit messages each."""
    return Formats.of(coin_plan(REGULAR))


@lru_cache
def other_formats() -> Formats:
    return Formats.of(coin_plan(REGULAR, noise_bits=6))


def parts_of(shapes: Formats, seed: int = 7) -> tuple[bytes, ...]:
    random = seeded_random(seed)
    return tuple(random.words(level.part_bytes, np.uint8).tobytes() for level in shapes.levels)


def report_of(shapes: Formats) -> bytes:
    return shapes.pack_report(Report(ID, parts_of(shapes)))


def batch_of(level: LevelFormat, seed: int = 7) -> bytes:
    return seeded_random(seed).words(level.batch_bytes(), np.uint8).tobytes()


def test_formats_follow_from_the_plan() -> None:
    plan = coin_plan(REGULAR)
    shapes = Formats.of(plan)
    assert shapes.digest.hex() == plan.digest
    assert [level.level for level in shapes.levels] == [1, 2, 3]
    assert [level.size for level in shapes.levels] == [3, 6, 24]
    assert [level.batches for level in shapes.levels] == [17, 8, 2]
    for level, mechanism in zip(shapes.levels, plan.mechanisms, strict=True):
        assert level.messages == mechanism.layout.messages_per_user
        assert level.plaintext_bytes == 1
        assert level.ciphertext_bytes == 1 + SEAL_BYTES
        assert level.batch_bytes() == level.size * level.messages * 49
    assert shapes.report_length == 52 + 3 * 5 * 49


def test_messages_longer_than_a_word_cannot_be_deployed() -> None:
    values = Vectors(1 << 17, 1.0)
    shares = SharesSum(8, Coins(2, HALF, True), values, 1, shares=4, modulus_bits=48, honest=8)
    plan = oh.Plan(oh.RegularTree(8, (8,)), (shares,), oh.Privacy(1.0, 1e-6), 1)
    with pytest.raises(errors.InvalidValue, match="message_bits=65"):
        Formats.of(plan)


def test_a_report_that_is_too_long_cannot_be_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.InvalidValue, match=r"3\d{12} messages per user .* 147\d{12} bytes"):
        Formats.of(coin_plan(REGULAR, noise_bits=10**12))
    monkeypatch.setattr(wire, "MOST_REPORT_BYTES", 52 + 3 * 5 * 49)
    assert formats().report_length == Formats.of(coin_plan(REGULAR)).report_length
    with pytest.raises(errors.InvalidValue, match="at most 787 can be deployed"):
        Formats.of(coin_plan(REGULAR, noise_bits=5))


@pytest.mark.parametrize("level", [0, 4, -1, True])
def test_there_are_no_other_levels(level: int) -> None:
    with pytest.raises(errors.InvalidValue, match="level"):
        formats().level(level)


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 20, 33, 63, 64])
def test_messages_round_trip(bits: int) -> None:
    level = LevelFormat(1, 3, 1, 4, bits)
    most = (1 << bits) - 1
    messages = np.array([[0, most, most // 3, most - 1 if bits > 1 else 0]], np.uint64)
    plaintexts = level.messages_to_bytes(messages)
    assert {len(plaintext) for plaintext in plaintexts} == {-(-bits // 8)}
    assert plaintexts[1] == most.to_bytes(-(-bits // 8), "little")
    assert level.bytes_to_messages(plaintexts).tolist() == messages[0].tolist()


def test_messages_of_any_whole_type_are_written_alike() -> None:
    level = LevelFormat(1, 3, 1, 4, 12)
    written = [
        level.messages_to_bytes(np.array([0, 1, 200], kind))
        for kind in (np.uint8, np.uint16, np.int64, np.uint64, ">u4")
    ]
    assert all(plaintexts == [b"\0\0", b"\1\0", b"\xc8\0"] for plaintexts in written)


def test_no_messages_are_no_bytes() -> None:
    level = LevelFormat(1, 3, 1, 4, 12)
    assert level.messages_to_bytes(np.empty((0, 4), np.uint8)) == []
    assert level.bytes_to_messages([]).shape == (0,)


@pytest.mark.parametrize("messages", [[4], [-1], [0.5]])
def test_what_is_no_message_is_not_written(messages: list[float]) -> None:
    with pytest.raises(errors.InvalidValue, match="message"):
        LevelFormat(1, 3, 1, 4, 2).messages_to_bytes(np.array(messages))


@pytest.mark.parametrize("plaintexts", [[b""], [b"ab", b"c"], [b"abc", b"a"]])
def test_plaintexts_of_another_length_are_refused(plaintexts: list[bytes]) -> None:
    with pytest.raises(errors.InvalidValue, match="must have 2 bytes"):
        LevelFormat(1, 3, 1, 4, 12).bytes_to_messages(plaintexts)


def test_a_report_round_trips() -> None:
    parts = parts_of(formats())
    body = formats().pack_report(Report(ID, parts))
    assert body[:52] == REPORT_MAGIC + formats().digest + ID
    assert len(body) == formats().report_length
    assert formats().unpack_report(body) == (ID, parts)


def test_parts_must_fit() -> None:
    parts = parts_of(formats())
    for wrong in (parts[:2], (*parts, b""), (parts[0][:-1], *parts[1:])):
        with pytest.raises(errors.InvalidValue, match="part"):
            formats().pack_report(Report(ID, wrong))
    for wrong_id in (ID[1:], ID + b"x"):
        with pytest.raises(errors.InvalidValue, match=f"id has 16 bytes, not {len(wrong_id)}"):
            formats().pack_report(Report(wrong_id, parts))


def test_a_report_of_the_first_version_is_told_so() -> None:
    body = b"OVH1" + formats().digest + b"".join(parts_of(formats()))
    with pytest.raises(errors.InvalidValue, match=r"not b'OVH1': .* another version") as caught:
        formats().unpack_report(body)
    assert not isinstance(caught.value, WrongPlan)


@pytest.mark.parametrize("change", [-1, 1, 49])
def test_a_report_of_another_length_is_told_the_right_one(change: int) -> None:
    body = report_of(formats())
    body = body[:change] if change < 0 else body + bytes(change)
    with pytest.raises(errors.InvalidValue, match=f"{formats().report_length} bytes") as caught:
        formats().unpack_report(body)
    assert not isinstance(caught.value, WrongPlan)


def test_another_plan_is_told_apart_from_damage() -> None:
    with pytest.raises(WrongPlan, match=other_formats().digest.hex()[:12]):
        formats().unpack_report(report_of(other_formats()))
    level = other_formats().level(2)
    with pytest.raises(WrongPlan):
        formats().unpack(Release, other_formats().pack(Release(Batch(2, 0), 0, batch_of(level))))


def test_a_report_is_no_release() -> None:
    body = report_of(formats())
    with pytest.raises(errors.InvalidValue, match="starts with b'OVR3', not b'OVH3'"):
        formats().unpack(Release, body)


@pytest.mark.parametrize(("level", "number", "own"), [(1, 0, 0), (1, 16, 3), (3, 1, 24)])
def test_a_release_round_trips(level: int, number: int, own: int) -> None:
    body = batch_of(formats().level(level))
    packed = formats().pack(Release(Batch(level, number), own, body))
    assert len(packed) == RELEASE_HEADER + len(body)
    assert packed[:4] == RELEASE_MAGIC
    assert packed[37:45] == number.to_bytes(8, "big")
    assert formats().unpack(Release, packed) == Release(Batch(level, number), own, body)


@pytest.mark.parametrize(
    ("level", "number", "own"),
    [(0, 0, 0), (4, 0, 0), (1, 17, 0), (1, -1, 0), (3, 2, 0), (1, 0, 4), (2, 0, -1)],
)
def test_no_plan_has_such_a_batch(level: int, number: int, own: int) -> None:
    body = batch_of(formats().levels[max(0, min(level, 3) - 1)])
    with pytest.raises(errors.InvalidValue, match="must be a whole number from"):
        formats().pack(Release(Batch(level, number), own, body))


def test_a_release_of_part_of_a_batch_is_refused() -> None:
    body = batch_of(formats().level(1))
    for short in (body[:-1], body[: -formats().level(1).part_bytes], body + b"\0", b""):
        with pytest.raises(errors.InvalidValue, match="batch of level 1 has 735 bytes"):
            formats().pack(Release(Batch(1, 0), 0, short))


def test_copies_of_a_ciphertext_count_once() -> None:
    level = formats().level(1)
    body = batch_of(level)
    rows = sorted(body[start : start + 49] for start in range(0, len(body), 49))
    assert level.distinct(body).tolist() == rows
    assert level.distinct(rows[0] * len(rows)).tolist() == rows[:1]


@given(st.binary(max_size=900))
def test_any_bytes_are_a_report_or_an_error(body: bytes) -> None:
    with pytest.raises(errors.InvalidValue):
        formats().unpack_report(body)  # a random digest is never the plan's
    with pytest.raises(errors.InvalidValue):
        formats().unpack(Release, body)


@given(st.binary(max_size=900))
def test_any_bytes_after_the_right_digest_are_a_report_or_an_error(rest: bytes) -> None:
    body = REPORT_MAGIC + formats().digest + rest
    if len(body) == formats().report_length:
        assert formats().pack_report(formats().unpack_report(body)) == body
    else:
        with pytest.raises(errors.InvalidValue):
            formats().unpack_report(body)


@given(
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(0, 30),
    st.sampled_from([0, 1, 734, 735, 736]),
)
def test_any_release_header_is_taken_whole_or_refused(
    level: int, number: int, own: int, length: int
) -> None:
    head = RELEASE_MAGIC + formats().digest + bytes([level])
    packed = head + number.to_bytes(8, "big") + own.to_bytes(4, "big") + bytes(length)
    if level == 1 and number < 17 and own <= 3 and length == 735:
        assert formats().pack(formats().unpack(Release, packed)) == packed
    else:
        with pytest.raises(errors.InvalidValue):
            formats().unpack(Release, packed)


@given(st.integers(0, RELEASE_HEADER - 1))
def test_a_release_cut_in_its_header_is_refused(length: int) -> None:
    packed = formats().pack(Release(Batch(1, 0), 0, batch_of(formats().level(1))))
    with pytest.raises(errors.InvalidValue):
        formats().unpack(Release, packed[:length])


def test_too_many_levels_do_not_fit_a_byte() -> None:
    plan = coin_plan(oh.RegularTree(1 << 300, (2,) * 256))
    with pytest.raises(errors.InvalidValue, match="number of levels=256"):
        Formats.of(plan)


def test_services_refuse_a_number_that_is_too_large(tmp_path: Path) -> None:
    """It stands at the end of what is sent, in whole bytes, some bits of which mean nothing."""
    plan = served("pairs").plan
    bits = plan.mechanisms[0].layout.clear_bits
    assert bits % 8, "no bit would be without a meaning"
    said = f"a number in the clear of level 1 is not below 2^{bits}"

    def with_high_bit(body: bytes, bit: int) -> bytes:
        return body[:-1] + bytes([body[-1] | 1 << bit])

    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            for bit in range(bits % 8, 8):
                answer = await web.post("/v1/reports", content=with_high_bit(system.report(), bit))
                assert (answer.status_code, answer.json()["error"]) == (400, said)
            assert system.store.arrived == 0
            for _ in range(plan.tree.lowest):
                assert (await web.post("/v1/reports", content=system.report())).status_code == 200
        (kept,) = system.store.freeze_all(system.store.full())
        assert isinstance(kept, Release)
        release = system.document.formats.pack(kept)
        async with system.at_server() as web:
            path = "/v1/releases/1/0"
            answer = await web.put(path, content=with_high_bit(release, 7))
            assert (answer.status_code, answer.json()["error"]) == (400, said)
            assert waiting(system.database) is None
            assert (await web.put(path, content=release)).status_code == 200
            assert system.publisher.step()

    run(tmp_path, test, plan=plan)
