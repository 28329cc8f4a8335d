"""Faults of a database: readiness tells them apart from liveness, the log has them once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from overhand.deploy.databases.database import fault_of
from overhand.deploy.http import telemetry
from overhand.deploy.http.application import Refused
from overhand.deploy.http.telemetry import Readiness, RecurringFault
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.shuffler.app import Admission, ShufflerMetrics
from overhand.deploy.shuffler.batching import Arrival
from overhand.deploy.shuffler.store import Store
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from support.deployments import LOWEST, small_plan
from support.loopback_system import System, run
from support.postgres import Postgres


def made(probe: Callable[[], None]) -> Readiness:
    return Readiness("store", probe, RecurringFault("it began", "it ended"))


def nothing() -> None:
    """A probe of a database that is well."""


def away() -> None:
    raise StoreUnavailable("away") from sqlite3.OperationalError("somewhere")


def reason_of(one: Readiness) -> str | None:
    """What `/readyz` says."""
    try:
        asyncio.run(one.check())
    except Refused as refused:
        return str(refused)
    return None


# --- what is said of a fault ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "does not answer"),
        ("08006", "does not answer"),
        ("57P03", "does not answer"),
        ("25006", "is read-only"),
        ("53100", "is full"),
        ("53300", "has no room for more connections"),
        ("55P03", "is locked"),
        ("42P01", "cannot be used"),
    ],
)
def test_a_fault_of_postgresql_is_told_by_its_state(state: str | None, words: str) -> None:
    cause = psycopg.OperationalError() if state is None else psycopg.errors.lookup(state)("secret")
    error = StoreUnavailable("PostgreSQL: secret")
    error.__cause__ = cause
    assert fault_of(error) == words


@contextmanager
def read_only(system: System) -> Iterator[None]:
    system.store._database._connection.execute("PRAGMA query_only = ON")  # type: ignore[attr-defined]
    yield
    system.store._database._connection.execute("PRAGMA query_only = OFF")  # type: ignore[attr-defined]


@contextmanager
def locked(system: System) -> Iterator[None]:
    system.store._database._connection.execute("PRAGMA busy_timeout = 1")  # type: ignore[attr-defined]
    with closing(sqlite3.connect(system.home / "shuffler.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def older(system: System) -> Iterator[None]:
    """The database as it was before a batch was frozen: a replica that did not see all commits."""
    replaced = system.home / "shuffler.db"
    with (
        closing(sqlite3.connect(":memory:")) as before,
        closing(sqlite3.connect(":memory:")) as now,
        closing(sqlite3.connect(replaced)) as live,
    ):
        live.backup(before)
        for body in [system.report() for _ in range(system.plan.tree.lowest)]:
            arrival = Arrival.of(system.document.formats, body)
            system.store.admit([arrival])
        system.store.freeze_all(system.store.full())
        live.backup(now)
        before.backup(live)
        yield
        now.backup(live)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (read_only, "the store is read-only"),
        (locked, "the store is locked"),
        (older, "the store is older than its keys"),
    ],
)
def test_a_store_that_is_broken_is_not_ready_and_says_so_once(
    tmp_path: Path,
    said: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    broken: Any,
    words: str,
) -> None:
    """Every report is refused and counted; the log has the beginning and the end alone."""
    monkeypatch.setattr(telemetry, "_FRESH", 0.0)

    async def test(system: System) -> None:
        metrics = ShufflerMetrics()
        metrics.follow(system.admission.readiness)
        async with system.at_shuffler() as web:
            assert (await web.get("/readyz")).json() == {"status": "ready"}
            with broken(system):
                for _ in range(3):
                    refused = await web.post("/v1/reports", content=system.report())
                    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
                alive, ready = await web.get("/healthz"), await web.get("/readyz")
                assert (alive.status_code, ready.status_code) == (200, 503)
                assert (await web.head("/readyz")).status_code == 503
                assert ready.json() == {"error": words}
                assert "overhand_ready 0.0" in metrics.text().decode()
                assert said() == ["reports cannot be stored"]
            assert (await web.post("/v1/reports", content=system.report())).status_code == 200
            assert (await web.get("/readyz")).status_code == 200
        assert said() == ["reports cannot be stored", "reports can be stored again"]
        lines = metrics.text().decode().splitlines()
        assert "overhand_ready 1.0" in lines
        (faults,) = [line for line in lines if line.startswith("overhand_store_faults_total")]
        assert float(faults.split()[1]) >= 3

    run(tmp_path, test)


def test_a_failover_that_lost_commits_is_told_and_fails_closed(
    tmp_path: Path, postgres: Postgres, said: Callable[[], list[str]]
) -> None:
    """PostgreSQL as it was before batches were frozen, and nobody noticed a lost connection."""

    async def test(system: System) -> None:
        address = postgres.new_schema()
        store = Store(address, system.document.formats, tmp_path / "shuffler.keys")
        system.shuffler.admission = admission = Admission(store)
        committing = asyncio.create_task(admission.run())
        with closing(store), psycopg.connect(address, autocommit=True) as database:
            async with system.client() as client, system.at_shuffler() as web:
                await client.report_many([1] * 3)
                names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
                tables = [name for (name,) in database.execute(names).fetchall()]
                for table in tables:
                    database.execute(f"CREATE TABLE kept_{table} AS TABLE {table}".encode())
                await client.report_many([1] * LOWEST)
                assert len(store.freeze_all(store.full())) == 1
                for table in tables:
                    database.execute(
                        f"TRUNCATE {table}; INSERT INTO {table} TABLE kept_{table}".encode()
                    )
                answers = [await web.post("/v1/reports", content=system.report()) for _ in "123"]
                assert [answer.status_code for answer in answers] == [503] * 3
                ready = await web.get("/readyz")
                assert ready.json() == {"error": "the store is older than its keys"}
                assert (await web.get("/healthz")).status_code == 200
        admission.close()
        await committing
        assert said() == ["reports cannot be stored"]
        with pytest.raises(InvalidValue, match="older than its keys"):
            Store(address, system.document.formats, tmp_path / "shuffler.keys")

    run(tmp_path, test, plan=small_plan())


def test_a_postgresql_that_takes_no_writes_is_not_ready(tmp_path: Path, postgres: Postgres) -> None:
    """As a replica is: it answers every question, which a probe that only reads would take."""
    formats = Document(small_plan(), KeyPair.generate().public_key).formats
    store = Store(postgres.new_schema(), formats, tmp_path / "shuffler.keys")
    with closing(store):
        one = made(store.check_usable)
        store._database._idle[0].execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
        assert store.arrived == 0
        assert reason_of(one) == "the store is read-only"


def test_a_probe_changes_nothing_and_asks_for_the_keys_of_all_levels(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        system.store.check_usable()
        assert system.store.arrived == 0
        async with system.client() as client:
            await client.report_many([1] * 3)
        system.store.check_usable()
        assert system.store.arrived == 3
        system.store._keys.keep_only({1: {0}, 2: {1}})
        with pytest.raises(ProtocolViolation, match="batch 0 is gone"):
            system.store.check_usable()

    run(tmp_path, test, plan=small_plan())


def test_a_plan_that_is_complete_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last batch of a high level is never full, and has no key any more."""
    monkeypatch.setattr(telemetry, "_FRESH", 0.0)

    async def test(system: System) -> None:
        lowest = system.document.formats.levels[0]
        sizes = [level.size for level in system.document.formats.levels]
        assert lowest.size * lowest.batches % sizes[-1]
        async with system.client() as client:
            await client.report_many([1] * lowest.size * lowest.batches)
        await system.sender().send_all()
        system.store.scrub()
        async with system.at_shuffler() as web:
            assert (await web.get("/readyz")).status_code == 200

    run(tmp_path, test, plan=small_plan(20))


def test_a_database_that_is_away_is_not_ready(
    tmp_path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_FRESH", 0.0)

    async def test(system: System) -> None:
        async with system.at_server() as web:
            assert (await web.head("/readyz")).status_code == 200
            usable = system.database.check_usable
            system.database.check_usable = away  # type: ignore[method-assign]
            for _ in range(3):
                ready = await web.get("/readyz")
                assert (ready.status_code, ready.json()) == (
                    503,
                    {"error": "the database cannot be used"},
                )
            assert (await web.get("/healthz")).status_code == 200
            system.database.check_usable = usable  # type: ignore[method-assign]
            assert (await web.get("/readyz")).status_code == 200
        assert said() == ["the database cannot be used", "the database can be used again"]

    run(tmp_path, test)


# --- when it is said ------------------------------------------------------------------------------


def test_a_database_is_asked_seldom_and_not_if_work_shows_how_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert telemetry._FRESH == 1.0
    monkeypatch.setattr(telemetry, "_FRESH", 600.0)  # however slow the machine is
    asked: list[None] = []
    one = made(lambda: asked.append(None))
    assert [reason_of(one) for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    busy = made(lambda: asked.append(None))
    busy.note_success()
    assert reason_of(busy) is None
    assert len(asked) == 1


def test_a_fault_of_work_stands_though_a_probe_succeeds(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    """Or a disk with room for the probe alone would be said to be full at every report."""
    monkeypatch.setattr(telemetry, "_FRESH", 0.0)
    monkeypatch.setattr(telemetry, "_HOLD", 600.0)
    one = made(nothing)
    for _ in range(3):
        one.note_failure(StoreUnavailable("full"))
        assert reason_of(one) == "the store cannot be used"
    assert said() == ["it began"]
    monkeypatch.setattr(telemetry, "_HOLD", 0.0)
    assert reason_of(one) is None
    assert said() == ["it began", "it ended"]


def test_work_that_succeeds_ends_a_fault_at_once(said: Callable[[], list[str]]) -> None:
    one = made(away)
    assert reason_of(one) == "the store cannot be used"
    one.note_success()
    assert (one.reason, said()) == (None, ["it began", "it ended"])


def test_another_reason_is_said_as_well(said: Callable[[], list[str]]) -> None:
    one = made(nothing)
    one.note_failure(StoreUnavailable("down"))
    one.note_failure(ProtocolViolation("a key is gone"))
    one.note_failure(ProtocolViolation("a key is gone"))
    assert (one.reason, said()) == ("the store is older than its keys", ["it began"] * 2)


def test_a_database_that_hangs_is_asked_by_one_thread_and_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "_FRESH", 0.0)
    monkeypatch.setattr(telemetry, "_PATIENCE", 0.02)
    free, begun = threading.Event(), threading.Event()
    asked: list[None] = []

    def hang() -> None:
        asked.append(None)
        begun.set()
        free.wait(60)

    one = made(hang)
    assert [reason_of(one) for _ in range(3)] == ["the store does not answer"] * 3
    assert not one.look()
    assert begun.wait(10)
    assert len(asked) == 1
    monkeypatch.setattr(telemetry, "_PATIENCE", 10.0)
    free.set()
    assert one.look()
    assert one.reason is None
