"""What one batch shows of a user: the hockey-stick divergence, exactly, and its Gaussian limit.

All noise is log-concave and on the integers: that is what the accountant relies on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from overhand import errors
from overhand.model import Floats, Privacy
from overhand.noise import Noise
from overhand.values import Sensitivity

SMALLEST_DELTA = 1e-12
"""Below this, rounding in the transforms is no longer small compared with delta."""

ROUNDING = 1e-14
"""Added to every composed delta: more than the rounding of sums and transforms can take away."""

MOST_REPORTS = 1000
"""How many reports of one person are accounted for."""

_A_HAIR = 1e-13


@dataclass(frozen=True)
class Level:
    """One participation of a user: the distribution of its batch's noise.

    `sensitivity` is how far another value of the user moves the batch, in steps, `reports` how many
    values one person may hold among the users of the plan, and `view_distance` how far one count of
    a batch is, in total variation, from being shown as its law says. A batch holds at most `size`
    reports, if given.

    What it costs that one person may report twice:

    >>> from overhand.accounting import certified_delta
    >>> from overhand.mechanisms import CoinSum
    >>> noise = CoinSum.with_variance(size=1000, variance=60.0).noise()
    >>> for reports in (1, 2):
    ...     print(f"{certified_delta([Level(noise, reports)], epsilon=0.5):.1e}")
    1.4e-06
    3.2e-03
    """

    law: Noise
    reports: int = 1
    sensitivity: Sensitivity = Sensitivity(1)
    view_distance: float = 0.0
    size: int | None = None

    @property
    def placement(self) -> dict[int, int]:
        """Where one person's reports cost most: how many of them are in how many batches each.

        >>> from overhand.mechanisms import CoinSum
        >>> noise = CoinSum.with_variance(size=8, variance=60.0).noise()
        >>> Level(noise, reports=20).placement, Level(noise, reports=20, size=8).placement
        ({20: 1}, {8: 2, 4: 1})
        """
        most = self.reports if self.size is None else min(self.reports, self.size)
        full, rest = divmod(self.reports, most)
        return {most: full, rest: 1} if rest else {most: full}

    @property
    def both_ways(self) -> bool:
        """Whether one person may move some counts up and others down."""
        return self.reports > 1 or self.sensitivity.l0 > 1


def check_delta(privacy: Privacy) -> None:
    """Refuse a delta for which floating-point transforms are not precise enough.

    >>> check_delta(Privacy(1.0, 1e-13))
    Traceback (most recent call last):
    overhand.errors.Infeasible: delta=1e-13 is below 1e-12, where composed privacy losses ...
    """
    if privacy.delta < SMALLEST_DELTA:
        raise errors.Infeasible(
            f"delta={privacy.delta:g} is below {SMALLEST_DELTA:g}, where composed privacy losses "
            "cannot be trusted"
        )


def shifted_pair(law: Noise, shift: int) -> tuple[Floats, Floats]:
    """The laws of noise + shift and of noise, over the same outcomes.

    >>> from overhand.noise import Coins
    >>> from overhand.randomness import HALF
    >>> shifted_pair(Coins(2, HALF).law(1), 1)
    (array([0.  , 0.25, 0.5 , 0.25]), array([0.25, 0.5 , 0.25, 0.  ]))
    """
    probabilities = law.pmf.probabilities
    gap = np.zeros(shift)
    return np.concatenate([gap, probabilities]), np.concatenate([probabilities, gap])


def profile(law: Noise, shift: int, epsilons: Floats) -> tuple[Floats, Floats]:
    """The least deltas that hide a change by `shift`, up and down, at many epsilons.

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
    missing = law.pmf.missing
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


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu): N(mu, 1) against N(0, 1).

    >>> f"{gaussian_delta(mu=0.2367, epsilon=1.0):.1e}"
    '1.0e-06'
    """
    from scipy.special import log_ndtr

    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(upper) * -math.expm1(min(0.0, lower - upper))


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
    mu, less = math.exp(log_mu), _A_HAIR
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
