"""How the server adds batch sums up: weights, variances and tails, all known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from overhand.trees import Tree, Weights

DEFAULT_FAILURE_PROBABILITY = 0.05


@dataclass(frozen=True)
class Combination:
    """The variance-optimal estimate of a node: own_weight of its sum, the rest of its children's.

    With s the variance of the own sum and C that of the sum of the children's estimates, the
    estimate has variance V = 1 / (1/s + 1/C), and the own sum has weight V / s. No full ancestor of
    a covering node exists, so adding the covering nodes' estimates is the best linear unbiased
    estimate of a prefix. It halves the variance of a binary tree and does little for large
    degrees. Both fields are by level and size.
    """

    own_weights: tuple[tuple[float, ...], ...]
    variances: tuple[tuple[float, ...], ...]


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
    variance: float,
    *,
    skewed: bool,
    estimates: int,
    failure_probability: float,
) -> float:
    """A bound on the noise of so many estimates at once, none of a variance above the given one.

    Chernoff's bound with ln E exp(s noise) <= variance (cosh s - 1), which holds for opposed coins
    (ln(1 + x) <= x), for fair ones, and for sums of them with weights of at most 1, as
    cosh(w s) - 1 <= w^2 (cosh s - 1); and for rounding, whose variance counts as 1/4 a user
    (Hoeffding's s^2 / 8 is less). For `skewed` coins of one small probability it is
    mean (e^s - 1 - s), which is larger; their mean then takes the place of the variance.
    """
    events = math.log(2 * max(1, estimates) / failure_probability)
    if variance == 0:
        return 0.0

    def bound(log_at: float) -> float:
        at = math.exp(log_at)
        growth = math.expm1(at) - at if skewed else math.cosh(at) - 1
        return (variance * growth + events) / at

    start = 0.5 * math.log(2 * events / variance)  # where Gaussian noise has its best bound
    found = minimize_scalar(bound, bounds=(start - 4, min(start + 1, 6.0)), method="bounded")
    return float(found.fun)
