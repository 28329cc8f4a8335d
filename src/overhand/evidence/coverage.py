"""(g) Whether estimates are right on average, and bands hold the truth as often as they say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.evidence.findings import Check, Figure, Finding, Section, Task, in_turn
from overhand.evidence.scale import Scale
from overhand.plan import Plan
from overhand.plots import Line
from overhand.randomness import SeededRandom
from overhand.simulation.counts import CoverNoise
from overhand.summation import ContinualSum
from overhand.values import values_of

Floats = NDArray[np.float64]

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
    coordinates: NDArray[Any]
    times: NDArray[np.int64]
    half_widths: Floats
    missed: Floats


@dataclass(frozen=True)
class Tally:
    """Of some runs: bands that held the truth, by time and coordinate; errors at ends of batches.

    The sums of errors and of their squares are by batch and coordinate.
    """

    runs: int
    held: NDArray[np.int64]
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


def section(scale: Scale) -> Section:
    tasks = tuple(
        Task(f"bands of {kind}", tally, (scale, kind, first), _cost(scale, kind))
        for kind in _KINDS
        for first in range(0, scale.coverage_runs, _TASK_RUNS)
    )

    def conclude(results: list[Tally]) -> Finding:
        by_kind = in_turn(_KINDS, results)
        return _finding(scale, {kind: _sum_of(found) for kind, found in by_kind.items()})

    return Section(tasks, conclude)


def _sum_of(tallies: Iterable[Tally]) -> Tally:
    return reduce(Tally.__add__, tallies)


def _cost(scale: Scale, kind: str) -> float:
    """Rounding takes a draw a user and level; the rest is to look at every time."""
    values = values_of(kind)
    numbers = min(_TASK_RUNS, scale.coverage_runs) * scale.coverage_users * values.dimension
    return 0.5 + numbers * (1 if values.is_whole else 4) / _NUMBERS_A_SECOND


def _plan(scale: Scale, kind: str) -> Plan:
    return Plan.best(
        scale.coverage_users,
        _SHUFFLERS,
        scale.privacy,
        tree="regular",
        values=values_of(kind),
        max_messages=200,
    )


@lru_cache(maxsize=8)
def _stated(scale: Scale, kind: str) -> Stated:
    plan = _plan(scale, kind)
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
    """So many runs from this one on."""
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


def _finding(scale: Scale, found: dict[str, Tally]) -> Finding:
    firsts = {kind: scale.coverage_users - len(tally.held) + 1 for kind, tally in found.items()}
    coverages = {kind: tally.coverage for kind, tally in found.items()}
    biases = {kind: tally.largest_bias for kind, tally in found.items()}
    rows = tuple(
        (
            kind,
            f"{firsts[kind]:,} .. {scale.coverage_users:,}",
            f"{_percent(covered.min())} (t = {firsts[kind] + covered.argmin():,})",
            _percent(covered.mean()),
            f"{_percent(covered.max())} (t = {firsts[kind] + covered.argmax():,})",
            round(biases[kind], 2),
        )
        for kind, covered in coverages.items()
    )
    lines = [_line(kind, firsts[kind], covered) for kind, covered in coverages.items()]
    return Finding(
        key="coverage",
        title="Bands hold what they promise",
        claim="Every estimate is unbiased, and its 95 % band holds the truth 95 times of 100.",
        method=f"{scale.coverage_users:,} users who all hold an extreme value, {_SHUFFLERS} "
        f"shufflers at {scale.privacy}; {scale.coverage_runs:,} estimates of each kind of value "
        "at every time from the end of the first batch on, beside the bands that the real sum "
        "states; of coordinates the one that is held least often. (Before, nothing is random.) "
        "Noise comes in whole steps, so a band is held at least as often as it says, and not "
        "exactly as often. Between ends of batches bands are made for the worst that pending users "
        "can hold, which is what they hold here, and the middle is off by it: the mean error is "
        "judged at the ends of batches.",
        columns=("values", "times", "least", "mean", "most", "bias in standard errors, largest"),
        rows=rows,
        figures=(Figure("users t", "bands that hold the truth, %", tuple(lines), "plot"),),
        checks=(
            Check("coverage, the least", _least(coverages), _LEAST, _MOST),
            Check("coverage, the most", _most(coverages), _LEAST, _MOST),
            Check("mean error in standard errors, the largest", max(biases.values()), 0.0, _STDS),
        ),
    )


def _line(kind: str, first: int, covered: Floats) -> Line:
    """The least of every few times in a row."""
    starts = np.arange(0, len(covered), -(-len(covered) // _POINTS))
    least = 100 * np.minimum.reduceat(covered, starts)
    return Line(kind, tuple((first + starts).astype(float).tolist()), tuple(least.tolist()))


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def _least(coverages: dict[str, Floats]) -> float:
    return min(float(covered.min()) for covered in coverages.values())


def _most(coverages: dict[str, Floats]) -> float:
    return max(float(covered.max()) for covered in coverages.values())
