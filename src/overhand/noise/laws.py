"""`reference.ones_law`, fast: the law of a batch's noise, of coins or Laplace noise.

On the integers, in floats without cancellation; how likely what is left out is, is counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from overhand import errors
from overhand.model import Floats
from overhand.randomness import BinaryFraction

_LARGE_VARIANCE = 4000.0  # from here on a recurrence is quicker than a convolution
_LARGEST_EXPONENT = 700.0  # e^s is a float up to here
_WIDEST = 2.0**32  # variance: the pmf of a wider law would fill memory
_RUN_UP = 64  # outcomes before the first that counts, for a recurrence to forget its start
_LOG_TAIL = 46.0  # outcomes of probability below about e^-46 are left out, and counted as missing
MOST_SHAPE = 1 << 10
"""Of Laplace noise: a table takes a filter for each."""


@dataclass(frozen=True)
class Pmf:
    """Probabilities of the outcomes `first`, `first + 1`, ...; `missing` bounds all others'."""

    first: int
    probabilities: Floats
    missing: float


class Noise(ABC):
    """The law of the noise of a batch: log-concave, and on the integers.

    So a larger shift is never harder to see than a smaller one and the likelihood ratio of a shift
    is monotone: what the accountant relies on.

    >>> coins, laplace = CoinNoise(((40, BinaryFraction(1, 1)),)), LaplaceNoise(Fraction(1), 0.64)
    >>> for law in (coins, laplace):
    ...     print(round(law.variance, 1), law.tail_quantile(1e-6))  # exponential tails are longer
    10.0 19
    9.9 40
    """

    @property
    def mean(self) -> float:
        return 0.0

    @property
    @abstractmethod
    def variance(self) -> float: ...

    @property
    @abstractmethod
    def fourth_cumulant(self) -> float:
        """What sets the tails apart from a Gaussian's."""

    @property
    def is_symmetric(self) -> bool:
        """Whether the noise and its mirror image have one law."""
        return True

    @property
    def is_tabulated(self) -> bool:
        """Whether `pmf` is known."""
        return self.variance <= _WIDEST

    @property
    def mgf_limit(self) -> float:
        """The s up to which `log_mgf_bound` is finite."""
        return _LARGEST_EXPONENT

    @property
    @abstractmethod
    def pmf(self) -> Pmf:
        """The probabilities of all outcomes that matter."""

    @abstractmethod
    def summary(self) -> Any:
        """Ready for JSON."""

    @abstractmethod
    def log_mgf_bound(self, s: float) -> float:
        """A bound on ln E exp(+-s (X - mean))."""

    @abstractmethod
    def tail(self, beyond: float) -> float:
        """A bound on the probability that symmetric noise is further from its mean than this."""

    @abstractmethod
    def at_most(self, variance: float) -> Noise:
        """A part of this noise of at most this variance (or all of it): it hides no more."""

    def tail_quantile(self, probability: float) -> int:
        """A distance from the mean that the noise exceeds with at most this probability."""
        low, high = 0.0, 1.0 + math.sqrt(self.variance)
        while self.tail(high) > probability:
            low, high = high, 2 * high
        while high - low > max(0.5, 0.01 * high):  # to a hundredth
            middle = (low + high) / 2
            low, high = (middle, high) if self.tail(middle) > probability else (low, middle)
        return math.ceil(high)

    def least_tail_quantile(self, probability: float) -> int:
        """The least of such distances by the bound on tails."""
        high = self.tail_quantile(probability)
        while high > 1 and self.tail(high - 1) <= probability:
            high -= 1
        return high

    def exact_tail_quantile(self, probability: float) -> float:
        """The least of such distances, if so little is missing from the pmf that it tells."""
        pmf = self.pmf if self.is_tabulated else None
        if pmf is None or probability <= 2 * pmf.missing:
            return float(self.tail_quantile(probability))
        outcomes = pmf.first + np.arange(len(pmf.probabilities))
        distances = np.abs(outcomes - self.mean)
        farthest = np.argsort(-distances, kind="stable")
        beyond = np.cumsum(pmf.probabilities[farthest]) + pmf.missing
        kept = min(int(np.searchsorted(beyond, probability, side="right")), len(farthest) - 1)
        return float(distances[farthest[kept]])


@dataclass(frozen=True)
class CoinNoise(Noise):
    """A sum of independent binomials, each a number of coins and their probability.

    >>> noise = CoinNoise(((4, BinaryFraction(1, 2)), (4, BinaryFraction(3, 2))))
    >>> noise.mean, noise.variance
    (4.0, 1.5)
    """

    binomials: tuple[tuple[int, BinaryFraction], ...]

    @cached_property
    def mean(self) -> float:
        return float(
            sum(Fraction(trials * p.numerator, 1 << p.bits) for trials, p in self.binomials)
        )

    @cached_property
    def variance(self) -> float:
        return math.fsum(trials * float(p) * float(p.complement) for trials, p in self.binomials)

    @property
    def fourth_cumulant(self) -> float:
        """For N coins N p q (1 - 6 p q)."""
        products = [(trials, float(p) * float(p.complement)) for trials, p in self.binomials]
        return math.fsum(trials * pq * (1 - 6 * pq) for trials, pq in products)

    @property
    def is_symmetric(self) -> bool:
        trials: dict[BinaryFraction, int] = {}
        for count, p in self.binomials:
            trials[p.reduce()] = trials.get(p.reduce(), 0) + count
        return all(trials.get(p.complement, 0) == count for p, count in trials.items())

    is_tabulated = True

    def summary(self) -> list[dict[str, float]]:
        return [{"trials": trials, "probability": float(p)} for trials, p in self.binomials]

    def log_mgf_bound(self, s: float) -> float:
        """If symmetric variance (cosh s - 1), as ln(1 + x) <= x; else mean (e^s - 1 - s)."""
        if s > _LARGEST_EXPONENT:
            return math.inf
        if self.is_symmetric:
            return self.variance * 2 * math.sinh(s / 2) ** 2  # without cancellation
        return self.mean * (math.expm1(s) - s)

    def tail(self, beyond: float) -> float:
        """Chernoff's, with ln E exp(s (X - mean)) <= variance (cosh s - 1)."""
        if not self.is_symmetric:
            raise errors.InvalidValue("tails are bounded for symmetric noise only")
        if self.variance == 0:
            return 0.0
        x = beyond / self.variance
        return min(1.0, 2 * math.exp(self.variance * (math.hypot(1, x) - 1 - x * math.asinh(x))))

    def at_most(self, variance: float) -> CoinNoise:
        """As many of these coins as have at most this variance; all, if they do."""
        if self.variance <= variance:
            return self
        part = variance / self.variance
        return CoinNoise(tuple((math.floor(trials * part), p) for trials, p in self.binomials))

    @cached_property
    def pmf(self) -> Pmf:
        if self.variance > _LARGE_VARIANCE and len(self.binomials) == 2:
            (trials, p), (others, q) = self.binomials
            if trials == others and p.complement == q:
                return opposed_pmf(trials, float(p), float(q))
        first, probabilities, missing = 0, np.ones(1), 0.0
        for trials, p in self.binomials:
            part = _binomial_pmf(trials, float(p), float(p.complement))
            first += part.first
            missing += part.missing
            probabilities = np.convolve(probabilities, part.probabilities)
        return Pmf(first, probabilities, missing)


@dataclass(frozen=True)
class LaplaceNoise(Noise):
    """The difference of two Polya (negative binomial) variables of this shape and ratio.

    With shape 1 it is discrete Laplace noise, P[k] in proportion to ratio^|k|; with a whole shape
    it is the sum of that many. A shape of at least 1 is log-concave. Any shape can be divided among
    users: the difference of Polya variables of shapes r and r' adds up to that of r + r'.

    >>> noise = LaplaceNoise(Fraction(1), ratio=0.5)
    >>> noise.variance, float(noise.pmf.probabilities.max().round(6))
    (4.0, 0.333333)
    """

    shape: Fraction
    ratio: float

    def __post_init__(self) -> None:
        errors.finite_number("shape", float(self.shape), above=0)
        errors.finite_number("ratio", self.ratio, above=0, below=1)

    @property
    def is_tabulated(self) -> bool:
        """Whether `pmf` is known: for whole shapes, unless it would take too long or much."""
        is_whole = self.shape.denominator == 1
        return is_whole and self.shape <= MOST_SHAPE and super().is_tabulated

    def summary(self) -> dict[str, Any]:
        return {"law": "laplace", "shape": float(self.shape), "ratio": self.ratio}

    @property
    def variance(self) -> float:
        return 2 * float(self.shape) * self.ratio / (1 - self.ratio) ** 2

    @property
    def fourth_cumulant(self) -> float:
        r = self.ratio
        return 2 * float(self.shape) * r * (1 + 4 * r + r * r) / (1 - r) ** 4

    def at_most(self, variance: float) -> LaplaceNoise:
        """As much of the noise as has this variance, in whole shapes; all of it, if it has less."""
        if self.variance <= variance:
            return self
        part = max(1, math.floor(float(self.shape) * variance / self.variance))
        return LaplaceNoise(Fraction(part), self.ratio) if part < self.shape else self

    def log_mgf_bound(self, s: float) -> float:
        """ln E exp(sX) = shape ln((1 - ratio)^2 / ((1 - ratio e^s) (1 - ratio e^-s)))."""
        if s >= self.mgf_limit:
            return math.inf
        both = math.log1p(-self.ratio * math.exp(s)) + math.log1p(-self.ratio * math.exp(-s))
        return float(self.shape) * (2 * math.log1p(-self.ratio) - both)

    @property
    def mgf_limit(self) -> float:
        return min(-math.log(self.ratio), _LARGEST_EXPONENT)

    def tail(self, beyond: float) -> float:
        """Chernoff's bound on the probability that the noise is further from 0 than this.

        It is best where `log_mgf_bound` has the derivative `beyond`: with c = beyond / shape,
        u = e^s solves
        ratio (1 + c) u^2 - c (1 + ratio^2) u + ratio (c - 1) = 0.
        """
        c, r = beyond / float(self.shape), self.ratio
        linear = c * (1 + r * r)
        root = math.hypot(c * (1 - r) * (1 + r), 2 * r)  # without cancellation
        s = min(math.log((linear + root) / (2 * r * (1 + c))), self.mgf_limit * (1 - 1e-12))
        return min(1.0, 2 * math.exp(min(0.0, self.log_mgf_bound(s) - s * beyond)))

    @cached_property
    def pmf(self) -> Pmf:
        """Each of the variables that are added is a filter, all of whose terms are positive."""
        if not self.is_tabulated:
            raise errors.Infeasible(
                f"Laplace noise of variance {self.variance:.3g} and shape {self.shape} is not "
                f"tabulated: only variances up to {_WIDEST:.3g} are, and whole shapes up to "
                f"{MOST_SHAPE}"
            )
        missing = 2 * math.exp(-_LOG_TAIL)
        half = self.tail_quantile(missing)
        weights = np.exp(np.abs(np.arange(-half, half + 1.0)) * math.log(self.ratio))
        for _ in range(int(self.shape) - 1):
            with np.errstate(over="ignore"):
                weights = _spread(weights, self.ratio)
                is_finite = math.isfinite(weights.sum())
            if not is_finite:
                raise errors.Infeasible(
                    f"the law of shape {self.shape}, ratio {self.ratio:g} is too wide for a table"
                )
        return Pmf(-half, weights / weights.sum(), missing)


def ratio_of(shape: float, variance: float) -> float:
    """The ratio with which noise of this shape has this variance: 2 shape r / (1 - r)^2."""
    c = variance / (2 * shape)
    return 2 * c / (2 * c + 1 + math.sqrt(4 * c + 1))


# Probabilities of all outcomes that matter, without cancellation.


def opposed_pmf(trials: int, p: float, q: float) -> Pmf:
    """Bin(N, p) + Bin(N, q) with q = 1 - p, in time linear in the width of the pmf.

    The generating function is (a + b z + a z^2)^N with a = p q and b = p^2 + q^2, so that
    a (k + 1) c_{k+1} = b (N - k) c_k + a (2 N - k + 1) c_{k-1}. All terms are positive up to the
    middle, k = N, and towards it the ratios c_{k+1} / c_k forget a wrong start by a factor
    exp(-distance^2 / variance); the other half is the mirror image.
    """
    a, b = p * q, p * p + q * q
    variance = 2 * trials * a
    half = min(trials, math.ceil(math.sqrt(2 * variance * _LOG_TAIL) + _LOG_TAIL) + 1)
    first = max(0, trials - half - _RUN_UP)
    # At the start, the ratio that would reproduce itself; exact where c_{-1} = 0.
    linear, last = b * (trials - first), a * (2 * trials - first + 1) * (first > 0)
    scale = a * (first + 1)
    ratio = (linear + math.sqrt(linear**2 + 4 * scale * last)) / (2 * scale)
    k = np.arange(first + 1, trials, dtype=np.float64)
    below = a * (k + 1)
    rise = _recurrence(ratio, b * (trials - k) / below, a * (2 * trials - k + 1) / below)
    rise = rise[len(rise) - 1 - half :]
    weights = np.concatenate([rise, rise[-2::-1]])
    missing = 0.0 if half == trials else 2 * math.exp(-_LOG_TAIL)
    return Pmf(trials - half, weights / weights.sum(), missing)


def _recurrence(second: float, own: Floats, before: Floats) -> Floats:
    """1, second, ...: each own times the last one plus before times the one before that.

    In stretches side by side, each from (1, 0) and from (0, 1): what is linear in its start is
    put together afterwards, and as all terms are positive, nothing is lost.
    """
    terms = len(own)
    length = math.isqrt(terms) + 1
    count = -(-terms // length)
    padded = (np.append(factors, np.zeros(count * length - terms)) for factors in (own, before))
    own, before = (np.ascontiguousarray(one.reshape(count, length).T) for one in padded)
    parts = np.empty((length + 2, 2, count))
    parts[0], parts[1] = [[1.0], [0.0]], [[0.0], [1.0]]
    for j in range(length):
        np.multiply(own[j], parts[j + 1], out=parts[j + 2])
        parts[j + 2] += before[j] * parts[j]
    starts = np.empty((count + 1, 2))
    starts[0] = 1.0, second
    for i in range(count):
        starts[i + 1] = parts[-2:, :, i] @ starts[i]
    followed = parts[2:, 0] * starts[:-1, 0] + parts[2:, 1] * starts[:-1, 1]
    return np.concatenate([starts[0], followed.T.reshape(-1)[:terms]])


def _binomial_pmf(trials: int, probability: float, complement: float) -> Pmf:
    """Bin(trials, probability) by the ratio of neighbours, from the mode outwards.

    Ratios keep a relative precision of about 1e-13 where differences of log-gammas lose it.
    The pmf is wide enough for Bernstein's inequality to leave less than 2 e^-46 outside.
    """
    variance = trials * probability * complement
    mode = min(trials, math.floor((trials + 1) * probability))
    half = math.ceil(math.sqrt(2 * variance * _LOG_TAIL) + _LOG_TAIL) + 1
    first, last = max(0, mode - half), min(trials, mode + half)
    odds = math.log(probability) - math.log(complement)
    up = np.arange(mode, last, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    above = np.cumsum(np.log((trials - up) / (up + 1)) + odds)
    below = np.cumsum(np.log(down / (trials - down + 1)) - odds)
    weights = np.exp(np.concatenate([below[::-1], [0.0], above]))
    whole = first == 0 and last == trials
    missing = 0.0 if whole else 2 * math.exp(-_LOG_TAIL)
    return Pmf(first, weights / weights.sum(), missing)


def _spread(weights: Floats, ratio: float) -> Floats:
    """The law of X + Y, in proportion, for Y with P[k] in proportion to ratio^|k|."""
    forwards, backwards = _trail(weights, ratio), _trail(weights[::-1], ratio)[::-1]
    forwards[:-1] += ratio * backwards[1:]
    return forwards


def _trail(weights: Floats, ratio: float) -> Floats:
    """y_k = x_k + ratio y_{k-1}, by doubling the stretch that is summed up."""
    result, step, power = weights.copy(), 1, ratio
    while step < len(result) and power > 0:
        result[step:] = result[step:] + power * result[:-step]
        step, power = 2 * step, power * power
    return result
