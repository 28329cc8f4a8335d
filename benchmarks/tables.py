"""The tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Measured, Row
from benchmarks.task import Task

PLAIN_WIDTH = 132  # of output that goes to a file

HEADINGS = (
    *("million\nusers/s", "\nseconds", "setup\nseconds", "memory\nMiB", "import\nMiB"),
    *("rms\nerror", "expected\nerror", "time\nratio", "memory\nratio", "error\nratio"),
)
CAPTION = (
    "Trusted: the server sees every value. Memory: peak above a process that only imports.\n"
    "Expected error: where there is a formula; then it is what the ratio compares.\n"
    "Ratios: against the first row."
)


@dataclass(frozen=True)
class Figure:
    """One of our own figures."""

    name: str
    value: float
    unit: str


def console() -> Console:
    found = Console()
    return found if found.is_terminal else Console(width=PLAIN_WIDTH)


def empty_table(title: str, headings: Sequence[str], caption: str) -> Table:
    """A table whose first column is names and whose others are numbers."""
    table = Table(
        title=title,
        caption=caption,
        box=None,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column()
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def contest_table(rows: Sequence[Row], ours: Row, task: Task) -> Table:
    title = f"{task.horizon:,} users, epsilon {task.epsilon:g}, delta {task.delta:g}"
    table = empty_table(title, HEADINGS, CAPTION)
    for row in rows:
        table.add_row(*_cells(row, ours))
    return table


def _cells(row: Row, ours: Row) -> list[str]:
    if row.missing:
        return [row.name, row.missing.partition(":")[0]]
    return [
        row.name,
        f"{row.users_per_second / 1e6:.3g}",
        f"{row.seconds:.3g}",
        f"{row.setup_seconds:.1f}",
        f"{row.added_mebibytes:,.0f}",
        f"{row.import_mebibytes:,.0f}",
        f"{row.rms_error:.1f}",
        "-" if row.expected_rms is None else f"{row.expected_rms:.1f}",
        *map(_times, row.ratios(ours).values()),
    ]


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


def missing_lines(rows: Sequence[Measured]) -> list[str]:
    return [f"{row.name}: {row.missing}" for row in rows if row.missing]


def figures_table(figures: Sequence[Figure]) -> Table:
    table = Table(title="Our own figures", box=None, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column()
    for figure in figures:
        value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
        table.add_row(figure.name, value, figure.unit)
    return table
