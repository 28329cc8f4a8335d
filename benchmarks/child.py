"""One contestant in a process of its own: import it, or run it, and print what was measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arrays import Bits, stream
from benchmarks.memory import peak_mebibytes
from benchmarks.task import Ready, Task

SHORT = 1.0  # seconds; what takes longer runs once


def main(what: str, module: str, function: str, task: str) -> None:
    prepare = getattr(import_module(f"benchmarks.contestants.{module}"), function)
    if what == "import":
        stream(1, 1)  # what the suite itself needs is no contestant's memory
        result = {"peak": peak_mebibytes()}
    else:
        result = measured(prepare, Task.from_json(task))
    print(json.dumps(result))


def measured(prepare: Callable[[Task], Ready], task: Task) -> dict[str, Any]:
    """Best time of the runs; error of all of them; memory of the first, before errors need any."""
    values = stream(task.horizon, task.seed)
    started = time.perf_counter()
    ready = prepare(task)
    setup = time.perf_counter() - started
    runs: list[Run] = []
    while not runs or (runs[0].seconds < SHORT and len(runs) < task.repeats):
        runs.append(one_run(ready, values))
    return {
        "setup_seconds": setup,
        "seconds": min(run.seconds for run in runs),
        "runs": len(runs),
        "peak": runs[0].peak,
        "rms_error": float(np.sqrt(np.mean([run.mean_square for run in runs]))),
        "expected_rms": ready.expected_rms() if ready.expected_rms else None,
    }


class Run(NamedTuple):
    seconds: float
    peak: float
    mean_square: float


def one_run(ready: Ready, values: Bits) -> Run:
    """Only the contestant's own time counts, not that of the errors of a part."""
    seconds, squares, done, truth = 0.0, 0.0, 0, 0
    peak = 0.0
    started = time.perf_counter()
    outcome = ready.run(values)
    for part in [outcome] if isinstance(outcome, np.ndarray) else outcome:
        seconds += time.perf_counter() - started
        peak = peak_mebibytes()  # before the errors of the part; those of a small part are small
        sums = np.cumsum(values[done : done + len(part)], dtype=np.int64) + truth
        squares += float(np.square(part - sums).sum())
        done, truth = done + len(part), int(sums[-1])
        started = time.perf_counter()
    assert done == len(values), f"{done} estimates of {len(values)}"
    return Run(seconds, peak, squares / done)


if __name__ == "__main__":
    main(*sys.argv[1:])
