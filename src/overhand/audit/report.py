"""A whole audit: everything that is shipped, and the faults that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from overhand import errors
from overhand.audit.attacks import Attacker
from overhand.audit.audit import FAILURE_RATE, Finding, Game, audited, bounding
from overhand.audit.cases import KINDS, VALUES, Case, Kind, affordable, cases
from overhand.audit.deployment import LEAST_RUNS, OneByOne
from overhand.audit.faults import FAULTS
from overhand.audit.local import Answers
from overhand.audit.power import noticed_part
from overhand.model import Privacy
from overhand.randomness import Random, secure_random
from overhand.values import BITS, values_of

DEFAULT_RUNS = 60_000
"""Enough to notice that half of the noise is missing."""
_PLAIN = 10  # one run in so many is enough for a fault that shows the value


@dataclass(frozen=True)
class Job:
    """One game to play: what is shipped must keep its claim, and a planted fault break it."""

    name: str
    game: Game
    runs: int
    planted: bool = False


@dataclass(frozen=True)
class Verdict:
    """What an audit found, and whether that is what should be found.

    `noticed_part` is the part of the planned variance below which less noise would be noticed.

    A thousand runs are too few to notice that half of the noise is missing:

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), shufflers=1, runs=1000)
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

    >>> scope = Scope(kinds=("coins",), specs=("bit",), shufflers=2, runs=1000)
    >>> [job.name for job in scope.shipped()]
    ['coins, bit', 'coins, bit, one by one', 'coins, bit, 2 levels', 'local, bit']
    """

    privacy: Privacy = Privacy(1.0, 0.01)
    size: int = 8
    shufflers: int = 3
    kinds: Sequence[Kind] = KINDS
    specs: Sequence[str] = VALUES
    runs: int = DEFAULT_RUNS
    local: bool = True
    """Whether local mechanisms are audited, too."""

    def __post_init__(self) -> None:
        errors.whole("runs", self.runs, least=LEAST_RUNS)
        errors.whole("shufflers", self.shufflers, least=1, most=6)
        errors.whole("size", self.size, least=2)

    def _cases(self, kinds: Sequence[Kind], specs: Sequence[str]) -> Iterator[Case]:
        return cases(kinds, specs, levels=self.shufflers, size=self.size, privacy=self.privacy)

    def shipped(self) -> Iterator[Job]:
        """Single mechanisms and whole transcripts; bits also with one shuffler object a batch."""
        for case in self._cases(self.kinds, self.specs):
            deployment = case.deployment()
            runs = affordable(self.runs, deployment.messages)
            yield Job(case.name, Attacker(deployment), runs)
            if case.values == BITS and case.levels == 1 and case.kind != "published":
                slow = Attacker(OneByOne(deployment.mechanisms))
                yield Job(f"{case.name}, one by one", slow, max(LEAST_RUNS, runs // _PLAIN))

        for spec in self.specs if self.local else ():
            game = Answers.best(values_of(spec), self.privacy)
            yield Job(f"local, {spec}", game, self.runs)

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        kinds = [kind for kind in self.kinds if kind != "published"]
        for kind in kinds:
            case = Case(kind, BITS, self.shufflers, self.size, self.privacy)
            right, alone = case.deployment(), case.unsplit()
            for fault in FAULTS:
                if fault.least_levels <= self.shufflers:
                    runs = max(LEAST_RUNS, self.runs // _PLAIN) if fault.plain else self.runs
                    planted = Attacker(fault.planted(right, alone))
                    yield Job(f"{kind}: {fault.name}", planted, runs, planted=True)


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
    rate, game = FAILURE_RATE / of, job.game
    finding = audited(
        job.name, game, privacy, runs=job.runs, random=random or secure_random(), rate=rate
    )
    if job.planted or not game.mechanisms:
        return Verdict(finding, job.planted)
    share = rate / len(finding.shown)
    noticed = noticed_part(game.mechanisms, privacy, runs=bounding(job.runs), rate=share)
    return Verdict(finding, False, noticed)
