"""What a request brings: a body with a limit, and a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from overhand.service.web.application import Gone, Refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BINARY = b"application/octet-stream"
"""The only type of a body. A page from elsewhere cannot send it without a preflight request, which
succeeds only for the origins that the operator names: so no other page makes its readers report."""

PATIENCE = 20.0
"""Seconds that a request may take to arrive, and an answer to be read: a slow client holds a
connection, and nothing else."""

SLOWEST_LINE = 1 << 16
"""Bytes per second: a body gets that much more time. Both sides use it."""

LOOK_BYTES = 64
"""How many bytes of a body that is too long may tell why."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value, if it is there."""
    return next((value for key, value in scope["headers"] if key == name), None)


def bearer(authorization: bytes | None) -> str | None:
    """The token of a request that has this header."""
    kind, _, token = (authorization or b"").partition(b" ")
    return token.decode("latin-1").strip() if kind.lower() == b"bearer" and token else None


def announced(headers: Iterable[tuple[bytes, bytes]], most: int) -> int:
    """How long a body is by what its request says, or 0 if none is so long."""
    length = dict(headers).get(b"content-length", b"0")
    return int(length) if length.isdigit() and int(length) <= most else 0


def seconds_for(length: int) -> float:
    """How long a body of this length may take to come."""
    return PATIENCE + length / SLOWEST_LINE


def too_slow(length: int) -> Refused:
    return Refused(408, f"the body did not arrive within {seconds_for(length):.3g} seconds")


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
    kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != BINARY:
        raise Refused(415, f"the content-type must be {BINARY.decode()}")
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise Refused(415, "bodies must not be compressed")
    too_long = Refused(413, f"a body has at most {most} bytes")
    length = header(scope, b"content-length") or b"0"
    if not length.isdigit() or int(length) > most:
        if look is not None and length.isdigit() and int(length) <= most_looked_at:
            look(await _read(receive, LOOK_BYTES, 0))
        raise too_long
    body = await _read(receive, most, int(length))
    if len(body) > most:
        raise too_long
    return body


async def _read(receive: Receive, enough: int, length: int) -> bytes:
    """A body of which this length was announced, or its beginning as soon as that is enough."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds_for(length)):
            while len(body) <= enough:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Gone("the client disconnected")
                body += event.get("body", b"")
                if not event.get("more_body", False):
                    break
    except TimeoutError:
        raise too_slow(length) from None
    return bytes(body)
