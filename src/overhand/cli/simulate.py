"""`overhand simulate`: run a plan on a stream and measure the error."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from overhand.cli import options
from overhand.cli.options import PlanOptions
from overhand.cli.output import (
    check_figure,
    check_writable,
    console,
    new_table,
    number,
    plural,
    print_json,
    progress_bar,
    tell,
    working,
)
from overhand.errors import InvalidValue
from overhand.plan import Plan
from overhand.plots import Line, error_over_time
from overhand.simulation import Engine, PlanCounter, Simulation, plan_stream, read_rows
from overhand.simulation import simulate as run_simulation


@options.takes(PlanOptions, without=("error", "max_messages"))
def simulate(
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="A plan saved by `overhand plan --save`.")
    ] = None,
    *,
    asked: PlanOptions,
    input_form: options.Input = "ones",
    runs: options.Runs = 10,
    seed: options.Seed = 0,
    engine: Annotated[
        Engine,
        typer.Option(
            help="counts: a batch's noise is drawn once; messages: every message is made."
        ),
    ] = "counts",
    pending: options.PendingOption = "middle",
    plot: options.Figure = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the error over time as a CSV file.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run a plan on a stream of users and measure the error of every estimate."""
    check_figure(plot)
    check_writable("--save", save)
    plan = _best(asked, input_form) if plan_file is None else _loaded(plan_file, asked)
    counter, stream = PlanCounter(plan, engine, pending), plan_stream(input_form, plan)
    with progress_bar(
        f"{plural(runs, 'run')} of {stream.users:,} users", runs * stream.users
    ) as advance:
        result = run_simulation(counter, stream, runs=runs, seed=seed, progress=advance)
    if plot is not None:
        _plot(plan, result, plot)
    if save is not None:
        _save(plan, result, save)
    if as_json:
        print_json(
            {
                **result.summary(),
                "predicted_rms_error": plan.rms_error,
                "digest": plan.digest,
                "input": input_form,
                "seed": seed,
                "engine": engine,
                "pending": pending,
            }
        )
    else:
        _show(counter, result, input_form)


def _loaded(path: Path, asked: PlanOptions) -> Plan:
    if asked != PlanOptions():
        raise InvalidValue("give --plan or the options of a plan, not both")
    return Plan.load(path)


def _best(asked: PlanOptions, input_form: str) -> Plan:
    """A plan for as many users as the input file has, unless --horizon is given."""
    if Path(input_form).is_file() and not input_form.endswith(".csv"):
        raise InvalidValue(
            f"--input {input_form} must end in .csv; `overhand sum` reads other tables"
        )
    if asked.horizon is None and input_form.endswith(".csv"):
        asked = replace(asked, horizon=len(read_rows(Path(input_form), asked.values)))
    with working("searching for the best plan"):
        return asked.plan()


def _show(counter: PlanCounter, result: Simulation, form: str) -> None:
    plan, is_middle = counter.plan, counter.pending == "middle"
    table = new_table("", "measured", f"predicted{'' if is_middle else ', pending at the middle'}")
    table.add_row("rms error", number(result.rms_error), f"{number(plan.rms_error)} (worst input)")
    table.add_row("largest error, mean of runs", number(result.mean_max_error), "")
    table.add_row(
        "largest error of all runs",
        number(result.max_error),
        f"< {number(plan.error_bound(0.05 / result.runs))} (95 %)",
    )
    table.add_row("users per second", f"{result.users_per_second:,.0f}", "")
    tell(f"{plural(result.runs, 'run')} of {result.users:,} users, input {form}, {plan.privacy}")
    console.print(table)


def _predicted(plan: Plan, t: np.ndarray) -> np.ndarray:
    """The predicted error averaged over the users up to each of these times."""
    starts = np.concatenate([[0], t[:-1]])
    inner = np.linspace(starts + 1, t, 65).astype(np.int64)
    return np.asarray(np.sqrt(plan.squared_error(inner.reshape(-1)).reshape(inner.shape).mean(0)))


def _plot(plan: Plan, result: Simulation, path: Path) -> None:
    t = result.curve.t
    error_over_time(
        [
            Line(f"measured, {plural(result.runs, 'run')}", t, result.curve.rms),
            Line("predicted, worst input", t, _predicted(plan, t), "--"),
        ],
        path,
        title=f"{plan.horizon:,} users, {plan.tree.levels} shufflers, {plan.privacy}",
    )


def _save(plan: Plan, result: Simulation, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "rms_error", "predicted_rms_error"])
        predicted = _predicted(plan, result.curve.t)
        writer.writerows(
            zip(result.curve.t.tolist(), result.curve.rms.tolist(), predicted.tolist(), strict=True)
        )
