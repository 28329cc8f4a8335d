"""Races for tests: a small field of rivals, and a test of means."""

from __future__ import annotations

import math
from functools import cache

from overhand.lab.regret.rivals import Field, Rival, Sums, rival
from overhand.model import Floats
from support.sampling import FALSE_FAIL, FALSE_PASS, TooFewSamples
from support.small_plans import PRIVACY

ROOT = math.sqrt(0.5)
SMALL = Field(horizon=2000, shufflers=3, privacy=PRIVACY, dimension=5)
PLANNED = ["one-shuffler-0.5", "one-shuffler-0.6", "concurrent", "stand-in", "binary", "services"]


def assert_regret(missed: Floats, expected: float, most: float, *, discrepancy: float) -> None:
    """The mean of independent numbers in [0, most]: Hoeffding."""
    radii = [
        most * math.sqrt(math.log(2 / r) / (2 * missed.size)) for r in (FALSE_FAIL, FALSE_PASS)
    ]
    if sum(radii) > discrepancy:
        raise TooFewSamples(f"{missed.size} users tell regret within {radii}")
    assert missed.min() >= 0
    assert missed.max() <= most + 1e-6
    off = abs(float(missed.mean()) - expected)
    assert off <= radii[0], f"regret off by {off:.4f} > {radii[0]:.4f}"


@cache
def small(name: str) -> Rival:
    return rival(name, SMALL)


def release_times(sums: Sums, horizon: int) -> list[int]:
    times = [sums.next_release(0)]
    while times[-1] <= horizon:
        times.append(sums.next_release(times[-1]))
    return times
