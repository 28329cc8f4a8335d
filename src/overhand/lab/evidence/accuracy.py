"""(b), (c), (d), (f) What plans reach and cost: shufflers, trust, composition, messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from overhand.lab.baselines import SquareRoot, local_counter, trusted_tree
from overhand.lab.evidence.sections import Check, Evidence, Figure, Scale, Section, Task, curves
from overhand.lab.lower_bound import is_proved, repeats
from overhand.lab.plots import Line
from overhand.lab.simulation import Counter, CoverNoise, simulate, stream_for
from overhand.model import Floats, Privacy
from overhand.planning import Composition, Plan, kinds_of
from overhand.randomness import Random, SeededRandom
from overhand.tree import RegularTree
from overhand.values import BITS

_CELLS = 1 << 20  # numbers at a time: more do not fit the cache, fewer are mostly overhead
_SIDE_BY_SIDE = 4  # runs at a time, at least: the walk along the tree is shared
_WALK = 1.16
"""The standard deviation of the mean square of a random walk, over its mean (2 / sqrt(3))."""
_USERS_A_SECOND = {"hard inputs": 2e7, "models": 4e7}
_WAYS = ("published", "simple", "advanced", "exact")
_BY_SERVICES = kinds_of(BITS, "services")  # on one level, whatever the number of shufflers
_MECHANISMS = ("published", *kinds_of(BITS, "users"), *_BY_SERVICES)
_OURS = "4 shufflers"
_MODELS: dict[str, Callable[[int, Privacy], Counter]] = {
    "local": lambda users, privacy: local_counter(users, privacy, BITS),
    "one shuffler": lambda users, privacy: Plan.best(users, 1, privacy, mechanism="best"),
    _OURS: lambda users, privacy: Plan.best(users, 4, privacy, mechanism="best"),
    "two services": lambda users, privacy: Plan.best(users, 1, privacy, mechanism="pairs"),
    "trusted, binary tree": lambda users, privacy: trusted_tree(users, privacy, combine=False),
    "trusted, best known": SquareRoot,
}


def runs_for(precision: float, levels: int) -> int:
    """How many runs tell the root mean square error with this relative standard deviation.

    The noise of a level is a random walk until the level above is full. Those of the highest level
    take the whole run, with a share of 1 / levels of all squares; of the others there are many.

    >>> runs_for(0.01, levels=1), runs_for(0.01, levels=3)
    (3364, 374)
    """
    return math.ceil((_WALK / (2 * levels * precision)) ** 2)


def mean_squares(plan: Plan, runs: int, random: Random, users: int | None = None) -> Floats:
    """Run by run, the mean over all times of the squared error, all users holding the high end.

    A coordinate of a run counts as a run of its own. Of as many users as are expected, or of
    `users`.

    It is what `simulate(plan, "ones")` measures, for whole values and without their estimates.
    Users who all hold the same extreme value make the largest error that pending users can. What
    an estimate is off by is then known between the ends of batches, so that one draw per batch
    gives the error at every time: with one shuffler a hundred times less work than a
    simulation, which goes through users one by one.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> measured = mean_squares(plan, 4000, oh.seeded_random(1)).mean() ** 0.5
    >>> bool(abs(measured / plan.rms_error - 1) < 0.02)
    True
    """
    tree, totals = RegularTree(users or plan.horizon, plan.tree.degrees), []
    missed = plan.pending_weight * np.arange(tree.lowest, dtype=np.float64)
    side_by_side = max(_SIDE_BY_SIDE, _CELLS // max(1, tree.blocks))
    for done in range(0, runs, side_by_side):
        group = min(side_by_side, runs - done)
        columns = group * plan.values.dimension
        noise, at_once = CoverNoise(plan, random, runs=(group,)), max(1, _CELLS // columns)
        total, after = np.zeros(columns), np.zeros((1, columns))
        for first in range(0, tree.blocks, at_once):
            last = min(first + at_once, tree.blocks)
            after = noise.at(first, last, np.empty(0)).reshape(last - first + 1, columns)
            total += _squares(after[:-1], missed)
        total += _squares(after[-1:], missed[: tree.horizon - tree.covered + 1])
        totals.append(total / tree.horizon)
    return np.concatenate(totals)


def _squares(noise: Floats, missed: Floats) -> Floats:
    """Run by run, the sum of (noise - missed)^2 over all batches and all pending users."""
    squares: Any = np.einsum("br,br->r", noise, noise)
    return np.asarray(
        len(missed) * squares
        - 2 * missed.sum() * noise.sum(axis=0)
        + len(noise) * float(missed @ missed)
    )


def shufflers(scale: Scale) -> Section:
    """(b) What more shufflers gain, and the bound that no algorithm can beat."""
    cost = 1.0 + scale.users * scale.runs / _USERS_A_SECOND["hard inputs"]
    tasks = {
        k: [Task(f"hard inputs for {k} shufflers", _errors_of, (scale, k), cost)]
        for k in scale.shufflers
    }
    return Section(tasks, partial(_judge_shufflers, scale))


def _errors_of(scale: Scale, shufflers: int) -> tuple[float, float, float, float, float]:
    """Errors: published constants; ours on ones, on hard inputs; the largest; the lower bound."""
    plan = Plan.best(scale.users, shufflers, scale.privacy)
    epsilon = scale.privacy.epsilon
    hard = stream_for("hard", scale.users, shufflers=shufflers, epsilon=epsilon)
    on_ones, on_hard = (
        simulate(plan, stream, runs=scale.runs, seed=scale.seed) for stream in ("ones", hard)
    )
    return (
        Plan.published(scale.users, shufflers, scale.privacy).rms_error,
        on_ones.rms_error,
        on_hard.rms_error,
        on_hard.mean_max_error,
        repeats(scale.users, shufflers, epsilon),
    )


def _judge_shufflers(scale: Scale, found: dict[int, list[Any]]) -> Evidence:
    privacy, results = scale.privacy, [result for (result,) in found.values()]
    names = ("as published", "ours, all ones", "ours, hard inputs", "ours, hard inputs, largest")
    *errors, bound = zip(*results, strict=True)
    x = tuple(map(float, scale.shufflers))
    of_bound = Line("lower bound rep", x, bound, "--")
    lines = (*curves(x, dict(zip(names, errors, strict=True))), of_bound)
    ratio = "least ratio of the largest error on hard inputs to rep"
    gaps = [above / below for above, below in zip(errors[-1], bound, strict=True)]
    return Evidence(
        key="shufflers",
        title="Error against the number of shufflers",
        claim="Theorem 4.1: no algorithm with k shufflers has an error below the order of rep = "
        "n^(1/(2k+1)) / 2 c^(2k/(2k+1)) on the inputs of Section 4, with c = 1/(e^eps + e^-eps).",
        method=f"{scale.users:,} users at {privacy}, {scale.runs} runs. Hard inputs are "
        "drawn from Delta_{n,k}. The bound holds up to a constant; the last column says whether "
        "the theorem's conditions hold at this n.",
        columns=("k", *names, "rep", "proved here"),
        rows=tuple(
            (
                k,
                *(round(value, 2) for value in result),
                "yes" if is_proved(scale.users, k, privacy.epsilon, privacy.delta) else "no",
            )
            for k, result in zip(scale.shufflers, results, strict=True)
        ),
        figures=(Figure("shufflers k", "error", lines, "semilogy"),),
        checks=(Check(ratio, min(gaps), 1.0, float("inf")),),
    )


def models(scale: Scale) -> Section:
    """(c) Whom to trust, and what it costs in accuracy."""
    cost = 2.0 + scale.users * scale.runs / _USERS_A_SECOND["models"]
    tasks = {
        name: [
            Task(f"{name} at epsilon {e:g}", _error_of_model, (scale, name, e), cost)
            for e in scale.epsilons
        ]
        for name in _MODELS
    }
    return Section(tasks, partial(_judge_models, scale))


def _error_of_model(scale: Scale, name: str, epsilon: float) -> float:
    counter = _MODELS[name](scale.users, Privacy(epsilon, scale.privacy.delta))
    if not isinstance(counter, Plan):
        return simulate(counter, "ones", runs=scale.runs, seed=scale.seed).rms_error
    # Noise of the services cancels from block to block: its error is no random walk.
    is_walk = counter.noise_by == "users"
    runs = runs_for(scale.precision, counter.tree.levels) if is_walk else scale.runs
    random = SeededRandom(np.random.default_rng([scale.seed, round(100 * epsilon)]))
    return math.sqrt(mean_squares(counter, runs, random).mean())


def _judge_models(scale: Scale, errors: dict[str, list[float]]) -> Evidence:
    checks = (
        Check(
            f"{_OURS} / {name}, the largest over epsilon",
            max(ours / theirs for ours, theirs in zip(errors[_OURS], errors[name], strict=True)),
            0.0,
            1.0,
        )
        for name in ("local", "one shuffler")
    )
    return Evidence(
        key="models",
        title="Whom to trust, and what it costs",
        claim="Section 1: with a handful of concurrent shufflers the error is close to that of a "
        "trusted server, and far below the local model's.",
        method=f"{scale.users:,} users holding 1, delta = {scale.privacy.delta:g}; every model "
        "with its best noise. The local one is randomised response; the best known trusted one is "
        "the square-root factorisation with Gaussian noise. Models with a tree are measured over "
        f"enough runs to be within about {100 * scale.precision:g} %, the others over "
        f"{scale.runs}.",
        columns=("rms error", *(f"epsilon {epsilon:g}" for epsilon in scale.epsilons)),
        rows=tuple((name, *(round(e, 2) for e in of_model)) for name, of_model in errors.items()),
        figures=(Figure("epsilon", "rms error", curves(scale.epsilons, errors)),),
        checks=tuple(checks),
    )


def composition(scale: Scale) -> Section:
    """(d) What exact accounting is worth."""
    tasks = {
        way: [
            Task(f"{way} composition, {k} shufflers", _variance, (scale, way, k))
            for k in scale.shufflers
        ]
        for way in _WAYS
    }
    return Section(tasks, partial(_judge_composition, scale))


def _variance(scale: Scale, way: str, shufflers: int) -> float:
    """The largest of a batch."""
    asked = scale.users, shufflers, scale.privacy
    if way == "published":
        return max(Plan.published(*asked).level_variances)
    return max(Plan.best(*asked, tree="paper", composition=cast(Composition, way)).level_variances)


def _judge_composition(scale: Scale, variances: dict[str, list[float]]) -> Evidence:
    pairs = zip(variances["published"], variances["exact"], strict=True)
    gain = [published / exact for published, exact in pairs]
    rows = {**variances, "published / exact": gain}
    lines = curves(scale.shufflers, variances)
    return Evidence(
        key="composition",
        title="Published constants, and three ways to compose",
        claim="Corollary 3.5 has a batch variance of order k^2 log(k/delta) / epsilon^2 by simple "
        "composition.",
        method=f"Largest variance of a batch sum in trees with the paper's degrees, "
        f"{scale.users:,} users at {scale.privacy}. 'published' has the constants of the papers; "
        "the others have the noise that our accountant certifies under simple, advanced and exact "
        "composition of the levels.",
        columns=("variance", *(f"k = {k}" for k in scale.shufflers)),
        rows=tuple((name, *(round(value, 1) for value in row)) for name, row in rows.items()),
        figures=(Figure("shufflers k", "largest variance of a batch", lines, "semilogy"),),
        checks=(Check("published / exact variance, the least", min(gain), 10.0, float("inf")),),
    )


def messages(scale: Scale) -> Section:
    """(f) What a user sends."""
    tasks = {
        name: [
            Task(f"messages of {name}, {k} shufflers", _plan_with, (scale, name, k))
            for k in scale.shufflers
        ]
        for name in _MECHANISMS
    }
    return Section(tasks, partial(_judge_messages, scale))


def _plan_with(scale: Scale, mechanism: str, shufflers: int) -> tuple[int, int, float]:
    """Messages, bytes and error of a plan."""
    asked = scale.users, shufflers, scale.privacy
    if mechanism == "published":
        plan = Plan.published(*asked)
    else:
        plan = Plan.best(*asked, mechanism=mechanism)
    return plan.messages_per_user, -(-plan.bits_per_user // 8), round(plan.rms_error, 1)


def _judge_messages(scale: Scale, plans: dict[str, list[tuple[int, int, float]]]) -> Evidence:
    lines = curves(
        scale.shufflers, {name: [row[0] for row in rows] for name, rows in plans.items()}
    )
    return Evidence(
        key="messages",
        title="What a user sends",
        claim="Corollary 3.5 and Section 2.3: messages of one bit each, per level.",
        method=f"Plans for {scale.users:,} users at {scale.privacy}. Bytes are those of the "
        "messages themselves and of numbers in the clear; sealing adds 48 to each message. Pairs "
        "and ballots need two services that do not collude, have one level of blocks, and are "
        "outside the shuffle model.",
        columns=("mechanism", "shufflers", "messages per user", "bytes per user", "rms error"),
        rows=tuple(
            (name, "" if name in _BY_SERVICES else k, *row)
            for name, of_name in plans.items()
            for k, row in zip(scale.shufflers, of_name, strict=True)
            if name not in _BY_SERVICES or k == scale.shufflers[0]
        ),
        figures=(Figure("shufflers k", "messages per user", lines, "semilogy"),),
    )
