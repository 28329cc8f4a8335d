"""Which web pages may call a service: those of the origins that its operator names (CORS)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from overhand.errors import InvalidValue

_EVERY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_LAST_PORT = (1 << 16) - 1


def allow_origins(app: ASGIApp, origins: Iterable[str]) -> ASGIApp:
    """An application that pages of these origins may call; "*" names all of them.

    No page sends credentials that a browser keeps: reports are authorised by a token.
    """
    return CORSMiddleware(
        app,
        allow_origins=check_origins(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["retry-after"],
        max_age=3600,
    )


def check_origins(origins: Iterable[str]) -> list[str]:
    """Origins as browsers write them: another spelling would silently match no page.

    >>> check_origins(["https://poll.example"])
    ['https://poll.example']
    """
    checked = [_checked(origin) for origin in origins]
    if _EVERY in checked and len(set(checked)) > 1:
        raise InvalidValue(f"origin {_EVERY!r} means every origin: give it alone, or leave it out")
    return checked


def _checked(origin: Any) -> str:
    if origin == _EVERY:
        return _EVERY
    found = _ORIGIN.fullmatch(origin) if isinstance(origin, str) else None
    if found is None or int((found[2] or ":0")[1:]) > _LAST_PORT:
        raise InvalidValue(
            f"origin {origin!r} must be as browsers write it: scheme://host or scheme://host:port, "
            f"in lower case and without a path, or {_EVERY!r} for every page"
        )
    scheme, port = origin.partition("://")[0], found[2]
    if port is not None and port == _USUAL_PORTS.get(scheme):
        raise InvalidValue(f"origin {origin!r} must be as browsers write it: without {port}")
    return str(origin)
