"""What a request brings: a token, and a body within limits of length, time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overhand.errors import ServiceError

BINARY = b"application/octet-stream"
"""The only type of a body. A page from elsewhere cannot send it without a preflight request, which
succeeds only for the origins that the operator names: so no other page makes its readers report."""

PATIENCE = 20.0
"""Seconds for a body to arrive: a slow client holds a connection, and nothing else."""

SLOWEST_LINE = 1 << 16
"""Bytes per second: a body gets that much more time. Both sides use it."""

_LINGER = 2.0
"""Seconds for a client to finish what nobody reads: closed earlier, it might miss its answer."""

_MOST_LINGERING = 64
_MOST_BYTES = 3 << 23
_BODIES = 8
"""How many of the longest bodies are let in at once, however long they are: twice as many releases
as a shuffling service has under way."""

_BODY = "overhand.body"  # where the application finds a body that comes
_LOOK_BYTES = 64
"""How many bytes of a body that is too long may tell why."""


class Refused(ServiceError):
    """A request that is answered with an error: its status, and words for the sender."""

    def __init__(
        self, status: int, words: str, *, retry: bool = False, allow: str | None = None
    ) -> None:
        super().__init__(words)
        self.status = status
        self.retry = retry
        self.allow = allow


class Gone(ServiceError):
    """The client disconnected before its request was complete: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value, if it is there."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def bearer(authorization: bytes | None) -> str | None:
    """The token of a request that has this header."""
    kind, _, token = (authorization or b"").partition(b" ")
    return token.decode("latin-1").strip() if kind.lower() == b"bearer" and token else None


async def body_of(
    scope: Scope,
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
    length, coming = _announced(scope), scope.get(_BODY)
    if coming is None:
        return b""
    if length > most:
        if look is not None and length <= most_looked_at:
            look(await coming.read(_LOOK_BYTES))
        raise too_long
    body: bytes = await coming.read(most)
    if len(body) > most:
        raise too_long
    return body


def _announced(scope: Scope) -> int:
    """How long a body is by what its request says; 0 if it says nothing."""
    length = header(scope, b"content-length") or b""
    return int(length) if length.isdigit() else 0


class BodyLimits:
    """Middleware that bounds the time of each body, and the bytes of all that are under way.

    The application sees a request's head, and reads the body only if it likes the head. A byte
    counts from when it is read until its request is answered. If all together hold too many, the
    body that has been coming for longest is let go: an honest one is complete within moments, so
    that one is slow on purpose. Who is answered before the body was read is not heard any further,
    and its connection is closed.
    """

    def __init__(self, app: ASGIApp, *, most_body: int) -> None:
        self._app = app
        self._most_body = most_body
        self.most_bytes = max(_MOST_BYTES, _BODIES * most_body)
        self.bytes = 0
        self.coming: dict[_Body, None] = {}
        """Those that are not whole; which began first is first."""
        self.lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = _announced(scope)
        if not length and header(scope, b"transfer-encoding") is None:
            return await self._app(scope, receive, send)
        body = scope[_BODY] = _Body(self, min(length, self._most_body), receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        finally:
            body.let_go()

    def make_room(self, latest: _Body) -> None:
        """Let go of the oldest until the others hold no more than they may."""
        while self.bytes > self.most_bytes and not latest.is_dropped:
            next(iter(self.coming), latest).drop()


class _Body:
    """A body on its way from a client to the application, and the answer on its way back."""

    def __init__(self, limits: BodyLimits, length: int, receive: Receive, send: Send) -> None:
        self._limits, self._receive, self._send = limits, receive, send
        self._seconds = PATIENCE + length / SLOWEST_LINE
        self._deadline = asyncio.get_running_loop().time() + self._seconds
        self._wait: asyncio.Timeout | None = None
        self._read = bytearray()
        self._held = 0
        self._is_whole = self.is_dropped = False
        limits.coming[self] = None

    async def read(self, enough: int) -> bytes:
        """All of it, or its beginning as soon as that is more than enough.

        `Refused` if it is late or others need the room, and `Gone` if there is no more of it.
        """
        try:
            async with asyncio.timeout_at(self._deadline) as self._wait:
                while not self._is_whole and len(self._read) <= enough:
                    self._keep(await self.receive())
        except TimeoutError:
            if not self.is_dropped:
                words = f"the body did not arrive within {self._seconds:.3g} seconds"
                raise Refused(HTTPStatus.REQUEST_TIMEOUT, words) from None
        finally:
            self._wait = None
        if self.is_dropped:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too much is under way", retry=True)
        body, self._read = bytes(self._read), bytearray()
        return body

    async def receive(self) -> Message:
        event = await self._receive()
        if not event.get("more_body", False):
            self._is_whole = True
            self._limits.coming.pop(self, None)
        return event

    def _keep(self, event: Message) -> None:
        if event["type"] == "http.disconnect":
            raise Gone("the client disconnected")
        piece = event["body"]
        self._read += piece
        self._held += len(piece)
        self._limits.bytes += len(piece)
        self._limits.make_room(self)

    async def send(self, message: Message) -> None:
        """Answer. If the body is not whole, the rest of it is let come, but not kept."""
        if message["type"] == "http.response.start":
            self.let_go()
            if not self._is_whole:
                closing = [*message["headers"], (b"connection", b"close")]
                message = {**message, "headers": closing}
        elif not (self._is_whole or message.get("more_body", False)):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {**message, "body": b""}
        await self._send(message)

    async def _linger(self) -> None:
        """Let the rest of the body come, unless many are doing so, and keep nothing of it."""
        if self._limits.lingering >= _MOST_LINGERING:
            return
        self._limits.lingering += 1
        try:
            async with asyncio.timeout(_LINGER):
                while not self._is_whole:
                    await self.receive()
        except TimeoutError:
            pass
        finally:
            self._limits.lingering -= 1

    def drop(self) -> None:
        """Others need the room: let go of what has come, and wait for no more."""
        self.let_go()
        self.is_dropped, self._deadline = True, 0.0
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(self._deadline)

    def let_go(self) -> None:
        self._limits.bytes -= self._held
        self._read, self._held = bytearray(), 0
        self._limits.coming.pop(self, None)
