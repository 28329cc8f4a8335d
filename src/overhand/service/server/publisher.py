"""From releases to estimates: open, analyze, add up, publish."""

from __future__ import annotations

import logging
from threading import RLock
from typing import Any

import numpy as np

from overhand.errors import LostBatch
from overhand.model import Shuffled
from overhand.randomness import secure_random
from overhand.service.protocol import Document, Opens, ReleasedBatch, open_release
from overhand.service.server.book import Book
from overhand.service.server.pages import Counts, Published, Received, Summed, by_coordinate
from overhand.service.server.total import Total
from overhand.service.web import log

CONFIDENCE = 0.95
_HISTORY = 500
_MOST_MISSING = 1000  # batches that are named


class Publisher:
    """Opens the releases of a book, beside others that do so.

    All that it knows follows from the sums in the book, in their order. Memory never has what the
    book has not: it is replaced after a transaction, so any step may fail and be taken again.
    """

    def __init__(self, document: Document, book: Book, opener: Opens) -> None:
        self.document = document
        self._plan = document.plan
        self._book = book
        self._opener = opener
        self._lock = RLock()
        self._random = secure_random()
        self._total = Total.begun(self._plan, book)
        self._first = _published(self._total)
        self._news = book.news()
        self._since: dict[tuple[int, int], float] = {}
        self.follow()

    def step(self) -> bool:
        """Open a release that nobody has in hand, and publish; whether there was one."""
        with self._book.claimed() as received:
            if received is None:
                return False
            self._publish(self._summed(received))
        return True

    def follow(self) -> bool:
        """Take in what others published; whether anything is new."""
        with self._lock:
            self._total = self._total.followed(self._book)
            before, self._news = self._news, self._book.news()
            return self._news != before

    def _publish(self, summed: Summed) -> None:
        with self._lock:
            self.follow()  # so that little is left to be read while others wait
            before = after = self._total

            def estimate_of(unseen: list[Summed]) -> Published | None:
                nonlocal after
                after = before.with_sums(unseen)
                estimate = _published(after)
                return None if estimate == self._first else estimate

            if self._book.publish(summed, before.count, estimate_of):
                self._total = after
            self.follow()

    def _summed(self, received: Received) -> Summed:
        """The sum of a release without the service's own reports, or that it is lost."""
        release = ReleasedBatch(received.level, received.number, received.own, received.body)
        opened = open_release(self.document.formats, release, self._opener)
        mechanism = self._plan.mechanisms[received.level - 1]
        value, slack = None, 0.0
        try:
            shuffled = Shuffled(opened.messages[np.newaxis], np.empty((1, 0), np.uint64))
            total, slack = mechanism.summed(shuffled, opened.garbage, self._random)
            value = by_coordinate(total - self._plan.values.neutral_sum(received.own))
        except LostBatch:
            log("a batch is lost", level=logging.ERROR, batch_level=received.level)
        if opened.garbage:
            log("garbage in a batch", level=logging.WARNING, messages=opened.garbage)
        return Summed(received.level, received.number, received.own, opened.garbage, slack, value)

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The last that was published, as far as this process knows.

        Before that it is what an earlier plan ended with, if there was one.
        """
        estimate = self._news.estimate or self._first
        return None if estimate is None else self._shown(estimate)

    @property
    def history(self) -> list[dict[str, Any]]:
        """All that was ever published, read from the book."""
        return [self._shown(estimate) for estimate in self._book.published()]

    def _shown(self, estimate: Published) -> dict[str, Any]:
        curves = {
            name: values[0] if self._plan.values.is_scalar else list(values)
            for name, values in (
                ("value", estimate.value),
                ("low", estimate.low),
                ("high", estimate.high),
            )
        }
        return {"t": estimate.t, **curves, "std": estimate.std, "fallback": estimate.is_fallback}

    @property
    def users_before(self) -> int:
        """How many users earlier plans had."""
        return 0 if self._first is None else self._first.t

    def levels(self) -> list[dict[str, Any]]:
        """What came of the batches of every level, as far as this process knows."""
        counts = self._news.levels
        return [
            {
                "level": level.level,
                "size": level.size,
                "batches": level.batches,
                **counts.get(level.level, Counts())._asdict(),
            }
            for level in self.document.formats.levels
        ]

    def thinned(self, coordinate: int) -> dict[str, list[float]]:
        """The history of one coordinate, in at most 500 points that end with the last."""
        before = [] if self._first is None else [self._first.point(coordinate)]
        points = before + self._book.thinned(coordinate, _HISTORY - len(before))
        return {
            "t": [point.t for point in points],
            "value": [point.value for point in points],
            "low": [point.low for point in points],
            "high": [point.high for point in points],
        }

    def missing(self) -> list[tuple[int, int]]:
        """Level and number of batches that should be here, and did not come: the first of them.

        The last user of any batch that came was admitted, and so were all before: every batch of
        those users alone was full when that one was.
        """
        total, formats = self._total, self.document.formats
        waiting = self._book.waiting(total.count)
        ends = (formats.level(level).size * (number + 1) for level, number in waiting)
        reach = max([total.server.reach, *ends])
        found: list[tuple[int, int]] = []
        for level in formats.levels:
            for number in total.server.missing(level.level, reach // level.size):
                if len(found) == _MOST_MISSING:
                    return found
                if (level.level, number) not in waiting:
                    found.append((level.level, number))
        return found

    def overdue(self, now: float, patience: float) -> list[tuple[int, int]]:
        """Those that this process has seen missing for so long, on a clock that only goes on."""
        since = self._since
        self._since = {name: since.get(name, now) for name in self.missing()}
        return [name for name, first in self._since.items() if now - first >= patience]


def _published(total: Total) -> Published | None:
    estimate = total.latest()
    if estimate is None:
        return None
    low, high = estimate.interval(CONFIDENCE)
    value, low, high = map(by_coordinate, (estimate.value, low, high))
    return Published(estimate.t, value, low, high, estimate.std, total.server.is_fallback)
