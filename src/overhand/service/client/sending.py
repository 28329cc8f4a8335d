"""Many reports under way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from overhand.service.client.failures import NotCounted


class Sending:
    """Reports under way, never more than `at_once`, and what became of them.

    `noting` says whether to remember which were delivered, and not only how many.
    """

    def __init__(
        self,
        deliver: Callable[[bytes], Awaitable[None]],
        at_once: int,
        advance: Callable[[int], object] | None,
        *,
        noting: bool,
    ) -> None:
        self._deliver = deliver
        self._advance = advance
        self._noting = noting
        self._free = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._counted = 0
        self.failures: list[NotCounted] = []
        self.delivered: list[bytes] = []

    async def begin(self, body: bytes) -> None:
        """Send a report as soon as there is room for it."""
        await self._free.acquire()
        task = asyncio.create_task(self._send(body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, body: bytes) -> None:
        try:
            await self._deliver(body)
            self._counted += 1
            if self._noting:
                self.delivered.append(body)
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
