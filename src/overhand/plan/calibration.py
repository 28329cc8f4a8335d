"""The least noise for a guarantee: from batch sizes to one mechanism for every level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from overhand import errors
from overhand.accounting import Level, advanced_share, least_scale, quick_delta, spent_delta
from overhand.mechanisms import (
    SERVICES,
    Coins,
    Mechanism,
    NoisePart,
    Polya,
    ServiceNoise,
    change_of,
    fewest_coins,
)
from overhand.model import Floats, Privacy
from overhand.plan.request import Terms

Split = Sequence[float]
"""The proportions of the levels' variances, lowest level first."""
BitsOfLevels = list[int]
"""The number of coins per user, by level."""

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


def levels_of(mechanisms: Sequence[Mechanism], terms: Terms) -> list[Level]:
    """What one user takes part in, as the accountant sees it.

    >>> from overhand.mechanisms import CoinSum
    >>> coins = CoinSum.with_variance(size=1000, variance=60.0)
    >>> spent_delta(levels_of([coins], Terms(Privacy(1.0, 1e-6))), Privacy(1.0, 1e-6)) < 1e-6
    True
    """
    honest = [(m, terms.honest_users(m.size)) for m in mechanisms]
    return [
        Level(m.hiding_noise(users), terms.reports, m.change, m.leak(users), terms.room(m.size))
        for m, users in honest
    ]


def calibrated(sizes: Sequence[int], split: Split, terms: Terms) -> tuple[Mechanism, ...]:
    """The least noise for the guarantee, the levels' variances in proportion to `split`.

    A user is in one batch of every size. Under simple and advanced composition every level gets
    an equal share, and `split` is not used: that is what the paper's accounting amounts to with
    exact mechanisms.

    >>> [round(m.variance) for m in calibrated((10, 100), (1.0, 2.0), Terms(Privacy(1.0, 1e-6)))]
    [27, 55]
    """
    if terms.composition == "exact":
        return _Calibration.of(sizes, split, terms).certified()
    share = Privacy.share if terms.composition == "simple" else advanced_share
    alone = replace(terms, privacy=share(terms.privacy, len(sizes)), composition="exact")
    return tuple(_Calibration.of([size], [1.0], alone).certified()[0] for size in sizes)


@dataclass(frozen=True)
class Draft:
    """What `calibrated` will give, without a certificate: for ranking trees.

    >>> draft = Draft.of((10, 100), (1.0, 2.0), Terms(Privacy(1.0, 1e-6)))
    >>> [round(variance) for variance in draft.variances], draft.messages(spare=1.0)
    ([27, 55], 18)
    """

    sizes: Sequence[int]
    steps: Sequence[int]
    noises: Sequence[NoisePart]
    terms: Terms

    @classmethod
    def of(cls, sizes: Sequence[int], split: Split, terms: Terms) -> Draft:
        """Treat vectors, and noise so wide that it is almost Gaussian, as Gaussian."""
        search = _Calibration(sizes, split, steps_of(sizes, split, terms), terms, _ROUGHLY)
        is_gaussian = terms.values.moves is None or search.is_wide
        scale, coins = (search.first_scale, None) if is_gaussian else search.least()
        return search.draft(scale, coins)

    @property
    def variances(self) -> list[float]:
        """Of batch sums, by level, in squared widths: noise, and rounding at its worst."""
        levels = zip(self.sizes, self.steps, self.noises, strict=True)
        rounding = self.terms.values.rounding
        return [(noise.batch_law(n).variance + rounding * n) / s**2 for n, s, noise in levels]

    def messages(self, spare: float) -> int:
        """Of one user, if the noise were this many times as large."""
        return sum(m.messages_per_user for m in self.mechanisms(spare))

    def mechanisms(self, spare: float = 1.0) -> tuple[Mechanism, ...]:
        """The fewest messages for the noise of every level, or for a little more of it."""
        noises, count = self.noises, len(self.sizes)
        if spare > 1:
            noises = [n.increased(spare, size) for n, size in zip(noises, self.sizes, strict=True)]
        levels = zip(self.sizes, self.steps, noises, strict=True)
        return tuple(
            self.terms.fitted(size, noise, levels=count, steps=steps)
            for size, steps, noise in levels
        )


def steps_of(sizes: Sequence[int], split: Split, terms: Terms) -> list[int]:
    """The steps of every level."""
    variances = np.multiply(_first_scale(split, terms), split)
    return [int(steps) for steps in terms.steps(sizes, variances)]


@lru_cache(maxsize=512)
def unit_variance(terms: Terms, levels: int) -> float:
    """The variance that each of this many equal levels needs, divided by their number.

    With unlimited coins, or Laplace noise; for vectors, the Gaussian limit.
    """
    values, levels_alone = terms.values, terms.gaussian_variance * levels
    if values.moves is None or terms.recipe.laplace is None and levels_alone > _WIDE:
        return terms.gaussian_variance
    alone = replace(terms, honest=1.0, composition="exact", coarseness=1.0, noise_by="users")
    typical = max(1, min(_TYPICAL_STEPS, _TYPICAL_STEPS * _FINE_REPORTS // terms.reports))
    steps = [1 if values.is_whole else typical] * levels
    equal = _Calibration([_TYPICAL_SIZE] * levels, [1.0] * levels, steps, alone, _ROUGHLY)
    scale = equal.limit(start=levels_alone * terms.hiding_share)
    return scale / (levels * terms.hiding_share)


def with_best_laplace(terms: Terms, levels: int) -> Terms:
    """The terms with the shape of Laplace noise that needs the least variance.

    >>> from overhand.mechanisms import Recipe, SharesSum
    >>> terms = Terms(Privacy(1.0, 1e-6), recipe=Recipe(SharesSum, laplace=1))
    >>> [with_best_laplace(terms, levels).recipe.laplace for levels in (2, 12)]
    [1, 5]
    """
    if terms.recipe.laplace is None:
        return terms
    best = terms
    for shape in _LAPLACE_SHAPES:  # noise falls with the shape, and then it rises
        at = replace(terms, recipe=replace(terms.recipe, laplace=shape))
        if shape > 1 and unit_variance(at, levels) >= unit_variance(best, levels):
            break
        best = at
    return best


def _first_scale(split: Split, terms: Terms) -> float:
    """Where a search for the scale starts: the sum of 1 / (scale g) is that of equal levels."""
    return unit_variance(terms, len(split)) * math.fsum(1 / g for g in split)


def fewest_messages(terms: Terms, sizes: Floats, variances: Floats) -> Floats:
    """About how many messages a user sends, by level, in batches of these sizes.

    >>> terms = Terms(Privacy(1.0, 1e-6))
    >>> fewest_messages(terms, np.array([10.0, 100.0]), np.array([27.0, 55.0]))
    array([13.,  5.])
    """
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
    precision: float = _PRECISION

    @classmethod
    def of(cls, sizes: Sequence[int], split: Split, terms: Terms) -> _Calibration:
        return cls(sizes, split, steps_of(sizes, split, terms), terms)

    def certified(self) -> tuple[Mechanism, ...]:
        """Search, then certify."""
        terms = self.terms
        scale, coins = self.least()
        for step in range(_SAFETY_STEPS):
            mechanisms = self.draft(scale, coins).mechanisms()
            if spent_delta(levels_of(mechanisms, terms), terms.privacy) <= terms.privacy.delta:
                return mechanisms
            scale *= 1 + _SAFETY_STEP * 2**step
        raise errors.Infeasible(f"no certificate for {terms.privacy} near a variance of {scale:g}")

    def least(self) -> tuple[float, BitsOfLevels | None]:
        """The least scale for the guarantee, uncertified, and the coins that it goes with."""
        start = self.first_scale
        if self.terms.recipe.laplace is not None or self.terms.noise_by == "services":
            return self._scale(None, start=start), None
        if min(self._variances(start)) < _FEW:
            return self._few_coins()
        scale = start if self.is_wide else self._scale(None, start=start)
        # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
        coins = self._fewest_coins(scale)
        fixed = self._scale(coins, start=scale)
        return fixed if self.is_wide else min(scale, fixed), coins

    def limit(self, *, start: float) -> float:
        """The least scale, if coins cost nothing."""
        plenty = None
        if self.terms.recipe.laplace is None:
            plenty = [_PLENTY * bits for bits in self._fewest_coins(start)]
        return self._scale(plenty, start=start)

    def _few_coins(self) -> tuple[float, BitsOfLevels]:
        """The fewest coins with which noise is little more than with unlimited coins.

        Where noise is small, its range matters more than its variance: with just enough coins for
        the variance, many times as much variance may be needed.
        """
        limit = self.first_scale
        coins = self._fewest_coins(limit)
        if not self._is_enough(limit, coins):
            limit = self.limit(start=limit)
            coins = self._fewest_coins(limit)
        while not self._is_enough(limit, coins):
            shares = np.divide(self._variances(limit), np.multiply(self.sizes, coins))
            level = int(np.argmax(shares))
            coins[level] = 2 * math.ceil(max(coins[level] + 2, _MORE_COINS * coins[level]) / 2)
        return self._scale(coins, start=min(_USUALLY * limit, self._most(limit, coins))), coins

    def _is_enough(self, limit: float, coins: BitsOfLevels) -> bool:
        levels = self._levels(self._most(limit, coins), coins)
        return quick_delta(levels, self.terms.privacy) <= self.terms.privacy.delta

    def _most(self, limit: float, coins: BitsOfLevels) -> float:
        """The largest scale that this many coins can reach and may use: all of a level fair."""
        levels = zip(self.sizes, coins, self._variances(1.0), strict=True)
        fair = min(size * bits / (4 * unit) for size, bits, unit in levels)
        return min(_FEW_COINS_COST * limit, fair)

    @cached_property
    def first_scale(self) -> float:
        """About what scale it will be: that of equal levels, and what rounding adds to a change."""
        values, scale = self.terms.values, _first_scale(self.split, self.terms)
        if values.moves is not None:
            return scale
        slack = values.width * math.sqrt(values.dimension) / values.sensitivity
        rounded = math.fsum(
            (1 + slack / s) ** 2 / g for s, g in zip(self.steps, self.split, strict=True)
        )
        return scale * rounded / math.fsum(1 / g for g in self.split)

    @property
    def is_wide(self) -> bool:
        """Whether the noise of every level is almost Gaussian."""
        return min(self._variances(self.first_scale)) > _WIDE

    def _scale(self, coins: BitsOfLevels | None, *, start: float) -> float:
        return least_scale(
            lambda scale: self._levels(scale, coins),
            self.terms.privacy,
            start=start,
            precision=self.precision,
        )

    def _levels(self, scale: float, coins: BitsOfLevels | None) -> list[Level]:
        """The levels at this scale; what messages leak is what they may leak at most."""
        terms, leak = self.terms, 2 * self.terms.distance(len(self.sizes))
        levels = zip(self.sizes, self.noises(scale, coins), self.steps, strict=True)
        return [
            Level(
                noise.law(noise.hiders(terms.honest_users(size))),
                terms.reports,
                change_of(terms.values, steps),
                leak,
                terms.room(size),
            )
            for size, noise, steps in levels
        ]

    def noises(self, scale: float, coins: BitsOfLevels | None) -> list[NoisePart]:
        """What a maker adds at every level, with the coins given or needed."""
        bits: Sequence[int | None] = coins or [None] * len(self.sizes)
        levels = zip(self.sizes, self._variances(scale), bits, strict=True)
        return [self._noise(size, variance, of_level) for size, variance, of_level in levels]

    def _noise(self, size: int, variance: float, bits: int | None) -> NoisePart:
        laplace = self.terms.recipe.laplace
        if self.terms.noise_by == "services":
            each = variance / SERVICES
            if laplace is None:
                return ServiceNoise(Coins.with_variance(1, each))
            return ServiceNoise(Polya.with_variance(1, each, shape=laplace))
        if laplace is not None:
            honest = self.terms.honest_users(size)
            return Polya.with_variance(honest, variance * honest / size, shape=laplace)
        if bits is not None and 4 * variance > size * bits:
            bits = None  # the fixed coins are all fair already: more are needed
        return Coins.with_variance(size, max(variance, _LEAST_SHARE * size), bits=bits)

    def _variances(self, scale: float) -> list[float]:
        """Of the noise of batches, in steps."""
        return [scale * g * s**2 for g, s in zip(self.split, self.steps, strict=True)]

    def _fewest_coins(self, scale: float) -> list[int]:
        variances = self._variances(scale)
        return [int(fewest_coins(n, v)) for n, v in zip(self.sizes, variances, strict=True)]

    def draft(self, scale: float, coins: BitsOfLevels | None) -> Draft:
        """The levels at this scale."""
        return Draft(self.sizes, self.steps, self.noises(scale, coins), self.terms)
