"""What a plan is made for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.accounting import gaussian_variance
from overhand.accounting.composition import MOST_REPORTS, check_delta
from overhand.model import Privacy
from overhand.plan.objective import SQUARED_ERROR, Objective
from overhand.plan.recipe import UNARY, Recipe
from overhand.values import BITS, Values

Composition = Literal["exact", "advanced", "simple"]
"""How the costs of a user's levels are added up: "simple" is the paper's, "exact" spends least."""

_LEAK_SHARE = 0.01  # of delta is what all shares may leak


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
    recipe: Recipe = UNARY
    coarseness: float = 1.0
    objective: Objective = SQUARED_ERROR

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
        return 0.0 if self.values.is_whole else self.recipe.rounding * self.coarseness

    @property
    def norm_share(self) -> float:
        """How much rounding may add to a change that is bounded in norm."""
        return 0.0 if self.values.moves else self.recipe.norm * math.sqrt(self.coarseness)

    def steps(self, size: ArrayLike, variance: ArrayLike) -> NDArray[np.int64]:
        """So many steps that rounding stays within its shares, in batches of up to `size`."""
        if self.values.is_whole:
            return np.ones(np.shape(size), np.int64)
        steps = np.sqrt(np.divide(size, np.multiply(4 * self.rounding_share, variance)))
        if self.norm_share:
            width = self.values.width * math.sqrt(self.values.dimension)
            steps = np.maximum(steps, width / (self.values.sensitivity * self.norm_share))
        return np.maximum(1, np.ceil(steps)).astype(np.int64)

    def honest_users(self, size: int) -> int:
        """How many users of a batch surely add their noise: rounded against us."""
        users = math.floor(self.honest * size)
        if users < 1:
            raise errors.Infeasible(
                f"a batch of {size} users has no honest user if honest={self.honest:g}"
            )
        return users

    def distance(self, levels: int) -> float:
        """How far one count may be from showing its sum alone, and how likely not to fit.

        All that is shown to differ, on all levels, takes a small share of delta together.
        """
        if not self.recipe.shares:
            return 0.0
        moved = self.values.moves or self.values.dimension
        counts = 2 * levels * self.reports * moved
        return _LEAK_SHARE * self.privacy.delta / ((1 + math.exp(self.privacy.epsilon)) * counts)
