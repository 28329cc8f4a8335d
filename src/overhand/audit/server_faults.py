"""Planted faults of a server that makes noise, for a shuffling service that lies to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from overhand.audit.cases import APART, ONCE, TOGETHER, Case, Placement
from overhand.audit.faults import as_kind, halved
from overhand.audit.lying import LyingService
from overhand.audit.service_faults import without_noise
from overhand.mechanisms import BallotSum, Mechanism, PairsSum
from overhand.model import Counts

Planted = Callable[[Case], LyingService]

_PLAIN = 60  # one run in this many is enough for a fault that shows the value almost without noise


class RestoredBook(LyingService):
    """The server's book is restored from before a batch was opened, twice: noise is drawn again.

    Each publication alone is as it should be; the mean of all three has less noise.
    """

    lives = 3


class LiftedFirst(PairsSum):
    """The server's noise is added to whole numbers, after residues were brought to their range.

    Where the sum is at the edge of that range, one step more moves it by the whole modulus: what
    is published tells on which side it was, and no noise hides that.
    """

    def _lifted(self, sums: NDArray[Any], noise: Counts | None) -> Counts:
        lifted = super()._lifted(sums, None)
        return lifted if noise is None else lifted + noise


@dataclass(frozen=True)
class ServerFault:
    """A fault by its name, how a server with it is lied to, and at how many levels.

    >>> from overhand.model import Privacy
    >>> from overhand.values import BITS
    >>> case = Case("pairs", BITS, 1, 8, Privacy(1.0, 0.01), noise_by="services")
    >>> half = SERVER_FAULTS[0].planted(case)
    >>> parts = [m.noise().variance for m in (*half.mechanisms, *case.mechanisms)]
    >>> SERVER_FAULTS[0].name, round(parts[0] / parts[1], 6)
    ("server's noise halved", 0.5)
    """

    name: str
    planted: Planted
    levels: int = 1
    one_in: int = _PLAIN
    """One run in this many is enough."""
    kind: str = BallotSum.kind
    """The kind of mechanism that it is planted in: the server's steps are the same for all."""
    placement: Placement = ONCE
    """Of the reports of a person, in the case that it is planted in."""


def _against(server: Callable[[Sequence[Mechanism]], tuple[Mechanism, ...]]) -> Planted:
    """A service that lies to a server with these mechanisms, made of those of the plan."""
    return lambda case: LyingService.against(case, server(case.mechanisms))


def _for_one_report(case: Case) -> LyingService:
    """Persons report more often than the noise is for."""
    return LyingService.against(case, replace(case, placement=ONCE).mechanisms)


SERVER_FAULTS = (
    ServerFault("server's noise halved", _against(halved), one_in=12),
    ServerFault("noise drawn again", RestoredBook.of),
    ServerFault("noise after lifting", _against(partial(as_kind, LiftedFirst)), kind=PairsSum.kind),
    ServerFault(
        "a level without noise", _against(lambda right: (*right[:-1], without_noise(right[-1]))), 2
    ),
    ServerFault("noise for one report", _for_one_report, placement=TOGETHER),
    ServerFault(
        "noise for one, apart", _for_one_report, one_in=40, kind=PairsSum.kind, placement=APART
    ),
)
