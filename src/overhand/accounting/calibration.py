"""The least noise for a guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.optimize import brentq

from overhand import errors
from overhand.accounting.composition import Level, check_delta
from overhand.accounting.guarantee import quick_delta
from overhand.model import Privacy

_PRECISION = 2e-5
_WIDEST = 4096.0
_FIRST_WIDTH = 1.05


def least_scale(
    levels_at: Callable[[float], Sequence[Level]], privacy: Privacy, *, start: float
) -> float:
    """The least scale of the noise at which the levels together give the guarantee.

    `levels_at(scale)` must hide more as the scale grows; `start`, usually the Gaussian limit,
    only saves time. Nothing is certified here: the grid is coarse.

    The least variance of three levels of coins; Gaussian noise needs 53.5:

    >>> from overhand.mechanisms import CoinSum
    >>> def levels_at(variance: float) -> list[Level]:
    ...     return [Level(CoinSum.with_variance(1000, variance).noise())] * 3
    >>> round(least_scale(levels_at, Privacy(1.0, 1e-6), start=53.5), 1)
    52.4
    """
    check_delta(privacy)

    def excess(scale: float) -> float:
        return math.log(quick_delta(levels_at(scale), privacy) / privacy.delta)

    if excess(start) > 0:
        low, high = _bracket_up(excess, start, privacy)
    else:
        low, high = _bracket_down(excess, start)
    return high if low == high else float(brentq(excess, low, high, rtol=_PRECISION))


def _bracket_up(
    excess: Callable[[float], float], start: float, privacy: Privacy
) -> tuple[float, float]:
    low, width = start, _FIRST_WIDTH
    while low < _WIDEST * start:
        high = min(low * width, _WIDEST * start)
        if excess(high) <= 0:
            return low, high
        low, width = high, width * 1.5
    raise errors.Infeasible(f"no noise up to {_WIDEST:g} times the Gaussian limit gives {privacy}")


def _bracket_down(excess: Callable[[float], float], start: float) -> tuple[float, float]:
    """Or (scale, scale) for the least scale tried, if even that is enough."""
    high, width = start, _FIRST_WIDTH
    while high > start / _WIDEST:
        low = max(high / width, start / _WIDEST)
        if excess(low) > 0:
            return low, high
        high, width = low, width * 1.5
    return high, high
