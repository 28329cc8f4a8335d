"""Bits: randomised response."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.baselines.local.answers import Floats, LocalSum, just_above
from overhand.model import Privacy
from overhand.randomness import BinaryFraction, Random
from overhand.values import BITS


@dataclass(frozen=True)
class LocalResponse(LocalSum):
    """Randomised response: a bit is flipped with probability 1 / (1 + e^epsilon).

    The best there is for one bit of one user; its running sum errs by about sqrt(t).

    >>> local = LocalResponse.best(1_000_000, Privacy(1.0, 1e-6))
    >>> round(float(local.flip), 3), round(local.epsilon_spent, 6), round(local.rms_error)
    (0.269, 1.0, 678)
    """

    flip: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy) -> LocalResponse:
        """The least flipping that gives the guarantee, rounded against us."""
        return cls(horizon, BITS, just_above(1 / (1 + math.exp(privacy.epsilon))))

    @property
    def epsilon_spent(self) -> float:
        """ln((1 - q) / q): what one answer costs, with delta = 0."""
        flip = float(self.flip)
        return math.log1p(-flip) - math.log(flip)

    @property
    def user_variance(self) -> float:
        """q (1 - q) / (1 - 2 q)^2, whatever the bit."""
        flip = float(self.flip)
        return flip * (1 - flip) * self.spread**2

    @property
    def worst_variance(self) -> float:
        return self.user_variance

    @property
    def spread(self) -> float:
        return 1 / (1 - 2 * float(self.flip))

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        said = rows ^ random.coins(len(rows), self.flip)
        return np.asarray((said - float(self.flip)) * self.spread)
