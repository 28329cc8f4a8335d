"""How results reach a person or a script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import ROUND_CEILING, Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from overhand.errors import InvalidValue

if TYPE_CHECKING:
    from overhand.planning import Plan

Step = TypeVar("Step")

console = Console(emoji=False)
messages = Console(stderr=True, emoji=False)
_DESCRIPTION = TextColumn("{task.description}")


def print_json(value: Any) -> None:
    """Print one JSON object on standard output."""
    print(json.dumps(value), flush=True)  # before any comment on it on stderr


def answer(text: str, result: dict[str, Any], *, as_json: bool) -> None:
    """Print a result as one line of words or, if that was asked for, as JSON."""
    if as_json:
        print_json(result)
    else:
        tell(text)


def say(kind: str, text: str, *, style: str = "") -> None:
    """Print one line on standard error, literally: nothing in it is taken for markup."""
    line = Text.assemble((f"{kind}: ", style), text)
    messages.print(line, soft_wrap=True, highlight=False)


def tell(text: str, *, style: str = "") -> None:
    """Print a line of a result literally, since it contains names that others chose."""
    console.print(Text(text, style=style), soft_wrap=True)


def tell_written(*paths: Path | None) -> None:
    """Name the files that were asked for."""
    for path in paths:
        if path is not None:
            tell(f"wrote {path}")


def check_writable(option: str, path: Path | None, *endings: str) -> None:
    """Refuse a file that cannot be written, before any work is done; None is fine."""
    if path is None:
        return
    if endings and path.suffix not in endings:
        raise InvalidValue(f"{option} {path} must end in {' or '.join(endings)}")
    if path.is_dir():
        raise InvalidValue(f"{option} {path} is a directory")
    if path.exists() and not path.is_file():  # a plan would take the place of the device
        raise InvalidValue(f"{option} {path} is not a regular file")
    if not path.parent.is_dir():
        raise InvalidValue(f"{option} {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidValue(f"{option} {path} cannot be written")


def check_figure(path: Path | None) -> None:
    """Refuse a figure that cannot be drawn or written, before any work is done; None is fine."""
    from overhand.lab.plots import SUFFIXES, new_figure

    check_writable("--plot", path, *SUFFIXES)
    if path is not None:
        new_figure(1, 1)


def format_number(value: float) -> str:
    """Four significant digits, without an exponent where a person would not want one."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def format_epsilon(epsilon: float) -> str:
    """Four significant digits, rounded against us.

    >>> format_epsilon(0.1), format_epsilon(0.53211), format_epsilon(10.0)
    ('0.1', '0.5322', '10')
    """
    upwards = Context(prec=4, rounding=ROUND_CEILING)
    return f"{upwards.create_decimal(repr(epsilon)).normalize():f}"


def plural(count: float, thing: str) -> str:
    """How many things there are.

    >>> plural(1, "message"), plural(2_500, "message")
    ('1 message', '2,500 messages')
    """
    return f"{count:,.0f} {thing}{'' if count == 1 else 's'}"


def format_short(value: float) -> str:
    """Three significant digits, and no exponent.

    >>> [format_short(value) for value in (0.0312, 7.0, 99.96, 427_730.0)]
    ['0.0312', '7', '100', '427,730']
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def format_bytes(length: int) -> str:
    """A number of bytes, in the unit that shows it best.

    >>> [format_bytes(length) for length in (820, 42_140, 999_700, 246_573_720)]
    ['820 B', '42.1 kB', '1 MB', '247 MB']
    """
    value, units = float(length), ["GB", "MB", "kB"]
    unit = "B"
    while units and value >= 999.5:
        value, unit = value / 1000, units.pop()
    return f"{format_short(value)} {unit}"


def format_duration(seconds: float) -> str:
    """A number of seconds, in milliseconds if it is below one.

    >>> [format_duration(seconds) for seconds in (0.00034, 0.0512, 428.0)]
    ['0.34 ms', '51.2 ms', '428 s']
    """
    return f"{format_short(seconds)} s" if seconds >= 1 else f"{format_short(1000 * seconds)} ms"


def new_table(*columns: str) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def show_status(label: str) -> AbstractContextManager[object]:
    """A sign of life on standard error while something takes a second or two."""
    return messages.status(label) if messages.is_terminal else nullcontext()


@contextmanager
def bar(label: str, total: float, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar on standard error, removed when the work is done; yields a function to update it."""
    is_seen = messages.is_terminal  # otherwise even an empty bar would leave empty lines
    with Progress(*columns, console=messages, transient=True, disable=not is_seen) as progress:
        yield partial(progress.update, progress.add_task(label, total=total))


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for work that is counted; yields a function to advance it."""
    columns = (_DESCRIPTION, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with bar(label, total, *columns) as update:
        yield lambda amount: update(advance=amount)


@contextmanager
def steps_bar(
    label: str, steps: Collection[Step], name: Callable[[Step], str]
) -> Iterator[Iterator[Step]]:
    """A bar for a few long steps; yields them, and names the one that is under way."""
    with bar(label, len(steps), _DESCRIPTION, BarColumn(), MofNCompleteColumn()) as update:

        def one_by_one() -> Iterator[Step]:
            for step in steps:
                update(description=f"{label}: {name(step)}")
                yield step
                update(advance=1)

        yield one_by_one()


def levels_table(plan: Plan) -> Table:
    """One row per level; blocks, to which services add noise, are the only one."""
    steps = [] if plan.values.is_whole else ["steps"]
    first = ["users per block"] if plan.noise_by == "services" else ["level", "users per batch"]
    table = new_table(*first, *steps, *plan.mechanisms[0].columns(), "variance")
    for level, mechanism in enumerate(plan.mechanisms, start=1):
        table.add_row(
            *([str(level)] if len(first) > 1 else []),
            format_number(mechanism.size),
            *(format_number(mechanism.steps) for _ in steps),
            *map(format_number, mechanism.columns().values()),
            format_number(mechanism.variance),
        )
    return table
