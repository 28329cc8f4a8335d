"""The shuffling service as a process."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overhand.errors import number, whole
from overhand.processors import processors
from overhand.service.protocol import Document, load_token
from overhand.service.shuffler.adding import added_by, sealer_of
from overhand.service.shuffler.admission import Admission, ShufflerMetrics
from overhand.service.shuffler.app import ShufflerApp
from overhand.service.shuffler.filling import Filler
from overhand.service.shuffler.folding import Folder
from overhand.service.shuffler.relaying import Relay
from overhand.service.shuffler.sending import Sender
from overhand.service.shuffler.store import Store
from overhand.service.shuffler.watching import Watch
from overhand.service.web import (
    HttpTransport,
    Listener,
    Site,
    TokenFile,
    check_origins,
    log,
    metrics_app,
    serve,
)


@dataclass(frozen=True)
class ShufflerSettings:
    """Where the shuffling service finds what it needs.

    `store` is the path of a SQLite file or the address of a PostgreSQL database, `store_keys` the
    file of its keys, by default next to the SQLite file. `server` is an address; `http://` to
    another machine, where anyone on the way can read the token and the releases, needs `insecure`.
    `pinned` is the agreed digest of the document to serve. `workers` processes seal what the
    service itself adds to batches, if it adds messages: one per core by default. `per_address` and
    `per_token` limit the reports per second from one address and with one token, unless they are 0:
    many people share an address, and a token is for one report and its repeats. Web pages may
    report if their origin is named, or all pages if "*" is.
    """

    document: Path
    store: str
    server: str
    token: Path
    listener: Listener
    metrics: Listener | None = None
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

    def __post_init__(self) -> None:
        number("tick", self.tick, above=0)
        check_origins(self.origins)
        if self.deadline is not None:
            number("deadline", self.deadline, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)
        if self.rate_per_address:
            number("rate_per_address", self.rate_per_address, above=0)
        if self.rate_per_token:
            number("rate_per_token", self.rate_per_token, above=0)


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
        sealer_of(document, settings.workers or processors()) as sealer,
        closing(
            Store(settings.store, document.formats, settings.store_keys, added_by(document, sealer))
        ) as store,
    ):
        metrics = ShufflerMetrics()
        admission = Admission(store, metrics)
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
        watch = Watch(store, document.formats, admission, metrics)
        sender = Sender(store, document, server, metrics, tick=settings.tick)
        sites = [Site(app, settings.listener)]
        if settings.metrics is not None:
            sites.append(Site(metrics_app(watch.text), settings.metrics))
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(admission.run())
            tasks.create_task(sender.run(stopping))
            tasks.create_task(app.forget_senders(stopping))
            if relay is not None:
                tasks.create_task(relay.run(stopping))
            if tokens is not None:
                tasks.create_task(tokens.follow(stopping))
            if any(level.clear_numbers for level in document.formats.levels):
                folder = Folder(store, document.formats, metrics, tick=settings.tick)
                tasks.create_task(folder.run(stopping))
            if settings.deadline is not None:
                filler = Filler(store, admission, document, settings.deadline)
                tasks.create_task(filler.run(stopping))
            await serve(*sites, on_start=partial(log, "shuffling service started"))
            stopping.set()
            admission.close()
    log("shuffling service stopped")
