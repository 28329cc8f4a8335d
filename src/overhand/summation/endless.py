"""A running sum without a horizon: plans of growing size, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.estimates import Estimate
from overhand.plan import Plan
from overhand.randomness import Random, restored_random, source_of
from overhand.summation.continual import ContinualSum


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
        random: Random | None = None,
        *,
        first: int = 1024,
        growth: int = 2,
    ) -> None:
        self._plan_for = plan_for
        self._random = source_of(random)
        self._growth = errors.whole("growth", growth, least=1)
        self._next_horizon = errors.whole("first", first, least=2)
        self._settled = Estimate(0, 0.0, 0.0)
        self.plans: list[Plan] = []
        self._current = self._start_plan()

    @property
    def t(self) -> int:
        return self._settled.t + self._current.t

    def update(self, value: Any) -> None:
        """One user."""
        if self._current.t == self._current.plan.horizon:
            self._settle()
        try:
            self._current.update(value)
        except errors.InvalidValue:
            # The same error, but of the user's place among all.
            self._current.plan.values.rows([value], first=self.t)
            raise

    def update_many(self, values: ArrayLike) -> None:
        """Many users at once."""
        self._current.plan.values.rows(values, first=self.t)  # all of them or, on an error, none
        rest = np.asarray(values)
        while len(rest):
            if self._current.t == self._current.plan.horizon:
                self._settle()
            room = self._current.plan.horizon - self._current.t
            self._current.update_many(rest[:room])
            rest = rest[room:]

    @property
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        return self._settled + self._current.estimate

    def to_json(self) -> str:
        """The state, from which `from_json` goes on; as secret as that of a `ContinualSum`."""
        return json.dumps(
            {
                "growth": self._growth,
                "next_horizon": self._next_horizon,
                "settled": [
                    self._settled.t,
                    np.asarray(self._settled.value).tolist(),
                    self._settled.std,
                    self._settled.kurtosis,
                ],
                "plans": [plan.to_json() for plan in self.plans],
                "current": self._current.to_json(),
                "random": self._random.state,
            }
        )

    @classmethod
    def from_json(cls, plan_for: Callable[[int], Plan], text: str) -> EndlessSum:
        """The sum that was saved."""
        state = json.loads(text)
        total = cls.__new__(cls)
        total._plan_for = plan_for
        total._random = restored_random(state["random"])
        total._growth, total._next_horizon = state["growth"], state["next_horizon"]
        t, value, std, kurtosis = state["settled"]
        value = np.array(value) if isinstance(value, list) else value
        total.plans = [Plan.from_json(text) for text in state["plans"]]
        unit = max((plan.unit for plan in total.plans[:-1]), default=0.0)
        values = total.plans[0].values
        total._settled = Estimate(t, value, std, kurtosis=kurtosis, unit=unit, values=values)
        total._current = ContinualSum.from_json(total.plans[-1], state["current"])
        return total

    def _settle(self) -> None:
        following = self._start_plan()  # which may be refused: then nothing has changed
        self._settled = self._settled + self._current.estimate
        self._current = following

    def _start_plan(self) -> ContinualSum:
        plan = _without_rest(self._plan_for(self._next_horizon))
        if plan.reports > 1:
            raise errors.Infeasible(
                f"one person's {plan.reports} reports could fall into different plans, "
                "which no single plan's guarantee covers"
            )
        if self.plans and plan.values != self.plans[0].values:
            raise errors.InvalidValue(
                f"a plan for {plan.values} after one for {self.plans[0].values}"
            )
        self.plans.append(plan)
        self._next_horizon *= self._growth
        return ContinualSum(plan, self._random.spawn(1)[0], archive=False)


def _without_rest(plan: Plan) -> Plan:
    """The plan for whole blocks only, so that nobody is left pending when it ends."""
    return replace(plan, tree=replace(plan.tree, horizon=plan.tree.covered))
