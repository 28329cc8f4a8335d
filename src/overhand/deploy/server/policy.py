"""What a recommender has learned, for the public: all of it is read from published sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from overhand.bandits import Policy, Practical
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import PolicyKey
from overhand.deploy.protocol.learning import Learning, SignedPolicy
from overhand.deploy.server.store import Coordinate
from overhand.errors import InvalidValue
from overhand.estimates import Estimate
from overhand.model import Floats

_SIGMAS = 1.96
REWARD_COORDINATE = 0
"""Of a sum of moments: with a constant first feature, that of x y which counts rewards."""


@dataclass(frozen=True)
class PolicyMaker:
    """Makes and reads the policies of a recommender, with the key that its document names."""

    _document: Document
    _learning: Learning
    _key: PolicyKey

    @classmethod
    def of(cls, document: Document, key: PolicyKey | None) -> PolicyMaker | None:
        """That of a document, if it is of a recommender."""
        learning = document.learning
        if learning is None:
            if key is not None:
                raise InvalidValue("the document is not a recommender's: it needs no policy key")
            return None
        if key is None:
            raise InvalidValue("the policies of a recommender are signed: --policy-key is missing")
        if key.public_key != learning.policy_key:
            raise InvalidValue("the policy key is not the one that the document names")
        return cls(document, learning, key)

    def make_policy(self, number: int, estimate: Estimate | None) -> str:
        """The next policy, from released sums alone, as it is published.

        Users whose batches are lost widen it as noise would: `rms` is `std` where there are none.
        """
        assert estimate is not None
        std = float(np.max(estimate.rms))
        policy = self._learning.learner.policy(estimate.t, estimate.value, std)
        return SignedPolicy.sign(self._key, self._document.formats.digest, number, policy).to_json()

    def lessons(
        self,
        text: str | None,
        points: Sequence[Coordinate],
        users: Sequence[int],
        latest: Estimate | None,
    ) -> dict[str, Any]:
        """Mean reward at these points, of so many users, theta by feature, and the arms."""
        learning = self._learning
        told = map(reward_of, repeat(learning), points, users)
        rewards = [one for one in told if one is not None]
        shown = {name: [getattr(one, name) for one in rewards] for name in Coordinate._fields}
        if text is None or latest is None:
            return {"policy": None, "reward": shown, "coefficients": [], "arms": []}
        signed = self._document.policy(text)
        return {
            "policy": {"number": signed.number, "users": signed.policy.t},
            "reward": shown,
            "coefficients": coefficients_of(learning, signed.policy, latest),
            "arms": arms_of(learning, signed.policy),
        }


def reward_of(learning: Learning, point: Coordinate, users: int) -> Coordinate | None:
    """The mean reward of the users so far, with its band; None if the moments do not tell it.

    The first feature is the same for all, s once it is scaled, and rewards are reported as 2 y - 1.
    So the first coordinate of the sum of x y is s times the sum of 2 y - 1, and its band is the
    band of the mean reward, moved and scaled.

    >>> from overhand.bandits import Practical
    >>> learning = Learning(Practical(2, constant=0.5), bytes(32))
    >>> reward_of(learning, Coordinate(100, value=25.0, low=20.0, high=30.0), users=100)
    Coordinate(t=100, value=0.75, low=0.7, high=0.8)
    """
    constant = learning.constants.constant
    if constant is None or users == 0:
        return None
    whole = 2 * users * constant * float(learning.constants.scales[0])
    return Coordinate(point.t, *(0.5 + end / whole for end in point[1:]))


def coefficients_of(learning: Learning, policy: Policy, estimate: Estimate) -> list[dict[str, Any]]:
    """Theta by feature, each with an interval of at least 95 %.

    The error of theta is V^-1 times the noise of rewards and sums, and less its pull towards 0 by
    the shift that keeps V positive: the interval has 1.96 deviations of the former on both sides,
    and the latter as it is for the longest theta there may be, which is far longer than the one
    that was learnt as long as noise prevails.
    """
    theta, half = _unit(learning) * np.array([policy.theta, _half_widths(learning, estimate)])
    numbers = {"value": theta, "low": theta - half, "high": theta + half}
    return [
        {"feature": name, **{what: float(one[place]) for what, one in numbers.items()}}
        for place, name in enumerate(learning.names)
    ]


def _unit(learning: Learning) -> float:
    """Theta is of rewards as they are reported: times this, it is of rewards in [0, 1]."""
    return 1.0 if learning.constants.constant is None else 0.5


def _half_widths(learning: Learning, estimate: Estimate) -> Floats:
    constants, t, std = learning.constants, estimate.t, float(np.max(estimate.rms))
    whole = Practical(constants.dimension, constants.constant, exploration=1.0)
    _, gram = learning.learner.moments.split(estimate.value)
    eigenvalues, axes = learning.learner.spectrum(t, gram, std)
    deviations = np.sqrt(axes**2 @ whole.widths(eigenvalues, t, std) ** 2)
    pull = constants.shift(t, std) * np.sqrt(whole.theta_square * (axes**2 @ eigenvalues**-2.0))
    return np.asarray((_SIGMAS * deviations + pull) * constants.scales)


def arms_of(learning: Learning, policy: Policy) -> list[dict[str, Any]]:
    """What the policy expects of the arms that the document names, the best first.

    `expected` is what it expects of an arm, `bonus` how much it does not know: it takes the arm
    with the largest of both together.
    """
    unit, names = _unit(learning), list(learning.arms)
    features = np.array(list(learning.arms.values()), np.float64).reshape(-1, len(learning.names))
    means, scores = features @ policy.theta, policy.scores(features)
    expected, bonus = (1 - unit) + unit * means, unit * (scores - means)
    return [
        {"arm": names[place], "expected": float(expected[place]), "bonus": float(bonus[place])}
        for place in np.argsort(-scores, kind="stable")
    ]
