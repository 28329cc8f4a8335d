"""Contextual bandits: ours, with privacy, beside peers that have none.

The contestants of one module share a process and take turns in it, so that what they import and
plan is waited for only once. As in `measure`, no array library is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from rich.table import Table

from benchmarks.contestants import Contestant
from benchmarks.measure import INSTALL, Failed, Measured, ask, ratio
from benchmarks.tables import empty_table
from benchmarks.task import Asked

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

OURS = Contestant("overhand, user by user, secure randomness", "recommenders", "secure")

CONTESTANTS = (
    OURS,
    Contestant("overhand, user by user, seeded", "recommenders", "seeded"),
    Contestant("overhand, a batch at a time, seeded", "recommenders", "batches"),
    Contestant("overhand, simulated, the same arms for all", "recommenders", "race_fixed"),
    Contestant("overhand, simulated, arms drawn meanwhile", "recommenders", "race_diverse"),
    Contestant("NumPy, Sherman-Morrison (no privacy)", "plain_linucb", "shared", "numpy"),
    *(
        Contestant(f"{name} (no privacy)", f"{package}_ucb", function, package)
        for package, function, name in (
            ("contextualbandits", "shared", "contextualbandits predict_ucb"),
            ("contextualbandits", "disjoint", "contextualbandits LinUCB, disjoint"),
            ("mabwiser", "shared", "MABWiser LinUCB of one arm"),
            ("mabwiser", "disjoint", "MABWiser LinUCB, disjoint"),
        )
    ),
)

HEADINGS = (
    *("thousand\nrounds/s", "the same by\nCPU time", "microseconds\nof CPU a round"),
    *("rounds\nin a run", "missed\na round", "time\nratio"),
)
CAPTION = (
    "A round: choose an arm for one user, learn from the reward. One thread; best of all runs.\n"
    "No privacy: sees every value and learns at once; ours pays for privacy by missing more.\n"
    "Disjoint: a parameter for every arm, which does not fit these users; here for its speed.\n"
    "Missed: regret, over the rounds that there was time for, so compare like with like.\n"
    "Simulated: other users, of a whole horizon; 'meanwhile' draws them in the time measured.\n"
    "Ratio: CPU time a round against the first row."
)


@dataclass(frozen=True)
class BanditTask(Asked):
    """Recommend to users with fresh arms each, prepared beforehand and the same for everybody."""

    users: int = 20_000
    seconds: float = 1.0
    """After which a run is stopped."""
    repeats: int = 3
    dimension: int = 5
    arms: int = 100
    horizon: int = 100_000
    shufflers: int = 4
    epsilon: float = 1.0
    delta: float = 1e-6
    seed: int = 1


@dataclass(frozen=True)
class BanditRow(Measured):
    """Rounds of one recommender."""

    rounds: int = 0
    missed: float = 0.0
    rounds_per_second: float = 0.0
    rounds_per_cpu_second: float = 0.0

    def ratios(self, ours: Self) -> dict[str, float | None]:
        return {"seconds_ratio": ratio(ours.rounds_per_cpu_second, self.rounds_per_cpu_second)}


def bandit_contest(task: BanditTask) -> list[BanditRow]:
    """Module after module, each in a process of its own."""
    for variable in ONE_THREAD:
        os.environ[variable] = "1"
    rows: list[BanditRow] = []
    for module, group in groupby(CONTESTANTS, key=lambda contestant: contestant.module):
        rows += _rows(module, list(group), task)
    return rows


def _rows(module: str, group: Sequence[Contestant], task: BanditTask) -> list[BanditRow]:
    if not group[0].installed:
        return [BanditRow(each.name, missing=f"not installed: {_advice(each)}") for each in group]
    functions = ",".join(each.function for each in group)
    try:
        results = ask("contestants.rounds", module, functions, task.to_json())["results"]
    except Failed as failure:
        return [BanditRow(each.name, missing=f"failed: {failure}") for each in group]
    return [
        BanditRow(each.name, each.version, **result)
        for each, result in zip(group, results, strict=True)
    ]


def _advice(contestant: Contestant) -> str:
    if contestant.package == "contextualbandits":
        return f"pip install {contestant.package}, for which you need a C compiler"
    return INSTALL


def bandits_table(rows: Sequence[BanditRow], task: BanditTask) -> Table:
    title = (
        f"Bandits: {task.dimension} features, {task.arms} arms; ours: horizon "
        f"{task.horizon:,}, epsilon {task.epsilon:g}, delta {task.delta:g}, "
        f"{task.shufflers} shufflers"
    )
    table = empty_table(title, HEADINGS, CAPTION)
    for row in rows:
        table.add_row(*_cells(row, rows[0]))
    return table


def _cells(row: BanditRow, ours: BanditRow) -> list[str]:
    if row.missing:
        return [row.name, row.missing.partition(":")[0]]
    (slower,) = row.ratios(ours).values()
    return [
        row.name,
        _three_digits(row.rounds_per_second / 1e3),
        _three_digits(row.rounds_per_cpu_second / 1e3),
        _three_digits(1e6 / row.rounds_per_cpu_second),
        f"{row.rounds:,}",
        f"{row.missed:.3f}",
        "-" if slower is None else _three_digits(slower),
    ]


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
