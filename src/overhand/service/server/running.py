"""The server as a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overhand.errors import (
    InvalidValue,
    OverhandError,
    ProtocolViolation,
    StoreUnavailable,
    number,
    whole,
)
from overhand.processors import processors
from overhand.service.databases import is_postgres
from overhand.service.protocol import Document, KeyPair, RuleKey
from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book, Settled
from overhand.service.server.opening import OpenerPool
from overhand.service.server.publishing import Publisher, Total
from overhand.service.web import (
    SLOW,
    Listener,
    Metrics,
    Site,
    TokenFile,
    Trouble,
    log,
    metrics_app,
    pause,
    serve,
)

_LOOK = 1.0
"""Seconds after which a process looks for what others have published."""

_PER_LEVEL = {
    "received": "Batches received",
    "published": "Batches that were opened and added up",
    "lost": "Batches whose sum is unknown",
    "late": "Batches that should have arrived",
    "own": "Reports of the shuffling service itself",
    "garbage": "Messages that could not be opened",
    "repeats": "Messages that came before and count as garbage",
}


@dataclass(frozen=True)
class ServerSettings:
    """Where the server finds what it needs.

    `book` is the path of a SQLite file or the address of a PostgreSQL database; `book_keys` are its
    keys, made with the document, if the services make the noise; `after` is a file with the final
    sum of an earlier plan, from which a new book continues; `rule_key` signs the rules of a
    recommender (`rule.key` by default). A batch that should have arrived is called late after
    `patience` seconds.
    """

    document: Path
    key: Path
    token_hash: Path
    book: str
    listener: Listener
    metrics: Listener | None = None
    workers: int | None = None
    patience: float = 60.0
    after: Path | None = None
    book_keys: Path | None = None
    rule_key: Path | None = None

    def __post_init__(self) -> None:
        number("patience", self.patience, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)


def settled_sum(document: Document, address: str) -> Settled:
    """The final sum of a document's plan, from the book at this address."""
    if not is_postgres(address) and not Path(address).is_file():
        raise InvalidValue(f"there is no book {address}")
    with closing(Book(address, document.digest, begins=False)) as book:
        latest = Total.begun(document.plan, book).followed(book).latest()
    if latest is None:
        raise InvalidValue("nothing was published: there is nothing to continue from")
    return Settled.of(document, latest)


def _rule_key(document: Document, path: Path | None) -> RuleKey | None:
    """What signs rules, if there are any."""
    if path is None and document.learning is not None:
        path = Path("rule.key")
    return None if path is None else RuleKey.load(path)


async def run_server(settings: ServerSettings) -> None:
    """Serve until a signal; what was received and not opened waits for the next start."""
    document = Document.load(settings.document)
    document.check_guarantee()
    key = KeyPair.load(settings.key)
    if key.public_key != document.public_key:
        raise InvalidValue(f"the key {settings.key} is not the document's")
    rule_key = _rule_key(document, settings.rule_key)
    tokens = TokenFile(settings.token_hash)
    workers, noise_by = settings.workers or processors(), document.plan.noise_by
    settled = None if settings.after is None else Settled.load(settings.after)
    with closing(Book.of(document, settings.book, settled, settings.book_keys)) as book:
        pool = OpenerPool(key, document.formats.digest, workers)
        publisher = Publisher(document, book, pool, rule_key)
        if document.learning is not None:
            pool.warm_up()  # people are served by chance until the first batch is opened
        app = ServerApp(document, book, publisher, tokens)
        metrics = ServerMetrics(app)
        sites = [Site(app, settings.listener)]
        if settings.metrics is not None:
            sites.append(Site(metrics_app(metrics.current), settings.metrics))
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish(app, publisher, metrics, stopping, settings.patience))
            tasks.create_task(tokens.follow(stopping))
            try:
                await serve(
                    *sites,
                    on_start=partial(log, "server started", workers=workers, noise_by=noise_by),
                    on_stop=app.news.stop,
                )
            finally:
                stopping.set()
                app.arrived.set()
                await asyncio.to_thread(pool.close)  # a release that is being opened is left
    log("server stopped")


async def publish(
    app: ServerApp,
    publisher: Publisher,
    metrics: ServerMetrics,
    stopping: asyncio.Event,
    patience: float,
) -> None:
    """Open all releases, those from before a restart first, and wait for more.

    A database that is down or a worker that dies costs time, and nothing else: what is not
    published is still in the book.
    """
    trouble = Trouble("publishing failed", "publishing works again")
    while not stopping.is_set():
        app.arrived.clear()
        try:
            while not stopping.is_set() and await asyncio.to_thread(metrics.timed, publisher.step):
                app.readiness.worked()
                app.news.announce()
            if await asyncio.to_thread(publisher.follow):
                app.news.announce()
            app.show_late(await asyncio.to_thread(publisher.overdue, time.monotonic(), patience))
        except (OverhandError, CancelledError) as error:
            if stopping.is_set():
                return
            metrics.failures.inc()
            if isinstance(error, StoreUnavailable | ProtocolViolation):
                app.readiness.failed(error)
            trouble.begin(type(error).__name__)
            await asyncio.sleep(_LOOK)
            continue
        trouble.end()
        await pause(app.arrived, _LOOK)


class ServerMetrics(Metrics):
    """What came of batches, by level, and how far the published sum reaches."""

    def __init__(self, app: ServerApp) -> None:
        super().__init__()
        self.watch(app.limits)
        self.follow(app.readiness)
        self._app = app
        self._levels = {name: self.gauge(name, help, "level") for name, help in _PER_LEVEL.items()}
        self._users = self.gauge(
            "users_published", "Reports in the published sum, including own ones"
        )
        self._lost_users = self.gauge("users_lost", "Reports that count as the middle of a range")
        self._alarms = self.gauge("alarms", "Alarms since the plan began")
        self._book_is_up = self.gauge("book_is_up", "Whether the book answers")
        self._unopened = self.gauge("unopened", "Batches that came and wait to be opened", "level")
        self._seconds = self.histogram(
            "publish_seconds", "Time to open a batch and publish its sum", SLOW
        )
        self.failures = self.counter("publishing_failures", "Attempts to publish that failed")

    def timed(self, step: Callable[[], bool]) -> bool:
        """Whether a step did anything; how long it took if it did."""
        started = time.perf_counter()
        has_published = step()
        if has_published:
            self._seconds.observe(time.perf_counter() - started)
        return has_published

    def current(self) -> bytes:
        """All of them, as the book has them now, or had them when it last answered."""
        return self.asked(self._app.readiness, self._ask, self._book_is_up)

    def _ask(self) -> None:
        status = self._app.status()
        for level in status["levels"]:
            for name, gauge in self._levels.items():
                gauge.labels(level["level"]).set(level[name])
            unopened = level["received"] - level["published"] - level["lost"]
            self._unopened.labels(level["level"]).set(unopened)
        estimate = status["estimate"] or {"t": 0, "lost_users": 0}
        self._users.set(estimate["t"])
        self._lost_users.set(estimate["lost_users"])
        self._alarms.set(len(status["alarms"]))
