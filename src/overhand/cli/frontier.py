"""`overhand lab frontier`: error against messages, over mechanisms and shufflers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from overhand.cli import options, output
from overhand.cli.options import PlanOptions
from overhand.cli.output import console, format_bytes, format_number, format_short
from overhand.errors import Infeasible
from overhand.lab.plots import Line, Panel, frontier_figure
from overhand.planning import Plan, kinds_of

_LEGEND = (
    "k: shufflers; *: nothing else in the shuffle model has both less error and fewer messages",
    "sealed: a report on the wire; ms: processor time, as measured on one machine;",
    "one client: the most that one client can add to a sum;",
    "pairs, ballots: each of two services adds noise to one level of blocks, instead of the users",
)


@options.takes(PlanOptions)
def frontier(
    asked: PlanOptions, plot: options.Figure = None, as_json: options.Json = False
) -> None:
    """Compare error and messages over mechanisms and numbers of shufflers."""
    output.check_figure(plot)
    asked.check_unused(
        "the frontier has every trade-off of regular trees",
        *("error", "max_messages", "tree", "mechanism"),
    )
    plans = trades_of(asked)
    if plot is not None:
        frontier_figure([panel_of(asked, plans)]).savefig(plot)
    if as_json:
        output.print_json({"frontier": [_summary(plan, _is_best(plan, plans)) for plan in plans]})
        return
    console.print(f"[bold]{asked.users:,} users ({escape(str(asked.values))})[/], {asked.privacy}")
    console.print(_table(plans))
    for line in _LEGEND:
        console.print(line, style="dim")
    output.tell_written(plot)


def _kind(plan: Plan) -> str:
    return plan.mechanisms[0].kind


def _shufflers(plan: Plan) -> str:
    """As many as there are levels, in a tree."""
    return str(plan.tree.levels) if plan.noise_by == "users" else ""


def _summary(plan: Plan, is_best: bool) -> dict[str, Any]:
    return {
        "mechanism": _kind(plan),
        "noise_by": plan.noise_by,
        "tree": "regular",
        "shufflers": plan.tree.levels,
        "rms_error": plan.rms_error,
        "messages_per_user": plan.messages_per_user,
        "bits_per_user": plan.bits_per_user,
        "sealed_bytes_per_user": plan.costs.report_bytes,
        **plan.costs.seconds,
        "influence": plan.influence,
        "is_best": is_best,
    }


def _table(plans: list[Plan]) -> Table:
    """All trade-offs in 80 columns, no number truncated."""
    costly = ("messages", "sealed", "client\nms", "services\nms", "one\nclient")
    table = output.new_table("mechanism", "k", "rms\nerror", *costly)
    table.padding = (0, 1, 0, 0)
    for plan in plans:
        costs, best = plan.costs, _is_best(plan, plans)
        table.add_row(
            f"{_kind(plan)} *" if best else _kind(plan),
            _shufflers(plan),
            format_number(plan.rms_error),
            f"{costs.messages:,}",
            format_bytes(costs.report_bytes),
            format_short(1000 * costs.client_seconds),
            format_short(1000 * (costs.shuffler_seconds + costs.server_seconds)),
            format_number(plan.influence),
            style="bold" if best else "",
        )
    return table


def trades_of(asked: PlanOptions) -> list[Plan]:
    """The plans of every mechanism and number of shufflers, unless fewer do as well."""
    numbers = range(1, asked.most_shufflers + 1)
    cases = [
        replace(asked, mechanism=kind, shufflers=k)
        for kind in kinds_of(asked.values, "users")
        for k in numbers
    ]
    of_services = kinds_of(asked.values, "services")  # which need no honest users
    cases += [replace(asked, mechanism=kind, shufflers=1, honest=1.0) for kind in of_services]
    plans: list[Plan] = []
    with output.steps_bar("planning", cases, lambda c: f"{c.mechanism}, {c.shufflers}") as steps:
        for case in steps:
            with suppress(Infeasible):
                plan = case.plan()
                if plan.tree.levels == case.shufflers:  # otherwise fewer were better: seen already
                    plans.append(plan)
    return plans


def _is_best(plan: Plan, plans: list[Plan]) -> bool:
    """Whether no other has less error, or fewer messages, without more of the other.

    A plan of the shuffle model is compared with those of that model only.
    """
    cost = plan.messages_per_user, plan.rms_error
    others = [
        (other.messages_per_user, other.rms_error)
        for other in plans
        if plan.noise_by == "services" or other.noise_by == "users"
    ]
    return not any(o != cost and o[0] <= cost[0] and o[1] <= cost[1] for o in others)


def panel_of(asked: PlanOptions, plans: list[Plan]) -> Panel:
    """The trades as a figure shows them."""
    lines = []
    for kind in dict.fromkeys(map(_kind, plans)):
        own = [plan for plan in plans if _kind(plan) == kind]
        messages = np.array([plan.messages_per_user for plan in own])
        errors = np.array([plan.rms_error for plan in own])
        lines.append(Line(kind, messages, errors, marks=list(map(_shufflers, own))))
    return Panel(f"{asked.users:,} users ({asked.values}), {asked.privacy}", lines)
