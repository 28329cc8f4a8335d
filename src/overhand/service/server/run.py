"""The server as a process."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overhand.errors import InvalidValue, number, whole
from overhand.service.databases import is_postgres
from overhand.service.protocol import Document, KeyPair, OpenerPool, load_hashes
from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book
from overhand.service.server.metrics import ServerMetrics
from overhand.service.server.publisher import Publisher
from overhand.service.server.publishing import publish
from overhand.service.server.settled import Settled
from overhand.service.server.total import Total
from overhand.service.web import Listener, Site, log, metrics_app, serve


@dataclass(frozen=True)
class ServerSettings:
    """Where the server finds what it needs.

    `book` is a path of a SQLite file or the address of a PostgreSQL database; `after` a file that
    says what an earlier plan ended with, for a new book to go on from. A batch that should be here
    and is not is called late after `patience` seconds.
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

    def __post_init__(self) -> None:
        number("patience", self.patience, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)


def settled_sum(document: Document, address: str) -> Settled:
    """What the plan of a document has come to, by the book at this address."""
    if not is_postgres(address) and not Path(address).is_file():
        raise InvalidValue(f"there is no book {address}")
    with closing(Book(address, document.digest)) as book:
        latest = Total.begun(document.plan, book).followed(book).latest()
    if latest is None:
        raise InvalidValue("nothing was published: there is nothing to go on from")
    return Settled.of(document.plan.values, latest)


async def run_server(settings: ServerSettings) -> None:
    """Serve until a signal; what was received and not opened waits for the next start."""
    document = Document.load(settings.document)
    document.check_guarantee()
    key = KeyPair.load(settings.key)
    if key.public_key != document.public_key:
        raise InvalidValue(f"the key {settings.key} is not that of the document")
    tokens = load_hashes(settings.token_hash)
    workers = settings.workers or os.cpu_count() or 1
    settled = None if settings.after is None else Settled.load(settings.after)
    if settled is not None:
        settled.estimate(document.plan.values)  # or it is of other values, and no book is begun
    with closing(Book(settings.book, document.digest, settled)) as book:
        pool = OpenerPool(key, document.formats.digest, workers)
        publisher = Publisher(document, book, pool)
        app = ServerApp(document, book, publisher, tokens)
        metrics = ServerMetrics(app)
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish(app, publisher, metrics, stopping, settings.patience))
            private = metrics_app(metrics.current)
            try:
                await serve(
                    Site(app.starlette, settings.listener),
                    Site(private, settings.metrics),
                    on_start=partial(log, "server started", workers=workers),
                    on_stop=app.stop,
                )
            finally:
                stopping.set()
                app.arrived.set()
                await asyncio.to_thread(pool.close)  # a release that is being opened is left
    log("server stopped")
