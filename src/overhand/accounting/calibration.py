"""The least noise for a guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.optimize import brentq

from overhand import errors
from overhand.accounting.composition import Level, check_delta, search_delta
from overhand.model import Privacy

_PRECISION = 2e-5
_WIDEST = 4096.0


def least_scale(
    levels_at: Callable[[float], Sequence[Level]], privacy: Privacy, *, start: float
) -> float:
    """The least scale of the noise at which the levels together give the guarantee.

    `levels_at(scale)` must hide more as the scale grows; `start`, usually the Gaussian limit,
    only saves time. Nothing is certified here: the grid is coarse.
    """
    check_delta(privacy)

    def excess(scale: float) -> float:
        return math.log(search_delta(levels_at(scale), privacy.epsilon) / privacy.delta)

    low = high = start
    width = 1.05
    while excess(high) > 0:
        low, high, width = high, high * width, width * 1.5
        if high > _WIDEST * start:
            raise errors.Infeasible(
                f"no noise up to {_WIDEST:g} times the Gaussian limit gives {privacy}"
            )
    while low == high or excess(low) < 0:
        high, low, width = low, low / width, width * 1.5
        if low < start / _WIDEST:
            return low
    return float(brentq(excess, low, high, rtol=_PRECISION))
