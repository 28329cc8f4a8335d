"""What stands between the services of a soak: it hands everything on, and remembers it."""

from __future__ import annotations

import asyncio
import hashlib
from typing import NamedTuple

from aiohttp import ClientError, ClientSession, web


class Sent(NamedTuple):
    """What is sent of a batch: its `kind` is offers, sums or releases."""

    kind: str
    level: int
    number: int


class Relay:
    """Hands all on to the server, and keeps what it took; notes whatever was sent and answered."""

    def __init__(self, port: int, server_port: int) -> None:
        self._port, self._server = port, f"http://127.0.0.1:{server_port}"
        self.kept: dict[Sent, bytes] = {}
        self.digests: dict[Sent, set[bytes]] = {}
        """Of all that was ever sent, taken or not."""
        self.answers: dict[Sent, set[bytes]] = {}
        """All that was ever answered to what was taken."""

    def run(self) -> None:
        """In a thread of its own, for as long as the process lives."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_put("/v1/{kind:offers|sums|releases}/{level}/{number}", self._put)
        async with ClientSession() as self._session:
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            await asyncio.Event().wait()

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        level, number = int(request.match_info["level"]), int(request.match_info["number"])
        name = Sent(request.match_info["kind"], level, number)
        self.digests.setdefault(name, set()).add(hashlib.sha256(body).digest())
        headers = {"authorization": request.headers["authorization"]}
        try:
            async with self._session.put(
                self._server + request.path, data=body, headers=headers
            ) as answer:
                content = await answer.read()
        except (ClientError, OSError):
            return web.Response(status=502)
        if answer.status == 200:
            self.kept.setdefault(name, body)
            self.answers.setdefault(name, set()).add(content)
        kind = {"content-type": answer.headers.get("content-type", "")}
        return web.Response(status=answer.status, body=content, headers=kind)
