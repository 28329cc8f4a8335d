"""Connections before they are secured: they count, and have not long to become more."""

from __future__ import annotations

import asyncio
import ctypes
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
_SOME = 64
_PAUSE = 1.0
"""Seconds until the next attempt, if the system has no room for a connection."""


class Handshake:
    """One that is under way."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def drop(self) -> None:
        self._task.cancel()


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
        self._ended = 0
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
            protocol.leave()
            one.close()
            return
        one.setblocking(False)
        task = asyncio.create_task(self._secure(one, protocol))
        handshake = Handshake(task)
        self._handshakes.add(task)
        self._load.begin_handshake(handshake)

        def end(_: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            self._load.end_handshake(handshake)
            self._tidy_soon()
            if protocol.transport is None:  # or it leaves by itself
                protocol.leave()

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

    def _tidy_soon(self) -> None:
        """Once a second at most, after a few: it takes milliseconds."""
        self._ended += 1
        if self._ended == _SOME:
            self._loop.call_later(_PAUSE, self._tidy)

    def _tidy(self) -> None:
        self._ended = 0
        _give_back_memory()

    def close(self) -> None:
        """Take no more connections, and drop those that are not secured."""
        self._is_open = False
        self._loop.remove_reader(self._at)
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)


def _give_back_memory() -> None:
    """To the system, if the C library can: what handshakes leave is free, but in small pieces.

    Without it, five waves of a thousand took 170 MB more than one.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
