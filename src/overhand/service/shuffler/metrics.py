"""Numbers about the shuffling service, for its operator alone: fill levels tell when users came."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # they are times


class ShufflerMetrics:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reports = Counter(
            "overhand_reports",
            "Reports by what became of them",
            ["outcome"],
            registry=self._registry,
        )
        self.refused = Counter(
            "overhand_refused", "Requests refused, by status", ["status"], registry=self._registry
        )
        self.releases = Counter(
            "overhand_releases", "Batches sent to the server", ["level"], registry=self._registry
        )
        self.send_failures = Counter(
            "overhand_send_failures", "Attempts to send that failed", registry=self._registry
        )
        self.waiting = Gauge(
            "overhand_waiting", "Reports that wait for their commit", registry=self._registry
        )
        self.arrived = Gauge("overhand_arrived", "Reports admitted", registry=self._registry)

    def text(self) -> bytes:
        """In the form that Prometheus reads."""
        return generate_latest(self._registry)
