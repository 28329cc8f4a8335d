"""Values from a CSV file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue
from overhand.values import BITS, Moments, SymmetricMatrices, Values

COLUMNS = ("value", "bit")


def read_rows(path: Path, values: Values) -> NDArray[Any]:
    """One user a line: a number (or a column named `value` or `bit`), or the numbers of a vector.

    A first line of names, none of them a number, is a header.

    >>> from tempfile import TemporaryDirectory
    >>> from overhand.values import Reals
    >>> with TemporaryDirectory() as folder:
    ...     table = Path(folder, "baskets.csv")
    ...     _ = table.write_text("shop,value\\n1,12.50\\n2,7\\n")
    ...     read_rows(table, Reals(0.0, 50.0))
    array([12.5,  7. ])
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror}") from error
    if values == BITS and (bits := _plain_bits(text)) is not None:
        return bits
    table, first_line = _numbers(path, text, _columns(values))
    try:
        return values.rows(_shaped(table, values), first=first_line)
    except InvalidValue as error:
        raise InvalidValue(f"{path}, a user a line: {error}") from None


def _columns(values: Values) -> int:
    """How many numbers of a line make up one user's value."""
    if isinstance(values, Moments):
        return values.features + 1
    if isinstance(values, SymmetricMatrices):
        return values.side**2
    return values.dimension if values.moves is None else 1


def _shaped(table: NDArray[np.float64], values: Values) -> NDArray[np.float64]:
    if isinstance(values, SymmetricMatrices):
        return table.reshape(-1, values.side, values.side)
    return table[:, 0] if values.moves is not None else table


def _plain_bits(text: bytes) -> NDArray[np.uint8] | None:
    """The fast way, for a file that is nothing but 0 and 1, each on a line, and a header."""
    first, _, rest = text.partition(b"\n")
    if first.strip().lower() in (name.encode() for name in COLUMNS):
        text = rest
    data = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)
    if len(data) % 2 or len(data) == 0 or (data[1::2] != ord("\n")).any():
        return None
    digits = data[::2] - ord("0")
    return digits if digits.max() <= 1 else None


def _numbers(path: Path, text: bytes, columns: int) -> tuple[NDArray[np.float64], int]:
    """The careful way, which knows the line of a mistake; and how many lines come before."""
    try:
        rows = list(csv.reader(io.StringIO(text.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{path} is not a CSV file: {error}") from error
    header = [name.strip().lower() for name in rows[0]] if rows else []
    start = 0
    if columns == 1 and len(header) > 1:
        named = [header.index(name) for name in COLUMNS if name in header]
        if not named:
            raise InvalidValue(
                f"{path} has {len(header)} columns, none named {' or '.join(COLUMNS)}"
            )
        start = named[0]
    elif columns > 1 and header and len(header) != columns:
        raise InvalidValue(f"{path} has {len(header)} columns, a value has {columns}")
    names = header[start : start + columns]
    skip = int(bool(names) and all(name and not _is_number(name) for name in names))
    numbers: list[list[float]] = []
    for line, row in enumerate(rows[skip:], start=skip + 1):
        cells = row[start : start + columns]
        if row and len(row) != len(header):
            raise InvalidValue(
                f"{path}, line {line}: {','.join(row)!r} has {len(row)} columns, not {len(header)}"
            )
        if not row or not all(_is_number(cell) for cell in cells):
            raise InvalidValue(
                f"{path}, line {line}: {','.join(row)!r} is not {columns} number"
                + ("s" if columns > 1 else "")
            )
        numbers.append([float(cell) for cell in cells])
    if not numbers:
        raise InvalidValue(f"{path} has no values")
    return np.array(numbers, np.float64), skip


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
