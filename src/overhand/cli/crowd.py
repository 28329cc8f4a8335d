"""A crowd of simulated clients, in as many processes as there are cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from overhand.errors import OverhandError
from overhand.model import Counts, Floats, Rows
from overhand.processors import processors

Member = Callable[[Connection], Coroutine[Any, Any, None]]
"""What a process of clients does, with a pipe to the crowd.

It says None when it is ready, waits for a word, tells its news, and says None again.
"""

MAX_AGE = 0.1
"""Seconds for which a rule is used: a demonstration's people come much faster than others."""

_AT_ONCE = 64
_TOLD_EVERY = 0.1  # seconds
_GROUP = 16  # people who choose by the same rule
_GROUPS = 2  # at a time, in one process


class Crowd:
    """Processes of clients that have fetched and checked the document."""

    def __init__(self, members: Sequence[Member]) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for member in members:
            ours, theirs = context.Pipe()
            process = context.Process(target=_clients, args=(member, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            _told(pipe)

    def go(self, hear: Callable[[Any], object]) -> None:
        """Let all of them do what they came for; `hear` their news. Returns when all have."""
        for pipe in self._pipes:
            pipe.send("go")
        at_work = set(self._pipes)
        while at_work:
            ready = wait(at_work)
            for pipe in [pipe for pipe in at_work if pipe in ready]:
                news = _told(pipe)
                if news is None:
                    at_work.remove(pipe)
                else:
                    hear(news)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def reporting(url: str, digest: str, rows: Rows, rate: float | None) -> list[Member]:
    """Clients that hold one value each, and report it once; their news is how many are counted.

    They know the document's digest before, and take no other.
    """
    processes = max(1, min(processors(), len(rows)))
    each = None if rate is None else rate / processes
    parts = np.array_split(rows, processes)
    return [partial(_report, url, digest, part, each) for part in parts]


def visiting(
    url: str, digest: str, features: Floats, means: Floats, uniforms: Floats
) -> list[Member]:
    """People who come in this order, are offered arms of these features, and report once each.

    A reward is 1 if a person's uniform is below the mean of the arm that was chosen. The news is
    who came, and which arms they took.
    """
    processes = max(1, min(processors(), len(features)))
    everybody = np.arange(len(features))
    return [
        partial(_visit, url, digest, some, features[some], means[some], uniforms[some])
        for some in (everybody[first::processes] for first in range(processes))
    ]


def _told(pipe: Connection) -> Any:
    """A process's news; None at the beginning and at the end."""
    try:
        news = pipe.recv()
    except EOFError:
        raise OverhandError("a process of clients died") from None
    if isinstance(news, str):
        raise OverhandError(f"a client failed: {news}")
    return news


def _clients(member: Member, pipe: Connection) -> None:
    """One process of them; what went wrong they say in words."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(member(pipe))
        except OverhandError as error:
            pipe.send(str(error))


async def _report(url: str, digest: str, rows: Rows, rate: float | None, pipe: Connection) -> None:
    from overhand.service.client import AsyncClient

    async with AsyncClient(url, digest=digest) as client:
        await client.document()
        pipe.send(None)
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
        pipe.send(None)


class _News:
    """Reports every now and then how many were counted."""

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


async def _visit(
    url: str,
    digest: str,
    people: Counts,
    features: Floats,
    means: Floats,
    uniforms: Floats,
    pipe: Connection,
) -> None:
    """A few at a time, so that the rule they choose by is a new one."""
    from overhand.service.client import AsyncRecommenderClient

    starts = iter(range(0, len(people), _GROUP))

    async def serve(client: AsyncRecommenderClient) -> None:
        for start in starts:
            group = slice(start, start + _GROUP)
            arms = await client.choose_many(features[group])
            chosen = means[group][np.arange(len(arms)), arms]
            await client.report_many(uniforms[group] < chosen, at_once=_GROUP)
            pipe.send((people[group], arms))

    clients = [AsyncRecommenderClient(url, digest=digest, max_age=MAX_AGE) for _ in range(_GROUPS)]
    try:
        for client in clients:
            await client.document()
        pipe.send(None)
        pipe.recv()
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(serve(client))
        pipe.send(None)
    finally:
        for client in clients:
            await client.close()
