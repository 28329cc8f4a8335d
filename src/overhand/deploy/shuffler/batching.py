"""Which reports of a commit group are admitted, which batches they join, how their messages leave.

No database here: a store asks these functions what to write, inside its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.sealing import Seals, strike_out
from overhand.deploy.protocol.wire import ID_BYTES, Batch, Formats, LevelFormat, Release
from overhand.errors import InvalidValue, ProtocolViolation, whole
from overhand.model import Messages
from overhand.randomness import Random, secure_random
from overhand.shuffle import shuffle

_HEAD_BYTES = 8
_FAN_BITS = 3  # pieces are folded by eights, or more
_WORTH = 16  # a piece whose messages are so many times what else it costs is left alone
_PAGE_BYTES = 4096
_MOST_BYTES = 900_000_000  # of a release: both databases keep values of up to 1 GB
_MOST_FOLDED = 64
_MOST_FOLDED_BYTES = 1 << 22  # those who admit reports to SQLite wait while they are written


def lowest_of(formats: Formats) -> LevelFormat:
    """The lowest level of formats that a store can serve, or `InvalidValue`."""
    levels = [level.level for level in formats.levels]
    if not levels or levels != sorted(set(levels)):
        raise InvalidValue(f"levels {levels} must be distinct, at least one, and lowest first")
    if len({level.is_filled for level in formats.levels}) > 1:
        raise InvalidValue("vacant places must be filled at all levels, or at none")
    for level in formats.levels:
        whole("level", level.level, least=1)
        whole("size", level.size, least=1)
        whole("messages", level.messages, least=1)
        if level.batch_bytes() > _MOST_BYTES:
            raise InvalidValue(
                f"a batch of level {level.level} has {level.batch_bytes()} bytes, a store takes up "
                f"to {_MOST_BYTES}"
            )
    whole("batches", formats.levels[0].batches, least=1)
    return formats.levels[0]


class Outcome(Enum):
    """What became of a report."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    """It was admitted before: the client gets the same answer, and it is counted once."""
    TOKEN_USED = "token used"
    """Its token has already admitted another report."""
    CLOSED = "closed"
    """All arrivals of the plan are taken."""
    NOT_NEEDED = "not needed"
    """It is the service's own, and the batch that it was to fill is full."""


@dataclass(frozen=True)
class Arrival:
    """A report on its way into the store.

    `id` are random bytes by which it is known again, `parts` what it says to every level, lowest
    first. A token, if there is one, admits one report only.
    """

    id: bytes
    parts: tuple[bytes, ...]
    token: bytes | None = None
    fills: int | None = None
    """If it is one of the service's own reports of value 0: the late batch that it fills up.

    It joins no other batch of the lowest level, and never begins one."""

    @classmethod
    def of(
        cls, formats: Formats, body: bytes, token: bytes | None = None, fills: int | None = None
    ) -> Arrival:
        """The report of these bytes, or `InvalidValue` if they are not one for this plan."""
        return cls(*formats.unpack_report(body), token, fills)

    @property
    def is_own(self) -> bool:
        return self.fills is not None

    def check(self, levels: Sequence[LevelFormat]) -> None:
        """A report has the shape of the plan, or it never touches the database."""
        lengths = [len(part) for part in self.parts]
        expected = [level.part_bytes for level in levels]
        if lengths != expected:
            raise InvalidValue(f"parts have {lengths} bytes, not {expected}")
        if self.is_own and not levels[0].is_filled:
            raise InvalidValue("the service has no reports of its own if services make the noise")
        if len(self.id) != ID_BYTES:
            raise InvalidValue(f"a report's id has {ID_BYTES} bytes, not {len(self.id)}")


class ReportFingerprints(NamedTuple):
    """What the store remembers of a report, apart from its messages."""

    report: bytes
    token: list[bytes]
    """One, if the report has a token."""

    @classmethod
    def of(cls, arrival: Arrival, keys: BatchKeys) -> ReportFingerprints:
        tokens = [] if arrival.token is None else [arrival.token]
        return cls(
            keys.mark(b"report", arrival.id),
            [keys.mark(b"token", token) for token in tokens],
        )


def judge(
    arrivals: Sequence[Arrival],
    marks: Sequence[ReportFingerprints],
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
    for arrival, (report, token) in zip(arrivals, marks, strict=True):
        if report not in unused:
            outcomes.append(Outcome.REPEATED)
        elif not unused.issuperset(token):
            outcomes.append(Outcome.TOKEN_USED)
        elif arrived == horizon:
            outcomes.append(Outcome.CLOSED)
        elif arrival.is_own and not may_be_late(arrival.fills, arrived, lowest):
            outcomes.append(Outcome.NOT_NEEDED)
        else:
            outcomes.append(Outcome.ADMITTED)
            unused.difference_update([report], token)
            arrived += 1
    return outcomes, unused


def may_be_late(batch: int | None, arrived: int, lowest: int) -> bool:
    """Whether this is the open batch, and somebody is in it."""
    number, taken = divmod(arrived, lowest)
    return batch == number and taken > 0


class Piece(NamedTuple):
    """What one commit group adds to one batch: messages in random order, no report's borders.

    And the sum of what came in the clear, nobody's numbers by themselves. Pieces that were folded
    together are one.
    """

    batch: Batch
    own: int
    body: bytes


Added = tuple[Iterable[bytes], NDArray[np.uint64]]
"""Ciphertexts that the service adds to a batch, and numbers that it adds to what is clear.

The ciphertexts may still be under way: whoever reads them waits."""

Adding = Callable[[Batch], Added]
NOTHING: Added = (), np.empty(0, np.uint64)


def add_nothing(batch: Batch) -> Added:
    return NOTHING


def dummies_for(document: Document, sealer: Seals | None = None) -> Adding:
    """What the plan's mechanisms have the service add to batches, sealed as users' messages are.

    It is drawn afresh whenever it is asked for: a second release of a batch with other dummies
    would tell which they are. So a store asks once for every release that it keeps.
    """
    seals = document.sealer if sealer is None else sealer

    def add(batch: Batch) -> Added:
        level = document.formats.level(batch.level)
        messages = document.mechanisms[batch.level - 1].draw_added(secure_random())
        plaintexts = level.messages_to_bytes(messages.sealed)
        return seals.seal(level.level, plaintexts), messages.clear[0]

    return add


def pieces(
    levels: Sequence[LevelFormat], admitted: Sequence[Arrival], arrived: int
) -> Iterator[Piece]:
    """What the reports after the first `arrived` add to batches: cut exactly where one ends."""
    random = secure_random()
    for place, level in enumerate(levels):
        for batch, part in _cut(level, len(admitted), arrived):
            reports = admitted[part]
            messages, clear = level.gather([report.parts[place] for report in reports])
            body = level.pack(permute(messages, random).tobytes(), clear)
            yield Piece(batch, sum(one.is_own for one in reports), body)


def empty_pieces(levels: Sequence[LevelFormat], places: int, arrived: int) -> Iterator[Piece]:
    """What this many places after the first `arrived` add to batches if nobody takes them."""
    for level in levels:
        for batch, part in _cut(level, places, arrived):
            body = level.pack(b"", np.zeros(level.clear_numbers, np.uint64))
            yield Piece(batch, part.stop - part.start, body)


def _cut(level: LevelFormat, places: int, arrived: int) -> Iterator[tuple[Batch, slice]]:
    """The batches that have the places after the first `arrived`, and which of these they have."""
    start = 0
    while start < places:
        number, taken = divmod(arrived + start, level.size)
        stop = min(places, start + level.size - taken)
        yield Batch(level.level, number), slice(start, stop)
        start = stop


class Gathered(NamedTuple):
    """Pieces of one batch together: all their messages, in no order yet, and their sum."""

    own: int
    messages: NDArray[np.uint8]
    clear: NDArray[np.uint64]

    @classmethod
    def of(cls, level: LevelFormat, found: Iterable[Piece]) -> Gathered:
        """However many they are: each is let go of when the next is looked at."""
        own: list[int] = []

        def bodies() -> Iterator[bytes]:
            for piece in found:
                own.append(piece.own)
                yield piece.body

        messages, clear = level.gather(bodies())
        return cls(sum(own), messages, clear)


def fold_pieces(batch: Batch, level: LevelFormat, gathered: Gathered) -> Piece:
    """One piece instead of many: their messages in an order drawn now, and their sum."""
    own, messages, clear = gathered
    body = level.pack(permute(messages, secure_random()).tobytes(), clear)
    return Piece(batch, own, body)


def to_fold(level: LevelFormat, lengths: Mapping[bytes, int]) -> list[bytes]:
    """The keys of pieces of a batch that had better be one, of those that have these lengths.

    Beside its messages a piece costs its part in the clear, and a page. Pieces are folded with
    others of their size, eight or more of them: so a message is written again whenever its piece
    has grown eightfold, and not at all once its piece is large enough to be worth what it costs.
    """
    tiers: dict[int, list[bytes]] = {}
    for key, length in sorted(lengths.items(), key=itemgetter(1)):
        sealed = length - level.clear_bytes
        if sealed < _WORTH * (level.clear_bytes + _PAGE_BYTES):
            reports = sealed // (level.messages * level.ciphertext_bytes)
            tiers.setdefault((reports.bit_length() - 1) // _FAN_BITS, []).append(key)
    for _, keys in sorted(tiers.items()):
        if len(keys) >> _FAN_BITS:
            ends = accumulate(lengths[key] for key in keys[:_MOST_FOLDED])
            return keys[: max(2, sum(end <= _MOST_FOLDED_BYTES for end in ends))]
    return []


def build_release(
    batch: Batch, level: LevelFormat, gathered: Gathered, added: Added = NOTHING
) -> Release:
    """The release of a full batch: all its messages and those `added`, in an order drawn now."""
    own, messages, clear = gathered
    users = level.users(own)
    if len(messages) != users * level.messages or users < 1:
        raise ProtocolViolation(
            f"{batch} holds {len(messages)} of {users * level.messages} messages of {users} users"
        )
    more, numbers = list(added[0]), added[1]
    # Where services make the noise no number may be missing: it would be a batch without noise.
    may_lack_numbers = level.is_filled and not len(numbers)
    if len(more) != level.added_messages or not (
        may_lack_numbers or len(numbers) == level.clear_numbers
    ):
        raise ProtocolViolation(
            f"{len(more)} messages and {len(numbers)} numbers were added to {batch}, not "
            f"{level.added_messages} and {level.clear_numbers}"
        )
    if more:
        rows = np.frombuffer(b"".join(more), np.uint8).reshape(-1, level.ciphertext_bytes)
        messages = np.concatenate([messages, rows])
    if len(numbers):
        clear = level.add_up(np.array([clear, numbers]))
    distinct, repeats = strike_repeats(messages)
    body = level.pack(permute(distinct, secure_random()).tobytes(), clear)
    return Release(batch, own, body, repeats)


def permute(messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
    """The same messages, one per row, in uniformly random order: one batch, as shufflers do it."""
    shuffled: NDArray[np.uint8] = shuffle(Messages.of(messages[np.newaxis]), random).sealed[0]
    return shuffled


def strike_repeats(messages: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """One copy of equal messages stays, the others are struck out; and how many they are.

    Honest messages never meet: each is sealed under a fresh key. A report put together from
    messages of others must neither count them twice nor void the batch.
    """
    heads = np.ascontiguousarray(messages[:, :_HEAD_BYTES]).view(np.uint64).reshape(-1)
    values, counts = np.unique(heads, return_counts=True)
    suspects = np.flatnonzero(np.isin(heads, values[counts > 1]))
    _, first = np.unique(messages[suspects], axis=0, return_index=True)
    repeats = np.delete(suspects, first)
    return strike_out(messages, repeats), len(repeats)
