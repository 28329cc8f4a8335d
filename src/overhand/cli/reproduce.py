"""`overhand reproduce`: every quantitative claim of the paper, measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from overhand.cli import options
from overhand.cli.output import console, messages, new_table
from overhand.errors import InvalidValue


def reproduce(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="An hour's measurements, or two minutes'.")
    ] = False,
    sections: Annotated[
        str, typer.Option(help="Some of the sections, separated by commas; all if not given.")
    ] = "",
    output: Annotated[
        Path, typer.Option(help="The report; a .json with all numbers is written beside it.")
    ] = Path("reproduction.html"),
    seed: options.Seed = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; as many as cores if not given.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure every quantitative claim of the paper, and write one report with all figures.

    Exit code 1 if a check is missed.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from overhand.evidence import FULL, QUICK
    from overhand.evidence import reproduce as run
    from overhand.evidence.report import html
    from overhand.evidence.reproduction import SECTIONS

    if output.suffix != ".html" or not output.parent.is_dir():
        raise InvalidValue(f"--output {output} must end in .html, in a directory that is there")
    chosen = tuple(name.strip() for name in sections.split(",") if name.strip()) or tuple(SECTIONS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        bar = progress.add_task("measuring", total=None)
        found = run(
            replace(FULL if full else QUICK, seed=seed),
            chosen,
            jobs=-1 if jobs is None else jobs,
            progress=lambda name, total: progress.update(
                bar, description=f"measuring ({name})", total=total, advance=1
            ),
        )
    output.write_text(html(found), encoding="utf-8")
    output.with_suffix(".json").write_text(found.to_json() + "\n", encoding="utf-8")
    if as_json:
        print(found.to_json())
    else:
        table = new_table("claim", "checks", "met")
        for finding in found.findings:
            met = sum(check.is_met for check in finding.checks)
            table.add_row(finding.title, str(len(finding.checks)), str(met))
        console.print(table)
        console.print(f"wrote {output} and {output.with_suffix('.json')}")
    if not found.is_met:
        raise typer.Exit(1)
