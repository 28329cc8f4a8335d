"""One SQLite file: for one machine, with any number of threads and processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import SystemRandom
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from overhand.errors import InvalidValue, StoreUnavailable
from overhand.service.databases.database import Contents, Database, Dialect, Transaction

T = TypeVar("T")

_SPARE_PAGES = 256
_PAGE_BYTES = 4096
_SCATTERED = (
    "CREATE TABLE IF NOT EXISTS scattered (place BLOB PRIMARY KEY, body BLOB) WITHOUT ROWID"
)
# A row takes a page that was free or is new; their keys, and so the order in which they go, are
# random.
_SCATTER = (
    "INSERT INTO scattered WITH RECURSIVE rows(number) AS "
    "(VALUES (1) UNION ALL SELECT number + 1 FROM rows WHERE number < ?) "
    "SELECT randomblob(16), zeroblob(4500) FROM rows"
)

_WAIT = 10.0  # seconds for another process to finish its transaction
_PAUSE = 0.01  # seconds before the journal's mode is asked for again
_SWEEP_WAIT = 200  # milliseconds for readers to go away: reports wait meanwhile
_AT_ONCE = 500  # keys looked up by one statement
_PAGE = "PRAGMA page_size = 4096"
# Rows move within and between the pages of a tree and leave copies that nothing overwrites. A body
# after a thousand bytes starts in a page of its own, which never moves and is overwritten whole.
_PADDING = "padding BLOB NOT NULL DEFAULT (zeroblob(1024)), "
_SETTINGS = (
    "PRAGMA synchronous = FULL",  # durable when a transaction ends, also if the power fails
    "PRAGMA secure_delete = ON",  # what is deleted is overwritten
    "PRAGMA wal_autocheckpoint = 16384",  # pages: random marks touch many, write each one seldom
)


class SqliteDatabase(Database):
    """The file `path`, which only its owner may read.

    A child process opens the database itself: a connection does not survive a fork.
    """

    def __init__(self, path: str | Path, contents: Contents) -> None:
        super().__init__()
        self._path = Path(path)
        self._lock = Lock()
        with self._one_error():
            self._connection = self._connect()
            try:
                self._open(contents)
            except BaseException:
                self._connection.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.touch(mode=0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        return sqlite3.connect(
            self._path, timeout=_WAIT, isolation_level=None, check_same_thread=False
        )

    def _open(self, contents: Contents) -> None:
        try:
            self._refuse_foreign(contents)
            self._connection.execute(_PAGE)
            self._keep_a_log()
            for setting in (*_SETTINGS, f"PRAGMA cache_size = -{contents.cache}"):
                self._connection.execute(setting)
            with self._transaction("BEGIN IMMEDIATE") as transaction:
                found = self._schema()
                if found is None:
                    transaction.change(f"PRAGMA application_id = {contents.application}")
                contents.prepare(transaction, _dialect(), found)
                if found != contents.version:
                    transaction.change(f"PRAGMA user_version = {contents.version}")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise InvalidValue(
                f"{self._path} is not a {contents.noun}, or is damaged: {error}"
            ) from error

    def _keep_a_log(self) -> None:
        """Write ahead. SQLite itself does not wait here for another process that does the same."""
        deadline = monotonic() + _WAIT
        while self._value("PRAGMA journal_mode") != "wal":
            try:
                self._value("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if monotonic() > deadline:
                    raise
                sleep(_PAUSE)

    def _refuse_foreign(self, contents: Contents) -> None:
        if self._tables() and self._value("PRAGMA application_id") != contents.application:
            raise InvalidValue(f"{self._path} is a database of another kind, not a {contents.noun}")

    def _schema(self) -> int | None:
        """Which version of its tables the file has; the first did not say so."""
        return (int(self._value("PRAGMA user_version")) or 1) if self._tables() else None

    def _tables(self) -> int:
        return int(self._value("SELECT count(*) FROM sqlite_master"))

    def _value(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()[0]

    def read(self, work: Callable[[Transaction], T]) -> T:
        with self._one_error(), self._lock, self._transaction("BEGIN") as transaction:
            return work(transaction)

    def write(self, work: Callable[[Transaction], T]) -> T:
        with self._one_error(), self._lock, self._transaction("BEGIN IMMEDIATE") as transaction:
            return work(transaction)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Transaction]:
        try:
            self._connection.execute(begin)
            yield SqliteTransaction(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise

    def sweep(self, tables: Collection[str]) -> None:
        """Bring the overwritten pages into the file, and empty the log that held them."""
        with self._one_error(), self._lock:
            self._connection.execute(f"PRAGMA busy_timeout = {_SWEEP_WAIT}")
            try:
                busy = self._value("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * _WAIT)}")
        if busy:
            raise StoreUnavailable(f"{self._path}: a reader prevents the log from being emptied")

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _keep_out_others(self, table: str, key: int) -> bool:
        """One machine: a second process would find no more processors than the first."""
        return True

    def _let_in_others(self, table: str, key: int) -> None:
        """They were never out."""


def _dialect() -> Dialect:
    return Dialect("BLOB", "INTEGER", "WITHOUT ROWID", _PADDING, storage="")


class SqliteTransaction(Transaction):
    """A transaction of SQLite, which lets in one writer at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def locked(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.rows(statement, *values)

    def change(self, statement: str, *values: Any) -> int:
        with closing(self._connection.execute(statement, values)) as cursor:
            return cursor.rowcount

    def change_many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        self._connection.executemany(statement, values)

    def scatter(self, tables: Collection[str], lengths: Sequence[int]) -> None:
        """SQLite gives away free pages in the order in which they were freed, and new ones in turn.

        So all that will be needed are free already, and were freed in random order. When too few
        are left, twice as many as are used are freed in a new random order, and the rows that are
        there are put into others: so every page is as likely for an old row as for a new one, and
        a row is moved once, on average, whatever their number.
        """
        needed = sum(map(_pages, lengths))
        (free,) = self.rows("PRAGMA freelist_count")[0]
        if free >= needed + _SPARE_PAGES:
            return
        kept = [(table, row) for table in tables for row in self.rows(f"SELECT * FROM {table}")]
        used = sum(_pages(len(row[-1])) for _, row in kept)
        for table in tables:
            self.change(f"DELETE FROM {table}")
        self.change(_SCATTERED)
        self.change(_SCATTER, 2 * (used + needed) + _SPARE_PAGES)
        self.change("DELETE FROM scattered")
        SystemRandom().shuffle(kept)
        for table, row in kept:
            self.change(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)

    def insert_new(self, table: str, column: str, keys: Collection[bytes]) -> set[bytes]:
        """In statements of a few sizes: they stay prepared, and threads change places seldom."""
        ordered, fresh, start = sorted(keys), set[bytes](), 0
        while (left := len(ordered) - start) > 0:
            size = min(_AT_ONCE, 1 << (left.bit_length() - 1))
            some = ordered[start : start + size]
            fresh.update(key for (key,) in self.rows(_insertion(table, column, size), *some))
            start += size
        return fresh


def _pages(length: int) -> int:
    """How many pages a row of this length takes, about: one that others share, and its own."""
    return 2 + length // _PAGE_BYTES


@cache
def _insertion(table: str, column: str, size: int) -> str:
    places = ", ".join(["(?)"] * size)
    return f"INSERT OR IGNORE INTO {table} ({column}) VALUES {places} RETURNING {column}"
