"""From a tree and a guarantee to one mechanism for every batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.accounting import (
    MOST_REPORTS,
    Level,
    advanced_share,
    check_delta,
    gaussian_variance,
    least_scale,
    simple_share,
    spent_delta,
)
from overhand.mechanisms import CoinSum, fewest_coins
from overhand.model import Privacy
from overhand.trees import Tree
from overhand.values import BITS, Values

Composition = Literal["exact", "advanced", "simple"]
Mechanisms = tuple[tuple[CoinSum, ...], ...]

_SAFETY_STEP = 2e-4
_SAFETY_STEPS = 12
_ROUNDING_SHARE = 0.05  # of the noise's variance, at most, is what rounding adds
_NORM_SHARE = 0.06  # of the sensitivity is what rounding can add to a move in l2


@dataclass(frozen=True)
class Terms:
    """What a plan is made for: the values, the budget, and on whom it may count.

    Variances are in units of the squared width of a coordinate's interval, so that all kinds of
    values look like bits to a search for trees: a pending user can be missed by one half.
    `coarseness` allows rounding to add so many times more than it usually may.
    """

    privacy: Privacy
    honest: float = 1.0
    reports: int = 1
    composition: Composition = "exact"
    values: Values = BITS
    coarseness: float = 1.0

    def __post_init__(self) -> None:
        check_delta(self.privacy)
        errors.fraction("honest", self.honest)
        errors.whole("reports", self.reports, least=1, most=MOST_REPORTS)
        if self.composition not in ("exact", "advanced", "simple"):
            raise errors.InvalidValue(
                f"composition={self.composition!r} must be 'exact', 'advanced' or 'simple'"
            )

    @property
    def gaussian_variance(self) -> float:
        """What one level alone would need of Gaussian noise: where searches start."""
        moved = (self.values.sensitivity / self.values.width) ** 2
        return gaussian_variance(self.privacy) * moved * self.reports**2 / self.honest

    @property
    def rounding_share(self) -> float:
        """How much of the noise's variance rounding may add."""
        return 0.0 if self.values.is_whole else _ROUNDING_SHARE * self.coarseness

    @property
    def norm_share(self) -> float:
        """How much rounding may add to a change that is bounded in norm."""
        return 0.0 if self.values.moves else _NORM_SHARE * math.sqrt(self.coarseness)

    def steps(self, size: ArrayLike, variance: ArrayLike) -> NDArray[np.int64]:
        """So many steps that rounding stays within its shares, in batches of up to `size`."""
        if self.values.is_whole:
            return np.ones(np.shape(size), np.int64)
        steps = np.sqrt(np.divide(size, np.multiply(4 * self.rounding_share, variance)))
        if self.norm_share:
            width = self.values.width * math.sqrt(self.values.dimension)
            steps = np.maximum(steps, width / (self.values.sensitivity * self.norm_share))
        return np.maximum(1, np.ceil(steps)).astype(np.int64)

    def messages(
        self, size: ArrayLike, largest: ArrayLike, variance: ArrayLike
    ) -> NDArray[np.float64]:
        """Messages of a user in batches of `size`, the largest of their level given."""
        steps = self.steps(largest, variance)
        coins = fewest_coins(size, np.multiply(variance, steps**2))
        return np.asarray(self.values.dimension * (steps + coins), np.float64)

    def honest_users(self, size: int) -> int:
        """How many users of a batch surely add their noise: rounded against us."""
        users = math.floor(self.honest * size)
        if users < 1:
            raise errors.Infeasible(
                f"a batch of {size} users has no honest user if honest={self.honest:g}"
            )
        return users


def levels_of(mechanisms: Mechanisms, terms: Terms) -> list[Level]:
    """What one user takes part in, as the accountant sees it."""
    return [
        Level(
            tuple(m.noise(terms.honest_users(m.size)) for m in of_level),
            terms.reports,
            of_level[0].change,
        )
        for of_level in mechanisms
    ]


def calibrated(tree: Tree, shape: Sequence[float], terms: Terms) -> Mechanisms:
    """The least noise for the guarantee, the levels' variances in proportion to `shape`.

    Under simple and advanced composition every level gets the same share on its own, and
    `shape` is not used: that is what the paper's accounting comes to with exact mechanisms.
    """
    sizes = [tree.sizes(level) for level in range(1, tree.levels + 1)]
    if terms.composition == "exact":
        return _Calibration.of(sizes, shape, terms).certified()
    share = (simple_share if terms.composition == "simple" else advanced_share)(
        terms.privacy, tree.levels
    )
    alone = replace(terms, privacy=share, composition="exact")
    return tuple(_Calibration.of([of_level], [1.0], alone).certified()[0] for of_level in sizes)


def quick_scale(tree: Tree, shape: Sequence[float], terms: Terms) -> float:
    """The scale that `calibrated` comes to, about: to rank trees by.

    Whole values are calibrated as they will be, without a certificate. Rounded ones are taken for
    bits with as much more noise as their rounding may cost; vectors for the Gaussian limit.
    """
    sizes = [tree.sizes(level)[:1] for level in range(1, tree.levels + 1)]
    if terms.values.is_whole:
        return _Calibration.of(sizes, shape, terms).least_scale()
    if terms.values.moves == 1:
        as_bits = replace(terms, values=BITS)
        return _Calibration.of(sizes, shape, as_bits).least_scale() * (1 + terms.rounding_share)
    overhead = (1 + terms.norm_share) ** 2 * (1 + terms.rounding_share)
    return gaussian_scale(shape, terms) * overhead


def gaussian_scale(shape: Sequence[float], terms: Terms) -> float:
    """The scale in the Gaussian limit: where the sum of 1 / (scale g) is that of one level."""
    return terms.gaussian_variance * math.fsum(1 / g for g in shape)


@dataclass(frozen=True)
class _Calibration:
    """A search for the scale of the noise, over fixed sizes, shape and steps."""

    sizes: Sequence[tuple[int, ...]]
    shape: Sequence[float]
    steps: Sequence[int]
    terms: Terms

    @classmethod
    def of(
        cls, sizes: Sequence[tuple[int, ...]], shape: Sequence[float], terms: Terms
    ) -> _Calibration:
        scale = gaussian_scale(shape, terms)
        steps = [int(terms.steps(s[-1], scale * g)) for s, g in zip(sizes, shape, strict=True)]
        return cls(sizes, shape, steps, terms)

    def certified(self) -> Mechanisms:
        """Search with the smallest batch of every level, then certify with all of them."""
        terms = self.terms
        small = replace(self, sizes=[of_level[:1] for of_level in self.sizes])
        scale = small.least_scale()
        coins = [[m.noise_bits for m in of_level] for of_level in self.mechanisms(scale, None)]
        # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
        first_coins = [of_level[:1] for of_level in coins]
        scale = min(scale, small.least_scale(first_coins, start=scale))
        for step in range(_SAFETY_STEPS):
            mechanisms = self.mechanisms(scale, coins)
            if spent_delta(levels_of(mechanisms, terms), terms.privacy) <= terms.privacy.delta:
                return mechanisms
            scale *= 1 + _SAFETY_STEP * 2**step
        raise errors.Infeasible(f"no certificate for {terms.privacy} near variance {scale:g}")

    def least_scale(
        self, coins: Sequence[Sequence[int]] | None = None, *, start: float | None = None
    ) -> float:
        """The least scale for the guarantee, uncertified."""

        def levels_at(scale: float) -> list[Level]:
            return levels_of(self.mechanisms(scale, coins), self.terms)

        if start is None:
            start = gaussian_scale(self.shape, self.terms) * (1 + self.terms.norm_share) ** 2
        return least_scale(levels_at, self.terms.privacy, start=start)

    def mechanisms(self, scale: float, coins: Sequence[Sequence[int]] | None) -> Mechanisms:
        """Noise of variance `scale * shape` for every size, with the coins given or needed."""
        result: list[tuple[CoinSum, ...]] = []
        for level, (of_level, g, steps) in enumerate(
            zip(self.sizes, self.shape, self.steps, strict=True)
        ):
            row: list[CoinSum] = []
            variance = scale * g * steps**2
            for index, size in enumerate(of_level):
                most = None if coins is None else coins[level][index]
                if most is not None and 4 * variance > size * most:
                    most = None  # the fixed coins are all fair already: more are needed
                row.append(
                    CoinSum.with_variance(
                        size, variance, noise_bits=most, values=self.terms.values, steps=steps
                    )
                )
            result.append(tuple(row))
        return tuple(result)
