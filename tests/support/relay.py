"""A relay before a service: it keeps all that is sent, and loses what a test wants lost."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Loss = Literal["request", "answer", "time"]
"""The request never arrives, its answer never does, or it is held until the relay is closed."""


class Passed(NamedTuple):
    """A request that came by."""

    method: str
    path: str
    body: bytes


class _Message(NamedTuple):
    head: bytes
    body: bytes


@dataclass
class Relay:
    """Forwards every request to `port`, except for `losses`, of which each request takes one."""

    port: int
    listens_at: int
    losses: deque[Loss | None] = field(default_factory=deque)
    methods: tuple[str, ...] = ("PUT", "POST")
    passed: list[Passed] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """The statuses of the answers that came back, in that order."""

    def __post_init__(self) -> None:
        self._ready = threading.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listens_at}"

    def __enter__(self) -> Relay:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", self.listens_at)
        self._ready.set()
        await self._stop.wait()
        server.close()
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)
        await asyncio.sleep(0.02)  # until the sockets are closed, too

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                answer = await self._answer(await _message(reader))
                if answer is None:
                    break
                writer.write(answer.head + answer.body)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # whoever is on the other side went away
        finally:
            writer.transport.abort()

    async def _answer(self, request: _Message) -> _Message | None:
        method, path, _ = request.head.decode("latin-1").split(" ", 2)
        self.passed.append(Passed(method, path, request.body))
        loss = self.losses.popleft() if self.losses and method in self.methods else None
        if loss == "time":
            await self._stop.wait()
        if loss is not None and loss != "answer":
            return None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request.head + request.body)
            answer = await _message(reader)
        finally:
            writer.transport.abort()
        self.statuses.append(int(answer.head.split(b" ", 2)[1]))
        return None if loss == "answer" else answer


async def _message(reader: asyncio.StreamReader) -> _Message:
    """A request or an answer, whose length is told."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return _Message(head, await reader.readexactly(length))
