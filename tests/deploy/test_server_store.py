"""The server's database: releases, estimates and history, over SQLite and a real PostgreSQL."""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import (
    BatchSum,
    Length,
    LevelTally,
    Published,
    ServerStore,
    ServerTables,
)
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from support.database_fixtures import Places
from support.postgres import Postgres
from support.server_stores import (
    DOCUMENT,
    KEY,
    NAMES,
    OWN,
    ReadsThem,
    body_of,
    check,
    drain,
    estimates_of,
    history_of,
    names_of,
    raise_alarm,
    receive,
    release_of,
    waiting,
)
from support.small_plans import PRIVACY, coin_plan
from support.store_processes import Steps, Where, count_statements, end_of_child

VECTORS = Document(
    oh.Plan.best(24, 2, PRIVACY, values=oh.Vectors(3), tree="regular"), KEY.public_key
)


# --- releases -------------------------------------------------------------------------------------


def test_a_release_is_kept_once_however_often_it_comes(database: ServerStore) -> None:
    body = body_of((1, 0))
    assert database.receive(Release(Batch(1, 0), OWN, body))
    assert not database.receive(Release(Batch(1, 0), OWN, body))
    found = waiting(database)
    assert found is not None
    assert found == Release(Batch(1, 0), OWN, body)
    drain(Publisher(DOCUMENT, database, ReadsThem()))
    assert not database.receive(Release(Batch(1, 0), OWN, body))
    assert waiting(database) is None
    assert database.status().levels[1].received == 1


@pytest.mark.parametrize("is_opened", [False, True], ids=["waiting", "opened"])
def test_other_bytes_are_refused_change_nothing_and_leave_an_alarm(
    place: str, database: ServerStore, is_opened: bool
) -> None:
    body = body_of((1, 0))
    database.receive(Release(Batch(1, 0), OWN, body))
    if is_opened:
        drain(Publisher(DOCUMENT, database, ReadsThem()))
    before = (database.status(), waiting(database), estimates_of(database))
    for other, own in ((body[:-1] + b"\1", OWN), (body, OWN + 1), (body[:-1] + b"\1", OWN)):
        with pytest.raises(ProtocolViolation, match="another release of batch 0 of level 1"):
            database.receive(Release(Batch(1, 0), own, other))
    assert (database.status(), waiting(database), estimates_of(database)) == before
    with closing(ServerStore(place, DOCUMENT.digest)) as again:
        assert again.alarms() == ["another release of batch 0 of level 1"]


def test_alarms_stay_once_each_in_their_order(place: str, database: ServerStore) -> None:
    assert database.alarms() == []
    for words in ("zebra", "ant", "zebra", "bee"):
        raise_alarm(database, words)
    with closing(ServerStore(place, DOCUMENT.digest)) as again:
        raise_alarm(again, "ant")
        assert again.alarms() == ["zebra", "ant", "bee"]


def test_copies_that_come_at_once_are_kept_once(place: str) -> None:
    with ThreadPoolExecutor(3) as threads:
        databases = [ServerStore(place, DOCUMENT.digest) for _ in range(3)]
        for name in NAMES[:8]:
            new = list(threads.map(lambda one, n=name: one.receive(release_of(n)), databases))
            assert new.count(True) == 1
        assert sum(counts.received for counts in databases[0].status().levels.values()) == 8
        for database in databases:
            database.close()


def test_a_database_of_another_document_is_refused(place: str, database: ServerStore) -> None:
    receive(database, [(1, 0)])
    with pytest.raises(InvalidValue, match=f"{DOCUMENT.digest[:12]}.*bbbbbbbbbbbb"):
        ServerStore(place, "b" * 64)
    assert waiting(database) is not None


def test_a_store_is_no_database_and_a_database_no_store(
    place: str, places: Places, database: ServerStore
) -> None:
    with pytest.raises(InvalidValue, match="another program or service"):
        Where(places.kind, place).open()
    other = places.new()
    with closing(other.open()), pytest.raises(InvalidValue, match="another program or service"):
        ServerStore(other.place, DOCUMENT.digest)


def test_files_that_are_no_databases_give_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
        foreign.execute("CREATE TABLE server_store (other TEXT)")
    for name, words in (("junk", "not a database"), ("foreign", "another program or service")):
        with pytest.raises(InvalidValue, match=words):
            ServerStore(tmp_path / name, DOCUMENT.digest)
    with pytest.raises(StoreUnavailable, match="No such file"):
        ServerStore(tmp_path / "nowhere" / "database.db", DOCUMENT.digest)


def test_a_database_of_something_else_is_no_database(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with psycopg.connect(place) as connection:
        connection.execute(b"CREATE TABLE server_store (other TEXT)")
    with pytest.raises(InvalidValue, match="another program or service"):
        ServerStore(place, DOCUMENT.digest)


def test_a_postgres_address_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "overhand.deploy.databases.postgres", None)
    with pytest.raises(InvalidValue, match="extra `postgres`"):
        ServerStore("postgres://nowhere", DOCUMENT.digest)


def test_only_the_owner_may_read_a_database(tmp_path: Path) -> None:
    with closing(ServerStore(tmp_path / "database.db", DOCUMENT.digest)) as database:
        receive(database, [(1, 0)])
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


# --- publishing -----------------------------------------------------------------------------------


def test_batches_in_any_order_end_at_the_same_estimate(
    database: ServerStore, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    order = [NAMES[i] for i in np.random.default_rng(5).permutation(len(NAMES))]
    receive(database, order)
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    drain(publisher)
    check(database)
    assert [one.batch for one in database.sums(0, 100)] == order
    assert estimates_of(database)[-1] == straight[0][-1]
    assert sorted(database.sums(0, 100), key=repr) == sorted(straight[1], key=repr)


def test_a_restart_knows_what_was_published_and_goes_on(
    place: str, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        receive(database, NAMES)
    before: Any = (None, [], [])
    for _ in NAMES:
        with closing(ServerStore(place, DOCUMENT.digest)) as database:
            publisher = Publisher(DOCUMENT, database, ReadsThem())
            if before[0] is not None:
                assert (publisher.estimate, publisher.levels(), history_of(publisher)) == before
            assert publisher.step()
            before = (publisher.estimate, publisher.levels(), history_of(publisher))
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        check(database)
        assert estimates_of(database) == straight[0]
        assert not Publisher(DOCUMENT, database, ReadsThem()).step()


def test_an_estimate_has_the_keys_that_the_dashboard_reads(database: ServerStore) -> None:
    receive(database, NAMES[:2])
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    assert (publisher.estimate, publisher.thin(0)["t"]) == (None, [])
    drain(publisher)
    estimate = publisher.estimate
    assert estimate is not None
    assert list(estimate) == ["t", "value", "low", "high", "std", "fallback", "lost_users"]
    assert isinstance(estimate["value"], float)
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert history_of(publisher)[-1] == estimate


def test_levels_count_what_came_of_their_batches(database: ServerStore) -> None:
    receive(database, [(1, 0), (1, 1)])
    database.receive(Release(Batch(1, 2), 0, body_of((1, 2), garbage=3)))
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    drain(publisher)
    receive(database, [(1, 3), (2, 0)])
    assert publisher.follow()
    assert not publisher.follow()
    size, batches = DOCUMENT.formats.levels[0].size, DOCUMENT.formats.levels[0].batches
    assert publisher.levels()[0] == {
        "level": 1, "size": size, "batches": batches,
        "received": 4, "published": 3, "lost": 0, "own": 2 * OWN, "garbage": 3, "repeats": 0,
    }  # fmt: skip
    assert [level["received"] for level in publisher.levels()] == [4, 1, 0]


# --- kill -9 --------------------------------------------------------------------------------------

FEW = [(1, 0), (2, 0)]


def live_and_die(place: str, notes: str, last: int | None) -> int:
    """Receive and publish until step `last`; what is done is noted. How many steps there are."""
    steps, database = Steps(last), ServerStore(place, DOCUMENT.digest)
    count_statements(database._database, steps)
    with Path(notes).open("a", buffering=1) as file:
        publisher = Publisher(DOCUMENT, database, ReadsThem())
        for name in FEW:
            receive(database, [name])
            file.write(f"received {name}\n")
        while publisher.step():
            file.write(f"published {publisher.estimate}\n")
    return steps.taken


def die_at_each_step(cases: Sequence[tuple[str, str, int]]) -> list[int]:
    return [end_of_child(live_and_die, *case) for case in cases]


@pytest.mark.slow
def test_a_kill_before_any_statement_changes_nothing_of_the_history(
    places: Places, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    whole = places.new().place
    steps = pool.submit(live_and_die, whole, str(tmp_path / "whole"), None).result()
    assert steps > 40
    with closing(ServerStore(whole, DOCUMENT.digest)) as database:
        check(database, FEW)
        expected = estimates_of(database)
    cases = [(places.new().place, str(tmp_path / f"notes{last}"), last) for last in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    for place, notes, _ in cases:
        said = Path(notes).read_text() if Path(notes).exists() else ""
        with closing(ServerStore(place, DOCUMENT.digest)) as database:
            publisher, before = Publisher(DOCUMENT, database, ReadsThem()), estimates_of(database)
            assert before == expected[: len(before)]
            assert len(before) >= len(set(said.splitlines()[len(FEW) :]))
            for name in FEW:
                is_new = database.receive(release_of(name))
                assert not (is_new and f"received {name}" in said)
            drain(publisher)
            check(database, FEW)
            assert estimates_of(database) == expected


# --- what should be here --------------------------------------------------------------------------


def test_batches_of_users_who_were_admitted_are_missing_until_they_come(
    place: str, database: ServerStore
) -> None:
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    assert publisher.find_missing() == []
    receive(database, [(1, 0)])
    assert publisher.find_missing() == []
    receive(database, [(1, 3)])  # users 7 and 8
    expected = [(1, 1), (1, 2), (2, 0), (2, 1)]
    assert publisher.find_missing() == expected
    drain(publisher)
    assert publisher.find_missing() == expected
    receive(database, [(1, 1)])
    assert publisher.find_missing() == [(1, 2), (2, 0), (2, 1)]
    receive(database, [(3, 0)])  # users 1 to 12
    drain(publisher)
    assert publisher.find_missing() == [(1, 2), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)]
    receive(database, [(1, 2), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)])
    with closing(ServerStore(place, DOCUMENT.digest)) as other:
        drain(Publisher(DOCUMENT, other, ReadsThem()))
    assert publisher._total.count == 4  # it has not looked yet, and misses nothing
    assert publisher.find_missing() == []


def test_the_last_users_are_missed_in_no_batch_beyond_the_horizon(database: ServerStore) -> None:
    receive(database, [(1, 12)])  # users 25 and 26, the last
    names = Publisher(DOCUMENT, database, ReadsThem()).find_missing()
    assert sorted([*names, (1, 12)]) == sorted(NAMES)


def test_a_batch_is_overdue_when_it_was_missing_long_enough(database: ServerStore) -> None:
    publisher = Publisher(DOCUMENT, database, ReadsThem(), patience=10.0)
    receive(database, [(1, 1)])
    assert publisher.find_overdue(100.0) == []
    assert publisher.find_overdue(109.9) == []
    assert publisher.find_overdue(110.0) == [(1, 0), (2, 0)]
    receive(database, [(1, 0), (1, 2)])
    assert publisher.find_overdue(111.0) == [(2, 0)]
    receive(database, [(1, 4)])
    assert publisher.find_overdue(112.0) == [(2, 0)]
    receive(database, [(2, 0)])
    assert publisher.find_overdue(121.9) == []
    assert publisher.find_overdue(122.0) == [(1, 3), (2, 1)]


def test_many_missing_batches_are_named_in_part_and_at_once(place: str) -> None:
    plan = coin_plan(oh.RegularTree(10**9, (2, 2, 3)), combine=True)
    document = Document(plan, KEY.public_key)
    with closing(ServerStore(place, document.digest)) as database:
        last = (1, document.formats.levels[0].batches - 1)
        receive(database, [last], document)
        publisher = Publisher(document, database, ReadsThem(document), patience=0.0)
        begun = time.process_time()  # whatever else the machine does
        for _ in range(2):
            assert publisher.find_missing() == [(1, number) for number in range(1000)]
            drain(publisher)
        assert publisher.find_overdue(0.0) == publisher.find_missing()
        assert time.process_time() - begun < 5


# --- memory and history ---------------------------------------------------------------------------


def test_memory_is_as_large_after_many_batches_as_after_few(tmp_path: Path) -> None:
    plan = coin_plan(oh.RegularTree(600, (2, 2, 3)), combine=True)
    document = Document(plan, KEY.public_key)
    with closing(ServerStore(tmp_path / "database.db", document.digest)) as database:
        publisher = Publisher(document, database, ReadsThem(document))
        kept = []
        for name in names_of(document):
            receive(database, [name], document)
            assert publisher.step()
            kept.append(publisher._total.server.kept)
        assert max(kept) == max(kept[:30]) < 15
        assert len(estimates_of(database)) > 300
        lists = [value for value in vars(publisher).values() if isinstance(value, list | dict)]
        assert sum(map(len, lists)) == 0
        again = Publisher(document, database, ReadsThem(document))
        assert again._total.server.kept == kept[-1]
        assert again.estimate == publisher.estimate


@pytest.mark.parametrize("count", [0, 1, 2, 499, 500, 501, 1000, 1001, 1700])
def test_a_history_is_thinned_to_even_steps_that_end_with_the_last(place: str, count: int) -> None:
    estimates = [
        Published(i, (0.1 * i, -i / 3), (0.1 * i - 1, 0.0), (0.1 * i + 1, 7.0), 1.0, False)
        for i in range(1, count + 1)
    ]

    def fill(pages: ServerTables) -> None:
        for number, estimate in enumerate(estimates, start=1):
            pages.add_estimate(number, estimate)
        pages.advance(Length(0, count))

    with closing(ServerStore(place, VECTORS.digest)) as database:
        database._write(fill)
        publisher = Publisher(VECTORS, database, ReadsThem(VECTORS))
        step = max(1, -(-count // 500))
        chosen = estimates[::-1][::step][::-1]
        assert len(chosen) <= 500
        for coordinate in (0, 1):
            assert publisher.thin(coordinate) == {
                "t": [one.t for one in chosen],
                "value": [one.value[coordinate] for one in chosen],
                "low": [one.low[coordinate] for one in chosen],
                "high": [one.high[coordinate] for one in chosen],
            }
        assert estimates_of(database) == estimates


def test_vectors_are_shown_by_coordinate(place: str) -> None:
    with closing(ServerStore(place, VECTORS.digest)) as database:
        receive(database, names_of(VECTORS), VECTORS)
        publisher = Publisher(VECTORS, database, ReadsThem(VECTORS))
        drain(publisher)
        estimate = publisher.estimate
        assert estimate is not None
        assert [len(estimate[name]) for name in ("value", "low", "high")] == [3, 3, 3]
        for coordinate in range(3):
            curves = publisher.thin(coordinate)
            for name in ("value", "low", "high"):
                assert curves[name] == [one[name][coordinate] for one in history_of(publisher)]


def test_counts_are_those_of_the_sums(database: ServerStore) -> None:
    receive(database, NAMES)
    drain(Publisher(DOCUMENT, database, ReadsThem()))
    for level, counts in database.status().levels.items():
        sums = [one for one in database.sums(0, 100) if one.batch.level == level]
        assert counts == LevelTally(len(sums), len(sums), 0, OWN * len(sums), 0)
