"""Both services in one process, with faults between them: lost requests, databases, processes.

Nothing here is graceful. A request fails before or after it was handled, is handled twice, or when
its sender has long given up; a database goes away before or after a commit; a service ends between
two steps of its loop, and another one opens its files while they are still held by the dead one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, hash_token, new_token
from overhand.deploy.protocol.sealing import Opened, Opener
from overhand.deploy.server.app import ServerApp
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.app import Admission, ShufflerApp, ShufflerMetrics
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.running import BatchPadder
from overhand.deploy.shuffler.sending import NotTaken, Sender
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer, Transport, Unreachable
from overhand.errors import StoreUnavailable
from support.asgi import AsgiTransport

TOKEN = new_token()


class Fault(Enum):
    """What happens to one request, or to one call of a database."""

    NONE = "none"
    BEFORE = "before"
    """It is not handled."""
    AFTER = "after"
    """It is handled, and nobody learns that it was."""
    TWICE = "twice"
    """It is handled twice; a request, at the same time."""
    LATE = "late"
    """Its sender gives up, and it is handled later; a transaction is undone at its end."""


Script = deque[Fault]


def _next(script: Script) -> Fault:
    return script.popleft() if script else Fault.NONE


@dataclass(frozen=True)
class Handled:
    """A request that was handled, and the answer, whether or not it arrived."""

    path: str
    body: bytes
    status: int
    answer: bytes


class FaultyTransport:
    """Carries requests as its script says, to the service that is there at the time."""

    def __init__(self) -> None:
        self.inner: Transport
        self.script: Script = deque()
        self.handled: list[Handled] = []
        self._late: list[tuple[str, str, bytes | None]] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        fault = _next(self.script)
        if fault is Fault.BEFORE:
            raise Unreachable("lost on its way")
        if fault is Fault.LATE:
            self._late.append((method, path, body))
            raise Unreachable("given up")
        copies = 2 if fault is Fault.TWICE else 1
        answers = await asyncio.gather(*(self._handle(method, path, body) for _ in range(copies)))
        if fault is Fault.AFTER:
            raise Unreachable("the answer was lost")
        return answers[-1]

    async def _handle(self, method: str, path: str, body: bytes | None) -> Answer:
        answer = await self.inner.request(method, path, body)
        self.handled.append(Handled(path, body or b"", answer.status, answer.body))
        return answer

    async def deliver_late(self) -> None:
        """What was given up arrives, the last first."""
        late, self._late = self._late[::-1], []
        await asyncio.gather(*(self._handle(*request) for request in late))

    async def close(self) -> None:
        """It outlives the services that it leads to."""


class _Undone(Exception):
    """A transaction that did all of its work, and is rolled back."""


class Faulty:
    """A store or a database of which some methods fail, at any point of their transaction.

    Before it, after its commit, at its last moment (`LATE`), or then as well, but the database
    tries again by itself (`TWICE`).
    """

    def __init__(self, inner: Any, methods: Collection[str], script: Script) -> None:
        self._inner = inner
        self._methods = methods
        self._script = script

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._failing(found) if name in self._methods else found

    def _failing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            fault = _next(self._script)
            if fault is Fault.BEFORE:
                raise StoreUnavailable("away before the call")
            with self._undone(fault):
                result = method(*arguments, **options)
            if fault is Fault.AFTER:
                raise StoreUnavailable("away after the commit")
            return result

        return call

    @contextmanager
    def _undone(self, fault: Fault) -> Iterator[None]:
        """The next transaction is rolled back, if the fault says so."""
        database = self._inner._database
        write = database.write

        def undone(work: Callable[[Any], Any]) -> Any:
            database.write = write

            def all_but_the_end(transaction: Any) -> None:
                work(transaction)
                raise _Undone

            with suppress(_Undone):
                write(all_but_the_end)
            if fault is Fault.TWICE:
                return write(work)
            raise StoreUnavailable("away at the last moment")

        if fault in (Fault.TWICE, Fault.LATE):
            database.write = undone
        try:
            yield
        finally:
            database.write = write


class Admitted:
    """A store that notes whom it admitted, in their order: what no store may keep."""

    def __init__(self, inner: Store, notes: list[Arrival]) -> None:
        self._inner = inner
        self._notes = notes

    def admit(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        outcomes = self._inner.admit(arrivals)
        pairs = zip(arrivals, outcomes, strict=True)
        self._notes += [arrival for arrival, told in pairs if told is Outcome.ADMITTED]
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RememberingOpener:
    """Opens every ciphertext once: the server and the reference open the same ones again."""

    def __init__(self, key: KeyPair, digest: bytes) -> None:
        self._opener = Opener(key, digest)
        self._one = lru_cache(maxsize=None)(
            lambda level, ciphertext: self._opener.open(level, [ciphertext])[0]
        )

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        return [self._one(level, ciphertext) for ciphertext in ciphertexts]


class Deployment:
    """A shuffling service and a server, the ways to them, and all that may break.

    `open_store` opens the shuffling service's database, as often as it is asked to.
    """

    def __init__(
        self,
        home: Path,
        document: Document,
        opener: RememberingOpener,
        open_store: Callable[[], Store],
    ) -> None:
        self.document, self.opener = document, opener
        self._home, self._open_store = home, open_store
        self.to_shuffler, self.to_server = FaultyTransport(), FaultyTransport()
        self.store_script: Script = deque()
        self.server_script: Script = deque()
        self.admitted: list[Arrival] = []
        self._store: Store | None = None
        self._database: ServerStore | None = None
        ServerStore.make_keys(document, home / "database.db.keys")

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def database(self) -> ServerStore:
        assert self._database is not None
        return self._database

    def start(self) -> None:
        self.start_shuffler()
        self.start_server()

    def start_shuffler(self) -> None:
        """A new process: the files of an old one are opened before they are let go of."""
        old, self._store = self._store, self._open_store()
        noting = Admitted(self.store, self.admitted)
        faulty: Any = Faulty(
            noting,
            (
                *("admit", "unfrozen", "freeze_all", "frozen", "acknowledge_all", "scrub"),
                *("offer_all", "answer_all"),
            ),
            self.store_script,
        )
        self.admission = Admission(faulty, group=5)
        app = ShufflerApp(self.document, self.admission)
        self.to_shuffler.inner = AsgiTransport(app)
        self.sender = Sender(faulty, self.document, self.to_server, ShufflerMetrics())
        self.filler = BatchPadder(faulty, self.admission, self.document, deadline=0.0)
        self._committing = asyncio.create_task(self.admission.run())
        if old is not None:
            old.close()

    def start_server(self) -> None:
        old, self._database = (
            self._database,
            ServerStore.of(self.document, self._home / "database.db"),
        )
        writes = ("receive", "answer", "add_sums", "publish", "claim_releases")
        faulty: Any = Faulty(self.database, writes, self.server_script)
        self.publisher = Publisher(self.document, faulty, self.opener)
        self.server = ServerApp(self.document, faulty, self.publisher, [hash_token(TOKEN)])
        self.to_server.inner = AsgiTransport(self.server, TOKEN)
        if old is not None:
            old.close()

    async def kill_shuffler(self) -> None:
        """What its database has in hand is finished, what waits in memory is gone."""
        self._committing.cancel()
        with suppress(asyncio.CancelledError):
            await self._committing
        await asyncio.to_thread(self.admission._thread.shutdown)

    async def settle(self) -> None:
        """Wait for commits under way, also of reports that nobody waits for any more."""
        while self.admission.waiting:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(lambda: self.admission._thread.submit(int).result())

    async def send_all(self) -> None:
        """One tick of the sender, with what its loop forgives."""
        with suppress(Unreachable, NotTaken, StoreUnavailable):
            await self.sender.send_all()

    async def publish_all(self) -> None:
        """What the server does until there is nothing more to open, or its database is away."""
        with suppress(StoreUnavailable):
            while await asyncio.to_thread(self.publisher.step):
                pass

    def no_faults(self) -> None:
        for script in (
            self.to_shuffler.script,
            self.to_server.script,
            self.store_script,
            self.server_script,
        ):
            script.clear()

    async def stop(self) -> None:
        await self.kill_shuffler()
        self.store.close()
        self.database.close()
