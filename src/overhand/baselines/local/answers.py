"""What all local mechanisms share: one answer of every user, and the running sum of the answers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.plan import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import BinaryFraction, Random
from overhand.values import Values

Floats = NDArray[np.float64]

_SIGNIFICANT_BITS = 32


@dataclass(frozen=True)
class LocalSum(ABC):
    """Every user sends one private answer whose mean is its value; the answers are added up.

    Answers are independent, so the error at t has t times the variance of one answer.

    >>> from overhand.baselines import local_counter
    >>> from overhand.model import Privacy
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import Histogram
    >>> local = local_counter(1000, Privacy(1.0, 1e-6), Histogram(4))
    >>> sums = local.start(seeded_random(1)).estimates(np.full(1000, 2))
    >>> bool(np.abs(sums[-1] - [0, 0, 1000, 0]).max() < 4 * local.worst_std)
    True
    """

    horizon: int
    values: Values

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)

    @property
    @abstractmethod
    def epsilon_spent(self) -> float:
        """What one answer costs, from the parameters it is drawn with."""

    @property
    @abstractmethod
    def user_variance(self) -> float:
        """Mean over coordinates of the variance of one answer, on the value where it is most."""

    @property
    @abstractmethod
    def worst_variance(self) -> float:
        """The most that the variance of any coordinate of an answer can be."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The length of the interval that a coordinate of an answer lies in."""

    @property
    def reach(self) -> float:
        """How far a coordinate of an answer can be from its mean."""
        return self.spread

    @abstractmethod
    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        """The answers of these users, in the shape of their values' coordinates."""

    @property
    def delta_spent(self) -> float:
        return 0.0

    @property
    def messages_per_user(self) -> int:
        return 1

    @property
    def rms_error(self) -> float:
        """Root of the mean, over t = 1 .. horizon and coordinates, of the squared error."""
        return math.sqrt(self.user_variance * (self.horizon + 1) / 2)

    @property
    def worst_std(self) -> float:
        return math.sqrt(self.worst_variance * self.horizon)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """The better of Hoeffding's and Bernstein's inequalities, and a union bound over all."""
        events = self._events(failure_probability)
        hoeffding = self.spread * math.sqrt(self.horizon * events / 2)
        slack = self.reach * events / 3
        bernstein = slack + math.sqrt(slack**2 + 2 * self.worst_std**2 * events)
        return min(hoeffding, bernstein)

    def _events(self, failure_probability: float) -> float:
        """-ln of the failure probability that a union bound leaves to one error of one sign."""
        failure_probability = errors.number(
            "failure_probability", failure_probability, above=0, below=1
        )
        return math.log(2 * self.horizon * self.values.dimension / failure_probability)

    def start(self, random: Random) -> AnswersRun:
        """A run over a stream of values."""
        return AnswersRun(self, random)


class AnswersRun:
    """Answers of users as they come, and their running sum."""

    granularity = 1

    def __init__(self, counter: LocalSum, random: Random) -> None:
        self._counter = counter
        self._random = random
        self._sum: Any = 0.0

    def estimates(self, rows: NDArray[Any]) -> Floats:
        """The estimates after each of the next users."""
        sums = self._counter.answers(rows, self._random)
        np.cumsum(sums, axis=0, out=sums)
        sums += self._sum
        self._sum = sums[-1].copy()
        return sums


def just_above(probability: float) -> BinaryFraction:
    """A fraction larger by at most a part in 2^31: a probability that is rounded against us."""
    near = BinaryFraction.near(probability)
    spare = min(_SIGNIFICANT_BITS - near.numerator.bit_length(), 64 - near.bits)
    return BinaryFraction((near.numerator << spare) + 1, near.bits + spare)
