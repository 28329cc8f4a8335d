"""A private recommender in one process: contexts in, arms out, rewards back (Algorithm 4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.bandits.constants import Constants, Practical
from overhand.bandits.linucb import ALIKE, LinUCB, checked_contexts
from overhand.bandits.policy import Floats, Policy
from overhand.bandits.roles import dimension_of, learner_for
from overhand.plan import Plan
from overhand.randomness import Random, source_of
from overhand.summation import ContinualSum
from overhand.values import TOLERANCE


class Recommender:
    """Recommends by LinUCB, and learns from sums that a plan makes private.

    One process that is trusted with users' values until their batch is full, for experiments and
    for servers that are trusted; `BanditUser` and `BanditServer` are the two halves where the
    boundary matters. Arms may change every round. Rewards are in [0, 1], features of norm at most
    1. If the first of them is always the same, say so by `constant`: it halves the regret
    (`Practical`). Only a simulation says where chance comes from, by `random`.

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
        dimension = dimension_of(plan)
        if constant is not None and constants is not None:
            raise errors.InvalidValue(f"give {constant=} or constants=, which have their own")
        constants = constants or Practical(dimension, constant)
        self._constant = constants.constant
        self._learner = learner_for(plan, LinUCB(constants))
        self._random, sums = source_of(random).spawn(2)
        self._sum = ContinualSum(plan, sums, archive=False)
        # Features and rewards of the users whose batch is not full yet.
        self._open = np.empty((plan.tree.lowest, dimension + 1))
        self._waiting = 0
        self.policy: Policy | None = None
        """The rule in force: none before the first batch is full."""

    @property
    def t(self) -> int:
        """How many users were learnt from, or will be when their batch is full."""
        return self._sum.t + self._waiting

    def recommend(self, contexts: ArrayLike) -> Any:
        """The arm for a user's contexts (arms, features), or for many users' at once.

        Users of one batch are served by the same rule; the first of all choose at random.
        """
        features = checked_contexts(contexts, self._learner.dimension)
        if self.policy is not None:
            arms = self.policy.choose(features)
        else:
            users = features.shape[0] if features.ndim == 3 else 1
            drawn = (self._random.uniforms(users) * features.shape[-2]).astype(np.int64)
            arms = drawn if features.ndim == 3 else drawn[0]
        return arms if features.ndim == 3 else int(arms)

    def update(self, features: ArrayLike, reward: float) -> None:
        """One user: the features of the arm that was taken, and what came of it."""
        if not self._is_plain(features, reward):
            self.update_many(_one(features), _one(reward))  # which takes a closer look
            return
        self._check_horizon(1)
        self._open[self._waiting, :-1] = features
        self._open[self._waiting, -1] = reward
        self._waiting += 1
        if self._waiting == len(self._open):
            self._waiting = 0
            self._learn(self._open)

    def _is_plain(self, features: Any, reward: Any) -> bool:
        """Whether one user's values need no closer look."""
        return (
            isinstance(features, np.ndarray)
            and features.dtype == np.float64
            and features.shape == (self._learner.dimension,)
            and math.hypot(*features.tolist()) <= 1.0 + TOLERANCE / 2  # and not NaN
            and (self._constant is None or abs(features[0] - self._constant) <= ALIKE)
            and isinstance(reward, float | int)
            and 0 <= reward <= 1
        )

    def update_many(self, features: ArrayLike, rewards: ArrayLike) -> None:
        """Many users at once: the same as one by one, and all of them or none."""
        self._check_horizon(len(self._learner.rows(features, rewards, first=self.t)))
        x = np.asarray(features, np.float64).reshape(-1, self._learner.dimension)
        table = np.column_stack([x, rewards])
        table = np.concatenate([self._open[: self._waiting], table])
        full = len(table) - len(table) % len(self._open)
        self._waiting = len(table) - full
        self._open[: self._waiting] = table[full:]
        if full:
            self._learn(table[:full])

    def _check_horizon(self, users: int) -> None:
        if self.t + users > self.plan.horizon:
            raise errors.InvalidValue(
                f"{users} users after {self.t} go beyond the horizon {self.plan.horizon}"
            )

    def _learn(self, table: Floats) -> None:
        """Whole batches have become full: release them, and make a rule of the sums."""
        self._sum.update_rows(self._learner.rows(table[:, :-1], table[:, -1], first=self._sum.t))
        estimate = self._sum.estimate
        self.policy = self._learner.policy(self._sum.t, estimate.value, estimate.std)


def _one(value: Any) -> Any:
    """One user's, as those of many."""
    return value[np.newaxis] if isinstance(value, np.ndarray) else [value]
