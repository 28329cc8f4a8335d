"""(i) What the history gains in hindsight, and whether its bands hold the truth."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from overhand.evidence.sections import Check, Evidence, Figure, Scale, Section, Task
from overhand.model import Counts, Floats
from overhand.plan import Plan
from overhand.plots import Line
from overhand.randomness import SeededRandom
from overhand.summation import BatchSums, Hindsight, in_hindsight

_MECHANISMS = ("coins", "shares")
_SHUFFLERS = 4
_CONFIDENCE = 0.95
_LEAST, _MOST = 0.94, 0.985
_MOST_RATIO = 0.80
_PART = 4  # of the runs of other bands: there are no coordinates, and no times between ends
_TASK_RUNS = 5_000
_NUMBERS_A_SECOND = 2e6


class Bands(NamedTuple):
    """Of some runs: how many bands held the truth, at every end of a lowest batch."""

    t: Counts
    held: Counts


class Gain(NamedTuple):
    """Squared errors, mean over all t and runs, measured and computed from the noise."""

    hindsight: float
    published: float
    computed: float
    """The ratio of the roots."""


def hindsight(scale: Scale) -> Section:
    """(i) Bands with few users and many runs, errors with many users and few."""
    cost_of_gain = 2 + scale.users / 20 * scale.runs / _NUMBERS_A_SECOND
    cost_of_bands = 1 + scale.coverage_users / 15 * _TASK_RUNS / _NUMBERS_A_SECOND
    tasks = {}
    for name in _MECHANISMS:
        tasks[name, "gain"] = [Task(f"hindsight with {name}", gain, (scale, name), cost_of_gain)]
        tasks[name, "bands"] = [
            Task(f"bands of hindsight, {name}", bands, (scale, name, first), cost_of_bands)
            for first in range(0, scale.coverage_runs // _PART, _TASK_RUNS)
        ]

    def conclude(found: dict[tuple[str, str], list[Any]]) -> Evidence:
        gains = {name: found[name, "gain"][0] for name in _MECHANISMS}
        return _shown(scale, gains, {name: found[name, "bands"] for name in _MECHANISMS})

    return Section.grouped(tasks, conclude)


def _noise(plan: Plan, runs: int, random: SeededRandom) -> Hindsight:
    """The history of users who all hold 0, in this many runs."""
    sums = BatchSums(plan.tree, (runs,))
    for level, mechanism in enumerate(plan.mechanisms, start=1):
        batches = plan.horizon // mechanism.size
        drawn = mechanism.draw_noise(random, batches * runs).reshape(batches, runs)
        sums.put(level, slice(0, batches), drawn, 0.0)
    return in_hindsight(plan, sums, plan.tree.covered)


def bands(scale: Scale, mechanism: str, first: int) -> Bands:
    """So many runs from this one on."""
    users, runs = scale.coverage_users, min(_TASK_RUNS, scale.coverage_runs // _PART - first)
    plan = Plan.best(users, _SHUFFLERS, scale.privacy, mechanism=mechanism)
    seed = [scale.seed, 18, _MECHANISMS.index(mechanism), first]
    history = _noise(plan, runs, SeededRandom(np.random.default_rng(seed)))
    low, high = history.interval(_CONFIDENCE)
    return Bands(history.t, np.count_nonzero((low <= 0) & (high >= 0), axis=1))


def gain(scale: Scale, mechanism: str) -> Gain:
    """Of runs with many users."""
    plan = Plan.best(scale.users, _SHUFFLERS, scale.privacy, mechanism=mechanism)
    seed = [scale.seed, 18, _MECHANISMS.index(mechanism)]
    history = _noise(plan, scale.runs, SeededRandom(np.random.default_rng(seed)))
    told, published = history.value, history.published.value
    return Gain(float(np.mean(told**2)), float(np.mean(published**2)), history.ratio)


def _shown(scale: Scale, gains: dict[str, Gain], held: dict[str, list[Bands]]) -> Evidence:
    runs = scale.coverage_runs // _PART
    covered = {
        name: np.asarray(sum(part.held for part in parts) / runs) for name, parts in held.items()
    }
    ratios = {name: math.sqrt(one.hindsight / one.published) for name, one in gains.items()}
    shares = [float(end) for one in covered.values() for end in (one.min(), one.max())]
    lines = tuple(
        Line(name, tuple(held[name][0].t.astype(float).tolist()), tuple((100 * of).tolist()))
        for name, of in covered.items()
    )
    return Evidence(
        key="hindsight",
        title="The history in hindsight",
        claim="Once larger batches are in, the error of the past is at most 0.80 of what was "
        "published, and its 95 % bands hold the truth 95 times out of 100.",
        method=f"Noise alone, {_SHUFFLERS} shufflers at {scale.privacy}, at the ends of lowest "
        f"batches. Errors: {scale.users:,} users, {scale.runs:,} runs, root of the mean square "
        f"over all t at the end of the stream. Bands: {scale.coverage_users:,} users, "
        f"{runs:,} runs, each point on its own. The ratio is also computed "
        "from the law of the noise; a measured one is off by a few per cent, since few large "
        "batches make up most of a run's error.",
        columns=("mechanism", "published, rms", "hindsight, rms", "ratio", "computed",
                 "bands, least", "bands, most"),
        rows=tuple(_row(name, gains[name], ratios[name], covered[name]) for name in _MECHANISMS),
        figures=(Figure("users t", "bands that hold the truth, %", lines, "plot"),),
        checks=(
            Check("ratio, computed, the largest", max(g.computed for g in gains.values()), 0.0,
                  _MOST_RATIO),
            Check("ratio, measured, the largest", max(ratios.values()), 0.0, _MOST_RATIO),
            Check("coverage, the least", min(shares), _LEAST, _MOST),
            Check("coverage, the most", max(shares), _LEAST, _MOST),
        ),
    )  # fmt: skip


def _row(name: str, gained: Gain, ratio: float, covered: Floats) -> tuple[str | float, ...]:
    roots = (round(math.sqrt(one), 1) for one in (gained.published, gained.hindsight))
    shares = (f"{100 * end:.2f} %" for end in (covered.min(), covered.max()))
    return (name, *roots, round(ratio, 3), round(gained.computed, 3), *shares)
