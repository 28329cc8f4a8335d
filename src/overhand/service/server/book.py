"""What the server keeps: releases until they are opened, sums and published estimates for ever."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from overhand.errors import InvalidValue, ProtocolViolation, number, whole
from overhand.estimates import Estimate
from overhand.service.databases import (
    Contents,
    Dialect,
    KeyGone,
    Transaction,
    keys_of,
    open_database,
)
from overhand.service.protocol import Batch, Document, Release
from overhand.service.server.guard import Guard
from overhand.service.server.tables import (
    MIGRATIONS,
    BatchSum,
    BookTables,
    Coordinate,
    LevelTally,
    Published,
    by_coordinate,
    schema,
    sum_of,
)
from overhand.service.web import log
from overhand.values import Values

T = TypeVar("T")

_APPLICATION = 0x4F564842  # "OVHB"
_NUMBERS = ("std", "kurtosis", "unit")
_LEAST = -math.ulp(0.0)  # so that 0 is above it


def _always(batch: Batch) -> bool:
    return True


@dataclass(frozen=True)
class Settled:
    """The final sum of an earlier plan: the running sum continues with a new plan and key.

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
    constant: float | None = None
    """The constant feature of a recommender, by which all features and rewards are scaled."""

    @classmethod
    def of(cls, document: Document, estimate: Estimate) -> Settled:
        rest = {name: float(getattr(estimate, name)) for name in _NUMBERS}
        value, slack = map(by_coordinate, (estimate.value, estimate.slack))
        spec = document.plan.values.spec
        return cls(spec, estimate.t, value, slack=slack, **rest, constant=document.constant)

    def check(self, document: Document) -> None:
        """Refuse a document whose sum this cannot be a part of."""
        self.estimate(document.plan.values)
        if self.constant != document.constant:
            raise InvalidValue(
                f"a sum of features with constant={self.constant} cannot continue as one with "
                f"constant={document.constant}"
            )

    def estimate(self, values: Values) -> Estimate:
        """The same as a sum of these values, if it is one."""
        if values.spec != self.values or len(self.value) != values.dimension:
            raise InvalidValue(f"a sum of {self.values} cannot continue as one of {values.spec}")
        if len(self.slack) not in (1, values.dimension):
            raise InvalidValue(f"a slack of {len(self.slack)} numbers for {values.spec}")
        value = sum_of(values, self.value)
        slack = self.slack[0] if len(self.slack) == 1 else np.array(self.slack)
        return Estimate(self.t, value, self.std, slack, 0, self.kurtosis, self.unit, values)

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
                constant=saved.get("constant"),
            )
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidValue(f"this is not the final sum of a plan: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Settled:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue(f"cannot read {path}: {error}") from error
        return cls.from_json(text)


@dataclass(frozen=True)
class News:
    """How far the book is: how many sums and estimates, the last of these, counts by level."""

    sums: int
    estimates: int
    estimate: Published | None
    levels: dict[int, LevelTally]


class Book:
    """A SQLite file or a PostgreSQL database. Every step is one transaction.

    What was published is never changed, and follows from the sums in their order: a restart, or
    another process that has the same book, comes to the same estimates. The digest is that of the
    document; a book of another is refused. What an earlier plan ended with goes into a new book,
    and stays there: it need not be given again.

    Where the services make the noise, a book has a guard. Without it such a book can only be read.
    `begins` is whether a book is begun where there is none.
    """

    def __init__(
        self,
        address: str | Path,
        digest: str,
        settled: Settled | None = None,
        guard: Guard | None = None,
        *,
        begins: bool = True,
    ) -> None:
        self._digest = digest
        self.settled = settled
        self.guard = guard
        self._begins = begins
        contents = Contents("book", _APPLICATION, "book", self._create, self._check, MIGRATIONS)
        self._database = open_database(address, contents)
        with self._database.closed_on_error():
            if guard is not None:
                guard.claim()

    @classmethod
    def of(
        cls,
        document: Document,
        address: str | Path,
        settled: Settled | None = None,
        keys: Path | None = None,
    ) -> Book:
        """The book of a document, with the guard that it needs.

        Its keys are in a file of their own, by default next to a SQLite file, which `make_keys`
        made. Keep it out of every backup.
        """
        if settled is not None:
            settled.check(document)
        if document.plan.noise_by == "users":
            if keys is not None:
                raise InvalidValue("users make the noise of this plan: its book has no keys")
            return cls(address, document.digest, settled)
        guard = Guard(document.formats, keys_of(address, keys, "book"))
        return cls(address, document.digest, settled, guard)

    @staticmethod
    def make_keys(document: Document, path: Path) -> None:
        """Make the keys of the only book that a new document will have, if that needs any."""
        if document.plan.noise_by == "services":
            Guard(document.formats, path).make_keys()

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        if not self._begins:
            raise InvalidValue(
                "there is no book in this database. If it is a copy of a SQLite file that a server "
                "had open, it lacks what was in the -wal file: copy it with sqlite3's .backup"
            )
        for statement in schema(dialect):
            transaction.change(statement)
        settled = "" if self.settled is None else self.settled.to_json()
        keys = "" if self.guard is None else self.guard.begin()
        BookTables(transaction).begin(self._digest, settled, keys)

    def _check(self, transaction: Transaction) -> None:
        found = BookTables(transaction).origin()
        if found is None:
            raise InvalidValue("the database is not a book: its table book is empty")
        document, text, keys = found
        if document != self._digest:
            raise InvalidValue(
                f"the book belongs to the document {document[:12]}, not {self._digest[:12]}"
            )
        settled = Settled.from_json(text) if text else None
        if self.settled not in (None, settled):
            raise InvalidValue(
                "the book has begun without this: the final sum of an earlier plan is only for a "
                "new book"
            )
        self.settled = settled
        if self.guard is not None:
            if not keys:
                raise InvalidValue(
                    "an older version began the book without keys: a message might count "
                    "twice. Start a new plan, with a new book"
                )
            self.guard.find(keys)
        self._is_readable_only = self.guard is None and bool(keys)

    def _read(self, work: Callable[[BookTables], T]) -> T:
        return self._database.read(lambda transaction: work(BookTables(transaction)))

    def _write(self, work: Callable[[BookTables], T]) -> T:
        return self._database.write(lambda transaction: work(BookTables(transaction)))

    def receive(self, release: Release) -> bool:
        """Store a release, durable when this returns; returns whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise
        `ProtocolViolation`, and leave an alarm. Messages that came before in another release leave
        one as well, and are struck out.
        """
        if self._is_readable_only:
            raise InvalidValue("the book has keys but was opened without them: it can only be read")

        def work(tables: BookTables) -> bool | None:
            if tables.register(release):
                repeats = self._keep(tables, release)
                tables.count(release.batch.level, LevelTally(received=1, repeats=repeats))
                return True
            return False if tables.is_registered(release) else None

        try:
            is_new, words = self._write(work), f"another release of {release.batch}"
        except KeyGone:  # it had a sum in a newer copy of this book
            assert self.guard is not None
            is_new, words = None, f"{release.batch} came again: {self.guard.too_old}"
        if is_new is None:
            self.alarm(words)
            raise ProtocolViolation(words)
        return is_new

    def check_usable(self) -> None:
        """Raise what would keep a sum from being published now, and change nothing."""
        self._write(lambda tables: tables.advance(*tables.lock()))

    def _keep(self, tables: BookTables, release: Release) -> int:
        """A release that is to be opened; how many of its messages came before."""
        if self.guard is None:
            tables.keep(release)
            return 0
        kept, repeats = self.guard.once(release, tables)
        tables.keep(self.guard.sealed(kept))
        if repeats:
            _alarm(tables, f"{repeats} messages of {release.batch} came before and do not count")
        return repeats

    def alarm(self, words: str) -> None:
        """Raise an alarm, which stays; the same words again are the same alarm."""
        self._write(lambda tables: _alarm(tables, words))

    def alarms(self) -> list[str]:
        """All alarms, in the order in which they were first raised."""
        return self._read(lambda tables: tables.alarms())

    @contextmanager
    def claimed(self, is_due: Callable[[Batch], bool] = _always) -> Iterator[Release | None]:
        """A release to open: the one that has waited longest and that nobody has in hand.

        Only of those that are ready. Claims only save work: even if two processes open a release,
        one sum of it is published.
        """
        place = 0
        while (after := self._after(place)) is not None:
            place, batch = after
            if not is_due(batch) or not self._database.claim("unopened", place):
                continue
            try:  # read after the claim: its former holder may have published it
                release = self._unopened(place)
                if release is not None:
                    yield release
                    return
            finally:
                self._database.unclaim("unopened", place)
        yield None

    def _unopened(self, place: int) -> Release | None:
        release = self._read(lambda tables: tables.unopened(place))
        if self.guard is None or release is None:
            return release
        try:
            return self.guard.opened(release)
        except KeyGone as error:
            if self._read(lambda tables: tables.unopened(place)) is None:
                return None  # published since it was read
            raise ProtocolViolation(self.guard.too_old) from error

    def _after(self, place: int) -> tuple[int, Batch] | None:
        return self._read(lambda tables: tables.unopened_after(place))

    def publish(
        self,
        summed: BatchSum,
        seen: int,
        estimate_of: Callable[[list[BatchSum]], Published | None],
        rule_of: Callable[[int], str] | None = None,
    ) -> bool:
        """A release was opened: keep its sum, publish the estimate, forget its ciphertexts.

        `estimate_of` is given all sums after the first `seen`, this one last, and may be asked
        again. `rule_of` is then given the number of the estimate: what a recommender makes of it is
        published with it. If the batch's sum is there already, nothing happens: whether it was not.
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
                if rule_of is not None:
                    tables.add_rule(estimates, rule_of(estimates))
            tables.advance(sums + 1, estimates)
            return True

        return self._write(work)

    def sums(self, after: int, most: int) -> list[BatchSum]:
        """Up to this many sums after the first ones, in the order of publication."""
        return self._read(lambda tables: tables.sums(after, most))

    def sums_of(self, coordinate: int, most: int) -> list[tuple[Any, ...]]:
        """Level, number, own, slack and one coordinate of the first sums: None if it was lost."""
        return self._read(lambda tables: tables.sums_of(coordinate, most))

    def news(self) -> News:
        """How far the book is now."""

        def work(tables: BookTables) -> News:
            sums, estimates = tables.length()
            return News(sums, estimates, tables.estimate(estimates), tables.tallies())

        return self._read(work)

    def waiting(self, seen: int) -> set[Batch]:
        """The batches that came, but not by the first `seen` sums."""
        return self._read(lambda tables: tables.waiting(seen))

    def published(self) -> list[Published]:
        """All estimates that were ever published, in that order."""
        return self._read(lambda tables: tables.estimates())

    def rule(self, number: int) -> str | None:
        """The rule that was made of an estimate, as it was signed; or the last before it."""
        return self._read(lambda tables: tables.rule(number))

    def thinned(self, coordinate: int, estimates: int, most: int) -> list[Coordinate]:
        """Of the first estimates those at even steps, as many as are allowed, the last included."""
        numbers = range(estimates, 0, -max(1, -(-estimates // most)))
        if not numbers:
            return []
        return self._read(lambda tables: tables.coordinates(numbers, coordinate))

    def close(self) -> None:
        self._database.close()


def _alarm(tables: BookTables, words: str) -> None:
    if tables.alarm(words):
        log("an alarm was raised", level=logging.ERROR, alarm=words)


def _counted(summed: BatchSum) -> LevelTally:
    is_lost = summed.value is None
    return LevelTally(0, int(not is_lost), int(is_lost), summed.own, summed.garbage)
