"""The noise of one user, of which a batch has the sum, and how it is drawn exactly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.mechanisms.noise import CoinNoise, LaplaceNoise, Noise, ratio_of
from overhand.model import Counts, Floats
from overhand.randomness import HALF, BinaryFraction, Random, SeededRandom

_MANY_COINS = 64  # from here on a table is quicker than coins
_MANY_COINS_TOGETHER = 1 << 16

_BITS = 128  # of the random integers that are held against a table
TAIL_BITS = 110
"""Outcomes beyond all that matter, of probability 2^-110 together, count as the last one kept."""

_SCALE_BITS = 320  # probabilities are whole multiples of 2^-320: rounding stays below 2^-250
_LOW = (1 << 64) - 1
_REST_BITS = np.uint64(48)
_REST = np.uint64((1 << 48) - 1)


class UserNoise(ABC):
    """What one user adds to its value.

    >>> for noise in (Coins(4, HALF), Polya(shape=1, users=8, ratio=0.5)):
    ...     print(noise.law(8).variance, noise_of(noise.entry()) == noise)
    8.0 True
    4.0 True
    """

    @abstractmethod
    def law(self, users: int) -> Noise:
        """The law of the noise of so many users."""

    @abstractmethod
    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        """The noise of so many users together, less its mean, so many times.

        Exact coins are drawn one by one; else, where they are many, from a table.
        """

    @abstractmethod
    def draw(self, random: Random, count: int) -> Counts:
        """The noise of single users, less its mean."""

    def toss(self, random: Random, users: int) -> NDArray[np.uint8]:
        """The single coins of so many users, a row each, if there are any to be sent."""
        raise errors.InvalidValue(f"{self} is not made of coins that could be sent one by one")

    @property
    @abstractmethod
    def sampling_distance(self) -> float:
        """How far the noise of one user may be from its law."""

    @abstractmethod
    def reduced(self, part: float, users: int) -> UserNoise:
        """Noise of which so many users have this part of the variance: a planted fault."""

    def increased(self, part: float, users: int) -> UserNoise:
        """Noise of which so many users have so many times the variance."""
        return self.reduced(part, users)

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """The parameters, without a rounded number: what a plan's file keeps."""

    @abstractmethod
    def summary(self, users: int) -> dict[str, Any]:
        """What readers are told of the noise of so many users."""


@dataclass(frozen=True)
class Coins(UserNoise):
    """`bits` coins: if `opposed`, half show 1 with `probability` and half with its complement.

    A thousand users who toss two coins each have a variance of 90 together:

    >>> coins = Coins.with_variance(users=1000, variance=90.0)
    >>> coins.bits, round(float(coins.probability), 3), round(coins.law(1000).variance, 1)
    (2, 0.047, 90.0)
    """

    bits: int
    probability: BinaryFraction
    opposed: bool = True

    def __post_init__(self) -> None:
        errors.whole("noise_bits", self.bits, least=0)
        if self.opposed and self.bits % 2:
            raise errors.InvalidValue(f"noise_bits={self.bits} must be even if opposed")

    @classmethod
    def with_variance(cls, users: int, variance: float, *, bits: int | None = None) -> Coins:
        """Coins of which so many users have this variance together, or a part in 4,000 more."""
        users = errors.whole("size", users, least=1)
        variance = errors.number("variance", variance, above=0)
        bits = int(fewest_coins(users, variance)) if bits is None else bits
        errors.whole("noise_bits", bits, least=2)
        share = variance / (users * bits)
        if not 0 < share <= 0.25:
            raise errors.Infeasible(
                f"noise_bits={bits} coins of each of {users} users cannot have variance "
                f"{variance:g}"
            )
        # p (1 - p) = share, without cancellation for a small share.
        exact = 2 * share / (1 + math.sqrt(max(0.0, 1 - 4 * share)))
        return cls(bits, BinaryFraction.at_least(exact))

    def law(self, users: int) -> CoinNoise:
        if not self.opposed:
            return CoinNoise(((users * self.bits, self.probability),))
        trials = users * self.bits // 2
        if self.probability.is_half:
            return CoinNoise(((2 * trials, HALF),))
        return CoinNoise(((trials, self.probability), (trials, self.probability.complement)))

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        trials = users * self.bits
        if not exact and trials > _MANY_COINS_TOGETHER and not isinstance(random, SeededRandom):
            return self._tabulated(random, trials // 2, count).astype(np.float64)
        if self.opposed and not self.probability.is_half:
            # Coins of probability 1 - p are the other side of coins of probability p.
            halves = random.binomial(trials // 2, self.probability, 2 * count)
            return np.asarray(halves[:count] - halves[count:], np.float64)
        ones = random.binomial(trials, self.probability, count)
        return np.asarray(ones - self.law(users).mean, np.float64)

    def toss(self, random: Random, users: int) -> NDArray[np.uint8]:
        coins = random.coins(users * self.bits, self.probability).reshape(users, self.bits)
        if self.opposed:
            # A coin of probability p shows 0 with 1 - p.
            coins[:, self.bits // 2 :] ^= 1
        return coins

    def draw(self, random: Random, count: int) -> Counts:
        """Only opposed coins have a whole mean."""
        if not self.opposed:
            raise errors.InvalidValue("the noise of single users is whole only if opposed")
        half = self.bits // 2
        if half > _MANY_COINS and not isinstance(random, SeededRandom):
            return self._tabulated(random, half, count)
        halves = random.binomial(half, self.probability, 2 * count)
        return halves[:count] - halves[count:]

    def _tabulated(self, random: Random, half: int, count: int) -> Counts:
        table = binomial_thresholds(half, self.probability)
        return table.draw(random, count) - table.draw(random, count)

    @property
    def sampling_distance(self) -> float:
        half = self.bits // 2
        if half <= _MANY_COINS:
            return 0.0
        return 2 * binomial_thresholds(half, self.probability).distance

    def reduced(self, part: float, users: int) -> Coins:
        if not self.opposed:
            return replace(self, bits=max(1, round(part * self.bits)))
        return Coins.with_variance(users, part * self.law(users).variance)

    def increased(self, part: float, users: int) -> Coins:
        """With the same coins, or more if all of them are fair."""
        variance = part * self.law(users).variance
        most = users * self.bits / 4
        return Coins.with_variance(users, variance, bits=self.bits if variance <= most else None)

    def entry(self) -> dict[str, Any]:
        p = self.probability
        return {"bits": self.bits, "probability": [p.numerator, p.bits], "opposed": self.opposed}

    def summary(self, users: int) -> dict[str, Any]:
        return {
            "noise_trials": users * self.bits,
            "noise_probability": float(self.probability),
            "opposed": self.opposed,
            "noise": self.law(users).summary(),
        }


@dataclass(frozen=True)
class Polya(UserNoise):
    """A user's part of discrete Laplace noise: `users` of them add up to that of shape `shape`.

    >>> Polya(shape=1, users=8, ratio=0.5).law(8)
    LaplaceNoise(shape=Fraction(1, 1), ratio=0.5)
    """

    shape: int
    users: int
    ratio: float

    def __post_init__(self) -> None:
        errors.whole("shape", self.shape, least=1)
        errors.whole("users", self.users, least=1)
        errors.number("ratio", self.ratio, above=0, below=1)

    @classmethod
    def with_variance(cls, users: int, variance: float, *, shape: int) -> Polya:
        """The noise of which so many users have this variance together."""
        variance = errors.number("variance", variance, above=0)
        return cls(shape, users, ratio_of(shape, variance))

    def law(self, users: int) -> LaplaceNoise:
        return LaplaceNoise(Fraction(self.shape * users, self.users), self.ratio)

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        return np.asarray(_difference(self.law(users).shape, self.ratio, random, count), np.float64)

    def draw(self, random: Random, count: int) -> Counts:
        return _difference(Fraction(self.shape, self.users), self.ratio, random, count)

    @property
    def sampling_distance(self) -> float:
        return 2 * polya_thresholds(Fraction(self.shape, self.users), self.ratio).distance

    def reduced(self, part: float, users: int) -> Polya:
        variance = part * self.law(users).variance * self.users / users
        return Polya.with_variance(self.users, variance, shape=self.shape)

    def entry(self) -> dict[str, Any]:
        return {"shape": self.shape, "users": self.users, "ratio": self.ratio.hex()}

    def summary(self, users: int) -> dict[str, Any]:
        return {
            "noise_trials": None,
            "noise_probability": None,
            "noise": self.law(users).summary(),
        }


def _difference(shape: Fraction, ratio: float, random: Random, count: int) -> Counts:
    """Differences of two Polya variables: exact to 2^-100, or NumPy's in a simulation."""
    if isinstance(random, SeededRandom):
        both = random.generator.negative_binomial(float(shape), 1 - ratio, 2 * count)
    else:
        both = polya_thresholds(shape, ratio).draw(random, 2 * count)
    return np.asarray(both[:count] - both[count:], np.int64)


def noise_of(entry: dict[str, Any]) -> UserNoise:
    """The noise of an entry.

    >>> noise_of({"bits": 4, "probability": [1, 1], "opposed": True})
    Coins(bits=4, probability=BinaryFraction(numerator=1, bits=1), opposed=True)
    """
    if "ratio" in entry:
        return Polya(entry["shape"], entry["users"], float.fromhex(entry["ratio"]))
    numerator, bits = entry["probability"]
    return Coins(entry["bits"], BinaryFraction(numerator, bits), bool(entry["opposed"]))


def fewest_coins(users: ArrayLike, variance: ArrayLike) -> Floats:
    """The least even number of coins per user with which so many can have this variance.

    >>> fewest_coins([10, 1000], 90.0)
    array([36.,  2.])
    """
    return np.asarray(2 * np.ceil(np.divide(np.multiply(2, variance), users)))


class Thresholds:
    """Draws from a law on first, first + 1, ..., given its probabilities in units of 2^-320.

    Outcome i comes out if a random integer of 128 bits is at or above i of the thresholds.
    `distance` bounds the distance between the law drawn from and the ideal one.
    """

    def __init__(self, first: int, probabilities: list[int]) -> None:
        self.first = first
        self.distance = 2.0**-TAIL_BITS + (len(probabilities) + 1) * 2.0**-_BITS
        total, limits = 0, []
        for probability in probabilities[:-1]:
            total += probability
            limits.append(min((1 << _BITS) - 1, total >> (_SCALE_BITS - _BITS)))
        self._high = np.array([limit >> 64 for limit in limits], np.uint64)
        self._low = np.array([limit & _LOW for limit in limits], np.uint64)

    def draw(self, random: Random, count: int) -> Counts:
        """So many independent values.

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
            passed[some] = self._passed(head[some].astype(np.uint64) << _REST_BITS | rest, random)
        return passed + self.first

    def _passed(self, high: NDArray[np.uint64], random: Random) -> Counts:
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
    up, down = ratio.as_integer_ratio()
    r, s = shape.numerator, shape.denominator
    probability = _scaled_power(1 - Fraction(ratio), shape)
    left, tail = 1 << _SCALE_BITS, 1 << (_SCALE_BITS - TAIL_BITS)
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
    small = 1 << (_SCALE_BITS - TAIL_BITS - 40)
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
    with mpmath.workprec(_SCALE_BITS + 64):
        value = mpmath.mpf(base.numerator) / base.denominator
        power = value ** (mpmath.mpf(exponent.numerator) / exponent.denominator)
        return int(mpmath.floor(mpmath.ldexp(power, _SCALE_BITS)))


def _scaled_binomial(trials: int, ones: int, probability: BinaryFraction) -> int:
    """P[Bin(trials, probability) = ones] in units of 2^-320."""
    with mpmath.workprec(_SCALE_BITS + 64):
        p = mpmath.mpf(probability.numerator) / (1 << probability.bits)
        mass = mpmath.binomial(trials, ones) * p**ones * (1 - p) ** (trials - ones)
        return int(mpmath.floor(mpmath.ldexp(mass, _SCALE_BITS)))
