"""Sums by coins: every user sends its value in unary, and a few coins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Floats, Mechanism
from overhand.mechanisms.noise import CoinNoise
from overhand.mechanisms.user_noise import Coins
from overhand.model import Messages
from overhand.randomness import BinaryFraction, Random, ones_in_rows
from overhand.values import BITS, Values


@dataclass(frozen=True)
class CoinSum(Mechanism):
    """For every coordinate, a user sends its steps as ones and zeros, and `noise_bits` coins.

    With `opposed` coins, half of the `noise_bits` show 1 with `noise_probability` and the other
    half with its complement. The shuffled batch shows its number of ones and nothing else, so
    the noise is Bin(N, p) + Bin(N, 1 - p) with N = size noise_bits / 2: symmetric for every p,
    with a variance that p divides as finely as wanted. (Coins of a small p alone are skewed
    like a Poisson variable, and at one level need twice the variance for the same guarantee.)

    A message of coordinate j is 2 j + its bit; with one coordinate it is the bit.

    >>> mechanism = CoinSum(size=3, noise_bits=2, noise_probability=BinaryFraction(1, 3))
    >>> mechanism.messages_per_user, mechanism.noise_trials, mechanism.variance
    (3, 6, 0.65625)
    """

    size: int
    noise_bits: int
    noise_probability: BinaryFraction
    opposed: bool = True
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        self._check()
        Coins(self.noise_bits, self.noise_probability, self.opposed)  # refuses what is no coin

    @classmethod
    def of(cls, size: int, coins: Coins, values: Values = BITS, steps: int = 1) -> CoinSum:
        """The mechanism with these coins."""
        return cls(size, coins.bits, coins.probability, coins.opposed, values, steps)

    @classmethod
    def with_variance(
        cls,
        size: int,
        variance: float,
        *,
        noise_bits: int | None = None,
        values: Values = BITS,
        steps: int = 1,
    ) -> CoinSum:
        """The mechanism whose noise has this variance, in steps, with the fewest coins.

        Or a part in 4,000 more.

        >>> CoinSum.with_variance(10, 90.0).noise_bits
        36
        """
        coins = Coins.with_variance(size, variance, bits=noise_bits)
        return cls.of(size, coins, values, steps)

    @cached_property
    def user_noise(self) -> Coins:
        """The coins of one user."""
        return Coins(self.noise_bits, self.noise_probability, self.opposed)

    @property
    def messages_per_user(self) -> int:
        return int(self._messages_by_coordinate.sum())

    @cached_property
    def _messages_by_coordinate(self) -> NDArray[np.int64]:
        return self.coordinate_steps + self.noise_bits

    @property
    def noise_trials(self) -> int:
        """The number of coins of the whole batch, for one coordinate."""
        return self.size * self.noise_bits

    def noise(self, users: int | None = None) -> CoinNoise:
        return self._whole_noise if users is None else self.user_noise.law(users)

    @cached_property
    def _whole_noise(self) -> CoinNoise:
        return self.user_noise.law(self.size)

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        """For every user and coordinate: its steps, as ones and then zeros, and its coins."""
        steps = self.steps_of(rows, random)
        if self.values.is_scalar:
            return Messages(self._encoded(steps, int(self.coordinate_steps[0]), random))
        width = np.min_scalar_type(2 * self.values.dimension - 1)
        columns = [
            self._encoded(steps[:, j], int(most), random).astype(width) | width.type(2 * j)
            for j, most in enumerate(self.coordinate_steps)
        ]
        return Messages(np.concatenate(columns, axis=1))

    def _encoded(self, steps: NDArray[Any], most: int, random: Random) -> NDArray[np.uint8]:
        """The bits of one coordinate."""
        messages = np.empty((len(steps), most + self.noise_bits), np.uint8)
        np.less(np.arange(most), steps[:, np.newaxis], out=messages[:, :most].view(np.bool_))
        coins = random.coins(len(steps) * self.noise_bits, self.noise_probability)
        messages[:, most:] = coins.reshape(len(steps), self.noise_bits)
        if self.opposed:
            # A coin of probability p shows 0 with 1 - p.
            messages[:, most + self.noise_bits // 2 :] ^= 1
        return messages

    @property
    def coins_a_batch(self) -> int:
        return self.noise_trials * self.values.dimension

    @property
    def message_bits(self) -> int:
        return int(2 * self.values.dimension - 1).bit_length()

    def analyze_many(self, batches: NDArray[Any]) -> Floats:
        """The numbers of ones less the coins' mean: unbiased for every input."""
        self._check_number(batches)
        if self.values.is_scalar:
            ones = ones_in_rows(batches)
        else:
            ones = np.array([self._ones_by_coordinate(batch) for batch in batches])
            ones = ones.reshape(-1, self.values.dimension)  # also if there is no batch
        return np.asarray(self.value_of(ones - self.noise().mean), np.float64)

    def _ones_by_coordinate(self, batch: NDArray[Any]) -> NDArray[np.int64]:
        """A batch without the right number of messages of each coordinate was tampered with."""
        kinds = 2 * self.values.dimension
        if batch.min() >= 0 and batch.max() < kinds:
            by_bit = np.bincount(batch, minlength=kinds).reshape(-1, 2)
            if np.array_equal(by_bit.sum(axis=1), self.size * self._messages_by_coordinate):
                return by_bit[:, 1]
        raise errors.InvalidValue("a batch with messages of the wrong coordinates")

    def draw_noise(self, random: Random, batches: int) -> Floats:
        count = batches * self.values.dimension
        return self.scaled(self.user_noise.draw_sums(random, self.size, count))
