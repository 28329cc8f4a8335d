"""Fixtures of the tests of databases: a PostgreSQL server, and stores of both services."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import BatchSum, Published, ServerStore
from overhand.deploy.shuffler.store import Store
from overhand.noise import CorrelatedNoise, IndependentNoise
from support.chosen_coins import mean_noise
from support.postgres import Postgres, running_postgres
from support.sealed_releases import open_database
from support.server_stores import DOCUMENT, NAMES, ReadsThem, check, estimates_of, receive
from support.store_processes import Where

__all__ = ["mean_noise"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The one server of a whole run: a test that stops it starts it again, whatever happens.

    Only tests have transactions there: one of its own, of an ANALYZE say, puts off a sweep.
    """
    with running_postgres() as running:
        running.run("ALTER SYSTEM SET autovacuum = off")
        running.run("SELECT pg_reload_conf()")
        yield running


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Processes that know nothing of this one."""
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield workers


class Places:
    """New databases of one kind."""

    def __init__(self, kind: str, folder: Path, server: Postgres | None) -> None:
        self.kind, self.folder, self._server = kind, folder, server
        self._numbers = itertools.count()

    def new(self) -> Where:
        if self._server is not None:
            return Where(self.kind, self._server.new_schema())
        return Where(self.kind, str(self.folder / f"{next(self._numbers)}.db"))

    def files(self) -> list[Path]:
        """Where the database keeps what it was given, its log of changes aside in PostgreSQL."""
        if self._server is None:
            return list(self.folder.iterdir())
        self._server.run("CHECKPOINT")
        return [path for path in (self._server.folder / "base").rglob("*") if path.is_file()]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Places:
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return Places(request.param, tmp_path_factory.mktemp("places"), server)


@pytest.fixture
def where(places: Places) -> Where:
    return places.new()


@pytest.fixture
def store(where: Where) -> Iterator[Store]:
    with closing(where.open()) as opened:
        yield opened


@pytest.fixture
def place(where: Where) -> str:
    """The address of a new database."""
    return where.place


@pytest.fixture
def database(place: str) -> Iterator[ServerStore]:
    with closing(ServerStore(place, DOCUMENT.digest)) as opened:
        yield opened


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Published], list[BatchSum]]:
    """What one publisher makes of all batches in their order, one at a time."""
    path = tmp_path_factory.mktemp("straight") / "database.db"
    with closing(ServerStore(path, DOCUMENT.digest)) as database:
        publisher = Publisher(DOCUMENT, database, ReadsThem())
        for name in NAMES:
            receive(database, [name])
            assert publisher.step()
        check(database)
        return estimates_of(database), database.sums(0, 10**6)


@pytest.fixture
def protected(where: Where) -> Iterator[ServerStore]:
    with closing(open_database(where)) as opened:
        yield opened


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both services draw 0."""

    def advance(
        noise: object, state: Any, random: object, blocks: int, clip: object = None
    ) -> tuple[Any, Any]:
        return np.zeros((blocks, state.shape[1]), np.int64), state

    for kind in (CorrelatedNoise, IndependentNoise):
        monkeypatch.setattr(kind, "advance", advance)
