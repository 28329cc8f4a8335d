"""Any values: normal noise from every user. Only a large delta makes it worth the while."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.baselines.local.answers import AnswersRun, Floats, LocalSum
from overhand.model import Privacy
from overhand.plan import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import Random, generator_of


@dataclass(frozen=True)
class GaussianResponse(LocalSum):
    """The Gaussian mechanism: the only one here that makes use of delta.

    At epsilon 1 and delta 1e-6 its variance is 71 for vectors of norm 1, whatever their length;
    that of `CapResponse` is below 6.4.

    >>> from overhand.values import Vectors
    >>> [
    ...     round(GaussianResponse(1000, Vectors(length), Privacy(1.0, 1e-6)).user_variance, 1)
    ...     for length in (2, 200)
    ... ]
    [71.4, 71.4]
    """

    privacy: Privacy

    @property
    def std(self) -> float:
        return self.values.sensitivity / gaussian_mu(self.privacy)

    @property
    def epsilon_spent(self) -> float:
        return self.privacy.epsilon

    @property
    def delta_spent(self) -> float:
        return gaussian_delta(self.values.sensitivity / self.std, self.privacy.epsilon)

    @property
    def user_variance(self) -> float:
        return self.std**2

    @property
    def worst_variance(self) -> float:
        return self.std**2

    @property
    def spread(self) -> float:
        return math.inf

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Normal tails and a union bound."""
        return self.worst_std * math.sqrt(2 * self._events(failure_probability))

    def start(self, random: Random) -> AnswersRun:
        """A run over a stream: only a simulation, as its noise is not made of integers."""
        generator_of(random)
        return super().start(random)

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        points = self.values.coordinates(rows)
        return np.asarray(points + generator_of(random).normal(0.0, self.std, points.shape))
