"""Continual sums as a learner sees them: released now and then, for some runs side by side."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from overhand.baselines import GaussianTree, GrowingBatches, LocalSum
from overhand.model import Floats
from overhand.plan import Plan
from overhand.randomness import Random, generator_of
from overhand.simulation.counts import CoverNoise

_PATIENCE = 200
_LEAST_PATIENT, _MOST_PATIENT = 8, 64


class Sums(ABC):
    """A continual sum of moments: when it is released, and with how much noise."""

    lowest: int = 1
    """Releases come after multiples of so many users."""

    def next_release(self, t: int) -> int:
        """The time of the next release.

        Sums that could be had after every user are asked for 8 to 64 users later, as the past is
        long: a rule hardly changes in between.
        """
        wait = min(_MOST_PATIENT, max(_LEAST_PATIENT, t // _PATIENCE))
        return -(-(t + wait) // self.lowest) * self.lowest

    @abstractmethod
    def std(self, t: int) -> float:
        """The standard deviation of a coordinate's noise in the release at t."""

    @property
    @abstractmethod
    def delta_spent(self) -> float:
        """What a user's part in it costs, at the epsilon that it was made for."""

    @abstractmethod
    def start(self, randoms: Sequence[Random]) -> Releases:
        """As many runs as there are streams."""


class Releases:
    """The released sums of some runs: what users have added, and the noise of the release.

    `added` makes of the rows since the last release (runs, users, coordinates) what is added to
    the sums, run by run; `noise` is that at a time, given the same rows.
    """

    def __init__(
        self,
        sums: Sums,
        added: Callable[[Floats], Floats] = lambda rows: rows.sum(axis=1),
        noise: Callable[[int, Floats], Any] = lambda t, rows: 0.0,
    ) -> None:
        self._sums, self._added, self._noise = sums, added, noise
        self._total: Any = 0.0
        self._t = 0

    def next_release(self, t: int) -> int:
        return self._sums.next_release(t)

    def after(self, rows: Floats) -> tuple[Floats, float]:
        """The sums, once all users since the last release have added theirs, and their std."""
        self._t += rows.shape[1]
        self._total = self._total + self._added(rows)
        released = self._total + self._noise(self._t, rows)
        return np.asarray(released), self._sums.std(self._t)


class ExactSums(Sums):
    """No privacy at all."""

    delta_spent = 1.0

    def std(self, t: int) -> float:
        return 0.0

    def start(self, randoms: Sequence[Random]) -> Releases:
        return Releases(self)


@dataclass(frozen=True)
class LocalSums(Sums):
    """Every user adds noise of its own (Zheng et al. 2020)."""

    counter: LocalSum

    def std(self, t: int) -> float:
        return math.sqrt(t * self.counter.user_variance)

    @property
    def delta_spent(self) -> float:
        return self.counter.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        random = randoms[0]  # one stream for all runs: they are as independent

        def added(rows: Floats) -> Floats:
            answers = self.counter.answers(rows.reshape(-1, rows.shape[-1]), random)
            return np.asarray(answers.reshape(rows.shape).sum(axis=1))

        return Releases(self, added)


@dataclass(frozen=True)
class TrustedSums(Sums):
    """A trusted server's binary tree (Shariff and Sheffet 2018)."""

    tree: GaussianTree

    def std(self, t: int) -> float:
        return self.tree.std(t)

    @property
    def delta_spent(self) -> float:
        return self.tree.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        drawn = self.tree.noise(
            generator_of(randoms[0]), (len(randoms), self.tree.values.dimension)
        )
        return Releases(self, noise=lambda t, rows: drawn.at(t))


@dataclass(frozen=True)
class PlanSums(Sums):
    """Concurrent shufflers, or one: the noise of a plan, or a normal stand-in for it.

    >>> from overhand.model import Privacy
    >>> sums = PlanSums(Plan.published(1000, 2, Privacy(1.0, 1e-6)))
    >>> sums.next_release(0) % sums.lowest, sums.std(0) < sums.std(500)
    (0, True)
    """

    plan: Plan
    gaussian: bool = False

    @property
    def lowest(self) -> int:  # type: ignore[override]
        return self.plan.tree.lowest

    def std(self, t: int) -> float:
        return float(self._stds[t // self.lowest])

    @cached_property
    def _stds(self) -> Floats:
        """After every block: asked for so often that all are computed at once."""
        blocks = np.arange(self.plan.tree.blocks + 1, dtype=np.int64)
        return np.sqrt(self.plan.noise_variance(blocks * self.lowest))

    @property
    def delta_spent(self) -> float:
        return self.plan.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        runs = (len(randoms),)
        cover = CoverNoise(self.plan, randoms[0], runs=runs, gaussian=self.gaussian)
        lowest = self.lowest

        def noise(t: int, rows: Floats) -> Floats:
            first = (t - rows.shape[1]) // lowest
            return cover.after(first, t // lowest, np.swapaxes(rows, 0, 1))

        return Releases(self, noise=noise)


@dataclass(frozen=True)
class GrowingSums(Sums):
    """One shuffler, and batches that grow geometrically."""

    batches: GrowingBatches

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.batches.sizes))

    def next_release(self, t: int) -> int:
        return next((end for end in self._ends if end > t), self.batches.horizon + 1)

    def std(self, t: int) -> float:
        full = sum(end <= t for end in self._ends)
        return math.sqrt(sum(m.variance for m in self.batches.mechanisms[:full]))

    @property
    def delta_spent(self) -> float:
        return self.batches.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        mechanisms = iter(self.batches.mechanisms)

        def added(rows: Floats) -> Floats:
            mechanism, sums = next(mechanisms), []
            for of_run, random in zip(rows, randoms, strict=True):
                steps = mechanism.steps_of(of_run, random).sum(axis=0)
                sums.append(mechanism.value_of(steps) + mechanism.draw_noise(random, 1)[0])
            return np.stack(sums)

        return Releases(self, added)
