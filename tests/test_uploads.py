"""The short way of a report from the wire to admission: what it answers, and what it leaves alone.

Every refusal is asked for twice, by the short way and (in chunks) by the ordinary one: whoever
reports hears the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.errors import StoreUnavailable
from overhand.plan import Plan
from overhand.service.protocol import Document, KeyPair, encode_report, hashed
from overhand.service.shuffler import Admission, ShufflerApp, Uploads
from overhand.service.shuffler.store import Arrival, Outcome, Store
from overhand.service.web import Listener, Site, bodies
from overhand.service.web.listening import _server

TOKENS = {"one": "1" * 43, "two": "2" * 43}
COUNTED = (200, b'{"status": "counted"}')


@cache
def document() -> Document:
    plan = Plan.best(60, 2, oh.Privacy(4.0, 1e-4), tree="regular")
    return Document(plan, KeyPair.of_raw(b"1" * 32).public_key)


def report(value: int = 1) -> bytes:
    return encode_report(document(), value, oh.secure_random())


@dataclass
class Service:
    port: int
    app: ShufflerApp
    server: Any
    store: Store


@dataclass
class Answers:
    """What a connection says, one answer after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, body: bytes, *headers: str, chunked: bool = False) -> None:
        lines = ["POST /v1/reports HTTP/1.1", "host: x", *headers]
        if not any(one.startswith("content-type") for one in headers):
            lines.append("content-type: application/octet-stream")
        if chunked:
            lines.append("transfer-encoding: chunked")
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        else:
            lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self) -> tuple[int, bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode()
        status, *lines = head.split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines if line)
        content = await self.reader.readexactly(int(self.headers["content-length"]))
        return int(status.split()[1]), content

    async def is_over(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 20) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(home: Path, **options: Any) -> AsyncIterator[Service]:
    store = options.pop("store", None) or Store(home / "store.db", document().formats)
    most_waiting = options.pop("most_waiting", 100)
    admission = Admission(store, most_waiting=most_waiting)
    app = ShufflerApp(document(), admission, **options)
    with Listener(port=0).bound() as at:
        server = _server(Site(app, Listener(), Uploads))
        tasks = [asyncio.create_task(server.serve([at])), asyncio.create_task(admission.run())]
        try:
            yield Service(at.getsockname()[1], app, server, store)
        finally:
            server.should_exit = True
            await tasks[0]
            admission.close()
            await tasks[1]
            store.close()


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[Answers]:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        yield Answers(reader, writer)
    finally:
        writer.close()


def run(home: Path, test: Callable[[Service], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(home, **options) as service:
            await test(service)

    asyncio.run(main())


def test_reports_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            for body in (first := report(), report(), first):
                line.ask(body)
                assert await line.answer() == COUNTED
            line.ask(report(), chunked=True)  # the ordinary way in between
            assert await line.answer() == COUNTED
            line.ask(report())
            assert await line.answer() == COUNTED
        assert service.store.arrived == 4

    run(tmp_path, test)


def test_a_report_may_come_byte_by_byte(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            written = list[bytes]()
            line.writer, real = _Collecting(written), line.writer  # type: ignore[assignment]
            line.ask(report())
            for each in b"".join(written):
                real.write(bytes([each]))
                await asyncio.sleep(0)
            assert await line.answer() == COUNTED
            real.close()

    run(tmp_path, test)


class _Collecting:
    def __init__(self, written: list[bytes]) -> None:
        self.write = written.append

    def close(self) -> None: ...


def other_digest() -> bytes:
    body = report()
    return body[:4] + bytes(32) + body[36:]


@pytest.mark.parametrize(
    ("body", "status"), [(other_digest, 409), (lambda: b"OVH1" + report()[4:], 400)]
)
def test_what_is_not_of_the_plan_is_refused_alike(
    tmp_path: Path, body: Callable[[], bytes], status: int
) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            bad, said = body(), set()
            for chunked in (False, True):
                line.ask(bad, chunked=chunked)
                said.add(await line.answer())
            assert len(said) == 1
            assert said.pop()[0] == status
            line.ask(report())
            assert await line.answer() == COUNTED
        assert service.store.arrived == 1

    run(tmp_path, test)


def test_a_report_counts_whatever_protocol_is_offered_with_it(tmp_path: Path) -> None:
    offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk")

    async def test(service: Service) -> None:
        async with connected(service) as line:
            for chunked in (False, True, False):
                line.ask(report(), *offer, chunked=chunked)
                assert await line.answer() == COUNTED
            line.ask(report())
            assert await line.answer() == COUNTED
        assert service.store.arrived == 4

    run(tmp_path, test)


@pytest.mark.parametrize("more", [-1, 1])
def test_another_length_goes_the_ordinary_way(tmp_path: Path, more: int) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            line.ask((report() + b"x")[: len(report()) + more])
            assert (await line.answer())[0] == (400 if more < 0 else 413)
        assert service.store.arrived == 0

    run(tmp_path, test)


def test_a_longer_report_of_another_plan_is_told_so(tmp_path: Path) -> None:
    """Its sender would never know otherwise that there is a new document."""

    async def test(service: Service) -> None:
        length = document().formats.report_length
        for start, status in ((b"OVH2" + bytes(32), 409), (b"OVR1" + bytes(32), 413), (b"", 413)):
            async with connected(service) as line:
                line.ask(start.ljust(length + 500, b"x"))
                assert (await line.answer())[0] == status
        assert service.store.arrived == 0

    run(tmp_path, test)


def test_tokens_are_asked_for_on_both_ways(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        for chunked in (False, True):
            async with connected(service) as line:
                token = TOKENS["two" if chunked else "one"]
                line.ask(report(), f"authorization: Bearer {token}", chunked=chunked)
                assert await line.answer() == COUNTED
                line.ask(report(), f"authorization: Bearer {token}", chunked=chunked)
                assert (await line.answer())[0] == 403
            for header in ([], ["authorization: Bearer guess"], [f"authorization: {token}"]):
                async with connected(service) as line:
                    line.ask(report(), *header, chunked=chunked)
                    assert (await line.answer())[0] == 401
                    assert line.headers["connection"] == "close"
                    assert await line.is_over()
        assert service.store.arrived == 2

    run(tmp_path, test, tokens=frozenset(hashed(token) for token in TOKENS.values()))


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_what_any_page_may_send_counts_on_neither_way(tmp_path: Path, kind: str) -> None:
    """A page from elsewhere has its readers send these without asking: nobody counts them."""

    async def test(service: Service) -> None:
        for chunked in (False, True):
            async with connected(service) as line:
                line.ask(report(), f"content-type: {kind}", chunked=chunked)
                status, words = await line.answer()
                assert (status, b"application/octet-stream" in words) == (415, True)
                assert line.headers["connection"] == "close"
        assert service.store.arrived == 0
        async with connected(service) as line:
            for same in ("Application/Octet-Stream", "application/octet-stream; x=y"):
                line.ask(report(), f"content-type: {same}")
                assert await line.answer() == COUNTED

    run(tmp_path, test)


def test_a_missing_type_is_no_type(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            body = report()
            head = f"POST /v1/reports HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            line.writer.write(head.encode() + body)
            assert (await line.answer())[0] == 415
        assert service.store.arrived == 0

    run(tmp_path, test)


def test_after_the_horizon_both_ways_are_closed(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            for _ in range(document().plan.horizon):
                line.ask(report())
                assert await line.answer() == COUNTED
            for chunked in (False, True):
                line.ask(report(), chunked=chunked)
                assert (await line.answer())[0] == 410

    run(tmp_path, test)


class Slow:
    """A store that admits when it is let, or says that it is not available."""

    def __init__(self) -> None:
        self.is_asked, self.may = threading.Event(), threading.Event()
        self.failure: Exception | None = None

    def admit(self, arrivals: list[Arrival]) -> list[Outcome]:
        self.is_asked.set()
        assert self.may.wait(20)
        if self.failure is not None:
            raise self.failure
        return [Outcome.ADMITTED] * len(arrivals)

    def close(self) -> None: ...


def test_too_many_are_told_to_come_back(tmp_path: Path) -> None:
    slow = Slow()

    async def test(service: Service) -> None:
        async with connected(service) as first, connected(service) as second:
            first.ask(report())
            await asyncio.to_thread(slow.is_asked.wait, 20)  # it is being committed
            second.ask(report())
            while not service.app.admission.waiting:
                await asyncio.sleep(0.01)
            for chunked in (False, True):
                async with connected(service) as third:
                    third.ask(report(), chunked=chunked)
                    assert (await third.answer())[0] == 429
                    assert int(third.headers["retry-after"]) > 0
            slow.may.set()
            assert [await first.answer(), await second.answer()] == [COUNTED, COUNTED]

    run(tmp_path, test, store=slow, most_waiting=1)


@pytest.mark.parametrize(
    ("failure", "status"), [(StoreUnavailable("SELECT secret"), 503), (KeyError("secret"), 500)]
)
def test_if_the_store_fails_nothing_is_counted_and_nothing_is_told(
    tmp_path: Path, failure: Exception, status: int
) -> None:
    slow = Slow()
    slow.may.set()
    slow.failure = failure

    async def test(service: Service) -> None:
        async with connected(service) as line:
            said = set()
            for chunked in (False, True):
                line.ask(report(), chunked=chunked)
                said.add(await line.answer())
                assert int(line.headers["retry-after"]) > 0
            assert len(said) == 1
            found, words = said.pop()
            assert found == status
            assert b"secret" not in words
            slow.failure = None
            line.ask(report())
            assert await line.answer() == COUNTED

    run(tmp_path, test, store=slow)


@pytest.mark.parametrize("at_once", [True, False], ids=["in one packet", "one by one"])
def test_who_does_not_wait_for_an_answer_gets_all_of_them_in_turn(
    tmp_path: Path, at_once: bool
) -> None:
    slow = Slow()

    async def test(service: Service) -> None:
        async with connected(service) as hasty, connected(service) as patient:
            for chunked in (False, False, True, False):
                hasty.ask(report(), chunked=chunked)
                await asyncio.sleep(0 if at_once else 0.02)
            hasty.writer.write(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
            hasty.ask(report())
            await asyncio.sleep(0.1)
            patient.ask(report())
            slow.may.set()
            answers = [await hasty.answer() for _ in range(6)]
            assert [status for status, _ in answers] == [200, 200, 200, 200, 404, 200]
            assert await patient.answer() == COUNTED
            assert service.app.load.bytes == 0

    run(tmp_path, test, store=slow)


def test_a_client_that_wants_to_close_is_let_go(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            line.ask(report(), "connection: close")
            assert await line.answer() == COUNTED
            assert await line.is_over()

    run(tmp_path, test)


def test_who_goes_away_is_counted_all_the_same(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with connected(service) as line:
            line.ask(report())
            await line.writer.drain()
        while service.store.arrived == 0:
            await asyncio.sleep(0.01)

    run(tmp_path, test)


def test_a_slow_body_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.2)

    async def test(service: Service) -> None:
        async with connected(service) as line:
            line.writer.write(
                (
                    "POST /v1/reports HTTP/1.1\r\ncontent-type: application/octet-stream\r\n"
                    f"content-length: {len(report())}\r\n\r\nOV"
                ).encode()
            )
            assert (await line.answer())[0] == 408
            assert await line.is_over()
            refused = service.app.metrics.refused.labels(408)
            assert refused._value.get() == 1

    run(tmp_path, test)


def test_a_service_that_stops_answers_what_it_took(tmp_path: Path) -> None:
    slow = Slow()

    async def test(service: Service) -> None:
        async with connected(service) as line, connected(service) as idle:
            line.ask(report())
            assert await asyncio.to_thread(slow.is_asked.wait, 20)
            service.server.should_exit = True
            assert await idle.is_over()
            slow.may.set()
            assert await line.answer() == COUNTED
            assert await line.is_over()

    run(tmp_path, test, store=slow)
