"""MABWiser: LinUCB, which has a parameter for every arm and sees one context a user.

With one arm only, asked what to expect of it in many contexts, it has one parameter for all: that
is the model that the users follow, and much quicker.
"""

from __future__ import annotations

import numpy as np
from mabwiser.mab import MAB, LearningPolicy

from benchmarks.arrays import Floats
from benchmarks.bandits import BanditTask
from benchmarks.contestants.rounds import Outcome, Users, step_by_step


class MabWiser:
    """The first user is offered the first arm: nothing can be predicted before a fit."""

    def __init__(self, arms: int, task: BanditTask) -> None:
        self._model = MAB(list(range(arms)), LearningPolicy.LinUCB(), seed=task.seed, n_jobs=1)
        self._fitted = False

    def _fit(self, arm: int, reward: float, context: Floats) -> None:
        fit = self._model.partial_fit if self._fitted else self._model.fit
        fit(np.array([arm]), np.array([reward]), context)
        self._fitted = True


class Shared(MabWiser):
    def choose(self, arms: Floats) -> int:
        if not self._fitted:
            return 0
        expected = self._model.predict_expectations(arms)
        return max(range(len(arms)), key=lambda arm: expected[arm][0])

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        self._fit(0, reward, arms[arm : arm + 1])


class Disjoint(MabWiser):
    def choose(self, arms: Floats) -> int:
        return int(self._model.predict(arms[:1])) if self._fitted else 0

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        self._fit(arm, reward, arms[:1])


def shared(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(Shared(1, task), users, task)


def disjoint(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(Disjoint(task.arms, task), users, task)
