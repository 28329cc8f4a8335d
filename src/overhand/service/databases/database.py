"""What the store and the book need from any database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from overhand.errors import InvalidValue

T = TypeVar("T")


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

    def uncompressed(self, table: str) -> list[str]:
        """Ciphertexts do not get smaller: do not try."""
        return [self.storage.format(table=table)] if self.storage else []


class Transaction(ABC):
    """Statements that take effect together. Values stand for question marks."""

    @abstractmethod
    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds."""

    @abstractmethod
    def locked(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query finds; nobody else changes these rows until the transaction ends."""

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
    migrations: Sequence[Migration] = ()
    """The first makes schema 2 out of schema 1, and so on: none is ever changed or taken out."""
    cache: int = 1 << 13
    """KiB of a SQLite file that are kept in memory."""

    @property
    def version(self) -> int:
        """The schema that this program makes."""
        return 1 + len(self.migrations)

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
        else:
            for migrate in self.migrations[found - 1 :]:
                migrate(transaction, dialect)
        self.check(transaction)


class Database(ABC):
    """One database. Many threads may use it, and other processes may have it open as well.

    If it is full, locked, read-only or down, `StoreUnavailable` is raised and nothing was changed,
    or a whole transaction was committed unseen: work must be safe to run again. It works again when
    the database does.
    """

    def __init__(self) -> None:
        self._claimed: set[tuple[str, int]] = set()
        self._claiming = Lock()

    @abstractmethod
    def read(self, work: Callable[[Transaction], T]) -> T:
        """Work on one state of the database, without changing it."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T]) -> T:
        """Work in one transaction: durable when this returns, undone if it raises.

        After a conflict or a lost connection the work may be run again from its beginning.
        """

    @abstractmethod
    def sweep(self, tables: Collection[str]) -> None:
        """Overwrite what was deleted of these tables in the files of the database."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database, and of all claims."""

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
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
            self._let_in_others(table, key)

    @abstractmethod
    def _keep_out_others(self, table: str, key: int) -> bool:
        """Whether no other process has claimed the row, and none can now."""

    @abstractmethod
    def _let_in_others(self, table: str, key: int) -> None:
        """Other processes may claim the row."""
