"""`overhand compare`: who must be trusted, and what it costs in accuracy."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from overhand.baselines import SquareRoot, local_counter, trusted_tree
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
    steps_bar,
    tell_written,
)
from overhand.lower_bound import repeats
from overhand.plan import Plan
from overhand.plots import Line, comparison
from overhand.simulation import Counter, PlanCounter, Simulation, stream_for
from overhand.simulation import simulate as run_simulation
from overhand.summation import Pending

_SERVER = "the server"


@dataclass(frozen=True)
class Model:
    """One way to publish a running sum."""

    name: str
    label: str
    trusted: str
    counter: Plan | Counter

    @property
    def messages(self) -> int:
        return 1 if self.trusted == _SERVER else self.counter.messages_per_user


@options.takes(
    PlanOptions,
    without=("clip", "honest", "reports", "composition", "error", "max_messages"),
)
def compare(
    asked: PlanOptions,
    input_form: options.Input = "ones",
    runs: options.Runs = 10,
    seed: options.Seed = 0,
    pending: options.PendingOption = "middle",
    plot: options.Figure = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the table to a .csv or .md file.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare the errors of local privacy, one shuffler, k shufflers and a trusted server.

    All run on the same input at the same epsilon and delta, each with its best noise.
    """
    check_figure(plot)
    check_writable("--save", save, ".csv", ".md")
    k, epsilon = asked.most_shufflers, asked.privacy.epsilon
    stream = stream_for(input_form, asked.users, values=asked.values, shufflers=k, epsilon=epsilon)
    models = _models(asked, pending)
    with progress_bar("running", runs * stream.users * len(models)) as advance:
        results = [
            run_simulation(model.counter, stream, runs=runs, seed=seed, progress=advance)
            for model in models
        ]
    rows = [_row(model, result) for model, result in zip(models, results, strict=True)]
    bound = asked.values.width * repeats(asked.users, k, epsilon)
    if plot is not None:
        _plot(asked, models, results, plot)
    if save is not None:
        save.write_text(_as_text(rows, save.suffix), encoding="utf-8")
    if as_json:
        print_json(
            {
                "horizon": asked.users,
                "shufflers": k,
                "epsilon": epsilon,
                "delta": asked.delta,
                "values": asked.spec,
                "mechanism": _kinds(models),
                "noise_by": asked.noise,
                "input": input_form,
                "runs": runs,
                "seed": seed,
                "pending": pending,
                "lower_bound": bound,
                "models": rows,
            }
        )
        return
    _show(asked, models, rows, f"{plural(runs, 'run')} on input {input_form}")
    model = " of the shuffle model" if options.model_note(_kinds(models), asked.noise) else ""
    console.print(
        f"No algorithm{model} with {k} shufflers can do better than an error of order "
        f"rep = {number(bound)} (Theorem 4.1).",
        style="dim",
    )
    tell_written(plot, save)


def _models(asked: PlanOptions, pending: Pending) -> list[Model]:
    """Every side, calibrated; each is a step that takes a moment."""
    with steps_bar("planning", _sides(asked, pending), lambda side: side[1]) as sides:
        return [
            Model(name, label, trusted, calibrate()) for name, label, trusted, calibrate in sides
        ]


def _sides(
    asked: PlanOptions, pending: Pending
) -> list[tuple[str, str, str, Callable[[], Plan | Counter]]]:
    """Name, label, who is trusted, and how to calibrate it."""
    users, k, privacy, values = asked.users, asked.most_shufflers, asked.privacy, asked.values
    one, several = "one shuffler", f"{k} shufflers"

    def ours(plans: PlanOptions) -> Counter:
        return PlanCounter(plans.plan(), pending=pending)

    published = partial(Plan.published, users, k, privacy, values=values)
    alone = replace(asked, shufflers=1, tree="regular")
    tree = partial(trusted_tree, users, privacy, values=values)
    best_known = partial(SquareRoot, users, privacy, values)
    return [
        ("local", "local", "nobody", partial(local_counter, users, privacy, values)),
        ("published", f"{several}, published", several, published),
        ("one-shuffler", one, one, partial(ours, alone)),
        ("concurrent", f"{several}, ours", several, partial(ours, asked)),
        ("trusted-tree", "trusted: binary tree", _SERVER, partial(tree, combine=False)),
        ("trusted-tree-combined", "trusted: tree, combined", _SERVER, partial(tree, combine=True)),
        ("trusted-square-root", "trusted: best known", _SERVER, best_known),
    ]


def _kinds(models: list[Model]) -> str:
    """How values are sent in our plan."""
    ours = next(model.counter for model in models if model.name == "concurrent")
    assert isinstance(ours, PlanCounter)
    return ours.plan.mechanisms[0].kind


def _row(model: Model, result: Simulation) -> dict[str, Any]:
    return {
        "name": model.name,
        "trusted": model.trusted,
        "rms_error": result.rms_error,
        "max_error": result.max_error,
        "mean_max_error": result.mean_max_error,
        "predicted_rms_error": model.counter.rms_error,
        "worst_std": model.counter.worst_std,
        "delta_spent": model.counter.delta_spent,
        "messages_per_user": model.messages,
    }


def _show(asked: PlanOptions, models: list[Model], rows: list[dict[str, Any]], how: str) -> None:
    users = "users" if asked.spec == "bit" else f"users ({escape(asked.spec)})"
    console.print(f"[bold]{asked.users:,} {users}[/], {asked.privacy}; {escape(how)}")
    kind = _kinds(models)
    if note := options.model_note(kind, asked.noise):
        console.print(f"ours and one shuffler send {kind}{note}")
    ours = next(row for row in rows if row["name"] == "concurrent")
    table = new_table("", "rms error", "predicted", "largest", "vs ours", "messages")
    for model, row in zip(models, rows, strict=True):
        style = "bold" if model.name == "concurrent" else ""
        ratio = row["predicted_rms_error"] / ours["predicted_rms_error"]
        table.add_row(
            model.label,
            number(row["rms_error"]),
            number(row["predicted_rms_error"]),
            number(row["mean_max_error"]),
            f"{ratio:.2f} x" if ratio < 1000 else f"{number(ratio)} x",
            number(row["messages_per_user"]),
            style=style,
        )
    console.print(table)


def _as_text(rows: list[dict[str, Any]], suffix: str) -> str:
    names = list(rows[0])
    cells = [
        [row[n] if isinstance(row[n], str) else f"{row[n]:.6g}" for n in names] for row in rows
    ]
    if suffix == ".md":
        lines = [names, ["---"] * len(names), *cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *cells])
    return text.getvalue()


def _plot(asked: PlanOptions, models: list[Model], results: list[Simulation], path: Path) -> None:
    """The two figures of the comparison; the second needs a plan for every number of shufflers."""
    over_time = [
        Line(m.label, r.curve.t, r.curve.rms, "--" if m.trusted == _SERVER else "-")
        for m, r in zip(models, results, strict=True)
    ]
    counts = list(range(1, max(asked.most_shufflers, 3) + 1))
    by_shufflers = _by_shufflers(asked, counts)
    levels = [
        (model.label, model.counter.rms_error)
        for model in models
        if model.name in ("local", "trusted-square-root")
    ]
    title = f"{asked.users:,} users, {asked.privacy}"
    comparison(over_time, by_shufflers, levels, path, title=title)


def _by_shufflers(asked: PlanOptions, counts: list[int]) -> list[Line]:
    users, privacy, values = asked.users, asked.privacy, asked.values

    published = [Plan.published(users, k, privacy, values=values).rms_error for k in counts]
    bound = [values.width * repeats(users, k, privacy.epsilon) for k in counts]
    ours = [replace(asked, shufflers=k, tree="regular").plan().rms_error for k in counts]
    x = np.array(counts)
    return [
        Line("as published", x, np.array(published)),
        Line("ours", x, np.array(ours)),
        Line("lower bound rep (up to constants)", x, np.array(bound), "--"),
    ]
