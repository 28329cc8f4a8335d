"""Reports over the wire: what is counted, what is refused, and what the sender is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.http.listening import Endpoint
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, hash_token
from overhand.deploy.shuffler.app import Admission, ShufflerApp
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.store import Store
from overhand.errors import StoreUnavailable
from overhand.planning import Plan
from support.raw_connections import Line, Port, listening
from support.small_document import encode_report

TOKEN = "1" * 43
COUNTED = (200, {"status": "counted"})


@cache
def document() -> Document:
    plan = Plan.best(60, 2, oh.Privacy(4.0, 1e-4), tree="regular")
    return Document(plan, KeyPair.of_raw(b"1" * 32).public_key)


def report(value: int = 1) -> bytes:
    return encode_report(document(), value, oh.secure_random())


@dataclass
class Service:
    app: ShufflerApp
    store: Store
    port: Port

    def line(self) -> AbstractAsyncContextManager[Line]:
        return self.port.line()


def ask(line: Line, body: bytes, *headers: str, chunked: bool = False) -> None:
    lines = ["POST /v1/reports HTTP/1.1", "host: x", *headers]
    if not any(one.startswith("content-type") for one in headers):
        lines.append("content-type: application/octet-stream")
    if chunked:
        lines.append("transfer-encoding: chunked")
        body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    else:
        lines.append(f"content-length: {len(body)}")
    line.say("\r\n".join([*lines, "", ""]).encode(), body)


async def answered(line: Line, body: bytes, *headers: str, chunked: bool = False) -> Any:
    ask(line, body, *headers, chunked=chunked)
    return await line.answer()


@asynccontextmanager
async def serving(home: Path, **options: Any) -> AsyncIterator[Service]:
    store = options.pop("store", None) or Store(home / "store.db", document().formats)
    admission = Admission(store, most_waiting=options.pop("most_waiting", 100))
    app = ShufflerApp(document(), admission, **options)
    committing = asyncio.create_task(admission.run())
    try:
        async with listening(app, 100, Endpoint(port=0)) as port:
            yield Service(app, store, port)
    finally:
        admission.close()
        await committing
        store.close()


def run(home: Path, test: Callable[[Service], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(home, **options) as service:
            await test(service)

    asyncio.run(main())


# --- what is counted, and what is not -------------------------------------------------------------


def test_reports_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            for body in (first := report(), report(), first):
                assert await answered(line, body) == COUNTED
            assert await answered(line, report(), chunked=True) == COUNTED
            ask(line, report())
            ask(line, report(), chunked=True)  # without waiting for the answer before
            assert [await line.answer() for _ in range(2)] == [COUNTED] * 2
        assert service.store.arrived == 5

    run(tmp_path, test)


def other_digest() -> bytes:
    body = report()
    return body[:4] + bytes(32) + body[36:]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (other_digest, 409),
        (lambda: b"OVH1" + report()[4:], 400),
        (lambda: report()[:-1], 400),
        (lambda: report() + b"x", 413),
        (lambda: b"OVH3" + bytes(len(report())), 409),  # longer, and of another plan
        (lambda: b"OVR3" + bytes(len(report())), 413),
    ],
)
def test_what_is_not_of_the_plan_is_refused(
    tmp_path: Path, body: Callable[[], bytes], status: int
) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            assert (await answered(line, body()))[0] == status
        assert service.store.arrived == 0

    run(tmp_path, test)


def test_a_token_is_for_one_report(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            bearer = f"authorization: Bearer {TOKEN}"
            assert await answered(line, report(), bearer) == COUNTED
            assert (await answered(line, report(), bearer))[0] == 403
        for header in ([], ["authorization: Bearer guess"], [f"authorization: {TOKEN}"]):
            async with service.line() as line:
                assert (await answered(line, report(), *header))[0] == 401
                assert line.headers["connection"] == "close"
        assert service.store.arrived == 1

    run(tmp_path, test, tokens=frozenset([hash_token(TOKEN)]))


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_what_any_page_may_send_counts_for_nothing(tmp_path: Path, kind: str) -> None:
    """A page from elsewhere has its readers send these without asking: nobody counts them."""

    async def test(service: Service) -> None:
        async with service.line() as line:
            status, words = await answered(line, report(), f"content-type: {kind}")
            assert (status, "application/octet-stream" in words["error"]) == (415, True)
        assert service.store.arrived == 0
        async with service.line() as line:
            for same in ("Application/Octet-Stream", "application/octet-stream; x=y"):
                assert await answered(line, report(), f"content-type: {same}") == COUNTED

    run(tmp_path, test)


def test_another_method_is_told_which_one_to_use(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            line.say(b"GET /v1/reports HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await line.answer() == (405, {"error": "only POST here"})
            assert line.headers["allow"] == "POST"

    run(tmp_path, test)


def test_after_the_horizon_nothing_is_counted(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            for _ in range(document().plan.horizon):
                assert await answered(line, report()) == COUNTED
            assert (await answered(line, report()))[0] == 410

    run(tmp_path, test)


def test_who_goes_away_is_counted_all_the_same(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        async with service.line() as line:
            ask(line, report())
            await line.writer.drain()
            async with asyncio.timeout(30):
                while service.store.arrived == 0:
                    await asyncio.sleep(0.01)

    run(tmp_path, test)


# --- a store that is slow, or away ----------------------------------------------------------------


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
        async with service.line() as first, service.line() as second, service.line() as third:
            ask(first, report())
            assert await asyncio.to_thread(slow.is_asked.wait, 20)  # it is being committed
            ask(second, report())
            async with asyncio.timeout(30):
                while not service.app.admission.waiting:
                    await asyncio.sleep(0.01)
            assert (await answered(third, report()))[0] == 429
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
        async with service.line() as line:
            found, words = await answered(line, report())
            assert int(line.headers["retry-after"]) > 0
            assert (found, "secret" in words["error"]) == (status, False)
            slow.failure = None
            assert await answered(line, report()) == COUNTED

    run(tmp_path, test, store=slow)


def test_a_service_that_stops_answers_what_it_took(tmp_path: Path) -> None:
    slow = Slow()

    async def test(service: Service) -> None:
        async with service.line() as line, service.line() as idle:
            ask(line, report())
            assert await asyncio.to_thread(slow.is_asked.wait, 20)
            service.port.server.should_exit = True
            assert await idle.rest() == b""
            slow.may.set()
            assert await line.answer() == COUNTED
            assert await line.rest() == b""

    run(tmp_path, test, store=slow)
