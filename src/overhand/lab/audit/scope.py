"""A whole audit: everything that is shipped, and the faults that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from overhand import errors
from overhand.lab.audit.attacks import NOTHING, Answers, Attacker, Listener
from overhand.lab.audit.audit import (
    FAILURE_RATE,
    Finding,
    Game,
    audit_game,
    bounding_runs,
    find_noticed_part,
)
from overhand.lab.audit.cases import (
    APART,
    KINDS,
    LEAST_RUNS,
    ONCE,
    PUBLISHED,
    TOGETHER,
    VALUES,
    Case,
    OneByOne,
    affordable_runs,
    can_send,
)
from overhand.lab.audit.faults import FAULTS, SERVICE_FAULTS, Fault
from overhand.lab.audit.lying import SERVER_FAULTS, LyingService, SubstitutedKey
from overhand.lab.audit.store import STORE_FAULTS, ThroughStore
from overhand.mechanisms import MECHANISMS
from overhand.model import NoiseBy, Privacy
from overhand.planning import NOISE_CONTRIBUTORS
from overhand.randomness import Random, source_of
from overhand.values import BITS, values_of

DEFAULT_RUNS = 60_000
"""Enough to notice that half of the noise is missing."""

_PLAIN = 10  # one run in this many is enough for a fault that shows the value
_LIED_TO = 24  # one run in this many is enough to see half of the noise of a single level
_STORED = 15  # one run in this many is affordable if its reports are written to a database

_LIES = {
    "bit, lied to": (1, ONCE),
    "2 reports together": (1, TOGETHER),
    "2 reports apart": (1, APART),
    "2 levels, lied to": (2, ONCE),
}
"""What a lying service does: with how many levels, and with which placement of reports."""


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
    >>> scope = Scope(kinds=("coins",), store=(), shufflers=1, runs=1000, noise=("users",))
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

    >>> coins, server = ("coins",), ("ballots",)
    >>> scope = Scope(kinds=coins, store=coins, server=server, specs=("bit",), shufflers=2)
    >>> for job in scope.shipped_jobs():
    ...     print(job.name)
    coins, bit
    coins, bit, one by one
    coins, bit, 2 levels
    coins, bit, through the store
    coins, 2 levels, in the store
    local, bit
    ballots, bit, lied to, services' noise
    ballots, 2 reports together, services' noise
    ballots, 2 reports apart, services' noise
    ballots, key exchanged, services' noise
    ballots, 2 levels, lied to, services' noise
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
    server: Sequence[str] = tuple(MECHANISMS)
    """Those whose sums of bits a lying service reads at the real server, if it makes noise."""
    noise: Sequence[NoiseBy] = NOISE_CONTRIBUTORS
    """Who makes the noise."""

    def __post_init__(self) -> None:
        errors.whole("runs", self.runs, least=LEAST_RUNS)
        errors.whole("shufflers", self.shufflers, least=1, most=6)
        errors.whole("size", self.size, least=2)

    def shipped_jobs(self) -> Iterator[Job]:
        """Single mechanisms and whole transcripts; bits also through shufflers and services."""
        for noise_by in self.noise:
            yield from self._mechanism_jobs(noise_by)
            yield from self._store_jobs(noise_by)
            if noise_by == "services":
                yield from self._lying_jobs()
            else:
                for spec in self.specs if self.local else ():
                    answers = Answers.best(values_of(spec), self.privacy)
                    yield Job(f"local, {spec}", answers, self.runs)

    def _mechanism_jobs(self, noise_by: NoiseBy) -> Iterator[Job]:
        for case in self._cases(noise_by):
            deployment, is_bit = case.deployment(), case.values == BITS
            runs = affordable_runs(self.runs, deployment.work)
            yield Job(case.name, Attacker(deployment), runs)
            is_whole = case.levels == self.shufflers and (is_bit or noise_by == "users")
            if deployment.mechanisms[0].layout.clear_numbers and is_whole:
                few, name = max(LEAST_RUNS, runs // 2), f"{case.kind}, {case.values}, service"
                yield Job(case.label(name), Listener(deployment), few, claimed=NOTHING)
            if is_bit and case.levels == 1 and case.kind != PUBLISHED:
                slow = Attacker(OneByOne(deployment.mechanisms))
                name = case.label(f"{case.kind}, {case.values}, one by one")
                yield Job(name, slow, max(LEAST_RUNS, runs // _PLAIN))

    def _cases(self, noise_by: NoiseBy) -> Iterator[Case]:
        """Of services' noise, which is drawn alike for all values, only bits have all levels."""
        for kind in self.kinds:
            for values in map(values_of, self.specs):
                all_levels = {1, self.shufflers} if values == BITS or noise_by == "users" else {1}
                for levels in sorted(all_levels) if can_send(kind, values, noise_by) else ():
                    case = Case(kind, values, levels, self.size, self.privacy, noise_by)
                    if case.is_affordable:
                        yield case

    def _store_jobs(self, noise_by: NoiseBy) -> Iterator[Job]:
        """Through the store; a service adds noise batch by batch, so one level shows it all."""
        for case in self._bit_cases(self.store, noise_by):
            if noise_by == "users":
                runs = self.runs // (_STORED * case.levels**2)
                way = "bit, through the store" if case.levels == 1 else "2 levels, in the store"
            elif case.levels == 1:
                runs, way = LEAST_RUNS, "bit, in the store"
            else:
                continue
            game = Attacker(ThroughStore.of(case))
            yield Job(case.label(f"{case.kind}, {way}"), game, max(LEAST_RUNS, runs))

    def _lying_jobs(self) -> Iterator[Job]:
        """To the real server: enough runs to see half of its noise, of one level and report."""
        for case in self._bit_cases(self.server, "services"):
            for what, (levels, placement) in _LIES.items():
                if levels == case.levels:
                    placed = replace(case, placement=placement)
                    runs = self.runs // (_LIED_TO * levels**2 * placed.reports)
                    name, game = case.label(f"{case.kind}, {what}"), LyingService.of(placed)
                    yield Job(name, game, max(LEAST_RUNS, runs))
            if case.levels == 1:
                name, key = case.label(f"{case.kind}, key exchanged"), SubstitutedKey.of(case)
                yield Job(name, key, LEAST_RUNS, claimed=NOTHING)

    def _bit_cases(self, kinds: Sequence[str], noise_by: NoiseBy) -> Iterator[Case]:
        """In one level, and in two: what goes through databases."""
        for kind in kinds if str(BITS) in self.specs else ():
            for levels in range(1, 1 + min(2, self.shufflers)):
                if can_send(kind, BITS, noise_by):
                    yield Case(kind, BITS, levels, self.size, self.privacy, noise_by)

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        for noise_by in self.noise:
            for kind in self.kinds:
                for fault in (*FAULTS, *SERVICE_FAULTS) if kind != PUBLISHED else ():
                    is_fault = fault.concerns(MECHANISMS[kind], noise_by)
                    if fault.least_levels <= self.shufflers and is_fault:
                        yield self._mutant(kind, fault, noise_by)
            for case in self._bit_cases(self.store, noise_by):
                for name, kept in STORE_FAULTS.items() if case.levels == 1 else ():
                    if kept.concerns(case.mechanisms[0]):
                        planted = Attacker(kept.of(case))
                        named = case.label(f"{case.kind}: {name}")
                        yield Job(named, planted, LEAST_RUNS, planted=True)
            yield from self._server_mutants() if noise_by == "services" else ()

    def _mutant(self, kind: str, fault: Fault, noise_by: NoiseBy) -> Job:
        """With all levels or, where runs are expensive, with as few as the fault needs."""
        case = Case(kind, BITS, self.shufflers, self.size, self.privacy, noise_by)
        right = case.deployment()
        if affordable_runs(self.runs, right.work) < self.runs:
            case = replace(case, levels=fault.least_levels)
            right = case.deployment()
        game = fault.seen_by(fault.plant(right, case.unsplit_deployment()))
        runs = max(LEAST_RUNS, self.runs // _PLAIN) if fault.plain else self.runs
        claimed = NOTHING if fault.seen_by is Listener else None
        name = case.label(f"{kind}: {fault.name}")
        return Job(name, game, affordable_runs(runs, right.work), True, claimed)

    def _server_mutants(self) -> Iterator[Job]:
        """Faults of the server, and of clients that trust the service: a lying one sees them."""
        for case in self._bit_cases(self.server, "services"):
            for fault in SERVER_FAULTS:
                if fault.levels == case.levels and case.kind == fault.kind:
                    runs = max(LEAST_RUNS, self.runs // fault.one_in)
                    name = case.label(f"{case.kind}: {fault.name}")
                    placed = replace(case, placement=fault.placement)
                    yield Job(name, fault.plant(placed), runs, planted=True)
            if case.levels == 1:
                name = case.label(f"{case.kind}: key not checked")
                yield Job(name, SubstitutedKey.of(case, True), LEAST_RUNS, True, NOTHING)


def verdict_on(job: Job, privacy: Privacy, *, of: int, random: Random | None = None) -> Verdict:
    """One of this many audits, which are all right with probability 1 - 1e-3 together.

    It uses OS randomness if none is given.

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), specs=("bit",), shufflers=1, runs=1000)
    >>> job = next(scope.shipped_jobs())
    >>> verdict = verdict_on(job, scope.privacy, of=1, random=seeded_random(1))
    >>> str(verdict), verdict.finding.epsilon < 1.0
    ('holds', True)
    """
    rate, game, claimed = FAILURE_RATE / of, job.game, job.claimed or privacy
    finding = audit_game(
        job.name, game, claimed, runs=job.runs, random=source_of(random), rate=rate
    )
    if job.planted or not game.mechanisms:
        return Verdict(finding, job.planted)
    share = rate / len(finding.shown)
    runs, placement = bounding_runs(job.runs), game.placement
    noticed = find_noticed_part(
        game.mechanisms, claimed, runs=runs, rate=share, placement=placement
    )
    return Verdict(finding, False, noticed)
