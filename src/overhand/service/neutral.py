"""The value of the shuffling service's own reports, which fill up batches that are late."""

from __future__ import annotations

from typing import Any

import numpy as np

from overhand.errors import InvalidValue
from overhand.values import (
    Bits,
    Histogram,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
)


def neutral_value(values: Values) -> Any:
    """A value that everybody knows: 0 where there is one, else an agreed one.

    How many reports of a batch were the service's own is public, so the server takes them out
    again, whatever their value.

    >>> neutral_value(Bits()), neutral_value(Reals(10, 50)), neutral_value(Histogram(3))
    (0, 10.0, 0)
    """
    match values:
        case Bits() | Histogram():
            return 0
        case Reals():
            return float(np.clip(0.0, values.lows[0], values.highs[0]))
        case Vectors():
            return np.zeros(values.length)
        case SymmetricMatrices():
            return np.zeros((values.side, values.side))
        case Moments():
            return np.zeros(values.features + 1)
        case _:
            raise InvalidValue(f"no neutral value for {values}")


def neutral_sum(values: Values, reports: int) -> Any:
    """What so many such reports add to a sum."""
    return reports * values.total(values.rows([neutral_value(values)]))
