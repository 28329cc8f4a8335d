"""The server as a process."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import joblib

from overhand.deploy.databases.database import is_postgres
from overhand.deploy.http.listening import Endpoint, Site, TokenFile, serve
from overhand.deploy.http.telemetry import log, metrics_app
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, PolicyKey
from overhand.deploy.protocol.sealing import OpenerPool
from overhand.deploy.server.app import ServerApp, ServerMetrics, publish
from overhand.deploy.server.publishing import Publisher, Total
from overhand.deploy.server.store import ServerStore, Settled
from overhand.errors import InvalidValue, finite_number, whole


@dataclass(frozen=True)
class ServerSettings:
    """Where the server finds what it needs.

    `database` is the path of a SQLite file or the address of a PostgreSQL database; `database_keys`
    are its keys, made with the document, if the services make the noise; `after` is a file with the
    final sum of an earlier plan, from which a new database continues; `policy_key` signs the
    policies of a recommender (`policy.key` by default). A batch that should have arrived is called
    late after `patience` seconds, and holds up no other any more.
    """

    document: Path
    key: Path
    token_hash: Path
    database: str
    endpoint: Endpoint
    metrics: Endpoint | None = None
    workers: int | None = None
    patience: float = 60.0
    after: Path | None = None
    database_keys: Path | None = None
    policy_key: Path | None = None

    def __post_init__(self) -> None:
        finite_number("patience", self.patience, above=0)
        if self.workers is not None:
            whole("workers", self.workers, least=1)


def settled_sum(document: Document, address: str) -> Settled:
    """The final sum of a document's plan, from the store at this address."""
    if not is_postgres(address) and not Path(address).is_file():
        raise InvalidValue(f"there is no database {address}")
    with closing(ServerStore(address, document.digest, begins=False)) as store:
        latest = Total.begin(document.plan, store).follow(store).latest()
    if latest is None:
        raise InvalidValue("nothing was published: there is nothing to continue from")
    return Settled.of(document, latest)


async def run_server(settings: ServerSettings) -> None:
    """Serve until a signal; what was received and not opened waits for the next start."""
    document = Document.load(settings.document)
    document.check_guarantee()
    key = KeyPair.load(settings.key)
    if key.public_key != document.public_key:
        raise InvalidValue(f"the key {settings.key} is not the document's")
    policy_path = settings.policy_key
    if policy_path is None and document.learning is not None:
        policy_path = Path("policy.key")
    policy_key = None if policy_path is None else PolicyKey.load(policy_path)
    tokens = TokenFile(settings.token_hash)
    workers, noise_by = settings.workers or joblib.cpu_count(), document.plan.noise_by
    settled = None if settings.after is None else Settled.load(settings.after)
    with closing(
        ServerStore.of(document, settings.database, settled, settings.database_keys)
    ) as store:
        pool = OpenerPool(key, document.formats.digest, workers)
        publisher = Publisher(document, store, pool, policy_key, settings.patience)
        if document.learning is not None:
            pool.warm_up()  # people are served by chance until the first batch is opened
        app = ServerApp(document, store, publisher, tokens)
        metrics = ServerMetrics(app)
        sites = [Site(app, settings.endpoint)]
        if settings.metrics is not None:
            sites.append(Site(metrics_app(metrics.current), settings.metrics))
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish(app, publisher, metrics, stopping))
            tasks.create_task(tokens.follow(stopping))
            try:
                await serve(
                    *sites,
                    on_start=partial(log, "server started", workers=workers, noise_by=noise_by),
                    on_stop=app.events.stop,
                )
            finally:
                stopping.set()
                app.arrived.set()
                await asyncio.to_thread(pool.close)  # a release that is being opened is left
    log("server stopped")
