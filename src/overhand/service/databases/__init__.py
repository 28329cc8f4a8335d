"""Transactions in SQLite or PostgreSQL, on which the store and the book are built."""

from __future__ import annotations

from pathlib import Path

from overhand.errors import InvalidValue
from overhand.service.databases.batch_keys import (
    MARK_BYTES,
    MOST_HELD,
    SEALED_BYTES,
    BatchKeys,
    KeyGone,
)
from overhand.service.databases.database import Contents, Database, Dialect, Migration, Transaction
from overhand.service.databases.faults import fault_of
from overhand.service.databases.sqlite import SqliteDatabase

__all__ = [
    "MARK_BYTES",
    "MOST_HELD",
    "SEALED_BYTES",
    "BatchKeys",
    "Contents",
    "Database",
    "Dialect",
    "KeyGone",
    "Migration",
    "SqliteDatabase",
    "Transaction",
    "fault_of",
    "is_postgres",
    "keys_of",
    "open_database",
]


def is_postgres(address: str | Path) -> bool:
    """Whether this is an address of PostgreSQL, and not the path of a file."""
    return str(address).startswith(("postgresql://", "postgres://"))


def keys_of(address: str | Path, keys: Path | None, noun: str) -> Path:
    """The file for the keys of a store or a book: next to a SQLite file, unless it is named."""
    if keys is None and is_postgres(address):
        raise InvalidValue(f"a {noun} in PostgreSQL needs a file for its keys: --{noun}-keys")
    return keys or Path(f"{address}.keys")


def open_database(address: str | Path, contents: Contents) -> Database:
    """PostgreSQL if the address is one of its, else a SQLite file at this path."""
    if not is_postgres(address):
        return SqliteDatabase(address, contents)
    try:
        from overhand.service.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise InvalidValue(
            f"a {contents.noun} in PostgreSQL needs the extra `postgres`: {error}"
        ) from error
    return PostgresDatabase(str(address), contents)
