"""Ratios of two sums, with Fieller's interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overhand import errors
from overhand.estimates.pairs import Pair
from overhand.estimates.readings import shown
from overhand.estimates.tails import half_width
from overhand.model import Floats


@dataclass(frozen=True, repr=False)
class Ratio:
    """One estimate over another, coordinate by coordinate, and how far it may be off.

    `is_cautious` if it is unknown what noise they share: the interval then allows for the worst.

    >>> from overhand.estimates import Estimate
    >>> ratio = Estimate(t=100, value=40.0, std=0.0) / Estimate(t=100, value=80.0, std=4.0)
    >>> ratio
    Ratio(value=0.5)
    >>> low, high = ratio.interval(0.95)
    >>> round(low, 3), round(high, 3)
    (0.455, 0.554)

    If the denominator may be 0, the ratio may be anything:

    >>> (Estimate(t=9, value=4.0, std=1.0) / Estimate(t=9, value=1.0, std=1.0)).interval()
    (-inf, inf)
    """

    pair: Pair

    @property
    def is_cautious(self) -> bool:
        return self.pair.common is None

    @property
    def value(self) -> Any:
        """The ratio of the two values; NaN where the denominator is 0."""
        above, below = (np.asarray(one.value, np.float64) for one in self.pair[:2])
        found = np.divide(above, below, out=np.full(above.shape, math.nan), where=below != 0)
        return found if found.ndim else float(found)

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """All ratios r for which above - r * below may be 0, with this confidence (Fieller).

        The noise of that difference is known for every r, and pending users may move it by the
        slacks of both. It is an interval if the denominator's interval is on one side of 0;
        otherwise ratios of any size are possible, and it is all numbers.
        """
        confidence = errors.number("confidence", confidence, above=0, below=1)
        left, right = self.pair[:2]
        shape = np.shape(left.value)
        columns = [
            np.broadcast_to(np.asarray(part, np.float64), shape).ravel()
            for part in (left.value, right.value, left.slack, right.slack)
        ]
        ends = [
            self._ends(float(a), float(b), float(s), float(u), confidence)
            for a, b, s, u in zip(*columns, strict=True)
        ]
        low, high = np.array(ends).T.reshape(2, *shape)
        return (low, high) if shape else (float(low), float(high))

    def _ends(
        self, above: float, below: float, slack: float, slack_below: float, confidence: float
    ) -> tuple[float, float]:
        left, right = self.pair[:2]

        def width(ratio: float) -> float:
            std, kurtosis = self.pair.noise(ratio)
            kurtosis = math.ceil(100 * kurtosis) / 100  # a few tails do for all ratios
            unit = max(left.unit, abs(ratio) * right.unit)
            off = slack + abs(ratio) * slack_below
            return half_width(std, off, confidence, kurtosis=kurtosis, unit=unit)

        limits = {"kurtosis": right.kurtosis, "unit": right.unit}
        if abs(below) <= half_width(right.std, slack_below, confidence, **limits):
            return -math.inf, math.inf
        ratio = above / below
        reach = width(ratio) / abs(below)
        low, high = (
            _end(lambda r: abs(above - r * below) - width(r), ratio, far) for far in (-reach, reach)
        )
        return low, high

    def __repr__(self) -> str:
        cautious = ", is_cautious=True" if self.is_cautious else ""
        return f"Ratio(value={shown(self.value)}{cautious})"


def _end(excess: Callable[[float], float], inside: float, reach: float) -> float:
    """Where `excess` rises above 0, in the direction of `reach`; it is not above 0 inside."""
    from scipy.optimize import brentq

    if reach == 0:
        return inside
    while excess(inside + reach) <= 0:
        reach *= 2
        if math.isinf(reach):
            return reach
    return float(brentq(excess, inside, inside + reach, xtol=1e-10 * abs(reach)))


def fieller(
    above: Floats,
    below: Floats,
    variance: Any,
    variance_below: Any,
    covariance: Any,
    deviations: float,
) -> tuple[Floats, Floats]:
    """The ratios r for which |above - r * below| is within this many standard deviations.

    All numbers if `below` itself is not that far above 0.

    >>> low, high = fieller(np.array([40.0, 4.0]), np.array([80.0, 1.0]), 0.0, 16.0, 0.0, 1.96)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.455, -inf], [0.554, inf])
    """
    square = deviations**2
    lead = below**2 - square * variance_below
    middle = above * below - square * covariance
    is_told = (lead > 0) & (below > 0)
    inner = np.maximum(middle**2 - lead * (above**2 - square * variance), 0.0)
    lead = np.where(is_told, lead, 1.0)
    ends = ((middle + sign * np.sqrt(inner)) / lead for sign in (-1, 1))
    low, high = (
        np.where(is_told, end, far) for end, far in zip(ends, (-np.inf, np.inf), strict=True)
    )
    return low, high
