"""`overhand plan`: choose a plan and show it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from overhand.cli import options
from overhand.cli.advice import Advice, advised
from overhand.cli.frontier import show_frontier
from overhand.cli.options import PlanOptions
from overhand.cli.output import (
    check_figure,
    check_writable,
    claim,
    console,
    duration,
    levels_table,
    number,
    plural,
    print_json,
    tell,
    working,
)
from overhand.cli.recommender import PlanForRegret, least_regret
from overhand.errors import InvalidValue
from overhand.model import Privacy
from overhand.plan import DEFAULT_FAILURE_PROBABILITY, Plan


@options.takes(PlanOptions)
def plan(
    asked: PlanOptions,
    published: Annotated[
        bool, typer.Option("--published", help="The paper's plan exactly, with its constants.")
    ] = False,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", help="Compare error and messages over mechanisms and shufflers."
        ),
    ] = False,
    recommender: PlanForRegret = False,
    plot: options.Figure = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Choose the plan with the least error for a guarantee, and show its costs and accuracy."""
    check_writable("--save", save)
    if plot is not None and not frontier:
        raise InvalidValue("--plot draws the --frontier: give both options")
    check_figure(plot)
    if recommender and (frontier or published):
        raise InvalidValue("--recommender goes neither with --frontier nor with --published")
    if frontier:
        if published or save is not None:
            raise InvalidValue("--frontier chooses no plan: leave out --published and --save")
        show_frontier(asked, plot, as_json=as_json)
        return
    if published:
        chosen = _published(asked)
    else:
        with working("searching for the best plan"):
            chosen = least_regret(asked) if recommender else asked.plan()
    is_compared = not (published or recommender)
    beside = _beside(asked, chosen) if is_compared else {}
    if save is not None:
        chosen.save(save)
    if as_json:
        others = {
            name: {"rms_error": other.rms_error, "messages_per_user": other.messages_per_user}
            for name, other in beside.items()
        }
        outside = {"outside_epsilon": chosen.outside_epsilon}
        print_json({**chosen.summary(), **outside, **chosen.costs.seconds, **others})
        return
    show(chosen, beside, _advice(asked, chosen) if is_compared else [])
    if save is not None:
        tell(f"saved to {save}")


def _published(asked: PlanOptions) -> Plan:
    asked.check_unused(
        "--published is the paper's plan for honest users who report once",
        *("error", "max_messages", "mechanism", "noise", "honest", "reports", "composition"),
    )
    levels = None if asked.tree == "binary" else asked.most_shufflers
    return Plan.published(asked.users, levels, asked.privacy, values=asked.values)


def _advice(asked: PlanOptions, chosen: Plan) -> list[Advice]:
    most = math.inf if asked.max_messages is None else asked.max_messages
    with working("comparing mechanisms"):
        return list(advised(chosen, asked.composition, most))


def _beside(asked: PlanOptions, chosen: Plan) -> dict[str, Plan]:
    """The plans that show what the chosen one gains, and what a limit on messages costs."""
    once = _for_one_report(chosen.privacy, chosen.reports)
    published = Plan.published(chosen.horizon, chosen.shufflers, once, values=chosen.values)
    beside = {"published": published}
    if asked.max_messages is not None:
        with working("searching for the plan without the limit"):
            free = replace(asked, max_messages=None, error=None, epsilon=chosen.privacy.epsilon)
            beside["unlimited"] = free.plan()
    return beside


def _for_one_report(privacy: Privacy, reports: int) -> Privacy:
    """What must hold for one report so that, by group privacy, `privacy` holds for all of them.

    If one report costs (e, d), then m of them cost (m e, d (exp(m e) - 1) / (exp(e) - 1)).
    """
    epsilon = privacy.epsilon / reports
    return Privacy(epsilon, privacy.delta * (math.expm1(epsilon) / math.expm1(privacy.epsilon)))


def show(plan: Plan, beside: dict[str, Plan], advice: list[Advice]) -> None:
    """The plan as tables."""
    users = "users" if plan.values.spec == "bit" else f"users ({escape(plan.values.spec)})"
    console.print(
        f"[bold]{plan.horizon:,} {users}[/], using {plan.tree.levels} of {plan.shufflers} "
        f"shufflers at [bold]epsilon {claim(plan.privacy.epsilon)}[/], delta {plan.privacy.delta:g}"
    )
    console.print(levels_table(plan))
    facts = Table(show_header=False, box=None)
    what = "rms error" if plan.values.is_scalar else "rms error per coordinate"
    facts.add_row(f"{what}, worst input", f"[bold]{number(plan.rms_error)}[/]")
    facts.add_row("largest standard deviation", number(plan.worst_std))
    facts.add_row(
        f"{100 * (1 - DEFAULT_FAILURE_PROBABILITY):g} % bound on all errors",
        number(plan.error_bound()),
    )
    for row in _cost_rows(plan):
        facts.add_row(*row)
    facts.add_row("delta spent, certified", f"{plan.delta_spent:.4g} of {plan.privacy.delta:g}")
    if plan.noise_by == "services":
        for row in _guarantee_rows(plan):
            facts.add_row(*row)
    if plan.honest < 1 or plan.reports > 1:
        users = f"{100 * plan.honest:g} % of users add their noise"
        facts.add_row("assumed", f"{users}, at most {plural(plan.reports, 'report')} per person")
    labels = {"published": "as published", "unlimited": "without the limit"}
    for name, other in beside.items():
        facts.add_row(labels[name], _against(other, plan))
    for found in advice:
        facts.add_row(*found.row(plan))
    facts.add_row("digest", plan.digest[:16])
    console.print(facts)


def _cost_rows(plan: Plan) -> list[tuple[str, str]]:
    """What a report costs, and how much a lying client can do."""
    costs = plan.costs
    return [
        ("messages per user", f"{costs.messages:,}, sealed in {costs.report_bytes:,} bytes"),
        *[("messages opened per user (with dummies)", number(costs.opened))]
        * (costs.opened > costs.messages),
        (
            "processor time per report (approx.)",
            f"client {duration(costs.client_seconds)}, shuffling service "
            f"{duration(costs.shuffler_seconds)}, server {duration(costs.server_seconds)}",
        ),
        (
            "one client can move a sum by at most",
            f"{number(plan.influence)}; its value alone: {number(plan.values.width)}",
        ),
    ]


def _guarantee_rows(plan: Plan) -> list[tuple[str, str]]:
    """What is promised against whom, if each of the services makes noise."""
    held = f"epsilon {claim(plan.privacy.epsilon)}, at the delta above"
    return [
        ("noise made by", "each of the two services"),
        ("against the server and all other users", held),
        ("against a lying shuffling service and all other users", held),
        ("against everybody else", f"epsilon {claim(plan.outside_epsilon)}"),
    ]


def _against(other: Plan, plan: Plan) -> str:
    """How another plan compares; the paper's counts on all users, and on one report of each."""
    ratio = other.rms_error / plan.rms_error
    notes = [", if all users are honest"] * (plan.honest < other.honest)
    notes += ["; more reports by group privacy"] * (plan.reports > other.reports)
    return (
        f"rms error {number(other.rms_error)} ({number(ratio)} x), "
        f"{plural(other.messages_per_user, 'message')}{''.join(notes)}"
    )
