"""A crowd of simulated clients, in as many processes as there are cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np

from overhand.errors import OverhandError
from overhand.model import Rows
from overhand.processors import processors

_AT_ONCE = 64
_TOLD_EVERY = 0.1  # seconds


class Crowd:
    """Clients that hold one value each, and have fetched and checked the document.

    They know its digest before, and take no other.
    """

    def __init__(self, url: str, digest: str, rows: Rows, rate: float | None) -> None:
        processes = max(1, min(processors(), len(rows)))
        each = None if rate is None else rate / processes
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for part in np.array_split(rows, processes):
            ours, theirs = context.Pipe()
            told = (url, digest, part, each, theirs)
            process = context.Process(target=_clients, args=told, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            _told(pipe)

    def report(self, advance: Callable[[int], object]) -> None:
        """Let all of them report, once each; returns when all are counted."""
        for pipe in self._pipes:
            pipe.send("go")
        reporting = set(self._pipes)
        while reporting:
            ready = wait(reporting)
            for pipe in [pipe for pipe in reporting if pipe in ready]:
                counted = _told(pipe)
                advance(counted)
                if counted == 0:
                    reporting.remove(pipe)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


@contextmanager
def gathered(url: str, digest: str, rows: Rows, rate: float | None) -> Iterator[Crowd]:
    """A crowd that is ready to report to the shuffling service at `url`."""
    crowd = Crowd(url, digest, rows, rate)
    try:
        yield crowd
    finally:
        crowd.close()


def _told(pipe: Connection) -> int:
    """How many more were counted; 0 at the beginning and at the end."""
    try:
        news = pipe.recv()
    except EOFError:
        raise OverhandError("a process of clients died") from None
    if isinstance(news, str):
        raise OverhandError(f"a client failed: {news}")
    return int(news)


def _clients(url: str, digest: str, rows: Rows, rate: float | None, pipe: Connection) -> None:
    """One process of them; what they cannot say in a number they say in words."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_report(url, digest, rows, rate, pipe))
        except OverhandError as error:
            pipe.send(str(error))


async def _report(url: str, digest: str, rows: Rows, rate: float | None, pipe: Connection) -> None:
    from overhand.service.client import AsyncClient

    async with AsyncClient(url, digest=digest) as client:
        await client.document()
        pipe.send(0)
        pipe.recv()
        news = _News(pipe)
        started = time.monotonic()
        step = len(rows) if rate is None else max(1, round(rate / 4))
        for start in range(0, len(rows), step):
            due = started if rate is None else started + start / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            some = rows[start : start + step]
            await client.report_rows(some, at_once=_AT_ONCE, advance=news.add)
        news.tell()
        pipe.send(0)


class _News:
    """Tells how many were counted, now and then."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._counted = 0
        self._told = time.monotonic()

    def add(self, counted: int) -> None:
        self._counted += counted
        if time.monotonic() - self._told >= _TOLD_EVERY:
            self.tell()

    def tell(self) -> None:
        if self._counted:
            self._pipe.send(self._counted)
        self._counted, self._told = 0, time.monotonic()
