"""What fails again and again is said when it begins and when it ends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overhand.deploy.http.telemetry import RecurringFault
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.server.app import ServerMetrics, publish
from overhand.deploy.shuffler.app import Admission, ShufflerMetrics
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.transport import Unreachable
from overhand.errors import StoreUnavailable
from support.loopback_system import System, run


def away() -> bool:
    raise StoreUnavailable("away") from sqlite3.OperationalError("somewhere")


def test_trouble_is_said_when_it_begins_changes_and_ends(said: Callable[[], list[str]]) -> None:
    trouble = RecurringFault("began", "ended")
    trouble.end()
    for reason in ("one", "one", "another", "another"):
        trouble.begin(reason)
    for _ in range(2):
        trouble.end()
    trouble.begin("another")
    assert said() == ["began", "began", "ended", "began"]


def test_a_server_that_is_away_is_said_once_however_often_a_batch_is_sent(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    class Away:
        async def request(self, *words: Any) -> Any:
            raise Unreachable("nobody is there")

        async def close(self) -> None:
            pass

    async def test(system: System) -> None:
        async with system.client() as client:
            await client.report_many([1] * system.plan.tree.lowest)
        metrics, stopping = ShufflerMetrics(), asyncio.Event()
        server: Any = Away()
        sender = Sender(system.store, system.document, server, metrics, tick=0.001)
        running = asyncio.create_task(sender.run(stopping))
        while metrics.send_failures._value.get() < 3:
            await asyncio.sleep(0.005)
        assert said() == ["sending failed"]
        sender._server = system.sender()._server
        while system.store.full():
            await asyncio.sleep(0.005)
        stopping.set()
        await running
        assert said() == ["sending failed", "release sent", "sending works again"]

    run(tmp_path, test)


def test_a_database_that_is_full_is_said_once_however_often_publishing_fails(
    tmp_path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.deploy.server.app._LOOK", 0.001)

    async def test(system: System) -> None:
        metrics, stopping = ServerMetrics(system.server), asyncio.Event()
        step = system.publisher.step
        system.publisher.step = away  # type: ignore[method-assign]
        running = asyncio.create_task(publish(system.server, system.publisher, metrics, stopping))
        while metrics.failures._value.get() < 3:
            await asyncio.sleep(0.005)
        assert said() == ["the database cannot be used", "publishing failed"]
        assert system.server.readiness.reason == "the database cannot be used"
        system.publisher.step = step  # type: ignore[method-assign]
        while "publishing works again" not in said():
            await asyncio.sleep(0.005)
        stopping.set()
        await running

    run(tmp_path, test)


def test_late_batches_are_said_when_they_are_late_and_when_they_are_not(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    async def test(system: System) -> None:
        for late in ([], [Batch(1, 0)], [Batch(1, 0)], [], []):
            system.server.show_late(late)
        assert said() == ["batches are late", "no batch is late any more"]

    run(tmp_path, test)


def test_a_fault_that_is_not_the_databases_is_a_500_and_said_once(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    class Broken:
        def admit(self, arrivals: list[Any]) -> Any:
            raise KeyError("secret")

    async def test(system: System) -> None:
        broken: Any = Broken()
        system.shuffler.admission = admission = Admission(broken)
        committing = asyncio.create_task(admission.run())
        async with system.at_shuffler() as web:
            for _ in range(3):
                answer = await web.post("/v1/reports", content=system.report())
                assert (answer.status_code, answer.json()) == (500, {"error": "a fault"})
        admission.close()
        await committing
        assert said() == ["reports cannot be stored"]

    run(tmp_path, test)
