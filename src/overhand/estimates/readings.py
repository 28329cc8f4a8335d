"""What can be read off an estimate: its largest coordinates, quantiles of bins, means of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from overhand import errors
from overhand.estimates.intervals import fieller, half_width
from overhand.model import Floats
from overhand.values import Binned, Grouped, Values

if TYPE_CHECKING:
    from overhand.estimates.estimate import Estimate

_Kind = TypeVar("_Kind", bound=Values)


class Bounded(NamedTuple):
    """A number and its bounds.

    >>> Bounded(31.5, 30.0, 34.0).high
    34.0
    """

    value: float
    low: float
    high: float


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
    """What the coordinate counts, where the kind of value has names for them."""


def explain_lack(values: object, what: str, kind: str) -> str:
    """Why something cannot be read from a sum of these values."""
    these = "a sum of an unknown kind" if values is None else f"a sum of {values}"
    return f"{these} has no {what}: only sums of {kind} values do"


def _values_of(estimate: Estimate, kind: type[_Kind], read: str, lacking: str) -> _Kind:
    """The values that a sum is of, if they are of the kind that this can be read from."""
    if not isinstance(estimate.values, kind):
        why = explain_lack(estimate.values, lacking, kind.__name__)
        raise errors.InvalidValue(f"no {read}: {why}")
    if not estimate.is_sum:
        raise errors.InvalidValue(f"a mean or a difference has no {read}: ask the sum itself")
    return estimate.values


# Values in bins.


class Distribution(NamedTuple):
    """The fraction of users below every edge, with its bounds.

    >>> ends = np.array([0.0, 1.0])
    >>> Distribution(edges=np.array([10.0, 20.0]), value=ends, low=ends, high=ends).at(15.0)
    0.5
    """

    edges: Floats
    value: Floats
    low: Floats
    high: Floats

    def at(self, x: Any) -> Any:
        """The fraction of users below x, as if they were spread evenly over a bin.

        Of one number or, as an array, of many.
        """
        found = np.interp(x, self.edges, self.value)
        return found if np.ndim(x) else float(found)


class _Counts(NamedTuple):
    """Noisy counts of the users in batches, bin by bin; noise is independent between bins."""

    edges: Floats
    noisy: Floats
    users: int | None
    """What the true counts add up to, if known."""
    pending: int
    """Users in no batch: they may be in any bins."""
    bias_bound: float
    """How far a bin may be off beyond that."""
    std: float
    kurtosis: float
    unit: float

    @classmethod
    def of(cls, estimate: Estimate) -> _Counts:
        values = _values_of(estimate, Binned, "quantiles", "edges")
        if estimate.users == 0:
            raise errors.InvalidValue("no quantiles: the sum has no users")
        batched = estimate.in_batches()
        law = (batched.bias_bound, estimate.std, estimate.kurtosis, estimate.unit)
        return cls(np.array(values.edges), batched.value, batched.users, batched.pending, *law)

    def fit(self) -> Floats:
        """The fraction of users below every edge, by the nearest counts that are possible."""
        users = self.noisy.sum() if self.users is None else self.users
        counts = _to_simplex(self.noisy, float(users)) if users > 0 else np.ones(len(self.noisy))
        below = np.concatenate([[0.0], np.cumsum(counts)])
        return np.asarray(below / below[-1])

    def band(self, confidence: float) -> tuple[Floats, Floats]:
        """The bounds of that fraction at every edge: both ends fail equally often."""
        inside = self._below_known(confidence) if self.users is not None else None
        low, high = self._below_unknown(confidence) if inside is None else inside
        low, high = np.clip([low, high], 0.0, 1.0)
        return np.concatenate([[0.0], low, [1.0]]), np.concatenate([[0.0], high, [1.0]])

    def _below_known(self, confidence: float) -> tuple[Floats, Floats]:
        """The total is exact, so the noise on either side tells about the other.

        The best is the sum of the j bins below, plus j / B of what all B lack to the total:
        generalised least squares, of variance std^2 j (B - j) / B.
        """
        assert self.users is not None
        bins = len(self.noisy)
        j = np.arange(1, bins)
        part = j / bins
        missing = self.users - self.noisy.sum()
        below = np.cumsum(self.noisy)[:-1] + part * missing
        spread = j * (1 - part)
        kurtosis = self.kurtosis * ((1 - part) ** 3 + part**3) / spread
        width = self.std * np.sqrt(spread) * _deviations(kurtosis, confidence)
        width += self.unit / 2 * (self.std > 0) + 2 * self.bias_bound * spread
        users = self.users + self.pending
        return (below - width) / users, (below + self.pending + width) / users

    def _below_unknown(self, confidence: float) -> tuple[Floats, Floats]:
        """Fieller's interval of the sum of the j bins below over that of all."""
        bins = len(self.noisy)
        j = np.arange(1, bins)
        below, total = np.cumsum(self.noisy)[:-1], np.full(bins - 1, self.noisy.sum())
        deviations = _deviations(np.array([self.kurtosis]), confidence)[0]
        variance = (self.std + self.unit / (2 * deviations) * (self.std > 0)) ** 2
        bias_bound = self.bias_bound * np.maximum(j, bins - j)
        variances = (j * variance, np.full(bins - 1, bins * variance), j * variance)
        low, _ = fieller(below - bias_bound, total, *variances, deviations)
        _, high = fieller(below + bias_bound, total, *variances, deviations)
        return low, high


def quantile(
    estimate: Estimate, q: float | Sequence[float], confidence: float, *, simultaneous: bool
) -> Bounded | list[Bounded]:
    counts = _Counts.of(estimate)
    asked: Any = q.tolist() if hasattr(q, "tolist") else q  # of NumPy and pandas
    listed = asked if isinstance(asked, Sequence) else [asked]
    parts = [errors.finite_number("the quantile q", one, above=0, below=1) for one in listed]
    confidence = errors.finite_number("confidence", confidence, above=0, below=1)
    at_once = min(len(parts), len(counts.noisy) - 1) if simultaneous else 1
    low, high = counts.band(1 - (1 - confidence) / max(1, at_once))
    fitted = counts.fit()
    found = [_bracket(part, counts.edges, fitted, low, high) for part in parts]
    return found if listed is asked else found[0]


def cdf(estimate: Estimate, confidence: float, *, simultaneous: bool) -> Distribution:
    counts = _Counts.of(estimate)
    confidence = errors.finite_number("confidence", confidence, above=0, below=1)
    at_once = len(counts.noisy) - 1 if simultaneous else 1
    low, high = counts.band(1 - (1 - confidence) / at_once)
    if simultaneous:  # what is below an edge is below the next
        low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    return Distribution(counts.edges, counts.fit(), low, high)


def _bracket(q: float, edges: Floats, fitted: Floats, low: Floats, high: Floats) -> Bounded:
    """The quantile that the fitted counts have, between two edges that cannot be ruled out.

    From the left, edges are passed as long as surely fewer than q of the users are below them, and
    from the right as long as surely q of them are. To go too far is to pass the first edge that
    should have been the end: one test on either side, so that there is no allowance for many.
    """
    passed = int(np.argmin(high < q))  # the last is 1, which is not below q
    left = int(np.argmin((low >= q)[::-1]))  # the first is 0
    bottom, top = float(edges[passed - 1]), float(edges[len(edges) - left])
    above = int(np.argmax(fitted >= q))
    start, stop = fitted[above - 1], fitted[above]
    inside = edges[above - 1] + (q - start) / (stop - start) * (edges[above] - edges[above - 1])
    return Bounded(float(np.clip(inside, bottom, top)), bottom, top)


def _to_simplex(counts: Floats, total: float) -> Floats:
    """The nearest counts that are not negative and have this sum."""
    falling = np.sort(counts)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    return np.asarray(np.maximum(counts - over[np.flatnonzero(falling > over)[-1]], 0.0))


def _deviations(kurtosis: Floats, confidence: float) -> Floats:
    """How many standard deviations the noise reaches on either side, by its kurtosis."""
    digits = np.ceil(kurtosis * 100) / 100  # which are few, and not too few
    distinct, which = np.unique(digits, return_inverse=True)
    found = [half_width(1.0, 0.0, confidence, kurtosis=float(one)) for one in distinct]
    return np.array(found)[which]


# Values in groups.


@dataclass(frozen=True)
class Group:
    """Count, sum and mean of one group, each with its bounds.

    >>> Group("DE", Bounded(9.0, 7.0, 11.0), Bounded(18.0, 9.0, 27.0), Bounded(2.0, 1.2, 2.5)).mean
    Bounded(value=2.0, low=1.2, high=2.5)
    """

    label: str
    count: Bounded
    sum: Bounded
    mean: Bounded | None
    note: str = ""
    """Why there is no mean, if there is none."""

    def entry(self) -> dict[str, Any]:
        """Ready for JSON."""
        numbers = {"count": self.count, "sum": self.sum, "mean": self.mean}
        shown = {name: None if one is None else one._asdict() for name, one in numbers.items()}
        return {"label": self.label, **shown, "note": self.note}


class _Cells(NamedTuple):
    """Noisy counts and sums of the users in batches, group by group."""

    values: Grouped
    counts: Floats
    sums: Floats
    users: int
    """At most, pending ones included."""
    pending: int
    """Users in no batch: they may be in any group and hold anything."""
    deviations: float
    """How many standard deviations the noise reaches on either side."""
    covariance: Floats
    """Of the noise of count and sum, the same for all groups."""
    off: Floats
    """How far count and sum may be off beyond that."""

    @classmethod
    def of(cls, estimate: Estimate, confidence: float) -> _Cells:
        values = _values_of(estimate, Grouped, "groups", "groups")
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        batched, reader = estimate.in_batches(), values.reader
        deviations = half_width(1.0, 0.0, confidence, kurtosis=estimate.kurtosis)
        std = estimate.std + estimate.unit / (2 * deviations) if estimate.std > 0 else 0.0
        cells, of_cells, bias_bound = batched.value, std**2 * np.eye(2), batched.bias_bound
        if batched.users is not None:
            # All cells add up exactly to the number of users: least squares gives each its part
            # of what is missing, and their covariances are those of the remaining noise.
            cells = cells + (batched.users - cells.sum()) / len(cells)
            of_cells, bias_bound = of_cells - std**2 / len(cells), 2 * bias_bound
        return cls(
            values,
            *values.counts_and_sums(cells),
            estimate.users,
            batched.pending,
            deviations,
            reader @ of_cells @ reader.T,
            bias_bound * np.abs(reader).sum(axis=1),
        )

    def bounds(self, low: float, high: float) -> tuple[list[Floats], list[Floats]]:
        """Of all counts and of all sums, numbers being from low to high: none is impossible."""
        count, total = self.deviations * np.sqrt(np.diag(self.covariance)) + self.off
        counts = [self.counts - count, self.counts + count + self.pending]
        low, high = min(low, 0.0), max(high, 0.0)  # of one user, who may be in another group
        sums = [self.sums - total + self.pending * low, self.sums + total + self.pending * high]
        return (
            [np.clip(end, 0.0, self.users) for end in counts],
            [np.clip(end, self.users * low, self.users * high) for end in sums],
        )

    def mean_bounds(self, low: float, high: float) -> list[Floats]:
        """Of all means: Fieller's, with all pending users in the group at one end or the other."""
        covariance = self.covariance
        noise = (covariance[1, 1], covariance[0, 0], covariance[0, 1], self.deviations)
        off = self.off[1] + max(abs(low), abs(high)) * self.off[0]  # of sum - mean * count
        least, largest = self.sums + self.pending * low, self.sums + self.pending * high
        below, _ = fieller(least - off, self.counts + self.pending, *noise)
        _, above = fieller(largest + off, self.counts + self.pending, *noise)
        return [np.clip(end, low, high) for end in (below, above)]


def groups(estimate: Estimate, confidence: float) -> list[Group]:
    cells = _Cells.of(estimate, confidence)
    low, high = float(cells.values.of.lows[0]), float(cells.values.of.highs[0])
    counts, sums = cells.bounds(low, high)
    means = cells.mean_bounds(low, high)
    found = []
    for i, label in enumerate(cells.values.labels):
        # Half of the pending users, with the middle of what they may hold.
        count = float(cells.counts[i]) + cells.pending / 2
        total = float(cells.sums[i]) + cells.pending * (low + high) / 4
        mean, note = None, f"no mean: {label} may have no users at all"
        if counts[0][i] > 0:
            mean, note = _clip_to(cells.sums[i] / cells.counts[i], means, i), ""
        found.append(Group(label, _clip_to(count, counts, i), _clip_to(total, sums, i), mean, note))
    return found


def _clip_to(value: float, ends: list[Floats], i: int) -> Bounded:
    low, high = (float(end[i]) for end in ends)
    return Bounded(min(max(float(value), low), high), low, high)


def top_groups(estimate: Estimate, count: int, confidence: float, by: str) -> list[Bar]:
    """The largest groups by one of their three numbers, with bars that hold all of them at once."""
    if by not in ("count", "sum", "mean"):
        raise errors.InvalidValue(f"{by=} must be 'count', 'sum' or 'mean'")
    values = _values_of(estimate, Grouped, "groups", "groups")
    found = groups(estimate, 1 - (1 - confidence) / values.groups)
    read: list[Bounded | None] = [getattr(group, by) for group in found]
    bars = [
        Bar(i, one.value, one.low, one.high, found[i].label)
        for i, one in enumerate(read)
        if one is not None
    ]
    return sorted(bars, key=lambda bar: -bar.value)[:count]
