"""Reports that a device keeps: whatever becomes of the program, none is made again."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.client import (
    AlreadyReported,
    AsyncClient,
    Client,
    NotCounted,
    ReportJournal,
    client,
)
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair, UnsafeSecret
from overhand.deploy.transport import Answer, Unreachable
from overhand.errors import InvalidValue
from support.scripted_shuffler import COUNTED, Service


@cache
def document(reports: int = 1, key: int = 1) -> Document:
    plan = oh.Plan.best(60, 2, oh.Privacy(4.0, 1e-4), reports=reports)
    return Document(plan, KeyPair.of_raw(bytes([key]) * 32).public_key)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(client, "_LONGEST_WAIT", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def device(service: Service, path: Path) -> AsyncClient:
    """A program on the device, started afresh."""
    return AsyncClient("http://unused", transport=service, kept=path)


def ran(service: Service, path: Path, name: str, *arguments: Any) -> Any:
    return asyncio.run(getattr(device(service, path), name)(*arguments))


class Crash(Exception):
    """Takes the program down when the first byte is about to be sent."""


def test_a_report_is_kept_before_it_is_sent(path: Path) -> None:
    """A mutant that sends first and keeps then would find no file here."""
    found = []

    def answer(_: int, body: bytes) -> Answer:
        found.append((body in path.read_bytes(), path.stat().st_mode & 0o777))
        return COUNTED

    ran(Service(document(), answer), path, "report", 1)
    assert found == [(True, 0o600)]
    assert ReportJournal(path).find_undelivered(document()) == []
    assert {one.name for one in path.parent.iterdir()} == {"kept", ".kept.lock"}


@pytest.mark.parametrize(
    "failure",
    [Crash(), Unreachable("gone"), Answer(410, b"{}"), Answer(200, b"<html>sign in")],
    ids=str,
)
def test_what_was_sealed_before_a_crash_is_sent_and_never_sealed_again(
    path: Path, failure: Answer | Exception
) -> None:
    service = Service(document(), lambda *_: failure)
    with pytest.raises((Crash, NotCounted)):
        ran(service, path, "report", 1)
    body, service.answer = service.bodies[0], lambda *_: COUNTED
    for _ in range(2):  # restarted as often as one likes
        with pytest.raises(AlreadyReported, match="1 of the 1 reports .* resend") as caught:
            ran(service, path, "report", 0)
        assert (caught.value.reports, caught.value.counted) == ((body,), 0)
    assert set(service.bodies) == {body}
    sent = len(service.bodies)
    assert ran(service, path, "resend") == 1
    assert ran(service, path, "resend") == 0, "it is known to be delivered"
    assert service.bodies[sent:] == [body]
    with pytest.raises(AlreadyReported, match="1 more cannot be made$") as caught:
        ran(service, path, "report", 1)
    assert (caught.value.reports, caught.value.counted) == ((), 1)


def test_two_reports_are_made_where_the_plan_allows_two(path: Path) -> None:
    service = Service(document(reports=2))
    ran(service, path, "report", 1)
    with pytest.raises(AlreadyReported, match="1 of the 2 reports .* 2 more"):
        ran(service, path, "report_many", [0, 1])
    with pytest.raises(InvalidValue, match="3 values: the plan allows 2 reports per person"):
        ran(service, path, "report_many", [0, 1, 1])
    assert len(service.bodies) == 1, "all are refused, and not the last alone"
    assert ran(service, path, "report_many", [0]) == 1
    with pytest.raises(AlreadyReported):
        ran(service, path, "report", 1)
    assert len(set(service.bodies)) == len(service.bodies) == 2


def test_a_device_makes_a_thousand_reports_and_not_one_more(path: Path) -> None:
    """As many as any plan allows one person: a few hundred kilobytes, read and written at once."""
    plan = oh.Plan.best(5000, 1, oh.Privacy(4.0, 1e-4), reports=1000, mechanism="ballots")
    many = Document(plan, KeyPair.of_raw(bytes([1]) * 32).public_key)
    kept, made = ReportJournal(path), list[bytes]()
    for count in (1, 500, 498):
        values = np.zeros((count, 1))
        made += kept.make(many, count, partial(encode_reports, many, values, oh.secure_random()))
    assert kept.count_made(many) == 999
    with pytest.raises(AlreadyReported, match="999 of the 1000 reports .* so 2 more"):
        kept.make(many, 2, list)
    kept.note_delivered(made[::2])
    assert kept.find_undelivered(many) == made[1::2]
    kept.make(many, 1, lambda: [made[0][:-1] + b"?"])
    with pytest.raises(AlreadyReported, match="1000 of the 1000 reports .* 500 of them are not"):
        kept.make(many, 1, list)
    with pytest.raises(InvalidValue, match="1001 values: the plan allows 1000 reports per person"):
        kept.make(many, 1001, list)
    assert path.stat().st_size < 1_000_000


def test_some_of_many_are_delivered_and_the_rest_is_resent(path: Path) -> None:
    service = Service(document(2), lambda count, _: COUNTED if count == 1 else Answer(410, b"{}"))
    with pytest.raises(NotCounted, match="1 reports were counted, 1 were not"):
        ran(service, path, "report_many", [1, 0])
    first, second = service.bodies
    assert ReportJournal(path).find_undelivered(document(2)) == [second]
    service.answer = lambda *_: COUNTED
    assert ran(service, path, "resend") == 1
    assert service.bodies == [first, second, second]


def test_what_is_sent_by_hand_is_known_to_be_delivered(path: Path) -> None:
    service = Service(document(), lambda *_: Answer(410, b"{}"))
    with Client("http://unused", transport=service, kept=path) as one:
        with pytest.raises(NotCounted) as caught:
            one.report(1)
        service.answer = lambda *_: COUNTED
        one.send(*caught.value.reports)
        assert one.resend() == 0
    assert ReportJournal(path).find_undelivered(document()) == []


def test_a_report_for_another_document_does_not_count_for_this_one(path: Path) -> None:
    crashing = Service(document(key=2), lambda *_: Crash())
    with pytest.raises(Crash):
        ran(crashing, path, "report", 1)
    service = Service(document())
    assert ran(service, path, "resend") == 0
    ran(service, path, "report", 1)
    assert ReportJournal(path).find_undelivered(document(key=2)) == crashing.bodies, (
        "it is kept still"
    )
    assert [ReportJournal(path).count_made(document(key=key)) for key in (1, 2, 3)] == [1, 1, 0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:36],
        lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:],
        lambda content: content[41:],
        lambda content: content + content[36:],
    ],
    ids=["empty", "cut", "no reports", "one bit", "no head", "more"],
)
def test_a_damaged_file_is_refused_and_nothing_is_sealed(path: Path, damage: Any) -> None:
    service = Service(document())
    ran(service, path, "report", 1)
    path.write_bytes(damage(path.read_bytes()))
    calls: dict[str, list[Any]] = {"report": [1], "report_many": [[1]], "resend": []}
    for name, arguments in calls.items():
        with pytest.raises(UnsafeSecret, match="damaged: it is unknown which were made"):
            ran(service, path, name, *arguments)
    assert len(service.bodies) == 1


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    """The keys of batches, which are no reports, and what has another magic number."""
    report = b"OVH3" + document(2).formats.digest + b"1"
    kept = ReportJournal.create(path, [report])
    content = path.read_bytes()
    assert (content[:4], kept.find_undelivered(document(2))) == (b"OVC1", [report])
    path.write_bytes(b"OVK1" + content[4:])
    with pytest.raises(UnsafeSecret, match="does not hold reports"):
        kept.find_undelivered(document(2))
    BatchKeys.create(keys := path.with_name("keys"), [1, 2], bytes(32))
    with pytest.raises(UnsafeSecret, match="does not hold reports"):
        ReportJournal(keys).count_made(document(2))


def test_what_cannot_be_kept_is_not_sent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(document())
    for place, words in ((path / "no folder", "cannot keep"), (path.parent, "cannot read")):
        with pytest.raises(UnsafeSecret, match=words):
            ran(service, place, "report", 1)

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("overhand.deploy.protocol.keys.os.fsync", full)
    with pytest.raises(UnsafeSecret, match="no space left"):
        ran(service, path, "report", 1)
    assert service.bodies == []
    assert {one.name for one in path.parent.iterdir()} == {".kept.lock"}, "nothing is half-done"


def test_programs_on_one_device_wait_for_each_other(path: Path) -> None:
    """Without the lock all of them would find no report, and make one each."""
    all_of_them = threading.Barrier(4)
    made: list[bytes] = []

    def encode(number: int) -> list[bytes]:
        time.sleep(0.05)
        return [b"OVH3" + document().formats.digest + bytes([number])]

    def seal(number: int) -> None:
        all_of_them.wait()
        with suppress(AlreadyReported):
            made.extend(ReportJournal(path).make(document(), 1, partial(encode, number)))

    threads = [threading.Thread(target=seal, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ReportJournal(path).find_undelivered(document()) == made
    assert len(made) == 1


def test_a_file_is_the_same_wherever_the_program_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    service = Service(document())
    one = device(service, Path("kept"))
    monkeypatch.chdir("/")
    asyncio.run(one.report(1))
    assert ReportJournal(path).count_made(document()) == 1


def test_undelivered_reports_are_kept_in_a_new_file(path: Path) -> None:
    report = b"OVH3" + document().formats.digest
    kept = ReportJournal.create(path, [report, report + b"1"])
    assert kept.find_undelivered(document()) == [report, report + b"1"]
    with pytest.raises(UnsafeSecret, match="exists"):
        ReportJournal.create(path, [])


def test_there_is_nothing_to_resend_if_nothing_is_kept() -> None:
    with pytest.raises(InvalidValue, match="kept= is missing"):
        asyncio.run(AsyncClient("http://unused", transport=Service(document())).resend())
