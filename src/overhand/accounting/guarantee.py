"""What a user's levels spend, whichever way its change is bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from overhand.accounting.composition import Level, certified_delta, search_delta
from overhand.accounting.domination import dominated_delta
from overhand.model import Privacy


def spent_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The certificate: a bound on the delta that all levels spend together at this epsilon."""
    if _in_norm(levels):
        return dominated_delta(levels, privacy) + leaked_delta(levels, privacy.epsilon)
    return certified_delta(levels, privacy.epsilon) + leaked_delta(levels, privacy.epsilon)


def quick_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The same to about a thousandth, for searches."""
    if _in_norm(levels):
        return spent_delta(levels, privacy)
    return search_delta(levels, privacy.epsilon) + leaked_delta(levels, privacy.epsilon)


def leaked_delta(levels: Sequence[Level], epsilon: float) -> float:
    """What it costs that counts are shown only almost as their laws say.

    A count within eta of its law, on either of two neighbouring inputs, adds eta + e^epsilon eta;
    only counts that one person can move are concerned.
    """
    leaks = (level.reports * level.change.coordinates * level.leak for level in levels)
    return (1 + math.exp(epsilon)) * math.fsum(leaks)


def _in_norm(levels: Sequence[Level]) -> bool:
    return any(level.change.norm is not None for level in levels)
