"""What is asked of a plan, and what its noise must suffice for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.accounting import MOST_REPORTS, check_delta, gaussian_variance
from overhand.mechanisms import MECHANISMS, SERVICES, CoinSum, Mechanism, NoisePart, Recipe
from overhand.model import Counts, NoiseBy, Privacy
from overhand.plan.objective import SQUARED_ERROR, Objective
from overhand.values import BITS, Values

Composition = Literal["exact", "advanced", "simple"]
"""How the costs of a user's levels are added up: "simple" is the paper's, "exact" spends least."""
TreeKind = Literal["regular", "paper", "binary"]
"""Which degrees a tree may have: the best ones, those of Section 3.2, or 2 at log n - 1 levels."""
TREE_KINDS: tuple[TreeKind, ...] = ("regular", "paper", "binary")
"""All of them."""
MECHANISM_KINDS = (*MECHANISMS, "best")
"""How values may be sent.

"best" is the one with the least error in the shuffle model or, if the services make the noise, the
cheapest one: there the error is the same.
"""
NOISE_MAKERS: tuple[NoiseBy, ...] = ("users", "services")
"""Who may make the noise."""
MOST_EPSILON = 100.0
"""Above it a guarantee hides nothing: e^100 has 44 digits."""
_LEAST_EPSILON = 1e-5

_GONE = {
    "path": "path trees had 2 to 5 % less error but could not be deployed, because a client would "
    "have to know its batch",
    "best": "all trees are regular now",
}
_LEAK_SHARE = 0.01  # of delta is what all messages may leak
_WIDEST = 1e5  # standard deviation, beyond which the noise for many reports would fill memory
_MOST_NORM_SHARE, _FINE_REPORTS = 0.06, 12
_MOST_BALLOT_BUCKETS = 10  # with more, dummies for all of them cost more than pairs


def checked_tree(kind: str) -> TreeKind:
    """The kind of tree of this name, or `InvalidValue`.

    >>> checked_tree("path")
    Traceback (most recent call last):
    overhand.errors.InvalidValue: tree='path' must be one of regular, paper, binary: path trees ...
    """
    for known in TREE_KINDS:
        if kind == known:
            return known
    reason = f": {_GONE[kind]}" if kind in _GONE else ""
    raise errors.InvalidValue(f"tree={kind!r} must be one of {', '.join(TREE_KINDS)}{reason}")


def check_epsilon(privacy: Privacy) -> None:
    """Refuse an epsilon at which nothing is hidden, or nothing can be learned.

    >>> check_epsilon(Privacy(500.0, 1e-6))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: epsilon=500 is above 100: it would hide nothing
    """
    if privacy.epsilon > MOST_EPSILON:
        raise errors.InvalidValue(
            f"epsilon={privacy.epsilon:g} is above {MOST_EPSILON:g}: it would hide nothing"
        )
    if privacy.epsilon < _LEAST_EPSILON:
        raise errors.InvalidValue(
            f"epsilon={privacy.epsilon:g} is below {_LEAST_EPSILON:g}: nothing could be learned"
        )


def _check_kinds(privacy: object, values: object) -> None:
    """Refuse words and pairs of numbers in place of objects."""
    if not isinstance(privacy, Privacy):
        raise errors.InvalidValue(
            f"privacy={privacy!r} must be a Privacy, such as Privacy(1.0, 1e-6)"
        )
    check_epsilon(privacy)
    if not isinstance(values, Values):
        raise errors.InvalidValue(
            f"values={values!r} must be a kind of value, such as Bits() or Reals(0, 50)"
        )


@dataclass(frozen=True)
class Terms:
    """What noise must suffice for: the guarantee, the values, and whom it may count on.

    Variances are in units of the squared width of a coordinate's interval, so that all kinds of
    values look like bits to a search for trees: a pending user can be missed by one half.
    `coarseness` allows rounding to add this many times more than it usually may.

    >>> Terms(Privacy(1.0, 1e-6), honest=0.5).honest_users(9)  # rounded against us
    4
    """

    privacy: Privacy
    honest: float = 1.0
    reports: int = 1
    composition: Composition = "exact"
    values: Values = BITS
    recipe: Recipe = Recipe(CoinSum)
    coarseness: float = 1.0
    objective: Objective = SQUARED_ERROR
    noise_by: NoiseBy = "users"

    def __post_init__(self) -> None:
        _check_kinds(self.privacy, self.values)
        check_delta(self.privacy)
        errors.one_of("noise", self.noise_by, NOISE_MAKERS)
        errors.fraction("honest", self.honest)
        if self.noise_by == "services" and self.honest != 1:
            raise errors.InvalidValue(
                f"honest={self.honest:g} has no meaning if the services make the noise: the "
                "guarantee depends on no other user"
            )
        errors.whole("reports", self.reports, least=1, most=MOST_REPORTS)
        width = self.reports * math.sqrt(gaussian_variance(self.privacy))
        if self.reports > 1 and width > _WIDEST:
            raise errors.Infeasible(
                f"reports={self.reports} at {self.privacy} need noise with a standard deviation of "
                f"about {width:,.0f} users: its distribution is tabulated up to {_WIDEST:,.0f}"
            )
        errors.one_of("composition", self.composition, get_args(Composition))

    @property
    def gaussian_variance(self) -> float:
        """What one level alone would need of Gaussian noise: where searches start."""
        moved = (self.values.sensitivity / self.values.width) ** 2
        return gaussian_variance(self.privacy) * moved * self.reports**2 / self.hiding_share

    @property
    def hiding_share(self) -> float:
        """The part of the noise that hides a user: that of honest users, or of one service."""
        return self.honest if self.noise_by == "users" else 1 / SERVICES

    @property
    def norm_share(self) -> float:
        """How much rounding may add to a change that is bounded in norm."""
        share = self.recipe.mechanism.norm_share * math.sqrt(self.coarseness)
        # The noise for many reports is many times as wide: its law must still fit into memory.
        coarser = min(_MOST_NORM_SHARE, share * self.reports / _FINE_REPORTS)
        return 0.0 if self.values.moves else max(share, coarser)

    def steps(self, size: ArrayLike, variance: ArrayLike) -> Counts:
        """Enough steps for rounding to stay within its shares, in batches of `size`."""
        if self.values.is_whole:
            return np.ones(np.shape(size), np.int64)
        share = self.recipe.mechanism.rounding_share * self.coarseness
        rounding = np.multiply(self.values.rounding, size)
        steps = np.sqrt(np.divide(rounding, np.multiply(share, variance)))
        if self.norm_share:
            width = self.values.width * math.sqrt(self.values.dimension)
            steps = np.maximum(steps, width / (self.values.sensitivity * self.norm_share))
        return np.maximum(1, np.ceil(steps)).astype(np.int64)

    def honest_users(self, size: int) -> int:
        """The least number of honest users in a batch, rounded against us."""
        users = math.floor(self.honest * size)
        if users < 1:
            raise errors.Infeasible(
                f"a batch of {size} users has no honest user if honest={self.honest:g}"
            )
        return users

    def room(self, size: int) -> int | None:
        """How many reports of one person a batch of `size` users can hold at most.

        The services' noise is for shuffling services that lie, also about who is in a batch.
        """
        return size if self.noise_by == "users" else None

    def distance(self, levels: int) -> float:
        """How far one count may be from showing its sum alone, and how likely not to fit.

        All that is shown to differ, on all levels, takes a small share of delta together.
        """
        if not self.recipe.mechanism.leaks:
            return 0.0
        counts = 2 * levels * self.reports * self.values.touches
        return _LEAK_SHARE * self.privacy.delta / ((1 + math.exp(self.privacy.epsilon)) * counts)

    def fitted(self, size: int, noise: NoisePart, *, levels: int, steps: int) -> Mechanism:
        """The fewest messages for this noise at one of so many levels."""
        return self.recipe.mechanism.fitted(
            size,
            noise,
            honest=self.honest_users(size),
            distance=self.distance(levels),
            values=self.values,
            steps=steps,
        )


def kinds_of(values: Values, noise_by: NoiseBy) -> list[str]:
    """The mechanisms that can send these values, given who makes the noise.

    >>> from overhand.values import Histogram, Vectors
    >>> [kinds_of(values, "services") for values in (Histogram(5), Vectors(3))]
    [['pairs', 'ballots'], ['pairs']]
    """
    return [
        kind
        for kind, mechanism in MECHANISMS.items()
        if noise_by in mechanism.noise_makers and mechanism.recipes(values)
    ]


@dataclass(frozen=True)
class Request:
    """Everything that `Plan.best` was asked for."""

    horizon: int
    shufflers: int
    terms: Terms
    tree: TreeKind = "regular"
    mechanism: str | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=2)
        errors.whole("shufflers", self.shufflers, least=1)
        if self.max_messages is not None:
            errors.whole("max_messages", self.max_messages, least=1)
        checked_tree(self.tree)
        if self.mechanism is not None:  # MECHANISMS are those that are registered now
            errors.one_of("mechanism", self.mechanism, (*MECHANISMS, "best"))
        possible = kinds_of(self.terms.values, self.terms.noise_by)
        for kind in self.kinds:
            if kind not in possible:
                raise errors.InvalidValue(
                    f"mechanism={kind!r} cannot send {self.terms.values} with noise made by "
                    f"{self.terms.noise_by}: use one of {', '.join(possible)}"
                )

    @property
    def kinds(self) -> list[str]:
        """The mechanisms that may be chosen from."""
        values = self.terms.values
        if self.terms.noise_by == "services" and self.mechanism in (None, "best"):
            is_short = values.is_whole and values.dimension <= _MOST_BALLOT_BUCKETS
            return ["ballots" if is_short else "pairs"]
        if self.mechanism != "best":
            return [self.mechanism or CoinSum.kind]
        return [kind for kind in kinds_of(values, "users") if MECHANISMS[kind].is_shuffle_model]

    @property
    def recipes(self) -> list[Recipe]:
        """The ways to send the values that may be chosen from."""
        values, by = self.terms.values, self.terms.noise_by
        found = [recipe for kind in self.kinds for recipe in MECHANISMS[kind].recipes(values)]
        # A service draws Laplace noise as easily as coins, and needs less of it.
        is_laplace = by == "services" and values.moves is not None
        return [recipe for recipe in found if recipe.laplace is not None or not is_laplace]
