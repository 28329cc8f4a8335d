"""`overhand plan --frontier`: error against messages, over mechanisms, trees and shufflers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from overhand.cli.options import PlanOptions
from overhand.cli.output import console, new_table, number, print_json, steps_bar
from overhand.errors import Infeasible, InvalidValue
from overhand.plan import MechanismKind, Plan, TreeKind
from overhand.plots import Line, frontier_figure

MECHANISMS: tuple[MechanismKind, ...] = ("coins", "shares")
TREES: tuple[TreeKind, ...] = ("regular", "path")


@dataclass(frozen=True)
class Point:
    """One plan among those that could be had."""

    mechanism: MechanismKind
    tree: TreeKind
    shufflers: int
    plan: Plan
    is_best: bool = False

    def row(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "tree": self.tree,
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
    points = _points(asked)
    if plot is not None:
        frontier_figure(_lines(points), plot, title=f"{asked.users:,} users, {asked.privacy}")
    if as_json:
        print_json({"frontier": [point.row() for point in points]})
        return
    table = new_table("mechanism", "tree", "shufflers", "rms error", "messages", "bytes", "best")
    for point in points:
        table.add_row(
            point.mechanism,
            point.tree,
            str(point.shufflers),
            number(point.plan.rms_error),
            f"{point.plan.messages_per_user:,}",
            f"{point.plan.bits_per_user / 8:,.0f}",
            "*" if point.is_best else "",
            style="bold" if point.is_best else "",
        )
    console.print(f"[bold]{asked.users:,} users ({asked.values})[/], {asked.privacy}")
    console.print(table)
    console.print("* no other has both less error and fewer messages", style="dim")
    if plot is not None:
        console.print(f"wrote {plot}")


def _points(asked: PlanOptions) -> list[Point]:
    cases = [
        (mechanism, tree, k)
        for mechanism in MECHANISMS
        for tree in TREES
        for k in range(1, asked.most_shufflers + 1)
    ]
    points: list[Point] = []
    with steps_bar("planning", len(cases)) as (begin, done):
        for mechanism, tree, k in cases:
            begin(f"{mechanism}, {tree} tree, {k}")
            case = replace(asked, mechanism=mechanism, tree=tree, shufflers=k)
            try:
                plan = case.plan()
            except Infeasible:
                plan = None
            if plan is not None and plan.tree.levels == k:  # fewer were better: seen already
                points.append(Point(mechanism, tree, k, plan))
            done()
    return [replace(point, is_best=_is_best(point, points)) for point in points]


def _is_best(point: Point, points: list[Point]) -> bool:
    cost = point.plan.messages_per_user, point.plan.rms_error
    others = [(p.plan.messages_per_user, p.plan.rms_error) for p in points]
    return not any(o != cost and o[0] <= cost[0] and o[1] <= cost[1] for o in others)


def _lines(points: list[Point]) -> list[Line]:
    lines: list[Line] = []
    for mechanism in MECHANISMS:
        for tree in TREES:
            of_line = [p for p in points if (p.mechanism, p.tree) == (mechanism, tree)]
            lines.append(
                Line(
                    f"{mechanism}, {tree} trees",
                    np.array([p.plan.messages_per_user for p in of_line]),
                    np.array([p.plan.rms_error for p in of_line]),
                    "-" if tree == "regular" else "--",
                )
            )
    return lines
