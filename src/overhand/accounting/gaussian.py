"""The Gaussian limit: where every search for a noise level starts, and its yardstick."""

from __future__ import annotations

import math
from functools import lru_cache

from overhand.model import Privacy


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu): N(mu, 1) against N(0, 1).

    >>> f"{gaussian_delta(mu=0.2367, epsilon=1.0):.1e}"
    '1.0e-06'
    """
    from scipy.special import log_ndtr

    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(upper) * -math.expm1(min(0.0, lower - upper))


_A_LITTLE = 1e-13


@lru_cache(maxsize=1024)
def gaussian_mu(privacy: Privacy) -> float:
    """The largest shift, in standard deviations, that Gaussian noise hides under a guarantee.

    >>> round(gaussian_mu(Privacy(1.0, 1e-6)), 4)
    0.2367
    """
    from scipy.optimize import brentq

    low, high = 1.0, 1.0
    while gaussian_delta(low, privacy.epsilon) > privacy.delta:
        low /= 2
    while gaussian_delta(high, privacy.epsilon) < privacy.delta:
        high *= 2
    log_mu = brentq(
        lambda log: gaussian_delta(math.exp(log), privacy.epsilon) - privacy.delta,
        math.log(low),
        math.log(high),
    )
    mu, less = math.exp(log_mu), _A_LITTLE
    while gaussian_delta(mu, privacy.epsilon) > privacy.delta:
        mu *= 1 - less  # the root is as likely above the guarantee as below
        less *= 2
    return mu


def gaussian_variance(privacy: Privacy, levels: int = 1) -> float:
    """The variance per level that `levels` equal Gaussian mechanisms need.

    Four levels need four times the variance of one; by simple composition it would be 16 times:

    >>> [round(gaussian_variance(Privacy(1.0, 1e-6), levels), 1) for levels in (1, 4)]
    [17.8, 71.4]
    """
    return levels / gaussian_mu(privacy) ** 2
