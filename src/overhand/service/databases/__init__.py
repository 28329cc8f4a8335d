"""Transactions in SQLite or PostgreSQL: what the store and the book are made of."""

from __future__ import annotations

from pathlib import Path

from overhand.errors import InvalidValue
from overhand.service.databases.database import Contents, Database, Dialect, Transaction
from overhand.service.databases.sqlite import SqliteDatabase

__all__ = ["Contents", "Database", "Dialect", "SqliteDatabase", "Transaction", "open_database"]


def open_database(address: str | Path, contents: Contents) -> Database:
    """PostgreSQL if the address is one of its, else a SQLite file at this path."""
    if not str(address).startswith(("postgresql://", "postgres://")):
        return SqliteDatabase(address, contents)
    try:
        from overhand.service.databases.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        raise InvalidValue(
            f"a {contents.noun} in PostgreSQL needs the extra `postgres`: {error}"
        ) from error
    return PostgresDatabase(str(address), contents)
