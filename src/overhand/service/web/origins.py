"""Which web pages may call a service: those of the origins that its operator names (CORS).

Answers leave a service in two ways, by the framework and past it, so this is not middleware of the
framework alone: both add the same headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from overhand.errors import InvalidValue

EVERY = "*"
_ALLOW = b"access-control-allow-origin"
_EXPOSE = (b"access-control-expose-headers", b"retry-after")
_VARY = (b"vary", b"origin")
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "3600",
    "cache-control": "no-store",
}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_LAST_PORT = (1 << 16) - 1

Lines = list[tuple[bytes, bytes]]


class Origins:
    """The origins whose pages may read what a service says and send it what it takes.

    None, unless they are named; "*" names all. No page sends credentials that a browser keeps:
    reports are authorised by a token.

    >>> named = Origins(["https://poll.example"])
    >>> for name, value in named.headers(b"https://poll.example"):
    ...     print(name.decode(), value.decode())
    vary origin
    access-control-allow-origin https://poll.example
    access-control-expose-headers retry-after
    >>> named.headers(b"https://other.example"), Origins().headers(b"https://poll.example")
    ([(b'vary', b'origin')], [])
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        origins = [_checked(origin) for origin in named]
        if EVERY in origins and len(set(origins)) > 1:
            raise InvalidValue(
                f"origin {EVERY!r} means every origin: give it alone, or leave it out"
            )
        self._named = frozenset(origin.encode() for origin in origins)

    def headers(self, origin: bytes | None) -> Lines:
        """What an answer to a request of this origin says besides."""
        if not self._named:
            return []
        if EVERY.encode() in self._named:
            return [(_ALLOW, EVERY.encode()), _EXPOSE]
        if origin is None or origin not in self._named:
            return [_VARY]
        return [_VARY, (_ALLOW, origin), _EXPOSE]

    def around(self, app: ASGIApp) -> ASGIApp:
        """An application whose answers pages may read, and who is told so if a browser asks."""
        if not self._named:
            return app

        async def shared(scope: Scope, receive: Receive, send: Send) -> None:
            lines = self.headers(_asked(scope).get(b"origin"))

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *lines]
                await send(message)

            answer = _allowed() if _is_preflight(scope) and len(lines) > 1 else app
            await answer(scope, receive, sending)

        return shared


NOBODY = Origins()


def _asked(scope: Scope) -> Mapping[bytes, bytes]:
    return dict(scope.get("headers", ()))


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks on behalf of a page if it may send a request."""
    return scope.get("method") == "OPTIONS" and b"access-control-request-method" in _asked(scope)


def _allowed() -> Response:
    return Response(None, HTTPStatus.NO_CONTENT, _PREFLIGHT)


def _checked(origin: Any) -> str:
    """An origin as browsers write it: another spelling would silently match no page."""
    if origin == EVERY:
        return EVERY
    found = _ORIGIN.fullmatch(origin) if isinstance(origin, str) else None
    if found is None or int((found[2] or ":0")[1:]) > _LAST_PORT:
        raise InvalidValue(
            f"origin {origin!r} must be as browsers write it: scheme://host or scheme://host:port, "
            f"in lower case and without a path, or {EVERY!r} for every page"
        )
    scheme, port = origin.partition("://")[0], found[2]
    if port is not None and port == _USUAL_PORTS.get(scheme):
        raise InvalidValue(f"origin {origin!r} must be as browsers write it: without {port}")
    return str(origin)
