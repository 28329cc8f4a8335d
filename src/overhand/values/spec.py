"""Kinds of values as words, on the command line and in plan files."""

from __future__ import annotations

from overhand.errors import InvalidValue
from overhand.values.kind import Values
from overhand.values.scalars import BITS, Histogram, Reals
from overhand.values.vectors import Moments, SymmetricMatrices, Vectors

FORMS = (
    "bit, real, real:LOW:HIGH, vector:D, vector:D:NORM, histogram:B, "
    "matrix:D, matrix:D:NORM or moments:D"
)
"""The words that `values_of` knows, as its errors list them."""


def values_of(spec: str, *, clip: bool = False) -> Values:
    """The kind that a word names. `clip` moves values that are out of range to its edge.

    >>> values_of("histogram:200"), values_of("real:0:50", clip=True)
    (Histogram(buckets=200), Reals(low=0.0, high=50.0, clip=True))
    """
    kind, *parameters = spec.split(":")
    try:
        match kind, [float(word) for word in parameters]:
            case "bit", []:
                values: Values = BITS
            case "real", []:
                values = Reals(clip=clip)
            case "real", [low, high]:
                values = Reals(low, high, clip)
            case "vector", [length]:
                values = Vectors(_whole(length), clip=clip)
            case "vector", [length, norm]:
                values = Vectors(_whole(length), norm, clip)
            case "histogram", [buckets]:
                values = Histogram(_whole(buckets))
            case "matrix", [side]:
                values = SymmetricMatrices(_whole(side), clip=clip)
            case "matrix", [side, norm]:
                values = SymmetricMatrices(_whole(side), norm, clip)
            case "moments", [features]:
                values = Moments(_whole(features), clip)
            case _:
                raise InvalidValue(f"values {spec!r} must be {FORMS}")
    except InvalidValue:
        raise
    except (ValueError, OverflowError):
        raise InvalidValue(f"values {spec!r} must be {FORMS}: a number is malformed") from None
    if clip and not hasattr(values, "clip"):
        raise InvalidValue(f"values {spec!r} have no range to clip to")
    return values


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError
    return int(number)
