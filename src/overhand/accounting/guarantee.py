"""What a user's levels spend, whichever way its change is bounded; the least noise for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from overhand import errors
from overhand.accounting.composition import Level, certified_delta, check_delta, search_delta
from overhand.accounting.domination import dominated_delta
from overhand.accounting.gaussian import gaussian_delta, gaussian_mu
from overhand.model import Privacy

_LEAST_PART = 1 / 8  # of an epsilon: to look for less takes ever finer grids
_CLOSE = 1.001
_PRECISION = 2e-5
_WIDEST_UP, _WIDEST_DOWN = math.log(4096.0), math.log(1e-6)
_A_LITTLE = 0.01
_BEYOND = 1.2  # of the way to where the guarantee should be met: a bracket ends behind it
_SECANTS = 6
_STRANGE = 64.0  # times as steep, or as flat, as for a Gaussian: no line to follow
_LEAST_STEP, _MOST_STEP = 2e-4, 0.5


def spent_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The certificate: a bound on the delta that all levels spend together at this epsilon.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> [spent_delta([level] * count, Privacy(1.0, 1e-6)) <= 1e-6 for count in (1, 2, 3)]
    [True, True, False]
    """
    return _delta(levels, privacy, certified_delta)


def quick_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The same to about a thousandth, for searches.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> [f"{delta([level] * 2, Privacy(1.0, 1e-6)):.1e}" for delta in (spent_delta, quick_delta)]
    ['1.6e-07', '1.6e-07']
    """
    return _delta(levels, privacy, search_delta)


def _delta(
    levels: Sequence[Level],
    privacy: Privacy,
    composed_delta: Callable[[Sequence[Level], float], float],
) -> float:
    """What noise and leaks spend; changes that are bounded in norm are dominated, not composed."""
    if any(level.change.norm is not None for level in levels):
        spent = dominated_delta(levels, privacy)
    else:
        spent = composed_delta(levels, privacy.epsilon)
    return spent + leaked_delta(levels, privacy.epsilon)


def spent_epsilon(levels: Sequence[Level], privacy: Privacy) -> float:
    """An epsilon at which levels that give a guarantee spend no more than its delta: certified.

    It is the least such epsilon to about a thousandth, down to a part of the guarantee's own; it is
    the guarantee's own if no other is found.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> epsilon = spent_epsilon([level] * 2, Privacy(1.0, 1e-6))
    >>> round(epsilon, 2), spent_delta([level] * 2, Privacy(epsilon, 1e-6)) <= 1e-6
    (0.92, True)
    """
    low, high = _LEAST_PART * privacy.epsilon, privacy.epsilon
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        is_enough = quick_delta(levels, replace(privacy, epsilon=middle)) <= privacy.delta
        low, high = (low, middle) if is_enough else (middle, high)
    while high < privacy.epsilon:
        if spent_delta(levels, replace(privacy, epsilon=high)) <= privacy.delta:
            return high
        high *= _CLOSE
    return privacy.epsilon


def leaked_delta(levels: Sequence[Level], epsilon: float) -> float:
    """The cost of counts that follow their laws only approximately.

    A count within eta of its law, on either of two neighbouring inputs, adds eta + e^epsilon eta;
    only counts that one person can move are concerned.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise(), leak=1e-9)
    >>> f"{leaked_delta([level] * 2, epsilon=1.0):.2e}"
    '7.44e-09'
    """
    leaks = (level.reports * level.change.counts * level.leak for level in levels)
    return (1 + math.exp(epsilon)) * math.fsum(leaks)


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
