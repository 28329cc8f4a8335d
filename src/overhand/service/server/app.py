"""The server's routes: releases in, estimates and the dashboard out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from overhand import __version__
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from overhand.service.protocol import Batch, Document, matches
from overhand.service.server import dashboard
from overhand.service.server.asking import Questions
from overhand.service.server.book import Book
from overhand.service.server.events import Edition, Heard, News
from overhand.service.server.publishing import Publisher
from overhand.service.web import (
    Application,
    Readiness,
    Refused,
    Reply,
    Trouble,
    bearer,
    body_of,
    header,
    log,
    no_such_page,
)
from overhand.values import Grouped, Values

T = TypeVar("T")

TRUST = (
    "The shuffling service learns who reported, never what; this server learns what, never who. "
    "If the same operator runs both, nobody is protected from that operator."
)
SERVICES_NOISE = (
    " Each of the two services adds enough noise of its own to hide a user: neither has to trust "
    "the other, and nobody has to trust other users. Both together learn everything."
)
_HEADERS = {**dashboard.HEADERS, "Cache-Control": "no-store"}
_NUMBER = re.compile("[0-9]{1,18}")
_MOST_NAMES = 1000


class ServerApp(Application):
    """Everything that the server answers, and the events that it sends."""

    def __init__(
        self,
        document: Document,
        book: Book,
        publisher: Publisher,
        tokens: Collection[bytes],
    ) -> None:
        self._document = document
        self._book = book
        self._publisher = publisher
        self._tokens = tokens
        trouble = Trouble("the book cannot be used", "the book can be used again")
        self.readiness = Readiness("book", lambda: self._book.check_usable(), trouble)
        self._late: Counter[int] = Counter()
        self.news = News(self._edition)
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
            Route("/v1/releases/{level}/{number}", self._release, methods=["PUT"]),
            Route("/v1/status", self._status),
            Route("/v1/history", self._history),
            Route("/v1/hindsight", self._hindsight),
            events,
            Route("/", self._page),
            Route("/static/{name}", self._file),
        ]
        if isinstance(self._document.plan.values, Grouped):
            routes.append(Route("/v1/groups", self._groups))
        if self._document.learning is not None:
            routes += [Route("/v1/policy", self._policy), Route("/v1/learnt", self._learnt)]
        return routes

    def show_late(self, batches: Iterable[Batch]) -> None:
        """The batches that should have arrived a while ago and have not."""
        late = Counter(level for level, _ in batches)
        if late != self._late:
            self._late = late
            words = "batches are late" if late else "no batch is late any more"
            log(words, level=logging.WARNING, batches=late.total())
            self.news.announce()

    async def _release(self, request: Request) -> Response:
        token = bearer(header(request.scope, b"authorization"))
        is_known = token is not None and any([matches(token, known) for known in self._tokens])
        self._note_sender(is_known)
        if not is_known:
            raise Refused(HTTPStatus.UNAUTHORIZED, "the shuffling service's token is needed")
        body = await body_of(request.scope, self._most)
        try:
            release = self._document.formats.unpack_release(body)
        except InvalidValue as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        named = (request.path_params["level"], request.path_params["number"])
        if named != tuple(map(str, release.batch)):
            raise Refused(HTTPStatus.BAD_REQUEST, "the release is not of the batch in its path")
        try:
            await self._from_book(asyncio.to_thread(self._book.receive, release))
        except ProtocolViolation as error:
            self.news.announce()
            raise Refused(HTTPStatus.CONFLICT, str(error)) from error
        self.readiness.worked()
        self.arrived.set()
        return Reply(HTTPStatus.OK, {"status": "kept"})

    def _note_sender(self, is_known: bool) -> None:
        """Log an unknown token once: its operator may have mixed up the tokens."""
        if self._has_stranger == is_known:
            self._has_stranger = not is_known
            if not is_known:
                log("a release came with an unknown token", level=logging.WARNING)

    async def _page(self, request: Request) -> Response:
        return _file(dashboard.PAGE)

    async def _file(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def _status(self, request: Request) -> Response:
        return await self._asked(self._current)

    def _current(self) -> Response:
        """The status as it is sent: written once, however many ask, because it may be long."""
        state = self._publisher.estimates, self._levels(), self._book.alarms()
        if state != self._written[0]:
            self._written = state, JSONResponse(self.status(), headers=_HEADERS)
        return self._written[1]

    def status(self) -> dict[str, Any]:
        """Everything that the server knows, all of which is public."""
        plan, alarms = self._document.plan, self._book.alarms()
        return {
            "version": __version__,
            "plan": {
                "digest": plan.digest,
                "document": self._document.digest,
                "horizon": plan.horizon,
                "values": plan.values.spec,
                "dimension": plan.values.dimension,
                "names": _names(plan.values),
                "messages_per_user": plan.messages_per_user,
                "users_before": self._publisher.users_before,
                "is_recommender": self._document.learning is not None,
            },
            "guarantee": {
                "epsilon": plan.privacy.epsilon,
                "delta": plan.privacy.delta,
                "delta_spent": plan.delta_spent,
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
        return await self._of_coordinate(request, self._publisher.thinned, self._quick)

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
        return await self._from_book(answer)

    async def _policy(self, request: Request) -> Response:
        text = request.query_params.get("number")
        if text is not None and not (_NUMBER.fullmatch(text) and int(text) > 0):
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"number={text!r} is not a whole number from 1 on"
            )
        number = None if text is None else int(text)
        rule = await self._asked(lambda: self._publisher.rule(number))
        if rule is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no rule yet: any arm will do")
        return Response(rule, headers=_HEADERS, media_type="application/json")

    async def _learnt(self, request: Request) -> Response:
        return await self._asked(lambda: JSONResponse(self._publisher.learnt(), headers=_HEADERS))

    async def _groups(self, request: Request) -> Response:
        return await self._asked(lambda: JSONResponse(self._publisher.groups(), headers=_HEADERS))

    async def _asked(self, question: Callable[[], T]) -> T:
        return await self._from_book(self._quick.answer(question))

    async def _from_book(self, answer: Awaitable[T]) -> T:
        """What the book says, or `Refused` if it says nothing."""
        try:
            return await answer
        except StoreUnavailable as error:
            self.readiness.failed(error)
            words = "the book is not available"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True) from error

    async def _events(self, request: Request) -> Response:
        if self.news.listeners >= self.most_connections // 4:  # or none are left for releases
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many listeners", retry=True)
        return Heard(self.news, {**_HEADERS, "X-Accel-Buffering": "no"})

    def _edition(self) -> Edition:
        estimate = self._publisher.estimate
        now = {"levels": self._levels(), **({} if estimate is None else {"estimate": estimate})}
        try:
            return Edition.of(now, self._book.alarms())
        except StoreUnavailable:  # alarms are told when it is back
            return Edition.of(now, None)


def _names(values: Values) -> list[str] | None:
    """The names of the coordinates, unless there are too many to read."""
    names = values.coordinate_names if values.dimension <= _MOST_NAMES else None
    return None if names is None else list(names)


def _file(name: str) -> Response:
    """A file of the dashboard."""
    if name not in dashboard.FILES:
        raise no_such_page()
    content = dashboard.content(name)
    return Response(content, media_type=dashboard.FILES[name], headers=dashboard.HEADERS)
