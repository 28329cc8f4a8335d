"""Bits: randomised response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.baselines.local.answers import just_above
from overhand.model import Privacy
from overhand.plan import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import BinaryFraction, Random
from overhand.values import BITS, Values


@dataclass(frozen=True)
class LocalResponse:
    """Randomised response: a bit is flipped with probability 1 / (1 + e^epsilon).

    The best there is for one bit of one user; its running sum errs by about sqrt(t).
    """

    horizon: int
    flip: BinaryFraction

    values: ClassVar[Values] = BITS

    @classmethod
    def best(cls, horizon: int, privacy: Privacy) -> LocalResponse:
        """The least flipping that gives the guarantee, rounded against us."""
        horizon = errors.whole("horizon", horizon, least=1)
        return cls(horizon, just_above(1 / (1 + math.exp(privacy.epsilon))))

    @property
    def epsilon_spent(self) -> float:
        """ln((1 - q) / q): what one answer costs, with delta = 0."""
        flip = float(self.flip)
        return math.log1p(-flip) - math.log(flip)

    @property
    def delta_spent(self) -> float:
        return 0.0

    @property
    def messages_per_user(self) -> int:
        return 1

    @property
    def user_variance(self) -> float:
        """q (1 - q) / (1 - 2 q)^2, whatever the bit."""
        flip = float(self.flip)
        return flip * (1 - flip) / (1 - 2 * flip) ** 2

    @property
    def rms_error(self) -> float:
        return math.sqrt(self.user_variance * (self.horizon + 1) / 2)

    @property
    def worst_std(self) -> float:
        return math.sqrt(self.user_variance * self.horizon)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Hoeffding's inequality at the last user, and a union bound over all."""
        scale = 1 / (1 - 2 * float(self.flip))
        events = math.log(2 * self.horizon / failure_probability)
        return scale * math.sqrt(self.horizon * events / 2)

    def start(self, random: Random) -> LocalRun:
        """A run over a stream of bits."""
        return LocalRun(self, random)


class LocalRun:
    """Answers of users as they come, and the running unbiased sum."""

    granularity = 1

    def __init__(self, response: LocalResponse, random: Random) -> None:
        self._flip = response.flip
        self._random = random
        self._ones = 0
        self._t = 0

    def estimates(self, bits: NDArray[Any]) -> NDArray[np.float64]:
        """The estimates after each of the next users."""
        answers = bits ^ self._random.coins(len(bits), self._flip)
        ones = self._ones + np.cumsum(answers, dtype=np.int64)
        t = self._t + np.arange(1, len(bits) + 1)
        self._ones, self._t = int(ones[-1]), int(t[-1])
        flip = float(self._flip)
        return np.asarray((ones - flip * t) / (1 - 2 * flip))
