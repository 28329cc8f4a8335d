"""Tables from which integers are drawn exactly: laws in whole multiples of 2^-320."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Counts
from overhand.randomness import BinaryFraction, Random

_BITS = 128  # of the random integers that are held against a table
TAIL_BITS = 110
"""Outcomes beyond all that matter, of probability 2^-110 together, count as the last one kept."""

SCALE_BITS = 320  # probabilities are whole multiples of 2^-320: rounding stays below 2^-250
_LEAST_BITS = 128  # that the first probability must have: all others follow from it
_LEAST_GAP = 2.0**-16  # between a ratio and 1: the table of a smaller one would fill memory
_LOW = (1 << 64) - 1
_REST_BITS = np.uint64(48)
_REST = np.uint64((1 << 48) - 1)


class Thresholds:
    """Draws from a law on first, first + 1, ..., given its probabilities in units of 2^-320.

    Outcome i comes out if a random integer of 128 bits is at or above i of the thresholds.
    `distance` bounds the distance between the law drawn from and the ideal one.
    """

    def __init__(self, first: int, probabilities: list[int]) -> None:
        self.first = first
        self.distance = self.bound_distance(len(probabilities))
        total, limits = 0, []
        for probability in probabilities[:-1]:
            total += probability
            limits.append(min((1 << _BITS) - 1, total >> (SCALE_BITS - _BITS)))
        self._high = np.array([limit >> 64 for limit in limits], np.uint64)
        self._low = np.array([limit & _LOW for limit in limits], np.uint64)

    @staticmethod
    def bound_distance(outcomes: int) -> float:
        return 2.0**-TAIL_BITS + (outcomes + 1) * 2.0**-_BITS

    def draw(self, random: Random, count: int) -> Counts:
        """`count` independent values.

        The bits of an integer are drawn from the highest down, 16, 48 and 64 of them, and only as
        long as they matter: what is below the first threshold by its first 16 bits alone passes
        none, whatever the others would be, and the last 64 decide only where the 64 before equal
        those of a threshold. New bits are independent of all that were drawn before, so the
        integer is as uniform as if it had been drawn whole. Where a law is nearly always 0, as a
        user's part of the noise is, 16 bits are nearly always all.
        """
        passed = np.zeros(count, np.int64)
        if len(self._high):
            head = random.words(count, np.uint16)
            some = np.flatnonzero(head >= np.uint16(self._high[0] >> _REST_BITS))
            rest = random.words(len(some), np.uint64) & _REST
            passed[some] = self._count_passed(
                head[some].astype(np.uint64) << _REST_BITS | rest, random
            )
        return passed + self.first

    def _count_passed(self, high: NDArray[np.uint64], random: Random) -> Counts:
        """How many thresholds integers pass that have these upper halves."""
        passed = np.searchsorted(self._high, high, side="right")
        before = self._high[np.maximum(passed, 1) - 1]
        tied = np.flatnonzero((passed > 0) & (before == high))
        # Where the upper halves are equal, the lower ones decide; that hardly ever happens.
        for index, low in zip(tied, random.words(len(tied), np.uint64), strict=True):
            equal = np.flatnonzero(self._high == high[index])
            passed[index] -= int(np.count_nonzero(self._low[equal] > low))
        return passed


@lru_cache(maxsize=64)
def polya_thresholds(shape: Fraction, ratio: float) -> Thresholds:
    """The Polya law: P[x] = Gamma(x + shape) / (x! Gamma(shape)) ratio^x (1 - ratio)^shape."""
    if 1 - ratio < _LEAST_GAP:
        raise errors.Infeasible(
            f"Laplace noise of ratio 1 - {1 - ratio:.3g} is too wide to be drawn from a table"
        )
    up, down = ratio.as_integer_ratio()
    r, s = shape.numerator, shape.denominator
    probability = _scaled_power(1 - Fraction(ratio), shape)
    if probability < 1 << _LEAST_BITS:
        raise errors.Infeasible(
            f"the law of shape {shape}, ratio {ratio:g} is too wide for a table"
        )
    left, tail = 1 << SCALE_BITS, 1 << (SCALE_BITS - TAIL_BITS)
    probabilities: list[int] = []
    while left >= tail:
        x = len(probabilities)
        probabilities.append(probability)
        left -= probability
        probability = probability * up * (x * s + r) // (down * (x + 1) * s)
    return Thresholds(0, probabilities)


@lru_cache(maxsize=64)
def binomial_thresholds(trials: int, probability: BinaryFraction) -> Thresholds:
    """The binomial law, from the outcomes that matter on the left to those on the right."""
    p, q = probability.numerator, probability.complement.numerator
    mode = (trials + 1) * p >> probability.bits
    small = 1 << (SCALE_BITS - TAIL_BITS - 40)
    at_mode = _scaled_binomial(trials, mode, probability)
    above, below = [at_mode], [at_mode]
    for x in range(mode, trials):
        above.append(above[-1] * p * (trials - x) // (q * (x + 1)))
        if above[-1] < small:
            break
    for x in range(mode, 0, -1):
        below.append(below[-1] * q * x // (p * (trials - x + 1)))
        if below[-1] < small:
            break
    return Thresholds(mode - len(below) + 1, [*reversed(below[1:]), *above])


def _scaled_power(base: Fraction, exponent: Fraction) -> int:
    """base^exponent in units of 2^-320."""
    import mpmath

    with mpmath.workprec(SCALE_BITS + 64):
        power = exactly(base) ** exactly(exponent)
        return int(mpmath.floor(mpmath.ldexp(power, SCALE_BITS)))


def _scaled_binomial(trials: int, ones: int, probability: BinaryFraction) -> int:
    """P[Bin(trials, probability) = ones] in units of 2^-320."""
    import mpmath

    with mpmath.workprec(SCALE_BITS + 64):
        p = mpmath.mpf(probability.numerator) / (1 << probability.bits)
        mass = mpmath.binomial(trials, ones) * p**ones * (1 - p) ** (trials - ones)
        return int(mpmath.floor(mpmath.ldexp(mass, SCALE_BITS)))


def exactly(number: Fraction) -> Any:
    """In mpmath's numbers, at its precision."""
    import mpmath

    return mpmath.mpf(number.numerator) / number.denominator
