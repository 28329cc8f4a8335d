"""Numbers about the shuffling service, for its operator alone: fill levels tell when users came."""

from __future__ import annotations

from overhand.errors import StoreUnavailable
from overhand.service.shuffler.store import Outcome, Store
from overhand.service.web import Metrics


class ShufflerMetrics(Metrics):
    """What became of reports, requests and batches."""

    def __init__(self) -> None:
        super().__init__()
        reports = self.counter("reports", "Reports by what became of them", "outcome")
        self.outcomes = {outcome: reports.labels(outcome.value) for outcome in Outcome}
        self.refused = self.counter("refused", "Requests refused, by status", "status")
        self.commits = self.counter("commits", "Groups of reports committed")
        self.releases = self.counter("releases", "Batches sent to the server", "level")
        self.send_failures = self.counter("send_failures", "Attempts to send that failed")
        self.waiting = self.gauge("waiting", "Reports that wait for their commit")
        self.arrived = self.gauge("arrived", "Reports admitted")
        self.store_is_up = self.gauge("store_is_up", "Whether the store answers")

    def current(self, store: Store, waiting: int) -> bytes:
        """All of them, with what the store says now."""
        self.waiting.set(waiting)
        try:
            self.arrived.set(store.arrived)
            self.store_is_up.set(1)
        except StoreUnavailable:
            self.store_is_up.set(0)
        return self.text()
