"""The shuffling service's public side: the document, and the route that takes reports."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from overhand.errors import InvalidValue, OverhandError
from overhand.service.protocol import MOST_REPORT_BYTES, Document, WrongPlan, hashed
from overhand.service.shuffler.admission import Admission, Overloaded, ShufflerMetrics
from overhand.service.shuffler.relaying import Relay
from overhand.service.shuffler.store import Arrival, Outcome
from overhand.service.web import (
    BURST,
    Application,
    Gone,
    Rate,
    Refused,
    Reply,
    address_key,
    bearer,
    body_of,
    fault,
    header,
    pause,
    wrong_method,
)

_REPORTS = "/v1/reports"
_COUNTED = Reply(HTTPStatus.OK, {"status": "counted"})
_ANSWERS = {
    # A repeat gets the same answer as the first: nobody learns whether a copy came.
    Outcome.ADMITTED: _COUNTED,
    Outcome.REPEATED: _COUNTED,
    Outcome.TOKEN_USED: Reply(HTTPStatus.FORBIDDEN, {"error": "this token has reported already"}),
    Outcome.CLOSED: Reply(HTTPStatus.GONE, {"error": "the plan is complete: no more reports"}),
}


class ShufflerApp(Application):
    """Everything that the shuffling service answers.

    `tokens` are the hashes of the tokens that may report, once each; None lets everybody report.
    An address or a token may report at most `per_address` or `per_token` times per second, if these
    are not 0. Pages of the `origins` may report. For a recommender, `relay` has the newest rule.
    """

    def __init__(
        self,
        document: Document,
        admission: Admission,
        metrics: ShufflerMetrics | None = None,
        tokens: Collection[bytes] | None = None,
        *,
        per_address: float = 0.0,
        per_token: float = 0.0,
        origins: Collection[str] = (),
        relay: Relay | None = None,
    ) -> None:
        self.document = document
        self._relay = relay
        self.admission = admission
        self.metrics = metrics or ShufflerMetrics()
        self.tokens = tokens
        self._per_address = Rate(per_address)
        self._per_token = Rate(per_token)
        self._formats = document.formats
        headers = {"etag": f'"{document.digest}"', "cache-control": "no-store"}
        self._document = Response(document.to_json(), 200, headers, "application/json")
        most = self._formats.report_length
        routes = [Route("/v1/document", self._documented)]
        if document.learning is not None:
            routes.append(Route("/v1/policy", self._policy))
        super().__init__(routes, self._check_ready, most_body=most, origins=origins)
        self.metrics.watch(self.limits)

    async def _policy(self, request: Request) -> Response:
        newest = None if self._relay is None else self._relay.newest
        if newest is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no rule yet: any arm will do")
        return Response(newest, 200, {"cache-control": "no-store"}, "application/json")

    def note(self, refusal: Refused) -> None:
        self.metrics.refused.labels(refusal.status).inc()

    async def _documented(self, request: Request) -> Response:
        return self._document

    async def _check_ready(self) -> None:
        await self.admission.readiness.check()

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reports go past the framework, which would take as long again as the rest of the way."""
        if scope["path"] != _REPORTS:
            return await super().route(scope, receive, send)
        try:
            reply = await self._counted(scope)
        except Refused as refusal:
            reply = self.refusal(refusal)
        except Gone:
            return
        await reply(scope, receive, send)

    async def _counted(self, scope: Scope) -> Reply:
        if scope["method"] != "POST":
            raise wrong_method("POST")
        client = scope.get("client")
        token = self._admitted(client and client[0], header(scope, b"authorization"))
        most = self._formats.report_length
        body = await body_of(scope, most, self._check_plan, MOST_REPORT_BYTES)
        arrival = self._arrival(body, token)
        try:
            outcome = await self.admission.admit(arrival)
        except Overloaded as error:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), retry=True) from error
        except OverhandError as error:  # the admission says so in the log, once
            words = "the store is not available"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True) from error
        except Exception as error:  # a fault of ours, which it says as well
            raise fault() from error
        self.metrics.outcomes[outcome].inc()
        return _ANSWERS[outcome]

    def _check_plan(self, head: bytes) -> None:
        """Of another plan a report may be longer: its sender is to fetch the document again."""
        try:
            self._formats.check_plan(head)
        except WrongPlan as error:
            raise _outdated(error) from error

    def _admitted(self, address: str | None, authorization: bytes | None) -> bytes | None:
        """Who wants to report, by the hash of a token if one is needed: before the body is read.

        A client that reports too often, or has no token, is `Refused`.
        """
        sender = address_key(address)
        if sender is not None and not self._per_address.allows(sender):
            raise _too_often()
        token = self._token(authorization)
        if token is not None and not self._per_token.allows(token):
            raise _too_often()
        return token

    async def forget_senders(self, stopping: asyncio.Event) -> None:
        """Every few seconds, also if nobody else reports any more."""
        while not stopping.is_set():
            self._per_address.forget()
            self._per_token.forget()
            await pause(stopping, BURST)

    def _arrival(self, body: bytes, token: bytes | None) -> Arrival:
        try:
            return Arrival.of(self._formats, body, token)
        except WrongPlan as error:
            raise _outdated(error) from error
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _token(self, authorization: bytes | None) -> bytes | None:
        """The hash of a token that may report; any other is the same refusal."""
        if self.tokens is None:
            return None
        token = bearer(authorization)
        known = hashed(token) if token is not None else None
        if known is None or known not in self.tokens:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a known token is needed to report")
        return known


def _outdated(error: WrongPlan) -> Refused:
    return Refused(HTTPStatus.CONFLICT, f"{error}: fetch the document again")


def _too_often() -> Refused:
    words = "too many reports from here: try again later"
    return Refused(HTTPStatus.TOO_MANY_REQUESTS, words, retry=True)
