"""A section of the report: how much is measured, by which tasks, and the evidence they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from overhand.lab.plots import Line
from overhand.model import Privacy


@dataclass(frozen=True)
class Scale:
    """Sizes of all measurements: the same claims are looked at on any scale.

    >>> from dataclasses import replace
    >>> smaller = replace(QUICK, name="smaller", horizons=(10**4, 10**5), coverage_runs=1000)
    >>> smaller.privacy == QUICK.privacy
    True
    """

    name: str
    horizons: tuple[int, ...]
    """For errors that grow with the number of users."""
    precision: float
    """The relative standard deviation of these errors, which sets the number of runs."""
    users: int
    """For everything that is measured at one number of users."""
    runs: int
    coverage_runs: int
    coverage_users: int
    reading_runs: int
    """Of what is read off estimates."""
    rounds: tuple[int, ...]
    """Of bandits."""
    bandit_runs: int
    shufflers: tuple[int, ...] = (1, 2, 3, 4, 5)
    """For everything that is shown against their number."""
    epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """For the errors of models of trust."""
    privacy: Privacy = Privacy(1.0, 1e-6)
    seed: int = 0


QUICK = Scale(
    name="quick",
    horizons=(10**4, 10**5, 10**6, 10**7),
    precision=0.01,
    users=10**5,
    runs=100,
    coverage_runs=40_000,
    coverage_users=1_000,
    reading_runs=12_000,
    rounds=(5_000, 20_000, 80_000),
    bandit_runs=5,
)
"""Less than two minutes on two cores."""

FULL = Scale(
    name="full",
    horizons=(10**4, 10**5, 10**6, 10**7, 10**8, 10**9),
    precision=0.015,
    users=10**6,
    runs=200,
    coverage_runs=100_000,
    coverage_users=10_000,
    reading_runs=40_000,
    rounds=(10**4, 10**5, 10**6),
    bandit_runs=20,
)
"""About an hour on two cores."""


@dataclass(frozen=True)
class Check:
    """A number that must lie between two others."""

    what: str
    value: float
    least: float
    most: float

    @classmethod
    def near(cls, what: str, value: float, target: float, tolerance: float) -> Check:
        """A number that must be within a tolerance of another."""
        return cls(what, value, target - tolerance, target + tolerance)

    @property
    def is_met(self) -> bool:
        return self.least <= self.value <= self.most

    def summary(self) -> dict[str, Any]:
        """Everything, ready for JSON; a limit that is infinite is none."""
        most = None if self.most == float("inf") else self.most
        return {**asdict(self), "most": most, "is_met": self.is_met}


@dataclass(frozen=True)
class Figure:
    """Curves, and what their axes say."""

    x: str
    y: str
    lines: tuple[Line, ...]
    scale: str = "loglog"
    """As Matplotlib calls it: loglog, semilogx, semilogy or plot."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for or against one claim: who made it, how it was measured, what came out."""

    key: str
    title: str
    claim: str
    method: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether all of its checks are."""
        return all(check.is_met for check in self.checks)

    def summary(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        checks = [check.summary() for check in self.checks]
        return {**asdict(self), "checks": checks, "is_met": self.is_met}


@dataclass(frozen=True)
class Task:
    """A measurement that needs nothing of any other, so that any machine may make it."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cost: float = 1.0
    """About how many seconds it takes: long tasks go first, and progress is counted in it."""

    def run(self) -> Any:
        return self.work(*self.arguments)


class Section(NamedTuple):
    """The tasks of a claim, by what they are of, and what is made of their results."""

    groups: Mapping[Any, Sequence[Task]]
    judge: Callable[[dict[Any, list[Any]]], Evidence]

    @property
    def tasks(self) -> list[Task]:
        return [task for group in self.groups.values() for task in group]

    def conclude(self, results: Iterator[Any]) -> Evidence:
        """From the results of its tasks, in their order."""
        return self.judge({key: [next(results) for _ in of] for key, of in self.groups.items()})


def curves(x: Iterable[float], found: Mapping[str, Iterable[float]]) -> tuple[Line, ...]:
    """One for every name, all over the same x."""
    over = tuple(map(float, x))
    return tuple(Line(name, over, tuple(map(float, y))) for name, y in found.items())
