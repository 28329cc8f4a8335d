"""Server-sent events: news is written once, however many clients listen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_HEARTBEAT = 15.0
_AT_ONCE = 32
"""Listeners that are woken together: others are answered in between."""
_APART = 0.25
"""Seconds between news: a thousand listeners take a part of them."""


@dataclass(frozen=True)
class Edition:
    """All that may be told of the present, as it is sent."""

    text: bytes
    alarms: tuple[bytes, ...] | None
    """One by one, because each is told once; None while the book is unavailable."""

    @classmethod
    def of(cls, now: Mapping[str, Any], alarms: list[str] | None) -> Edition:
        text = b"".join(_event(name, data) for name, data in now.items())
        told = None if alarms is None else tuple(_event("alarm", alarm) for alarm in alarms)
        return cls(text, told)


class News:
    """Tells all listeners whenever there is something new.

    `write` says how things are, in a thread of its own; it is asked once after each `announce`, and
    by nobody if nobody listens.
    """

    def __init__(self, write: Callable[[], Edition]) -> None:
        self._write = write
        self._edition: asyncio.Task[Edition] | None = None
        self._listening: set[asyncio.Event] = set()
        self._waking: asyncio.Task[None] | None = None
        self._is_new = self._is_stopping = False

    @property
    def listeners(self) -> int:
        return len(self._listening)

    def announce(self) -> None:
        """Send the current state to all listeners."""
        self._is_new = True
        if not self._listening:
            self._edition = None
        elif self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())

    def stop(self) -> None:
        """Say goodbye to all listeners."""
        self._is_stopping = True
        for woken in self._listening:
            woken.set()

    async def _wake(self) -> None:
        while self._is_new:
            self._is_new, self._edition = False, None
            with suppress(Exception):  # it is theirs whom it is told
                await self._now()  # before they are woken, or all would go on at once
            everybody = list(self._listening)
            for start in range(0, len(everybody), _AT_ONCE):
                for woken in everybody[start : start + _AT_ONCE]:
                    woken.set()
                await asyncio.sleep(0)
            await asyncio.sleep(_APART)

    async def _now(self) -> Edition:
        if self._edition is None or _has_failed(self._edition):
            self._edition = asyncio.create_task(asyncio.to_thread(self._write))
        return await asyncio.shield(self._edition)

    @contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        """While somebody listens, whom this wakes."""
        woken = asyncio.Event()
        self._listening.add(woken)
        try:
            yield woken
        finally:
            self._listening.discard(woken)

    async def stream(self, woken: asyncio.Event) -> AsyncIterator[bytes]:
        """What is new, whenever there is something; a comment now and then keeps the line open."""
        told = 0
        yield b": welcome\n\n"
        while not self._is_stopping:
            woken.clear()
            now = await self._now()
            alarms = now.alarms or ()
            yield now.text + b"".join(alarms[told:])
            told = max(told, len(alarms))
            while not await _is_set_soon(woken):
                yield b": still here\n\n"
                if now.alarms is None:
                    self._edition = None  # to look whether the book is back
                    break


class Heard(StreamingResponse):
    """A stream that counts as a listener for as long as it is sent, however it ends."""

    def __init__(self, news: News, headers: Mapping[str, str]) -> None:
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._news = news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._news.heard() as woken:
            self.body_iterator = self._news.stream(woken)
            await super().__call__(scope, receive, send)


def _has_failed(edition: asyncio.Task[Edition]) -> bool:
    return edition.done() and (edition.cancelled() or edition.exception() is not None)


async def _is_set_soon(event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_HEARTBEAT):
            return await event.wait()
    return False


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
