"""Pieces of open batches are folded together, so that there are never many."""

from __future__ import annotations

import asyncio

from overhand.errors import OverhandError
from overhand.service.protocol import Formats
from overhand.service.shuffler.admission import ShufflerMetrics
from overhand.service.shuffler.store import Store
from overhand.service.web import Trouble, pause


class Folder:
    """Folds what commit groups add to batches, at levels that send a part in the clear.

    Every piece has a sum of its own: with many numbers, and groups of a few reports, it is far
    longer than the messages. A pass folds until nothing is left to be folded, a bounded number of
    bytes at a time, so that reports that arrive wait for one of them at most.
    """

    def __init__(
        self, store: Store, formats: Formats, metrics: ShufflerMetrics, *, tick: float = 1.0
    ) -> None:
        self._store = store
        self._levels = [level.level for level in formats.levels if level.clear_numbers]
        self._metrics = metrics
        self._troubles = {
            level: Trouble("folding failed", "folding works again") for level in self._levels
        }
        self._tick = tick

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop: what is not folded by then may stay as it is."""
        while not stopping.is_set():
            await self.fold_all(stopping)
            await pause(stopping, self._tick)

    async def fold_all(self, stopping: asyncio.Event) -> None:
        """All levels, whatever becomes of one of them."""
        for level in self._levels:
            try:
                while not stopping.is_set():
                    pieces = await asyncio.to_thread(self._store.fold, level)
                    if not pieces:
                        break
                    self._metrics.folded.labels(level).inc(pieces)
                self._troubles[level].end()
            except OverhandError as error:  # they are as they were, and can be frozen so
                self._troubles[level].begin(type(error).__name__, batch_level=level)
