"""contextualbandits: its regression with upper bounds, and its LinUCB.

The regression is what its LinUCB is made of; one of them for all arms is the model that the users
follow. LinUCB itself has one for every arm and sees one context a user: that of the first arm.
"""

from __future__ import annotations

import numpy as np
from contextualbandits.linreg import LinearRegression
from contextualbandits.online import LinUCB

from benchmarks.arrays import Floats
from benchmarks.bandits import BanditTask
from benchmarks.contestants.rounds import Outcome, Users, step_by_step


class Shared:
    def __init__(self) -> None:
        self._model = LinearRegression(fit_intercept=False, method="sm", use_float=False)

    def choose(self, arms: Floats) -> int:
        return int(self._model.predict_ucb(arms).argmax())

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        self._model.partial_fit(arms[arm : arm + 1], np.array([reward]))


class Disjoint:
    def __init__(self, task: BanditTask) -> None:
        self._model = LinUCB(
            task.arms, fit_intercept=False, use_float=False, random_state=task.seed, njobs=1
        )

    def choose(self, arms: Floats) -> int:
        return int(self._model.predict(arms[:1])[0])

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        self._model.partial_fit(arms[:1], np.array([arm]), np.array([reward]))


def shared(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(Shared(), users, task)


def disjoint(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(Disjoint(task), users, task)
