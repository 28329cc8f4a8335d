"""The least noise for a guarantee: from batch sizes to one mechanism for every level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from overhand import errors
from overhand.accounting import Level, advanced_share, least_scale, spent_delta
from overhand.mechanisms import Coins, Mechanism, Polya, UserNoise, change_of, fewest_coins
from overhand.model import Floats, Privacy
from overhand.plan.request import Terms
from overhand.values import BITS

Split = Sequence[float]
"""The proportions of the levels' variances, lowest level first."""

_LAPLACE_SHAPES = (1, 2, 3, 5, 8)
_SAFETY_STEP = 2e-4
_SAFETY_STEPS = 12
_TYPICAL_SIZE = 1 << 12


def levels_of(mechanisms: Sequence[Mechanism], terms: Terms) -> list[Level]:
    """What one user takes part in, as the accountant sees it.

    >>> from overhand.mechanisms import CoinSum
    >>> coins = CoinSum.with_variance(size=1000, variance=60.0)
    >>> spent_delta(levels_of([coins], Terms(Privacy(1.0, 1e-6))), Privacy(1.0, 1e-6)) < 1e-6
    True
    """
    honest = [(m, terms.honest_users(m.size)) for m in mechanisms]
    return [Level(m.noise(users), terms.reports, m.change, m.leak(users)) for m, users in honest]


def calibrated(sizes: Sequence[int], split: Split, terms: Terms) -> tuple[Mechanism, ...]:
    """The least noise for the guarantee, the levels' variances in proportion to `split`.

    A user is in one batch of every size. Under simple and advanced composition every level gets
    the same share on its own, and `split` is not used: that is what the paper's accounting comes
    to with exact mechanisms.

    >>> [round(m.variance) for m in calibrated((10, 100), (1.0, 2.0), Terms(Privacy(1.0, 1e-6)))]
    [27, 55]
    """
    if terms.composition == "exact":
        return _Calibration.of(sizes, split, terms).certified()
    share = Privacy.share if terms.composition == "simple" else advanced_share
    alone = replace(terms, privacy=share(terms.privacy, len(sizes)), composition="exact")
    return tuple(_Calibration.of([size], [1.0], alone).certified()[0] for size in sizes)


def quick_scale(sizes: Sequence[int], split: Split, terms: Terms) -> float:
    """The scale of the noise that `calibrated` comes to, about: to rank trees by.

    Whole values are calibrated as they will be, without a certificate. Reals are taken for bits;
    vectors for the Gaussian limit, with what their rounding adds to a change.
    """
    if terms.values.is_whole:
        return _Calibration.of(sizes, split, terms).least_scale()
    if terms.values.moves == 1:
        return _Calibration.of(sizes, split, replace(terms, values=BITS)).least_scale()
    unit, values = unit_variance(terms, len(sizes)), terms.values
    slack = values.width * math.sqrt(values.dimension) / values.sensitivity
    steps = steps_of(sizes, split, terms)
    return unit * math.fsum((1 + slack / s) ** 2 / g for s, g in zip(steps, split, strict=True))


def steps_of(sizes: Sequence[int], split: Split, terms: Terms) -> list[int]:
    """The steps of every level."""
    variances = np.multiply(_first_scale(split, terms), split)
    return [int(steps) for steps in terms.steps(sizes, variances)]


@lru_cache(maxsize=512)
def unit_variance(terms: Terms, levels: int) -> float:
    """The variance that each of so many equal levels needs, divided by their number.

    For coins the Gaussian limit, the same for all; Laplace noise needs less if levels are few.
    """
    if terms.recipe.laplace is None:
        return terms.gaussian_variance
    bits = replace(terms, values=BITS, honest=1.0, composition="exact", coarseness=1.0)
    counts = levels * (terms.values.moves or 1)
    equal = _Calibration([_TYPICAL_SIZE] * counts, [1.0] * counts, [1] * counts, bits)
    scale = equal.least_scale(start=terms.gaussian_variance * levels)
    return scale / (levels * terms.honest)


def with_best_laplace(terms: Terms, levels: int) -> Terms:
    """The terms with the shape of Laplace noise that needs the least variance.

    >>> from overhand.mechanisms import Recipe, SharesSum
    >>> terms = Terms(Privacy(1.0, 1e-6), recipe=Recipe(SharesSum, laplace=1))
    >>> [with_best_laplace(terms, levels).recipe.laplace for levels in (2, 12)]
    [1, 5]
    """
    if terms.recipe.laplace is None:
        return terms
    recipes = [replace(terms.recipe, laplace=laplace) for laplace in _LAPLACE_SHAPES]
    return min(
        (replace(terms, recipe=recipe) for recipe in recipes),
        key=lambda at: unit_variance(at, levels),
    )


def _first_scale(split: Split, terms: Terms) -> float:
    """Where a search for the scale starts: the sum of 1 / (scale g) is that of equal levels."""
    return unit_variance(terms, len(split)) * math.fsum(1 / g for g in split)


def fewest_messages(terms: Terms, sizes: Floats, variances: Floats) -> Floats:
    """About how many messages a user sends, by level, in batches of these sizes."""
    steps = terms.steps(sizes, variances)
    return terms.recipe.mechanism.fewest_messages(
        terms.values,
        steps,
        sizes,
        variances * steps**2,
        honest=terms.honest,
        distance=terms.distance(sizes.shape[-1]),
    )


@dataclass(frozen=True)
class _Calibration:
    """A search for the scale of the noise, over fixed sizes, split and steps."""

    sizes: Sequence[int]
    split: Split
    steps: Sequence[int]
    terms: Terms

    @classmethod
    def of(cls, sizes: Sequence[int], split: Split, terms: Terms) -> _Calibration:
        return cls(sizes, split, steps_of(sizes, split, terms), terms)

    def certified(self) -> tuple[Mechanism, ...]:
        """Search, then certify."""
        terms = self.terms
        scale, coins = self.least_scale(), None
        if terms.recipe.laplace is None:
            # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
            coins = self._coins(scale)
            scale = min(scale, self.least_scale(coins, start=scale))
        for step in range(_SAFETY_STEPS):
            mechanisms = self._mechanisms(scale, coins)
            if spent_delta(levels_of(mechanisms, terms), terms.privacy) <= terms.privacy.delta:
                return mechanisms
            scale *= 1 + _SAFETY_STEP * 2**step
        raise errors.Infeasible(f"no certificate for {terms.privacy} near variance {scale:g}")

    def least_scale(
        self, coins: Sequence[int] | None = None, *, start: float | None = None
    ) -> float:
        """The least scale for the guarantee, uncertified."""
        if start is None:
            start = _first_scale(self.split, self.terms) * (1 + self.terms.norm_share) ** 2
        return least_scale(
            lambda scale: self._levels(scale, coins), self.terms.privacy, start=start
        )

    def _levels(self, scale: float, coins: Sequence[int] | None) -> list[Level]:
        """The levels at this scale; what messages leak is what they may leak at most."""
        terms, leak = self.terms, 2 * self.terms.distance(len(self.sizes))
        return [
            Level(
                noise.law(terms.honest_users(size)),
                terms.reports,
                change_of(terms.values, steps),
                leak,
            )
            for size, noise, steps in zip(
                self.sizes, self._noises(scale, coins), self.steps, strict=True
            )
        ]

    def _noises(self, scale: float, coins: Sequence[int] | None) -> list[UserNoise]:
        """A user's noise at every level, with the coins given or needed."""
        bits: Sequence[int | None] = coins or [None] * len(self.sizes)
        levels = zip(self.sizes, self._variances(scale), bits, strict=True)
        return [self._noise(size, variance, of_level) for size, variance, of_level in levels]

    def _noise(self, size: int, variance: float, bits: int | None) -> UserNoise:
        laplace = self.terms.recipe.laplace
        if laplace is not None:
            honest = self.terms.honest_users(size)
            return Polya.with_variance(honest, variance * honest / size, shape=laplace)
        if bits is not None and 4 * variance > size * bits:
            bits = None  # the fixed coins are all fair already: more are needed
        return Coins.with_variance(size, variance, bits=bits)

    def _variances(self, scale: float) -> list[float]:
        """Of the noise of batches, in steps."""
        return [scale * g * s**2 for g, s in zip(self.split, self.steps, strict=True)]

    def _coins(self, scale: float) -> list[int]:
        variances = self._variances(scale)
        return [int(fewest_coins(n, v)) for n, v in zip(self.sizes, variances, strict=True)]

    def _mechanisms(self, scale: float, coins: Sequence[int] | None) -> tuple[Mechanism, ...]:
        terms, distance = self.terms, self.terms.distance(len(self.sizes))
        return tuple(
            terms.recipe.mechanism.fitted(
                size,
                noise,
                honest=terms.honest_users(size),
                distance=distance,
                values=terms.values,
                steps=steps,
            )
            for size, noise, steps in zip(
                self.sizes, self._noises(scale, coins), self.steps, strict=True
            )
        )
