"""(b) What more shufflers bring, and what nobody can beat."""

from __future__ import annotations

from typing import Any

from overhand.evidence.findings import Check, Figure, Finding, Section, Task
from overhand.evidence.scale import Scale
from overhand.lower_bound import is_proved, repeats
from overhand.plan import Plan
from overhand.plots import Line
from overhand.simulation import simulate, stream_for

_USERS_A_SECOND = 2e7


def section(scale: Scale) -> Section:
    cost = 1.0 + scale.users * scale.runs / _USERS_A_SECOND
    tasks = tuple(
        Task(f"hard inputs for {k} shufflers", _measured, (scale, k), cost) for k in scale.shufflers
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, shufflers: int) -> tuple[float, float, float, float, float]:
    """Errors: published constants; ours on ones, on hard inputs; the largest; the lower bound."""
    plan = Plan.best(scale.users, shufflers, scale.privacy, tree="regular")
    epsilon = scale.privacy.epsilon
    hard = stream_for("hard", scale.users, shufflers=shufflers, epsilon=epsilon)
    on_ones = simulate(plan, "ones", runs=scale.runs, seed=scale.seed)
    on_hard = simulate(plan, hard, runs=scale.runs, seed=scale.seed)
    published = Plan.published(scale.users, shufflers, scale.privacy)
    return (
        published.rms_error,
        on_ones.rms_error,
        on_hard.rms_error,
        on_hard.mean_max_error,
        repeats(scale.users, shufflers, epsilon),
    )


def _finding(scale: Scale, results: list[Any]) -> Finding:
    published, ones, hard, largest, bound = zip(*results, strict=True)
    proved = [
        is_proved(scale.users, k, scale.privacy.epsilon, scale.privacy.delta)
        for k in scale.shufflers
    ]
    rows = tuple(
        (k, *(round(value, 2) for value in result), "yes" if is_so else "no")
        for k, result, is_so in zip(scale.shufflers, results, proved, strict=True)
    )
    names = ("as published", "ours, all ones", "ours, hard inputs", "ours, hard inputs, largest")
    curves = zip(names, (published, ones, hard, largest), strict=True)
    x = tuple(float(k) for k in scale.shufflers)
    series = [Line(name, x, tuple(y)) for name, y in curves]
    series.append(Line("lower bound rep", x, tuple(bound), "--"))
    gaps = [above / below for above, below in zip(largest, bound, strict=True)]
    return Finding(
        key="shufflers",
        title="Error against the number of shufflers",
        claim="Theorem 4.1: no algorithm with k shufflers has an error below the order of rep = "
        "n^(1/(2k+1)) / 2 c^(2k/(2k+1)) on the inputs of Section 4, with c = 1/(e^eps + e^-eps).",
        method=f"{scale.users:,} users at {scale.privacy}, {scale.runs} runs. Hard inputs are "
        "drawn from Delta_{n,k}. The bound holds up to a constant; the last column says whether "
        "the theorem's conditions hold at this n.",
        columns=("k", *names, "rep", "proved here"),
        rows=rows,
        figures=(Figure("shufflers k", "error", tuple(series), "semilogy"),),
        checks=(
            Check("largest error on hard inputs / rep, the least", min(gaps), 1.0, float("inf")),
        ),
    )
