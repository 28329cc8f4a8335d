"""(a) How the error grows with the number of users."""

from __future__ import annotations

import numpy as np

from overhand.evidence.findings import Check, Figure, Finding, Section, Series, Task, in_turn
from overhand.evidence.scale import Scale
from overhand.plan import Plan
from overhand.simulation import simulate
from overhand.trees import binary_degrees

_TOLERANCE = 0.03
_JUDGED = (1, 2, 3)
_BINARY = 0  # stands for log n - 1 shufflers
_SHOWN = {**{f"k = {k}": k for k in (1, 2, 3, 5)}, "k = log n - 1": _BINARY}


def section(scale: Scale) -> Section:
    """One simulation for every number of users and of shufflers."""
    tasks = tuple(
        Task(f"error, {label}, {n:,} users", _measured, (scale, n, k))
        for label, k in _SHOWN.items()
        for n in scale.horizons
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, horizon: int, shufflers: int) -> float:
    if shufflers == _BINARY:
        shufflers = len(binary_degrees(horizon))
        plan = Plan.best(horizon, shufflers, scale.privacy, tree="binary")
    else:
        plan = Plan.best(horizon, shufflers, scale.privacy, tree="paper")
    runs = max(4, min(4000, scale.steps // horizon))
    return simulate(plan, "ones", runs=runs, seed=scale.seed).rms_error


def _finding(scale: Scale, results: list[float]) -> Finding:
    rows, series, checks = [], [], []
    for label, errors in in_turn(_SHOWN, results).items():
        k = _SHOWN[label]
        exponent = float(np.polyfit(np.log(scale.horizons), np.log(errors), 1)[0])
        claimed = 1 / (2 * k + 1)
        series.append(Series(label, scale.horizons, tuple(errors)))
        claim = "polylogarithmic" if k == _BINARY else f"1/{2 * k + 1} = {claimed:.3f}"
        rows.append((label, *(round(error, 1) for error in errors), round(exponent, 3), claim))
        if k in _JUDGED:
            what = f"exponent for k = {k}"
            checks.append(Check(what, exponent, claimed - _TOLERANCE, claimed + _TOLERANCE))
    return Finding(
        key="exponents",
        title="Error against the number of users",
        claim="Theorem 3.4: with k shufflers the error grows as n^(1/(2k+1)); Corollary 3.3: with "
        "log n - 1 of them it is polylogarithmic.",
        method=f"Trees with the paper's degrees, noise by exact accounting at {scale.privacy}; "
        f"root mean square error over all times of up to 4,000 simulated runs, all "
        "users holding 1. Exponents are least-squares slopes of log error against log n.",
        columns=("shufflers", *(f"n = {n:,}" for n in scale.horizons), "exponent", "claimed"),
        rows=tuple(rows),
        figures=(Figure("users n", "rms error", tuple(series)),),
        checks=tuple(checks),
    )
