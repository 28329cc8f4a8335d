"""What the server keeps: releases until they are opened, sums and published estimates for ever."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS releases (
    level INTEGER NOT NULL, number INTEGER NOT NULL, digest BLOB NOT NULL,
    own INTEGER NOT NULL, body BLOB, place INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (level, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums (
    place INTEGER PRIMARY KEY, level INTEGER NOT NULL, number INTEGER NOT NULL,
    own INTEGER NOT NULL, garbage INTEGER NOT NULL, slack REAL NOT NULL, value TEXT);
CREATE TABLE IF NOT EXISTS published (
    place INTEGER PRIMARY KEY, t INTEGER NOT NULL, estimate TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Received:
    """A release that waits to be opened."""

    place: int
    level: int
    number: int
    own: int
    body: bytes


@dataclass(frozen=True)
class Summed:
    """What came of a release: the batch's sum, or None if it was lost."""

    place: int
    level: int
    number: int
    own: int
    garbage: int
    slack: float
    value: Any


class Book:
    """A SQLite file. Every step is one transaction, and what was published is never changed.

    Releases are opened in the order in which they came, and a restart goes on where the last
    transaction ended: the same sums give the same estimates.
    """

    def __init__(self, path: str | Path, plan_digest: str) -> None:
        self._lock = RLock()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA secure_delete = ON")
            self._database.executescript(_SCHEMA)
            self._claim(plan_digest)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"cannot open the book {path}: {error}") from error

    def _claim(self, plan_digest: str) -> None:
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO about VALUES ('plan', ?)", [plan_digest])
            (written,) = database.execute("SELECT value FROM about WHERE name = 'plan'").fetchone()
        if written != plan_digest:
            raise InvalidValue(
                f"the book belongs to the plan {written[:12]}, not {plan_digest[:12]}"
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise StoreUnavailable(f"the book cannot be written: {error}") from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def receive(self, level: int, number: int, own: int, body: bytes) -> bool:
        """Keep a release, durable when this returns; whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise.
        """
        digest = hashlib.sha256(body).digest()
        with self._transaction() as database:
            known = database.execute(
                "SELECT digest, own FROM releases WHERE level = ? AND number = ?", [level, number]
            ).fetchone()
            if known is not None:
                if known != (digest, own):
                    raise ProtocolViolation(f"another release of batch {number} of level {level}")
                return False
            place = database.execute("SELECT coalesce(max(place), 0) + 1 FROM releases").fetchone()
            database.execute(
                "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?)",
                [level, number, digest, own, body, *place],
            )
        return True

    def next_unopened(self) -> Received | None:
        """The release that is to be opened next."""
        with self._lock:
            row = self._database.execute(
                "SELECT place, level, number, own, body FROM releases WHERE body IS NOT NULL "
                "ORDER BY place LIMIT 1"
            ).fetchone()
        return None if row is None else Received(*row)

    def publish(self, summed: Summed, estimate: dict[str, Any] | None) -> None:
        """A release was opened: keep its sum, publish the estimate, forget its ciphertexts."""
        value = None if summed.value is None else json.dumps(summed.value)
        with self._transaction() as database:
            database.execute(
                "INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?)",
                [summed.place, summed.level, summed.number, summed.own, summed.garbage,
                 summed.slack, value],
            )  # fmt: skip
            database.execute("UPDATE releases SET body = NULL WHERE place = ?", [summed.place])
            if estimate is not None:
                database.execute(
                    "INSERT INTO published VALUES (?, ?, ?)",
                    [summed.place, estimate["t"], json.dumps(estimate)],
                )

    def sums(self) -> list[Summed]:
        """All sums so far, in the order in which they were opened."""
        with self._lock:
            rows = self._database.execute(
                "SELECT place, level, number, own, garbage, slack, value FROM sums ORDER BY place"
            ).fetchall()
        return [
            Summed(place, level, number, own, garbage, slack, _read(value))
            for place, level, number, own, garbage, slack, value in rows
        ]

    def received(self) -> dict[int, int]:
        """How many releases of every level came."""
        with self._lock:
            rows = self._database.execute("SELECT level, count(*) FROM releases GROUP BY level")
            return dict(rows.fetchall())

    def published(self) -> list[dict[str, Any]]:
        """All estimates that were ever published, in that order."""
        with self._lock:
            rows = self._database.execute(
                "SELECT estimate FROM published ORDER BY place"
            ).fetchall()
        return [json.loads(estimate) for (estimate,) in rows]

    def close(self) -> None:
        with self._lock:
            self._database.close()


def _read(value: str | None) -> Any:
    return None if value is None else json.loads(value)
