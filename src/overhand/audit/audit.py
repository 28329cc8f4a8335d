"""The distinguishing game: runs on two neighbouring inputs, an event, and what it shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from overhand import errors
from overhand.audit.bounds import LossLaw, epsilon_shown, largest_epsilon
from overhand.audit.cases import LEAST_RUNS, Placement
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Privacy
from overhand.randomness import Random

FAILURE_RATE = 1e-3
"""The probability that any bound of a report is too large."""

_CHOOSING = 4  # one run in this many is for choosing the event
_MESSAGES_AT_ONCE = 1 << 21
_MOST_THRESHOLDS = 1000


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
        """An array of (statistics, runs)."""


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
class Shown:
    """What one event showed: so often likely, so often not, and the epsilon that follows."""

    event: str
    likely: int
    rare: int
    epsilon: float


@dataclass(frozen=True)
class Finding:
    """The result of one audit.

    `largest` is the most that this many runs can show, and `expected` about what they show by the
    exact law of the noise: a fault that is not in the noise shows more. None if answers are local.

    >>> from overhand.audit import Attacker, Case
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> game = Attacker(case.deployment())
    >>> found = audited(case.name, game, case.privacy, runs=4000, random=seeded_random(1))
    >>> found.epsilon < found.claimed.epsilon < found.largest, found.exceeds
    (True, False)
    """

    name: str
    levels: int
    claimed: Privacy
    runs: int
    shown: tuple[Shown, ...]
    largest: float
    expected: float | None

    @property
    def best(self) -> Shown:
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


def audited(
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

    A thousand runs are enough to catch shufflers that hand messages on as they came:

    >>> from overhand.audit import Attacker, Case
    >>> from overhand.audit.faults import NoPermutation
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> game = Attacker(NoPermutation(case.deployment().mechanisms))
    >>> found = audited("unshuffled", game, case.privacy, runs=1000, random=seeded_random(1))
    >>> round(found.epsilon, 1), found.best.event
    (4.4, 'position >= 1')
    """
    errors.whole("runs", runs, least=LEAST_RUNS)
    share = rate / len(game.names)
    for_bound = bounding(runs)
    first, second = (_played(game, count, random) for count in (runs - for_bound, for_bound))
    shown = []
    for index, statistic in enumerate(game.names):
        event = _best_event(statistic, first[:, index], delta=claimed.delta, rate=share)
        shown.append(_shown(event, second[:, index], delta=claimed.delta, rate=share))
    return Finding(
        name,
        game.levels,
        claimed,
        runs,
        tuple(shown),
        largest_epsilon(for_bound, delta=claimed.delta, rate=share),
        _expected(game, for_bound, delta=claimed.delta, rate=share),
    )


def _expected(game: Game, runs: int, *, delta: float, rate: float) -> float | None:
    if not game.mechanisms:
        return None
    return LossLaw.of(game.mechanisms, game.placement).shown(runs, delta=delta, rate=rate)


def bounding(runs: int) -> int:
    """How many of the runs bound: those that do not choose."""
    return runs - runs // _CHOOSING


def _shown(event: Event, values: Floats, *, delta: float, rate: float) -> Shown:
    """What the event shows in runs on inputs 0 and 1 that it was not chosen from."""
    zero, one = (event.times(of_input) for of_input in values)
    likely, rare = (one, zero) if event.at_least else (zero, one)
    bound = epsilon_shown(likely, rare, values.shape[1], delta=delta, rate=rate)
    return Shown(str(event), likely, rare, float(bound))


def _played(game: Game, runs: int, random: Random) -> Floats:
    """An array of (inputs, statistics, runs)."""
    at_once = max(1, _MESSAGES_AT_ONCE // game.messages)
    parts: tuple[list[Floats], list[Floats]] = ([], [])
    for attempt, start in enumerate(range(0, runs, at_once)):
        count = min(at_once, runs - start)
        for victim in (0, 1):
            parts[victim].append(game.play(victim, count, random, attempt))
    return np.stack([np.concatenate(of_input, axis=1) for of_input in parts])


def _best_event(statistic: str, values: Floats, *, delta: float, rate: float) -> Event:
    """The event that shows most in the runs on inputs 0 and 1 that are there to choose from."""
    zero, one = (np.sort(of_input) for of_input in values)
    thresholds = np.unique(values)
    if len(thresholds) > _MOST_THRESHOLDS:
        thresholds = thresholds[:: len(thresholds) // _MOST_THRESHOLDS + 1]
    trials = len(zero)
    above = [trials - np.searchsorted(v, thresholds, side="left") for v in (one, zero)]
    below = [np.searchsorted(v, thresholds, side="right") for v in (zero, one)]
    up, down = (
        epsilon_shown(likely, rare, trials, delta=delta, rate=rate)
        for likely, rare in (above, below)
    )
    at_least = bool(up.max() >= down.max())
    threshold = thresholds[int(np.argmax(up if at_least else down))]
    return Event(statistic, at_least, float(threshold))
