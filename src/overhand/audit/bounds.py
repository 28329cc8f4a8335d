"""From counts to a lower bound on epsilon that holds at every number of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

Floats = NDArray[np.float64]


def least_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """Clopper and Pearson's bound: above the true probability at most this often.

    >>> float(least_probability(0, 10, 0.05)), float(least_probability(10, 10, 0.5).round(3))
    (0.0, 0.933)
    """
    x = np.asarray(successes, np.float64)
    bound = betaincinv(np.maximum(x, 1e-300), trials - x + 1, rate)
    return np.where(x <= 0, 0.0, bound)


def most_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """The other side: below the true probability at most this often.

    What never happened in 1,000 runs may still happen in 3 of 1,000:

    >>> float(most_probability(0, 1000, rate=0.05).round(4))
    0.003
    """
    x = np.asarray(successes, np.float64)
    bound = betainccinv(x + 1, np.maximum(trials - x, 1e-300), rate)
    return np.where(x >= trials, 1.0, bound)


def least_epsilon(
    likely: ArrayLike, rare: ArrayLike, trials: int, *, delta: float, rate: float
) -> Any:
    """The epsilon that an event shows, wrong (too large) with a probability of at most `rate`.

    It happened `likely` times in `trials` runs on one input and `rare` times in as many on the
    other: P[E] <= e^epsilon Q[E] + delta leaves no smaller epsilon.

    >>> round(float(least_epsilon(900, 100, 1000, delta=0.0, rate=1e-3)), 2)
    1.86
    """
    above = least_probability(likely, trials, rate / 2) - delta
    below = most_probability(rare, trials, rate / 2)
    return np.maximum(0.0, np.log(np.maximum(above, 1e-300) / below))


def largest_epsilon(trials: int, *, delta: float, rate: float) -> float:
    """What so many runs can show at most: an event that always happens, or never.

    >>> [round(largest_epsilon(trials, delta=0.01, rate=1e-3), 1) for trials in (1000, 60_000)]
    [4.9, 9.0]
    """
    return float(least_epsilon(trials, 0, trials, delta=delta, rate=rate))
