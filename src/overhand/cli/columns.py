"""Columns of a table as the values of users, and kinds of value inferred from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overhand.cli.output import plural
from overhand.cli.tables import STANDARD_INPUT, Column, Role, Table
from overhand.errors import InvalidValue
from overhand.model import Rows
from overhand.values import BITS, Values, values_of

_MOST_LABELS = 1000


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what, and what happens to rows that lack a value."""

    source: str
    table: Table
    values: Sequence[str]
    group: str | None = None
    at: str | None = None
    skip_missing: bool = False

    @property
    def given(self) -> list[str]:
        """The columns of a user's value, the label first."""
        return [*([] if self.group is None else [self.group]), *self.values]

    @property
    def names(self) -> list[str]:
        return [*self.given, *([] if self.at is None else [self.at])]

    def portions(self, kind: Values) -> Iterator[tuple[Rows, Column | None]]:
        """Users and their times, in portions, each checked."""
        given, labels, wanted = self.given, kind.label_columns, kind.columns
        if len(given) != wanted:
            raise InvalidValue(
                f"a value of {kind} takes {plural(wanted, 'column')}, not {len(given)}: "
                f"{', '.join(given)}"
            )
        roles: list[Role] = ["label" if place < labels else "number" for place in range(wanted)]
        users = 0
        for columns in self._complete(dict(zip(given, roles, strict=True))):
            cells, times = columns[:wanted], columns[wanted:]
            try:
                rows = kind.rows(_given(kind, labels, cells), first=users)
            except InvalidValue as error:
                hint = "; for other numbers, give --values, such as real:0:100"
                raise InvalidValue(
                    f"{self.source}, {', '.join(self.values)} with --values {kind}: {error}"
                    f"{hint if kind == BITS else ''}"
                ) from None
            users += len(rows)
            yield rows, times[0] if times else None

    def _complete(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        """The rows in which no cell is missing; an error that says how many others there are."""
        roles = {**roles, **({} if self.at is None else {self.at: "time"})}
        read = 0
        for columns in self.table.chunks(roles):
            missing = np.zeros(len(columns[0]), bool)
            for column in columns:
                missing |= _is_missing(column)
            if missing.any() and not self.skip_missing:
                raise InvalidValue(
                    f"{self.source}: row {read + int(np.argmax(missing)) + 1} has no value, nor "
                    f"have {int(missing.sum()) - 1:,} more of rows {read + 1:,} to "
                    f"{read + len(missing):,}; --missing skip leaves them out"
                )
            read += len(missing)
            yield [column[~missing] for column in columns] if missing.any() else columns


def _is_missing(column: Column) -> Any:
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind == "M":
        return np.isnat(column)
    if column.dtype.kind == "O":
        return np.array([cell is None for cell in column], bool)
    return np.zeros(len(column), bool)


def _given(kind: Values, labels: int, cells: list[Column]) -> Any:
    """What `rows` of a kind takes."""
    if labels:
        return tuple(cells) if len(cells) > 1 else cells[0]
    if not kind.given_shape:
        return cells[0]
    return np.stack(cells, axis=1).reshape(-1, *kind.given_shape)


def taken_from_data(columns: Columns, spec: str | None) -> tuple[str, str]:
    """A kind whose bounds and labels are those of the data, and what was read from it."""
    if spec is None:
        spec = _guessed(columns)
    if spec == "real":
        low, high = _bounds(columns)
        return f"real:{low!r}:{high!r}", "bounds"
    if spec == "histogram":
        return f"histogram:{_labels(columns, columns.values[0])}", "labels"
    if spec == "grouped" and columns.group is not None:
        low, high = _bounds(columns)
        labels = _labels(columns, columns.group)
        return f"grouped:{labels}:real:{low!r}:{high!r}", "labels and bounds"
    return spec, "kind"


def _guessed(columns: Columns) -> str:
    """Bits, if there is nothing else; labels, if there are texts; else reals."""
    if columns.group is not None:
        return "grouped"
    try:
        is_bit = all(np.isin(part, (0, 1)).all() for part in _numbers(columns))
    except InvalidValue:
        return "histogram"
    return "bit" if is_bit else "real"


def _cells(columns: Columns, name: str, role: Role) -> Iterator[Column]:
    for (cells,) in columns.table.chunks({name: role}):
        yield cells[~_is_missing(cells)]


def _numbers(columns: Columns) -> Iterator[Column]:
    for name in columns.values:
        yield from _cells(columns, name, "number")


def _bounds(columns: Columns) -> tuple[float, float]:
    ends = [(float(part.min()), float(part.max())) for part in _numbers(columns) if len(part)]
    if not ends:
        raise InvalidValue(f"column {columns.values[0]!r} has no values")
    lows, highs = zip(*ends, strict=True)
    return min(lows), max(highs)


def _labels(columns: Columns, name: str) -> str:
    found: set[str] = set()
    for cells in _cells(columns, name, "label"):
        found.update(np.unique(cells.astype(str)).tolist())
        if len(found) > _MOST_LABELS:
            raise InvalidValue(f"column {name!r} has more than {_MOST_LABELS:,} labels")
    if not found:
        raise InvalidValue(f"column {name!r} has no values")
    for label in found:
        if "," in label or ":" in label:
            raise InvalidValue(
                f"column {name!r}: a label may not contain a comma or colon: {label!r}"
            )
    return ",".join(sorted(found))


def kind_of(
    columns: Columns, spec: str | None, *, clip: bool, trust_data: bool
) -> tuple[Values, str]:
    """What users hold, and what of it was read from the data, if anything was."""
    if not trust_data:
        return values_of(spec or "bit", clip=clip), ""
    if columns.source == STANDARD_INPUT:
        raise InvalidValue("--trust-data reads a file twice, and standard input can be read once")
    found, what = taken_from_data(columns, spec)
    kind = values_of(found, clip=clip)
    return kind, "" if found == spec else f"the {what} ({kind})"
