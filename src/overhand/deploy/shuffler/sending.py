"""Full batches go to the server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus

from overhand.deploy.http.application import pause
from overhand.deploy.http.telemetry import RecurringFault, log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer, Transport, Unreachable
from overhand.errors import OverhandError, ProtocolViolation, ServiceError, StoreUnavailable

_LONGEST_WAIT = 60.0
_TICKS_A_SCRUB = 10
_TICKS_A_CLAIM = 20
_MOST_BYTES_AT_ONCE = 1 << 23
_PUTS_AT_ONCE = 4


class NotTaken(ServiceError):
    """The server did not accept a release: it is sent again later."""


class Sender:
    """Sends every full batch until the server has it.

    It works in ticks with jitter, so that the time of a release does not reveal when the last user
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
        self._set_aside: set[Batch] = set()
        self._failures = 0
        self._trouble = RecurringFault("sending failed", "sending works again")
        self._stopping = asyncio.Event()
        self._unscrubbed = True  # a crash may have come between
        self._has_sent = self._has_to_wait = False
        self._ticks = self._ticks_waited = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop: what is not sent by then is sent after the next start."""
        self._stopping = stopping
        while not stopping.is_set():
            try:
                await self.send_all()
                self._failures = 0
                self._trouble.end()
            except OverhandError as error:
                self._note(error)
            longest = min(_LONGEST_WAIT, self._tick * 2 ** min(self._failures, 10))
            await pause(stopping, longest * (0.5 + secrets.randbelow(1 << 16) / (1 << 16)))
        if self._unscrubbed:  # what the server has is forgotten now, not after the next start
            try:
                await self._sweep()
            except OverhandError as error:
                self._note(error)
        await self._server.close()

    def _note(self, error: OverhandError) -> None:
        self._failures += 1
        self._metrics.send_failures.inc()
        # Of a store only the kind: its words may quote a statement.
        is_of_store = isinstance(error, StoreUnavailable)
        self._trouble.begin(type(error).__name__ if is_of_store else str(error))

    async def send_all(self) -> None:
        """Send all batches that are full, and forget those that the server has."""
        self._ticks, self._has_sent = self._ticks + 1, False
        try:
            await self._send_full()
        finally:  # whatever becomes of the rest
            await self._scrub()

    async def _send_full(self) -> None:
        """Lowest level first, unless another process is at it, and gets it done."""
        is_ours = await asyncio.to_thread(self._store.claim_sending)
        self._ticks_waited = 0 if is_ours else self._ticks_waited + 1
        if not is_ours and self._ticks_waited < _TICKS_A_CLAIM:
            await asyncio.to_thread(self._store.destroy_keys)
            return
        try:
            # All of them before the first is sent: their keys go, whatever the server says.
            for some in self._groups(await asyncio.to_thread(self._store.unfrozen)):
                await self._freeze(some)
            refused = None
            for some in self._groups(await asyncio.to_thread(self._store.full)):
                try:
                    await self._send(some)
                except NotTaken as error:  # the others may be taken
                    refused = error
            if refused is not None:
                raise refused
        finally:
            if is_ours:
                await asyncio.to_thread(self._store.end_sending)

    def _groups(self, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """Batches that are handled together: as many as memory may hold, or one that is larger."""
        group: list[Batch] = []
        total = 0
        for batch in batches:
            if batch in self._set_aside:
                continue
            size = self._formats.level(batch.level).batch_bytes()
            if group and total + size > _MOST_BYTES_AT_ONCE:
                yield group
                group, total = [], 0
            group.append(batch)
            total += size
        if group:
            yield group

    async def _scrub(self) -> None:
        """Overwriting files is expensive: under load it is done every few ticks, else at once.

        Processes that send nothing do it too: batches that others sent have keys here as well.
        """
        is_idle = self._unscrubbed and not self._has_sent and not self._has_to_wait
        if is_idle or self._ticks % _TICKS_A_SCRUB == 0:
            await self._sweep()

    async def _sweep(self) -> None:
        """Somebody's lock, of a backup say, puts it off: that keeps nothing from being sent."""
        try:
            await asyncio.to_thread(self._store.scrub)
            self._unscrubbed = self._has_to_wait = False
        except StoreUnavailable:
            if not self._has_to_wait:
                log("what was sent cannot be overwritten yet", level=logging.WARNING)
            self._unscrubbed = self._has_to_wait = True

    async def _send(self, batches: Sequence[Batch]) -> None:
        """Freeze, send, acknowledge: whatever of it fails is done again at another tick."""
        releases = await self._freeze(batches)
        free = asyncio.Semaphore(_PUTS_AT_ONCE)
        answers = await asyncio.gather(
            *(self._put(release, free) for release in releases), return_exceptions=True
        )
        taken = []
        for release, answer in zip(releases, answers, strict=True):
            if isinstance(answer, Answer) and answer.status == HTTPStatus.CONFLICT:
                self._put_aside(release.batch, "the server has another release of a batch")
            elif isinstance(answer, Answer) and answer.status == HTTPStatus.OK:
                taken.append(release)
        if taken:
            self._unscrubbed = self._has_sent = True
            digests = {release.batch: release.digest for release in taken}
            await asyncio.to_thread(self._store.acknowledge_all, digests)
        for release in taken:
            level, number = release.batch
            self._metrics.releases.labels(level).inc()
            log("release sent", batch_level=level, number=number)
        for answer in answers:  # raise what kept a release from being taken, if anything did
            if isinstance(answer, BaseException):
                raise answer
            if answer.status == HTTPStatus.UNAUTHORIZED:
                raise NotTaken(
                    "the server does not know this service's token: its token.sha256 and the token "
                    "here are not from the same `overhand prepare`"
                )
            if answer.status not in (HTTPStatus.OK, HTTPStatus.CONFLICT):
                raise NotTaken(f"the server answered {answer.status} to a release")

    async def _freeze(self, batches: Sequence[Batch]) -> list[Release]:
        """The releases of batches, without those that are damaged."""
        try:
            return await asyncio.to_thread(self._store.freeze_all, batches)
        except ProtocolViolation:
            if len(batches) == 1:
                self._put_aside(batches[0], "a batch is damaged")
                return []
        return [release for batch in batches for release in await self._freeze([batch])]

    async def _put(self, release: Release, free: asyncio.Semaphore) -> Answer:
        if release.repeats:
            log("messages were copied", level=logging.WARNING, messages=release.repeats)
        level, number = release.batch
        body = self._formats.pack_release(release)
        async with free:
            started = time.perf_counter()
            answer = await self._request(f"/v1/releases/{level}/{number}", body)
            self._metrics.send_seconds.observe(time.perf_counter() - started)
            return answer

    async def _request(self, path: str, body: bytes) -> Answer:
        """The server's answer, unless it is time to stop: a server may take long to say nothing."""
        put = asyncio.create_task(self._server.request("PUT", path, body))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({put, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not put.done():
            put.cancel()
            raise Unreachable("told to stop before the server answered")
        return put.result()

    def _put_aside(self, batch: Batch, why: str) -> None:
        """No retry will help: the others go on without it."""
        self._set_aside.add(batch)
        self._metrics.set_aside.labels(batch.level).inc()
        log(why, level=logging.ERROR, batch_level=batch.level, number=batch.number)
