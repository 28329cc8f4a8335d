"""(g) Whether estimates are unbiased, and bands hold the truth as often as they say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from overhand.evidence.sections import Check, Evidence, Figure, Scale, Section, Task
from overhand.model import Counts, Floats, Rows
from overhand.plan import Plan
from overhand.plots import Line
from overhand.randomness import SeededRandom
from overhand.simulation import CoverNoise
from overhand.summation import ContinualSum
from overhand.values import values_of

_KINDS = ("bit", "real:0:10", "vector:3", "histogram:5", "matrix:2", "moments:2")
_SHUFFLERS = 3
_CONFIDENCE = 0.95
_LEAST, _MOST = 0.94, 0.985
_STDS = 5.0  # of a mean that is called biased
_TASK_RUNS = 5_000
_CELLS = 1 << 22  # numbers that are rounded at a time
_NUMBERS_A_SECOND = 4e8
_POINTS = 250  # of a curve


@dataclass(frozen=True)
class Stated:
    """A plan, users who all hold an extreme value, and what the real sum says of them.

    Band and bias do not depend on noise: half-widths of the bands, and how far pending users move
    the middle from the truth, by time (from the first batch on) and coordinate.
    """

    plan: Plan
    coordinates: Rows
    times: Counts
    half_widths: Floats
    missed: Floats


@dataclass(frozen=True)
class Tally:
    """Of some runs: bands that held the truth, by time and coordinate; errors at ends of batches.

    The sums of errors and of their squares are by batch and coordinate.
    """

    runs: int
    held: Counts
    errors: Floats
    squares: Floats

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.runs + other.runs,
            self.held + other.held,
            self.errors + other.errors,
            self.squares + other.squares,
        )

    @property
    def coverage(self) -> Floats:
        """By time, of the coordinate that is held least often: each has a band of its own."""
        return np.asarray(self.held.min(axis=1) / self.runs)

    @property
    def largest_bias(self) -> float:
        """The mean error that is most standard errors from 0."""
        spread = np.sqrt(self.squares / self.runs) / math.sqrt(self.runs)
        return float(np.max(np.abs(self.errors / self.runs) / spread))


def coverage(scale: Scale) -> Section:
    """(g) Some runs per task, of every kind of value."""
    return Section.crossed(
        _KINDS,
        range(0, scale.coverage_runs, _TASK_RUNS),
        lambda kind, first: Task(
            f"bands of {kind}", tally, (scale, kind, first), _cost(scale, kind)
        ),
        lambda found: _covered(scale, {kind: _sum_of(parts) for kind, parts in found.items()}),
    )


def _sum_of(tallies: Iterable[Tally]) -> Tally:
    return reduce(Tally.__add__, tallies)


def _cost(scale: Scale, kind: str) -> float:
    """Rounding takes a draw per user and level; the rest of the work is per time."""
    values = values_of(kind)
    numbers = min(_TASK_RUNS, scale.coverage_runs) * scale.coverage_users * values.dimension
    return 0.5 + numbers * (1 if values.is_whole else 4) / _NUMBERS_A_SECOND


@lru_cache(maxsize=8)
def _stated(scale: Scale, kind: str) -> Stated:
    asked = scale.coverage_users, _SHUFFLERS, scale.privacy
    plan = Plan.best(*asked, values=kind, max_messages=200)
    users, lowest, shape = plan.horizon, plan.tree.lowest, plan.values.shape
    rows = plan.values.opposites(np.ones(users, np.uint8))
    one = np.asarray(plan.values.total(rows[:1]), np.float64)
    total = ContinualSum(plan, SeededRandom(np.random.default_rng(0)))
    total.update_rows(rows[: lowest - 1])
    half_widths = []
    for place in range(lowest - 1, users):
        total.update_rows(rows[place : place + 1])
        low, high = total.estimate.interval(_CONFIDENCE)
        half_widths.append(np.broadcast_to((np.asarray(high) - low) / 2, shape).ravel())
    times = np.arange(lowest, users + 1)
    missed = np.multiply.outer(times % lowest, (one - plan.imputed).ravel())
    coordinates = plan.values.coordinates(rows)
    return Stated(plan, coordinates, times, np.array(half_widths), missed)


def tally(scale: Scale, kind: str, first: int) -> Tally:
    """A group of runs, from this one on."""
    stated = _stated(scale, kind)
    random = np.random.default_rng([scale.seed, _KINDS.index(kind), first])
    runs = min(_TASK_RUNS, scale.coverage_runs - first)
    at_once = max(1, _CELLS // (stated.plan.horizon * stated.plan.values.dimension))
    return _sum_of(
        _counted(stated, min(at_once, runs - done), SeededRandom(random))
        for done in range(0, runs, at_once)
    )


def _counted(stated: Stated, runs: int, random: SeededRandom) -> Tally:
    plan = stated.plan
    shape = (plan.tree.covered, runs, *plan.values.shape)
    rows = np.broadcast_to(stated.coordinates[: plan.tree.covered, np.newaxis], shape)
    noise = CoverNoise(plan, random, runs=(runs,)).at(0, plan.tree.blocks, rows)
    noise = noise.reshape(plan.tree.blocks + 1, runs, -1)
    held = [
        np.count_nonzero(np.abs(noise[t // plan.tree.lowest] - missed) <= half_width, axis=0)
        for t, missed, half_width in zip(
            stated.times, stated.missed, stated.half_widths, strict=True
        )
    ]
    ends = noise[1:]
    return Tally(runs, np.array(held), ends.sum(axis=1), np.square(ends).sum(axis=1))


def _covered(scale: Scale, found: dict[str, Tally]) -> Evidence:
    coverages = {kind: tally.coverage for kind, tally in found.items()}
    largest_bias = max(tally.largest_bias for tally in found.values())
    lines = tuple(_line(scale, kind, covered) for kind, covered in coverages.items())
    least = min(float(covered.min()) for covered in coverages.values())
    most = max(float(covered.max()) for covered in coverages.values())
    return Evidence(
        key="coverage",
        title="Bands hold what they promise",
        claim="Every estimate is unbiased, and its 95 % band holds the truth 95 times out of 100.",
        method=f"{scale.coverage_users:,} users who all hold an extreme value, {_SHUFFLERS} "
        f"shufflers at {scale.privacy}; {scale.coverage_runs:,} estimates of each kind of value "
        "at every time from the end of the first batch on, compared with the bands that the real "
        "sum states; of the coordinates, the one that is covered least often. (Before that, "
        "nothing is random.) Noise comes in whole steps, so a band covers the truth at least as "
        "often as it says, and not exactly as often. Between ends of batches, bands allow for the "
        "worst that pending users can hold, which is what they hold here, and the middle is off "
        "by that: the mean error is judged at the ends of batches.",
        columns=("values", "times", "least", "mean", "most", "bias in standard errors, largest"),
        rows=tuple(_row(scale, kind, tally) for kind, tally in found.items()),
        figures=(Figure("users t", "bands that hold the truth, %", lines, "plot"),),
        checks=(
            Check("coverage, the least", least, _LEAST, _MOST),
            Check("coverage, the most", most, _LEAST, _MOST),
            Check("mean error in standard errors, the largest", largest_bias, 0.0, _STDS),
        ),
    )


def _row(scale: Scale, kind: str, tally: Tally) -> tuple[str | float, ...]:
    covered = tally.coverage
    first = _first_time(scale, covered)
    return (
        kind,
        f"{first:,} .. {scale.coverage_users:,}",
        f"{100 * covered.min():.2f} % (t = {first + covered.argmin():,})",
        f"{100 * covered.mean():.2f} %",
        f"{100 * covered.max():.2f} % (t = {first + covered.argmax():,})",
        round(tally.largest_bias, 2),
    )


def _first_time(scale: Scale, covered: Floats) -> int:
    return scale.coverage_users - len(covered) + 1


def _line(scale: Scale, kind: str, covered: Floats) -> Line:
    """The least of every few times in a row."""
    starts = np.arange(0, len(covered), -(-len(covered) // _POINTS))
    least = 100 * np.minimum.reduceat(covered, starts)
    times = (_first_time(scale, covered) + starts).astype(float)
    return Line(kind, tuple(times.tolist()), tuple(least.tolist()))
