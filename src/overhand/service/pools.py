"""Separate processes for work that holds the interpreter's lock: sealing and opening."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from overhand import errors

Result = TypeVar("Result")

CHUNK = 512
"""Messages that a worker has at a time: some 30 ms, so that handing them over costs little."""
CHUNKS_AHEAD = 4
"""Of each worker: the results of a slow reader wait, the workers do not."""

_TRIES = 3


class WorkersLost(errors.ServiceError):
    """The same messages crashed their worker again and again."""


@dataclass
class _Task(Generic[Result]):
    """A chunk on its way, and who has it."""

    level: int
    chunk: list[bytes]
    executor: ProcessPoolExecutor
    future: Future[list[Result]]


class WorkerPool(Generic[Result]):
    """Does the same to all messages of a level, a chunk at a time, in processes of its own.

    Workers are spawned when they are needed, never forked. Each gets `given` once, through a pipe,
    and calls `begin` with it, which says what to do with a chunk. A worker that is killed costs its
    chunk a second try. Many threads may use one pool.
    """

    def __init__(
        self,
        workers: int,
        begin: Callable[..., Callable[[int, list[bytes]], list[Result]]],
        *given: bytes,
    ) -> None:
        self._workers = errors.whole("workers", workers, least=1)
        self._begin, self._given = begin, given
        self._lock = threading.Lock()
        self._is_closed = False
        self._executor = self._started()

    def warm_up(self) -> None:
        """Have a worker before there is work for it; does not wait."""
        self._submitted(1, [])

    def close(self) -> None:
        """Let the workers finish what they have in hand, and end them."""
        with self._lock:
            self._is_closed = True
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _at_once(self, level: int, messages: Iterable[bytes]) -> Iterator[Result]:
        """The results, in order; the workers have all messages when this returns."""
        tasks = [self._submitted(level, chunk) for chunk in _chunks(messages)]
        return (one for task in tasks for one in self._result(task))

    def _as_read(self, level: int, messages: Iterable[bytes]) -> Iterator[Result]:
        """The results, in order; a few chunks at a time are in memory, however many come."""
        waiting: deque[_Task[Result]] = deque()
        try:
            for chunk in _chunks(messages):
                waiting.append(self._submitted(level, chunk))
                if len(waiting) > CHUNKS_AHEAD * self._workers:
                    yield from self._result(waiting.popleft())
            while waiting:
                yield from self._result(waiting.popleft())
        finally:
            for task in waiting:
                task.future.cancel()

    def _result(self, task: _Task[Result]) -> list[Result]:
        for _ in range(_TRIES):
            try:
                return task.future.result()
            except BrokenProcessPool:
                self._replace(task.executor)
                task = self._submitted(task.level, task.chunk)
        raise WorkersLost(f"{len(task.chunk)} messages crashed their worker {_TRIES} times")

    def _submitted(self, level: int, chunk: list[bytes]) -> _Task[Result]:
        for _ in range(_TRIES):
            executor = self._executor
            try:
                future: Future[list[Result]] = executor.submit(_work_here, level, chunk)
                return _Task(level, chunk, executor, future)
            except BrokenProcessPool:
                self._replace(executor)
            except RuntimeError as error:  # it was shut down
                raise WorkersLost("the pool is closed") from error
        raise WorkersLost(f"{_TRIES} pools of {self._workers} workers broke before they began")

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """A new pool for one that lost a worker, unless another thread was quicker."""
        with self._lock:
            if self._executor is broken and not self._is_closed:
                broken.shutdown(wait=True, cancel_futures=True)
                self._executor = self._started()

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(self._begin, self._given),
        )


def _chunks(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    coming = iter(messages)
    while chunk := list(islice(coming, CHUNK)):
        yield chunk


_work: Callable[[int, list[bytes]], list[Any]] | None = None


def _start_worker(
    begin: Callable[..., Callable[[int, list[bytes]], list[Any]]], given: tuple[bytes, ...]
) -> None:
    global _work
    _work = begin(*given)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and they may hold a key."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _work_here(level: int, chunk: list[bytes]) -> list[Any]:
    assert _work is not None
    return _work(level, chunk)
