"""The least noise for a guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from overhand import errors
from overhand.accounting.composition import Level, check_delta
from overhand.accounting.gaussian import gaussian_delta, gaussian_mu
from overhand.accounting.guarantee import quick_delta
from overhand.model import Privacy

_PRECISION = 2e-5
_WIDEST_UP, _WIDEST_DOWN = math.log(4096.0), math.log(1e-6)
_A_LITTLE = 0.01
_BEYOND = 1.2  # of the way to where the guarantee should be met: a bracket ends behind it
_SECANTS = 6
_STRANGE = 64.0  # times as steep, or as flat, as for a Gaussian: no line to follow
_LEAST_STEP, _MOST_STEP = 2e-4, 0.5


def least_scale(
    levels_at: Callable[[float], Sequence[Level]],
    privacy: Privacy,
    *,
    start: float,
    precision: float = _PRECISION,
) -> float:
    """The least scale of the noise at which the levels together give the guarantee.

    `levels_at(scale)` must hide more as the scale grows; `start`, usually the Gaussian limit,
    only saves time. Nothing is certified here: the grid is coarse.

    The least variance of three levels of coins; Gaussian noise needs 53.5:

    >>> from overhand.mechanisms import CoinSum
    >>> def levels_at(variance: float) -> list[Level]:
    ...     return [Level(CoinSum.with_variance(1000, variance).noise())] * 3
    >>> round(least_scale(levels_at, Privacy(1.0, 1e-6), start=53.5), 1)
    52.4
    """
    from scipy.optimize import brentq

    check_delta(privacy)
    seen: dict[float, float] = {}

    def excess(log_scale: float) -> float:
        if log_scale not in seen:
            found = quick_delta(levels_at(start * math.exp(log_scale)), privacy)
            seen[log_scale] = math.log(found / privacy.delta)
        return seen[log_scale]

    fall = _gaussian_fall(privacy)
    root = _secant(excess, fall, precision)
    if root is None:
        low, high = _bracket(excess, fall, privacy)
        root = low if low == high else float(brentq(excess, low, high, xtol=precision))
    return start * math.exp(root)


def _secant(excess: Callable[[float], float], fall: float, precision: float) -> float | None:
    """If ln delta is nearly linear, as it is for most noise, a few steps along the line suffice."""
    at, beyond = 0.0, excess(0.0)
    slope = fall
    for _ in range(_SECANTS):
        step = beyond / slope
        if abs(step) > _MOST_STEP:
            return None
        if abs(step) < precision:
            return at + step
        following = excess(at + step)
        slope = (beyond - following) / step
        if not fall / _STRANGE < slope < fall * _STRANGE:
            return None
        at, beyond = at + step, following
    return None


def _bracket(
    excess: Callable[[float], float], fall: float, privacy: Privacy
) -> tuple[float, float]:
    """Logarithms of scales, from 0 on, between which the guarantee is met first.

    Or the least that is tried, twice, if even that is enough.
    """
    at, is_up = 0.0, excess(0.0) > 0
    step = _BEYOND * abs(excess(0.0)) / fall
    step = min(_MOST_STEP, max(_LEAST_STEP, step))
    while True:
        following = min(_WIDEST_UP, at + step) if is_up else max(_WIDEST_DOWN, at - step)
        if (excess(following) > 0) != is_up:
            return min(at, following), max(at, following)
        if following == _WIDEST_UP:
            raise errors.Infeasible(
                f"no noise up to {math.exp(_WIDEST_UP):g} times the Gaussian limit gives {privacy}"
            )
        if following == _WIDEST_DOWN:
            return following, following
        at, step = following, 2 * step


def _gaussian_fall(privacy: Privacy) -> float:
    """By how much ln delta falls as the logarithm of a Gaussian's variance grows."""
    mu = gaussian_mu(privacy)
    less = gaussian_delta(mu * math.exp(-_A_LITTLE / 2), privacy.epsilon)
    return max(1.0, math.log(gaussian_delta(mu, privacy.epsilon) / less) / _A_LITTLE)
