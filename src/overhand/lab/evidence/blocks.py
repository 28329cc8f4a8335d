"""(j) Blocks with correlated noise of two services: errors as stated, bands that hold the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from overhand.estimates import Estimate
from overhand.lab.evidence.accuracy import mean_squares
from overhand.lab.evidence.coverage import (
    CONFIDENCE,
    Held,
    Known,
    Times,
    compare,
    count_held,
    least_and_most,
    shares_held,
)
from overhand.lab.evidence.sections import Check, Evidence, Scale, Section, Task
from overhand.planning import Plan
from overhand.randomness import SeededRandom
from overhand.sums import ContinualSum

_CASES = tuple((kind, spec) for spec in ("bit", "histogram:5") for kind in ("pairs", "ballots"))
_BLOCKS = 1_000
_BEYOND = 10
_RUNS, _LONG_RUNS = 2_000, 500  # for a standard error of 0.7 %, and of 3 % beyond the horizon
_TOLERANCE, _LONG_TOLERANCE = 0.02, 0.1
_MOST_RATIO = 1.28  # of the error at ten times the horizon, to that of a plan for so many
_BANDS = "bands of pairs"
_TASK_RUNS = 2_000
_READ_A_SECOND = 300
_DRAWS_A_SECOND = 5e6


def blocks(scale: Scale) -> Section:
    """Errors of every case, at the horizon and beyond it; bands of one of them."""
    cost = 1 + 2 * (_BLOCKS * _RUNS + _BEYOND * _BLOCKS * _LONG_RUNS) / _DRAWS_A_SECOND
    tasks: dict[Any, list[Task]] = {
        case: [Task(f"errors of {', '.join(case)}", measure_errors, (scale, *case), cost)]
        for case in _CASES
    }
    of_bands = 1 + min(_TASK_RUNS, scale.reading_runs) / _READ_A_SECOND
    tasks[_BANDS] = [
        Task(_BANDS, tally_spans, (scale, first), of_bands)
        for first in range(0, scale.reading_runs, _TASK_RUNS)
    ]
    return Section(tasks, partial(_judge, scale))


class Errors(NamedTuple):
    """Measured and stated, at the horizon and beyond it; and of a plan for all who come then."""

    users: int
    measured: float
    stated: float
    long_measured: float
    long_stated: float
    long_planned: float


def measure_errors(scale: Scale, kind: str, spec: str) -> Errors:
    plan = _plan_for(scale, kind, spec)
    users = plan.horizon
    random = SeededRandom(np.random.default_rng([scale.seed, 28, _CASES.index((kind, spec))]))
    measured, long_measured = (
        math.sqrt(mean_squares(plan, runs // plan.values.dimension, random, number).mean())
        for runs, number in ((_RUNS, users), (_LONG_RUNS, _BEYOND * users))
    )
    planned = Plan.best(_BEYOND * users, 1, scale.privacy, values=spec, mechanism=kind)
    stated = plan.rms_error, long_measured, plan.rms_error_over(_BEYOND * users)
    return Errors(users, measured, *stated, planned.rms_error)


def _plan_for(scale: Scale, kind: str, spec: str) -> Plan:
    """One of about a thousand blocks."""
    users = 20 * _BLOCKS
    for _ in range(2):
        plan = Plan.best(users, 1, scale.privacy, values=spec, mechanism=kind)
        users = _BLOCKS * plan.tree.lowest
    return plan


@lru_cache(maxsize=2)
def _spans(scale: Scale) -> Known:
    """Prefixes, ranges and windows, all at ends of blocks; the last beyond the horizon."""
    plan = Plan.best(10 * scale.coverage_users, 1, scale.privacy, mechanism="pairs")
    size, expected = plan.tree.lowest, plan.horizon // plan.tree.lowest
    half, window = expected // 2, max(2, expected // 20)
    in_blocks = (
        *((0, end) for end in (half, expected, 2 * expected)),
        *((half - window, half), (half, half + window), (half + 1, half + 2), (3, expected - 1)),
    )
    rows = (np.arange(2 * expected * size) % 3 > 0).astype(np.uint8)
    total = ContinualSum(plan, SeededRandom(np.random.default_rng(0)))
    total.update_rows(rows)
    places = tuple((first * size, stop * size) for first, stop in in_blocks)
    sums = tuple(np.asarray(rows[first:stop].sum(), np.float64) for first, stop in places)
    return Known(plan, places, sums, sums, tuple(total.between(*place) for place in places))


def tally_spans(scale: Scale, first: int) -> Times:
    """Some runs, from this one on."""
    random = SeededRandom(np.random.default_rng([scale.seed, 29, first]))
    return count_held(_spans(scale), _read, min(_TASK_RUNS, scale.reading_runs - first), random)


def _read(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    for (start, _), total, estimate in zip(known.places, known.sums, estimates, strict=True):
        low, high = estimate.interval(CONFIDENCE)
        yield "range" if start else "prefix", low <= total <= high
    for one, other in ((1, 0), (2, 1), (4, 3), (6, 4)):
        yield from compare(known, estimates, one, other)


def _judge(scale: Scale, found: dict[Any, list[Any]]) -> Evidence:
    held = shares_held(found[_BANDS], scale.reading_runs)
    coverage = {f"coverage of a {what}": shares for what, shares in held.items()}
    rows, checks = [], []
    for case in _CASES:
        (errors,), name = found[case], ", ".join(case)
        near, far = errors.measured / errors.stated, errors.long_measured / errors.long_stated
        ratio = errors.long_stated / errors.long_planned
        shown = (errors.measured, errors.stated, errors.long_measured, errors.long_stated)
        rows.append((name, errors.users, *(round(one, 2) for one in shown), round(ratio, 3)))
        checks += [
            Check.near(f"{name}: measured / stated", near, 1.0, _TOLERANCE),
            Check.near(f"{name}: the same at {_BEYOND} times", far, 1.0, _LONG_TOLERANCE),
            Check(f"{name}: stated there / of a plan for so many", ratio, 0.0, _MOST_RATIO),
        ]
    checks += least_and_most(coverage, at_least=("coverage of a ratio",))
    return Evidence(
        key="blocks",
        title="Blocks with noise of two services",
        claim="Errors of sums of blocks, whose noise is correlated over time, are as stated, also "
        f"for {_BEYOND} times as many users as were expected; and 95 % bands of prefixes, ranges, "
        "differences and ratios hold the truth 95 times out of 100.",
        method=f"Plans of about {_BLOCKS:,} blocks at {scale.privacy}, all users holding the same "
        f"end of their range; {_RUNS:,} runs, and {_LONG_RUNS:,} beyond the horizon. Bands: "
        f"{scale.reading_runs:,} runs of pairs, {10 * scale.coverage_users:,} users expected and "
        "twice as many there, read as the library reads them: its covariances are in all "
        "differences and ratios. A ratio's interval may hold more often than it says.",
        columns=("plan", "users", "rms error", "stated", "beyond", "stated", "to a plan for them"),
        rows=tuple(rows),
        checks=tuple(checks),
    )
