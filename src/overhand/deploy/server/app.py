"""The server's routes: releases in, estimates and the dashboard out.

And what goes on beside them: publishing, its metrics, and events, which are written once, however
many clients listen.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from overhand import __version__
from overhand.deploy.http.application import (
    Application,
    Refused,
    Reply,
    bearer,
    body_of,
    no_such_page,
    pause,
)
from overhand.deploy.http.telemetry import SLOW, Metrics, Readiness, RecurringFault, log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import matches
from overhand.deploy.protocol.sealing import WorkersLost
from overhand.deploy.protocol.wire import Batch, MaskedSum, Offer, Release, Sent
from overhand.deploy.server import dashboard
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.errors import InvalidValue, OverhandError, ProtocolViolation, StoreUnavailable
from overhand.values import Grouped

T = TypeVar("T")

TRUST = (
    "The shuffling service learns who reported, never what; this server learns what, never who. "
    "If the same operator runs both, users have no protection from that operator."
)
SERVICES_NOISE = (
    " Each of the two services adds enough noise of its own to hide a user: neither has to trust "
    "the other, and nobody has to trust other users. Both together learn everything."
)
_HEADERS = {**dashboard.HEADERS, "Cache-Control": "no-store"}
_NUMBER = re.compile("[0-9]{1,18}")
_MOST_NAMES = 1000
_LOOK = 1.0
"""Seconds after which a process looks for what others have published."""
_HEARTBEAT = 15.0
_AT_ONCE = 32
"""Listeners that are woken together: others are answered in between."""
_APART = 0.25
"""Seconds between news: a thousand listeners take a part of them."""
_PER_LEVEL = {
    "received": "Batches received",
    "published": "Batches that were opened and added up",
    "lost": "Batches whose sum is unknown",
    "late": "Batches that should have arrived",
    "own": "Reports of the shuffling service itself",
    "garbage": "Messages that could not be opened",
    "repeats": "Messages that came before and count as garbage",
}


class ServerApp(Application):
    """Everything that the server answers, and the events that it sends."""

    def __init__(
        self,
        document: Document,
        store: ServerStore,
        publisher: Publisher,
        tokens: Collection[bytes],
    ) -> None:
        self._document = document
        self._store = store
        self._publisher = publisher
        self._tokens = tokens
        trouble = RecurringFault("the database cannot be used", "the database can be used again")
        self.readiness = Readiness("database", lambda: self._store.check_usable(), trouble)
        self._late: Counter[int] = Counter()
        self.events = EventBroadcaster(self._snapshot)
        self._quick, self._long = Questions(4, most=1024), Questions(1, most=32)
        self._written: tuple[Any, Response] = (None, Response())
        self._has_stranger = False
        self.arrived = asyncio.Event()
        self._most = document.formats.most_release_bytes
        super().__init__(self._routes(), self.readiness.check, most_body=self._most)

    def _routes(self) -> list[Route]:
        events = Route("/v1/events", self._events)
        events.methods = {"GET"}  # an answer without end has no HEAD
        routes = [
            _put("releases", partial(self._keep, Release)),
            Route("/v1/status", self._status),
            Route("/v1/history", self._history),
            Route("/v1/hindsight", self._hindsight),
            events,
            Route("/", self._file),
            Route("/static/{name}", self._file),
        ]
        if any(level.is_offered for level in self._document.formats.levels):
            routes += [_put("offers", self._offer), _put("sums", partial(self._keep, MaskedSum))]
        if isinstance(self._document.plan.values, Grouped):
            routes.append(Route("/v1/groups", partial(self._tell, self._publisher.groups)))
        if self._document.learning is not None:
            routes.append(Route("/v1/policy", self._policy))
            lessons = partial(self._tell, self._publisher.lessons)
            routes.append(Route("/v1/policy/summary", lessons))
        return routes

    def show_late(self, batches: Iterable[Batch]) -> None:
        """The batches that should have arrived a while ago and have not."""
        late = Counter(level for level, _ in batches)
        if late != self._late:
            self._late = late
            words = "batches are late" if late else "no batch is late any more"
            log(words, level=logging.WARNING, batches=late.total())
            self.events.announce()

    async def _keep(self, kind: type[Release] | type[MaskedSum], request: Request) -> Response:
        await self._take_in(request, kind, self._store.receive)
        self.arrived.set()
        return Reply(HTTPStatus.OK, {"status": "kept"})

    async def _offer(self, request: Request) -> Response:
        answer = await self._take_in(request, Offer, self._publisher.answer)
        return Response(answer, headers=_HEADERS, media_type="application/octet-stream")

    async def _take_in(self, request: Request, kind: type[Sent], keep: Callable[[Sent], T]) -> T:
        """What the store says to what the shuffling service sends of a batch."""
        token = bearer(request.scope)
        is_known = token is not None and any([matches(token, known) for known in self._tokens])
        if not is_known and not self._has_stranger:  # its operator may have mixed up the tokens
            log("a release came with an unknown token", level=logging.WARNING)
        self._has_stranger = not is_known
        if not is_known:
            raise Refused(HTTPStatus.UNAUTHORIZED, "the shuffling service's token is needed")
        body = await body_of(request.scope, self._most)
        try:
            came = self._document.formats.unpack(kind, body)
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        named = (request.path_params["level"], request.path_params["number"])
        if named != tuple(map(str, came.batch)):
            raise Refused(HTTPStatus.BAD_REQUEST, "this is not of the batch in its path")
        try:
            found = await self._from_store(asyncio.to_thread(keep, came))
        except ProtocolViolation as error:
            self.events.announce()
            raise Refused(HTTPStatus.CONFLICT, str(error)) from error
        except (WorkersLost, CancelledError) as error:
            words = "messages cannot be opened now"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True) from error
        self.readiness.note_success()
        return found

    async def _file(self, request: Request) -> Response:
        """A file of the dashboard: its page, unless another is named."""
        name = request.path_params.get("name", dashboard.PAGE)
        if name not in dashboard.FILES:
            raise no_such_page()
        content, kind = dashboard.content(name), dashboard.FILES[name]
        return Response(content, media_type=kind, headers=dashboard.HEADERS)

    async def _status(self, request: Request) -> Response:
        return await self._ask(self._current)

    def _current(self) -> Response:
        """The status as it is sent: written once, however many ask, because it may be long."""
        state = self._publisher.estimates, self._levels(), self._store.alarms()
        if state != self._written[0]:
            self._written = state, JSONResponse(self.status(), headers=_HEADERS)
        return self._written[1]

    def status(self) -> dict[str, Any]:
        """Everything that the server knows, all of which is public."""
        plan, alarms = self._document.plan, self._store.alarms()
        # Unless there are too many to read.
        names = plan.values.coordinate_names if plan.values.dimension <= _MOST_NAMES else None
        return {
            "version": __version__,
            "plan": {
                "digest": plan.digest,
                "document": self._document.digest,
                "horizon": plan.horizon,
                "most_users": plan.most_users,
                "values": plan.values.spec,
                "dimension": plan.values.dimension,
                "names": names and list(names),
                "messages_per_user": plan.messages_per_user,
                "users_before": self._publisher.users_before,
                "is_recommender": self._document.learning is not None,
            },
            "guarantee": {
                "epsilon": plan.privacy.epsilon,
                "delta": plan.privacy.delta,
                "delta_spent": plan.delta_spent,
                "mu": plan.mu,
                "honest": plan.honest,
                "reports": plan.reports,
                "noise_by": plan.noise_by,
            },
            "levels": self._levels(),
            "estimate": self._publisher.estimate,
            "alarms": alarms,
            "healthy": not alarms,
            "trust": TRUST + (SERVICES_NOISE if plan.noise_by == "services" else ""),
        }

    def _levels(self) -> list[dict[str, Any]]:
        return [{**level, "late": self._late[level["level"]]} for level in self._publisher.levels()]

    async def _history(self, request: Request) -> Response:
        return await self._of_coordinate(request, self._publisher.thin, self._quick)

    async def _hindsight(self, request: Request) -> Response:
        return await self._of_coordinate(request, self._publisher.hindsight, self._long)

    async def _of_coordinate(
        self, request: Request, told: Callable[[int], Any], questions: Questions
    ) -> Response:
        text = request.query_params.get("coordinate", "0")
        dimension = self._document.plan.values.dimension
        if not (_NUMBER.fullmatch(text) and int(text) < dimension):
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"the coordinate is not a number below {dimension}"
            )
        answer = questions.answer(lambda: JSONResponse(told(int(text)), headers=_HEADERS))
        return await self._from_store(answer)

    async def _policy(self, request: Request) -> Response:
        text = request.query_params.get("number")
        if text is not None and not (_NUMBER.fullmatch(text) and int(text) > 0):
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"number={text!r} is not a whole number from 1 on"
            )
        number = None if text is None else int(text)
        policy = await self._ask(lambda: self._publisher.policy(number))
        if policy is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no policy yet: any arm will do")
        return Response(policy, headers=_HEADERS, media_type="application/json")

    async def _tell(self, told: Callable[[], Any], request: Request) -> Response:
        return await self._ask(lambda: JSONResponse(told(), headers=_HEADERS))

    async def _ask(self, question: Callable[[], T]) -> T:
        return await self._from_store(self._quick.answer(question))

    async def _from_store(self, answer: Awaitable[T]) -> T:
        """What the store says, or `Refused` if it says nothing."""
        try:
            return await answer
        except StoreUnavailable as error:
            self.readiness.note_failure(error)
            words = "the database is not available"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True) from error

    async def _events(self, request: Request) -> Response:
        if self.events.listeners >= self.most_connections // 4:  # or none are left for releases
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many listeners", retry=True)
        return EventStream(self.events, {**_HEADERS, "X-Accel-Buffering": "no"})

    def _snapshot(self) -> Snapshot:
        """All that may be told of the present, as it is sent."""
        estimate = self._publisher.estimate
        text = _event("levels", self._levels())
        if estimate is not None:
            text += _event("estimate", estimate)
        try:
            return Snapshot(text, [_event("alarm", alarm) for alarm in self._store.alarms()])
        except StoreUnavailable:  # alarms are told when it is back
            return Snapshot(text, None)


def _put(what: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(f"/v1/{what}/{{level}}/{{number}}", handler, methods=["PUT"])


class Questions:
    """Answers questions in a few `threads` of its own; `most` of them may wait, or be answered.

    Releases and publishing have others: strangers would fill those. A question is answered even if
    who asked has left, so connections do not limit how many there are.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="asking")
        self._free = asyncio.Semaphore(most)

    async def answer(self, question: Callable[[], T]) -> T:
        """What the question comes to, or `Refused`."""
        if self._free.locked():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions", retry=True)
        async with self._free:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question)


async def publish(
    app: ServerApp,
    publisher: Publisher,
    metrics: ServerMetrics,
    stopping: asyncio.Event,
) -> None:
    """Open all releases, those from before a restart first, and wait for more.

    A database that is down or a worker that dies costs time, and nothing else: what is not
    published is still in the store.
    """
    trouble = RecurringFault("publishing failed", "publishing works again")
    while not stopping.is_set():
        app.arrived.clear()
        try:
            while not stopping.is_set() and await asyncio.to_thread(
                metrics.time_step, publisher.step
            ):
                app.readiness.note_success()
                app.events.announce()
            if await asyncio.to_thread(publisher.follow):
                app.events.announce()
            app.show_late(await asyncio.to_thread(publisher.find_overdue, time.monotonic()))
        except (OverhandError, CancelledError) as error:
            if stopping.is_set():
                return
            metrics.failures.inc()
            if isinstance(error, StoreUnavailable | ProtocolViolation):
                app.readiness.note_failure(error)
            trouble.begin(type(error).__name__)
            await asyncio.sleep(_LOOK)
            continue
        trouble.end()
        await pause(app.arrived, _LOOK)


class ServerMetrics(Metrics):
    """What came of batches, by level, and how far the published sum reaches."""

    def __init__(self, app: ServerApp) -> None:
        super().__init__()
        self.watch(app.limits)
        self.follow(app.readiness)
        self._app = app
        self._levels = {name: self.gauge(name, help, "level") for name, help in _PER_LEVEL.items()}
        self._users = self.gauge(
            "users_published", "Reports in the published sum, including own ones"
        )
        self._lost_users = self.gauge("users_lost", "Reports that count as the middle of a range")
        self._alarms = self.gauge("alarms", "Alarms since the plan began")
        self._database_is_up = self.gauge("database_is_up", "Whether the database answers")
        self._unopened = self.gauge("unopened", "Batches that came and wait to be opened", "level")
        self._seconds = self.histogram(
            "publish_seconds", "Time to open a batch and publish its sum", SLOW
        )
        self.failures = self.counter("publishing_failures", "Attempts to publish that failed")

    def time_step(self, step: Callable[[], bool]) -> bool:
        """Whether a step did anything; how long it took if it did."""
        started = time.perf_counter()
        has_published = step()
        if has_published:
            self._seconds.observe(time.perf_counter() - started)
        return has_published

    def current(self) -> bytes:
        """All of them, as the store has them now, or had them when it last answered."""
        return self.collect(self._app.readiness, self._ask, self._database_is_up)

    def _ask(self) -> None:
        status = self._app.status()
        for level in status["levels"]:
            for name, gauge in self._levels.items():
                gauge.labels(level["level"]).set(level[name])
            unopened = level["received"] - level["published"] - level["lost"]
            self._unopened.labels(level["level"]).set(unopened)
        estimate = status["estimate"] or {"t": 0, "lost_users": 0}
        self._users.set(estimate["t"])
        self._lost_users.set(estimate["lost_users"])
        self._alarms.set(len(status["alarms"]))


class Snapshot(NamedTuple):
    """What is sent to listeners."""

    text: bytes
    alarms: list[bytes] | None
    """One by one, because each is told once; None while the store is unavailable."""


class EventBroadcaster:
    """Tells all listeners whenever there is something new.

    `write` says how things are, in a thread of its own; it is asked once after each `announce`, and
    not at all if there are no listeners.
    """

    def __init__(self, write: Callable[[], Snapshot]) -> None:
        self._write = write
        self._snapshot: asyncio.Task[Snapshot] | None = None
        self._listening: set[asyncio.Event] = set()
        self._waking: asyncio.Task[None] | None = None
        self._is_new = self._is_stopping = False

    @property
    def listeners(self) -> int:
        return len(self._listening)

    def announce(self) -> None:
        """Send the current state to all listeners."""
        self._is_new = True
        if not self._listening:
            self._snapshot = None
        elif self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())

    def stop(self) -> None:
        """Say goodbye to all listeners."""
        self._is_stopping = True
        for woken in self._listening:
            woken.set()

    async def _wake(self) -> None:
        while self._is_new:
            self._is_new, self._snapshot = False, None
            with suppress(Exception):  # it is theirs whom it is told
                await self._now()  # before they are woken, or all would go on at once
            everybody = list(self._listening)
            for start in range(0, len(everybody), _AT_ONCE):
                for woken in everybody[start : start + _AT_ONCE]:
                    woken.set()
                await asyncio.sleep(0)
            await asyncio.sleep(_APART)

    async def _now(self) -> Snapshot:
        now = self._snapshot
        if now is None or now.done() and (now.cancelled() or now.exception() is not None):
            now = self._snapshot = asyncio.create_task(asyncio.to_thread(self._write))
        return await asyncio.shield(now)

    @contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        """While somebody listens, whom this wakes."""
        woken = asyncio.Event()
        self._listening.add(woken)
        try:
            yield woken
        finally:
            self._listening.discard(woken)

    async def stream(self, woken: asyncio.Event) -> AsyncIterator[bytes]:
        """What is new, whenever there is something; a comment now and then keeps the line open."""
        told = 0
        yield b": welcome\n\n"
        while not self._is_stopping:
            woken.clear()
            now = await self._now()
            alarms = now.alarms or ()
            yield now.text + b"".join(alarms[told:])
            told = max(told, len(alarms))
            while True:
                await pause(woken, _HEARTBEAT)
                if woken.is_set():
                    break
                yield b": still here\n\n"
                if now.alarms is None:
                    self._snapshot = None  # to look whether the store is back
                    break


class EventStream(StreamingResponse):
    """A stream that counts as a listener for as long as it is sent, however it ends."""

    def __init__(self, events: EventBroadcaster, headers: dict[str, str]) -> None:
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._events.listen() as woken:
            self.body_iterator = self._events.stream(woken)
            await super().__call__(scope, receive, send)


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
