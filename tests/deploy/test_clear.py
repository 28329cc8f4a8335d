"""Numbers in the clear, which are only added up, and messages that the service itself adds."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import Batch, LevelFormat, Release
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.batching import Arrival, Gathered, Outcome, build_release, pieces
from overhand.deploy.shuffler.store import Store
from overhand.errors import InvalidValue, LostBatch, ProtocolViolation
from overhand.model import Shuffled
from overhand.noise import Coins
from overhand.randomness import HALF, secure_random
from support.clear_mechanism import ADDED, DOCUMENT, DUMMY, Halves, document_of, dummies
from support.loopback_system import System, run
from support.server_stores import waiting
from support.small_document import KEY
from support.store_processes import freeze
from support.tally_mechanism import TallySum

FORMATS = DOCUMENT.formats
VALUES = np.array([7, 49, 0, 12, 31, 1, 2, 44, 9, 9, 30, 3])
LOWEST = FORMATS.level(1)


def arrivals() -> list[Arrival]:
    reports = encode_reports(DOCUMENT, VALUES, secure_random())
    return [Arrival.of(FORMATS, report) for report in reports]


def sums_of(values: Any, *, added: bool = True) -> list[int]:
    """What the numbers of these users come to."""
    more = ADDED if added else (0, 0)
    sums = sum(int(v) ** 2 for v in values), sum(4095 - int(v) for v in values)
    return [(one + other) % 4096 for one, other in zip(sums, more, strict=True)]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with closing(Store(tmp_path / "store.db", FORMATS, added=dummies)) as opened:
        yield opened


def test_the_format_follows_from_the_mechanism() -> None:
    assert LevelFormat(1, 3, 4, 1, 7, 2, 12, 1) == LOWEST
    assert (LOWEST.part_bytes, LOWEST.batch_messages()) == (49 + 4, 4)
    assert LOWEST.batch_bytes() == 4 * 49 + 4
    assert FORMATS.report_length == 52 + 2 * 53


@pytest.mark.parametrize("bits", [0, 65])
def test_clear_numbers_need_bits_that_a_word_has(bits: int) -> None:
    with pytest.raises(InvalidValue, match="clear_bits"):
        document_of(replace(Halves(3), clear_bits=bits))


def test_a_number_that_is_too_large_is_refused() -> None:
    (report,) = encode_reports(DOCUMENT, VALUES[:1], secure_random())
    at = 52 + 53 - 1  # the high byte of the last number of the lowest level
    assert report[at] == 15
    assert FORMATS.unpack_report(report)
    for byte in (16, 255):
        with pytest.raises(InvalidValue, match=r"level 1 is not below 2\^12"):
            FORMATS.unpack_report(report[:at] + bytes([byte]) + report[at + 1 :])


def test_a_piece_has_the_sum_and_nobody_s_numbers() -> None:
    first, second = pieces(FORMATS.levels[:1], arrivals()[:5], arrived=0)
    assert LOWEST.clear(first.body).tolist() == sums_of(VALUES[:3], added=False)
    assert LOWEST.clear(second.body).tolist() == sums_of(VALUES[3:5], added=False)
    assert [len(LOWEST.ciphertexts(one.body)) for one in (first, second)] == [3, 2]
    assert len(first.body) == 3 * 49 + 4


def test_a_release_goes_from_store_to_database_with_all_that_was_added(
    store: Store, tmp_path: Path
) -> None:
    came = arrivals()
    for start in (0, 2, 7):
        stop = {0: 2, 2: 7, 7: 12}[start]
        assert set(store.admit(came[start:stop])) == {Outcome.ADMITTED}
    assert len(store.full()) == 6
    with closing(ServerStore(tmp_path / "database.db", "a" * 64)) as database:
        for batch in store.full():
            release = freeze(store, batch)
            assert freeze(store, batch) == release
            sent = FORMATS.pack_release(release)
            assert len(sent) == 49 + FORMATS.level(batch.level).batch_bytes()
            check(FORMATS.unpack_release(sent))
            database.receive(FORMATS.unpack_release(sent))
        assert waiting(database) == freeze(store, store.full()[0])


def check(release: Release) -> None:
    """Its messages are those of its users and the service's, in any order; so is the sum."""
    level = FORMATS.level(release.batch.level)
    users = VALUES[release.batch.number * level.size :][: level.size]
    shuffled, garbage = open_release(FORMATS, release, Opener(KEY, FORMATS.digest))
    assert garbage == 0
    assert sorted(shuffled.sealed[0].tolist()) == sorted([*users.tolist(), DUMMY])
    assert shuffled.clear[0].tolist() == sums_of(users)


def test_the_service_s_message_may_be_anywhere() -> None:
    came = Gathered.of(LOWEST, pieces(FORMATS.levels[:1], arrivals()[:3], arrived=0))
    more, numbers = dummies(Batch(1, 0))
    ciphertexts = list(more)
    found = {
        LOWEST.ciphertexts(build_release(Batch(1, 0), LOWEST, came, (ciphertexts, numbers)).body)
        .view("V49")
        .reshape(-1)
        .tolist()
        .index(ciphertexts[0])
        for _ in range(200)
    }
    assert found == {0, 1, 2, 3}


def test_what_is_added_is_asked_for_once(store: Store) -> None:
    asked: list[Batch] = []

    def counted(batch: Batch) -> Any:
        asked.append(batch)
        return dummies(batch)

    store._added = counted
    store.admit(arrivals()[:6])
    for _ in range(3):
        store.freeze_all(store.full())
    assert sorted(asked) == [Batch(1, 0), Batch(1, 1), Batch(2, 0)]


def none(batch: Batch) -> Any:
    return [], np.empty(0, np.uint64)


def two(batch: Batch) -> Any:
    ciphertexts, numbers = dummies(batch)
    return [*ciphertexts, *ciphertexts], numbers


def short(batch: Batch) -> Any:
    ciphertexts, numbers = dummies(batch)
    return ciphertexts, numbers[:1]


@pytest.mark.parametrize("mutant", [none, two, short])
def test_a_batch_never_has_another_shape(tmp_path: Path, mutant: Any) -> None:
    with closing(Store(tmp_path / "store.db", FORMATS, added=mutant)) as store:
        store.admit(arrivals()[:3])
        with pytest.raises(ProtocolViolation, match=r"were added to batch 0 of level 1, not 1 and"):
            freeze(store, Batch(1, 0))


def test_a_store_is_told_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="added= is missing"):
        Store(tmp_path / "store.db", FORMATS)


@given(data=st.data(), bits=st.integers(1, 64))
def test_sums_are_exact_modulo_a_power_of_two(data: st.DataObject, bits: int) -> None:
    level = LevelFormat(1, 3, 1, 1, 7, 2, bits)
    numbers = st.integers(0, 2**bits - 1)
    rows = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9))
    bodies = [level.pack(b"", np.array(row, np.uint64)) for row in rows]
    _, clear = level.gather(bodies)
    assert clear.tolist() == [sum(column) % 2**bits for column in zip(*rows, strict=True)]
    assert level.clear(level.pack(b"", clear)).tolist() == clear.tolist()


# --- over HTTP ------------------------------------------------------------------------------------


def tally_plan() -> oh.Plan:
    tree = oh.RegularTree(12, (3, 2))
    mechanisms = tuple(TallySum(size, Coins(2, HALF)) for size in tree.sizes)
    return oh.Plan(tree, mechanisms, oh.Privacy(4.0, 1e-4), 2)


def with_last_byte(body: bytes, byte: int) -> bytes:
    return body[:-1] + bytes([byte])


def test_services_refuse_a_number_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """44 bits take 6 bytes, the highest of which is below 16: at the end of what is sent."""
    monkeypatch.setattr(TallySum, "clear_bits", 44)

    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            for byte in (16, 255):
                bad = with_last_byte(system.report(), byte)
                answer = await web.post("/v1/reports", content=bad)
                error = {"error": "a number in the clear of level 2 is not below 2^44"}
                assert (answer.status_code, answer.json()) == (400, error)
            assert system.store.arrived == 0
            for _ in range(3):
                fine = with_last_byte(system.report(), 15)
                assert (await web.post("/v1/reports", content=fine)).status_code == 200
        release = system.document.formats.pack_release(freeze(system.store, Batch(1, 0)))
        async with system.at_server() as web:
            bad = with_last_byte(release, 16)
            answer = await web.put("/v1/releases/1/0", content=bad)
            error = {"error": "a number in the clear of level 1 is not below 2^44"}
            assert (answer.status_code, answer.json()) == (400, error)
            assert waiting(system.database) is None
            assert (await web.put("/v1/releases/1/0", content=release)).status_code == 200
            assert system.publisher.step()

    run(tmp_path, test, plan=tally_plan())


def test_a_batch_of_pairs_that_went_through_the_store_has_the_very_sum(tmp_path: Path) -> None:
    values = oh.Histogram(300)
    plan = oh.Plan.best(60, 2, oh.Privacy(1.0, 1e-6), values=values, mechanism="pairs")
    silent = tuple(replace(m, noise_share=Coins(0, HALF)) for m in plan.mechanisms)
    document = Document(replace(plan, mechanisms=silent), KEY.public_key)
    lowest = document.formats.level(1)
    rows = values.rows(np.arange(lowest.size) % 300)
    reports = encode_reports(document, rows, oh.secure_random())
    assert {len(report) for report in reports} == {document.formats.report_length}
    arrivals = [Arrival.of(document.formats, report) for report in reports]
    with closing(Store(tmp_path / "store.db", document.formats)) as store:
        for start in range(0, len(arrivals), 7):
            store.admit(arrivals[start : start + 7])
        release = freeze(store, Batch(1, 0))
    opener = Opener(KEY, document.formats.digest)
    shuffled, garbage = open_release(document.formats, release, opener)
    assert garbage == 0
    total, bias_bound = document.mechanisms[0].sum_batch(shuffled, garbage, oh.secure_random())
    assert bias_bound == 0
    assert np.array_equal(total, np.bincount(np.arange(lowest.size) % 300, minlength=300))
    missing = Shuffled(shuffled.sealed[:, 1:], shuffled.clear)
    with pytest.raises(LostBatch, match="1 messages of a batch are garbage"):
        document.mechanisms[0].sum_batch(missing, 1, oh.secure_random())
