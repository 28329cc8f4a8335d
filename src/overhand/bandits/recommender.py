"""Algorithm 4 as a whole, fast: `reference.play` in one process.

Contexts in, arms out, rewards back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.bandits.linucb import (
    ALIKE,
    Constants,
    LinUCB,
    Policy,
    Practical,
    check_contexts,
    choose_arms,
)
from overhand.model import Floats
from overhand.planning import Plan
from overhand.randomness import Random, SeededRandom, restore_random, source_of
from overhand.sums import CUT_SHORT, ContinualSum, Resumable, whole
from overhand.values import TOLERANCE, RegressionStatistics

_DOUBLE = np.dtype(np.float64)


class ReleasedSums(Protocol):
    """Sums of what users report, with noise in them, that are released now and then."""

    def next_release(self, t: int) -> int:
        """The time of the next release after this one."""

    def after(self, rows: Floats) -> tuple[Floats, float]:
        """The sums once all users since the last release have added theirs, and their std."""


class Rounds:
    """Algorithm 4, round by round: a policy serves users until a release makes the next one.

    `rows` makes of features and rewards what is added up. Users are those of one stream, or of
    runs side by side, whose axis comes before that of users.

    >>> class Exact:
    ...     total = 0.0
    ...     def next_release(self, t):
    ...         return t + 3
    ...     def after(self, rows):
    ...         self.total = self.total + rows.sum(axis=-2)
    ...         return self.total, 0.0
    >>> learner = LinUCB(Practical(dimension=2))
    >>> rounds = Rounds(learner, Exact(), learner.rows)
    >>> for users in range(1, 5):
    ...     rounds.keep([0.6, 0.8], 1.0, users=1)
    ...     print(users, rounds.policy and rounds.policy.theta.round(2), rounds.due)
    1 None 3
    2 None 3
    3 [0.45 0.6 ] 6
    4 [0.45 0.6 ] 6
    """

    def __init__(
        self,
        learner: LinUCB,
        sums: ReleasedSums,
        rows: Callable[[Floats, Floats], Floats],
        runs: tuple[int, ...] = (),
    ) -> None:
        self.policy: Policy | None = None
        """The policy in force: none before the first release."""
        self.t = 0
        """How many users have come."""
        self.due = sums.next_release(0)
        """When the next policy is made."""
        self._learner = learner
        self._sums = sums
        self._rows = rows
        self._runs = runs
        self._waiting = 0
        self._open = self._room(self.due)

    def _room(self, users: int) -> Floats:
        """For features and rewards of so many users."""
        return np.empty((*self._runs, users, self._learner.dimension + 1))

    def keep(self, features: ArrayLike, rewards: ArrayLike, users: int) -> None:
        """The features of the arms that these users took, and what came of it.

        Of a stretch over several releases only the last makes a policy.
        """
        start, stop, t = self._waiting, self._waiting + users, self.t + users
        if t > self.due:
            self._open, small = self._room(stop), self._open
            self._open[..., :start, :] = small[..., :start, :]
        self._open[..., start:stop, :-1] = features
        self._open[..., start:stop, -1] = rewards
        if t >= self.due:
            stop = self._learn(stop, t)
        self._waiting, self.t = stop, t

    def _learn(self, kept: int, t: int) -> int:
        """All users up to the last release are learnt from; returns how many wait for the next."""
        last = self.due
        while (due := self._sums.next_release(last)) <= t:
            last = due
        waiting = t - last
        learnt = kept - waiting
        full, rest = self._open[..., :learnt, :], self._open[..., learnt:kept, :]
        total, std = self._sums.after(self._rows(full[..., :-1], full[..., -1]))
        self.policy = self._learner.policy(last, total, std)
        self.due, self._open = due, self._room(due - last)
        self._open[..., :waiting, :] = rest
        return waiting

    def secret_state(self) -> dict[str, Any]:
        """All that is needed to go on but for the sums, ready for JSON."""
        policy = self.policy
        return {
            "t": self.t,
            "due": self.due,
            "waiting": self._open[..., : self._waiting, :].tolist(),
            "policy": policy and [policy.t, policy.theta.tolist(), policy.width.tolist()],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with sums that are where they were."""
        self.t, self.due = state["t"], state["due"]
        axes = (*self._runs, -1, self._learner.dimension + 1)
        waiting = np.array(state["waiting"], np.float64).reshape(axes)
        self._waiting = waiting.shape[-2]
        self._open = self._room(self.due - self.t + self._waiting)
        self._open[..., : self._waiting, :] = waiting
        if state["policy"] is not None:
            t, theta, width = state["policy"]
            self.policy = Policy(t, np.array(theta, np.float64), np.array(width, np.float64))


class _PlannedSums:
    """The sums of a plan in one process, released whenever a lowest batch is full."""

    def __init__(self, total: ContinualSum) -> None:
        self._lowest = total.plan.tree.lowest
        self.total = total

    def next_release(self, t: int) -> int:
        return t - t % self._lowest + self._lowest

    def after(self, rows: Floats) -> tuple[Floats, float]:
        self.total.update_rows(rows)
        estimate = self.total.estimate
        return estimate.value, estimate.std


class Recommender(Resumable):
    """Recommends by LinUCB, and learns from sums that a plan makes private.

    One process that is trusted with users' values until their batch is full, for experiments and
    for servers that are trusted; where they are not, the services run the same learner
    (`docs/bandits.md`), and `examples/private_recommender.py` shows both sides. Arms may change
    every round. Rewards are in [0, 1], features of norm at most 1. If the first of them is always
    the same, say so by `constant`: it halves the regret (`Practical`). Only a simulation says where
    chance comes from, by `random`. Several threads may use it: each call is whole.

    >>> import overhand as oh
    >>> from overhand.bandits import plan_for_regret
    >>> plan = plan_for_regret(10_000, 3, oh.Privacy(4.0, 1e-6), dimension=3)
    >>> recommender = Recommender(plan, oh.seeded_random(1), constant=0.5)
    >>> rng = np.random.default_rng(1)
    >>> for _ in range(10_000):
    ...     contexts = 0.5 * np.column_stack([np.ones(4), rng.choice([-1, 1], (4, 2))])
    ...     arm = recommender.recommend(contexts)
    ...     recommender.update(contexts[arm], float(contexts[arm, 1] > 0))
    >>> recommender.t, recommender.recommend([[0.5, -0.5, 0.0], [0.5, 0.5, 0.0]])
    (10000, 1)
    """

    def __init__(
        self,
        plan: Plan,
        random: Random | None = None,
        *,
        constant: float | None = None,
        constants: Constants | None = None,
    ) -> None:
        self.plan = plan
        self._horizon = plan.horizon
        if not isinstance(plan.values, RegressionStatistics):
            raise errors.InvalidValue(
                f"a recommender needs a plan for regression, not {plan.values}"
            )
        dimension = plan.values.features
        if constant is not None and constants is not None:
            raise errors.InvalidValue(f"give {constant=} or constants=, which have their own")
        constants = constants or Practical(dimension, constant)
        self._constant = constants.constant
        self._axes = (dimension,)  # of one user's features
        self._learner = learner_for(plan, LinUCB(constants))
        self._random, sums = source_of(random).spawn(2)
        self._sums = _PlannedSums(ContinualSum(plan, sums, archive=False))
        self._rounds = Rounds(self._learner, self._sums, self._learner.rows)

    @property
    def policy(self) -> Policy | None:
        """The policy in force: none before the first batch is full."""
        return self._rounds.policy

    @property
    def t(self) -> int:
        """How many users were learnt from, or will be when their batch is full."""
        return self._rounds.t

    def recommend(self, contexts: ArrayLike) -> Any:
        """The arm for a user's contexts (arms, features), or for many users' at once.

        Users of one batch are served by the same policy; the first of all choose at random.
        """
        features = check_contexts(contexts, self._learner.dimension)
        with self._lock:
            arms = choose_arms(self._rounds.policy, features, self._random)
        return arms if features.ndim == 3 else int(arms)

    def update(self, features: ArrayLike, reward: float) -> None:
        """One user: the features of the arm that was taken, and what came of it."""
        if not self._is_plain(features, reward):
            self.update_many(_one(features), _one(reward))  # which takes a closer look
            return
        self._keep(features, reward, 1)

    @whole
    def _keep(self, features: ArrayLike, rewards: ArrayLike, users: int) -> None:
        """Users whose values are checked, as far as the plan goes."""
        self._check_open()
        t, learnt = self._rounds.t, self._sums.total.t
        if t + users > self._horizon:
            raise errors.InvalidValue(
                f"{users} users after {t} go beyond the horizon {self._horizon}"
            )
        self._closed = CUT_SHORT
        try:
            self._rounds.keep(features, rewards, users)
        except BaseException:
            if self._sums.total.t == learnt:  # nothing has changed
                self._closed = None
            raise
        self._closed = None

    def _is_plain(self, features: Any, reward: Any) -> bool:
        """Whether one user's values need no closer look."""
        return (
            isinstance(features, np.ndarray)
            and features.dtype == _DOUBLE
            and features.shape == self._axes
            and math.hypot(*features.tolist()) <= 1.0 + TOLERANCE / 2  # and not NaN
            and (self._constant is None or abs(features[0] - self._constant) <= ALIKE)
            and isinstance(reward, (float, int))
            and 0 <= reward <= 1
        )

    def update_many(self, features: ArrayLike, rewards: ArrayLike) -> None:
        """Many users at once: the same as one by one, and all of them or none."""
        users = len(self._learner.rows(features, rewards, first=self.t))
        self._keep(np.reshape(features, (users, *self._axes)), rewards, users)

    @whole
    def __repr__(self) -> str:
        learnt = 0 if self.policy is None else self.policy.t
        return f"Recommender(t={self.t} of {self._horizon}, learnt from {learnt} users)"

    @property
    def _is_secret(self) -> bool:
        return not isinstance(self._random, SeededRandom)

    def _arguments(self, text: str) -> tuple[Any, ...]:
        return self.plan, text, self._learner.constants

    @whole
    def secret_state(self) -> dict[str, Any]:
        """All that is needed to go on, ready for JSON."""
        self._check_open()
        return {
            "constants": _entry(self._learner.constants),
            "random": self._random.state,
            "rounds": self._rounds.secret_state(),
            "sums": self._sums.total.secret_state(),
        }

    @classmethod
    def from_json(cls, plan: Plan, text: str, constants: Constants | None = None) -> Recommender:
        """The recommender that was saved, over the same plan, or `DamagedPlan`.

        Only `constants` that are not `Practical` have to be given again.
        """
        return cls._restore(text, lambda state: cls._from_state(plan, state, constants))

    @classmethod
    def _from_state(
        cls, plan: Plan, state: Mapping[str, Any], constants: Constants | None
    ) -> Recommender:
        kind, told = state["constants"]
        if constants is None and kind == Practical.__name__:
            constants = Practical(**told)
        if constants is None or _entry(constants) != state["constants"]:
            raise errors.DamagedPlan(f"the recommender was saved with constants={told or kind}")
        total = ContinualSum.from_state(plan, state["sums"])
        recommender = cls(plan, restore_random(state["random"]), constants=constants)
        recommender._random = restore_random(state["random"])
        recommender._sums.total = total
        recommender._rounds.resume(state["rounds"])
        return recommender


def learner_for(plan: Plan, learner: LinUCB) -> LinUCB:
    """The learner, if the plan adds up what it learns from.

    >>> import overhand as oh
    >>> from overhand.bandits import Practical
    >>> learner_for(oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6)), LinUCB(Practical(2)))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: a plan for bit cannot serve a learner of regression:2
    """
    if plan.values != learner.moments:
        raise errors.InvalidValue(
            f"a plan for {plan.values} cannot serve a learner of {learner.moments}"
        )
    return learner


def _entry(constants: Constants) -> list[Any]:
    """Constants as a saved state names them."""
    if type(constants) is Practical:
        return [Practical.__name__, dataclasses.asdict(constants)]
    told = repr(constants) if dataclasses.is_dataclass(constants) else None
    return [type(constants).__name__, told]


def _one(value: Any) -> Any:
    """One user's, as those of many."""
    return value[np.newaxis] if isinstance(value, np.ndarray) else [value]
