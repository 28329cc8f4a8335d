"""(g) Whether estimates are right on average, and bands hold the truth as often as they say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from overhand.evidence.findings import Check, Finding, Section, Task
from overhand.evidence.scale import Scale
from overhand.plan import Plan
from overhand.randomness import SeededRandom
from overhand.simulation import estimate_all
from overhand.summation import ContinualSum
from overhand.values import values_of

_KINDS = ("bit", "real:0:10", "vector:3", "histogram:5")
_SHUFFLERS = 3
_CONFIDENCE = 0.95
_LEAST, _MOST = 0.94, 0.985
_STDS = 5.0  # of a mean that is called biased


class Covered(NamedTuple):
    """At one time: how often the band held the truth, and the mean error in standard errors."""

    t: int
    is_batch_end: bool
    coverage: float
    bias: float


def section(scale: Scale) -> Section:
    tasks = tuple(Task(f"bands of {kind}", _measured, (scale, kind)) for kind in _KINDS)
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, kind: str) -> list[Covered]:
    values = values_of(kind)
    users = scale.coverage_users
    plan = Plan.best(
        users, _SHUFFLERS, scale.privacy, tree="regular", values=values, max_messages=200
    )
    times = _times(plan)
    runs = scale.coverage_runs
    random = SeededRandom(np.random.default_rng([scale.seed, len(kind)]))
    rows = values.opposites(np.ones(users, np.uint8))
    truth = np.stack([np.atleast_1d(values.total(rows[:t])) for t in times])
    at = np.array(times) - 1
    errors = np.stack(
        [estimate_all(plan, rows, random).reshape(users, -1)[at] - truth for _ in range(runs)]
    )
    widths = _half_widths(plan, rows, times, random)
    return [
        _covered(t, t % plan.tree.lowest == 0, errors[:, place], widths[place])
        for place, t in enumerate(times)
    ]


def _times(plan: Plan) -> list[int]:
    """Some ends of batches, and some times between them."""
    lowest, users = plan.tree.lowest, plan.horizon
    ends = np.linspace(1, users // lowest, 5).astype(int) * lowest
    between = np.linspace(lowest + lowest // 2, users, 5).astype(int)
    return sorted({*ends.tolist(), *between.tolist()})


def _half_widths(plan: Plan, rows: Any, times: list[int], random: SeededRandom) -> list[Any]:
    """Of the bands that the real sum states: they do not depend on what users hold."""
    total = ContinualSum(plan, random)
    widths = []
    for start, stop in zip([0, *times], times, strict=False):
        total.update_many(rows[start:stop])
        low, high = total.estimate.interval(_CONFIDENCE)
        widths.append(np.atleast_1d(np.asarray(high) - np.asarray(low)) / 2)
    return widths


def _covered(t: int, is_batch_end: bool, errors: Any, half_width: Any) -> Covered:
    """Each coordinate has a band of its own: the one that holds the truth least often counts."""
    inside = np.mean(np.abs(errors) <= half_width, axis=0)
    spread = errors.std() / math.sqrt(errors.size)
    return Covered(t, is_batch_end, float(inside.min()), float(errors.mean() / spread))


def _finding(scale: Scale, results: list[Any]) -> Finding:
    rows = tuple(
        (
            kind,
            f"{c.t:,}",
            f"{100 * c.coverage:.1f} %",
            round(c.bias, 2) if c.is_batch_end else "users pending",
        )
        for kind, found in zip(_KINDS, results, strict=True)
        for c in found
    )
    covered = [c.coverage for found in results for c in found]
    biases = [abs(c.bias) for found in results for c in found if c.is_batch_end]
    return Finding(
        key="coverage",
        title="Bands hold what they promise",
        claim="Every estimate is unbiased, and its 95 % band holds the truth 95 times of 100.",
        method=f"{scale.coverage_users:,} users who all hold an extreme value, "
        f"{_SHUFFLERS} shufflers at {scale.privacy}; {scale.coverage_runs:,} estimates of each "
        "kind of value at each time, beside the band that the same plan states; of coordinates the "
        "one that is held least often. Between batches a band is made for the worst that pending "
        "users can hold, which is what they hold here, and its middle is off by it: the mean "
        "error is judged at the ends of batches.",
        columns=("values", "t", "in the band", "mean error, in standard errors"),
        rows=rows,
        checks=(
            Check("coverage, the least", min(covered), _LEAST, _MOST),
            Check("coverage, the most", max(covered), _LEAST, _MOST),
            Check("mean error in standard errors, the largest", max(biases), 0.0, _STDS),
        ),
    )
