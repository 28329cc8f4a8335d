"""What makes one tree better than another: noise, and users who wait for their batch to fill."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from overhand.model import Floats

_MIDPOINT = 0.5


class Objective(Protocol):
    """A cost of noise (a variance, in squared widths of a coordinate) and of pending users.

    One that counts those who wait twice, so that batches are smaller:

    >>> from overhand.model import Privacy
    >>> from overhand.plan import Plan
    >>> class Impatient:
    ...     def cost(self, noise, pending):
    ...         return noise + pending**2
    ...
    ...     def largest_lowest(self, variance, horizon):
    ...         return SQUARED_ERROR.largest_lowest(variance, horizon)
    >>> for objective in (SQUARED_ERROR, Impatient()):
    ...     plan = Plan.best(10_000, 1, Privacy(1.0, 1e-6), objective=objective)
    ...     print(plan.tree.lowest)
    81
    48
    """

    def cost(self, noise: Floats, pending: Floats) -> Floats:
        """To be minimised; `pending` is the root mean square of the number of pending users."""

    def largest_lowest(self, variance: float, horizon: int) -> float:
        """The largest lowest batch that can pay in any tree, if one level needs this variance."""


@dataclass(frozen=True)
class SquaredError:
    """The mean squared error of a running sum, the pending users all at one end.

    They are taken to be at the middle of their interval, so each is off by at most half its width.
    """

    def cost(self, noise: Floats, pending: Floats) -> Floats:
        return np.asarray(noise + (_MIDPOINT * pending) ** 2)

    def largest_lowest(self, variance: float, horizon: int) -> float:
        """One level has a cost of v n / (2 b) + b^2 / 12, least at b^3 = 3 v n."""
        return 2 * math.cbrt(3 * variance * horizon)


@dataclass(frozen=True)
class Delay:
    """What noise and waiting cost a learner that uses the sums, in users.

    Noise of one width is as bad as `users_per_width` more users who are served by an old rule.
    Squared, so that it is measured as errors of sums are.

    A learner waits longer for a batch than a counter does, and has less noise for it:

    >>> from overhand.model import Privacy
    >>> from overhand.plan import Plan
    >>> for objective in (SQUARED_ERROR, Delay(users_per_width=10.0)):
    ...     plan = Plan.best(10_000, 1, Privacy(1.0, 1e-6), objective=objective)
    ...     print(plan.tree.lowest, round(plan.worst_std, 1))
    81 45.0
    187 28.2
    """

    users_per_width: float

    def cost(self, noise: Floats, pending: Floats) -> Floats:
        return np.asarray((self.users_per_width * np.sqrt(noise) + pending) ** 2)

    def largest_lowest(self, variance: float, horizon: int) -> float:
        """One level costs c sqrt(v n / (2 b)) + b / sqrt(3), least at b^3 = 3 c^2 v n / 8."""
        return 2 * math.cbrt(3 / 8 * self.users_per_width**2 * variance * horizon)


SQUARED_ERROR = SquaredError()
"""The default objective by which plans are chosen."""
