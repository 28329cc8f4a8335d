"""A published sum with its error, and what two of them give: differences and ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from overhand import errors
from overhand.estimates import readings
from overhand.estimates.intervals import half_width
from overhand.estimates.readings import Bar, Bounded, Distribution, Group, explain_lack
from overhand.estimates.shared_noise import (
    InBatches,
    Origin,
    Pair,
    have_users_in_common,
)
from overhand.values import Grouped, Values

if TYPE_CHECKING:
    import pandas

_SHOWN = 6  # coordinates, of however many
_ENDS = ("_low", "_high")


@dataclass(frozen=True, repr=False)
class Estimate:
    """A published sum of the first `t` users, or of those after place `start`.

    `value` is a number, or an array with an entry per coordinate. `std` is the standard
    deviation of a coordinate's noise (and, for values that are rounded, a bound on it: rounding
    counts with the most it can do), and `kurtosis` how much heavier than Gaussian its tails are.
    Noise comes in whole steps of `unit` (0 if there are none): a batch of bits is off by 3 or by 4.
    `bias_bound` is how far the users that no finished batch holds can move the sum from `value`:
    that is bounded, not random. `values` is the kind of value that was added up, if known: it tells
    what the coordinates are. `origin` tells whose noise it has, for differences and ratios.

    >>> low, high = Estimate(t=100, value=40.0, std=5.0).interval(0.95)
    >>> round(low, 1), round(high, 1)
    (30.2, 49.8)
    >>> Estimate(t=100, value=40.0, std=5.0).mean()
    Estimate(t=100, value=0.4, std=0.05)
    """

    t: int
    value: Any
    std: float
    bias_bound: Any = 0.0
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
            bias_bound=self.bias_bound / self.users,
            unit=self.unit / self.users,
            origin=self._origin_with(lambda part: part._replace(weight=part.weight * weight)),
            is_sum=False,
        )

    def _origin_with(self, change: Any) -> Origin | None:
        return None if self.origin is None else tuple(change(part) for part in self.origin)

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of these users and of others after them.

        Their noise is taken to be independent, unless both are known to be of one run of the two
        services, whose noise is correlated.

        >>> Estimate(t=100, value=40.0, std=3.0) + Estimate(t=50, value=10.0, std=4.0)
        Estimate(t=150, value=50, std=5)
        """
        pair = Pair.of(self, other, "sum")
        std, kurtosis = pair._replace(shared=pair.shared or []).noise(-1.0)
        mine, theirs = (() if one.users == 0 else one.origin for one in (self, other))
        if mine and theirs and have_users_in_common(mine, theirs):
            raise errors.InvalidValue("these cannot be added: they have users in common")
        return Estimate(
            self.t + other.users,
            self.value + other.value,
            std,
            self.bias_bound + other.bias_bound,
            self.start,
            kurtosis,
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
            self.bias_bound + other.bias_bound,
            min(self.start, other.start),
            kurtosis,
            max(self.unit, other.unit),
            self.values if self.values == other.values else None,
            is_sum=False,
            is_cautious=pair.shared is None,
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
            bias_bound=float(np.broadcast_to(self.bias_bound, values.shape)[place]),
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
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        if isinstance(self.values, Grouped):
            return readings.top_groups(self, count, confidence, by or "count")
        if by is not None:
            raise errors.InvalidValue(f"{by=}: {explain_lack(self.values, 'groups', 'Grouped')}")
        values = np.atleast_1d(np.asarray(self.value, np.float64))
        low, high = map(np.atleast_1d, self.interval(1 - (1 - confidence) / len(values)))
        names = self.names or [None] * len(values)
        order = np.argsort(-values, kind="stable")[:count]
        return [
            Bar(int(i), float(values[i]), float(low[i]), float(high[i]), names[i]) for i in order
        ]

    def in_batches(self) -> InBatches:
        """The sum of the users who are in batches, if it is known which are not.

        >>> Estimate(t=9, value=np.array([1.0, 6.0]), std=1.0, bias_bound=2.0).in_batches()
        InBatches(value=array([1., 6.]), users=None, pending=0, bias_bound=2.0)
        """
        value = np.asarray(self.value, np.float64)
        if self.origin is None:
            return InBatches(value, None, 0, float(np.max(self.bias_bound)))
        for part in self.origin:
            value = value - part.imputed
        pending = sum(part.pending for part in self.origin)
        bias_bound = sum(part.bias_bound for part in self.origin)
        return InBatches(value, self.users - pending, pending, bias_bound)

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
        return readings.quantile(self, q, confidence, simultaneous=simultaneous)

    def cdf(self, confidence: float = 0.95, *, simultaneous: bool = False) -> Distribution:
        """The fraction of users below every edge, for values in bins (`Binned`).

        It uses the nonnegative counts that add up to the number of users and are nearest to the
        noisy ones, by least squares: post-processing, which costs no privacy. The bounds hold for
        every edge on its own, or for all at once if `simultaneous`.
        """
        return readings.cdf(self, confidence, simultaneous=simultaneous)

    def groups(self, confidence: float = 0.95) -> list[Group]:
        """Count, sum and mean of every group, each with an interval, for values in groups.

        For `Grouped` values. The interval of a mean is Fieller's: count and sum share noise.
        Pending users may be in any group, and hold anything. Every interval holds on its own;
        those of `top` hold all at once.
        """
        return readings.groups(self, confidence)

    def to_frame(self, confidence: float = 0.95) -> pandas.DataFrame:
        """A table with a row per coordinate, or per group, with its interval.

        Needs pandas: `pip install 'overhand[frames]'`.
        """
        pandas = load_pandas()
        if isinstance(self.values, Grouped) and self.is_sum:
            # A group that may be empty has no mean: not a number, within no bounds.
            found = self.groups(confidence)
            lines = [[*group.count, *group.sum, *(group.mean or [np.nan] * 3)] for group in found]
            names = [name + end for name in ("count", "sum", "mean") for end in ("", *_ENDS)]
            index = pandas.Index([group.label for group in found], name="group")
            return pandas.DataFrame(lines, index, names)
        low, high = self.interval(confidence)
        columns = {"value": self.value, "low": low, "high": high}
        index = None
        if self.names is not None:
            index = pandas.Index(self.names, name=str(self.values).split(":")[0])
        return pandas.DataFrame({name: np.atleast_1d(one) for name, one in columns.items()}, index)

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """The shortest symmetric interval that holds the sum with this confidence.

        It holds whatever the pending users hold: see `half_width`. Half a `unit` is the least that
        suffices for noise in steps of one size, and a little too much where batches were combined.

        >>> Estimate(t=11, value=11.0, std=0.44).interval()[1]  # continuous noise
        11.862...
        >>> Estimate(t=11, value=11.0, std=0.44, unit=1.0).interval()[1]  # it may well be 12
        12.362...
        """
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        if np.ndim(self.bias_bound) == 0:
            width: Any = self._half_width(float(self.bias_bound), confidence)
        else:
            distinct, which = np.unique(self.bias_bound, return_inverse=True)
            width = np.array([self._half_width(float(s), confidence) for s in distinct])[which]
        return self.value - width, self.value + width

    def _half_width(self, bias_bound: float, confidence: float) -> float:
        return half_width(self.std, bias_bound, confidence, kurtosis=self.kurtosis, unit=self.unit)

    @property
    def rms(self) -> Any:
        """Root of a coordinate's expected squared error for the worst values of pending users."""
        if np.ndim(self.bias_bound):
            return np.hypot(self.std, self.bias_bound)
        return math.hypot(self.std, self.bias_bound)

    def __float__(self) -> float:
        """The value of an estimate of one number.

        >>> float(Estimate(t=100, value=40.0, std=5.0))
        40.0
        """
        if np.ndim(self.value):
            raise errors.InvalidValue(
                f"an estimate of {np.size(self.value)} coordinates is not one number: use `value` "
                "or one of them, as in estimate[0]"
            )
        return float(self.value)

    @property
    def summary(self) -> str:
        """Value and standard deviation in one short line.

        >>> Estimate(t=99, value=np.arange(99.0), std=2.0).summary
        'value=[0, 1, 2, ..., 96, 97, 98], std=2'
        """
        return f"value={format_value(self.value)}, std={self.std:.4g}"

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
            and np.array_equal(self.bias_bound, other.bias_bound)
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
        return self.pair.shared is None

    @property
    def value(self) -> Any:
        """The ratio of the two values; NaN where the denominator is 0."""
        above, below = (np.asarray(one.value, np.float64) for one in self.pair[:2])
        found = np.divide(above, below, out=np.full(above.shape, math.nan), where=below != 0)
        return found if found.ndim else float(found)

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """All ratios r for which above - r * below may be 0, with this confidence (Fieller).

        The noise of that difference is known for every r, and pending users may move it by the
        bounds on the biases of both. It is an interval if the denominator's interval is on one side
        of 0; otherwise ratios of any size are possible, and it is all numbers.
        """
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        left, right = self.pair[:2]
        shape = np.shape(left.value)
        columns = [
            np.broadcast_to(np.asarray(part, np.float64), shape).ravel()
            for part in (left.value, right.value, left.bias_bound, right.bias_bound)
        ]
        ends = [
            self._ends(float(a), float(b), float(s), float(u), confidence)
            for a, b, s, u in zip(*columns, strict=True)
        ]
        low, high = np.array(ends).T.reshape(2, *shape)
        return (low, high) if shape else (float(low), float(high))

    def _ends(
        self,
        above: float,
        below: float,
        bias_bound: float,
        bias_bound_below: float,
        confidence: float,
    ) -> tuple[float, float]:
        left, right = self.pair[:2]

        def width(ratio: float) -> float:
            std, kurtosis = self.pair.noise(ratio)
            kurtosis = math.ceil(100 * kurtosis) / 100  # a few tails do for all ratios
            unit = max(left.unit, abs(ratio) * right.unit)
            off = bias_bound + abs(ratio) * bias_bound_below
            return half_width(std, off, confidence, kurtosis=kurtosis, unit=unit)

        limits = {"kurtosis": right.kurtosis, "unit": right.unit}
        if abs(below) <= half_width(right.std, bias_bound_below, confidence, **limits):
            return -math.inf, math.inf
        ratio = above / below
        reach = width(ratio) / abs(below)

        def excess(ratio: float) -> float:
            return abs(above - ratio * below) - width(ratio)

        return _find_end(excess, ratio, -reach), _find_end(excess, ratio, reach)

    def __repr__(self) -> str:
        cautious = ", is_cautious=True" if self.is_cautious else ""
        return f"Ratio(value={format_value(self.value)}{cautious})"


def _find_end(excess: Callable[[float], float], inside: float, reach: float) -> float:
    """Where `excess` rises above 0, in the direction of `reach`; it is not above 0 inside."""
    from scipy.optimize import brentq

    if reach == 0:
        return inside
    while excess(inside + reach) <= 0:
        reach *= 2
        if math.isinf(reach):
            return reach
    return float(brentq(excess, inside, inside + reach, xtol=1e-10 * abs(reach)))


def format_value(value: Any) -> str:
    """A number, or the first and last few of many."""
    if np.ndim(value) == 0:
        return f"{value:.10g}"
    entries = [f"{number:.6g}" for number in np.ravel(value)]
    if len(entries) > _SHOWN:
        entries = [*entries[: _SHOWN // 2], "...", *entries[-_SHOWN // 2 :]]
    return f"[{', '.join(entries)}]"


def load_pandas() -> Any:
    """pandas, which is optional and slow to load, or an error that says how to install it.

    >>> load_pandas().__name__
    'pandas'
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise errors.OverhandError("a table needs pandas: pip install 'overhand[frames]'") from None
    return pandas
