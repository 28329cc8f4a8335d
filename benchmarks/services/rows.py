"""What was measured of a deployment, each figure beside its target."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from benchmarks.tables import empty_table

CAPTION = (
    "Processor time is user and system of the processes named, by the kernel's account.\n"
    "Rates are the best of a few rounds, costs and ratios their median; both sides of a ratio are\n"
    "measured in turns. Load, databases and services share the processors of this machine."
)


@dataclass(frozen=True)
class Row:
    """One figure; a target is a number that it must reach, or must not exceed."""

    name: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def target(self) -> str:
        if self.least is not None:
            return f">= {self.least:,g}"
        return f"<= {self.most:,g}" if self.most is not None else ""

    @property
    def verdict(self) -> str:
        if self.least is None and self.most is None:
            return ""
        low = self.least is not None and self.value < self.least
        high = self.most is not None and self.value > self.most
        return "missed" if low or high else "met"


def services_table(rows: Sequence[Row]) -> Table:
    table = empty_table("A deployment on this machine", ("measured", "", "target", ""), CAPTION)
    for column in (2, 4):
        table.columns[column].justify = "left"
    for row in rows:
        value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
        table.add_row(row.name, value, row.unit, row.target, row.verdict)
    return table


def answer(rows: Iterable[Row]) -> None:
    """What a stage says to the process that started it."""
    print(json.dumps({"rows": [asdict(row) for row in rows]}))
