"""The tables of a book, and the statements on them.

book       one row: which document it belongs to, what an earlier plan ended with (or nothing), the
           name of its keys (if it has some), and how many sums and estimates there are
releases   a row per batch that came: the digest of its release, as it was sent
stored     marks of all messages that ever came, if the services make the noise: a row per release
unopened   ciphertexts of releases that wait to be opened; sealed, if the book has keys
sums       what came of a release, numbered from 1 in the order of publication
published  estimates, numbered in the same order; a sum that changes nothing publishes none
rules      of a recommender: what was made of the estimate of the same number, as it was signed
levels     what came of the batches of a level, counted
alarms     what somebody should look at
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from overhand.service.databases import Dialect, Migration, Transaction
from overhand.service.protocol import Batch, Release
from overhand.values import Values

_FLOAT = np.dtype("<f8")
_AT_ONCE = 256  # releases whose marks are read together
_ESTIMATE = "SELECT t, value, low, high, std, fallback, lost FROM published"


@dataclass(frozen=True)
class BatchSum:
    """What came of a release: the batch's sum, by coordinate, or None if it was lost."""

    batch: Batch
    own: int
    garbage: int
    slack: float
    value: tuple[float, ...] | None


@dataclass(frozen=True)
class Published:
    """An estimate of the first `t` users, by coordinate."""

    t: int
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    std: float
    is_fallback: bool
    lost_users: int = 0
    """Users who count as the middle of their range: all batches that held them are lost."""

    def coordinate(self, coordinate: int) -> Coordinate:
        return Coordinate(self.t, *(ends[coordinate] for ends in (self.value, self.low, self.high)))


class Coordinate(NamedTuple):
    """One coordinate of a published estimate."""

    t: int
    value: float
    low: float
    high: float


class LevelTally(NamedTuple):
    """What came of the batches of a level."""

    received: int = 0
    published: int = 0
    lost: int = 0
    own: int = 0
    garbage: int = 0
    repeats: int = 0


def schema(dialect: Dialect) -> list[str]:
    """What makes the tables."""
    blob, ending = dialect.blob, dialect.ending
    batch = "level INTEGER NOT NULL, number BIGINT NOT NULL, own BIGINT NOT NULL"
    counts = ", ".join(f"{name} BIGINT NOT NULL" for name in LevelTally._fields)
    return [
        "CREATE TABLE book (document TEXT PRIMARY KEY, settled TEXT NOT NULL, "
        f"keys TEXT NOT NULL, sums BIGINT NOT NULL, estimates BIGINT NOT NULL) {ending}",
        f"CREATE TABLE releases ({batch}, digest {blob} NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE stored (place {dialect.counter} PRIMARY KEY, body {blob} NOT NULL)",
        f"CREATE TABLE unopened (place {dialect.counter} PRIMARY KEY, {batch}, "
        f"body {blob} NOT NULL, UNIQUE (level, number))",
        *(one for table in ("stored", "unopened") for one in dialect.uncompressed(table)),
        f"CREATE TABLE sums (place BIGINT PRIMARY KEY, {batch}, garbage BIGINT NOT NULL, "
        f"slack DOUBLE PRECISION NOT NULL, value {blob}, UNIQUE (level, number)) {ending}",
        f"CREATE TABLE published (number BIGINT PRIMARY KEY, t BIGINT NOT NULL, "
        f"value {blob} NOT NULL, low {blob} NOT NULL, high {blob} NOT NULL, "
        f"std DOUBLE PRECISION NOT NULL, fallback INTEGER NOT NULL, lost BIGINT NOT NULL) {ending}",
        f"CREATE TABLE rules (number BIGINT PRIMARY KEY, body TEXT NOT NULL) {ending}",
        f"CREATE TABLE levels (level INTEGER PRIMARY KEY, {counts}) {ending}",
        f"CREATE TABLE alarms (place {dialect.counter} PRIMARY KEY, words TEXT NOT NULL UNIQUE)",
    ]


def _add_marks(transaction: Transaction, dialect: Dialect) -> None:
    """Schema 2: the name of the book's keys, marks of messages, and how many came again."""
    for statement in (
        "ALTER TABLE book ADD COLUMN keys TEXT NOT NULL DEFAULT ''",
        f"CREATE TABLE stored (place {dialect.counter} PRIMARY KEY, body {dialect.blob} NOT NULL)",
        *dialect.uncompressed("stored"),
        "ALTER TABLE levels ADD COLUMN repeats BIGINT NOT NULL DEFAULT 0",
    ):
        transaction.change(statement)


def _add_rules(transaction: Transaction, dialect: Dialect) -> None:
    """Schema 3: the rules of a recommender."""
    transaction.change(
        f"CREATE TABLE rules (number BIGINT PRIMARY KEY, body TEXT NOT NULL) {dialect.ending}"
    )


MIGRATIONS: tuple[Migration, ...] = (_add_marks, _add_rules)


class BookTables:
    """The tables inside one transaction. All take `book` before `levels`, if they take both."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def begin(self, document: str, settled: str, keys: str) -> None:
        self._transaction.change(
            "INSERT INTO book (document, settled, keys, sums, estimates) VALUES (?, ?, ?, 0, 0)",
            *(document, settled, keys),
        )

    def origin(self) -> tuple[str, str, str] | None:
        """What the book belongs to, what it goes on from, and its keys' name, if it is one."""
        found = self._transaction.rows("SELECT document, settled, keys FROM book")
        return next(((str(one), str(two), str(three)) for one, two, three in found), None)

    def length(self) -> tuple[int, int]:
        """How many sums and how many estimates there are."""
        ((sums, estimates),) = self._transaction.rows("SELECT sums, estimates FROM book")
        return sums, estimates

    def lock(self) -> tuple[int, int]:
        """The same; nobody else publishes, or adds marks, until this transaction ends."""
        ((sums, estimates),) = self._transaction.locked("SELECT sums, estimates FROM book")
        return sums, estimates

    def advance(self, sums: int, estimates: int) -> None:
        self._transaction.change("UPDATE book SET sums = ?, estimates = ?", sums, estimates)

    def register(self, release: Release) -> bool:
        """Whether this is the first release of its batch."""
        return bool(
            self._transaction.change(
                "INSERT INTO releases (level, number, own, digest) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                *(*release.batch, release.own, release.digest),
            )
        )

    def is_registered(self, release: Release) -> bool:
        """Whether it was this release."""
        found = self._transaction.rows(
            "SELECT own, digest FROM releases WHERE level = ? AND number = ?", *release.batch
        )
        return found == [(release.own, release.digest)]

    def marks_after(self, place: int) -> list[tuple[int, bytes]]:
        """The marks of some releases after this place, and their places."""
        found = self._transaction.rows(
            f"SELECT place, body FROM stored WHERE place > ? ORDER BY place LIMIT {_AT_ONCE}", place
        )
        return [(int(place), body) for place, body in found]

    def add_marks(self, place: int, marks: bytes) -> None:
        self._transaction.change("INSERT INTO stored (place, body) VALUES (?, ?)", place, marks)

    def keep(self, release: Release) -> None:
        """A release that is to be opened."""
        self._transaction.change(
            "INSERT INTO unopened (level, number, own, body) VALUES (?, ?, ?, ?)",
            *(*release.batch, release.own, release.body),
        )

    def unopened_after(self, place: int) -> tuple[int, Batch] | None:
        """The place of the next release that waits, and its batch, if there is one."""
        found = self._transaction.rows(
            "SELECT place, level, number FROM unopened WHERE place > ? ORDER BY place LIMIT 1",
            place,
        )
        return next(((int(place), Batch(level, number)) for place, level, number in found), None)

    def unopened(self, place: int) -> Release | None:
        found = self._transaction.rows(
            "SELECT level, number, own, body FROM unopened WHERE place = ?", place
        )
        releases = (Release(Batch(level, number), own, body) for level, number, own, body in found)
        return next(releases, None)

    def forget(self, batch: Batch) -> bool:
        """Drop the ciphertexts of a release; whether there were any."""
        statement = "DELETE FROM unopened WHERE level = ? AND number = ?"
        return bool(self._transaction.change(statement, *batch))

    def waiting(self, seen: int) -> set[Batch]:
        rows = self._transaction.rows(
            "SELECT level, number FROM unopened "
            "UNION ALL SELECT level, number FROM sums WHERE place > ?",
            seen,
        )
        return {Batch(*row) for row in rows}

    def add_sum(self, place: int, one: BatchSum) -> None:
        value = None if one.value is None else _bytes(one.value)
        self._transaction.change(
            "INSERT INTO sums (place, level, number, own, garbage, slack, value) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(place, *one.batch, one.own, one.garbage, float(one.slack), value),
        )

    def sums(self, after: int, most: int) -> list[BatchSum]:
        rows = self._transaction.rows(
            "SELECT level, number, own, garbage, slack, value FROM sums "
            "WHERE place > ? AND place <= ? ORDER BY place",
            *(after, after + most),
        )
        return [
            BatchSum(Batch(*batch), own, garbage, slack, None if value is None else _floats(value))
            for *batch, own, garbage, slack, value in rows
        ]

    def sums_of(self, coordinate: int, most: int) -> list[tuple[Any, ...]]:
        """Level, number, own, slack and one coordinate of the first sums: None if it was lost."""
        cut = f"substr(value, {1 + coordinate * _FLOAT.itemsize}, {_FLOAT.itemsize})"
        rows = self._transaction.rows(
            f"SELECT level, number, own, slack, {cut} FROM sums WHERE place <= ?", most
        )
        return [(*rest, None if value is None else _floats(value)[0]) for *rest, value in rows]

    def add_estimate(self, number: int, estimate: Published) -> None:
        self._transaction.change(
            "INSERT INTO published (number, t, value, low, high, std, fallback, lost) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(number, estimate.t),
            *map(_bytes, (estimate.value, estimate.low, estimate.high)),
            *(float(estimate.std), int(estimate.is_fallback), estimate.lost_users),
        )

    def add_rule(self, number: int, rule: str) -> None:
        self._transaction.change("INSERT INTO rules (number, body) VALUES (?, ?)", number, rule)

    def rule(self, number: int) -> str | None:
        """That of this number, or the last before it."""
        found = self._transaction.rows(
            "SELECT body FROM rules WHERE number <= ? ORDER BY number DESC LIMIT 1", number
        )
        return next((str(body) for (body,) in found), None)

    def estimate(self, number: int) -> Published | None:
        found = self._transaction.rows(f"{_ESTIMATE} WHERE number = ?", number)
        return next((_estimate(*row) for row in found), None)

    def estimates(self) -> list[Published]:
        return [_estimate(*row) for row in self._transaction.rows(f"{_ESTIMATE} ORDER BY number")]

    def coordinates(self, numbers: Sequence[int], coordinate: int) -> list[Coordinate]:
        """One coordinate of these estimates: the others are not read."""
        start, length = 1 + coordinate * _FLOAT.itemsize, _FLOAT.itemsize
        cuts = ", ".join(f"substr({name}, {start}, {length})" for name in ("value", "low", "high"))
        places = ", ".join("?" * len(numbers))
        rows = self._transaction.rows(
            f"SELECT t, {cuts} FROM published WHERE number IN ({places}) ORDER BY number", *numbers
        )
        return [Coordinate(t, *(_floats(cut)[0] for cut in parts)) for t, *parts in rows]

    def count(self, level: int, more: LevelTally) -> None:
        """Add to what was counted of a level."""
        names, places = ", ".join(LevelTally._fields), ", ".join("?" * len(more))
        sums = ", ".join(f"{name} = levels.{name} + excluded.{name}" for name in LevelTally._fields)
        self._transaction.change(
            f"INSERT INTO levels (level, {names}) VALUES (?, {places}) "
            f"ON CONFLICT (level) DO UPDATE SET {sums}",
            *(level, *more),
        )

    def tallies(self) -> dict[int, LevelTally]:
        rows = self._transaction.rows(f"SELECT level, {', '.join(LevelTally._fields)} FROM levels")
        return {level: LevelTally(*counts) for level, *counts in rows}

    def alarm(self, words: str) -> bool:
        """Keep an alarm; whether it is new."""
        statement = "INSERT INTO alarms (words) VALUES (?) ON CONFLICT DO NOTHING"
        return bool(self._transaction.change(statement, words))

    def alarms(self) -> list[str]:
        found = self._transaction.rows("SELECT words FROM alarms ORDER BY place")
        return [words for (words,) in found]


def _estimate(
    t: int, value: bytes, low: bytes, high: bytes, std: float, fallback: int, lost: int
) -> Published:
    return Published(t, _floats(value), _floats(low), _floats(high), std, bool(fallback), lost)


def by_coordinate(value: Any) -> tuple[float, ...]:
    """A sum as it is kept, whatever its values are."""
    return tuple(np.atleast_1d(np.asarray(value, np.float64)).tolist())


def sum_of(values: Values, coordinates: Sequence[float]) -> Any:
    """The sum of these values that has these coordinates."""
    return coordinates[0] if values.is_scalar else np.array(coordinates)


def _bytes(values: Sequence[float]) -> bytes:
    """Exactly these numbers, each in its place, so that a database can cut out one."""
    return np.array(values, _FLOAT).tobytes()


def _floats(written: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(written, _FLOAT).tolist())
