"""Who may report, by the current file: tokens are added and revoked while a service runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from overhand.service.protocol import UnsafeSecret, load_hashes
from overhand.service.web.listening import pause
from overhand.service.web.logs import log

_LOOK = 1.0
"""Seconds between looks at the file."""


class TokenFile(Collection[bytes]):
    """The hashes of tokens in the file `path`, which must be good when a service starts.

    `follow` reads it again when it has changed. A missing or damaged file changes nothing, and is
    logged once: nobody is let in, or locked out, by half a file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _state(path)
        self._hashes = load_hashes(path)
        self._is_bad = False

    def __contains__(self, hashed: object) -> bool:
        return hashed in self._hashes

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    async def follow(self, stopping: asyncio.Event) -> None:
        """Look at the file every second."""
        while not stopping.is_set():
            await asyncio.to_thread(self.look)
            await pause(stopping, _LOOK)

    def look(self) -> None:
        """Read the file if it is not what it was, or was bad when it was last read."""
        state = _state(self._path)  # before it is read: what is written meanwhile is seen next time
        if state == self._seen and not self._is_bad:
            return
        try:
            hashes = load_hashes(self._path)
        except UnsafeSecret:
            if not self._is_bad:
                log("tokens cannot be read: the old ones stay valid", level=logging.ERROR)
            self._is_bad = True
            return
        if hashes != self._hashes or self._is_bad:
            added, revoked = len(hashes - self._hashes), len(self._hashes - hashes)
            log("tokens were read", added=added, revoked=revoked)
        self._seen, self._hashes, self._is_bad = state, hashes, False


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file; nothing if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
