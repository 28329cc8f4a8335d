"""What the services answer, in the words of OpenAPI 3.1: `GET /openapi.json` at either of them."""

from __future__ import annotations

from typing import Any

from overhand import __version__
from overhand.service.document import Document

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
_REFUSALS = {
    400: "Not of the plan's shape, to the last byte.",
    401: "No token, or an unknown one.",
    403: "This token has reported already.",
    408: "The body did not come in time.",
    409: "Made for another plan or key: fetch the document again.",
    410: "The plan is complete.",
    413: "Longer than any body here.",
    415: "Compressed.",
    429: "Too many reports wait: come back after Retry-After seconds.",
    503: "The database is not available: come back after Retry-After seconds.",
}


def shuffler_description(document: Document) -> Entry:
    """The shuffling service's public routes."""
    formats = document.formats
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
                    refusals=(400, 401, 403, 408, 409, 410, 413, 415, 429, 503),
                    secured=True,
                )
            },
            "/healthz": {"get": _health()},
        },
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
                    refusals=(400, 401, 408, 409, 413, 415, 503),
                    secured=True,
                ),
            },
            "/v1/status": {
                "get": _operation(
                    "status",
                    "Plan, guarantee, batches by level, last estimate, alarms.",
                    _json({"type": "object", "properties": {"estimate": _ESTIMATE}}),
                )
            },
            "/v1/history": {
                "parameters": [_parameter("coordinate", "query")],
                "get": _operation(
                    "history",
                    "What was published, in at most 500 points.",
                    _json(history),
                    refusals=(400,),
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
    )


def _description(title: str, about: str, paths: Entry) -> Entry:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": about, "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(
    name: str,
    about: str,
    content: Entry,
    *,
    body: Entry | None = None,
    refusals: tuple[int, ...] = (),
    secured: bool = False,
) -> Entry:
    answers = {str(status): _answer(_REFUSALS[status], _json(_ERROR)) for status in refusals}
    operation: Entry = {
        "operationId": name,
        "summary": about,
        "responses": {"200": _answer("Done.", content), **answers},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    if secured:
        operation["security"] = [{"token": []}]
    return operation


def _health() -> Entry:
    about = "Whether the service and its database are up."
    return _operation("health", about, _status("healthy"), refusals=(503,))


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
