"""Rounds of a bandit: the users, and the contestants of one module taking turns to serve them."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.arrays import Floats
from benchmarks.bandits import BanditTask


@dataclass(frozen=True)
class Users:
    """By user and arm: features of norm 1, the first of them constant, and the mean reward.

    A reward is 1 if the user's uniform is below the mean of the arm, and 0 otherwise.
    """

    arms: Floats
    means: Floats
    best: Floats
    uniforms: Floats

    @classmethod
    def drawn(cls, task: BanditTask) -> Users:
        random = np.random.default_rng(task.seed)
        shape = task.users, task.arms, task.dimension
        arms = np.full(shape, math.sqrt(0.5))
        arms[..., 1:] = _on_sphere(random, (*shape[:2], task.dimension - 1))
        theta = _on_sphere(random, (task.dimension - 1,))
        means = 0.5 + arms[..., 1:] @ theta
        return cls(arms, means, means.max(axis=1), random.random(task.users))

    def missed(self, arms: Sequence[int] | NDArray[np.int64]) -> float:
        """The mean regret of the first so many users."""
        done = np.arange(len(arms))
        return float(np.mean(self.best[: len(arms)] - self.means[done, arms]))


def _on_sphere(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    points = random.standard_normal(shape)
    lengths = np.linalg.norm(points, axis=-1, keepdims=True)
    return np.asarray(points * (math.sqrt(0.5) / lengths))


class Outcome(NamedTuple):
    """Of one run: how many users were served, and the mean of what they missed."""

    rounds: int
    missed: float


Player = Callable[[Users, BanditTask], Outcome]
"""One run, with a new learner."""


class Learner(Protocol):
    """One who serves a user at a time."""

    def choose(self, arms: Floats) -> int:
        """The arm for a user to whom these may be offered."""

    def learn(self, arms: Floats, arm: int, reward: float) -> None:
        """What came of it."""


def step_by_step(learner: Learner, users: Users, task: BanditTask) -> Outcome:
    """User after user, as long as there is time."""
    chosen: list[int] = []
    end = time.perf_counter() + task.seconds
    for arms, means, uniform in zip(users.arms, users.means, users.uniforms.tolist(), strict=True):
        arm = learner.choose(arms)
        learner.learn(arms, arm, float(uniform < means[arm]))
        chosen.append(arm)
        if time.perf_counter() > end:
            break
    return Outcome(len(chosen), users.missed(chosen))


class Run(NamedTuple):
    outcome: Outcome
    seconds: float
    cpu_seconds: float


def one_run(player: Player, users: Users, task: BanditTask) -> Run:
    started, cpu_started = time.perf_counter(), time.process_time()
    outcome = player(users, task)
    return Run(outcome, time.perf_counter() - started, time.process_time() - cpu_started)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The best rates of all runs: whatever else the machine does only makes them worse."""
    longest = max(runs, key=lambda run: run.outcome.rounds)
    return {
        **longest.outcome._asdict(),
        "rounds_per_second": max(run.outcome.rounds / run.seconds for run in runs),
        "rounds_per_cpu_second": max(run.outcome.rounds / run.cpu_seconds for run in runs),
    }


def main(module: str, functions: str, task_json: str) -> None:
    task = BanditTask.from_json(task_json)
    contestants = import_module(f"benchmarks.contestants.{module}")
    players: list[Player] = [getattr(contestants, name) for name in functions.split(",")]
    users = Users.drawn(task)
    turns = [[one_run(player, users, task) for player in players] for _ in range(task.repeats)]
    print(json.dumps({"results": [summary(runs) for runs in zip(*turns, strict=True)]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
