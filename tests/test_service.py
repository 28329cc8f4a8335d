"""Client, shuffling service and server over HTTP, in one process: what each takes and refuses."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import overhand as oh
from asgi import AsgiTransport
from books import waiting
from overhand.errors import InvalidValue, StoreUnavailable
from overhand.plan import Plan
from overhand.service import http
from overhand.service.client import AsyncClient, NotCounted
from overhand.service.document import Document
from overhand.service.keys import KeyPair, hashed, new_token
from overhand.service.reports import encode_report
from overhand.service.sealing import Opener
from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book
from overhand.service.server.publisher import Publisher
from overhand.service.shuffler.admission import Admission
from overhand.service.shuffler.app import ShufflerApp
from overhand.service.shuffler.filling import Filler
from overhand.service.shuffler.metrics import ShufflerMetrics
from overhand.service.shuffler.run import open_store
from overhand.service.shuffler.sending import Sender
from overhand.service.stores import Arrival, Outcome, Store

PRIVACY = oh.Privacy(4.0, 1e-4)
TOKEN = new_token()


def plan_for(values: oh.Values | None = None, horizon: int = 60) -> Plan:
    return Plan.best(
        horizon, 2, PRIVACY, values=values or oh.Bits(), tree="regular", max_messages=80
    )


@dataclass
class System:
    """Both services and a client, joined without a network."""

    home: Path
    plan: Plan = field(default_factory=plan_for)
    tokens: frozenset[bytes] | None = None
    most_waiting: int = 100

    def __post_init__(self) -> None:
        path = self.home / "server.key"
        if not path.exists():
            KeyPair.generate().save(path)
        self.key = KeyPair.load(path)
        self.document = Document(self.plan, self.key.public_key)
        self.store: Store = open_store(str(self.home / "shuffler.db"), self.document)
        self.metrics = ShufflerMetrics()
        self.admission = Admission(self.store, most_waiting=self.most_waiting)
        self.shuffler = ShufflerApp(self.document, self.admission, self.metrics, self.tokens)
        self.book = Book(self.home / "server.db", self.document.digest)
        opener = Opener(self.key, self.document.formats.digest)
        self.publisher = Publisher(self.document, self.book, opener)
        self.server = ServerApp(self.document, self.book, self.publisher, [hashed(TOKEN)])

    def client(self, token: str | None = None, **options: Any) -> AsyncClient:
        transport = AsgiTransport(self.shuffler, token)
        return AsyncClient("http://shuffler", transport=transport, **options)

    def at_shuffler(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.shuffler)
        return httpx.AsyncClient(base_url="http://shuffler", transport=transport)

    def at_server(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.server.starlette)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url="http://server", transport=transport, headers=headers)

    def sender(self) -> Sender:
        server = AsgiTransport(self.server.starlette, TOKEN)
        return Sender(self.store, self.document, server, self.metrics)

    async def publish(self) -> None:
        """Send all full batches and open them."""
        await self.sender().send_all()
        while self.publisher.step():
            pass

    def report(self, value: Any = 1) -> bytes:
        return encode_report(self.document, value, oh.secure_random())


def run(home: Path, test: Callable[[System], Awaitable[None]], **options: Any) -> None:
    """Run a test while reports are being committed."""

    async def main() -> None:
        system = System(home, **options)
        committing = asyncio.create_task(system.admission.run())
        await test(system)
        system.admission.close()
        await committing
        system.store.close()
        system.book.close()

    asyncio.run(main())


def values_for(plan: Plan, users: int) -> Any:
    values = plan.values
    rng = np.random.default_rng(5)
    match values:
        case oh.Bits():
            return rng.integers(0, 2, users)
        case oh.Histogram():
            return rng.integers(0, values.buckets, users)
        case _:
            return values.uniform(oh.seeded_random(5), users)


@pytest.mark.parametrize(
    "values",
    [oh.Bits(), oh.Reals(-1, 3), oh.Vectors(2), oh.Histogram(3)],
    ids=["bit", "real", "vector", "histogram"],
)
def test_reports_become_estimates(tmp_path: Path, values: oh.Values) -> None:
    plan = plan_for(values)

    async def test(system: System) -> None:
        held = values_for(plan, plan.horizon)
        async with system.client(digest=system.document.digest) as client:
            assert await client.report_many(held, at_once=8) == plan.horizon
        await system.publish()
        estimate = system.publisher.estimate
        assert estimate is not None
        assert estimate["t"] == plan.horizon // plan.tree.lowest * plan.tree.lowest
        rest = plan.values.total(plan.values.rows(held[estimate["t"] :]))
        error = np.abs(estimate["value"] - (plan.values.total(plan.values.rows(held)) - rest))
        # Which users are pending depends on the order of arrival: each is off by its width.
        assert (error <= 6 * estimate["std"] + plan.values.width * plan.tree.lowest).all()
        assert not estimate["fallback"]
        assert all(level["received"] == level["batches"] for level in system.publisher.levels())

    run(tmp_path, test, plan=plan)


def test_a_report_is_counted_once_however_often_it_comes(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        body = system.report()
        async with system.at_shuffler() as web:
            answers = await asyncio.gather(*(web.post("/v1/reports", content=body) for _ in "123"))
            again = await web.post("/v1/reports", content=body)
        assert {answer.status_code for answer in (*answers, again)} == {200}
        assert len({answer.content for answer in (*answers, again)}) == 1
        assert system.store.arrived == 1

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda body: b"", 400),
        (lambda body: body[:-1], 400),
        (lambda body: body + b"x", 413),
        (lambda body: b"OVH2" + body[4:], 400),
        (lambda body: body[:4] + bytes(32) + body[36:], 409),
        (lambda body: bytes(len(body)), 400),
    ],
    ids=["empty", "truncated", "too long", "magic", "other plan", "zeros"],
)
def test_a_malformed_report_is_refused_and_leaves_nothing(
    tmp_path: Path, change: Callable[[bytes], bytes], status: int
) -> None:
    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            answer = await web.post("/v1/reports", content=change(system.report()))
        assert answer.status_code == status
        assert answer.json()["error"]
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_other_requests_are_refused(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            packed = {"content-encoding": "gzip"}
            answers = [
                await web.post("/v1/reports", content=system.report(), headers=packed),
                await web.get("/v1/reports"),
                await web.get("/v1/other"),
                await web.delete("/v1/document"),
            ]
            assert [answer.status_code for answer in answers] == [415, 405, 404, 405]
            assert (await web.get("/healthz")).status_code == 200
            assert (await web.get("/v1/document")).text == system.document.to_json()
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_a_slow_body_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.05)

    async def drip() -> Any:
        yield b"OVH1"
        await asyncio.sleep(1.0)
        yield b"more"

    async def test(system: System) -> None:
        sent: list[Any] = []
        events = drip()

        async def receive() -> Any:
            return {"type": "http.request", "body": await anext(events), "more_body": True}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "path": "/v1/reports", "headers": []}
        await system.shuffler(scope, receive, send)
        assert sent[0]["status"] == 408

    run(tmp_path, test)


def test_tokens_admit_one_report_each(tmp_path: Path) -> None:
    tokens = [new_token(), new_token()]

    async def test(system: System) -> None:
        async with system.client(token=tokens[0]) as client:
            body = system.report()
            await client.send(body)
            await client.send(body)  # a retry is fine
            with pytest.raises(NotCounted, match="403"):
                await client.report(1)
        for wrong in (None, new_token(), hashed(tokens[1]).hex()):
            async with system.client(token=wrong) as client:
                with pytest.raises(NotCounted, match="401"):
                    await client.report(1)
        assert system.store.arrived == 1

    run(tmp_path, test, tokens=frozenset(map(hashed, tokens)))


def test_after_the_horizon_reports_are_not_counted(tmp_path: Path) -> None:
    plan = plan_for(horizon=20)

    async def test(system: System) -> None:
        async with system.client() as client:
            await client.report_many([1] * 20)
            with pytest.raises(NotCounted, match="410"):
                await client.report(1)
        assert system.store.arrived == 20

    run(tmp_path, test, plan=plan)


def test_under_overload_clients_are_told_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        system = System(tmp_path, most_waiting=2)  # nobody commits
        async with system.at_shuffler() as web:
            waiting = [
                asyncio.create_task(web.post("/v1/reports", content=system.report()))
                for _ in range(2)
            ]
            while system.admission.waiting < 2:
                await asyncio.sleep(0.01)
            answer = await web.post("/v1/reports", content=system.report())
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0
            committing = asyncio.create_task(system.admission.run())
            assert [a.status_code for a in await asyncio.gather(*waiting)] == [200, 200]
            system.admission.close()
            await committing
        assert system.store.arrived == 2

    asyncio.run(main())


class Down:
    """A store whose database is away for a while."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_down = True

    def admit(self, arrivals: list[Arrival]) -> list[Outcome]:
        if self.is_down:
            raise StoreUnavailable("the database is away")
        return self._store.admit(arrivals)


def test_while_the_store_is_down_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        system = System(tmp_path)
        down = Down(system.store)
        system.shuffler.admission = admission = Admission(down)  # type: ignore[arg-type]
        committing = asyncio.create_task(admission.run())
        body = system.report()
        async with system.at_shuffler() as web:
            refused = await web.post("/v1/reports", content=body)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert system.store.arrived == 0
            down.is_down = False
            assert (await web.post("/v1/reports", content=body)).status_code == 200
        assert system.store.arrived == 1
        admission.close()
        await committing

    asyncio.run(main())


async def filled(system: System, users: int) -> None:
    async with system.client() as client:
        await client.report_many([1] * users)


def release_of(system: System, level: int = 1, number: int = 0) -> bytes:
    from overhand.service.stores import BatchName

    release = system.store.freeze(BatchName(level, number))
    return system.document.formats.pack_release(level, number, release.own, release.body)


def test_a_release_is_kept_once_and_other_bytes_raise_an_alarm(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        body = release_of(system)
        other = body[:-1] + bytes([body[-1] ^ 1])
        async with system.at_server() as web:
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert (await web.put("/v1/releases/1/0", content=other)).status_code == 409
            assert system.publisher.step()
            published = list(system.publisher.history)
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert not system.publisher.step()
            status = (await web.get("/v1/status")).json()
        assert system.publisher.history == published
        assert (len(status["alarms"]), status["healthy"]) == (1, False)

    run(tmp_path, test)


def test_only_the_shuffling_service_may_release(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        body = release_of(system)
        for token in (None, new_token(), ""):
            async with system.at_server(token) as web:
                assert (await web.put("/v1/releases/1/0", content=body)).status_code == 401
        async with system.at_server() as web:
            for path, content in (
                ("/v1/releases/1/1", body),
                ("/v1/releases/1/0", body[:-1]),
                ("/v1/releases/1/0", b""),
            ):
                assert (await web.put(path, content=content)).status_code == 400
        assert waiting(system.book) is None

    run(tmp_path, test)


def test_the_server_goes_on_after_a_crash_at_any_step(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, 60)
        await system.sender().send_all()  # received, and not opened
        straight = Publisher(
            system.document,
            Book(tmp_path / "other.db", system.plan.digest),
            Opener(system.key, system.document.formats.digest),
        )
        while (received := waiting(system.book)) is not None:
            straight._book.receive(received.level, received.number, received.own, received.body)
            assert straight.step()
            again = Publisher(system.document, system.book, straight._opener)  # a new process
            assert again.history == system.publisher.history
            system.publisher = again
            assert again.step()
        assert system.publisher.history == straight.history
        assert len(straight.history) > 3

    run(tmp_path, test)


def test_a_book_of_another_plan_is_refused(tmp_path: Path) -> None:
    Book(tmp_path / "book.db", "a" * 64).close()
    with pytest.raises(InvalidValue, match="aaaaaaaaaaaa.*bbbbbbbbbbbb"):
        Book(tmp_path / "book.db", "b" * 64)
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(InvalidValue, match="junk"):
        Book(tmp_path / "junk.db", "a" * 64)


def test_garbage_is_counted_and_does_not_void_a_batch(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        formats = system.document.formats
        junk = formats.pack_report(
            [secrets.token_bytes(level.part_bytes) for level in formats.levels]
        )
        async with system.client() as client:
            await client.send(junk)
            await client.report_many([1] * (system.plan.tree.lowest - 1))
        await system.publish()
        lowest, estimate = system.publisher.levels()[0], system.publisher.estimate
        assert lowest["garbage"] == formats.levels[0].messages
        assert lowest["lost"] == 0
        assert estimate is not None
        assert estimate["low"] <= system.plan.tree.lowest - 1 <= estimate["high"]
        assert estimate["high"] - estimate["low"] > 2 * formats.levels[0].messages

    run(tmp_path, test)


@pytest.mark.parametrize("values", [oh.Bits(), oh.Histogram(3), oh.Reals(5, 9)], ids=str)
def test_a_late_batch_is_filled_by_the_service_and_taken_out_again(
    tmp_path: Path, values: oh.Values
) -> None:
    plan = plan_for(values)

    async def test(system: System) -> None:
        lowest, held = plan.tree.lowest, values_for(plan, 2)
        async with system.client() as client:
            await client.report_many(held)
        filler = Filler(system.store, system.admission, system.document, deadline=0.1)
        assert filler._missing(system.store.arrived) == 0  # its time has only begun
        await asyncio.sleep(0.15)
        missing = filler._missing(system.store.arrived)
        assert missing == lowest - 2
        await filler.fill(missing)
        await system.publish()
        estimate, level = system.publisher.estimate, system.publisher.levels()[0]
        assert estimate is not None
        assert (estimate["t"], level["own"]) == (lowest, missing)
        truth = plan.values.total(plan.values.rows(held))
        assert (np.abs(estimate["value"] - truth) <= 6 * estimate["std"]).all()

    run(tmp_path, test, plan=plan)


def test_a_batch_is_not_released_before_it_is_full(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest - 1)
        await system.publish()
        assert system.publisher.estimate is None
        assert all(level["received"] == 0 for level in system.publisher.levels())

    run(tmp_path, test)


def test_a_client_takes_no_other_document(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.client(digest="0" * 64) as client:
            with pytest.raises(InvalidValue, match="000000000000"):
                await client.report(1)
        for wrong in (2, -1, 0.5, "1", None):
            async with system.client() as client:
                with pytest.raises(InvalidValue):
                    await client.report(wrong)
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_the_server_shows_its_state_and_history(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_server(None) as web:
            empty = (await web.get("/v1/status")).json()
            assert empty["estimate"] is None
            await filled(system, 60)
            await system.publish()
            status = (await web.get("/v1/status")).json()
            history = (await web.get("/v1/history")).json()
            page, script = await web.get("/"), await web.get("/static/dashboard.js")
            assert (await web.get("/static/../app.py")).status_code == 404
            assert (await web.get("/v1/history?coordinate=1")).status_code == 400
        assert status["guarantee"]["delta_spent"] <= status["guarantee"]["delta"]
        assert status["plan"]["digest"] == system.plan.digest
        assert history["t"] == sorted(history["t"])
        assert history["value"][-1] == status["estimate"]["value"]
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert script.headers["content-type"].startswith("text/javascript")

    run(tmp_path, test)


def test_news_are_streamed(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        stream = system.server._stream()
        assert (await anext(stream)).startswith(":")
        assert (await anext(stream)).startswith("event: levels\n")
        await filled(system, system.plan.tree.lowest)
        await system.publish()
        system.server.announce()
        events = [await anext(stream) for _ in range(3)]
        kinds = [event.split("\n")[0].removeprefix("event: ") for event in events]
        assert kinds == ["estimate", "levels", "estimate"]
        assert json.loads(events[2].split("data: ", 1)[1]) == system.publisher.estimate

    run(tmp_path, test)
