"""A running sum without a horizon: plans of growing size, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from numpy.typing import ArrayLike

from overhand import errors
from overhand.estimates import Estimate
from overhand.planning import Plan
from overhand.randomness import Random, SeededRandom, restore_random, source_of
from overhand.sums.continual import ContinualSum
from overhand.sums.hindsight import Hindsight
from overhand.sums.saving import CUT_SHORT, whole
from overhand.sums.server import Pending, SumServer, is_rate
from overhand.sums.times import BlockTimes, Clock, Ranged, Time, Times


class EndlessSum(Ranged):
    """Serves any number of users with a sequence of plans, each `growth` times as long.

    The users of different plans are disjoint, so the guarantee is that of a single plan. When a
    plan is used up, its last estimate and variance stay and, with `archive`, the sums of its
    batches, which ranges, windows and hindsight need. `plan_for(horizon)` makes the plans.
    `pending` is as in `ContinualSum`; every plan has a rate of its own. Several threads may use it.

    >>> import overhand as oh
    >>> def plan_for(horizon: int) -> oh.Plan:
    ...     return oh.Plan.best(horizon, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = EndlessSum(plan_for, oh.seeded_random(3), first=500)
    >>> total.update_many([1] * 4000)
    >>> total.t, len(total.plans), abs(total.estimate.value - 4000) < 5 * total.estimate.rms
    (4000, 4, True)
    >>> last = total.between(3000, 4000)
    >>> last.users, abs(last.value - 1000) < 5 * last.rms
    (1000, True)
    """

    def __init__(
        self,
        plan_for: Callable[[int], Plan],
        random: Random | None = None,
        *,
        first: int = 1024,
        growth: int = 2,
        archive: bool = True,
        pending: Pending = "middle",
    ) -> None:
        self._plan_for = plan_for
        self._random = source_of(random)
        self._growth = errors.whole("growth", growth, least=1)
        self._is_archived, self._pending = archive, pending
        self._clock = Clock()
        self._past: list[tuple[SumServer, BlockTimes]] = []  # of the plans that are used up
        self._settled: Estimate | None = None  # of all their users
        self.plans: list[Plan] = []
        self._next_horizon = errors.whole("first", first, least=2)
        self._current = self._start(self._next_plan(self._next_horizon))

    @property
    @whole
    def t(self) -> int:
        return self._current.t + (0 if self._settled is None else self._settled.t)

    def update(self, value: Any, at: Time | None = None) -> None:
        """Add one user, and when it came: see `update_many`."""
        with self._lock:
            current, stamp = self._current, None
            if self._closed or current.t == current.plan.horizon:
                self.update_many([value], None if at is None else [at])
                return
            if at is not None or self._clock.last is not None:
                stamp = self._clock.check_one(at, first=self.t)
            try:
                current.update(value, at)
            except errors.InvalidValue:
                # The same error, but of the user's place among all.
                current.plan.values.rows([value], first=self.t)
                raise
            if stamp is not None:
                self._clock.keep_one(stamp)

    @whole
    def update_many(self, values: ArrayLike, at: Times | None = None) -> None:
        """Add many users at once: the same as one by one, and all of them or none.

        `at` says when each of them came: see `ContinualSum.update_many`. Times are not protected
        by epsilon.
        """
        self._check_open()
        rows = self._current.plan.values.rows(values, first=self.t)
        times = self._clock.check(at, users=len(rows), first=self.t)
        following = iter(self._plans_for(len(rows)))  # nothing has changed if one is refused
        start = 0
        while start < len(rows):
            if self._current.t == self._current.plan.horizon:
                self._settle(next(following))
            part = slice(start, start + self._current.plan.horizon - self._current.t)
            self._current.update_rows(rows[part], None if times is None else times.part(part))
            self._closed, start = CUT_SHORT, part.stop
        if times is not None:
            self._clock.keep(times)
        self._closed = None

    @property
    @whole
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        latest = self._current.estimate
        return latest if self._settled is None else self._settled + latest

    def _between_places(self, start: int, stop: int) -> Estimate:
        start = errors.whole("start", start, least=0)
        stop = errors.whole("stop", stop, least=start)
        if stop > self.t:
            raise errors.InvalidValue(f"stop={stop} is beyond the {self.t} users so far")
        parts: list[Estimate] = []
        offset = 0
        for users, server, _ in self._chapters():
            low, high = max(0, start - offset), min(users, stop - offset)
            if low < high:
                parts.append(server.between(low, high))
            offset += users
        found = reduce(add, parts) if parts else self._current.between(0, 0)
        return replace(found, start=start, t=stop)

    @whole
    def hindsight(self) -> Hindsight:
        """The whole history, plan after plan, each point by all batches that are full now."""
        histories = (server.hindsight() for _, server, _ in self._chapters())
        return reduce(Hindsight.join, histories)

    def _chapters(self) -> Iterator[tuple[int, SumServer, BlockTimes]]:
        """How many users each plan has had, and what is known of them."""
        for plan, past in zip(self.plans, self._past, strict=False):
            yield plan.horizon, *past
        yield self._current.t, *self._current.past

    def _place(self, moment: int) -> int:
        return sum(times.place(moment, users) for users, _, times in self._chapters())

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self._span_of(start)[0], self._span_of(stop - 1)[1]

    def _span_of(self, place: int) -> tuple[int, int]:
        """When the first and the last came of the block that has this place."""
        for users, _, times in self._chapters():
            if place < users:
                return times.span(place, place + 1)
            place -= users
        raise errors.InvalidValue(f"there is no user at place {place}")

    @whole
    def __repr__(self) -> str:
        plan = f"plan {len(self.plans)} for {self.plans[-1].horizon}"
        return f"EndlessSum(t={self.t}, {plan}, {self.estimate.summary})"

    @property
    def _is_secret(self) -> bool:
        return not isinstance(self._random, SeededRandom)

    def _arguments(self, text: str) -> tuple[Any, ...]:
        return self._plan_for, text

    @whole
    def secret_state(self) -> dict[str, Any]:
        """Everything needed to continue, ready for JSON."""
        self._check_open()
        return {
            "growth": self._growth,
            "next_horizon": self._next_horizon,
            "archive": self._is_archived,
            "pending": self._pending,
            "plans": [plan.to_json() for plan in self.plans],
            "past": [[server.state(), times.state()] for server, times in self._past],
            "current": self._current.secret_state(),
            "random": self._random.state,
            "clock": self._clock.state(),
        }

    @classmethod
    def from_json(cls, plan_for: Callable[[int], Plan], text: str) -> EndlessSum:
        """The saved sum, or `DamagedPlan` if it differs from what was saved.

        `plan_for` makes future plans; those it has made are in the saved state.
        """
        return cls._restore(text, lambda state: cls._from_state(plan_for, state))

    @classmethod
    def _from_state(cls, plan_for: Callable[[int], Plan], state: Mapping[str, Any]) -> EndlessSum:
        total = cls.__new__(cls)
        total._plan_for = plan_for
        total._random = restore_random(state["random"])
        total._growth, total._next_horizon = state["growth"], state["next_horizon"]
        total._is_archived, total._pending = state["archive"], state["pending"]
        is_rate(total._pending, archive=total._is_archived)  # or it is refused
        total._clock = Clock.from_state(state["clock"])
        total.plans = [Plan.from_json(text) for text in state["plans"]]
        total._past = [
            (SumServer.from_state(plan, server), BlockTimes.from_state(plan.tree.lowest, times))
            for plan, (server, times) in zip(total.plans, state["past"], strict=False)
        ]
        estimates = [server.estimate() for server, _ in total._past]
        total._settled = reduce(add, estimates) if estimates else None
        total._current = ContinualSum.from_state(total.plans[-1], state["current"])
        return total

    def _settle(self, following: Plan) -> None:
        """The current plan is used up, and another one follows, of whom nobody has come yet."""
        closed, self._closed = self._closed, CUT_SHORT
        self._settled = self.estimate
        self._past.append(self._current.past)
        self._current, self._closed = self._start(following), closed

    def _start(self, plan: Plan) -> ContinualSum:
        self.plans.append(plan)
        self._next_horizon *= self._growth
        random = self._random.spawn(1)[0]
        return ContinualSum(plan, random, archive=self._is_archived, pending=self._pending)

    def _plans_for(self, users: int) -> list[Plan]:
        """The plans that this many more users need, besides the current one."""
        room, horizon = self._current.plan.horizon - self._current.t, self._next_horizon
        plans: list[Plan] = []
        while room < users:
            plans.append(self._next_plan(horizon))
            room, horizon = room + plans[-1].horizon, horizon * self._growth
        return plans

    def _next_plan(self, horizon: int) -> Plan:
        made = self._plan_for(horizon)
        if not isinstance(made, Plan):
            raise errors.InvalidValue(f"plan_for({horizon}) made {made!r:.60} instead of a plan")
        # For whole blocks only, so that nobody is left pending when it ends.
        covered = made.horizon // made.tree.lowest * made.tree.lowest
        tree = made.tree if made.noise_by == "services" else replace(made.tree, horizon=covered)
        plan = replace(made, tree=tree, horizon=covered)
        if plan.reports > 1:
            raise errors.Infeasible(
                f"one person's {plan.reports} reports could fall into different plans, "
                "which no single plan's guarantee covers"
            )
        if self.plans and plan.values != self.plans[0].values:
            raise errors.InvalidValue(
                f"a plan for {plan.values} after one for {self.plans[0].values}"
            )
        return plan
