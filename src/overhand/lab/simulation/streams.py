"""Inputs to simulate on: fixed, random, hard, or a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.errors import InvalidValue
from overhand.lab.lower_bound import HardInput
from overhand.model import Rows
from overhand.planning import Plan
from overhand.randomness import BinaryFraction, Random
from overhand.values import BITS, Values

COLUMNS = ("value", "bit")
LABEL_COLUMNS = ("value", "label")
FORMS = "zeros, ones, bernoulli:P, uniform, hard or a .csv file"


@dataclass(frozen=True)
class Stream:
    """The users' values: `users` of them, drawn in parts."""

    users: int
    parts: Callable[[Random], Callable[[int, int], Rows]]
    """From a random stream to a function from (start, stop) to the values there, in order."""


def stream_for(
    form: str, horizon: int, *, values: Values = BITS, shufflers: int = 1, epsilon: float = 1.0
) -> Stream:
    """The stream that a word on the command line names.

    For values that are not bits, 0 and 1 stand for two that are as far apart as possible.

    >>> from overhand.randomness import seeded_random
    >>> stream_for("ones", 5).parts(seeded_random(1))(0, 3)
    array([1, 1, 1], dtype=uint8)
    """
    if form in ("zeros", "ones"):
        bit = int(form == "ones")
        return Stream(horizon, lambda _: lambda a, b: values.opposites(np.full(b - a, bit, "u1")))
    if form.startswith("bernoulli:"):
        try:
            probability = float(form.removeprefix("bernoulli:"))
        except ValueError:
            raise InvalidValue(f"{form} must name a number") from None
        coin = BinaryFraction.near(errors.finite_number("bernoulli", probability, above=0, below=1))
        return Stream(
            horizon, lambda random: lambda a, b: values.opposites(random.coins(b - a, coin))
        )
    if form == "uniform":
        return Stream(horizon, lambda random: lambda a, b: values.uniform(random, b - a))
    if form == "hard":
        hard = HardInput.against(horizon, shufflers, epsilon)
        return Stream(horizon, lambda random: _slices(values.opposites(hard.draw(random))))
    if form.endswith(".csv"):
        rows = read_rows(Path(form), values)
        if len(rows) > horizon:
            raise InvalidValue(
                f"{form} has {len(rows)} values, but the plan's horizon is {horizon}"
            )
        return values_stream(rows)
    raise InvalidValue(f"input {form!r} must be {FORMS}")


def values_stream(rows: Rows) -> Stream:
    """A stream of checked values at hand.

    >>> from overhand.randomness import seeded_random
    >>> values_stream(np.array([3, 1, 4, 1, 5])).parts(seeded_random(1))(1, 4)
    array([1, 4, 1])
    """
    return Stream(len(rows), lambda _: _slices(rows))


def plan_stream(form: str, plan: Plan, users: int | None = None) -> Stream:
    """The stream of that name for a plan: a hard input is one against its shufflers and epsilon.

    Of as many users as it expects, or of so many; a file may have all that the plan takes.

    >>> import overhand as oh
    >>> votes = oh.Plan.published(1000, 2, oh.Privacy(1.0, 1e-6), values=oh.Histogram(3))
    >>> stream = plan_stream("ones", votes)
    >>> stream.users, stream.parts(oh.seeded_random(1))(0, 4)
    (1000, array([1, 1, 1, 1]))
    """
    most = plan.most_users if form.endswith(".csv") else plan.horizon
    users = most if users is None else errors.whole("users", users, least=1, most=plan.most_users)
    epsilon, values = plan.privacy.epsilon, plan.values
    return stream_for(form, users, values=values, shufflers=plan.shufflers, epsilon=epsilon)


def _slices(rows: Rows) -> Callable[[int, int], Rows]:
    return lambda start, stop: rows[start:stop]


def read_rows(path: Path, values: Values) -> Rows:
    """One user per line: a number or a label, a label and a number, or a vector's numbers.

    Of several columns, a number is in that named `value` or `bit`, a label in that named `value` or
    `label`. A first line of names, none of them a number, is a header; of labels alone, one that
    says `value` or `label`.

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
    cells, first_line = _cells(path, text, values)
    try:
        return values.rows(values.parse_cells(cells), first=first_line)
    except InvalidValue as error:
        raise InvalidValue(f"{path}, one user per line: {error}") from None


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


def _cells(path: Path, text: bytes, values: Values) -> tuple[list[list[str]], int]:
    """The careful way, which knows the line of a mistake; and how many lines come before."""
    try:
        rows = list(csv.reader(io.StringIO(text.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{path} is not a CSV file: {error}") from error
    width = len(rows[0]) if rows else 0
    start = _first_column(path, rows[0], values) if rows else 0
    which = slice(start, start + values.columns)
    skip = int(bool(rows) and _is_header([cell.strip() for cell in rows[0][which]], values))
    cells: list[list[str]] = []
    for line, row in enumerate(rows[skip:], start=skip + 1):
        if row and len(row) != width:
            raise InvalidValue(
                f"{path}, line {line}: {','.join(row)!r} has {len(row)} columns, not {width}"
            )
        if not row or not all(map(_is_number, row[which][values.label_columns :])):
            numbers = values.columns - values.label_columns
            raise InvalidValue(
                f"{path}, line {line}: {','.join(row)!r} is not {numbers} number"
                + ("s" if numbers > 1 else "")
            )
        cells.append([cell.strip() for cell in row[which]])
    if not cells:
        raise InvalidValue(f"{path} has no values")
    return cells, skip


def _first_column(path: Path, header: list[str], values: Values) -> int:
    """Where the cells of a value begin in a line that may have others."""
    names, columns = [name.strip().lower() for name in header], values.columns
    if columns == 1 and len(names) > 1:
        known = LABEL_COLUMNS if values.label_columns else COLUMNS
        named = [names.index(name) for name in known if name in names]
        if not named:
            raise InvalidValue(f"{path} has {len(names)} columns, none named {' or '.join(known)}")
        return named[0]
    if columns > 1 and len(names) != columns:
        raise InvalidValue(f"{path} has {len(names)} columns, but a value has {columns}")
    return 0


def _is_header(names: list[str], values: Values) -> bool:
    """Names instead of numbers; or, for labels alone, the name of a column."""
    if names and values.label_columns == len(names):
        is_label = names[0] in (values.labels or ())
        return names[0].lower() in LABEL_COLUMNS and not is_label
    return bool(names) and all(name and not _is_number(name) for name in names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
