"""The tree of least cost, over levels, degrees, block sizes and budget splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq, minimize

from overhand import errors
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats
from overhand.plan.calibration import (
    Split,
    calibrated,
    fewest_messages,
    quick_scale,
    steps_of,
    unit_variance,
    with_best_laplace,
)
from overhand.plan.combination import Combination
from overhand.plan.request import Request, Terms
from overhand.trees import RegularTree, binary_degrees, published_degrees

LARGEST_EPSILON = 16.0
SMALLEST_EPSILON = 1e-3
_EPSILON_PRECISION = 1e-3

_COARSENESSES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""How much rounding may add, in multiples of the usual, where messages are limited."""
_SEARCH_MARGIN = 5e-4
_MARGINS = (1.002, 1.01, 1.03, 1.1, 1.3, 2.0)
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

    tree: RegularTree
    split: tuple[float, ...]
    cost: float
    is_allowed: bool
    terms: Terms


@dataclass(frozen=True)
class Limit:
    """The most messages a user may send, if noise may end `margin` times as large as it looks."""

    messages: float = math.inf
    margin: float = 1.0

    def allows(self, tree: RegularTree, variances: Sequence[float], terms: Terms) -> bool:
        """Whether a user keeps to the limit."""
        if self.messages == math.inf:
            return True
        found = fewest_messages(terms, np.array(tree.sizes), np.multiply(variances, self.margin))
        return bool(found.sum() <= self.messages)


NO_LIMIT = Limit()


def best_levels(request: Request) -> tuple[RegularTree, tuple[Mechanism, ...]]:
    """The tree of least cost and its calibrated mechanisms."""
    if request.max_messages is None:
        return _calibrated(request, NO_LIMIT)
    for margin in _MARGINS:
        tree, mechanisms = _calibrated(request, Limit(request.max_messages, margin))
        if sum(m.messages_per_user for m in mechanisms) <= request.max_messages:
            return tree, mechanisms
    raise errors.Infeasible(f"no tree keeps to max_messages={request.max_messages}")


def _calibrated(request: Request, limit: Limit) -> tuple[RegularTree, tuple[Mechanism, ...]]:
    found = best_candidate(request, limit)
    terms = replace(found.terms, composition=request.terms.composition)
    return found.tree, calibrated(found.tree.sizes, found.split, terms)


def best_candidate(request: Request, limit: Limit = NO_LIMIT) -> Candidate:
    """The best candidate over recipes and over how coarsely values may be rounded."""
    terms, candidates = request.terms, []
    failure: errors.Infeasible | None = None
    for recipe in request.recipes:
        is_limited = limit.messages < math.inf and not recipe.mechanism.leaks
        coarser = _COARSENESSES if is_limited and not terms.values.is_whole else (1.0,)
        for factor in coarser:
            at = replace(terms, recipe=recipe, coarseness=factor, composition="exact")
            try:
                candidates.append(best_tree(replace(request, terms=at), limit))
            except errors.Infeasible as error:
                failure = error
    if not candidates:
        assert failure is not None
        raise failure
    return min(candidates, key=lambda candidate: candidate.cost)


def least_epsilon(request: Request, error: float) -> float:
    """The smallest epsilon at which the error before calibration is at most this.

    To about a thousandth: calibration may end a hair above it. Errors fall about as a power of
    epsilon, so the search goes in logarithms, from epsilon 1.
    """
    terms = request.terms
    seen: dict[float, float] = {}

    def excess(log_epsilon: float) -> float:
        if log_epsilon not in seen:
            privacy = replace(terms.privacy, epsilon=math.exp(log_epsilon))
            found = best_candidate(replace(request, terms=replace(terms, privacy=privacy)))
            reached = (1 + _SEARCH_MARGIN) * terms.values.width * math.sqrt(found.cost)
            seen[log_epsilon] = math.log(reached / error)
        return seen[log_epsilon]

    _bracketed_root(excess, error)
    return math.exp(min(log for log, beyond in seen.items() if beyond <= 0))


def _bracketed_root(excess: Callable[[float], float], error: float) -> None:
    """Look for the root, or for the smallest epsilon that is looked at if even that will do."""
    low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
    at = min(high, max(low, excess(0.0)))  # errors go about as 1 / epsilon
    step = math.log(1.5)
    while excess(at) > 0:
        if at >= high:
            raise errors.Infeasible(
                f"error={error:g} is not reached even at epsilon={LARGEST_EPSILON:g}, where it is "
                f"{error * math.exp(excess(at)):.4g}"
            )
        at = min(high, at + step)
    while excess(max(low, at - step)) <= 0:
        if at - step <= low:
            return
        at -= step
    brentq(excess, max(low, at - step), at, xtol=_EPSILON_PRECISION)


def best_tree(request: Request, limit: Limit = NO_LIMIT) -> Candidate:
    """The candidate of least cost among the trees of a kind that keep to the messages."""
    horizon, shufflers, terms = request.horizon, request.shufflers, request.terms
    if request.tree == "paper":
        families = [[RegularTree(horizon, published_degrees(horizon, shufflers))]]
    elif request.tree == "binary":
        degrees = binary_degrees(horizon)
        if len(degrees) > shufflers:
            raise errors.Infeasible(
                f"the binary tree over {horizon} users needs {len(degrees)} shufflers, "
                f"not {shufflers}"
            )
        families = [[RegularTree(horizon, degrees)]]
    else:
        levels = range(1, shufflers + 1)
        families = [_shortlist(horizon, count, terms, limit) for count in levels]
    return _least(families, terms, limit)


def _least(families: Sequence[Sequence[RegularTree]], terms: Terms, limit: Limit) -> Candidate:
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
    refined = _evaluated(best.tree, terms, limit, tuple(best_split(best.tree)))
    better = refined.is_allowed and refined.cost < best.cost
    return refined if better else best


def _why_nothing(terms: Terms, limit: Limit) -> str:
    if limit.messages < math.inf:
        return f"no tree keeps to max_messages={limit.messages:g}"
    return f"no batch of any tree has an honest user if honest={terms.honest:g}"


def _evaluated(
    tree: RegularTree, terms: Terms, limit: Limit, split: Split | None = None
) -> Candidate:
    terms = with_best_laplace(terms, tree.levels)
    split = tuple(_closed_form_split(tree) if split is None else split)
    scale = quick_scale(tree.sizes, split, terms)
    variances = [scale * g for g in split]
    sums = _with_rounding(tree, variances, split, terms)
    noise = tree.mean_weight(Combination.of(tree, sums, combine=True).variances)
    pending = math.sqrt(tree.mean_pending_square())
    cost = float(terms.objective.cost(np.asarray(noise), np.asarray(pending)))
    return Candidate(tree, split, cost, limit.allows(tree, variances, terms), terms)


def _with_rounding(
    tree: RegularTree, variances: Sequence[float], split: Split, terms: Terms
) -> Sequence[float]:
    """The variances of batch sums, by level: noise, and rounding at its worst."""
    if terms.values.is_whole:
        return variances
    steps = steps_of(tree.sizes, split, terms)
    levels = zip(variances, tree.sizes, steps, strict=True)
    return [variance + size / (4 * s**2) for variance, size, s in levels]


def _closed_form_split(tree: RegularTree) -> Floats:
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
    start = np.log(_closed_form_split(tree))
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


def _shortlist(horizon: int, levels: int, terms: Terms, limit: Limit) -> list[RegularTree]:
    """The most promising degrees by a rough cost: near-equal ones above the lowest.

    sqrt(degree - 1) is convex in the logarithm of the degree from 2 on, so equal degrees are
    best for a given product, and rounding leaves two neighbouring ones. The root takes what is
    left.
    """
    terms = with_best_laplace(terms, levels)
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
    horizon: int, degrees: Counts, sizes: Floats, terms: Terms, limit: Limit
) -> tuple[Floats, Floats]:
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
        messages = fewest_messages(terms, sizes, variances).sum(axis=1)
    return terms.objective.cost(noise, degrees[:, 0] / math.sqrt(3)), messages


def _lowest_sizes(horizon: int, terms: Terms) -> Counts:
    """Sizes for a lowest batch: with an honest user, and up to where no tree's lowest batch pays.

    More levels want smaller batches than one.
    """
    largest = terms.objective.largest_lowest(terms.gaussian_variance, horizon)
    sizes = _grid(max(1, min(horizon, math.ceil(largest))))
    return sizes[sizes * terms.honest >= 1]


def _mixtures(length: int, values: Counts) -> Iterator[tuple[int, ...]]:
    """All tuples of one degree, or of it and the next."""
    for value in map(int, values):
        for larger in range(length):
            yield (value,) * (length - larger) + (value + 1,) * larger


def _grid(most: int) -> Counts:
    """Whole numbers from 1 on: all of the small ones, then one in every two percent."""
    points = np.unique(np.floor(np.geomspace(1, most, 1 + math.ceil(math.log(most + 1) / 0.02))))
    return points.astype(np.int64)
