"""A published sum with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.estimates.tails import half_width
from overhand.values import Values

_SHOWN = 6  # coordinates, of however many


class Bar(NamedTuple):
    """One of the largest coordinates of a sum, with its error bar.

    >>> Bar(1, 6.0, 5.0, 7.0, "love")
    Bar(coordinate=1, value=6.0, low=5.0, high=7.0, label='love')
    """

    coordinate: int
    value: float
    low: float
    high: float
    label: str | None = None
    """What the coordinate counts, where the kind of value has labels."""


@dataclass(frozen=True, repr=False)
class Estimate:
    """A published sum of the first `t` users, or of those after place `start`.

    `value` is a number, or an array with an entry for every coordinate. `std` is the standard
    deviation of a coordinate's noise (and, for values that are rounded, a bound on it: rounding
    counts with the most it can do), and `kurtosis` how much heavier than Gaussian its tails are.
    Noise comes in whole steps of `unit` (0 if there are none): a batch of bits is off by 3 or by 4.
    `slack` is how far the users that no finished batch holds can move the sum from `value`: it is
    bounded, not random. `values` is the kind of value that was added up, if it is known: it says
    what the coordinates are.

    >>> low, high = Estimate(t=100, value=40.0, std=5.0).interval(0.95)
    >>> round(low, 1), round(high, 1)
    (30.2, 49.8)
    >>> Estimate(t=100, value=40.0, std=5.0).mean()
    Estimate(t=100, value=0.4, std=0.05)
    """

    t: int
    value: Any
    std: float
    slack: Any = 0.0
    start: int = 0
    kurtosis: float = 0.0
    unit: float = 0.0
    values: Values | None = None

    @property
    def users(self) -> int:
        """How many users the sum is of."""
        return self.t - self.start

    def mean(self) -> Estimate:
        """The mean of the users' values: the sum and its error, divided by the number of users."""
        if self.users == 0:
            raise errors.InvalidValue("no mean: the sum is of no users")
        return replace(
            self,
            value=self.value / self.users,
            std=self.std / self.users,
            slack=self.slack / self.users,
            unit=self.unit / self.users,
        )

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of these users and of others after them, whose noise is independent.

        >>> Estimate(t=100, value=40.0, std=3.0) + Estimate(t=50, value=10.0, std=4.0)
        Estimate(t=150, value=50, std=5)
        """
        std = math.hypot(self.std, other.std)
        fourth = self.kurtosis * self.std**4 + other.kurtosis * other.std**4
        return Estimate(
            self.t + other.users,
            self.value + other.value,
            std,
            self.slack + other.slack,
            self.start,
            fourth / std**4 if std > 0 else 0.0,
            max(self.unit, other.unit),
            self.values or other.values,
        )

    def top(self, count: int = 10, confidence: float = 0.95) -> list[Bar]:
        """The largest coordinates, with bars that hold all of them at once.

        The bars allow for having looked at every coordinate, not only at those returned: each
        holds with probability 1 - (1 - confidence) / coordinates.

        >>> Estimate(t=9, value=np.array([1.0, 6.0, 2.0]), std=0.0).top(1)
        [Bar(coordinate=1, value=6.0, low=6.0, high=6.0, label=None)]
        """
        values = np.atleast_1d(np.asarray(self.value, np.float64))
        count = errors.whole("count", count, least=1)
        confidence = errors.number("confidence", confidence, above=0, below=1)
        low, high = map(np.atleast_1d, self.interval(1 - (1 - confidence) / len(values)))
        order = np.argsort(-values, kind="stable")[:count]
        return [Bar(int(i), float(values[i]), float(low[i]), float(high[i])) for i in order]

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """The shortest symmetric interval that holds the sum with this confidence.

        Whatever the pending users hold: the bias is anywhere in [-slack, slack], and the
        half-width w solves F((w - slack) / std) - F((-w - slack) / std) = confidence, F being the
        noise's law (`standard_tail`). Noise in steps can fall just short of a step that F has half
        within: so w is half a `unit` more, which is the least that will do for noise of one size
        of step, and a little too much where batches were combined.

        >>> Estimate(t=11, value=11.0, std=0.44).interval()[1]  # continuous noise
        11.862...
        >>> Estimate(t=11, value=11.0, std=0.44, unit=1.0).interval()[1]  # it may well be 12
        12.362...
        """
        confidence = errors.number("confidence", confidence, above=0, below=1)
        if np.ndim(self.slack) == 0:
            width: Any = self._half_width(float(self.slack), confidence)
        else:
            distinct, which = np.unique(self.slack, return_inverse=True)
            width = np.array([self._half_width(float(s), confidence) for s in distinct])[which]
        return self.value - width, self.value + width

    def _half_width(self, slack: float, confidence: float) -> float:
        return half_width(self.std, slack, confidence, kurtosis=self.kurtosis, unit=self.unit)

    @property
    def rms(self) -> Any:
        """Root of a coordinate's expected squared error on the worst values of pending users."""
        return (
            np.hypot(self.std, self.slack)
            if np.ndim(self.slack)
            else math.hypot(self.std, self.slack)
        )

    def __repr__(self) -> str:
        start = f", start={self.start}" if self.start else ""
        return f"Estimate(t={self.t}, value={_shown(self.value)}, std={self.std:.4g}{start})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Estimate):
            return NotImplemented
        mine = (self.t, self.start, self.std, self.kurtosis, self.unit)
        return (
            mine == (other.t, other.start, other.std, other.kurtosis, other.unit)
            and np.array_equal(self.value, other.value)
            and np.array_equal(self.slack, other.slack)
        )


def _shown(value: Any) -> str:
    """A number, or the first and last few of many."""
    if np.ndim(value) == 0:
        return f"{value:.10g}"
    entries = [f"{number:.6g}" for number in np.ravel(value)]
    if len(entries) > _SHOWN:
        entries = [*entries[: _SHOWN // 2], "...", *entries[-_SHOWN // 2 :]]
    return f"[{', '.join(entries)}]"
