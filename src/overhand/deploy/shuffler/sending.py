"""Full batches go to the server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import takewhile
from typing import TypeVar

from overhand.deploy.http.application import pause
from overhand.deploy.http.telemetry import RecurringFault, log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, Offer, Release
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.store import Outgoing, Store
from overhand.deploy.transport import Answer, Transport, Unreachable
from overhand.errors import (
    InvalidValue,
    OverhandError,
    ProtocolViolation,
    ServiceError,
    StoreUnavailable,
)

_LONGEST_WAIT = 60.0
_TICKS_A_SCRUB = 10
_TICKS_A_CLAIM = 20
_MOST_BYTES_AT_ONCE = 1 << 23
_MOST_AT_ONCE = 256
_PUTS_AT_ONCE = 4
T = TypeVar("T")


class NotTaken(ServiceError):
    """The server did not accept what was sent: it is sent again later."""


class Sender:
    """Sends every full batch until the server has it.

    Batches that are offered first are frozen when they are answered, or, in one step, after
    `answer_within` seconds: a server that is away does not keep single reports readable. It works
    in ticks with jitter, so that the time of a release does not reveal when the last user of the
    batch came.
    """

    def __init__(
        self,
        store: Store,
        document: Document,
        server: Transport,
        metrics: ShufflerMetrics,
        *,
        tick: float = 1.0,
        answer_within: float = 3600.0,
    ) -> None:
        self._store = store
        self._formats = document.formats
        self._is_offering = document.formats.levels[0].is_offered
        self._server = server
        self._metrics = metrics
        self._tick = tick
        self._answer_within = answer_within
        self._set_aside: set[Batch] = set()
        self._failures = 0
        self._trouble = RecurringFault("sending failed", "sending works again")
        self._stopping, self._freezing = asyncio.Event(), asyncio.Lock()
        self._unscrubbed = True  # a crash may have come between
        self._has_sent = self._has_to_wait = False
        self._ticks = self._ticks_waited = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop: what is not sent by then is sent after the next start."""
        self._stopping = stopping
        in_time = asyncio.create_task(self._freeze_in_time())
        while not stopping.is_set():
            try:
                await self.send_all()
                self._failures = 0
                self._trouble.end()
            except OverhandError as error:
                self._note(error)
            longest = min(_LONGEST_WAIT, self._tick * 2 ** min(self._failures, 10))
            await pause(stopping, longest * (0.5 + secrets.randbelow(1 << 16) / (1 << 16)))
        await in_time
        if self._unscrubbed:  # what the server has is forgotten now, not after the next start
            try:
                await self._sweep()
            except OverhandError as error:
                self._note(error)
        await self._server.close()

    async def _freeze_in_time(self) -> None:
        """However long requests take, and however long the next tick waits after a failure."""
        while self._is_offering and not self._stopping.is_set():
            try:
                if self._failures:
                    await self._arrange_full()
                await self._freeze_due()
            except OverhandError as error:
                self._note(error)
            await pause(self._stopping, self._tick)

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
            await self._freeze_full()
            await _try_all(step() for step in (self._offer_full, self._send_frozen))
        finally:
            if is_ours:
                await asyncio.to_thread(self._store.end_sending)

    async def _freeze_full(self) -> None:
        """Batches that need no answer, or had too long to wait for one; the rest can be offered."""
        if not self._is_offering:
            for some in self._groups(await asyncio.to_thread(self._store.unfrozen)):
                await self._freeze(some)
            return
        await self._arrange_full()
        await self._freeze_due()

    async def _arrange_full(self) -> None:
        """From now on it counts how long what is full waits for an answer."""
        for some in self._groups(await asyncio.to_thread(self._store.unoffered)):
            await asyncio.to_thread(self._store.offer_all, some)

    async def _freeze_due(self) -> None:
        """What was offered so long ago that no answer is waited for any more."""
        async with self._freezing:
            due = await asyncio.to_thread(self._store.unanswered, self._answer_within)
            self._take_back(due)
            for some in self._groups(due):
                words = "batches are frozen without an answer"
                log(words, level=logging.WARNING, batches=len(some))
                await self._freeze(some)

    async def _offer_full(self) -> None:
        """In their order, as far as the server answers: each group is frozen before the next."""
        if not self._is_offering:
            return
        unfrozen = await asyncio.to_thread(self._store.unfrozen)
        for some in self._groups(takewhile(lambda one: one not in self._set_aside, unfrozen)):
            offers = await asyncio.to_thread(self._store.offer_all, some)
            answers = await self._put_all(self._offer, offers)
            given = {}
            for offer, answer in zip(offers, answers, strict=True):
                if not isinstance(answer, BaseException) and answer.status == HTTPStatus.OK:
                    given[offer.batch] = answer.body
                else:
                    self._look_at(offer.batch, answer)
            await asyncio.to_thread(self._store.answer_all, given)
            await self._send(list(given))
            _raise_first(answers)
            if len(given) < len(some):
                break

    async def _offer(self, offer: Offer) -> Answer:
        """The answer to an offer, if it is one."""
        packed = self._formats.pack(offer)
        answer = await self._put("offers", offer.batch, packed)
        if answer.status == HTTPStatus.OK:
            try:
                self._formats.unpack_answer(packed, answer.body)
            except InvalidValue as error:
                raise NotTaken(
                    f"the server's answer to an offer cannot be read: {error}"
                ) from error
        return answer

    async def _send_frozen(self) -> None:
        frozen = await asyncio.to_thread(self._store.frozen)
        await _try_all(self._send(some) for some in self._groups(frozen))

    def _groups(self, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """Batches that are handled together: as many as memory may hold, or one that is larger."""
        group: list[Batch] = []
        total = 0
        for batch in batches:
            if batch in self._set_aside:
                continue
            level = self._formats.level(batch.level)
            size = max(level.batch_bytes(), level.size * level.part_bytes)
            is_full = total + size > _MOST_BYTES_AT_ONCE or len(group) == _MOST_AT_ONCE
            if group and is_full:
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
        """Send, acknowledge: whatever of it fails is done again at another tick."""
        found = await asyncio.to_thread(self._store.outgoing, batches)
        answers = await self._put_all(self._put_outgoing, found)
        taken = []
        for one, answer in zip(found, answers, strict=True):
            if isinstance(answer, Answer) and answer.status == HTTPStatus.OK:
                taken.append(one)
            else:
                self._look_at(one.batch, answer)
        if taken:
            self._unscrubbed = self._has_sent = True
            digests = {one.batch: one.digest for one in taken}
            await asyncio.to_thread(self._store.acknowledge_all, digests)
        for one in taken:
            level, number = one.batch
            self._metrics.releases.labels(level).inc()
            log("release sent", batch_level=level, number=number)
        _raise_first(answers)

    def _look_at(self, batch: Batch, answer: Answer | BaseException) -> None:
        if isinstance(answer, Answer) and answer.status == HTTPStatus.CONFLICT:
            self._put_aside(batch, "the server has something else of a batch")

    async def _freeze(self, batches: Sequence[Batch]) -> None:
        """Batches one by one, if some are damaged: these are put aside."""
        try:
            await asyncio.to_thread(self._store.freeze_all, batches)
        except ProtocolViolation:
            if len(batches) == 1:
                self._put_aside(batches[0], "a batch is damaged")
                return
            for batch in batches:
                await self._freeze([batch])

    async def _put_all(
        self, put: Callable[[T], Awaitable[Answer]], what: Sequence[T]
    ) -> list[Answer | BaseException]:
        """The answers to requests, a few of which are under way at a time.

        A server that is silent is left alone until the next tick: to wait for each of many requests
        would keep batches that are due from being frozen.
        """
        free, unanswered = asyncio.Semaphore(_PUTS_AT_ONCE), 0

        async def one(each: T) -> Answer:
            nonlocal unanswered
            async with free:
                if unanswered >= _PUTS_AT_ONCE:
                    raise Unreachable("the server does not answer")
                try:
                    return await put(each)
                except Unreachable:
                    unanswered += 1
                    raise

        return await asyncio.gather(*map(one, what), return_exceptions=True)

    async def _put_outgoing(self, outgoing: Outgoing) -> Answer:
        if not isinstance(outgoing, Release):
            return await self._put("sums", outgoing.batch, self._formats.pack(outgoing))
        if outgoing.repeats:
            log("messages were copied", level=logging.WARNING, messages=outgoing.repeats)
        return await self._put("releases", outgoing.batch, self._formats.pack(outgoing))

    async def _put(self, what: str, batch: Batch, body: bytes) -> Answer:
        """The server's answer, unless it is time to stop: a server may take long to say nothing."""
        started, (level, number) = time.perf_counter(), batch
        put = asyncio.create_task(self._server.request("PUT", f"/v1/{what}/{level}/{number}", body))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({put, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not put.done():
            put.cancel()
            raise Unreachable("told to stop before the server answered")
        answer = put.result()
        self._metrics.send_seconds.observe(time.perf_counter() - started)
        return answer

    def _take_back(self, batches: Iterable[Batch]) -> None:
        """What was put aside is to be tried in another way."""
        for batch in self._set_aside.intersection(batches):
            self._set_aside.discard(batch)
            self._metrics.set_aside.labels(batch.level).dec()

    def _put_aside(self, batch: Batch, why: str) -> None:
        """No retry will help: the others go on without it."""
        self._set_aside.add(batch)
        self._metrics.set_aside.labels(batch.level).inc()
        log(why, level=logging.ERROR, batch_level=batch.level, number=batch.number)


async def _try_all(steps: Iterable[Awaitable[None]]) -> None:
    """If the server does not take what one sends, it may take the others': raise in the end."""
    refused = None
    for step in steps:
        try:
            await step
        except NotTaken as error:
            refused = error
    if refused is not None:
        raise refused


def _raise_first(answers: Iterable[Answer | BaseException]) -> None:
    """What kept something from being taken, if anything did."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise NotTaken(
                "the server does not know this service's token: its token.sha256 and the token "
                "here are not from the same `overhand prepare`"
            )
        if answer.status not in (HTTPStatus.OK, HTTPStatus.CONFLICT):
            raise NotTaken(f"the server answered {answer.status} to what was sent")
