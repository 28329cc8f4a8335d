"""Where the shuffling service keeps reports until their batch is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from overhand.errors import InvalidValue
from overhand.service.databases import is_postgres, open_database
from overhand.service.shuffler.store.store import (
    Arrival,
    BatchName,
    Lane,
    Outcome,
    Release,
    Scrubbed,
    Store,
)
from overhand.service.shuffler.store.transactional import TransactionalStore

__all__ = [
    "Arrival",
    "BatchName",
    "Lane",
    "Outcome",
    "Release",
    "Scrubbed",
    "Store",
    "TransactionalStore",
    "open_store",
]


def open_store(
    address: str | Path,
    lanes: Sequence[Lane],
    horizon: int,
    keys: Path | None = None,
    document: str = "",
) -> TransactionalStore:
    """The store at an address of PostgreSQL, or in a SQLite file at this path.

    A new store makes its keys in the file `keys`, and opens with that file ever after; those of
    a SQLite file are beside it unless told otherwise. A store of another document is refused.
    """
    if keys is None:
        if is_postgres(address):
            raise InvalidValue("a store in PostgreSQL needs a file for its keys: --store-keys")
        keys = Path(f"{address}.keys")
    return TransactionalStore(partial(open_database, address), lanes, horizon, keys, document)
