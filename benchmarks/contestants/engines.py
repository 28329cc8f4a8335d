"""Our two engines: the same law, with the noise drawn once a node or with every message made."""

from __future__ import annotations

import overhand as oh
from benchmarks.task import Ready, Task
from overhand.simulation import Engine, estimate_all


def counts(task: Task) -> Ready:
    return _engine(task, "counts")


def messages(task: Task) -> Ready:
    return _engine(task, "messages")


def plan_for(horizon: int, task: Task) -> oh.Plan:
    privacy = oh.Privacy(task.epsilon, task.delta)
    return oh.Plan.best(horizon=horizon, shufflers=task.shufflers, privacy=privacy)


def _engine(task: Task, engine: Engine) -> Ready:
    plan = plan_for(task.horizon, task)
    random = oh.seeded_random(task.seed)
    return Ready(
        run=lambda values: estimate_all(plan, values, random, engine=engine),
        expected_rms=lambda: plan.rms_error,
    )
