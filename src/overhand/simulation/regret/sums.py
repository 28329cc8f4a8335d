"""Continual sums as a learner sees them: released now and then, for some runs side by side."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.baselines import GaussianTree, GrowingBatches, LocalSum
from overhand.plan import Plan
from overhand.randomness import Random, generator_of
from overhand.simulation.counts import CoverNoise

Floats = NDArray[np.float64]

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


class Releases(ABC):
    """The released sums of some runs."""

    @abstractmethod
    def after(self, rows: Floats) -> Floats:
        """The sums, run by run, once the next users have added theirs (runs, users, coordinates).

        They are all since the last release.
        """


class ExactSums(Sums):
    """No privacy at all."""

    def std(self, t: int) -> float:
        return 0.0

    @property
    def delta_spent(self) -> float:
        return 1.0

    def start(self, randoms: Sequence[Random]) -> Releases:
        return _ExactReleases()


class _ExactReleases(Releases):
    def __init__(self) -> None:
        self._sums: Any = 0.0

    def after(self, rows: Floats) -> Floats:
        self._sums = self._sums + rows.sum(axis=1)
        return np.asarray(self._sums)


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
        return _LocalReleases(self.counter, randoms)


class _LocalReleases(_ExactReleases):
    def __init__(self, counter: LocalSum, randoms: Sequence[Random]) -> None:
        super().__init__()
        self._counter = counter
        self._random = randoms[0]  # one stream for all runs: they are as independent

    def after(self, rows: Floats) -> Floats:
        runs, users, coordinates = rows.shape
        answers = self._counter.answers(rows.reshape(-1, coordinates), self._random)
        return super().after(answers.reshape(runs, users, coordinates))


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
        return _TrustedReleases(self.tree, randoms)


class _TrustedReleases(_ExactReleases):
    def __init__(self, tree: GaussianTree, randoms: Sequence[Random]) -> None:
        super().__init__()
        shape = (len(randoms), tree.values.dimension)
        self._noise = tree.noise(generator_of(randoms[0]), shape)
        self._t = 0

    def after(self, rows: Floats) -> Floats:
        self._t += rows.shape[1]
        return super().after(rows) + self._noise.at(self._t)


@dataclass(frozen=True)
class PlanSums(Sums):
    """Concurrent shufflers, or one: the noise of a plan, or a normal stand-in for it."""

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
        noise = CoverNoise(self.plan, randoms[0], runs=runs, gaussian=self.gaussian)
        return _PlanReleases(noise, self.lowest)


class _PlanReleases(_ExactReleases):
    def __init__(self, noise: CoverNoise, lowest: int) -> None:
        super().__init__()
        self._noise = noise
        self._lowest = lowest
        self._blocks = 0

    def after(self, rows: Floats) -> Floats:
        first, self._blocks = self._blocks, self._blocks + rows.shape[1] // self._lowest
        noise = self._noise.after(first, self._blocks, np.swapaxes(rows, 0, 1))
        return np.asarray(super().after(rows) + noise)


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
        return _GrowingReleases(self.batches, randoms)


class _GrowingReleases(_ExactReleases):
    def __init__(self, batches: GrowingBatches, randoms: Sequence[Random]) -> None:
        super().__init__()
        self._batches = batches
        self._randoms = randoms
        self._full = 0

    def after(self, rows: Floats) -> Floats:
        mechanism = self._batches.mechanisms[self._full]
        self._full += 1
        sums = []
        for of_run, random in zip(rows, self._randoms, strict=True):
            steps = mechanism.steps_of(of_run, random).sum(axis=0)
            sums.append(mechanism.value_of(steps) + mechanism.draw_noise(random, 1)[0])
        return super().after(np.stack(sums)[:, np.newaxis])
