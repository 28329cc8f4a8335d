"""Keys that are destroyed with their batch: when a copy of a store tells nothing any more."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.deploy.databases import batch_keys
from overhand.deploy.databases.batch_keys import MOST_HELD, BatchKeys, KeyGone
from overhand.deploy.protocol.keys import UnsafeSecret
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.batching import Outcome, Piece
from overhand.deploy.shuffler.store import Store, StoreTables
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
    arrival,
    freeze,
    id_of,
    message,
    messages_in,
    open_store,
    report,
    users_in,
)

LEVELS = (1, 2)
DIGEST = bytes(32)
CLOSED = Outcome.CLOSED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.keys"


@pytest.fixture
def keys(path: Path) -> BatchKeys:
    return BatchKeys.create(path, LEVELS, DIGEST)


# --- sealing --------------------------------------------------------------------------------------


@given(body=st.binary(max_size=200), number=st.integers(0, 300), own=st.integers(0, 9))
def test_what_is_sealed_opens_in_every_process(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, number: int, own: int
) -> None:
    path, name = tmp_path_factory.mktemp("keys") / "store.keys", Batch(2, number)
    sealed = BatchKeys.create(path, LEVELS, DIGEST).seal(name, own, body)
    assert BatchKeys(path).open(name, own, sealed) == body


def test_what_was_moved_changed_or_cut_does_not_open(keys: BatchKeys) -> None:
    name, body = Batch(1, 7), b"messages"
    sealed = keys.seal(name, 2, body)
    for other, own in ((Batch(1, 6), 2), (Batch(1, 8), 2), (Batch(2, 7), 2), (name, 3)):
        with pytest.raises(ProtocolViolation, match="not what was stored"):
            keys.open(other, own, sealed)
    flipped = [
        sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        for place in range(len(sealed))
    ]
    for wrong in (*flipped, *(sealed[:length] for length in range(len(sealed)))):
        with pytest.raises(ProtocolViolation, match="not what was stored"):
            keys.open(name, 2, wrong)
    assert keys.open(name, 2, sealed) == body
    assert keys.seal(name, 2, body) != sealed


def test_a_mark_is_known_again_by_these_keys_alone(keys: BatchKeys, path: Path) -> None:
    other = BatchKeys.create(path.with_name("other.keys"), LEVELS, DIGEST)
    assert keys.mark(b"report", b"x") == BatchKeys(path).mark(b"report", b"x")
    marks = [keys.mark(b"report", b"x"), keys.mark(b"token", b"x"), keys.mark(b"report", b"y")]
    assert len({*marks, other.mark(b"report", b"x")}) == 4
    assert keys.name != other.name


# --- destruction ----------------------------------------------------------------------------------


def chain(path: Path, level: int, count: int) -> list[bytes]:
    """The first keys of a level, from a file that nobody moved on."""
    saved = batch_keys._parse(path.read_bytes(), path).levels[level].first
    assert saved.number == 0
    found = [saved.key]
    while len(found) < count:
        found.append(hmac.digest(found[-1], b"next", "sha256"))
    return found


def firsts(keys: BatchKeys) -> dict[int, int]:
    """By level, the first batch from which on there are all keys."""
    gone = {level: [n for n in range(50) if not keys.has(Batch(level, n))] for level in LEVELS}
    return {level: max(numbers, default=-1) + 1 for level, numbers in gone.items()}


def test_destroyed_keys_are_nowhere_and_later_ones_still_are(keys: BatchKeys, path: Path) -> None:
    links = chain(path, 1, 9)
    sealed = {name: keys.seal(name, 0, b"x") for name in (Batch(1, n) for n in range(9))}
    kept = keys.seal(Batch(2, 0), 0, b"x")
    size = path.stat().st_size
    keys.keep_only({1: {5}, 2: {0}})
    content = path.read_bytes()
    assert [link in content for link in links[:6]] == [False] * 5 + [True]
    assert (len(content), path.stat().st_mode & 0o777) == (size, 0o600)
    for one in (keys, BatchKeys(path)):
        assert firsts(one) == {1: 5, 2: 0}
        for name, one_sealed in sealed.items():
            if name.number < 5:
                with pytest.raises(KeyGone, match=f"batch {name.number} is gone"):
                    one.open(name, 0, one_sealed)
            else:
                assert one.open(name, 0, one_sealed) == b"x"
        assert one.open(Batch(2, 0), 0, kept) == b"x"


def test_batches_that_wait_do_not_keep_the_keys_of_later_ones(keys: BatchKeys, path: Path) -> None:
    sealed = {number: keys.seal(Batch(1, number), 0, b"x") for number in range(9)}
    links = chain(path, 1, 9)
    keys.keep_only({1: {2, 5, 8}, 2: {0}})
    kept = path.read_bytes()
    assert [number for number in range(9) if links[number] in kept] == [8]
    for one in (keys, BatchKeys(path)):
        for number, one_sealed in sealed.items():
            if number in (2, 5, 8):
                assert one.open(Batch(1, number), 0, one_sealed) == b"x"
            else:
                with pytest.raises(KeyGone):
                    one.open(Batch(1, number), 0, one_sealed)
    keys.keep_only({1: {5, 9}, 2: {0}})
    assert [n for n in range(12) if keys.has(Batch(1, n))] == [5, 9, 10, 11]


def test_of_many_that_wait_only_the_first_have_their_keys_alone(keys: BatchKeys) -> None:
    waiting = range(0, 100, 2)
    keys.keep_only({1: {*waiting, 101}, 2: {0}})
    kept = [number for number in range(102) if keys.has(Batch(1, number))]
    alone = list(waiting[:MOST_HELD])
    assert kept == [*alone, *range(alone[-1] + 2, 102)]
    keys.keep_only({1: {0, 90, 101}, 2: {0}})
    assert [n for n in range(102) if keys.has(Batch(1, n))] == [0, 90, 101]


numbers_needed = st.sets(st.integers(0, 40), min_size=1, max_size=25)


@given(steps=st.lists(st.tuples(st.integers(0, 2), numbers_needed), max_size=6))
def test_whatever_several_processes_need_no_key_is_lost_and_none_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, set[int]]]
) -> None:
    """Each is told at some time what is needed then: ever less of the old, ever more of the new."""
    path = tmp_path_factory.mktemp("keys") / "store.keys"
    processes = [BatchKeys.create(path, LEVELS, DIGEST), BatchKeys(path), BatchKeys(path)]
    reference = BatchKeys(path)
    needed, frontier, gone = set(range(41)), 0, set[int]()
    for process, numbers in steps:
        frontier = max(frontier, max(numbers))
        needed = {n for n in needed if n in numbers or n >= frontier}
        processes[process].keep_only({1: {n for n in needed if n <= frontier}, 2: {0}})
        now = BatchKeys(path)
        for number in range(41):
            name = Batch(1, number)
            if number in needed:
                sealed = reference.seal(name, 0, b"x")
                assert now.open(name, 0, sealed) == b"x" == processes[process].open(name, 0, sealed)
            elif not now.has(name):
                gone.add(number)
        assert not any(now.has(Batch(1, number)) for number in gone)


def test_nobody_brings_a_destroyed_key_back(keys: BatchKeys, path: Path) -> None:
    late = BatchKeys(path)
    keys.keep_only({1: {5}, 2: {1}})
    late.keep_only({1: {3}, 2: {2}})
    assert firsts(late) == firsts(BatchKeys(path)) == {1: 5, 2: 2}
    keys.keep_only({1: {4}, 2: {0}})
    assert firsts(BatchKeys(path)) == {1: 5, 2: 2}


def test_a_file_that_was_exchanged_is_brought_forward_or_left_alone(
    keys: BatchKeys, path: Path
) -> None:
    old = path.read_bytes()
    keys.keep_only({1: {5}, 2: {1}})
    path.write_bytes(old)
    keys.keep_only({1: {4}, 2: {2}})
    assert firsts(BatchKeys(path)) == {1: 5, 2: 2}
    BatchKeys.create(other := path.with_name("other.keys"), LEVELS, DIGEST)
    shutil.copy(other, path)
    with pytest.raises(UnsafeSecret, match="now has other keys"):
        keys.keep_only({1: {6}, 2: {2}})
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("writes", range(5))
def test_a_crash_while_the_file_is_written_leaves_keys_that_do(
    keys: BatchKeys, path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a record is written before the crash, of the first or of the second."""
    sealed, done = keys.seal(Batch(1, 6), 0, b"x"), list[Any]()

    class Crash(BaseException):
        pass

    def step(function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(file: int, *arguments: Any) -> Any:
            if len(done) == writes:
                if arguments:
                    record, place = arguments
                    function(file, record[: len(record) // 2], place)
                raise Crash
            done.append(function(file, *arguments))

        return stepped

    with monkeypatch.context() as patch:
        for name in ("pwrite", "fsync"):
            patch.setattr(os, name, step(getattr(os, name)))
        if writes < 4:
            with pytest.raises(Crash):
                keys.keep_only({1: {6}, 2: {0}})
        else:
            keys.keep_only({1: {6}, 2: {0}})
    again = BatchKeys(path)
    assert firsts(again)[1] == (0 if writes == 0 else 6)
    assert again.open(Batch(1, 6), 0, sealed) == b"x"
    again.keep_only({1: {6}, 2: {0}})
    half = path.stat().st_size // 2
    assert path.read_bytes()[:half] == path.read_bytes()[half:]


def test_files_that_hold_no_keys_are_refused(keys: BatchKeys, path: Path) -> None:
    whole = path.read_bytes()
    for wrong in (b"", b"junk" * 40, whole[:-1], whole[: len(whole) // 2], bytes(len(whole))):
        path.write_bytes(wrong)
        with pytest.raises(UnsafeSecret, match="does not hold the keys of batches"):
            BatchKeys(path)
        with pytest.raises(UnsafeSecret, match="does not hold the keys of batches"):
            keys.keep_only({1: {1}, 2: {0}})
    path.write_bytes(whole)
    path.chmod(0o640)
    with pytest.raises(UnsafeSecret, match="accessed by others"):
        BatchKeys(path)
    path.unlink()
    with pytest.raises(UnsafeSecret, match="No such file"):
        keys.keep_only({1: {1}, 2: {0}})
    assert firsts(keys) == {1: 0, 2: 0}, "what is not destroyed in the file is kept here"


# --- what a store does with them ------------------------------------------------------------------


def rows(store: Store, level: int) -> list[tuple[Batch, int, bytes]]:
    """What the database has, as it has it."""
    statement = f"SELECT number, own, body FROM messages_{level}"
    found = store._database.read(lambda reading: reading.rows(statement))
    return [(Batch(level, number), own, body) for number, own, body in found]


def send(store: Store, *names: Batch) -> None:
    for name in names:
        store.acknowledge_all({name: freeze(store, name).digest})
    store.scrub()


def test_a_copy_from_before_a_batch_was_frozen_is_beyond_reach(
    where: Where, store: Store, tmp_path: Path
) -> None:
    admit(store, range(1, 4))
    pieces = rows(store, 1)
    shutil.copy(where.keys, stolen := tmp_path / "stolen.keys")
    release = freeze(store, Batch(1, 0))
    assert freeze(store, Batch(1, 0)) == release, "which takes no key"
    now = BatchKeys(where.keys)
    for name, own, sealed in pieces:
        assert BatchKeys(stolen).open(name, own, sealed), "with the keys of then it can be read"
        if name.number == 0:
            with pytest.raises(KeyGone):
                now.open(name, own, sealed)
    assert sorted(name.number for name, _, _ in pieces) == [0, 1]
    (open_batch,) = [one for one in pieces if one[0].number == 1]
    whole = sorted(message(3, SHAPES[0], place) for place in range(2))
    assert sorted(messages_in(now.open(*open_batch), SHAPES[0])) == whole


def left(where: Where, level: int) -> list[int]:
    """The batches of a level whose keys are there, of the first nine."""
    keys = BatchKeys(where.keys)
    return [number for number in range(9) if keys.has(Batch(level, number))]


def test_keys_of_batches_that_are_not_frozen_stay(where: Where, store: Store) -> None:
    admit(store, range(1, 14))
    send(store, Batch(1, 1), Batch(1, 2), Batch(2, 0))
    assert left(where, 1) == [0, 3, 4, 5, 6, 7, 8]
    assert left(where, 2) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(freeze(store, Batch(1, 0)).body) == SHAPES[0].size * SHAPES[0].part_bytes
    send(store, *store.full())
    assert left(where, 1) == [6, 7, 8]
    assert left(where, 2) == [2, 3, 4, 5, 6, 7, 8]


def test_when_the_plan_is_over_nothing_is_left(where: Where, store: Store) -> None:
    admit(store, range(1, HORIZON))
    store.scrub()
    assert rows(store, 2), "the plan is not over"
    admit(store, [HORIZON])
    store.scrub()
    assert {name.number for name, _, _ in rows(store, 2)} == {0, 1}, "no third one can be filled"
    send(store, *store.full())
    assert (rows(store, 1), rows(store, 2), store.full()) == ([], [], [])
    assert (left(where, 1)[0], left(where, 2)[0]) == (8, 3)
    assert admit(store, [1, HORIZON + 1]) == [REPEATED, CLOSED]


def test_keys_are_destroyed_although_the_files_cannot_be_swept(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(database: object, tables: object) -> None:
        raise StoreUnavailable("somebody reads")

    admit(store, [1, 2, 3])
    monkeypatch.setattr(type(store._database), "sweep", busy)
    with pytest.raises(StoreUnavailable, match="somebody reads"):
        send(store, Batch(1, 0))
    assert left(where, 1)[0] == 1
    monkeypatch.undo()
    assert store.scrub() == 1


def test_a_process_that_sends_nothing_destroys_its_keys_too(where: Where, store: Store) -> None:
    with closing(where.open()) as idle:
        admit(idle, [1, 2, 3])
        send(store, Batch(1, 0))
        assert firsts(idle._keys) == {1: 0, 2: 0}
        assert idle.scrub() == 0
        assert firsts(idle._keys) == {1: 1, 2: 0}
        assert admit(idle, [4]) == [ADMITTED]
        assert len(freeze(store, Batch(1, 1)).body) == SHAPES[0].size * SHAPES[0].part_bytes


def test_who_loses_a_key_to_one_who_was_faster_reads_the_release(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, [1, 2, 3])
    look, first = StoreTables.pieces, list[Release]()

    def overtaken(tables: StoreTables, name: Batch) -> Iterator[Piece]:
        monkeypatch.setattr(StoreTables, "pieces", look)
        with closing(where.open()) as faster:
            first.append(freeze(faster, name))
        store._keys.keep_only({1: {1}, 2: {0}})  # as another thread does
        return look(tables, name)

    monkeypatch.setattr(StoreTables, "pieces", overtaken)
    assert [freeze(store, Batch(1, 0))] == first


def test_a_database_that_was_rolled_back_gives_one_clear_error(store: Store) -> None:
    """Its pieces are there and their keys are not: nothing is sent, and nothing comes to them."""
    admit(store, [1, 2, 3])
    store._keys.keep_only({1: {2}, 2: {1}})
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="not frozen: the database is older than its"):
            freeze(store, Batch(1, 0))
    with pytest.raises(KeyGone):
        admit(store, [4])
    assert (store.arrived, store.full()) == (3, [Batch(1, 0)])


class Crash(BaseException):
    pass


def crash(keys: BatchKeys, needed: object) -> None:
    raise Crash


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.crash
def test_a_key_that_a_crash_left_is_destroyed_before_anything_is_sent(
    where: Where, store: Store, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, [1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(BatchKeys, "keep_only", crash)
        with pytest.raises(Crash):
            freeze(store, Batch(1, 0))
    assert left(where, 1)[0] == 0
    if is_restarted:
        where.open().close()
    else:
        assert users_in(freeze(store, Batch(1, 0)).body, SHAPES[0]) == [1, 2]
    assert left(where, 1)[0] == 1


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "mutant"])
def test_no_message_is_in_the_files_before_its_batch_is_frozen(
    places: Places, is_sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_sealed:
        monkeypatch.setattr(BatchKeys, "seal", lambda keys, name, own, body: body)
    first = 800_000 if is_sealed else 810_000  # the files of one server keep what the mutant left
    name = re.compile(rb"%d\d{4}\.\d\.\d{3}" % (first // 10_000))

    def found() -> set[bytes]:
        return {one for path in places.files() for one in name.findall(path.read_bytes())}

    with closing(places.new().open(TRACED, 10**6)) as store:
        store.admit([report(user, levels=TRACED) for user in range(first, first + 70)])
        assert bool(found()) == (not is_sealed)
        if is_sealed:  # what is kept after that is what the server gets
            release = messages_in(freeze(store, Batch(1, 0)).body, TRACED[0])
            assert found() <= {one[:12] for one in release}


def test_nobody_can_try_which_messages_make_up_a_report(store: Store) -> None:
    sent = report(1, b"t" * 32)
    store.admit([sent])
    marks = store._database.read(lambda reading: reading.rows("SELECT mark FROM seen"))
    kept = b"".join(mark for (mark,) in marks)
    parts = [hashlib.sha256(part).digest()[:8] for part in sent.parts]
    assert not [guess for guess in (sent.id, *parts, b"t" * 16) if guess in kept]


def test_what_is_kept_of_a_report_says_nothing_of_its_parts(store: Store) -> None:
    """Else whoever has the keys could try a share in the clear against the server's seeds."""
    one, other = report(1, b"t" * 32), arrival(report(2).parts, b"t" * 32, id=id_of(1))
    marks = [each.marks(store._keys) for each in (one, other)]
    assert marks[0] == marks[1]
    store.admit([one])
    rows = store._database.read(lambda reading: reading.rows("SELECT mark FROM seen"))
    assert {mark for (mark,) in rows} == set(marks[0])


def test_pieces_that_somebody_changed_are_not_released(store: Store) -> None:
    admit(store, [1, 2, 3])
    store._database.write(lambda writing: writing.change("UPDATE messages_1 SET own = own + 1"))
    with pytest.raises(ProtocolViolation, match="not what was stored"):
        freeze(store, Batch(1, 0))


def test_a_release_that_somebody_changed_is_not_sent(store: Store) -> None:
    admit(store, [1, 2, 3])
    body = freeze(store, Batch(1, 0)).body
    changed = bytes([body[0] ^ 1]) + body[1:]
    store._database.write(lambda writing: writing.change("UPDATE bodies SET body = ?", changed))
    with pytest.raises(ProtocolViolation, match="sent of batch 0 of level 1 is not what was"):
        freeze(store, Batch(1, 0))


# --- a store opens with its own keys only ---------------------------------------------------------


def test_an_old_copy_of_a_store_is_refused(tmp_path: Path) -> None:
    where = Where("sqlite", str(tmp_path / "store.db"))
    with closing(where.open()) as store:
        admit(store, [1, 2, 3])
    shutil.copy(where.place, old := tmp_path / "old.db")
    with closing(where.open()) as store:
        send(store, Batch(1, 0))
    shutil.copy(old, where.place)
    with pytest.raises(InvalidValue, match="older than its keys"):
        where.open()


def test_a_copy_from_within_the_open_batch_lacks_what_came_since_and_no_more(
    tmp_path: Path,
) -> None:
    """No key has gone since, so it is not refused; what came since was in no release."""
    where = Where("sqlite", str(tmp_path / "store.db"))
    with closing(where.open()) as store:
        admit(store, [1, 2, 3, 4])
        send(store, Batch(1, 0))
    shutil.copy(where.place, old := tmp_path / "old.db")
    with closing(where.open()) as store:
        admit(store, [5])
    shutil.copy(old, where.place)
    with closing(where.open()) as store:
        assert store.arrived == 4
        assert store.admit([report(5), report(4)]) == [Outcome.ADMITTED, Outcome.REPEATED]


def test_two_stores_never_share_their_keys(places: Places) -> None:
    """What is said to those who have lost a store does not lead to a second one."""
    where, other = places.new(), places.new()
    with closing(where.open()) as store:
        with pytest.raises(InvalidValue, match="served before.* `overhand prepare` a new") as said:
            open_store(other.place, SHAPES, HORIZON, where.keys)
        assert "new keys" not in str(said.value)
        with pytest.raises(InvalidValue, match="another document's store: .* --store-keys"):
            open_store(other.place, SHAPES, HORIZON, where.keys, "b" * 64)
        admit(store, [1])
    where.open().close()
    other.open().close()


def test_files_side_by_side_have_keys_of_their_own(tmp_path: Path) -> None:
    for name in ("week.46", "week.47"):
        open_store(tmp_path / name, SHAPES, HORIZON).close()
    assert {path.name for path in tmp_path.glob("*.keys")} == {"week.46.keys", "week.47.keys"}


def test_a_store_needs_the_keys_it_was_made_with(places: Places) -> None:
    where, other = places.new(), places.new()
    with closing(where.open()), closing(other.open()):
        pass
    with pytest.raises(InvalidValue, match="keys of another store"):
        open_store(where.place, SHAPES, HORIZON, other.keys)
    with pytest.raises(UnsafeSecret, match="if another machine has the same store, copy its file"):
        open_store(where.place, SHAPES, HORIZON, where.keys.with_name("nowhere.keys"))
    assert not where.keys.with_name("nowhere.keys").exists()
    where.open().close()


def test_keys_for_other_levels_are_refused(places: Places) -> None:
    where = places.new()
    BatchKeys.create(where.keys, (1,), DIGEST)
    with pytest.raises(InvalidValue, match="keys of another store"):
        where.open()


def test_keys_of_a_store_that_was_never_finished_are_used(places: Places) -> None:
    where = places.new()
    name = BatchKeys.create(where.keys, LEVELS, DIGEST).name
    with closing(where.open()) as store:
        assert store._keys.name == name
        assert admit(store, [1]) == [ADMITTED]


def test_in_postgresql_the_keys_have_no_place_of_their_own(postgres: Postgres) -> None:
    with pytest.raises(InvalidValue, match="needs a file for its keys"):
        open_store(postgres.new_schema(), SHAPES, HORIZON)
