"""`overhand demo`: the whole system on this machine, with a crowd of clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.markup import escape

from overhand.cli import options
from overhand.cli.crowd import Crowd, reporting
from overhand.cli.one_machine import Stage, settled
from overhand.cli.options import DEFAULT_DELTA, DEFAULT_EPSILON
from overhand.cli.output import (
    console,
    new_table,
    number,
    print_json,
    progress_bar,
    working,
)
from overhand.errors import InvalidValue, whole
from overhand.errors import number as checked_number
from overhand.model import Rows
from overhand.plan import Plan
from overhand.randomness import secure_random
from overhand.values import BITS, Values, values_of

MOST_MESSAGES = 12
LEAST_USERS = 100
USERS = {"sum": 20_000, "recommender": 10_000}
_MOST_BARS = 10
_ROUNDINGS = 8


def demo(
    users: Annotated[
        int | None,
        options.Whole(
            help="How many clients report, rounded up to whole batches.",
            show_default="20,000, or 10,000 with --recommender",
        ),
    ] = None,
    recommender: Annotated[
        bool,
        typer.Option(
            "--recommender",
            help="Simulate people with tastes, and a recommender that learns from them.",
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(help="The most reports per second.", show_default="no limit"),
    ] = None,
    shufflers: options.Shufflers = 3,
    epsilon: options.Epsilon = DEFAULT_EPSILON,
    delta: options.Delta = DEFAULT_DELTA,
    noise: options.NoiseOption = "users",
    max_messages: Annotated[
        int | None,
        options.Whole(
            help="The most messages that a client may send.",
            show_default=f"{MOST_MESSAGES} for one number, if nothing is said of the mechanism",
        ),
    ] = None,
    values: Annotated[
        str | None,
        typer.Option(
            help="What a user holds, as for `overhand plan`.",
            show_default="bit, or moments:4 with --recommender",
        ),
    ] = None,
    mechanism: options.MechanismOption = None,
    horizon: Annotated[
        int | None,
        options.Whole(help="How many users the plan serves.", show_default="as many as report"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The dashboard's port.", show_default="any free one"),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Keep all files here.", show_default="a temporary directory")
    ] = None,
    keep_running: Annotated[
        bool | None,
        typer.Option(
            "--keep-running/--stop",
            help="Keep the services and the page up until Ctrl-C, or stop when all are counted.",
            show_default="keep running on a terminal",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run shuffling service, server and dashboard, and simulated clients that report to them.

    Real HTTP, real encryption, two databases. One operator runs both services, so this protects
    nobody: it is a demonstration.
    """
    if rate is not None:
        checked_number("rate", rate, above=0)
    if users is None:
        users = USERS["recommender" if recommender else "sum"]
    whole("users", users, least=LEAST_USERS)
    stage = Stage(port, directory, keep_running, as_json)
    asked = {
        "shufflers": shufflers,
        "privacy": options.guarantee(epsilon, delta),
        "mechanism": mechanism,
        "noise": cast(Any, noise),
    }
    if recommender:
        from overhand.cli.learning_demo import for_regret, show_learning

        if rate is not None or max_messages is not None:
            raise InvalidValue("--rate and --max-messages do not go with --recommender")
        wanted = for_regret(values, **asked)
        with working("planning"):
            plan, reporting = _planned(wanted, users, horizon)
        show_learning(plan, reporting, stage)
        return
    kind = values_of(values or "bit")
    if mechanism is None and max_messages is None and noise == "users":
        # So that all is over soon: coins would be hundreds of messages if there are many numbers.
        max_messages = MOST_MESSAGES if kind.is_scalar else None
        asked["mechanism"] = None if kind.is_scalar else "pairs"
    wanted = partial(Plan.best, values=kind, max_messages=max_messages, **asked)
    with working("planning"):
        plan, reporting = _planned(wanted, users, horizon)
    show_sum(plan, reporting, rate, stage)


def show_sum(plan: Plan, users: int, rate: float | None, stage: Stage) -> None:
    """A crowd of so many users reports, and what becomes of it."""
    held = _held(plan.values, users)
    with stage.set_up(plan) as services, contextlib.ExitStack() as stack:
        with working("clients fetch the plan and check its guarantee"):
            members = reporting(services.shuffler, services.digest, held, rate)
            crowd = stack.enter_context(contextlib.closing(Crowd(members)))
        started = time.perf_counter()
        with progress_bar(f"{users:,} clients report", users) as advance:
            crowd.go(advance)
        with working("waiting for the last batch"):
            estimate = settled(services.server, users)
        seconds = time.perf_counter() - started
        result = _result(plan.values.total(held), users, estimate, seconds)
        result["names"] = plan.values.coordinate_names
        _show(result, plan.horizon, stage.as_json)


def _planned(wanted: Callable[..., Plan], users: int, horizon: int | None) -> tuple[Plan, int]:
    """The plan, and how many users report: whole batches of them, so that all are counted."""
    if horizon is not None:
        plan = wanted(whole("horizon", horizon, least=users))
        return plan, min(users + -users % plan.tree.lowest, horizon - horizon % plan.tree.lowest)
    served, plan = users, wanted(users)
    for _ in range(_ROUNDINGS):
        if served % plan.tree.lowest == 0:
            break
        served += -served % plan.tree.lowest
        plan = wanted(served)
    return plan, served - served % plan.tree.lowest


def _held(values: Values, users: int) -> Rows:
    """What the users of the crowd hold."""
    if values == BITS:
        return (np.random.default_rng().random(users) < 0.3).astype(np.uint8)
    return values.uniform(secure_random(), users)


def _result(truth: Any, users: int, estimate: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Of a sum with many coordinates the rms error, and how many of them are within their bands."""
    value, low, high = (np.asarray(estimate[name]) for name in ("value", "low", "high"))
    errors, inside = value - truth, (low <= truth) & (truth <= high)
    return {
        "users": users,
        "truth": np.asarray(truth).tolist(),
        "estimate": estimate["value"],
        "std": estimate["std"],
        "low": estimate["low"],
        "high": estimate["high"],
        "error": float(np.sqrt(np.mean(errors**2)) if errors.shape else errors),
        "within_band": float(np.mean(inside)) if errors.shape else bool(inside),
        "users_per_second": users / seconds,
        "seconds": seconds,
    }


def _bars(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The largest coordinates that have names, and their bands."""
    if result["names"] is None:
        return []
    columns = (result[name] for name in ("names", "estimate", "low", "high"))
    return sorted(zip(*columns, strict=True), key=lambda bar: -bar[1])[:_MOST_BARS]


def _show(result: dict[str, Any], horizon: int, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    users = result["users"]
    is_all = "complete: " if users == horizon else ""
    table = new_table("", f"{is_all}{users:,} of {horizon:,} users")
    if isinstance(result["estimate"], list):
        table.add_row("coordinates of the sum", f"{len(result['estimate']):,}")
        table.add_row("rms error", number(result["error"]))
        table.add_row("standard deviation", number(result["std"]))
        table.add_row("within their 95 % bands", f"{100 * result['within_band']:.3g} %")
        for name, *band in _bars(result):
            table.add_row(escape(name), "{}, {} to {}".format(*map(number, band)))
    else:
        table.add_row("true sum (only the demo knows it)", f"{result['truth']:,.12g}")
        table.add_row("estimate", number(result["estimate"]))
        table.add_row("95 % band", f"{number(result['low'])} to {number(result['high'])}")
        table.add_row("error", number(result["error"]))
    table.add_row("users per second", f"{result['users_per_second']:,.0f}")
    console.print(table)
