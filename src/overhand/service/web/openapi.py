"""What the services answer, in the words of OpenAPI 3.1: `GET /openapi.json` at either of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overhand import __version__
from overhand.service.protocol import Document

Entry = dict[str, Any]

_TEXT: Entry = {"type": "string"}
_COUNT: Entry = {"type": "integer", "minimum": 0}
_NUMBERS: Entry = {"oneOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}
_ERROR: Entry = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
_ESTIMATE: Entry = {
    "type": "object",
    "properties": {
        "t": {**_COUNT, "description": "Users whose values are in the sum."},
        "value": _NUMBERS,
        "low": {**_NUMBERS, "description": "Lower end of the 95 % band."},
        "high": {**_NUMBERS, "description": "Upper end of the 95 % band."},
        "std": {"type": "number", "description": "Standard deviation, all noise included."},
        "fallback": {
            "type": "boolean",
            "description": "Whether lower nodes stand in for batches that did not come.",
        },
    },
}
_STATUS: Entry = {
    "type": "object",
    "properties": {
        "plan": {
            "type": "object",
            "properties": {
                "digest": _TEXT,
                "document": {**_TEXT, "description": "The digest that clients pin."},
                "horizon": _COUNT,
                "dimension": _COUNT,
                "messages_per_user": _COUNT,
                "users_before": {
                    **_COUNT,
                    "description": "Users of earlier plans, whose values are in the sum too.",
                },
            },
        },
        "estimate": {
            "oneOf": [_ESTIMATE, {"type": "null"}],
            "description": "The last one, or null as long as nothing was published.",
        },
        "alarms": {"type": "array", "items": _TEXT},
        "healthy": {"type": "boolean"},
    },
}
_REFUSALS = {
    400: "Not of the plan's shape, to the last byte.",
    401: "No token, or an unknown one.",
    403: "This token has reported already.",
    404: "There is no such path.",
    405: "The path takes other methods: those in Allow.",
    408: "The request did not come in time.",
    409: "Made for another plan or key: fetch the document again.",
    410: "The plan is complete.",
    413: "Longer than any body here.",
    415: "Compressed.",
    429: "Too many reports wait: come back after Retry-After seconds.",
    431: "Too many bytes before the body, or after it.",
    500: "A fault of the service: come back after Retry-After seconds.",
    503: "The database is not available, or too many are connected: come back after Retry-After "
    "seconds.",
}
_ANYWHERE = (408, 431, 500, 503)
_ELSEWHERE = {404: "NotFound", 405: "MethodNotAllowed"}
_LATER: Entry = {"Retry-After": {"description": "In how many seconds.", "schema": _COUNT}}
_ALLOW: Entry = {"Allow": {"description": "The methods that the path takes.", "schema": _TEXT}}
_HEADERS = {405: _ALLOW, 429: _LATER, 500: _LATER, 503: _LATER}


def shuffler_description(document: Document, *, has_tokens: bool = False) -> Entry:
    """The shuffling service's public routes; reports may need a token each."""
    formats = document.formats
    for_tokens = (401, 403) if has_tokens else ()
    report = _binary(
        formats.report_length,
        "OVH1, the document's digest (32 bytes), and per level, lowest first, the ciphertexts: "
        + ", ".join(
            f"{level.messages} of {level.ciphertext_bytes} bytes" for level in formats.levels
        ),
    )
    return _description(
        "overhand shuffling service",
        "Takes sealed reports; learns who, never what.",
        {
            "/v1/document": {
                "get": _operation(
                    "document", "The plan and the key that reports are sealed to.", _json({})
                )
            },
            "/v1/reports": {
                "post": _operation(
                    "report",
                    "Count a report. The same bytes again are counted once and answered alike.",
                    _status("counted"),
                    body=report,
                    refusals=_because(400, *for_tokens, 409, 410, 413, 415, 429),
                    secured=has_tokens,
                )
            },
            "/healthz": {"get": _health()},
        },
        secured=has_tokens,
    )


def server_description(document: Document) -> Entry:
    """The server's routes."""
    release = _binary(
        None,
        "OVR1, the document's digest (32 bytes), level (1), number (8), own reports (4), and the "
        f"batch's ciphertexts; at most {document.formats.most_release_bytes} bytes",
    )
    history = {"type": "object", "additionalProperties": {"type": "array"}}
    return _description(
        "overhand server",
        "Opens shuffled batches and publishes the running sum; learns what, never who.",
        {
            "/v1/releases/{level}/{number}": {
                "parameters": [_parameter("level", "path"), _parameter("number", "path")],
                "put": _operation(
                    "release",
                    "Keep a batch. The same bytes again are fine; others are refused for good.",
                    _status("kept"),
                    body=release,
                    refusals={
                        **_because(400, 401, 413, 415),
                        409: "Another release of this batch is kept: there is an alarm.",
                    },
                    secured=True,
                ),
            },
            "/v1/status": {
                "get": _operation(
                    "status",
                    "Plan, guarantee, batches by level, last estimate, alarms.",
                    _json(_STATUS),
                )
            },
            "/v1/history": {
                "parameters": [_parameter("coordinate", "query")],
                "get": _operation(
                    "history",
                    "What was published, in at most 500 points.",
                    _json(history),
                    refusals={400: "The coordinate is no number below the dimension."},
                ),
            },
            "/v1/events": {
                "get": _operation(
                    "events",
                    "Server-sent events `estimate`, `levels`, `alarm`, as they happen.",
                    {"text/event-stream": {"schema": _TEXT}},
                )
            },
            "/healthz": {"get": _health()},
        },
        secured=True,
    )


def _description(title: str, about: str, paths: Entry, *, secured: bool) -> Entry:
    components: Entry = {
        "responses": {name: _refusal(status) for status, name in _ELSEWHERE.items()}
    }
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    elsewhere = "Other paths are answered with 404, other methods with 405 and `Allow`."
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": f"{about} {elsewhere}", "version": __version__},
        "paths": paths,
        "components": components,
    }


def _operation(
    name: str,
    about: str,
    content: Entry,
    *,
    body: Entry | None = None,
    refusals: Mapping[int, str] | None = None,
    secured: bool = False,
) -> Entry:
    refused = {**_because(*_ANYWHERE), **(refusals or {})}
    operation: Entry = {
        "operationId": name,
        "summary": about,
        "responses": {
            "200": _answer("Done.", content),
            **{str(status): _refusal(status, refused[status]) for status in sorted(refused)},
            "405": {"$ref": f"#/components/responses/{_ELSEWHERE[405]}"},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    if secured:
        operation["security"] = [{"token": []}]
    return operation


def _health() -> Entry:
    about = "Whether the service and its database are up."
    return _operation("health", about, _status("healthy"))


def _because(*statuses: int) -> dict[int, str]:
    return {status: _REFUSALS[status] for status in statuses}


def _refusal(status: int, words: str | None = None) -> Entry:
    answer = _answer(words or _REFUSALS[status], _json(_ERROR))
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _answer(about: str, content: Entry) -> Entry:
    return {"description": about, "content": content}


def _json(schema: Entry) -> Entry:
    return {"application/json": {"schema": schema}}


def _status(word: str) -> Entry:
    return _json({"type": "object", "properties": {"status": {"const": word}}})


def _binary(length: int | None, about: str) -> Entry:
    fixed = {} if length is None else {"minLength": length, "maxLength": length}
    schema = {"type": "string", "format": "binary", "description": about, **fixed}
    return {"application/octet-stream": {"schema": schema}}


def _parameter(name: str, place: str) -> Entry:
    return {"name": name, "in": place, "required": place == "path", "schema": _COUNT}
