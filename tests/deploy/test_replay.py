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

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.databases.database import Database
from overhand.deploy.protocol.keys import UnsafeSecret
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.app import SERVICES_NOISE, ServerApp, ServerMetrics
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.replay import MARK_BYTES, NOISE_LEVEL
from overhand.deploy.server.running import settled_sum
from overhand.deploy.server.store import ServerStore
from overhand.errors import InvalidValue, ProtocolViolation
from support.database_fixtures import Places
from support.postgres import Postgres
from support.sealed_releases import (
    BALLOTS,
    ciphertext,
    full,
    open_database,
    publisher_of,
    restore_copy,
    take_copy,
    values_of,
    with_ciphertexts,
)
from support.server_stores import (
    DOCUMENT,
    KEY,
    Name,
    drain,
    history_of,
    names_of,
    new_database,
    waiting,
)
from support.store_processes import Steps, Where, count_statements, end_of_child


class Crash(BaseException):
    pass


# --- noise is drawn once --------------------------------------------------------------------------

FEW = [(1, 0), (1, 1)]


def live_and_die(where: Where, notes: str, bodies: list[bytes], last: int | None) -> int:
    """Receive and publish until step `last`; what was shown is noted. How many steps there are."""
    steps, database = Steps(last), open_database(where)
    count_statements(database._database, steps)
    assert database.protection is not None
    database.protection.keys.keep_only = steps.counted(database.protection.keys.keep_only)  # type: ignore[method-assign]
    with Path(notes).open("a", buffering=1) as file:
        publisher = publisher_of(database)
        for name, body in zip(FEW, bodies, strict=True):
            database.receive(Release(Batch(*name), 0, body))
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
        with closing(open_database(where)) as database:
            publisher = publisher_of(database)
            before = database.sums(0, 9)
            for name, body in zip(FEW, bodies, strict=True):
                database.receive(Release(Batch(*name), 0, body))
            drain(publisher)
            assert database.sums(0, 9)[: len(before)] == before
            assert sorted(values_of(database)) == FEW
            assert set(said) <= {str(one) for one in history_of(publisher)}
            assert database.alarms() == []
        assert not any(map(BatchKeys(where.keys).has, map(Batch._make, FEW)))
        shown += len(said)
    assert shown


# --- old copies -----------------------------------------------------------------------------------


def impatient(database: ServerStore) -> Publisher:
    """Nothing waits for its turn, unless its key could not be destroyed."""
    return Publisher(BALLOTS, database, Opener(KEY, BALLOTS.formats.digest), patience=0.0)


def publish(database: ServerStore, names: Sequence[Name]) -> Publisher:
    publisher = impatient(database)
    for name in names:
        database.receive(full(name))
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
    ],
    ids=["new", "next", "out of order", "late"],
)
@pytest.mark.parametrize("had_come", [False, True], ids=["to come", "waiting"])
def test_an_old_copy_of_a_database_is_refused(
    where: Where, before: list[Name], after: list[Name], had_come: bool
) -> None:
    """It would draw noise again for what was published: whoever has both takes the mean."""
    late = [full(name) for name in after]
    with closing(open_database(where)) as database:
        publish(database, before)
        for release in late if had_come else []:
            database.receive(release)
        take_copy(database)
        for release in late:
            database.receive(release)
        drain(impatient(database))
        restore_copy(database)
    with closing(open_database(where)) as old:
        with pytest.raises(
            InvalidValue, match="the database is older than .* run `overhand settle`"
        ):
            publisher_of(old)
        if had_come:
            with pytest.raises(ProtocolViolation, match="the database is older than its keys"):
                waiting(old)
        else:
            with pytest.raises(ProtocolViolation, match="came again: the database is older"):
                old.receive(late[0])
            assert len(old.alarms()) == 1
        assert len(old.sums(0, 9)) == len(before)


def test_an_old_copy_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "database.db"
    with closing(new_database(BALLOTS, path)) as database:
        publish(database, [(1, 0)])
    shutil.copy(path, old := tmp_path / "old.db")
    with closing(ServerStore.of(BALLOTS, path)) as database:
        publish(database, [(1, 1)])
    shutil.copy(old, path)
    with (
        closing(ServerStore.of(BALLOTS, path)) as database,
        pytest.raises(InvalidValue, match="older than its keys"),
    ):
        publisher_of(database)


def test_no_release_can_be_read_without_its_key(places: Places) -> None:
    release = full((1, 0))
    with closing(open_database(places.new())) as database:
        database.receive(release)
        content = b"".join(path.read_bytes() for path in places.files())
        rows = [ciphertext(release, place) for place in range(16)]
        assert not [row for row in rows if row[MARK_BYTES:] in content]
        assert waiting(database) == release


def test_batches_that_come_late_still_have_a_key(where: Where, protected: ServerStore) -> None:
    publish(protected, [(1, 2), (1, 4), (1, 5)])
    assert has(where, 1) == [0, 1, 3, *range(6, 15)]
    assert has(where, NOISE_LEVEL) == [*range(3, 15)]
    publish(protected, [(1, 3), (1, 0), (1, 1)])
    assert (has(where, 1)[0], has(where, NOISE_LEVEL)[0]) == (6, 6)
    assert len(values_of(protected)) == 6


def test_those_who_hold_batches_back_hold_up_later_ones(
    where: Where, protected: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here two keys are kept one by one: with 0, 1 and 3 to come, that of 4 could not be destroyed.

    A copy from before 4 was opened would be taken for the database.
    """
    monkeypatch.setattr("overhand.deploy.server.publishing.MOST_HELD", 2)
    publish(protected, [(1, number) for number in (8, 4, 2, 5)])
    assert sorted(values_of(protected)) == [(1, 2)]
    publish(protected, [(1, 0)])
    assert sorted(values_of(protected)) == [(1, n) for n in (0, 2, 4, 5)]
    assert has(where, 1) == [1, 3, *range(6, 15)]
    publish(protected, [(1, 1), (1, 3)])
    assert sorted(values_of(protected)) == [(1, n) for n in (0, 1, 2, 3, 4, 5, 8)]
    assert has(where, 1) == [6, 7, *range(9, 15)]


def test_all_batches_in_any_order_leave_no_key(where: Where, protected: ServerStore) -> None:
    names = names_of(BALLOTS)
    order = [names[i] for i in np.random.default_rng(3).permutation(len(names))]
    publish(protected, order)
    assert sorted(values_of(protected)) == sorted(names)
    assert not any(map(BatchKeys(where.keys).has, map(Batch._make, names)))


@pytest.mark.parametrize("is_restarted", [True, False])
def test_nothing_is_shown_before_the_key_is_destroyed(
    where: Where, protected: ServerStore, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(keys: BatchKeys, needed: Any) -> None:
        if 0 not in needed[1]:
            raise Crash

    publisher = publisher_of(protected)
    protected.receive(full((1, 0)))
    with monkeypatch.context() as patch:
        patch.setattr(BatchKeys, "keep_only", crash)
        with pytest.raises(Crash):
            publisher.step()
        assert (publisher.estimate, publisher.thin(0)["t"]) == (None, [])
        assert publisher._total.count == 0, "what it makes of all sums for groups and recommenders"
        with closing(open_database(where)) as other, pytest.raises(Crash):
            publisher_of(other)
    assert (has(where, 1)[0], len(protected.sums(0, 9))) == (0, 1)
    if is_restarted:
        publisher = publisher_of(protected)
    else:
        assert publisher.follow()
    drain(publisher)
    assert publisher.estimate is not None
    assert has(where, 1)[0] == 1


def test_a_release_that_another_published_since_it_was_read_is_left(
    where: Where, protected: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected.receive(full((1, 0)))
    read = protected.read

    def overtaken(work: Callable[[Any], Any]) -> Any:
        found = read(work)
        if isinstance(found, tuple) and found[:2] == (1, 0):  # level and number
            with closing(open_database(where)) as other, monkeypatch.context() as patch:
                patch.setattr(Database, "claim", lambda self, table, key: True)
                drain(publisher_of(other))
            assert protected.protection is not None
            protected.protection.keys.keep_only(
                {NOISE_LEVEL: [1], 1: [1]}
            )  # as another thread does
        return found

    monkeypatch.setattr(protected, "read", overtaken)
    assert waiting(protected) is None


# --- opening a database ---------------------------------------------------------------------------


def test_a_database_without_its_keys_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "database.db"
    with closing(new_database(BALLOTS, path)) as database:
        publisher = publish(database, [(1, 0)])
    assert publisher.estimate is not None
    assert settled_sum(BALLOTS, str(path)).value == (publisher.estimate["value"],)
    with closing(ServerStore(path, BALLOTS.digest)) as read:
        assert len(read.sums(0, 9)) == 1
        with pytest.raises(InvalidValue, match="it can only be read"):
            read.receive(full((1, 1)))
        with pytest.raises(InvalidValue, match="its database needs replay protection"):
            publisher_of(read)


def test_a_database_needs_the_keys_it_was_made_with(places: Places) -> None:
    where, other = places.new(), places.new()
    for one in (where, other):
        open_database(one).close()
    with pytest.raises(InvalidValue, match="has the keys of another database"):
        ServerStore.of(BALLOTS, where.place, keys=other.keys)
    with pytest.raises(UnsafeSecret, match="no file .* with the keys of the database"):
        ServerStore.of(BALLOTS, where.place, keys=where.keys.with_name("nowhere.keys"))
    open_database(where).close()


def test_keys_have_a_place_of_their_own_beside_a_file_only(
    postgres: Postgres, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match="--database-keys"):
        ServerStore.of(BALLOTS, postgres.new_schema())
    with pytest.raises(InvalidValue, match="users make the noise of this plan"):
        ServerStore.of(DOCUMENT, tmp_path / "database.db", keys=tmp_path / "database.keys")
    for document, name in ((BALLOTS, "database.db"), (DOCUMENT, "users.db")):
        new_database(document, tmp_path / name).close()
    assert [path.name for path in tmp_path.glob("*.keys")] == ["database.db.keys"]


def test_the_server_says_who_makes_the_noise_and_what_came_twice(tmp_path: Path) -> None:
    with closing(new_database(BALLOTS, tmp_path / "database.db")) as database:
        release = full((1, 0))
        database.receive(with_ciphertexts(release, {1: ciphertext(release, 0)}))
        app = ServerApp(BALLOTS, database, publisher_of(database), [])
        status, metrics = app.status(), ServerMetrics(app).current().decode()
    assert status["guarantee"]["noise_by"] == "services"
    assert status["trust"].endswith(SERVICES_NOISE)
    assert (status["levels"][0]["repeats"], status["healthy"]) == (1, False)
    assert 'overhand_repeats{level="1"} 1.0' in metrics
    with closing(ServerStore.of(DOCUMENT, tmp_path / "users.db")) as database:
        status = ServerApp(DOCUMENT, database, publisher_of(database, DOCUMENT), []).status()
    assert status["guarantee"]["noise_by"] == "users"
    assert SERVICES_NOISE not in status["trust"]
