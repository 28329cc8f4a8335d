"""(d) What exact accounting is worth."""

from __future__ import annotations

from typing import cast

from overhand.evidence.findings import Check, Figure, Finding, Section, Task, in_turn
from overhand.evidence.scale import Scale
from overhand.plan import Composition, Plan
from overhand.plots import Line

_WAYS = ("published", "simple", "advanced", "exact")


def section(scale: Scale) -> Section:
    tasks = tuple(
        Task(f"{way} composition, {k} shufflers", _measured, (scale, way, k))
        for way in _WAYS
        for k in scale.shufflers
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, way: str, shufflers: int) -> float:
    """The largest variance of a batch."""
    if way == "published":
        plan = Plan.published(scale.users, shufflers, scale.privacy)
    else:
        plan = Plan.best(
            scale.users,
            shufflers,
            scale.privacy,
            tree="paper",
            composition=cast(Composition, way),
        )
    return max(plan.level_variances)


def _finding(scale: Scale, results: list[float]) -> Finding:
    by_way = in_turn(_WAYS, results)
    pairs = zip(by_way["published"], by_way["exact"], strict=True)
    gain = [published / exact for published, exact in pairs]
    x = tuple(float(k) for k in scale.shufflers)
    return Finding(
        key="composition",
        title="Published constants, and three ways to compose",
        claim="Corollary 3.5 has a batch variance of order k^2 log(k/delta) / epsilon^2 by simple "
        "composition.",
        method=f"Largest variance of a batch sum in trees with the paper's degrees, "
        f"{scale.users:,} users at {scale.privacy}. 'published' has the constants of the papers; "
        "the others have noise that our accountant finds enough under simple, advanced and exact "
        "composition of the levels.",
        columns=("variance", *(f"k = {k}" for k in scale.shufflers)),
        rows=(
            *((way, *(round(variance, 1) for variance in by_way[way])) for way in _WAYS),
            ("published / exact", *(round(ratio, 1) for ratio in gain)),
        ),
        figures=(
            Figure(
                "shufflers k",
                "largest variance of a batch",
                tuple(Line(way, x, tuple(by_way[way])) for way in _WAYS),
                "semilogy",
            ),
        ),
        checks=(Check("published / exact variance, the least", min(gain), 10.0, float("inf")),),
    )
