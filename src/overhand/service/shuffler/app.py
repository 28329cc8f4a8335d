"""The shuffling service's public side: the document, and the route that takes reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from overhand.errors import InvalidValue, OverhandError
from overhand.service.protocol import MOST_REPORT_BYTES, Document, WrongPlan, hashed
from overhand.service.shuffler.admission import Admission, Overloaded, ShufflerMetrics
from overhand.service.shuffler.relaying import Relay
from overhand.service.shuffler.store import Arrival, Outcome
from overhand.service.web import (
    BURST,
    Application,
    Description,
    Operation,
    Origins,
    Rate,
    Refused,
    Reply,
    address_key,
    bearer,
    binary_content,
    body_of,
    header,
    json_content,
    pause,
)

_DESCRIPTION = Description(
    "overhand shuffling service", "Takes sealed reports; learns who, never what."
)
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
        self.report_length = str(self._formats.report_length).encode()
        headers = {"etag": f'"{document.digest}"', "cache-control": "no-store"}
        self._document = Response(document.to_json(), 200, headers, "application/json")
        most = self._formats.report_length
        super().__init__(
            _DESCRIPTION,
            self._operations(),
            self._check_ready,
            most_body=most,
            origins=Origins(origins),
        )
        self.metrics.watch(self.load)

    def _operations(self) -> list[Operation]:
        levels = ", ".join(
            f"{level.messages} of {level.ciphertext_bytes} bytes" for level in self._formats.levels
        )
        report = binary_content(
            "OVH2, the document's digest (32 bytes), an id (16 random bytes, drawn for this report "
            f"alone), and per level, lowest first, the ciphertexts: {levels}",
            self._formats.report_length,
        )
        for_tokens = () if self.tokens is None else (401, 403)
        return [
            *self._learning_operations(),
            Operation(
                "document",
                "/v1/document",
                self._documented,
                "The plan and the key that reports are sealed to.",
                json_content(),
            ),
            Operation(
                "report",
                "/v1/reports",
                self._report,
                "Count a report. The same id again is counted once and gets the same answer.",
                json_content(status="counted"),
                "POST",
                body=report,
                refusals=(400, *for_tokens, 409, 410, 413, 415, 429),
                is_secured=self.tokens is not None,
            ),
        ]

    def _learning_operations(self) -> list[Operation]:
        if self.document.learning is None:
            return []
        return [
            Operation(
                "policy",
                "/v1/policy",
                self._policy,
                "The newest rule of the recommender, as the server signed it.",
                json_content(),
                words={404: "There is no rule yet: any arm will do."},
            )
        ]

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

    async def _report(self, request: Request) -> Response:
        """The slow way: the sender of an unusual request is told what is wrong with it."""
        client = request.client
        authorization = header(request.scope, b"authorization")
        token = self.admitted(None if client is None else client.host, authorization)
        most = self._formats.report_length
        body = await body_of(
            request.scope, request.receive, most, self._check_plan, MOST_REPORT_BYTES
        )
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answer(said: Reply) -> None:
            if not reply.done():  # a report is counted even if its sender disconnected
                reply.set_result(said)

        self.take(body, token, answer)
        return await reply

    def _check_plan(self, head: bytes) -> None:
        """Of another plan a report may be longer: its sender is to fetch the document again."""
        try:
            self._formats.check_plan(head)
        except WrongPlan as error:
            raise _outdated(error) from error

    def admitted(self, address: str | None, authorization: bytes | None) -> bytes | None:
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

    def take(self, body: bytes, token: bytes | None, answer: Callable[[Reply], None]) -> None:
        """Have a report counted: `answer` is called as soon as it is durable, or refused."""

        def done(result: Outcome | Exception) -> None:
            self.load.bytes -= len(body)
            answer(self._settled(result))

        self.load.bytes += len(body)
        try:
            self.admission.enter(self._arrival(body, token), done)
        except (Refused, Overloaded) as error:
            done(error)

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

    def _settled(self, result: Outcome | Exception) -> Reply:
        """The answer to a client's report."""
        match result:
            case Outcome():
                self.metrics.outcomes[result].inc()
                return _ANSWERS[result]
            case Refused():
                return self.refusal(result)
            case Overloaded():
                busy = Refused(HTTPStatus.TOO_MANY_REQUESTS, str(result), retry=True)
                return self.refusal(busy)
            case OverhandError():  # the admission says so in the log, once
                return self.refusal(_no_store())
            case _:  # a fault of ours, in the log as well: the report may be sent again
                fault = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault", retry=True)
                return self.refusal(fault)


def _outdated(error: WrongPlan) -> Refused:
    return Refused(HTTPStatus.CONFLICT, f"{error}: fetch the document again")


def _too_often() -> Refused:
    words = "too many reports from here: try again later"
    return Refused(HTTPStatus.TOO_MANY_REQUESTS, words, retry=True, is_early=True)


def _no_store() -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the store is not available", retry=True)
