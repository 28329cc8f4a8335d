"""`overhand plan`: choose a plan and show it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from overhand.cli import options
from overhand.cli.frontier import show_frontier
from overhand.cli.options import DEFAULT_DELTA, PlanOptions
from overhand.cli.output import console, levels_table, number, print_json, working
from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import MECHANISMS
from overhand.plan import DEFAULT_FAILURE_PROBABILITY, Plan
from overhand.plots import check_figure_path

_MANY_MESSAGES = 1000


def plan(
    horizon: options.Horizon = None,
    shufflers: options.Shufflers = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = DEFAULT_DELTA,
    values: options.ValuesOption = "bit",
    clip: options.Clip = False,
    tree: options.TreeOption = "regular",
    honest: options.Honest = 1.0,
    reports: options.Reports = 1,
    composition: options.CompositionOption = "exact",
    error: options.Error = None,
    mechanism: options.MechanismOption = "coins",
    max_messages: options.MaxMessages = None,
    published: Annotated[
        bool, typer.Option("--published", help="The paper to the letter, constants and all.")
    ] = False,
    frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Error against messages, over mechanisms and shufflers."),
    ] = False,
    plot: options.Figure = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Choose the plan of least error for a guarantee, and show what it will cost and reach."""
    limits = honest, reports, composition, error, max_messages
    asked = PlanOptions(horizon, shufflers, epsilon, delta, values, mechanism, tree, clip, *limits)
    if save is not None and not save.parent.is_dir():
        raise InvalidValue(f"--save {save}: there is no directory {save.parent}")
    if plot is not None and not frontier:
        raise InvalidValue("--plot draws the --frontier: give both")
    check_figure_path(plot)
    if frontier:
        show_frontier(asked, plot, as_json=as_json)
        return
    chosen = _published(asked) if published else _best(asked)
    beside = {} if published else _beside(asked, chosen)
    if save is not None:
        chosen.save(save)
    if as_json:
        others = {
            name: {"rms_error": other.rms_error, "messages_per_user": other.messages_per_user}
            for name, other in beside.items()
        }
        print_json({**chosen.summary(), **others})
    else:
        show(chosen, beside)
        if save is not None:
            console.print(f"saved to {save}")
        if not published:
            _advise(asked, chosen)


def _published(asked: PlanOptions) -> Plan:
    if asked.error is not None or asked.max_messages is not None:
        raise InvalidValue(
            "--published has no choice to make: --error and --max-messages do not go with it"
        )
    levels = None if asked.tree == "binary" else asked.most_shufflers
    return Plan.published(asked.users, levels, asked.privacy, values=asked.values)


def _best(asked: PlanOptions) -> Plan:
    with working("searching for the best plan"):
        return asked.plan()


def _advise(asked: PlanOptions, chosen: Plan) -> None:
    """Name a mechanism that takes far fewer messages, where they are many."""
    if chosen.messages_per_user <= _MANY_MESSAGES:
        return
    for kind in set(MECHANISMS) - {m.kind for m in chosen.mechanisms}:
        at = replace(
            asked, mechanism=kind, max_messages=None, error=None, epsilon=chosen.privacy.epsilon
        )
        with working(f"looking at --mechanism {kind}"), suppress(Infeasible):
            messages = at.plan().messages_per_user
            if 2 * messages <= chosen.messages_per_user:
                console.print(f"--mechanism {kind} takes {messages:,} messages", style="dim")


def _beside(asked: PlanOptions, chosen: Plan) -> dict[str, Plan]:
    """The plans that tell what the chosen one gains, and what a limit on messages costs."""
    beside = {
        "published": Plan.published(
            chosen.horizon, chosen.shufflers, chosen.privacy, values=chosen.values
        )
    }
    if asked.max_messages is not None:
        with working("searching for the plan without the limit"):
            free = replace(asked, max_messages=None, error=None, epsilon=chosen.privacy.epsilon)
            beside["unlimited"] = free.plan()
    return beside


def show(plan: Plan, beside: dict[str, Plan]) -> None:
    """The plan as tables."""
    users = "users" if plan.values.spec == "bit" else f"users ({plan.values})"
    console.print(
        f"[bold]{plan.horizon:,} {users}[/], {plan.tree.levels} of {plan.shufflers} shufflers "
        f"at [bold]epsilon {plan.privacy.epsilon:.4g}[/], delta {plan.privacy.delta:g}"
    )
    console.print(levels_table(plan))
    facts = Table(show_header=False, box=None)
    facts.add_row(*_error_row(plan))
    facts.add_row("largest standard deviation", number(plan.worst_std))
    facts.add_row(
        f"all errors below, with probability {1 - DEFAULT_FAILURE_PROBABILITY:.0%}",
        number(plan.error_bound()),
    )
    facts.add_row(
        "messages per user", f"{plan.messages_per_user:,} ({plan.bits_per_user / 8:,.0f} bytes)"
    )
    facts.add_row("delta spent, certified", f"{plan.delta_spent:.4g} of {plan.privacy.delta:g}")
    if plan.honest < 1 or plan.reports > 1:
        reports = "1 report" if plan.reports == 1 else f"up to {plan.reports} reports"
        facts.add_row("counted on", f"{plan.honest:.0%} honest users, {reports} each")
    labels = {"published": "as published", "unlimited": "without the limit"}
    for name, other in beside.items():
        facts.add_row(labels[name], _against(other, plan))
    facts.add_row("digest", plan.digest[:16])
    console.print(facts)


def _error_row(plan: Plan) -> tuple[str, Any]:
    what = "rms error" if plan.values.is_scalar else "rms error of a coordinate"
    return f"{what}, worst input", f"[bold]{number(plan.rms_error)}[/]"


def _against(other: Plan, plan: Plan) -> str:
    ratio = other.rms_error / plan.rms_error
    return (
        f"rms error {number(other.rms_error)} ({number(ratio)} x), "
        f"{other.messages_per_user:,} messages"
    )
