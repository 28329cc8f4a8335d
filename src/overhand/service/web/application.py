"""What both services share on the web: described routes, and errors in one form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from overhand.errors import ServiceError
from overhand.service.web.load import Load
from overhand.service.web.openapi import Description, Operation, json_content
from overhand.service.web.origins import NOBODY, Lines, Origins

RETRY_SECONDS = 5
_PIECE = 1 << 14


class Refused(ServiceError):
    """A request that is answered with an error: its status, and words for the sender."""

    def __init__(
        self,
        status: int,
        words: str,
        *,
        retry: bool = False,
        allow: str | None = None,
        is_early: bool = False,
    ) -> None:
        super().__init__(words)
        self.status = status
        self.retry = retry
        self.allow = allow
        self.is_early = is_early or status in (401, 408, 413, 415)
        """Whether the body may be unread: then the rest of it is not waited for."""

    @classmethod
    def nowhere(cls) -> Refused:
        """A path that does not exist."""
        return cls(HTTPStatus.NOT_FOUND, "no such page")


class Gone(ServiceError):
    """The client disconnected before its request was complete: there is nobody to answer."""


class Reply(Response):
    """An answer in JSON with all its headers: the same for every client in the same case."""

    def __init__(self, status: int, words: Any, headers: Mapping[str, str] | None = None) -> None:
        kept = {"cache-control": "no-store", **(headers or {})}
        super().__init__(json.dumps(words), status, kept, "application/json")

    @classmethod
    def to(cls, refusal: Refused, *, closing: bool = False) -> Reply:
        """The answer to a refused request; `closing` the connection if necessary."""
        headers = {
            "retry-after": str(RETRY_SECONDS) if refusal.retry else None,
            "allow": refusal.allow,
            "connection": "close" if closing or refusal.is_early else None,
        }
        given = {name: value for name, value in headers.items() if value is not None}
        return cls(refusal.status, {"error": str(refusal)}, given)

    @property
    def is_last(self) -> bool:
        """Whether the connection is closed after it."""
        return self.headers.get("connection") == "close"

    @cached_property
    def raw(self) -> bytes:
        """As it goes over the wire."""
        phrase = HTTPStatus(self.status_code).phrase
        lines = [f"HTTP/1.1 {self.status_code:d} {phrase}".encode()]
        lines += [name + b": " + value for name, value in self.raw_headers]
        return b"\r\n".join([*lines, b"", bytes(self.body)])

    def raw_with(self, headers: Lines) -> bytes:
        """The same with further headers."""
        if not headers:
            return self.raw
        head, blank, body = self.raw.partition(b"\r\n\r\n")
        more = [b"%b: %b" % header for header in headers]
        return b"\r\n".join([head, *more]) + blank + body


class Application(Starlette):
    """A service's operations, which it also describes, and pages that need no description.

    `check` raises `Refused` if the service is not ready. No body has more than `most_body` bytes.
    Pages of the `origins` may call it.
    """

    def __init__(
        self,
        description: Description,
        operations: Iterable[Operation],
        check: Callable[[], Awaitable[None]],
        pages: Iterable[BaseRoute] = (),
        *,
        most_body: int,
        origins: Origins = NOBODY,
    ) -> None:
        self.load = Load(most_body=most_body)
        self.origins = origins
        self._shared = origins.around(super().__call__)

        async def ready(request: Request) -> Response:
            await check()
            return Reply(HTTPStatus.OK, {"status": "ready"})

        async def describe(request: Request) -> Response:
            return Reply(HTTPStatus.OK, self.description)

        about = "Whether the service can work: its database answers, and can be written."
        probed = Operation("readiness", "/readyz", ready, about, json_content(status="ready"))
        every = [*operations, _LIVENESS, probed]
        self.description = description.of(every)
        super().__init__(
            routes=[*(one.route for one in every), Route("/openapi.json", describe), *pages],
            exception_handlers={
                Refused: self._refused,
                HTTPException: self._not_here,
                Gone: _farewell,
                Exception: self._fault,
            },
        )
        self.router.redirect_slashes = False  # it believes whatever host it is told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._shared(scope, receive, _in_pieces(send))

    def note(self, refusal: Refused) -> None:
        """A request is refused: a service may count it."""

    def refusal(self, refusal: Refused) -> Reply:
        """The answer to a refused request."""
        self.note(refusal)
        return Reply.to(refusal)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return self.refusal(error)

    async def _not_here(self, request: Request, error: Exception) -> Response:
        """A refusal by the framework, in our words."""
        assert isinstance(error, HTTPException)
        methods = (error.headers or {}).get("Allow")
        if methods is None:
            return self.refusal(Refused.nowhere())
        allow = ", ".join(sorted(methods.split(", ")))
        status = HTTPStatus.METHOD_NOT_ALLOWED
        return self.refusal(Refused(status, f"only {allow} here", allow=allow))

    async def _fault(self, request: Request, error: Exception) -> Response:
        """A fault of ours: it is in the log, and the client learns nothing of it."""
        return self.refusal(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault", retry=True))


def _in_pieces(send: Send) -> Send:
    """Sends long bodies piece by piece, each when the one before was taken.

    Whole, an answer that its reader never takes would be in memory, and under TLS once for each of
    them: a thousand readers of a long status took 1 GB.
    """

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            await send({**message, "body": body[start : start + _PIECE], "more_body": True})
        await send({**message, "body": body[last:]} if last else message)

    return sending


async def _alive(request: Request) -> Response:
    """Whatever state the database is in: a restart of the process would not repair that."""
    return Reply(HTTPStatus.OK, {"status": "healthy"})


_LIVENESS = Operation(
    "health",
    "/healthz",
    _alive,
    "Whether the process answers, whatever state its database is in.",
    json_content(status="healthy"),
)


async def _farewell(request: Request, error: Exception) -> Response:
    """An answer to a client that has gone: it is not sent."""
    return Response()
