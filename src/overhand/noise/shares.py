"""The share of the noise that one contributor adds, a user or a service, drawn exactly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats
from overhand.noise.laws import (
    MOST_SHAPE,
    CoinNoise,
    LaplaceNoise,
    Noise,
    ratio_of,
)
from overhand.noise.tables import binomial_thresholds, polya_thresholds
from overhand.randomness import HALF, BinaryFraction, Random

_MANY_COINS = 64  # from here on a table is quicker than coins
_MANY_COINS_TOGETHER = 1 << 16
_MOST_TABULATED = 1 << 27  # coins: more are drawn in parts, as a table of all would fill memory


class NoiseShare(ABC):
    """What one of those who make the noise of a batch adds to it: a user, or a service.

    >>> for share in (Coins(4, HALF), Polya(shape=1, users=8, ratio=0.5)):
    ...     print(share.law(8).variance, share_of(share.entry()) == share)
    8.0 True
    4.0 True
    """

    @abstractmethod
    def law(self, contributors: int) -> Noise:
        """The law of what this many contributors add."""

    def batch_law(self, users: int) -> Noise:
        """The law of what all of them add to a batch of this many users."""
        return self.law(users)

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        """What this many users add together, minus its mean, `count` times.

        Exact coins are drawn one by one; else, where they are many, from a table.
        """
        raise errors.InvalidValue("services draw the noise of blocks one after the other")

    def draw(self, random: Random, count: int) -> Counts:
        """What single users add, minus its mean."""
        raise errors.InvalidValue("services draw the noise of blocks one after the other")

    def toss(self, random: Random, users: int) -> NDArray[np.uint8]:
        """The single coins of this many users, a row each, if coins can be sent."""
        raise errors.InvalidValue(f"{self} is not made of coins that could be sent one by one")

    @property
    @abstractmethod
    def sampling_distance(self) -> float:
        """How far what one of them draws may be from its law."""

    @abstractmethod
    def reduce(self, part: float, users: int) -> NoiseShare:
        """Noise of which a batch of this many users has this fraction of the variance."""

    def increase(self, part: float, users: int) -> NoiseShare:
        """Noise of which a batch of this many users has this multiple of the variance."""
        return self.reduce(part, users)

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """The parameters, without a rounded number: what a plan's file keeps."""

    def summary(self, users: int) -> dict[str, Any]:
        """What readers see of the noise of a batch of this many users."""
        law = self.batch_law(users).summary()
        return {"noise_trials": None, "noise_probability": None, "noise": law}


@dataclass(frozen=True)
class Coins(NoiseShare):
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
        """Coins of which this many users have this variance together, or a part in 4,000 more."""
        users = errors.whole("size", users, least=1)
        variance = errors.finite_number("variance", variance, above=0)
        bits = int(fewest_coins(users, variance)) if bits is None else bits
        errors.whole("noise_bits", bits, least=2)
        share = variance / (users * bits)
        if not 0 < share <= 0.25:
            raise errors.Infeasible(
                f"noise_bits={bits} coins of each of {users} users cannot have a variance of "
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
        if not exact and trials > _MANY_COINS_TOGETHER:
            return random.sample(
                lambda: self._tabulate(random, trials // 2, count).astype(np.float64),
                lambda _: self.draw_sums(random, users, count),
            )
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
            raise errors.InvalidValue(
                "the noise of single users is whole only if coins are opposed"
            )
        half = self.bits // 2

        def by_coins(*_: Any) -> Counts:
            halves = random.binomial(half, self.probability, 2 * count)
            return halves[:count] - halves[count:]

        if half <= _MANY_COINS:
            return by_coins()
        return random.sample(lambda: self._tabulate(random, half, count), by_coins)

    def _tabulate(self, random: Random, half: int, count: int) -> Counts:
        drawn = np.zeros(count, np.int64)
        for coins, parts in _tables(half).items():
            table = binomial_thresholds(coins, self.probability)
            for _ in range(parts):
                drawn += table.draw(random, count) - table.draw(random, count)
        return drawn

    @property
    def sampling_distance(self) -> float:
        half = self.bits // 2
        if half <= _MANY_COINS:
            return 0.0
        return 2 * math.fsum(
            parts * binomial_thresholds(coins, self.probability).distance
            for coins, parts in _tables(half).items()
        )

    def reduce(self, part: float, users: int) -> Coins:
        if not self.opposed:
            return replace(self, bits=max(1, round(part * self.bits)))
        return Coins.with_variance(users, part * self.law(users).variance)

    def increase(self, part: float, users: int) -> Coins:
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
class Polya(NoiseShare):
    """A user's share of discrete Laplace noise: `users` of them add up to that of shape `shape`.

    >>> Polya(shape=1, users=8, ratio=0.5).law(8)
    LaplaceNoise(shape=Fraction(1, 1), ratio=0.5)
    """

    shape: int
    users: int
    ratio: float

    def __post_init__(self) -> None:
        errors.whole("shape", self.shape, least=1, most=MOST_SHAPE)
        errors.whole("users", self.users, least=1)
        errors.finite_number("ratio", self.ratio, above=0, below=1)

    @classmethod
    def with_variance(cls, users: int, variance: float, *, shape: int) -> Polya:
        """The noise of which this many users have this variance together."""
        variance = errors.finite_number("variance", variance, above=0)
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

    def reduce(self, part: float, users: int) -> Polya:
        variance = part * self.law(users).variance * self.users / users
        return Polya.with_variance(self.users, variance, shape=self.shape)

    def entry(self) -> dict[str, Any]:
        return {"shape": self.shape, "users": self.users, "ratio": self.ratio.hex()}


def _tables(coins: int) -> dict[int, int]:
    """So many coins as sums of parts that can be tabulated: how many are in how many parts each."""
    parts, rest = divmod(coins, _MOST_TABULATED)
    return {size: count for size, count in ((_MOST_TABULATED, parts), (rest, 1)) if size * count}


def _difference(shape: Fraction, ratio: float, random: Random, count: int) -> Counts:
    """Differences of two Polya variables: exact to 2^-100, or NumPy's in a simulation."""
    both = random.sample(
        lambda: polya_thresholds(shape, ratio).draw(random, 2 * count),
        lambda generator: generator.negative_binomial(float(shape), 1 - ratio, 2 * count),
    )
    return np.asarray(both[:count] - both[count:], np.int64)


def share_of(entry: dict[str, Any]) -> Coins | Polya:
    """A user's share of the noise, from its entry.

    >>> share_of({"bits": 4, "probability": [1, 1], "opposed": True})
    Coins(bits=4, probability=BinaryFraction(numerator=1, bits=1), opposed=True)
    """
    if "ratio" in entry:
        return Polya(entry["shape"], entry["users"], float.fromhex(entry["ratio"]))
    numerator, bits = entry["probability"]
    return Coins(entry["bits"], BinaryFraction(numerator, bits), bool(entry["opposed"]))


def fewest_coins(users: ArrayLike, variance: ArrayLike) -> Floats:
    """The least even number of coins per user with which this many can have this variance.

    >>> fewest_coins([10, 1000], 90.0)
    array([36.,  2.])
    """
    return np.asarray(2 * np.ceil(np.divide(np.multiply(2, variance), users)))
