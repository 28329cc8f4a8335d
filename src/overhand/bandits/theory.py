"""Theorem 5.1, fast: lambda and beta_t of `reference.BanditServer`, and the regret to expect.

The bound is from Shariff and Sheffet (2018). With V_t the Gram matrix plus lambda, of which every
entry is wrong by at most sigma': lambda = 2 sigma' d, so that the noise of matrix and vector has
norm at most lambda / 2; hence rho_max = 3 lambda / 2, rho_min = lambda / 2 and
gamma = sqrt(lambda / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from overhand import errors
from overhand.model import Floats, Privacy
from overhand.planning import Delay, Plan
from overhand.values import RegressionStatistics

USERS_PER_STD = 5.0
"""Per root of the dimension, how many users' regret is that of one unit of noise: measured."""

REWARD_STD = 0.5
"""sigma: a reward in [0, 1] is sub-Gaussian with variance at most 1/4 (Hoeffding's lemma)."""

_FAR = (1e100, 1e300)


@dataclass(frozen=True)
class Theory:
    """lambda, beta_t and the regret bound, if every entry is within `entry_error` at all times.

    But for a probability of 1 / (2 horizon). The bonus exceeds the whole range of rewards for most
    of any stream that anybody has: this is here to be compared with, not to be used.

    >>> bound = Theory(dimension=5, horizon=100_000, entry_error=300.0)
    >>> bound.shift(0, 0.0), round(bound.radius(100_000)), f"{bound.regret:.3g}"
    (3000.0, 109, '3.62e+05')
    """

    dimension: int
    horizon: int
    entry_error: float
    reward_std: float = REWARD_STD

    constant = None

    def __post_init__(self) -> None:
        errors.whole("dimension", self.dimension, least=1)
        errors.whole("horizon", self.horizon, least=1)
        errors.finite_number("entry_error", self.entry_error, above=0)
        errors.finite_number("reward_std", self.reward_std, above=0)

    @cached_property
    def scales(self) -> Floats:
        return np.ones(self.dimension)

    def shift(self, t: int, std: float) -> float:
        return 2 * self.entry_error * self.dimension

    def radius(self, t: int) -> float:
        """beta_t."""
        shift, seen = self.shift(t, 0.0), 2 * t / (self.dimension * self.shift(t, 0.0))
        ellipsoid = 2 * math.log(2 * self.horizon) + self.dimension * math.log(3 + seen)
        first = self.reward_std * math.sqrt(ellipsoid)
        return first + math.sqrt(1.5 * shift) + math.sqrt(shift / 2)

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        return np.asarray(self.radius(t) / np.sqrt(eigenvalues))

    @property
    def regret(self) -> float:
        """What the regret is below, but for a probability of 1 / horizon."""
        return _regret(self.horizon, self.dimension, self.shift(0, 0.0), self.reward_std)


def _regret(horizon: float, dimension: int, shift: float, sigma: float) -> float:
    """The theorem's bound for alpha = 1 / n.

    Its first term has no square root: it is a bound on the product of two, that of the ellipsoid
    and that of the sum of widths.
    """
    seen = 2 * horizon / (dimension * shift)
    ellipsoid = 2 * math.log(2 * horizon) + dimension * math.log(3 + seen)
    noise = math.sqrt(1.5 * shift) + math.sqrt(shift / 2)
    return math.sqrt(8 * horizon) * (
        sigma * ellipsoid + noise * math.sqrt(dimension * math.log1p(seen))
    )


def published_entry_error(
    horizon: float, shufflers: float, privacy: Privacy, dimension: int
) -> float:
    """sigma' of Corollary 3.5 for vectors, its constant left out: an order of growth."""
    per_level = shufflers * math.log(dimension * shufflers / privacy.delta) / privacy.epsilon
    nodes = math.sqrt(shufflers) * math.pow(horizon, 1 / (2 * shufflers + 1))
    entries = dimension**2 + dimension
    return per_level * nodes * math.sqrt(3 * math.log(horizon) + math.log(entries))


def published_regret(
    horizon: float, shufflers: int | None, privacy: Privacy, dimension: int
) -> float:
    """The bound of Theorem 5.1 with that sigma'; without `shufflers`, for log n of them.

    For a million users it is above what there is to miss, one for each of them:

    >>> [f"{published_regret(10**6, k, Privacy(1.0, 1e-6), dimension=5):.1e}" for k in (1, 3, None)]
    ['5.0e+06', '3.9e+06', '5.5e+06']
    """
    k = math.log2(horizon) if shufflers is None else errors.whole("shufflers", shufflers, least=1)
    shift = 2 * dimension * published_entry_error(horizon, k, privacy, dimension)
    return _regret(horizon, dimension, shift, REWARD_STD)


def regret_exponent(
    shufflers: int | None, privacy: Privacy | None = None, dimension: int = 5
) -> float:
    """How fast that bound grows, where logarithms no longer matter: (k + 1) / (2 k + 1).

    >>> [round(regret_exponent(k), 2) for k in (1, 2, 3, None)]
    [0.67, 0.6, 0.57, 0.5]
    """
    privacy = privacy or Privacy(1.0, 1e-6)
    near, far = (published_regret(n, shufflers, privacy, dimension) for n in _FAR)
    return math.log(far / near) / math.log(_FAR[1] / _FAR[0])


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
    users costs about b more users who are served by an old policy. A counter's plan would take the
    pending users for an error instead, and so choose batches that are far too small.

    Other options are those of `Plan.best`. Unless told otherwise, values are sent as pairs to two
    services that do not collude; "shares" and "coins", over a tree of so many shufflers, are the
    paper's.

    >>> plan = plan_for_regret(100_000, 4, Privacy(1.0, 1e-6), dimension=9)
    >>> plan.values, plan.messages_per_user, plan.tree.lowest, plan.delta_spent <= 1e-6
    (RegressionStatistics(features=9, clip=False), 1, 103, True)
    """
    errors.finite_number("users_per_std", users_per_std, above=0)
    values = RegressionStatistics(dimension)
    users_per_width = users_per_std * math.sqrt(dimension) * values.width
    options = {"mechanism": "services", **options}
    return Plan.best(
        horizon, shufflers, privacy, values=values, objective=Delay(users_per_width), **options
    )
