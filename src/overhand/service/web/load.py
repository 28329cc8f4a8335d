"""How much memory the connections of a site hold, and how much they may hold."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path
from typing import Protocol

from overhand.errors import ServiceError
from overhand.service.web.logs import log

_MOST_CONNECTIONS = 4096
_MOST_HANDSHAKES = 1024
"""Each holds some 80 kB, and all that are honest are over within a second."""
_MOST_BYTES = 3 << 23
_BODIES = 8
"""How many of the longest bodies are let in at once, however long they are: twice as many releases
as a shuffling service has under way."""
_USUAL_BODY = 1 << 20
_BESIDES = 5 << 16
"""Bytes of a connection besides a body: of a head, and of what was read with it at once."""
_FEWEST_CONNECTIONS = 16
_OTHER_FILES = 96
"""For the database, the other service, and whatever a library opens."""


class CannotListen(ServiceError):
    """An address that is in use, or not ours, or there is no room to answer anybody."""


class Droppable(Protocol):
    """A connection that can be let go."""

    def drop(self) -> None:
        """Let go of all that it holds, at once."""


class Load:
    """The connections of a site, with those that are not secured yet, and the bytes they hold.

    A byte is held from when it was read until its request is answered. If all together hold too
    many, the client that has been sending a request for longest is dropped: an honest report is
    complete within moments, so that one sends slowly on purpose. The same holds for handshakes.
    """

    def __init__(
        self, *, most_body: int = _USUAL_BODY, most_connections: int = _MOST_CONNECTIONS
    ) -> None:
        self.most_body = most_body
        self.most_connections = most_connections
        self.most_bytes = max(_MOST_BYTES, _BODIES * most_body)
        self.most_held = most_body + _BESIDES
        """Bytes of one connection."""
        self.connections = self.bytes = 0
        self.coming: dict[Droppable, None] = {}
        """Whose request is not whole; who began first is first."""
        self.handshakes: dict[Droppable, None] = {}
        self._is_crowded = False

    @property
    def most_open(self) -> int:
        """Connections at once, with those that are only told to come back."""
        return self.most_connections + max(1, self.most_connections // 4)

    def enter(self) -> bool:
        """Count a connection; whether there is room to tell it anything."""
        self.connections += 1
        if self.connections > self.most_connections and not self._is_crowded:
            self._is_crowded = True
            log("too many connections", level=logging.WARNING, most=self.most_connections)
        return self.connections <= self.most_open

    def leave(self) -> None:
        self.connections -= 1
        if self.connections < 0.9 * self.most_connections:
            self._is_crowded = False  # once a crowd, not once a connection

    def make_room(self) -> None:
        """Drop the oldest until the others hold no more than they may."""
        while self.bytes > self.most_bytes and self.coming:
            next(iter(self.coming)).drop()

    def begin_handshake(self, one: Droppable) -> None:
        if len(self.handshakes) >= _MOST_HANDSHAKES:
            oldest = next(iter(self.handshakes))
            self.end_handshake(oldest)
            oldest.drop()
        self.handshakes[one] = None

    def end_handshake(self, one: Droppable) -> None:
        self.handshakes.pop(one, None)

    def fit(self, files: int) -> None:
        """Have no more connections than files can be open for them."""
        if self.most_open > files:
            self.most_connections = 4 * files // 5
        if self.most_connections < _FEWEST_CONNECTIONS:
            raise CannotListen(
                f"room for {max(0, self.most_connections)} connections, fewer than "
                f"{_FEWEST_CONNECTIONS}: raise the limit of open files (ulimit -n)"
            )


def fit_to_files(public: Load, *private: Load) -> int:
    """Let this process open as many files as it may need; if it may not, fit the connections.

    Returns how many it may open. What is private keeps its room.
    """
    others = _open_files() + _OTHER_FILES + sum(load.most_open for load in private)
    files = _raised(others + public.most_open)
    public.fit(files - others)
    return files


def _raised(wanted: int) -> int:
    """How many files this process may open, as many as wanted if that is up to us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY:
        return allowed
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)


def _open_files() -> int:
    """How many this process has open."""
    return next((len(os.listdir(p)) for p in ("/proc/self/fd", "/dev/fd") if Path(p).is_dir()), 64)
