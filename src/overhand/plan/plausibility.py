"""Bounds of honest batch sums: a sum outside was poisoned, and is not believed.

Computed from noisy sums alone, so it costs no privacy. A lowest sum must be within what its users
may hold and the noise reaches; a sum above it must agree with those of its children. What one
client can do unnoticed is then bounded, whatever it sends (`docs/poisoning.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overhand.mechanisms import Mechanism
from overhand.model import Floats
from overhand.plan.combination import Combination, NodeSum, chernoff_bound
from overhand.trees import RegularTree

FALSE_ALARM = 1e-6
"""The probability that any check of a plan is ever wrong."""


@dataclass(frozen=True)
class Plausibility:
    """How far the noise of batch sums reaches, and how far they may be from their children's.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(10_000, 2, oh.Privacy(1.0, 1e-6), mechanism="shares")
    >>> checks = plan.plausibility
    >>> users = plan.tree.lowest
    >>> [checks.is_possible(1, users, users + far) for far in (0.0, 20.0, 200.0)]
    [True, True, False]
    >>> own, near, far = (NodeSum(value, 1.0, 0.0, 0.0) for value in (400.0, 420.0, 800.0))
    >>> checks.agree(2, own, near), checks.agree(2, own, far)
    (True, False)
    """

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
            tuple(m.noise().exact_reach(probability) * m.unit for m in mechanisms),
            tuple(_disagreement(*levels, probability) for levels in above),
            lows,
            np.max([lows + m.coordinate_steps * m.unit for m in mechanisms], axis=0),
        )

    def is_possible(self, level: int, users: int, value: Any, slack: float = 0.0) -> bool:
        """Whether this many users, with noise, can have this sum, which may be off by `slack`."""
        reach = self.reaches[level - 1] + slack
        is_within = (users * self.lows - reach <= value) & (value <= users * self.highs + reach)
        return bool(np.all(is_within))

    def agree(self, level: int, own: NodeSum, children: NodeSum) -> bool:
        """Whether a sum above the lowest level can be of the same users as its children's."""
        most = self.disagreements[level - 2] + own.slack + children.slack
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
        lambda s: parent.growth(s) + degree * child.growth(s),
        variance=parent.variance + degree * child.variance,
        largest=min(m.noise().most_growth / m.unit for m in (parent, child)),
        events=math.log(2 / probability),
    )
