"""A running count without a horizon: plans of growing size, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.model import Estimate, as_bits
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.summation.continual import ContinualSum
from overhand.trees import PathTree, RegularTree


class EndlessSum:
    """Serves any number of users by a sequence of plans, each `growth` times as long.

    The users of different plans are disjoint, so the guarantee is that of a single plan. When a
    plan is used up, its last estimate and variance stay. `plan_for(horizon)` makes the plans.

    >>> import overhand as oh
    >>> def plan_for(horizon: int) -> oh.Plan:
    ...     return oh.Plan.best(horizon, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = EndlessSum(plan_for, oh.seeded_random(3), first=500)
    >>> total.update_many([1] * 4000)
    >>> total.t, len(total.plans), abs(total.estimate.value - 4000) < 5 * total.estimate.rms
    (4000, 4, True)
    """

    def __init__(
        self,
        plan_for: Callable[[int], Plan],
        random: Random,
        *,
        first: int = 1024,
        growth: int = 2,
    ) -> None:
        self._plan_for = plan_for
        self._random = random
        self._growth = errors.whole("growth", growth, least=1)
        self._next_horizon = errors.whole("first", first, least=2)
        self._settled_value = 0.0
        self._settled_variance = 0.0
        self._settled_users = 0
        self.plans: list[Plan] = []
        self._current = self._start_plan()

    @property
    def t(self) -> int:
        return self._settled_users + self._current.t

    def update(self, value: int) -> None:
        """One user."""
        if self._current.t == self._current.plan.horizon:
            self._settle()
        self._current.update(value)

    def update_many(self, values: ArrayLike) -> None:
        """Many users at once."""
        bits = as_bits(values, first=self.t)
        while len(bits):
            if self._current.t == self._current.plan.horizon:
                self._settle()
            room = self._current.plan.horizon - self._current.t
            self._current.update_many(bits[:room])
            bits = bits[room:]

    @property
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        now = self._current.estimate
        std = math.sqrt(self._settled_variance + now.std**2)
        return Estimate(self.t, self._settled_value + now.value, std, now.slack)

    def _settle(self) -> None:
        last = self._current.estimate
        self._settled_value += last.value
        self._settled_variance += last.std**2
        self._settled_users += last.t
        self._current = self._start_plan()

    def _start_plan(self) -> ContinualSum:
        plan = _without_rest(self._plan_for(self._next_horizon))
        if plan.reports > 1:
            raise errors.Infeasible(
                f"one person's {plan.reports} reports could fall into different plans, "
                "which no single plan's guarantee covers"
            )
        self.plans.append(plan)
        self._next_horizon = int(np.ceil(self._growth * self._next_horizon))
        return ContinualSum(plan, self._random.spawn(1)[0], archive=False)


def _without_rest(plan: Plan) -> Plan:
    """The plan for whole blocks only, so that nobody is left pending when it ends."""
    horizon = plan.tree.blocks * plan.tree.lowest
    assert isinstance(plan.tree, RegularTree | PathTree)
    return replace(plan, tree=replace(plan.tree, horizon=horizon))
