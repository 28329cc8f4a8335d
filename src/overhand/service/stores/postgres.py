"""A store in a PostgreSQL database of its own: for any number of processes and machines."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow

from overhand.errors import InvalidValue, StoreUnavailable
from overhand.service.stores.ledger import Ledger, schema
from overhand.service.stores.store import Lane
from overhand.service.stores.transactional import TransactionalStore

T = TypeVar("T")
Connection = psycopg.Connection[TupleRow]

_WAIT = 10  # seconds for a connection
_ATTEMPTS = 4
_LONGEST_PAUSE = 0.05  # seconds between attempts
_CONFLICTS = ("40001", "40P01")  # serialization failure, deadlock
_LOST = (None, "57P01", "57P02", "57P03")  # no connection, server stops, crashed, starts
_CREATION_LOCK = 0x4F564853
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_SETTINGS = """
    SET synchronous_commit = on;
    SET lock_timeout = '10s';
    SET idle_in_transaction_session_timeout = '30s';
    SET client_min_messages = warning;
"""


class PostgresStore(TransactionalStore):
    """The store of one plan in the database `dsn`, in the first schema of its search path.

    PostgreSQL appends rows, so its files and its log show the order of commit groups, whatever
    the keys. The order of a release does not come from them, and the database must be closed to
    the server and its backups to everybody. Processes agree by locking the row of `progress`.
    """

    def __init__(self, dsn: str, lanes: Sequence[Lane], horizon: int) -> None:
        super().__init__(lanes, horizon)
        self._dsn = dsn
        self._idle: list[Connection] = []
        try:
            self._write(self._open)
        except BaseException:
            self.close()
            raise

    def _open(self, ledger: Ledger) -> None:
        try:
            ledger.rows("SELECT pg_advisory_xact_lock(?)", _CREATION_LOCK)
            if ledger.rows("SELECT to_regclass('progress') IS NULL")[0][0]:
                self._create(ledger)
            self._start(ledger)
        except psycopg.ProgrammingError as error:
            raise InvalidValue(f"the database is not a store: {_reason(error)}") from error

    def _create(self, ledger: Ledger) -> None:
        for statement in schema(self._lanes, "BYTEA"):
            ledger.change(statement)
        for lane in self._lanes:  # ciphertexts do not get smaller: do not try
            ledger.change(f"ALTER TABLE messages_{lane.level} ALTER body SET STORAGE EXTERNAL")
        ledger.begin(self._plan)

    def _read(self, work: Callable[[Ledger], T]) -> T:
        with self._one_error():
            return self._transact(_READ, work)

    def _write(self, work: Callable[[Ledger], T]) -> T:
        with self._one_error():
            return self._transact(_WRITE, work)

    def _transact(self, begin: str, work: Callable[[Ledger], T]) -> T:
        """Try again after a conflict or a lost connection: every step may be run twice."""
        attempt = 1
        while True:
            try:
                with self._connected() as connection:
                    return _in_transaction(PostgresLedger(connection), begin, work)
            except psycopg.OperationalError as error:
                if error.sqlstate not in _CONFLICTS + _LOST or attempt == _ATTEMPTS:
                    raise
            attempt += 1
            time.sleep(random.uniform(0, _LONGEST_PAUSE))

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL: {_reason(error)}") from error

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Lend a connection; take it back without a transaction, or give up all that are idle."""
        connection = self._idle_or_new()
        try:
            yield connection
        except BaseException:
            try:
                connection.execute("ROLLBACK")
            except psycopg.Error:
                connection.close()
                self.close()
            else:
                self._idle.append(connection)
            raise
        self._idle.append(connection)

    def _idle_or_new(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=_WAIT)
        connection.execute(_SETTINGS)
        return connection

    def _sweep(self, levels: set[int]) -> None:
        """Write the tables anew, without what was deleted: little is left after a full batch."""
        with self._one_error(), self._connected() as connection:
            for level in sorted(levels):
                connection.execute(f"VACUUM FULL messages_{level}".encode())

    def close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class PostgresLedger(Ledger):
    """The tables in a transaction of PostgreSQL."""

    def __init__(self, connection: Connection) -> None:
        self._cursor = connection.cursor(binary=True)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        return self._run(statement, values).rowcount

    def change_many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        self._cursor.executemany(statement.replace("?", "%b").encode(), values)

    def _run(self, statement: str, values: tuple[Any, ...]) -> psycopg.Cursor[TupleRow]:
        return self._cursor.execute(statement.replace("?", "%b").encode(), values)

    def lock(self) -> int:
        return int(self.rows("SELECT arrived FROM progress FOR UPDATE")[0][0])

    def remember(self, marks: Collection[bytes]) -> set[bytes]:
        """In one order for everybody, so that two transactions never wait for each other."""
        found = self.rows(
            "INSERT INTO seen (mark) SELECT unnest(?::bytea[]) ON CONFLICT DO NOTHING "
            "RETURNING mark",
            sorted(marks),
        )
        return {mark for (mark,) in found}


def _in_transaction(ledger: Ledger, begin: str, work: Callable[[Ledger], T]) -> T:
    ledger.change(begin)
    result = work(ledger)
    ledger.change("COMMIT")
    return result


def _reason(error: psycopg.Error) -> str:
    """What happened, without the values of the statement."""
    return error.diag.message_primary or str(error).strip()
