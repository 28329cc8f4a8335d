"""What is asked of a plan: the guarantee, the values, whom it counts on, and what it minimises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.accounting import MOST_REPORTS, Level, check_delta, gaussian_variance
from overhand.mechanisms import MECHANISMS, CoinSum, Mechanism, NoiseChoice
from overhand.model import Counts, Floats, NoiseBy, Privacy
from overhand.noise import NoiseShare
from overhand.values import BITS, Quantizer, Values

Composition = Literal["exact", "advanced", "simple"]
"""How the costs of a user's levels are added up: "simple" is the paper's, "exact" spends least."""
TreeKind = Literal["regular", "paper", "binary"]
"""Which degrees a tree may have: the best ones, those of Section 3.2, or 2 at log n - 1 levels."""
TREE_KINDS: tuple[TreeKind, ...] = ("regular", "paper", "binary")
"""All of them."""
MECHANISM_KINDS = (*MECHANISMS, "best", "services")
"""How values may be sent.

"best" is the one with the least error in the shuffle model, where users make the noise. "services"
is the cheaper one of those that need two services: ballots, or pairs.
"""
DEFAULT_SHUFFLERS = 5
"""How many shufflers a plan may use unless it is told otherwise."""
DEFAULT_DELTA = 1e-6
"""The delta of a guarantee that names only its epsilon."""
MOST_EPSILON = 100.0
"""Above it a guarantee hides nothing: e^100 has 44 digits."""
_LEAST_EPSILON = 1e-5

_MIDPOINT = 0.5
_LEAK_SHARE = 0.01  # of delta is what all messages may leak
_WIDEST = 1e5  # standard deviation, beyond which the noise for many reports would fill memory
_MOST_NORM_SHARE, _FINE_REPORTS = 0.06, 12
_COARSENESSES = tuple(2.0**power for power in range(14))
"""How much rounding may add, in multiples of the usual, where messages are limited."""
_MOST_BALLOT_BUCKETS = 10  # with more, dummies for all of them cost more than pairs


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


@dataclass(frozen=True)
class Objective:
    """A cost of noise and of pending users: the mean squared error of a running sum.

    Pending users are taken to be at the middle of their interval, and all at one end, so each is
    off by half its width. An objective that counts those who wait twice has smaller batches:

    >>> from overhand.model import Privacy
    >>> from overhand.planning import Plan
    >>> class Impatient(Objective):
    ...     def cost(self, noise, pending):
    ...         return noise + pending**2
    >>> for objective in (SQUARED_ERROR, Impatient()):
    ...     plan = Plan.best(10_000, 1, Privacy(1.0, 1e-6), objective=objective)
    ...     print(plan.tree.lowest)
    77
    48
    """

    def cost(self, noise: Floats, pending: Floats) -> Floats:
        """To be minimised: `noise` is a variance, in squared widths of a coordinate.

        `pending` is the root mean square of the number of pending users.
        """
        return np.asarray(noise + (_MIDPOINT * pending) ** 2)

    def largest_lowest(self, variance: float, horizon: int) -> float:
        """The largest lowest batch that can pay in any tree, if one level needs this variance.

        One level has a cost of v n / (2 b) + b^2 / 12, least at b^3 = 3 v n.
        """
        return 2 * math.cbrt(3 * variance * horizon)


@dataclass(frozen=True)
class Delay(Objective):
    """What noise and waiting cost a learner that uses the sums, in users.

    Noise of one width is as bad as `users_per_width` more users who are served by an old policy.
    Squared, so that it is measured as errors of sums are.

    A learner waits longer for a batch than a counter does, and has less noise for it:

    >>> from overhand.model import Privacy
    >>> from overhand.planning import Plan
    >>> for objective in (SQUARED_ERROR, Delay(users_per_width=10.0)):
    ...     plan = Plan.best(10_000, 1, Privacy(1.0, 1e-6), objective=objective)
    ...     print(plan.tree.lowest, round(plan.worst_std, 1))
    77 46.3
    180 28.8
    """

    users_per_width: float

    def cost(self, noise: Floats, pending: Floats) -> Floats:
        return np.asarray((self.users_per_width * np.sqrt(noise) + pending) ** 2)

    def largest_lowest(self, variance: float, horizon: int) -> float:
        """One level costs c sqrt(v n / (2 b)) + b / sqrt(3), least at b^3 = 3 c^2 v n / 8."""
        return 2 * math.cbrt(3 / 8 * self.users_per_width**2 * variance * horizon)


SQUARED_ERROR = Objective()
"""The default objective by which plans are chosen."""


@dataclass(frozen=True)
class Requirements:
    """What noise must suffice for: the guarantee, the values, and whom it may count on.

    Variances are in units of the squared width of a coordinate's interval, so that all kinds of
    values look like bits to a search for trees: a pending user can be missed by one half.
    `noise_choice` is what was chosen so far; `coarseness` allows rounding to add this many times
    more than it usually may. From `horizon` on, the fields are for the search for a tree.

    >>> Requirements(Privacy(1.0, 1e-6), honest=0.5).honest_users(9)  # rounded against us
    4
    """

    privacy: Privacy
    honest: float = 1.0
    reports: int = 1
    composition: Composition = "exact"
    values: Values = BITS
    noise_choice: NoiseChoice = NoiseChoice(CoinSum)
    coarseness: float = 1.0
    objective: Objective = SQUARED_ERROR
    horizon: int = 2
    shufflers: int = 1
    tree: TreeKind = "regular"
    mechanism: str | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.privacy, Privacy):
            raise errors.InvalidValue(
                f"privacy={self.privacy!r} must be a Privacy, such as Privacy(1.0, 1e-6)"
            )
        check_epsilon(self.privacy)
        check_delta(self.privacy)
        if not isinstance(self.values, Values):
            raise errors.InvalidValue(
                f"values={self.values!r} must be a kind of value, such as Bits() or Reals(0, 50)"
            )
        errors.whole("horizon", self.horizon, least=2)
        errors.whole("shufflers", self.shufflers, least=1)
        if self.max_messages is not None:
            errors.whole("max_messages", self.max_messages, least=1)
        errors.one_of("tree", self.tree, TREE_KINDS)
        if self.mechanism is not None:  # MECHANISMS are those that are registered now
            errors.one_of("mechanism", self.mechanism, (*MECHANISMS, "best", "services"))
        errors.one_of("composition", self.composition, get_args(Composition))
        errors.fraction("honest", self.honest)
        errors.whole("reports", self.reports, least=1, most=MOST_REPORTS)
        if self.noise_by == "services":
            self._check_services()
            return
        width = self.reports * math.sqrt(gaussian_variance(self.privacy))
        if self.reports > 1 and width > _WIDEST:
            raise errors.Infeasible(
                f"reports={self.reports} at {self.privacy} need noise with a standard deviation of "
                f"about {width:,.0f} users: its distribution is tabulated up to {_WIDEST:,.0f}"
            )

    def _check_services(self) -> None:
        """Refuse what has a meaning only in a tree to which every user adds noise."""
        if self.honest != 1:
            raise errors.InvalidValue(
                f"honest={self.honest:g} has no meaning for mechanism={self.mechanism!r}: the "
                "services make the noise, and the guarantee depends on no other user"
            )
        for name, given, only in (
            ("tree", self.tree, "regular"),
            ("composition", self.composition, "exact"),
        ):
            if given != only:
                raise errors.InvalidValue(
                    f"{name}={given!r} has no meaning for mechanism={self.mechanism!r}, which has "
                    "one level of blocks"
                )

    @property
    def noise_by(self) -> NoiseBy:
        """Who makes the noise: the mechanism says so."""
        if self.mechanism == "services":
            return "services"
        return MECHANISMS[self.mechanism].noise_by if self.mechanism in MECHANISMS else "users"

    def choices(self) -> Iterator[Requirements]:
        """All ways in which the values may be sent, or `InvalidValue` if there is none.

        >>> asked = Requirements(Privacy(1.0, 1e-6), mechanism="best")
        >>> found = [one.noise_choice for one in asked.choices()]
        >>> [(choice.mechanism.kind, choice.laplace) for choice in found]
        [('coins', None), ('shares', None), ('shares', 1)]
        """
        values = self.values
        kinds = [self.mechanism or CoinSum.kind]
        if self.mechanism == "services":
            is_short = values.is_whole and values.dimension <= _MOST_BALLOT_BUCKETS
            kinds = ["ballots" if is_short else "pairs"]
        elif self.mechanism == "best":
            kinds = kinds_of(values, "users")
        for kind in kinds:
            mechanism = MECHANISMS[kind]
            choices = mechanism.noise_choices(values)
            if not choices:
                raise errors.InvalidValue(
                    f"mechanism={kind!r} cannot send {values}: use one of "
                    f"{', '.join([*kinds_of(values, 'users'), *kinds_of(values, 'services')])}"
                )
            # Coins are as many as steps are: coarser values have fewer messages.
            is_limited = self.max_messages is not None and not mechanism.has_view_distance
            is_limited = is_limited and mechanism.noise_by == "users"
            factors = _COARSENESSES if is_limited and not values.is_whole else (1.0,)
            for choice, factor in product(choices, factors):
                yield replace(self, noise_choice=choice, coarseness=factor)

    @property
    def gaussian_variance(self) -> float:
        """What one level alone would need of Gaussian noise: where searches start."""
        moved = (self.values.sensitivity.norm / self.values.width) ** 2
        return gaussian_variance(self.privacy) * moved * self.reports**2 / self.honest

    @property
    def norm_share(self) -> float:
        """How much rounding may add to a change that is bounded in norm."""
        share = self.noise_choice.mechanism.norm_share * math.sqrt(self.coarseness)
        # The noise for many reports is many times as wide: its law must still fit into memory.
        coarser = min(_MOST_NORM_SHARE, share * self.reports / _FINE_REPORTS)
        return 0.0 if self.values.sensitivity.l2 is None else max(share, coarser)

    def steps(self, size: ArrayLike, variance: ArrayLike) -> Counts:
        """Enough steps for rounding to stay within its shares, in batches of `size`."""
        if self.values.is_whole:
            return np.ones(np.shape(size), np.int64)
        share = self.noise_choice.mechanism.rounding_share * self.coarseness
        rounding = np.multiply(self.values.rounding, size)
        steps = np.sqrt(np.divide(rounding, np.multiply(share, variance)))
        if self.norm_share:
            width = self.values.width * math.sqrt(self.values.dimension)
            steps = np.maximum(steps, width / (self.values.sensitivity.norm * self.norm_share))
        return np.maximum(1, np.ceil(steps)).astype(np.int64)

    def honest_users(self, size: int) -> int:
        """The least number of honest users in a batch, rounded against us."""
        users = math.floor(self.honest * size)
        if users < 1:
            raise errors.Infeasible(
                f"a batch of {size} users has no honest user if honest={self.honest:g}"
            )
        return users

    def level(self, size: int, noise: NoiseShare, quantizer: Quantizer, distance: float) -> Level:
        """One batch of a user, as the accountant sees it."""
        law = noise.law(self.honest_users(size))
        return Level(law, self.reports, quantizer.sensitivity, distance, size)

    def distance(self, levels: int) -> float:
        """How far one count may be from showing its sum alone, and how likely not to fit.

        All that is shown to differ, on all levels, takes a small share of delta together.
        """
        if not self.noise_choice.mechanism.has_view_distance:
            return 0.0
        counts = 2 * levels * self.reports * self.values.sensitivity.counts
        return _LEAK_SHARE * self.privacy.delta / ((1 + math.exp(self.privacy.epsilon)) * counts)

    def fewest_messages(self, sizes: Floats, variances: Floats) -> Floats:
        """About how many messages a user sends, by level, in batches of these sizes."""
        steps, mechanism = self.steps(sizes, variances), self.noise_choice.mechanism
        distance, in_steps = self.distance(sizes.shape[-1]), variances * steps**2
        return mechanism.fewest_messages(
            self.values, steps, sizes, in_steps, honest=self.honest, distance=distance
        )

    def fit(self, size: int, noise: NoiseShare, *, levels: int, steps: int) -> Mechanism:
        """The fewest messages for this noise at one of so many levels."""
        return self.noise_choice.mechanism.with_noise(
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
        if mechanism.noise_by == noise_by and mechanism.noise_choices(values)
    ]
