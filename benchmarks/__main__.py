"""`python -m benchmarks`: contestants on the same stream, our own figures, bandits, services."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bandits import (
    BanditTask,
    bandit_contest,
    bandits_table,
)
from benchmarks.contestants import CONTESTANTS, OURS
from benchmarks.measure import Failed, Row, ask, contest
from benchmarks.services import rows as services_rows
from benchmarks.tables import Figure, console, contest_table, figures_table, missing_lines
from benchmarks.task import Task

FIGURES = ("large", "vectors", "messages", "updates", "cold_plan")


def main() -> None:
    if sys.argv[1:2] == ["soak"]:
        from benchmarks import soak  # brings an array library: see `measure`

        sys.exit(soak.main(sys.argv[2:]))
    options = parsed()
    screen, progress = console(), Console(stderr=True)
    written: dict[str, Any] = {"machine": machine()}
    if options.what in (None, "sums"):
        written |= sums(options, screen, progress)
    if options.what in (None, "bandits"):
        written["bandits"] = bandits(options, screen, progress)
    if options.what == "services":
        written["services"] = services(options, screen, progress)
    if options.what == "costs":
        written["costs"] = costs(screen, progress)
    if options.json:
        options.json.write_text(json.dumps(written, indent=2) + "\n")


def sums(options: argparse.Namespace, screen: Console, progress: Console) -> dict[str, Any]:
    """Running sums: all contestants, and our own figures."""
    task = task_for(options)
    rows: list[Row] = []
    for contestant in CONTESTANTS:
        if contestant.slow and not options.thorough:
            continue
        with progress.status(contestant.name):
            rows.append(contest(contestant, task))
    ours = next(row for row in rows if row.name == OURS.name)
    screen.print(contest_table(rows, ours, task))
    for line in missing_lines(rows):
        screen.print(line, style="dim", markup=False)
    screen.print()
    figures: list[Figure] = []
    for name in (*FIGURES, *(["huge"] if options.huge else [])):
        with progress.status(name):
            figures += figures_of(name, task, progress)
    screen.print(figures_table(figures))
    screen.print()
    return {
        "task": asdict(task),
        "contestants": [row.summary(ours) for row in rows],
        "own": [asdict(figure) for figure in figures],
    }


def bandits(options: argparse.Namespace, screen: Console, progress: Console) -> dict[str, Any]:
    """Recommenders beside their peers."""
    task = BanditTask(users=5_000, seconds=0.3) if options.quick else BanditTask()
    with progress.status("bandits"):
        rows = bandit_contest(task)
    screen.print(bandits_table(rows, task))
    for line in missing_lines(rows):
        screen.print(line, style="dim", markup=False)
    return {"task": asdict(task), "contestants": [row.summary(rows[0]) for row in rows]}


def services(options: argparse.Namespace, screen: Console, progress: Console) -> dict[str, Any]:
    """The deployment, stage by stage."""
    reports, rounds, users = ("5000", "1", "5000") if options.quick else ("15000", "3", "20000")
    rows: list[services_rows.Row] = []
    for stage in (
        ("raw",),
        ("admission", "sqlite", reports, rounds),
        ("admission", "postgres", reports, rounds),
        ("admission", "sqlite", reports, rounds, "pairs"),
        ("admission", "postgres", reports, rounds, "pairs"),
        ("admission", "sqlite", reports, rounds, "ballots"),
        ("opening", "5"),
        ("once", "5"),
        ("whole", users),
        ("whole", users, "bit", "pairs"),
        ("whole", users, "bit", "coins"),
        ("whole", users, "vector:20", "pairs"),
        ("whole", str(int(users) // 5), "histogram:10000", "pairs"),
    ):
        with progress.status(" ".join(stage)):
            rows += services_of(stage, progress)
    screen.print(services_rows.services_table(rows))
    return {"rows": [asdict(row) for row in rows]}


def costs(screen: Console, progress: Console) -> dict[str, float]:
    """The constants that plans are costed with, as they stand in `overhand/planning/costs.py`."""
    with progress.status("costs"):
        seconds: dict[str, float] = ask("services.costs")["seconds"]
    screen.print(f"# Seconds of processor time, measured on {processor_name()}.", highlight=False)
    for name, value in seconds.items():
        screen.print(f"{name} = {value:.2g}", highlight=False)
    return seconds


def services_of(stage: tuple[str, ...], progress: Console) -> list[services_rows.Row]:
    try:
        answer = ask(f"services.{stage[0]}", *stage[1:])
        return [services_rows.Row(**row) for row in answer["rows"]]
    except Failed as failure:
        progress.print(f"{' '.join(stage)} failed: {failure}", markup=False)
        return []


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("sums", "bandits", "services", "costs", "soak"),
        help="(default sums and bandits)",
    )
    parser.add_argument("--horizon", type=int, help="users (default 1,000,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--quick", action="store_true", help="a tenth of the users")
    parser.add_argument("--thorough", action="store_true", help="peers that take a minute, too")
    parser.add_argument("--huge", action="store_true", help="100,000,000 users, too")
    return parser.parse_args()


def task_for(options: argparse.Namespace) -> Task:
    users = 10**5 if options.quick else 10**6
    task = Task(options.horizon or users, 10 * users, repeats=5)
    answer = ask("calibrate", str(task.epsilon), str(task.delta))
    return replace(task, unit_sigma=answer["unit_sigma"])


def figures_of(name: str, task: Task, progress: Console) -> list[Figure]:
    try:
        return [Figure(*figure) for figure in ask("own_figures", name, task.to_json())["figures"]]
    except Failed as failure:
        progress.print(f"{name} failed: {failure}", markup=False)
        return []


def machine() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
    }


def processor_name() -> str:
    """What the kernel calls it, where it says so."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {os.cpu_count()} cores" if names else platform.platform()


if __name__ == "__main__":
    main()
