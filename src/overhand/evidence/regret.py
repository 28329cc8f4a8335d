"""(e) Regret of the private recommender, and the exponents of its bound."""

from __future__ import annotations

from typing import Any, NamedTuple

from overhand.bandits import regret_exponent
from overhand.evidence.findings import Check, Figure, Finding, Section, Series, Task
from overhand.evidence.scale import Scale
from overhand.simulation.regret import Field, Segments, measure, rival

_RIVALS = ("not-private", "local", "one-shuffler-0.6", "concurrent", "trusted")
_COUNTS = (1, 2, 3)
_SHUFFLERS = 4
_DIMENSION, _ARMS = 9, 10
_TOLERANCE = 0.03


class Raced(NamedTuple):
    """Final regret with its standard error, and the mean curve."""

    label: str
    mean: float
    error: float
    t: tuple[float, ...]
    curve: tuple[float, ...]


def section(scale: Scale) -> Section:
    races = tuple(Task(f"regret of {name}", _raced, (scale, name)) for name in _RIVALS)
    slopes = tuple(Task(f"regret bound, {k} shufflers", regret_exponent, (k,)) for k in _COUNTS)
    return Section(races + slopes, lambda results: _finding(scale, results))


def _raced(scale: Scale, name: str) -> Raced:
    """All rivals meet the same users: those of the same seed."""
    place = Segments(_DIMENSION, _ARMS)
    field = Field(scale.rounds, _SHUFFLERS, scale.privacy, place.dimension)
    (found,) = measure(
        place, scale.rounds, [rival(name, field)], runs=scale.bandit_runs, seed=scale.seed
    )
    curve = found.regret.curves.mean(axis=0)
    return Raced(
        found.rival.label,
        found.mean,
        found.standard_error,
        tuple(found.regret.t.astype(float).tolist()),
        tuple(curve.tolist()),
    )


def _finding(scale: Scale, results: list[Any]) -> Finding:
    races: list[Raced] = results[: len(_RIVALS)]
    slopes = dict(zip(_COUNTS, results[len(_RIVALS) :], strict=True))
    by_name = dict(zip(_RIVALS, races, strict=True))
    bounds = tuple(
        (f"exponent of the bound, k = {k}", round(slope, 3), f"(k+1)/(2k+1) = {_claimed(k):.3f}")
        for k, slope in slopes.items()
    )
    return Finding(
        key="regret",
        title="A recommender that learns",
        claim="Theorem 5.1: LinUCB over k concurrent shufflers has a regret of order "
        "n^((k+1)/(2k+1)); Corollary 5.2: with log n of them, sqrt(n).",
        method=f"{scale.rounds:,} users of changing audiences, {_ARMS} arms, {_DIMENSION} "
        f"features, {scale.privacy}, {scale.bandit_runs} runs, the same learner for all; plus or "
        "minus one standard error. The exponents are those of the theorem's bound at large n.",
        columns=("who", "regret", "claimed, or standard error"),
        rows=(
            *((one.label, round(one.mean), f"+- {one.error:.0f}") for one in races),
            *bounds,
        ),
        figures=(
            Figure(
                "users",
                "regret",
                tuple(Series(one.label, one.t, one.curve, "-") for one in races),
                "plot",
            ),
        ),
        checks=(
            Check("ours / local", by_name["concurrent"].mean / by_name["local"].mean, 0.0, 0.5),
            *(
                Check(
                    f"exponent of the bound, k = {k}",
                    slope,
                    _claimed(k) - _TOLERANCE,
                    _claimed(k) + _TOLERANCE,
                )
                for k, slope in slopes.items()
            ),
        ),
    )


def _claimed(shufflers: int) -> float:
    return (shufflers + 1) / (2 * shufflers + 1)
