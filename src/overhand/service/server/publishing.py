"""Opening releases as they come, whatever fails in between."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import CancelledError
from contextlib import suppress

from overhand.errors import OverhandError
from overhand.service.server.app import ServerApp
from overhand.service.server.metrics import ServerMetrics
from overhand.service.server.publisher import Publisher
from overhand.service.web import log

_LOOK = 1.0
"""Seconds after which a process looks for what others have published."""


async def publish(
    app: ServerApp,
    publisher: Publisher,
    metrics: ServerMetrics,
    stopping: asyncio.Event,
    patience: float,
) -> None:
    """Open what there is, those of an earlier life first, and wait for more.

    A database that is down or a worker that dies costs time, and nothing else: what is not
    published is still in the book.
    """
    while not stopping.is_set():
        app.arrived.clear()
        try:
            while not stopping.is_set() and await asyncio.to_thread(publisher.step):
                app.announce()
            if await asyncio.to_thread(publisher.follow):
                app.announce()
            app.show_late(await asyncio.to_thread(publisher.overdue, time.monotonic(), patience))
        except (OverhandError, CancelledError) as error:
            if stopping.is_set():
                return
            metrics.failures.inc()
            log("publishing failed", level=logging.ERROR, error=type(error).__name__)
            await asyncio.sleep(_LOOK)
            continue
        with suppress(TimeoutError):
            await asyncio.wait_for(app.arrived.wait(), _LOOK)
