"""Runs of the library's own sum, for what the engines do not know."""

from __future__ import annotations

import numpy as np

from overhand.model import Floats, Rows
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.summation import ContinualSum, Pending


class SessionRun:
    """One run of a `ContinualSum` over a stream, fed in whole blocks (except for the last users).

    Between the ends of blocks, an estimate rises by the same for every user who is pending.
    """

    def __init__(self, plan: Plan, random: Random, pending: Pending) -> None:
        self.granularity = plan.tree.lowest
        self._shape = plan.values.shape
        self._total = ContinualSum(plan, random, pending=pending)

    def estimates(self, rows: Rows) -> Floats:
        """The estimates after each of the next users."""
        found = np.empty((len(rows), *self._shape))
        for start in range(0, len(rows), self.granularity):
            block, before = rows[start : start + self.granularity], self._total.estimate.value
            self._total.update_rows(block[:1])
            rise, users = self._total.estimate.value - before, np.arange(1, len(block) + 1)
            found[start : start + len(block)] = before + np.multiply.outer(users, rise)
            self._total.update_rows(block[1:])
            found[start + len(block) - 1] = self._total.estimate.value
        return found
