"""The path nearest to another, among those whose steps are within bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.model import Floats


class _Knot(NamedTuple):
    """Where a derivative changes, going away from its zero: by how much it and its slope do."""

    place: float
    jump: float
    bend: float


def nearest_path(path: Floats, low: Floats, high: Floats) -> Floats:
    """The path from 0 with every step in its [low, high] and the least sum of squared distances.

    Exact. With bounds on one side alone it is an isotonic regression. How hard a step is pushed
    by its bounds is between how hard lower bounds alone and upper bounds alone push it (comparison
    principle: the matrix of these forces is an M-matrix). So where neither would push, the path
    falls into independent parts. Most are as one side alone has them; the others are `_squeezed`.

    >>> nearest_path(np.array([1.0, 0.5, 3.0]), np.zeros(3), np.ones(3))
    array([1.  , 1.25, 2.25])
    """
    if not len(path):
        return path
    lowest, highest = np.cumsum(low), np.cumsum(high)
    (rise, is_free), (fall, is_free_too) = _rising(path - lowest), _rising(highest - path)
    starts = np.append(0, 1 + np.flatnonzero((is_free & is_free_too)[1:]))
    stops = np.append(starts[1:], len(path))
    is_rise, is_fall = (
        np.logical_and.reduceat(np.diff(one, prepend=0.0) <= high - low, starts)
        for one in (rise, fall)
    )
    nearest = np.where(np.repeat(is_rise, stops - starts), lowest + rise, highest - fall)
    for part in np.flatnonzero(~is_rise & ~is_fall):
        here = slice(starts[part], stops[part])
        before = nearest[here.start - 1] if part else 0.0
        nearest[here] = before + _squeezed(path[here] - before, low[here], high[here])
    return nearest


def _rising(path: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The nearest path from 0 that never falls, and which of its steps nothing holds up."""
    from scipy.optimize import isotonic_regression

    found, is_free = isotonic_regression(path), np.zeros(len(path), np.bool_)
    is_free[found.blocks[:-1]] = True
    return np.maximum(found.x, 0.0), is_free & (found.x > 0)


def _squeezed(path: Floats, low: Floats, high: Floats) -> Floats:
    """The same as `nearest_path`, by dynamic programming, step by step.

    The least cost of a path up to a place is convex in where it ends, and its derivative piecewise
    linear. A step leaves what is left of the minimum where it is and shifts the rest by high - low,
    once paths are counted from the lowest one.
    """
    start, widths, costs = np.cumsum(low), (high - low).tolist(), _Costs()
    minima = list(map(costs.add, (path - start).tolist(), widths))
    nearest = np.empty(len(path))
    here, width = math.inf, math.inf  # of the step after
    for place in range(len(path) - 1, -1, -1):
        here = minima[place] if here == math.inf else min(max(minima[place], here - width), here)
        nearest[place], width = here, widths[place]
    return np.asarray(nearest + start)


class _Side:
    """The knots left (-1) or right (1) of where a cost is least, the nearest last."""

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.shift = 0.0
        self._knots = [_Knot(0.0, math.inf, 0.0)]  # their places without the shift

    @property
    def start(self) -> float:
        """Where the nearest knot is."""
        return self._knots[-1].place + self.shift

    def push(self, place: float, jump: float, bend: float) -> None:
        self._knots.append(_Knot(place - self.shift, jump, bend))

    def pop(self) -> _Knot:
        return self._knots.pop()


class _Costs:
    """The derivative of the least cost, as knots on both sides of its zeros."""

    def __init__(self) -> None:
        self._left, self._right = _Side(-1), _Side(1)

    def add(self, height: float, width: float) -> float:
        """One step of at most this width, its end to be near a height: where the cost is least."""
        self._right.shift += width
        if height > self._right.start:
            return _pass(height, self._left, self._right)
        if height < self._left.start:
            return _pass(height, self._right, self._left)
        self._left.push(height, 0.0, 1.0)
        self._right.push(height, 0.0, 1.0)
        return height


def _pass(height: float, behind: _Side, ahead: _Side) -> float:
    """Pass the knots ahead, once the distance from the height is added, up to the new zero."""
    place, slope = ahead.start, 1.0
    value = -abs(place - height)
    while True:
        _, jump, bend = ahead.pop()
        if value + jump >= 0:
            behind.push(place, -value, slope)
            ahead.push(place, value + jump, slope + bend)
            return place
        behind.push(place, jump, -bend)
        value, slope, gap = value + jump, slope + bend, abs(ahead.start - place)
        if value + slope * gap >= 0:
            place += ahead.sign * min(gap, -value / slope)
            behind.push(place, 0.0, slope)
            ahead.push(place, 0.0, slope)
            return place
        value, place = value + slope * gap, ahead.start
