"""Routes in the words of OpenAPI 3.1: `GET /openapi.json` at either service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overhand import __version__

Entry = dict[str, Any]

TEXT: Entry = {"type": "string"}
COUNT: Entry = {"type": "integer", "minimum": 0}
_REFUSALS = {
    400: "Not exactly of the plan's format.",
    401: "No token, or an unknown one.",
    403: "This token has reported already.",
    404: "There is no such path.",
    405: "The path takes other methods: those in Allow.",
    408: "The request did not arrive in time.",
    409: "Made for another plan or key: fetch the document again.",
    410: "The plan is complete.",
    413: "Longer than any body may be.",
    415: "Content type missing or other than application/octet-stream, or body compressed.",
    429: "Too many reports from this address or token, or in total: try again after Retry-After "
    "seconds.",
    431: "Too many bytes before the body, or after it.",
    500: "A fault of the service: try again after Retry-After seconds.",
    503: "The database is unavailable, or there are too many connections or questions: try again "
    "after Retry-After seconds.",
}
_ANYWHERE = (408, 431, 500, 503)
_ELSEWHERE = {404: "NotFound", 405: "MethodNotAllowed"}
_LATER: Entry = {"Retry-After": {"description": "In how many seconds.", "schema": COUNT}}
_ALLOW: Entry = {"Allow": {"description": "The methods that the path takes.", "schema": TEXT}}
_HEADERS = {405: _ALLOW, 429: _LATER, 500: _LATER, 503: _LATER}


@dataclass(frozen=True)
class Operation:
    """A route that is described: what it answers, takes and refuses."""

    name: str
    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    about: str
    content: Entry
    """By media type, the shape of the answer 200."""
    method: str = "GET"
    parameters: tuple[str, ...] = ()
    """Numbers in the path or the query."""
    body: Entry | None = None
    refusals: tuple[int, ...] = ()
    words: Mapping[int, str] = field(default_factory=dict)
    """Why it refuses, where that is special."""
    is_secured: bool = False
    has_head: bool = True
    """An answer that never ends has none, even if there is nothing of it to send."""

    @property
    def route(self) -> Route:
        route = Route(self.path, self.endpoint, methods=[self.method])
        if not self.has_head:
            route.methods = {self.method}
        return route

    @property
    def described(self) -> Entry:
        """The entry of its path."""
        refused = {status: _REFUSALS[status] for status in (*_ANYWHERE, *self.refusals)}
        refused |= self.words
        operation: Entry = {
            "operationId": self.name,
            "summary": self.about,
            "responses": {
                "200": {"description": "Done.", "content": self.content},
                **{str(status): _refusal(status, refused[status]) for status in sorted(refused)},
                "405": {"$ref": f"#/components/responses/{_ELSEWHERE[405]}"},
            },
        }
        if self.body is not None:
            operation["requestBody"] = {"required": True, "content": self.body}
        if self.is_secured:
            operation["security"] = [{"token": []}]
        entry: Entry = {self.method.lower(): operation}
        if self.parameters:
            entry["parameters"] = [self._parameter(name) for name in self.parameters]
        return entry

    def _parameter(self, name: str) -> Entry:
        is_in_path = f"{{{name}}}" in self.path
        place = "path" if is_in_path else "query"
        return {"name": name, "in": place, "required": is_in_path, "schema": COUNT}


@dataclass(frozen=True)
class Description:
    """What a service is."""

    title: str
    about: str

    def of(self, operations: Iterable[Operation]) -> Entry:
        """The whole document."""
        described = list(operations)
        components: Entry = {
            "responses": {name: _refusal(status) for status, name in _ELSEWHERE.items()}
        }
        if any(one.is_secured for one in described):
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        elsewhere = "Other paths are answered with 404, other methods with 405 and `Allow`."
        return {
            "openapi": "3.1.0",
            "info": {
                "title": self.title,
                "description": f"{self.about} {elsewhere}",
                "version": __version__,
            },
            "paths": {one.path: one.described for one in described},
            "components": components,
        }


def record(**fields: Entry) -> Entry:
    """The shape of an object with these fields."""
    return {"type": "object", "properties": fields}


def _refusal(status: int, words: str | None = None) -> Entry:
    headers = {"headers": _HEADERS[status]} if status in _HEADERS else {}
    content = json_content({**record(error=TEXT), "required": ["error"]})
    return {"description": words or _REFUSALS[status], "content": content, **headers}


def json_content(schema: Entry | None = None, *, status: str | None = None) -> Entry:
    """JSON of this shape, or that says this in one word."""
    if status is not None:
        schema = record(status={"const": status})
    return {"application/json": {"schema": schema or {}}}


def binary_content(about: str, length: int | None = None) -> Entry:
    """Bytes, of a length that is always the same if there is one."""
    fixed = {} if length is None else {"minLength": length, "maxLength": length}
    schema = {"type": "string", "format": "binary", "description": about, **fixed}
    return {"application/octet-stream": {"schema": schema}}
