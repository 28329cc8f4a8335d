"""What the server keeps: releases until they are opened, sums and published estimates for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.service.databases import Contents, Dialect, Transaction, open_database
from overhand.service.server.pages import (
    Counts,
    Pages,
    Point,
    Published,
    Received,
    Summed,
    schema,
)
from overhand.service.server.settled import Settled

T = TypeVar("T")

_APPLICATION = 0x4F564842  # "OVHB"


@dataclass(frozen=True)
class News:
    """How far the book is: the number of its sums, the last estimate, and counts by level."""

    sums: int
    estimate: Published | None
    levels: dict[int, Counts]


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
        Pages(transaction).begin(self._digest, settled)

    def _check(self, transaction: Transaction) -> None:
        found = Pages(transaction).origin()
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

    def _read(self, work: Callable[[Pages], T]) -> T:
        return self._database.read(lambda transaction: work(Pages(transaction)))

    def _write(self, work: Callable[[Pages], T]) -> T:
        return self._database.write(lambda transaction: work(Pages(transaction)))

    def receive(self, level: int, number: int, own: int, body: bytes) -> bool:
        """Keep a release, durable when this returns; whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise
        `ProtocolViolation`, and leave an alarm.
        """
        digest = hashlib.sha256(body).digest()
        words = f"another release of batch {number} of level {level}"

        def work(pages: Pages) -> bool | None:
            if pages.register(level, number, own, digest):
                pages.keep(level, number, own, body)
                pages.count(level, Counts(received=1))
                return True
            if pages.is_registered(level, number, own, digest):
                return False
            pages.alarm(words)
            return None

        is_new = self._write(work)
        if is_new is None:
            raise ProtocolViolation(words)
        return is_new

    def alarms(self) -> list[str]:
        """All alarms, in the order in which they were first raised."""
        return self._read(lambda pages: pages.alarms())

    @contextmanager
    def claimed(self) -> Iterator[Received | None]:
        """A release to open: the one that has waited longest and that nobody has in hand.

        Only to save work. Whoever opens a release comes to the same sum, and it is published once.
        """
        received = self._claim()
        try:
            yield received
        finally:
            if received is not None:
                self._database.unclaim("unopened", received.place)

    def _claim(self) -> Received | None:
        place = self._place_after(0)
        while place is not None:
            if (received := self._claim_at(place)) is not None:
                return received
            place = self._place_after(place)
        return None

    def _place_after(self, place: int) -> int | None:
        return self._read(lambda pages: pages.unopened_after(place))

    def _claim_at(self, place: int) -> Received | None:
        if not self._database.claim("unopened", place):
            return None
        received = None
        try:  # read after the claim: who had it before may have published it
            received = self._read(lambda pages: pages.unopened(place))
        finally:
            if received is None:
                self._database.unclaim("unopened", place)
        return received

    def publish(
        self, summed: Summed, seen: int, estimate_of: Callable[[list[Summed]], Published | None]
    ) -> bool:
        """A release was opened: keep its sum, publish the estimate, forget its ciphertexts.

        `estimate_of` is given all sums after the first `seen`, this one last, and may be asked
        again. If the batch's sum is there already, nothing happens: whether it was not.
        """

        def work(pages: Pages) -> bool:
            sums, estimates = pages.lock()
            if not pages.forget(summed.level, summed.number):
                return False
            estimate = estimate_of([*pages.sums(seen, sums - seen), summed])
            pages.add_sum(sums + 1, summed)
            pages.count(summed.level, _counted(summed))
            # One that equals the last reaches no further, and no closer.
            if estimate is not None and estimate != pages.estimate(estimates):
                estimates += 1
                pages.add_estimate(estimates, estimate)
            pages.advance(sums + 1, estimates)
            return True

        return self._write(work)

    def sums(self, after: int, most: int) -> list[Summed]:
        """Up to so many sums after the first ones, in the order of publication."""
        return self._read(lambda pages: pages.sums(after, most))

    def news(self) -> News:
        """How far the book is now."""

        def work(pages: Pages) -> News:
            sums, estimates = pages.length()
            return News(sums, pages.estimate(estimates), pages.counts())

        return self._read(work)

    def waiting(self, seen: int) -> set[tuple[int, int]]:
        """Level and number of the batches that came, but not by the first `seen` sums."""
        return self._read(lambda pages: pages.waiting(seen))

    def published(self) -> list[Published]:
        """All estimates that were ever published, in that order."""
        return self._read(lambda pages: pages.estimates())

    def thinned(self, coordinate: int, most: int) -> list[Point]:
        """Estimates at even steps, as many as are allowed, that end with the last."""

        def work(pages: Pages) -> list[Point]:
            _, estimates = pages.length()
            step = max(1, -(-estimates // most))
            numbers = range(estimates, 0, -step)
            return pages.points(numbers, coordinate) if numbers else []

        return self._read(work)

    def close(self) -> None:
        self._database.close()


def _counted(summed: Summed) -> Counts:
    is_lost = summed.value is None
    return Counts(0, int(not is_lost), int(is_lost), summed.own, summed.garbage)
