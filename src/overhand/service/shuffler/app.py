"""The shuffling service's public side: the document, and the route that takes reports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from overhand.errors import InvalidValue, StoreUnavailable
from overhand.service.protocol import MOST_REPORT_BYTES, Document, WrongPlan, hashed
from overhand.service.shuffler.admission import Admission, Overloaded, ShufflerMetrics
from overhand.service.shuffler.store import Arrival, Outcome
from overhand.service.web import (
    Gone,
    Receive,
    Refused,
    Reply,
    Scope,
    Send,
    bearer,
    body_of,
    header,
    log,
    shuffler_description,
)

_COUNTED = Reply.of(HTTPStatus.OK, {"status": "counted"})
_ANSWERS = {
    # A repeat is told what the first was told: whether a copy came is nobody's business.
    Outcome.ADMITTED: _COUNTED,
    Outcome.REPEATED: _COUNTED,
    Outcome.TOKEN_USED: Reply.of(
        HTTPStatus.FORBIDDEN, {"error": "this token has reported already"}
    ),
    Outcome.CLOSED: Reply.of(HTTPStatus.GONE, {"error": "the plan is complete: no more reports"}),
}
_HEALTHY = Reply.of(HTTPStatus.OK, {"status": "healthy"})


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
        etag = (b"etag", f'"{self.document.digest}"'.encode())
        self._document = Reply(200, self.document.to_json().encode(), more=(etag,))
        described = shuffler_description(self.document, has_tokens=self.tokens is not None)
        self._description = Reply.of(200, described)
        self._formats = self.document.formats
        self.report_length = str(self._formats.report_length).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        try:
            reply = await self._reply(scope, receive)
        except Gone:
            return
        except Refused as refusal:
            reply = self.refusal(refusal)
        await reply.send(send)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        match scope["method"], scope["path"]:
            case "POST", "/v1/reports":
                return await self._report(scope, receive)
            case "GET", "/v1/document":
                return self._document
            case "GET", "/openapi.json":
                return self._description
            case "GET", "/healthz":
                if not await self.admission.is_up():
                    raise _no_store()
                return _HEALTHY
            case _, "/v1/reports":
                raise Refused.other_method("POST")
            case _, "/v1/document" | "/healthz" | "/openapi.json":
                raise Refused.other_method("GET")
            case _:
                raise Refused.nowhere()

    async def _report(self, scope: Scope, receive: Receive) -> Reply:
        """The slow way: whoever sends something unusual is told what is wrong with it."""
        authorization = header(scope, b"authorization")
        self._token(authorization)
        most = self._formats.report_length
        body = await body_of(scope, receive, most, self._check_plan, MOST_REPORT_BYTES)
        arrival = self._arrival(body, authorization)
        try:
            return self._settled(await self.admission.admit(arrival))
        except Exception as error:
            return self._settled(error)

    def _check_plan(self, head: bytes) -> None:
        """Of another plan a report may be longer: its sender is to fetch the document again."""
        try:
            self._formats.check_plan(head)
        except WrongPlan as error:
            raise _outdated(error) from error

    def take(
        self, body: bytes, authorization: bytes | None, answer: Callable[[Reply], None]
    ) -> None:
        """The fast way: `answer` is called as soon as the report is durable, or refused."""
        try:
            arrival = self._arrival(body, authorization)
            self.admission.enter(arrival, lambda result: answer(self._settled(result)))
        except (Refused, Overloaded) as error:
            answer(self._settled(error))

    def _arrival(self, body: bytes, authorization: bytes | None) -> Arrival:
        token = self._token(authorization)
        try:
            parts = self._formats.unpack_report(body)
        except WrongPlan as error:
            raise _outdated(error) from error
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        return Arrival(self._formats.part_digests(parts), parts, token)

    def _token(self, authorization: bytes | None) -> bytes | None:
        """The hash of a token that may report; any other is the same refusal."""
        if self.tokens is None:
            return None
        token = bearer(authorization)
        known = hashed(token) if token is not None else None
        if known is None or known not in self.tokens:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a known token is needed to report")
        return known

    def _settled(self, result: Outcome | Exception) -> Reply:
        """What a client is told of its report."""
        match result:
            case Outcome():
                self.metrics.outcomes[result].inc()
                return _ANSWERS[result]
            case Refused():
                return self.refusal(result)
            case Overloaded():
                busy = Refused(HTTPStatus.TOO_MANY_REQUESTS, str(result), retry=True)
                return self.refusal(busy)
            case StoreUnavailable():
                return self.refusal(_no_store())
            case _:  # a fault of ours: it is in the log, and the report may be sent again
                log("a report failed", level=logging.ERROR, error=type(result).__name__)
                fault = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault", retry=True)
                return self.refusal(fault)

    def refusal(self, refusal: Refused) -> Reply:
        """What whoever is refused is told, and counted as."""
        self.metrics.refused.labels(refusal.status).inc()
        return Reply.to(refusal)


def _outdated(error: WrongPlan) -> Refused:
    return Refused(HTTPStatus.CONFLICT, f"{error}: fetch the document again")


def _no_store() -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the store is not available", retry=True)
