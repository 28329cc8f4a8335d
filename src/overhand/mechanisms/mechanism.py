"""What all shuffle mechanisms share: values become whole steps, steps are summed, sums return."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.mechanisms.user_noise import Noise
from overhand.model import Change, Messages, Shuffled
from overhand.randomness import Random
from overhand.values import Values

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_FLOAT_MARGIN = 1e-9


class Mechanism(ABC):
    """A shuffle mechanism for sums: public parameters only, one run a batch of `size` users.

    Coordinate j of a value v becomes (v_j - low_j) / unit, rounded to a whole number of steps at
    random and without bias; the widest coordinate has `steps` of them. Every run rounds afresh.
    The batch shows the sum of its users' steps plus noise, coordinate by coordinate, and no more.

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import Reals
    >>> random, prices = seeded_random(1), Reals(0.0, 10.0)
    >>> mechanism = CoinSum.with_variance(size=100, variance=90.0, values=prices, steps=20)
    >>> messages = mechanism.encode_many(np.full(100, 2.5), random)
    >>> total = mechanism.analyze(Shuffled(random.permute(messages.reshape(-1))))
    >>> abs(total - 250) < 4 * math.sqrt(mechanism.variance)
    True
    """

    size: int
    values: Values
    steps: int

    clear_numbers: int = 0
    """How many numbers a user sends in the clear: a shuffler only adds them up."""
    clear_bits: int = 0
    """They are added up modulo 2^clear_bits."""

    def _check(self) -> None:
        errors.whole("size", self.size, least=1)
        errors.whole("steps", self.steps, least=1)
        if self.values.is_whole and self.steps != 1:
            raise errors.InvalidValue(f"steps={self.steps} must be 1 for {self.values}")

    def _check_number(self, batches: NDArray[Any]) -> None:
        """Refuse shuffled batches that have not the messages of `size` users."""
        expected = self.size * self.messages_per_user
        if batches.shape[1] != expected:
            raise errors.InvalidValue(f"{batches.shape[1]} messages in a batch that has {expected}")

    @property
    @abstractmethod
    def messages_per_user(self) -> int:
        """How many messages one user sends."""

    @abstractmethod
    def noise(self, users: int | None = None) -> Noise:
        """The law of one coordinate's noise, in steps: of all users, or of so many of them."""

    @abstractmethod
    def draw_noise(self, random: Random, batches: int) -> Floats:
        """The noise of the analyzed sums of so many batches: its law, without messages."""

    @property
    @abstractmethod
    def coins_a_batch(self) -> int:
        """What it takes to draw the noise of a batch, in coins."""

    @property
    @abstractmethod
    def message_bits(self) -> int:
        """How many bits a message has."""

    def leak(self, honest: int) -> float:
        """How far a coordinate of a batch is, in total variation, from showing its sum alone.

        If so many of its users are honest.
        """
        return 0.0

    @abstractmethod
    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        """A row of messages for every user, from values that were checked."""

    @abstractmethod
    def analyze_many(self, batches: NDArray[Any]) -> Floats:
        """Unbiased sums of the values of shuffled batches, one to a row."""

    @cached_property
    def unit(self) -> float:
        """What one step is worth."""
        return 1.0 if self.values.is_whole else self.values.width / self.steps

    @cached_property
    def coordinate_steps(self) -> Counts:
        """How many steps each coordinate has."""
        if self.values.is_whole:
            return np.ones(self.values.dimension, np.int64)
        widths = self.values.highs - self.values.lows
        return np.ceil(widths / self.unit * (1 - _FLOAT_MARGIN)).astype(np.int64)

    @cached_property
    def change(self) -> Change:
        """How far another value of one user can move the counts."""
        return change_of(self.values, self.steps)

    @cached_property
    def rounding_variance(self) -> float:
        """The most that rounding can add to the variance of a coordinate's sum."""
        return 0.0 if self.values.is_whole else self.size * self.unit**2 / 4

    @cached_property
    def noise_variance(self) -> float:
        """The variance of a coordinate's noise in an analyzed sum."""
        return self.noise().variance * self.unit**2

    @property
    def variance(self) -> float:
        """The variance of a coordinate of an analyzed sum, at most, whatever the values."""
        return self.noise_variance + self.rounding_variance

    @cached_property
    def fourth_cumulant(self) -> float:
        """The fourth cumulant of a coordinate's noise in an analyzed sum."""
        return self.noise().fourth_cumulant * self.unit**4

    def growth(self, s: float) -> float:
        """A bound on ln E exp(s x error) of a coordinate of an analyzed sum (Hoeffding's lemma)."""
        return self.noise().growth(s * self.unit) + s**2 * self.rounding_variance / 2

    def steps_of(self, rows: NDArray[Any], random: Random) -> NDArray[Any]:
        """Checked values in steps: as they are if they are whole, else rounded at random."""
        if self.values.is_whole:
            return self.values.coordinates(rows)
        low = self.values.lows if self.values.shape else self.values.lows[0]
        most = self.coordinate_steps if self.values.shape else self.coordinate_steps[0]
        exact = rows - low
        exact /= self.unit
        exact += random.uniforms(rows.size).reshape(rows.shape)
        np.floor(exact, out=exact)
        np.maximum(exact, 0, out=exact)
        np.minimum(exact, most, out=exact)
        return exact.astype(np.int64)

    def value_of(self, steps: Any) -> Any:
        """The sum of the values of a batch, from the sum of its steps."""
        if self.values.is_whole:
            return steps
        low = self.values.lows if self.values.shape else float(self.values.lows[0])
        return steps * self.unit + self.size * low

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        """A row of messages for every user, with noise of its own."""
        return self.encode_rows(self.values.rows(values), random)

    def scaled(self, noise: Floats) -> Floats:
        """Noise in steps, as it stands in the analyzed sums of batches, one to a row."""
        if self.unit != 1.0:
            noise *= self.unit
        return noise.reshape(-1, *self.values.shape)

    def encode(self, value: Any, random: Random) -> Messages:
        """One user's messages, as one row."""
        return self.encode_many([value], random)

    def analyze(self, shuffled: Shuffled) -> Any:
        """An unbiased estimate of the sum of the batch's values."""
        total = self.analyze_many(shuffled[np.newaxis])[0]
        return float(total) if self.values.is_scalar else total


def change_of(values: Values, steps: int) -> Change:
    """How far another value of one user can move the counts of a batch.

    Rounding is coupled: with the same uniform u, floor(v / unit + u) of two values differ by at
    most |v - v'| / unit, rounded up. A mixture is never easier to tell apart than its parts, so
    the l2 distance is at most sensitivity / unit + sqrt(dimension). The widest coordinate has
    `steps` steps.
    """
    if values.moves is not None:
        return Change(steps, values.moves)
    dimension = values.dimension
    norm = values.sensitivity / values.width * steps + math.sqrt(dimension)
    return Change(steps, dimension, norm * (1 + _FLOAT_MARGIN))
