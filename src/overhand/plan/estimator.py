"""How the server adds batch sums up: weights, variances and tails, all known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from overhand.trees import Tree, Weights

DEFAULT_FAILURE_PROBABILITY = 0.05
"""How often a bound on all errors at once may fail, unless it is asked for with another."""


class NodeEstimate(NamedTuple):
    """The weight of a node's own sum in its estimate, and the noise that has."""

    own_weight: float
    variance: float
    fourth_cumulant: float


@dataclass(frozen=True)
class Combination:
    """The variance-optimal estimate of a node: own_weight of its sum, the rest of its children's.

    With s the variance of the own sum and C that of the sum of the children's estimates, the
    estimate has variance V = 1 / (1/s + 1/C), and the own sum has weight V / s. No full ancestor of
    a covering node exists, so adding the covering nodes' estimates is the best linear unbiased
    estimate of a prefix. It halves the variance of a binary tree and does little for large
    degrees. All fields are by level and size.
    """

    own_weights: tuple[tuple[float, ...], ...]
    variances: tuple[tuple[float, ...], ...]

    def fourth_cumulants(self, tree: Tree, own: Weights) -> Weights:
        """The fourth cumulants of the nodes' estimates, from those of their own sums."""
        return _combined(tree, own, self.own_weights, power=4)


def combination(tree: Tree, variances: Weights, *, combine: bool) -> Combination:
    """Weights and variances of the nodes' estimates, from the variances of their own sums."""
    combined = [np.asarray(variances[0], np.float64)]
    weights = [np.ones(len(variances[0]))]
    for level, of_level in enumerate(variances[1:], start=2):
        own = np.asarray(of_level, np.float64)
        if combine:
            lowest = float(combined[0][0])
            children = tree.children_weights(level, combined[-1].tolist(), lowest)
            combined.append(1 / (1 / own + 1 / children))
            weights.append(combined[-1] / own)
        else:
            combined.append(own)
            weights.append(np.ones(len(own)))
    return Combination(
        tuple(tuple(of_level.tolist()) for of_level in weights),
        tuple(tuple(of_level.tolist()) for of_level in combined),
    )


def level_weights(tree: Tree, variances: Sequence[float]) -> Weights:
    """The same variance for all sizes of a level."""
    return [
        [float(variance)] * len(tree.sizes(level))
        for level, variance in enumerate(variances, start=1)
    ]


def mean_square_error(
    tree: Tree, variances: Weights, *, combine: bool, pending_weight: float
) -> float:
    """Mean over t of the expected squared error on the worst values of the pending users.

    `pending_weight` is by how much one pending user can be missed: half of its interval after
    imputing the midpoint.
    """
    nodes = combination(tree, variances, combine=combine).variances
    return tree.mean_weight(nodes) + pending_weight**2 * tree.mean_pending_square()


def error_bound(
    tree: Tree,
    growth_at: Callable[[float], Weights],
    own_weights: Weights,
    *,
    variance: float,
    largest: float,
    events: float,
) -> float:
    """A bound on the noise of all estimates at once, but for a probability of e^-events each.

    `growth_at(s)` is a bound on ln E exp(s error) of batch sums. For noise whose even cumulants
    are positive, and for rounding, growth at w s is at most w^2 times that at s, so that it adds up
    over combined nodes as variances do.
    """

    def growth(s: float) -> float:
        return tree.heaviest_cover(_combined(tree, growth_at(s), own_weights))

    return chernoff_bound(growth, variance=variance, largest=largest, events=events)


def chernoff_bound(
    growth: Callable[[float], float], *, variance: float, largest: float, events: float
) -> float:
    """What noise exceeds with a probability of at most e^-events.

    `growth(s)` is a bound on ln E exp(s noise), finite up to `largest`; the search starts where
    Gaussian noise of this `variance` has its best bound.
    """
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


def _combined(tree: Tree, grown: Weights, own_weights: Weights, *, power: int = 2) -> Weights:
    """What nodes' estimates have of something that goes with a power of the weights."""
    combined: list[Sequence[float]] = [list(grown[0])]
    for level, (of_level, own) in enumerate(zip(grown[1:], own_weights[1:], strict=True), start=2):
        w = np.asarray(own)
        if (w == 1).all():
            combined.append(list(of_level))
            continue
        children = tree.children_weights(level, combined[-1], combined[0][0])
        combined.append((w**power * np.asarray(of_level) + (1 - w) ** power * children).tolist())
    return combined
