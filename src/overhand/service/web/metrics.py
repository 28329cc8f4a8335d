"""Numbers for whoever runs a service, on a listener of their own: some tell when users came."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from overhand.service.web.http import Receive, Reply, Scope, Send

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


def metrics_app(
    text: Callable[[], bytes],
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An application with one page; `text` may wait for a database."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/metrics":
            await Reply.of(404, {"error": "only /metrics is here"}).send(send)
            return
        content = await asyncio.to_thread(text)
        await Reply(200, content, b"text/plain; version=0.0.4").send(send)

    return app
