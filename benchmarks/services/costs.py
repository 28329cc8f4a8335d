"""The constants of `overhand.planning.costs`, measured: `python -m benchmarks costs`.

Seconds of processor time, best of a few rounds. What the shuffling service takes is measured with
reports of two lengths, over plans so short that nearly all batches are sent, and divided into what
a report costs and what its bytes do.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.services.admission import Bench
from benchmarks.services.deployment import Home, Shuffler, prepared, shuffling
from benchmarks.services.load import random_reports
from benchmarks.services.raw import cost
from overhand.deploy.client import AsyncClient
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Formats, LevelFormat
from overhand.model import Privacy
from overhand.planning import Plan, costs
from overhand.randomness import secure_random
from overhand.shuffle import shuffle
from overhand.values import Histogram

SHORT = ("--horizon", "12000", "--shufflers", "3")
LONG = (*SHORT, "--values", "histogram:20")
_REPORTS, _ROUNDS = 3_000, 3
_MESSAGES, _NUMBERS, _REQUESTS = 1_000, 10_000, 150


def of_messages() -> dict[str, float]:
    """To encode for a level, to seal a message, to open one."""
    plan = Plan.best(10**6, 4, Privacy(1.0, 1e-6), mechanism="shares")
    key = KeyPair(X25519PrivateKey.generate())
    document = Document(plan, key.public_key)
    random, row = secure_random(), plan.values.rows([1])
    levels = [cost(partial(m.encode_rows, row, random), 500) for m in plan.mechanisms]
    plaintexts = [bytes(2)] * _MESSAGES
    sealed = document.sealer.seal(1, plaintexts)
    opener = Opener(key, document.formats.digest)
    return {
        "LEVEL_SECONDS": math.fsum(levels) / len(levels),
        "SEAL_SECONDS": cost(lambda: document.sealer.seal(1, plaintexts), 1) / _MESSAGES,
        "OPEN_SECONDS": cost(lambda: opener.open(1, sealed), 1) / _MESSAGES,
    }


def of_numbers() -> dict[str, float]:
    """A number in the clear: made by a client, added up by the shuffling service, unmasked."""
    values = Histogram(_NUMBERS)
    plan = Plan.best(10**6, epsilon=1.0, values=values, mechanism="pairs")
    mechanism, random = plan.mechanisms[0], secure_random()
    level, rows = Formats.of(plan).level(1), values.rows([0] * mechanism.size)
    sent = mechanism.encode_rows(rows, random)
    reports = [level.pack(bytes(level.ciphertext_bytes), row) for row in sent.clear]
    shuffled = shuffle(sent.gather(mechanism.size), random)
    numbers, state = _NUMBERS * mechanism.size, mechanism.start_noise(random)
    return {
        "NUMBER_SECONDS": cost(lambda: mechanism.encode_rows(rows[:1], random), 20) / _NUMBERS,
        "ADD_SECONDS": cost(lambda: _admitted(level, reports), 1) / numbers,
        "MASK_SECONDS": cost(lambda: mechanism.step_sums(shuffled), 1) / numbers,
        "NOISE_SECONDS": cost(lambda: mechanism.advance_noise(state, random), 5) / _NUMBERS,
    }


def _admitted(level: LevelFormat, reports: Sequence[bytes]) -> None:
    """Every report is checked when it comes; the numbers of a block are added up."""
    for report in reports:
        level.clear(report)
    level.sum_of(level.rows(reports))


def of_reports() -> dict[str, float]:
    """A request, for the client; a report and its bytes, for the shuffling service."""
    with _running(SHORT) as (home, shuffler):
        short, report = _whole(home, shuffler), home.document.formats.report_length
        request = asyncio.run(_request(home, shuffler))
    with _running(LONG) as (home, shuffler):
        long, longer = _whole(home, shuffler), home.document.formats.report_length
    byte = (long - short) / (longer - report)
    return {
        "REQUEST_SECONDS": request,
        "ADMIT_SECONDS": short - byte * report,
        "ADMIT_BYTE_SECONDS": byte,
    }


@contextmanager
def _running(options: Sequence[str]) -> Iterator[tuple[Home, Shuffler]]:
    with prepared(*options) as home, shuffling(home, "shuffler.db") as shuffler:
        yield home, shuffler


def _whole(home: Home, shuffler: Shuffler) -> float:
    """A report until its batches are sent and scrubbed, in microseconds."""
    bench = Bench([shuffler], home.document, None)
    return min(bench.round(_REPORTS).whole for _ in range(_ROUNDS))


async def _request(home: Home, shuffler: Shuffler) -> float:
    """Reports one after the other over one connection, in microseconds."""
    client, found = AsyncClient(f"http://127.0.0.1:{shuffler.port}"), []
    try:
        for _ in range(5):
            reports = random_reports(home.document.formats, _REQUESTS)
            used = time.process_time()
            for report in reports:
                await client.send(report)
            found.append(time.process_time() - used)
    finally:
        await client.close()
    return 1e6 * min(found) / _REQUESTS


def main() -> None:
    found = of_reports() | of_messages() | of_numbers()
    wanted = [name for name in vars(costs) if name.endswith("_SECONDS")]
    print(json.dumps({"seconds": {name: 1e-6 * found[name] for name in wanted}}))


if __name__ == "__main__":
    main()
