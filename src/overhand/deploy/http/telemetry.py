"""What an operator sees: logs, metrics, and whether a service can work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import math
import platform
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

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
from overhand.deploy.databases.database import fault_of
from overhand.deploy.http.application import BodyLimits, Refused
from overhand.errors import StoreUnavailable

_LOGGER = logging.getLogger("overhand.deploy")

_FRESH = 1.0
"""Seconds for which nobody asks a database again."""
_PATIENCE = 3.0
"""Seconds after which a database that has not answered does not."""
_HOLD = 5.0
"""Seconds for which a fault of real work stands, whatever a probe says: it may be for a part of the
work only, as where the last pages of a disk are enough for the probe."""
_SILENT = "does not answer", TimeoutError.__name__
QUICK = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Bounds of histograms, in seconds: of what a client waits for, and of work on whole batches."""


def start_logging(role: str) -> None:
    """One JSON object per line on standard error; libraries' own logs only if they are errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(role))
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    _LOGGER.setLevel(logging.INFO)


def log(event: str, *, level: int = logging.INFO, **numbers: Any) -> None:
    """Something that happened, and numbers that belong to no single user."""
    _LOGGER.log(level, event, extra={"numbers": numbers})


class RecurringFault:
    """Something that fails again and again: said when it begins or changes, and when it ends."""

    def __init__(self, began: str, ended: str) -> None:
        self._began, self._ended = began, ended
        self.reason: str | None = None

    def begin(self, reason: str, **numbers: Any) -> None:
        """It failed, for this reason."""
        if reason != self.reason:
            self.reason = reason
            log(self._began, level=logging.WARNING, error=reason, **numbers)

    def end(self) -> None:
        """It did not fail."""
        if self.reason is not None:
            self.reason = None
            log(self._ended, level=logging.WARNING)


class _Lines(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        kind = record.exc_info[0] if record.exc_info else None
        event = f"{record.name}: {kind.__name__ if kind else 'error'}"
        if record.name == _LOGGER.name:  # others' errors may quote data: only their kind is told
            event = record.getMessage()
        entry = {"role": self._role, "level": record.levelname.lower(), "event": event}
        return json.dumps(entry | getattr(record, "numbers", {}))


class Readiness:
    """Whether the database of a service, called `noun`, does what is asked of it.

    That shows in what comes of the service's work, and if there was none for a second, in `probe`:
    work that changes nothing, and raises what keeps it from being done. What is wrong is logged
    when it begins, when it changes and when it ends, however often it shows meanwhile.
    """

    def __init__(self, noun: str, probe: Callable[[], None], trouble: RecurringFault) -> None:
        self._noun = noun
        self._probe = probe
        self._trouble = trouble
        self._lock = threading.Lock()
        self._known = self._failed = -math.inf
        self._answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._answer.set_result(None)
        self.count: Callable[[], None] = lambda: None
        """Called for every fault."""

    @property
    def reason(self) -> str | None:
        """What is known to be wrong, in words for anybody; None if nothing is."""
        return self._trouble.reason

    def note_success(self) -> None:
        """The service changed its database as it should: whatever was wrong is over."""
        with self._lock:
            self._known = time.monotonic()
            self._trouble.end()

    def note_failure(self, error: Exception) -> None:
        """The database kept the service from its work."""
        with self._lock:
            self._failed = time.monotonic()
        self._begin(fault_of(error), type(error).__name__)

    async def check(self) -> None:
        """Raise `Refused` if the service is not ready."""
        answer = asyncio.wrap_future(self._latest_answer())
        if not (await asyncio.wait([answer], timeout=_PATIENCE))[0]:
            self._begin(*_SILENT)
        if self.reason is not None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, self.reason, retry=True)

    def look(self) -> bool:
        """Find out how things are; whether the database says anything, be it that it cannot."""
        done, _ = concurrent.futures.wait([self._latest_answer()], timeout=_PATIENCE)
        if not done:
            self._begin(*_SILENT)
        return bool(done)

    def _latest_answer(self) -> concurrent.futures.Future[None]:
        """Done when it is known how things are, or were less than a second ago."""
        with self._lock:
            if self._answer.done() and time.monotonic() - self._known >= _FRESH:
                self._answer = concurrent.futures.Future()
                # Nobody waits for it in the end: a process stops although its database hangs.
                threading.Thread(target=self._ask, args=[self._answer], daemon=True).start()
            return self._answer

    def _ask(self, answer: concurrent.futures.Future[None]) -> None:
        try:
            self._probe()
        except Exception as error:
            self._begin(fault_of(error), type(error).__name__)
        else:
            with self._lock:
                self._known = time.monotonic()
                if self._known - self._failed >= _HOLD:
                    self._trouble.end()
        finally:
            answer.set_result(None)

    def _begin(self, fault: str, kind: str) -> None:
        with self._lock:
            self._known = time.monotonic()
            self._trouble.begin(f"the {self._noun} {fault}", kind=kind)
        self.count()


disable_created_metrics()  # type: ignore[no-untyped-call]  # they are times


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

    def collect(self, readiness: Readiness, ask: Callable[[], None], is_up: Gauge) -> bytes:
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
