"""The shuffling service's public side: the document, and the route that takes reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

from overhand.errors import InvalidValue, StoreUnavailable
from overhand.service.description import shuffler_description
from overhand.service.document import Document
from overhand.service.http import (
    Gone,
    Receive,
    Refused,
    Scope,
    Send,
    bearer,
    body_of,
    respond,
    respond_with,
)
from overhand.service.keys import hashed
from overhand.service.shuffler.admission import Admission, Overloaded
from overhand.service.shuffler.metrics import ShufflerMetrics
from overhand.service.stores import Arrival, Outcome
from overhand.service.wire import WrongPlan

_NO_STORE = "the store is not available"
_JSON = b"application/json"
_ANSWERS = {
    # A repeat is told what the first was told: whether a copy came is nobody's business.
    Outcome.ADMITTED: (HTTPStatus.OK, {"status": "counted"}),
    Outcome.REPEATED: (HTTPStatus.OK, {"status": "counted"}),
    Outcome.TOKEN_USED: (HTTPStatus.FORBIDDEN, {"error": "this token has reported already"}),
    Outcome.CLOSED: (HTTPStatus.GONE, {"error": "the plan is complete: no more reports"}),
}


@dataclass
class ShufflerApp:
    """An ASGI application of a few routes, by hand: the one for reports is all that matters.

    `tokens` are the hashes of those who may report, once each; None lets everybody.
    """

    document: Document
    admission: Admission
    metrics: ShufflerMetrics = field(default_factory=ShufflerMetrics)
    tokens: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        self._document_text = self.document.to_json().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        try:
            await self._answer(scope, receive, send)
        except Gone:
            return
        except Refused as refusal:
            self.metrics.refused.labels(refusal.status).inc()
            await respond(send, refusal.status, {"error": str(refusal)}, retry=refusal.retry)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "POST", "/v1/reports":
                outcome = await self._report(scope, receive)
                self.metrics.reports.labels(outcome.value).inc()
                await respond(send, *_ANSWERS[outcome])
            case "GET", "/v1/document":
                await self._send_document(send)
            case "GET", "/healthz":
                if not await self.admission.is_up():
                    raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _NO_STORE, retry=True)
                await respond(send, HTTPStatus.OK, {"status": "healthy"})
            case "GET", "/openapi.json":
                await respond(send, HTTPStatus.OK, shuffler_description(self.document))
            case _, "/v1/reports" | "/v1/document" | "/healthz" | "/openapi.json":
                raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "no such method here")
            case _:
                raise Refused(HTTPStatus.NOT_FOUND, "no such page")

    async def _report(self, scope: Scope, receive: Receive) -> Outcome:
        token = self._token(scope)
        formats = self.document.formats
        body = await body_of(scope, receive, formats.report_length)
        try:
            parts = formats.unpack_report(body)
        except WrongPlan as error:
            raise Refused(HTTPStatus.CONFLICT, f"{error}: fetch the document again") from error
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        arrival = Arrival(formats.part_digests(parts), parts, token)
        try:
            return await self.admission.admit(arrival)
        except Overloaded as error:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), retry=True) from error
        except StoreUnavailable as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _NO_STORE, retry=True) from error

    def _token(self, scope: Scope) -> bytes | None:
        """The hash of a token that may report; any other is the same refusal."""
        if self.tokens is None:
            return None
        token = bearer(scope)
        known = hashed(token) if token is not None else None
        if known is None or known not in self.tokens:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a known token is needed to report")
        return known

    async def _send_document(self, send: Send) -> None:
        etag = (b"etag", f'"{self.document.digest}"'.encode())
        await respond_with(send, HTTPStatus.OK, self._document_text, _JSON, [etag])
