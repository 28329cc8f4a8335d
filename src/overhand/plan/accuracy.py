"""Accuracy first: the smallest epsilon that reaches a wanted error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from scipy.optimize import brentq

from overhand import errors
from overhand.model import Privacy

LARGEST_EPSILON = 20.0
SMALLEST_EPSILON = 1e-3
_PRECISION = 1e-3


class HasError(Protocol):
    @property
    def rms_error(self) -> float: ...


P = TypeVar("P", bound=HasError)


def least_epsilon(plan_at: Callable[[Privacy], P], *, error: float, delta: float) -> P:
    """The plan with the smallest epsilon whose `rms_error` is at most `error`.

    Errors fall with epsilon, about as a power of it, so a search in logarithms is short.
    """
    tried: dict[float, P] = {}

    def excess(log_epsilon: float) -> float:
        plan = plan_at(Privacy(math.exp(log_epsilon), delta))
        tried[log_epsilon] = plan
        return math.log(plan.rms_error / error)

    low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
    if excess(high) > 0:
        raise errors.Infeasible(
            f"error={error:g} is not reached even at epsilon={LARGEST_EPSILON:g}: "
            f"the least is {tried[high].rms_error:.4g}"
        )
    start = 0.0  # epsilon = 1: bracket from where people are
    width = math.log(2)
    if excess(start) > 0:
        low = start
        while low + width < high and excess(low + width) > 0:
            low += width
        high = min(high, low + width)
    else:
        high = start
        while high - width > low and excess(high - width) <= 0:
            high -= width
        low = max(low, high - width)
        if excess(low) <= 0:
            return tried[low]
    brentq(excess, low, high, xtol=_PRECISION)
    good = {at: plan for at, plan in tried.items() if plan.rms_error <= error}
    return good[min(good)]
