"""What both services say over HTTP: bodies with a limit, bearer tokens, errors in one form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from overhand.errors import OverhandError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RETRY_SECONDS = 5
PATIENCE = 20.0
"""Seconds that a body may take: a slow client holds a connection, and nothing else."""


class Refused(OverhandError):
    """A request that is answered with an error: its status, and words for whoever sent it."""

    def __init__(self, status: int, words: str, *, retry: bool = False) -> None:
        super().__init__(words)
        self.status = status
        self.retry = retry


class Gone(OverhandError):
    """The other side went away before its request was whole: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value, if it is there."""
    return next((value for key, value in scope["headers"] if key == name), None)


def bearer(scope: Scope) -> str | None:
    """The token of a request."""
    value = header(scope, b"authorization") or b""
    kind, _, token = value.partition(b" ")
    return token.decode("latin-1").strip() if kind.lower() == b"bearer" and token else None


async def body_of(scope: Scope, receive: Receive, most: int) -> bytes:
    """The body of a request, of which never more than `most` bytes are kept."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise Refused(415, "bodies must not be compressed")
    length = header(scope, b"content-length")
    if length is not None and (not length.isdigit() or int(length) > most):
        raise Refused(413, f"a body has at most {most} bytes")
    chunks, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Gone("the client went away")
                chunk = event.get("body", b"")
                size += len(chunk)
                if size > most:
                    raise Refused(413, f"a body has at most {most} bytes")
                chunks.append(chunk)
                if not event.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {PATIENCE:g} seconds") from None


async def respond(send: Send, status: int, words: dict[str, Any], *, retry: bool = False) -> None:
    """A JSON answer: the same for every client in the same case, to the last byte."""
    more = [(b"retry-after", str(RETRY_SECONDS).encode())] if retry else []
    await respond_with(send, status, json.dumps(words).encode(), b"application/json", more)


async def respond_with(
    send: Send,
    status: int,
    content: bytes,
    media_type: bytes,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """An answer of any kind."""
    said = [
        (b"content-type", media_type),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": said})
    await send({"type": "http.response.body", "body": content})
