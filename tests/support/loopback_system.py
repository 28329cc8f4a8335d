"""Client, shuffling service and server over HTTP, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import overhand as oh
from overhand.deploy.client import AsyncClient, AsyncRecommenderClient
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, PolicyKey, hash_token, new_token
from overhand.deploy.protocol.learning import Learning
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.server.app import ServerApp
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.app import Admission, Relay, ShufflerApp, ShufflerMetrics
from overhand.deploy.shuffler.batching import OwnNoise
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Store
from overhand.planning import Plan
from support.asgi import AsgiTransport
from support.small_document import encode_report

PRIVACY = oh.Privacy(4.0, 1e-4)
TOKEN = new_token()
POLICY_KEY = PolicyKey.of_raw(bytes(range(32)))
BINARY = {"content-type": "application/octet-stream"}


def plan_for(values: oh.Values | None = None, horizon: int = 60) -> Plan:
    return Plan.best(
        horizon, 2, PRIVACY, values=values or oh.Bits(), tree="regular", max_messages=80
    )


@dataclass
class System:
    """Both services and a client, joined without a network."""

    home: Path
    plan: Plan = field(default_factory=plan_for)
    tokens: frozenset[bytes] | None = None
    most_waiting: int = 100
    learning: Learning | None = None

    def __post_init__(self) -> None:
        path = self.home / "server.key"
        if not path.exists():
            KeyPair.generate().save(path)
        self.key = KeyPair.load(path)
        self.document = Document(self.plan, self.key.public_key, self.learning)
        if not (self.home / "server.db").exists():
            ServerStore.make_keys(self.document, self.home / "server.db.keys")
        noise = OwnNoise.of(self.document)
        self.store: Store = Store(self.home / "shuffler.db", self.document.formats, noise=noise)
        self.metrics = ShufflerMetrics()
        self.admission = Admission(self.store, self.metrics, most_waiting=self.most_waiting)
        self.database = ServerStore.of(self.document, self.home / "server.db")
        self.publisher = self.new_publisher()
        self.server = ServerApp(self.document, self.database, self.publisher, [hash_token(TOKEN)])
        self.relay = None
        if self.learning is not None:
            self.relay = Relay(self.document, AsgiTransport(self.server), tick=0.01)
        self.shuffler = ShufflerApp(
            self.document, self.admission, self.metrics, self.tokens, relay=self.relay
        )

    def new_publisher(self) -> Publisher:
        """As after a restart."""
        opener = Opener(self.key, self.document.formats.digest)
        policy_key = None if self.learning is None else POLICY_KEY
        return Publisher(self.document, self.database, opener, policy_key)

    def device(self, **options: Any) -> AsyncRecommenderClient:
        transport, digest = AsgiTransport(self.shuffler), self.document.digest
        return AsyncRecommenderClient(
            "http://shuffler", digest=digest, transport=transport, **options
        )

    def client(self, token: str | None = None, **options: Any) -> AsyncClient:
        transport = AsgiTransport(self.shuffler, token)
        return AsyncClient("http://shuffler", transport=transport, **options)

    def at_shuffler(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.shuffler)
        return httpx.AsyncClient(base_url="http://shuffler", transport=transport, headers=BINARY)

    def at_server(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.server)
        headers = BINARY if token is None else BINARY | {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url="http://server", transport=transport, headers=headers)

    def sender(self) -> Sender:
        server = AsgiTransport(self.server, TOKEN)
        return Sender(self.store, self.document, server, self.metrics)

    async def publish(self) -> None:
        """Send all full batches and open them."""
        await self.sender().send_all()
        while self.publisher.step():
            pass

    def report(self, value: Any = 1) -> bytes:
        return encode_report(self.document, value, oh.secure_random())


def run(home: Path, test: Callable[[System], Awaitable[None]], **options: Any) -> None:
    """Run a test while reports are being committed."""

    async def main() -> None:
        system = System(home, **options)
        committing = asyncio.create_task(system.admission.run())
        await test(system)
        system.admission.close()
        await committing
        system.store.close()
        system.database.close()

    asyncio.run(main())


def values_for(plan: Plan, users: int) -> Any:
    values = plan.values
    rng = np.random.default_rng(5)
    match values:
        case oh.Bits():
            return rng.integers(0, 2, users)
        case oh.Histogram():
            return rng.integers(0, values.buckets, users)
        case _:
            return values.uniform(oh.seeded_random(5), users)
