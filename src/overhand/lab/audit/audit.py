"""The distinguishing game: runs on two neighbouring inputs, an event, and what it shows.

Bounds hold at every number of runs; what to expect of them is computed from the law of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betainccinv, betaincinv

from overhand import errors
from overhand.accounting import shifted_pair
from overhand.lab.audit.cases import LEAST_RUNS, ONCE, Placement, moves
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Privacy
from overhand.randomness import Random

FAILURE_RATE = 1e-3
"""The probability that any bound of a report is too large."""

_CHOOSING = 4  # one run in this many is for choosing the event
_MESSAGES_AT_ONCE = 1 << 21
_MOST_EVENTS = 1000  # of a statistic, to choose from
_MOST_LOSS = 12.0
_STEPS = 3000
_HALVINGS = 10
_MOST_EXPECTED = 300  # events among which the best is sought, by the law of the noise


def least_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """Clopper and Pearson's bound: above the true probability at most this often."""
    x = np.asarray(successes, np.float64)
    bound = betaincinv(np.maximum(x, 1e-300), trials - x + 1, rate)
    return np.where(x <= 0, 0.0, bound)


def most_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """The other side: below the true probability at most this often."""
    x = np.asarray(successes, np.float64)
    bound = betainccinv(x + 1, np.maximum(trials - x, 1e-300), rate)
    return np.where(x >= trials, 1.0, bound)


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


@dataclass(frozen=True)
class LossLaw:
    """The log-likelihood ratio of all levels together, on a grid: its law on both inputs.

    It is computed from the exact law of the noise: there is no sampling here.
    """

    losses: Floats
    one: Floats
    zero: Floats

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], placement: Placement = ONCE) -> LossLaw:
        one, zero = np.ones(1), np.ones(1)
        parts = 0
        for mechanism in mechanisms:
            for steps in [*moves(mechanism, placement.reports).values()] * placement.batches:
                pair = _loss_laws(mechanism, steps)
                one, zero = _convolve(one, pair[0]), _convolve(zero, pair[1])
                parts += 1
        losses = np.linspace(-parts * _MOST_LOSS, parts * _MOST_LOSS, len(one))
        return cls(losses, np.maximum(one, 0.0), np.maximum(zero, 0.0))

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


def find_noticed_part(
    mechanisms: Sequence[Mechanism],
    claimed: Privacy,
    *,
    runs: int,
    rate: float,
    placement: Placement = ONCE,
) -> float:
    """The part of its variance down to which noise may be reduced without being noticed, about."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        law = LossLaw.of([mechanism.reduce(middle) for mechanism in mechanisms], placement)
        seen = law.expected_bound(runs, delta=claimed.delta, rate=rate) > claimed.epsilon
        low, high = (middle, high) if seen else (low, middle)
    return low


def _convolve(law: Floats, other: Floats) -> Floats:
    length = len(law) + len(other) - 1
    size = next_fast_len(length, real=True)
    return np.asarray(irfft(rfft(law, size) * rfft(other, size), size)[:length], np.float64)


def _loss_laws(mechanism: Mechanism, steps: int) -> tuple[Floats, Floats]:
    """One count's likelihood ratio, with the victim's 1 and without."""
    moved, still = shifted_pair(mechanism.honest_noise(), abs(steps))
    if steps < 0:
        moved, still = still, moved
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.nan_to_num(np.log(moved) - np.log(still), nan=0.0)
    at = np.rint(np.clip(losses, -_MOST_LOSS, _MOST_LOSS) / _MOST_LOSS * _STEPS).astype(int)
    one, zero = (
        np.asarray(np.bincount(at + _STEPS, weights=law, minlength=2 * _STEPS + 1), np.float64)
        for law in (moved, still)
    )
    return one, zero


class Game(Protocol):
    """Runs on two neighbouring inputs, and what an attacker makes of each."""

    @property
    def names(self) -> list[str]:
        """Of the statistics."""

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Whose noise tells what to expect; none where a user's answer is all there is."""

    @property
    def placement(self) -> Placement:
        """Of the victim's reports."""

    @property
    def levels(self) -> int: ...

    @property
    def messages(self) -> int:
        """Of one run."""

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """An array of (statistics, runs), if the victim holds 0 or 1."""


@dataclass(frozen=True)
class Event:
    """A statistic is at least (or at most) a threshold: likelier if the victim holds 1 (or 0)."""

    statistic: str
    at_least: bool
    threshold: float

    def times(self, values: Floats) -> int:
        met = values >= self.threshold if self.at_least else values <= self.threshold
        return int(np.count_nonzero(met))

    def __str__(self) -> str:
        return f"{self.statistic} {'>=' if self.at_least else '<='} {self.threshold:.4g}"


@dataclass(frozen=True)
class EventBound:
    """What one event shows: so often likely, so often not, and the epsilon that follows."""

    event: str
    likely: int
    rare: int
    epsilon: float


@dataclass(frozen=True)
class Finding:
    """The result of one audit.

    `largest` is the most that this many runs can show, and `expected` about what they show by the
    exact law of the noise: a fault that is not in the noise shows more. None if answers are local.
    """

    name: str
    levels: int
    claimed: Privacy
    runs: int
    shown: tuple[EventBound, ...]
    largest: float
    expected: float | None

    @property
    def best(self) -> EventBound:
        return max(self.shown, key=lambda shown: shown.epsilon)

    @property
    def epsilon(self) -> float:
        """The certified lower bound."""
        return self.best.epsilon

    @property
    def exceeds(self) -> bool:
        """Whether the claim is refuted."""
        return self.epsilon > self.claimed.epsilon

    def summary(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "epsilon": self.epsilon, "exceeds": self.exceeds}


def audit_game(
    name: str,
    game: Game,
    claimed: Privacy,
    *,
    runs: int,
    random: Random,
    rate: float = FAILURE_RATE,
) -> Finding:
    """A lower bound on the epsilon of what is played, too large with probability `rate` at most.

    A quarter of the runs chooses one event per statistic; the others, from which nothing was
    chosen, bound its probabilities. The rate is shared by the statistics, and by the two sides.

    (The seed that an attacker tries differs from run to run, and so may an event's probability:
    alike on both inputs, and counts of trials that are not all alike are closer to their mean
    than those of trials that are, Hoeffding 1956.)
    """
    errors.whole("runs", runs, least=LEAST_RUNS)
    share = rate / len(game.names)
    for_bound = bounding_runs(runs)
    first, second = (_play_both(game, count, random) for count in (runs - for_bound, for_bound))
    shown = []
    for index, statistic in enumerate(game.names):
        event = _best_event(statistic, first[:, index], delta=claimed.delta, rate=share)
        zero, one = (event.times(of_input) for of_input in second[:, index])
        likely, rare = (one, zero) if event.at_least else (zero, one)
        bound = epsilon_bound(likely, rare, for_bound, delta=claimed.delta, rate=share)
        shown.append(EventBound(str(event), likely, rare, float(bound)))
    expected = None
    if game.mechanisms:
        law = LossLaw.of(game.mechanisms, game.placement)
        expected = law.expected_bound(for_bound, delta=claimed.delta, rate=share)
    # The most that so many runs can show: an event always happens on one input, never on the other.
    largest = float(epsilon_bound(for_bound, 0, for_bound, delta=claimed.delta, rate=share))
    return Finding(name, game.levels, claimed, runs, tuple(shown), largest, expected)


def bounding_runs(runs: int) -> int:
    """How many of the runs bound: those that do not choose."""
    return runs - runs // _CHOOSING


def _play_both(game: Game, runs: int, random: Random) -> Floats:
    """An array of (inputs, statistics, runs)."""
    at_once = max(1, _MESSAGES_AT_ONCE // game.messages)
    parts = []
    for attempt, start in enumerate(range(0, runs, at_once)):
        count = min(at_once, runs - start)
        parts.append([game.play(victim, count, random, attempt) for victim in (0, 1)])
    return np.concatenate(parts, axis=2)


def _best_event(statistic: str, values: Floats, *, delta: float, rate: float) -> Event:
    """The event that shows most in the runs on inputs 0 and 1 that are there to choose from."""
    zero, one = (np.sort(of_input) for of_input in values)
    thresholds = np.unique(values)
    if len(thresholds) > _MOST_EVENTS:
        thresholds = thresholds[:: len(thresholds) // _MOST_EVENTS + 1]
    trials = len(zero)
    above = [trials - np.searchsorted(v, thresholds, side="left") for v in (one, zero)]
    below = [np.searchsorted(v, thresholds, side="right") for v in (zero, one)]
    up, down = (
        epsilon_bound(likely, rare, trials, delta=delta, rate=rate)
        for likely, rare in (above, below)
    )
    at_least = bool(up.max() >= down.max())
    threshold = thresholds[int(np.argmax(up if at_least else down))]
    return Event(statistic, at_least, float(threshold))
