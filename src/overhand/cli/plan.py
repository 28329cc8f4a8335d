"""`overhand plan`: choose a plan and show it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from overhand.cli import options
from overhand.cli.options import DEFAULT_DELTA, PlanOptions
from overhand.cli.output import console, level_ranges, new_table, number, print_json, working
from overhand.errors import InvalidValue
from overhand.plan import DEFAULT_FAILURE_PROBABILITY, Plan


def plan(
    horizon: options.Horizon = None,
    shufflers: options.Shufflers = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = DEFAULT_DELTA,
    tree: options.TreeOption = "best",
    honest: options.Honest = 1.0,
    reports: options.Reports = 1,
    composition: options.CompositionOption = "exact",
    error: options.Error = None,
    published: Annotated[
        bool, typer.Option("--published", help="The paper to the letter, constants and all.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Choose the plan of least error for a guarantee, and show what it will cost and reach."""
    asked = PlanOptions(
        horizon, shufflers, epsilon, delta, tree, honest, reports, composition, error
    )
    if published:
        if error is not None:
            raise InvalidValue("--published has no choice to make: --error does not go with it")
        levels = None if tree == "binary" else asked.most_shufflers
        chosen = Plan.published(asked.users, levels, asked.privacy)
    else:
        with working("searching for the best plan"):
            chosen = asked.plan()
    if save is not None:
        if not save.parent.is_dir():
            raise InvalidValue(f"--save {save}: there is no directory {save.parent}")
        chosen.save(save)
    if as_json:
        print_json(chosen.summary())
    else:
        show(chosen)
        if save is not None:
            console.print(f"saved to {save}")


def show(plan: Plan) -> None:
    """The plan as tables."""
    kind = plan.tree.description()["kind"]
    console.print(
        f"[bold]{plan.horizon:,} users[/], {plan.tree.levels} of {plan.shufflers} shufflers "
        f"({kind} tree), [bold]epsilon {plan.privacy.epsilon:.4g}[/], delta {plan.privacy.delta:g}"
    )
    levels = new_table("level", "users a batch", "coins a user", "coin probability", "variance")
    for row in level_ranges(plan):
        levels.add_row(*row)
    console.print(levels)
    facts = Table(show_header=False, box=None)
    facts.add_row("rms error, worst input", f"[bold]{number(plan.rms_error)}[/]")
    facts.add_row("largest standard deviation", number(plan.worst_std))
    facts.add_row(
        f"all errors below, with probability {1 - DEFAULT_FAILURE_PROBABILITY:.0%}",
        number(plan.error_bound()),
    )
    facts.add_row("messages a user", str(plan.messages_per_user))
    facts.add_row("delta spent, certified", f"{plan.delta_spent:.4g} of {plan.privacy.delta:g}")
    if plan.honest < 1 or plan.reports > 1:
        facts.add_row("counted on", f"{plan.honest:.0%} honest users, {plan.reports} reports each")
    facts.add_row("digest", plan.digest[:16])
    console.print(facts)
