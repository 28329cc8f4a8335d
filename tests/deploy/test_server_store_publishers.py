"""Publishers of one database, many at once or with failures anywhere: each release counts once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.databases.database import Database
from overhand.deploy.protocol.sealing import Opened, WorkersLost
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.server import publishing
from overhand.deploy.server.publishing import Publisher, Total, _to_published
from overhand.deploy.server.store import (
    BatchSum,
    BatchTotal,
    Published,
    ServerStore,
    ServerTables,
)
from overhand.errors import StoreUnavailable
from overhand.sums import SumServer
from support.killed_processes import SECONDS, until
from support.postgres import Postgres
from support.server_stores import (
    DOCUMENT,
    NAMES,
    ReadsThem,
    check,
    drain,
    estimates_of,
    history_of,
    raise_alarm,
    receive,
    waiting,
)
from support.store_processes import end_of_child

# --- several publishers ---------------------------------------------------------------------------


class ReadsBesideOthers(ReadsThem):
    """Has its first release in hand until this many processes have one."""

    def __init__(self, database: ServerStore, processes: int) -> None:
        super().__init__()
        self._database, self._processes = database, processes

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        if not self.opened:
            raise_alarm(self._database, f"opening in {os.getpid()}")
            until("all open one", lambda: len(self._database.alarms()) >= self._processes)
        return super().open(level, ciphertexts)


def publish_all(place: str, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Open releases beside others until all are opened; how many, and the history at the end."""
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        opener = ReadsBesideOthers(database, processes=3)
        publisher = Publisher(DOCUMENT, database, opener)
        end = time.monotonic() + SECONDS
        while database.status().length.told < most and time.monotonic() < end:
            if not publisher.step():
                time.sleep(0.01)
        publisher.follow()
        assert history_of(publisher)[-1] == publisher.estimate
        return len(opener.opened), history_of(publisher)


def test_processes_open_every_release_once_and_agree(
    postgres: Postgres, pool: ProcessPoolExecutor, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    place = postgres.new_schema()
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        running = [pool.submit(publish_all, place, len(NAMES)) for _ in range(3)]
        receive(database, NAMES)
        counts, histories = zip(*(one.result() for one in running), strict=True)
        assert sum(counts) == len(NAMES)
        assert min(counts) > 0
        check(database)
        assert histories[0] == histories[1] == histories[2]
        assert sorted(database.sums(0, 100), key=repr) == sorted(straight[1], key=repr)
        assert estimates_of(database)[-1] == straight[0][-1]


def add(publisher: Publisher, total: BatchTotal) -> None:
    publisher._store.add_sums([total])
    publisher._publish()


def test_those_who_open_the_same_release_publish_it_once(
    place: str, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    """Nothing rests on claims: here everybody gets all of them."""
    monkeypatch.setattr(Database, "claim", lambda self, table, key: True)
    monkeypatch.setattr(Database, "unclaim", lambda self, table, key: None)
    barrier = threading.Barrier(3)

    def publish(database: ServerStore) -> int:
        opener = ReadsThem()
        publisher = Publisher(DOCUMENT, database, opener)
        for _ in NAMES:
            barrier.wait(60)
            with database.claim_releases() as received:
                (total,) = map(publisher._total_of, received)
            barrier.wait(60)
            add(publisher, total)
        return len(opener.opened)

    databases = [ServerStore(place, DOCUMENT.digest) for _ in range(3)]
    receive(databases[0], NAMES)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(publish, databases)) == [len(NAMES)] * 3
    check(databases[0])
    assert estimates_of(databases[0]) == straight[0]
    assert databases[0].sums(0, 100) == straight[1]
    for database in databases:
        database.close()


def test_those_who_publish_different_releases_at_once_see_each_others(place: str) -> None:
    databases = [ServerStore(place, DOCUMENT.digest) for _ in range(4)]
    receive(databases[0], NAMES)
    publishers = [Publisher(DOCUMENT, database, ReadsThem()) for database in databases]
    with ExitStack() as held:
        taken = [held.enter_context(databases[0].claim_releases()) for _ in NAMES]
        waiting = [publishers[0]._total_of(release) for found in taken for release in found]
    barrier = threading.Barrier(4)

    def publish(mine: int) -> None:
        for start in range(0, len(waiting) - 3, 4):
            barrier.wait(60)
            add(publishers[mine], waiting[start + mine])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(publish, range(4)))
    done = len(waiting) // 4 * 4
    for summed in waiting[done:]:
        add(publishers[0], summed)
    check(databases[0])
    for publisher in publishers:
        publisher.follow()
        assert history_of(publisher)[-1] == publisher.estimate
        assert publisher._total.count == len(NAMES)
    for database in databases:
        database.close()


def test_a_follower_shows_what_another_published(place: str, database: ServerStore) -> None:
    receive(database, NAMES)
    with closing(ServerStore(place, DOCUMENT.digest)) as other:
        follower = Publisher(DOCUMENT, other, ReadsThem())
        publisher = Publisher(DOCUMENT, database, ReadsThem())
        drain(publisher)
        assert follower.estimate is None
        assert follower.follow()
        assert not follower.follow()
        assert (follower.estimate, follower.levels()) == (publisher.estimate, publisher.levels())
        assert not follower.step()


def test_a_release_in_hand_is_left_to_who_has_it(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with (
        closing(ServerStore(place, DOCUMENT.digest)) as database,
        closing(ServerStore(place, DOCUMENT.digest)) as other,
        closing(ServerStore(postgres.new_schema(), DOCUMENT.digest)) as elsewhere,
    ):
        for one in (database, elsewhere):
            receive(one, NAMES[:2])
        with (
            database.claim_releases() as first,
            other.claim_releases() as second,
            database.claim_releases() as third,
        ):
            assert [one.batch for one in (*first, *second)] == NAMES[:2]
            assert third == []
            with elsewhere.claim_releases() as unrelated:
                assert [one.batch for one in unrelated] == NAMES[:1]
        with other.claim_releases() as again:
            assert again == first


def test_claims_are_dropped_with_the_database(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        receive(database, NAMES[:1])
        other = ServerStore(place, DOCUMENT.digest)
        assert other._database.claim("unopened", 1)
        with database.claim_releases() as received:
            assert received == []
        other.close()
        assert is_let_in(database)


def is_let_in(database: ServerStore) -> bool:
    """Whether a release can be had once the server has noticed that a connection is gone."""
    return until("a release can be had", lambda: waiting(database)) is not None


def hold_and_die(place: str) -> None:
    database = ServerStore(place, DOCUMENT.digest)
    with (
        database.claim_releases() as received,
        ServerStore(place, DOCUMENT.digest).claim_releases() as second,
    ):
        assert (len(received), second) == (1, [])
        os.kill(os.getpid(), signal.SIGKILL)


def ends_of_child(place: str) -> int:
    return end_of_child(hold_and_die, place)


def test_a_process_that_dies_holds_no_release(
    postgres: Postgres, pool: ProcessPoolExecutor
) -> None:
    place = postgres.new_schema()
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        receive(database, NAMES[:1])
        assert pool.submit(ends_of_child, place).result() == -signal.SIGKILL
        assert is_let_in(database)


@pytest.mark.slow
def test_lost_connections_cost_nothing(postgres: Postgres) -> None:
    with closing(ServerStore(postgres.new_schema(), DOCUMENT.digest)) as database:
        receive(database, NAMES)
        publisher = Publisher(DOCUMENT, database, ReadsThem())
        for step in range(len(NAMES)):
            with database.claim_releases():
                if step % 2:
                    end_connections(postgres)
            end_connections(postgres)
            assert publisher.step()
        check(database)


def end_connections(postgres: Postgres) -> None:
    postgres.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


@pytest.mark.slow
def test_a_database_says_so_when_its_server_is_down_and_recovers(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        receive(database, NAMES)
        publisher = Publisher(DOCUMENT, database, ReadsThem())
        assert publisher.step()
        shown = (publisher.estimate, publisher.levels())
        postgres.stop()
        try:
            for act in (publisher.step, publisher.follow, publisher.find_missing, database.alarms):
                with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                    act()
            assert (publisher.estimate, publisher.levels()) == shown
        finally:
            postgres.start()
        drain(publisher)
        check(database)


# --- failures -------------------------------------------------------------------------------------

STATEMENTS = (
    "lock", "forget", "sums", "add_sum", "count", "estimate", "add_estimate", "advance", "length",
    "tallies", "read_unopened", "waiting",
)  # fmt: skip


def memory_of(publisher: Publisher) -> tuple[int, Any]:
    taken = publisher._total
    return taken.count, _to_published(taken)


def check_memory(publisher: Publisher, database: ServerStore) -> None:
    """Memory has what the first sums of the database say, and is not ahead of it."""
    count = publisher._total.count
    sums = database.sums(0, 10**6)
    assert count <= len(sums)
    fresh = Total(SumServer(DOCUMENT.plan), None).with_sums(sums[:count])
    assert memory_of(publisher) == (count, _to_published(fresh))
    assert publisher._status.estimate in [None, *estimates_of(database)]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_publish_that_fails_anywhere_leaves_memory_as_the_database_is(
    database: ServerStore,
    monkeypatch: pytest.MonkeyPatch,
    straight: tuple[list[Published], list[BatchSum]],
    statement: str,
) -> None:
    receive(database, NAMES)
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    truth, calls = getattr(ServerTables, statement), itertools.count()

    def fails(pages: ServerTables, *arguments: Any) -> Any:
        if next(calls) % 5 < 3:
            raise StoreUnavailable("injected")
        return truth(pages, *arguments)

    failures = 0
    for _ in range(60 * len(NAMES)):
        with monkeypatch.context() as patched:
            patched.setattr(ServerTables, statement, fails)
            try:
                if not publisher.step():
                    break
            except StoreUnavailable:
                failures += 1
        check_memory(publisher, database)
    assert failures > 0
    publisher.follow()
    check(database)
    assert estimates_of(database) == straight[0]


def test_a_commit_whose_end_was_not_seen_counts_once(
    database: ServerStore,
    monkeypatch: pytest.MonkeyPatch,
    straight: tuple[list[Published], list[BatchSum]],
) -> None:
    receive(database, NAMES)
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    write = database._database.write

    def cut_off(work: Any) -> Any:
        write(work)
        raise StoreUnavailable("cut off")

    for _ in range(2 * len(NAMES)):  # a sum, and then its estimate
        with monkeypatch.context() as patched:
            patched.setattr(database._database, "write", cut_off)
            with pytest.raises(StoreUnavailable, match="cut off"):
                publisher.step()
        check_memory(publisher, database)
    assert not publisher.step()
    publisher.follow()
    assert history_of(publisher)[-1] == publisher.estimate
    check(database)
    assert estimates_of(database) == straight[0]


def test_work_that_the_database_runs_twice_counts_once(
    database: ServerStore,
    monkeypatch: pytest.MonkeyPatch,
    straight: tuple[list[Published], list[BatchSum]],
) -> None:
    write = database._database.write

    def twice(work: Any) -> Any:
        """The first time is undone, as after a conflict."""

        def undone(transaction: Any) -> Any:
            work(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write(undone)
        return write(work)

    monkeypatch.setattr(database._database, "write", twice)
    receive(database, NAMES)
    publisher = Publisher(DOCUMENT, database, ReadsThem())
    drain(publisher)
    check_memory(publisher, database)
    check(database)
    assert estimates_of(database) == straight[0]


def test_a_release_whose_workers_die_is_opened_the_next_time(
    place: str, database: ServerStore
) -> None:
    class Dies(ReadsThem):
        def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
            raise WorkersLost("again and again")

    receive(database, NAMES)
    publisher = Publisher(DOCUMENT, database, Dies())
    for _ in range(3):
        with pytest.raises(WorkersLost):
            publisher.step()
        check_memory(publisher, database)
    with closing(ServerStore(place, DOCUMENT.digest)) as other, other.claim_releases() as received:
        assert [one.batch for one in received] == NAMES[:1]
    publisher._opener = ReadsThem()
    drain(publisher)
    check(database)


def test_a_restart_reads_sums_a_bounded_number_of_numbers_at_a_time() -> None:
    """Whatever their dimension: a database of a large histogram is far longer than memory."""
    privacy = oh.Privacy(4.0, 1e-4)
    plan = oh.Plan.best(60, 2, privacy, values=oh.Histogram(300), mechanism="pairs")
    nodes = [Batch(1, number) for number in range(plan.horizon // plan.tree.lowest)]
    value = (1.0,) * 300

    class Kept:
        settled = None
        asked = set[int]()

        def sums(self, after: int, most: int) -> list[BatchSum]:
            self.asked.add(most)
            return [BatchSum(batch, 0, 0, 0.0, value) for batch in nodes[after : after + most]]

    kept: Any = Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "_AT_ONCE", 900)
        total = Total.begin(plan, kept).follow(kept)
    assert (total.count, Kept.asked) == (len(nodes), {3})
