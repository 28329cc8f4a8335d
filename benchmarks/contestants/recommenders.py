"""Our recommender, user by user and a batch at a time, and whole runs of the simulator."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

import overhand as oh
from benchmarks.arrays import Floats
from benchmarks.bandits import BanditTask
from benchmarks.contestants.rounds import Outcome, Users, step_by_step
from overhand.bandits import Recommender, plan_for_regret
from overhand.lab.regret import Diverse, Environment, Field, Fixed, Rival, race, rival


class OneByOne:
    """A user at a time."""

    def __init__(self, recommender: Recommender) -> None:
        self._recommender = recommender

    def choose(self, arms: Floats) -> int:
        arm: int = self._recommender.recommend(arms)
        return arm

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        self._recommender.update(arms[arm], reward)


def secure(users: Users, task: BanditTask) -> Outcome:
    recommender = Recommender(_plan(task), oh.secure_random(), constant=Environment.constant)
    return step_by_step(OneByOne(recommender), users, task)


def seeded(users: Users, task: BanditTask) -> Outcome:
    return step_by_step(OneByOne(_seeded(task)), users, task)


def batches(users: Users, task: BanditTask) -> Outcome:
    """All users at once who are served by the same policy."""
    recommender, chosen = _seeded(task), []
    size = recommender.plan.tree.lowest
    end = time.perf_counter() + task.seconds
    for start in range(0, len(users.arms), size):
        batch = slice(start, start + size)
        offered = users.arms[batch]
        arms, everybody = recommender.recommend(offered), np.arange(len(offered))
        rewards = users.uniforms[batch] < users.means[batch][everybody, arms]
        recommender.update_many(offered[everybody, arms], rewards)
        chosen.append(arms)
        if time.perf_counter() > end:
            break
    arms = np.concatenate(chosen)
    return Outcome(len(arms), users.missed(arms))


def race_fixed(users: Users, task: BanditTask) -> Outcome:
    return _race(Fixed(task.dimension, task.arms), task)


def race_diverse(users: Users, task: BanditTask) -> Outcome:
    return _race(Diverse(task.dimension, task.arms), task)


def _race(environment: Environment, task: BanditTask) -> Outcome:
    (regret,) = race(environment, task.horizon, [_rival(task)], runs=[0], seed=task.seed)
    return Outcome(task.horizon, float(regret.final[0]) / task.horizon)


def _seeded(task: BanditTask) -> Recommender:
    return Recommender(_plan(task), oh.seeded_random(task.seed), constant=Environment.constant)


@cache
def _plan(task: BanditTask) -> oh.Plan:
    privacy = oh.Privacy(task.epsilon, task.delta)
    return plan_for_regret(task.horizon, task.shufflers, privacy, task.dimension)


@cache
def _rival(task: BanditTask) -> Rival:
    privacy = oh.Privacy(task.epsilon, task.delta)
    return rival("concurrent", Field(task.horizon, task.shufflers, privacy, task.dimension))
