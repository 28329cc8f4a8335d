"""`overhand lab frontier`: error against messages, over mechanisms and shufflers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Trade:
    """What one of the feasible plans costs and reaches."""

    plan: Plan
    is_best: bool = False

    @property
    def is_shuffle_model(self) -> bool:
        return self.plan.noise_by == "users"

    @property
    def kind(self) -> str:
        return self.plan.mechanisms[0].kind

    @property
    def shufflers(self) -> str:
        """As many as there are levels, in a tree."""
        return str(self.plan.tree.levels) if self.is_shuffle_model else ""

    def summary(self) -> dict[str, Any]:
        return {
            "mechanism": self.kind,
            "noise_by": self.plan.noise_by,
            "tree": "regular",
            "shufflers": self.plan.tree.levels,
            "rms_error": self.plan.rms_error,
            "messages_per_user": self.plan.messages_per_user,
            "bits_per_user": self.plan.bits_per_user,
            "sealed_bytes_per_user": self.plan.costs.report_bytes,
            **self.plan.costs.seconds,
            "influence": self.plan.influence,
            "is_best": self.is_best,
        }


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
    trades = trades_of(asked)
    if plot is not None:
        frontier_figure([panel_of(asked, trades)]).savefig(plot)
    if as_json:
        output.print_json({"frontier": [trade.summary() for trade in trades]})
        return
    table = _table(trades)
    console.print(f"[bold]{asked.users:,} users ({escape(str(asked.values))})[/], {asked.privacy}")
    console.print(table)
    for line in _LEGEND:
        console.print(line, style="dim")
    output.tell_written(plot)


def _table(trades: list[Trade]) -> Table:
    """All trade-offs in 80 columns, no number truncated."""
    costly = ("messages", "sealed", "client\nms", "services\nms", "one\nclient")
    table = output.new_table("mechanism", "k", "rms\nerror", *costly)
    table.padding = (0, 1, 0, 0)
    for trade in trades:
        costs = trade.plan.costs
        table.add_row(
            f"{trade.kind} *" if trade.is_best else trade.kind,
            trade.shufflers,
            format_number(trade.plan.rms_error),
            f"{costs.messages:,}",
            format_bytes(costs.report_bytes),
            format_short(1000 * costs.client_seconds),
            format_short(1000 * (costs.shuffler_seconds + costs.server_seconds)),
            format_number(trade.plan.influence),
            style="bold" if trade.is_best else "",
        )
    return table


def trades_of(asked: PlanOptions) -> list[Trade]:
    """The plans of every mechanism and number of shufflers, unless fewer do as well."""
    numbers = range(1, asked.most_shufflers + 1)
    cases = [
        replace(asked, mechanism=kind, shufflers=k)
        for kind in kinds_of(asked.values, "users")
        for k in numbers
    ]
    of_services = kinds_of(asked.values, "services")  # which need no honest users
    cases += [replace(asked, mechanism=kind, shufflers=1, honest=1.0) for kind in of_services]
    trades: list[Trade] = []
    with output.steps_bar("planning", cases, lambda c: f"{c.mechanism}, {c.shufflers}") as steps:
        for case in steps:
            with suppress(Infeasible):
                plan = case.plan()
                if plan.tree.levels == case.shufflers:  # otherwise fewer were better: seen already
                    trades.append(Trade(plan))
    within = [trade for trade in trades if trade.is_shuffle_model]
    return [
        replace(trade, is_best=_is_best(trade, within if trade in within else trades))
        for trade in trades
    ]


def _is_best(trade: Trade, rivals: list[Trade]) -> bool:
    cost = trade.plan.messages_per_user, trade.plan.rms_error
    others = [(other.plan.messages_per_user, other.plan.rms_error) for other in rivals]
    return not any(o != cost and o[0] <= cost[0] and o[1] <= cost[1] for o in others)


def panel_of(asked: PlanOptions, trades: list[Trade]) -> Panel:
    """The trades as a figure shows them."""
    lines = []
    for kind in dict.fromkeys(trade.kind for trade in trades):
        own = [trade for trade in trades if trade.kind == kind]
        messages = np.array([trade.plan.messages_per_user for trade in own])
        errors = np.array([trade.plan.rms_error for trade in own])
        lines.append(Line(kind, messages, errors, marks=[trade.shufflers for trade in own]))
    return Panel(f"{asked.users:,} users ({asked.values}), {asked.privacy}", lines)
