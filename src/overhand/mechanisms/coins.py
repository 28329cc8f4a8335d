"""Sums by coins: every user sends its value in unary, and a few coins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, Recipe
from overhand.mechanisms.parts import Coins, NoisePart, fewest_coins
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.randomness import Random, ones_in_rows
from overhand.values import BITS, Values


@dataclass(frozen=True)
class CoinSum(Mechanism):
    """For every coordinate, a user sends its steps as ones and zeros, and its coins.

    With opposed coins, half of them show 1 with a probability p and the other half with its
    complement. The shuffled batch shows its number of ones and nothing else, so the noise is
    Bin(N, p) + Bin(N, 1 - p), N being half of the batch's coins: symmetric for every p, with a
    variance that p divides as finely as wanted. (Coins of a small p alone are skewed like a
    Poisson variable, and at one level need twice the variance for the same guarantee.)

    A message of coordinate j is 2 j + its bit; with one coordinate it is the bit.

    >>> from overhand.randomness import BinaryFraction
    >>> mechanism = CoinSum(size=3, noise_part=Coins(2, BinaryFraction(1, 3)))
    >>> mechanism.messages_per_user, mechanism.variance
    (3, 0.65625)
    """

    kind: ClassVar[str] = "coins"
    rounding_share: ClassVar[float] = 0.05
    norm_share: ClassVar[float] = 0.06

    size: int
    noise_part: Coins
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        self._check()

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

        >>> CoinSum.with_variance(10, 90.0).noise_part.bits
        36
        """
        return cls(size, Coins.with_variance(size, variance, bits=noise_bits), values, steps)

    @classmethod
    def recipes(cls, values: Values) -> list[Recipe]:
        return [Recipe(cls)]

    @classmethod
    def fitted(
        cls,
        size: int,
        noise_part: NoisePart,
        *,
        honest: int,
        distance: float,
        values: Values,
        steps: int,
    ) -> CoinSum:
        assert isinstance(noise_part, Coins)
        return cls(size, noise_part, values, steps)

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        return np.asarray(values.dimension * (steps + fewest_coins(sizes, variances)), np.float64)

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> CoinSum:
        if not isinstance(noise, Coins):
            raise errors.InvalidValue("only coins can be sent one by one")
        return cls(saved["size"], noise, values, saved["steps"])

    def columns(self) -> dict[str, float]:
        noise = self.noise_part
        return {"coins per user": noise.bits, "coin probability": float(noise.probability)}

    @property
    def messages_per_user(self) -> int:
        # Of the published constants there may be more coins than 64 bits count.
        return int(self.coordinate_steps.sum()) + self.values.dimension * self.noise_part.bits

    @cached_property
    def _messages_by_coordinate(self) -> Counts:
        return self.coordinate_steps + self.noise_part.bits

    @property
    def message_bits(self) -> int:
        return int(2 * self.values.dimension - 1).bit_length()

    @property
    def influence(self) -> float:
        """Its messages may all be ones of the same coordinate, with nothing of the value."""
        return self.messages_per_user * self.unit

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """For every user and coordinate: its steps, as ones and then zeros, and its coins."""
        steps = self.steps_of(rows, random)
        if self.values.is_scalar:
            return Messages.of(self._encoded(steps, int(self.coordinate_steps[0]), random))
        width = np.min_scalar_type(2 * self.values.dimension - 1)
        columns = [
            self._encoded(steps[:, j], int(most), random).astype(width) | width.type(2 * j)
            for j, most in enumerate(self.coordinate_steps)
        ]
        return Messages.of(np.concatenate(columns, axis=1))

    def _encoded(self, steps: NDArray[Any], most: int, random: Random) -> NDArray[np.uint8]:
        """The bits of one coordinate."""
        messages = np.empty((len(steps), most + self.noise_part.bits), np.uint8)
        np.less(np.arange(most), steps[:, np.newaxis], out=messages[:, :most].view(np.bool_))
        messages[:, most:] = self.noise_part.toss(random, len(steps))
        return messages

    def own_steps(self, messages: Messages) -> Counts:
        """The ones among the messages that carry the value: coins are elsewhere."""
        starts = np.cumsum(self._messages_by_coordinate) - self._messages_by_coordinate
        ones = [
            (messages.sealed[:, start : start + most] & 1).sum(axis=1, dtype=np.int64)
            for start, most in zip(starts, self.coordinate_steps, strict=True)
        ]
        return np.stack(ones, axis=1)

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        """The numbers of ones."""
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

    def repaired(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
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
        return self.size * self.noise_part.bits * self.values.dimension

    def draw_noise(self, random: Random, batches: int) -> Floats:
        count = batches * self.values.dimension
        return self.scaled(self.noise_part.draw_sums(random, self.size, count))
