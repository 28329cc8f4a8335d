"""(h) Whether quantiles, groups, differences and ratios hold as often as they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from overhand.estimates import Bounded, Estimate
from overhand.evidence.sections import Check, Evidence, Scale, Section, Task
from overhand.model import Floats
from overhand.plan import Plan
from overhand.randomness import SeededRandom
from overhand.simulation import CoverNoise
from overhand.summation import ContinualSum

_SHUFFLERS = 3
_CONFIDENCE = 0.95
_LEAST, _MOST = 0.94, 0.985
_TASK_RUNS = 2_000
_READ_A_SECOND = 700
_PARTS = (0.1, 0.25, 0.5, 0.95)
_LABELS = ("a", "b", "c")
_HELD: dict[str, Callable[[int], Any]] = {
    "binned:0:10:10": lambda users: (np.arange(users) * 7919 % 1000 / 100.0) ** 2 / 10,
    "grouped:a,b,c:bit": lambda users: (
        np.array(_LABELS)[np.minimum(np.arange(users) % 10 // 4, 2)],
        (np.arange(users) % 3 == 0).astype(int),
    ),
    "bit": lambda users: (np.arange(users) % 3 > 0).astype(int),
}
"""By kind of value, what users hold: nothing that depends on their place."""

Held = tuple[str, str, bool]
"""What was read, where, and whether its interval held the truth."""


@dataclass(frozen=True)
class Known:
    """A plan, the times that are looked at, the sums there, and what the real sum says of itself.

    The noise of its values is drawn many times over.
    """

    plan: Plan
    rows: Any
    times: tuple[int, ...]
    sums: tuple[Floats, ...]
    stated: tuple[Estimate, ...]


@lru_cache(maxsize=8)
def _known(scale: Scale, kind: str) -> Known:
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
    stated, sums, place = [], [], 0
    for t in times:
        total.update_rows(rows[place:t])
        stated.append(total.estimate)
        sums.append(np.asarray(plan.values.total(rows[:t]), np.float64))
        place = t
    return Known(plan, rows, times, tuple(sums), tuple(stated))


def _drawn(known: Known, runs: int, random: SeededRandom) -> Iterator[list[Estimate]]:
    """Run by run, the estimates at all times: those of the real sum, except for their noise."""
    plan, lowest = known.plan, known.plan.tree.lowest
    noise = CoverNoise(plan, random, runs=(runs,)).at(0, plan.tree.blocks, np.empty(0))
    finished = [
        np.asarray(plan.values.total(known.rows[: t - t % lowest]), np.float64) for t in known.times
    ]
    for run in range(runs):
        yield [
            replace(stated, value=done + t % lowest * plan.imputed + noise[t // lowest, run])
            for stated, t, done in zip(known.stated, known.times, finished, strict=True)
        ]


def _of_bins(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    edges = np.array(known.plan.values.edges)  # type: ignore[attr-defined]
    for t, counts, estimate in zip(known.times, known.sums, estimates, strict=True):
        truth = np.concatenate([[0.0], np.cumsum(counts) / t])
        band = estimate.cdf(_CONFIDENCE)
        held = (band.low <= truth) & (truth <= band.high)
        yield from (("cdf", f"t = {t}, below {edges[j]:g}", bool(held[j])) for j in range(1, 10))
        every = estimate.cdf(_CONFIDENCE, simultaneous=True)
        inside = (every.low <= truth) & (truth <= every.high)
        yield "cdf, all at once", f"t = {t}", bool(inside.all())
        for part, found in zip(_PARTS, estimate.quantile(_PARTS, _CONFIDENCE), strict=True):
            above = int(np.argmax(truth >= part))
            within = found.low <= edges[above - 1] and edges[above] <= found.high
            yield "quantile", f"t = {t}, {part:g}", bool(within)


def _of_groups(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    for t, cells, estimate in zip(known.times, known.sums, estimates, strict=True):
        counts, sums = known.plan.values.counts_and_sums(cells)  # type: ignore[attr-defined]
        for group, count, total in zip(estimate.groups(_CONFIDENCE), counts, sums, strict=True):
            place = f"t = {t}, {group.label}"
            yield "group: count", place, _holds(group.count, count)
            yield "group: sum", place, _holds(group.sum, total)
            mean = group.mean
            yield "group: mean", place, mean is None or _holds(mean, total / count)


def _holds(found: Bounded, truth: float) -> bool:
    return bool(found.low <= truth <= found.high)


def _of_pairs(known: Known, estimates: list[Estimate]) -> Iterator[Held]:
    """The last against those before: most of their noise is in common."""
    last, true_last = estimates[-1], float(known.sums[-1])
    for t, truth, estimate in zip(known.times[:-1], known.sums, estimates, strict=False):
        low, high = (last - estimate).interval(_CONFIDENCE)
        is_end = t % known.plan.tree.lowest == 0
        what = "difference" if is_end else "difference, users pending"
        yield what, f"t = {t}", bool(low <= true_last - truth <= high)
        low, high = (last / estimate).interval(_CONFIDENCE)
        yield "ratio", f"t = {t}", bool(low <= true_last / truth <= high)


_READ: dict[str, Callable[[Known, list[Estimate]], Iterator[Held]]] = dict(
    zip(_HELD, (_of_bins, _of_groups, _of_pairs), strict=True)
)
_AT_LEAST = ("cdf, all at once", "quantile", "group: mean", "difference, users pending", "ratio")
"""By their nature held more often than they say: see the method."""


@dataclass(frozen=True)
class Tally:
    """How often the intervals of what was read, by name and place, held the truth."""

    runs: int
    held: Counter[tuple[str, str]]

    def __add__(self, other: Tally) -> Tally:
        total = Counter(self.held)
        total.update(other.held)
        return Tally(self.runs + other.runs, total)

    def coverage(self) -> dict[str, list[float]]:
        """By name, of all its places."""
        found: dict[str, list[float]] = {}
        for (name, _), held in self.held.items():
            found.setdefault(name, []).append(held / self.runs)
        return found


def readings(scale: Scale) -> Section:
    """(h) Some runs per task, of every kind of value that something is read off."""
    cost = 0.5 + min(_TASK_RUNS, scale.reading_runs) / _READ_A_SECOND
    return Section.crossed(
        _HELD,
        range(0, scale.reading_runs, _TASK_RUNS),
        lambda kind, first: Task(f"readings of {kind}", tally, (scale, kind, first), cost),
        lambda found: _read(scale, (reduce(Tally.__add__, parts) for parts in found.values())),
    )


def tally(scale: Scale, kind: str, first: int) -> Tally:
    """So many runs from this one on."""
    known = _known(scale, kind)
    random = np.random.default_rng([scale.seed, list(_HELD).index(kind), first])
    runs = min(_TASK_RUNS, scale.reading_runs - first)
    held: Counter[tuple[str, str]] = Counter()
    for estimates in _drawn(known, runs, SeededRandom(random)):
        for name, place, is_held in _READ[kind](known, estimates):
            held[name, place] += is_held
    return Tally(runs, held)


def _read(scale: Scale, tallies: Iterable[Tally]) -> Evidence:
    found = {name: held for one in tallies for name, held in one.coverage().items()}
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
            (
                name,
                len(held),
                *(f"{100 * one:.2f} %" for one in (min(held), sum(held) / len(held), max(held))),
            )
            for name, held in found.items()
        ),
        checks=tuple(
            Check(f"{name}, the {end}", value, _LEAST, 1.0 if name in _AT_LEAST else _MOST)
            for name, held in found.items()
            for end, value in (("least", min(held)), ("most", max(held)))
        ),
    )
