"""Reports a value once: encoded here, sealed for the server, sent to the shuffling service."""

from __future__ import annotations

import asyncio
import json
import random as jitter
from collections.abc import Callable, Collection, Coroutine, Iterable
from http import HTTPStatus
from http.client import responses
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from overhand.errors import ServiceError, whole
from overhand.model import Rows
from overhand.randomness import Random, secured
from overhand.service.protocol import Document, encode_report, encode_reports
from overhand.service.web import Answer, HttpTransport, Transport, Unreachable, Untrusted

T = TypeVar("T")

_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 30.0
_ENCODED_AT_ONCE = 16
_LOOKS = 4  # turns of the loop: a closed line is seen in one, let go of in the next
_MOST_SHOWN = 200
_TRY_AGAIN = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


class NotCounted(ServiceError):
    """Reports that were not counted, or of which it is not known.

    `reports` are their bytes: to try once more, `send` those again, as often as you like. To
    report the value again instead would cost privacy again, and might count twice. `counted`
    others were counted, and of what came after nothing was encoded.

    >>> from overhand.service.web import Answer
    >>> class Closed:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(410, b'{"error": "all places are taken"}')
    >>> client = AsyncClient("https://shuffle.example", transport=Closed())
    >>> try:
    ...     asyncio.run(client.send(b"an encoded report"))
    ... except NotCounted as error:
    ...     print(error, error.reports)
    POST /v1/reports failed: 410: all places are taken (b'an encoded report',)
    """

    def __init__(self, words: str, reports: Collection[bytes] = (), counted: int = 0) -> None:
        super().__init__(words)
        self.reports = tuple(reports)
        self.counted = counted


class Outdated(NotCounted):
    """The service runs another plan or key now, and certainly did not count this report.

    >>> from overhand.service.web import Answer
    >>> class Renewed:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(409, b'{"error": "the document is another"}')
    >>> client = AsyncClient("https://shuffle.example", transport=Renewed())
    >>> asyncio.run(client.send(b"a report for the old key"))
    Traceback (most recent call last):
    overhand.service.client.client.Outdated: POST /v1/reports failed: 409: the document is another
    """


class AsyncClient:
    """Talks to one shuffling service.

    The document is fetched once, from the shuffling service and never from the server, and its
    guarantee is recomputed before anything is reported. Give its `digest` if you know it: then no
    other plan or key is accepted. A report is encoded once and resent byte for byte, so retries
    cost no privacy and count once. `authorities` is a file of certificates to trust instead of
    the system's.

    >>> import overhand as oh
    >>> from overhand.service.protocol import KeyPair
    >>> plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), tree="paper")
    >>> public = Document(plan, KeyPair.generate().public_key)
    >>> class Service:
    ...     received = []
    ...
    ...     async def request(self, method, path, body=None):
    ...         if method == "POST":
    ...             self.received.append(body)
    ...         return Answer(200, public.to_json().encode())
    >>> client = AsyncClient("https://shuffle.example", digest=public.digest, transport=Service())
    >>> asyncio.run(client.report_many([1, 0, 1]))
    3
    >>> len({len(report) for report in Service.received})  # a 0 is as long as a 1
    1
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        digest: str | None = None,
        authorities: Path | None = None,
        random: Random | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or HttpTransport(url, token=token, authorities=authorities)
        self._digest = digest
        self._random = secured(random)
        self._document: Document | None = None
        self._fetching = asyncio.Lock()

    async def document(self) -> Document:
        """The public document, fetched and checked once."""
        async with self._fetching:
            if self._document is None:
                self._document = await self._fetched()
        return self._document

    async def _fetched(self) -> Document:
        answer = await self._request("GET", "/v1/document")
        document = Document.from_bytes(answer.body, self._digest)
        await asyncio.to_thread(document.check_guarantee)
        return document

    async def report(self, value: Any) -> None:
        """Report one value; returns when it is counted for good, or raises `NotCounted`."""
        document = await self.document()
        try:
            await self.send(encode_report(document, value, self._random))
        except Outdated as refusal:
            other = await self._other_than(document, refusal)
            await self.send(encode_report(other, value, self._random))

    async def _other_than(self, refused: Document, refusal: Outdated) -> Document:
        """The document that a refused report is made anew for.

        There must be another one: who refuses reports for the document that it gives out may well
        have counted them, and a second one would count twice.
        """
        try:
            document = await self.document()
        except NotCounted as error:
            raise NotCounted(str(error), refusal.reports) from error
        if document.digest == refused.digest:
            words = f"{refusal}, but its document is the one that the report was made for"
            raise NotCounted(words, refusal.reports) from refusal
        return document

    async def report_many(
        self,
        values: Iterable[Any],
        *,
        at_once: int = 16,
        advance: Callable[[int], object] | None = None,
    ) -> int:
        """Report many values, with so many requests under way; returns how many were counted.

        All values are checked before the first is sent. When a report fails for good no other is
        begun, those under way are finished, and `NotCounted` tells what became of them. `advance`
        is told whenever a report was counted.
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
        """The same for values that were checked already: what `rows` of the plan's values gives."""
        document = await self.document()
        sending = _Sending(self, whole("at_once", at_once, least=1), advance)
        for start in range(0, len(rows), _ENCODED_AT_ONCE):
            some = rows[start : start + _ENCODED_AT_ONCE]
            for body in encode_reports(document, some, self._random):
                await sending.begin(body)
            if sending.failures:
                break
        return await sending.finish()

    async def send(self, body: bytes) -> None:
        """Send a report that is encoded already, until it is counted."""
        try:
            await self._request("POST", "/v1/reports", body)
        except NotCounted as error:
            if isinstance(error, Outdated):
                self._document = None  # the next report is made for what the service runs then
            raise type(error)(str(error), [body]) from error

    async def _request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Try until there is an answer that settles it, with waits that grow."""
        wait, failure, is_certain = _FIRST_WAIT, "it was not tried", True
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(wait * jitter.uniform(0.5, 1.5))
            try:
                answer = await self._transport.request(method, path, body)
            except Untrusted as error:  # nothing was said to it
                failure = str(error)
                break
            except Unreachable as error:
                failure, wait, is_certain = str(error), min(2 * wait, _LONGEST_WAIT), False
                continue
            if answer.status == HTTPStatus.OK:
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

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class _Sending:
    """Reports under way, never more than `at_once`, and what became of them."""

    def __init__(
        self, client: AsyncClient, at_once: int, advance: Callable[[int], object] | None
    ) -> None:
        self._client = client
        self._advance = advance
        self._free = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._counted = 0
        self.failures: list[NotCounted] = []

    async def begin(self, body: bytes) -> None:
        """Send a report as soon as there is room for it."""
        await self._free.acquire()
        task = asyncio.create_task(self._send(body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, body: bytes) -> None:
        try:
            await self._client.send(body)
            self._counted += 1
            if self._advance is not None:
                self._advance(1)
        except NotCounted as failure:
            self.failures.append(failure)
        finally:
            self._free.release()

    async def finish(self) -> int:
        """How many were counted, once all are answered."""
        await asyncio.gather(*self._tasks)
        if self.failures:
            reports = [report for failure in self.failures for report in failure.reports]
            raise NotCounted(
                f"{self._counted} reports were counted, {len(reports)} were not: "
                f"{self.failures[0]}",
                reports,
                self._counted,
            )
        return self._counted


class _Options(TypedDict, total=False):
    """What `AsyncClient` is told."""

    token: str | None
    digest: str | None
    authorities: Path | None
    random: Random | None
    transport: Transport | None


class Client:
    """The same for programs that are not asynchronous: `Client(url).report(value)`.

    It takes the arguments of `AsyncClient`.

    >>> import overhand as oh
    >>> from overhand.service.protocol import KeyPair
    >>> plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), tree="paper")
    >>> public = Document(plan, KeyPair.generate().public_key).to_json().encode()
    >>> class Service:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(200, public)
    ...     async def close(self):
    ...         pass
    >>> with Client("https://shuffle.example", transport=Service()) as client:
    ...     client.report_many([1, 0, 1])
    3
    """

    def __init__(self, url: str, **options: Unpack[_Options]) -> None:
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

    def send(self, body: bytes) -> None:
        """Send a report that is encoded already, until it is counted."""
        self._run(self._client.send(body))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Nobody looks at connections between calls, and one into which a report is lost leaves
        open whether it was counted: so look first which of them were closed meanwhile.
        """
        return self._runner.run(_after_a_look(work))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


async def _after_a_look(work: Coroutine[Any, Any, T]) -> T:
    for _ in range(_LOOKS):
        await asyncio.sleep(0)
    return await work


def _words(answer: Answer) -> str:
    """What the service says went wrong: as much of it as is fit to be shown."""
    try:
        said = str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        said = ""
    shown = "".join(islice(filter(str.isprintable, said), _MOST_SHOWN))
    return shown or responses.get(answer.status, "no reason")
