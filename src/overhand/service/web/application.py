"""What both services share on the web: routes within limits, and errors in one form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overhand.service.web.bodies import BodyLimits, Gone, Refused
from overhand.service.web.origins import allow_origins

MOST_CONNECTIONS = 4096
_RETRY_SECONDS = 5
_PIECE = 1 << 14


class Reply(Response):
    """An answer in JSON with all its headers: the same for every client in the same case."""

    def __init__(self, status: int, words: Any, headers: Mapping[str, str] | None = None) -> None:
        kept = {"cache-control": "no-store", **(headers or {})}
        super().__init__(json.dumps(words), status, kept, "application/json")

    @classmethod
    def to(cls, refusal: Refused) -> Reply:
        """The answer to a refused request."""
        headers = {"retry-after": str(_RETRY_SECONDS)} if refusal.retry else {}
        if refusal.allow is not None:
            headers["allow"] = refusal.allow
        return cls(refusal.status, {"error": str(refusal)}, headers)


class Application(Starlette):
    """A service's routes, and whether it is alive and ready.

    `check` raises `Refused` if the service is not ready. No body has more than `most_body` bytes.
    Web pages of the `origins` may call it.
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
        self._edge: ASGIApp = allow_origins(self.limits, origins) if origins else self.limits

        async def ready(request: Request) -> Response:
            await check()
            return Reply(HTTPStatus.OK, {"status": "ready"})

        super().__init__(
            routes=[*routes, Route("/healthz", _alive), Route("/readyz", ready)],
            exception_handlers={
                Refused: self._refused,
                HTTPException: self._not_here,
                Gone: _farewell,
                Exception: self._fault,
            },
        )
        self.router.redirect_slashes = False  # it believes whatever host it is told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, _in_pieces(send))

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body is within limits."""
        await super().__call__(scope, receive, send)

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
            return self.refusal(no_such_page())
        return self.refusal(wrong_method(", ".join(sorted(methods.split(", ")))))

    async def _fault(self, request: Request, error: Exception) -> Response:
        """A fault of ours: it is in the log, and the client learns nothing of it."""
        return self.refusal(fault())


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

    async def sending(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            await send({**message, "body": body[start : start + _PIECE], "more_body": True})
        await send({**message, "body": body[last:]} if last else message)

    return sending


async def _alive(request: Request) -> Response:  # a restart would repair no database
    return Reply(HTTPStatus.OK, {"status": "healthy"})


async def _farewell(request: Request, error: Exception) -> Response:
    return Response()  # to a client that has gone: it is not sent
