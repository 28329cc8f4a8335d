"""`overhand plan --frontier`: error against messages, over mechanisms and shufflers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from overhand.cli.options import PlanOptions
from overhand.cli.output import (
    console,
    new_table,
    number,
    print_json,
    short,
    size,
    steps_bar,
    tell_written,
)
from overhand.errors import Infeasible
from overhand.mechanisms import MECHANISMS
from overhand.model import NoiseBy
from overhand.plan import NOISE_MAKERS, Plan, kinds_of
from overhand.plots import Line, Panel, frontier_figure

_LEGEND = (
    "k: shufflers; *: nothing else in the shuffle model has both less error and fewer messages",
    "sealed: a report on the wire; ms: processor time, as measured on one machine;",
    "one client: the most that one client can add to a sum;",
    "services: the two services add the noise, each its own, instead of the users",
)


@dataclass(frozen=True)
class Trade:
    """What one of the feasible plans costs and reaches."""

    mechanism: str
    shufflers: int
    plan: Plan
    is_best: bool = False

    @property
    def is_shuffle_model(self) -> bool:
        return MECHANISMS[self.mechanism].is_shuffle_model and self.plan.noise_by == "users"

    @property
    def way(self) -> str:
        """How values are sent, and who makes the noise if users do not."""
        return self.mechanism + (", services" if self.plan.noise_by == "services" else "")

    def summary(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "noise_by": self.plan.noise_by,
            "tree": "regular",
            "shufflers": self.shufflers,
            "rms_error": self.plan.rms_error,
            "messages_per_user": self.plan.messages_per_user,
            "bits_per_user": self.plan.bits_per_user,
            "sealed_bytes_per_user": self.plan.costs.report_bytes,
            **self.plan.costs.seconds,
            "influence": self.plan.influence,
            "is_best": self.is_best,
        }


def show_frontier(asked: PlanOptions, plot: Path | None, *, as_json: bool) -> None:
    """The table, the figure, or the JSON object."""
    asked.check_unused(
        "--frontier shows every trade-off of regular trees",
        *("error", "max_messages", "tree", "mechanism", "noise"),
    )
    trades = trades_of(asked)
    if plot is not None:
        frontier_figure([panel_of(asked, trades)], plot)
    if as_json:
        print_json({"frontier": [trade.summary() for trade in trades]})
        return
    table = _table(trades)
    console.print(f"[bold]{asked.users:,} users ({escape(str(asked.values))})[/], {asked.privacy}")
    console.print(table)
    for line in _LEGEND:
        console.print(line, style="dim")
    tell_written(plot)


def _table(trades: list[Trade]) -> Table:
    """All trade-offs in 80 columns, no number truncated."""
    table = new_table(
        "mechanism",
        "k",
        "rms\nerror",
        "messages",
        "sealed",
        "client\nms",
        "services\nms",
        "one\nclient",
    )
    table.padding = (0, 1, 0, 0)
    for trade in trades:
        costs = trade.plan.costs
        table.add_row(
            f"{trade.way} *" if trade.is_best else trade.way,
            str(trade.shufflers),
            number(trade.plan.rms_error),
            f"{costs.messages:,}",
            size(costs.report_bytes),
            short(1000 * costs.client_seconds),
            short(1000 * (costs.shuffler_seconds + costs.server_seconds)),
            number(trade.plan.influence),
            style="bold" if trade.is_best else "",
        )
    return table


def trades_of(asked: PlanOptions) -> list[Trade]:
    """The plans of every mechanism and number of shufflers, unless fewer do as well."""
    cases = [(way, k) for way in _ways(asked) for k in range(1, asked.most_shufflers + 1)]
    trades: list[Trade] = []
    with steps_bar("planning", cases, lambda case: f"{case[0]}, {case[1]}") as steps:
        for (mechanism, noise), k in steps:
            try:
                plan = replace(asked, mechanism=mechanism, noise=noise, shufflers=k).plan()
            except Infeasible:
                plan = None
            if plan is not None and plan.tree.levels == k:  # fewer were better: seen already
                trades.append(Trade(mechanism, k, plan))
    within = [trade for trade in trades if trade.is_shuffle_model]
    return [
        replace(trade, is_best=_is_best(trade, within if trade in within else trades))
        for trade in trades
    ]


def _ways(asked: PlanOptions) -> list[tuple[str, NoiseBy]]:
    """Mechanisms, and who makes their noise: the services need no honest users."""
    makers = NOISE_MAKERS if asked.honest == 1 else NOISE_MAKERS[:1]
    return [(kind, by) for by in makers for kind in kinds_of(asked.values, by)]


def _is_best(trade: Trade, rivals: list[Trade]) -> bool:
    cost = trade.plan.messages_per_user, trade.plan.rms_error
    others = [(other.plan.messages_per_user, other.plan.rms_error) for other in rivals]
    return not any(o != cost and o[0] <= cost[0] and o[1] <= cost[1] for o in others)


def panel_of(asked: PlanOptions, trades: list[Trade]) -> Panel:
    """The trades as a figure shows them."""
    ways = dict.fromkeys(trade.way for trade in trades)
    lines = [_line([trade for trade in trades if trade.way == way]) for way in ways]
    return Panel(f"{asked.users:,} users ({asked.values}), {asked.privacy}", lines)


def _line(trades: list[Trade]) -> Line:
    """The trade-offs of one mechanism."""
    return Line(
        trades[0].way,
        np.array([trade.plan.messages_per_user for trade in trades]),
        np.array([trade.plan.rms_error for trade in trades]),
        marks=[str(trade.shufflers) for trade in trades],
    )
