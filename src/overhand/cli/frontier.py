"""`overhand plan --frontier`: error against messages, over mechanisms and shufflers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from overhand.cli.options import PlanOptions
from overhand.cli.output import console, new_table, number, print_json, steps_bar, tell_written
from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import MECHANISMS
from overhand.plan import Plan
from overhand.plots import Line, frontier_figure


@dataclass(frozen=True)
class Trade:
    """What one plan among those that could be had costs and reaches."""

    mechanism: str
    shufflers: int
    plan: Plan
    is_best: bool = False

    def summary(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "tree": "regular",
            "shufflers": self.shufflers,
            "rms_error": self.plan.rms_error,
            "messages_per_user": self.plan.messages_per_user,
            "bits_per_user": self.plan.bits_per_user,
            "is_best": self.is_best,
        }


def show_frontier(asked: PlanOptions, plot: Path | None, *, as_json: bool) -> None:
    """The table, the figure, or the JSON object."""
    if asked.error is not None or asked.max_messages is not None:
        raise InvalidValue("--frontier shows all trades: --error and --max-messages make one")
    if asked.tree != "regular":
        raise InvalidValue(f"--frontier compares regular trees, not those of --tree {asked.tree}")
    trades = _trades(asked)
    if plot is not None:
        frontier_figure(_lines(trades), plot, title=f"{asked.users:,} users, {asked.privacy}")
    if as_json:
        print_json({"frontier": [trade.summary() for trade in trades]})
        return
    table = new_table("mechanism", "shufflers", "rms error", "messages", "bytes", "best")
    for trade in trades:
        table.add_row(
            trade.mechanism,
            str(trade.shufflers),
            number(trade.plan.rms_error),
            f"{trade.plan.messages_per_user:,}",
            f"{trade.plan.bits_per_user / 8:,.0f}",
            "*" if trade.is_best else "",
            style="bold" if trade.is_best else "",
        )
    console.print(f"[bold]{asked.users:,} users ({asked.values})[/], {asked.privacy}")
    console.print(table)
    console.print("* no other has both less error and fewer messages", style="dim")
    tell_written(plot)


def _trades(asked: PlanOptions) -> list[Trade]:
    cases = [(m, k) for m in MECHANISMS for k in range(1, asked.most_shufflers + 1)]
    trades: list[Trade] = []
    with steps_bar("planning", cases, lambda case: f"{case[0]}, {case[1]}") as steps:
        for mechanism, k in steps:
            try:
                plan = replace(asked, mechanism=mechanism, shufflers=k).plan()
            except Infeasible:
                plan = None
            if plan is not None and plan.tree.levels == k:  # fewer were better: seen already
                trades.append(Trade(mechanism, k, plan))
    return [replace(trade, is_best=_is_best(trade, trades)) for trade in trades]


def _is_best(trade: Trade, trades: list[Trade]) -> bool:
    cost = trade.plan.messages_per_user, trade.plan.rms_error
    others = [(other.plan.messages_per_user, other.plan.rms_error) for other in trades]
    return not any(o != cost and o[0] <= cost[0] and o[1] <= cost[1] for o in others)


def _lines(trades: list[Trade]) -> list[Line]:
    return [
        Line(
            mechanism,
            np.array([t.plan.messages_per_user for t in trades if t.mechanism == mechanism]),
            np.array([t.plan.rms_error for t in trades if t.mechanism == mechanism]),
        )
        for mechanism in MECHANISMS
    ]
