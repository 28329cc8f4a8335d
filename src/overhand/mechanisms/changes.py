"""How far one user's value can move the counts of a batch."""

from __future__ import annotations

import math

from overhand.model import Change
from overhand.values import Values

FLOAT_MARGIN = 1e-9


def change_of(values: Values, steps: int) -> Change:
    """How far another value of one user can move the counts of a batch.

    Rounding is coupled: with the same uniform u, floor(v / unit + u) of two values differ by at
    most |v - v'| / unit, rounded up. A mixture is never easier to tell apart than its parts, so
    the l2 distance is at most sensitivity / unit + sqrt(dimension). The widest coordinate has
    `steps` steps.

    >>> from overhand.values import Histogram
    >>> change_of(Histogram(5), steps=1)
    Change(largest=1, coordinates=2, norm=None, touched=None)
    """
    if values.moves is not None:
        touched = None if values.touches == values.moves else values.touches
        return Change(steps, values.moves, touched=touched)
    dimension = values.dimension
    norm = values.sensitivity / values.width * steps + math.sqrt(dimension)
    return Change(steps, dimension, norm * (1 + FLOAT_MARGIN))
