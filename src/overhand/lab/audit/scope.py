"""A whole audit: everything that is shipped, and the faults that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from overhand import errors
from overhand.lab.audit.attacks import Answers, Attacker, Listener
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
from overhand.lab.audit.blocks import (
    BLOCK_FAULTS,
    Placement,
    ServicesFault,
    ServicesGame,
    WatchedBlocks,
)
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
from overhand.lab.audit.lattice import BLOCKS, LATTICE_FAULTS, LatticeAttack
from overhand.mechanisms import MECHANISMS
from overhand.model import Privacy
from overhand.randomness import Random, source_of
from overhand.values import BITS, Values, values_of

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
        yield from self._deployed_jobs()
        for spec in self.specs if self.local else ():
            answers = Answers.best(values_of(spec), self.privacy)
            yield Job(f"local, {spec}", answers, self.runs)

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        for kind in self.kinds:
            for fault in FAULTS if kind != PUBLISHED else ():
                if fault.least_levels <= self.shufflers and fault.concerns(MECHANISMS[kind]):
                    yield self._mutant(kind, fault)
            case = self._case(kind, BITS)
            yield from _services_jobs(case, BLOCK_FAULTS, self.runs, planted=True)
            yield from _services_jobs(case, LATTICE_FAULTS, LEAST_RUNS, planted=True)
        yield from self._deployed_mutants()

    def _case(self, kind: str, values: Values, levels: int = 1) -> Case:
        """Of the services there is one level."""
        levels = 1 if kind in SERVICES_KINDS else levels
        return Case(kind, values, levels, self.size, self.privacy)

    def _cases(self) -> Iterator[Case]:
        for kind in self.kinds:
            for values in map(values_of, self.specs):
                if can_send(kind, values):
                    both = self._case(kind, values), self._case(kind, values, self.shufflers)
                    yield from (case for case in dict.fromkeys(both) if case.is_affordable)

    def _bit_cases(self, kinds: Sequence[str]) -> Iterator[Case]:
        """In one level, and in two: what goes through databases."""
        for kind in kinds if str(BITS) in self.specs else ():
            two = self._case(kind, BITS, min(2, self.shufflers))
            yield from dict.fromkeys((self._case(kind, BITS), two))

    def _jobs_of(self, case: Case) -> Iterator[Job]:
        deployment, is_bit = case.deployment(), case.values == BITS
        runs, mechanism = affordable_runs(self.runs, deployment.messages), deployment.mechanisms[0]
        if mechanism.is_shuffle_model:
            yield Job(case.name, Attacker(deployment), runs)
            if is_bit and case.levels == 1 and case.kind != PUBLISHED:
                slow = Attacker(OneByOne(deployment.mechanisms))
                yield Job(f"{case.name}, one by one", slow, self._few(runs))
        else:
            few = max(LEAST_RUNS, runs // 2)
            yield Job(f"{case.name}, masks", Listener(deployment), few)
        for name, game in self._block_games(case) if case.is_of_services else ():
            few = self._few(self.runs) if isinstance(game, LatticeAttack) else self.runs
            yield Job(f"{case.name}, {name}", game, few)

    def _few(self, runs: int) -> int:
        return max(LEAST_RUNS, runs // _PLAIN)

    def _block_games(self, case: Case) -> Iterator[tuple[str, ServicesGame]]:
        """All that one service sees of the other's noise; of bits, all that it may do to see it."""
        plan = case.plan()
        yield "server lies", WatchedBlocks.of(plan, liar="server")
        yield "service lies", WatchedBlocks.of(plan, liar="service")
        if case.values != BITS:
            return
        twice = replace(case, reports=_REPORTS).plan()
        together, apart = Placement(_REPORTS, 1), Placement(1, _REPORTS)
        yield f"{_REPORTS} reports together", WatchedBlocks.of(twice, placement=together)
        yield f"{_REPORTS} reports apart", WatchedBlocks.of(twice, placement=apart)
        if plan.mu is not None:
            yield "leak before", WatchedBlocks.of(plan, leak="before")
            yield "leak after", WatchedBlocks.of(plan, leak="after")
            for blocks in BLOCKS:
                yield f"bits after block {blocks}", LatticeAttack.of(plan, blocks=blocks)

    def _mutant(self, kind: str, fault: Fault) -> Job:
        """With all levels or, where runs are expensive, with as few as the fault needs."""
        case = self._case(kind, BITS, self.shufflers)
        right = case.deployment()
        if affordable_runs(self.runs, right.messages) < self.runs:
            case = replace(case, levels=fault.least_levels)
            right = case.deployment()
        alone = right if case.is_of_services else case.unsplit_deployment()
        game = fault.seen_by(fault.plant(right, alone))
        runs = self._few(self.runs) if fault.plain else self.runs
        return Job(f"{kind}: {fault.name}", game, affordable_runs(runs, right.messages), True)

    def _deployed_jobs(self) -> Iterator[Job]:
        """Whether messages leave in random order; and what one service sees if it lies."""
        if not (self.store or self.server):  # it needs the extra `service`
            return
        from overhand.lab.audit.deployed import SERVER_LIES, STORE_LIES, ThroughStore

        for case in self._bit_cases(self.store):
            if ThroughStore.concerns(case.mechanisms[0]):
                runs = 0 if case.is_of_services else self.runs // (_STORED * case.levels**2)
                way = "bit, through the store" if case.levels == 1 else "2 levels, in the store"
                game = Attacker(ThroughStore.of(case))
                yield Job(f"{case.kind}, {way}", game, max(LEAST_RUNS, runs))
            yield from _services_jobs(case, STORE_LIES)
        for case in self._bit_cases(self.server):
            yield from _services_jobs(case, SERVER_LIES)

    def _deployed_mutants(self) -> Iterator[Job]:
        if not (self.store or self.server):
            return
        from overhand.lab.audit.deployed import SERVER_FAULTS, STORE_FAULTS, STORE_LIED_FAULTS

        for case in self._bit_cases(self.store):
            for name, fault in STORE_FAULTS.items() if case.levels == 1 else ():
                if fault.concerns(case.mechanisms[0]):
                    yield Job(f"{case.kind}: {name}", Attacker(fault.of(case)), LEAST_RUNS, True)
            yield from _services_jobs(case, STORE_LIED_FAULTS, planted=True)
        for case in self._bit_cases(self.server):
            yield from _services_jobs(case, SERVER_FAULTS, planted=True)


def _services_jobs(
    case: Case,
    games: Mapping[str, type[ServicesGame]] | Mapping[str, ServicesFault],
    runs: int = LEAST_RUNS,
    *,
    planted: bool = False,
) -> Iterator[Job]:
    """Those of these games that can be played, if services make the noise."""
    for name, game in games.items() if case.is_of_services else ():
        if game.concerns(case.plan()):
            mark = ": " if planted else ", "
            yield Job(f"{case.kind}{mark}{name}", game.of(case.plan()), runs, planted)


def verdict_on(job: Job, privacy: Privacy, *, of: int, random: Random | None = None) -> Finding:
    """One of this many audits, which are all right with probability 1 - 1e-3 together.

    It uses OS randomness if none is given. A thousand runs are too few to notice that half of the
    noise is missing:

    >>> from overhand.randomness import seeded_random
    >>> scope = Scope(kinds=("coins",), specs=("bit",), store=(), server=(), shufflers=1, runs=1000)
    >>> for job in [next(scope.shipped_jobs()), *scope.mutants()]:
    ...     found = verdict_on(job, scope.privacy, of=3, random=seeded_random(1))
    ...     print(job.name, found.verdict, found.epsilon < 1.0)
    coins, bit holds True
    coins: half the noise MISSED True
    coins: no permutation caught False
    coins: seeded generator caught False
    """
    rate, game, claim = FAILURE_RATE / of, job.game, job.game.claim or Claim(privacy)
    finding = audit_game(job.name, game, claim, runs=job.runs, random=source_of(random), rate=rate)
    if job.planted:
        return replace(finding, planted=True)
    share, runs = rate_of_each(game, claim, rate), bounding_runs(job.runs)
    part = find_noticed_part(game, claim, runs=runs, rate=share)
    return replace(finding, noticed_part=part)
