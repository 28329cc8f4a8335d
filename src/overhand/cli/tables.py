"""Users' values from the columns of a file: CSV, plain or compressed, and Parquet, in portions."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from overhand.cli.output import plural
from overhand.errors import InvalidValue, OverhandError
from overhand.model import Rows
from overhand.values import BITS, Values, values_of

Role = Literal["number", "label", "time"]
Column = NDArray[Any]
"""Cells of some rows: floats, with NaN where one is missing; strings or times, with None."""

STANDARD_INPUT = "-"
_PARQUET = (".parquet", ".pq")
_AT_ONCE = 1 << 20
_PARSED_AT_ONCE = 1 << 16
_BLOCK_BYTES = 1 << 24
_MISSING = {"", "na", "nan", "null", "none", "n/a", "#n/a"}
_TRUTHS = {"true": 1.0, "false": 0.0}
_FOR_LABELS = "; for labels, give --values, such as histogram:yes,no"
_MOST_LABELS = 1000
_ARROWS = re.compile(
    r"In CSV column #(?P<column>\d+): Row #(?P<line>\d+): .* invalid value '(?P<text>.*)'"
)


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table(ABC):
    """A file of rows with named columns."""

    source: str
    names: Sequence[str]

    @abstractmethod
    def rows(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        """These columns in portions of rows, in the order of the file."""


def open_table(source: str) -> Table:
    """The table in a file, or on standard input if `source` is "-"."""
    path = Path(source)
    if source != STANDARD_INPUT and not path.is_file():
        if not path.exists():
            raise InvalidValue(f"{source} does not exist")
        what = "a directory" if path.is_dir() else "not a file that can be read twice: pipe it to -"
        raise InvalidValue(f"{source} is {what}")
    if not source.lower().endswith(_PARQUET):
        return (_ArrowCsv if find_spec("pyarrow") else _PlainCsv)(source, _read_header(source))
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise OverhandError(
            f"{source}: Parquet needs pyarrow: pip install 'overhand[parquet]'"
        ) from None
    try:
        file = ParquetFile(source, memory_map=True)
    except (ArrowException, OSError) as error:
        raise InvalidValue(f"{source} is not a Parquet file: {_first_line(error)}") from error
    return _Parquet(source, file.schema_arrow.names, file)


@dataclass(frozen=True)
class _Parquet(Table):
    file: Any

    def rows(self) -> int:
        return int(self.file.metadata.num_rows)

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        with _prefix_errors(self.source):
            for batch in self.file.iter_batches(_AT_ONCE, columns=list(roles), use_threads=False):
                yield _arrow_columns(batch, roles)


class _ArrowCsv(Table):
    def rows(self) -> int:
        return sum(len(columns[0]) for columns in self.chunks({self.names[0]: "label"}))

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        import pyarrow
        from pyarrow.csv import ConvertOptions, ReadOptions, open_csv

        # Numbers are floats, or true and false where the file begins with these.
        types = {"number": pyarrow.float64(), "label": pyarrow.string()}
        chosen = {name: types[role] for name, role in roles.items() if role in types}
        numbers = [name for name, role in roles.items() if role == "number"]
        if numbers and self.source != STANDARD_INPUT:
            with _prefix_errors(self.source), _open_bytes(self.source) as file:
                how = ConvertOptions(include_columns=numbers)
                for field in open_csv(file, convert_options=how).schema:
                    if pyarrow.types.is_boolean(field.type):
                        chosen[field.name] = field.type
        how = ConvertOptions(
            include_columns=list(roles), column_types=chosen, strings_can_be_null=True
        )
        # One thread: with more, errors do not name their line.
        reading = ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with _prefix_errors(self.source, self.names), _open_bytes(self.source) as file:
            for batch in open_csv(file, read_options=reading, convert_options=how):
                yield _arrow_columns(batch, roles)


class _PlainCsv(Table):
    def rows(self) -> int:
        with self._lines() as lines:
            return sum(1 for line in lines if line) - 1

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        places = [self.names.index(name) for name in roles]
        with self._lines() as lines:
            next(lines)
            filled, first = filter(None, lines), 2  # the first line is the header
            while rows := list(islice(filled, _PARSED_AT_ONCE)):
                for line, row in enumerate(rows, start=first):
                    if len(row) != len(self.names):
                        raise InvalidValue(
                            f"line {line} has {len(row)} cells, not {len(self.names)}"
                        )
                cells = list(zip(*rows, strict=True))
                yield [
                    _parse(cells[place], role, name, first)
                    for place, (name, role) in zip(places, roles.items(), strict=True)
                ]
                first += len(rows)

    @contextmanager
    def _lines(self) -> Iterator[Iterator[list[str]]]:
        with _prefix_errors(self.source), _open_bytes(self.source) as file:
            yield csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))


def _parse(cells: Sequence[str], role: Role, name: str, first_line: int) -> Column:
    texts = [None if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]
    if role != "number":
        return np.array(texts, object)
    numbers = np.full(len(texts), np.nan)
    for place, text in enumerate(texts):
        if text is not None:
            truth = _TRUTHS.get(text.lower())
            try:
                numbers[place] = float(text) if truth is None else truth
            except ValueError:
                raise _not_a_number(text, name, first_line + place) from None
    return numbers


def _not_a_number(text: str, name: str, line: int | str) -> InvalidValue:
    return InvalidValue(f"line {line}, column {name!r}: {text!r} is not a number{_FOR_LABELS}")


def _arrow_columns(batch: Any, roles: dict[str, Role]) -> list[Column]:
    """Arrow arrays as NumPy arrays, without a copy if they hold whole numbers or bits."""
    import pyarrow

    of, columns = pyarrow.types, []
    for name, role in roles.items():
        column = batch.column(name)
        if of.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        is_text = of.is_string(kind) or of.is_large_string(kind)
        if role == "number" and is_text:
            raise InvalidValue(f"column {name!r} holds text, not numbers{_FOR_LABELS}")
        if role == "number" and (of.is_decimal(kind) or of.is_null(kind)):
            column = column.cast(pyarrow.float64())
        elif role == "number" and of.is_boolean(kind):
            column = column.cast(pyarrow.uint8())
        elif role == "number" and not (of.is_integer(kind) or of.is_floating(kind)):
            raise InvalidValue(f"column {name!r} holds {kind}, not numbers")
        elif role == "label" and not is_text:
            column = column.cast(pyarrow.string())
        columns.append(np.asarray(column.to_numpy(zero_copy_only=False)))
    return columns


def _read_header(source: str) -> list[str]:
    """The names of a CSV file's columns, from its first line; nothing of it is consumed."""
    if source == STANDARD_INPUT:
        buffer = sys.stdin.buffer
        head = buffer.peek(1) if isinstance(buffer, io.BufferedReader) else b""
        line = head.partition(b"\n")[0]
    else:
        with _prefix_errors(source), _open_bytes(source) as file:
            line = file.readline()
    try:
        rows = list(csv.reader([line.decode("utf-8-sig")]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{source} is not a CSV file: {error}") from error
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise InvalidValue(f"{source} is empty: its first line should name the columns")
    return rows[0]


def _open_bytes(source: str) -> AbstractContextManager[Any]:
    if source == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(source) if source.lower().endswith(".gz") else Path(source).open("rb")


@contextmanager
def _prefix_errors(source: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn a library's error about an unreadable file into one line with its name."""
    try:
        yield
    except InvalidValue as error:
        raise InvalidValue(f"{source}: {str(error).removeprefix(f'{source}: ')}") from error
    # Arrow's are ValueErrors, or NotImplementedErrors if a list should be a label
    except (OSError, EOFError, ValueError, NotImplementedError, csv.Error) as error:
        found = _ARROWS.match(str(error))
        if found and int(found["column"]) < len(names):
            error = _not_a_number(found["text"], names[int(found["column"])], found["line"])
        raise InvalidValue(f"{source}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- columns --------------------------------------------------------------------------------------


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
    def names(self) -> list[str]:
        """The columns of a user's value, the label first."""
        return [*([] if self.group is None else [self.group]), *self.values]

    def check_names(self) -> None:
        """Refuse columns that the table lacks, or that are there or here twice."""
        wanted, names = ([*self.names, *([] if self.at is None else [self.at])], self.table.names)
        for name in wanted:
            if wanted.count(name) > 1:
                raise InvalidValue(f"column {name!r} was given twice: each may be used once")
            count = names.count(name)
            if count == 0:
                listed = ", ".join(names)
                is_split_otherwise = len(names) == 1 and re.search(r"[;|\t]", listed)
                hint = ": columns must be separated by commas" if is_split_otherwise else ""
                raise InvalidValue(
                    f"{self.source} has no column {name!r}; its columns are {listed}{hint}"
                )
            if count > 1:
                raise InvalidValue(f"{self.source} has {count} columns named {name!r}")

    def portions(self, kind: Values) -> Iterator[tuple[Rows, Column | None]]:
        """Users and their times, in portions, each checked."""
        given, labels, wanted = self.names, kind.label_columns, kind.columns
        if len(given) != wanted:
            raise InvalidValue(
                f"a value of {kind} takes {plural(wanted, 'column')}, not {len(given)}: "
                f"{', '.join(given)}"
            )
        roles: list[Role] = ["label" if place < labels else "number" for place in range(wanted)]
        users = 0
        for columns in self._complete(dict(zip(given, roles, strict=True))):
            cells, times = columns[:wanted], columns[wanted:]
            values: Any = cells[0]
            if labels and wanted > 1:
                values = tuple(cells)
            elif not labels and kind.given_shape:
                values = np.stack(cells, axis=1).reshape(-1, *kind.given_shape)
            try:
                rows = kind.rows(values, first=users)
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
            missing = np.logical_or.reduce([_is_missing(column) for column in columns])
            if missing.any() and not self.skip_missing:
                rows, first = plural(int(missing.sum()), "row"), read + int(np.argmax(missing)) + 1
                raise InvalidValue(
                    f"{self.source}: {rows} without a value (first: row {first:,}) among rows "
                    f"{read + 1:,} to {read + len(missing):,}; --missing skip leaves them out"
                )
            read += len(missing)
            yield [column[~missing] for column in columns] if missing.any() else columns

    def kind(self, spec: str | None, *, clip: bool, trust_data: bool) -> tuple[Values, str]:
        """What users hold, and what of it was read from the data, if anything was."""
        if not trust_data:
            return values_of(spec or "bit", clip=clip), ""
        if self.source == STANDARD_INPUT:
            raise InvalidValue("--trust-data reads twice, and standard input can be read once")
        found, what = spec, "kind"
        if found is None:
            found = "grouped" if self.group is not None else self._guess()
        if found == "real":
            found, what = self._read_bounds(), "bounds"
        elif found == "histogram":
            found, what = f"histogram:{self._read_labels(self.values[0])}", "labels"
        elif found == "grouped" and self.group is not None:
            labels = self._read_labels(self.group)
            found, what = f"grouped:{labels}:{self._read_bounds()}", "labels and bounds"
        kind = values_of(found, clip=clip)
        return kind, "" if found == spec else f"the {what} ({kind})"

    def _guess(self) -> str:
        """Bits, if there is nothing else; labels, if there are texts; else reals."""
        try:
            is_bit = all(np.isin(part, (0, 1)).all() for part in self._cells(self.values, "number"))
        except InvalidValue:
            return "histogram"
        return "bit" if is_bit else "real"

    def _cells(self, names: Sequence[str], role: Role) -> Iterator[Column]:
        for name in names:
            for (cells,) in self.table.chunks({name: role}):
                yield cells[~_is_missing(cells)]

    def _read_bounds(self) -> str:
        parts = self._cells(self.values, "number")
        ends = [(float(part.min()), float(part.max())) for part in parts if len(part)]
        if not ends:
            raise InvalidValue(f"column {self.values[0]!r} has no values")
        lows, highs = zip(*ends, strict=True)
        return f"real:{min(lows)!r}:{max(highs)!r}"

    def _read_labels(self, name: str) -> str:
        found: set[str] = set()
        for cells in self._cells([name], "label"):
            found.update(np.unique(cells.astype(str)).tolist())
            if len(found) > _MOST_LABELS:
                raise InvalidValue(f"column {name!r} has more than {_MOST_LABELS:,} labels")
        if not found:
            raise InvalidValue(f"column {name!r} has no values")
        for label in found:
            if "," in label or ":" in label:
                raise InvalidValue(f"column {name!r}: a comma or colon in the label {label!r}")
        return ",".join(sorted(found))


def _is_missing(column: Column) -> NDArray[np.bool_]:
    if column.dtype.kind == "O":
        return np.array([cell is None for cell in column], bool)
    return np.not_equal(column, column)  # NaN, and times that are none
