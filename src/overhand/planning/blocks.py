"""Plans of the two services: one level of blocks, each with noise of both.

How large a block should be, how much noise it needs, and what errors it leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.accounting import (
    SMALLEST_DELTA,
    BlocksGuarantee,
    Level,
    gaussian_mu,
    gaussian_variance,
    least_scale,
)
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Privacy
from overhand.noise import (
    BEYOND,
    SERVICES,
    CorrelatedNoise,
    IndependentNoise,
    Polya,
    ServiceNoise,
)
from overhand.planning.requirements import Requirements
from overhand.tree import RegularTree
from overhand.values import Quantizer, Sensitivity

_RULE_OFFSET = 2.84  # rms^2 = 2 (shift / mu)^2 ((ln blocks + 2.84) / pi)^2, to about one per cent
_BALLOTS_SIZE = 2  # times the block of least error: half the dummies for six per cent more error
_MOST_DUMMIES = 13  # for every user, or blocks are even larger
_ROUNDS = 3
_BEYOND_CHANCE = 1e-12  # that any noise of a plan wraps around, or is clipped, as far as error goes
_CLIPPED_SHARE = 1 / 20  # of delta, for noise that is clipped
_TRIES = 24
_LESS = 1e-5
_COARSE = 64  # steps, for a first look
_STRIDES = (8, 4, 2, 1)
_MANY_PAIRS = 1 << 12  # of intervals: more take long, one by one


def best_blocks(asked: Requirements) -> tuple[RegularTree, Mechanism]:
    """The blocks of least cost, and their certified mechanism.

    >>> from overhand.model import Privacy
    >>> asked = Requirements(Privacy(1.0, 1e-6), mechanism="pairs", horizon=10**6)
    >>> tree, mechanism = best_blocks(asked)
    >>> tree.degrees, tree.blocks, mechanism.noise_share.cap
    ((25,), 4000000, 4000000)
    """
    found, failure = list[tuple[float, Mechanism]](), None
    for choice in asked.choices():
        try:
            found.append(_best_of_choice(choice))
        except errors.Infeasible as error:
            failure = error
    if not found:
        raise failure or errors.Infeasible(f"no noise of the services gives {asked.privacy}")
    _, mechanism = min(found, key=lambda one: one[0])
    return blocks_tree(mechanism), mechanism


def least_cost(asked: Requirements) -> float:
    """What the best blocks cost: see `Objective`."""
    return _cost(asked, best_blocks(asked)[1])


def blocks_tree(mechanism: Mechanism) -> RegularTree:
    """One level of blocks, as many as there may ever be."""
    return RegularTree(mechanism.service_noise.cap * mechanism.size, (mechanism.size,))


def _best_of_choice(asked: Requirements) -> tuple[float, Mechanism]:
    """The best size of blocks for one kind of noise, from the closed form on, and its cost."""
    costs: dict[int, float] = {}

    def cost(size: int) -> float:
        if not 1 <= size <= asked.horizon:
            return math.inf
        if size not in costs:
            try:
                costs[size] = _cost(asked, _draft(asked, size))
            except errors.Infeasible:  # of this size
                costs[size] = math.inf
        return costs[size]

    size = _rough_size(asked)
    for part in _STRIDES:
        stride = max(1, size * part // 64)
        while (better := min((size - stride, size + stride), key=cost)) and cost(better) < cost(
            size
        ):
            size = better
    if asked.noise_choice.mechanism.adds_messages:
        size = least = min(asked.horizon, _BALLOTS_SIZE * size)
        for _ in range(_ROUNDS):  # fewer blocks need a little less noise
            enough = math.ceil(_draft(asked, size).layout.added_messages / _MOST_DUMMIES)
            size = min(asked.horizon, max(least, enough))
    mechanism = _certify(asked, size)
    return _cost(asked, mechanism), mechanism


def _rough_size(asked: Requirements) -> int:
    """A size from which to look for the best: near it, unless the objective is unusual."""
    horizon, variance = asked.horizon, asked.gaussian_variance
    sizes = np.unique(np.geomspace(1, horizon, 200).astype(np.int64)).astype(np.float64)
    blocks = np.maximum(1.0, horizon / sizes)
    if asked.noise_choice.laplace is None:
        noise = SERVICES * variance * ((np.log(blocks) + _RULE_OFFSET) / math.pi) ** 2
    else:
        noise = SERVICES * _laplace_variance(asked, _COARSE) * blocks / 2
    pending = np.sqrt((sizes - 1) * (2 * sizes - 1) / 6)
    return int(sizes[np.argmin(asked.objective.cost(noise, pending))])


def _cost(asked: Requirements, mechanism: Mechanism) -> float:
    law = BlockErrors(mechanism)
    noise = law.mean_noise_variance(asked.horizon) / asked.values.width**2
    pending = math.sqrt(RegularTree(asked.horizon, (mechanism.size,)).mean_pending_square())
    return float(asked.objective.cost(np.asarray(noise), np.asarray(pending)))


# The least noise for the guarantee.


def _certify(asked: Requirements, size: int) -> Mechanism:
    """The least noise that is certified: more of it, a little at a time, until it is."""
    less = _LESS
    for _ in range(_TRIES):
        mechanism = _draft(asked, size, more=1 + less)
        blocks = BlocksGuarantee(mechanism, asked.reports, asked.privacy)
        if blocks.spent_delta <= asked.privacy.delta:
            return mechanism
        less *= 2
    raise errors.Infeasible(f"no certificate for {asked.privacy} near the least noise for it")


def _draft(asked: Requirements, size: int, more: float = 1.0) -> Mechanism:
    """A mechanism whose noise has `more` times the deviation that is needed, about."""
    blocks = max(1, asked.horizon // size)
    draft = _with_correlated if asked.noise_choice.laplace is None else _with_laplace
    mechanism = draft(asked, size, blocks, asked.privacy.delta, more)
    guarantee = BlocksGuarantee(mechanism, asked.reports, asked.privacy)
    usable = guarantee.usable
    charged = guarantee.charged_delta(usable.epsilon)
    if charged >= usable.delta:
        raise errors.Infeasible(
            f"delta={usable.delta:g} is too small for the noise of {blocks:,} blocks, of which "
            f"{charged:.2g} is charged for how it is drawn and kept"
        )
    return draft(replace(asked, privacy=usable), size, blocks, usable.delta - charged, more)


def _with_laplace(
    asked: Requirements, size: int, blocks: int, delta: float, more: float
) -> Mechanism:
    privacy = replace(asked.privacy, delta=max(delta, SMALLEST_DELTA))
    about = SERVICES * _laplace_variance(asked, _COARSE) * blocks / 2
    steps = _steps(asked, size * blocks, about)
    variance = _laplace_variance(replace(asked, privacy=privacy), steps) * (more * steps) ** 2
    part = Polya.with_variance(1, variance, shape=1)
    return _fit(asked, size, IndependentNoise(part, BEYOND * blocks), steps)


def _with_correlated(
    asked: Requirements, size: int, blocks: int, delta: float, more: float
) -> Mechanism:
    rough = SERVICES * asked.gaussian_variance
    rough *= ((math.log(blocks) + _RULE_OFFSET) / math.pi) ** 2
    steps = _steps(asked, size * blocks, rough)
    shift = asked.reports * Quantizer(asked.values, steps).sensitivity.norm
    mu = gaussian_mu(replace(asked.privacy, delta=delta))
    noise = CorrelatedNoise.of(more * _norm(blocks) * shift / mu, blocks)
    return _fit(asked, size, noise, steps)


def _fit(asked: Requirements, size: int, noise: ServiceNoise, steps: int) -> Mechanism:
    """With so few clipped, or wrapped around, as may be."""
    counts = noise.cap * asked.values.dimension
    chance = _BEYOND_CHANCE / counts
    if asked.noise_choice.mechanism.has_view_distance:
        most = _CLIPPED_SHARE * asked.privacy.delta / (1 + math.exp(asked.privacy.epsilon))
        chance = most / (2 * counts)
    return asked.noise_choice.mechanism.with_noise(
        size, noise, honest=size, distance=chance, values=asked.values, steps=steps
    )


@lru_cache(maxsize=256)
def _norm(blocks: int) -> float:
    return CorrelatedNoise.of(1.0, blocks).norm


def _laplace_variance(asked: Requirements, steps: int) -> float:
    """What one service's Laplace noise needs, in squared widths."""
    steps = 1 if asked.values.is_whole else steps
    moved = Quantizer(asked.values, steps).sensitivity
    return _least_laplace(asked.privacy, asked.reports, moved) / steps**2


@lru_cache(maxsize=256)
def _least_laplace(privacy: Privacy, reports: int, moved: Sensitivity) -> float:
    def levels_at(variance: float) -> list[Level]:
        return [Level(Polya.with_variance(1, variance, shape=1).law(1), reports, moved)]

    start = gaussian_variance(privacy) * (reports * moved.norm) ** 2
    return least_scale(levels_at, privacy, start=start)


def _steps(asked: Requirements, users: int, variance: float) -> int:
    """A power of two, so that rounding adds little to the noise and to what one user moves."""
    values, mechanism = asked.values, asked.noise_choice.mechanism
    if values.is_whole:
        return 1
    least = math.sqrt(values.rounding * users / (mechanism.rounding_share * variance))
    if values.sensitivity.l2 is not None:
        longest = values.width * math.sqrt(values.dimension) / values.sensitivity.norm
        least = max(least, longest / mechanism.norm_share)
    return 1 << max(0, math.ceil(math.log2(least)))


# What errors the noise leaves.


@dataclass(frozen=True)
class BlockErrors:
    """The noise of a sum of blocks, and of what rounding adds, for one coordinate.

    Services number their noise by themselves, so each has rows of its own for a set of blocks.

    >>> from overhand.mechanisms import PairsSum
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> errors_of = BlockErrors(PairsSum.with_noise(25, noise, honest=25, distance=1e-12))
    >>> errors_of.noise_variance([1, 100]).round()
    array([159., 385.])
    >>> first, second = (((0, 50),),) * 2, (((50, 100),),) * 2
    >>> round(errors_of.covariance(first, second))  # the second half corrects the first
    -269
    """

    mechanism: Mechanism

    @property
    def noise(self) -> ServiceNoise:
        return self.mechanism.service_noise

    def noise_variance(self, blocks: Any) -> Floats:
        """Of the first blocks together, all of which came in order."""
        of_noise = SERVICES * self.mechanism.quantizer.unit**2 * self.noise.prefix_variance(blocks)
        return np.asarray(of_noise + np.multiply(blocks, self.mechanism.rounding_variance))

    def mean_noise_variance(self, users: int) -> float:
        """The mean over t = 1 .. users."""
        size, unit = self.mechanism.size, self.mechanism.quantizer.unit
        blocks, rest = divmod(users + 1, size)  # t = 0 .. users; t = 0 has no noise
        total = size * blocks * self.noise.mean_prefix_variance(blocks) if blocks else 0.0
        total += rest * float(self.noise.prefix_variance(blocks))
        rounding = size * blocks * (blocks - 1) / 2 + rest * blocks
        whole = SERVICES * unit**2 * total + self.mechanism.rounding_variance * rounding
        return whole / users

    def log_mgf_bound(self, s: float, blocks: int) -> float:
        """A bound on ln E exp(+-s error) of the first blocks together."""
        rounded = s**2 * blocks * self.mechanism.rounding_variance / 2
        unit = self.mechanism.quantizer.unit
        return rounded + self.noise.prefix_log_mgf(s * unit, SERVICES, blocks)

    def covariance(self, left: Rows, right: Rows) -> float:
        """Of the sums of two sets of blocks."""
        of_noise = sum(
            self._of_service(mine, theirs) for mine, theirs in zip(left, right, strict=True)
        )
        shared = sum(
            max(0, min(stop, other) - max(start, first))
            for start, stop in left[0]
            for first, other in right[0]
        )
        unit = self.mechanism.quantizer.unit
        return float(unit**2 * of_noise + self.mechanism.rounding_variance * shared)

    def _of_service(self, left: Intervals, right: Intervals) -> float:
        """By the ends of intervals: what is between two of them is a difference of prefixes."""
        if not left or not right:
            return 0.0
        if len(left) * len(right) > _MANY_PAIRS:
            rows = max(left[-1][1], right[-1][1])
            mine, theirs = (self.noise.whiten(_indicate(one, rows)) for one in (left, right))
            return float(mine @ theirs)
        (ends, signs), (other_ends, other_signs) = _ends(left), _ends(right)
        both = self.noise.covariance(ends[:, np.newaxis], other_ends)
        return float(signs @ both @ other_signs)

    def range_variance(self, blocks: int) -> float:
        """Of the sum of so many blocks in a row, in the middle of a run."""
        first = self.noise.cap // (2 * BEYOND)
        rows = ((first, first + blocks),)
        return self.covariance((rows, rows), (rows, rows))

    def prefix_variances(self, is_here: NDArray[np.bool_]) -> Floats:
        """By number of blocks: of the first of them that are here, if they came in order."""
        blocks = np.arange(len(is_here) + 1)
        here = np.concatenate([[0], np.cumsum(is_here)])
        of_service = self.noise.prefix_variance(blocks)
        missing = np.flatnonzero(~is_here)
        for place, number in enumerate(missing.tolist()):
            later = blocks[number + 1 :]
            before, after = np.int64(number), np.int64(number + 1)
            lacks = self.noise.covariance(later, after) - self.noise.covariance(later, before)
            own, others = ((number, number + 1),), missing[:place].tolist()
            earlier = tuple((one, one + 1) for one in others)
            both = 2 * self._of_service(earlier, own) + self._of_service(own, own)
            of_service[number + 1 :] += both - 2 * lacks
        of_noise = of_service + self.noise.prefix_variance(here)
        unit = self.mechanism.quantizer.unit
        return np.asarray(unit**2 * of_noise + here * self.mechanism.rounding_variance)


Intervals = tuple[tuple[int, int], ...]
"""Half-open intervals of the rows of one service's noise, in order."""
Rows = tuple[Intervals, Intervals]
"""Which noise a sum has: of the shuffling service, by block, and of the server, by draw."""


def _ends(intervals: Intervals) -> tuple[Counts, Floats]:
    return np.array(intervals, np.int64).reshape(-1), np.tile([-1.0, 1.0], len(intervals))


def _indicate(intervals: Intervals, rows: int) -> Floats:
    weights = np.zeros(rows)
    for first, stop in intervals:
        weights[first:stop] = 1.0
    return weights
