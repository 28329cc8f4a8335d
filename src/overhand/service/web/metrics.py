"""Numbers for a service's operator, on a separate listener: some tell when users came."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overhand import __version__
from overhand.errors import StoreUnavailable
from overhand.service.web.bodies import BodyLimits
from overhand.service.web.readiness import Readiness

disable_created_metrics()  # type: ignore[no-untyped-call]  # they are times

QUICK = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Bounds of histograms, in seconds: of what a client waits for, and of work on whole batches."""


class Metrics:
    """Counts since the start of the process, and gauges."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Info("overhand_build", "What this process runs", registry=self._registry)
        build.info({"version": __version__, "python": platform.python_version()})

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"overhand_{name}", help, labels, registry=self._registry)

    def gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"overhand_{name}", help, labels, registry=self._registry)

    def watch(self, limits: BodyLimits) -> None:
        """A gauge of what requests hold that are under way."""
        held = self.gauge("bytes_under_way", "Bytes of bodies whose requests are not answered")
        held.set_function(lambda: limits.bytes)

    def histogram(self, name: str, help: str, bounds: tuple[float, ...] = QUICK) -> Histogram:
        return Histogram(f"overhand_{name}", help, registry=self._registry, buckets=bounds)

    def follow(self, readiness: Readiness) -> None:
        """Whether the service is ready, and how often its database kept it from its work."""
        ready = self.gauge("ready", "Whether the service can work")
        ready.set_function(lambda: float(readiness.reason is None))
        faults = self.counter("store_faults", "Work that the database kept from being done")
        readiness.count = faults.inc

    def asked(self, readiness: Readiness, ask: Callable[[], None], is_up: Gauge) -> bytes:
        """All of them, with what the database says now; if it says nothing, as it said last."""
        answers = readiness.look()
        try:
            if answers:
                ask()
        except StoreUnavailable:
            answers = False
        is_up.set(answers)
        return self.text()

    def text(self) -> bytes:
        """In the form that Prometheus reads."""
        return generate_latest(self._registry)


def metrics_app(text: Callable[[], bytes]) -> Starlette:
    """An application with one page; `text` may wait for a database."""

    async def metrics(request: Request) -> Response:
        content = await asyncio.to_thread(text)
        headers = {"cache-control": "no-store"}
        return Response(content, headers=headers, media_type="text/plain; version=0.0.4")

    app = Starlette(routes=[Route("/metrics", metrics)])
    app.router.redirect_slashes = False
    return app
