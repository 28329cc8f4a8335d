"""(g), (h), (i) Whether bands hold the truth as often as they say: published, read off, revised."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from overhand.estimates import Estimate
from overhand.lab.evidence.sections import Check, Evidence, Figure, Scale, Section, Task, curves
from overhand.lab.plots import Line
from overhand.lab.simulation import CoverNoise
from overhand.model import Counts, Floats, Rows
from overhand.planning import Plan
from overhand.randomness import SeededRandom
from overhand.sums import BatchSums, ContinualSum, Hindsight, in_hindsight
from overhand.values import values_of

_KINDS = ("bit", "real:0:10", "vector:3", "histogram:5", "matrix:2", "regression:2")
_SHUFFLERS = 3
CONFIDENCE = 0.95
_LEAST, _MOST = 0.94, 0.985
_STDS = 5.0  # of a mean that is called biased
_TASK_RUNS = 5_000
_READING_RUNS = 2_000  # of a task
_CELLS = 1 << 22  # numbers that are rounded at a time
_NUMBERS_A_SECOND = 4e8
_READ_A_SECOND = 700
_SMOOTHED_A_SECOND = 2e6
_POINTS = 250  # of a curve
_PARTS = (0.1, 0.25, 0.5, 0.95)
_LABELS = ("a", "b", "c")
_MECHANISMS = ("coins", "shares")  # of histories
_MANY = 4  # shufflers of histories
_MOST_RATIO = 0.80  # of errors, in hindsight to published
_PART = 4  # of the runs of other bands: histories have no coordinates, nor times between ends


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


class Tally(NamedTuple):
    """Of some runs: bands that held the truth, by time and coordinate; errors at ends of batches.

    The sums of errors and of their squares are by batch and coordinate.
    """

    runs: int
    held: Counts
    errors: Floats
    squares: Floats

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
    tasks = {
        kind: [
            Task(f"bands of {kind}", tally_bands, (scale, kind, first), _cost(scale, kind))
            for first in range(0, scale.coverage_runs, _TASK_RUNS)
        ]
        for kind in _KINDS
    }
    return Section(tasks, partial(_judge_coverage, scale))


def _sum_of(tallies: Iterable[Tally]) -> Tally:
    return Tally(*(sum(parts) for parts in zip(*tallies, strict=True)))


def _cost(scale: Scale, kind: str) -> float:
    """Rounding takes a draw per user and level; the rest of the work is per time."""
    values = values_of(kind)
    numbers = min(_TASK_RUNS, scale.coverage_runs) * scale.coverage_users * values.dimension
    return 0.5 + numbers * (1 if values.is_whole else 4) / _NUMBERS_A_SECOND


@lru_cache(maxsize=8)
def _state_bands(scale: Scale, kind: str) -> Stated:
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
        low, high = total.estimate.interval(CONFIDENCE)
        half_widths.append(np.broadcast_to((np.asarray(high) - low) / 2, shape).ravel())
    times = np.arange(lowest, users + 1)
    missed = np.multiply.outer(times % lowest, (one - plan.imputed).ravel())
    coordinates = plan.values.coordinates(rows)
    return Stated(plan, coordinates, times, np.array(half_widths), missed)


def tally_bands(scale: Scale, kind: str, first: int) -> Tally:
    """A group of runs, from this one on."""
    stated = _state_bands(scale, kind)
    random = np.random.default_rng([scale.seed, _KINDS.index(kind), first])
    runs = min(_TASK_RUNS, scale.coverage_runs - first)
    at_once = max(1, _CELLS // (stated.plan.horizon * stated.plan.values.dimension))
    return _sum_of(
        _count_held(stated, min(at_once, runs - done), SeededRandom(random))
        for done in range(0, runs, at_once)
    )


def _count_held(stated: Stated, runs: int, random: SeededRandom) -> Tally:
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


def _judge_coverage(scale: Scale, parts: dict[str, list[Tally]]) -> Evidence:
    found = {kind: _sum_of(tallies) for kind, tallies in parts.items()}
    coverages = {kind: tally.coverage for kind, tally in found.items()}
    largest_bias = max(tally.largest_bias for tally in found.values())
    rows, lines = [], list[Line]()
    for kind, covered in coverages.items():
        first = scale.coverage_users - len(covered) + 1
        rows.append(
            (
                kind,
                f"{first:,} .. {scale.coverage_users:,}",
                f"{_percent(covered.min())} (t = {first + covered.argmin():,})",
                _percent(covered.mean()),
                f"{_percent(covered.max())} (t = {first + covered.argmax():,})",
                round(found[kind].largest_bias, 2),
            )
        )
        starts = np.arange(0, len(covered), -(-len(covered) // _POINTS))
        lowest = 100 * np.minimum.reduceat(covered, starts)  # of every few times in a row
        lines += curves(first + starts, {kind: lowest})
    ends = [float(end) for covered in coverages.values() for end in (covered.min(), covered.max())]
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
        rows=tuple(rows),
        figures=(Figure("users t", "bands that hold the truth, %", tuple(lines), "plot"),),
        checks=(
            *least_and_most({"coverage": ends}),
            Check("mean error in standard errors, the largest", largest_bias, 0.0, _STDS),
        ),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


_HELD: dict[str, Callable[[int], Any]] = {
    "binned:0:10:10": lambda users: (np.arange(users) * 7919 % 1000 / 100.0) ** 2 / 10,
    "grouped:a,b,c:bit": lambda users: (
        np.array(_LABELS)[np.minimum(np.arange(users) % 10 // 4, 2)],
        (np.arange(users) % 3 == 0).astype(int),
    ),
    "bit": lambda users: (np.arange(users) % 3 > 0).astype(int),
}
"""By kind of value, what users hold: nothing that depends on their place."""

Held = tuple[str, bool]
"""What was read, and whether its interval held the truth."""
Times = dict[str, Counts]
"""By what was read, how often intervals held the truth: of every place, in the order of reading."""


@dataclass(frozen=True)
class Known:
    """A plan, stretches of users, the sums there, and what the real sum says of itself.

    An estimate is `exact`, and noise; it is the sum, unless users are pending.
    """

    plan: Plan
    places: tuple[tuple[int, int], ...]
    sums: tuple[Floats, ...]
    exact: tuple[Floats, ...]
    stated: tuple[Estimate, ...]

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(stop for _, stop in self.places)


@lru_cache(maxsize=8)
def _prepare(scale: Scale, kind: str) -> Known:
    users = scale.coverage_users
    asked = users, _SHUFFLERS, scale.privacy
    plan = Plan.best(*asked, values=kind, mechanism="best", max_messages=200)
    lowest, blocks = plan.tree.lowest, plan.tree.blocks
    # Ends of batches, the cover being short and long, and once in between: users are pending.
    ends = [lowest * (blocks * part // 8) for part in (3, 5, 8)]
    times = (*ends[:2], ends[1] + lowest // 2, ends[2])
    rows = plan.values.rows(_HELD[kind](users))
    # As intervals are made for the worst that pending users can hold, that is what they hold.
    rows[times[1] : times[2]] = plan.values.opposites(np.ones(lowest // 2, np.uint8))
    total = ContinualSum(plan, SeededRandom(np.random.default_rng(0)))
    stated, sums, exact, place = [], [], [], 0
    for t in times:
        total.update_rows(rows[place:t])
        stated.append(total.estimate)
        finished, place = t - t % lowest, t
        sums.append(np.asarray(plan.values.total(rows[:t]), np.float64))
        exact.append(plan.values.total(rows[:finished]) + (t - finished) * plan.imputed)
    places = tuple((0, t) for t in times)
    return Known(plan, places, tuple(sums), tuple(exact), tuple(stated))


def draw_estimates(known: Known, runs: int, random: SeededRandom) -> Iterator[list[Estimate]]:
    """Run by run, the estimates at all places: those of the real sum, except for their noise."""
    starts, stops = np.transpose(known.places) // known.plan.tree.lowest
    noise = CoverNoise(known.plan, random, runs=(runs,)).at(0, int(stops.max()), np.empty(0))
    of_places = noise[stops] - noise[starts]
    for run in range(runs):
        yield [
            replace(stated, value=exact + of_place)
            for stated, exact, of_place in zip(
                known.stated, known.exact, of_places[:, run], strict=True
            )
        ]


def count_held(known: Known, read: Read, runs: int, random: SeededRandom) -> Times:
    """How often intervals held the truth in so many runs."""
    held: dict[str, list[bool]] = {}
    for estimates in draw_estimates(known, runs, random):
        for what, is_held in read(known, estimates):
            held.setdefault(what, []).append(is_held)
    return {what: np.reshape(of_runs, (runs, -1)).sum(axis=0) for what, of_runs in held.items()}


def shares_held(parts: Iterable[Times], runs: int) -> dict[str, Floats]:
    """In which part of all runs intervals held the truth."""
    total: dict[str, Any] = {}
    for part in parts:
        for what, times in part.items():
            total[what] = total.get(what, 0) + times
    return {what: times / runs for what, times in total.items()}


def least_and_most(shares: Mapping[str, Any], at_least: Collection[str] = ()) -> Iterator[Check]:
    """Whether all is held as often as it says, or (some of it) at least as often."""
    for what, held in shares.items():
        most = 1.0 if what in at_least else _MOST
        yield Check(f"{what}, the least", float(min(held)), _LEAST, most)
        yield Check(f"{what}, the most", float(max(held)), _LEAST, most)


def _read_bins(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    edges = np.array(known.plan.values.edges)  # type: ignore[attr-defined]
    for t, counts, estimate in zip(known.times, known.sums, estimates, strict=True):
        truth = np.concatenate([[0.0], np.cumsum(counts) / t])
        band = estimate.cdf(CONFIDENCE)
        held = (band.low <= truth) & (truth <= band.high)
        yield from (("cdf", is_held) for is_held in held[1:10])
        every = estimate.cdf(CONFIDENCE, simultaneous=True)
        yield "cdf, all at once", bool(((every.low <= truth) & (truth <= every.high)).all())
        for part, found in zip(_PARTS, estimate.quantile(_PARTS, CONFIDENCE), strict=True):
            above = int(np.argmax(truth >= part))
            yield "quantile", found.low <= edges[above - 1] and edges[above] <= found.high


def _read_groups(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    for cells, estimate in zip(known.sums, estimates, strict=True):
        counts, sums = known.plan.values.counts_and_sums(cells)  # type: ignore[attr-defined]
        for group, count, total in zip(estimate.groups(CONFIDENCE), counts, sums, strict=True):
            for what, found, truth in (
                ("count", group.count, count),
                ("sum", group.sum, total),
                ("mean", group.mean, total / count),
            ):
                yield f"group: {what}", found is None or found.low <= truth <= found.high


def compare(known: Known, estimates: list[Estimate], one: int, other: int) -> Iterator[Held]:
    """The sums of two places: much of their noise is in common."""
    left, right = known.sums[one], known.sums[other]
    is_pending = known.places[other][1] % known.plan.tree.lowest > 0
    low, high = (estimates[one] - estimates[other]).interval(CONFIDENCE)
    yield "difference, users pending" if is_pending else "difference", low <= left - right <= high
    low, high = (estimates[one] / estimates[other]).interval(CONFIDENCE)
    yield "ratio", low <= left / right <= high


def _read_bits(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    """The last against those before."""
    last = len(estimates) - 1
    for earlier in range(last):
        yield from compare(known, estimates, last, earlier)


Read = Callable[[Known, list[Estimate]], Iterator[Held]]
_READ: dict[str, Read] = dict(zip(_HELD, (_read_bins, _read_groups, _read_bits), strict=True))
_AT_LEAST = ("cdf, all at once", "quantile", "group: mean", "difference, users pending", "ratio")
"""By their nature held more often than they say: see the method."""


def readings(scale: Scale) -> Section:
    """(h) Some runs per task, of every kind of value that something is read off."""
    cost = 0.5 + min(_READING_RUNS, scale.reading_runs) / _READ_A_SECOND
    tasks = {
        kind: [
            Task(f"readings of {kind}", tally_readings, (scale, kind, first), cost)
            for first in range(0, scale.reading_runs, _READING_RUNS)
        ]
        for kind in _HELD
    }
    return Section(tasks, partial(_judge_readings, scale))


def tally_readings(scale: Scale, kind: str, first: int) -> Times:
    """Some runs, from this one on."""
    random = np.random.default_rng([scale.seed, list(_HELD).index(kind), first])
    runs = min(_READING_RUNS, scale.reading_runs - first)
    return count_held(_prepare(scale, kind), _READ[kind], runs, SeededRandom(random))


def _judge_readings(scale: Scale, parts: dict[str, list[Times]]) -> Evidence:
    found = shares_held(chain.from_iterable(parts.values()), scale.reading_runs)
    return Evidence(
        key="readings",
        title="Quantiles, groups, differences and ratios hold what they promise",
        claim="Every interval that is read from an estimate holds the truth 95 times out of 100.",
        method=f"{scale.coverage_users:,} users, {_SHUFFLERS} shufflers at {scale.privacy}; "
        f"{scale.reading_runs:,} estimates of every kind of value at four times, at one of which "
        "pending users hold an extreme value, read as the library reads them. A place is a time "
        "with an edge, a fraction of the users or a group. With this many runs, an interval that "
        "holds 95 times out of 100 is mistaken for one below 94 less than once in a million, and "
        "one that holds 93 times is always found. Intervals that go from edge to edge of bins, "
        "hold at all edges at once, cover the worst of pending users on both sides or end where a "
        "mean can be hold more often than they say: for them, only the least is judged.",
        columns=("what", "places", "least", "mean", "most"),
        rows=tuple(
            (name, len(held), *map(_percent, (held.min(), held.mean(), held.max())))
            for name, held in found.items()
        ),
        checks=tuple(least_and_most(found, _AT_LEAST)),
    )


def hindsight(scale: Scale) -> Section:
    """(i) Bands with few users and many runs, errors with many users and few."""
    cost_of_gain = 2 + scale.users / 20 * scale.runs / _SMOOTHED_A_SECOND
    cost_of_bands = 1 + scale.coverage_users / 15 * _TASK_RUNS / _SMOOTHED_A_SECOND
    tasks = {}
    for name in _MECHANISMS:
        tasks[name, "gain"] = [
            Task(f"hindsight with {name}", measure_gain, (scale, name), cost_of_gain)
        ]
        tasks[name, "bands"] = [
            Task(f"bands of hindsight, {name}", tally_history, (scale, name, first), cost_of_bands)
            for first in range(0, scale.coverage_runs // _PART, _TASK_RUNS)
        ]
    return Section(tasks, partial(_judge_history, scale))


def _draw_history(plan: Plan, runs: int, random: SeededRandom) -> Hindsight:
    """The history of users who all hold 0, in this many runs."""
    sums = BatchSums(plan.tree, (runs,))
    for level, mechanism in enumerate(plan.mechanisms, start=1):
        batches = plan.horizon // mechanism.size
        drawn = mechanism.draw_noise(random, batches * runs).reshape(batches, runs)
        sums.put(level, slice(0, batches), drawn, 0.0)
    return in_hindsight(plan, sums, plan.tree.covered)


def tally_history(scale: Scale, mechanism: str, first: int) -> tuple[Counts, Counts]:
    """Ends of lowest batches, and how many bands held the truth there, in runs from this one on."""
    users, runs = scale.coverage_users, min(_TASK_RUNS, scale.coverage_runs // _PART - first)
    plan = Plan.best(users, _MANY, scale.privacy, mechanism=mechanism)
    seed = [scale.seed, 18, _MECHANISMS.index(mechanism), first]
    history = _draw_history(plan, runs, SeededRandom(np.random.default_rng(seed)))
    low, high = history.interval(CONFIDENCE)
    return history.t, np.count_nonzero((low <= 0) & (high >= 0), axis=1)


def measure_gain(scale: Scale, mechanism: str) -> tuple[float, float, float]:
    """Mean squares in hindsight and published, and the ratio of roots that the noise implies."""
    plan = Plan.best(scale.users, _MANY, scale.privacy, mechanism=mechanism)
    seed = [scale.seed, 18, _MECHANISMS.index(mechanism)]
    history = _draw_history(plan, scale.runs, SeededRandom(np.random.default_rng(seed)))
    told, published = history.value, history.published.value
    return float(np.mean(told**2)), float(np.mean(published**2)), history.ratio


def _judge_history(scale: Scale, found: dict[tuple[str, str], list[Any]]) -> Evidence:
    runs = scale.coverage_runs // _PART
    rows, measured, computed, lines, shares = [], [], [], list[Line](), list[float]()
    for name in _MECHANISMS:
        (told, published, implied), bands = found[name, "gain"][0], found[name, "bands"]
        covered = np.asarray(sum(held for _, held in bands) / runs)
        measured.append(math.sqrt(told / published))
        computed.append(implied)
        roots = (round(math.sqrt(one), 1) for one in (published, told))
        ends = float(covered.min()), float(covered.max())
        shares += ends
        ratios = round(measured[-1], 3), round(implied, 3)
        rows.append((name, *roots, *ratios, *map(_percent, ends)))
        lines += curves(bands[0][0], {name: 100 * covered})
    return Evidence(
        key="hindsight",
        title="The history in hindsight",
        claim="Once larger batches are in, the error of the past is at most 0.80 of what was "
        "published, and its 95 % bands hold the truth 95 times out of 100.",
        method=f"Noise alone, {_MANY} shufflers at {scale.privacy}, at the ends of lowest "
        f"batches. Errors: {scale.users:,} users, {scale.runs:,} runs, root of the mean square "
        f"over all t at the end of the stream. Bands: {scale.coverage_users:,} users, "
        f"{runs:,} runs, each point on its own. The ratio is also computed "
        "from the law of the noise; a measured one is off by a few per cent, since few large "
        "batches make up most of a run's error.",
        columns=("mechanism", "published, rms", "hindsight, rms", "ratio", "computed",
                 "bands, least", "bands, most"),
        rows=tuple(rows),
        figures=(Figure("users t", "bands that hold the truth, %", tuple(lines), "plot"),),
        checks=(
            Check("ratio, computed, the largest", max(computed), 0.0, _MOST_RATIO),
            Check("ratio, measured, the largest", max(measured), 0.0, _MOST_RATIO),
            *least_and_most({"coverage": shares}),
        ),
    )  # fmt: skip
