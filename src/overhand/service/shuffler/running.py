"""The shuffling service as a process."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overhand.errors import number, whole
from overhand.service.protocol import Document, load_token
from overhand.service.shuffler.adding import added_by, sealer_of
from overhand.service.shuffler.admission import Admission, ShufflerMetrics
from overhand.service.shuffler.app import ShufflerApp
from overhand.service.shuffler.filling import Filler
from overhand.service.shuffler.folding import Folder
from overhand.service.shuffler.sending import Sender
from overhand.service.shuffler.store import Store
from overhand.service.shuffler.uploads import Uploads
from overhand.service.shuffler.watching import Watch
from overhand.service.web import HttpTransport, Listener, Site, TokenFile, log, metrics_app, serve


@dataclass(frozen=True)
class ShufflerSettings:
    """Where the shuffling service finds what it needs.

    `store` is a path of a SQLite file or the address of a PostgreSQL database, `store_keys` the
    file of its keys, beside the SQLite file if it is not said. `pinned` is the digest of the
    document that it was agreed upon to serve. `workers` processes seal what the service itself
    adds to batches, if it adds messages: one for every core if it is not said.
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
    workers: int | None = None

    def __post_init__(self) -> None:
        number("tick", self.tick, above=0)
        if self.deadline is not None:
            number("deadline", self.deadline, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)


async def run_shuffler(settings: ShufflerSettings) -> None:
    """Serve until a signal; a batch that is full and not sent waits for the next start."""
    document = Document.load(settings.document, settings.pinned)
    document.check_guarantee()
    tokens = None if settings.tokens is None else TokenFile(settings.tokens)
    server = HttpTransport(
        settings.server, token=load_token(settings.token), authorities=settings.authorities
    )
    with (
        sealer_of(document, settings.workers or os.cpu_count() or 1) as sealer,
        closing(
            Store(settings.store, document.formats, settings.store_keys, added_by(document, sealer))
        ) as store,
    ):
        metrics = ShufflerMetrics()
        admission = Admission(store, metrics)
        app = ShufflerApp(document, admission, metrics, tokens)
        private = metrics_app(Watch(store, document.formats, admission, metrics).text)
        sender = Sender(store, document, server, metrics, tick=settings.tick)
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(admission.run())
            tasks.create_task(sender.run(stopping))
            if tokens is not None:
                tasks.create_task(tokens.follow(stopping))
            if any(level.clear_numbers for level in document.formats.levels):
                folder = Folder(store, document.formats, metrics, tick=settings.tick)
                tasks.create_task(folder.run(stopping))
            if settings.deadline is not None:
                filler = Filler(store, admission, document, settings.deadline)
                tasks.create_task(filler.run(stopping))
            await serve(
                Site(app, settings.listener, Uploads),
                Site(private, settings.metrics),
                on_start=partial(log, "shuffling service started"),
            )
            stopping.set()
            admission.close()
    log("shuffling service stopped")
