"""Stores in trouble, raced for, killed, or with a database that cannot: each report counts once."""

from __future__ import annotations

import signal
import sqlite3
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from overhand.deploy.databases import database as sqlite
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.databases.database import SqliteDatabase, Transaction
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler import store as module
from overhand.deploy.shuffler.store import State, Store, StoreTables
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from support.database_fixtures import Places
from support.postgres import Postgres
from support.store_processes import (
    ADMITTED,
    HORIZON,
    REPEATED,
    SHAPES,
    TRACED,
    Where,
    admit,
    admit_groups,
    check_all,
    die_at_each_step,
    freeze,
    freeze_all,
    freeze_unless_scrubbed,
    live,
    live_and_die,
    open_store,
    report,
    shape,
    uneven_groups,
    users_in,
)

# --- many at once ---------------------------------------------------------------------------------

WIDE = (shape(1, 4, 2), shape(2, 40, 1))


def test_three_copies_at_the_same_time_are_counted_once(where: Where) -> None:
    barrier = threading.Barrier(3)
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(3) as pool:

        def send(seed: int) -> int:
            admitted = 0
            for user in range(30):
                barrier.wait()
                admitted += store.admit([report(user, levels=WIDE)]).count(ADMITTED)
            return admitted

        assert sum(pool.map(send, range(3))) == 30 == store.arrived


def test_threads_that_race_fill_exact_batches(where: Where) -> None:
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(4) as pool:

        def send(seed: int) -> int:
            groups = uneven_groups(range(403), seed)
            reports = [[report(user, levels=WIDE) for user in group] for group in groups]
            return sum(store.admit(group).count(ADMITTED) for group in reports)

        assert sum(pool.map(send, range(4))) == 403 == store.arrived
        assert len(check_all(store, WIDE)) == 400


@pytest.mark.slow
def test_processes_that_race_fill_exact_batches(where: Where, pool: ProcessPoolExecutor) -> None:
    copies = 3 if where.kind == "postgres" else 2
    groups = [uneven_groups(range(403), seed) for seed in range(copies)]
    assert sum(pool.map(admit_groups, [where] * copies, groups, [WIDE] * copies)) == 403
    with closing(where.open(WIDE, 10**6)) as store:
        names = store.full()
        bodies = list(pool.map(freeze_all, [where] * copies, [names] * copies, [WIDE] * copies))
        assert all(one == bodies[0] for one in bodies)
        assert [freeze(store, name).body for name in names] == bodies[0]
        assert len(check_all(store, WIDE)) == 400


def test_the_first_to_freeze_a_batch_decides_its_order(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, [1, 2])
    make, first = batching.build_release, list[Release]()

    def overtaken(*others: Any) -> Release:
        monkeypatch.setattr(module, "build_release", make)
        with closing(where.open()) as faster:
            first.append(freeze(faster, Batch(1, 0)))
        return make(*others)

    monkeypatch.setattr(module, "build_release", overtaken)
    assert [freeze(store, Batch(1, 0))] == first


def test_batches_are_sent_and_scrubbed_while_reports_arrive(where: Where) -> None:
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(2) as pool:

        def send(seed: int) -> None:
            for group in uneven_groups(range(403), seed):
                store.admit([report(user, levels=WIDE) for user in group])

        sending, found = [pool.submit(send, seed) for seed in range(2)], list[Batch]()
        while len(found) < 110:
            for name in store.full():
                release = freeze(store, name)
                assert (
                    len(users_in(release.body, WIDE[name.level - 1])) == WIDE[name.level - 1].size
                )
                store.acknowledge_all({name: release.digest})
                found.append(name)
            with suppress(StoreUnavailable):  # reports that are long under way put it off
                store.scrub()
        assert [one.result() for one in sending] == [None, None]
        assert len(set(found)) == 110
        store.scrub()
        assert not store._read(lambda tables: tables.in_state(State.ACKNOWLEDGED))


def test_many_may_make_the_same_store_at_once(places: Places) -> None:
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            where = places.new()
            stores = list(pool.map(lambda _, where=where: where.open(), range(6)))
            assert [admit(one, [1]) for one in stores].count([ADMITTED]) == 1
            for one in stores:
                one.close()


# --- kill -9 --------------------------------------------------------------------------------------


def check_promises(where: Where, notes: Path) -> None:
    """Whatever was said before the kill holds, and the rest of the life can be lived."""
    said = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    promised = max((int(line[1]) for line in said if line[0] == "admitted"), default=0)
    frozen = {Batch(int(line[1]), int(line[2])): line[3] for line in said if line[0] == "frozen"}
    with closing(where.open()) as store:
        keys = BatchKeys(where.keys)
        assert not any(map(keys.has, store._read(lambda tables: tables.in_state(State.FROZEN))))
        retried = store.admit([report(user, b"token %d" % user) for user in range(1, promised + 1)])
        assert retried == [REPEATED] * promised
        for name, digest in frozen.items():
            found = freeze_unless_scrubbed(store, name)  # only acknowledged ones are scrubbed
            assert found is None or found.hex() == digest
        before = {name: freeze(store, name) for name in store.full()}
        live(store, lambda said: None)
        assert (store.arrived, len(store.full())) == (6, 1)
        assert users_in(freeze(store, Batch(1, 2)).body, SHAPES[0]) == [5, 6]
        for name, release in before.items():
            store.acknowledge_all({name: release.digest})


@pytest.mark.slow
def test_a_kill_at_any_step_loses_and_repeats_nothing(
    places: Places, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    whole = pool.submit(live_and_die, places.new(), str(tmp_path / "whole"), None)
    steps = whole.result()
    assert steps > 30
    cases = [(places.new(), str(tmp_path / f"notes{last}"), last) for last in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    for where, notes, _ in cases:
        check_promises(where, Path(notes))


# --- databases that cannot ------------------------------------------------------------------------


def test_a_batch_that_lost_messages_is_not_released(store: Store) -> None:
    admit(store, [1])
    store._write(lambda ledger: ledger.drop_pieces(Batch(1, 0)))
    admit(store, [2])
    with pytest.raises(ProtocolViolation, match="holds 2 of 4 messages"):
        freeze(store, Batch(1, 0))


def connection_of(store: Store) -> sqlite3.Connection:
    assert isinstance(store._database, SqliteDatabase)
    return store._database._connection


def test_a_full_database_takes_nothing_and_recovers(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", TRACED, 10**6)) as store:
        store.admit([report(1, levels=TRACED)])
        connection = connection_of(store)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 5}")
        many = [report(user, levels=TRACED) for user in range(2, 200)]
        with pytest.raises(StoreUnavailable, match="full"):
            store.admit(many)
        assert store.arrived == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        assert set(store.admit(many)) == {ADMITTED}


def test_a_read_only_file_takes_nothing_and_recovers(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", SHAPES, HORIZON)) as store:
        connection_of(store).execute("PRAGMA query_only = ON")
        with pytest.raises(StoreUnavailable, match="readonly"):
            admit(store, [1])
        assert store.arrived == 0
        connection_of(store).execute("PRAGMA query_only = OFF")
        assert admit(store, [1]) == [ADMITTED]


def test_a_locked_file_takes_nothing_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT", 0.05)
    path = tmp_path / "store.db"
    with (
        closing(open_store(path, SHAPES, HORIZON)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            admit(store, [1])
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        other.execute("SELECT * FROM progress").fetchall()
        assert admit(store, [1, 2]) == [ADMITTED, ADMITTED]
        store.acknowledge_all({Batch(1, 0): freeze(store, Batch(1, 0)).digest})
        with pytest.raises(StoreUnavailable, match="reader"):
            store.scrub()
        other.execute("ROLLBACK")
        assert store.scrub() == 1


def test_a_store_waits_for_another_that_is_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")  # as a change of the journal does
        opening = pool.submit(open_store, path, SHAPES, HORIZON)
        assert not wait([opening], timeout=0.2).done
        other.execute("ROLLBACK")
        opening.result().close()
        path.unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite, "_WAIT", 0.05)
        with pytest.raises(StoreUnavailable, match="locked"):
            open_store(path, SHAPES, HORIZON)


def test_files_that_are_no_stores_give_one_clear_error(tmp_path: Path) -> None:
    (garbage := tmp_path / "garbage").write_bytes(bytes(range(256)) * 64)
    with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
        foreign.execute("CREATE TABLE progress (other TEXT)")
    with closing(open_store(damaged := tmp_path / "damaged", SHAPES, HORIZON)):
        pass
    damaged.write_bytes(damaged.read_bytes()[:5000] + b"x" * 4000)
    before = (tmp_path / "foreign").read_bytes()
    for path in (garbage, tmp_path / "foreign", damaged):
        with pytest.raises(InvalidValue, match="store"):
            open_store(path, SHAPES, HORIZON)
    assert (tmp_path / "foreign").read_bytes() == before
    with pytest.raises(StoreUnavailable, match="No such file"):
        open_store(tmp_path / "nowhere" / "store.db", SHAPES, HORIZON)
    with pytest.raises(StoreUnavailable, match="unable to open"):
        open_store(tmp_path, SHAPES, HORIZON)


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", SHAPES, HORIZON)) as store:
        admit(store, [1])
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db", SHAPES, HORIZON)
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        admit(store, [1])


@pytest.mark.slow
def test_a_server_that_restarts_is_found_again(postgres: Postgres) -> None:
    where = Where("postgres", postgres.new_schema())
    with closing(where.open()) as store:
        admit(store, [1, 2, 3])
        postgres.stop()
        try:
            with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                admit(store, [4])
            with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                where.open()
        finally:
            postgres.start()
        assert admit(store, [3, 4]) == [REPEATED, ADMITTED]
        postgres.stop()
        postgres.start()
        assert store.arrived == 4


def test_a_read_only_server_takes_nothing_and_recovers(postgres: Postgres) -> None:
    dsn = postgres.new_schema()
    with closing(Where("postgres", dsn).open()) as store:
        store._database.write(
            lambda writing: writing.change("SET default_transaction_read_only = on")
        )
        with pytest.raises(StoreUnavailable, match="read-only"):
            admit(store, [1])
        store.close()
        assert admit(store, [1]) == [ADMITTED]


def test_a_database_of_something_else_gives_one_clear_error(postgres: Postgres) -> None:
    for columns in ("other TEXT", "plan TEXT, arrived BIGINT"):
        dsn = postgres.new_schema()
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE TABLE progress ({columns})".encode())
        with pytest.raises(InvalidValue, match="another program or service"):
            Where("postgres", dsn).open()


def test_a_deadlock_is_tried_again(postgres: Postgres) -> None:
    failures = iter([psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])

    def work(writing: Transaction) -> int:
        for failure in failures:
            writing.change(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{failure.sqlstate}'; END $$")
        return StoreTables(writing, store._keys).count_arrived()

    with closing(Where("postgres", postgres.new_schema()).open()) as store:
        assert store._database.write(work) == 0
