"""What a user's levels spend, whichever way its change is bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from overhand.accounting.composition import Level, certified_delta, search_delta
from overhand.accounting.domination import dominated_delta
from overhand.model import Privacy

_LEAST_PART = 1 / 8  # of an epsilon: to look for less takes ever finer grids
_CLOSE = 1.001


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
