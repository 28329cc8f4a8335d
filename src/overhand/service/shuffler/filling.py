"""Late batches: filled up with the service's own reports, never released early."""

from __future__ import annotations

import asyncio
import time

from overhand.randomness import secure_random
from overhand.service.document import Document
from overhand.service.logs import log
from overhand.service.neutral import neutral_value
from overhand.service.reports import encode_report
from overhand.service.shuffler.admission import Admission
from overhand.service.stores import Arrival, Store


class Filler:
    """Completes a lowest batch that did not fill within the deadline.

    Own reports are reports like any others, at all levels at once, and how many of a batch they
    are is told to the server. No time is stored: after a restart the deadline starts again.
    """

    def __init__(
        self, store: Store, admission: Admission, document: Document, deadline: float
    ) -> None:
        self._store = store
        self._admission = admission
        self._document = document
        self._deadline = deadline
        self._lowest = document.formats.levels[0].size
        self._batch = -1
        self._since = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            missing = self._missing(await asyncio.to_thread(lambda: self._store.arrived))
            if missing:
                await self.fill(missing)
            try:
                await asyncio.wait_for(stopping.wait(), min(1.0, self._deadline / 4))
            except TimeoutError:
                continue

    def _missing(self, arrived: int) -> int:
        """How many reports the open batch lacks, if it is late."""
        batch, filled = divmod(arrived, self._lowest)
        now = time.monotonic()
        if not filled or batch != self._batch:
            self._batch, self._since = batch if filled else -1, now
            return 0
        return self._lowest - filled if now - self._since >= self._deadline else 0

    async def fill(self, reports: int) -> None:
        """Admit so many reports of the neutral value."""
        bodies = await asyncio.to_thread(self._encoded, reports)
        formats = self._document.formats
        for body in bodies:
            parts = formats.unpack_report(body)
            await self._admission.admit(Arrival(formats.part_digests(parts), parts, is_own=True))
        log("a late batch was filled", own=reports)

    def _encoded(self, reports: int) -> list[bytes]:
        value = neutral_value(self._document.plan.values)
        random = secure_random()
        return [encode_report(self._document, value, random) for _ in range(reports)]
