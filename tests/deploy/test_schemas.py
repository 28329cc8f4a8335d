"""Databases of an earlier schema are brought up to date or refused, later ones are refused."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.databases.database import (
    Contents,
    Dialect,
    Transaction,
    is_postgres,
    open_database,
)
from overhand.deploy.protocol.keys import UnsafeSecret
from overhand.deploy.server.replay import ReplayProtection
from overhand.deploy.server.store import ServerStore
from overhand.errors import InvalidValue
from support.server_stores import DOCUMENT
from support.store_processes import Where, admit, end_of_child

STORE_TABLES = {
    "progress": "plan, keys, arrived",
    "seen": "mark",
    "releases": "level, number, digest, own, repeats, state, answer",
    "bodies": "level, number, body",
    "noise": "level, number, body",
    "offers": "number, own, since, places, body",
    "messages_1": "number, key, own, body",
    "messages_2": "number, key, own, body",
}


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """To a database, past everything that the program does."""
    if is_postgres(address):
        with psycopg.connect(address) as server:
            yield server
    else:
        with closing(sqlite3.connect(address)) as file, file:
            yield file


def run(address: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connected(address) as connection:
        found = connection.execute(marked(address, statement), values)
        return list(found.fetchall()) if found.description else []


def marked(address: str, statement: str) -> str:
    return statement.replace("?", "%s") if is_postgres(address) else statement


def content_of(address: str, columns: dict[str, str]) -> dict[str, list[Any]]:
    return {table: run(address, f"SELECT {some} FROM {table}") for table, some in columns.items()}


def version_of(address: str) -> int:
    """As it is written, or 0."""
    if not is_postgres(address):
        return int(run(address, "PRAGMA user_version")[0][0])
    if not run(address, "SELECT to_regclass('overhand_schema') IS NOT NULL")[0][0]:
        return 0
    return int(run(address, "SELECT version FROM overhand_schema")[0][0])


def set_version(address: str, version: int) -> None:
    is_file = not is_postgres(address)
    statement = "PRAGMA user_version = {}" if is_file else "UPDATE overhand_schema SET version = {}"
    run(address, statement.format(version))


# --- of another version ---------------------------------------------------------------------------


def test_earlier_schemas_are_refused_in_one_line_and_left_alone(where: Where) -> None:
    """Also one that does not say which it has."""
    with closing(where.open()) as store:
        admit(store, [1])
    before = content_of(where.place, STORE_TABLES)
    for version in (0, 1, 2):
        set_version(where.place, version)
        with pytest.raises(
            InvalidValue,
            match=f"^the store has schema {version}, but this program only opens those from 3 on: "
            "start a new plan with a new database$",
        ):
            where.open()
        assert (version_of(where.place), content_of(where.place, STORE_TABLES)) == (version, before)


def test_an_earlier_database_of_a_server_is_refused(place: str) -> None:
    with closing(ServerStore(place, DOCUMENT.digest)):
        pass
    set_version(place, 4)
    with pytest.raises(InvalidValue, match="^the database has schema 4, .* from 5 on: start a new"):
        ServerStore(place, DOCUMENT.digest)


def test_a_database_without_keys_is_not_protected_later(place: str, tmp_path: Path) -> None:
    """What came before was not marked, so it could count twice: there is no way to catch up."""
    with closing(ServerStore(place, DOCUMENT.digest)):
        pass
    protection = ReplayProtection(DOCUMENT, tmp_path / "keys")
    with pytest.raises(InvalidValue, match="begun without keys"):
        ServerStore(place, DOCUMENT.digest, protection=protection)


def test_later_schemas_are_refused_in_one_line_and_left_alone(where: Where) -> None:
    line = "has schema 4, but this program only knows up to 3: run the newer version"
    with closing(where.open()) as store:
        admit(store, [1])
    set_version(where.place, 4)
    before = content_of(where.place, STORE_TABLES)
    with pytest.raises(InvalidValue, match=f"^the store {line}$"):
        where.open()
    assert content_of(where.place, STORE_TABLES) == before
    set_version(where.place, 3)
    with closing(where.open()) as store:
        assert store.arrived == 1


def test_a_later_database_is_refused_before_it_is_read(place: str) -> None:
    """Its tables may mean something else: also one of another document is refused for its age."""
    with closing(ServerStore(place, DOCUMENT.digest)):
        pass
    set_version(place, 7)
    with pytest.raises(
        InvalidValue, match="^the database has schema 7, but this program only knows up to 5:"
    ):
        ServerStore(place, "b" * 64)


def test_a_later_file_of_keys_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    BatchKeys.create(path, [1, 2], bytes(32))
    record = path.read_bytes()[: path.stat().st_size // 2]
    words = "has schema 3, but this program only knows up to 2: run the newer version"
    for second in (b"OVK3", b"OVK2"):  # a crash while the later version wrote its first
        path.write_bytes(b"OVK3" + record[4:] + second + record[4:])
        with pytest.raises(UnsafeSecret, match=words):
            BatchKeys(path)
    for other in (b"OVK0", b"OVK1", b"OVKx", b"PNG2"):
        path.write_bytes(2 * (other + record[4:]))
        with pytest.raises(UnsafeSecret, match="damaged"):
            BatchKeys(path)


# --- half way -------------------------------------------------------------------------------------


def _one(transaction: Transaction, dialect: Dialect) -> None:
    transaction.change("ALTER TABLE things ADD COLUMN second BIGINT NOT NULL DEFAULT 2")
    transaction.change("CREATE TABLE more (number BIGINT PRIMARY KEY)")


def _two(transaction: Transaction, dialect: Dialect) -> None:
    transaction.change("INSERT INTO more VALUES (3)")


def _fail(transaction: Transaction, dialect: Dialect) -> None:
    raise InvalidValue("it cannot be")


def _die(transaction: Transaction, dialect: Dialect) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _create(transaction: Transaction, dialect: Dialect) -> None:
    transaction.change("CREATE TABLE things (first BIGINT PRIMARY KEY)")
    transaction.change("INSERT INTO things VALUES (1)")


def open_things(
    address: str,
    *migrations: Callable[[Transaction, Dialect], None],
    check: Callable[[Transaction], None] = lambda transaction: None,
    oldest: int = 1,
) -> list[tuple[Any, ...]]:
    contents = Contents("thing", 77, "things", _create, check, oldest, migrations)
    with closing(open_database(address, contents)) as database:
        return database.read(lambda transaction: transaction.rows("SELECT * FROM things"))


def test_migrations_run_once_each_in_their_order(place: str) -> None:
    assert open_things(place) == [(1,)]
    assert version_of(place) == 1
    assert open_things(place, _one) == [(1, 2)]
    assert open_things(place, _one, _two) == [(1, 2)]
    assert open_things(place, _one, _two) == [(1, 2)]
    assert (version_of(place), run(place, "SELECT number FROM more")) == (3, [(3,)])
    with pytest.raises(
        InvalidValue, match="the thing has schema 3, but this program only knows up to 2"
    ):
        open_things(place, _one)


def test_migrations_begin_with_the_oldest_schema_that_is_opened(place: str) -> None:
    """Once nobody needs a migration it is left out: the number of the next stays as it is."""
    open_things(place, oldest=4)
    assert version_of(place) == 4
    assert open_things(place, _one, oldest=4) == [(1, 2)]
    assert version_of(place) == 5
    assert open_things(place, _fail, _two, oldest=4) == [(1, 2)]
    assert (version_of(place), run(place, "SELECT number FROM more")) == (6, [(3,)])


def test_many_may_bring_the_same_database_up_to_date(place: str) -> None:
    """Whoever comes second finds it done: a column is added once."""
    open_things(place)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: open_things(place, _one), range(4))) == 4 * [[(1, 2)]]
    assert version_of(place) == 2


def refuse(transaction: Transaction) -> None:
    raise InvalidValue("of another plan")


def test_what_fails_half_way_leaves_the_old_state(place: str) -> None:
    """Fails if a step of it is committed before the last, or the version before the tables."""
    open_things(place)
    with pytest.raises(InvalidValue, match="it cannot be"):
        open_things(place, _one, _fail)
    assert (version_of(place), open_things(place)) == (1, [(1,)])
    with pytest.raises(InvalidValue, match="of another plan"):
        open_things(place, _one, _two, check=refuse)
    assert (version_of(place), open_things(place)) == (1, [(1,)])
    assert open_things(place, _one, _two) == [(1, 2)]


@pytest.mark.crash
def test_a_crash_half_way_leaves_the_old_state(place: str) -> None:
    open_things(place)
    assert end_of_child(open_things, place, _one, _die) == -signal.SIGKILL
    assert (version_of(place), open_things(place)) == (1, [(1,)])
    assert open_things(place, _one, _two) == [(1, 2)]


class Dying:
    """A transaction whose process is killed before one of its statements."""

    def __init__(self, transaction: Transaction, statement: int) -> None:
        self._transaction = transaction
        self._left = statement

    def change(self, words: str) -> int:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._transaction.change(words)


@pytest.mark.parametrize("statement", [1, 2])
@pytest.mark.crash
def test_a_crash_at_any_statement_of_a_migration_leaves_the_old_state(
    place: str, statement: int
) -> None:
    open_things(place)

    def migrate(transaction: Transaction, dialect: Dialect) -> None:
        _one(Dying(transaction, statement), dialect)  # type: ignore[arg-type]

    assert end_of_child(open_things, place, migrate) == -signal.SIGKILL
    assert (version_of(place), open_things(place)) == (1, [(1,)])
    assert open_things(place, _one) == [(1, 2)]
