"""Our own figures, each asked for by name in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import overhand as oh
from benchmarks.arrays import stream
from benchmarks.contestants.engines import plan_for
from benchmarks.contestants.plain_numpy import binary_tree
from benchmarks.memory import peak_mebibytes
from benchmarks.task import Task
from overhand.lab.simulation import MessagesRun, estimate_all, simulate, values_stream

CHUNK = 1000
DIMENSION = 20
SINGLE_USERS = 200_000
COLD_STARTS = 3
HUGE_HORIZON = 10**8
HUGE_RUNS = 4  # one run may be a third off: errors at neighbouring times are almost the same

Figures = list[tuple[str, float, str]]


def large(task: Task) -> Figures:
    """The counts engine against the sum itself and a plain tree, taking turns."""
    horizon = task.large_horizon
    values = stream(horizon, task.seed)
    plan = plan_for(horizon, task)
    random = oh.seeded_random(task.seed)
    tree = binary_tree(Task(horizon, horizon, 1, unit_sigma=task.unit_sigma))
    best = _interleaved(
        {
            "counts engine": lambda: estimate_all(plan, values, random),
            "np.cumsum": lambda: np.cumsum(values),
            "NumPy binary tree": lambda: tree.run(values),
        },
        task.repeats,
    )
    size = f"{horizon:,} users"
    return [
        *((f"{name}, {size}", seconds, "s") for name, seconds in best.items()),
        *(
            (f"counts engine / {name}, {size}", best["counts engine"] / best[name], "times")
            for name in ("np.cumsum", "NumPy binary tree")
        ),
    ]


def _interleaved(rivals: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best times, in turns: a slow moment of the machine hits all of them."""
    best = dict.fromkeys(rivals, float("inf"))
    for _ in range(repeats):
        for name, run in rivals.items():
            best[name] = min(best[name], _seconds(run))
    return best


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def vectors(task: Task) -> Figures:
    """The counts engine on vectors, with every error of every coordinate measured."""
    values = oh.Vectors(DIMENSION)
    plan = plan_for(task.horizon, task, values=values)
    rows = values_stream(values.uniform(oh.seeded_random(task.seed), task.horizon))
    runs = [simulate(plan, rows, seed=task.seed) for _ in range(task.repeats)]
    name = f"counts engine, {DIMENSION} coordinates, users per second"
    return [(name, max(run.users_per_second for run in runs), "/s")]


def messages(task: Task) -> Figures:
    """Every message made, permuted and analyzed."""
    values = stream(task.horizon, task.seed)
    run = MessagesRun(plan_for(task.horizon, task), oh.seeded_random(task.seed))
    seconds = _seconds(lambda: run.estimates(values))
    return [("messages engine, messages per second", run.messages / seconds, "/s")]


def updates(task: Task) -> Figures:
    """`ContinualSum` as it is deployed, with secure randomness."""
    plan = plan_for(task.horizon, task)
    values = stream(task.horizon, task.seed)
    singles = values[:SINGLE_USERS].tolist()

    def one_by_one() -> None:
        total = oh.ContinualSum(plan, random=oh.secure_random())
        for value in singles:
            total.update(value)

    def in_chunks() -> None:
        total = oh.ContinualSum(plan, random=oh.secure_random())
        for start in range(0, len(values), CHUNK):
            total.update_many(values[start : start + CHUNK])

    times = np.arange(len(values)).astype("M8[ns]")

    def with_times() -> None:
        total = oh.ContinualSum(plan, random=oh.secure_random())
        for start in range(0, len(values), CHUNK):
            total.update_many(values[start : start + CHUNK], at=times[start : start + CHUNK])

    rivals: dict[str, Callable[[], object]] = {
        "one": one_by_one,
        "chunk": in_chunks,
        "times": with_times,
    }
    best, name = _interleaved(rivals, task.repeats), f"ContinualSum.update_many by {CHUNK}"
    return [
        ("ContinualSum.update, per user", best["one"] / len(singles) * 1e6, "us"),
        (f"{name}, per user", best["chunk"] / len(values) * 1e9, "ns"),
        (f"{name} with times, per user", best["times"] / len(values) * 1e9, "ns"),
    ]


def cold_plan(task: Task) -> Figures:
    """The command line from nothing to a plan."""
    command = [
        *(sys.executable, "-m", "overhand", "plan", "--json"),
        *("--horizon", str(task.horizon), "--shufflers", str(task.shufflers)),
        *("--epsilon", str(task.epsilon), "--delta", str(task.delta)),
    ]
    starts = (
        _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
        for _ in range(COLD_STARTS)
    )
    return [(f"overhand plan, cold, {task.horizon:,} users", min(starts), "s")]


def huge(task: Task) -> Figures:
    """As many users as a country has, with every error measured."""
    before = peak_mebibytes()
    plan = plan_for(HUGE_HORIZON, task)
    result = simulate(plan, "zeros", runs=HUGE_RUNS, seed=task.seed, engine="counts")
    size = f"counts engine, {HUGE_HORIZON:,} users, all errors"
    return [
        (f"{size}: time of a run", result.seconds / HUGE_RUNS, "s"),
        (f"{size}: memory above import", peak_mebibytes() - before, "MiB"),
        (f"{size}: rms error", result.rms_error, ""),
        (f"{size}: expected rms error", plan.rms_error, ""),
    ]


FIGURES = {
    figure.__name__: figure for figure in (large, vectors, messages, updates, cold_plan, huge)
}


def main(name: str, task: str) -> None:
    print(json.dumps({"figures": FIGURES[name](Task.from_json(task))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
