"""Sums of bits: every user sends its bit and a few coins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.mechanisms.noise import CoinNoise
from overhand.model import Messages, Privacy, Shuffled, as_bits
from overhand.randomness import HALF, BinaryFraction, Random, ones_in_rows

PUBLISHED_CONSTANT = 96.0


@dataclass(frozen=True)
class BinarySum:
    """A user's messages are its bit and `noise_bits` coins; the server counts ones.

    With `opposed` coins, half of the `noise_bits` show 1 with `noise_probability` and the other
    half with its complement. The shuffled batch shows its number of ones and nothing else, so
    the noise is Bin(N, p) + Bin(N, 1 - p) with N = size noise_bits / 2: symmetric for every p,
    with a variance that p divides as finely as wanted. (Coins of a small p alone are skewed
    like a Poisson variable, and at one level need twice the variance for the same guarantee.)

    >>> mechanism = BinarySum(size=3, noise_bits=2, noise_probability=BinaryFraction(1, 3))
    >>> mechanism.messages_per_user, mechanism.noise_trials, mechanism.variance
    (3, 6, 0.65625)
    """

    size: int
    noise_bits: int
    noise_probability: BinaryFraction
    opposed: bool = True

    def __post_init__(self) -> None:
        errors.whole("size", self.size, least=1)
        errors.whole("noise_bits", self.noise_bits, least=0)
        if self.opposed and self.noise_bits % 2:
            raise errors.InvalidValue(f"noise_bits={self.noise_bits} must be even if opposed")

    @classmethod
    def with_variance(
        cls, size: int, variance: float, *, noise_bits: int | None = None
    ) -> BinarySum:
        """The mechanism of this variance, or a part in 4,000 more, with the fewest coins.

        >>> BinarySum.with_variance(10, 90.0).noise_bits
        36
        """
        size = errors.whole("size", size, least=1)
        variance = errors.number("variance", variance, above=0)
        if noise_bits is not None:
            errors.whole("noise_bits", noise_bits, least=2)
        else:
            noise_bits = 2 * math.ceil(2 * variance / size)
        share = variance / (size * noise_bits)
        if not 0 < share <= 0.25:
            raise errors.Infeasible(
                f"{noise_bits=} coins of each of {size} users cannot have variance {variance:g}"
            )
        # p (1 - p) = share, without cancellation for a small share.
        exact = 2 * share / (1 + math.sqrt(max(0.0, 1 - 4 * share)))
        probability = BinaryFraction.at_least(exact)
        return cls(size, noise_bits, probability)

    @classmethod
    def published(
        cls, size: int, privacy: Privacy, *, constant: float = PUBLISHED_CONSTANT
    ) -> BinarySum:
        """Algorithm 3 of Tenenbaum, Kaplan, Mansour and Stemmer (2021).

        With tau = constant ln(2 / delta) / epsilon^2: in a batch of fewer than tau users, each
        sends ceil(tau / size) fair coins; in a larger one, one coin of probability
        tau / (2 size). The constant is a parameter because the accountant, not the paper, is
        what a guarantee rests on.
        """
        tau = constant * math.log(2 / privacy.delta) / privacy.epsilon**2
        if size < tau:
            return cls(size, math.ceil(tau / size), HALF, opposed=False)
        return cls(size, 1, BinaryFraction.near(tau / (2 * size)), opposed=False)

    @property
    def messages_per_user(self) -> int:
        return 1 + self.noise_bits

    @property
    def noise_trials(self) -> int:
        """The number of coins of the whole batch."""
        return self.size * self.noise_bits

    def noise(self, users: int | None = None) -> CoinNoise:
        """The law of the coins of all users, or of so many of them."""
        return self._whole_noise if users is None else self._noise_of(users)

    @cached_property
    def _whole_noise(self) -> CoinNoise:
        return self._noise_of(self.size)

    def _noise_of(self, users: int) -> CoinNoise:
        if not self.opposed:
            return CoinNoise(((users * self.noise_bits, self.noise_probability),))
        trials = users * self.noise_bits // 2
        if self.noise_probability.is_half:
            return CoinNoise(((2 * trials, HALF),))
        p = self.noise_probability
        return CoinNoise(((trials, p), (trials, p.complement)))

    @property
    def variance(self) -> float:
        return self.noise().variance

    def encode(self, value: int, random: Random) -> Messages:
        """One user's messages, as one row."""
        return self.encode_many([value], random)

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        """A row of messages for every user: its bit, then its coins."""
        bits = as_bits(values)
        messages = np.empty((bits.size, self.messages_per_user), np.uint8)
        messages[:, 0] = bits
        straight = self.noise_bits // 2 if self.opposed else self.noise_bits
        coins = random.coins(bits.size * self.noise_bits, self.noise_probability)
        messages[:, 1:] = coins.reshape(bits.size, self.noise_bits)
        if self.opposed:
            messages[:, 1 + straight :] ^= 1  # a coin of probability p shows 0 with 1 - p
        return Messages(messages)

    def analyze(self, shuffled: Shuffled) -> float:
        """The number of ones less the coins' mean: unbiased for every input."""
        return float(self.analyze_many(shuffled[np.newaxis])[0])

    def analyze_many(self, batches: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The same for many shuffled batches, one to a row."""
        expected = self.size * self.messages_per_user
        if batches.shape[1] != expected:
            raise errors.InvalidValue(f"{batches.shape[1]} messages in a batch that has {expected}")
        return np.asarray(ones_in_rows(batches) - self.noise().mean, np.float64)

    def draw_noise(self, random: Random, batches: int) -> NDArray[np.float64]:
        """The analyzed noise of so many batches: the law of the messages, without them."""
        trials, p = self.noise_trials, self.noise_probability
        if self.opposed and not p.is_half:
            # Coins of probability 1 - p are the other side of coins of probability p.
            halves = random.binomial(trials // 2, p, 2 * batches)
            return np.asarray(halves[:batches] - halves[batches:], np.float64)
        return np.asarray(random.binomial(trials, p, batches) - self.noise().mean, np.float64)
