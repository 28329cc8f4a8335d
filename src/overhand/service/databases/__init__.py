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
    "open_database",
]


def is_postgres(address: str | Path) -> bool:
    """Whether this is an address of PostgreSQL, and not the path of a file."""
    return str(address).startswith(("postgresql://", "postgres://"))


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
