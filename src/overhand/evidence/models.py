"""(c) Whom to trust, and what it costs in accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from overhand.baselines import SquareRoot, local_counter, trusted_tree
from overhand.evidence.findings import Check, Figure, Finding, Section, Task, in_turn
from overhand.evidence.sampling import mean_squares, runs_for
from overhand.evidence.scale import Scale
from overhand.model import Privacy
from overhand.plan import Plan
from overhand.plots import Line
from overhand.randomness import SeededRandom
from overhand.simulation import Counter, simulate
from overhand.values import BITS

_SHUFFLERS = 4
_USERS_A_SECOND = 4e7


def _local(users: int, privacy: Privacy) -> Counter:
    return local_counter(users, privacy, BITS)


def _one(users: int, privacy: Privacy) -> Plan:
    return Plan.best(users, 1, privacy, tree="regular", mechanism="best")


def _ours(users: int, privacy: Privacy) -> Plan:
    return Plan.best(users, _SHUFFLERS, privacy, tree="regular", mechanism="best")


def _tree(users: int, privacy: Privacy) -> Plan:
    return trusted_tree(users, privacy, combine=False)


_MODELS: dict[str, Callable[[int, Privacy], Plan | Counter]] = {
    "local": _local,
    "one shuffler": _one,
    f"{_SHUFFLERS} shufflers": _ours,
    "trusted, binary tree": _tree,
    "trusted, best known": SquareRoot,
}


def section(scale: Scale) -> Section:
    cost = 2.0 + scale.users * scale.runs / _USERS_A_SECOND
    tasks = tuple(
        Task(f"{name} at epsilon {epsilon:g}", _measured, (scale, name, epsilon), cost)
        for name in _MODELS
        for epsilon in scale.epsilons
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, name: str, epsilon: float) -> float:
    counter = _MODELS[name](scale.users, Privacy(epsilon, scale.privacy.delta))
    if not isinstance(counter, Plan):
        return simulate(counter, "ones", runs=scale.runs, seed=scale.seed).rms_error
    runs = runs_for(scale.precision, counter.tree.levels)
    random = SeededRandom(np.random.default_rng([scale.seed, round(100 * epsilon)]))
    return math.sqrt(mean_squares(counter, runs, random).mean())


def _finding(scale: Scale, results: list[float]) -> Finding:
    curves = in_turn(_MODELS, results)
    ours = curves[f"{_SHUFFLERS} shufflers"]
    checks = [
        Check(
            f"{_SHUFFLERS} shufflers / {name}, the largest over epsilon",
            max(mine / theirs for mine, theirs in zip(ours, curves[name], strict=True)),
            0.0,
            1.0,
        )
        for name in ("local", "one shuffler")
    ]
    return Finding(
        key="models",
        title="Whom to trust, and what it costs",
        claim="Section 1: with a handful of concurrent shufflers the error is close to that of a "
        "trusted server, and far below the local model's.",
        method=f"{scale.users:,} users holding 1, delta = {scale.privacy.delta:g}; every model "
        "with its best noise. The local one is randomised response; the best known trusted one is "
        "the square-root factorisation with Gaussian noise. What has a tree is measured over so "
        f"many runs that it is within about {100 * scale.precision:g} %, the others over "
        f"{scale.runs}.",
        columns=("rms error", *(f"epsilon {epsilon:g}" for epsilon in scale.epsilons)),
        rows=tuple((name, *(round(e, 2) for e in errors)) for name, errors in curves.items()),
        figures=(
            Figure(
                "epsilon",
                "rms error",
                tuple(Line(name, scale.epsilons, tuple(y)) for name, y in curves.items()),
            ),
        ),
        checks=tuple(checks),
    )
