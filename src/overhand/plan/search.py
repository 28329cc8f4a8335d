"""The tree with the least exact error, over levels, degrees, block sizes and budget splits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from overhand import errors
from overhand.plan.estimator import combination, level_weights, mean_square_error
from overhand.plan.levels import Terms, quick_scale
from overhand.trees import (
    PathTree,
    RegularTree,
    Tree,
    binary_degrees,
    published_degrees,
    terms_for,
)

TreeKind = Literal["paper", "binary", "regular", "path", "best"]
TREE_KINDS: tuple[TreeKind, ...] = ("paper", "binary", "regular", "path", "best")

_SHORTLIST = 12
_CLOSE = 1.05
_MIDPOINT = 0.5
_WIDEST_LOG = 3.0


@dataclass(frozen=True)
class Candidate:
    """A tree, the proportions of its levels' variances, and its mean squared error."""

    tree: Tree
    shape: tuple[float, ...]
    mean_square: float


def best_tree(kind: TreeKind, horizon: int, shufflers: int, terms: Terms) -> Candidate:
    """The candidate of least exact error among the trees of a kind."""
    if kind not in TREE_KINDS:
        raise errors.InvalidValue(f"tree={kind!r} must be one of {', '.join(TREE_KINDS)}")
    if kind == "paper":
        degrees = published_degrees(horizon, shufflers)
        return _polished(_evaluated(RegularTree(horizon, degrees), terms), terms)
    if kind == "binary":
        degrees = binary_degrees(horizon)
        if len(degrees) > shufflers:
            raise errors.Infeasible(
                f"the binary tree over {horizon} users needs {len(degrees)} shufflers, "
                f"not {shufflers}"
            )
        return _polished(_evaluated(RegularTree(horizon, degrees), terms), terms)
    families: list[list[Tree]] = []
    for levels in range(1, shufflers + 1):
        if kind in ("regular", "best"):
            families.append(_regular_shortlist(horizon, levels, terms))
        if kind in ("path", "best"):
            families.append(_path_shortlist(horizon, levels, terms))
    return _polished(_least(families, terms), terms)


def _least(families: Sequence[Sequence[Tree]], terms: Terms) -> Candidate:
    """Evaluate the head of every family exactly, then all of those that come close."""
    families = [family for family in families if family]
    if not families:
        raise errors.Infeasible(
            f"no batch of any tree has an honest user if honest={terms.honest:g}"
        )
    heads = [_evaluated(family[0], terms) for family in families]
    least = min(head.mean_square for head in heads)
    others = [
        _evaluated(tree, terms)
        for family, head in zip(families, heads, strict=True)
        if head.mean_square <= _CLOSE * least
        for tree in family[1:]
    ]
    return min([*heads, *others], key=lambda candidate: candidate.mean_square)


def _evaluated(tree: Tree, terms: Terms, shape: Sequence[float] | None = None) -> Candidate:
    shape = tuple(_closed_form_shape(tree) if shape is None else shape)
    scale = quick_scale(tree, shape, terms)
    variances = level_weights(tree, [scale * g for g in shape])
    error = mean_square_error(tree, variances, combine=True, pending_weight=_MIDPOINT)
    return Candidate(tree, shape, error)


def _closed_form_shape(tree: Tree) -> NDArray[np.float64]:
    """Variances in proportion to 1 / sqrt(cover), which minimise sum of cover x variance.

    In the Gaussian limit the budget is a bound on the sum of 1 / variance.
    """
    cover = np.maximum(tree.mean_cover(), 1e-3)
    return np.asarray(1 / np.sqrt(cover / cover.max()))


def best_shape(tree: Tree) -> NDArray[np.float64]:
    """The split that is best once nodes are combined with their children, in the Gaussian limit."""
    start = np.log(_closed_form_shape(tree))
    if tree.levels == 1:
        return np.asarray(np.exp(start))

    def gaussian_error(logs: NDArray[np.float64]) -> float:
        shape = _bounded_shape(logs)
        variances = level_weights(tree, list(float((1 / shape).sum()) * shape))
        return tree.mean_weight(combination(tree, variances, combine=True).variances)

    found = minimize(gaussian_error, (start - start[-1])[:-1], method="BFGS")
    return _bounded_shape(np.round(found.x, 3))  # the same on every machine


def _bounded_shape(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """A level that is hardly ever in a cover would get all the noise there is: bound that."""
    return np.asarray(np.exp(np.clip(np.append(logs, 0.0), -_WIDEST_LOG, _WIDEST_LOG)))


def _polished(candidate: Candidate, terms: Terms) -> Candidate:
    """The same tree with the better of the two splits."""
    refined = _evaluated(candidate.tree, terms, tuple(best_shape(candidate.tree)))
    return min(candidate, refined, key=lambda c: c.mean_square)


def _regular_shortlist(horizon: int, levels: int, terms: Terms) -> list[Tree]:
    """The most promising degrees by the Gaussian limit: near-equal ones above the lowest.

    sqrt(degree - 1) is convex in the logarithm of the degree from 2 on, so equal degrees are
    best for a given product, and rounding leaves two neighbouring ones. The root takes what is
    left.
    """
    lowest = _lowest_sizes(horizon, terms)
    if levels == 1:
        degrees = lowest[:, np.newaxis]
    else:
        upper = _grid(max(2, math.ceil((2 * horizon) ** (1 / (levels - 1)))))[1:]
        mixtures = np.array(list(_mixtures(levels - 1, upper)), np.int64)
        degrees = np.concatenate(
            [
                np.repeat(lowest, len(mixtures))[:, np.newaxis],
                np.tile(mixtures, (len(lowest), 1)),
            ],
            axis=1,
        )
    sizes = np.asarray(np.cumprod(degrees, axis=1, dtype=np.float64), np.float64)
    fits = sizes[:, -1] <= horizon
    degrees, sizes = degrees[fits], sizes[fits]
    if len(degrees) == 0:
        return []
    order = np.argsort(_gaussian_errors(horizon, degrees, sizes, terms))[:_SHORTLIST]
    return [RegularTree(horizon, tuple(int(d) for d in degrees[i])) for i in order]


def _gaussian_errors(
    horizon: int, degrees: NDArray[np.int64], sizes: NDArray[np.float64], terms: Terms
) -> NDArray[np.float64]:
    """Mean squared errors in the Gaussian limit, nodes not combined."""
    full = np.floor((horizon + 1) / sizes)
    rest = horizon + 1 - full * sizes
    mean_full = (sizes * full * (full - 1) / 2 + full * rest) / horizon
    cover = mean_full.copy()
    cover[:, :-1] -= degrees[:, 1:] * mean_full[:, 1:]
    noise = terms.gaussian_variance * np.sqrt(np.maximum(cover, 0.0)).sum(axis=1) ** 2
    return np.asarray(noise + _MIDPOINT**2 * degrees[:, 0].astype(np.float64) ** 2 / 3)


def _path_shortlist(horizon: int, levels: int, terms: Terms) -> list[Tree]:
    """The most promising (terms, block) pairs, by levels x terms / (levels + 1) nodes a cover."""
    scored: list[tuple[float, int, int]] = []
    smallest = math.ceil(1 / terms.honest)
    for block in _lowest_sizes(horizon, terms):
        count = terms_for(-(-horizon // int(block)), levels)
        # The smallest block that still fits this number of terms is never worse.
        tight = max(smallest, -(-horizon // math.comb(levels + count, levels)))
        noise = terms.gaussian_variance * levels * count * levels / (levels + 1)
        scored.append((noise + _MIDPOINT**2 * tight**2 / 3, count, tight))
    best = sorted(set(scored))[:_SHORTLIST]
    trees = [PathTree(horizon, levels, count, block) for _, count, block in best]
    return [tree for tree in trees if all(tree.sizes(level) for level in range(1, levels + 1))]


def _lowest_sizes(horizon: int, terms: Terms) -> NDArray[np.int64]:
    """Sizes for a lowest batch: with an honest user, and up to where no tree's lowest batch pays.

    One level of variance v has a mean squared error of v n / (2 b) + b^2 / 12, least at
    b^3 = 3 v n; more levels want smaller batches.
    """
    sizes = _grid(
        max(1, min(horizon, math.ceil(2 * math.cbrt(3 * terms.gaussian_variance * horizon))))
    )
    return sizes[sizes * terms.honest >= 1]


def _mixtures(length: int, values: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    """All tuples of one degree, or of it and the next."""
    for value in map(int, values):
        for larger in range(length):
            yield (value,) * (length - larger) + (value + 1,) * larger


def _grid(most: int) -> NDArray[np.int64]:
    """Whole numbers from 1 on: all of the small ones, then one in every two percent."""
    points = np.unique(np.floor(np.geomspace(1, most, 1 + math.ceil(math.log(most + 1) / 0.02))))
    return points.astype(np.int64)
