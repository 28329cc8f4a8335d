"""How far apart two neighbouring inputs leave a batch: the hockey-stick divergence, exactly.

All noise is log-concave and on the integers: that is what the accountant relies on.
"""

from __future__ import annotations

import math

import numpy as np

from overhand.mechanisms import Noise
from overhand.model import Floats, Privacy


def hockey_stick(upper: Floats, lower: Floats, epsilon: float) -> float:
    """sum of max(0, upper - e^epsilon lower): the least delta for this epsilon, one direction.

    >>> hockey_stick(np.array([0.5, 0.5]), np.array([0.25, 0.75]), math.log(2))
    0.0
    """
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def shifted_pair(law: Noise, shift: int) -> tuple[Floats, Floats]:
    """The laws of noise + shift and of noise, over the same outcomes.

    >>> from overhand.mechanisms import Coins
    >>> from overhand.randomness import HALF
    >>> shifted_pair(Coins(2, HALF).law(1), 1)
    (array([0.  , 0.25, 0.5 , 0.25]), array([0.25, 0.5 , 0.25, 0.  ]))
    """
    probabilities = law.window.probabilities
    gap = np.zeros(shift)
    return np.concatenate([gap, probabilities]), np.concatenate([probabilities, gap])


def delta(law: Noise, epsilon: float, *, shift: int = 1) -> float:
    """The least delta for which adding this noise hides a change by `shift`, both directions.

    Coins, and discrete Laplace noise, which hides a step without any delta:

    >>> from fractions import Fraction
    >>> from overhand.mechanisms import CoinSum, LaplaceNoise
    >>> law = CoinSum.with_variance(size=1000, variance=20.0).noise()
    >>> [f"{delta(law, epsilon=1.0, shift=shift):.1e}" for shift in (1, 2)]
    ['2.1e-08', '2.6e-03']
    >>> laplace = LaplaceNoise(Fraction(1), ratio=math.exp(-1))
    >>> delta(laplace, epsilon=1.0) < 1e-15 < delta(laplace, epsilon=0.9)
    True
    """
    moved, still = shifted_pair(law, shift)
    worst = max(hockey_stick(moved, still, epsilon), hockey_stick(still, moved, epsilon))
    return worst + law.window.missing


def satisfies(law: Noise, privacy: Privacy, *, shift: int = 1) -> bool:
    """Whether this noise alone gives the guarantee.

    Coins need a little less variance than Gaussian noise, whose least is 17.8:

    >>> from overhand.mechanisms import CoinSum
    >>> laws = [CoinSum.with_variance(size=1000, variance=v).noise() for v in (14.0, 15.0)]
    >>> [satisfies(law, Privacy(1.0, 1e-6)) for law in laws]
    [False, True]
    """
    return delta(law, privacy.epsilon, shift=shift) <= privacy.delta


def profile(law: Noise, shift: int, epsilons: Floats) -> tuple[Floats, Floats]:
    """`delta` at many epsilons, for the change up and the change down.

    The noise is log-concave, so the likelihood ratio rises with the outcome and each divergence
    is a difference of two tail sums.
    """
    moved, still = shifted_pair(law, shift)
    losses = np.maximum.accumulate(_losses(moved, still))
    scale = np.exp(epsilons)
    at = np.searchsorted(losses, epsilons, side="right")
    up = _suffix_sums(moved)[at] - scale * _suffix_sums(still)[at]
    if law.is_symmetric:
        down = up
    else:
        at = len(losses) - np.searchsorted(losses, -epsilons, side="left")
        down = _suffix_sums(still[::-1])[at] - scale * _suffix_sums(moved[::-1])[at]
    missing = law.window.missing
    return np.clip(up + missing, 0.0, 1.0), np.clip(down + missing, 0.0, 1.0)


def _losses(upper: Floats, lower: Floats) -> Floats:
    """ln(upper / lower), with infinities where one is 0; outcomes that neither has do not count."""
    losses = np.full(len(upper), -np.inf)
    losses[(upper > 0) & (lower == 0)] = np.inf
    both = (upper > 0) & (lower > 0)
    losses[both] = np.log(upper[both]) - np.log(lower[both])
    return losses


def _suffix_sums(values: Floats) -> Floats:
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
