"""Numbers for whoever runs a service, on a listener of their own: some tell when users came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

disable_created_metrics()  # type: ignore[no-untyped-call]  # they are times


class Metrics:
    """Counts since the start of the process, and gauges."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"overhand_{name}", help, labels, registry=self._registry)

    def gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"overhand_{name}", help, labels, registry=self._registry)

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
