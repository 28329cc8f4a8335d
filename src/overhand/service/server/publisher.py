"""From releases to estimates: open, analyze, add up, publish."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from overhand.service.document import Document
from overhand.service.logs import log
from overhand.service.neutral import neutral_sum
from overhand.service.reports import open_release
from overhand.service.sealing import Opens
from overhand.service.server.book import Book, Received, Summed
from overhand.service.tolerance import LostBatch, tolerant_sum
from overhand.service.wire import ReleasedBatch
from overhand.summation import GatheredSums

CONFIDENCE = 0.95
_HISTORY = 500


class Publisher:
    """The server's state: all of it follows from the book, in the order of its sums."""

    def __init__(self, document: Document, book: Book, opener: Opens) -> None:
        self.document = document
        self._plan = document.plan
        self._book = book
        self._opener = opener
        self._gathered = GatheredSums(self._plan)
        self._opened: list[Summed] = []
        self.history = book.published()
        for summed in book.sums():
            self._remember(summed)

    def step(self) -> bool:
        """Open the next release and publish what it brings; whether there was one."""
        received = self._book.next_unopened()
        if received is None:
            return False
        summed = self._summed(received)
        before = self.estimate
        self._remember(summed)
        estimate = self._latest()
        if estimate == before:
            estimate = None  # it reaches no further, and no closer
        self._book.publish(summed, estimate)
        if estimate is not None:
            self.history.append(estimate)
        return True

    def _summed(self, received: Received) -> Summed:
        """The sum of a release without the service's own reports, or that it is lost."""
        release = ReleasedBatch(received.level, received.number, received.own, received.body)
        opened = open_release(self.document.formats, release, self._opener)
        (mechanism,) = self._plan.mechanisms[received.level - 1]
        value, slack = None, 0.0
        try:
            found = tolerant_sum(mechanism, opened.messages, opened.garbage)
            own = neutral_sum(self._plan.values, received.own)
            value = np.asarray(found.total - own, np.float64).tolist()
            slack = found.missing * mechanism.unit
        except LostBatch:
            log("a batch is lost", level=logging.ERROR, batch_level=received.level)
        if opened.garbage:
            log("garbage in a batch", level=logging.WARNING, messages=opened.garbage)
        return Summed(
            received.place,
            received.level,
            received.number,
            received.own,
            opened.garbage,
            slack,
            value,
        )

    def _remember(self, summed: Summed) -> None:
        self._opened.append(summed)
        if summed.value is not None:
            value = summed.value if self._plan.values.is_scalar else np.array(summed.value)
            self._gathered.receive(summed.level, summed.number, value, summed.slack)

    def _latest(self) -> dict[str, Any] | None:
        gathered = self._gathered.latest()
        if gathered is None:
            return None
        estimate = gathered.estimate
        low, high = estimate.interval(CONFIDENCE)
        return {
            "t": estimate.t,
            "value": np.asarray(estimate.value).tolist(),
            "low": np.asarray(low).tolist(),
            "high": np.asarray(high).tolist(),
            "std": estimate.std,
            "fallback": gathered.is_fallback,
        }

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The last that was published."""
        return self.history[-1] if self.history else None

    def levels(self) -> list[dict[str, Any]]:
        """What came of the batches of every level."""
        received = self._book.received()
        counted: dict[str, Counter[int]] = {
            name: Counter() for name in ("published", "lost", "own", "garbage")
        }
        for summed in self._opened:
            counted["lost" if summed.value is None else "published"][summed.level] += 1
            counted["own"][summed.level] += summed.own
            counted["garbage"][summed.level] += summed.garbage
        return [
            {
                "level": level.level,
                "size": level.size,
                "batches": level.batches,
                "received": received.get(level.level, 0),
                **{name: counts[level.level] for name, counts in counted.items()},
            }
            for level in self.document.formats.levels
        ]

    def thinned(self, coordinate: int) -> dict[str, list[float]]:
        """The history of one coordinate, in at most 500 points that end with the last."""
        step = -(-len(self.history) // _HISTORY) if self.history else 1
        chosen = self.history[::-1][::step][::-1]
        pick: Callable[[Any], float] = (
            float if self._plan.values.is_scalar else lambda values: float(values[coordinate])
        )
        curves = {name: [pick(e[name]) for e in chosen] for name in ("value", "low", "high")}
        return {"t": [e["t"] for e in chosen], **curves}
