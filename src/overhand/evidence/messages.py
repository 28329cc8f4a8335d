"""(f) What a user sends."""

from __future__ import annotations

from typing import Any

from overhand.evidence.findings import Figure, Finding, Section, Task
from overhand.evidence.scale import Scale
from overhand.plan import Plan
from overhand.plots import Line

_KINDS = ("published", "coins", "shares")


def section(scale: Scale) -> Section:
    tasks = tuple(
        Task(f"messages of {kind}, {k} shufflers", _measured, (scale, kind, k))
        for kind in _KINDS
        for k in scale.shufflers
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, kind: str, shufflers: int) -> tuple[int, int, float]:
    """Messages, bits and error of a plan."""
    if kind == "published":
        plan = Plan.published(scale.users, shufflers, scale.privacy)
    elif kind == "coins":
        plan = Plan.best(scale.users, shufflers, scale.privacy, tree="regular")
    else:
        plan = Plan.best(scale.users, shufflers, scale.privacy, tree="regular", mechanism="shares")
    return plan.messages_per_user, plan.bits_per_user, plan.rms_error


def _finding(scale: Scale, results: list[Any]) -> Finding:
    asked = [(kind, k) for kind in _KINDS for k in scale.shufflers]
    rows = tuple(
        (kind, k, messages, -(-bits // 8), round(error, 1))
        for (kind, k), (messages, bits, error) in zip(asked, results, strict=True)
    )
    series = tuple(
        Line(
            kind,
            tuple(float(row[1]) for row in rows if row[0] == kind),
            tuple(float(row[2]) for row in rows if row[0] == kind),
        )
        for kind in _KINDS
    )
    return Finding(
        key="messages",
        title="What a user sends",
        claim="Corollary 3.5 and Section 2.3: messages of one bit each, per level.",
        method=f"Plans for {scale.users:,} users at {scale.privacy}. Bytes are those of the "
        "messages themselves; sealing adds 48 to each message.",
        columns=("mechanism", "shufflers", "messages a user", "bytes a user", "rms error"),
        rows=rows,
        figures=(Figure("shufflers k", "messages a user", series, "semilogy"),),
    )
