"""Sealing single messages to the server, and opening those of a release: here, or in processes.

HPKE (RFC 9180), base mode, X25519, HKDF-SHA256, AES-128-GCM. Every message is sealed on its own:
a key shared by the messages of one report would tell which belong together. `info` is the same for
all messages of a level, so it links none, and a message of another plan or level does not open.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import secrets
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from overhand import errors
from overhand.deploy.protocol.keys import KEY_BYTES, KeyPair
from overhand.deploy.protocol.wire import (
    DIGEST_BYTES,
    MOST_LEVELS,
    VERSION,
    Formats,
    LevelFormat,
    Release,
)
from overhand.model import Shuffled

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)

_AT_ONCE = 1 << 14
CHUNK = 512
"""Messages that a worker has at a time: some 30 ms, so that handing them over costs little."""
CHUNKS_AHEAD = 4
"""Of each worker: the results of a slow reader wait, the workers do not."""

_TRIES = 3

Result = TypeVar("Result")

Opened = bytes | None
"""A plaintext, or None for a ciphertext that does not open."""


class Seals(Protocol):
    """What seals messages: here and now, or in many processes."""

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> Iterable[bytes]:
        """One ciphertext for every message, in order."""


class Opens(Protocol):
    """What opens ciphertexts: here and now, or in many processes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> Iterable[Opened]:
        """The plaintexts, in order."""


def info(digest: bytes, level: int) -> bytes:
    """What a message is bound to: version, plan and level.

    >>> info(bytes(32), 2)[:10], len(info(bytes(32), 2))
    (b'overhand/3', 43)
    """
    if len(digest) != DIGEST_BYTES:
        raise errors.InvalidValue(f"a digest has {DIGEST_BYTES} bytes, not {len(digest)}")
    number = errors.whole("level", level, least=1, most=MOST_LEVELS)
    return f"overhand/{VERSION}".encode() + digest + bytes([number])


class Sealer:
    """Seals messages of one plan to the server's public key."""

    def __init__(self, public_key: bytes, digest: bytes) -> None:
        if len(public_key) != KEY_BYTES:
            raise errors.InvalidValue(f"a public key has {KEY_BYTES} bytes, not {len(public_key)}")
        self._key = X25519PublicKey.from_public_bytes(public_key)
        self._digest = digest
        bound = info(digest, 1)
        try:
            SUITE.encrypt(b"", self._key, bound)
        except (ValueError, InvalidTag):
            raise errors.InvalidValue("the public key is weak: it would hide nothing") from None

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> list[bytes]:
        """One ciphertext per message."""
        bound = info(self._digest, level)
        return [SUITE.encrypt(plaintext, self._key, bound) for plaintext in plaintexts]


class Opener:
    """Opens messages of one plan."""

    def __init__(self, key: KeyPair, digest: bytes) -> None:
        self._key = key.private_key
        self._digest = digest

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        """The plaintexts, in order; garbage is None, never an exception."""
        bound = info(self._digest, level)
        return [self._open_one(ciphertext, bound) for ciphertext in ciphertexts]

    def _open_one(self, ciphertext: bytes, bound: bytes) -> Opened:
        try:
            return SUITE.decrypt(ciphertext, self._key, bound)
        except InvalidTag:
            return None


def strike_out(messages: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Ciphertexts, one per row, with bytes that nobody can open at these places.

    Whoever opens them counts garbage, which any client may send.
    """
    result, width = messages.copy(), messages.shape[1]
    junk = np.frombuffer(secrets.token_bytes(len(places) * width), np.uint8)
    result[places] = junk.reshape(len(places), width)
    return result


def open_release(formats: Formats, release: Release, opener: Opens) -> tuple[Shuffled, int]:
    """The messages of a release that can be read, and how many cannot.

    A ciphertext that repeats another is garbage.
    """
    level = formats.level(release.batch.level)
    distinct = level.distinct(release.body, release.own)
    messages = select_readable(opener.open(level.level, _one_by_one(distinct)), level)
    shuffled = Shuffled(messages[np.newaxis], level.clear(release.body)[np.newaxis])
    return shuffled, level.batch_messages(release.own) - len(messages)


def _one_by_one(ciphertexts: NDArray[np.void]) -> Iterator[bytes]:
    for start in range(0, len(ciphertexts), _AT_ONCE):
        yield from ciphertexts[start : start + _AT_ONCE].tolist()


def select_readable(opened: Iterable[Opened], level: LevelFormat) -> NDArray[Any]:
    """The messages among what was opened.

    Garbage is what did not open, has the wrong length, or is not below 2^message_bits.
    """
    plaintexts, found = iter(opened), [level.bytes_to_messages([])]
    while some := list(islice(plaintexts, _AT_ONCE)):
        whole = [p for p in some if p is not None and len(p) == level.plaintext_bytes]
        messages = level.bytes_to_messages(whole)
        if level.has_numbers:
            messages = messages[messages <= np.uint64((1 << level.message_bits) - 1)]
        found.append(messages)
    return np.concatenate(found)


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

    Workers are spawned when they are needed, never forked. Each gets key and digest once, through a
    pipe, and calls `begin` with them, which says what to do with a chunk. A worker that is killed
    costs its chunk a second try. Many threads may use one pool.
    """

    def __init__(
        self,
        workers: int,
        begin: Callable[[bytes, bytes], Callable[[int, list[bytes]], list[Result]]],
        key: bytes,
        digest: bytes,
    ) -> None:
        info(digest, 1)
        self._workers = errors.whole("workers", workers, least=1)
        self._begin, self._key, self._digest = begin, key, digest
        self._lock = threading.Lock()
        self._is_closed = False
        self._executor = self._start()

    def warm_up(self) -> None:
        """Have a worker before there is work for it; does not wait."""
        self._submit(1, [])

    def close(self) -> None:
        """Let the workers finish what they have in hand, and end them."""
        with self._lock:
            self._is_closed = True
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _map_lazily(self, level: int, messages: Iterable[bytes]) -> Iterator[Result]:
        """The results, in order; a few chunks at a time are in memory, however many come."""
        waiting: deque[_Task[Result]] = deque()
        try:
            for chunk in _chunks(messages):
                waiting.append(self._submit(level, chunk))
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
                task = self._submit(task.level, task.chunk)
        raise WorkersLost(f"{len(task.chunk)} messages crashed their worker {_TRIES} times")

    def _submit(self, level: int, chunk: list[bytes]) -> _Task[Result]:
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
                self._executor = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(self._begin, self._key, self._digest),
        )


def _chunks(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    coming = iter(messages)
    while chunk := list(islice(coming, CHUNK)):
        yield chunk


_work: Callable[[int, list[bytes]], list[Any]] | None = None


def _start_worker(
    begin: Callable[[bytes, bytes], Callable[[int, list[bytes]], list[Any]]],
    key: bytes,
    digest: bytes,
) -> None:
    global _work
    _work = begin(key, digest)
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


class SealerPool(WorkerPool[bytes]):
    """Seals messages of one plan in processes of its own, which have the public key."""

    def __init__(self, public_key: bytes, digest: bytes, workers: int) -> None:
        Sealer(public_key, digest)  # refuse a key that hides nothing before anybody needs it
        super().__init__(workers, _begin_sealing, public_key, digest)

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> Iterator[bytes]:
        """The ciphertexts, in order; the workers are at it when this returns."""
        info(self._digest, level)
        tasks = [self._submit(level, chunk) for chunk in _chunks(plaintexts)]
        return (one for task in tasks for one in self._result(task))


def _begin_sealing(public_key: bytes, digest: bytes) -> Callable[[int, list[bytes]], list[bytes]]:
    """What a worker does."""
    return Sealer(public_key, digest).seal


class OpenerPool(WorkerPool[Opened]):
    """Opens messages of one plan in processes of its own, which have the key."""

    def __init__(self, key: KeyPair, digest: bytes, workers: int) -> None:
        super().__init__(workers, _begin_opening, key.raw, digest)

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> Iterator[Opened]:
        """The plaintexts, in order; a few chunks at a time are in memory, however many come."""
        info(self._digest, level)
        return self._map_lazily(level, ciphertexts)


def _begin_opening(private_key: bytes, digest: bytes) -> Callable[[int, list[bytes]], list[Opened]]:
    """What a worker does."""
    return Opener(KeyPair.of_raw(private_key), digest).open
