"""Opening messages in processes of their own: it holds the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice

from overhand import errors
from overhand.service.protocol import KeyPair, Opened, Opener, info

CHUNK = 512
"""Ciphertexts that a worker opens at a time: some 30 ms, so that handing them over costs little."""

_CHUNKS_AHEAD = 4  # for each worker: the results of a slow reader wait, the workers do not
_TRIES = 3


class WorkersLost(errors.ServiceError):
    """The same ciphertexts took their worker down again and again."""


@dataclass
class _Task:
    """A chunk on its way, and who has it."""

    level: int
    chunk: list[bytes]
    executor: ProcessPoolExecutor
    future: Future[list[Opened]]


class OpenerPool:
    """Opens messages of one plan in processes of its own.

    Workers are spawned, never forked, and get the key once, through a pipe. A worker that is killed
    costs its chunk a second try. Many threads may use one pool.
    """

    def __init__(self, key: KeyPair, digest: bytes, workers: int) -> None:
        self._workers = errors.whole("workers", workers, least=1)
        self._key, self._digest = key, digest
        self._lock = threading.Lock()
        self._is_closed = False
        info(digest, 1)
        self._executor = self._started()

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> Iterator[Opened]:
        """The plaintexts, in order; a few chunks at a time are in memory, however many come."""
        info(self._digest, level)
        return self._open(level, iter(ciphertexts))

    def close(self) -> None:
        """Let the workers finish what they have in hand, and end them."""
        with self._lock:
            self._is_closed = True
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> OpenerPool:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _open(self, level: int, ciphertexts: Iterator[bytes]) -> Iterator[Opened]:
        waiting: deque[_Task] = deque()
        try:
            while chunk := list(islice(ciphertexts, CHUNK)):
                waiting.append(self._submitted(level, chunk))
                if len(waiting) > _CHUNKS_AHEAD * self._workers:
                    yield from self._result(waiting.popleft())
            while waiting:
                yield from self._result(waiting.popleft())
        finally:
            for task in waiting:
                task.future.cancel()

    def _result(self, task: _Task) -> list[Opened]:
        for _ in range(_TRIES):
            try:
                return task.future.result()
            except BrokenProcessPool:
                self._replace(task.executor)
                task = self._submitted(task.level, task.chunk)
        raise WorkersLost(f"{len(task.chunk)} ciphertexts took down their worker {_TRIES} times")

    def _submitted(self, level: int, chunk: list[bytes]) -> _Task:
        for _ in range(_TRIES):
            executor = self._executor
            try:
                return _Task(level, chunk, executor, executor.submit(_open_here, level, chunk))
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
            initargs=(self._key.raw, self._digest),
        )


_opener: Opener | None = None


def _start_worker(private_key: bytes, digest: bytes) -> None:
    global _opener
    _opener = Opener(KeyPair.of_raw(private_key), digest)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and they hold the key."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _open_here(level: int, chunk: list[bytes]) -> list[Opened]:
    assert _opener is not None
    return _opener.open(level, chunk)
