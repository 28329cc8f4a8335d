"""A whole audit: everything that is shipped, and the faults that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from overhand import errors
from overhand.audit.audit import FAILURE_RATE, Finding, Progress, audited, bounding
from overhand.audit.cases import KINDS, VALUES, Case, Kind, affordable, cases
from overhand.audit.deployment import LEAST_RUNS, Deployment, OneByOne
from overhand.audit.faults import FAULTS
from overhand.audit.power import noticed_part
from overhand.model import Privacy
from overhand.randomness import Random
from overhand.values import BITS

DEFAULT_RUNS = 60_000
_PLAIN = 10  # one run in so many is enough for a fault that shows the value


@dataclass(frozen=True)
class Job:
    """One deployment to audit: it must keep its claim or, with a planted fault, break it."""

    name: str
    deployment: Deployment
    runs: int
    planted: bool = False


@dataclass(frozen=True)
class Verdict:
    """What an audit found, and whether that is what should be found.

    `noticed_part` is the part of the planned variance below which less noise would be noticed.
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
    """What is audited: kinds of mechanisms and of values, for one guarantee and size."""

    privacy: Privacy = Privacy(1.0, 0.01)
    size: int = 8
    levels: int = 3
    kinds: Sequence[Kind] = KINDS
    specs: Sequence[str] = VALUES
    runs: int = DEFAULT_RUNS

    def __post_init__(self) -> None:
        errors.whole("runs", self.runs, least=LEAST_RUNS)
        errors.whole("shufflers", self.levels, least=1, most=6)
        errors.whole("size", self.size, least=2)

    def _cases(self, kinds: Sequence[Kind], specs: Sequence[str]) -> Iterator[Case]:
        return cases(kinds, specs, levels=self.levels, size=self.size, privacy=self.privacy)

    def shipped(self) -> Iterator[Job]:
        """Single mechanisms and whole transcripts; bits also with one shuffler object a batch."""
        for case in self._cases(self.kinds, self.specs):
            deployment = case.deployment()
            runs = affordable(self.runs, deployment)
            yield Job(case.name, deployment, runs)
            if case.values == BITS and case.levels == 1 and case.kind != "published":
                slow = OneByOne(deployment.mechanisms)
                yield Job(f"{case.name}, one by one", slow, max(LEAST_RUNS, runs // _PLAIN))

    def mutants(self) -> Iterator[Job]:
        """Every fault, planted in the transcript of a user who holds a bit."""
        kinds = [kind for kind in self.kinds if kind != "published"]
        for kind in kinds:
            case = Case(kind, BITS, self.levels, self.size, self.privacy)
            right, alone = case.deployment(), case.unsplit()
            for fault in FAULTS:
                if fault.least_levels <= self.levels:
                    runs = max(LEAST_RUNS, self.runs // _PLAIN) if fault.plain else self.runs
                    planted = fault.planted(right, alone)
                    yield Job(f"{kind}: {fault.name}", planted, runs, planted=True)


def verdict_on(
    job: Job, privacy: Privacy, *, of: int, random: Random, progress: Progress = lambda runs: None
) -> Verdict:
    """One of so many audits, which are all right with probability 1 - 1e-3 together."""
    rate, deployment = FAILURE_RATE / of, job.deployment
    finding = audited(
        job.name, deployment, privacy, runs=job.runs, random=random, rate=rate, progress=progress
    )
    if job.planted:
        return Verdict(finding, True)
    share = rate / len(finding.shown)
    return Verdict(
        finding,
        False,
        noticed_part(deployment.mechanisms, privacy, runs=bounding(job.runs), rate=share),
    )
