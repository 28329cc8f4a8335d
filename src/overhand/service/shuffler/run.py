"""The shuffling service as a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overhand.errors import InvalidValue
from overhand.service.document import Document
from overhand.service.http import Receive, Scope, Send, respond
from overhand.service.keys import load_token
from overhand.service.logs import log
from overhand.service.processes import Listener, serve
from overhand.service.shuffler.admission import Admission
from overhand.service.shuffler.app import ShufflerApp
from overhand.service.shuffler.filling import Filler
from overhand.service.shuffler.metrics import ShufflerMetrics
from overhand.service.shuffler.sending import Sender
from overhand.service.stores import Lane, SqliteStore, Store
from overhand.service.transport import HttpTransport


@dataclass(frozen=True)
class ShufflerSettings:
    """Where the shuffling service finds what it needs.

    `store` is a path of a SQLite file or the address of a PostgreSQL database. `pinned` is the
    digest of the document that it was agreed upon to serve.
    """

    document: Path
    store: str
    server: str
    token: Path
    listener: Listener
    metrics: Listener | None = None
    pinned: str | None = None
    tokens: Path | None = None
    deadline: float | None = None
    tick: float = 1.0
    verify: str | None = None


def open_store(address: str, document: Document) -> Store:
    """The store at a path or an address, for the plan of a document."""
    formats, horizon = document.formats, document.plan.horizon
    lanes = [
        Lane(level.level, level.size, level.messages, level.ciphertext_bytes)
        for level in formats.levels
    ]
    if address.startswith(("postgresql://", "postgres://")):
        from overhand.service.stores.postgres import PostgresStore

        return PostgresStore(address, lanes, horizon)
    return SqliteStore(Path(address), lanes, horizon)


async def run_shuffler(settings: ShufflerSettings) -> None:
    """Serve until a signal; a batch that is full and not sent waits for the next start."""
    document = Document.from_json(settings.document.read_text(encoding="utf-8"))
    if settings.pinned is not None and document.digest != settings.pinned:
        raise InvalidValue(
            f"the document has digest {document.digest[:12]}, not {settings.pinned[:12]}"
        )
    document.check_guarantee()
    store = open_store(settings.store, document)
    metrics = ShufflerMetrics()
    admission = Admission(store)
    app = ShufflerApp(document, admission, metrics, _tokens(settings.tokens))
    server = HttpTransport(
        settings.server, token=load_token(settings.token), verify=settings.verify
    )
    sender = Sender(store, document, server, metrics, tick=settings.tick)
    stopping = asyncio.Event()
    tasks = [asyncio.create_task(admission.run()), asyncio.create_task(sender.run(stopping))]
    if settings.deadline is not None:
        filler = Filler(store, admission, document, settings.deadline)
        tasks.append(asyncio.create_task(filler.run(stopping)))
    log("shuffling service started", levels=len(document.formats.levels))
    listeners: list[tuple[Any, Listener]] = [(app, settings.listener)]
    if settings.metrics is not None:
        listeners.append((_metrics_app(metrics, admission, store), settings.metrics))
    try:
        await serve(*listeners)
    finally:
        stopping.set()
        admission.close()
        await asyncio.gather(*tasks)
        store.close()
    log("shuffling service stopped")


def _tokens(path: Path | None) -> frozenset[bytes] | None:
    """The hashes of client tokens, one in hex a line."""
    if path is None:
        return None
    lines = path.read_text(encoding="ascii").split()
    return frozenset(bytes.fromhex(line) for line in lines)


def _metrics_app(
    metrics: ShufflerMetrics, admission: Admission, store: Store
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """For a private listener: numbers that tell when users came."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/metrics":
            await respond(send, 404, {"error": "only /metrics is here"})
            return
        metrics.waiting.set(admission.waiting)
        metrics.arrived.set(await asyncio.to_thread(lambda: store.arrived))
        headers = [(b"content-type", b"text/plain; version=0.0.4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": metrics.text()})

    return app
