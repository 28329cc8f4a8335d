"""A learner need not use prefix sums: rules that weigh the nodes of the cover, measured.

python -m benchmarks.weighting            the table of docs/bandits.md: half an hour on two cores
python -m benchmarks.weighting films      only the rows of one environment

All rivals learn by each rule from the same users, with the same noise: normal noise of the plan's
variance stands in for the mechanisms'.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

import overhand as oh
from overhand.bandits import LinUCB, Policy, Practical
from overhand.model import Floats
from overhand.plan import Plan, combined, own_weight
from overhand.randomness import Random, generator_of
from overhand.simulation.regret import (
    Diverse,
    Environment,
    Field,
    Films,
    FilmsByCohort,
    Fixed,
    PlanSums,
    Rival,
    Segments,
    measure,
    rival,
)
from overhand.simulation.regret.sums import (
    GrowingSums,
    LocalSums,
    Releases,
    Sums,
    TrustedSums,
)

SEED = 77  # the rules were chosen on the users of another
DELTA = 1e-6
REWARD_VARIANCE, NOISE_FACTOR = 1.0, 2.0
"""Of centred rewards: s^2, and 1 + |theta|^2 / 2, as in `Practical`."""

Noise = Callable[[float], Floats]
"""Of a given variance, for every coordinate of every run."""


@dataclass(frozen=True)
class Part:
    """A node of the cover, or some of one level side by side: an estimate for every run."""

    users: int
    variance: float
    value: Floats

    def plus(self, after: Part) -> Part:
        return Part(
            self.users + after.users, self.variance + after.variance, self.value + after.value
        )


def _pushed(parts: list[Part], part: Part) -> None:
    """Append a part, after joining those of equal size as a binary counter carries."""
    while parts and parts[-1].users == part.users:
        part = parts.pop().plus(part)
    parts.append(part)


class _Cover(Releases):
    """Gives the parts of the cover as rows that end with their users and their variance."""

    def __init__(self, sums: Sums, noise: Noise) -> None:
        super().__init__(sums)
        self._draw = noise

    @abstractmethod
    def _with(self, users: int, total: Floats) -> Sequence[Part]:
        """The cover once these users have added theirs."""

    def after(self, rows: Floats) -> tuple[Floats, float]:
        parts = self._with(rows.shape[1], rows.sum(axis=1))
        laws = np.array([[part.users, part.variance] for part in parts])
        of_runs = np.broadcast_to(laws[:, np.newaxis], (len(parts), len(rows), 2))
        values = np.stack([part.value for part in parts])
        return np.concatenate([values, of_runs], axis=-1), 0.0


class _TreeCover(_Cover):
    """The nodes of a plan, each combined with its children; joined within a level if asked."""

    def __init__(self, sums: Sums, noise: Noise, plan: Plan, *, joined: bool) -> None:
        super().__init__(sums, noise)
        self._sizes = plan.tree.sizes
        self._variances = [mechanism.variance for mechanism in plan.mechanisms]
        self._joined = joined
        self._open: list[Floats] = [np.zeros(1) for _ in self._sizes]
        self._parts: list[list[Part]] = [[] for _ in self._sizes]
        self._users = 0

    def _with(self, users: int, total: Floats) -> Sequence[Part]:
        self._users += users
        for level, (size, variance) in enumerate(zip(self._sizes, self._variances, strict=True)):
            self._open[level] = self._open[level] + total
            if self._users % size:
                continue
            part = Part(size, variance, self._open[level] + self._draw(variance))
            self._open[level] = np.zeros(1)
            if level:
                part = self._combined(part, self._parts[level - 1])
                self._parts[level - 1] = []
            if self._joined:
                _pushed(self._parts[level], part)
            else:
                self._parts[level].append(part)
        return [part for of_level in reversed(self._parts) for part in of_level]

    @staticmethod
    def _combined(own: Part, children: Sequence[Part]) -> Part:
        below = children[0]
        for child in children[1:]:
            below = below.plus(child)
        weight = own_weight(own.variance, below.variance)
        variance = combined(own.variance, below.variance, weight, power=2)
        return Part(own.users, variance, combined(own.value, below.value, weight))


class _BinaryCover(_Cover):
    """Dyadic parts: of a trusted tree, or of users who add noise of their own.

    Releases come at multiples of 8 to 64 users, so that all nodes of a cover end at one.
    """

    def __init__(self, sums: Sums, noise: Noise, *, of_node: float, of_user: float) -> None:
        super().__init__(sums, noise)
        self._of_node, self._of_user = of_node, of_user
        self._parts: list[Part] = []  # without the noise of nodes
        self._released: list[Part] = []

    def next_release(self, t: int) -> int:
        step = 8
        while step < 64 and t >= 400 * step:
            step *= 2
        return (t // step + 1) * step

    def _with(self, users: int, total: Floats) -> Sequence[Part]:
        variance = users * self._of_user
        if variance:
            total = total + self._draw(variance)
        _pushed(self._parts, Part(users, variance, total))
        newest = self._parts[-1]
        if self._of_node:
            newest = Part(newest.users, self._of_node, newest.value + self._draw(self._of_node))
        self._released = [*self._released[: len(self._parts) - 1], newest]
        return self._released


class _GrowingCover(_Cover):
    """One batch after the other, each larger than the one before."""

    def __init__(self, sums: GrowingSums, noise: Noise) -> None:
        super().__init__(sums, noise)
        self._mechanisms = iter(sums.batches.mechanisms)
        self._parts: list[Part] = []

    def _with(self, users: int, total: Floats) -> Sequence[Part]:
        variance = next(self._mechanisms).variance
        self._parts.append(Part(users, variance, total + self._draw(variance)))
        return self._parts


@dataclass(frozen=True)
class Covers(Sums):
    """The sums of a rival, as the parts of their covers."""

    of: Sums
    dimension: int
    joined: bool

    @property
    def lowest(self) -> int:  # type: ignore[override]
        return self.of.lowest

    def next_release(self, t: int) -> int:
        if isinstance(self.of, PlanSums):
            return t - t % self.lowest + self.lowest
        return self.of.next_release(t)

    def std(self, t: int) -> float:
        return self.of.std(t)

    @property
    def delta_spent(self) -> float:
        return self.of.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        random, shape = generator_of(randoms[0]), (len(randoms), self.dimension)

        def noise(variance: float) -> Floats:
            return random.normal(0.0, math.sqrt(variance), shape)

        match self.of:
            case PlanSums(plan=plan):
                return _TreeCover(self, noise, plan, joined=self.joined)
            case TrustedSums(tree=tree):
                return _BinaryCover(self, noise, of_node=tree.step_std**2, of_user=0.0)
            case LocalSums(counter=counter):
                return _BinaryCover(self, noise, of_node=0.0, of_user=counter.user_variance)
            case GrowingSums():
                return _GrowingCover(self.of, noise)
        raise TypeError(f"{self.of} have no cover")


@dataclass(frozen=True)
class Rule(LinUCB):
    """Learns from the parts of a cover."""

    joins = False
    """Whether parts of one level are joined to fewer and larger ones."""

    def policy(self, t: int, total: Floats, std: float) -> Policy:
        vectors, grams = self.moments.split(total[..., :-2])
        users, variances = total[..., -2:-1], total[..., -1:]
        theta, width = self.learnt(vectors[..., np.newaxis], grams, users, variances)
        scales = self.constants.scales
        return Policy(t, theta[..., 0] * scales, width * scales[:, np.newaxis])

    def learnt(
        self, vectors: Floats, grams: Floats, users: Floats, variances: Floats
    ) -> tuple[Floats, Floats]:
        """Theta, as a column, and widths; the first axis of what is given is that of parts."""
        raise NotImplementedError


@dataclass(frozen=True)
class PrefixSums(Rule):
    """All parts count alike: the rule of `LinUCB`."""

    def policy(self, t: int, total: Floats, std: float) -> Policy:
        std = math.sqrt(float(total[:, 0, -1].sum()))
        return LinUCB.policy(self, t, total[..., :-2].sum(axis=0), std)


@dataclass(frozen=True)
class LeastSquares(Rule):
    """Generalised least squares over the nodes, without directions that do not stand out."""

    ridge: float = 0.3
    bonus: float = 0.1

    def learnt(
        self, vectors: Floats, grams: Floats, users: Floats, variances: Floats
    ) -> tuple[Floats, Floats]:
        seen, axes = np.linalg.eigh(grams)
        seen = np.where(seen > np.sqrt(variances * 2 * self.dimension), seen, 0.0)
        weights = seen / (REWARD_VARIANCE * seen + NOISE_FACTOR * variances)
        precision = _along(axes, weights * seen).sum(axis=0) + self.ridge * np.eye(self.dimension)
        vector = (_along(axes, weights) @ vectors).sum(axis=0)
        values, axes = np.linalg.eigh(precision)
        return _along(axes, 1 / values) @ vector, axes * np.sqrt(self.bonus / values)[..., None, :]


@dataclass(frozen=True)
class Weighted(Rule):
    """Prefix sums of which every part is weighted, direction by direction.

    `docs/bandits.md` has the formula.
    """

    joins = True
    exploration: float = 0.5

    def learnt(
        self, vectors: Floats, grams: Floats, users: Floats, variances: Floats
    ) -> tuple[Floats, Floats]:
        seen, axes = np.linalg.eigh(grams)
        edges = np.sqrt(variances * 2 * self.dimension)
        held = np.maximum(seen, np.minimum(edges, users / self.dimension))
        weights = held / (REWARD_VARIANCE * held + NOISE_FACTOR * variances)
        vector = (_along(axes, weights) @ vectors).sum(axis=0)
        gram = _along(axes, weights * seen).sum(axis=0)
        noise = _along(axes, weights**2 * variances).sum(axis=0)
        rewards = _along(axes, weights**2 * np.maximum(seen, 0.0)).sum(axis=0)
        one = np.eye(self.dimension)
        squares, noise_axes = np.linalg.eigh(noise)
        shifts = 2 * np.sqrt(2 * self.dimension * np.maximum(squares, 0.0))
        values, axes = np.linalg.eigh(gram + one + _along(noise_axes, shifts))
        values = np.maximum(values, (1 + shifts[..., :1]) / 4)
        inverse = _along(axes, 1 / values)
        doubt = rewards + one + NOISE_FACTOR * self.exploration**2 * noise
        return inverse @ vector, inverse @ np.linalg.cholesky(doubt)


def _along(axes: Floats, values: Floats) -> Floats:
    """The matrices with these eigenvalues."""
    return np.asarray((axes * values[..., np.newaxis, :]) @ np.swapaxes(axes, -1, -2))


RULES: tuple[Callable[[Practical], Rule], ...] = (PrefixSums, LeastSquares, Weighted)


@dataclass(frozen=True)
class Case:
    """What is measured, for each of some rivals."""

    environment: Environment
    horizon: int
    epsilon: float
    runs: int
    rivals: tuple[str, ...]

    def rows(self) -> Iterator[str]:
        """A line of the table for each of the rivals."""
        dimension = self.environment.dimension
        privacy = oh.Privacy(self.epsilon, DELTA)
        field = Field(self.horizon, 4, privacy, dimension, mechanism="pairs")
        made = [rule(Practical(dimension, field.constant)) for rule in RULES]
        for name in self.rivals:
            base = rival(name, field)
            learning = [_learning(base, rule) for rule in made]
            found = measure(
                self.environment, self.horizon, learning, runs=self.runs, seed=SEED, jobs=2
            )
            prefix, *others = [outcome.final for outcome in found]
            ratios = " | ".join(_ratio(other, prefix) for other in others)
            what = f"{self.environment.name}, d = {dimension}, n = {self.horizon:,}"
            yield (
                f"| {what}, epsilon {self.epsilon:g} | {base.label} | {self.runs} "
                f"| {prefix.mean():,.0f} | {ratios} |"
            )


def _learning(base: Rival, rule: Rule) -> Rival:
    sums = Covers(base.sums, rule.moments.dimension, rule.joins)
    return replace(base, sums=sums, learner=rule)


def _ratio(ours: Floats, prefix: Floats) -> str:
    """Of the means, with its 95 % interval: run by run, for users and noise are the same."""
    ratio = ours.mean() / prefix.mean()
    error = (ours - ratio * prefix).std(ddof=1) / math.sqrt(len(ours)) / prefix.mean()
    return f"{ratio:.2f} +- {1.96 * error:.2f}"


TREES = ("trusted", "one-shuffler-0.5", "concurrent")
ALL = ("trusted", "local", "one-shuffler-0.5", "one-shuffler-0.6", "one-shuffler-growing",
       "concurrent")  # fmt: skip
CASES = (
    Case(Segments(9, 10), 100_000, 1.0, 40, ALL),
    Case(Films(), 100_000, 1.0, 30, ALL),
    Case(FilmsByCohort(), 100_000, 1.0, 20, TREES),
    Case(Diverse(5, 10), 100_000, 1.0, 20, TREES),
    Case(Fixed(5, 10), 100_000, 1.0, 40, TREES),
    Case(Segments(9, 10), 100_000, 0.5, 20, TREES),
    Case(Segments(9, 10), 100_000, 4.0, 20, TREES),
    Case(Segments(5, 10), 100_000, 1.0, 20, TREES),
    Case(Segments(9, 10), 10_000, 1.0, 40, TREES),
    Case(Films(), 10_000, 1.0, 40, TREES),
    Case(Fixed(5, 10), 10_000, 1.0, 60, TREES),
    Case(Segments(9, 10), 1_000_000, 1.0, 10, ("one-shuffler-0.5", "concurrent")),
)


def main(*environments: str) -> None:
    print("| users | rival | runs | prefix sums | least squares | weighted |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if not environments or case.environment.name in environments:
            for row in case.rows():
                print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
