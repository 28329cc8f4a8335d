"""A store in one SQLite file: for one machine, and any number of its threads and processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from overhand.service.databases import SqliteDatabase
from overhand.service.stores.store import Lane
from overhand.service.stores.transactional import TransactionalStore


class SqliteStore(TransactionalStore):
    """The store of one plan in the file `path`, which is as secret as the process."""

    def __init__(self, path: str | Path, lanes: Sequence[Lane], horizon: int) -> None:
        super().__init__(partial(SqliteDatabase, path), lanes, horizon)
