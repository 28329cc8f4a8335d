"""How far noise reaches, with a probability: tails, half widths, and Fieller's ratios."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from overhand.model import Floats

_ONE_SIDED = 40.0  # standard deviations: from here on the far end of a bias cannot matter
_NEARLY_NORMAL = 0.02  # excess kurtosis below which tails are taken for Gaussian
_QUADRATURE = 48


def half_width(
    std: float, bias_bound: float, confidence: float, *, kurtosis: float = 0.0, unit: float = 0.0
) -> float:
    """Half of the shortest symmetric interval about a value that is off by noise and a bias.

    The bias is anywhere in [-b, b], b being `bias_bound`: w solves F((w - b) / std) -
    F((-w - b) / std) = confidence, F being the noise's law. Noise in steps can fall just short of a
    step that F has half within: so w is half a `unit` more.

    >>> round(half_width(5.0, 0.0, 0.95), 2), round(half_width(5.0, 50.0, 0.95), 2)
    (9.8, 58.22)
    """
    if std == 0:
        return bias_bound
    normal = kurtosis < _NEARLY_NORMAL
    beyond = _beyond(min(bias_bound / std, _ONE_SIDED), 0.0 if normal else kurtosis, confidence)
    return bias_bound + std * beyond + unit / 2


@lru_cache(maxsize=4096)
def _beyond(bias: float, kurtosis: float, confidence: float) -> float:
    """By how many standard deviations w exceeds the bias_bound, which is `bias` of them."""
    from scipy.optimize import brentq

    def excess(beyond: float) -> float:
        outside = standard_tail(beyond, kurtosis)
        if bias < _ONE_SIDED:
            outside += standard_tail(beyond + 2 * bias, kurtosis)
        return outside - (1 - confidence)

    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(brentq(excess, -bias, most))


def standard_tail(x: float, kurtosis: float) -> float:
    """P[X > x] for noise of variance 1 and this excess kurtosis, symmetric about 0.

    Sums of Laplace noise are normal variables whose variance is itself random, Gamma distributed
    with shape 3 / kurtosis; for none, they are normal.

    >>> round(standard_tail(2.0, 0.0), 4), round(standard_tail(2.0, 3.0), 4)
    (0.0228, 0.0296)
    """
    from scipy.special import ndtr

    if kurtosis < _NEARLY_NORMAL:
        return float(ndtr(-x))
    variances, weights = _random_variances(kurtosis)
    return float(weights @ ndtr(-x / np.sqrt(variances)))


@lru_cache(maxsize=256)
def _random_variances(kurtosis: float) -> tuple[Floats, Floats]:
    from scipy.special import roots_genlaguerre

    shape = 3 / kurtosis
    nodes, weights = roots_genlaguerre(_QUADRATURE, shape - 1)
    return nodes / shape, weights / weights.sum()


def fieller(
    above: Floats,
    below: Floats,
    variance: Any,
    variance_below: Any,
    covariance: Any,
    deviations: float,
) -> tuple[Floats, Floats]:
    """The ratios r for which |above - r * below| is within this many standard deviations.

    All numbers if `below` itself is not that far above 0.

    >>> low, high = fieller(np.array([40.0, 4.0]), np.array([80.0, 1.0]), 0.0, 16.0, 0.0, 1.96)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.455, -inf], [0.554, inf])
    """
    square = deviations**2
    lead = below**2 - square * variance_below
    middle = above * below - square * covariance
    is_told = (lead > 0) & (below > 0)
    inner = np.maximum(middle**2 - lead * (above**2 - square * variance), 0.0)
    lead = np.where(is_told, lead, 1.0)
    ends = ((middle + sign * np.sqrt(inner)) / lead for sign in (-1, 1))
    low, high = (
        np.where(is_told, end, far) for end, far in zip(ends, (-np.inf, np.inf), strict=True)
    )
    return low, high
