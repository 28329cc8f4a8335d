"""The noise of one user, of which a batch has the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.mechanisms.laplace import LaplaceNoise, ratio_of
from overhand.mechanisms.noise import CoinNoise
from overhand.mechanisms.thresholds import binomial_thresholds, polya_thresholds
from overhand.randomness import HALF, BinaryFraction, Random, SeededRandom

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANY_COINS = 64  # from here on a table is quicker than coins
_MANY_COINS_TOGETHER = 1 << 16


@dataclass(frozen=True)
class Coins:
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
        """The law of the coins of so many users."""
        if not self.opposed:
            return CoinNoise(((users * self.bits, self.probability),))
        trials = users * self.bits // 2
        if self.probability.is_half:
            return CoinNoise(((2 * trials, HALF),))
        return CoinNoise(((trials, self.probability), (trials, self.probability.complement)))

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        """The noise of so many users together, less its mean, so many times.

        Exact coins are drawn one by one; else, where they are many, from a table.
        """
        trials = users * self.bits
        if not exact and trials > _MANY_COINS_TOGETHER and not isinstance(random, SeededRandom):
            return self._tabulated(random, trials // 2, count).astype(np.float64)
        if self.opposed and not self.probability.is_half:
            # Coins of probability 1 - p are the other side of coins of probability p.
            halves = random.binomial(trials // 2, self.probability, 2 * count)
            return np.asarray(halves[:count] - halves[count:], np.float64)
        ones = random.binomial(trials, self.probability, count)
        return np.asarray(ones - self.law(users).mean, np.float64)

    def draw(self, random: Random, count: int) -> Counts:
        """The noise of single users, less its mean: only opposed coins have a whole one."""
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
        """How far the noise of one user may be from its law."""
        half = self.bits // 2
        if half <= _MANY_COINS:
            return 0.0
        return 2 * binomial_thresholds(half, self.probability).distance

    @property
    def entry(self) -> dict[str, Any]:
        """The parameters, ready for JSON: the probability as two whole numbers."""
        p = self.probability
        return {"bits": self.bits, "probability": [p.numerator, p.bits], "opposed": self.opposed}


@dataclass(frozen=True)
class Polya:
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
        """The law of the noise of so many users."""
        return LaplaceNoise(Fraction(self.shape * users, self.users), self.ratio)

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        """The noise of so many users together, so many times: always from a table."""
        return np.asarray(_difference(self.law(users).shape, self.ratio, random, count), np.float64)

    def draw(self, random: Random, count: int) -> Counts:
        """The noise of single users."""
        return _difference(Fraction(self.shape, self.users), self.ratio, random, count)

    @property
    def sampling_distance(self) -> float:
        """How far the noise of one user may be from its law."""
        return 2 * polya_thresholds(Fraction(self.shape, self.users), self.ratio).distance

    @property
    def entry(self) -> dict[str, Any]:
        """The parameters, ready for JSON: the ratio to the last bit."""
        return {"shape": self.shape, "users": self.users, "ratio": self.ratio.hex()}


UserNoise = Coins | Polya
"""What one user adds to its value."""
Noise = CoinNoise | LaplaceNoise
"""The law of what all users of a batch add."""


def _difference(shape: Fraction, ratio: float, random: Random, count: int) -> Counts:
    """Differences of two Polya variables: exact to 2^-100, or NumPy's in a simulation."""
    if isinstance(random, SeededRandom):
        both = random.generator.negative_binomial(float(shape), 1 - ratio, 2 * count)
    else:
        both = polya_thresholds(shape, ratio).draw(random, 2 * count)
    return np.asarray(both[:count] - both[count:], np.int64)


def noise_of(entry: dict[str, Any]) -> UserNoise:
    """The noise of an entry."""
    if "ratio" in entry:
        return Polya(entry["shape"], entry["users"], float.fromhex(entry["ratio"]))
    numerator, bits = entry["probability"]
    return Coins(entry["bits"], BinaryFraction(numerator, bits), bool(entry["opposed"]))


def fewest_coins(users: ArrayLike, variance: ArrayLike) -> Floats:
    """The least even number of coins a user with which so many can have this variance."""
    return np.asarray(2 * np.ceil(np.divide(np.multiply(2, variance), users)))
