"""What one batch shows of a user, by its definition: the hockey-stick divergence."""

from __future__ import annotations

import math

import numpy as np

from overhand.accounting import shifted_pair
from overhand.model import Floats
from overhand.noise import Noise


def hockey_stick(upper: Floats, lower: Floats, epsilon: float) -> float:
    """sum of max(0, upper - e^epsilon lower): the least delta for this epsilon, one direction.

    >>> hockey_stick(np.array([0.5, 0.5]), np.array([0.25, 0.75]), math.log(2))
    0.0
    """
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def delta(law: Noise, epsilon: float, *, shift: int = 1) -> float:
    """The least delta for which adding this noise hides a change by `shift`, both directions.

    Coins, and discrete Laplace noise, which hides a step without any delta:

    >>> from fractions import Fraction
    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.noise import LaplaceNoise
    >>> law = CoinSum.with_variance(size=1000, variance=20.0).noise()
    >>> [f"{delta(law, epsilon=1.0, shift=shift):.1e}" for shift in (1, 2)]
    ['2.1e-08', '2.6e-03']
    >>> laplace = LaplaceNoise(Fraction(1), ratio=math.exp(-1))
    >>> delta(laplace, epsilon=1.0) < 1e-15 < delta(laplace, epsilon=0.9)
    True
    """
    moved, still = shifted_pair(law, shift)
    worst = max(hockey_stick(moved, still, epsilon), hockey_stick(still, moved, epsilon))
    return worst + law.pmf.missing
