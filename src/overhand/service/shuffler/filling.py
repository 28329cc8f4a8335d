"""Late batches: filled up with the service's own reports, or closed; never released early."""

from __future__ import annotations

import asyncio
import time

from overhand.errors import StoreUnavailable
from overhand.randomness import secure_random
from overhand.service.protocol import Document, encode_reports
from overhand.service.shuffler.admission import Admission, Overloaded
from overhand.service.shuffler.store import Arrival, Outcome, Store
from overhand.service.web import Trouble, log, pause

_AT_ONCE = 256  # reports that are made together: all of them wait for their commit


class Filler:
    """Completes a lowest batch that did not fill within the deadline.

    If users make the noise, it adds reports of its own: reports like any others, at all levels at
    once. If services do, nobody's noise is missing, and vacant places stay empty, at all levels at
    once. The server learns how many of a batch these are. They never begin a batch: a real report
    that came in the meantime makes one of them superfluous, and so does another process that
    completes the same batch. No time is stored: after a restart the deadline starts again.
    """

    def __init__(
        self, store: Store, admission: Admission, document: Document, deadline: float
    ) -> None:
        self._store = store
        self._admission = admission
        self._document = document
        self._deadline = deadline
        lowest = document.formats.levels[0]
        self._lowest, self._is_filled = lowest.size, lowest.is_filled
        self._batch = -1
        self._since = 0.0
        self._trouble = Trouble("a late batch stays open", "late batches are closed again")

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                missing = self._missing(await asyncio.to_thread(lambda: self._store.arrived))
                if missing:
                    await self.fill(missing)
                self._trouble.end()
            except (StoreUnavailable, Overloaded) as error:
                self._trouble.begin(type(error).__name__)
            await pause(stopping, min(1.0, self._deadline / 4))

    def _missing(self, arrived: int) -> int:
        """How many reports the open batch lacks, if it is late."""
        batch, filled = divmod(arrived, self._lowest)
        now = time.monotonic()
        if not filled or batch != self._batch:
            self._batch, self._since = batch if filled else -1, now
            return 0
        return self._lowest - filled if now - self._since >= self._deadline else 0

    async def fill(self, places: int) -> None:
        """Complete the batch that is late, which lacked this many reports."""
        if self._is_filled:
            log("a late batch was filled", own=await self._filled(places))
        else:
            empty = await asyncio.to_thread(self._store.leave_empty, self._batch)
            log("a late batch was closed", empty=empty)

    async def _filled(self, reports: int) -> int:
        """Admit this many reports of the neutral value, or as many as are needed."""
        own = 0
        for start in range(0, reports, _AT_ONCE):
            outcomes = await self._admitted(min(_AT_ONCE, reports - start))
            own += outcomes.count(Outcome.ADMITTED)
            if Outcome.NOT_NEEDED in outcomes:
                break
        return own

    async def _admitted(self, reports: int) -> list[Outcome]:
        formats = self._document.formats
        bodies = await asyncio.to_thread(self._encoded, reports)
        arrivals = [Arrival.of(formats, body, fills=self._batch) for body in bodies]
        return await asyncio.gather(*(self._admission.admit(each) for each in arrivals))

    def _encoded(self, reports: int) -> list[bytes]:
        values = self._document.plan.values
        rows = values.rows([values.neutral] * reports)
        return encode_reports(self._document, rows, secure_random())
