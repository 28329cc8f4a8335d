"""The shuffling service's public side: the document, and reports into the store.

Many requests are one commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from ipaddress import IPv6Address

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from overhand.deploy.http.application import (
    Application,
    Gone,
    Refused,
    Reply,
    bearer,
    body_of,
    fault,
    pause,
    wrong_method,
)
from overhand.deploy.http.telemetry import SLOW, Metrics, Readiness, RecurringFault
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.protocol.wire import MOST_REPORT_BYTES, WrongPlan
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Transport, Unreachable
from overhand.errors import InvalidValue, OverhandError, ProtocolViolation, ServiceError

BURST = 10.0
"""Seconds: the requests allowed in this time may come at once, after a silence."""
MOST_BYTES = 1 << 30
"""Of full batches that wait for the server, unless it is said."""
_MOST_KEYS = 1 << 16
_LOOK = 1.0  # seconds
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
    are not 0. Pages of the `origins` may report. For a recommender, `relay` has the newest policy.
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
        told = Response(document.to_json(), 200, headers, "application/json")
        routes = [Route("/v1/document", told, methods=["GET"])]
        if document.learning is not None:
            routes.append(Route("/v1/policy", self._policy))
        super().__init__(
            routes,
            lambda: self.admission.readiness.check(),
            most_body=self._formats.report_length,
            origins=origins,
        )
        self.metrics.watch(self.limits)

    async def _policy(self, request: Request) -> Response:
        newest = None if self._relay is None else self._relay.newest
        if newest is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no policy yet: any arm will do")
        return Response(newest, 200, {"cache-control": "no-store"}, "application/json")

    def refusal(self, refusal: Refused) -> Reply:
        self.metrics.refused.labels(refusal.status).inc()
        return super().refusal(refusal)

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reports go past the framework, which would take as long again as the rest of the way."""
        if scope["path"] != _REPORTS:
            return await super().route(scope, receive, send)
        try:
            reply = await self._count(scope)
        except Refused as refusal:
            reply = self.refusal(refusal)
        except Gone:
            return
        await reply(scope, receive, send)

    async def _count(self, scope: Scope) -> Reply:
        if scope["method"] != "POST":
            raise wrong_method("POST")
        token, formats = self._check_sender(scope), self._formats
        try:
            most = formats.report_length
            body = await body_of(scope, most, formats.check_plan, MOST_REPORT_BYTES)
            arrival = Arrival.of(formats, body, token)
        except WrongPlan as error:
            words = f"{error}: fetch the document again"
            raise Refused(HTTPStatus.CONFLICT, words) from error
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        try:
            outcome = await self.admission.admit(arrival)
        except Backlogged as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error), retry=True) from error
        except Overloaded as error:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), retry=True) from error
        except OverhandError as error:  # the admission says so in the log, once
            words = "the store is not available"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True) from error
        except Exception as error:  # a fault of ours, which it says as well
            raise fault() from error
        self.metrics.outcomes[outcome].inc()
        return _ANSWERS[outcome]

    def _check_sender(self, scope: Scope) -> bytes | None:
        """Who wants to report, by the hash of a token if one is needed: before the body is read.

        A client that reports too often, or has no token, is `Refused`.
        """
        client = scope.get("client")
        self._per_address.check(address_key(client and client[0]))
        if self.tokens is None:
            return None
        token = bearer(scope)
        known = hash_token(token) if token is not None else None
        if known is None or known not in self.tokens:  # any such token is the same refusal
            raise Refused(HTTPStatus.UNAUTHORIZED, "a known token is needed to report")
        self._per_token.check(known)
        return known

    async def forget_senders(self, stopping: asyncio.Event) -> None:
        """Every few seconds, also if nobody else reports any more."""
        while not stopping.is_set():
            self._per_address.forget()
            self._per_token.forget()
            await pause(stopping, BURST)


class Rate:
    """This many times per second for each key, in bursts of up to `BURST` seconds' worth; 0 is any.

    For each key only the time is kept until which its allowance is used up. `forget` lets go of
    those for whom it has passed; if too many keys are known, those silent for longest go earlier.

    >>> rate = Rate(0.1)
    >>> rate.allows("somebody"), rate.allows("somebody"), rate.allows("another")
    (True, False, True)
    """

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = 1 / per_second if per_second else 0.0
        self._clock = clock
        self._used: dict[Hashable, float] = {}

    def allows(self, key: Hashable) -> bool:
        """Whether this key may ask now, which then counts."""
        if not self._each:
            return True
        now, used = self._clock(), self._used
        until = max(used.pop(key, now), now) + self._each
        is_allowed = until - now <= max(BURST, self._each)
        used[key] = until if is_allowed else until - self._each
        if len(used) > _MOST_KEYS:
            del used[next(iter(used))]
        return is_allowed

    def check(self, key: Hashable | None) -> None:
        """Refuse somebody who may not ask now; None may always."""
        if key is not None and not self.allows(key):
            words = "too many reports from here: try again later"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, words, retry=True)

    def forget(self) -> None:
        """Let go of all keys that may ask as if they had never asked."""
        now = self._clock()
        self._used = {key: until for key, until in self._used.items() if until > now}


def address_key(host: str | None) -> Hashable | None:
    """Who an address belongs to: an IPv6 host has a whole /64. None if it is this machine.

    >>> address_key("2001:db8::1") == address_key("2001:db8::2"), address_key("127.0.0.1")
    (True, None)
    """
    if host is None or host.startswith("127."):
        return None
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return address_key(str(address.ipv4_mapped))
    return None if address.is_loopback else address.packed[:8]


class ShufflerMetrics(Metrics):
    """What became of reports, requests and batches.

    Only for the service's operator: fill levels tell when users came.
    """

    def __init__(self) -> None:
        super().__init__()
        reports = self.counter("reports", "Reports by what became of them", "outcome")
        self.outcomes = {outcome: reports.labels(outcome.value) for outcome in Outcome}
        self.refused = self.counter("refused", "Requests refused, by status", "status")
        self.commits = self.counter("commits", "Groups of reports committed")
        self.releases = self.counter("releases", "Batches sent to the server", "level")
        self.send_failures = self.counter("send_failures", "Attempts to send that failed")
        self.admission_seconds = self.histogram(
            "admission_seconds", "Time from when a report is whole to its commit"
        )
        self.send_seconds = self.histogram("send_seconds", "Time to the server's answer", SLOW)
        self.unsent = self.gauge("unsent", "Full batches that the server does not have", "level")
        self.set_aside = self.gauge("set_aside", "Batches that this process cannot send", "level")
        self.unanswered = self.gauge(
            "unanswered", "Batches that were offered to the server and are not frozen"
        )
        self.waiting_bytes = self.gauge(
            "waiting_bytes", "Bytes of full batches that wait for the server"
        )
        self.alarms = self.gauge("alarms", "What should never happen, since the start", "kind")
        self.open_seconds = self.gauge(
            "open_seconds", "Time since this process first saw a report in the open batch", "level"
        )
        self.waiting = self.gauge("waiting", "Reports that wait for their commit")
        self.arrived = self.gauge("arrived", "Places of batches that are taken")
        self.store_is_up = self.gauge("store_is_up", "Whether the store answers")


class Overloaded(ServiceError):
    """More reports are waiting than the service may hold."""


class Backlogged(Overloaded):
    """More waits for the server than the store may hold."""


class Admission:
    """Collects the reports of concurrent requests and admits them in groups.

    A report is answered when its group is committed, so an accepted report is counted for good.
    While one group is being committed the next one gathers: under load groups grow by themselves,
    and a single report does not wait. While full batches of more than `most_bytes` wait for the
    server, reports are refused.
    """

    def __init__(
        self,
        store: Store,
        metrics: ShufflerMetrics | None = None,
        *,
        group: int = 512,
        most_waiting: int = 4096,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._store = store
        self._metrics = metrics or ShufflerMetrics()
        self._group = group
        self._most_waiting = most_waiting
        self._most_bytes, self._is_backlogged = most_bytes, False
        self._waiting: deque[tuple[Arrival, asyncio.Future[Outcome], float]] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="admission")
        self._closing = False
        trouble = RecurringFault("reports cannot be stored", "reports can be stored again")
        self.readiness = Readiness("store", lambda: store.check_usable(), trouble)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def admit(self, arrival: Arrival) -> Outcome:
        """What becomes of a report, once it is durable; it goes into the next group.

        A caller that goes away takes nothing back: its report may be committed already.
        """
        if self._closing or len(self._waiting) >= self._most_waiting:
            raise Overloaded(f"{len(self._waiting)} reports are already waiting")
        if self._is_backlogged:
            raise Backlogged("too much waits for the server: try again later")
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((arrival, outcome, time.perf_counter()))
        self._wake.set()
        return await outcome

    async def run(self) -> None:
        """Commit group after group, until closed and empty."""
        while not (self._closing and not self._waiting):
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._commit()
        self._thread.shutdown()

    async def follow_backlog(self, stopping: asyncio.Event) -> None:
        """Look every second how much waits for the server."""
        trouble = RecurringFault("too much waits for the server", "reports are taken again")
        while not stopping.is_set():
            with suppress(OverhandError):  # what is wrong with the store is said elsewhere
                waiting = await asyncio.to_thread(lambda: self._store.waiting_bytes)
                self._is_backlogged = waiting > self._most_bytes
                if self._is_backlogged:
                    trouble.begin(f"more than {self._most_bytes} bytes")
                else:
                    trouble.end()
            await pause(stopping, _LOOK)

    async def _commit(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(self._group, len(self._waiting)))]
        arrivals = [arrival for arrival, _, _ in some]
        loop = asyncio.get_running_loop()
        outcomes: Sequence[Outcome | Exception]
        try:
            outcomes = await loop.run_in_executor(self._thread, self._store.admit, arrivals)
            self._metrics.commits.inc()
            self.readiness.note_success()
            now = time.perf_counter()
            for _, _, since in some:
                self._metrics.admission_seconds.observe(now - since)
        except Exception as error:
            outcomes = [error] * len(some)
            self.readiness.note_failure(error)
        for (_, future, _), outcome in zip(some, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def close(self) -> None:
        """No more reports; those that wait are still committed."""
        self._closing = True
        self._wake.set()


class Relay:
    """Has the newest policy of a document's server, as soon as somebody asks `run` to look for it.

    A client talks to the shuffling service alone, so the service fetches the newest policy and
    hands the same bytes to everybody. It checks them first: a client would refuse what is not
    signed, and would not know whom to blame.
    """

    def __init__(self, document: Document, server: Transport, *, tick: float) -> None:
        self._document = document
        self._server = server
        self._tick = tick
        self._number = 0
        self.newest: bytes | None = None
        """As the server signed it; None before the first."""
        self._trouble = RecurringFault("the policy cannot be fetched", "policies come again")

    async def run(self, stopping: asyncio.Event) -> None:
        """Look for a newer policy every tick; one that cannot be had leaves the last in force."""
        while not stopping.is_set():
            try:
                await self.look()
                self._trouble.end()
            except (Unreachable, ProtocolViolation) as error:
                self._trouble.begin(str(error))
            await pause(stopping, self._tick)

    async def look(self) -> None:
        """Take in the newest policy, if there is one."""
        answer = await self._server.request("GET", "/v1/policy")
        if answer.status == HTTPStatus.NOT_FOUND:  # before the first
            return
        if answer.status != HTTPStatus.OK:
            raise Unreachable(f"the server answers {answer.status}")
        if answer.body == self.newest:
            return
        policy = self._document.policy(answer.body)
        if policy.number < self._number:
            raise ProtocolViolation(f"policy {policy.number} is older than policy {self._number}")
        self._number, self.newest = policy.number, answer.body
