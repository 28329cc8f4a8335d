"""What the operator of a shuffling service sees, up to date at every look."""

from __future__ import annotations

import time
from collections import Counter

from overhand.service.protocol import Formats
from overhand.service.shuffler.admission import Admission, ShufflerMetrics
from overhand.service.shuffler.store import Store


class OpenBatches:
    """Since when this process has seen the open batch of each level with reports in it.

    On a clock that only goes on, and in memory alone: no time is stored.
    """

    def __init__(self, formats: Formats) -> None:
        lowest = formats.levels[0]
        self._sizes = {level.level: level.size for level in formats.levels}
        self._horizon = lowest.size * lowest.batches
        self._since: dict[int, tuple[int, float]] = {}

    def ages(self, arrived: int, now: float) -> dict[int, float]:
        """By level, for how many seconds a batch has been open; 0 if none is.

        >>> from overhand.service.protocol import LevelFormat
        >>> levels = [LevelFormat(1, 4, 6, 1, 1), LevelFormat(2, 8, 3, 1, 1)]
        >>> open_batches = OpenBatches(Formats(bytes(32), levels))
        >>> open_batches.ages(3, now=100.0)
        {1: 0.0, 2: 0.0}
        >>> open_batches.ages(5, now=130.0)
        {1: 0.0, 2: 30.0}
        >>> open_batches.ages(8, now=140.0)
        {1: 0.0, 2: 0.0}
        """
        return {level: self._age(level, arrived, now) for level in self._sizes}

    def _age(self, level: int, arrived: int, now: float) -> float:
        number, taken = divmod(arrived, self._sizes[level])
        if not taken or arrived == self._horizon:  # what is left then will never be full
            self._since.pop(level, None)
            return 0.0
        seen, since = self._since.get(level, (number, now))
        self._since[level] = number, since if seen == number else now
        return now - self._since[level][1]


class Watch:
    """The numbers of a shuffling service, with what its store says now."""

    def __init__(
        self, store: Store, formats: Formats, admission: Admission, metrics: ShufflerMetrics
    ) -> None:
        self._store = store
        self._levels = [level.level for level in formats.levels]
        self._open = OpenBatches(formats)
        self._admission = admission
        self._metrics = metrics
        metrics.follow(admission.readiness)
        for level in self._levels:
            metrics.set_aside.labels(level)  # 0 is told too
        metrics.waiting.set_function(lambda: admission.waiting)

    def text(self) -> bytes:
        """All of them; of a store that does not answer, what it said last."""
        readiness, metrics = self._admission.readiness, self._metrics
        return metrics.asked(readiness, self._ask, metrics.store_is_up)

    def _ask(self) -> None:
        arrived, unsent = self._store.arrived, Counter(one.level for one in self._store.full())
        ages = self._open.ages(arrived, time.monotonic())
        self._metrics.arrived.set(arrived)
        for level in self._levels:
            self._metrics.unsent.labels(level).set(unsent[level])
            self._metrics.open_seconds.labels(level).set(ages[level])
