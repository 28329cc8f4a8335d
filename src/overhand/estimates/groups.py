"""Count, sum and mean of groups, from the noisy cells of grouped values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from overhand import errors
from overhand.estimates.ratios import fieller
from overhand.estimates.readings import Bar, Bounded, Group, lacking
from overhand.estimates.tails import half_width
from overhand.model import Floats
from overhand.values import Grouped

if TYPE_CHECKING:
    from overhand.estimates.estimate import Estimate


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
        if not isinstance(estimate.values, Grouped):
            raise errors.InvalidValue(f"no groups: {lacking(estimate.values, 'groups', 'Grouped')}")
        if not estimate.is_sum:
            raise errors.InvalidValue("a mean or a difference has no groups: ask the sum itself")
        confidence = errors.number("confidence", confidence, above=0, below=1)
        batched, reader = estimate.in_batches(), estimate.values.reader
        deviations = half_width(1.0, 0.0, confidence, kurtosis=estimate.kurtosis)
        std = estimate.std + estimate.unit / (2 * deviations) if estimate.std > 0 else 0.0
        cells, of_cells, slack = batched.value, std**2 * np.eye(2), batched.slack
        if batched.users is not None:
            # All cells add up exactly to the number of users: least squares gives each its part
            # of what is missing, and their covariances are those of the remaining noise.
            cells = cells + (batched.users - cells.sum()) / len(cells)
            of_cells, slack = of_cells - std**2 / len(cells), 2 * slack
        return cls(
            estimate.values,
            *estimate.values.counts_and_sums(cells),
            estimate.users,
            batched.pending,
            deviations,
            reader @ of_cells @ reader.T,
            slack * np.abs(reader).sum(axis=1),
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
            mean, note = _bounded(cells.sums[i] / cells.counts[i], means, i), ""
        found.append(Group(label, _bounded(count, counts, i), _bounded(total, sums, i), mean, note))
    return found


def _bounded(value: float, ends: list[Floats], i: int) -> Bounded:
    low, high = (float(end[i]) for end in ends)
    return Bounded(min(max(float(value), low), high), low, high)


def top(estimate: Estimate, values: Grouped, count: int, confidence: float, by: str) -> list[Bar]:
    """The largest groups by one of their three numbers, with bars that hold all of them at once."""
    if by not in ("count", "sum", "mean"):
        raise errors.InvalidValue(f"{by=} must be 'count', 'sum' or 'mean'")
    found = groups(estimate, 1 - (1 - confidence) / values.groups)
    read: list[Bounded | None] = [getattr(group, by) for group in found]
    bars = [
        Bar(i, one.value, one.low, one.high, found[i].label)
        for i, one in enumerate(read)
        if one is not None
    ]
    return sorted(bars, key=lambda bar: -bar.value)[:count]
