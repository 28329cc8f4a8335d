"""Quantiles and distributions, from the noisy counts of bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.estimates.ratios import fieller
from overhand.estimates.readings import Bounded, Distribution, lacking
from overhand.estimates.tails import half_width
from overhand.model import Floats
from overhand.values import Binned

if TYPE_CHECKING:
    from overhand.estimates.estimate import Estimate


class _Counts(NamedTuple):
    """Noisy counts of the users in batches, bin by bin; noise is independent between bins."""

    edges: Floats
    noisy: Floats
    users: int | None
    """What the true counts add up to, if known."""
    pending: int
    """Users in no batch: they may be in any bins."""
    slack: float
    """How far a bin may be off beyond that."""
    std: float
    kurtosis: float
    unit: float

    @classmethod
    def of(cls, estimate: Estimate) -> _Counts:
        values = estimate.values
        if not isinstance(values, Binned):
            raise errors.InvalidValue(f"no quantiles: {lacking(values, 'edges', 'Binned')}")
        if not estimate.is_sum:
            raise errors.InvalidValue("a mean or a difference has no quantiles: ask the sum itself")
        if estimate.users == 0:
            raise errors.InvalidValue("no quantiles: the sum has no users")
        batched = estimate.in_batches()
        law = (batched.slack, estimate.std, estimate.kurtosis, estimate.unit)
        return cls(np.array(values.edges), batched.value, batched.users, batched.pending, *law)

    def fitted(self) -> Floats:
        """The fraction of users below every edge, by the nearest counts that are possible."""
        users = self.noisy.sum() if self.users is None else self.users
        counts = _on_simplex(self.noisy, float(users)) if users > 0 else np.ones(len(self.noisy))
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
        width += self.unit / 2 * (self.std > 0) + 2 * self.slack * spread
        users = self.users + self.pending
        return (below - width) / users, (below + self.pending + width) / users

    def _below_unknown(self, confidence: float) -> tuple[Floats, Floats]:
        """Fieller's interval of the sum of the j bins below over that of all."""
        bins = len(self.noisy)
        j = np.arange(1, bins)
        below, total = np.cumsum(self.noisy)[:-1], np.full(bins - 1, self.noisy.sum())
        deviations = _deviations(np.array([self.kurtosis]), confidence)[0]
        variance = (self.std + self.unit / (2 * deviations) * (self.std > 0)) ** 2
        slack = self.slack * np.maximum(j, bins - j)
        variances = (j * variance, np.full(bins - 1, bins * variance), j * variance)
        low, _ = fieller(below - slack, total, *variances, deviations)
        _, high = fieller(below + slack, total, *variances, deviations)
        return low, high


def quantile(
    estimate: Estimate, q: float | Sequence[float], confidence: float, *, simultaneous: bool
) -> Bounded | list[Bounded]:
    counts = _Counts.of(estimate)
    asked: Any = q.tolist() if hasattr(q, "tolist") else q  # of NumPy and pandas
    listed = asked if isinstance(asked, Sequence) else [asked]
    parts = [errors.number("the quantile q", one, above=0, below=1) for one in listed]
    confidence = errors.number("confidence", confidence, above=0, below=1)
    at_once = min(len(parts), len(counts.noisy) - 1) if simultaneous else 1
    low, high = counts.band(1 - (1 - confidence) / max(1, at_once))
    fitted = counts.fitted()
    found = [_bounded(part, counts.edges, fitted, low, high) for part in parts]
    return found if listed is asked else found[0]


def cdf(estimate: Estimate, confidence: float, *, simultaneous: bool) -> Distribution:
    counts = _Counts.of(estimate)
    confidence = errors.number("confidence", confidence, above=0, below=1)
    at_once = len(counts.noisy) - 1 if simultaneous else 1
    low, high = counts.band(1 - (1 - confidence) / at_once)
    if simultaneous:  # what is below an edge is below the next
        low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    return Distribution(counts.edges, counts.fitted(), low, high)


def _bounded(q: float, edges: Floats, fitted: Floats, low: Floats, high: Floats) -> Bounded:
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


def _on_simplex(counts: Floats, total: float) -> Floats:
    """The nearest counts that are not negative and have this sum.

    >>> _on_simplex(np.array([5.0, -1.0, 2.0]), 6.0)
    array([4.5, 0. , 1.5])
    """
    falling = np.sort(counts)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    return np.asarray(np.maximum(counts - over[np.flatnonzero(falling > over)[-1]], 0.0))


def _deviations(kurtosis: Floats, confidence: float) -> Floats:
    """How many standard deviations the noise reaches on either side, by its kurtosis."""
    digits = np.ceil(kurtosis * 100) / 100  # which are few, and not too few
    distinct, which = np.unique(digits, return_inverse=True)
    found = [half_width(1.0, 0.0, confidence, kurtosis=float(one)) for one in distinct]
    return np.array(found)[which]
