"""What both services share on the web: routes, requests within limits, and errors in one form."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overhand.deploy.transport import SLOWEST_LINE
from overhand.errors import InvalidValue, ServiceError

MOST_CONNECTIONS = 4096
_RETRY_SECONDS = 5
_PIECE = 1 << 14

BINARY = "application/octet-stream"
"""The only type of a body. A page from elsewhere cannot send it without a preflight request, which
succeeds only for the origins that the operator names: so no other page makes its readers report."""
PATIENCE = 20.0
"""Seconds for a body to arrive: a slow client holds a connection, and nothing else."""
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
_EVERY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_LAST_PORT = (1 << 16) - 1


class Reply(Response):
    """An answer in JSON with all its headers: the same for every client in the same case."""

    def __init__(self, status: int, words: Any, headers: Mapping[str, str] | None = None) -> None:
        kept = {"cache-control": "no-store", **(headers or {})}
        super().__init__(json.dumps(words), status, kept, "application/json")


class Application(Starlette):
    """A service's routes, and whether it is alive and ready.

    `check` raises `Refused` if the service is not ready. No body has more than `most_body` bytes.
    Web pages of the `origins` may call it; "*" names all of them.
    """

    most_connections = MOST_CONNECTIONS  # or fewer, if the system has no room for so many

    def __init__(
        self,
        routes: Iterable[BaseRoute],
        check: Callable[[], Awaitable[None]],
        *,
        most_body: int,
        origins: Collection[str] = (),
    ) -> None:
        self.limits = BodyLimits(self.route, most_body=most_body)
        self._edge: ASGIApp = self.limits
        if origins:  # whose pages send no credentials that a browser keeps: a token authorises
            self._edge = CORSMiddleware(
                self.limits,
                allow_origins=check_origins(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
                expose_headers=["retry-after"],
                max_age=3600,
            )

        async def ready(request: Request) -> Response:
            await check()
            return Reply(HTTPStatus.OK, {"status": "ready"})

        healthy = Reply(HTTPStatus.OK, {"status": "healthy"})  # a restart would repair no database
        alive = Route("/healthz", healthy, methods=["GET"])
        super().__init__(
            routes=[*routes, alive, Route("/readyz", ready)],
            exception_handlers=dict.fromkeys(
                (Refused, Gone, HTTPException, Exception), self._answer_error
            ),
        )
        self.router.redirect_slashes = False  # it believes whatever host it is told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, _in_pieces(send))

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body is within limits."""
        await super().__call__(scope, receive, send)

    def refusal(self, refusal: Refused) -> Reply:
        """The answer to a refused request: a service may count it."""
        headers = {"retry-after": str(_RETRY_SECONDS)} if refusal.retry else {}
        if refusal.allow is not None:
            headers["allow"] = refusal.allow
        return Reply(refusal.status, {"error": str(refusal)}, headers)

    async def _answer_error(self, request: Request, error: Exception) -> Response:
        """A refusal, also one by the framework, in our words.

        A fault of ours is in the log, and the client learns nothing of it.
        """
        if isinstance(error, Gone):
            return Response()  # to a client that has gone: it is not sent
        if isinstance(error, HTTPException):
            methods = (error.headers or {}).get("Allow")
            allowed = ", ".join(sorted((methods or "").split(", ")))
            error = no_such_page() if methods is None else wrong_method(allowed)
        return self.refusal(error if isinstance(error, Refused) else fault())


def fault() -> Refused:
    return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault", retry=True)


def wrong_method(allow: str) -> Refused:
    return Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allow} here", allow=allow)


def no_such_page() -> Refused:
    return Refused(HTTPStatus.NOT_FOUND, "no such page")


def _in_pieces(send: Send) -> Send:
    """Sends long bodies piece by piece, each when the one before was taken.

    Whole, an answer that its reader never takes would be in memory, and under TLS once for each of
    them: a thousand readers of a long status took 1 GB.
    """

    async def send_pieces(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            await send({**message, "body": body[start : start + _PIECE], "more_body": True})
        await send({**message, "body": body[last:]} if last else message)

    return send_pieces


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


def bearer(scope: Scope) -> str | None:
    """The token of a request, if it has one."""
    kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token else None


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
    headers = Headers(scope=scope)
    if headers.get("content-type", "").partition(";")[0].strip(" \t").lower() != BINARY:
        raise Refused(415, f"the content-type must be {BINARY}")
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "bodies must not be compressed")
    too_long = Refused(413, f"a body has at most {most} bytes")
    length, coming = _content_length(scope), scope.get(_BODY)
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


def _content_length(scope: Scope) -> int:
    """How long a body is by what its request says; 0 if it says nothing."""
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


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
        length = _content_length(scope)
        if not length and "transfer-encoding" not in Headers(scope=scope):
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
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    while not self._is_whole:
                        await self.receive()
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


def check_origins(origins: Iterable[str]) -> list[str]:
    """Origins as browsers write them: another spelling would silently match no page.

    >>> check_origins(["https://poll.example"])
    ['https://poll.example']
    """
    checked = list(origins)
    for origin in checked:
        if origin != _EVERY:
            _check_origin(origin)
    if _EVERY in checked and len(set(checked)) > 1:
        raise InvalidValue(f"origin {_EVERY!r} means every origin: give it alone, or leave it out")
    return checked


def _check_origin(origin: Any) -> None:
    found = _ORIGIN.fullmatch(origin) if isinstance(origin, str) else None
    if found is None or int((found[2] or ":0")[1:]) > _LAST_PORT:
        raise InvalidValue(
            f"origin {origin!r} must be as browsers write it: scheme://host or scheme://host:port, "
            f"in lower case and without a path, or {_EVERY!r} for every page"
        )
    scheme, port = origin.partition("://")[0], found[2]
    if port is not None and port == _USUAL_PORTS.get(scheme):
        raise InvalidValue(f"origin {origin!r} must be as browsers write it: without {port}")


async def pause(until: asyncio.Event, seconds: float) -> None:
    """Wait for so long, or until something has happened."""
    with suppress(TimeoutError):
        await asyncio.wait_for(until.wait(), seconds)
