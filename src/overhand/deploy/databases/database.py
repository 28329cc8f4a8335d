"""What the stores of both services need from any database, and SQLite, which is one.

A SQLite file is for one machine, with any number of threads and processes.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import SystemRandom
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable

T = TypeVar("T")

_SILENT = "does not answer"
_OTHER = "cannot be used"
_SQLITE = {
    "SQLITE_FULL": "is full",
    "SQLITE_IOERR": "cannot be read or written",
    "SQLITE_READONLY": "is read-only",
    "SQLITE_BUSY": "is locked",
    "SQLITE_LOCKED": "is locked",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_NOTADB": "is damaged",
}
_POSTGRES = {
    "08": _SILENT,  # no connection
    "25006": "is read-only",
    "53100": "is full",
    "53": "has no room for more connections",
    "55P03": "is locked",
    "57P": _SILENT,  # it stops, crashed, or starts
    "XX001": "is damaged",
    "XX002": "is damaged",
}

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


@dataclass(frozen=True)
class Dialect:
    """How a database spells what differs in the definition of tables."""

    blob: str
    """The type of bytes."""
    counter: str
    """The type of a key that the database counts up by itself."""
    ending: str
    """After a table whose rows are to lie in the order of their keys, and in no other."""
    padding: str
    """Before a column of bytes that are overwritten when they are deleted."""
    storage: str
    """A statement for a `table` with a `body` that gets no smaller, or nothing."""

    def storage_statements(self, table: str) -> list[str]:
        """Ciphertexts do not get smaller: do not try."""
        return [self.storage.format(table=table)] if self.storage else []


class Transaction(ABC):
    """Statements that take effect together. Values stand for question marks."""

    @abstractmethod
    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds."""

    def lock_rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds; nobody else changes these rows until the transaction ends."""
        return self.rows(statement, *values)

    @abstractmethod
    def change(self, statement: str, *values: Any) -> int:
        """Run a statement; how many rows it changed."""

    @abstractmethod
    def change_many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once for each row of values."""

    @abstractmethod
    def scatter(self, tables: Collection[str], lengths: Sequence[int]) -> None:
        """Before rows of such lengths are put into these tables: where they will lie says nothing.

        As far as a database lets itself be told: what remains is in `docs/trust.md`.
        """

    @abstractmethod
    def insert_new(self, table: str, column: str, keys: Collection[bytes]) -> set[bytes]:
        """Keep these keys; those that were not kept before."""


Migration = Callable[[Transaction, Dialect], None]


@dataclass(frozen=True)
class Contents:
    """What a database is for, so that nobody opens one of another kind, or of a later version."""

    noun: str
    application: int
    """Stands at the head of a SQLite file: tells it from other people's."""
    table: str
    """Is in every such database."""
    create: Migration
    """Make the tables, in a database that has none, as the last migration would leave them."""
    check: Callable[[Transaction], None]
    """Raise `InvalidValue` if the database was made for something else."""
    oldest: int = 1
    """The first schema that this program opens; what is older needs a new database."""
    migrations: Sequence[Migration] = ()
    """The first makes the schema after `oldest` out of that, and so on: none is ever changed."""
    cache: int = 1 << 13
    """KiB of a SQLite file that are kept in memory."""

    @property
    def version(self) -> int:
        """The schema that this program makes."""
        return self.oldest + len(self.migrations)

    def prepare(self, transaction: Transaction, dialect: Dialect, found: int | None) -> None:
        """Make the tables if none are found, or bring those of a schema up to date; check them.

        All in one transaction: whatever fails leaves the database as it was.
        """
        if found is None:
            self.create(transaction, dialect)
        elif found > self.version:
            raise InvalidValue(
                f"the {self.noun} has schema {found}, but this program only knows up to "
                f"{self.version}: run the newer version"
            )
        elif found < self.oldest:
            raise InvalidValue(
                f"the {self.noun} has schema {found}, but this program only opens those from "
                f"{self.oldest} on: start a new plan with a new database"
            )
        else:
            for migrate in self.migrations[found - self.oldest :]:
                migrate(transaction, dialect)
        self.check(transaction)


class Database(ABC):
    """One database. Many threads may use it, and other processes may have it open as well.

    If it is full, locked, read-only or down, `StoreUnavailable` is raised and nothing was changed,
    or a whole transaction was committed unseen: work must be safe to run again. It works again when
    the database does.
    """

    _BEGIN_READING: str
    _BEGIN_WRITING: str

    def __init__(self) -> None:
        self._claimed: set[tuple[str, int]] = set()
        self._claiming = Lock()

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Work on one state of the database, without changing it."""
        return self._transact(self._BEGIN_READING, work)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Work in one transaction: durable when this returns, undone if it raises.

        After a conflict or a lost connection the work may be run again from its beginning.
        """
        return self._transact(self._BEGIN_WRITING, work)

    @abstractmethod
    def _transact(self, begin: str, work: Callable[[Transaction], T]) -> T:
        """Work in a transaction that begins with this statement."""

    @abstractmethod
    def sweep(self, tables: Collection[str]) -> None:
        """Overwrite what was deleted of these tables in the files of the database."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database, and of all claims."""

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Let go of the database if whoever opens it fails before it has an owner."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def claim(self, table: str, key: int) -> bool:
        """Whether this caller may work on a row, and nobody else until `unclaim`.

        It saves work that would be done twice; nothing may rest on it. A claim ends with its
        process, and with its connection.
        """
        with self._claiming:
            taken = (table, key) not in self._claimed and self._keep_out_others(table, key)
            if taken:
                self._claimed.add((table, key))
            return taken

    def unclaim(self, table: str, key: int) -> None:
        """Let others work on a row."""
        with self._claiming:
            self._claimed.discard((table, key))

    def _keep_out_others(self, table: str, key: int) -> bool:
        """Whether no other process has claimed the row, and none can now.

        On one machine none is kept out: it would find no more processors than the first.
        """
        return True


def is_postgres(address: str | Path) -> bool:
    """Whether this is an address of PostgreSQL, and not the path of a file."""
    return str(address).startswith(("postgresql://", "postgres://"))


def keys_of(address: str | Path, keys: Path | None, noun: str) -> Path:
    """The file for the keys of a store: next to a SQLite file, unless it is named."""
    if keys is None and is_postgres(address):
        raise InvalidValue(f"a {noun} in PostgreSQL needs a file for its keys: --{noun}-keys")
    return keys or Path(f"{address}.keys")


def open_database(address: str | Path, contents: Contents) -> Database:
    """PostgreSQL if the address is one of its, else a SQLite file at this path."""
    if not is_postgres(address):
        return SqliteDatabase(address, contents)
    try:
        from overhand.deploy.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise InvalidValue(
            f"a {contents.noun} in PostgreSQL needs the extra `postgres`: {error}"
        ) from error
    return PostgresDatabase(str(address), contents)


def fault_of(error: Exception) -> str:
    """Why a store could not be used, as what one says of it.

    A store whose keys have gone on without it is a copy from before some batches were frozen: a
    backup, or a replica that had not seen all that was committed.

    >>> fault_of(ProtocolViolation("the key of batch 3 is gone"))
    'is older than its keys'
    >>> fault_of(ValueError("?"))
    'cannot be used'
    """
    if isinstance(error, ProtocolViolation):
        return "is older than its keys"
    cause = error.__cause__
    if isinstance(name := getattr(cause, "sqlite_errorname", None), str):
        return _longest_match(_SQLITE, name)
    if hasattr(cause, "sqlstate"):  # None of a connection that was lost
        return _longest_match(_POSTGRES, getattr(cause, "sqlstate", None) or "08")
    return _OTHER


def _longest_match(words: dict[str, str], code: str) -> str:
    """What is said of a code, or of the class that it is in."""
    known = sorted((start for start in words if code.startswith(start)), key=len)
    return words[known[-1]] if known else _OTHER


_DIALECT = Dialect("BLOB", "INTEGER", "WITHOUT ROWID", _PADDING, storage="")


class SqliteDatabase(Database):
    """The file `path`, which only its owner may read.

    A child process opens the database itself: a connection does not survive a fork.
    """

    _BEGIN_READING, _BEGIN_WRITING = "BEGIN", "BEGIN IMMEDIATE"

    def __init__(self, path: str | Path, contents: Contents) -> None:
        super().__init__()
        self._path = Path(path)
        self._lock = Lock()
        with self._one_error():
            self._connection = self._connect()
            with self.close_on_error():
                self._open(contents)

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
            if self._tables() and self._value("PRAGMA application_id") != contents.application:
                raise InvalidValue(f"{self._path} belongs to another program or service")
            self._connection.execute(_PAGE)
            self._keep_a_log()
            for setting in (*_SETTINGS, f"PRAGMA cache_size = -{contents.cache}"):
                self._connection.execute(setting)
            with self._transaction(self._BEGIN_WRITING) as transaction:
                found = int(self._value("PRAGMA user_version")) if self._tables() else None
                if found is None:
                    transaction.change(f"PRAGMA application_id = {contents.application}")
                contents.prepare(transaction, _DIALECT, found)
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

    def _tables(self) -> int:
        return int(self._value("SELECT count(*) FROM sqlite_master"))

    def _value(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()[0]

    def _transact(self, begin: str, work: Callable[[Transaction], T]) -> T:
        with self._one_error(), self._lock, self._transaction(begin) as transaction:
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


class SqliteTransaction(Transaction):
    """A transaction of SQLite, which lets in one writer at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

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
