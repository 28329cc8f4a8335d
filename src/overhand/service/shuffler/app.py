"""The shuffling service's public side: the document, and the route that takes reports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from overhand.errors import InvalidValue, OverhandError
from overhand.service.protocol import MOST_REPORT_BYTES, Document, WrongPlan, hashed
from overhand.service.shuffler.admission import Admission, Overloaded, ShufflerMetrics
from overhand.service.shuffler.store import Arrival, Outcome
from overhand.service.web import (
    Application,
    Description,
    Operation,
    Refused,
    Reply,
    bearer,
    binary_content,
    body_of,
    header,
    json_content,
)

_DESCRIPTION = Description(
    "overhand shuffling service", "Takes sealed reports; learns who, never what."
)
_COUNTED = Reply(HTTPStatus.OK, {"status": "counted"})
_ANSWERS = {
    # A repeat is told what the first was told: whether a copy came is nobody's business.
    Outcome.ADMITTED: _COUNTED,
    Outcome.REPEATED: _COUNTED,
    Outcome.TOKEN_USED: Reply(HTTPStatus.FORBIDDEN, {"error": "this token has reported already"}),
    Outcome.CLOSED: Reply(HTTPStatus.GONE, {"error": "the plan is complete: no more reports"}),
}


class ShufflerApp(Application):
    """Everything that the shuffling service answers.

    `tokens` are the hashes of those who may report, once each; None lets everybody.
    """

    def __init__(
        self,
        document: Document,
        admission: Admission,
        metrics: ShufflerMetrics | None = None,
        tokens: Collection[bytes] | None = None,
    ) -> None:
        self.document = document
        self.admission = admission
        self.metrics = metrics or ShufflerMetrics()
        self.tokens = tokens
        self._formats = document.formats
        self.report_length = str(self._formats.report_length).encode()
        headers = {"etag": f'"{document.digest}"', "cache-control": "no-store"}
        self._document = Response(document.to_json(), 200, headers, "application/json")
        super().__init__(_DESCRIPTION, self._operations(), self._check_ready)

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
                "Count a report. The same id again is counted once and answered alike.",
                json_content(status="counted"),
                "POST",
                body=report,
                refusals=(400, *for_tokens, 409, 410, 413, 415, 429),
                is_secured=self.tokens is not None,
            ),
        ]

    def note(self, refusal: Refused) -> None:
        self.metrics.refused.labels(refusal.status).inc()

    async def _documented(self, request: Request) -> Response:
        return self._document

    async def _check_ready(self) -> None:
        await self.admission.readiness.check()

    async def _report(self, request: Request) -> Response:
        """The slow way: whoever sends something unusual is told what is wrong with it."""
        authorization = header(request.scope, b"authorization")
        self._token(authorization)
        most = self._formats.report_length
        body = await body_of(
            request.scope, request.receive, most, self._check_plan, MOST_REPORT_BYTES
        )
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
            case OverhandError():  # the admission says so in the log, once
                return self.refusal(_no_store())
            case _:  # a fault of ours, in the log as well: the report may be sent again
                fault = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault", retry=True)
                return self.refusal(fault)


def _outdated(error: WrongPlan) -> Refused:
    return Refused(HTTPStatus.CONFLICT, f"{error}: fetch the document again")


def _no_store() -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the store is not available", retry=True)
