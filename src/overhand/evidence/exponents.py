"""(a) How the error grows with the number of users."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.evidence.findings import Check, Figure, Finding, Section, Task
from overhand.evidence.sampling import mean_squares, runs_for
from overhand.evidence.scale import Scale
from overhand.evidence.slopes import slope, slope_std
from overhand.model import Privacy
from overhand.plan import Plan
from overhand.plots import Line
from overhand.randomness import SeededRandom
from overhand.trees import binary_degrees, published_degrees

_TOLERANCE = 0.03
_JUDGED = (1, 2, 3)
_BINARY = 0  # stands for log n - 1 shufflers
_SHOWN = {**{f"k = {k}": k for k in (1, 2, 3, 5)}, "k = log n - 1": _BINARY}
_DRAWS = 10**8  # of one task
_FEWEST_RUNS = 4  # of one task
_DRAWS_A_SECOND = {_BINARY: 2e6}
_USUAL_DRAWS_A_SECOND = 1.5e7


class Part(NamedTuple):
    """Some of the runs for one error: a random stream of their own."""

    shufflers: int
    horizon: int
    number: int
    runs: int


class Measured(NamedTuple):
    """An error with the standard deviation of its logarithm, and what the plan says it is."""

    rms: float
    log_std: float
    predicted: float


def section(scale: Scale) -> Section:
    """One error for every number of users and of shufflers, of runs in several parts."""
    parts = {(k, n): _parts(scale, k, n) for k in _SHOWN.values() for n in scale.horizons}
    tasks = tuple(
        Task(f"error of {label}, {n:,} users", _measured, (scale, part), _cost(part))
        for label, k in _SHOWN.items()
        for n in scale.horizons
        for part in parts[k, n]
    )

    def conclude(results: list[tuple[NDArray[np.float64], float]]) -> Finding:
        left = iter(results)
        found = {key: _joined([next(left) for _ in of_key]) for key, of_key in parts.items()}
        return _finding(scale, found)

    return Section(tasks, conclude)


def _degrees(shufflers: int, horizon: int) -> tuple[int, ...]:
    if shufflers == _BINARY:
        return binary_degrees(horizon)
    return published_degrees(horizon, shufflers)


def _parts(scale: Scale, shufflers: int, horizon: int) -> list[Part]:
    degrees = _degrees(shufflers, horizon)
    runs = runs_for(scale.precision, len(degrees))
    each = max(_FEWEST_RUNS, _DRAWS * degrees[0] // horizon)
    return [
        Part(shufflers, horizon, number, min(each, runs - first))
        for number, first in enumerate(range(0, runs, each))
    ]


def _cost(part: Part) -> float:
    draws = part.runs * part.horizon / _degrees(part.shufflers, part.horizon)[0]
    return 0.3 + draws / _DRAWS_A_SECOND.get(part.shufflers, _USUAL_DRAWS_A_SECOND)


@lru_cache(maxsize=8)
def _plan(shufflers: int, horizon: int, privacy: Privacy) -> Plan:
    if shufflers == _BINARY:
        return Plan.best(horizon, len(binary_degrees(horizon)), privacy, tree="binary")
    return Plan.best(horizon, shufflers, privacy, tree="paper")


def _measured(scale: Scale, part: Part) -> tuple[NDArray[np.float64], float]:
    """Mean squares run by run, and the plan's own error."""
    plan = _plan(part.shufflers, part.horizon, scale.privacy)
    seed = [scale.seed, part.shufflers, part.horizon, part.number]
    random = SeededRandom(np.random.default_rng(seed))
    return mean_squares(plan, part.runs, random), plan.rms_error


def _joined(parts: list[tuple[NDArray[np.float64], float]]) -> Measured:
    squares = np.concatenate([of_part for of_part, _ in parts])
    mean = float(squares.mean())
    spread = float(squares.std(ddof=1)) if len(squares) > 1 else math.nan
    return Measured(math.sqrt(mean), spread / (2 * mean * math.sqrt(len(squares))), parts[0][1])


def _finding(scale: Scale, found: dict[tuple[int, int], Measured]) -> Finding:
    rows, lines, checks = [], [], []
    for label, k in _SHOWN.items():
        errors = [found[k, n] for n in scale.horizons]
        measured = slope(scale.horizons, [one.rms for one in errors])
        predicted = slope(scale.horizons, [one.predicted for one in errors])
        std = slope_std(scale.horizons, [one.log_std for one in errors])
        claimed = 1 / (2 * k + 1)
        lines.append(Line(label, scale.horizons, tuple(one.rms for one in errors)))
        rows.append(
            (
                label,
                *(round(one.rms, 1) for one in errors),
                f"{measured:.3f} +- {std:.3f}",
                f"{predicted:.3f}",
                "log" if k == _BINARY else f"1/{2 * k + 1} = {claimed:.3f}",
            )
        )
        if k in _JUDGED:
            checks.append(Check.near(f"exponent for k = {k}", measured, claimed, _TOLERANCE))
    return Finding(
        key="exponents",
        title="Error against the number of users",
        claim="Theorem 3.4: with k shufflers the error grows as n^(1/(2k+1)); Corollary 3.3: with "
        "log n - 1 of them it is polylogarithmic.",
        method=f"Trees with the paper's degrees, noise by exact accounting at {scale.privacy}, all "
        "users holding 1; root mean square error over all times and so many runs that each is "
        f"within about {100 * scale.precision:g} %. Exponents are least-squares slopes of log "
        "error against log n, plus or minus a standard deviation; 'predicted' is the slope of the "
        "errors that the plans state, which has no noise. What lies between it and the claim is "
        "small n: the fewer users a batch has, the more noise it needs, and degrees are whole "
        "numbers.",
        columns=(
            "shufflers",
            *(f"n = {n:,}" for n in scale.horizons),
            "exponent",
            "predicted",
            "claimed",
        ),
        rows=tuple(rows),
        figures=(Figure("users n", "rms error", tuple(lines)),),
        checks=tuple(checks),
    )
