"""What NumPy alone does: LinUCB, its inverse updated by the formula of Sherman and Morrison."""

from __future__ import annotations

import numpy as np

from benchmarks.arrays import Floats
from benchmarks.bandits import BanditTask
from benchmarks.contestants.rounds import Outcome, Users, step_by_step


class ShermanMorrison:
    def __init__(self, dimension: int) -> None:
        self._inverse = np.eye(dimension)
        self._total = np.zeros(dimension)
        self._theta = np.zeros(dimension)

    def choose(self, arms: Floats) -> int:
        widths = np.sqrt(np.einsum("ai,ai->a", arms.dot(self._inverse), arms))
        return int((arms.dot(self._theta) + widths).argmax())

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        x = arms[arm]
        along = self._inverse.dot(x)
        self._inverse -= np.outer(along, along) / (1 + x.dot(along))
        self._total += reward * x
        self._theta = self._inverse.dot(self._total)


def shared(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(ShermanMorrison(task.dimension), users, task)
