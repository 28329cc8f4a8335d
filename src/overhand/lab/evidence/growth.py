"""(a), (e) How the error of a sum and the regret of a recommender grow with the number of users."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from overhand.bandits import regret_exponent
from overhand.lab.evidence.accuracy import mean_squares, runs_for
from overhand.lab.evidence.sections import Check, Evidence, Figure, Scale, Section, Task
from overhand.lab.plots import Line
from overhand.lab.regret import Field, Regret, Segments, race, rival
from overhand.model import Floats, Privacy
from overhand.planning import Plan
from overhand.randomness import SeededRandom
from overhand.tree import binary_degrees, published_degrees

_TOLERANCE = 0.03
_JUDGED = (1, 2, 3)  # shufflers whose exponents must be near what is claimed
_BINARY = 0  # stands for log n - 1 shufflers
_SHOWN = {**{f"k = {k}": k for k in (1, 2, 3, 5)}, "k = log n - 1": _BINARY}
_DRAWS = 10**8  # of one task
_FEWEST_RUNS = 4  # of one task
_DRAWS_A_SECOND, _BINARY_DRAWS_A_SECOND = 1.5e7, 2e6
_OURS = "concurrent"
_RIVALS = ("not-private", "trusted", _OURS, "one-shuffler-0.6", "local")
_SHUFFLERS = 4  # of our recommender
_DIMENSION, _ARMS = 9, 10
_GROUP = 5  # races of one task
_ROUNDS_A_SECOND = 1e5


def exponent(horizons: Sequence[int], values: Sequence[float]) -> float:
    """That of the power of n which fits best: the least-squares slope of the logarithms.

    >>> round(exponent((10, 100, 1000), (3.0, 30.0, 300.0)), 6)
    1.0
    """
    return float(np.polyfit(np.log(horizons), np.log(values), 1)[0])


def exponent_std(horizons: Sequence[int], relative_stds: Sequence[float]) -> float:
    """The standard deviation of that exponent, from those of the values, relative to them.

    >>> round(exponent_std((10, 1000), (0.01, 0.01)), 5)  # sqrt(2) 0.01 / log(100)
    0.00307
    """
    centred = np.log(horizons) - np.mean(np.log(horizons))
    return float(np.linalg.norm(centred * relative_stds) / (centred @ centred))


def exponents(scale: Scale) -> Section:
    """(a) One error for every number of users and of shufflers, of runs in several parts."""
    tasks = {
        (k, n): list(_parts(scale, label, k, n))
        for label, k in _SHOWN.items()
        for n in scale.horizons
    }
    return Section(tasks, partial(_growth_of_error, scale))


def _parts(scale: Scale, label: str, shufflers: int, horizon: int) -> Iterator[Task]:
    """Some of the runs for one error each, with a random stream of their own."""
    is_binary = shufflers == _BINARY
    degrees = binary_degrees(horizon) if is_binary else published_degrees(horizon, shufflers)
    draws_a_second = _BINARY_DRAWS_A_SECOND if is_binary else _DRAWS_A_SECOND
    runs = runs_for(scale.precision, len(degrees))
    each = max(_FEWEST_RUNS, _DRAWS * degrees[0] // horizon)
    for number, first in enumerate(range(0, runs, each)):
        some = min(each, runs - first)
        cost = 0.3 + some * horizon / degrees[0] / draws_a_second
        part = scale, shufflers, horizon, number, some
        yield Task(f"error of {label}, {horizon:,} users", _measure, part, cost)


@lru_cache(maxsize=8)
def _plan(shufflers: int, horizon: int, privacy: Privacy) -> Plan:
    if shufflers == _BINARY:
        return Plan.best(horizon, len(binary_degrees(horizon)), privacy, tree="binary")
    return Plan.best(horizon, shufflers, privacy, tree="paper")


def _measure(
    scale: Scale, shufflers: int, horizon: int, number: int, runs: int
) -> tuple[Floats, float]:
    """Mean squares run by run, and the plan's own error."""
    plan = _plan(shufflers, horizon, scale.privacy)
    random = SeededRandom(np.random.default_rng([scale.seed, shufflers, horizon, number]))
    return mean_squares(plan, runs, random), plan.rms_error


def _growth_of_error(
    scale: Scale, found: dict[tuple[int, int], list[tuple[Floats, float]]]
) -> Evidence:
    rows, lines, checks = [], [], []
    for label, k in _SHOWN.items():
        errors, log_stds = [], []
        for n in scale.horizons:
            squares = np.concatenate([of_part for of_part, _ in found[k, n]])
            mean = float(squares.mean())
            spread = float(squares.std(ddof=1)) if len(squares) > 1 else math.nan
            errors.append(math.sqrt(mean))
            log_stds.append(spread / (2 * mean * math.sqrt(len(squares))))
        measured = exponent(scale.horizons, errors)
        predicted = exponent(scale.horizons, [found[k, n][0][1] for n in scale.horizons])
        std = exponent_std(scale.horizons, log_stds)
        claimed = 1 / (2 * k + 1)
        lines.append(Line(label, scale.horizons, tuple(errors)))
        rows.append(
            (
                label,
                *(round(error, 1) for error in errors),
                f"{measured:.3f} +- {std:.3f}",
                f"{predicted:.3f}",
                "log" if k == _BINARY else f"1/{2 * k + 1} = {claimed:.3f}",
            )
        )
        if k in _JUDGED:
            checks.append(Check.near(f"exponent for k = {k}", measured, claimed, _TOLERANCE))
    horizons = (f"n = {n:,}" for n in scale.horizons)
    return Evidence(
        key="exponents",
        title="Error against the number of users",
        claim="Theorem 3.4: with k shufflers the error grows as n^(1/(2k+1)); Corollary 3.3: with "
        "log n - 1 of them it is polylogarithmic.",
        method=f"Trees with the paper's degrees, noise by exact accounting at {scale.privacy}, all "
        "users holding 1; root mean square error over all times and over enough runs to be within "
        f"about {100 * scale.precision:g} %. Exponents are least-squares slopes of log error "
        "against log n, plus or minus a standard deviation; 'predicted' is the slope of the "
        "errors that the plans state, which has no noise. It differs from the claim because n is "
        "small: the fewer users a batch has, the more noise it needs, and degrees are whole "
        "numbers.",
        columns=("shufflers", *horizons, "exponent", "predicted", "claimed"),
        rows=tuple(rows),
        figures=(Figure("users n", "rms error", tuple(lines)),),
        checks=tuple(checks),
    )


def regret(scale: Scale) -> Section:
    """(e) Every rival at every number of users, some runs per task; and the bound's exponents."""
    tasks = {
        (name, n): [
            Task(
                f"regret of {name}, {n:,} users",
                _race,
                (scale, name, n, first),
                1.0 + _GROUP * n / _ROUNDS_A_SECOND,
            )
            for first in range(0, scale.bandit_runs, _GROUP)
        ]
        for name in _RIVALS
        for n in scale.rounds
    }
    return Section(tasks, partial(_growth_of_regret, scale))


def _race(scale: Scale, name: str, rounds: int, first: int) -> Regret:
    """All rivals meet the same users: those of the same seed."""
    place = Segments(_DIMENSION, _ARMS)
    one = rival(name, Field(rounds, _SHUFFLERS, scale.privacy, place.dimension))
    runs = range(first, min(first + _GROUP, scale.bandit_runs))
    (missed,) = race(place, rounds, [one], runs, scale.seed)
    return missed


def _claimed_exponent(shufflers: int) -> float:
    return (shufflers + 1) / (2 * shufflers + 1)


def _growth_of_regret(scale: Scale, parts: dict[tuple[str, int], list[Regret]]) -> Evidence:
    found = {key: Regret.join(of_key) for key, of_key in parts.items()}
    measured = {
        name: exponent(scale.rounds, [found[name, n].mean for n in scale.rounds])
        for name in _RIVALS
    }
    longest = {name: found[name, scale.rounds[-1]] for name in _RIVALS}
    lines = tuple(
        Line(one.rival.label, tuple(map(float, one.t)), tuple(one.curves.mean(axis=0).tolist()))
        for one in longest.values()
    )
    bounds = {k: regret_exponent(k) for k in _JUDGED}
    none = ("",) * len(scale.rounds)
    of_bounds = (
        (f"bound, k = {k}", *none, f"{of_bound:.3f}", f"(k+1)/(2k+1) = {_claimed_exponent(k):.3f}")
        for k, of_bound in bounds.items()
    )
    to_local = longest[_OURS].mean / longest["local"].mean
    ours = f"exponent of our regret, {_SHUFFLERS} shufflers"
    return Evidence(
        key="regret",
        title="A recommender that learns",
        claim="Theorem 5.1: LinUCB over k concurrent shufflers has a regret of at most the order "
        "of n^((k+1)/(2k+1)); Corollary 5.2: with log n of them, sqrt(n).",
        method=f"Users of audiences that change four times, {_ARMS} arms, {_DIMENSION} features, "
        f"{scale.privacy}, {scale.bandit_runs} runs, the same learner for all; plus or minus one "
        "standard error. Measured exponents are least-squares slopes. The theorem is about the "
        "worst users, these are one example, so growth may be slower. 'Bound' is the theorem's own "
        f"formula at large n. The curves are those of {scale.rounds[-1]:,} users.",
        columns=("regret", *(f"n = {n:,}" for n in scale.rounds), "exponent", "claimed"),
        rows=(*(_row(scale, name, found, measured[name]) for name in _RIVALS), *of_bounds),
        figures=(Figure("users", "regret", lines, "semilogy"),),
        checks=(
            Check("ours / local", to_local, 0.0, 0.5),
            Check(ours, measured[_OURS], 0.0, _claimed_exponent(_SHUFFLERS)),
            *(
                Check.near(
                    f"exponent of the bound, k = {k}", of_bound, _claimed_exponent(k), _TOLERANCE
                )
                for k, of_bound in bounds.items()
            ),
        ),
    )


def _row(
    scale: Scale, name: str, found: dict[tuple[str, int], Regret], measured: float
) -> tuple[str, ...]:
    raced = [found[name, n] for n in scale.rounds]
    std = exponent_std(scale.rounds, [one.standard_error / one.mean for one in raced])
    claimed = f"at most {_claimed_exponent(_SHUFFLERS):.3f}" if name == _OURS else ""
    cells = (f"{one.mean:,.0f} +- {one.standard_error:,.0f}" for one in raced)
    return (raced[-1].rival.label, *cells, f"{measured:.3f} +- {std:.3f}", claimed)
