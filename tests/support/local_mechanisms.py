"""Local mechanisms for tests, and how much their answers err."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.baselines.local import LocalSum
from overhand.model import Floats
from overhand.values import values_of
from support.sampling import TooFewSamples

EPSILONS = (0.25, 1.0, 4.0)


@lru_cache(maxsize=128)
def local(spec: str, epsilon: float = 1.0, horizon: int = 100) -> LocalSum:
    counter = local_counter(horizon, oh.Privacy(epsilon, 1e-6), values_of(spec))
    assert isinstance(counter, LocalSum)
    return counter


def squared_errors(counter: LocalSum, rows: NDArray[Any]) -> Floats:
    """The mean squared error of every run over so many users: one long run, cut apart."""
    estimates = counter.start(oh.seeded_random(20235)).estimates(rows)
    errors = (estimates - counter.values.running_sums(rows)).reshape(
        -1, counter.horizon, counter.values.dimension
    )
    before = np.concatenate([np.zeros_like(errors[:1, -1:]), errors[:-1, -1:]])
    return np.asarray(((errors - before) ** 2).mean(axis=(1, 2)))


def assert_errs(squares: Floats, expected: float, *, discrepancy: float) -> None:
    """The mean of these squares is as expected; what is off by `discrepancy` of it is seen."""
    radius = 6.2 * float(squares.std()) / math.sqrt(len(squares))
    if 2 * radius > discrepancy * expected:
        raise TooFewSamples(f"{len(squares)} runs tell {expected} within {radius}")
    assert abs(squares.mean() - expected) <= radius, f"errs by {squares.mean()}, not {expected}"
