"""From a tree and a guarantee to one mechanism for every batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.accounting import (
    Level,
    NoiseLaw,
    advanced_share,
    least_scale,
    spent_delta,
)
from overhand.mechanisms import Coins, CoinSum, Polya, SharesSum, UserNoise
from overhand.mechanisms.mechanism import change_of
from overhand.mechanisms.splitting import fewest_shares
from overhand.mechanisms.user_noise import fewest_coins
from overhand.model import Privacy
from overhand.plan.recipe import SHAPES
from overhand.plan.terms import Terms
from overhand.trees import Tree
from overhand.values import BITS

AnyMechanism = CoinSum | SharesSum
Mechanisms = tuple[tuple[AnyMechanism, ...], ...]
Sizes = Sequence[tuple[int, ...]]
FixedCoins = Sequence[Sequence[int]]

_SAFETY_STEP = 2e-4
_SAFETY_STEPS = 12
_TYPICAL_SIZE = 1 << 12
_TYPICAL_BITS = 24


def levels_of(mechanisms: Mechanisms, terms: Terms) -> list[Level]:
    """What one user takes part in, as the accountant sees it."""
    return [
        Level(
            _laws([(m.user_noise, m.size) for m in of_level], terms),
            terms.reports,
            of_level[0].change,
            max(m.leak(terms.honest_users(m.size)) for m in of_level),
        )
        for of_level in mechanisms
    ]


def _laws(noises: Sequence[tuple[UserNoise, int]], terms: Terms) -> tuple[NoiseLaw, ...]:
    """The distinct laws of the honest users' noise."""
    laws = [noise.law(terms.honest_users(size)) for noise, size in noises]
    return tuple(dict.fromkeys(laws))


def calibrated(tree: Tree, shape: Sequence[float], terms: Terms) -> Mechanisms:
    """The least noise for the guarantee, the levels' variances in proportion to `shape`.

    Under simple and advanced composition every level gets the same share on its own, and
    `shape` is not used: that is what the paper's accounting comes to with exact mechanisms.
    """
    return calibrated_sizes(
        [tree.sizes(level) for level in range(1, tree.levels + 1)], shape, terms
    )


def calibrated_sizes(sizes: Sizes, shape: Sequence[float], terms: Terms) -> Mechanisms:
    """The same for the batch sizes of every level: a user is in one batch of each."""
    if terms.composition == "exact":
        return _Calibration.of(sizes, shape, terms).certified()
    share = Privacy.share if terms.composition == "simple" else advanced_share
    alone = replace(terms, privacy=share(terms.privacy, len(sizes)), composition="exact")
    return tuple(_Calibration.of([of_level], [1.0], alone).certified()[0] for of_level in sizes)


def quick_scale(tree: Tree, shape: Sequence[float], terms: Terms) -> float:
    """The scale of the noise that `calibrated` comes to, about: to rank trees by.

    Whole values are calibrated as they will be, without a certificate. Reals are taken for bits;
    vectors for the Gaussian limit, with what their rounding adds to a change.
    """
    sizes = [tree.sizes(level)[:1] for level in range(1, tree.levels + 1)]
    if terms.values.is_whole:
        return _Calibration.of(sizes, shape, terms).least_scale()
    if terms.values.moves == 1:
        return _Calibration.of(sizes, shape, replace(terms, values=BITS)).least_scale()
    unit, values = unit_variance(terms, tree.levels), terms.values
    slack = values.width * math.sqrt(values.dimension) / values.sensitivity
    steps = steps_of(tree, shape, terms)
    return unit * math.fsum((1 + slack / s) ** 2 / g for s, g in zip(steps, shape, strict=True))


def steps_of(tree: Tree, shape: Sequence[float], terms: Terms) -> list[int]:
    """The steps of every level."""
    largest = [tree.sizes(level)[-1] for level in range(1, tree.levels + 1)]
    variances = np.multiply(_first_scale(shape, terms), shape)
    return [int(steps) for steps in terms.steps(largest, variances)]


@lru_cache(maxsize=512)
def unit_variance(terms: Terms, levels: int) -> float:
    """The variance that each of so many equal levels needs, divided by their number.

    For coins the Gaussian limit, the same for all; Laplace noise needs less if levels are few.
    """
    if terms.recipe.shape is None:
        return terms.gaussian_variance
    bits = replace(terms, values=BITS, honest=1.0, composition="exact", coarseness=1.0)
    moved = terms.values.moves or 1
    sizes = [(_TYPICAL_SIZE,)] * (levels * moved)
    start = terms.gaussian_variance * levels
    scale = _Calibration(sizes, [1.0] * len(sizes), [1] * len(sizes), bits).least_scale(start=start)
    return scale / (levels * terms.honest)


def with_best_shape(terms: Terms, levels: int) -> Terms:
    """The terms with the shape of Laplace noise that needs the least variance."""
    if terms.recipe.shape is None:
        return terms
    shaped = [replace(terms, recipe=replace(terms.recipe, shape=shape)) for shape in SHAPES]
    return min(shaped, key=lambda at: unit_variance(at, levels))


def _first_scale(shape: Sequence[float], terms: Terms) -> float:
    """Where a search for the scale starts: the sum of 1 / (scale g) is that of equal levels."""
    return unit_variance(terms, len(shape)) * math.fsum(1 / g for g in shape)


def messages_of(
    terms: Terms,
    sizes: NDArray[np.float64],
    largest: NDArray[np.float64],
    variances: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Messages of a user, by level: in batches of `sizes`, the largest of their level given."""
    steps = terms.steps(largest, variances)
    if not terms.recipe.shares:
        coins = fewest_coins(sizes, variances * steps**2)
        return np.asarray(terms.values.dimension * (steps + coins), np.float64)
    distance = terms.distance(sizes.shape[-1])
    shares = np.vectorize(lambda users: fewest_shares(users, _TYPICAL_BITS, distance))
    honest = np.maximum(2, np.floor(sizes * terms.honest)).astype(np.int64)
    unique, which = np.unique(honest, return_inverse=True)
    return np.asarray(terms.values.dimension * shares(unique)[which].reshape(sizes.shape))


@dataclass(frozen=True)
class _Calibration:
    """A search for the scale of the noise, over fixed sizes, shape and steps."""

    sizes: Sizes
    shape: Sequence[float]
    steps: Sequence[int]
    terms: Terms

    @classmethod
    def of(cls, sizes: Sizes, shape: Sequence[float], terms: Terms) -> _Calibration:
        scale = _first_scale(shape, terms)
        steps = [int(terms.steps(s[-1], scale * g)) for s, g in zip(sizes, shape, strict=True)]
        return cls(sizes, shape, steps, terms)

    def certified(self) -> Mechanisms:
        """Search with the smallest batch of every level, then certify with all of them."""
        terms = self.terms
        small = replace(self, sizes=[of_level[:1] for of_level in self.sizes])
        scale, coins = small.least_scale(), None
        if terms.recipe.shape is None:
            # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
            coins = self._coins(scale)
            first_coins = [of_level[:1] for of_level in coins]
            scale = min(scale, small.least_scale(first_coins, start=scale))
        for step in range(_SAFETY_STEPS):
            mechanisms = self._mechanisms(scale, coins)
            if spent_delta(levels_of(mechanisms, terms), terms.privacy) <= terms.privacy.delta:
                return mechanisms
            scale *= 1 + _SAFETY_STEP * 2**step
        raise errors.Infeasible(f"no certificate for {terms.privacy} near variance {scale:g}")

    def least_scale(self, coins: FixedCoins | None = None, *, start: float | None = None) -> float:
        """The least scale for the guarantee, uncertified."""
        if start is None:
            start = _first_scale(self.shape, self.terms) * (1 + self.terms.norm_share) ** 2
        return least_scale(
            lambda scale: self._levels(scale, coins), self.terms.privacy, start=start
        )

    def _levels(self, scale: float, coins: FixedCoins | None) -> list[Level]:
        """The levels at this scale; what shares leak is what they may leak at most."""
        terms, leak = self.terms, 2 * self.terms.distance(len(self.sizes))
        return [
            Level(
                _laws(
                    [(self._noise(scale, level, i, coins), s) for i, s in enumerate(of_level)],
                    terms,
                ),
                terms.reports,
                change_of(terms.values, self.steps[level]),
                leak,
            )
            for level, of_level in enumerate(self.sizes)
        ]

    def _noise(self, scale: float, level: int, index: int, coins: FixedCoins | None) -> UserNoise:
        """A user's noise in batches of one size, with the coins given or needed."""
        size, terms = self.sizes[level][index], self.terms
        variance = scale * self.shape[level] * self.steps[level] ** 2
        if terms.recipe.shape is not None:
            honest = terms.honest_users(size)
            return Polya.with_variance(honest, variance * honest / size, shape=terms.recipe.shape)
        bits = None if coins is None else coins[level][index]
        if bits is not None and 4 * variance > size * bits:
            bits = None  # the fixed coins are all fair already: more are needed
        return Coins.with_variance(size, variance, bits=bits)

    def _coins(self, scale: float) -> list[list[int]]:
        return [
            [
                int(fewest_coins(size, scale * self.shape[level] * self.steps[level] ** 2))
                for size in of_level
            ]
            for level, of_level in enumerate(self.sizes)
        ]

    def _mechanisms(self, scale: float, coins: FixedCoins | None) -> Mechanisms:
        return tuple(
            tuple(
                self._mechanism(size, self._noise(scale, level, index, coins), self.steps[level])
                for index, size in enumerate(of_level)
            )
            for level, of_level in enumerate(self.sizes)
        )

    def _mechanism(self, size: int, noise: UserNoise, steps: int) -> AnyMechanism:
        terms = self.terms
        if terms.recipe.shares:
            return SharesSum.fitted(
                size,
                noise,
                honest=terms.honest_users(size),
                distance=terms.distance(len(self.sizes)),
                values=terms.values,
                steps=steps,
            )
        assert isinstance(noise, Coins)
        return CoinSum.of(size, noise, terms.values, steps)
