"""How results reach a person or a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table

from overhand.mechanisms import SharesSum
from overhand.plan import Plan
from overhand.plan.levels import AnyMechanism

console = Console()
messages = Console(stderr=True)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value))


def number(value: float) -> str:
    """Four significant digits, without an exponent where a person would not want one."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def new_table(*columns: str) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def working(label: str) -> Status:
    """A sign of life on standard error while something takes a second or two."""
    return messages.status(label)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Any]:
    """A bar on standard error, gone when the work is done; yields a function to advance it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda amount: progress.advance(task, amount)


@contextmanager
def steps_bar(label: str, total: int) -> Iterator[Any]:
    """The same for a few long steps: yields a function that names the next one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task(label, total=total)

        def begin(step: str) -> None:
            progress.update(task, description=f"{label}: {step}")

        def done() -> None:
            progress.advance(task)

        yield begin, done


def levels_table(plan: Plan) -> Table:
    """One row a level: what differs between the batches of a level is given as a range."""
    rounded = not plan.values.is_whole
    shares = isinstance(plan.mechanisms[0][0], SharesSum)
    sending = ("shares a user", "bits") if shares else ("coins a user", "coin probability")
    steps = ("steps",) if rounded else ()
    table = new_table("level", "users a batch", *steps, *sending, "variance")
    for level, of_level in enumerate(plan.mechanisms, start=1):
        table.add_row(
            str(level),
            _range([m.size for m in of_level]),
            *([number(of_level[0].steps)] if rounded else []),
            *(_range([_sent(m)[i] for m in of_level]) for i in (0, 1)),
            _range([m.variance for m in of_level]),
        )
    return table


def _sent(mechanism: AnyMechanism) -> tuple[float, float]:
    if isinstance(mechanism, SharesSum):
        return mechanism.messages_per_user, mechanism.message_bits
    return mechanism.noise_bits, float(mechanism.noise_probability)


def _range(values: list[Any]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} .. {high}"
