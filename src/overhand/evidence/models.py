"""(c) Whom to trust, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Callable

from overhand.baselines import SquareRoot, local_counter, trusted_tree
from overhand.evidence.findings import Check, Figure, Finding, Section, Series, Task, in_turn
from overhand.evidence.scale import Scale
from overhand.model import Privacy
from overhand.plan import Plan
from overhand.simulation import Counter, PlanCounter, simulate
from overhand.values import BITS

_EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
_SHUFFLERS = 4


def _local(users: int, privacy: Privacy) -> Counter:
    return local_counter(users, privacy, BITS)


def _one(users: int, privacy: Privacy) -> Counter:
    return PlanCounter(Plan.best(users, 1, privacy, tree="regular", mechanism="best"))


def _ours(users: int, privacy: Privacy) -> Counter:
    return PlanCounter(Plan.best(users, _SHUFFLERS, privacy, mechanism="best"))


def _tree(users: int, privacy: Privacy) -> Counter:
    return PlanCounter(trusted_tree(users, privacy, combine=False))


_MODELS: dict[str, Callable[[int, Privacy], Counter]] = {
    "local": _local,
    "one shuffler": _one,
    f"{_SHUFFLERS} shufflers": _ours,
    "trusted, binary tree": _tree,
    "trusted, best known": SquareRoot,
}


def section(scale: Scale) -> Section:
    tasks = tuple(
        Task(f"{name} at epsilon {epsilon:g}", _measured, (scale, name, epsilon))
        for name in _MODELS
        for epsilon in _EPSILONS
    )
    return Section(tasks, lambda results: _finding(scale, results))


def _measured(scale: Scale, name: str, epsilon: float) -> float:
    counter = _MODELS[name](scale.users, Privacy(epsilon, scale.privacy.delta))
    return simulate(counter, "ones", runs=scale.runs, seed=scale.seed).rms_error


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
        method=f"{scale.users:,} users holding 1, delta = {scale.privacy.delta:g}, {scale.runs} "
        "runs; every model with its best noise. The local one is randomised response; the best "
        "known trusted one is the square-root factorisation with Gaussian noise.",
        columns=("rms error", *(f"epsilon {epsilon:g}" for epsilon in _EPSILONS)),
        rows=tuple((name, *(round(e, 2) for e in errors)) for name, errors in curves.items()),
        figures=(
            Figure(
                "epsilon",
                "rms error",
                tuple(Series(name, _EPSILONS, tuple(y)) for name, y in curves.items()),
            ),
        ),
        checks=tuple(checks),
    )
