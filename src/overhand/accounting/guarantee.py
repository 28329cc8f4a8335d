"""What a user's levels spend, whichever way its change is bounded."""

from __future__ import annotations

from collections.abc import Sequence

from overhand.accounting.composition import Level, certified_delta, search_delta
from overhand.accounting.domination import dominated_delta
from overhand.model import Privacy


def spent_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The certificate: a bound on the delta that all levels spend together at this epsilon."""
    if _in_norm(levels):
        return dominated_delta(levels, privacy)
    return certified_delta(levels, privacy.epsilon)


def quick_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The same to about a thousandth, for searches."""
    if _in_norm(levels):
        return dominated_delta(levels, privacy)
    return search_delta(levels, privacy.epsilon)


def _in_norm(levels: Sequence[Level]) -> bool:
    return any(level.change.norm is not None for level in levels)
