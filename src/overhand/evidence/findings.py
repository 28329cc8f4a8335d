"""What a measurement found: numbers to look at, and numbers that a claim is judged by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from overhand.plots import Line

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A number that must lie between two others.

    >>> Check("exponent", value=0.32, least=0.30, most=0.36).is_met
    True
    """

    what: str
    value: float
    least: float
    most: float

    @classmethod
    def near(cls, what: str, value: float, target: float, tolerance: float) -> Check:
        """A number that must be within so much of another."""
        return cls(what, value, target - tolerance, target + tolerance)

    @property
    def is_met(self) -> bool:
        """Whether it does."""
        return self.least <= self.value <= self.most


@dataclass(frozen=True)
class Figure:
    """Curves, and what their axes say.

    >>> Figure("users", "error", (Line("ours", (10.0, 100.0), (3.0, 5.0)),)).scale
    'loglog'
    """

    x: str
    y: str
    lines: tuple[Line, ...]
    scale: str = "loglog"
    """As Matplotlib calls it: loglog, semilogx, semilogy or plot."""


@dataclass(frozen=True)
class Finding:
    """One claim: who made it, how it was measured, what came out.

    >>> check = Check("exponent", value=0.4, least=0.30, most=0.36)
    >>> finding = Finding(
    ...     key="exponents",
    ...     title="Error against the number of users",
    ...     claim="Theorem 3.4",
    ...     method="simulation",
    ...     columns=("shufflers", "exponent"),
    ...     rows=((1, 0.4),),
    ...     checks=(check,),
    ... )
    >>> finding.is_met, finding.to_json()["checks"][0]["value"]
    (False, 0.4)
    """

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

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON; a limit that is infinite is none."""
        checks = [
            {
                **asdict(check),
                "most": None if check.most == float("inf") else check.most,
                "is_met": check.is_met,
            }
            for check in self.checks
        ]
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


def in_turn(names: Collection[str], results: Sequence[T]) -> dict[str, Sequence[T]]:
    """Results by name, if the tasks were listed name by name, as many for each.

    >>> in_turn(("a", "b"), [1, 2, 3, 4])
    {'a': [1, 2], 'b': [3, 4]}
    """
    each = len(results) // len(names)
    return {name: results[i * each : (i + 1) * each] for i, name in enumerate(names)}


@dataclass(frozen=True)
class Section:
    """The tasks of a claim, and what is made of their results."""

    tasks: tuple[Task, ...]
    conclude: Callable[[list[Any]], Finding] = field(repr=False)
