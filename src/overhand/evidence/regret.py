"""(e) Regret of the private recommender, and the exponents of its bound."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.bandits import regret_exponent
from overhand.evidence.findings import Check, Figure, Finding, Section, Task
from overhand.evidence.scale import Scale
from overhand.evidence.slopes import slope, slope_std
from overhand.plots import Line
from overhand.simulation.regret import Field, Segments, race, rival

_OURS = "concurrent"
_RIVALS = ("not-private", "trusted", _OURS, "one-shuffler-0.6", "local")
_COUNTS = (1, 2, 3)
_SHUFFLERS = 4
_DIMENSION, _ARMS = 9, 10
_TOLERANCE = 0.03
_GROUP = 5  # runs of a task
_ROUNDS_A_SECOND = 1e5


class Raced(NamedTuple):
    """Regret of some runs over time."""

    label: str
    t: NDArray[np.int64]
    curves: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.curves[:, -1].mean())

    @property
    def standard_error(self) -> float:
        runs = len(self.curves)
        return float(self.curves[:, -1].std(ddof=1)) / math.sqrt(runs) if runs > 1 else math.nan


def section(scale: Scale) -> Section:
    """Every rival at every number of users, some runs a task."""
    groups = range(0, scale.bandit_runs, _GROUP)
    asked = [(name, n) for name in _RIVALS for n in scale.rounds]
    races = tuple(
        Task(f"regret of {name}, {n:,} users", _raced, (scale, name, n, first), _cost(n))
        for name, n in asked
        for first in groups
    )
    slopes = tuple(
        Task(f"regret bound, {k} shufflers", regret_exponent, (k,), 0.1) for k in _COUNTS
    )

    def conclude(results: list[Any]) -> Finding:
        left = iter(results)
        found = {key: _joined([next(left) for _ in groups]) for key in asked}
        return _finding(scale, found, dict(zip(_COUNTS, left, strict=True)))

    return Section(races + slopes, conclude)


def _cost(rounds: int) -> float:
    return 1.0 + _GROUP * rounds / _ROUNDS_A_SECOND


def _raced(scale: Scale, name: str, rounds: int, first: int) -> Raced:
    """All rivals meet the same users: those of the same seed."""
    place = Segments(_DIMENSION, _ARMS)
    one = rival(name, Field(rounds, _SHUFFLERS, scale.privacy, place.dimension))
    runs = range(first, min(first + _GROUP, scale.bandit_runs))
    (regret,) = race(place, rounds, [one], runs, scale.seed)
    return Raced(one.label, regret.t, regret.curves)


def _joined(parts: list[Raced]) -> Raced:
    return Raced(parts[0].label, parts[0].t, np.concatenate([part.curves for part in parts]))


def _claimed(shufflers: int) -> float:
    return (shufflers + 1) / (2 * shufflers + 1)


def _finding(
    scale: Scale, found: dict[tuple[str, int], Raced], bounds: dict[int, float]
) -> Finding:
    exponents = {
        name: slope(scale.rounds, [found[name, n].mean for n in scale.rounds]) for name in _RIVALS
    }
    longest = {name: found[name, scale.rounds[-1]] for name in _RIVALS}
    ours = longest[_OURS]
    lines = tuple(
        Line(one.label, tuple(map(float, one.t)), tuple(one.curves.mean(axis=0).tolist()))
        for one in longest.values()
    )
    return Finding(
        key="regret",
        title="A recommender that learns",
        claim="Theorem 5.1: LinUCB over k concurrent shufflers has a regret of at most the order "
        "of n^((k+1)/(2k+1)); Corollary 5.2: with log n of them, sqrt(n).",
        method=f"Users of audiences that change four times, {_ARMS} arms, {_DIMENSION} features, "
        f"{scale.privacy}, {scale.bandit_runs} runs, the same learner for all; plus or minus one "
        "standard error. Measured exponents are least-squares slopes. The theorem is about the "
        "worst crowd, this is one crowd, so growth may be slower. 'Bound' is the theorem's own "
        f"formula at large n. The curves are those of {scale.rounds[-1]:,} users.",
        columns=("regret", *(f"n = {n:,}" for n in scale.rounds), "exponent", "claimed"),
        rows=(
            *(_row(scale, name, found, exponents[name]) for name in _RIVALS),
            *(
                (
                    f"bound, k = {k}",
                    *("" for _ in scale.rounds),
                    f"{exponent:.3f}",
                    f"(k+1)/(2k+1) = {_claimed(k):.3f}",
                )
                for k, exponent in bounds.items()
            ),
        ),
        figures=(Figure("users", "regret", lines, "semilogy"),),
        checks=(
            Check("ours / local", ours.mean / longest["local"].mean, 0.0, 0.5),
            Check(
                f"exponent of our regret, {_SHUFFLERS} shufflers",
                exponents[_OURS],
                0.0,
                _claimed(_SHUFFLERS),
            ),
            *(
                Check.near(f"exponent of the bound, k = {k}", exponent, _claimed(k), _TOLERANCE)
                for k, exponent in bounds.items()
            ),
        ),
    )


def _row(
    scale: Scale, name: str, found: dict[tuple[str, int], Raced], exponent: float
) -> tuple[str, ...]:
    raced = [found[name, n] for n in scale.rounds]
    std = slope_std(scale.rounds, [one.standard_error / one.mean for one in raced])
    claimed = f"at most {_claimed(_SHUFFLERS):.3f}" if name == _OURS else ""
    cells = (f"{one.mean:,.0f} +- {one.standard_error:,.0f}" for one in raced)
    return (raced[-1].label, *cells, f"{exponent:.3f} +- {std:.3f}", claimed)
