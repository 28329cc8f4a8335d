"""Accuracy first: the smallest epsilon that reaches a wanted error."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

from overhand import errors

LARGEST_EPSILON = 16.0
SMALLEST_EPSILON = 1e-3
_PRECISION = 1e-3


def least_epsilon(error_at: Callable[[float], float], *, error: float) -> float:
    """The smallest epsilon at which the error is at most `error`, to about a thousandth.

    Errors fall about as a power of epsilon, so the search goes in logarithms, from epsilon 1.
    """
    seen: dict[float, float] = {}

    def excess(log_epsilon: float) -> float:
        if log_epsilon not in seen:
            seen[log_epsilon] = math.log(error_at(math.exp(log_epsilon)) / error)
        return seen[log_epsilon]

    low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
    at = min(high, max(low, excess(0.0)))  # errors go about as 1 / epsilon
    step = math.log(1.5)
    while excess(at) > 0:
        if at >= high:
            raise errors.Infeasible(
                f"error={error:g} is not reached even at epsilon={LARGEST_EPSILON:g}, where it is "
                f"{error * math.exp(seen[at]):.4g}"
            )
        at = min(high, at + step)
    while excess(max(low, at - step)) <= 0:
        if at - step <= low:
            return SMALLEST_EPSILON
        at -= step
    brentq(excess, max(low, at - step), at, xtol=_PRECISION)
    return math.exp(min(log for log, beyond in seen.items() if beyond <= 0))
