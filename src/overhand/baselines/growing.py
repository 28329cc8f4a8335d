"""One shuffler whose batches grow: as few noise terms as there are doublings of the users."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overhand import errors
from overhand.accounting import spent_delta
from overhand.mechanisms import Mechanism, Recipe
from overhand.model import Privacy
from overhand.plan import (
    DEFAULT_FAILURE_PROBABILITY,
    Terms,
    calibrated,
    chernoff_bound,
    levels_of,
)
from overhand.values import Values


@dataclass(frozen=True)
class GrowingBatches:
    """Batches of one shuffler, each `ratio` times as large as the one before.

    A user is in one batch, so no budget is split, and only about log(horizon) batches are ever
    added up: hard to beat as long as users are all alike. A user who brings something new waits for
    a batch that lasts a good part of the whole stream.

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.values import BITS
    >>> batches = GrowingBatches.best(10_000, Privacy(1.0, 1e-6), BITS, recipe=Recipe(CoinSum))
    >>> batches.sizes, batches.delta_spent <= 1e-6
    ((100, 150, 225, 338, 506, 759, 1139, 1709, 2563), True)
    """

    horizon: int
    privacy: Privacy
    sizes: tuple[int, ...]
    mechanisms: tuple[Mechanism, ...]

    @classmethod
    def best(
        cls,
        horizon: int,
        privacy: Privacy,
        values: Values,
        *,
        first: int = 100,
        ratio: float = 1.5,
        recipe: Recipe,
    ) -> GrowingBatches:
        """The least noise for the guarantee in every batch."""
        horizon = errors.whole("horizon", horizon, least=2)
        first = min(horizon, errors.whole("first", first, least=2))
        errors.number("ratio", ratio, above=1)
        sizes, left, size = [], horizon, float(first)
        while left >= round(size):
            sizes.append(round(size))
            left -= sizes[-1]
            size *= ratio
        terms = Terms(privacy, values=values, recipe=recipe)
        mechanisms = [calibrated([size], [1.0], terms)[0] for size in sizes]
        return cls(horizon, privacy, tuple(sizes), tuple(mechanisms))

    @property
    def values(self) -> Values:
        return self.mechanisms[0].values

    @property
    def delta_spent(self) -> float:
        """What a batch costs its users: each is in one of them only."""
        terms = Terms(self.privacy)
        return max(spent_delta(levels_of([m], terms), self.privacy) for m in self.mechanisms)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """On all entries of all sums at once, pending users at an end of their interval."""
        chance = errors.number("failure_probability", failure_probability, above=0, below=1)
        noise = chernoff_bound(
            lambda s: sum(m.growth(s) for m in self.mechanisms),
            variance=sum(m.variance for m in self.mechanisms),
            largest=min(m.noise().most_growth / m.unit for m in self.mechanisms),
            events=math.log(2 * len(self.sizes) * self.values.dimension / chance),
        )
        pending = max(max(self.sizes) - 1, self.horizon - sum(self.sizes))
        return noise + self.values.width / 2 * pending
