"""Opening messages: a pool, and a whole release, beside bare HPKE in as many processes.

`python -m benchmarks.services.opening ROUNDS`. The rounds take turns, so that all sides compete
for the same processors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.services import processor
from benchmarks.services.rows import Row, answer
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import SUITE, OpenerPool, info, open_release
from overhand.deploy.protocol.wire import Batch, Release
from overhand.model import Privacy
from overhand.planning import Plan
from overhand.randomness import secure_random

LEVEL = 4  # of five: 14,749 users with two messages each
_WORKERS = os.cpu_count() or 1


class Timed(NamedTuple):
    """Messages a second, and microseconds of processor time per message, over all processes."""

    rate: float
    processor: float


def sealed_release(document: Document) -> tuple[Release, list[bytes]]:
    """A batch that users really sent, and its ciphertexts one by one."""
    level = document.formats.level(LEVEL)
    mechanism = document.plan.mechanisms[LEVEL - 1]
    rows = document.plan.values.rows([1] * level.size)
    messages = level.messages_to_bytes(mechanism.encode_rows(rows, secure_random()).sealed)
    ciphertexts = document.sealer.seal(LEVEL, messages)
    return Release(Batch(LEVEL, 0), 0, b"".join(ciphertexts)), ciphertexts


def timed(messages: int, work: Callable[[], object]) -> Timed:
    used, started = processor.with_children(os.getpid()), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return Timed(messages / seconds, 1e6 * (processor.with_children(os.getpid()) - used) / messages)


_raw: list[bytes] = []
_barrier: Barrier | None = None


def _start_raw(ciphertexts: list[bytes], barrier: Barrier) -> None:
    global _raw, _barrier
    _raw, _barrier = ciphertexts, barrier


def _open_raw(private_key: bytes, bound: bytes) -> tuple[float, float, float]:
    """When it began and ended, and its processor time: nothing but HPKE."""
    assert _barrier is not None
    key = X25519PrivateKey.from_private_bytes(private_key)
    _barrier.wait()
    started, used = time.monotonic(), time.process_time()
    for ciphertext in _raw:
        SUITE.decrypt(ciphertext, key, bound)
    return started, time.monotonic(), time.process_time() - used


def raw_round(pool: ProcessPoolExecutor, messages: int, key: bytes, bound: bytes) -> Timed:
    """All processes at once, each with as many messages."""
    running = [pool.submit(_open_raw, key, bound) for _ in range(_WORKERS)]
    began, ended, used = zip(*(one.result() for one in running), strict=True)
    opened = _WORKERS * messages
    return Timed(opened / (max(ended) - min(began)), 1e6 * sum(used) / opened)


def measured(rounds: int) -> Iterator[Row]:
    plan = Plan.best(10**6, 5, Privacy(1.0, 1e-6))
    key = KeyPair(X25519PrivateKey.generate())
    document = Document(plan, key.public_key)
    release, ciphertexts = sealed_release(document)
    count, digest = len(ciphertexts), document.formats.digest
    context = get_context("spawn")
    start = ciphertexts[: count // _WORKERS], context.Barrier(_WORKERS)
    raws, pools, paths = [], [], []
    with (
        ProcessPoolExecutor(_WORKERS, context, _start_raw, start) as raw,
        OpenerPool(key, digest, _WORKERS) as pool,
    ):
        list(pool.open(LEVEL, ciphertexts[:4_096]))
        raw_round(raw, len(start[0]), key.raw, info(digest, LEVEL))
        for _ in range(rounds):
            raws.append(raw_round(raw, len(start[0]), key.raw, info(digest, LEVEL)))
            pools.append(timed(count, lambda: list(pool.open(LEVEL, ciphertexts))))
            paths.append(timed(count, lambda: open_release(document.formats, release, pool)))
    yield from _rows("bare HPKE", raws, raws)
    yield from _rows("OpenerPool", pools, raws)
    yield from _rows("a whole release", paths, raws)


def _rows(name: str, found: list[Timed], raws: list[Timed]) -> Iterator[Row]:
    title = f"Opening in {_WORKERS} processes, {name}"
    yield Row(title, max(one.rate for one in found), "messages/s")
    yield Row(title, median(one.processor for one in found), "µs of processor per message")
    if found is not raws:
        ratio = median(one.rate / raw.rate for one, raw in zip(found, raws, strict=True))
        yield Row(f"{title} : bare HPKE", 100 * ratio, "% of its rate", least=85)


def main() -> None:
    answer(measured(int(sys.argv[1])))


if __name__ == "__main__":
    main()
