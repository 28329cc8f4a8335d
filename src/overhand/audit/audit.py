"""The distinguishing game: runs on two neighbouring inputs, an event, and what it shows.

And a whole audit: everything that is shipped, and the faults that it must catch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from overhand import errors
from overhand.audit.attacks import Answers, Attacker
from overhand.audit.bounds import LossLaw, epsilon_shown, largest_epsilon, noticed_part
from overhand.audit.cases import (
    KINDS,
    LEAST_RUNS,
    PUBLISHED,
    VALUES,
    Case,
    OneByOne,
    affordable,
    cases,
)
from overhand.audit.faults import FAULTS, Fault
from overhand.audit.listening import NOTHING, Listener
from overhand.audit.store import STORE_FAULTS, ThroughStore
from overhand.mechanisms import MECHANISMS, Mechanism
from overhand.model import Floats, Privacy
from overhand.randomness import Random, source_of
from overhand.values import BITS, values_of

FAILURE_RATE = 1e-3
"""How likely any bound of a report may be too large."""
DEFAULT_RUNS = 60_000
"""Enough to notice that half of the noise is missing."""

_PLAIN = 10  # one run in so many is enough for a fault that shows the value
_STORED = 15  # one run in so many is affordable if its reports are written to a database

_CHOOSING = 4  # one run in so many is for the choice of the event
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
    """What one audit came to.

    `largest` is what so many runs can show at most, and `expected` what they show, about, by the
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

    A quarter of the runs chooses one event a statistic; the others, which nothing was chosen
    from, bound its probabilities. The rate is shared by the statistics, and by the two sides.

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
    return LossLaw.of(game.mechanisms).shown(runs, delta=delta, rate=rate)


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


@dataclass(frozen=True)
class Job:
    """One game to play: what is shipped must keep its claim, and a planted fault break it."""

    name: str
    game: Game
    runs: int
    planted: bool = False
    claimed: Privacy | None = None
    """Of what the game looks at, if it is not the guarantee."""


@dataclass(frozen=True)
class Verdict:
    """What an audit found, and whether that is what should be found.

    `noticed_part` is the part of the planned variance below which less noise would be noticed.

    A thousand runs are too few to notice that half of the noise is missing:

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), store=(), shufflers=1, runs=1000)
    >>> for job in scope.mutants():
    ...     print(job.name, verdict_on(job, scope.privacy, of=3, random=seeded_random(1)))
    coins: half the noise MISSED
    coins: no permutation caught
    coins: seeded generator caught
    """

    finding: Finding
    planted: bool
    noticed_part: float | None = None

    @property
    def is_right(self) -> bool:
        return self.finding.exceeds == self.planted

    def __str__(self) -> str:
        if self.planted:
            return "caught" if self.is_right else "MISSED"
        return "holds" if self.is_right else "EXCEEDED"


@dataclass(frozen=True)
class Scope:
    """What is audited: kinds of mechanisms and of values, for one guarantee and size.

    >>> scope = Scope(kinds=("coins",), store=("coins",), specs=("bit",), shufflers=2, runs=1000)
    >>> for job in scope.shipped():
    ...     print(job.name)
    coins, bit
    coins, bit, one by one
    coins, bit, 2 levels
    coins, bit, through the store
    coins, 2 levels, in the store
    local, bit
    """

    privacy: Privacy = Privacy(1.0, 0.01)
    size: int = 8
    shufflers: int = 3
    kinds: Sequence[str] = KINDS
    specs: Sequence[str] = VALUES
    runs: int = DEFAULT_RUNS
    local: bool = True
    """Whether local mechanisms are audited, too."""
    store: Sequence[str] = tuple(MECHANISMS)
    """The kinds of mechanisms whose reports of bits also go through the real store."""

    def __post_init__(self) -> None:
        errors.whole("runs", self.runs, least=LEAST_RUNS)
        errors.whole("shufflers", self.shufflers, least=1, most=6)
        errors.whole("size", self.size, least=2)

    def shipped(self) -> Iterator[Job]:
        """Single mechanisms and whole transcripts; bits also through shufflers and the store."""
        privacy, levels, size = self.privacy, self.shufflers, self.size
        for case in cases(self.kinds, self.specs, levels=levels, size=size, privacy=privacy):
            deployment = case.deployment()
            runs = affordable(self.runs, deployment.work)
            yield Job(case.name, Attacker(deployment), runs)
            if deployment.mechanisms[0].clear_numbers and case.levels == levels:
                few, name = max(LEAST_RUNS, runs // 2), f"{case.kind}, {case.values}, service"
                yield Job(name, Listener(deployment), few, claimed=NOTHING)
            if case.values == BITS and case.levels == 1 and case.kind != PUBLISHED:
                slow = Attacker(OneByOne(deployment.mechanisms))
                yield Job(f"{case.name}, one by one", slow, max(LEAST_RUNS, runs // _PLAIN))
        for case in self._stored():
            runs = max(LEAST_RUNS, self.runs // (_STORED * case.levels**2))
            game = Attacker(ThroughStore.of(case))
            way = "bit, through the store" if case.levels == 1 else "2 levels, in the store"
            yield Job(f"{case.kind}, {way}", game, runs)
        for spec in self.specs if self.local else ():
            answers = Answers.best(values_of(spec), self.privacy)
            yield Job(f"local, {spec}", answers, self.runs)

    def _stored(self) -> Iterator[Case]:
        for kind in self.store if str(BITS) in self.specs else ():
            for levels in range(1, 1 + min(2, self.shufflers)):
                yield Case(kind, BITS, levels, self.size, self.privacy)

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        for kind in self.kinds:
            for fault in FAULTS if kind != PUBLISHED else ():
                if fault.least_levels <= self.shufflers and fault.concerns(MECHANISMS[kind]):
                    yield self._mutant(kind, fault)
        for case in self._stored():
            is_fault = case.levels == 1 and MECHANISMS[case.kind].is_shuffle_model
            for name, kept in STORE_FAULTS.items() if is_fault else ():
                planted = Attacker(kept.of(case))
                yield Job(f"{case.kind}: {name}", planted, LEAST_RUNS, planted=True)

    def _mutant(self, kind: str, fault: Fault) -> Job:
        """With all levels or, where runs are dear, with as few as the fault needs."""
        case = Case(kind, BITS, self.shufflers, self.size, self.privacy)
        right = case.deployment()
        if affordable(self.runs, right.work) < self.runs:
            case = replace(case, levels=fault.least_levels)
            right = case.deployment()
        game = fault.seen_by(fault.planted(right, case.unsplit()))
        runs = max(LEAST_RUNS, self.runs // _PLAIN) if fault.plain else self.runs
        claimed = NOTHING if fault.seen_by is Listener else None
        return Job(f"{kind}: {fault.name}", game, affordable(runs, right.work), True, claimed)


def verdict_on(job: Job, privacy: Privacy, *, of: int, random: Random | None = None) -> Verdict:
    """One of so many audits, which are all right with probability 1 - 1e-3 together.

    Randomness is the system's if none is given.

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), specs=("bit",), shufflers=1, runs=1000)
    >>> job = next(scope.shipped())
    >>> verdict = verdict_on(job, scope.privacy, of=1, random=seeded_random(1))
    >>> str(verdict), verdict.finding.epsilon < 1.0
    ('holds', True)
    """
    rate, game, claimed = FAILURE_RATE / of, job.game, job.claimed or privacy
    finding = audited(job.name, game, claimed, runs=job.runs, random=source_of(random), rate=rate)
    if job.planted or not game.mechanisms:
        return Verdict(finding, job.planted)
    share = rate / len(finding.shown)
    noticed = noticed_part(game.mechanisms, claimed, runs=bounding(job.runs), rate=share)
    return Verdict(finding, False, noticed)
