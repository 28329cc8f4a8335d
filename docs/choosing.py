"""The tables and the figure of docs/choosing.md: every number is that of a plan.

python docs/choosing.py size | shufflers | mechanisms | epsilon | trust | horizon    prints a table
python docs/choosing.py docs/choosing.png                                            draws
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

import overhand as oh
from overhand.lab.baselines import SquareRoot, local_counter
from overhand.lab.plots import colour_of, new_figure
from overhand.planning import kinds_of
from overhand.values import values_of

DELTA = 1e-6
USERS = 10**6
HORIZONS = (10**4, 10**6, 10**8)
MARKERS = dict(zip(HORIZONS, "^os", strict=True))
SIZES = (100, 1000, 10**4, 10**5, 10**6, 10**8)
SHUFFLERS = (1, 2, 3, 4, 5, 6)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
TRUST = ((1.0, 1), (0.9, 1), (0.7, 1), (0.5, 1), (1.0, 2), (1.0, 3), (1.0, 5))
MECHANISMS = ("coins", "shares")
SENT = tuple(
    (kind, spec)
    for spec in ("bit", "histogram:10", "histogram:200", "vector:20")
    for by in ("users", "services")
    for kind in kinds_of(values_of(spec), by)
)

Row = tuple[str, ...]


@cache
def planned(
    horizon: int, shufflers: int, epsilon: float = 1.0, mechanism: str = "coins"
) -> oh.Plan:
    """The best plan that can be deployed."""
    privacy = oh.Privacy(epsilon, DELTA)
    return oh.Plan.best(horizon, shufflers, privacy, mechanism=mechanism)


def local(horizon: int, epsilon: float = 1.0) -> float:
    return local_counter(horizon, oh.Privacy(epsilon, DELTA), oh.Bits()).rms_error


def trusted(horizon: int, epsilon: float = 1.0) -> float:
    return SquareRoot(horizon, oh.Privacy(epsilon, DELTA)).rms_error


def size_row(users: int) -> Row:
    """How good each model is, and what two services are off by, of all users."""
    ours = two_services(users).rms_error
    shuffled = planned(users, 1).rms_error, planned(users, 4, mechanism="shares").rms_error
    errors = (local(users), *shuffled, ours, trusted(users))
    return (f"{users:,}", *(f"{error:,.1f}" for error in errors), f"{ours / users:.2g}")


def shufflers_row(shufflers: int) -> Row:
    """Errors and, in brackets, messages; a dash where fewer shufflers are better."""
    cells = []
    for horizon in HORIZONS:
        for mechanism in MECHANISMS:
            plan = planned(horizon, shufflers, mechanism=mechanism)
            is_worth_it = plan.tree.levels == shufflers
            cells.append(f"{plan.rms_error:.1f} ({plan.messages_per_user})" if is_worth_it else "-")
    return (str(shufflers), *cells)


def mechanism_row(sent: tuple[str, str]) -> Row:
    """What a report costs and reaches, in trees with four shufflers, and what one client can do."""
    kind, spec = sent
    plan = oh.Plan.best(USERS, 4, oh.Privacy(1.0, DELTA), values=spec, mechanism=kind)
    costs = plan.costs
    times = (costs.client_seconds, costs.shuffler_seconds + costs.server_seconds)
    numbers = (costs.messages, costs.report_bytes, plan.influence)
    messages, sealed, influence = (f"{one:,.0f}" for one in numbers)
    milliseconds = (f"{1000 * one:,.1f}" for one in times)
    return (
        spec,
        kind,
        plan.noise_by,
        messages,
        sealed,
        *milliseconds,
        f"{plan.rms_error:.1f}",
        influence,
    )


def epsilon_row(epsilon: float) -> Row:
    plans = (
        planned(USERS, 1, epsilon),
        planned(USERS, 4, epsilon),
        shares_of_four(epsilon),
        two_services(USERS, epsilon),
    )
    errors = (local(USERS, epsilon), *(plan.rms_error for plan in plans), trusted(USERS, epsilon))
    return (f"{epsilon:g}", *(f"{error:,.1f}" for error in errors))


def shares_of_four(epsilon: float) -> oh.Plan:
    return planned(USERS, 4, epsilon, "shares")


def two_services(users: int, epsilon: float = 1.0) -> oh.Plan:
    return planned(users, 1, epsilon, "pairs")


def trust_row(trusted_with: tuple[float, int]) -> Row:
    """What it costs to count on fewer users, or on people who come back."""
    honest, reports = trusted_with
    privacy = oh.Privacy(1.0, DELTA)
    coins = oh.Plan.best(USERS, 3, privacy, honest=honest, reports=reports)
    pairs = oh.Plan.best(USERS, privacy=privacy, reports=reports, mechanism="pairs")
    found = (f"{coins.rms_error:.1f}", str(coins.messages_per_user), f"{pairs.rms_error:.1f}")
    return (f"{honest:.0%}", str(reports), *found)


def horizon_row(case: tuple[str, Callable[[], list[oh.Plan]]]) -> Row:
    """The error over the first million users of one plan or of several, one after the other."""
    label, plans = case
    squares, settled = np.zeros(0), 0.0
    for plan in plans():
        t = np.arange(1, max(plan.horizon, min(plan.most_users, USERS)) + 1)
        squares = np.concatenate([squares, settled + plan.squared_error(t)])
        settled += float(plan.noise_variance(t[-1:])[0])
    return (label, f"{math.sqrt(squares[:USERS].mean()):.1f}")


def endless(growth: int) -> list[oh.Plan]:
    """The plans that an `EndlessSum` makes for a million users."""
    total = oh.EndlessSum(
        lambda horizon: planned(horizon, 4), oh.seeded_random(1), first=1000, growth=growth
    )
    total.update_many(np.zeros(USERS, dtype=np.uint8))
    return total.plans


HORIZON_CASES: tuple[tuple[str, Callable[[], list[oh.Plan]]], ...] = (
    ("pairs, planned for 100,000", lambda: [two_services(USERS // 10)]),
    ("pairs, planned for 1,000,000", lambda: [two_services(USERS)]),
    ("pairs, planned for 10,000,000", lambda: [two_services(10 * USERS)]),
    ("coins, planned for 1,000,000", lambda: [planned(USERS, 4)]),
    ("coins, planned for 10,000,000", lambda: [planned(10 * USERS, 4)]),
    ("coins, endless, each plan 2 times as long", lambda: endless(2)),
    ("coins, endless, each plan 10 times as long", lambda: endless(10)),
)
FOUR, SERVICES = "4, shares", "2 services"
TABLES: dict[str, tuple[Row, Callable[[Any], Row], tuple[Any, ...]]] = {
    "size": (
        ("users", "local", "1 shuffler", FOUR, SERVICES, "trusted", "of all users"),
        size_row,
        SIZES,
    ),
    "shufflers": (
        ("", *(f"{name}, {n:.0e}".replace("e+0", "e") for n in HORIZONS for name in MECHANISMS)),
        shufflers_row,
        SHUFFLERS,
    ),
    "mechanisms": (
        (
            "values",
            "sent as",
            "noise by",
            "messages",
            "bytes",
            "client",
            "services",
            "rms error",
            "influence",
        ),
        mechanism_row,
        SENT,
    ),
    "epsilon": (
        ("epsilon", "local", "1 shuffler", "4, coins", FOUR, SERVICES, "trusted"),
        epsilon_row,
        EPSILONS,
    ),
    "trust": (("honest", "reports", "coins", "messages", "pairs"), trust_row, TRUST),
    "horizon": (("for 1,000,000 users", "rms error"), horizon_row, HORIZON_CASES),
}


def rows_of(table: str) -> Iterator[Row]:
    heading, row, cases = TABLES[table]
    yield heading
    yield from map(row, cases)


def show(table: str) -> None:
    rows = list(rows_of(table))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells))


def draw(path: str) -> None:
    """Errors against the number of shufflers, and against epsilon."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    draw_shufflers(left)
    draw_epsilon(right)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(color="#e5e8eb", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_shufflers(axes: Axes) -> None:
    """Colours are those of the mechanisms; which curves are of how many users is written beside."""
    names = (*MECHANISMS, "pairs", "trusted server")
    coins, shares, pairs, server = (colour_of(name) for name in names)
    for horizon in HORIZONS:
        for mechanism, colour in zip(MECHANISMS, (coins, shares), strict=True):
            plans = [planned(horizon, k, mechanism=mechanism) for k in SHUFFLERS]
            shown = [p for k, p in zip(SHUFFLERS, plans, strict=True) if p.tree.levels == k]
            axes.plot(
                [p.tree.levels for p in shown], [p.rms_error for p in shown],
                marker=MARKERS[horizon], ms=5, color=colour,
            )  # fmt: skip
        x, y = SHUFFLERS[-1], planned(horizon, SHUFFLERS[-1]).rms_error
        levels = ((two_services(horizon).rms_error, "--", pairs), (trusted(horizon), ":", server))
        for error, style, colour in levels:
            axes.plot(
                SHUFFLERS, [error] * len(SHUFFLERS), style, lw=1, color=colour,
                marker=MARKERS[horizon], ms=5, markevery=[-1],
            )  # fmt: skip
        axes.annotate(
            f"{horizon:,}\nusers", (x, y), (8, 0), textcoords="offset points", va="center",
            color="#555555", fontsize=9,
        )  # fmt: skip
    for label, style, colour in (
        *(("coins", "-", coins), ("shares", "-", shares), ("two services, pairs", "--", pairs)),
        ("trusted server", ":", server),
    ):
        axes.plot([], [], style, color=colour, label=label)
    axes.legend(frameon=False)
    axes.set_xticks(SHUFFLERS)
    axes.set_xlim(0.8, 7.3)
    axes.set_ylim(10, 1000)
    axes.set_xlabel("shufflers")
    axes.set_ylabel("rms error of the running count")
    axes.set_title("How many shufflers (epsilon 1)", fontsize=11)


def draw_epsilon(axes: Axes) -> None:
    x = np.array(EPSILONS)
    lines = {
        "local": [local(USERS, e) for e in EPSILONS],
        "one shuffler, coins": [planned(USERS, 1, e).rms_error for e in EPSILONS],
        "4 shufflers, coins": [planned(USERS, 4, e).rms_error for e in EPSILONS],
        "4 shufflers, shares": [shares_of_four(e).rms_error for e in EPSILONS],
        "two services, pairs": [two_services(USERS, e).rms_error for e in EPSILONS],
        "trusted server": [trusted(USERS, e) for e in EPSILONS],
    }
    for label, errors in lines.items():
        style = ":" if label == "trusted server" else "-"
        axes.plot(x, errors, style, marker="o", ms=4, color=colour_of(label), label=label)
    axes.set_xscale("log")
    axes.set_xticks(x, [f"{e:g}" for e in EPSILONS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("epsilon")
    axes.set_title("Which epsilon (1,000,000 users)", fontsize=11)
    axes.legend(frameon=False)
    axes.set_ylim(4, 20_000)  # room for the legend


if __name__ == "__main__":
    wanted = sys.argv[1]
    show(wanted) if wanted in TABLES else draw(wanted)
