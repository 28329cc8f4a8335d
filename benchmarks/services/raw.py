"""What this machine can do at all: `python -m benchmarks.services.raw`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.services.rows import Row, answer
from overhand.deploy.protocol.sealing import SUITE, info

_TIMES = 2_000
_BLOCK = os.urandom(1 << 16)


def cost(work: Callable[[], object], times: int) -> float:
    """Microseconds of processor time a call, the best of five."""
    found = []
    for _ in range(5):
        used = time.process_time()
        for _ in range(times):
            work()
        found.append(time.process_time() - used)
    return 1e6 * min(found) / times


def sync_milliseconds() -> float:
    """What it takes to make 64 KiB durable."""
    found = []
    with tempfile.TemporaryFile() as file:
        for _ in range(200):
            file.write(_BLOCK)
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - started)
    return 1e3 * median(found)


def measured() -> Iterator[Row]:
    key = X25519PrivateKey.generate()
    bound = info(bytes(32), 1)
    sealed = SUITE.encrypt(b"\1", key.public_key(), bound)
    unit = "µs of processor"
    seal = cost(lambda: SUITE.encrypt(b"\1", key.public_key(), bound), _TIMES)
    yield Row("HPKE, seal a message", seal, unit)
    yield Row("HPKE, open a message", cost(lambda: SUITE.decrypt(sealed, key, bound), _TIMES), unit)
    yield Row("fdatasync of 64 KiB, median", sync_milliseconds(), "ms")


def main() -> None:
    answer(measured())


if __name__ == "__main__":
    main()
