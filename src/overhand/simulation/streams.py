"""Inputs to simulate on: fixed, random, hard, or a file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.errors import InvalidValue
from overhand.lower_bound import HardInput
from overhand.plan import Plan
from overhand.randomness import BinaryFraction, Random

Bits = NDArray[np.uint8]
FORMS = "zeros, ones, bernoulli:P, hard or a .csv file"
COLUMNS = ("value", "bit")


@dataclass(frozen=True)
class Stream:
    """The users' values: so many of them, drawn a part at a time."""

    users: int
    parts: Callable[[Random], Callable[[int, int], Bits]]
    """From a random stream to a function from (start, stop) to the values there, in order."""


def stream_for(form: str, horizon: int, *, shufflers: int = 1, epsilon: float = 1.0) -> Stream:
    """The stream that a word on the command line names.

    >>> from overhand.randomness import seeded_random
    >>> stream_for("ones", 5).parts(seeded_random(1))(0, 3)
    array([1, 1, 1], dtype=uint8)
    """
    if form in ("zeros", "ones"):
        value = int(form == "ones")
        return Stream(horizon, lambda _: lambda a, b: np.full(b - a, value, np.uint8))
    if form.startswith("bernoulli:"):
        return _bernoulli(form.removeprefix("bernoulli:"), horizon)
    if form == "hard":
        hard = HardInput.against(horizon, shufflers, epsilon)
        return Stream(horizon, lambda random: _slices(hard.draw(random)))
    if form.endswith(".csv"):
        bits = read_bits(Path(form))
        if len(bits) > horizon:
            raise InvalidValue(f"{form} has {len(bits)} values, the plan's horizon is {horizon}")
        return Stream(len(bits), lambda _: _slices(bits))
    raise InvalidValue(f"input {form!r} must be {FORMS}")


def values_stream(values: Bits) -> Stream:
    """A stream of values at hand."""
    return Stream(len(values), lambda _: _slices(values))


def plan_stream(form: str, plan: Plan) -> Stream:
    """The stream of that name for a plan: a hard input is one against its shufflers and epsilon."""
    return stream_for(form, plan.horizon, shufflers=plan.shufflers, epsilon=plan.privacy.epsilon)


def _bernoulli(text: str, horizon: int) -> Stream:
    try:
        probability = float(text)
    except ValueError:
        raise InvalidValue(f"bernoulli:{text} must name a number") from None
    errors.number("bernoulli", probability, above=0, below=1)
    fraction = BinaryFraction.near(probability)
    return Stream(horizon, lambda random: lambda a, b: random.coins(b - a, fraction))


def _slices(values: Bits) -> Callable[[int, int], Bits]:
    return lambda start, stop: values[start:stop]


def read_bits(path: Path) -> Bits:
    """One bit a line; or a column named `value` or `bit` of a file with a header."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror}") from error
    first, _, rest = text.partition(b"\n")
    if first.strip().lower() in (name.encode() for name in COLUMNS):
        bits = _plain_lines(rest)
    else:
        bits = _plain_lines(text)
    return bits if bits is not None else _parsed_lines(path, text)


def _plain_lines(text: bytes) -> Bits | None:
    """The fast way, for a file that is nothing but 0 and 1, each on a line."""
    data = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)
    if len(data) % 2 or len(data) == 0 or (data[1::2] != ord("\n")).any():
        return None
    digits = data[::2] - ord("0")
    return digits if digits.max() <= 1 else None


def _parsed_lines(path: Path, text: bytes) -> Bits:
    """The careful way, which knows the line of a mistake."""
    try:
        rows = list(csv.reader(text.decode("utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{path} is not a CSV file: {error}") from error
    header = [name.strip().lower() for name in rows[0]] if rows else []
    named = [header.index(name) for name in COLUMNS if name in header]
    column, skip = (named[0], 1) if named else (0, 0)
    if not named and len(header) > 1:
        raise InvalidValue(f"{path} has {len(header)} columns, none named {' or '.join(COLUMNS)}")
    bits: list[int] = []
    for line, row in enumerate(rows[skip:], start=skip + 1):
        cell = row[column].strip() if len(row) > column else ""
        if cell not in ("0", "1"):
            raise InvalidValue(f"{path}, line {line}: {cell!r} is not a bit (0 or 1)")
        bits.append(int(cell))
    if not bits:
        raise InvalidValue(f"{path} has no values")
    return np.array(bits, np.uint8)
