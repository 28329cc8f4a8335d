"""Publishers of one book, several at once or with failures anywhere: each release counts once."""

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
from overhand.errors import StoreUnavailable
from overhand.service.databases import Database
from overhand.service.protocol import Batch, Opened
from overhand.service.server import BatchSum, Book, Published, Publisher, WorkersLost, publishing
from overhand.service.server.publishing import Total, _published
from overhand.service.server.tables import BookTables
from overhand.summation import SumServer
from support.books import DOCUMENT, NAMES, ReadsThem, check, drain, raise_alarm, receive, waiting
from support.forked import SECONDS, until
from support.postgres import Postgres
from support.stores import end_of_child

# --- several publishers ---------------------------------------------------------------------------


class ReadsBesideOthers(ReadsThem):
    """Has its first release in hand until this many processes have one."""

    def __init__(self, book: Book, processes: int) -> None:
        super().__init__()
        self._book, self._processes = book, processes

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        if not self.opened:
            raise_alarm(self._book, f"opening in {os.getpid()}")
            until("all open one", lambda: len(self._book.alarms()) >= self._processes)
        return super().open(level, ciphertexts)


def publish_all(place: str, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Open releases beside others until all are opened; how many, and the history at the end."""
    with closing(Book(place, DOCUMENT.digest)) as book:
        opener = ReadsBesideOthers(book, processes=3)
        publisher = Publisher(DOCUMENT, book, opener)
        end = time.monotonic() + SECONDS
        while book.news().sums < most and time.monotonic() < end:
            if not publisher.step():
                time.sleep(0.01)
        publisher.follow()
        assert publisher.history[-1] == publisher.estimate
        return len(opener.opened), publisher.history


def test_processes_open_every_release_once_and_agree(
    postgres: Postgres, pool: ProcessPoolExecutor, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    place = postgres.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        running = [pool.submit(publish_all, place, len(NAMES)) for _ in range(3)]
        receive(book, NAMES)
        counts, histories = zip(*(one.result() for one in running), strict=True)
        assert sum(counts) == len(NAMES)
        assert min(counts) > 0
        check(book)
        assert histories[0] == histories[1] == histories[2]
        assert sorted(book.sums(0, 100), key=repr) == sorted(straight[1], key=repr)
        assert book.published()[-1] == straight[0][-1]


def test_those_who_open_the_same_release_publish_it_once(
    place: str, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    """Nothing rests on claims: here everybody gets all of them."""
    monkeypatch.setattr(Database, "claim", lambda self, table, key: True)
    monkeypatch.setattr(Database, "unclaim", lambda self, table, key: None)
    barrier = threading.Barrier(3)

    def publish(book: Book) -> int:
        opener = ReadsThem()
        publisher = Publisher(DOCUMENT, book, opener)
        for _ in NAMES:
            barrier.wait(60)
            with book.claimed() as received:
                assert received is not None
                summed = publisher._summed(received)
            barrier.wait(60)
            publisher._publish(summed)
        return len(opener.opened)

    books = [Book(place, DOCUMENT.digest) for _ in range(3)]
    receive(books[0], NAMES)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(publish, books)) == [len(NAMES)] * 3
    check(books[0])
    assert books[0].published() == straight[0]
    assert books[0].sums(0, 100) == straight[1]
    for book in books:
        book.close()


def test_those_who_publish_different_releases_at_once_see_each_others(place: str) -> None:
    books = [Book(place, DOCUMENT.digest) for _ in range(4)]
    receive(books[0], NAMES)
    publishers = [Publisher(DOCUMENT, book, ReadsThem()) for book in books]
    with ExitStack() as held:
        taken = [held.enter_context(books[0].claimed()) for _ in NAMES]
        waiting = [publishers[0]._summed(received) for received in taken if received is not None]
    barrier = threading.Barrier(4)

    def publish(mine: int) -> None:
        for start in range(0, len(waiting) - 3, 4):
            barrier.wait(60)
            publishers[mine]._publish(waiting[start + mine])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(publish, range(4)))
    done = len(waiting) // 4 * 4
    for summed in waiting[done:]:
        publishers[0]._publish(summed)
    check(books[0])
    for publisher in publishers:
        publisher.follow()
        assert publisher.history[-1] == publisher.estimate
        assert publisher._total.count == len(NAMES)
    for book in books:
        book.close()


def test_a_follower_shows_what_another_published(place: str, book: Book) -> None:
    receive(book, NAMES)
    with closing(Book(place, DOCUMENT.digest)) as other:
        follower = Publisher(DOCUMENT, other, ReadsThem())
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        drain(publisher)
        assert follower.estimate is None
        assert follower.follow()
        assert not follower.follow()
        assert (follower.estimate, follower.levels()) == (publisher.estimate, publisher.levels())
        assert not follower.step()


def test_a_release_in_hand_is_left_to_who_has_it(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with (
        closing(Book(place, DOCUMENT.digest)) as book,
        closing(Book(place, DOCUMENT.digest)) as other,
        closing(Book(postgres.new_schema(), DOCUMENT.digest)) as elsewhere,
    ):
        for one in (book, elsewhere):
            receive(one, NAMES[:2])
        with book.claimed() as first, other.claimed() as second, book.claimed() as third:
            assert first is not None
            assert second is not None
            assert (first.batch, second.batch, third) == (*NAMES[:2], None)
            with elsewhere.claimed() as unrelated:
                assert unrelated is not None
                assert unrelated.batch == NAMES[0]
        with other.claimed() as again:
            assert again == first


def test_claims_are_dropped_with_the_book(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES[:1])
        other = Book(place, DOCUMENT.digest)
        assert other._database.claim("unopened", 1)
        with book.claimed() as received:
            assert received is None
        other.close()
        assert is_let_in(book)


def is_let_in(book: Book) -> bool:
    """Whether a release can be had once the server has noticed that a connection is gone."""
    return until("a release can be had", lambda: waiting(book)) is not None


def hold_and_die(place: str) -> None:
    book = Book(place, DOCUMENT.digest)
    with book.claimed() as received, Book(place, DOCUMENT.digest).claimed() as second:
        assert received is not None
        assert second is None
        os.kill(os.getpid(), signal.SIGKILL)


def ends_of_child(place: str) -> int:
    return end_of_child(hold_and_die, place)


def test_a_process_that_dies_holds_no_release(
    postgres: Postgres, pool: ProcessPoolExecutor
) -> None:
    place = postgres.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES[:1])
        assert pool.submit(ends_of_child, place).result() == -signal.SIGKILL
        assert is_let_in(book)


@pytest.mark.slow
def test_lost_connections_cost_nothing(postgres: Postgres) -> None:
    with closing(Book(postgres.new_schema(), DOCUMENT.digest)) as book:
        receive(book, NAMES)
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        for step in range(len(NAMES)):
            with book.claimed():
                if step % 2:
                    end_connections(postgres)
            end_connections(postgres)
            assert publisher.step()
        check(book)


def end_connections(postgres: Postgres) -> None:
    postgres.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


@pytest.mark.slow
def test_a_book_says_so_when_its_server_is_down_and_recovers(postgres: Postgres) -> None:
    place = postgres.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES)
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        assert publisher.step()
        shown = (publisher.estimate, publisher.levels())
        postgres.stop()
        try:
            for act in (publisher.step, publisher.follow, publisher.missing, book.alarms):
                with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                    act()
            assert (publisher.estimate, publisher.levels()) == shown
        finally:
            postgres.start()
        drain(publisher)
        check(book)


# --- failures -------------------------------------------------------------------------------------

STATEMENTS = (
    "lock", "forget", "sums", "add_sum", "count", "estimate", "add_estimate", "advance", "length",
    "tallies", "unopened", "unopened_after",
)  # fmt: skip


def memory_of(publisher: Publisher) -> tuple[int, Any]:
    taken = publisher._total
    return taken.count, _published(taken)


def check_memory(publisher: Publisher, book: Book) -> None:
    """Memory has what the first sums of the book say, and is not ahead of it."""
    count = publisher._total.count
    sums = book.sums(0, 10**6)
    assert count <= len(sums)
    fresh = Total(SumServer(DOCUMENT.plan), None).with_sums(sums[:count])
    assert memory_of(publisher) == (count, _published(fresh))
    assert publisher._news.estimate in [None, *book.published()]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_publish_that_fails_anywhere_leaves_memory_as_the_book_is(
    book: Book,
    monkeypatch: pytest.MonkeyPatch,
    straight: tuple[list[Published], list[BatchSum]],
    statement: str,
) -> None:
    receive(book, NAMES)
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    truth, calls = getattr(BookTables, statement), itertools.count()

    def fails(pages: BookTables, *arguments: Any) -> Any:
        if next(calls) % 5 < 3:
            raise StoreUnavailable("injected")
        return truth(pages, *arguments)

    failures = 0
    for _ in range(60 * len(NAMES)):
        with monkeypatch.context() as patched:
            patched.setattr(BookTables, statement, fails)
            try:
                if not publisher.step():
                    break
            except StoreUnavailable:
                failures += 1
        check_memory(publisher, book)
    assert failures > 0
    publisher.follow()
    check(book)
    assert book.published() == straight[0]


def test_a_commit_whose_end_was_not_seen_counts_once(
    book: Book, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    receive(book, NAMES)
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    write = book._database.write

    def cut_off(work: Any) -> Any:
        write(work)
        raise StoreUnavailable("cut off")

    for _ in NAMES:
        with monkeypatch.context() as patched:
            patched.setattr(book._database, "write", cut_off)
            with pytest.raises(StoreUnavailable, match="cut off"):
                publisher.step()
        check_memory(publisher, book)
    assert not publisher.step()
    publisher.follow()
    assert publisher.history[-1] == publisher.estimate
    check(book)
    assert book.published() == straight[0]


def test_work_that_the_database_runs_twice_counts_once(
    book: Book, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[BatchSum]]
) -> None:
    write = book._database.write

    def twice(work: Any) -> Any:
        """The first time is undone, as after a conflict."""

        def undone(transaction: Any) -> Any:
            work(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write(undone)
        return write(work)

    monkeypatch.setattr(book._database, "write", twice)
    receive(book, NAMES)
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    drain(publisher)
    check_memory(publisher, book)
    check(book)
    assert book.published() == straight[0]


def test_a_release_whose_workers_die_is_opened_the_next_time(place: str, book: Book) -> None:
    class Dies(ReadsThem):
        def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
            raise WorkersLost("again and again")

    receive(book, NAMES)
    publisher = Publisher(DOCUMENT, book, Dies())
    for _ in range(3):
        with pytest.raises(WorkersLost):
            publisher.step()
        check_memory(publisher, book)
    with closing(Book(place, DOCUMENT.digest)) as other, other.claimed() as received:
        assert received is not None
        assert received.batch == NAMES[0]
    publisher._opener = ReadsThem()
    drain(publisher)
    check(book)


def test_a_restart_reads_sums_a_bounded_number_of_numbers_at_a_time() -> None:
    """Whatever their dimension: a book of a large histogram is far longer than memory."""
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
        total = Total.begun(plan, kept).followed(kept)
    assert (total.count, Kept.asked) == (len(nodes), {3})
