"""Full batches to the server: freeze, send, acknowledge, scrub, however often it takes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from http import HTTPStatus

from overhand.errors import OverhandError, ProtocolViolation, StoreUnavailable
from overhand.service.document import Document
from overhand.service.logs import log
from overhand.service.shuffler.metrics import ShufflerMetrics
from overhand.service.stores import BatchName, Scrubbed, Store
from overhand.service.transport import Answer, Transport, Unreachable

_LONGEST_WAIT = 60.0


class NotTaken(OverhandError):
    """The server did not take a release: it is sent again later."""


class Sender:
    """Sends every full batch until the server has it.

    It works in ticks with jitter, so that the time of a release does not tell when the last user
    of the batch came.
    """

    def __init__(
        self,
        store: Store,
        document: Document,
        server: Transport,
        metrics: ShufflerMetrics,
        *,
        tick: float = 1.0,
    ) -> None:
        self._store = store
        self._formats = document.formats
        self._server = server
        self._metrics = metrics
        self._tick = tick
        self._set_aside: set[BatchName] = set()
        self._failures = 0
        self._stopping = asyncio.Event()
        self._is_to_be_scrubbed = True  # a crash may have come between

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop: what is not sent by then is sent after the next start."""
        self._stopping = stopping
        while not stopping.is_set():
            try:
                await self.send_all()
                self._failures = 0
            except (Unreachable, NotTaken, StoreUnavailable) as error:
                self._failures += 1
                self._metrics.send_failures.inc()
                log("sending failed", level=logging.WARNING, error=_reason(error))
            await self._wait(stopping)
        await self._server.close()

    async def _wait(self, stopping: asyncio.Event) -> None:
        longest = min(_LONGEST_WAIT, self._tick * 2 ** min(self._failures, 10))
        seconds = longest * (0.5 + secrets.randbelow(1 << 16) / (1 << 16))
        try:
            await asyncio.wait_for(stopping.wait(), seconds)
        except TimeoutError:
            return

    async def send_all(self) -> None:
        """Send all batches that are full, lowest level first."""
        try:
            for name in await asyncio.to_thread(self._store.full):
                if name not in self._set_aside:
                    await self._send_once(name)
        finally:  # what the server has is not kept, whatever becomes of the rest
            if self._is_to_be_scrubbed:
                await asyncio.to_thread(self._store.scrub)
                self._is_to_be_scrubbed = False

    async def _send_once(self, name: BatchName) -> None:
        """Send a batch, unless another process is at it."""
        if await asyncio.to_thread(self._store.claim, name):
            try:
                await self._send(name)
            finally:
                await asyncio.to_thread(self._store.unclaim, name)

    async def _send(self, name: BatchName) -> None:
        try:
            release = await asyncio.to_thread(self._store.freeze, name)
        except Scrubbed:  # by another process, since we looked
            return
        except ProtocolViolation:
            self._put_aside(name, "a batch is damaged")
            return
        if release.repeats:
            log("messages were copied", level=logging.WARNING, messages=release.repeats)
        body = self._formats.pack_release(name.level, name.number, release.own, release.body)
        path = f"/v1/releases/{name.level}/{name.number}"
        answer = await self._put(path, body)
        if answer.status == HTTPStatus.CONFLICT:
            self._put_aside(name, "the server has another release of a batch")
            return
        if answer.status != HTTPStatus.OK:
            raise NotTaken(f"the server answered {answer.status} to a release")
        await asyncio.to_thread(self._store.acknowledge, name, release.digest)
        self._is_to_be_scrubbed = True
        self._metrics.releases.labels(name.level).inc()
        log("release sent", batch_level=name.level, number=name.number)

    async def _put(self, path: str, body: bytes) -> Answer:
        """The server's answer, unless it is time to stop: a server may take long to say nothing."""
        put = asyncio.create_task(self._server.request("PUT", path, body))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({put, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not put.done():
            put.cancel()
            raise Unreachable("told to stop before the server answered")
        return put.result()

    def _put_aside(self, name: BatchName, why: str) -> None:
        """Nothing that a program can do will help: the others go on without it."""
        self._set_aside.add(name)
        log(why, level=logging.ERROR, batch_level=name.level, number=name.number)


def _reason(error: OverhandError) -> str:
    """What went wrong, of a store only the kind: its words may quote a statement."""
    return type(error).__name__ if isinstance(error, StoreUnavailable) else str(error)
