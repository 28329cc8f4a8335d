"""What can be read from an estimate: numbers with their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from overhand.model import Floats

_SHOWN = 6  # coordinates, of however many


class Bounded(NamedTuple):
    """A number and its bounds.

    >>> Bounded(31.5, 30.0, 34.0).high
    34.0
    """

    value: float
    low: float
    high: float


class Bar(NamedTuple):
    """One of the largest coordinates of a sum, with its error bar.

    >>> Bar(1, 6.0, 5.0, 7.0, "love")
    Bar(coordinate=1, value=6.0, low=5.0, high=7.0, label='love')
    """

    coordinate: int
    value: float
    low: float
    high: float
    label: str | None = None
    """What the coordinate counts, where the kind of value has names for them."""


class Distribution(NamedTuple):
    """The fraction of users below every edge, with its bounds.

    >>> ends = np.array([0.0, 1.0])
    >>> Distribution(edges=np.array([10.0, 20.0]), value=ends, low=ends, high=ends).at(15.0)
    0.5
    """

    edges: Floats
    value: Floats
    low: Floats
    high: Floats

    def at(self, x: Any) -> Any:
        """The fraction of users below x, as if they were spread evenly over a bin.

        Of one number or, as an array, of many.
        """
        found = np.interp(x, self.edges, self.value)
        return found if np.ndim(x) else float(found)


@dataclass(frozen=True)
class Group:
    """Count, sum and mean of one group, each with its bounds.

    >>> Group("DE", Bounded(9.0, 7.0, 11.0), Bounded(18.0, 9.0, 27.0), Bounded(2.0, 1.2, 2.5)).mean
    Bounded(value=2.0, low=1.2, high=2.5)
    """

    label: str
    count: Bounded
    sum: Bounded
    mean: Bounded | None
    note: str = ""
    """Why there is no mean, if there is none."""

    def entry(self) -> dict[str, Any]:
        """Ready for JSON."""
        numbers = {"count": self.count, "sum": self.sum, "mean": self.mean}
        shown = {name: None if one is None else one._asdict() for name, one in numbers.items()}
        return {"label": self.label, **shown, "note": self.note}


def lacking(values: object, what: str, kind: str) -> str:
    """Why something cannot be read from a sum of these values."""
    these = "a sum of an unknown kind" if values is None else f"a sum of {values}"
    return f"{these} has no {what}: only sums of {kind} values do"


def shown(value: Any) -> str:
    """A number, or the first and last few of many."""
    if np.ndim(value) == 0:
        return f"{value:.10g}"
    entries = [f"{number:.6g}" for number in np.ravel(value)]
    if len(entries) > _SHOWN:
        entries = [*entries[: _SHOWN // 2], "...", *entries[-_SHOWN // 2 :]]
    return f"[{', '.join(entries)}]"
