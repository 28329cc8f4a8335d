"""What both services say over HTTP: bodies with a limit, bearer tokens, errors in one form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from typing import Any

from overhand.errors import OverhandError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RETRY_SECONDS = 5
PATIENCE = 20.0
"""Seconds that a request may take to come, and an answer to be taken: a slow client holds a
connection, and nothing else."""


LOOK_BYTES = 64
"""Of a body that is too long, so many may tell why."""

_CLOSE = (b"connection", b"close")


class Refused(OverhandError):
    """A request that is answered with an error: its status, and words for whoever sent it."""

    def __init__(
        self, status: int, words: str, *, retry: bool = False, allow: str | None = None
    ) -> None:
        super().__init__(words)
        self.status = status
        self.retry = retry
        self.allow = allow

    @classmethod
    def nowhere(cls) -> Refused:
        """A path that there is not."""
        return cls(HTTPStatus.NOT_FOUND, "no such page")

    @classmethod
    def other_method(cls, allow: str) -> Refused:
        """A path that takes these methods, and not the one that was asked for."""
        return cls(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allow} here", allow=allow)

    @property
    def is_early(self) -> bool:
        """Whether the body may not have been read: then nobody waits for the rest of it."""
        return self.status in (401, 408, 413, 415)


class Gone(OverhandError):
    """The other side went away before its request was whole: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value, if it is there."""
    return next((value for key, value in scope["headers"] if key == name), None)


def bearer(authorization: bytes | None) -> str | None:
    """The token of a request that has this header."""
    kind, _, token = (authorization or b"").partition(b" ")
    return token.decode("latin-1").strip() if kind.lower() == b"bearer" and token else None


def too_slow() -> Refused:
    return Refused(408, f"the body did not come within {PATIENCE:g} seconds")


async def body_of(
    scope: Scope,
    receive: Receive,
    most: int,
    look: Callable[[bytes], None] | None = None,
    most_looked_at: int = 0,
) -> bytes:
    """The body of a request, of which never more than `most` bytes are kept.

    One that is longer may have a better reason to be refused: if it says that it has up to
    `most_looked_at` bytes, `look` sees its beginning first.
    """
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise Refused(415, "bodies must not be compressed")
    too_long = Refused(413, f"a body has at most {most} bytes")
    length = header(scope, b"content-length") or b"0"
    if not length.isdigit() or int(length) > most:
        if look is not None and length.isdigit() and int(length) <= most_looked_at:
            look(await _read(receive, LOOK_BYTES))
        raise too_long
    body = await _read(receive, most)
    if len(body) > most:
        raise too_long
    return body


async def _read(receive: Receive, enough: int) -> bytes:
    """A body, or its beginning as soon as that is longer than enough."""
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            while len(body) <= enough:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Gone("the client went away")
                body += event.get("body", b"")
                if not event.get("more_body", False):
                    break
    except TimeoutError:
        raise too_slow() from None
    return bytes(body)


@dataclass(frozen=True)
class Reply:
    """An answer with all its headers: the same for every client in the same case."""

    status: int
    content: bytes
    media_type: bytes = b"application/json"
    more: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, status: int, words: dict[str, Any], *, retry: bool = False) -> Reply:
        """A JSON answer."""
        more = ((b"retry-after", str(RETRY_SECONDS).encode()),) if retry else ()
        return cls(status, json.dumps(words).encode(), more=more)

    @classmethod
    def to(cls, refusal: Refused) -> Reply:
        reply = cls.of(refusal.status, {"error": str(refusal)}, retry=refusal.retry)
        if refusal.allow is not None:
            reply = replace(reply, more=(*reply.more, (b"allow", refusal.allow.encode())))
        return reply.closing if refusal.is_early else reply

    @property
    def closing(self) -> Reply:
        """The same, after which the connection is closed."""
        return self if self.is_last else replace(self, more=(*self.more, _CLOSE))

    @property
    def is_last(self) -> bool:
        """Whether the connection is closed after it."""
        return _CLOSE in self.more

    @cached_property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", self.media_type),
            (b"content-length", str(len(self.content)).encode()),
            (b"cache-control", b"no-store"),
            *self.more,
        ]

    async def send(self, send: Send) -> None:
        """As ASGI has it."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.content})

    @cached_property
    def raw(self) -> bytes:
        """As it goes over the wire."""
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status:d} {phrase}".encode()]
        lines += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join([*lines, b"", self.content])
