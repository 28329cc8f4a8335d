"""How the server adds batch sums up: weights, variances and tails, all known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from overhand.trees import RegularTree, Tree


@dataclass(frozen=True)
class Combination:
    """The variance-optimal estimate of a node: own_weight of its sum, the rest of its children's.

    With node variances s_h, V_1 = s_1 and V_h = 1 / (1/s_h + 1/(d V_{h-1})); the own sum has
    weight V_h / s_h. No full ancestor of a covering node exists, so adding the covering nodes'
    estimates is the best linear unbiased estimate of a prefix. It halves the variance of a
    binary tree and does little for large degrees. A path tree is left as it is.
    """

    own_weights: tuple[float, ...]
    variances: tuple[float, ...]


def combination(tree: Tree, variances: Sequence[float], *, combine: bool) -> Combination:
    """Weights and variances of the nodes' estimates, lowest level first."""
    if not (combine and isinstance(tree, RegularTree)):
        return Combination((1.0,) * tree.levels, tuple(variances))
    combined = [float(variances[0])]
    weights = [1.0]
    for own, degree in zip(variances[1:], tree.degrees[1:], strict=True):
        combined.append(1 / (1 / own + 1 / (degree * combined[-1])))
        weights.append(combined[-1] / own)
    return Combination(tuple(weights), tuple(combined))


def mean_square_error(
    tree: Tree, variances: Sequence[float], *, combine: bool, pending_weight: float
) -> float:
    """Mean over t of the expected squared error on the worst values of the pending users.

    `pending_weight` is how much of one pending user can be missed: 1/2 after imputing the
    midpoint, 1 if the last estimate is held.
    """
    nodes = combination(tree, variances, combine=combine).variances
    noise = float(tree.mean_cover() @ np.asarray(nodes))
    return noise + pending_weight**2 * tree.mean_pending_square()


def error_bound(
    tree: Tree,
    cumulants: Sequence[Callable[[float], float]],
    own_weights: Sequence[float],
    *,
    failure_probability: float,
    pending_weight: float,
) -> float:
    """alpha of Definition 2.1: all errors are below it but with the failure probability.

    Chernoff's bound on the heaviest cover, from the exact cumulants of the coins, and a union
    bound over the estimates that differ. It holds at every s; the search only makes it small.
    """
    events = math.log(2 * max(1, tree.blocks) / failure_probability)

    def heaviest(at: float) -> float:
        sides = [_node_cumulants(tree, cumulants, own_weights, sign * at) for sign in (1, -1)]
        return tree.heaviest_cover([max(pair) for pair in zip(*sides, strict=True)])

    def bound(log_at: float) -> float:
        at = math.exp(log_at)
        return (heaviest(at) + events) / at

    small = 1e-3
    variance = max(2 * heaviest(small) / small**2, 1e-9)  # a cumulant is s^2 variance / 2 near 0
    start = 0.5 * math.log(2 * events / variance)  # where Gaussian noise has its best bound
    found = minimize_scalar(bound, bounds=(start - 3, start + 3), method="bounded")
    noise = float(found.fun) if tree.blocks else 0.0
    return noise + pending_weight * tree.most_pending


def _node_cumulants(
    tree: Tree,
    cumulants: Sequence[Callable[[float], float]],
    own_weights: Sequence[float],
    at: float,
) -> list[float]:
    """Cumulants of the nodes' estimates: of the own sum and, weighted, of the children's."""

    def of_level(level: int, at: float) -> float:
        own = own_weights[level]
        total = cumulants[level](own * at)
        if own < 1.0 and isinstance(tree, RegularTree):
            total += tree.degrees[level] * of_level(level - 1, (1 - own) * at)
        return total

    return [of_level(level, at) for level in range(tree.levels)]
