"""Reports a value once: encoded here, sealed for the server, sent to the shuffling service."""

from __future__ import annotations

import asyncio
import random as jitter
from collections.abc import Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Any

import httpx

from overhand.errors import InvalidValue, OverhandError
from overhand.randomness import Random, secure_random
from overhand.service.document import Document
from overhand.service.reports import encode_report

_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 30.0
_TRY_AGAIN = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


class NotCounted(OverhandError):
    """The report was not counted, or it is not known that it was."""


class AsyncClient:
    """Talks to one shuffling service.

    The document is fetched once, from the shuffling service and never from the server, and its
    guarantee is recomputed before anything is reported. Give its `digest` if you know it: then no
    other plan or key is accepted. A report is encoded once and resent byte for byte, so retries
    cost no privacy and count once.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        digest: str | None = None,
        random: Random | None = None,
        verify: str | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=30.0, verify=verify, transport=transport
        )
        self._digest = digest
        self._random = random or secure_random()
        self._document: Document | None = None
        self._fetching = asyncio.Lock()

    async def document(self) -> Document:
        """The public document, fetched and checked once."""
        async with self._fetching:
            if self._document is None:
                answer = await self._send("GET", "/v1/document")
                document = Document.from_json(answer.text)
                if self._digest is not None and document.digest != self._digest:
                    raise InvalidValue(
                        f"the document has digest {document.digest[:12]}, not {self._digest[:12]}"
                    )
                await asyncio.to_thread(document.check_guarantee)
                self._document = document
        return self._document

    async def report(self, value: Any) -> None:
        """Report one value; returns when it is counted for good, or raises `NotCounted`."""
        document = await self.document()
        await self.send(encode_report(document, value, self._random))

    async def report_many(self, values: Iterable[Any], *, at_once: int = 16) -> int:
        """Report many values, with so many requests under way; returns how many were counted."""
        document = await self.document()
        free, counted = asyncio.Semaphore(at_once), 0
        async with asyncio.TaskGroup() as group:
            for value in values:
                await free.acquire()
                body = encode_report(document, value, self._random)

                async def one(body: bytes = body) -> None:
                    try:
                        await self.send(body)
                    finally:
                        free.release()

                group.create_task(one())
                counted += 1
        return counted

    async def send(self, body: bytes) -> None:
        """Send a report that is encoded already, until it is counted."""
        await self._send("POST", "/v1/reports", body)

    async def _send(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Try until there is an answer that settles it, with waits that grow."""
        wait, failure = _FIRST_WAIT, "it was not tried"
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(wait * jitter.uniform(0.5, 1.5))
                wait = min(2 * wait, _LONGEST_WAIT)
            try:
                answer = await self._http.request(method, path, content=body)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__} at {self._http.base_url}"
                continue
            if answer.status_code == HTTPStatus.OK:
                return answer
            failure = f"{answer.status_code}: {_words(answer)}"
            if answer.status_code not in _TRY_AGAIN:
                break
        raise NotCounted(f"{method} {path} failed: {failure}")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


class Client:
    """The same for programs that are not asynchronous: `Client(url).report(value)`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_made(url, options))

    def report(self, value: Any) -> None:
        """Report one value; returns when it is counted for good, or raises `NotCounted`."""
        self._runner.run(self._client.report(value))

    def report_many(self, values: Iterable[Any], *, at_once: int = 16) -> int:
        """Report many values; returns how many were counted."""
        return self._runner.run(self._client.report_many(values, at_once=at_once))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


async def _made(url: str, options: dict[str, Any]) -> AsyncClient:
    return AsyncClient(url, **options)


def _words(answer: httpx.Response) -> str:
    """What the service says went wrong."""
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
