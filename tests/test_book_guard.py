"""Noise is drawn once, where the server makes some: no second sum of a batch, and no old copy."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.mechanisms import Mechanism
from overhand.service.databases import BatchKeys, Database
from overhand.service.protocol import Batch, Release, UnsafeSecret
from overhand.service.server import Book, Publisher, ServerApp, settled_sum
from overhand.service.server.app import SERVICES_NOISE
from overhand.service.server.marks import MARK_BYTES
from overhand.service.server.running import ServerMetrics
from overhand.service.server.tables import BookTables
from support.books import DOCUMENT, Name, drain, names_of, new_book, waiting
from support.guarded import (
    BALLOTS,
    ciphertext,
    full,
    open_book,
    publisher_of,
    restore_copy,
    sealed,
    take_copy,
    values_of,
    with_ciphertexts,
)
from support.postgres import Postgres
from support.stores import Steps, Where, count_statements, end_of_child
from support.storing import Places


class Crash(BaseException):
    pass


def draw_in_turn(monkeypatch: pytest.MonkeyPatch, *noises: int) -> None:
    """What the server draws."""
    drawn = iter(noises)

    def next_one(mechanism: Mechanism, random: object, batches: int) -> Any:
        return np.array([[next(drawn)]])

    monkeypatch.setattr(Mechanism, "server_noise", next_one)


# --- noise is drawn once --------------------------------------------------------------------------


def test_of_two_who_draw_noise_for_a_batch_one_is_heard(
    where: Where, guarded: Book, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other drew is in no file of the database."""
    monkeypatch.setattr(Database, "claim", lambda self, table, key: True)
    monkeypatch.setattr(Database, "unclaim", lambda self, table, key: None)
    guarded.receive(sealed((1, 0), [1, 1]))
    draw_in_turn(monkeypatch, 10**9 + 7, 10**9 + 9)
    with closing(open_book(where)) as other:
        publishers = [publisher_of(guarded), publisher_of(other)]
        found = [publisher._summed(waited(book)) for publisher, book in zip(
            publishers, (guarded, other), strict=True
        )]  # fmt: skip
        for publisher, summed in zip(publishers, found, strict=True):
            publisher._publish(summed)
        assert guarded.sums(0, 9) == other.sums(0, 9) == [found[0]]
        assert publishers[0].estimate == publishers[1].estimate
    seen, lost = (np.float64(one.value[0]).tobytes() for one in found if one.value)
    content = b"".join(path.read_bytes() for path in places.files())
    assert (seen in content, lost in content) == (True, False)


def waited(book: Book) -> Release:
    release = waiting(book)
    assert release is not None
    return release


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize("statement", ["forget", "add_sum", "advance"])
def test_noise_that_was_drawn_before_a_crash_is_gone(
    guarded: Book, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(tables: BookTables, *arguments: Any) -> None:
        raise Crash

    guarded.receive(sealed((1, 0), [1, 1]))
    draw_in_turn(monkeypatch, 3, 5)
    with monkeypatch.context() as patch:
        patch.setattr(BookTables, statement, crash)
        with pytest.raises(Crash):
            publisher_of(guarded).step()
    again = publisher_of(guarded)
    assert (guarded.sums(0, 9), again.history, again.estimate) == ([], [], None)
    drain(again)
    assert values_of(guarded) == {Batch(1, 0): 7.0}
    assert [one["value"] for one in again.history] == [7.0]


FEW = [(1, 0), (2, 0)]


def live_and_die(where: Where, notes: str, bodies: list[bytes], last: int | None) -> int:
    """Receive and publish until step `last`; what was shown is noted. How many steps there are."""
    steps, book = Steps(last), open_book(where)
    count_statements(book._database, steps)
    assert book.guard is not None
    book.guard.keep_only = steps.counted(book.guard.keep_only)  # type: ignore[method-assign]
    with Path(notes).open("a", buffering=1) as file:
        publisher = publisher_of(book)
        for name, body in zip(FEW, bodies, strict=True):
            book.receive(Release(Batch(*name), 0, body))
        while publisher.step():
            file.write(f"{publisher.estimate}\n")
    return steps.taken


def die_at_each_step(cases: Sequence[tuple[Where, str, list[bytes], int]]) -> list[int]:
    return [end_of_child(live_and_die, *case) for case in cases]


@pytest.mark.slow
def test_after_a_kill_at_any_step_no_batch_has_two_sums_and_no_key_is_left(
    places: Places, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """What was shown stays: noise that is drawn again would show another number."""
    bodies = [full(name).body for name in FEW]
    whole = (places.new(), str(tmp_path / "whole"), bodies, None)
    steps = pool.submit(live_and_die, *whole).result()
    cases = [(places.new(), str(tmp_path / str(n)), bodies, n) for n in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    shown = 0
    for where, notes, _, _ in cases:
        said = Path(notes).read_text().splitlines() if Path(notes).exists() else []
        with closing(open_book(where)) as book:
            publisher = publisher_of(book)
            before = book.sums(0, 9)
            for name, body in zip(FEW, bodies, strict=True):
                book.receive(Release(Batch(*name), 0, body))
            drain(publisher)
            assert book.sums(0, 9)[: len(before)] == before
            assert sorted(values_of(book)) == FEW
            assert set(said) <= {str(one) for one in publisher.history}
            assert book.alarms() == []
        assert not any(map(BatchKeys(where.keys).has, map(Batch._make, FEW)))
        shown += len(said)
    assert shown


# --- old copies -----------------------------------------------------------------------------------


def publish(book: Book, names: Sequence[Name]) -> Publisher:
    publisher = publisher_of(book)
    for name in names:
        book.receive(full(name))
        drain(publisher)
    return publisher


def has(where: Where, level: int) -> list[int]:
    keys = BatchKeys(where.keys)
    return [number for number in range(15) if keys.has(Batch(level, number))]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [(1, 0)]),
        ([(1, 0), (1, 1)], [(1, 2)]),
        ([(1, 0), (1, 1)], [(1, 3)]),
        ([(1, 1)], [(1, 0)]),
        ([(1, 0)], [(2, 0)]),
    ],
    ids=["new", "next", "out of order", "late", "above"],
)
@pytest.mark.parametrize("had_come", [False, True], ids=["to come", "waiting"])
def test_an_old_copy_of_a_book_is_refused(
    where: Where, before: list[Name], after: list[Name], had_come: bool
) -> None:
    """It would draw noise again for what was published: whoever has both takes the mean."""
    late = [full(name) for name in after]
    with closing(open_book(where)) as book:
        publish(book, before)
        for release in late if had_come else []:
            book.receive(release)
        take_copy(book)
        for release in late:
            book.receive(release)
        drain(publisher_of(book))
        restore_copy(book)
    with closing(open_book(where)) as old:
        with pytest.raises(InvalidValue, match="the book is older than .* run `overhand settle`"):
            publisher_of(old)
        if had_come:
            with pytest.raises(ProtocolViolation, match="the book is older than its keys"):
                waiting(old)
        else:
            with pytest.raises(ProtocolViolation, match="came again: the book is older"):
                old.receive(late[0])
            assert len(old.alarms()) == 1
        assert len(old.sums(0, 9)) == len(before)


def test_an_old_copy_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "book.db"
    with closing(new_book(BALLOTS, path)) as book:
        publish(book, [(1, 0)])
    shutil.copy(path, old := tmp_path / "old.db")
    with closing(Book.of(BALLOTS, path)) as book:
        publish(book, [(1, 1)])
    shutil.copy(old, path)
    with (
        closing(Book.of(BALLOTS, path)) as book,
        pytest.raises(InvalidValue, match="older than its keys"),
    ):
        publisher_of(book)


def test_no_release_can_be_read_without_its_key(places: Places) -> None:
    release = full((1, 0))
    with closing(open_book(places.new())) as book:
        book.receive(release)
        content = b"".join(path.read_bytes() for path in places.files())
        rows = [ciphertext(release, place) for place in range(16)]
        assert not [row for row in rows if row[MARK_BYTES:] in content]
        assert waiting(book) == release


def test_batches_that_come_late_still_have_a_key(where: Where, guarded: Book) -> None:
    publish(guarded, [(1, 2), (1, 4), (1, 5), (2, 1)])
    assert has(where, 1) == [0, 1, 3, *range(6, 15)]
    assert has(where, 2) == [0, *range(2, 15)]
    publish(guarded, [(1, 3), (1, 0), (2, 0), (1, 1)])
    assert (has(where, 1)[0], has(where, 2)[0], has(where, 3)[0]) == (6, 2, 0)
    assert len(values_of(guarded)) == 8


def test_those_who_hold_batches_back_hold_up_later_ones(
    where: Where, guarded: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here two keys are kept one by one: with 0, 1 and 3 to come, that of 4 could not be destroyed.

    A copy from before 4 was opened would be taken for the book.
    """
    monkeypatch.setattr("overhand.service.server.publishing.MOST_HELD", 2)
    publish(guarded, [(1, number) for number in (8, 4, 2, 5)])
    assert sorted(values_of(guarded)) == [(1, 2)]
    publish(guarded, [(1, 0)])
    assert sorted(values_of(guarded)) == [(1, n) for n in (0, 2, 4, 5)]
    assert has(where, 1) == [1, 3, *range(6, 15)]
    publish(guarded, [(1, 1), (1, 3)])
    assert sorted(values_of(guarded)) == [(1, n) for n in (0, 1, 2, 3, 4, 5, 8)]
    assert has(where, 1) == [6, 7, *range(9, 15)]


def test_all_batches_in_any_order_leave_no_key(where: Where, guarded: Book) -> None:
    names = names_of(BALLOTS)
    order = [names[i] for i in np.random.default_rng(3).permutation(len(names))]
    publish(guarded, order)
    assert sorted(values_of(guarded)) == sorted(names)
    assert not any(map(BatchKeys(where.keys).has, map(Batch._make, names)))


@pytest.mark.parametrize("is_restarted", [True, False])
def test_nothing_is_shown_before_the_key_is_destroyed(
    where: Where, guarded: Book, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(keys: BatchKeys, needed: Any) -> None:
        if 0 not in needed[1]:
            raise Crash

    publisher = publisher_of(guarded)
    guarded.receive(full((1, 0)))
    with monkeypatch.context() as patch:
        patch.setattr(BatchKeys, "keep_only", crash)
        with pytest.raises(Crash):
            publisher.step()
        assert (publisher.estimate, publisher.thinned(0)["t"]) == (None, [])
        with closing(open_book(where)) as other, pytest.raises(Crash):
            publisher_of(other)
    assert (has(where, 1)[0], len(guarded.sums(0, 9))) == (0, 1)
    if is_restarted:
        publisher = publisher_of(guarded)
    else:
        assert publisher.follow()
    assert publisher.estimate is not None
    assert has(where, 1)[0] == 1


def test_a_release_that_another_published_since_it_was_read_is_left(
    where: Where, guarded: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.receive(full((1, 0)))
    read = guarded._read

    def overtaken(work: Callable[[Any], Any]) -> Any:
        found = read(work)
        if isinstance(found, Release):
            with closing(open_book(where)) as other, monkeypatch.context() as patch:
                patch.setattr(Database, "claim", lambda self, table, key: True)
                drain(publisher_of(other))
            assert guarded.guard is not None
            guarded.guard.keep_only({1: [1], 2: [0], 3: [0]})  # as another thread does
        return found

    monkeypatch.setattr(guarded, "_read", overtaken)
    assert waiting(guarded) is None


# --- opening a book -------------------------------------------------------------------------------


def test_a_book_without_its_guard_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "book.db"
    with closing(new_book(BALLOTS, path)) as book:
        publisher = publish(book, [(1, 0)])
    assert publisher.estimate is not None
    assert settled_sum(BALLOTS, str(path)).value == (publisher.estimate["value"],)
    with closing(Book(path, BALLOTS.digest)) as read:
        assert len(read.sums(0, 9)) == 1
        with pytest.raises(InvalidValue, match="it can only be read"):
            read.receive(full((1, 1)))
        with pytest.raises(InvalidValue, match="its book needs a guard"):
            publisher_of(read)


def test_a_book_needs_the_keys_it_was_made_with(places: Places) -> None:
    where, other = places.new(), places.new()
    for one in (where, other):
        open_book(one).close()
    with pytest.raises(InvalidValue, match="has the keys of another book"):
        Book.of(BALLOTS, where.place, keys=other.keys)
    with pytest.raises(UnsafeSecret, match="no file .* with the keys of the book"):
        Book.of(BALLOTS, where.place, keys=where.keys.with_name("nowhere.keys"))
    open_book(where).close()


def test_keys_have_a_place_of_their_own_beside_a_file_only(
    postgres: Postgres, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match="--book-keys"):
        Book.of(BALLOTS, postgres.new_schema())
    with pytest.raises(InvalidValue, match="users make the noise of this plan"):
        Book.of(DOCUMENT, tmp_path / "book.db", keys=tmp_path / "book.keys")
    for document, name in ((BALLOTS, "book.db"), (DOCUMENT, "users.db")):
        new_book(document, tmp_path / name).close()
    assert [path.name for path in tmp_path.glob("*.keys")] == ["book.db.keys"]


def test_the_server_says_who_makes_the_noise_and_what_came_twice(tmp_path: Path) -> None:
    with closing(new_book(BALLOTS, tmp_path / "book.db")) as book:
        release = full((1, 0))
        book.receive(with_ciphertexts(release, {1: ciphertext(release, 0)}))
        app = ServerApp(BALLOTS, book, publisher_of(book), [])
        status, metrics = app.status(), ServerMetrics(app).current().decode()
    assert status["guarantee"]["noise_by"] == "services"
    assert status["trust"].endswith(SERVICES_NOISE)
    assert (status["levels"][0]["repeats"], status["healthy"]) == (1, False)
    assert 'overhand_repeats{level="1"} 1.0' in metrics
    with closing(Book.of(DOCUMENT, tmp_path / "users.db")) as book:
        status = ServerApp(DOCUMENT, book, publisher_of(book, DOCUMENT), []).status()
    assert status["guarantee"]["noise_by"] == "users"
    assert SERVICES_NOISE not in status["trust"]
