"""Where the shuffling service keeps reports until their batch is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from overhand.service.databases import open_database
from overhand.service.stores.store import (
    Arrival,
    BatchName,
    Lane,
    Outcome,
    Release,
    Scrubbed,
    Store,
)
from overhand.service.stores.transactional import TransactionalStore

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


def open_store(address: str | Path, lanes: Sequence[Lane], horizon: int) -> TransactionalStore:
    """The store at an address of PostgreSQL, or in a SQLite file at this path."""
    return TransactionalStore(partial(open_database, address), lanes, horizon)
