"""Plans of shares that many tests look at, and what they leak."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import overhand as oh
from overhand.planning import TreeKind
from overhand.values import BITS, Histogram, Reals, Values, Vectors, values_of
from support.small_plans import PRIVACY

TINY_KINDS: list[tuple[Values, int, list[Any]]] = [
    (BITS, 1, [1, 0, 1]),
    (Reals(-1.0, 3.0), 4, [-1.0, 3.0, 2.0]),
    (Vectors(2), 4, [[0.5, -0.5], [0.0, 1.0], [0.5, 0.0]]),
    (Histogram(3), 1, [2, 0, 2]),
]


def shared(
    values: Values = BITS,
    horizon: int = 300,
    shufflers: int = 2,
    tree: TreeKind = "regular",
    mechanism: str = "shares",
    honest: float = 1.0,
    reports: int = 1,
) -> oh.Plan:
    return oh.Plan.best(
        horizon,
        shufflers,
        PRIVACY,
        values=values,
        tree=tree,
        mechanism=mechanism,
        honest=honest,
        reports=reports,
    )


def truth(values: Values, raw: list[Any]) -> Any:
    rows = values.coordinates(values.rows(raw))
    return rows.astype(np.float64).sum(axis=0)


def leaked(summary: dict[str, Any]) -> float:
    """What the printed shares leak, over the counts that one person can move."""
    values = values_of(summary["values"])
    moved = summary["reports"] * values.sensitivity.l0
    leaks = ("view_distance", "sampling_distance", "wrap_probability")
    total = sum(row[leak] for row in summary["levels"] for leak in leaks)
    return float((1 + math.exp(summary["epsilon"])) * moved * total)
