"""Tables in files, read in portions: CSV, plain or compressed, and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue, OverhandError

Role = Literal["number", "label", "time"]
Column = NDArray[Any]
"""Cells of some rows: floats, with NaN where one is missing; strings or times, with None."""

STANDARD_INPUT = "-"
_PARQUET = (".parquet", ".pq")
_AT_ONCE = 1 << 20
_PARSED_AT_ONCE = 1 << 16
_BLOCK_BYTES = 1 << 24
_MISSING = {"", "na", "nan", "null", "none", "n/a", "#n/a"}


class Table(Protocol):
    """A file of rows with named columns."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all columns."""

    def rows(self) -> int:
        """How many rows there are."""

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        """These columns in portions of rows, in the order of the file."""


def opened(source: str) -> Table:
    """The table in a file, or on standard input if `source` is "-"."""
    path = Path(source)
    if source != STANDARD_INPUT and not path.is_file():
        if not path.exists():
            raise InvalidValue(f"{source} does not exist")
        what = "a directory" if path.is_dir() else "not a file that can be read twice: pipe it to -"
        raise InvalidValue(f"{source} is {what}")
    if source.lower().endswith(_PARQUET):
        return _Parquet.opened(source)
    names = _header(source)
    return (_ArrowCsv if find_spec("pyarrow") else _PlainCsv)(source, names)


def check_columns(source: str, table: Table, wanted: Sequence[str]) -> None:
    """Refuse names that the table lacks, or that either has twice."""
    for name in wanted:
        if list(wanted).count(name) > 1:
            raise InvalidValue(f"column {name!r} was given twice: each may be used once")
        count = list(table.names).count(name)
        if count == 0:
            listed = ", ".join(table.names)
            is_split_otherwise = len(table.names) == 1 and re.search(r"[;|\t]", listed)
            hint = ": columns must be separated by commas" if is_split_otherwise else ""
            raise InvalidValue(f"{source} has no column {name!r}; its columns are {listed}{hint}")
        if count > 1:
            raise InvalidValue(f"{source} has {count} columns named {name!r}")


@dataclass(frozen=True)
class _Parquet:
    source: str
    file: Any
    names: Sequence[str]

    @classmethod
    def opened(cls, source: str) -> _Parquet:
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
        return cls(source, file, file.schema_arrow.names)

    def rows(self) -> int:
        return int(self.file.metadata.num_rows)

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        names = list(roles)
        with _told(self.source):
            for batch in self.file.iter_batches(_AT_ONCE, columns=names, use_threads=False):
                yield [_cells(batch.column(name), roles[name], name) for name in names]


@dataclass(frozen=True)
class _ArrowCsv:
    source: str
    names: Sequence[str]

    def rows(self) -> int:
        _check_can_be_counted(self.source)
        name = self.names[0]
        return sum(len(columns[0]) for columns in self.chunks({name: "label"}))

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        from pyarrow.csv import ConvertOptions, ReadOptions, open_csv

        names = list(roles)
        how = ConvertOptions(
            include_columns=names, column_types=self._types(roles), strings_can_be_null=True
        )
        # One thread: with more, errors do not name their line.
        reading = ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with _told(self.source, self.names), _bytes(self.source) as file:
            for batch in open_csv(file, read_options=reading, convert_options=how):
                yield [_cells(batch.column(name), roles[name], name) for name in names]

    def _types(self, roles: dict[str, Role]) -> dict[str, Any]:
        """Numbers are floats, or true and false where the file begins with these."""
        import pyarrow
        from pyarrow.csv import ConvertOptions, open_csv

        types = {"number": pyarrow.float64(), "label": pyarrow.string()}
        chosen = {name: types[role] for name, role in roles.items() if role in types}
        numbers = [name for name, role in roles.items() if role == "number"]
        if numbers and self.source != STANDARD_INPUT:
            with _told(self.source), _bytes(self.source) as file:
                how = ConvertOptions(include_columns=numbers)
                for field in open_csv(file, convert_options=how).schema:
                    if pyarrow.types.is_boolean(field.type):
                        chosen[field.name] = field.type
        return chosen


@dataclass(frozen=True)
class _PlainCsv:
    source: str
    names: Sequence[str]

    def rows(self) -> int:
        _check_can_be_counted(self.source)
        with _lines(self.source) as lines:
            return sum(1 for line in lines if line) - 1

    def chunks(self, roles: dict[str, Role]) -> Iterator[list[Column]]:
        places = [list(self.names).index(name) for name in roles]
        with _lines(self.source) as lines:
            next(lines)
            filled, read = filter(None, lines), 0
            while rows := list(islice(filled, _PARSED_AT_ONCE)):
                self._check_widths(rows, read)
                cells = list(zip(*rows, strict=True))
                yield [
                    _parsed(cells[place], role, name, read)
                    for place, (name, role) in zip(places, roles.items(), strict=True)
                ]
                read += len(rows)

    def _check_widths(self, rows: list[list[str]], read: int) -> None:
        for line, row in enumerate(rows, start=read + 2):
            if len(row) != len(self.names):
                raise InvalidValue(f"line {line} has {len(row)} cells, not {len(self.names)}")


def _parsed(cells: Sequence[str], role: Role, name: str, before: int) -> Column:
    texts = [None if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]
    if role != "number":
        return np.array(texts, object)
    lines = enumerate(texts, start=before + 2)  # the first is the header
    return np.array([_number(text, name, line) for line, text in lines], np.float64)


_TRUTHS = {"true": 1.0, "false": 0.0}
_FOR_LABELS = "; for labels, give --values, such as histogram:yes,no"


def _number(text: str | None, name: str, line: int) -> float:
    if text is None:
        return np.nan
    try:
        return _TRUTHS[text.lower()] if text.lower() in _TRUTHS else float(text)
    except ValueError:
        raise _not_a_number(text, name, line) from None


def _not_a_number(text: str, name: str, line: int | str) -> InvalidValue:
    return InvalidValue(f"line {line}, column {name!r}: {text!r} is not a number{_FOR_LABELS}")


def _cells(column: Any, role: Role, name: str) -> Column:
    """An Arrow array as a NumPy array, without a copy if it holds whole numbers or bits."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    of = pyarrow.types
    is_text = of.is_string(kind) or of.is_large_string(kind)
    if role == "number" and is_text:
        raise InvalidValue(f"column {name!r} holds text, not numbers{_FOR_LABELS}")
    if role == "number" and (of.is_decimal(kind) or of.is_null(kind)):
        column = column.cast(pyarrow.float64())
    elif role == "number" and of.is_boolean(kind):
        column = column.cast(pyarrow.uint8())
    elif role == "number" and not (of.is_integer(kind) or of.is_floating(kind)):
        raise InvalidValue(f"column {name!r} holds {kind}, not numbers")
    if role == "label" and not is_text:
        column = column.cast(pyarrow.string())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _header(source: str) -> list[str]:
    """The names of a CSV file's columns, from its first line; nothing of it is consumed."""
    if source == STANDARD_INPUT:
        buffer = sys.stdin.buffer
        head = buffer.peek(1) if isinstance(buffer, io.BufferedReader) else b""
        line = head.partition(b"\n")[0]
    else:
        with _told(source), _bytes(source) as file:
            line = file.readline()
    try:
        rows = list(csv.reader([line.decode("utf-8-sig")]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{source} is not a CSV file: {error}") from error
    if not rows or not any(cell.strip() for cell in rows[0]):
        raise InvalidValue(f"{source} is empty: its first line should name the columns")
    return rows[0]


def _check_can_be_counted(source: str) -> None:
    if source == STANDARD_INPUT:
        raise InvalidValue(
            "--horizon is missing: rows of standard input cannot be counted in advance"
        )


def _bytes(source: str) -> AbstractContextManager[Any]:
    if source == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(source) if source.lower().endswith(".gz") else Path(source).open("rb")


@contextmanager
def _lines(source: str) -> Iterator[Iterator[list[str]]]:
    with _told(source), _bytes(source) as file:
        yield csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))


@contextmanager
def _told(source: str, names: Sequence[str] = ()) -> Iterator[None]:
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


_ARROWS = re.compile(
    r"In CSV column #(?P<column>\d+): Row #(?P<line>\d+): .* invalid value '(?P<text>.*)'"
)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
