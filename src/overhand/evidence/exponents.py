"""(a) How the error grows with the number of users."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overhand.evidence.findings import Check, Figure, Finding, Section, Series, Task
from overhand.evidence.scale import Scale
from overhand.plan import Plan
from overhand.simulation import simulate
from overhand.trees import binary_degrees

_TOLERANCE = 0.03
_JUDGED = (1, 2, 3)
_SHOWN = (1, 2, 3, 5)
BINARY = 0
"""Stands for log n - 1 shufflers."""


def section(scale: Scale) -> Section:
    """One simulation for every number of users and of shufflers."""
    asked = [(n, k) for k in (*_SHOWN, BINARY) for n in scale.horizons]
    tasks = tuple(
        Task(f"error of {k or 'log n - 1'} shufflers, {n:,} users", _measured, (scale, n, k))
        for n, k in asked
    )
    return Section(tasks, lambda results: _finding(scale, asked, results))


def _measured(scale: Scale, horizon: int, shufflers: int) -> tuple[int, float, float]:
    """Shufflers used, measured and predicted error."""
    if shufflers == BINARY:
        shufflers = len(binary_degrees(horizon))
        plan = Plan.best(horizon, shufflers, scale.privacy, tree="binary")
    else:
        plan = Plan.best(horizon, shufflers, scale.privacy, tree="paper")
    runs = max(4, min(4000, scale.steps // horizon))
    found = simulate(plan, "ones", runs=runs, seed=scale.seed)
    return plan.tree.levels, found.rms_error, plan.rms_error


def _finding(scale: Scale, asked: list[tuple[int, int]], results: list[Any]) -> Finding:
    rows, series, checks = [], [], []
    for k in (*_SHOWN, BINARY):
        pairs = zip(asked, results, strict=True)
        mine = [(n, *found) for (n, asked_k), found in pairs if asked_k == k]
        exponent = _slope([n for n, *_ in mine], [error for _, _, error, _ in mine])
        claimed = 1 / (2 * k + 1) if k else 0.0
        label = f"k = {k}" if k else "k = log n - 1"
        series.append(Series(label, tuple(n for n, *_ in mine), tuple(e for _, _, e, _ in mine)))
        claim = f"1/{2 * k + 1} = {claimed:.3f}" if k else "polylogarithmic"
        rows.append((label, *(round(e, 1) for _, _, e, _ in mine), round(exponent, 3), claim))
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


def _slope(horizons: list[int], errors: list[float]) -> float:
    x = [math.log(n) for n in horizons]
    return float(np.polyfit(x, np.log(errors), 1)[0])
