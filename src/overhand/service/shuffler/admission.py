"""Reports into the store: many requests, one commit."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from overhand.errors import ServiceError
from overhand.service.shuffler.store import Arrival, Outcome, Store
from overhand.service.web import SLOW, Metrics, Readiness, Trouble


class ShufflerMetrics(Metrics):
    """What became of reports, requests and batches.

    Only for the service's operator: fill levels tell when users came.
    """

    def __init__(self) -> None:
        super().__init__()
        reports = self.counter("reports", "Reports by what became of them", "outcome")
        self.outcomes = {outcome: reports.labels(outcome.value) for outcome in Outcome}
        self.refused = self.counter("refused", "Requests refused, by status", "status")
        self.commits = self.counter("commits", "Groups of reports committed")
        self.releases = self.counter("releases", "Batches sent to the server", "level")
        self.folded = self.counter("folded", "Pieces folded together in open batches", "level")
        self.send_failures = self.counter("send_failures", "Attempts to send that failed")
        self.admission_seconds = self.histogram(
            "admission_seconds", "Time from when a report is whole to its commit"
        )
        self.send_seconds = self.histogram("send_seconds", "Time to the server's answer", SLOW)
        self.unsent = self.gauge("unsent", "Full batches that the server does not have", "level")
        self.set_aside = self.gauge("set_aside", "Batches that this process cannot send", "level")
        self.open_seconds = self.gauge(
            "open_seconds", "Time since this process first saw a report in the open batch", "level"
        )
        self.waiting = self.gauge("waiting", "Reports that wait for their commit")
        self.arrived = self.gauge("arrived", "Places of batches that are taken")
        self.store_is_up = self.gauge("store_is_up", "Whether the store answers")


class Overloaded(ServiceError):
    """More reports are waiting than the service may hold."""


class Admission:
    """Collects the reports of concurrent requests and admits them in groups.

    A report is answered when its group is committed, so an accepted report is counted for good.
    While one group is being committed the next one gathers: under load groups grow by themselves,
    and a single report does not wait.
    """

    def __init__(
        self,
        store: Store,
        metrics: ShufflerMetrics | None = None,
        *,
        group: int = 512,
        most_waiting: int = 4096,
    ) -> None:
        self._store = store
        self._metrics = metrics or ShufflerMetrics()
        self._group = group
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[Arrival, asyncio.Future[Outcome], float]] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="admission")
        self._closing = False
        trouble = Trouble("reports cannot be stored", "reports can be stored again")
        self.readiness = Readiness("store", lambda: store.check_usable(), trouble)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def admit(self, arrival: Arrival) -> Outcome:
        """What becomes of a report, once it is durable; it goes into the next group.

        A caller that goes away takes nothing back: its report may be committed already.
        """
        if self._closing or len(self._waiting) >= self._most_waiting:
            raise Overloaded(f"{len(self._waiting)} reports are already waiting")
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrival, outcome, time.perf_counter()))
        self._wake.set()
        return await outcome

    async def run(self) -> None:
        """Commit group after group, until closed and empty."""
        while not (self._closing and not self._waiting):
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._commit()
        self._thread.shutdown()

    async def _commit(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(self._group, len(self._waiting)))]
        arrivals = [arrival for arrival, _, _ in some]
        loop = asyncio.get_running_loop()
        outcomes: Sequence[Outcome | Exception]
        try:
            outcomes = await loop.run_in_executor(self._thread, self._store.admit, arrivals)
            self._metrics.commits.inc()
            self.readiness.worked()
            self._time(since for _, _, since in some)
        except Exception as error:
            outcomes = [error] * len(some)
            self.readiness.failed(error)
        for (_, future, _), outcome in zip(some, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _time(self, entered: Iterable[float]) -> None:
        now = time.perf_counter()
        for since in entered:
            self._metrics.admission_seconds.observe(now - since)

    def close(self) -> None:
        """No more reports; those that wait are still committed."""
        self._closing = True
        self._wake.set()
