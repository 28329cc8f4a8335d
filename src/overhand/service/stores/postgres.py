"""A store in a PostgreSQL database of its own: for any number of processes and machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from overhand.service.databases.postgres import PostgresDatabase
from overhand.service.stores.store import Lane
from overhand.service.stores.transactional import TransactionalStore


class PostgresStore(TransactionalStore):
    """The store of one plan in the database `dsn`. Processes lock its row of `progress`."""

    def __init__(self, dsn: str, lanes: Sequence[Lane], horizon: int) -> None:
        super().__init__(partial(PostgresDatabase, dsn), lanes, horizon)
