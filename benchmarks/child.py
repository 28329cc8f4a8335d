"""One contestant in a process of its own: import it, or run it, and print what was measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.arrays import stream
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
    truth, peak = None, 0.0
    seconds: list[float] = []
    squares: list[float] = []
    while not seconds or (seconds[0] < SHORT and len(seconds) < task.repeats):
        started = time.perf_counter()
        estimates = ready.run(values)
        seconds.append(time.perf_counter() - started)
        peak = peak or peak_mebibytes()
        truth = np.cumsum(values, dtype=np.int64) if truth is None else truth
        squares.append(float(np.mean(np.square(estimates - truth))))
        del estimates
    return {
        "setup_seconds": setup,
        "seconds": min(seconds),
        "runs": len(seconds),
        "peak": peak,
        "rms_error": float(np.sqrt(np.mean(squares))),
        "expected_rms": ready.expected_rms() if ready.expected_rms else None,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
