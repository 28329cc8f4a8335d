"""The shuffling service as a process: its settings, and what it does in the background."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import joblib

from overhand.deploy.http.application import check_origins, pause
from overhand.deploy.http.listening import Endpoint, Site, TokenFile, serve
from overhand.deploy.http.telemetry import RecurringFault, log, metrics_app
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import load_token
from overhand.deploy.protocol.sealing import SealerPool, Seals
from overhand.deploy.protocol.wire import Formats
from overhand.deploy.shuffler.app import (
    MOST_BYTES,
    Admission,
    Overloaded,
    Relay,
    ShufflerApp,
    ShufflerMetrics,
)
from overhand.deploy.shuffler.batching import Arrival, Outcome, OwnNoise
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Alarm, Store
from overhand.deploy.transport import HttpTransport
from overhand.errors import StoreUnavailable, finite_number, whole
from overhand.randomness import secure_random

_AT_ONCE = 256  # reports that are made together: all of them wait for their commit


@dataclass(frozen=True)
class ShufflerSettings:
    """Where the shuffling service finds what it needs, as the options of `overhand shuffler` say.

    `store` is the path of a SQLite file or the address of a PostgreSQL database, `pinned` the
    agreed digest of the document. Many people share an address, and a token is for one report and
    its repeats: so they have two rates, of which 0 is none.
    """

    document: Path
    store: str
    server: str
    token: Path
    endpoint: Endpoint
    metrics: Endpoint | None = None
    store_keys: Path | None = None
    pinned: str | None = None
    tokens: Path | None = None
    deadline: float | None = None
    tick: float = 1.0
    authorities: Path | None = None
    insecure: bool = False
    workers: int | None = None
    rate_per_address: float = 100.0
    rate_per_token: float = 1.0
    origins: tuple[str, ...] = ()
    answer_within: float = 3600.0
    most_waiting: int = MOST_BYTES

    def __post_init__(self) -> None:
        finite_number("tick", self.tick, above=0)
        finite_number("answer_within", self.answer_within, above=0)
        whole("most_waiting", self.most_waiting, least=1)
        check_origins(self.origins)
        if self.deadline is not None:
            finite_number("deadline", self.deadline, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)
        if self.rate_per_address:
            finite_number("rate_per_address", self.rate_per_address, above=0)
        if self.rate_per_token:
            finite_number("rate_per_token", self.rate_per_token, above=0)


async def run_shuffler(settings: ShufflerSettings) -> None:
    """Serve until a signal; a batch that is full and not sent waits for the next start."""
    document = Document.load(settings.document, settings.pinned)
    document.check_guarantee()
    tokens = None if settings.tokens is None else TokenFile(settings.tokens)
    server = HttpTransport(
        settings.server,
        token=load_token(settings.token),
        authorities=settings.authorities,
        insecure=settings.insecure,
    )
    with (
        sealer_of(document, settings.workers or joblib.cpu_count()) as sealer,
        closing(
            Store(
                settings.store,
                document.formats,
                settings.store_keys,
                OwnNoise.of(document, sealer),
            )
        ) as store,
    ):
        metrics = ShufflerMetrics()
        admission = Admission(store, metrics, most_bytes=settings.most_waiting)
        is_learning = document.learning is not None
        relay = Relay(document, server, tick=settings.tick) if is_learning else None
        app = ShufflerApp(
            document,
            admission,
            metrics,
            tokens,
            per_address=settings.rate_per_address,
            per_token=settings.rate_per_token,
            origins=settings.origins,
            relay=relay,
        )
        watch = MetricsCollector(store, document.formats, admission, metrics)
        sender = Sender(
            store,
            document,
            server,
            metrics,
            tick=settings.tick,
            answer_within=settings.answer_within,
        )
        sites = [Site(app, settings.endpoint)]
        if settings.metrics is not None:
            sites.append(Site(metrics_app(watch.text), settings.metrics))
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(admission.run())
            tasks.create_task(admission.follow_backlog(stopping))
            tasks.create_task(sender.run(stopping))
            tasks.create_task(app.forget_senders(stopping))
            if relay is not None:
                tasks.create_task(relay.run(stopping))
            if tokens is not None:
                tasks.create_task(tokens.follow(stopping))
            if settings.deadline is not None:
                filler = BatchPadder(store, admission, document, settings.deadline)
                tasks.create_task(filler.run(stopping))
            await serve(*sites, on_start=partial(log, "shuffling service started"))
            stopping.set()
            admission.close()
    log("shuffling service stopped")


@contextmanager
def sealer_of(document: Document, workers: int) -> Iterator[Seals]:
    """What seals the service's messages: no process is started for a plan that has none."""
    if not any(level.added_messages for level in document.formats.levels):
        yield document.sealer
        return
    with SealerPool(document.public_key, document.formats.digest, workers) as pool:
        yield pool


class BatchPadder:
    """Completes a lowest batch that did not fill within the deadline.

    If users make the noise, it adds reports of its own: reports like any others, at all levels at
    once. If services do, nobody's noise is missing, and vacant places stay empty. The server learns
    how many of a batch these are. They never begin a batch: a real report that came in the meantime
    makes one of them superfluous, and so does another process that completes the same batch. No
    time is stored: after a restart the deadline starts again.
    """

    def __init__(
        self, store: Store, admission: Admission, document: Document, deadline: float
    ) -> None:
        self._store = store
        self._admission = admission
        self._document = document
        self._deadline = deadline
        self._lowest = document.formats.levels[0]
        self._open, self._batch = OpenBatches(document.formats), 0
        self._trouble = RecurringFault("a late batch stays open", "late batches are closed again")

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                missing = self._missing(await asyncio.to_thread(lambda: self._store.arrived))
                if missing:
                    await self.fill(missing)
                self._trouble.end()
            except (StoreUnavailable, Overloaded) as error:
                self._trouble.begin(type(error).__name__)
            await pause(stopping, min(1.0, self._deadline / 4))

    def _missing(self, arrived: int) -> int:
        """How many reports the open batch lacks, if it is late."""
        self._batch, filled = divmod(arrived, self._lowest.size)
        age = self._open.ages(arrived, time.monotonic())[self._lowest.level]
        return self._lowest.size - filled if filled and age >= self._deadline else 0

    async def fill(self, places: int) -> None:
        """Complete the batch that is late, which lacked this many reports."""
        if self._lowest.is_filled:
            log("a late batch was filled", own=await self._fill(places))
        else:
            empty = await asyncio.to_thread(self._store.leave_empty, self._batch)
            log("a late batch was closed", empty=empty)

    async def _fill(self, reports: int) -> int:
        """Admit this many reports of the neutral value, or as many as are needed."""
        own, formats = 0, self._document.formats
        for start in range(0, reports, _AT_ONCE):
            bodies = await asyncio.to_thread(self._encode, min(_AT_ONCE, reports - start))
            arrivals = [Arrival.of(formats, body, fills=self._batch) for body in bodies]
            outcomes = await asyncio.gather(*map(self._admission.admit, arrivals))
            own += outcomes.count(Outcome.ADMITTED)
            if Outcome.NOT_NEEDED in outcomes:
                break
        return own

    def _encode(self, reports: int) -> list[bytes]:
        values = self._document.plan.values
        rows = values.rows([values.neutral] * reports)
        return encode_reports(self._document, rows, secure_random())


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

        >>> from overhand.deploy.protocol.wire import LevelFormat
        >>> levels = [LevelFormat(1, 4, 6, 1, 1), LevelFormat(2, 8, 3, 1, 1)]
        >>> open_batches = OpenBatches(Formats(bytes(32), levels))
        >>> open_batches.ages(3, now=100.0)
        {1: 0.0, 2: 0.0}
        >>> open_batches.ages(5, now=130.0)
        {1: 0.0, 2: 30.0}
        >>> open_batches.ages(8, now=140.0)
        {1: 0.0, 2: 0.0}
        """
        before, self._since = self._since, {}
        for level, size in self._sizes.items():
            number, taken = divmod(arrived, size)
            if taken and arrived != self._horizon:  # what is left then will never be full
                seen, since = before.get(level, (number, now))
                self._since[level] = number, since if seen == number else now
        return {level: now - self._since.get(level, (0, now))[1] for level in self._sizes}


class MetricsCollector:
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
        return metrics.collect(readiness, self._ask, metrics.store_is_up)

    def _ask(self) -> None:
        arrived, unsent = self._store.arrived, Counter(one.level for one in self._store.full())
        ages = self._open.ages(arrived, time.monotonic())
        self._metrics.arrived.set(arrived)
        self._metrics.unanswered.set(len(self._store.unanswered(0)))
        self._metrics.waiting_bytes.set(self._store.waiting_bytes)
        for alarm in Alarm:
            self._metrics.alarms.labels(alarm.name.lower()).set(self._store.alarms[alarm])
        for level in self._levels:
            self._metrics.unsent.labels(level).set(unsent[level])
            self._metrics.open_seconds.labels(level).set(ages[level])
