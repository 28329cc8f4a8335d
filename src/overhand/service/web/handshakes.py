"""Connections before they are secured: they count, and have not long to become more."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from overhand.service.web.limits import Impatient
from overhand.service.web.load import Load
from overhand.service.web.logs import log

PATIENCE = 10.0
"""Seconds for a handshake."""
FAREWELL = 2.0
"""Seconds for the other side to take leave."""

_AT_ONCE = 100
_PAUSE = 1.0
"""Seconds until the next attempt, if the system has no room for a connection."""


class Handshake:
    """One that is under way, for a protocol that has nothing to do with it before it is done."""

    def __init__(self, task: asyncio.Task[None], protocol: Impatient) -> None:
        self._task, self._protocol = task, protocol

    def drop(self) -> None:
        self._task.cancel()

    @property
    def has_failed(self) -> bool:
        return self._protocol.transport is None


class Door:
    """Takes connections at a socket, secures them, and hands them to a protocol.

    The event loop would do as much, but tells nobody of the handshakes that are under way.
    """

    def __init__(
        self,
        at: socket.socket,
        load: Load,
        context: ssl.SSLContext,
        create: Callable[[], Impatient],
    ) -> None:
        self._at, self._load, self._context, self._create = at, load, context, create
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._is_open = True
        at.setblocking(False)
        self._wait()

    def _wait(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._at, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):  # then whoever is here already
            try:
                one, _address = self._at.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log("no connection can be taken", level=logging.ERROR, error=type(error).__name__)
                self._loop.remove_reader(self._at)
                self._loop.call_later(_PAUSE, self._wait)
                return
            self._begin(one)

    def _begin(self, one: socket.socket) -> None:
        protocol = self._create()
        if not protocol.enter():  # nothing can be said to it yet
            self._load.leave()
            one.close()
            return
        one.setblocking(False)
        task = asyncio.create_task(self._secure(one, protocol))
        handshake = Handshake(task, protocol)
        self._handshakes.add(task)
        self._load.begin_handshake(handshake)

        def end(_: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            self._load.end_handshake(handshake)
            if handshake.has_failed:  # or it is the protocol that leaves
                self._load.leave()

        task.add_done_callback(end)

    async def _secure(self, one: socket.socket, protocol: Impatient) -> None:
        with suppress(OSError):  # also of TLS, or of one that came too late
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                one,
                ssl=self._context,
                ssl_handshake_timeout=PATIENCE,
                ssl_shutdown_timeout=FAREWELL,
            )

    def close(self) -> None:
        """Take no more connections, and drop those that are not secured."""
        self._is_open = False
        self._loop.remove_reader(self._at)
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)
