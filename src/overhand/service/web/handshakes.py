"""A connection before it is secured: it counts, and it has not long to become more."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress

from overhand.service.web.load import Load

PATIENCE = 10.0
"""Seconds for a handshake."""


class Handshake(asyncio.Protocol):
    """Secures a connection, and hands it to the protocol that `create` makes.

    The event loop would do as much, but tells nobody of the handshakes that are under way.
    """

    def __init__(
        self, load: Load, context: ssl.SSLContext, create: Callable[[], asyncio.Protocol]
    ) -> None:
        self._load, self._context, self._create = load, context, create
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        has_room = self._load.enter()
        if not has_room:  # nothing can be said to it yet
            self._load.leave()
            transport.abort()
            return
        transport.pause_reading()
        self._load.begin_handshake(self)
        self._task = asyncio.create_task(self._secure(transport))

    async def _secure(self, transport: asyncio.Transport) -> None:
        first = _First()
        secured = None
        try:
            with suppress(OSError):  # also of TLS, or of one that came too late
                secured = await asyncio.get_running_loop().start_tls(
                    transport,
                    first,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=PATIENCE,
                )
        finally:
            self._load.end_handshake(self)
            self._load.leave()
            if secured is None:
                transport.abort()
        if secured is not None:
            first.hand_over(secured, self._create())

    def drop(self) -> None:
        self._load.end_handshake(self)
        if self._transport is not None:
            self._transport.abort()


class _First(asyncio.Protocol):
    """Keeps what was said with the end of the handshake, for the protocol that comes next."""

    def __init__(self) -> None:
        self._said = b""
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        self._said += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def hand_over(self, transport: asyncio.Transport, to: asyncio.Protocol) -> None:
        if self._is_lost:
            return
        transport.set_protocol(to)
        to.connection_made(transport)
        if self._said:
            to.data_received(self._said)
