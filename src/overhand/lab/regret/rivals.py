"""The rivals: whom users must trust, and which sums a learner gets for it.

A continual sum, as a learner sees it, is released now and then; some runs go side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from overhand import errors
from overhand.accounting import spent_delta
from overhand.bandits import Constants, ConstantsName, LinUCB, Practical, Theory, plan_for_regret
from overhand.lab.baselines import GaussianResponse, GaussianTree, LocalSum, local_counter
from overhand.lab.regret.environments import Environment
from overhand.lab.simulation import CoverNoise
from overhand.mechanisms import MECHANISMS, Mechanism, NoiseChoice
from overhand.model import Floats, Privacy
from overhand.planning import (
    DEFAULT_FAILURE_PROBABILITY,
    Plan,
    Requirements,
    calibrate,
    chernoff_bound,
    kinds_of,
    levels_of,
)
from overhand.randomness import Random, generator_of
from overhand.tree import RegularTree, binary_degrees
from overhand.values import RegressionStatistics, Values

_PATIENCE = 200
_LEAST_PATIENT, _MOST_PATIENT = 8, 64


class Sums(ABC):
    """A continual sum of moments: when it is released, and with how much noise."""

    source: LocalSum | GaussianTree | Plan
    """What makes the noise of those sums that are not counted here."""
    lowest: int = 1
    """Releases come after multiples of so many users."""

    def next_release(self, t: int) -> int:
        """The time of the next release.

        Sums that could be had after every user are asked for 8 to 64 users later, as the past is
        long: a policy hardly changes in between.
        """
        wait = min(_MOST_PATIENT, max(_LEAST_PATIENT, t // _PATIENCE))
        return -(-(t + wait) // self.lowest) * self.lowest

    @abstractmethod
    def std(self, t: int) -> float:
        """The standard deviation of a coordinate's noise in the release at t."""

    @property
    def delta_spent(self) -> float:
        """What a user's part in it costs, at the epsilon that it was made for."""
        return self.source.delta_spent

    def error_bound(self, failure_probability: float) -> float:
        """On all entries of all sums at once."""
        return self.source.error_bound(failure_probability)

    @abstractmethod
    def start(self, randoms: Sequence[Random]) -> Releases:
        """As many runs as there are streams."""


class Releases:
    """The released sums of some runs: what users have added, and the noise of the release.

    `add` makes of the rows since the last release (runs, users, coordinates) what is added to
    the sums, run by run; `noise` is that at a time, given the same rows.
    """

    def __init__(
        self,
        sums: Sums,
        add: Callable[[Floats], Floats] = lambda rows: rows.sum(axis=1),
        noise: Callable[[int, Floats], Any] = lambda t, rows: 0.0,
    ) -> None:
        self._sums, self._add, self._noise = sums, add, noise
        self._total: Any = 0.0
        self._t = 0

    def next_release(self, t: int) -> int:
        return self._sums.next_release(t)

    def after(self, rows: Floats) -> tuple[Floats, float]:
        """The sums, once all users since the last release have added theirs, and their std."""
        self._t += rows.shape[1]
        self._total = self._total + self._add(rows)
        released = self._total + self._noise(self._t, rows)
        return np.asarray(released), self._sums.std(self._t)


class ExactSums(Sums):
    """No privacy at all."""

    delta_spent = 1.0

    def std(self, t: int) -> float:
        return 0.0

    def error_bound(self, failure_probability: float) -> float:
        return 0.0

    def start(self, randoms: Sequence[Random]) -> Releases:
        return Releases(self)


@dataclass(frozen=True)
class LocalSums(Sums):
    """Every user adds noise of its own (Zheng et al. 2020)."""

    source: LocalSum

    def std(self, t: int) -> float:
        return math.sqrt(t * self.source.user_variance)

    def start(self, randoms: Sequence[Random]) -> Releases:
        random = randoms[0]  # one stream for all runs: they are as independent

        def add(rows: Floats) -> Floats:
            answers = self.source.answers(rows.reshape(-1, rows.shape[-1]), random)
            return np.asarray(answers.reshape(rows.shape).sum(axis=1))

        return Releases(self, add)


@dataclass(frozen=True)
class TrustedSums(Sums):
    """A trusted server's binary tree (Shariff and Sheffet 2018)."""

    source: GaussianTree

    def std(self, t: int) -> float:
        return self.source.std(t)

    def start(self, randoms: Sequence[Random]) -> Releases:
        shape = len(randoms), self.source.values.dimension
        drawn = self.source.noise(generator_of(randoms[0]), shape)
        return Releases(self, noise=lambda t, rows: drawn.at(t))


@dataclass(frozen=True)
class PlanSums(Sums):
    """Two services, concurrent shufflers, or one: a plan's noise, or a normal stand-in for it.

    >>> from overhand.model import Privacy
    >>> sums = PlanSums(Plan.published(1000, 2, Privacy(1.0, 1e-6)))
    >>> sums.next_release(0) % sums.lowest, sums.std(0) < sums.std(500)
    (0, True)
    """

    source: Plan
    gaussian: bool = False

    @property
    def lowest(self) -> int:  # type: ignore[override]
        return self.source.tree.lowest

    def std(self, t: int) -> float:
        return float(self._stds[t // self.lowest])

    @cached_property
    def _stds(self) -> Floats:
        """After every block: asked for so often that all are computed at once."""
        blocks = min(self.source.tree.blocks, 1 + self.source.horizon // self.lowest)
        return np.sqrt(self.source.noise_variance(np.arange(blocks + 1) * self.lowest))

    def start(self, randoms: Sequence[Random]) -> Releases:
        runs = (len(randoms),)
        cover = CoverNoise(self.source, randoms[0], runs=runs, gaussian=self.gaussian)
        lowest = self.lowest

        def noise(t: int, rows: Floats) -> Floats:
            first = (t - rows.shape[1]) // lowest
            return cover.after(first, t // lowest, np.swapaxes(rows, 0, 1))

        return Releases(self, noise=noise)


@dataclass(frozen=True)
class GrowingBatches(Sums):
    """Batches of one shuffler, each `ratio` times as large as the one before.

    A user is in one batch, so no budget is split, and only about log(horizon) batches are ever
    added up: hard to beat as long as users are all alike. A user who brings something new waits for
    a batch that lasts a good part of the whole stream.

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.values import BITS
    >>> coins = NoiseChoice(CoinSum)
    >>> batches = GrowingBatches.best(10_000, Privacy(1.0, 1e-6), BITS, noise_choice=coins)
    >>> batches.sizes, batches.delta_spent <= 1e-6
    ((100, 150, 225, 338, 506, 759, 1139, 1709, 2563), True)
    """

    horizon: int
    privacy: Privacy
    sizes: tuple[int, ...]
    mechanisms: tuple[Mechanism, ...]

    @classmethod
    def best(
        cls,
        horizon: int,
        privacy: Privacy,
        values: Values,
        *,
        first: int = 100,
        ratio: float = 1.5,
        noise_choice: NoiseChoice,
    ) -> GrowingBatches:
        """The least noise for the guarantee in every batch."""
        horizon = errors.whole("horizon", horizon, least=2)
        first = min(horizon, errors.whole("first", first, least=2))
        errors.finite_number("ratio", ratio, above=1)
        sizes, left, size = [], horizon, float(first)
        while left >= round(size):
            sizes.append(round(size))
            left -= sizes[-1]
            size *= ratio
        terms = Requirements(privacy, values=values, noise_choice=noise_choice)
        mechanisms = [calibrate([size], [1.0], terms)[0] for size in sizes]
        return cls(horizon, privacy, tuple(sizes), tuple(mechanisms))

    @property
    def values(self) -> Values:
        return self.mechanisms[0].values

    @property
    def delta_spent(self) -> float:
        """What a batch costs its users: each is in one of them only."""
        terms = Requirements(self.privacy)
        return max(spent_delta(levels_of([m], terms), self.privacy) for m in self.mechanisms)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """On all entries of all sums at once, pending users at an end of their interval."""
        chance = errors.finite_number("failure_probability", failure_probability, above=0, below=1)
        noise = chernoff_bound(
            lambda s: sum(m.log_mgf_bound(s) for m in self.mechanisms),
            variance=sum(m.variance for m in self.mechanisms),
            largest=min(m.noise().mgf_limit / m.quantizer.unit for m in self.mechanisms),
            events=math.log(2 * len(self.sizes) * self.values.dimension / chance),
        )
        pending = max(max(self.sizes) - 1, self.horizon - sum(self.sizes))
        return noise + self.values.width / 2 * pending

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.sizes))

    def next_release(self, t: int) -> int:
        return next((end for end in self._ends if end > t), self.horizon + 1)

    def std(self, t: int) -> float:
        full = sum(end <= t for end in self._ends)
        return math.sqrt(sum(m.variance for m in self.mechanisms[:full]))

    def start(self, randoms: Sequence[Random]) -> Releases:
        mechanisms = iter(self.mechanisms)

        def add(rows: Floats) -> Floats:
            mechanism, sums = next(mechanisms), []
            for of_run, random in zip(rows, randoms, strict=True):
                steps = mechanism.quantizer.to_steps(of_run, random).sum(axis=0)
                noise = mechanism.draw_noise(random, 1)[0]
                sums.append(mechanism.quantizer.to_values(steps, mechanism.size) + noise)
            return np.stack(sums)

        return Releases(self, add)


_ONE_SHUFFLER = "one shuffler"

BATCH_POWERS = (0.5, 0.6)
"""Batches of one shuffler, as powers of the horizon: 3/5 is Chowdhury and Zhou's."""


@dataclass(frozen=True)
class Rival:
    """A learner: the sums that it is given, and how it learns from them.

    `theory` are the constants and the bound of the paper's theorem for these sums, whether it
    learns with them or not.

    >>> trusted = rival("trusted", Field(1000, 2, Privacy(1.0, 1e-6), dimension=5))
    >>> trusted.label, trusted.trusted, trusted.sums.delta_spent < 1.01e-6
    ('trusted binary tree', 'the server', True)
    """

    name: str
    label: str
    trusted: str
    sums: Sums
    learner: LinUCB
    theory: Theory

    @property
    def plan(self) -> Plan | None:
        return self.sums.source if isinstance(self.sums, PlanSums) else None

    @property
    def is_one_shuffler(self) -> bool:
        """Whether it is one of those with batches of the same size."""
        return self.name.startswith("one-shuffler") and self.plan is not None


@dataclass(frozen=True)
class Field:
    """What all rivals have in common.

    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=5)
    >>> plan = field.plan(degrees=(50,))
    >>> plan.values, plan.tree.blocks, plan.delta_spent <= 1e-6
    (RegressionStatistics(features=5, clip=False), 20, True)
    >>> plan.messages_per_user, rival("services", field).plan.messages_per_user
    (300, 1)
    """

    horizon: int
    shufflers: int
    privacy: Privacy
    dimension: int
    constants: ConstantsName = "practical"
    constant: float | None = Environment.constant
    """The first feature of all arms."""
    mechanism: str = "shares"
    """How values are sent, by all who have the paper's shufflers."""

    def __post_init__(self) -> None:
        errors.one_of("mechanism", self.mechanism, kinds_of(self.moments, "users"))
        errors.whole("horizon", self.horizon, least=4)
        errors.whole("shufflers", self.shufflers, least=1)

    @property
    def moments(self) -> RegressionStatistics:
        return RegressionStatistics(self.dimension)

    @property
    def noise_choice(self) -> NoiseChoice:
        """That of noise for values that are bounded in l2."""
        return MECHANISMS[self.mechanism].noise_choices(self.moments)[0]

    def rival(self, name: str, label: str, trusted: str, sums: Sums) -> Rival:
        """One who is given these sums."""
        # Every entry is wrong by one user at least: those who are pending.
        bound = max(1.0, sums.error_bound(1 / (2 * self.horizon)))
        theory = Theory(self.dimension, self.horizon, bound)
        constants: Constants = theory
        if self.constants == "practical":
            constants = Practical(self.dimension, self.constant)
        return Rival(name, label, trusted, sums, LinUCB(constants), theory)

    def plan(self, degrees: tuple[int, ...]) -> Plan:
        """A plan over a given tree, all levels with the same noise."""
        tree = RegularTree(self.horizon, degrees)
        terms = Requirements(self.privacy, values=self.moments, noise_choice=self.noise_choice)
        mechanisms = calibrate(tree.sizes, [1.0] * len(degrees), terms)
        return Plan(tree, mechanisms, self.privacy, len(degrees))


RIVALS = (
    "not-private",
    "trusted",
    "local",
    "local-best",
    *(f"one-shuffler-{power:g}" for power in BATCH_POWERS),
    "one-shuffler-growing",
    "concurrent",
    "stand-in",
    "binary",
    "services",
)
"""The names that `rival` knows."""
USUAL = tuple(name for name in RIVALS if name != "stand-in")
"""All but normal noise of as many shufflers: it is there to check that its law does not matter."""


def rival(name: str, field: Field) -> Rival:
    """One of the rivals, calibrated for the guarantee.

    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=5)
    >>> [rival(name, field).label for name in ("not-private", "local", "one-shuffler-0.5")]
    ['not private', 'local', 'one, batches n^0.5']
    """
    errors.one_of("rival", name, RIVALS)
    return field.rival(name, *_told(name, field))


def _told(name: str, field: Field) -> tuple[str, str, Sums]:
    """What a rival is called, who must be trusted, and the sums that it is given."""
    horizon, privacy, moments = field.horizon, field.privacy, field.moments
    match name:
        case "not-private":
            return "not private", "everybody", ExactSums()
        case "trusted":
            tree = GaussianTree(horizon, privacy, moments)
            return "trusted binary tree", "the server", TrustedSums(tree)
        case "local":
            return "local", "nobody", LocalSums(GaussianResponse(horizon, moments, privacy))
        case "local-best":
            local = local_counter(horizon, privacy, moments)
            return "local, best known", "nobody", LocalSums(local)
        case "one-shuffler-growing":
            choice = field.noise_choice
            batches = GrowingBatches.best(horizon, privacy, moments, noise_choice=choice)
            return "one, growing batches", _ONE_SHUFFLER, batches
        case "concurrent" | "stand-in":
            asked = horizon, field.shufflers, privacy, field.dimension
            plan = plan_for_regret(*asked, mechanism=field.mechanism)
            many = f"{plan.tree.levels} shufflers" if plan.tree.levels > 1 else _ONE_SHUFFLER
            gaussian = name == "stand-in"
            label = f"{many}, normal noise" if gaussian else f"{many}, {field.mechanism}"
            return label, many, PlanSums(plan, gaussian)
        case "services":
            plan = plan_for_regret(horizon, field.shufflers, privacy, field.dimension)
            return "two services, ours", "one of two services", PlanSums(plan)
        case "binary":
            degrees = binary_degrees(horizon)
            many = f"{len(degrees)} shufflers"
            return f"{many}, binary", many, PlanSums(field.plan(degrees))
        case _:
            power = float(name.removeprefix("one-shuffler-"))
            plan = field.plan((max(2, round(horizon**power)),))
            return f"one, batches n^{power:g}", _ONE_SHUFFLER, PlanSums(plan)
