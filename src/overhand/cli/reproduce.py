"""`overhand lab reproduce`: every quantitative claim of the paper, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from overhand.cli import options
from overhand.cli.output import bar, check_writable, console, messages, new_table, tell_written
from overhand.errors import OverhandError
from overhand.lab import evidence
from overhand.lab.evidence import FULL, QUICK, SECTIONS, Progress


def reproduce(
    full: Annotated[bool, typer.Option("--full/--quick")] = False,
    sections: Annotated[str, typer.Option(show_default="all")] = "",
    output: Path = Path("reproduction.html"),
    seed: options.Seed = 0,
    jobs: options.Jobs = None,
    dask: str = "",
    as_json: options.Json = False,
) -> None:
    """Measure every quantitative claim of the paper and write one report with all figures.

    Exit code 1 if a check fails.

    Args:
        full: Measure for about an hour, or for about two minutes.
        sections: Which sections, separated by commas.
        output: The report; a .json file with all numbers is written next to it.
        dask: The address of a Dask scheduler whose cluster does the work.
    """
    check_writable("--output", output, ".html")
    chosen = tuple(name.strip() for name in sections.split(",") if name.strip()) or tuple(SECTIONS)
    with _cluster(dask), _bar() if messages.is_terminal else _lines() as tell:
        found = evidence.reproduce(
            replace(FULL if full else QUICK, seed=seed),
            chosen,
            jobs=options.processes(jobs),
            progress=tell,
        )
    output.write_text(evidence.html(found), encoding="utf-8")
    output.with_suffix(".json").write_text(found.to_json() + "\n", encoding="utf-8")
    if as_json:
        print(found.to_json())
    else:
        table = new_table("claim", "checks", "met")
        for one in found.evidence:
            met = sum(check.is_met for check in one.checks)
            table.add_row(one.title, str(len(one.checks) or "none"), str(met) if one.checks else "")
        console.print(table)
        tell_written(output, output.with_suffix(".json"))
    if not found.is_met:
        raise typer.Exit(1)


@contextmanager
def _cluster(scheduler: str) -> Iterator[None]:
    """Send Joblib's work to this Dask cluster, if there is one."""
    if not scheduler:
        yield
        return
    from distributed import Client
    from joblib import parallel_config

    try:
        client = Client(scheduler)
    except (OSError, ValueError) as error:
        raise OverhandError(f"no Dask scheduler at {scheduler}: {error}") from error
    with client, parallel_config(backend="dask"):
        yield


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A bar that moves with the work done, and what was done last."""
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    columns = (BarColumn(20), TaskProgressColumn(), *times, TextColumn("{task.description}"))
    with bar("starting", 1.0, *columns) as update:

        def tell(now: Progress) -> None:
            what = f"{now.tasks_done} of {now.tasks}, last {now.task}"
            update(completed=now.work_done, description=what)

        yield tell


@contextmanager
def _lines() -> Iterator[Callable[[Progress], None]]:
    """Write a line to a log whenever another tenth of the work is done."""
    told = 0

    def tell(now: Progress) -> None:
        nonlocal told
        if (tenths := int(10 * now.work_done + 1e-9)) > told:
            told = tenths
            messages.print(f"{10 * tenths} % done, last {now.task}")

    yield tell
