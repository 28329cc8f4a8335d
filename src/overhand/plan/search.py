"""The tree of least cost, over levels, degrees, block sizes and budget splits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from overhand import errors
from overhand.plan.estimator import combination, level_weights
from overhand.plan.levels import (
    messages_of,
    quick_scale,
    steps_of,
    unit_variance,
    with_best_shape,
)
from overhand.plan.terms import Terms
from overhand.trees import (
    PathTree,
    RegularTree,
    Tree,
    Weights,
    binary_degrees,
    published_degrees,
    terms_for,
)

TreeKind = Literal["paper", "binary", "regular", "path", "best"]
"""The family of trees that a plan is looked for in: "paper" has the degrees of Section 3.2."""
TREE_KINDS: tuple[TreeKind, ...] = ("paper", "binary", "regular", "path", "best")
"""All of them."""

_SHORTLIST = 12
_CLOSE = 1.05
_WIDEST_LOG = 3.0


@dataclass(frozen=True)
class Candidate:
    """A tree, the proportions of its levels' variances, and its cost.

    The cost is that of the objective: for sums, the mean squared error, in units of the squared
    width of a coordinate. `terms` are those asked for, with the shape of the noise that is best
    for so many levels.
    """

    tree: Tree
    shape: tuple[float, ...]
    cost: float
    is_allowed: bool
    terms: Terms


@dataclass(frozen=True)
class Limit:
    """The most messages a user may send, if noise may end `margin` times as large as it looks."""

    messages: float = math.inf
    margin: float = 1.0

    def allows(self, tree: Tree, variances: Sequence[float], terms: Terms) -> bool:
        """Whether a user in the smallest batch of every level keeps to the limit."""
        if self.messages == math.inf:
            return True
        sizes = [tree.sizes(level) for level in range(1, tree.levels + 1)]
        smallest, largest = [s[0] for s in sizes], [s[-1] for s in sizes]
        messages = messages_of(
            terms, np.array(smallest), np.array(largest), np.multiply(variances, self.margin)
        )
        return bool(messages.sum() <= self.messages)


NO_LIMIT = Limit()


def best_tree(
    kind: TreeKind, horizon: int, shufflers: int, terms: Terms, limit: Limit = NO_LIMIT
) -> Candidate:
    """The candidate of least cost among the trees of a kind that keep to the messages."""
    if kind not in TREE_KINDS:
        raise errors.InvalidValue(f"tree={kind!r} must be one of {', '.join(TREE_KINDS)}")
    if kind == "paper":
        degrees = published_degrees(horizon, shufflers)
        return _least([[RegularTree(horizon, degrees)]], terms, limit)
    if kind == "binary":
        degrees = binary_degrees(horizon)
        if len(degrees) > shufflers:
            raise errors.Infeasible(
                f"the binary tree over {horizon} users needs {len(degrees)} shufflers, "
                f"not {shufflers}"
            )
        return _least([[RegularTree(horizon, degrees)]], terms, limit)
    families: list[list[Tree]] = []
    for levels in range(1, shufflers + 1):
        if kind in ("regular", "best"):
            families.append(_regular_shortlist(horizon, levels, terms, limit))
        if kind in ("path", "best"):
            families.append(_path_shortlist(horizon, levels, terms, limit))
    return _least(families, terms, limit)


def _least(families: Sequence[Sequence[Tree]], terms: Terms, limit: Limit) -> Candidate:
    """Evaluate the head of every family exactly, then all of those that come close."""
    heads = [(family, _evaluated(family[0], terms, limit)) for family in families if family]
    allowed = [head for _, head in heads if head.is_allowed]
    least = min((head.cost for head in allowed), default=math.inf)
    others = [
        _evaluated(tree, terms, limit)
        for family, head in heads
        if head.cost <= _CLOSE * least
        for tree in family[1:]
    ]
    allowed += [candidate for candidate in others if candidate.is_allowed]
    if not allowed:
        raise errors.Infeasible(_why_nothing(terms, limit))
    best = min(allowed, key=lambda candidate: candidate.cost)
    refined = _evaluated(best.tree, terms, limit, tuple(best_shape(best.tree)))
    better = refined.is_allowed and refined.cost < best.cost
    return refined if better else best


def _why_nothing(terms: Terms, limit: Limit) -> str:
    if limit.messages < math.inf:
        return f"no tree keeps to max_messages={limit.messages:g}"
    return f"no batch of any tree has an honest user if honest={terms.honest:g}"


def _evaluated(
    tree: Tree, terms: Terms, limit: Limit, shape: Sequence[float] | None = None
) -> Candidate:
    terms = with_best_shape(terms, tree.levels)
    shape = tuple(_closed_form_shape(tree) if shape is None else shape)
    scale = quick_scale(tree, shape, terms)
    variances = [scale * g for g in shape]
    weights = _with_rounding(tree, variances, shape, terms)
    noise = tree.mean_weight(combination(tree, weights, combine=True).variances)
    pending = math.sqrt(tree.mean_pending_square())
    cost = float(terms.objective.cost(np.asarray(noise), np.asarray(pending)))
    return Candidate(tree, shape, cost, limit.allows(tree, variances, terms), terms)


def _with_rounding(
    tree: Tree, variances: Sequence[float], shape: Sequence[float], terms: Terms
) -> Weights:
    """The variances of batch sums, by level and size: noise, and rounding at its worst."""
    if terms.values.is_whole:
        return level_weights(tree, variances)
    steps = steps_of(tree, shape, terms)
    return [
        [variance + size / (4 * s**2) for size in tree.sizes(level)]
        for level, (variance, s) in enumerate(zip(variances, steps, strict=True), start=1)
    ]


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


def _regular_shortlist(horizon: int, levels: int, terms: Terms, limit: Limit) -> list[Tree]:
    """The most promising degrees by a rough cost: near-equal ones above the lowest.

    sqrt(degree - 1) is convex in the logarithm of the degree from 2 on, so equal degrees are
    best for a given product, and rounding leaves two neighbouring ones. The root takes what is
    left.
    """
    terms = with_best_shape(terms, levels)
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
    scores, messages = _rough_costs(horizon, degrees, sizes, terms, limit)
    scores[messages > limit.messages] = math.inf
    order = np.argsort(scores)[:_SHORTLIST]
    return [
        RegularTree(horizon, tuple(int(d) for d in degrees[i]))
        for i in order
        if scores[i] < math.inf
    ]


def _rough_costs(
    horizon: int,
    degrees: NDArray[np.int64],
    sizes: NDArray[np.float64],
    terms: Terms,
    limit: Limit,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Costs as if noise were Gaussian and nodes not combined; messages of a user."""
    full = np.floor((horizon + 1) / sizes)
    rest = horizon + 1 - full * sizes
    mean_full = (sizes * full * (full - 1) / 2 + full * rest) / horizon
    cover = mean_full.copy()
    cover[:, :-1] -= degrees[:, 1:] * mean_full[:, 1:]
    roots = np.sqrt(np.maximum(cover, 1e-6))
    variances = unit_variance(terms, degrees.shape[1]) * roots.sum(axis=1, keepdims=True) / roots
    noise = (cover * variances).sum(axis=1)
    messages = np.zeros(len(sizes))
    if limit.messages < math.inf:
        messages = messages_of(terms, sizes, sizes, variances).sum(axis=1)
    return terms.objective.cost(noise, degrees[:, 0] / math.sqrt(3)), messages


def _path_shortlist(horizon: int, levels: int, terms: Terms, limit: Limit) -> list[Tree]:
    """The most promising (terms, block) pairs, by levels x terms / (levels + 1) nodes a cover."""
    terms = with_best_shape(terms, levels)
    variance = unit_variance(terms, levels)
    scored: list[tuple[float, int, int]] = []
    smallest = math.ceil(1 / terms.honest)
    for block in _lowest_sizes(horizon, terms):
        count = terms_for(-(-horizon // int(block)), levels)
        # The smallest block that still fits this number of terms is never worse.
        tight = max(smallest, -(-horizon // math.comb(levels + count, levels)))
        noise = variance * levels * count * levels / (levels + 1)
        cost = terms.objective.cost(np.asarray(noise), np.asarray(tight / math.sqrt(3)))
        scored.append((float(cost), count, tight))
    trees: list[Tree] = []
    variances = [levels * variance] * levels
    for _, count, block in sorted(set(scored)):
        tree = PathTree(horizon, levels, count, block)
        is_whole = all(tree.sizes(level) for level in range(1, levels + 1))
        if is_whole and limit.allows(tree, variances, terms):
            trees.append(tree)
        if len(trees) == _SHORTLIST:
            break
    return trees


def _lowest_sizes(horizon: int, terms: Terms) -> NDArray[np.int64]:
    """Sizes for a lowest batch: with an honest user, and up to where no tree's lowest batch pays.

    More levels want smaller batches than one.
    """
    largest = terms.objective.largest_lowest(terms.gaussian_variance, horizon)
    sizes = _grid(max(1, min(horizon, math.ceil(largest))))
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
