"""`overhand plan`: choose a plan and show it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from overhand.bandits import plan_for_regret
from overhand.cli import options, output
from overhand.cli.advice import Advice, advise
from overhand.cli.options import RECOMMENDER_MECHANISM, PlanOptions, features_of
from overhand.cli.output import console, format_duration, format_epsilon, format_number, plural
from overhand.errors import InvalidValue
from overhand.model import Privacy
from overhand.planning import DEFAULT_FAILURE_PROBABILITY, Plan


@options.takes(PlanOptions)
def plan(
    asked: PlanOptions,
    published: Annotated[
        bool, typer.Option("--published", help="The paper's plan exactly, with its constants.")
    ] = False,
    recommender: Annotated[
        bool,
        typer.Option(
            "--recommender",
            help="The plan of least regret for a recommender, instead of least error: with "
            "--values regression:D, D features per arm. Sends pairs unless --mechanism says "
            "otherwise.",
        ),
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Choose the plan with the least error for a guarantee, and show its costs and accuracy."""
    output.check_writable("--save", save)
    if recommender and published:
        raise InvalidValue("--recommender does not go with --published")
    if published:
        asked.check_unused(
            "--published is the paper's plan for honest users who report once",
            *("error", "max_messages", "mechanism", "noise", "honest", "reports", "composition"),
        )
        levels = None if asked.tree == "binary" else asked.most_shufflers
        chosen = Plan.published(asked.users, levels, asked.privacy, values=asked.values)
    else:
        with output.show_status("searching for the best plan"):
            chosen = _plan_for_regret(asked) if recommender else asked.plan()
    is_compared = not (published or recommender)
    others = _compare(asked, chosen) if is_compared else {}
    if save is not None:
        chosen.save(save)
    if as_json:
        compared = {
            name: {"rms_error": other.rms_error, "messages_per_user": other.messages_per_user}
            for name, other in others.items()
        }
        outside = {"outside_epsilon": chosen.outside_epsilon}
        output.print_json({**chosen.summary(), **outside, **chosen.costs.seconds, **compared})
        return
    advice: list[Advice] = []
    if is_compared:
        most = math.inf if asked.max_messages is None else asked.max_messages
        with output.show_status("comparing mechanisms"):
            advice = list(advise(chosen, asked.composition, most))
    _show(chosen, others, advice)
    if save is not None:
        output.tell(f"saved to {save}")


def _plan_for_regret(asked: PlanOptions) -> Plan:
    if asked.error is not None or asked.clip:
        raise InvalidValue("--recommender plans for regret: --error and --clip do not go with it")
    named = {**asked.named, "mechanism": asked.mechanism or RECOMMENDER_MECHANISM}
    features = features_of(asked.values)
    return plan_for_regret(asked.users, asked.most_shufflers, asked.privacy, features, **named)


def _compare(asked: PlanOptions, chosen: Plan) -> dict[str, Plan]:
    """The plans that show what the chosen one gains, and what a limit on messages costs.

    The paper's counts on one report: if that costs (e, d), then m of them cost
    (m e, d (exp(m e) - 1) / (exp(e) - 1)), by group privacy.
    """
    privacy = chosen.privacy
    epsilon = privacy.epsilon / chosen.reports
    once = Privacy(epsilon, privacy.delta * (math.expm1(epsilon) / math.expm1(privacy.epsilon)))
    others = {
        "published": Plan.published(chosen.horizon, chosen.shufflers, once, values=chosen.values)
    }
    if asked.max_messages is not None:
        with output.show_status("searching for the plan without the limit"):
            free = replace(asked, max_messages=None, error=None, epsilon=privacy.epsilon)
            others["unlimited"] = free.plan()
    return others


def _show(plan: Plan, others: dict[str, Plan], advice: list[Advice]) -> None:
    users = "users" if plan.values.spec == "bit" else f"users ({escape(plan.values.spec)})"
    console.print(
        f"[bold]{plan.horizon:,} {users}[/], using {plan.tree.levels} of {plan.shufflers} "
        f"shufflers at [bold]epsilon {format_epsilon(plan.privacy.epsilon)}[/], "
        f"delta {plan.privacy.delta:g}"
    )
    console.print(output.levels_table(plan))
    facts, costs = Table(show_header=False, box=None), plan.costs
    what = "rms error" if plan.values.is_scalar else "rms error per coordinate"
    facts.add_row(f"{what}, worst input", f"[bold]{format_number(plan.rms_error)}[/]")
    facts.add_row("largest standard deviation", format_number(plan.worst_std))
    bound = f"{100 * (1 - DEFAULT_FAILURE_PROBABILITY):g} % bound on all errors"
    facts.add_row(bound, format_number(plan.error_bound()))
    sealed = f"{costs.messages:,}, sealed in {costs.report_bytes:,} bytes"
    facts.add_row("messages per user", sealed)
    if costs.opened > costs.messages:
        facts.add_row("messages opened per user (with dummies)", format_number(costs.opened))
    facts.add_row(
        "processor time per report (approx.)",
        f"client {format_duration(costs.client_seconds)}, "
        f"shuffling service {format_duration(costs.shuffler_seconds)}, "
        f"server {format_duration(costs.server_seconds)}",
    )
    facts.add_row(
        "one client can move a sum by at most",
        f"{format_number(plan.influence)}; its value alone: {format_number(plan.values.width)}",
    )
    facts.add_row("delta spent, certified", f"{plan.delta_spent:.4g} of {plan.privacy.delta:g}")
    if plan.noise_by == "services":
        held = f"epsilon {format_epsilon(plan.privacy.epsilon)}, at the delta above"
        facts.add_row("noise made by", "each of the two services")
        facts.add_row("against the server and all other users", held)
        facts.add_row("against a lying shuffling service and all other users", held)
        outside = f"epsilon {format_epsilon(plan.outside_epsilon)}"
        facts.add_row("against everybody else", outside)
    if plan.honest < 1 or plan.reports > 1:
        users = f"{100 * plan.honest:g} % of users add their noise"
        facts.add_row("assumed", f"{users}, at most {plural(plan.reports, 'report')} per person")
    labels = {"published": "as published", "unlimited": "without the limit"}
    for name, other in others.items():
        # The paper's counts on all users, and on one report of each.
        notes = ", if all users are honest" if plan.honest < other.honest else ""
        notes += "; more reports by group privacy" if plan.reports > other.reports else ""
        facts.add_row(
            labels[name],
            f"rms error {format_number(other.rms_error)} "
            f"({format_number(other.rms_error / plan.rms_error)} x), "
            f"{plural(other.messages_per_user, 'message')}{notes}",
        )
    for found in advice:
        facts.add_row(*found.row(plan))
    facts.add_row("digest", plan.digest[:16])
    console.print(facts)
