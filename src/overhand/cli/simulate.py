"""`overhand lab simulate` and `compare`: run plans, and what others offer, on a stream."""

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

from overhand.cli import options, output
from overhand.cli.options import TWO_SERVICES, PlanOptions
from overhand.cli.output import console, format_number, plural
from overhand.errors import InvalidValue
from overhand.lab import simulation
from overhand.lab.baselines import SquareRoot, local_counter, trusted_tree
from overhand.lab.lower_bound import repeats
from overhand.lab.plots import Line, comparison, error_over_time
from overhand.lab.simulation import Counter, Engine, Simulation, read_rows
from overhand.planning import Plan, kinds_of

_SERVER = "the server"
_TWO_SERVICES = "two services, not both"


@options.takes(PlanOptions, without=("error", "max_messages"))
def simulate(
    plan_file: Annotated[Path | None, typer.Option("--plan")] = None,
    *,
    asked: PlanOptions,
    input_form: options.Input = "ones",
    users: Annotated[int | None, options.Whole(show_default="as many as the plan expects")] = None,
    runs: options.Runs = 10,
    seed: options.Seed = 0,
    engine: Engine = "counts",
    pending: options.PendingOption = "middle",
    plot: options.Figure = None,
    save: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Run a plan on a stream of users and measure the error of every estimate.

    Args:
        plan_file: A plan saved by `overhand plan --save`.
        users: How many users come, if services make the noise: also more than expected.
        engine: counts: a batch's noise is drawn once; messages: every message is made.
        save: Write the error over time as a CSV file.
    """
    output.check_figure(plot)
    output.check_writable("--save", save)
    if plan_file is None:
        plan = _plan_for_input(asked, input_form)
    elif asked != PlanOptions():
        raise InvalidValue("give --plan or the options of a plan, not both")
    else:
        plan = Plan.load(plan_file)
    stream = simulation.plan_stream(input_form, plan, users)
    size = f"{plural(runs, 'run')} of {stream.users:,} users"
    with output.progress_bar(size, runs * stream.users) as advance:
        result = simulation.simulate(
            plan,
            stream,
            runs=runs,
            seed=seed,
            engine=engine,
            pending=pending,
            progress=advance,
        )
    t, predicted = result.curve.t, _predict(plan, result.curve.t)
    rms_error = plan.rms_error_over(max(plan.horizon, stream.users))
    if plot is not None:
        kind, levels = plan.mechanisms[0].kind, plan.tree.levels
        way = kind if plan.noise_by == "services" else f"{levels} shufflers"
        error_over_time(
            [
                Line(f"measured, {plural(result.runs, 'run')}", t, result.curve.rms),
                Line("predicted, worst input", t, predicted, "--"),
            ],
            plot,
            title=f"{stream.users:,} users, {way}, {plan.privacy}",
        )
    if save is not None:
        with save.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["t", "rms_error", "predicted_rms_error"])
            columns = t.tolist(), result.curve.rms.tolist(), predicted.tolist()
            writer.writerows(zip(*columns, strict=True))
    if as_json:
        output.print_json(
            {
                **result.summary(),
                "predicted_rms_error": rms_error,
                "digest": plan.digest,
                "input": input_form,
                "seed": seed,
                "engine": engine,
                "pending": pending,
            }
        )
        return
    at_middle = "" if pending == "middle" else ", pending at the middle"
    table = output.new_table("", "measured", f"predicted{at_middle}")
    worst = f"{format_number(rms_error)} (worst input)"
    bound = f"< {format_number(plan.error_bound(0.05 / result.runs))} (95 %)"
    if stream.users > plan.horizon:
        bound = ""  # it is for the users that are expected
    table.add_row("rms error", format_number(result.rms_error), worst)
    table.add_row("largest error, mean of runs", format_number(result.mean_max_error), "")
    table.add_row("largest error of all runs", format_number(result.max_error), bound)
    table.add_row("users per second", f"{result.users_per_second:,.0f}", "")
    output.tell(f"{size}, input {input_form}, {plan.privacy}")
    console.print(table)


def _plan_for_input(asked: PlanOptions, input_form: str) -> Plan:
    """A plan for as many users as the input file has, unless --horizon is given."""
    if Path(input_form).is_file() and not input_form.endswith(".csv"):
        raise InvalidValue(
            f"--input {input_form} must end in .csv; `overhand sum` reads other tables"
        )
    if asked.horizon is None and input_form.endswith(".csv"):
        asked = replace(asked, horizon=len(read_rows(Path(input_form), asked.values)))
    with output.show_status("searching for the best plan"):
        return asked.plan()


def _predict(plan: Plan, t: np.ndarray) -> np.ndarray:
    """The predicted error averaged over the users up to each of these times."""
    starts = np.concatenate([[0], t[:-1]])
    inner = np.linspace(starts + 1, t, 65).astype(np.int64)
    return np.asarray(np.sqrt(plan.squared_error(inner.reshape(-1)).reshape(inner.shape).mean(0)))


# --- compare --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """One way to publish a running sum."""

    name: str
    label: str
    trusted: str
    counter: Counter

    @property
    def is_ours(self) -> bool:
        return self.name in ("one-shuffler", "concurrent") or self.trusted == _TWO_SERVICES

    def row(self, result: Simulation) -> dict[str, Any]:
        return {
            "name": self.name,
            "trusted": self.trusted,
            "rms_error": result.rms_error,
            "max_error": result.max_error,
            "mean_max_error": result.mean_max_error,
            "predicted_rms_error": self.counter.rms_error,
            "worst_std": self.counter.worst_std,
            "delta_spent": self.counter.delta_spent,
            "messages_per_user": 1 if self.trusted == _SERVER else self.counter.messages_per_user,
        }


@options.takes(
    PlanOptions, without=("clip", "honest", "reports", "composition", "error", "max_messages")
)
def compare(
    asked: PlanOptions,
    input_form: options.Input = "ones",
    runs: options.Runs = 10,
    seed: options.Seed = 0,
    pending: options.PendingOption = "middle",
    plot: options.Figure = None,
    save: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Compare the errors of local privacy, shufflers, two services and a trusted server.

    All run on the same input at the same epsilon and delta, each with its best noise.

    Args:
        save: Write the table to a .csv or .md file.
    """
    output.check_figure(plot)
    output.check_writable("--save", save, ".csv", ".md")
    k, epsilon = asked.most_shufflers, asked.privacy.epsilon
    stream = simulation.stream_for(
        input_form, asked.users, values=asked.values, shufflers=k, epsilon=epsilon
    )
    paper, of_services = _families(asked)
    known = _sides(paper, of_services)
    with output.steps_bar("planning", known, lambda side: side[1]) as sides:
        models = [Model(name, label, trusted, find()) for name, label, trusted, find in sides]
    with output.progress_bar("running", runs * stream.users * len(models)) as advance:
        results = [
            simulation.simulate(
                model.counter,
                stream,
                runs=runs,
                seed=seed,
                pending=pending if model.is_ours else "middle",
                progress=advance,
            )
            for model in models
        ]
    rows = [model.row(result) for model, result in zip(models, results, strict=True)]
    our_name = "concurrent" if paper is asked else of_services[0]
    ours = next(model.counter for model in models if model.name == our_name)
    assert isinstance(ours, Plan)
    mechanism = ours.mechanisms[0].kind
    bound = asked.values.width * repeats(asked.users, k, epsilon)
    if plot is not None:
        _plot_comparison(paper, of_services, models, results, plot)
    if save is not None:
        save.write_text(_as_text(rows, save.suffix), encoding="utf-8")
    if as_json:
        output.print_json(
            {
                "horizon": asked.users,
                "shufflers": k,
                "epsilon": epsilon,
                "delta": asked.delta,
                "values": asked.spec,
                "mechanism": mechanism,
                "noise_by": ours.noise_by,
                "input": input_form,
                "runs": runs,
                "seed": seed,
                "pending": pending,
                "lower_bound": bound,
                "models": rows,
            }
        )
        return
    users = "users" if asked.spec == "bit" else f"users ({escape(asked.spec)})"
    how = f"{plural(runs, 'run')} on input {escape(input_form)}"
    console.print(f"[bold]{asked.users:,} {users}[/], {asked.privacy}; {how}")
    table = output.new_table("", "rms error", "predicted", "largest", "vs ours", "messages")
    for model, row in zip(models, rows, strict=True):
        ratio = row["predicted_rms_error"] / ours.rms_error
        table.add_row(
            model.label,
            format_number(row["rms_error"]),
            format_number(row["predicted_rms_error"]),
            format_number(row["mean_max_error"]),
            f"{ratio:.2f} x" if ratio < 1000 else f"{format_number(ratio)} x",
            format_number(row["messages_per_user"]),
            style="bold" if model.name == our_name else "",
        )
    console.print(table)
    console.print(
        f"No algorithm of the shuffle model with {k} shufflers can do better than an error of "
        f"order rep = {format_number(bound)} (Theorem 4.1). Two services that do not collude are "
        "outside of it.",
        style="dim",
    )
    output.tell_written(plot, save)


def _sides(
    asked: PlanOptions, of_services: list[str]
) -> list[tuple[str, str, str, Callable[[], Counter]]]:
    """Name, label, who is trusted, and how to calibrate it, which takes a moment."""
    users, k, privacy, values = asked.users, asked.most_shufflers, asked.privacy, asked.values
    one, several = "one shuffler", f"{k} shufflers"

    published = partial(Plan.published, users, k, privacy, values=values)
    alone = replace(asked, shufflers=1, tree="regular")
    blocks = {kind: replace(alone, mechanism=kind) for kind in of_services}
    tree = partial(trusted_tree, users, privacy, values=values)
    best_known = partial(SquareRoot, users, privacy, values)
    return [
        ("local", "local", "nobody", partial(local_counter, users, privacy, values)),
        ("published", f"{several}, published", several, published),
        ("one-shuffler", one, one, alone.plan),
        ("concurrent", f"{several}, ours", several, asked.plan),
        *(
            (kind, f"two services: {kind}", _TWO_SERVICES, plans.plan)
            for kind, plans in blocks.items()
        ),
        ("trusted-tree", "trusted: binary tree", _SERVER, partial(tree, combine=False)),
        ("trusted-tree-combined", "trusted: tree, combined", _SERVER, partial(tree, combine=True)),
        ("trusted-square-root", "trusted: best known", _SERVER, best_known),
    ]


def _families(asked: PlanOptions) -> tuple[PlanOptions, list[str]]:
    """What is asked of the paper's family, and the kinds of the services' family."""
    of_services = kinds_of(asked.values, "services")
    if asked.mechanism not in (TWO_SERVICES, *of_services):
        return asked, of_services
    return replace(asked, mechanism=None), [asked.plan().mechanisms[0].kind]


def _as_text(rows: list[dict[str, Any]], suffix: str) -> str:
    names = list(rows[0])
    cells = [[x if isinstance(x, str) else f"{x:.6g}" for x in row.values()] for row in rows]
    if suffix == ".md":
        lines = [names, ["---"] * len(names), *cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *cells])
    return text.getvalue()


def _plot_comparison(
    asked: PlanOptions,
    of_services: list[str],
    models: list[Model],
    results: list[Simulation],
    path: Path,
) -> None:
    """Errors over time, and by the number of shufflers: that needs a plan for each."""
    users, privacy, values = asked.users, asked.privacy, asked.values
    over_time = [
        Line(m.label, r.curve.t, r.curve.rms, "--" if m.trusted == _SERVER else "-")
        for m, r in zip(models, results, strict=True)
    ]
    counts = range(1, max(asked.most_shufflers, 3) + 1)
    published = [Plan.published(users, k, privacy, values=values).rms_error for k in counts]
    ours = [replace(asked, shufflers=k, tree="regular").plan().rms_error for k in counts]
    bound = [values.width * repeats(users, k, privacy.epsilon) for k in counts]
    by_shufflers = [
        Line("as published", np.array(counts), np.array(published)),
        Line("ours", np.array(counts), np.array(ours)),
        Line("lower bound rep (up to constants)", np.array(counts), np.array(bound), "--"),
    ]
    levels = [
        (model.label, model.counter.rms_error)
        for model in models
        if model.name in ("local", *of_services, "trusted-square-root")
    ]
    comparison(over_time, by_shufflers, levels, path, title=f"{users:,} users, {privacy}")
