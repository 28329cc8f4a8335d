"""Our two engines: the same law, with the noise drawn once a node or with every message made."""

from __future__ import annotations

from collections.abc import Iterator

import dp_accounting.pld.privacy_loss_distribution  # noqa: F401  a plan imports it, but late

import overhand as oh
from benchmarks.arrays import Bits, Floats
from benchmarks.task import Ready, Task
from overhand.lab.simulation import CountsRun, Engine, estimate_all
from overhand.values import BITS, Values

PART = 1 << 16


def counts(task: Task) -> Ready:
    return _engine(task, "counts")


def messages(task: Task) -> Ready:
    return _engine(task, "messages")


def counts_in_parts(task: Task) -> Ready:
    """As a service would: no more than a part of the estimates is held at a time."""
    plan = plan_for(task.horizon, task)
    random = oh.seeded_random(task.seed)

    def run(values: Bits) -> Iterator[Floats]:
        engine = CountsRun(plan, random)
        step = PART // engine.granularity * engine.granularity
        for start in range(0, len(values), step):
            yield engine.estimates(values[start : start + step])

    return Ready(run, expected_rms=lambda: plan.rms_error)


def plan_for(horizon: int, task: Task, *, values: Values = BITS) -> oh.Plan:
    privacy = oh.Privacy(task.epsilon, task.delta)
    return oh.Plan.best(horizon, task.shufflers, privacy, values=values)


def _engine(task: Task, engine: Engine) -> Ready:
    plan = plan_for(task.horizon, task)
    random = oh.seeded_random(task.seed)
    return Ready(
        run=lambda values: estimate_all(plan, values, random, engine=engine),
        expected_rms=lambda: plan.rms_error,
    )
