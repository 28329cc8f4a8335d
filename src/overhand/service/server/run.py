"""The server as a process."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from overhand.errors import InvalidValue
from overhand.service.document import Document
from overhand.service.keys import KeyPair, hashed, load_token
from overhand.service.logs import log
from overhand.service.processes import Listener, serve
from overhand.service.sealing import OpenerPool
from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book
from overhand.service.server.publisher import Publisher


@dataclass(frozen=True)
class ServerSettings:
    """Where the server finds what it needs."""

    document: Path
    key: Path
    token: Path
    book: Path
    listener: Listener
    workers: int | None = None


async def run_server(settings: ServerSettings) -> None:
    """Serve until a signal; what was received and not opened waits for the next start."""
    document = Document.from_json(settings.document.read_text(encoding="utf-8"))
    document.check_guarantee()
    key = KeyPair.load(settings.key)
    if key.public_key != document.public_key:
        raise InvalidValue(f"the key {settings.key} is not that of the document")
    book = Book(settings.book, document.plan.digest)
    workers = settings.workers or os.cpu_count() or 1
    with OpenerPool(key, document.formats.digest, workers) as pool:
        publisher = Publisher(document, book, pool)
        app = ServerApp(document, book, publisher, hashed(load_token(settings.token)))
        publishing = asyncio.create_task(_publish(app, publisher))
        log("server started", levels=len(document.formats.levels), workers=workers)
        try:
            await serve((app.starlette, settings.listener))
        finally:
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
    book.close()
    log("server stopped")


async def _publish(app: ServerApp, publisher: Publisher) -> None:
    """Open releases as they come; those of an earlier life first."""
    while True:
        app.arrived.clear()
        while await asyncio.to_thread(publisher.step):
            app.announce()
        await app.arrived.wait()
