"""`overhand demo`: the whole system on this machine, with a crowd of clients.

They report values, or people with tastes come and a recommender learns from them.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from overhand.bandits import plan_for_regret
from overhand.cli import one_machine, options, output
from overhand.cli.output import console, format_number
from overhand.errors import InvalidValue, finite_number, whole
from overhand.model import Counts, Floats, Rows
from overhand.planning import Plan
from overhand.randomness import secure_random
from overhand.values import BITS, Values, values_of

if TYPE_CHECKING:
    from overhand.lab.regret import Diverse, Offers

LEAST_USERS = 100
USERS = {"sum": 20_000, "recommender": 10_000}
ARMS = 6
_MOST_BARS = 10
_ROUNDINGS = 8
_RUNS = 20
_SEEDS = 1 << 32
_LABELS = {
    "random": "a random arm",
    "local": "local privacy, simulated",
    "deployed": "this recommender",
    "simulated": "the same, simulated",
    "not_private": "no privacy, simulated",
    "best": "the best policy",
}


def demo(
    users: Annotated[
        int | None, options.Whole(show_default="20,000, or 10,000 with --recommender")
    ] = None,
    recommender: Annotated[bool, typer.Option("--recommender")] = False,
    rate: Annotated[float | None, typer.Option(show_default="no limit")] = None,
    shufflers: options.Shufflers = 3,
    epsilon: options.Epsilon = options.DEFAULT_EPSILON,
    delta: options.Delta = options.DEFAULT_DELTA,
    max_messages: Annotated[int | None, options.Whole(show_default=False)] = None,
    values: Annotated[
        str | None, typer.Option(show_default="bit, or regression:4 with --recommender")
    ] = None,
    mechanism: options.ServicesMechanism = options.TWO_SERVICES,
    horizon: Annotated[int | None, options.Whole(show_default="as many as report")] = None,
    port: Annotated[int | None, typer.Option(show_default="any free one")] = None,
    directory: Annotated[Path | None, typer.Option(show_default="a temporary directory")] = None,
    keep_running: Annotated[
        bool | None,
        typer.Option("--keep-running/--stop", show_default="keep running on a terminal"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run shuffling service, server and dashboard, and simulated clients that report to them.

    Real HTTP, real encryption, two databases. One operator runs both services and could learn
    everything: it is a demonstration.

    Args:
        users: How many clients report, rounded up to whole batches.
        recommender: Simulate people with tastes, and a recommender that learns from them.
        rate: At most this many reports per second.
        max_messages: At most this many messages per client.
        values: What a user holds, as for `overhand plan`.
        horizon: How many users the plan serves.
        port: The dashboard's port.
        directory: Keep all files here.
        keep_running: Keep the services and the page up until Ctrl-C, or stop when all are counted.
    """
    if rate is not None:
        finite_number("rate", rate, above=0)
    if users is None:
        users = USERS["recommender" if recommender else "sum"]
    whole("users", users, least=LEAST_USERS)
    stage = one_machine.Stage(port, directory, keep_running, as_json)
    asked: dict[str, Any] = {
        "shufflers": shufflers,
        "privacy": options.guarantee(epsilon, delta),
        "mechanism": mechanism,
    }
    if recommender:
        from overhand.lab.regret import Diverse

        if rate is not None or max_messages is not None:
            raise InvalidValue("--rate and --max-messages do not go with --recommender")
        dimension = options.features_of(values_of(values or "regression:4"))
        Diverse(dimension, ARMS)  # or there is no such crowd
        make_plan: Callable[..., Plan] = partial(plan_for_regret, dimension=dimension, **asked)
    else:
        kind = values_of(values or "bit")
        make_plan = partial(Plan.best, values=kind, max_messages=max_messages, **asked)
    with output.show_status("planning"):
        plan, reporting = _plan_whole_batches(make_plan, users, horizon)
    if recommender:
        _show_learning(plan, reporting, stage)
    else:
        _show_sum(plan, reporting, rate, stage)


def _plan_whole_batches(
    make_plan: Callable[..., Plan], users: int, horizon: int | None
) -> tuple[Plan, int]:
    """The plan, and how many users report: whole batches of them, so that all are counted."""
    if horizon is not None:
        plan = make_plan(whole("horizon", horizon, least=users))
        return plan, min(users + -users % plan.tree.lowest, horizon - horizon % plan.tree.lowest)
    served, plan = users, make_plan(users)
    if plan.most_users > plan.horizon:  # it goes on beyond it
        return plan, users + -users % plan.tree.lowest
    for _ in range(_ROUNDINGS):
        if served % plan.tree.lowest == 0:
            break
        served += -served % plan.tree.lowest
        plan = make_plan(served)
    return plan, served - served % plan.tree.lowest


# --- a sum ----------------------------------------------------------------------------------------


def _show_sum(plan: Plan, users: int, rate: float | None, stage: one_machine.Stage) -> None:
    """A crowd of so many users reports, and what becomes of it."""
    held = _draw_values(plan.values, users)
    with stage.set_up(plan) as services, contextlib.ExitStack() as stack:
        with output.show_status("clients fetch the plan and check its guarantee"):
            members = one_machine.reporters(services.shuffler, services.digest, held, rate)
            go = stack.enter_context(one_machine.gather(members))
        started = time.perf_counter()
        with output.progress_bar(f"{users:,} clients report", users) as advance:
            go(advance)
        with output.show_status("waiting for the last batch"):
            estimate = one_machine.await_estimate(services.server, users)
        result = _judge(plan.values, held, estimate, time.perf_counter() - started)
        if stage.as_json:
            output.print_json(result)
        else:
            console.print(_sum_table(result, plan.horizon))


def _draw_values(values: Values, users: int) -> Rows:
    """What the users of the crowd hold."""
    if values == BITS:
        return (np.random.default_rng().random(users) < 0.3).astype(np.uint8)
    return values.uniform(secure_random(), users)


def _judge(values: Values, held: Rows, estimate: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Of a sum with many coordinates the rms error, and how many of them are within their bands."""
    truth = np.asarray(values.total(held))
    value, low, high = (np.asarray(estimate[name]) for name in ("value", "low", "high"))
    errors, inside = value - truth, (low <= truth) & (truth <= high)
    return {
        "users": len(held),
        "truth": truth.tolist(),
        "estimate": estimate["value"],
        "std": estimate["std"],
        "low": estimate["low"],
        "high": estimate["high"],
        "error": float(np.sqrt(np.mean(errors**2)) if errors.shape else errors),
        "within_band": float(np.mean(inside)) if errors.shape else bool(inside),
        "users_per_second": len(held) / seconds,
        "seconds": seconds,
        "names": values.coordinate_names,
    }


def _sum_table(result: dict[str, Any], horizon: int) -> Table:
    users = result["users"]
    table = output.new_table("", f"{users:,} of {horizon:,} users")
    if users >= horizon:
        table = output.new_table("", f"complete: {users:,} users")
    if isinstance(result["estimate"], list):
        table.add_row("coordinates of the sum", f"{len(result['estimate']):,}")
        table.add_row("rms error", format_number(result["error"]))
        table.add_row("standard deviation", format_number(result["std"]))
        table.add_row("within their 95 % bands", f"{100 * result['within_band']:.3g} %")
        columns = (result[name] or () for name in ("names", "estimate", "low", "high"))
        bars = sorted(zip(*columns, strict=False), key=lambda bar: -bar[1])
        for name, *band in bars[:_MOST_BARS]:
            table.add_row(escape(name), "{}, {} to {}".format(*map(format_number, band)))
    else:
        table.add_row("true sum (only the demo knows it)", f"{result['truth']:,.12g}")
        table.add_row("estimate", format_number(result["estimate"]))
        low, high = format_number(result["low"]), format_number(result["high"])
        table.add_row("95 % band", f"{low} to {high}")
        table.add_row("error", format_number(result["error"]))
    table.add_row("users per second", f"{result['users_per_second']:,.0f}")
    return table


# --- a recommender --------------------------------------------------------------------------------


def _show_learning(plan: Plan, users: int, stage: one_machine.Stage) -> None:
    """A crowd of so many people is recommended something, and what they think of it."""
    from overhand.lab.regret import Diverse

    seed = secrets.randbelow(_SEEDS)
    place = Diverse(options.features_of(plan.values), ARMS)
    people = place.audience(users, [np.random.default_rng([seed, 0])]).offers(users)
    with stage.set_up(plan, recommender=True, constant=place.constant) as services:
        came, arms, seconds = _serve(services, people)
        rewards = _mean_rewards(people.means[0][came], arms)
        with output.show_status("simulating what others would have got"):
            regrets = _simulate_others(plan, place, users, seed)
        rewards |= {name: rewards["best"] - regret for name, regret in regrets.items()}
        policies = one_machine.fetch(f"{services.server}/v1/policy/summary")["policy"]["number"]
        result: dict[str, Any] = {}
        for name in ("deployed", "random", "best", "local", "simulated", "not_private"):
            all_users, last_quarter = map(float, rewards[name])
            prefix = "" if name == "deployed" else f"{name}_"
            result[f"{prefix or 'mean_'}reward"] = all_users
            result[f"last_quarter_{prefix}reward"] = last_quarter
        result |= {
            "users": users,
            "policies": policies,
            "users_per_second": users / seconds,
            "seconds": seconds,
            "epsilon": plan.privacy.epsilon,
            "delta": plan.privacy.delta,
            "dimension": place.dimension,
            "arms": place.arms,
        }
        if stage.as_json:
            output.print_json(result)
        else:
            _print_learning(plan, rewards, result)


def _serve(services: one_machine.Services, people: Offers) -> tuple[Counts, Counts, float]:
    """Who came, in order, what they took, and how long it was until all were learnt from."""
    features = people.features[0].astype(np.float64)
    users, visits = len(features), list[tuple[Counts, Counts]]()
    offered = features, people.means[0], people.uniforms[0]
    members = one_machine.visitors(services.shuffler, services.digest, *offered)
    with one_machine.gather(members) as go:
        started = time.perf_counter()
        with output.progress_bar(f"{users:,} people come", users) as advance:

            def hear(visit: tuple[Counts, Counts]) -> None:
                visits.append(visit)
                advance(len(visit[0]))

            go(hear)
    with output.show_status("waiting for the last batch"):
        one_machine.await_estimate(services.server, users)
    seconds = time.perf_counter() - started
    came, arms = (np.concatenate(column) for column in zip(*visits, strict=True))
    return came, arms, seconds


def _mean_rewards(means: Floats, arms: Counts) -> dict[str, Floats]:
    """Expected rewards of all people and of the last quarter of them, by how arms are chosen."""
    of_each = {
        "random": means.mean(axis=1),
        "deployed": means[np.arange(len(arms)), arms],
        "best": means.max(axis=1),
    }
    last = len(arms) * 3 // 4
    return {
        name: np.array([reward.mean(), reward[last:].mean()], np.float64)
        for name, reward in of_each.items()
    }


def _simulate_others(plan: Plan, place: Diverse, users: int, seed: int) -> dict[str, Floats]:
    """What others miss, of all people and of the last quarter: the mean over crowds like this."""
    from overhand.lab.regret import Field, PlanSums, measure, rival

    field = Field(plan.horizon, plan.shufflers, plan.privacy, place.dimension)
    rivals = [
        rival("local", field),
        field.rival("simulated", "the same", "two services", PlanSums(plan)),
        rival("not-private", field),
    ]
    last, missed = users * 3 // 4, {}
    for regret in measure(place, users, rivals, runs=_RUNS, seed=seed):
        before = float(np.interp(last, regret.t, regret.curves.mean(axis=0)))
        late = (regret.mean - before) / (users - last)
        missed[regret.rival.name.replace("-", "_")] = np.array([regret.mean / users, late])
    return missed


def _print_learning(plan: Plan, rewards: dict[str, Floats], result: dict[str, Any]) -> None:
    table = output.new_table("mean reward", "all users", "last quarter")
    for name, label in _LABELS.items():
        style = "bold" if name == "deployed" else ""
        table.add_row(label, *(f"{reward:.3f}" for reward in rewards[name]), style=style)
    console.print(
        f"{result['users']:,} users, {result['dimension']} features, {result['arms']} arms; "
        f"{plan.privacy}"
    )
    console.print(table)
    deployed, least, most = (rewards[name][1] for name in ("deployed", "random", "best"))
    console.print(
        f"{result['policies']:,} policies; in the last quarter it earned "
        f"{100 * (deployed - least) / (most - least):.0f} % of the best policy's advantage over a "
        f"random arm; {format_number(result['users_per_second'])} users per second"
    )
