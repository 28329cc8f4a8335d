"""The distinguishing game: runs on two neighbouring inputs, an event, and what it shows.

Bounds hold at every number of runs; what to expect of them is computed from the law of the noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import fftconvolve
from scipy.special import betaincinv, chdtri, ndtr, ndtri

from overhand import errors
from overhand.accounting import shifted_pair
from overhand.lab.audit.cases import LEAST_RUNS, moves
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Privacy
from overhand.randomness import Random

FAILURE_RATE = 1e-3
"""The probability that any bound of a report is too large."""

_INPUTS = 2
_CHOOSING = 4  # one run in this many is for choosing the event
_MESSAGES_AT_ONCE = 1 << 21
_MOST_EVENTS = 1000  # of a statistic, to choose from
_MOST_LOSS = 12.0
_STEPS = 3000
_HALVINGS = 10
_MOST_EXPECTED = 300  # events among which the best is sought, by the law of the noise
_WIDEST, _CELLS = 9.0, 20_000  # of a Gaussian law on a grid


def least_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """Clopper and Pearson's bound: above the true probability at most this often."""
    x = np.asarray(successes, np.float64)
    bound = betaincinv(np.maximum(x, 1e-300), trials - x + 1, rate)
    return np.where(x <= 0, 0.0, bound)


def most_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """The other side: below the true probability at most this often."""
    return 1 - least_probability(trials - np.asarray(successes), trials, rate)


def epsilon_bound(
    likely: ArrayLike, rare: ArrayLike, trials: int, *, delta: float, rate: float
) -> Any:
    """The epsilon that an event shows, wrong (too large) with probability at most `rate`.

    It happened `likely` times in `trials` runs on one input and `rare` times in as many on the
    other: P[E] <= e^epsilon Q[E] + delta leaves no smaller epsilon.
    """
    above = least_probability(likely, trials, rate / 2) - delta
    below = most_probability(rare, trials, rate / 2)
    return np.maximum(0.0, np.log(np.maximum(above, 1e-300) / below))


def mu_bound(likely: ArrayLike, rare: ArrayLike, trials: int, *, slack: float, rate: float) -> Any:
    """The mu that an event shows, as `epsilon_bound` does: Phi^-1(P[E] - slack) - Phi^-1(Q[E]).

    What is mu-GDP except with probability `slack` leaves no smaller one.
    """
    above = least_probability(likely, trials, rate / 2) - slack
    below = most_probability(rare, trials, rate / 2)
    return np.maximum(0.0, ndtri(np.maximum(above, 1e-300)) - ndtri(below))


def expected_mu(mu: float, runs: int, *, slack: float, rate: float) -> float:
    """About the bound that this many runs reach if noise is Gaussian: the event in the middle."""
    often, seldom = np.floor(runs * ndtr(mu / 2)), np.ceil(runs * ndtr(-mu / 2))
    return float(mu_bound(often, np.minimum(seldom, runs), runs, slack=slack, rate=rate))


@dataclass(frozen=True)
class LossLaw:
    """The log-likelihood ratio of all levels together, on a grid: its law on both inputs.

    It is computed from the exact law of the noise: there is no sampling here.
    """

    one: Floats
    zero: Floats

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism]) -> LossLaw:
        both = np.ones((2, 1))
        for mechanism in mechanisms:
            for steps in moves(mechanism).values():
                both = fftconvolve(both, _laws_on_grid(loss_of(mechanism, steps)), axes=1)
        return cls(*np.maximum(both, 0.0))

    @classmethod
    def gaussian(cls, mu: float) -> LossLaw:
        """That of a statistic which is N(mu, 1), or N(0, 1) without the victim's 1."""
        edges = np.linspace(-_WIDEST, mu + _WIDEST, _CELLS + 1)
        return cls(np.diff(ndtr(edges - mu)), np.diff(ndtr(edges)))

    def expected_bound(self, runs: int, *, delta: float, rate: float) -> float:
        """About the bound that this many runs reach, with the best event there is."""
        up = [np.cumsum(law[::-1])[::-1] for law in (self.one, self.zero)]
        down = [np.cumsum(law) for law in (self.zero, self.one)]
        bounds = []
        for likely, rare in (up, down):
            worth = np.flatnonzero((likely > delta) & (likely < 1))
            at = worth[:: 1 + len(worth) // _MOST_EXPECTED]
            often, seldom = np.floor(runs * likely[at]), np.ceil(runs * rare[at])
            bound = epsilon_bound(often, np.minimum(seldom, runs), runs, delta=delta, rate=rate)
            bounds.append(float(np.max(bound, initial=0.0)))
        return max(bounds)


@dataclass(frozen=True)
class Loss:
    """The log-likelihood ratio of one count, by outcome from `first` on, and both of its laws."""

    first: int
    losses: Floats
    one: Floats
    zero: Floats


def loss_of(mechanism: Mechanism, steps: int) -> Loss:
    """If the victim's 1 moves it by so many steps."""
    law = mechanism.honest_noise()
    moved, still = shifted_pair(law, abs(steps))
    if steps < 0:
        moved, still = still, moved
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(moved) - np.log(still)
    losses[np.isnan(losses)] = 0.0  # an outcome that never happens shows nothing
    return Loss(law.pmf.first + min(0, steps), losses, moved, still)


def _laws_on_grid(loss: Loss) -> Floats:
    """With the victim's 1, and without."""
    at = np.rint(np.clip(loss.losses / _MOST_LOSS, -1, 1) * _STEPS).astype(int) + _STEPS
    return np.stack([np.bincount(at, law, 2 * _STEPS + 1) for law in (loss.one, loss.zero)])


def find_noticed_part(game: Game, claim: Claim, *, runs: int, rate: float) -> float | None:
    """The part of its variance down to which noise may be reduced without being noticed, about.

    By what it shows, or, where that is sooner, by its variance. None if no law says what to expect.
    """
    if not game.mechanisms and game.expected_mu is None:
        return None

    def is_noticed(part: float) -> bool:
        if game.expected_mu is not None and claim.mu is not None:
            mu = game.expected_mu / part**0.5
            return expected_mu(mu, runs, slack=claim.slack, rate=rate) > claim.mu
        law = LossLaw.of([mechanism.reduce(part) for mechanism in game.mechanisms])
        bound = law.expected_bound(runs, delta=claim.privacy.delta, rate=rate)
        return bound > claim.privacy.epsilon

    degrees = _INPUTS * (runs - 1)
    by_variance = float(chdtri(degrees, 1 - rate / 2)) / degrees if game.spreads else 0.0
    low, high = by_variance, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_noticed(middle) else (low, middle)
    return low


class Game(ABC):
    """Runs on two neighbouring inputs, and what an attacker makes of each."""

    names: list[str]
    """Of the statistics."""

    @property
    def claim(self) -> Claim | None:
        """Of what it looks at, if that is not the guarantee."""
        return None

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Whose noise tells what to expect; none where no law of it does."""
        return ()

    @property
    def expected_mu(self) -> float | None:
        """What the law of Gaussian noise lets the best statistic show."""
        return None

    @property
    def spreads(self) -> dict[str, float]:
        """The variances that some statistics have by the plan, if they are Gaussian."""
        return {}

    @property
    def levels(self) -> int:
        return 1

    @property
    @abstractmethod
    def messages(self) -> int:
        """Of one run."""

    @abstractmethod
    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """An array of (statistics, runs), if the victim holds 0 or 1."""


@dataclass(frozen=True)
class Claim:
    """A guarantee, and the mu that it follows from, if any: what is refuted is one of them."""

    privacy: Privacy
    mu: float | None = None
    slack: float = 0.0
    """With what probability all may be as it likes, beside mu."""


@dataclass(frozen=True)
class EventBound:
    """What one event shows: so often likely, so often not, and the epsilon and mu that follow."""

    event: str
    likely: int
    rare: int
    epsilon: float
    mu: float


@dataclass(frozen=True)
class SpreadBound:
    """The variance of a statistic, as a part of what the plan says, is in this interval."""

    statistic: str
    low: float
    high: float

    @property
    def is_right(self) -> bool:
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class Finding:
    """The result of one audit.

    `largest` is the most that this many runs can show, and `expected` about what they show by the
    exact law of the noise: a fault that is not in the noise shows more. None if no law tells.
    `noticed_part` is the part of the planned variance below which less noise would be noticed.

    >>> shown = EventBound("sum >= 3", likely=900, rare=400, epsilon=0.6, mu=0.2)
    >>> claim = Claim(Privacy(0.5, 1e-6))
    >>> finding = Finding("coins", 1, claim, 1000, (shown,), largest=4.5, expected=None)
    >>> finding.epsilon, finding.exceeds, finding.verdict
    (0.6, True, 'EXCEEDED')
    """

    name: str
    levels: int
    claim: Claim
    runs: int
    shown: tuple[EventBound, ...]
    largest: float
    expected: float | None
    spreads: tuple[SpreadBound, ...] = ()
    planted: bool = False
    """Whether it should refute the claim, for a fault was planted."""
    noticed_part: float | None = None

    @property
    def best(self) -> EventBound:
        return max(self.shown, key=lambda shown: shown.epsilon)

    @property
    def epsilon(self) -> float:
        """The certified lower bound."""
        return self.best.epsilon

    @property
    def mu(self) -> float:
        """The certified lower bound on mu."""
        return max(shown.mu for shown in self.shown)

    @property
    def exceeds(self) -> bool:
        """Whether the claim is refuted, or the noise is not that of the plan."""
        mu = self.claim.mu
        too_much = self.epsilon > self.claim.privacy.epsilon or (mu is not None and self.mu > mu)
        return too_much or bool(self.wrong_spreads)

    @property
    def wrong_spreads(self) -> list[SpreadBound]:
        """Those that are not what the plan says."""
        return [spread for spread in self.spreads if not spread.is_right]

    @property
    def is_right(self) -> bool:
        return self.exceeds == self.planted

    @property
    def verdict(self) -> str:
        right, wrong = ("caught", "MISSED") if self.planted else ("holds", "EXCEEDED")
        return right if self.is_right else wrong

    def summary(self) -> dict[str, Any]:
        """Ready for JSON."""
        derived = ("epsilon", "mu", "exceeds", "verdict")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def audit_game(
    name: str,
    game: Game,
    claim: Claim,
    *,
    runs: int,
    random: Random,
    rate: float = FAILURE_RATE,
) -> Finding:
    """A lower bound on the epsilon of what is played, too large with probability `rate` at most.

    A quarter of the runs chooses one event per statistic, or, if a mu is claimed, the best for
    epsilon and the best for mu; the others, from which nothing was chosen, bound probabilities, and
    variances. The rate is shared by all that is bounded, and by the two sides.

    (The seed that an attacker tries differs from run to run, and so may an event's probability:
    alike on both inputs, and counts of trials that are not all alike are closer to their mean
    than those of trials that are, Hoeffding 1956.)
    """
    errors.whole("runs", runs, least=LEAST_RUNS)
    delta, share = claim.privacy.delta, rate_of_each(game, claim, rate)
    for_bound = bounding_runs(runs)
    first, second = (_play_both(game, count, random) for count in (runs - for_bound, for_bound))
    to_epsilon = partial(epsilon_bound, delta=delta, rate=share)
    to_mu = partial(mu_bound, slack=claim.slack, rate=share)
    shown = []
    for index, statistic in enumerate(game.names):
        for bound in (to_epsilon, to_mu) if claim.mu is not None else (to_epsilon,):
            at_least, threshold = _choose_event(first[:, index], bound)
            seen = second[:, index]
            met = seen >= threshold if at_least else seen <= threshold
            zero, one = np.count_nonzero(met, axis=1).tolist()
            likely, rare = (one, zero) if at_least else (zero, one)
            event = f"{statistic} {'>=' if at_least else '<='} {threshold:.4g}"
            epsilon, mu = (float(to(likely, rare, for_bound)) for to in (to_epsilon, to_mu))
            shown.append(EventBound(event, likely, rare, epsilon, mu))
    spreads = tuple(
        _bound_spread(name, second[:, game.names.index(name)], variance, share)
        for name, variance in game.spreads.items()
    )
    law = LossLaw.of(game.mechanisms) if game.mechanisms else None
    if game.expected_mu is not None:
        law = LossLaw.gaussian(game.expected_mu)
    expected = None if law is None else law.expected_bound(for_bound, delta=delta, rate=share)
    # The most that so many runs can show: an event always happens on one input, never on the other.
    largest = float(to_epsilon(for_bound, 0, for_bound))
    return Finding(name, game.levels, claim, runs, tuple(shown), largest, expected, spreads)


def rate_of_each(game: Game, claim: Claim, rate: float) -> float:
    """How often each bound of an audit may be wrong."""
    bounds = len(game.names) * (1 if claim.mu is None else 2)
    return rate / (bounds + len(game.spreads))


def _bound_spread(statistic: str, values: Floats, planned: float, rate: float) -> SpreadBound:
    """Of Gaussian values on both inputs, whose means may differ."""
    runs = values.shape[1]
    degrees, squares = _INPUTS * (runs - 1), runs * float(values.var(axis=1).sum())
    low, high = (squares / float(chdtri(degrees, p)) / planned for p in (rate / 2, 1 - rate / 2))
    return SpreadBound(statistic, low, high)


def bounding_runs(runs: int) -> int:
    """How many of the runs bound: those that do not choose."""
    return runs - runs // _CHOOSING


def _play_both(game: Game, runs: int, random: Random) -> Floats:
    """An array of (inputs, statistics, runs)."""
    at_once = max(1, _MESSAGES_AT_ONCE // game.messages)
    parts = []
    for attempt, start in enumerate(range(0, runs, at_once)):
        count = min(at_once, runs - start)
        parts.append([game.play(v, count, random, attempt) for v in range(_INPUTS)])
    return np.concatenate(parts, axis=2)


def _choose_event(values: Floats, bound: Callable[..., Any]) -> tuple[bool, float]:
    """That a statistic is at least (or at most) a threshold: likelier if the victim holds 1 (or 0).

    It shows most in the runs on inputs 0 and 1 that are there to choose from.
    """
    zero, one = (np.sort(of_input) for of_input in values)
    thresholds = np.unique(values)
    if len(thresholds) > _MOST_EVENTS:
        thresholds = thresholds[:: len(thresholds) // _MOST_EVENTS + 1]
    trials = len(zero)
    above = [trials - np.searchsorted(v, thresholds, side="left") for v in (one, zero)]
    below = [np.searchsorted(v, thresholds, side="right") for v in (zero, one)]
    up, down = (bound(likely, rare, trials) for likely, rare in (above, below))
    at_least = bool(up.max() >= down.max())
    threshold = thresholds[int(np.argmax(up if at_least else down))]
    return at_least, float(threshold)
