"""The server's book and its publishers: one suite, over a SQLite file and a real PostgreSQL."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import overhand as oh
from books import raise_alarm, waiting
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from overhand.service.databases import Database
from overhand.service.document import Document
from overhand.service.keys import KeyPair
from overhand.service.sealing import Opened, WorkersLost
from overhand.service.server.book import Book
from overhand.service.server.pages import Counts, Pages, Published, Summed
from overhand.service.server.publisher import Publisher, _latest, _Taken
from overhand.service.stores import open_store
from overhand.summation import GatheredSums
from plans import PRIVACY, coin_plan
from postgres import Postgres, running_postgres
from stores import HORIZON, LANES, Steps, count_statements, end_of_child

KEY = KeyPair.of_raw(bytes(range(32)))
DOCUMENT = Document(coin_plan(oh.RegularTree(26, (2, 2, 3)), combine=True), KEY.public_key)
SHARES = Document(oh.Plan.best(24, 2, PRIVACY, mechanism="shares", tree="regular"), KEY.public_key)
VECTORS = Document(
    oh.Plan.best(24, 2, PRIVACY, values=oh.Vectors(3), tree="regular"), KEY.public_key
)
Name = tuple[int, int]
OWN = 1
GARBAGE = 255


class ReadsThem:
    """Opens what is not sealed: the plaintext begins a ciphertext; some cannot be opened."""

    def __init__(self, document: Document = DOCUMENT, pause: float = 0.0) -> None:
        self.lengths = {level.level: level.plaintext_bytes for level in document.formats.levels}
        self.opened: list[int] = []
        self.pause = pause

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        self.opened.append(level)
        time.sleep(self.pause)
        length = self.lengths[level]
        return [None if one[-1] == GARBAGE else one[:length] for one in ciphertexts]


def body_of(name: Name, document: Document = DOCUMENT, *, garbage: int = 0) -> bytes:
    """A release: messages drawn for this batch, each with bytes that make it the only one."""
    level = document.formats.level(name[0])
    count = level.size * level.messages
    random = np.random.default_rng([*name])
    dimension = document.plan.values.dimension
    plaintexts = level.messages_to_bytes(random.integers(0, 2 * dimension, count))
    padding = [hashlib.sha512(repr((name, i)).encode()).digest() for i in range(count)]
    length = level.ciphertext_bytes - level.plaintext_bytes - 1
    ends = [bytes([GARBAGE if place < garbage else 0]) for place in range(count)]
    return b"".join(
        plaintext + some[:length] + end
        for plaintext, some, end in zip(plaintexts, padding, ends, strict=True)
    )


def names_of(document: Document = DOCUMENT) -> list[Name]:
    """All batches, in the order in which they become full."""
    levels = document.formats.levels
    names = [(level.level, number) for level in levels for number in range(level.batches)]
    sizes = {level.level: level.size for level in levels}
    return sorted(names, key=lambda name: ((name[1] + 1) * sizes[name[0]], name))


NAMES = names_of()


def receive(book: Book, names: Iterable[Name], document: Document = DOCUMENT) -> None:
    for name in names:
        book.receive(*name, OWN, body_of(name, document))


def drain(publisher: Publisher) -> None:
    while publisher.step():
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield workers


Place = Callable[[], str]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def new_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    if request.param == "postgres":
        running: Postgres = request.getfixturevalue("server")
        return running.new_schema
    folder, numbers = tmp_path_factory.mktemp("books"), itertools.count()
    return lambda: str(folder / f"book{next(numbers)}.db")


@pytest.fixture
def place(new_place: Place) -> str:
    return new_place()


@pytest.fixture
def book(place: str) -> Iterator[Book]:
    with closing(Book(place, DOCUMENT.digest)) as opened:
        yield opened


def replayed(book: Book, document: Document = DOCUMENT) -> list[Published]:
    """What the sums of a book say should have been published."""
    taken, history = _Taken(GatheredSums(document.plan)), list[Published]()
    for summed in book.sums(0, 10**6):
        taken = taken.with_sums([summed])
        latest = _latest(taken.gathered)
        if latest is not None and [latest] != history[-1:]:
            history.append(latest)
    return history


def check(book: Book, names: Sequence[Name] = NAMES) -> None:
    """Every batch has one sum, the history follows from them, nothing waits."""
    sums = book.sums(0, 10**6)
    assert sorted((one.level, one.number) for one in sums) == sorted(names)
    assert book.published() == replayed(book)
    assert waiting(book) is None
    assert book.news().sums == len(names)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Published], list[Summed]]:
    """What one publisher makes of all batches in their order, one at a time."""
    path = tmp_path_factory.mktemp("straight") / "book.db"
    with closing(Book(path, DOCUMENT.digest)) as book:
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        for name in NAMES:
            receive(book, [name])
            assert publisher.step()
        check(book)
        return book.published(), book.sums(0, 10**6)


# --- releases -------------------------------------------------------------------------------------


def test_a_release_is_kept_once_however_often_it_comes(book: Book) -> None:
    body = body_of((1, 0))
    assert book.receive(1, 0, OWN, body)
    assert not book.receive(1, 0, OWN, body)
    found = waiting(book)
    assert found is not None
    assert (found.level, found.number, found.own, found.body) == (1, 0, OWN, body)
    drain(Publisher(DOCUMENT, book, ReadsThem()))
    assert not book.receive(1, 0, OWN, body)
    assert waiting(book) is None
    assert book.news().levels[1].received == 1


@pytest.mark.parametrize("is_opened", [False, True], ids=["waiting", "opened"])
def test_other_bytes_are_refused_change_nothing_and_leave_an_alarm(
    place: str, book: Book, is_opened: bool
) -> None:
    body = body_of((1, 0))
    book.receive(1, 0, OWN, body)
    if is_opened:
        drain(Publisher(DOCUMENT, book, ReadsThem()))
    before = (book.news(), waiting(book), book.published())
    for other, own in ((body[:-1] + b"\1", OWN), (body, OWN + 1), (body[:-1] + b"\1", OWN)):
        with pytest.raises(ProtocolViolation, match="another release of batch 0 of level 1"):
            book.receive(1, 0, own, other)
    assert (book.news(), waiting(book), book.published()) == before
    with closing(Book(place, DOCUMENT.digest)) as again:
        assert again.alarms() == ["another release of batch 0 of level 1"]


def test_alarms_stay_once_each_in_their_order(place: str, book: Book) -> None:
    assert book.alarms() == []
    for words in ("zebra", "ant", "zebra", "bee"):
        raise_alarm(book, words)
    with closing(Book(place, DOCUMENT.digest)) as again:
        raise_alarm(again, "ant")
        assert again.alarms() == ["zebra", "ant", "bee"]


def test_copies_that_come_at_once_are_kept_once(place: str) -> None:
    with ThreadPoolExecutor(3) as threads:
        books = [Book(place, DOCUMENT.digest) for _ in range(3)]
        for name in NAMES[:8]:
            body = body_of(name)
            new = list(threads.map(lambda one, n=name, b=body: one.receive(*n, OWN, b), books))
            assert new.count(True) == 1
        assert sum(counts.received for counts in books[0].news().levels.values()) == 8
        for book in books:
            book.close()


def test_a_book_of_another_document_is_refused(place: str, book: Book) -> None:
    receive(book, [(1, 0)])
    with pytest.raises(InvalidValue, match=f"{DOCUMENT.digest[:12]}.*bbbbbbbbbbbb"):
        Book(place, "b" * 64)
    assert waiting(book) is not None


def test_a_store_is_no_book_and_a_book_no_store(place: str, new_place: Place, book: Book) -> None:
    with pytest.raises(InvalidValue, match="not a store"):
        open_store(place, LANES, HORIZON)
    other = new_place()
    with (
        closing(open_store(other, LANES, HORIZON)),
        pytest.raises(InvalidValue, match="not a book"),
    ):
        Book(other, DOCUMENT.digest)


def test_files_that_are_no_books_give_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
        foreign.execute("CREATE TABLE book (other TEXT)")
    for name in ("junk", "foreign"):
        with pytest.raises(InvalidValue, match="book"):
            Book(tmp_path / name, DOCUMENT.digest)
    with pytest.raises(StoreUnavailable, match="No such file"):
        Book(tmp_path / "nowhere" / "book.db", DOCUMENT.digest)


def test_only_the_owner_may_read_a_book(tmp_path: Path) -> None:
    with closing(Book(tmp_path / "book.db", DOCUMENT.digest)) as book:
        receive(book, [(1, 0)])
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


# --- publishing -----------------------------------------------------------------------------------


def test_batches_in_any_order_end_at_the_same_estimate(
    book: Book, straight: tuple[list[Published], list[Summed]]
) -> None:
    order = [NAMES[i] for i in np.random.default_rng(5).permutation(len(NAMES))]
    receive(book, order)
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    drain(publisher)
    check(book)
    assert [(one.level, one.number) for one in book.sums(0, 100)] == order
    assert book.published()[-1] == straight[0][-1]
    assert sorted(book.sums(0, 100), key=repr) == sorted(straight[1], key=repr)


def test_a_restart_knows_what_was_published_and_goes_on(
    place: str, straight: tuple[list[Published], list[Summed]]
) -> None:
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES)
    before: Any = (None, [], [])
    for _ in NAMES:
        with closing(Book(place, DOCUMENT.digest)) as book:
            publisher = Publisher(DOCUMENT, book, ReadsThem())
            if before[0] is not None:
                assert (publisher.estimate, publisher.levels(), publisher.history) == before
            assert publisher.step()
            before = (publisher.estimate, publisher.levels(), publisher.history)
    with closing(Book(place, DOCUMENT.digest)) as book:
        check(book)
        assert book.published() == straight[0]
        assert not Publisher(DOCUMENT, book, ReadsThem()).step()


def test_an_estimate_has_the_keys_that_the_dashboard_reads(book: Book) -> None:
    receive(book, NAMES[:2])
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    assert (publisher.estimate, publisher.thinned(0)["t"]) == (None, [])
    drain(publisher)
    estimate = publisher.estimate
    assert estimate is not None
    assert list(estimate) == ["t", "value", "low", "high", "std", "fallback"]
    assert isinstance(estimate["value"], float)
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert publisher.history[-1] == estimate


def test_levels_count_what_came_of_their_batches(book: Book) -> None:
    receive(book, [(1, 0), (1, 1)])
    book.receive(1, 2, 0, body_of((1, 2), garbage=3))
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    drain(publisher)
    receive(book, [(1, 3), (2, 0)])
    assert publisher.follow()
    assert not publisher.follow()
    size, batches = DOCUMENT.formats.levels[0].size, DOCUMENT.formats.levels[0].batches
    assert publisher.levels()[0] == {
        "level": 1, "size": size, "batches": batches,
        "received": 4, "published": 3, "lost": 0, "own": 2 * OWN, "garbage": 3,
    }  # fmt: skip
    assert [level["received"] for level in publisher.levels()] == [4, 1, 0]


def test_a_lost_batch_is_counted_and_neither_summed_nor_missing(place: str) -> None:
    with closing(Book(place, SHARES.digest)) as book:
        lowest = SHARES.formats.levels[0]
        broken = os.urandom(lowest.batch_bytes - 1) + bytes([GARBAGE])
        book.receive(1, 0, 0, broken)
        receive(book, [(1, 1)], SHARES)
        publisher = Publisher(SHARES, book, ReadsThem(SHARES))
        assert (1, 0) not in publisher.missing()
        assert publisher.step()
        counts = book.news().levels[1]
        assert (counts.lost, counts.published, counts.received) == (1, 0, 2)
        assert (publisher.estimate, book.sums(0, 9)[0].value) == (None, None)
        for again in (publisher, Publisher(SHARES, book, ReadsThem(SHARES))):
            assert (1, 0) not in again.missing()


# --- kill -9 --------------------------------------------------------------------------------------

FEW = [(1, 0), (2, 0)]


def live_and_die(place: str, notes: str, last: int | None) -> int:
    """Receive and publish until step `last`; what is done is noted. How many steps there are."""
    steps, book = Steps(last), Book(place, DOCUMENT.digest)
    count_statements(book._database, steps)
    with Path(notes).open("a", buffering=1) as file:
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        for name in FEW:
            receive(book, [name])
            file.write(f"received {name}\n")
        while publisher.step():
            file.write(f"published {publisher.estimate}\n")
    return steps.taken


def die_at_each_step(cases: Sequence[tuple[str, str, int]]) -> list[int]:
    return [end_of_child(live_and_die, *case) for case in cases]


def test_a_kill_before_any_statement_changes_nothing_of_the_history(
    new_place: Place, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    whole = new_place()
    steps = pool.submit(live_and_die, whole, str(tmp_path / "whole"), None).result()
    assert steps > 40
    with closing(Book(whole, DOCUMENT.digest)) as book:
        check(book, FEW)
        expected = book.published()
    cases = [(new_place(), str(tmp_path / f"notes{last}"), last) for last in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    for place, notes, _ in cases:
        said = Path(notes).read_text() if Path(notes).exists() else ""
        with closing(Book(place, DOCUMENT.digest)) as book:
            publisher, before = Publisher(DOCUMENT, book, ReadsThem()), book.published()
            assert before == expected[: len(before)]
            assert len(before) >= len(set(said.splitlines()[len(FEW) :]))
            for name in FEW:
                is_new = book.receive(*name, OWN, body_of(name))
                assert not (is_new and f"received {name}" in said)
            drain(publisher)
            check(book, FEW)
            assert book.published() == expected


# --- several publishers ---------------------------------------------------------------------------


def publish_all(place: str, most: int) -> tuple[int, list[dict[str, Any]]]:
    """Open releases beside others until all are opened; how many, and the history at the end."""
    opener = ReadsThem(pause=0.02)
    with closing(Book(place, DOCUMENT.digest)) as book:
        publisher = Publisher(DOCUMENT, book, opener)
        raise_alarm(book, f"ready {os.getpid()}")
        end = time.monotonic() + 60
        while book.news().sums < most and time.monotonic() < end:
            if not publisher.step():
                time.sleep(0.01)
        publisher.follow()
        assert publisher.history[-1] == publisher.estimate
        return len(opener.opened), publisher.history


def test_processes_open_every_release_once_and_agree(
    server: Postgres, pool: ProcessPoolExecutor, straight: tuple[list[Published], list[Summed]]
) -> None:
    place = server.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        running = [pool.submit(publish_all, place, len(NAMES)) for _ in range(3)]
        while len(book.alarms()) < 3 and not any(one.done() for one in running):
            time.sleep(0.01)
        receive(book, NAMES)
        counts, histories = zip(*(one.result() for one in running), strict=True)
        assert sum(counts) == len(NAMES)
        assert min(counts) > 0
        check(book)
        assert histories[0] == histories[1] == histories[2]
        assert sorted(book.sums(0, 100), key=repr) == sorted(straight[1], key=repr)
        assert book.published()[-1] == straight[0][-1]


def test_those_who_open_the_same_release_publish_it_once(
    place: str, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[Summed]]
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
        assert publisher._taken.count == len(NAMES)
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


def test_a_release_in_hand_is_left_to_who_has_it(server: Postgres) -> None:
    place = server.new_schema()
    with (
        closing(Book(place, DOCUMENT.digest)) as book,
        closing(Book(place, DOCUMENT.digest)) as other,
        closing(Book(server.new_schema(), DOCUMENT.digest)) as elsewhere,
    ):
        for one in (book, elsewhere):
            receive(one, NAMES[:2])
        with book.claimed() as first, other.claimed() as second, book.claimed() as third:
            assert first is not None
            assert second is not None
            assert (first.place, second.place, third) == (1, 2, None)
            with elsewhere.claimed() as unrelated:
                assert unrelated is not None
                assert unrelated.place == 1
        with other.claimed() as again:
            assert again == first


def hold_and_die(place: str) -> None:
    book = Book(place, DOCUMENT.digest)
    with book.claimed() as received, Book(place, DOCUMENT.digest).claimed() as second:
        assert received is not None
        assert second is None
        os.kill(os.getpid(), signal.SIGKILL)


def ends_of_child(place: str) -> int:
    return end_of_child(hold_and_die, place)


def test_a_process_that_dies_holds_no_release(server: Postgres, pool: ProcessPoolExecutor) -> None:
    place = server.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES[:1])
        assert pool.submit(ends_of_child, place).result() == -signal.SIGKILL
        end, found = time.monotonic() + 10, None
        while found is None and time.monotonic() < end:  # the server notices in a moment
            with book.claimed() as found:
                time.sleep(0.01)
        assert found is not None


def test_lost_connections_cost_nothing(server: Postgres) -> None:
    with closing(Book(server.new_schema(), DOCUMENT.digest)) as book:
        receive(book, NAMES)
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        for step in range(len(NAMES)):
            with book.claimed():
                if step % 2:
                    end_connections(server)
            end_connections(server)
            assert publisher.step()
        check(book)


def end_connections(server: Postgres) -> None:
    server.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


def test_a_book_says_so_when_its_server_is_down_and_recovers(server: Postgres) -> None:
    place = server.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES)
        publisher = Publisher(DOCUMENT, book, ReadsThem())
        assert publisher.step()
        shown = (publisher.estimate, publisher.levels())
        server.stop()
        try:
            for act in (publisher.step, publisher.follow, publisher.missing, book.alarms):
                with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                    act()
            assert (publisher.estimate, publisher.levels()) == shown
        finally:
            server.start()
        drain(publisher)
        check(book)


# --- failures -------------------------------------------------------------------------------------

STATEMENTS = (
    "lock", "forget", "sums", "add_sum", "count", "estimate", "add_estimate", "advance", "length",
    "counts", "unopened", "unopened_after",
)  # fmt: skip


def memory_of(publisher: Publisher) -> tuple[int, Any]:
    taken = publisher._taken
    return taken.count, _latest(taken.gathered)


def check_memory(publisher: Publisher, book: Book) -> None:
    """Memory has what the first sums of the book say, and is not ahead of it."""
    count = publisher._taken.count
    sums = book.sums(0, 10**6)
    assert count <= len(sums)
    fresh = _Taken(GatheredSums(DOCUMENT.plan)).with_sums(sums[:count])
    assert memory_of(publisher) == (count, _latest(fresh.gathered))
    assert publisher._news.estimate in [None, *book.published()]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_publish_that_fails_anywhere_leaves_memory_as_the_book_is(
    book: Book,
    monkeypatch: pytest.MonkeyPatch,
    straight: tuple[list[Published], list[Summed]],
    statement: str,
) -> None:
    receive(book, NAMES)
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    truth, calls = getattr(Pages, statement), itertools.count()

    def fails(pages: Pages, *arguments: Any) -> Any:
        if next(calls) % 5 < 3:
            raise StoreUnavailable("injected")
        return truth(pages, *arguments)

    failures = 0
    for _ in range(60 * len(NAMES)):
        with monkeypatch.context() as patched:
            patched.setattr(Pages, statement, fails)
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
    book: Book, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[Summed]]
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
    book: Book, monkeypatch: pytest.MonkeyPatch, straight: tuple[list[Published], list[Summed]]
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
        assert received.place == 1
    publisher._opener = ReadsThem()
    drain(publisher)
    check(book)


# --- what should be here --------------------------------------------------------------------------


def test_batches_of_users_who_were_admitted_are_missing_until_they_come(
    place: str, book: Book
) -> None:
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    assert publisher.missing() == []
    receive(book, [(1, 0)])
    assert publisher.missing() == []
    receive(book, [(1, 3)])  # users 7 and 8
    expected = [(1, 1), (1, 2), (2, 0), (2, 1)]
    assert publisher.missing() == expected
    drain(publisher)
    assert publisher.missing() == expected
    receive(book, [(1, 1)])
    assert publisher.missing() == [(1, 2), (2, 0), (2, 1)]
    receive(book, [(3, 0)])  # users 1 to 12
    drain(publisher)
    assert publisher.missing() == [(1, 2), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)]
    receive(book, [(1, 2), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)])
    with closing(Book(place, DOCUMENT.digest)) as other:
        drain(Publisher(DOCUMENT, other, ReadsThem()))
    assert publisher._taken.count == 4  # it has not looked yet, and misses nothing
    assert publisher.missing() == []


def test_the_last_users_are_missed_in_no_batch_beyond_the_horizon(book: Book) -> None:
    receive(book, [(1, 12)])  # users 25 and 26, the last
    names = Publisher(DOCUMENT, book, ReadsThem()).missing()
    assert sorted([*names, (1, 12)]) == sorted(NAMES)


def test_a_batch_is_overdue_when_it_was_missing_long_enough(book: Book) -> None:
    publisher = Publisher(DOCUMENT, book, ReadsThem())
    receive(book, [(1, 1)])
    assert publisher.overdue(100.0, 10.0) == []
    assert publisher.overdue(109.9, 10.0) == []
    assert publisher.overdue(110.0, 10.0) == [(1, 0), (2, 0)]
    receive(book, [(1, 0), (1, 2)])
    assert publisher.overdue(111.0, 10.0) == [(2, 0)]
    receive(book, [(1, 4)])
    assert publisher.overdue(112.0, 10.0) == [(2, 0)]
    receive(book, [(2, 0)])
    assert publisher.overdue(121.9, 10.0) == []
    assert publisher.overdue(122.0, 10.0) == [(1, 3), (2, 1)]


def test_many_missing_batches_are_named_in_part_and_at_once(place: str) -> None:
    plan = coin_plan(oh.RegularTree(10**9, (2, 2, 3)), combine=True)
    document = Document(plan, KEY.public_key)
    with closing(Book(place, document.digest)) as book:
        last = (1, document.formats.levels[0].batches - 1)
        receive(book, [last], document)
        publisher = Publisher(document, book, ReadsThem(document))
        begun = time.perf_counter()
        for _ in range(2):
            assert publisher.missing() == [(1, number) for number in range(1000)]
            drain(publisher)
        assert publisher.overdue(0.0, 0.0) == publisher.missing()
        assert time.perf_counter() - begun < 5


# --- memory and history ---------------------------------------------------------------------------


def test_memory_is_as_large_after_many_batches_as_after_few(tmp_path: Path) -> None:
    plan = coin_plan(oh.RegularTree(600, (2, 2, 3)), combine=True)
    document = Document(plan, KEY.public_key)
    with closing(Book(tmp_path / "book.db", document.digest)) as book:
        publisher = Publisher(document, book, ReadsThem(document))
        kept = []
        for name in names_of(document):
            receive(book, [name], document)
            assert publisher.step()
            kept.append(publisher._taken.gathered.kept)
        assert max(kept) == max(kept[:30]) < 15
        assert len(book.published()) > 300
        lists = [value for value in vars(publisher).values() if isinstance(value, list | dict)]
        assert sum(map(len, lists)) == 0
        again = Publisher(document, book, ReadsThem(document))
        assert again._taken.gathered.kept == kept[-1]
        assert again.estimate == publisher.estimate


@pytest.mark.parametrize("count", [0, 1, 2, 499, 500, 501, 1000, 1001, 1700])
def test_a_history_is_thinned_to_even_steps_that_end_with_the_last(place: str, count: int) -> None:
    estimates = [
        Published(i, (0.1 * i, -i / 3), (0.1 * i - 1, 0.0), (0.1 * i + 1, 7.0), 1.0, False)
        for i in range(1, count + 1)
    ]

    def fill(pages: Pages) -> None:
        for number, estimate in enumerate(estimates, start=1):
            pages.add_estimate(number, estimate)
        pages.advance(0, count)

    with closing(Book(place, VECTORS.digest)) as book:
        book._write(fill)
        publisher = Publisher(VECTORS, book, ReadsThem(VECTORS))
        step = max(1, -(-count // 500))
        chosen = estimates[::-1][::step][::-1]
        assert len(chosen) <= 500
        for coordinate in (0, 1):
            assert publisher.thinned(coordinate) == {
                "t": [one.t for one in chosen],
                "value": [one.value[coordinate] for one in chosen],
                "low": [one.low[coordinate] for one in chosen],
                "high": [one.high[coordinate] for one in chosen],
            }
        assert book.published() == estimates


def test_vectors_are_shown_by_coordinate(place: str) -> None:
    with closing(Book(place, VECTORS.digest)) as book:
        receive(book, names_of(VECTORS), VECTORS)
        publisher = Publisher(VECTORS, book, ReadsThem(VECTORS))
        drain(publisher)
        estimate = publisher.estimate
        assert estimate is not None
        assert [len(estimate[name]) for name in ("value", "low", "high")] == [3, 3, 3]
        for coordinate in range(3):
            curves = publisher.thinned(coordinate)
            for name in ("value", "low", "high"):
                assert curves[name] == [one[name][coordinate] for one in publisher.history]


def test_counts_are_those_of_the_sums(book: Book) -> None:
    receive(book, NAMES)
    drain(Publisher(DOCUMENT, book, ReadsThem()))
    for level, counts in book.news().levels.items():
        sums = [one for one in book.sums(0, 100) if one.level == level]
        assert counts == Counts(len(sums), len(sums), 0, OWN * len(sums), 0)


def test_claims_are_dropped_with_the_book(server: Postgres) -> None:
    place = server.new_schema()
    with closing(Book(place, DOCUMENT.digest)) as book:
        receive(book, NAMES[:1])
        other = Book(place, DOCUMENT.digest)
        assert other._database.claim("unopened", 1)
        with book.claimed() as received:
            assert received is None
        other.close()
        with book.claimed() as received:
            assert received is not None


def test_a_postgres_address_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "overhand.service.databases.postgres", None)
    with pytest.raises(InvalidValue, match="extra `postgres`"):
        Book("postgres://nowhere", DOCUMENT.digest)


def test_a_database_of_something_else_is_no_book(server: Postgres) -> None:
    place = server.new_schema()
    with psycopg.connect(place) as connection:
        connection.execute(b"CREATE TABLE book (other TEXT)")
    with pytest.raises(InvalidValue, match="not a book"):
        Book(place, DOCUMENT.digest)
