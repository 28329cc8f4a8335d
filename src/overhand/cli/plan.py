"""`overhand plan`: choose a plan and show it."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from overhand.cli import options, output
from overhand.cli.advice import Advice, advise
from overhand.cli.options import TWO_SERVICES, PlanOptions
from overhand.cli.output import console, format_duration, format_epsilon, format_number, plural
from overhand.errors import Infeasible, InvalidValue
from overhand.model import Privacy
from overhand.planning import DEFAULT_FAILURE_PROBABILITY, Plan

_BEYOND = 10  # times the horizon
_PAPERS = "best"  # the one with the least error
_LABELS = {
    "published": "as published",
    "unlimited": "without the limit",
    _PAPERS: "with --mechanism best",
    TWO_SERVICES: "with --mechanism services",
}
_NOTES = {
    _PAPERS: ": the paper's family, every user adds noise; better for few users, a tiny delta or a "
    "large epsilon",
    TWO_SERVICES: ": each of two services adds noise, and they must not collude; better for many "
    "users and many numbers, and no other user is counted on",
}


@options.takes(PlanOptions)
def plan(
    asked: PlanOptions,
    published: Annotated[bool, typer.Option("--published")] = False,
    recommender: Annotated[bool, typer.Option("--recommender")] = False,
    save: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Choose the plan with the least error for a guarantee, and show its costs and accuracy.

    Args:
        published: The paper's plan exactly, with its constants.
        recommender: The plan of least regret for a recommender, instead of least error: with
            --values regression:D, D features per arm. Sends pairs to two services unless
            --mechanism says otherwise.
        save: Write the plan to a file.
    """
    output.check_writable("--save", save)
    if recommender and published:
        raise InvalidValue("--recommender does not go with --published")
    if published:
        asked.check_unused(
            "--published is the paper's plan for honest users who report once",
            *("error", "max_messages", "mechanism", "honest", "reports", "composition"),
        )
        levels = None if asked.tree == "binary" else asked.most_shufflers
        chosen = Plan.published(asked.users, levels, asked.privacy, values=asked.values)
    else:
        with output.show_status("searching for the best plan"):
            chosen = asked.plan_for_regret() if recommender else asked.plan()
    is_compared = not (published or recommender)
    others = _compare(asked, chosen) if is_compared else {}
    if save is not None:
        chosen.save(save)
    if as_json:
        compared = {
            name: {"rms_error": other.rms_error, "messages_per_user": other.messages_per_user}
            for name, other in others.items()
        }
        more = {"outside_epsilon": chosen.outside_epsilon}
        if chosen.noise_by == "services":
            more["rms_error_beyond"] = chosen.rms_error_over(_BEYOND * chosen.horizon)
        output.print_json({**chosen.summary(), **more, **chosen.costs.seconds, **compared})
        return
    advice: list[Advice] = []
    if is_compared:
        most = math.inf if asked.max_messages is None else asked.max_messages
        with output.show_status("comparing mechanisms"):
            advice = list(advise(chosen, asked.composition, most))
    _show(chosen, others, advice)
    if save is not None:
        output.tell(f"saved to {save}")


def _compare(asked: PlanOptions, chosen: Plan) -> dict[str, Plan]:
    """The plans that show what the chosen one gains, and what a limit on messages costs.

    One of the other family, too.

    The paper's counts on one report: if that costs (e, d), then m of them cost
    (m e, d (exp(m e) - 1) / (exp(e) - 1)), by group privacy.
    """
    privacy = chosen.privacy
    epsilon = privacy.epsilon / chosen.reports
    once = Privacy(epsilon, privacy.delta * (math.expm1(epsilon) / math.expm1(privacy.epsilon)))
    shufflers, values = asked.most_shufflers, chosen.values
    others = {"published": Plan.published(chosen.horizon, shufflers, once, values=values)}
    family = TWO_SERVICES if chosen.noise_by == "users" else _PAPERS
    with suppress(Infeasible, InvalidValue):
        others[family] = Plan.best(
            chosen.horizon,
            shufflers,
            privacy,
            values=values,
            reports=chosen.reports,
            mechanism=family,
        )
    if asked.max_messages is not None:
        with output.show_status("searching for the plan without the limit"):
            free = replace(asked, max_messages=None, error=None, epsilon=privacy.epsilon)
            others["unlimited"] = free.plan()
    return others


def _show(plan: Plan, others: dict[str, Plan], advice: list[Advice]) -> None:
    is_services = plan.noise_by == "services"
    users = "users" if plan.values.spec == "bit" else f"users ({escape(plan.values.spec)})"
    by = "two services that do not collude"
    if not is_services:
        by = f"{plan.tree.levels} of {plan.shufflers} shufflers"
    console.print(
        f"[bold]{plan.horizon:,} {users}[/], using {by} "
        f"at [bold]epsilon {format_epsilon(plan.privacy.epsilon)}[/], delta {plan.privacy.delta:g}"
    )
    console.print(output.levels_table(plan))
    facts, costs = Table(show_header=False, box=None), plan.costs
    what = "rms error" if plan.values.is_scalar else "rms error per coordinate"
    facts.add_row(f"{what}, worst input", f"[bold]{format_number(plan.rms_error)}[/]")
    if is_services:
        many = _BEYOND * plan.horizon
        beyond = f"{format_number(plan.rms_error_over(many))} over {many:,} users"
        facts.add_row("and if more come", f"{beyond}; at most {plan.most_users:,} may come")
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
    if is_services:
        _add_guarantee(facts, plan)
    if plan.honest < 1 or plan.reports > 1:
        most = f"at most {plan.reports:,} reports per person"
        assumed = [] if is_services else [f"{100 * plan.honest:g} % of users add their noise"]
        facts.add_row("assumed", ", ".join([*assumed, most]))
    for name, other in others.items():
        # The paper's counts on all users, and on one report of each.
        notes = ", if all users are honest" if other.honest > plan.honest else ""
        notes += "; more reports by group privacy" if plan.reports > other.reports else ""
        facts.add_row(
            _LABELS[name],
            f"rms error {format_number(other.rms_error)} "
            f"({format_number(other.rms_error / plan.rms_error)} x), "
            f"{plural(other.messages_per_user, 'message')}{notes or _NOTES.get(name, '')}",
        )
    for found in advice:
        facts.add_row(*found.row(plan))
    facts.add_row("digest", plan.digest[:16])
    console.print(facts)


def _add_guarantee(facts: Table, plan: Plan) -> None:
    """Against whom it holds, if the services make the noise."""
    if plan.mu is not None:
        normal = f"N({plan.mu:.4f}, 1) and N(0, 1)"
        facts.add_row("mu", f"{plan.mu:.4f}: a user is hidden as well as between {normal}")
    held = f"epsilon {format_epsilon(plan.privacy.epsilon)}, at the delta above"
    facts.add_row("noise made by", "each of the two services")
    facts.add_row("against the server and all other users", held)
    facts.add_row("against a lying shuffling service and all other users", held)
    facts.add_row("against everybody else", f"epsilon {format_epsilon(plan.outside_epsilon)}")
