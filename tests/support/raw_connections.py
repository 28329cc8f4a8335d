"""Connections to a service in this process, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import uvloop

from overhand.deploy.http.application import Application
from overhand.deploy.http.listening import Endpoint, Site, server_of
from overhand.planning import Plan
from support.loopback_system import TOKEN, System, plan_for

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
BINARY = b"content-type: application/octet-stream\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@dataclass
class Line:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: dict[str, str] = field(default_factory=dict)

    def say(self, *what: bytes) -> None:
        self.writer.write(b"".join(what))

    async def status(self) -> int:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)).decode()
        first, *lines = head.split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines if line)
        return int(first.split()[1])

    async def answer(self) -> tuple[int, Any]:
        status = await self.status()
        return status, json.loads(
            await self.reader.readexactly(int(self.headers["content-length"]))
        )

    async def rest(self) -> bytes:
        """What is said until the other side hangs up."""
        said = b""
        with suppress(ConnectionError):
            while more := await asyncio.wait_for(self.reader.read(1 << 16), 60):
                said += more
        return said

    async def end(self, drip: bytes = b"") -> bytes:
        """What is said until then, to one who says a little all the while."""
        heard = asyncio.create_task(self.rest())
        while not heard.done():
            self.say(drip)
            await asyncio.sleep(0.02)
        return await heard


@dataclass
class Port:
    """A site that listens."""

    number: int
    server: Any

    @asynccontextmanager
    async def line(self, **options: Any) -> AsyncIterator[Line]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number, **options)
        try:
            yield Line(reader, writer)
        finally:
            writer.transport.abort()

    async def is_left(self) -> None:
        """Returns when nobody is connected any more."""
        async with asyncio.timeout(60):
            while self.server.server_state.connections:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(app: Any, connections: int, endpoint: Endpoint) -> AsyncIterator[Port]:
    with endpoint.bind() as at:
        server = server_of(Site(app, endpoint), connections)
        serving = asyncio.create_task(server.serve([at]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield Port(at.getsockname()[1], server)
        finally:
            server.should_exit = True
            await serving


def serve(
    app: Any,
    test: Callable[[Port], Awaitable[None]],
    *,
    connections: int = 100,
    endpoint: Endpoint | None = None,
) -> None:
    async def main() -> None:
        async with listening(app, connections, endpoint or Endpoint(port=0)) as port:
            await test(port)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@cache
def plan() -> Plan:
    return plan_for()


@dataclass
class Role:
    """A service, as it is deployed."""

    system: System
    is_shuffler: bool

    def serve(self, test: Callable[[Port], Awaitable[None]], **options: Any) -> None:
        serve(self.app, test, **options)

    @property
    def app(self) -> Application:
        return self.system.shuffler if self.is_shuffler else self.system.server

    @property
    def upload(self) -> bytes:
        """The head of a request whose body is waited for, without its end."""
        if self.is_shuffler:
            return b"POST /v1/reports HTTP/1.1\r\nhost: x\r\n" + BINARY
        head = f"PUT /v1/releases/1/0 HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n"
        return head.encode() + BINARY
