"""Plans for learners: noise of the sums against the time that users wait for them."""

from __future__ import annotations

import math
from typing import Any

from overhand import errors
from overhand.model import Privacy
from overhand.plan import Delay, Plan
from overhand.values import Moments

USERS_PER_STD = 5.0
"""Per root of the dimension, how many users' regret is that of one unit of noise: measured."""


def plan_for_regret(
    horizon: int,
    shufflers: int,
    privacy: Privacy,
    dimension: int,
    *,
    users_per_std: float = USERS_PER_STD,
    **options: Any,
) -> Plan:
    """The plan of least regret, about, for a linear bandit with features of this dimension.

    An audience is understood once the sum of x x^T stands out from the noise that is shifted away,
    2 std sqrt(2 d): so the regret of noise is in proportion to its std and sqrt(d). A batch of b
    users costs about b more users who are served by an old rule. A counter's plan would take the
    pending users for an error instead, and so choose batches that are far too small.

    Other options are those of `Plan.best`. Unless told otherwise, values are sent as shares.

    >>> plan = plan_for_regret(100_000, 4, Privacy(1.0, 1e-6), dimension=9)
    >>> plan.values, plan.tree.levels, plan.delta_spent <= 1e-6
    (Moments(features=9, clip=False), 4, True)
    """
    errors.number("users_per_std", users_per_std, above=0)
    values = Moments(dimension)
    users_per_width = users_per_std * math.sqrt(dimension) * values.width
    options = {"mechanism": "shares", **options}
    return Plan.best(
        horizon, shufflers, privacy, values=values, objective=Delay(users_per_width), **options
    )
