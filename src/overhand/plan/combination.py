"""How the server adds up batch sums: weights, variances and tails, all known in advance."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overhand.estimates import Estimate, Run, Stretch
from overhand.trees import RegularTree, Weights

if TYPE_CHECKING:
    from overhand.plan.plan import Plan

DEFAULT_FAILURE_PROBABILITY = 0.05
"""The default probability with which a bound on all errors at once may fail."""


def own_weight(own: float, children: float) -> float:
    """The weight of a node's own sum, of this variance, relative to its children's estimates.

    The estimate of least variance has weights in proportion to 1 / variance.

    >>> own_weight(1.0, 3.0)
    0.75
    """
    return children / (own + children) if own + children > 0 else 1.0


def combined(own: Any, children: Any, weight: float, *, power: int = 1) -> Any:
    """A node's estimate, from its own sum and the sum of its children's estimates.

    With `power`, for quantities that scale with a power of the weights, as variances do with 2.

    >>> combined(10.0, 14.0, weight=0.75)
    11.0
    """
    return weight**power * own + (1 - weight) ** power * children


@dataclass(frozen=True)
class Combination:
    """The variance-optimal estimate of a node: weights of its own sum and of its children's.

    With s the variance of the own sum and C that of the sum of the children's estimates, the
    estimate has variance V = 1 / (1/s + 1/C), and the own sum has weight V / s. No full ancestor of
    a covering node exists, so adding the covering nodes' estimates is the best linear unbiased
    estimate of a prefix. It halves the variance of a binary tree and does little for large
    degrees. All fields are by level.

    >>> tree = RegularTree(horizon=8, degrees=(2, 2))
    >>> Combination.of(tree, [1.0, 2.0], combine=True)
    Combination(own_weights=(1.0, 0.5), variances=(1.0, 1.0))
    """

    own_weights: tuple[float, ...]
    variances: tuple[float, ...]

    @classmethod
    def of(cls, tree: RegularTree, variances: Weights, *, combine: bool) -> Combination:
        """Weights and variances of the nodes' estimates, from the variances of their own sums."""
        weights = [1.0]
        found = [float(variances[0])]
        for own, degree in zip(variances[1:], tree.degrees[1:], strict=True):
            children = degree * found[-1]
            weights.append(own_weight(own, children) if combine else 1.0)
            found.append(float(combined(own, children, weights[-1], power=2)))
        return cls(tuple(weights), tuple(found))

    def over(self, tree: RegularTree, own: Weights, *, power: int) -> Weights:
        """A quantity of estimates that scales with a power of the weights, from that of sums."""
        found = [float(own[0])]
        levels = zip(own[1:], self.own_weights[1:], tree.degrees[1:], strict=True)
        for of_level, weight, degree in levels:
            found.append(float(combined(of_level, degree * found[-1], weight, power=power)))
        return found


class NodeSum(NamedTuple):
    """What is known about some users: a sum, its noise, and how far it may be off beyond that.

    >>> own, children = NodeSum(10.0, 1.0, 0.0, 0.0), NodeSum(14.0, 3.0, 0.0, 0.0)
    >>> own.combined_with(children, own_weight(own.variance, children.variance))
    NodeSum(value=11.0, variance=0.75, fourth_cumulant=0.0, slack=0.0)
    """

    value: Any
    variance: float
    fourth_cumulant: float
    slack: float

    def plus(self, other: NodeSum) -> NodeSum:
        """The sum of these users and of others, whose noise is independent."""
        return NodeSum(
            self.value + other.value,
            self.variance + other.variance,
            self.fourth_cumulant + other.fourth_cumulant,
            self.slack + other.slack,
        )

    def combined_with(self, children: NodeSum, weight: float) -> NodeSum:
        """The estimate of a node, this being its own sum: see `Combination`."""
        return NodeSum(
            combined(self.value, children.value, weight),
            combined(self.variance, children.variance, weight, power=2),
            combined(self.fourth_cumulant, children.fourth_cumulant, weight, power=4),
            combined(self.slack, children.slack, weight),
        )

    def estimate(
        self,
        plan: Plan,
        t: int,
        *,
        pending: int,
        start: int = 0,
        rate: Any = None,
        run: Run | None = None,
    ) -> Estimate:
        """Add what the plan assumes for pending users: the middle of their values, or nothing.

        If a `rate` is given, they count at that rate: the slack holds whatever they hold.
        """
        variance = self.variance
        kurtosis = max(0.0, self.fourth_cumulant / variance**2) if variance > 0 else 0.0
        imputed = (plan.imputed if rate is None else rate) * pending
        slack = self.slack + plan.slack_of(rate) * pending if pending else self.slack
        std = math.sqrt(variance)
        origin = None
        if run is not None:
            origin = (Stretch(run, start, t, pending, imputed, variance, self.slack),)
        value, law = self.value + imputed, (kurtosis, plan.unit, plan.values)
        return Estimate(t, value, std, slack, start, *law, origin)

    def state(self) -> list[Any]:
        """Ready for JSON."""
        return [np.asarray(self.value).tolist(), *self[1:]]

    @classmethod
    def restored(cls, state: list[Any]) -> NodeSum:
        value, *rest = state
        return cls(np.array(value, np.float64) if isinstance(value, list) else value, *rest)


def run_of(plan: Plan, name: str | None = None) -> Run:
    """A run of a plan, with a new name if it has none: what estimates of one run share.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> run_of(plan).name == run_of(plan).name
    False
    """
    own = [mechanism.fourth_cumulant for mechanism in plan.mechanisms]
    fourths = tuple(plan.combination.over(plan.tree, own, power=4))
    weights, variances = plan.combination.own_weights, plan.combination.variances
    return Run(name or secrets.token_hex(8), plan.tree, weights, variances, fourths)


def chernoff_bound(
    growth: Callable[[float], float], *, variance: float, largest: float, events: float
) -> float:
    """A value that noise exceeds with probability at most e^-events.

    `growth(s)` is a bound on ln E exp(s noise), finite up to `largest`; the search starts where
    Gaussian noise of this `variance` has its best bound.

    >>> round(chernoff_bound(lambda s: s**2 / 2, variance=1.0, largest=math.inf, events=2.0), 3)
    2.0
    """
    from scipy.optimize import minimize_scalar

    if variance == 0:
        return 0.0
    start = 0.5 * math.log(2 * events / variance)
    stop = min(start + 1, math.log(largest) - 1e-6)
    found = minimize_scalar(
        lambda log_s: (growth(math.exp(log_s)) + events) / math.exp(log_s),
        bounds=(min(start, stop) - 4, stop),
        method="bounded",
    )
    return float(found.fun)
