"""Which reports of a commit group are admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from overhand.errors import InvalidValue
from overhand.service.protocol import ID_BYTES, LevelFormat
from overhand.service.shuffler.store.batch_keys import BatchKeys


class Outcome(Enum):
    """What became of a report."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    """It was admitted before: the client is told the same, and it is counted once."""
    TOKEN_USED = "token used"
    """Its token has admitted another report already."""
    CLOSED = "closed"
    """All arrivals of the plan are taken."""
    NOT_NEEDED = "not needed"
    """It is the service's own, and the batch that it was to fill is full."""


@dataclass(frozen=True)
class Arrival:
    """A report on its way into the store.

    `parts` has what it says to every level, lowest first; `ids` a digest of each part. A token, if
    there is one, admits one report only.
    """

    ids: tuple[bytes, ...]
    parts: tuple[bytes, ...]
    token: bytes | None = None
    fills: int | None = None
    """If it is one of the service's own reports of value 0: the late batch that it fills up.

    It joins no other batch of the lowest level, and never begins one."""

    @property
    def is_own(self) -> bool:
        return self.fills is not None

    def check(self, levels: Sequence[LevelFormat]) -> None:
        """A report has the shape of the plan, or it never touches the database."""
        lengths = [len(part) for part in self.parts]
        expected = [level.part_bytes for level in levels]
        if lengths != expected:
            raise InvalidValue(f"parts of {lengths} bytes, expected {expected}")
        if [len(name) for name in self.ids] != [ID_BYTES] * len(levels):
            raise InvalidValue(f"a report has {len(levels)} ids of {ID_BYTES} bytes each")


class Marks(NamedTuple):
    """What the store remembers of a report, apart from its messages."""

    ids: list[bytes]
    token: list[bytes]
    """One, if the report has a token."""

    @classmethod
    def of(cls, arrival: Arrival, keys: BatchKeys) -> Marks:
        tokens = [] if arrival.token is None else [arrival.token]
        return cls(
            [keys.mark(b"part", part_id) for part_id in arrival.ids],
            [keys.mark(b"token", token) for token in tokens],
        )


def judge(
    arrivals: Sequence[Arrival],
    marks: Sequence[Marks],
    unused: set[bytes],
    arrived: int,
    horizon: int,
    lowest: int,
) -> tuple[list[Outcome], set[bytes]]:
    """What becomes of each report of a group, and the marks that none of the admitted ones uses.

    `unused` are the group's marks that nobody used before; `lowest` is the size of the smallest
    batches. A known id is looked at first, so that the retry of a report with its own token is a
    repeat.
    """
    unused, outcomes = set(unused), []
    for arrival, (ids, token) in zip(arrivals, marks, strict=True):
        if not unused.issuperset(ids):
            outcomes.append(Outcome.REPEATED)
        elif not unused.issuperset(token):
            outcomes.append(Outcome.TOKEN_USED)
        elif arrived == horizon:
            outcomes.append(Outcome.CLOSED)
        elif arrival.is_own and not _is_late(arrival.fills, arrived, lowest):
            outcomes.append(Outcome.NOT_NEEDED)
        else:
            outcomes.append(Outcome.ADMITTED)
            unused.difference_update(ids, token)
            arrived += 1
    return outcomes, unused


def _is_late(fills: int | None, arrived: int, lowest: int) -> bool:
    """Whether this is the open batch, and somebody is in it."""
    number, taken = divmod(arrived, lowest)
    return fills == number and taken > 0
