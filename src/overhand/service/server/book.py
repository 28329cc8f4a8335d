"""What the server keeps: releases until they are opened, sums and published estimates for ever."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from overhand.errors import InvalidValue, ProtocolViolation, number, whole
from overhand.model import Estimate
from overhand.service.databases import Contents, Dialect, Transaction, open_database
from overhand.service.protocol import Batch, Release
from overhand.service.server.tables import (
    BatchSum,
    BookTables,
    Coordinate,
    LevelTally,
    Published,
    by_coordinate,
    schema,
    sum_of,
)
from overhand.values import Values

T = TypeVar("T")

_APPLICATION = 0x4F564842  # "OVHB"
_NUMBERS = ("std", "kurtosis", "unit")
_LEAST = -math.ulp(0.0)  # so that 0 is above it


@dataclass(frozen=True)
class Settled:
    """What an earlier plan ended with: the running sum goes on although plan and key are new.

    The last estimate of a plan for these values; as public as everything that was published.
    """

    values: str
    t: int
    value: tuple[float, ...]
    std: float
    slack: tuple[float, ...]
    """By coordinate, or once for all of them."""
    kurtosis: float
    unit: float

    @classmethod
    def of(cls, values: Values, estimate: Estimate) -> Settled:
        rest = {name: float(getattr(estimate, name)) for name in _NUMBERS}
        value, slack = map(by_coordinate, (estimate.value, estimate.slack))
        return cls(values.spec, estimate.t, value, slack=slack, **rest)

    def estimate(self, values: Values) -> Estimate:
        """The same as a sum of these values, if it is one."""
        if values.spec != self.values or len(self.value) != values.dimension:
            raise InvalidValue(f"a sum of {self.values} does not go on as one of {values.spec}")
        if len(self.slack) not in (1, values.dimension):
            raise InvalidValue(f"a slack of {len(self.slack)} numbers for {values.spec}")
        value = sum_of(values, self.value)
        slack = self.slack[0] if len(self.slack) == 1 else np.array(self.slack)
        return Estimate(self.t, value, self.std, slack, kurtosis=self.kurtosis, unit=self.unit)

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Settled:
        """What `to_json` wrote, or `InvalidValue`."""
        try:
            saved = json.loads(text)
            return cls(
                str(saved["values"]),
                whole("t", saved["t"], least=0),
                tuple(number("value", one, above=-math.inf) for one in saved["value"]),
                slack=tuple(number("slack", one, above=_LEAST) for one in saved["slack"]),
                **{name: number(name, saved[name], above=_LEAST) for name in _NUMBERS},
            )
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidValue(f"this is not what a plan ended with: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Settled:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue(f"cannot read {path}: {error}") from error
        return cls.from_json(text)


@dataclass(frozen=True)
class News:
    """How far the book is: the number of its sums, the last estimate, and counts by level."""

    sums: int
    estimate: Published | None
    levels: dict[int, LevelTally]


class Book:
    """A SQLite file or a PostgreSQL database. Every step is one transaction.

    What was published is never changed, and follows from the sums in their order: a restart, or
    another process that has the same book, comes to the same estimates. The digest is that of the
    document; a book of another is refused. What an earlier plan ended with goes into a new book,
    and stays there: it need not be given again.
    """

    def __init__(self, address: str | Path, digest: str, settled: Settled | None = None) -> None:
        self._digest = digest
        self.settled = settled
        contents = Contents("book", _APPLICATION, "book", self._create, self._check)
        self._database = open_database(address, contents)

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        for statement in schema(dialect):
            transaction.change(statement)
        settled = "" if self.settled is None else self.settled.to_json()
        BookTables(transaction).begin(self._digest, settled)

    def _check(self, transaction: Transaction) -> None:
        found = BookTables(transaction).origin()
        if found is None:
            raise InvalidValue("the database is not a book: its table book is empty")
        document, text = found
        if document != self._digest:
            raise InvalidValue(
                f"the book belongs to the document {document[:12]}, not {self._digest[:12]}"
            )
        settled = Settled.from_json(text) if text else None
        if self.settled not in (None, settled):
            raise InvalidValue(
                "the book has begun, and not with this: what an earlier plan ended with is for a "
                "new book"
            )
        self.settled = settled

    def _read(self, work: Callable[[BookTables], T]) -> T:
        return self._database.read(lambda transaction: work(BookTables(transaction)))

    def _write(self, work: Callable[[BookTables], T]) -> T:
        return self._database.write(lambda transaction: work(BookTables(transaction)))

    def receive(self, release: Release) -> bool:
        """Keep a release, durable when this returns; whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise
        `ProtocolViolation`, and leave an alarm.
        """
        words = f"another release of {release.batch}"

        def work(tables: BookTables) -> bool | None:
            if tables.register(release):
                tables.keep(release)
                tables.count(release.batch.level, LevelTally(received=1))
                return True
            if tables.is_registered(release):
                return False
            tables.alarm(words)
            return None

        is_new = self._write(work)
        if is_new is None:
            raise ProtocolViolation(words)
        return is_new

    def alarms(self) -> list[str]:
        """All alarms, in the order in which they were first raised."""
        return self._read(lambda tables: tables.alarms())

    @contextmanager
    def claimed(self) -> Iterator[Release | None]:
        """A release to open: the one that has waited longest and that nobody has in hand.

        Only to save work. Whoever opens a release comes to the same sum, and it is published once.
        """
        place = 0
        while (after := self._place_after(place)) is not None:
            place = after
            if not self._database.claim("unopened", place):
                continue
            try:  # read after the claim: who had it before may have published it
                release = self._unopened(place)
                if release is not None:
                    yield release
                    return
            finally:
                self._database.unclaim("unopened", place)
        yield None

    def _unopened(self, place: int) -> Release | None:
        return self._read(lambda tables: tables.unopened(place))

    def _place_after(self, place: int) -> int | None:
        return self._read(lambda tables: tables.unopened_after(place))

    def publish(
        self, summed: BatchSum, seen: int, estimate_of: Callable[[list[BatchSum]], Published | None]
    ) -> bool:
        """A release was opened: keep its sum, publish the estimate, forget its ciphertexts.

        `estimate_of` is given all sums after the first `seen`, this one last, and may be asked
        again. If the batch's sum is there already, nothing happens: whether it was not.
        """

        def work(tables: BookTables) -> bool:
            sums, estimates = tables.lock()
            if not tables.forget(summed.batch):
                return False
            estimate = estimate_of([*tables.sums(seen, sums - seen), summed])
            tables.add_sum(sums + 1, summed)
            tables.count(summed.batch.level, _counted(summed))
            # One that equals the last reaches no further, and no closer.
            if estimate is not None and estimate != tables.estimate(estimates):
                estimates += 1
                tables.add_estimate(estimates, estimate)
            tables.advance(sums + 1, estimates)
            return True

        return self._write(work)

    def sums(self, after: int, most: int) -> list[BatchSum]:
        """Up to so many sums after the first ones, in the order of publication."""
        return self._read(lambda tables: tables.sums(after, most))

    def news(self) -> News:
        """How far the book is now."""

        def work(tables: BookTables) -> News:
            sums, estimates = tables.length()
            return News(sums, tables.estimate(estimates), tables.tallies())

        return self._read(work)

    def waiting(self, seen: int) -> set[Batch]:
        """The batches that came, but not by the first `seen` sums."""
        return self._read(lambda tables: tables.waiting(seen))

    def published(self) -> list[Published]:
        """All estimates that were ever published, in that order."""
        return self._read(lambda tables: tables.estimates())

    def thinned(self, coordinate: int, most: int) -> list[Coordinate]:
        """Estimates at even steps, as many as are allowed, that end with the last."""

        def work(tables: BookTables) -> list[Coordinate]:
            _, estimates = tables.length()
            step = max(1, -(-estimates // most))
            numbers = range(estimates, 0, -step)
            return tables.coordinates(numbers, coordinate) if numbers else []

        return self._read(work)

    def close(self) -> None:
        self._database.close()


def _counted(summed: BatchSum) -> LevelTally:
    is_lost = summed.value is None
    return LevelTally(0, int(not is_lost), int(is_lost), summed.own, summed.garbage)
