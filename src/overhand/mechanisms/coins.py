"""`reference.Mechanism`, fast: every user sends its value in unary, and a few coins.

With the constants of the papers it is `reference.binary_summation`, and more. They are parameters:
a guarantee rests on the accountant, not on the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, MessageLayout, NoiseChoice
from overhand.model import Counts, Floats, Messages, Privacy, Rows, Shuffled
from overhand.noise import Coins, fewest_coins
from overhand.randomness import HALF, BinaryFraction, Random, ones_in_rows
from overhand.values import BITS, Values

BITS_CONSTANT = 96.0
REALS_CONSTANT = 90.0
VECTORS_CONSTANT = 24e4


@dataclass(frozen=True)
class CoinSum(Mechanism):
    """For every coordinate, a user sends its steps as ones and zeros, and its coins.

    With opposed coins, half of them show 1 with a probability p and the other half with its
    complement. The shuffled batch shows its number of ones and nothing else, so the noise is
    Bin(N, p) + Bin(N, 1 - p), N being half of the batch's coins: symmetric for every p, with a
    variance that p divides as finely as wanted. (Coins of a small p alone are skewed like a
    Poisson variable, and at one level need twice the variance for the same guarantee.)

    A message of coordinate j is 2 j + its bit; with one coordinate it is the bit.

    >>> mechanism = CoinSum(size=3, noise_share=Coins(2, BinaryFraction(1, 3)))
    >>> mechanism.layout.messages_per_user, mechanism.variance
    (3, 0.65625)
    """

    kind: ClassVar[str] = "coins"
    rounding_share: ClassVar[float] = 0.05
    norm_share: ClassVar[float] = 0.06

    noise_type: ClassVar[type] = Coins

    noise_share: Coins

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

        >>> CoinSum.with_variance(10, 90.0).noise_share.bits
        36
        """
        return cls(size, Coins.with_variance(size, variance, bits=noise_bits), values, steps)

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        return [NoiseChoice(cls)]

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        return np.asarray(values.dimension * (steps + fewest_coins(sizes, variances)), np.float64)

    def columns(self) -> dict[str, float]:
        noise = self.noise_share
        return {"coins per user": noise.bits, "coin probability": float(noise.probability)}

    @cached_property
    def layout(self) -> MessageLayout:
        # Of the published constants there may be more coins than 64 bits count.
        steps, dimension = int(self.quantizer.coordinate_steps.sum()), self.values.dimension
        messages = steps + dimension * self.noise_share.bits
        return MessageLayout(messages, int(2 * dimension - 1).bit_length())

    @cached_property
    def _messages_by_coordinate(self) -> Counts:
        return self.quantizer.coordinate_steps + self.noise_share.bits

    @property
    def influence(self) -> float:
        """Its messages may all be ones of the same coordinate, with nothing of the value."""
        return self.layout.messages_per_user * self.quantizer.unit

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """For every user and coordinate: its steps, as ones and then zeros, and its coins."""
        steps = self.quantizer.to_steps(rows, random)
        most = self.quantizer.coordinate_steps.tolist()
        if self.values.is_scalar:
            return Messages.of(self._encode(steps, most[0], random))
        width = np.min_scalar_type(2 * self.values.dimension - 1)
        columns = [
            self._encode(steps[:, j], most[j], random).astype(width) | width.type(2 * j)
            for j in range(self.values.dimension)
        ]
        return Messages.of(np.concatenate(columns, axis=1))

    def _encode(self, steps: NDArray[Any], most: int, random: Random) -> NDArray[np.uint8]:
        messages = np.empty((len(steps), most + self.noise_share.bits), np.uint8)
        np.less(np.arange(most), steps[:, np.newaxis], out=messages[:, :most].view(np.bool_))
        messages[:, most:] = self.noise_share.toss(random, len(steps))
        return messages

    def own_steps(self, messages: Messages) -> Counts:
        """The ones among the messages that carry the value: coins are elsewhere."""
        starts = np.cumsum(self._messages_by_coordinate) - self._messages_by_coordinate
        ones = [
            (messages.sealed[:, start : start + most] & 1).sum(axis=1, dtype=np.int64)
            for start, most in zip(starts, self.quantizer.coordinate_steps, strict=True)
        ]
        return np.stack(ones, axis=1)

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        if self.values.is_scalar:
            ones = ones_in_rows(shuffled.sealed)[:, np.newaxis]
        else:
            ones = np.array([self._ones_by_coordinate(batch) for batch in shuffled.sealed])
            ones = ones.reshape(-1, self.values.dimension)  # also if there is no batch
        return ones if noise is None else ones + noise

    @property
    def offset(self) -> float:
        return self.noise().mean

    def _ones_by_coordinate(self, batch: NDArray[Any]) -> Counts:
        """A batch without the right number of messages of each coordinate was tampered with."""
        kinds = 2 * self.values.dimension
        if batch.min() >= 0 and batch.max() < kinds:
            by_bit = np.bincount(batch, minlength=kinds).reshape(-1, 2)
            if np.array_equal(by_bit.sum(axis=1), self.size * self._messages_by_coordinate):
                return by_bit[:, 1]
        raise errors.InvalidValue("the batch has messages of the wrong coordinates")

    def repair(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """A coordinate with too few messages is filled with zeros.

        Of one with too many, zeros are dropped first and then ones. So if anyone changes any b
        messages of a batch at will, the steps of each coordinate move by at most b, those of all
        coordinates together by at most 2 b, and no garbage takes away a one of another user.
        """
        self._check_number(shuffled, garbage)
        (messages,) = shuffled.sealed
        kinds = 2 * self.values.dimension
        labelled = messages[messages < kinds].astype(np.int64)
        zeros, ones = np.bincount(labelled, minlength=kinds).reshape(-1, 2).T
        places = self.size * self._messages_by_coordinate
        missing = int(np.maximum(places - zeros - ones, 0).sum())
        ones = np.minimum(ones, places)
        counts = np.stack([places - ones, ones], axis=1).reshape(-1)
        repaired = np.repeat(np.arange(kinds, dtype=np.min_scalar_type(kinds - 1)), counts)
        return Shuffled(repaired[np.newaxis], shuffled.clear), missing

    @property
    def draw_cost(self) -> int:
        return self.size * self.noise_share.bits * self.values.dimension

    def draw_noise(self, random: Random, batches: int) -> Floats:
        count = batches * self.values.dimension
        return self.quantizer.scale(self.noise_share.draw_sums(random, self.size, count))


def published(
    values: Values, size: int, privacy: Privacy, *, constant: float | None = None
) -> CoinSum:
    """The published mechanism for this kind of value.

    Gaussian noise would need a variance of 18 for the same guarantee:

    >>> round(published(BITS, 10_000, Privacy(1.0, 1e-6)).variance)
    648
    """
    errors.whole("size", size, least=1)
    if constant is not None:
        errors.finite_number("constant", constant, above=0)
    if values == BITS:
        return binary_sum(size, privacy, constant or BITS_CONSTANT)
    moved = values.sensitivity
    if moved.l2 is not None:
        return vector_sum(values, size, privacy, constant or VECTORS_CONSTANT)
    if values.is_whole:
        # The same in every bucket, with half of the budget: a change moves two of them.
        bits = binary_sum(size, privacy.share(2), constant or BITS_CONSTANT)
        return CoinSum(size, bits.noise_share, values)
    # A number divided between two counts: as a histogram, by the mechanism for numbers.
    return real_sum(values, size, privacy.share(moved.l0), constant or REALS_CONSTANT)


def binary_sum(size: int, privacy: Privacy, constant: float = BITS_CONSTANT) -> CoinSum:
    """Algorithm 3 of Tenenbaum, Kaplan, Mansour and Stemmer (2021).

    With tau = constant ln(2 / delta) / epsilon^2: in a batch of fewer than tau users, each
    sends ceil(tau / size) fair coins; in a larger one, one coin of probability tau / (2 size).
    """
    tau = constant * math.log(2 / privacy.delta) / privacy.epsilon**2
    if size < tau:
        return CoinSum(size, Coins(math.ceil(tau / size), HALF, opposed=False))
    return CoinSum(size, Coins(1, BinaryFraction.near(tau / (2 * size)), opposed=False))


def real_sum(
    values: Values, size: int, privacy: Privacy, constant: float = REALS_CONSTANT
) -> CoinSum:
    """P_1D of Cheu, Joseph, Mao and Peng (2021), Lemma 3.1: g = sqrt(size) steps."""
    steps = math.ceil(math.sqrt(size))
    mass = constant * steps**2 * math.log(2 / privacy.delta) / (privacy.epsilon**2 * size)
    coins = math.floor(2 * mass) + 1
    noise = Coins(coins, BinaryFraction.near(mass / coins), opposed=False)
    return CoinSum(size, noise, values, steps)


def vector_sum(
    values: Values, size: int, privacy: Privacy, constant: float = VECTORS_CONSTANT
) -> CoinSum:
    """P_vec of the same paper: every coordinate by P_1D, coins of probability 1/4."""
    dimension = values.dimension
    steps = math.ceil(max(2 * math.sqrt(size), dimension, 4))
    log = math.log(4 * (dimension**2 + 1) / privacy.delta)
    coins = math.ceil(constant * (steps * log / privacy.epsilon) ** 2 / size)
    return CoinSum(size, Coins(coins, BinaryFraction(1, 2), opposed=False), values, steps)
