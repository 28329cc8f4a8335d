"""The law of discrete Laplace noise, and of sums of it: what shares make possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.noise import LOG_TAIL, Window, reach

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LaplaceNoise:
    """The difference of two Polya (negative binomial) variables of this shape and ratio.

    With shape 1 it is discrete Laplace noise, P[k] in proportion to ratio^|k|; with a whole shape
    it is the sum of so many. A shape of at least 1 is log-concave. Any shape can be divided among
    users: the difference of Polya variables of shapes r and r' adds up to that of r + r'.

    >>> noise = LaplaceNoise(Fraction(1), ratio=0.5)
    >>> noise.variance, float(noise.window.probabilities.max().round(6))
    (4.0, 0.333333)
    """

    shape: Fraction
    ratio: float

    mean = 0.0
    is_symmetric = True

    def __post_init__(self) -> None:
        errors.number("shape", float(self.shape), above=0)
        errors.number("ratio", self.ratio, above=0, below=1)

    @property
    def is_tabulated(self) -> bool:
        """Whether `window` is known: for whole shapes."""
        return self.shape.denominator == 1

    @property
    def variance(self) -> float:
        return 2 * float(self.shape) * self.ratio / (1 - self.ratio) ** 2

    @property
    def fourth_cumulant(self) -> float:
        """What sets the tails apart from a Gaussian's: they are exponential."""
        r = self.ratio
        return 2 * float(self.shape) * r * (1 + 4 * r + r * r) / (1 - r) ** 4

    def at_most(self, variance: float) -> LaplaceNoise:
        """As much of the noise as has this variance, in whole shapes; all of it, if it has less."""
        if self.variance <= variance:
            return self
        part = max(1, math.floor(float(self.shape) * variance / self.variance))
        return LaplaceNoise(Fraction(part), self.ratio) if part < self.shape else self

    def growth(self, s: float) -> float:
        """ln E exp(sX) = shape ln((1 - ratio)^2 / ((1 - ratio e^s) (1 - ratio e^-s)))."""
        if s >= self.most_growth:
            return math.inf
        both = math.log1p(-self.ratio * math.exp(s)) + math.log1p(-self.ratio * math.exp(-s))
        return float(self.shape) * (2 * math.log1p(-self.ratio) - both)

    @property
    def most_growth(self) -> float:
        """The s up to which `growth` is finite."""
        return -math.log(self.ratio)

    def tail(self, beyond: float) -> float:
        """Chernoff's bound on the probability that the noise is further from 0 than this.

        It is best where growth has the derivative `beyond`: with c = beyond / shape, u = e^s solves
        ratio (1 + c) u^2 - c (1 + ratio^2) u + ratio (c - 1) = 0.
        """
        c, r = beyond / float(self.shape), self.ratio
        linear = c * (1 + r * r)
        root = math.hypot(c * (1 - r) * (1 + r), 2 * r)  # without cancellation
        s = min(math.log((linear + root) / (2 * r * (1 + c))), self.most_growth * (1 - 1e-12))
        return min(1.0, 2 * math.exp(min(0.0, self.growth(s) - s * beyond)))

    def reach(self, probability: float) -> int:
        """A distance that the noise exceeds with at most this probability."""
        return reach(self.tail, math.sqrt(self.variance), probability)

    @cached_property
    def window(self) -> Window:
        """The probabilities of all outcomes that matter, for a whole shape.

        Each of the summed variables is a filter: forwards and backwards, all terms positive.
        """
        if not self.is_tabulated:
            raise errors.Infeasible(f"the law of shape {self.shape} is not tabulated")
        missing = 2 * math.exp(-LOG_TAIL)
        half = self.reach(missing)
        weights = np.zeros(2 * half + 1)
        weights[half] = 1.0
        for _ in range(int(self.shape)):
            weights = _spread(weights, self.ratio)
        return Window(-half, weights / weights.sum(), missing)


def _spread(weights: Floats, ratio: float) -> Floats:
    """The law of X + Y, in proportion, for Y with P[k] in proportion to ratio^|k|."""
    forwards, backwards = _trailed(weights, ratio), _trailed(weights[::-1], ratio)[::-1]
    forwards[:-1] += ratio * backwards[1:]
    return forwards


def _trailed(weights: Floats, ratio: float) -> Floats:
    """y_k = x_k + ratio y_{k-1}, by doubling the stretch that is summed up."""
    result, step, power = weights.copy(), 1, ratio
    while step < len(result) and power > 0:
        result[step:] = result[step:] + power * result[:-step]
        step, power = 2 * step, power * power
    return result


def ratio_of(shape: float, variance: float) -> float:
    """The ratio with which noise of this shape has this variance: 2 shape r / (1 - r)^2.

    >>> round(ratio_of(1.0, 4.0), 12)
    0.5
    """
    c = variance / (2 * shape)
    return 2 * c / (2 * c + 1 + math.sqrt(4 * c + 1))
