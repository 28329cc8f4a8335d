"""The two sides of the trust boundary: what a user keeps to itself, and what a server sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.bandits.linucb import LinUCB, Policy, checked_contexts, chosen_arms
from overhand.errors import ProtocolViolation
from overhand.model import Floats, Messages, Node, Shuffled
from overhand.plan import Plan
from overhand.randomness import Random, source_of
from overhand.summation import SumServer
from overhand.values import Moments


def learner_for(plan: Plan, learner: LinUCB) -> LinUCB:
    """The learner, if the plan adds up what it learns from.

    >>> import overhand as oh
    >>> from overhand.bandits import Practical
    >>> learner_for(oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6)), LinUCB(Practical(2)))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: a plan for bit cannot serve a learner of moments:2
    """
    if plan.values != learner.moments:
        raise errors.InvalidValue(
            f"a plan for {plan.values} cannot serve a learner of {learner.moments}"
        )
    return learner


def dimension_of(plan: Plan) -> int:
    """How many features the users of a plan have."""
    if not isinstance(plan.values, Moments):
        raise errors.InvalidValue(f"a recommender needs a plan for moments, not {plan.values}")
    return plan.values.features


class BanditUser:
    """A user's own device: context, choice and reward stay here, and only messages leave it.

    >>> import overhand as oh
    >>> from overhand.bandits import Practical, plan_for_regret
    >>> plan = plan_for_regret(1000, 2, oh.Privacy(1.0, 1e-6), dimension=2)
    >>> user = BanditUser(plan, LinUCB(Practical(2)))
    >>> arm = user.choose(None, [[0.7, 0.7], [0.7, -0.7]])  # no rule yet: any arm
    >>> for node, messages in user.report(t=1, reward=1.0):
    ...     print(node.level, messages.sealed.shape == (1, plan.mechanism(node).messages_per_user))
    1 True
    2 True
    """

    def __init__(self, plan: Plan, learner: LinUCB, random: Random | None = None) -> None:
        self._plan = plan
        self._learner = learner_for(plan, learner)
        self._random = source_of(random)
        self._chosen: Floats | None = None

    def choose(self, policy: Policy | None, contexts: ArrayLike) -> int:
        """Step 3: the arm that the server's rule picks in this user's context; the last counts."""
        features = checked_contexts(contexts, self._learner.dimension)
        if features.ndim != 2:
            raise errors.InvalidValue(f"contexts of shape {features.shape} are not one user's")
        if policy is not None and policy.theta.shape != features.shape[1:]:
            raise errors.InvalidValue(
                f"a rule for {policy.theta.shape} features where users have {features.shape[1:]}"
            )
        arm = int(chosen_arms(policy, features, self._random))
        self._chosen = features[arm]
        return arm

    def report(self, t: int, reward: float) -> list[tuple[Node, Messages]]:
        """Step 5: messages for every batch that the t-th user is in; the user forgets the rest."""
        t = errors.whole("t", t, least=1, most=self._plan.horizon)
        if self._chosen is None:
            raise ProtocolViolation("a user chooses before it reports, and reports once")
        rows = self._learner.rows(self._chosen[np.newaxis], [reward], first=t - 1)
        messages = [
            (node, self._plan.mechanism(node).encode_rows(rows, self._random))
            for node in self._plan.tree.joins(t)
        ]
        self._chosen = None
        return messages


class BanditServer:
    """The server: shuffled batches in, action rules out.

    >>> import overhand as oh
    >>> from overhand.bandits import Practical, plan_for_regret
    >>> from overhand.shufflers import shuffle
    >>> plan = plan_for_regret(1000, 1, oh.Privacy(1.0, 1e-6), dimension=2)
    >>> random, learner = oh.seeded_random(1), LinUCB(Practical(2))
    >>> user, server = BanditUser(plan, learner, random), BanditServer(plan, learner)
    >>> batch = []
    >>> for t in range(1, plan.tree.lowest + 1):
    ...     arm = user.choose(server.policy, [[0.7, 0.7], [0.7, -0.7]])
    ...     ((node, messages),) = user.report(t, reward=float(arm == 0))
    ...     batch.append(messages)
    >>> server.policy  # before the first batch there is no rule
    >>> server.receive(node, shuffle(Messages.joined(batch).gathered(node.size), random))
    >>> server.policy.t == plan.tree.lowest
    True
    """

    def __init__(self, plan: Plan, learner: LinUCB) -> None:
        self._learner = learner_for(plan, learner)
        self._sums = SumServer(plan)
        self._policy: Policy | None = None

    def receive(self, node: Node, shuffled: Shuffled) -> None:
        """Step 6: a batch that became full, in whatever order they come."""
        self._sums.receive(node, shuffled)
        self._policy = None

    @property
    def policy(self) -> Policy | None:
        """Steps 7 and 2: the rule that the batches so far give, or none before the first of them.

        For a batch that is late, those below it stand in: the rule is that of their larger noise.
        """
        if self._policy is None and self._sums.covered:
            estimate = self._sums.estimate()
            self._policy = self._learner.policy(estimate.t, estimate.value, estimate.std)
        return self._policy
