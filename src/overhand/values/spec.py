"""Kinds of values as words, on the command line and in plan files."""

from __future__ import annotations

from overhand.errors import InvalidValue
from overhand.values.buckets import Binned, Histogram
from overhand.values.groups import Grouped
from overhand.values.kind import BITS, Bits, Reals, Values
from overhand.values.vectors import RegressionStatistics, SymmetricMatrices, Vectors

FORMS = (
    "bit, real, real:LOW:HIGH, histogram:B, histogram:LABELS, histogram:LABELS:OTHER, "
    "binned:LOW:HIGH:B, binned:EDGES, grouped:LABELS:bit, grouped:LABELS:real:LOW:HIGH, "
    "vector:D, vector:D:NORM, matrix:D, matrix:D:NORM or regression:D"
)
"""The words that `values_of` knows, as its errors list them."""


def values_of(spec: str | Values, *, clip: bool = False) -> Values:
    """The kind that a word names. `clip` moves values outside the range to its nearer end.

    LABELS and EDGES are separated by commas; OTHER is the name of a bucket for all other labels,
    which may also follow the labels of groups.

    >>> values_of("histogram:200"), values_of("real:0:50", clip=True)
    (Histogram(buckets=200), Reals(low=0.0, high=50.0, clip=True))
    >>> values_of("histogram:like,love:any other"), values_of("grouped:DE,FR:real:0:9").of
    (Histogram(['like', 'love'], other='any other'), Reals(low=0.0, high=9.0, clip=False))
    """
    if isinstance(spec, Values):
        return spec
    if not isinstance(spec, str):
        raise InvalidValue(f"values {spec!r:.60} must be a kind of value or a word: {FORMS}")
    kind, *words = spec.split(":")
    try:
        values = _parse_list(kind, words, clip) or _parse_numbers(
            kind, [float(word) for word in words], clip
        )
    except InvalidValue:
        raise
    except (ValueError, OverflowError):
        raise InvalidValue(f"values {spec!r} must be {FORMS}: a number is malformed") from None
    if values is None:
        raise InvalidValue(f"values {spec!r} must be {FORMS}")
    if clip and not getattr(values, "clip", False):
        raise InvalidValue(f"values {spec!r} have no range to clip to")
    return values


def _parse_list(kind: str, words: list[str], clip: bool) -> Values | None:
    match kind, words:
        case "histogram", [labels, other] if not labels.isdecimal():
            return Histogram(labels.split(","), other)
        case "histogram", [labels] if "," in labels:
            return Histogram(labels.split(","))
        case "binned", [edges]:
            return Binned(edges=[float(edge) for edge in edges.split(",")], clip=clip)
        case "grouped", [labels, "bit" | "real", *_]:
            return Grouped(labels.split(","), _number(words[1:], clip))
        case "grouped", [labels, other, "bit" | "real", *_]:
            return Grouped(labels.split(","), _number(words[2:], clip), other)
    return None


def _number(words: list[str], clip: bool) -> Reals | Bits:
    """What the users of a group hold."""
    values = _parse_numbers(words[0], [float(word) for word in words[1:]], clip)
    if isinstance(values, Reals | Bits):
        return values
    raise InvalidValue(f"{':'.join(words)!r} of a group must be bit, real or real:LOW:HIGH")


def _parse_numbers(kind: str, numbers: list[float], clip: bool) -> Values | None:
    match kind, numbers:
        case "bit", []:
            return BITS
        case "real", []:
            return Reals(clip=clip)
        case "real", [low, high]:
            return Reals(low, high, clip)
        case "vector", [length]:
            return Vectors(_whole(length), clip=clip)
        case "vector", [length, norm]:
            return Vectors(_whole(length), norm, clip)
        case "histogram", [buckets]:
            return Histogram(_whole(buckets))
        case "binned", [low, high, bins]:
            return Binned(low, high, _whole(bins), clip)
        case "matrix", [side]:
            return SymmetricMatrices(_whole(side), clip=clip)
        case "matrix", [side, norm]:
            return SymmetricMatrices(_whole(side), norm, clip)
        case "regression", [features]:
            return RegressionStatistics(_whole(features), clip)
    return None


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError
    return int(number)
