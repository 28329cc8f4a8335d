"""The path nearest to another, among those whose steps are within bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from overhand.model import Floats


class _Knot(NamedTuple):
    """Where a derivative changes, from left to right."""

    place: float
    jump: float
    bend: float


class _Crossing(NamedTuple):
    """Where a derivative crosses 0, and what it and its slope are on either side."""

    place: float
    before: float
    slope_before: float
    after: float
    slope_after: float


def nearest_path(path: Floats, low: Floats, high: Floats) -> Floats:
    """The path from 0 with every step in its [low, high] and the least sum of squared distances.

    Exact, by dynamic programming: the least cost of a path up to a place is convex in where it
    ends, and its derivative piecewise linear. A step leaves what is left of the minimum where it
    is and shifts the rest by high - low, once paths are counted from the lowest one.

    >>> nearest_path(np.array([1.0, 0.5, 3.0]), np.zeros(3), np.ones(3))
    array([1.  , 1.25, 2.25])
    """
    start, widths, costs = np.cumsum(low), (high - low).tolist(), _Costs()
    minima = list(map(costs.add, (path - start).tolist(), widths))
    nearest = np.empty(len(path))
    here, width = math.inf, math.inf  # of the step after
    for place in range(len(path) - 1, -1, -1):
        here = minima[place] if here == math.inf else min(max(minima[place], here - width), here)
        nearest[place], width = here, widths[place]
    return np.asarray(nearest + start)


class _Costs:
    """The derivative of the least cost, as knots left and right of its minimum."""

    def __init__(self) -> None:
        self._left = [_Knot(0.0, math.inf, 0.0)]
        self._right = [_Knot(0.0, math.inf, 0.0)]  # their places without `_shift`
        self._shift = 0.0

    def add(self, height: float, width: float) -> float:
        """One step of at most this width, its end to be near a height: where the cost is least."""
        self._shift += width
        at = self._left[-1].place, self._right[-1].place + self._shift
        if height > at[1]:
            found = self._above(height)
        elif height < at[0]:
            found = self._below(height)
        else:
            found = _Crossing(height, 0.0, 1.0, 0.0, 1.0)
        place, before, slope_before, after, slope_after = found
        self._left.append(_Knot(place, -before, -slope_before))
        self._right.append(_Knot(place - self._shift, after, slope_after))
        return place

    def _above(self, height: float) -> _Crossing:
        """The crossing to the right of where the derivative is the distance from the height."""
        place, slope = self._right[-1].place + self._shift, 1.0
        value = place - height
        while True:
            _, jump, bend = self._right.pop()
            if value + jump >= 0:
                return _Crossing(place, value, slope, value + jump, slope + bend)
            self._left.append(_Knot(place, jump, bend))
            value, slope = value + jump, slope + bend
            following = self._right[-1].place + self._shift
            if value + slope * (following - place) >= 0:
                zero = min(following, place - value / slope)
                return _Crossing(zero, 0.0, slope, 0.0, slope)
            value, place = value + slope * (following - place), following

    def _below(self, height: float) -> _Crossing:
        place, slope = self._left[-1].place, 1.0
        value = place - height
        while True:
            _, jump, bend = self._left.pop()
            if value - jump <= 0:
                return _Crossing(place, value - jump, slope - bend, value, slope)
            self._right.append(_Knot(place - self._shift, jump, bend))
            value, slope = value - jump, slope - bend
            following = self._left[-1].place
            if value + slope * (following - place) <= 0:
                zero = max(following, place - value / slope)
                return _Crossing(zero, 0.0, slope, 0.0, slope)
            value, place = value + slope * (following - place), following
