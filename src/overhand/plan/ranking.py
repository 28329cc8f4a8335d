"""Which trees are promising: rough costs of all of them at once, before any is drafted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from overhand import errors
from overhand.mechanisms import Coins
from overhand.model import Counts, Floats
from overhand.plan.calibration import fewest_messages, unit_variance, with_best_laplace
from overhand.plan.combination import Combination
from overhand.plan.request import Terms
from overhand.randomness import HALF
from overhand.trees import RegularTree

_DRAFTS = 20  # lowest batches that are worth a draft, for every number of levels
_NEAR = 1.4  # times the least rough cost: few coins may take this much more
_NEXT = 1.005  # times the rough cost of a tree: its neighbours that look worse are left out
_STRIDES = (16, 64, 256)  # degrees are changed by these parts of themselves, or by one
_MANY_USERS = 100  # honest users in a batch are enough for any mechanism
_WIDEST_LOG = 3.0


@dataclass(frozen=True)
class Family:
    """Trees of one number of levels, one for every lowest batch, with rough costs, best first."""

    trees: list[RegularTree]
    rough: Floats


def promising(horizon: int, levels: int, terms: Terms, limit: float) -> Family:
    """The most promising degrees by a rough cost: near-equal ones above the lowest.

    sqrt(degree - 1) is convex in the logarithm of the degree from 2 on, so equal degrees are
    best for a given product, and rounding leaves two neighbouring ones. The root takes what
    is left. `limit` is the most messages that a user may send.
    """
    terms = with_best_laplace(terms, levels)
    degrees = _all_degrees(horizon, levels, _lowest_sizes(horizon, levels, terms, limit))
    degrees = degrees[np.cumprod(degrees, axis=1, dtype=np.float64)[:, -1] <= horizon]
    if len(degrees) == 0:
        return Family([], np.empty(0))
    scores = _rough_costs(horizon, degrees, terms, limit)
    order = np.argsort(scores, kind="stable")
    _, firsts = np.unique(degrees[order, 0], return_index=True)
    chosen = order[_thinned(np.sort(firsts), scores[order])]
    trees = [RegularTree(horizon, tuple(map(int, degrees[i]))) for i in chosen]
    return Family(trees, scores[chosen])


def neighbours(tree: RegularTree, terms: Terms) -> list[RegularTree]:
    """Trees that differ in one degree and do not look worse, best first."""
    degrees = np.array([tree.degrees, *_changed(tree)], np.int64)
    rough = _rough_costs(tree.horizon, degrees, with_best_laplace(terms, tree.levels))
    order = [i for i in np.argsort(rough, kind="stable") if i > 0 and rough[i] < _NEXT * rough[0]]
    return [RegularTree(tree.horizon, tuple(map(int, degrees[i]))) for i in order]


def _changed(tree: RegularTree) -> Iterator[tuple[int, ...]]:
    """The degrees of trees that differ in one of them, by one or by a part of it."""
    for level, degree in enumerate(tree.degrees):
        for stride in sorted({max(1, degree // part) for part in _STRIDES}, reverse=True):
            for changed in (degree - stride, degree + stride):
                degrees = (*tree.degrees[:level], changed, *tree.degrees[level + 1 :])
                least = 1 if level == 0 else 2
                if changed >= least and math.prod(degrees) <= tree.horizon:
                    yield degrees


def closed_form_split(tree: RegularTree) -> Floats:
    """Variances in proportion to 1 / sqrt(cover), which minimise sum of cover x variance.

    In the Gaussian limit the budget is a bound on the sum of 1 / variance.
    """
    cover = np.maximum(tree.mean_cover, 1e-3)
    return np.asarray(1 / np.sqrt(cover / cover.max()))


def best_split(tree: RegularTree) -> Floats:
    """The split that is best once nodes are combined with their children, in the Gaussian limit.

    >>> best_split(RegularTree(horizon=1000, degrees=(10, 10))).round(2)
    array([0.85, 1.  ])
    """
    from scipy.optimize import minimize

    start = np.log(closed_form_split(tree))
    if tree.levels == 1:
        return np.asarray(np.exp(start))

    def gaussian_error(logs: Floats) -> float:
        split = _bounded_split(logs)
        variances = list(float((1 / split).sum()) * split)
        return tree.mean_weight(Combination.of(tree, variances, combine=True).variances)

    found = minimize(gaussian_error, (start - start[-1])[:-1], method="BFGS")
    return _bounded_split(np.round(found.x, 3))  # the same on every machine


def _bounded_split(logs: Floats) -> Floats:
    """A level that is hardly ever in a cover would get all the noise there is: bound that."""
    return np.asarray(np.exp(np.clip(np.append(logs, 0.0), -_WIDEST_LOG, _WIDEST_LOG)))


def _all_degrees(horizon: int, levels: int, lowest: Counts) -> Counts:
    """All lowest batches with all near-equal degrees above, one tree per row."""
    if levels == 1:
        return lowest[:, np.newaxis]
    upper = _grid(max(2, math.ceil((2 * horizon) ** (1 / (levels - 1)))))[1:]
    mixtures = np.array(list(_mixtures(levels - 1, upper)), np.int64)
    return np.concatenate(
        [np.repeat(lowest, len(mixtures))[:, np.newaxis], np.tile(mixtures, (len(lowest), 1))],
        axis=1,
    )


def _rough_costs(horizon: int, degrees: Counts, terms: Terms, limit: float = math.inf) -> Floats:
    """Costs as if all levels were alike and coins cost nothing; infinite beyond the limit."""
    sizes = np.asarray(np.cumprod(degrees, axis=1, dtype=np.float64), np.float64)
    full = np.floor((horizon + 1) / sizes)
    rest = horizon + 1 - full * sizes
    mean_full = (sizes * full * (full - 1) / 2 + full * rest) / horizon
    cover = mean_full.copy()
    cover[:, :-1] -= degrees[:, 1:] * mean_full[:, 1:]
    roots = np.sqrt(np.maximum(cover, 1e-6))
    variances = unit_variance(terms, degrees.shape[1]) * roots.sum(axis=1, keepdims=True) / roots
    too_many = np.zeros(len(sizes), np.bool_)
    if limit < math.inf:
        too_many = fewest_messages(terms, sizes, variances).sum(axis=1) > limit
    if not terms.values.is_whole:
        rounding = terms.values.rounding * sizes
        variances = variances + rounding / terms.steps(sizes, variances) ** 2
    nodes = variances[:, 0]
    noise = cover[:, 0] * nodes
    for level in range(1, degrees.shape[1]):
        nodes = 1 / (1 / variances[:, level] + 1 / (degrees[:, level] * nodes))
        noise = noise + cover[:, level] * nodes
    lowest = sizes[:, 0]
    pending = np.sqrt((lowest - 1) * (2 * lowest - 1) / 6)
    return np.where(too_many, math.inf, terms.objective.cost(noise, pending))


def _thinned(firsts: Counts, scores: Floats) -> Counts:
    """The places of at most this many trees to draft, of one tree for every lowest batch.

    The very best by rough cost, and of those that come close as many as there is time for.
    """
    near: Counts = firsts[scores[firsts] < _NEAR * scores[firsts[0]]]
    if len(near) <= _DRAFTS:
        return near
    spread = np.linspace(_DRAFTS // 2, len(near) - 1, _DRAFTS - _DRAFTS // 2).round()
    return np.asarray(np.concatenate([near[: _DRAFTS // 2], near[spread.astype(np.int64)]]))


def _lowest_sizes(horizon: int, levels: int, terms: Terms, limit: float) -> Counts:
    """Sizes for a lowest batch: one that can be sent to, up to where no lowest batch pays.

    More levels want smaller batches than one; a limit on messages wants larger ones.
    """
    largest = terms.objective.largest_lowest(terms.gaussian_variance, horizon)
    most = horizon if limit < math.inf else max(1, min(horizon, math.ceil(largest)))
    sizes = _grid(most)
    return sizes[sizes >= _least_size(terms, levels, horizon)]


def _least_size(terms: Terms, levels: int, horizon: int) -> int:
    """The smallest batch that the mechanism can serve: it may need several honest users."""
    if terms.noise_by == "services":
        return 1
    for users in range(1, _MANY_USERS):
        size = math.ceil(users / terms.honest)
        if size > horizon:
            break
        with suppress(errors.Infeasible):
            terms.fitted(size, Coins(2, HALF), levels=levels, steps=1)
            return size
    return horizon + 1


def _mixtures(length: int, values: Counts) -> Iterator[tuple[int, ...]]:
    """All tuples of one degree, or of it and the next."""
    for value in map(int, values):
        for larger in range(length):
            yield (value,) * (length - larger) + (value + 1,) * larger


def _grid(most: int) -> Counts:
    """Whole numbers from 1 on: all of the small ones, then one in every two per cent."""
    points = np.unique(np.floor(np.geomspace(1, most, 1 + math.ceil(math.log(most + 1) / 0.02))))
    return points.astype(np.int64)
