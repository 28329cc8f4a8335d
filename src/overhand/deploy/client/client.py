"""Reports a value once: encoded here, sealed for the server, sent to the shuffling service."""

from __future__ import annotations

import asyncio
import json
import random as jitter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from http.client import responses
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack

from overhand.deploy.client.journal import NotCounted, Outdated, ReportJournal
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.transport import Answer, HttpTransport, Transport, Unreachable, Untrusted
from overhand.errors import InvalidValue, whole
from overhand.model import Rows
from overhand.randomness import Random, secure_source

T = TypeVar("T")

_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 30.0
_ENCODED_AT_ONCE = 16
_LOOKS = 4  # turns of the loop: a closed connection is seen in one, dropped in the next
_MOST_SHOWN = 200
_NEVER_ANEW = (
    "the value is not sealed again for another document: if the services make the noise, each "
    "time would cost epsilon once more, and a service could ask for it as often as it likes"
)
_DIGEST_MISSING = (
    "digest= (--digest) is missing: the services make the noise of this plan, and a shuffling "
    "service that hands out a key of its own could read every value. Get the document's digest "
    "from the server's operator: `overhand prepare` prints it, and so does `sha256sum "
    "document.json`. Or set trust_service=True (--trust-service) if nobody needs protection from "
    "the shuffling service"
)
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
"""Statuses of those who are late, too busy or at fault for now."""


class AsyncClient:
    """Talks to one shuffling service.

    The document is fetched once, from the shuffling service and never from the server, and its
    guarantee is recomputed before anything is reported. Give its `digest` if you know it: then no
    other plan or key is accepted. If the services make the noise it must be known, and not from the
    shuffling service, which could hand out a key of its own and read what is sealed to it; or set
    `trust_service`, which gives no protection from that service.

    A report is encoded once and resent byte for byte, so retries cost no privacy and count once.
    `kept` is a file for the reports of one person: each is saved there before it is sent and,
    whatever happens to this program, no more are made than the plan allows per person
    (`ReportJournal`).
    `authorities` is a file of certificates to trust instead of the system's. An `http://` address
    must be this machine's, unless `insecure`: on the way to another anyone can read the token, see
    who reports, and change the document that reports are made for.

    >>> import overhand as oh
    >>> from overhand.deploy.protocol.keys import KeyPair
    >>> plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), tree="paper")
    >>> public = Document(plan, KeyPair.generate().public_key)
    >>> class Service:
    ...     received = []
    ...
    ...     async def request(self, method, path, body=None):
    ...         if method == "GET":
    ...             return Answer(200, public.to_json().encode())
    ...         self.received.append(body)
    ...         return Answer(200, b'{"status": "counted"}')
    >>> client = AsyncClient("https://shuffle.example", digest=public.digest, transport=Service())
    >>> asyncio.run(client.report_many([1, 0, 1]))
    3
    >>> len({len(report) for report in Service.received})  # a 0 is as long as a 1
    1
    """

    _recommends = False

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        digest: str | None = None,
        trust_service: bool = False,
        kept: str | Path | None = None,
        authorities: Path | None = None,
        insecure: bool = False,
        random: Random | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or HttpTransport(
            url, token=token, authorities=authorities, insecure=insecure
        )
        self._digest = digest
        self._trust_service = trust_service
        self._kept = None if kept is None else ReportJournal(kept)
        self._random = secure_source(random)
        self._document: Document | None = None
        self._fetching = asyncio.Lock()

    async def document(self) -> Document:
        """The public document, fetched and checked once."""
        async with self._fetching:
            if self._document is None:
                self._document = await self._fetch()
        return self._document

    async def _fetch(self) -> Document:
        answer = await self._request("GET", "/v1/document")
        document = Document.from_bytes(answer.body, self._digest)
        is_pinned = self._digest is not None or self._trust_service
        if document.plan.noise_by == "services" and not is_pinned:
            raise InvalidValue(_DIGEST_MISSING)
        await asyncio.to_thread(document.check_guarantee)
        return document

    async def report(self, value: Any) -> None:
        """Report one value; returns when it is counted for good, or raises `NotCounted`.

        If the service says that it runs another plan or key now, the value is encoded anew for
        that, once; but never if the services make the noise. Users' noise comes with each report,
        the services' with each batch: a lying service that could have the same value sealed again
        and again would put it into as many batches, and epsilon would be that many times larger.
        """
        document = await self.document()
        rows = document.plan.values.rows([value])
        try:
            await self.send(*self._encode(document, rows))
        except Outdated as refusal:
            other = await self._other_than(document, refusal)
            await self.send(*self._encode(other, other.plan.values.rows([value])))

    async def _other_than(self, refused: Document, refusal: Outdated) -> Document:
        """The document for which a refused report is made anew.

        It must be another one: a service that refuses reports for the very document it gives out
        may have counted them, and a second report would count twice.
        """
        if refused.plan.noise_by == "services":
            raise NotCounted(f"{refusal}; {_NEVER_ANEW}", refusal.reports) from refusal
        try:
            document = await self.document()
        except NotCounted as error:
            raise NotCounted(str(error), refusal.reports) from error
        if document.digest == refused.digest:
            words = f"{refusal}, but its document is the one that the report was made for"
            raise NotCounted(words, refusal.reports) from refusal
        return document

    def _encode(self, document: Document, rows: Rows) -> list[bytes]:
        """The reports of these values, saved if `kept` is given."""
        if document.learning is not None and not self._recommends:
            raise InvalidValue(
                "the document is of a recommender: RecommenderClient reports what came of a choice"
            )
        if self._kept is None:
            return encode_reports(document, rows, self._random)
        encode = partial(encode_reports, document, rows, self._random)
        return self._kept.make(document, len(rows), encode)

    async def report_many(
        self,
        values: Iterable[Any],
        *,
        at_once: int = 16,
        advance: Callable[[int], object] | None = None,
    ) -> int:
        """Report many values, `at_once` requests at a time; returns how many were counted.

        All values are checked before the first is sent. When a report fails for good, no other is
        begun, those under way are finished, and `NotCounted` tells what became of them. `advance`
        is called whenever a report was counted. Reports that are `kept` are all one person's: if
        there are more values than the plan still allows, all of them are refused.
        """
        document = await self.document()
        rows = document.plan.values.rows(list(values))
        return await self.report_rows(rows, at_once=at_once, advance=advance)

    async def report_rows(
        self,
        rows: Rows,
        *,
        at_once: int = 16,
        advance: Callable[[int], object] | None = None,
    ) -> int:
        """The same for values that were already checked, by `rows` of the plan's values."""
        document = await self.document()
        # All at once if they are kept: they are few, and none is made if there are too many.
        step = _ENCODED_AT_ONCE if self._kept is None else max(1, len(rows))
        starts = range(0, len(rows), step)
        groups = (self._encode(document, rows[start : start + step]) for start in starts)
        return await self._send_all(groups, at_once, advance)

    async def resend(
        self, *, at_once: int = 16, advance: Callable[[int], object] | None = None
    ) -> int:
        """Send the reports `kept` for this document that are not known to be delivered.

        They are sent byte for byte. Returns how many were counted, or raises `NotCounted`.
        """
        if self._kept is None:
            raise InvalidValue("kept= is missing: the file of the reports to resend")
        reports = self._kept.find_undelivered(await self.document())
        return await self._send_all(([report] for report in reports), at_once, advance)

    async def _send_all(
        self,
        groups: Iterable[Sequence[bytes]],
        at_once: int,
        advance: Callable[[int], object] | None,
    ) -> int:
        """How many reports were counted, once all are answered; after a failure no group is begun.

        They are under way together, but never more than `at_once`.
        """
        free = asyncio.Semaphore(whole("at_once", at_once, least=1))
        tasks, failures = set[asyncio.Task[None]](), list[NotCounted]()
        delivered, counted = list[bytes](), 0

        async def deliver(body: bytes) -> None:
            nonlocal counted
            try:
                await self._deliver(body)
                counted += 1
                if self._kept is not None:
                    delivered.append(body)
                if advance is not None:
                    advance(1)
            except NotCounted as failure:
                failures.append(failure)
            finally:
                free.release()

        for group in groups:
            for body in group:
                await free.acquire()
                task = asyncio.create_task(deliver(body))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if failures:
                break
        try:
            await asyncio.gather(*tasks)
        finally:
            self._note_delivered(delivered)
        if failures:
            reports = [report for failure in failures for report in failure.reports]
            words = f"{counted} reports were counted, {len(reports)} were not: {failures[0]}"
            raise NotCounted(words, reports, counted)
        return counted

    async def send(self, body: bytes) -> None:
        """Send a report that is already encoded, until it is counted."""
        await self._deliver(body)
        self._note_delivered([body])

    def _note_delivered(self, reports: Sequence[bytes]) -> None:
        if self._kept is not None:
            self._kept.note_delivered(reports)

    async def _deliver(self, body: bytes) -> None:
        try:
            answer = await self._request("POST", "/v1/reports", body)
            if _field(answer, "status") != "counted":  # of a sign-in page, perhaps
                raise NotCounted("POST /v1/reports was answered, but not with `counted`")
        except NotCounted as error:
            if isinstance(error, Outdated):
                self._document = None  # the next report is made for what the service runs by then
            raise type(error)(str(error), [body]) from error

    async def _request(
        self, method: str, path: str, body: bytes | None = None, *, missing: bool = False
    ) -> Answer:
        """Try until an answer settles it, with growing waits; that there is nothing does if it may
        be `missing`.
        """
        wait, failure, is_certain = _FIRST_WAIT, "it was not tried", True
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(wait * jitter.uniform(0.5, 1.5))
            try:
                answer = await self._transport.request(method, path, body)
            except Untrusted as error:  # nothing was sent to it
                failure = str(error)
                break
            except Unreachable as error:
                failure, wait, is_certain = str(error), min(2 * wait, _LONGEST_WAIT), False
                continue
            if answer.status == HTTPStatus.OK:
                return answer
            if missing and answer.status == HTTPStatus.NOT_FOUND:
                return answer
            failure = f"{answer.status}: {_words(answer)}"
            if answer.status == HTTPStatus.CONFLICT and is_certain:
                raise Outdated(f"{method} {path} failed: {failure}")
            if answer.status not in _TRY_AGAIN:
                break
            is_certain = is_certain and answer.status == HTTPStatus.TOO_MANY_REQUESTS
            wait = min(max(2 * wait, answer.retry_after), _LONGEST_WAIT)
        raise NotCounted(f"{method} {path} failed: {failure}")

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class ClientOptions(TypedDict, total=False):
    """The arguments of `AsyncClient`."""

    token: str | None
    digest: str | None
    trust_service: bool
    kept: str | Path | None
    authorities: Path | None
    insecure: bool
    random: Random | None
    transport: Transport | None


class Client:
    """The same for programs that are not asynchronous: `Client(url).report(value)`.

    It takes the arguments of `AsyncClient`.

    >>> import overhand as oh
    >>> from overhand.deploy.protocol.keys import KeyPair
    >>> plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), tree="paper")
    >>> public = Document(plan, KeyPair.generate().public_key).to_json().encode()
    >>> class Service:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(200, public if method == "GET" else b'{"status": "counted"}')
    ...     async def close(self):
    ...         pass
    >>> with Client("https://shuffle.example", transport=Service()) as client:
    ...     client.report_many([1, 0, 1])
    3
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, **options)

    def document(self) -> Document:
        """The public document, fetched and checked once."""
        return self._run(self._client.document())

    def report(self, value: Any) -> None:
        """Report one value; returns when it is counted for good, or raises `NotCounted`."""
        self._run(self._client.report(value))

    def report_many(
        self,
        values: Iterable[Any],
        *,
        at_once: int = 16,
        advance: Callable[[int], object] | None = None,
    ) -> int:
        """Report many values; returns how many were counted."""
        return self._run(self._client.report_many(values, at_once=at_once, advance=advance))

    def resend(self, *, at_once: int = 16, advance: Callable[[int], object] | None = None) -> int:
        """Send kept reports that are not known to be delivered; returns how many were counted."""
        return self._run(self._client.resend(at_once=at_once, advance=advance))

    def send(self, body: bytes) -> None:
        """Send a report that is already encoded, until it is counted."""
        self._run(self._client.send(body))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Between calls nobody watches the connections, and a report that is lost in a closed one
        may or may not be counted: so first drop those that were closed in the meantime.
        """
        return self._runner.run(_after_a_look(work))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


async def _after_a_look(work: Coroutine[Any, Any, T]) -> T:
    for _ in range(_LOOKS):
        await asyncio.sleep(0)
    return await work


def _words(answer: Answer) -> str:
    """What the service says went wrong, as far as it is fit to be shown."""
    shown = "".join(islice(filter(str.isprintable, _field(answer, "error")), _MOST_SHOWN))
    return shown or responses.get(answer.status, "no reason")


def _field(answer: Answer, name: str) -> str:
    try:
        return str(json.loads(answer.body)[name])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
