"""A store in one SQLite file: for one machine, and any number of its threads and processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from overhand.errors import InvalidValue, StoreUnavailable
from overhand.service.stores.ledger import Ledger, schema
from overhand.service.stores.store import Lane
from overhand.service.stores.transactional import TransactionalStore

T = TypeVar("T")

_APPLICATION = 0x4F564853  # "OVHS": tells a store from other people's databases
_WAIT = 10.0  # seconds for another process to finish its transaction
_AT_ONCE = 500  # marks looked up by one statement
_PAGE = "PRAGMA page_size = 4096"
# Rows move within and between the pages of a tree and leave copies that nothing overwrites. A body
# after a thousand bytes starts in a page of its own, which never moves and is overwritten whole.
_PADDING = "padding BLOB NOT NULL DEFAULT (zeroblob(1024)), "
_SETTINGS = (
    "PRAGMA synchronous = FULL",  # durable when a transaction ends, also if the power fails
    "PRAGMA secure_delete = ON",  # what is deleted is overwritten
    "PRAGMA wal_autocheckpoint = 16384",  # pages: random marks touch many, write each one seldom
    "PRAGMA cache_size = -131072",
)


class SqliteStore(TransactionalStore):
    """The store of one plan in the file `path`, which only its owner may read.

    Tables have no hidden row number, which would be the order of arrival. The log beside the file
    does show the order of commit groups until the next checkpoint: the file is as secret as the
    process. A child process opens the store itself; a connection does not survive a fork.
    """

    def __init__(self, path: str | Path, lanes: Sequence[Lane], horizon: int) -> None:
        super().__init__(lanes, horizon)
        self._path = Path(path)
        self._lock = Lock()
        with self._one_error():
            self._connection = self._connect()
            try:
                self._open()
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

    def _open(self) -> None:
        try:
            self._refuse_foreign()
            self._connection.execute(_PAGE)
            if self._value("PRAGMA journal_mode") != "wal":
                self._value("PRAGMA journal_mode = WAL")
            for setting in _SETTINGS:
                self._connection.execute(setting)
            with self._transaction("BEGIN IMMEDIATE") as ledger:
                if not self._tables():
                    self._create(ledger)
                self._start(ledger)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise InvalidValue(f"{self._path} is not a store, or is damaged: {error}") from error

    def _refuse_foreign(self) -> None:
        if self._tables() and self._value("PRAGMA application_id") != _APPLICATION:
            raise InvalidValue(f"{self._path} is a database of something else, not a store")

    def _create(self, ledger: Ledger) -> None:
        ledger.change(f"PRAGMA application_id = {_APPLICATION}")
        for statement in schema(self._lanes, "BLOB", _PADDING, "WITHOUT ROWID"):
            ledger.change(statement)
        ledger.begin(self._plan)

    def _tables(self) -> int:
        return int(self._value("SELECT count(*) FROM sqlite_master"))

    def _value(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()[0]

    def _read(self, work: Callable[[Ledger], T]) -> T:
        with self._one_error(), self._lock, self._transaction("BEGIN") as ledger:
            return work(ledger)

    def _write(self, work: Callable[[Ledger], T]) -> T:
        with self._one_error(), self._lock, self._transaction("BEGIN IMMEDIATE") as ledger:
            return work(ledger)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Ledger]:
        try:
            self._connection.execute(begin)
            yield SqliteLedger(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise

    def _sweep(self, levels: set[int]) -> None:
        """Bring the overwritten pages into the file, and empty the log that held them."""
        with self._one_error(), self._lock:
            busy = self._value("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise StoreUnavailable(f"{self._path}: a reader keeps the log from being emptied")

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class SqliteLedger(Ledger):
    """The tables in a transaction of SQLite, which lets in one writer at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        with closing(self._connection.execute(statement, values)) as cursor:
            return cursor.rowcount

    def change_many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        self._connection.executemany(statement, values)

    def lock(self) -> int:
        return self.arrived()

    def remember(self, marks: Collection[bytes]) -> set[bytes]:
        ordered = sorted(marks)
        known = set[bytes]()
        for start in range(0, len(ordered), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            places = ", ".join("?" * len(some))
            found = self.rows(f"SELECT mark FROM seen WHERE mark IN ({places})", *some)
            known.update(mark for (mark,) in found)
        fresh = [mark for mark in ordered if mark not in known]
        self.change_many("INSERT INTO seen (mark) VALUES (?)", [(mark,) for mark in fresh])
        return set(fresh)
