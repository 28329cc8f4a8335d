"""A whole audit: everything that is shipped, and the faults that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from overhand import errors
from overhand.lab.audit.attacks import NOTHING, Answers, Attacker, Listener
from overhand.lab.audit.audit import (
    FAILURE_RATE,
    Claim,
    Finding,
    Game,
    audit_game,
    bounding_runs,
    find_noticed_part,
    rate_of_each,
)
from overhand.lab.audit.blocks import BLOCK_FAULTS, Placement, WatchedBlocks
from overhand.lab.audit.cases import (
    KINDS,
    LEAST_RUNS,
    PUBLISHED,
    SERVICES_KINDS,
    VALUES,
    Case,
    OneByOne,
    affordable_runs,
    can_send,
)
from overhand.lab.audit.faults import FAULTS, Fault
from overhand.lab.audit.lattice import BLOCKS, LatticeAttack
from overhand.lab.audit.lying import (
    SERVER_FAULTS,
    SERVER_LIES,
    STORE_LIED_FAULTS,
    STORE_LIES,
    LieFault,
    SubstitutedKey,
)
from overhand.lab.audit.store import STORE_FAULTS, ThroughStore
from overhand.mechanisms import MECHANISMS
from overhand.model import Privacy
from overhand.randomness import Random, source_of
from overhand.values import BITS, values_of

DEFAULT_RUNS = 60_000
"""Enough to notice that half of the noise is missing."""

_PLAIN = 10  # one run in this many is enough for a fault that shows the value
_STORED = 15  # one run in this many is affordable if its reports are written to a database
_REPORTS = 2  # of one person, where there may be several


@dataclass(frozen=True)
class Job:
    """One game to play: what is shipped must keep its claim, and a planted fault break it."""

    name: str
    game: Game
    runs: int
    planted: bool = False
    claim: Claim | None = None
    """Of what the game looks at, if it is not the guarantee."""


@dataclass(frozen=True)
class Verdict:
    """What an audit found, and whether that is what should be found.

    `noticed_part` is the part of the planned variance below which less noise would be noticed.

    A thousand runs are too few to notice that half of the noise is missing:

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), store=(), server=(), shufflers=1, runs=1000)
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

    >>> scope = Scope(kinds=("coins", "ballots"), store=(), server=(), specs=("bit",), shufflers=2)
    >>> for job in scope.shipped_jobs():
    ...     print(job.name)
    coins, bit
    coins, bit, one by one
    coins, bit, 2 levels
    ballots, bit
    ballots, bit, one by one
    ballots, bit, server lies
    ballots, bit, service lies
    ballots, bit, 2 reports together
    ballots, bit, 2 reports apart
    ballots, bit, leak before
    ballots, bit, leak after
    ballots, bit, bits after block 1
    ballots, bit, bits after block 2
    ballots, bit, bits after block 3
    ballots, bit, bits after block 6
    ballots, bit, bits after block 8
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
    """The kinds of mechanisms whose reports of bits also go through the shuffling service's store,
    or whose noise it makes for a server that lies."""
    server: Sequence[str] = tuple(MECHANISMS)
    """Those whose sums of bits a lying service reads at the real server, if it makes noise."""

    def __post_init__(self) -> None:
        errors.whole("runs", self.runs, least=LEAST_RUNS)
        errors.whole("shufflers", self.shufflers, least=1, most=6)
        errors.whole("size", self.size, least=2)

    def shipped_jobs(self) -> Iterator[Job]:
        """Single mechanisms and whole transcripts; bits also through shufflers and services."""
        for case in self._cases():
            yield from self._jobs_of(case)
        for case in self._bit_cases(self.store):
            yield from self._store_jobs(case)
        for case in self._bit_cases(self.server):
            if case.is_of_services:
                lies = {name: lie for name, lie in SERVER_LIES.items() if lie.concerns(case)}
                for name, lie in lies.items():
                    game = lie.of(case)
                    yield Job(f"{case.kind}, {name}", game, LEAST_RUNS, claim=game.claim)
                exchanged, name = SubstitutedKey.of(case), f"{case.kind}, key exchanged"
                yield Job(name, exchanged, LEAST_RUNS, claim=Claim(NOTHING))
        for spec in self.specs if self.local else ():
            answers = Answers.best(values_of(spec), self.privacy)
            yield Job(f"local, {spec}", answers, self.runs)

    def _jobs_of(self, case: Case) -> Iterator[Job]:
        deployment, is_bit = case.deployment(), case.values == BITS
        runs, mechanism = affordable_runs(self.runs, deployment.messages), deployment.mechanisms[0]
        if mechanism.is_shuffle_model:
            yield Job(case.name, Attacker(deployment), runs)
            if is_bit and case.levels == 1 and case.kind != PUBLISHED:
                slow = Attacker(OneByOne(deployment.mechanisms))
                yield Job(f"{case.name}, one by one", slow, max(LEAST_RUNS, runs // _PLAIN))
        else:
            few = max(LEAST_RUNS, runs // 2)
            yield Job(f"{case.name}, masks", Listener(deployment), few, claim=Claim(NOTHING))
        if case.is_of_services:
            yield from self._block_jobs(case)

    def _block_jobs(self, case: Case) -> Iterator[Job]:
        """All that one service sees of the other's noise; of bits, all that it may do to see it."""
        plan = case.plan()
        games: dict[str, WatchedBlocks | LatticeAttack] = {
            "server lies": WatchedBlocks.of(plan, "server"),
            "service lies": WatchedBlocks.of(plan, "service"),
        }
        if case.values == BITS:
            twice = WatchedBlocks.of(replace(case, reports=_REPORTS).plan())
            games[f"{_REPORTS} reports together"] = replace(twice, placement=Placement(_REPORTS, 1))
            games[f"{_REPORTS} reports apart"] = replace(twice, placement=Placement(1, _REPORTS))
        if case.values == BITS and plan.mu is not None:
            games["leak before"] = WatchedBlocks.of(plan, leak="before")
            games["leak after"] = WatchedBlocks.of(plan, leak="after")
            games |= {f"bits after block {t}": LatticeAttack.of(plan, t) for t in BLOCKS}
        for name, game in games.items():
            is_slow = isinstance(game, LatticeAttack)
            runs = max(LEAST_RUNS, self.runs // _PLAIN) if is_slow else self.runs
            yield Job(f"{case.name}, {name}", game, runs, claim=game.claim)

    def _cases(self) -> Iterator[Case]:
        for kind in self.kinds:
            for values in map(values_of, self.specs):
                most = 1 if kind in SERVICES_KINDS else self.shufflers
                for levels in sorted({1, most}) if can_send(kind, values) else ():
                    case = Case(kind, values, levels, self.size, self.privacy)
                    if case.is_affordable:
                        yield case

    def _store_jobs(self, case: Case) -> Iterator[Job]:
        """Whether messages leave in random order; and what a server that lies sees of noise."""
        if case.mechanisms[0].is_shuffle_model:
            runs = LEAST_RUNS if case.is_of_services else self.runs // (_STORED * case.levels**2)
            way = "bit, through the store" if case.levels == 1 else "2 levels, in the store"
            game = Attacker(ThroughStore.of(case))
            yield Job(f"{case.kind}, {way}", game, max(LEAST_RUNS, runs))
        for name, lie in STORE_LIES.items() if case.is_of_services else ():
            lied_to = lie.of(case)
            yield Job(f"{case.kind}, {name}", lied_to, LEAST_RUNS, claim=lied_to.claim)

    def _bit_cases(self, kinds: Sequence[str]) -> Iterator[Case]:
        """In one level, and in two: what goes through databases."""
        for kind in kinds if str(BITS) in self.specs else ():
            most = 1 if MECHANISMS[kind].noise_by == "services" else min(2, self.shufflers)
            for levels in range(1, 1 + most):
                yield Case(kind, BITS, levels, self.size, self.privacy)

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        for kind in self.kinds:
            for fault in FAULTS if kind != PUBLISHED else ():
                if fault.least_levels <= self.shufflers and fault.concerns(MECHANISMS[kind]):
                    yield self._mutant(kind, fault)
            case = Case(kind, BITS, 1, self.size, self.privacy)
            if case.is_of_services:
                yield from self._block_mutants(case)
        for case in self._bit_cases(self.store):
            for name, kept in STORE_FAULTS.items() if case.levels == 1 else ():
                if kept.concerns(case.mechanisms[0]):
                    yield Job(f"{case.kind}: {name}", Attacker(kept.of(case)), LEAST_RUNS, True)
            yield from self._lied_to_mutants(case, STORE_LIED_FAULTS)
        for case in self._bit_cases(self.server):
            yield from self._lied_to_mutants(case, SERVER_FAULTS)
            if case.is_of_services:
                trusting, name = SubstitutedKey.of(case, True), f"{case.kind}: key not checked"
                yield Job(name, trusting, LEAST_RUNS, True, Claim(NOTHING))

    def _mutant(self, kind: str, fault: Fault) -> Job:
        """With all levels or, where runs are expensive, with as few as the fault needs."""
        case = Case(kind, BITS, self.shufflers, self.size, self.privacy)
        if case.is_of_services:
            case = replace(case, levels=1)
        right = case.deployment()
        if affordable_runs(self.runs, right.messages) < self.runs:
            case = replace(case, levels=fault.least_levels)
            right = case.deployment()
        alone = right if case.is_of_services else case.unsplit_deployment()
        game = fault.seen_by(fault.plant(right, alone))
        runs = max(LEAST_RUNS, self.runs // _PLAIN) if fault.plain else self.runs
        claim = Claim(NOTHING) if fault.seen_by is Listener else None
        return Job(
            f"{kind}: {fault.name}", game, affordable_runs(runs, right.messages), True, claim
        )

    def _block_mutants(self, case: Case) -> Iterator[Job]:
        plan = case.plan()
        right = WatchedBlocks.of(plan)
        for fault in BLOCK_FAULTS:
            if fault.concerns(right):
                planted = fault.plant(right)
                yield Job(f"{case.kind}: {fault.name}", planted, self.runs, True, planted.claim)
        if plan.mu is not None:
            for blocks in BLOCKS:
                coarse = LatticeAttack.of(plan, blocks).coarsen()
                name = f"{case.kind}: coarse draws, {blocks}"
                yield Job(name, coarse, LEAST_RUNS, True, coarse.claim)

    def _lied_to_mutants(self, case: Case, faults: Mapping[str, LieFault]) -> Iterator[Job]:
        """Faults of a deployed service, which the other one sees if it lies."""
        for name, fault in faults.items() if case.is_of_services else ():
            if fault.concerns(case):
                game = fault.of(case)
                yield Job(f"{case.kind}: {name}", game, LEAST_RUNS, True, game.claim)


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
    rate, game, claim = FAILURE_RATE / of, job.game, job.claim or Claim(privacy)
    finding = audit_game(job.name, game, claim, runs=job.runs, random=source_of(random), rate=rate)
    if job.planted:
        return Verdict(finding, True)
    share, runs = rate_of_each(game, claim, rate), bounding_runs(job.runs)
    return Verdict(finding, False, find_noticed_part(game, claim, runs=runs, rate=share))
