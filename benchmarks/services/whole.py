"""`overhand demo`, and who used the processors.

`python -m benchmarks.services.whole USERS [VALUES MECHANISM]`. Its processes are watched from
outside. The time that the demo names ends when it prints, so what was used before is planning and
starting, and does not count.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from benchmarks.measure import Failed
from benchmarks.services import processor
from benchmarks.services.rows import Row, answer

_EVERY = 0.1  # seconds
LEAST = {"bit": 2000.0, "vector:20": 1500.0, "histogram:10000": 700.0}
"""Users a second that are asked for, by what they hold."""


class Sample(NamedTuple):
    """When, and what every process had used by then, and the most memory that it had had."""

    when: float
    used: dict[int, float]
    peaks: dict[int, int]


def role(process: int, main: int) -> str:
    """What a process of the demo is."""
    if process == main:
        return "demo"
    line = processor.command(process)
    for name in ("server", "shuffler"):
        if f"overhand {name} " in line:
            return name
    with suppress(FileNotFoundError, ProcessLookupError):
        return "clients" if processor.stat(process).parent == main else "server's workers"
    return "ended"


def sample(main: int, roles: dict[int, str]) -> Sample:
    used, peaks = {}, {}
    for process in (main, *processor.below(main)):
        with suppress(FileNotFoundError, ProcessLookupError):
            used[process] = processor.stat(process).own
            peaks[process] = processor.peak(process)
            if roles.get(process, "clients") == "clients":  # it may not have started its program
                roles[process] = role(process, main)
    return Sample(time.monotonic(), used, peaks)


def measured(users: int, values: str, mechanism: str) -> Iterator[Row]:
    options = ["--users", str(users), "--values", values, "--mechanism", mechanism]
    if mechanism != "coins":
        options += ["--horizon", "1000000"]
    command = [sys.executable, "-m", "overhand", "demo", *options, "--json"]
    samples: list[Sample] = []
    roles: dict[int, str] = {}
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        samples.append(sample(process.pid, roles))
        while not select.select([process.stdout], [], [], _EVERY)[0]:
            samples.append(sample(process.pid, roles))
        samples.append(sample(process.pid, roles))
        said = process.stdout.read()
    if process.returncode:
        raise Failed("overhand demo failed")
    result = json.loads(said)
    title = f"End to end, {result['users']:,} users, {values}, {mechanism}"
    yield Row(title, result["users_per_second"], "users/s", least=LEAST[values])
    by_role = _by_role(samples, roles, result["seconds"])
    for name, seconds in sorted(by_role.items()):
        yield Row(f"{title}, {name}", 1e6 * seconds / result["users"], "µs of processor per user")
    total = 1e6 * sum(by_role.values()) / result["users"]
    yield Row(f"{title}, all", total, "µs of processor per user")
    for name, peak in sorted(_peaks(samples, roles).items()):
        yield Row(f"{title}, {name}", peak / 2**20, "MiB at most")


def _peaks(samples: list[Sample], roles: dict[int, str]) -> dict[str, int]:
    """The most memory that the processes of a role had, added up."""
    found: defaultdict[str, int] = defaultdict(int)
    for process, name in roles.items():  # one that has ended has none
        found[name] += max(one.peaks.get(process, 0) for one in samples)
    return found


def _by_role(samples: list[Sample], roles: dict[int, str], seconds: float) -> dict[str, float]:
    """Processor time of the last so many seconds, also of processes that ended meanwhile."""
    begun = samples[-1].when - seconds
    first = min(samples, key=lambda one: abs(one.when - begun))
    last: dict[int, float] = {}
    for one in samples:
        last |= one.used if one.when >= first.when else {}
    found: defaultdict[str, float] = defaultdict(float)
    for process, used in last.items():
        found[roles[process]] += used - first.used.get(process, 0.0)
    return found


def main() -> None:
    values, mechanism = sys.argv[2:] or ("bit", "services")
    answer(measured(int(sys.argv[1]), values, mechanism))


if __name__ == "__main__":
    main()
