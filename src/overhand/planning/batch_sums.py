"""What the server makes of batch sums: their noise and its tails, and whether they are honest.

A sum outside the bounds of honest ones was poisoned, and is not believed. That is computed from
noisy sums alone, so it costs no privacy. A lowest sum must be within what its users may hold and
the noise reaches; a sum above it must agree with those of its children. What one client can do
unnoticed is then bounded, whatever it sends (`docs/poisoning.md`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overhand.estimates import Estimate, RunInfo, Segment, SharedNoise, TreeRun
from overhand.mechanisms import Mechanism
from overhand.model import Floats
from overhand.planning.blocks import BlockErrors, Rows
from overhand.tree import Combination, RegularTree, combine_sums

if TYPE_CHECKING:
    from overhand.planning.plan import Plan

DEFAULT_FAILURE_PROBABILITY = 0.05
"""The default probability with which a bound on all errors at once may fail."""
FALSE_ALARM = 1e-6
"""The probability that any check of a plan is ever wrong."""


class NodeSum(NamedTuple):
    """What is known about some users: a sum, its noise, and how far it may be off beyond that.

    >>> from overhand.tree import own_weight
    >>> own, children = NodeSum(10.0, 1.0, 0.0, 0.0), NodeSum(14.0, 3.0, 0.0, 0.0)
    >>> own.combine_with(children, own_weight(own.variance, children.variance))
    NodeSum(value=11.0, variance=0.75, fourth_cumulant=0.0, bias_bound=0.0)
    """

    value: Any
    variance: float
    fourth_cumulant: float
    bias_bound: float

    def plus(self, other: NodeSum) -> NodeSum:
        """The sum of these users and of others, whose noise is independent."""
        return NodeSum(*(own + more for own, more in zip(self, other, strict=True)))

    def combine_with(self, children: NodeSum, weight: float) -> NodeSum:
        """The estimate of a node, this being its own sum: see `Combination`."""
        both = zip(self, children, (1, 2, 4, 1), strict=True)
        return NodeSum(*(combine_sums(own, of, weight, power=power) for own, of, power in both))

    def estimate(
        self,
        plan: Plan,
        t: int,
        *,
        pending: int,
        start: int = 0,
        rate: Any = None,
        run: RunInfo | None = None,
        rows: Rows | None = None,
    ) -> Estimate:
        """Add what the plan assumes for pending users: the middle of their values, or nothing.

        If a `rate` is given, they count at that rate; the bound on the bias holds anyway. If the
        services make the noise, `rows` says which of it is in the sum.
        """
        variance = self.variance
        if plan.block_errors is not None and rows is not None:
            variance = plan.block_errors.covariance(rows, rows)
        kurtosis = max(0.0, self.fourth_cumulant / variance**2) if variance > 0 else 0.0
        imputed = (plan.imputed if rate is None else rate) * pending
        bias_bound = (
            self.bias_bound + plan.bias_bound_of(rate) * pending if pending else self.bias_bound
        )
        std = math.sqrt(variance)
        origin = None
        if run is not None:
            known = (pending, imputed, variance, self.bias_bound)
            origin = (Segment(run, start, t, *known, rows=rows),)
        value, law = self.value + imputed, (kurtosis, plan.unit, plan.values)
        return Estimate(t, value, std, bias_bound, start, *law, origin)

    def state(self) -> list[Any]:
        """Ready for JSON."""
        return [np.asarray(self.value).tolist(), *self[1:]]

    @classmethod
    def from_state(cls, state: list[Any]) -> NodeSum:
        value, *rest = state
        return cls(np.array(value, np.float64) if isinstance(value, list) else value, *rest)


@dataclass(frozen=True)
class BlocksRun:
    """One run of a plan of the two services, whose noise all of its estimates may share."""

    name: str
    errors: BlockErrors

    def share(self, one: Segment, other: Segment) -> list[SharedNoise]:
        covariance = self.errors.covariance(one.rows, other.rows)
        return [SharedNoise(one.weight, other.weight, covariance, 0.0)]


def run_of(plan: Plan, name: str | None = None) -> RunInfo:
    """A run of a plan, with a new name if it has none: what estimates of one run share.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> run_of(plan).name == run_of(plan).name
    False
    """
    if plan.block_errors is not None:
        return BlocksRun(name or secrets.token_hex(8), plan.block_errors)
    own = [mechanism.fourth_cumulant for mechanism in plan.mechanisms]
    fourths = tuple(plan.combination.over(plan.tree, own, power=4))
    weights, variances = plan.combination.own_weights, plan.combination.variances
    return TreeRun(name or secrets.token_hex(8), plan.tree, weights, variances, fourths)


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


@dataclass(frozen=True)
class Plausibility:
    """How far the noise of batch sums reaches, and how far they may be from their children's."""

    reaches: tuple[float, ...]
    """Of the noise, by level."""
    disagreements: tuple[float, ...]
    """How far a sum may be from that of its children, by level from the second on."""
    lows: Floats
    highs: Floats

    @classmethod
    def of(cls, tree: RegularTree, mechanisms: Sequence[Mechanism]) -> Plausibility:
        """Each check fails with probability `FALSE_ALARM` divided by the number of checks."""
        nodes = [tree.horizon // size for size in tree.sizes]
        checks = (sum(nodes) + sum(nodes[1:])) * mechanisms[0].values.dimension
        probability = FALSE_ALARM / checks
        above = zip(tree.degrees[1:], mechanisms, mechanisms[1:], strict=False)
        lows = mechanisms[0].values.lows
        return cls(
            tuple(
                m.noise().exact_tail_quantile(probability) * m.quantizer.unit for m in mechanisms
            ),
            tuple(_disagreement(*levels, probability) for levels in above),
            lows,
            np.max(
                [lows + m.quantizer.coordinate_steps * m.quantizer.unit for m in mechanisms], axis=0
            ),
        )

    def is_possible(self, level: int, users: int, value: Any, bias_bound: float = 0.0) -> bool:
        """Whether so many users, with noise, can have this sum, off by `bias_bound` or less."""
        reach = self.reaches[level - 1] + bias_bound
        is_within = (users * self.lows - reach <= value) & (value <= users * self.highs + reach)
        return bool(np.all(is_within))

    def agree(self, level: int, own: NodeSum, children: NodeSum) -> bool:
        """Whether a sum above the lowest level can be of the same users as its children's."""
        most = self.disagreements[level - 2] + own.bias_bound + children.bias_bound
        return bool(np.all(np.abs(own.value - children.value) <= most))

    def influence(self, lowest: int, combination: Combination) -> float:
        """The most that one client can add to an estimate, beyond the noise of others.

        Its lowest batch is off by its range and the reach of its noise at most, or lost. A batch
        above that is believed is as far off as those below it and, with its weight, by how far it
        may disagree; right above lost ones it has all the weight.
        """
        range_of_lowest = lowest * float(np.max(self.highs - self.lows))
        most = self.reaches[0]
        for weight, far in zip(combination.own_weights[1:], self.disagreements, strict=True):
            most = max(most + weight * far, far)
        return range_of_lowest + most


def _disagreement(degree: int, child: Mechanism, parent: Mechanism, probability: float) -> float:
    """What a sum minus those of its children exceeds that rarely, however these were made.

    An estimate of a child that is combined with its own children has less noise than its sum.
    """
    return chernoff_bound(
        lambda s: parent.log_mgf_bound(s) + degree * child.log_mgf_bound(s),
        variance=parent.variance + degree * child.variance,
        largest=min(m.noise().mgf_limit / m.quantizer.unit for m in (parent, child)),
        events=math.log(2 / probability),
    )
