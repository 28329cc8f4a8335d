"""Two estimates together: the noise of what is derived from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from overhand import errors
from overhand.estimates.runs import Common, common

if TYPE_CHECKING:
    from overhand.estimates.estimate import Estimate

_ROUNDING = 1e-12


def check_alike(left: Estimate, right: Estimate, what: str) -> None:
    """Refuse what is not of the same coordinates."""
    if not hasattr(right, "origin"):
        raise errors.InvalidValue(f"no {what} of an estimate and {right!r}: both must be estimates")
    shapes = np.shape(left.value), np.shape(right.value)
    if shapes[0] != shapes[1]:
        raise errors.InvalidValue(f"no {what} of estimates of shapes {shapes[0]} and {shapes[1]}")
    kinds = left.values, right.values
    if shapes[0] and None not in kinds and kinds[0] != kinds[1]:
        raise errors.InvalidValue(f"no {what} of estimates of {kinds[0]} and {kinds[1]}")


class Pair(NamedTuple):
    """Two estimates, and what noise they share; None if that is unknown.

    Then they are assumed to share whatever makes the result worst.
    """

    left: Estimate
    right: Estimate
    common: list[Common] | None

    @classmethod
    def of(cls, left: Estimate, right: Estimate, what: str) -> Pair:
        check_alike(left, right, what)
        if left.std == 0 or right.std == 0:
            return cls(left, right, [])
        is_known = left.origin is not None and right.origin is not None
        return cls(left, right, common(left.origin or (), right.origin or ()) if is_known else None)

    def noise(self, times: float) -> tuple[float, float]:
        """Standard deviation and kurtosis of left - times * right."""
        one, other = self.left, self.right
        if self.common is None:
            std = one.std + abs(times) * other.std
            return std, max(one.kurtosis, other.kurtosis)
        variance = one.std**2 + (times * other.std) ** 2
        fourth = one.kurtosis * one.std**4 + other.kurtosis * (times * other.std) ** 4
        for left, right, of_both, fourth_of_both in self.common:
            right *= times
            variance -= 2 * left * right * of_both
            fourth += ((left - right) ** 4 - left**4 - right**4) * fourth_of_both
        if variance <= _ROUNDING * one.std**2:  # they are the same
            return 0.0, 0.0
        return math.sqrt(variance), max(0.0, fourth / variance**2)
