"""`overhand sum`: what a deployment would publish about your own file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from overhand.cli import options
from overhand.cli.options import ServicesPlanOptions
from overhand.cli.output import (
    check_figure,
    check_writable,
    console,
    format_number,
    new_table,
    plural,
    print_json,
    progress_bar,
    say,
    show_status,
    tell,
    tell_written,
)
from overhand.cli.tables import STANDARD_INPUT, Columns, open_table
from overhand.errors import InvalidValue, whole
from overhand.lab.plots import Band, sum_figure
from overhand.planning import Plan
from overhand.randomness import seeded_random
from overhand.sums import ContinualSum, Window
from overhand.values import Grouped, Values, Vectors

if TYPE_CHECKING:
    from overhand.estimates import Estimate

_MOST_POINTS = 10**6
_SHOWN = 10
_SHOWN_WINDOWS = 60
_CURVES = 5


@options.takes(
    ServicesPlanOptions,
    without=("horizon", "spec", "clip", "tree", "composition", "error", "max_messages"),
)
def sums(
    file: str,
    column: Annotated[list[str], typer.Option(metavar="<str>")],
    group: str | None = None,
    at: str | None = None,
    values: Annotated[str | None, typer.Option(show_default="bit")] = None,
    clip: options.Clip = False,
    trust_data: Annotated[bool, typer.Option("--trust-data")] = False,
    missing: Literal["refuse", "skip"] = "refuse",
    horizon: Annotated[
        int | None, options.Whole(show_default="the number of rows, which is taken to be public")
    ] = None,
    *,
    asked: ServicesPlanOptions,
    points: Annotated[int, options.Whole()] = 200,
    windows: str | None = None,
    pending: options.PendingOption = "middle",
    output: Path | None = None,
    plot: options.Figure = None,
    seed: options.OptionalSeed = None,
    as_json: options.Json = False,
) -> None:
    """Private running estimates of a column of your own file: what a deployment would publish.

    The whole protocol is simulated here, with one user per row. This process sees every value: it
    shows what others would see of a deployment, and how accurate that is.

    Args:
        file: A .csv, .csv.gz or .parquet file, or - for CSV on stdin.
        column: The column of values; repeat it for a vector.
        group: The column of labels, for --values grouped:...
        at: The column of times, in ascending order. Times are not protected.
        values: What a user holds: bit, real:LOW:HIGH, histogram:B or any kind as for `plan`.
        trust_data: Read missing bounds and labels from the data: they are released without privacy.
        missing: What to do with rows without a value.
        horizon: How many users the plan serves.
        points: About how many estimates to write of the users expected.
        windows: Also sum windows of this length, such as 7d or 12h; needs --at.
        output: Write the estimates to a .csv or .json file.
    """
    check_figure(plot)
    check_writable("--output", output, ".csv", ".json")
    whole("points", points, least=1, most=_MOST_POINTS)
    if windows is not None and at is None:
        raise InvalidValue("--windows needs times: name their column with --at")
    table = open_table(file)
    columns = Columns(file, table, column, group, at, skip_missing=missing == "skip")
    columns.check_names()
    kind, read_off = columns.kind(values, clip=clip, trust_data=trust_data)
    if pending == "rate" and isinstance(kind, Grouped):
        raise InvalidValue("--pending rate: groups allow for pending users anywhere: leave it out")
    if read_off:
        say("--trust-data", f"{read_off} read from the data: released without privacy")
    if horizon is None and file == STANDARD_INPUT:
        raise InvalidValue("--horizon is missing: standard input cannot be counted in advance")
    with show_status("counting rows"):
        users = table.rows() if horizon is None else horizon
    if users < 2:
        raise InvalidValue(f"{file} has {plural(users, 'row')}: a running sum needs at least 2")
    with show_status("searching for the best plan"):
        plan = replace(asked, horizon=users, spec=kind.spec, clip=clip).plan()
    has_windows, is_rate = windows is not None, pending == "rate"
    random = None if seed is None else seeded_random(seed)
    total = ContinualSum(plan, random, archive=has_windows or is_rate, pending=pending)
    with progress_bar(f"{users:,} rows", users) as advance:
        places = _places(plan, points)
        published = list(_publish(total, columns, places, advance, is_timed=has_windows))
    if not published:
        raise InvalidValue(f"{file} has no rows")
    in_windows = [] if windows is None else [_published_in(one) for one in total.windows(windows)]
    names = kind.coordinate_names or [str(place) for place in range(kind.dimension)]
    if isinstance(kind, Vectors):
        names = column
    found = Found(kind, plan, published, in_windows, names)
    if output is not None:
        found.write(output)
    if plot is not None:
        found.draw(plot, ", ".join(column))
    if as_json:
        print_json(
            {**found.summary(), "file": file, "column": column, "seed": seed, "pending": pending}
        )
        return
    found.show(f"{file}, {', '.join(column)}")
    tell_written(output, plot)


def _places(plan: Plan, points: int) -> Iterator[int]:
    """About this many ends of blocks up to the horizon, evenly spread, and on like this."""
    lowest = plan.tree.lowest
    blocks = max(1, plan.horizon // lowest)
    wanted = np.unique(np.linspace(0, blocks, min(points, blocks) + 1).round().astype(np.int64))
    yield from (wanted[1:] * lowest).tolist()
    yield from count(lowest * (blocks + -(-blocks // points)), lowest * -(-blocks // points))


def _publish(
    total: ContinualSum,
    columns: Columns,
    places: Iterator[int],
    advance: Callable[[int], None],
    *,
    is_timed: bool,
) -> Iterator[Published]:
    """The estimates at these places and at the end of the file, with their times."""
    time: dict[str, str] = {}
    place, is_current = next(places), True
    for rows, times in columns.portions(total.plan.values):
        done = 0
        while done < len(rows):
            until = min(len(rows), done + place - total.t)
            part = slice(done, until)
            total.update_rows(rows[part], None if times is None or not is_timed else times[part])
            time, done = {} if times is None else {"time": str(times[until - 1])}, until
            is_current = total.t == place
            if is_current:
                yield {"users": total.t, **time}, total.estimate
                place = next(places)
        advance(len(rows))
    if not is_current:
        yield {"users": total.t, **time}, total.estimate


def _published_in(window: Window) -> Published:
    span = {"start": str(window.start), "stop": str(window.stop)}
    return {**span, "users": window.estimate.users}, window.estimate


Published = tuple[dict[str, Any], "Estimate"]
"""After which users, or of which window, and what is published then."""


class Reading(NamedTuple):
    """One number of an estimate, and its 95 % band."""

    name: str
    value: float
    low: float
    high: float


class Found(NamedTuple):
    """Everything that is published about a file."""

    kind: Values
    plan: Plan
    points: list[Published]
    windows: list[Published]
    names: Sequence[str]
    """Of the coordinates of a sum: a vector's are those of its columns."""

    @property
    def is_grouped(self) -> bool:
        return isinstance(self.kind, Grouped)

    def _readings(self, estimate: Estimate) -> list[Reading]:
        """All numbers of an estimate: one, one per coordinate, or three per group."""
        if self.is_grouped:
            return [
                Reading(f"{group.label} {what}", *found)
                for group in estimate.groups()
                for what in ("count", "sum", "mean")
                if (found := getattr(group, what)) is not None  # if it may be empty, it has no mean
            ]
        value, (low, high) = np.atleast_1d(estimate.value), estimate.interval()
        numbers = (np.broadcast_to(part, value.shape).tolist() for part in (value, low, high))
        return list(map(Reading, self.names, *numbers))

    def _named(self, reading: Reading) -> dict[str, Any]:
        named = {} if self.kind.is_scalar else {"of": reading.name}
        return {**named, "estimate": reading.value, "low": reading.low, "high": reading.high}

    @property
    def last(self) -> Estimate:
        return self.points[-1][1]

    def _lines(self, published: list[Published]) -> list[dict[str, Any]]:
        """One per estimate and number."""
        return [
            {**whose, **self._named(reading)}
            for whose, estimate in published
            for reading in self._readings(estimate)
        ]

    def write(self, path: Path) -> None:
        """Write everything as JSON, or the estimates (or windows, if asked for) as CSV."""
        with path.open("w", newline="", encoding="utf-8") as file:
            if path.suffix == ".json":
                json.dump({**self.summary(), "estimates": self._lines(self.points)}, file)
                return
            lines = self._lines(self.windows or self.points)
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)

    def draw(self, path: Path, title: str) -> None:
        """The largest of its curves at the end, with their bands."""
        at_end = self._readings(self.last)
        if self.is_grouped:
            at_end = [reading for reading in at_end if reading.name.endswith(" sum")]
        largest = sorted(at_end, key=lambda reading: -reading.value)[:_CURVES]
        curves: dict[str, list[tuple[float, ...]]] = {reading.name: [] for reading in largest}
        for _, estimate in self.points:
            for name, *numbers in self._readings(estimate):
                if name in curves:
                    curves[name].append((estimate.t, *numbers))
        bands = [Band(name, *np.array(curve).T) for name, curve in curves.items()]
        sum_figure(bands, path, title=f"{title}: {self.last.t:,} users, {self.plan.privacy}")

    def summary(self) -> dict[str, Any]:
        numbers = [self._named(reading) for reading in self._readings(self.last)]
        return {
            "users": self.last.t,
            "horizon": self.plan.horizon,
            "values": self.kind.spec,
            "epsilon": self.plan.privacy.epsilon,
            "delta": self.plan.privacy.delta,
            "noise_by": self.plan.noise_by,
            "messages_per_user": self.plan.messages_per_user,
            "std": self.last.std,
            "rms_error": self.plan.rms_error,
            "digest": self.plan.digest,
            "points": len(self.points),
            "last": numbers[0] if self.kind.is_scalar else numbers,
            "windows": self._lines(self.windows),
        }

    def show(self, title: str) -> None:
        tell(f"{title}: {self.last.t:,} users ({self.kind}), {self.plan.privacy}", style="bold")
        tell(options.describe_trust(self.plan))
        table = new_table("running sum", "estimate", "95 % band")
        found = self._readings(self.last)
        if not self.is_grouped:
            found.sort(key=lambda reading: -reading.value)
        for one in found[:_SHOWN]:
            name = "all users" if self.kind.is_scalar else one.name
            table.add_row(name, _format(one.value), f"{_format(one.low)} to {_format(one.high)}")
        console.print(table)
        _count_rest(len(found) - _SHOWN)
        if not self.windows:
            return
        table = new_table("window from", "of", "users", "estimate", "95 % band")
        lines = self._lines(self.windows)
        for row in lines[:_SHOWN_WINDOWS]:
            band = f"{_format(row['low'])} to {_format(row['high'])}"
            name = row.get("of", "all users")
            table.add_row(row["start"], name, f"{row['users']:,}", _format(row["estimate"]), band)
        console.print(table)
        _count_rest(len(lines) - _SHOWN_WINDOWS)


def _count_rest(rows: int) -> None:
    if rows > 0:
        tell(f"and {rows:,} more: --output writes all of them")


def _format(value: float) -> str:
    """A sum in full, even that of a billion users."""
    return f"{value:,.0f}" if abs(value) >= 1000 else format_number(value)
