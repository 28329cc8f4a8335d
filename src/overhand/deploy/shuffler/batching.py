"""Which reports of a commit group are admitted, which batches they join, how their messages leave.

No database here: a store asks these functions what to write, inside its transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.sealing import Seals, strike_out
from overhand.deploy.protocol.wire import (
    ID_BYTES,
    Batch,
    Formats,
    LevelFormat,
    MaskedSum,
    Offer,
    Release,
)
from overhand.errors import InvalidValue, ProtocolViolation, whole
from overhand.model import Messages
from overhand.randomness import Random, secure_random, source_of
from overhand.shuffle import shuffle

_HEAD_BYTES = 8
_STATE = np.dtype("<i8")
_MOST_BYTES = 900_000_000  # of a release: both databases keep values of up to 1 GB


def lowest_of(formats: Formats) -> LevelFormat:
    """The lowest level of formats that a store can serve, or `InvalidValue`."""
    levels = [level.level for level in formats.levels]
    if not levels or levels != sorted(set(levels)):
        raise InvalidValue(f"levels {levels} must be distinct, at least one, and lowest first")
    if len(levels) > 1 and not all(level.is_filled for level in formats.levels):
        raise InvalidValue("services make the noise of one level, not of a tree")
    for level in formats.levels:
        if level.is_offered and level.is_filled:
            raise InvalidValue("batches are offered only if services make the noise")
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

    def marks(self, keys: BatchKeys) -> list[bytes]:
        """What the store remembers of a report: a mark of its id, and one of its token if any."""
        report = keys.mark(b"report", self.id)
        return [report] if self.token is None else [report, keys.mark(b"token", self.token)]


def judge(
    arrivals: Sequence[Arrival],
    marks: Sequence[Sequence[bytes]],
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
    for arrival, (report, *token) in zip(arrivals, marks, strict=True):
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
    """What one commit group adds to one batch: rows in random order, no report's borders.

    A row is a message; where batches are offered, with the numbers beside it, which is a report.
    """

    batch: Batch
    own: int
    body: bytes


class Added(NamedTuple):
    """What the service adds to a batch for its own noise.

    Ciphertexts may still be under way: whoever reads them waits."""

    sealed: Iterable[bytes]
    clear: NDArray[np.uint64]


class OwnNoise:
    """The service's own noise of a document: of blocks in their order, and its state between them.

    Two draws for the same block, both seen, would hide less than one: so a store keeps what is
    drawn and the state after it in one step, and nobody sees either before that. Each draw has a
    random stream of its own: whoever reads a process's memory finds no key that reproduces earlier
    noise.
    """

    def __init__(
        self, document: Document, sealer: Seals | None = None, random: Random | None = None
    ) -> None:
        (self._mechanism,), (self._level,) = document.mechanisms, document.formats.levels
        self._seals = document.sealer if sealer is None else sealer
        self._random = random

    @classmethod
    def of(cls, document: Document, sealer: Seals | None = None) -> OwnNoise | None:
        """None if users make the noise."""
        return cls(document, sealer) if document.plan.noise_by == "services" else None

    def start(self) -> bytes:
        """A state before the first block, or after one that was lost."""
        return self._mechanism.start_noise(source_of(self._random)).astype(_STATE).tobytes()

    def draw(self, state: bytes, blocks: int) -> tuple[list[Added], bytes]:
        """What is added to each of the next blocks, and the state after them."""
        registers = np.frombuffer(state, _STATE).astype(np.int64)
        registers = registers.reshape(-1, self._mechanism.values.dimension)
        random = source_of(self._random)
        noise, after = self._mechanism.advance_noise(registers, random, blocks)
        added, level = self._mechanism.added(noise), self._level
        # All of them before the first is needed, so that workers seal side by side.
        sealed = [self._seals.seal(level.level, level.messages_to_bytes(m)) for m in added.sealed]
        both = zip(sealed, added.clear, strict=True)
        return [Added(*one) for one in both], after.astype(_STATE).tobytes()


def pieces(
    levels: Sequence[LevelFormat], admitted: Sequence[Arrival], arrived: int
) -> Iterator[Piece]:
    """What the reports after the first `arrived` add to batches: cut exactly where one ends."""
    random = secure_random()
    for place, level in enumerate(levels):
        start = 0
        while start < len(admitted):
            number, taken = divmod(arrived + start, level.size)
            reports = admitted[start : start + level.size - taken]
            rows = level.rows(report.parts[place] for report in reports)
            own = sum(one.is_own for one in reports)
            yield Piece(Batch(level.level, number), own, permute(rows, random).tobytes())
            start += len(reports)


class Gathered(NamedTuple):
    """Pieces of a full batch together: all their rows, in no order yet."""

    batch: Batch
    own: int
    rows: NDArray[np.uint8]

    @classmethod
    def of(cls, batch: Batch, level: LevelFormat, found: Iterable[Piece]) -> Gathered:
        """Or `ProtocolViolation` if they are not all of it."""
        pieces = list(found)
        own, rows = sum(piece.own for piece in pieces), level.rows(piece.body for piece in pieces)
        users = level.users(own)
        if len(rows) != users * level.messages:
            raise ProtocolViolation(
                f"{batch} holds {len(rows)} of {users * level.messages} messages of {users} users"
            )
        return cls(batch, own, rows)


NOTHING = Added((), np.empty(0, np.uint64))


def build_release(level: LevelFormat, gathered: Gathered, added: Added = NOTHING) -> Release:
    """The release of a full batch: all its messages and those `added`, in an order drawn now."""
    batch, own, messages = gathered
    more = list(added.sealed)
    if len(more) != level.added_messages:
        raise ProtocolViolation(
            f"{len(more)} messages were added to {batch}, not {level.added_messages}"
        )
    if more:
        rows = np.frombuffer(b"".join(more), np.uint8).reshape(-1, level.ciphertext_bytes)
        messages = np.concatenate([messages, rows])
    distinct, repeats = strike_repeats(messages)
    return Release(batch, own, permute(distinct, secure_random()).tobytes(), repeats)


class Arranged(NamedTuple):
    """The offer of a full batch, and which of its rows stands at each place."""

    offer: Offer
    places: bytes

    @classmethod
    def of(cls, level: LevelFormat, gathered: Gathered) -> Arranged:
        """In an order drawn now."""
        batch, own, rows = gathered
        order = secure_random().permute(np.arange(len(rows)))
        body = rows[order, : level.ciphertext_bytes].tobytes()
        return cls(Offer(batch, own, body), order.astype(_STATE).tobytes())


def mask_sum(
    level: LevelFormat, gathered: Gathered, places: bytes, answer: bytes,
    refused: NDArray[np.int64], added: Added,
) -> MaskedSum:  # fmt: skip
    """What the rows of an offer come to that an answer does not refuse."""
    order = np.frombuffer(places, _STATE)
    kept = np.delete(order, refused) if len(refused) else slice(None)
    body = level.pack(b"", _with_noise(level, gathered.rows[kept], added))
    return MaskedSum(gathered.batch, gathered.own, hashlib.sha256(answer).digest(), body)


def release_offer(level: LevelFormat, gathered: Gathered, offer: Offer, added: Added) -> Release:
    """A batch in one step, whatever is garbage in it: what was offered, and all its numbers."""
    clear = _with_noise(level, gathered.rows, added)
    return Release(gathered.batch, gathered.own, level.pack(offer.body, clear))


def _with_noise(level: LevelFormat, rows: NDArray[np.uint8], added: Added) -> NDArray[np.uint64]:
    if len(added.clear) != level.clear_numbers:  # it would be a batch without noise
        raise ProtocolViolation(
            f"{len(added.clear)} numbers were added to a batch, not {level.clear_numbers}"
        )
    return level.add_up(np.array([level.sum_of(rows), added.clear]))


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
