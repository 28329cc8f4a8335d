"""A published sum with its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from overhand import errors
from overhand.estimates import frames, groups, quantiles
from overhand.estimates.pairs import Pair, check_alike
from overhand.estimates.ratios import Ratio
from overhand.estimates.readings import Bar, Bounded, Distribution, Group, lacking, shown
from overhand.estimates.runs import InBatches, Origin, have_users_in_common
from overhand.estimates.tails import half_width
from overhand.values import Grouped, Values

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Estimate:
    """A published sum of the first `t` users, or of those after place `start`.

    `value` is a number, or an array with an entry per coordinate. `std` is the standard
    deviation of a coordinate's noise (and, for values that are rounded, a bound on it: rounding
    counts with the most it can do), and `kurtosis` how much heavier than Gaussian its tails are.
    Noise comes in whole steps of `unit` (0 if there are none): a batch of bits is off by 3 or by 4.
    `slack` is how far the users that no finished batch holds can move the sum from `value`: it is
    bounded, not random. `values` is the kind of value that was added up, if known: it tells what
    the coordinates are. `origin` tells whose noise it has, for differences and ratios.

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
    origin: Origin | None = field(default=None, compare=False)
    is_sum: bool = field(default=True, compare=False)
    """Whether it is the sum of its users' values, not a mean, a coordinate, or derived from
    other estimates."""

    @property
    def users(self) -> int:
        """The number of users in the sum."""
        return self.t - self.start

    @property
    def names(self) -> tuple[str, ...] | None:
        """What the coordinates are called, if they have names."""
        return None if self.values is None else self.values.coordinate_names

    def mean(self) -> Estimate:
        """The mean of the users' values: the sum and its error, divided by the number of users."""
        if self.users == 0:
            raise errors.InvalidValue("no mean: the sum has no users")
        weight = 1 / self.users
        return replace(
            self,
            value=self.value / self.users,
            std=self.std / self.users,
            slack=self.slack / self.users,
            unit=self.unit / self.users,
            origin=self._origin_with(lambda part: part._replace(weight=part.weight * weight)),
            is_sum=False,
        )

    def _origin_with(self, change: Any) -> Origin | None:
        return None if self.origin is None else tuple(change(part) for part in self.origin)

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of these users and of others after them, whose noise is independent.

        >>> Estimate(t=100, value=40.0, std=3.0) + Estimate(t=50, value=10.0, std=4.0)
        Estimate(t=150, value=50, std=5)
        """
        check_alike(self, other, "sum")
        std = math.hypot(self.std, other.std)
        fourth = self.kurtosis * self.std**4 + other.kurtosis * other.std**4
        mine, theirs = (() if one.users == 0 else one.origin for one in (self, other))
        if mine and theirs and have_users_in_common(mine, theirs):
            raise errors.InvalidValue("these cannot be added: they have users in common")
        return Estimate(
            self.t + other.users,
            self.value + other.value,
            std,
            self.slack + other.slack,
            self.start,
            fourth / std**4 if std > 0 else 0.0,
            max(self.unit, other.unit),
            self.values or other.values,
            None if mine is None or theirs is None else (*mine, *theirs),
            self.is_sum and other.is_sum,
        )

    def __sub__(self, other: Estimate) -> Difference:
        """One sum minus another, with an interval that accounts for the noise they share.

        It is known for estimates of one `ContinualSum`, `EndlessSum` or server, and for means,
        ranges and coordinates of them: batches that are in both cancel out. Different runs share
        no noise (unless they were given the same seed). Where it is not known (batches were
        missing or lost, or an estimate was made by hand) the worst is assumed: `is_cautious`.

        >>> Estimate(t=100, value=40.0, std=3.0) - Estimate(t=50, value=10.0, std=4.0)
        Difference(value=30, std=7, is_cautious=True)
        """
        pair = Pair.of(self, other, "difference")
        std, kurtosis = pair.noise(1.0)
        return Difference(
            max(self.t, other.t),
            self.value - other.value,
            std,
            self.slack + other.slack,
            min(self.start, other.start),
            kurtosis,
            max(self.unit, other.unit),
            self.values if self.values == other.values else None,
            is_sum=False,
            is_cautious=pair.common is None,
        )

    def __truediv__(self, other: Estimate) -> Ratio:
        """One sum over another, with Fieller's interval: see `Ratio`, and `-` on shared noise.

        >>> Estimate(t=100, value=40.0, std=3.0) / Estimate(t=50, value=10.0, std=0.0)
        Ratio(value=4)
        """
        return Ratio(Pair.of(self, other, "ratio"))

    def __getitem__(self, coordinate: int | str) -> Estimate:
        """The estimate of one coordinate, by its number or its name.

        >>> votes = Estimate(t=9, value=np.array([1.0, 6.0, 2.0]), std=0.5)
        >>> votes[1]
        Estimate(t=9, value=6, std=0.5)
        """
        values = np.asarray(self.value)
        if values.ndim == 0:
            raise errors.InvalidValue("a sum of numbers has no coordinates")
        if isinstance(coordinate, str):
            names = self.names
            if names is None or coordinate not in names:
                known = "they have no names" if names is None else f"the first is {names[0]!r}"
                raise errors.InvalidValue(
                    f"no coordinate of this sum is called {coordinate!r}: {known}"
                )
            coordinate = names.index(coordinate)
        place = errors.whole("coordinate", coordinate, least=0, most=len(values) - 1)
        return replace(
            self,
            value=float(values[place]),
            slack=float(np.broadcast_to(self.slack, values.shape)[place]),
            values=None,
            origin=self._origin_with(lambda part: part._replace(coordinate=place)),
            is_sum=False,
        )

    def top(
        self,
        count: int = 10,
        confidence: float = 0.95,
        *,
        by: Literal["count", "sum", "mean"] | None = None,
    ) -> list[Bar]:
        """The largest coordinates, with bars that hold all of them at once.

        The bars allow for having looked at every coordinate, not only at those returned: each
        holds with probability 1 - (1 - confidence) / coordinates. For values in groups they are the
        largest groups `by` their count (the default), sum or mean; by mean, groups that may be
        empty are left out: they have none.

        >>> Estimate(t=9, value=np.array([1.0, 6.0, 2.0]), std=0.0).top(1)
        [Bar(coordinate=1, value=6.0, low=6.0, high=6.0, label=None)]
        """
        count = errors.whole("count", count, least=1)
        confidence = errors.number("confidence", confidence, above=0, below=1)
        if isinstance(self.values, Grouped):
            return groups.top(self, self.values, count, confidence, by or "count")
        if by is not None:
            raise errors.InvalidValue(f"{by=}: {lacking(self.values, 'groups', 'Grouped')}")
        values = np.atleast_1d(np.asarray(self.value, np.float64))
        low, high = map(np.atleast_1d, self.interval(1 - (1 - confidence) / len(values)))
        names = self.names or [None] * len(values)
        order = np.argsort(-values, kind="stable")[:count]
        return [
            Bar(int(i), float(values[i]), float(low[i]), float(high[i]), names[i]) for i in order
        ]

    def in_batches(self) -> InBatches:
        """The sum of the users who are in batches, if it is known which are not.

        >>> Estimate(t=9, value=np.array([1.0, 6.0]), std=1.0, slack=2.0).in_batches()
        InBatches(value=array([1., 6.]), users=None, pending=0, slack=2.0)
        """
        value = np.asarray(self.value, np.float64)
        if self.origin is None:
            return InBatches(value, None, 0, float(np.max(self.slack)))
        for part in self.origin:
            value = value - part.imputed
        pending = sum(part.pending for part in self.origin)
        slack = sum(part.slack for part in self.origin)
        return InBatches(value, self.users - pending, pending, slack)

    @overload
    def quantile(self, q: float, confidence: float = 0.95) -> Bounded: ...

    @overload
    def quantile(
        self, q: Sequence[float], confidence: float = 0.95, *, simultaneous: bool = False
    ) -> list[Bounded]: ...

    def quantile(
        self,
        q: float | Sequence[float],
        confidence: float = 0.95,
        *,
        simultaneous: bool = False,
    ) -> Bounded | list[Bounded]:
        """The value below which this fraction of the users are, or one for each of several.

        For values in bins (`Binned`). The interval goes from edge to edge, so it holds whatever
        the values are within their bins and whatever pending users hold, with probability
        `confidence` over the noise: each quantile on its own, or all at once if `simultaneous`.
        The value itself is that of `cdf`, as if users were spread evenly over a bin.
        """
        return quantiles.quantile(self, q, confidence, simultaneous=simultaneous)

    def cdf(self, confidence: float = 0.95, *, simultaneous: bool = False) -> Distribution:
        """The fraction of users below every edge, for values in bins (`Binned`).

        It uses the nonnegative counts that add up to the number of users and are nearest to the
        noisy ones, by least squares: post-processing, which costs no privacy. The bounds hold for
        every edge on its own, or for all at once if `simultaneous`.
        """
        return quantiles.cdf(self, confidence, simultaneous=simultaneous)

    def groups(self, confidence: float = 0.95) -> list[Group]:
        """Count, sum and mean of every group, each with an interval, for values in groups.

        For `Grouped` values. The interval of a mean is Fieller's: count and sum share noise.
        Pending users may be in any group, and hold anything. Every interval holds on its own;
        those of `top` hold all at once.
        """
        return groups.groups(self, confidence)

    def to_frame(self, confidence: float = 0.95) -> pandas.DataFrame:
        """A table with a row per coordinate, or per group, with its interval.

        Needs pandas: `pip install 'overhand[frames]'`.
        """
        return frames.to_frame(self, confidence)

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """The shortest symmetric interval that holds the sum with this confidence.

        It holds whatever the pending users hold: see `half_width`. Half a `unit` is the least that
        suffices for noise in steps of one size, and a little too much where batches were combined.

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
        """Root of a coordinate's expected squared error for the worst values of pending users."""
        return (
            np.hypot(self.std, self.slack)
            if np.ndim(self.slack)
            else math.hypot(self.std, self.slack)
        )

    @property
    def summary(self) -> str:
        """Value and standard deviation in one short line.

        >>> Estimate(t=99, value=np.arange(99.0), std=2.0).summary
        'value=[0, 1, 2, ..., 96, 97, 98], std=2'
        """
        return f"value={shown(self.value)}, std={self.std:.4g}"

    def __repr__(self) -> str:
        start = f", start={self.start}" if self.start else ""
        return f"Estimate(t={self.t}, {self.summary}{start})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Estimate):
            return NotImplemented
        mine = (self.t, self.start, self.std, self.kurtosis, self.unit)
        return (
            mine == (other.t, other.start, other.std, other.kurtosis, other.unit)
            and np.array_equal(self.value, other.value)
            and np.array_equal(self.slack, other.slack)
        )


@dataclass(frozen=True, repr=False, eq=False)
class Difference(Estimate):
    """One estimate minus another. It belongs to no single set of users, so it has no mean.

    >>> less = Estimate(t=9, value=4.0, std=0.0) - Estimate(t=5, value=3.0, std=1.0)
    >>> less, less.is_cautious
    (Difference(value=1, std=1), False)
    """

    is_cautious: bool = False
    """Whether it is unknown what noise the two share, so that the worst is assumed."""

    @property
    def users(self) -> int:
        raise errors.InvalidValue("a difference of two sums is not the sum of any users")

    def __repr__(self) -> str:
        cautious = ", is_cautious=True" if self.is_cautious else ""
        return f"Difference({self.summary}{cautious})"
