"""From requirements to the levels of a plan, in one pass: rank trees, draft the best, certify.

Trees of every number of levels are ranked roughly, all at once. The best of them are drafted:
with noise and messages as they will be, except for the certificate; and if messages are limited,
their neighbours as well. The draft of least cost is certified; one that turns out to be infeasible
gives way to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from overhand import errors
from overhand.accounting import Level, advanced_share, least_scale, quick_delta, spent_delta
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Privacy
from overhand.noise import Coins, NoiseShare, Polya, fewest_coins
from overhand.planning.requirements import Requirements
from overhand.randomness import HALF
from overhand.tree import Combination, RegularTree, binary_degrees, published_degrees
from overhand.values import Quantizer

Split = Sequence[float]
"""The proportions of the levels' variances, lowest level first."""

LARGEST_EPSILON = 16.0
SMALLEST_EPSILON = 1e-3
_EPSILON_PRECISION = 1e-3
_SEARCH_MARGIN = 5e-4

_BEST_TREES = 3  # of every number of levels are drafted
_MANY_TREES = 20  # where messages are limited: rough costs say little about them
_STRIDES = (4, 16, 64, 256)  # a degree changes by one part in so many, or by one
_PAYS = 0.9995  # times the cost: a change that saves less does not pay
_NEAR = 1.4  # times the least rough cost: few coins may take this much more
_HOPELESS = 1.15  # times the least cost found: trees that look worse are not drafted
_PER_LEVEL = 1.002  # a level more must pay: so much that no certificate can undo it
_TRIES = 24  # candidates that are certified, if one after the other turns out to be infeasible
_SPARE = (1.002, 1.02, 1.2)  # times the noise that a draft has may be needed in the end
_MANY_USERS = 100  # honest users in a batch are enough for any mechanism
_WIDEST_LOG = 3.0

_LAPLACE_SHAPES = (1, 2, 3, 5, 8)
_SAFETY_STEP = 2e-4
_SAFETY_STEPS = 12
_PRECISION = 2e-5
_ROUGHLY = 3e-4
_TYPICAL_SIZE = 1 << 12
_TYPICAL_STEPS = 24
_FINE_REPORTS = 12  # per person; with more, and more noise, rounding may be coarser
_WIDE = 1e4  # the variance, in steps, from which noise is practically Gaussian
_FEW = 60.0  # the variance, in steps, below which the number of coins matters
_PLENTY = 32  # times the fewest coins are as good as any number
_FEW_COINS_COST = 1.3  # times the variance of any number of coins is what few may take
_USUALLY = 1.05  # times is what they take
_MORE_COINS = 1.03
_LEAST_SHARE = 2.0**-40  # of a user's variance: coins of smaller probability cannot be tossed


class Candidate(NamedTuple):
    """A tree, its levels as they will be except for the certificate, and what it costs.

    The cost is that of the objective: for sums, the mean squared error, in units of the squared
    width of a coordinate.
    """

    tree: RegularTree
    draft: Draft
    cost: float

    @property
    def rank(self) -> float:
        return self.cost * _PER_LEVEL**self.tree.levels


def best_levels(asked: Requirements) -> tuple[RegularTree, tuple[Mechanism, ...]]:
    """The tree of least cost and its certified mechanisms.

    A certificate may take a little more noise, and with it more messages than there may be: then
    more is left to spare.
    """
    failure = errors.Infeasible(f"no tree stays within max_messages={asked.max_messages}")
    most = math.inf if asked.max_messages is None else asked.max_messages
    for spare in _SPARE if asked.max_messages is not None else _SPARE[:1]:
        for tree, draft, _ in find_candidates(asked, spare)[:_TRIES]:
            try:
                mechanisms = calibrate(
                    tree.sizes, draft.split, replace(draft.asked, composition=asked.composition)
                )
            except errors.Infeasible as error:
                failure = error
                continue
            if sum(m.layout.messages_per_user for m in mechanisms) <= most:
                return tree, mechanisms
    raise failure


def least_cost(asked: Requirements) -> float:
    """What the best tree costs, before its certificate."""
    return find_candidates(asked)[0].cost


def least_epsilon(
    asked: Requirements, error: float, cost_of: Callable[[Requirements], float]
) -> float:
    """The smallest epsilon at which the error before the certificate is at most this.

    To about a thousandth: the certificate may end a hair above it.
    """

    def reached(log_epsilon: float) -> float:
        privacy = replace(asked.privacy, epsilon=math.exp(log_epsilon))
        cost = cost_of(replace(asked, privacy=privacy))
        return (1 + _SEARCH_MARGIN) * asked.values.width * math.sqrt(cost)

    low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
    if (least := reached(high)) > error:
        raise errors.Infeasible(
            f"error={error:g} is not reached even at epsilon={LARGEST_EPSILON:g}, where it is "
            f"{least:.4g}"
        )
    while high - low > _EPSILON_PRECISION:
        middle, is_enough = (low + high) / 2, False
        with suppress(errors.Infeasible):  # so much noise may take too many messages
            is_enough = reached(middle) <= error
        low, high = (low, middle) if is_enough else (middle, high)
    return math.exp(high)


def find_candidates(asked: Requirements, spare: float = _SPARE[0]) -> list[Candidate]:
    """Drafts that stay within the limit on messages even with this much more noise, best first.

    What is best without a limit stays the best if it keeps to it, so that a larger limit is
    never worse.
    """
    found = _draft_trees(replace(asked, max_messages=None), spare)
    if asked.max_messages is None or found[0].draft.fits(asked.max_messages, spare):
        return found
    return _draft_trees(asked, spare)


def _draft_trees(asked: Requirements, spare: float) -> list[Candidate]:
    """Draft every choice of noise and number of levels alike, whatever others there are.

    So one more shuffler never takes away what was found with fewer. What looks hopeless is left
    out.
    """
    ranked: list[tuple[list[tuple[float, RegularTree]], Requirements]] = []
    failures: list[errors.Infeasible] = []
    for choice in replace(asked, composition="exact").choices():
        for levels in range(1, asked.shufflers + 1) if asked.tree == "regular" else [0]:
            try:
                ranked.append((rank_trees(choice, levels), choice))
            except errors.Infeasible as error:  # of this choice, not of the others
                failures.append(error)
    found, least = list[Candidate](), math.inf
    for trees, choice in sorted((one for one in ranked if one[0]), key=lambda one: one[0][0][0]):
        found += _draft_family(trees, choice, spare, least, failures)
        least = min((candidate.cost for candidate in found), default=math.inf)
    if not found:
        reason = f"no batch of any tree has enough honest users if honest={asked.honest:g}"
        if asked.max_messages is not None:
            reason = f"no tree stays within max_messages={asked.max_messages}"
        raise failures[0] if failures else errors.Infeasible(reason)
    return sorted(found, key=lambda candidate: candidate.rank)


def _draft_family(
    trees: Sequence[tuple[float, RegularTree]],
    asked: Requirements,
    spare: float,
    least: float,
    failures: list[errors.Infeasible],
) -> list[Candidate]:
    """The trees of one number of levels, except those that look hopeless beside the least cost.

    If messages are limited, a slightly larger batch may take one message less, which rough costs
    do not show: so the degrees of the best are changed one at a time, as long as that pays.
    """
    found = list[Candidate]()
    for rough, tree in trees:
        if rough > _HOPELESS * least:
            break
        found += _draft_splits(tree, asked, spare, failures)
        least = min([least, *(candidate.cost for candidate in found)])
    while found and asked.max_messages is not None:
        best = min(found, key=lambda candidate: candidate.cost)
        if best.cost > _HOPELESS * least:
            break
        changed = (_draft_splits(t, asked, spare, failures) for t in _neighbours(best.tree, asked))
        better = (drafts for drafts in changed if any(d.cost < _PAYS * best.cost for d in drafts))
        if not (drafts := next(better, [])):
            break
        found += drafts
    return found


def _draft_splits(
    tree: RegularTree, asked: Requirements, spare: float, failures: list[errors.Infeasible]
) -> list[Candidate]:
    """A tree with every split of its noise that stays within the limit on messages."""
    found = list[Candidate]()
    splits = [best_split(tree)]
    if asked.max_messages is not None and tree.levels > 1:  # this one may take fewer of them
        splits.append(tuple(map(float, _cover_split(tree))))
    for split in splits:
        try:
            candidate = draft_tree(tree, asked, split)
        except errors.Infeasible as error:
            failures.append(error)
            continue
        if candidate.draft.fits(asked.max_messages, spare):
            found.append(candidate)
    return found


def draft_tree(tree: RegularTree, asked: Requirements, split: Split) -> Candidate:
    """What a tree costs, as it will be except for the certificate."""
    draft = Draft.of(tree.sizes, split, with_best_laplace(asked, tree.levels))
    noise = tree.mean_weight(Combination.of(tree, draft.variances, combine=True).variances)
    pending = math.sqrt(tree.mean_pending_square())
    cost = asked.objective.cost(np.asarray(noise), np.asarray(pending))
    return Candidate(tree, draft, float(cost))


# Rough costs of many trees at once.


def rank_trees(asked: Requirements, levels: int) -> list[tuple[float, RegularTree]]:
    """The trees of so many levels with the least rough costs, best first.

    One for every lowest batch: near-equal degrees above it. sqrt(degree - 1) is convex in the
    logarithm of the degree from 2 on, so equal degrees are best for a given product, and rounding
    leaves two neighbouring ones. The root takes what is left.
    """
    horizon = asked.horizon
    if asked.tree == "paper":
        return [(0.0, RegularTree(horizon, published_degrees(horizon, asked.shufflers)))]
    if asked.tree == "binary":
        binary = binary_degrees(horizon)
        if len(binary) > asked.shufflers:
            raise errors.Infeasible(
                f"the binary tree over {horizon} users needs {len(binary)} shufflers, "
                f"not {asked.shufflers}"
            )
        return [(0.0, RegularTree(horizon, binary))]
    asked = with_best_laplace(asked, levels)
    largest = horizon  # a limit on messages wants large batches; without one they do not pay
    if asked.max_messages is None:
        pays = asked.objective.largest_lowest(asked.gaussian_variance, horizon)
        largest = max(1, min(horizon, math.ceil(pays)))
    lowest = _grid(largest)
    degrees = _all_degrees(horizon, levels, lowest[lowest >= _least_size(asked, levels)])
    degrees = degrees[np.cumprod(degrees, axis=1, dtype=np.float64)[:, -1] <= horizon]
    if len(degrees) == 0:
        return []
    costs = _rough_costs(degrees, asked)
    order = np.argsort(costs, kind="stable")
    _, firsts = np.unique(degrees[order, 0], return_index=True)
    best = order[np.sort(firsts)]
    best = best[costs[best] < _NEAR * costs[best[0]]]
    if asked.max_messages is None:
        best = best[:_BEST_TREES]
    elif len(best) > _MANY_TREES:  # the very best, and some of those that come close
        half = _MANY_TREES // 2
        spread = np.linspace(half, len(best) - 1, _MANY_TREES - half).round()
        best = best[np.append(np.arange(half), spread.astype(np.int64))]
    return [(float(costs[i]), RegularTree(horizon, tuple(map(int, degrees[i])))) for i in best]


def _neighbours(tree: RegularTree, asked: Requirements) -> list[RegularTree]:
    """Trees that differ in one degree and do not look much worse, best first."""
    changed = [tree.degrees]
    for level, degree in enumerate(tree.degrees):
        for stride in sorted({max(1, degree // part) for part in _STRIDES}):
            for other in (degree - stride, degree + stride):
                degrees = (*tree.degrees[:level], other, *tree.degrees[level + 1 :])
                if other > min(level, 1) and math.prod(degrees) <= tree.horizon:
                    changed.append(degrees)
    unlimited = replace(with_best_laplace(asked, tree.levels), max_messages=None)
    costs = _rough_costs(np.array(changed, np.int64), unlimited)
    order = [i for i in np.argsort(costs, kind="stable") if i > 0 and costs[i] < _NEAR * costs[0]]
    return [RegularTree(tree.horizon, changed[i]) for i in order]


def _all_degrees(horizon: int, levels: int, lowest: Counts) -> Counts:
    """All lowest batches with all near-equal degrees above, one tree per row."""
    if levels == 1:
        return lowest[:, np.newaxis]
    most = max(2, math.ceil((2 * horizon) ** (1 / (levels - 1))))
    mixtures = [
        (value,) * (levels - 1 - larger) + (value + 1,) * larger
        for value in map(int, _grid(most)[1:])
        for larger in range(levels - 1)
    ]
    above = np.tile(np.array(mixtures, np.int64), (len(lowest), 1))
    return np.column_stack([np.repeat(lowest, len(mixtures)), above])


def _rough_costs(degrees: Counts, asked: Requirements) -> Floats:
    """Costs as if all levels were alike and coins cost nothing; infinite beyond the limit."""
    horizon = asked.horizon
    sizes = np.asarray(np.cumprod(degrees, axis=1, dtype=np.float64), np.float64)
    full = np.floor((horizon + 1) / sizes)
    rest = horizon + 1 - full * sizes
    mean_full = (sizes * full * (full - 1) / 2 + full * rest) / horizon
    cover = mean_full.copy()
    cover[:, :-1] -= degrees[:, 1:] * mean_full[:, 1:]
    roots = np.sqrt(np.maximum(cover, 1e-6))
    variances = unit_variance(asked, degrees.shape[1]) * roots.sum(axis=1, keepdims=True) / roots
    too_many = np.zeros(len(sizes), np.bool_)
    if asked.max_messages is not None:
        too_many = asked.fewest_messages(sizes, variances).sum(axis=1) > asked.max_messages
    if not asked.values.is_whole:
        rounding = asked.values.rounding * sizes
        variances = variances + rounding / asked.steps(sizes, variances) ** 2
    nodes = variances[:, 0]
    noise = cover[:, 0] * nodes
    for level in range(1, degrees.shape[1]):
        nodes = 1 / (1 / variances[:, level] + 1 / (degrees[:, level] * nodes))
        noise = noise + cover[:, level] * nodes
    lowest = sizes[:, 0]
    pending = np.sqrt((lowest - 1) * (2 * lowest - 1) / 6)
    return np.where(too_many, math.inf, asked.objective.cost(noise, pending))


def _least_size(asked: Requirements, levels: int) -> int:
    """The smallest batch that the mechanism can serve: it may need several honest users."""
    for users in range(1, _MANY_USERS):
        size = math.ceil(users / asked.honest)
        if size > asked.horizon:
            break
        with suppress(errors.Infeasible):
            asked.fit(size, Coins(2, HALF), levels=levels, steps=1)
            return size
    return asked.horizon + 1


def _grid(most: int) -> Counts:
    """Whole numbers from 1 on: all of the small ones, then one in every two per cent."""
    points = np.unique(np.floor(np.geomspace(1, most, 1 + math.ceil(math.log(most + 1) / 0.02))))
    return points.astype(np.int64)


# How the noise is split among the levels of a tree.


@lru_cache(maxsize=512)
def best_split(tree: RegularTree) -> tuple[float, ...]:
    """The split that is best once nodes are combined with their children, in the Gaussian limit.

    The search starts where nodes are not combined.

    >>> [round(share, 2) for share in best_split(RegularTree(horizon=1000, degrees=(10, 10)))]
    [0.85, 1.0]
    """
    from scipy.optimize import minimize

    if tree.levels == 1:
        return (1.0,)
    start = np.log(_cover_split(tree))

    def gaussian_error(logs: Floats) -> float:
        split = _bounded_split(logs)
        variances = list(float((1 / split).sum()) * split)
        return tree.mean_weight(Combination.of(tree, variances, combine=True).variances)

    found = minimize(gaussian_error, (start - start[-1])[:-1], method="BFGS")
    return tuple(map(float, _bounded_split(np.round(found.x, 3))))  # the same on every machine


def _cover_split(tree: RegularTree) -> Floats:
    """The split that is best if nodes are not combined, in the Gaussian limit.

    There the budget is a bound on the sum of 1 / variance, and variances in proportion to
    1 / sqrt(cover) minimise the sum of cover x variance.
    """
    cover = np.maximum(tree.mean_cover, 1e-3)
    return np.asarray(1 / np.sqrt(cover / cover.max()))


def _bounded_split(logs: Floats) -> Floats:
    """A level that is hardly ever in a cover would get all the noise there is: bound that."""
    return np.asarray(np.exp(np.clip(np.append(logs, 0.0), -_WIDEST_LOG, _WIDEST_LOG)))


# The least noise for a guarantee, and its certificate.


def levels_of(mechanisms: Sequence[Mechanism], asked: Requirements) -> list[Level]:
    """What one user takes part in, as the accountant sees it.

    >>> from overhand.mechanisms import CoinSum
    >>> coins = CoinSum.with_variance(size=1000, variance=60.0)
    >>> spent_delta(levels_of([coins], Requirements(Privacy(1.0, 1e-6))), Privacy(1.0, 1e-6)) < 1e-6
    True
    """
    distances = [m.view_distance(asked.honest_users(m.size)) for m in mechanisms]
    return [
        asked.level(m.size, m.noise_share, m.quantizer, distance)
        for m, distance in zip(mechanisms, distances, strict=True)
    ]


def calibrate(sizes: Sequence[int], split: Split, asked: Requirements) -> tuple[Mechanism, ...]:
    """The least noise for the guarantee, certified, the levels' variances in proportion to `split`.

    A user is in one batch of every size. Under simple and advanced composition every level gets
    an equal share, and `split` is not used: that is what the paper's accounting amounts to with
    exact mechanisms.

    >>> asked = Requirements(Privacy(1.0, 1e-6))
    >>> [round(m.variance) for m in calibrate((10, 100), (1.0, 2.0), asked)]
    [27, 55]
    """
    for mechanisms in _ever_noisier(sizes, split, asked):
        if spent_delta(levels_of(mechanisms, asked), asked.privacy) <= asked.privacy.delta:
            return mechanisms
    raise errors.Infeasible(f"no certificate for {asked.privacy} near the least noise for it")


def _ever_noisier(
    sizes: Sequence[int], split: Split, asked: Requirements
) -> Iterator[tuple[Mechanism, ...]]:
    """The least noise for the guarantee, uncertified, and then a little more each time.

    Levels that keep to their shares may need it, too: a certificate adds up rounded losses.
    """
    more = [1 + _SAFETY_STEP * 2**step for step in range(_SAFETY_STEPS)]
    if asked.composition == "exact":
        draft = Draft.start(sizes, split, asked).with_least_noise(_PRECISION)
        for factor in more:
            yield draft.mechanisms()
            draft = replace(draft, scale=draft.scale * factor)
        return
    share = Privacy.share if asked.composition == "simple" else advanced_share
    privacy = asked.privacy
    for factor in more:
        alone = replace(asked, privacy=share(privacy, len(sizes)), composition="exact")
        yield tuple(calibrate([size], [1.0], alone)[0] for size in sizes)
        privacy = replace(privacy, epsilon=privacy.epsilon / factor)


@lru_cache(maxsize=512)
def unit_variance(asked: Requirements, levels: int) -> float:
    """The variance that each of this many equal levels needs, divided by their number.

    With unlimited coins, or Laplace noise; for vectors, the Gaussian limit.
    """
    values, levels_alone = asked.values, asked.gaussian_variance * levels
    is_wide = asked.noise_choice.laplace is None and levels_alone > _WIDE
    if values.sensitivity.l2 is not None or is_wide:
        return asked.gaussian_variance
    alone = replace(asked, honest=1.0, composition="exact", coarseness=1.0)
    typical = max(1, min(_TYPICAL_STEPS, _TYPICAL_STEPS * _FINE_REPORTS // asked.reports))
    steps = [1 if values.is_whole else typical] * levels
    scale = levels_alone * asked.honest
    equal = Draft([_TYPICAL_SIZE] * levels, [1.0] * levels, steps, alone, scale)
    return equal.with_free_coins(_ROUGHLY).scale / (levels * asked.honest)


def with_best_laplace(asked: Requirements, levels: int) -> Requirements:
    """The same with the shape of Laplace noise that needs the least variance.

    >>> from overhand.mechanisms import NoiseChoice, SharesSum
    >>> asked = Requirements(Privacy(1.0, 1e-6), noise_choice=NoiseChoice(SharesSum, laplace=1))
    >>> [with_best_laplace(asked, levels).noise_choice.laplace for levels in (2, 12)]
    [1, 5]
    """
    if asked.noise_choice.laplace is None:
        return asked
    best = asked
    for shape in _LAPLACE_SHAPES:  # noise falls with the shape, and then it rises
        at = replace(asked, noise_choice=replace(asked.noise_choice, laplace=shape))
        if shape > 1 and unit_variance(at, levels) >= unit_variance(best, levels):
            break
        best = at
    return best


@dataclass(frozen=True)
class Draft:
    """The noise of every level at one scale: its variance in a level is `scale` x `split`.

    With `coins`, a user has so many of them at each level; otherwise as few as there can be.

    >>> draft = Draft.of((10, 100), (1.0, 2.0), Requirements(Privacy(1.0, 1e-6)))
    >>> [round(variance) for variance in draft.variances], draft.fits(18, 1.0), draft.fits(17, 1.0)
    ([27, 55], True, False)
    """

    sizes: Sequence[int]
    split: Split
    steps: Sequence[int]
    asked: Requirements
    scale: float
    coins: Sequence[int] | None = None

    @classmethod
    def of(cls, sizes: Sequence[int], split: Split, asked: Requirements) -> Draft:
        """About the least noise for the guarantee, for ranking trees.

        Vectors, and noise so wide that it is almost Gaussian, are treated as Gaussian.
        """
        draft = cls.start(sizes, split, asked)
        is_gaussian = asked.values.sensitivity.l2 is not None or draft.is_wide
        return draft if is_gaussian else draft.with_least_noise(_ROUGHLY)

    @classmethod
    def start(cls, sizes: Sequence[int], split: Split, asked: Requirements) -> Draft:
        """Where a search for the scale starts: the sum of 1 / (scale g) is that of equal levels.

        And what rounding adds to a change that is bounded in norm.
        """
        inverse = math.fsum(1 / g for g in split)
        scale, values = unit_variance(asked, len(split)) * inverse, asked.values
        steps = [int(steps) for steps in asked.steps(sizes, np.multiply(scale, split))]
        if values.sensitivity.l2 is not None:
            wider = values.width * math.sqrt(values.dimension) / values.sensitivity.norm
            rounded = ((1 + wider / s) ** 2 / g for s, g in zip(steps, split, strict=True))
            scale = scale * math.fsum(rounded) / inverse
        return cls(sizes, split, steps, asked, scale)

    @property
    def is_wide(self) -> bool:
        """Whether the noise of every level is almost Gaussian."""
        return min(self._noise_variances) > _WIDE

    @property
    def variances(self) -> list[float]:
        """Of batch sums, by level, in squared widths: noise, and rounding at its worst."""
        levels = zip(self.sizes, self.steps, self.noises, strict=True)
        rounding = self.asked.values.rounding
        return [(noise.batch_law(n).variance + rounding * n) / s**2 for n, s, noise in levels]

    def fits(self, most: int | None, spare: float) -> bool:
        """Whether a user sends at most so many messages, even with this much more noise."""
        if most is None:
            return True
        with suppress(errors.Infeasible):
            return sum(m.layout.messages_per_user for m in self.mechanisms(spare)) <= most
        return False

    def mechanisms(self, spare: float = 1.0) -> tuple[Mechanism, ...]:
        """The fewest messages for the noise of every level, or for a little more of it."""
        noises, count = self.noises, len(self.sizes)
        if spare > 1:
            noises = [n.increase(spare, size) for n, size in zip(noises, self.sizes, strict=True)]
        levels = zip(self.sizes, self.steps, noises, strict=True)
        return tuple(
            self.asked.fit(size, noise, levels=count, steps=steps) for size, steps, noise in levels
        )

    @cached_property
    def noises(self) -> list[NoiseShare]:
        """What a contributor adds at every level."""
        bits: Sequence[int | None] = self.coins or [None] * len(self.sizes)
        levels = zip(self.sizes, self._noise_variances, bits, strict=True)
        return [self._noise(size, variance, of_level) for size, variance, of_level in levels]

    def _noise(self, size: int, variance: float, bits: int | None) -> NoiseShare:
        laplace = self.asked.noise_choice.laplace
        if laplace is not None:
            honest = self.asked.honest_users(size)
            return Polya.with_variance(honest, variance * honest / size, shape=laplace)
        if bits is not None and 4 * variance > size * bits:
            bits = None  # the fixed coins are all fair already: more are needed
        return Coins.with_variance(size, max(variance, _LEAST_SHARE * size), bits=bits)

    @property
    def _noise_variances(self) -> list[float]:
        """Of the noise of batches, in steps."""
        return [self.scale * g * s**2 for g, s in zip(self.split, self.steps, strict=True)]

    @property
    def _fewest_coins(self) -> list[int]:
        return [int(coins) for coins in fewest_coins(self.sizes, self._noise_variances)]

    @property
    def levels(self) -> list[Level]:
        """As the accountant sees them; their view distance is the largest allowed."""
        asked, distance = self.asked, 2 * self.asked.distance(len(self.sizes))
        return [
            asked.level(size, noise, Quantizer(asked.values, steps), distance)
            for size, noise, steps in zip(self.sizes, self.noises, self.steps, strict=True)
        ]

    def with_least_noise(self, precision: float) -> Draft:
        """The least noise for the guarantee, uncertified, and the coins that it goes with."""
        if self.asked.noise_choice.laplace is not None:
            return self._rescale(None, precision)
        if min(self._noise_variances) < _FEW:
            return self._with_few_coins(precision)
        found = self if self.is_wide else self._rescale(None, precision)
        # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
        fixed = found._rescale(found._fewest_coins, precision)
        return fixed if self.is_wide else replace(fixed, scale=min(found.scale, fixed.scale))

    def with_free_coins(self, precision: float) -> Draft:
        """The least noise, if coins cost nothing."""
        if self.asked.noise_choice.laplace is not None:
            return self._rescale(None, precision)
        return self._rescale([_PLENTY * bits for bits in self._fewest_coins], precision)

    def _with_few_coins(self, precision: float) -> Draft:
        """The fewest coins with which noise is little more than with unlimited coins.

        Where noise is small, its range matters more than its variance: with just enough coins for
        the variance, many times as much variance may be needed.
        """
        limit = self
        coins = limit._fewest_coins
        if not limit._is_enough(coins):
            limit = limit.with_free_coins(precision)
            coins = limit._fewest_coins
        while not limit._is_enough(coins):
            shares = np.divide(limit._noise_variances, np.multiply(self.sizes, coins))
            level = int(np.argmax(shares))
            coins[level] = 2 * math.ceil(max(coins[level] + 2, _MORE_COINS * coins[level]) / 2)
        usual = min(_USUALLY * limit.scale, limit._most(coins))
        return replace(limit, scale=usual)._rescale(coins, precision)

    def _is_enough(self, coins: Sequence[int]) -> bool:
        levels = replace(self, scale=self._most(coins), coins=coins).levels
        return quick_delta(levels, self.asked.privacy) <= self.asked.privacy.delta

    def _most(self, coins: Sequence[int]) -> float:
        """The largest scale that this many coins can reach and may use: all of a level fair."""
        units = replace(self, scale=1.0)._noise_variances
        levels = zip(self.sizes, coins, units, strict=True)
        fair = min(size * bits / (4 * unit) for size, bits, unit in levels)
        return min(_FEW_COINS_COST * self.scale, fair)

    def _rescale(self, coins: Sequence[int] | None, precision: float) -> Draft:
        """The least scale for the guarantee, with so many coins."""
        scale = least_scale(
            lambda scale: replace(self, scale=scale, coins=coins).levels,
            self.asked.privacy,
            start=self.scale,
            precision=precision,
        )
        return replace(self, scale=scale, coins=coins)
