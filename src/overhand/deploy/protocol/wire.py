"""What goes over the wire: bytes whose length and layout follow from the plan alone.

A report is `OVH3`, the plan's digest (32 bytes), an id (16 random bytes, by which it is
known again) and, lowest level first, the parts of one user. All that the shuffling service sends
begins alike: four letters, the digest, level (1 byte), batch number (8) and the number of its own
reports or of places left empty (4); numbers are big endian.

A release (`OVR3`) goes on with what the batch came to: ciphertexts and, if the mechanism sends any,
numbers in the clear, added up modulo 2^clear_bits; a part of a report looks the same. Where there
are numbers in the clear a batch is offered first: an offer (`OVO3`) has its ciphertexts, an answer
(`OVA3`) the digest of the offer and the places of those that do not count, a sum (`OVS3`) the
digest of the answer and the numbers of the rest, added up.

A message and a number in the clear are little endian, in as few bytes as their bits need; a message
of more than 64 bits is not a number but bytes, such as a seed. Whatever is read is either correct
to the last byte or refused with one error: `WrongPlan` for another plan's bytes, else
`InvalidValue`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms import Mechanism, byte_width, to_bytes, to_numbers
from overhand.planning import DIGEST_BYTES as DIGEST_BYTES
from overhand.planning import HEADER_BYTES, Plan, report_bytes
from overhand.planning import ID_BYTES as ID_BYTES
from overhand.planning import SEAL_BYTES as SEAL_BYTES

VERSION = 3
REPORT_MAGIC = b"OVH3"
RELEASE_MAGIC = b"OVR3"
OFFER_MAGIC = b"OVO3"
ANSWER_MAGIC = b"OVA3"
SUM_MAGIC = b"OVS3"

MOST_NUMBER_BITS = 64
"""A longer message is not a number but bytes: an array of them has one more axis."""
MOST_MESSAGE_BITS = 256
MOST_LEVELS = 255
MOST_REPORT_BYTES = 1 << 24
"""A limit on the work that a document may ask of a client."""

_HEADER = struct.Struct(f">4s{DIGEST_BYTES}sBQI")
_ANSWER_HEADER = len(ANSWER_MAGIC) + DIGEST_BYTES
_POSITION = np.dtype(">u4")
_MOST_BATCHES = (1 << 64) - 1
_MOST_REPORTS = (1 << 32) - 1


class WrongPlan(errors.InvalidValue):
    """Bytes that were made for another plan: their sender should fetch the document again."""


class Batch(NamedTuple):
    """The reports number * size + 1 .. (number + 1) * size, at this level.

    >>> str(Batch(2, 0))
    'batch 0 of level 2'
    """

    level: int
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of level {self.level}"


class Report(NamedTuple):
    """What a user sends: one part per level, under an id drawn for it alone.

    The id says nothing about the parts: neither can be guessed from the other.
    """

    id: bytes
    parts: tuple[bytes, ...]


@dataclass(frozen=True)
class Release:
    """A frozen batch as it is sent, however often.

    `body` has its ciphertexts in random order, and the sum of what came in the clear. `own` reports
    of it were the shuffling service's.
    """

    batch: Batch
    own: int
    body: bytes
    repeats: int = 0
    """Messages that came more than once: struck out; check who may send reports."""

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.body).digest()


class Offer(NamedTuple):
    """The ciphertexts of a batch in an order drawn once: what the server first says is garbage.

    `own` places of it were left empty.
    """

    batch: Batch
    own: int
    body: bytes


@dataclass(frozen=True)
class MaskedSum:
    """What the numbers of a batch came to that count after the answer with this digest."""

    batch: Batch
    own: int
    answer: bytes
    body: bytes

    @cached_property
    def digest(self) -> bytes:
        """Of the answer as well: another answer is another sum."""
        return hashlib.sha256(self.answer + self.body).digest()


Sent = TypeVar("Sent", bound=Release | Offer | MaskedSum)
_KINDS = {
    Release: ("release", RELEASE_MAGIC),
    Offer: ("offer", OFFER_MAGIC),
    MaskedSum: ("sum", SUM_MAGIC),
}


@dataclass(frozen=True)
class LevelFormat:
    """One level of a deployed plan: how many messages there are, and how long they are."""

    level: int
    size: int
    batches: int
    """Whole batches that there may ever be; their numbers count from 0."""
    messages: int
    """Messages per user."""
    message_bits: int
    clear_numbers: int = 0
    """Numbers per user in the clear."""
    clear_bits: int = 0
    added_messages: int = 0
    """Messages that the shuffling service adds to a batch."""
    is_filled: bool = True
    """Whether the service's own reports fill vacant places: otherwise these stay empty."""

    @property
    def is_offered(self) -> bool:
        """Whether ciphertexts go to the server first, and a sum of the numbers of those it opens.

        Then a user has one ciphertext, next to which its numbers stay until the sum is made.
        """
        return self.clear_numbers > 0

    @property
    def plaintext_bytes(self) -> int:
        return byte_width(self.message_bits)

    @property
    def has_numbers(self) -> bool:
        """Whether messages are numbers, or bytes as they are."""
        return self.message_bits <= MOST_NUMBER_BITS

    @property
    def ciphertext_bytes(self) -> int:
        return self.plaintext_bytes + SEAL_BYTES

    @property
    def _clear_width(self) -> int:
        return byte_width(self.clear_bits)

    @property
    def clear_bytes(self) -> int:
        """Length of what stands in the clear at the end of a part, and of a batch."""
        return self.clear_numbers * self._clear_width

    @property
    def part_bytes(self) -> int:
        """Length of a report's part for this level."""
        return self.messages * self.ciphertext_bytes + self.clear_bytes

    def users(self, own: int) -> int:
        """How many users sent messages to a batch in which `own` places are the service's own."""
        return self.size if self.is_filled else self.size - own

    def batch_messages(self, own: int = 0) -> int:
        """Messages of a whole batch in which `own` places are the service's own."""
        return self.users(own) * self.messages + self.added_messages

    def batch_bytes(self, own: int = 0) -> int:
        """Length of such a batch."""
        return self.batch_messages(own) * self.ciphertext_bytes + self.clear_bytes

    def pack(self, ciphertexts: bytes, clear: NDArray[np.uint64]) -> bytes:
        """A part or a batch."""
        return ciphertexts + to_bytes(clear, self._clear_width)

    def ciphertexts(self, body: bytes) -> NDArray[np.uint8]:
        """The ciphertexts of a part or a batch, one per row."""
        sealed = np.frombuffer(body, np.uint8)[: len(body) - self.clear_bytes]
        return sealed.reshape(-1, self.ciphertext_bytes)

    def clear(self, body: bytes) -> NDArray[np.uint64]:
        """The numbers in the clear of a part or a batch, or `InvalidValue` if one is too large."""
        if not self.clear_numbers:
            return np.empty(0, np.uint64)
        return self._numbers(body[len(body) - self.clear_bytes :])

    def _numbers(self, content: bytes) -> NDArray[np.uint64]:
        numbers = to_numbers(content, self._clear_width)
        if int(numbers.max()) >> self.clear_bits:
            raise errors.InvalidValue(
                f"a number in the clear of level {self.level} is not below 2^{self.clear_bits}"
            )
        return numbers

    def rows(self, bodies: Iterable[bytes]) -> NDArray[np.uint8]:
        """What pieces of batches hold, a row each: ciphertexts, with their numbers if offered."""
        width = self.part_bytes if self.is_offered else self.ciphertext_bytes
        return np.frombuffer(b"".join(bodies), np.uint8).reshape(-1, width)

    def sum_of(self, rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The numbers of such rows, added up byte by byte."""
        places = rows[:, self.ciphertext_bytes :].sum(axis=0, dtype=np.uint64)
        by_number = places.reshape(-1, self._clear_width)
        return self.add_up((by_number << (8 * np.arange(self._clear_width, dtype=np.uint64))).T)

    def add_up(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The sum of rows of numbers, modulo 2^clear_bits."""
        total: NDArray[np.uint64] = numbers.sum(axis=0, dtype=np.uint64)  # modulo 2^64
        return total & np.uint64((1 << self.clear_bits) - 1)

    def distinct(self, body: bytes, own: int = 0) -> NDArray[np.void]:
        """The ciphertexts of a batch, sorted, every one of them once.

        Honest ones never repeat, so a copy is somebody's second vote: it counts as missing.
        """
        _check_length(f"batch of level {self.level}", body, self.batch_bytes(own))
        return np.unique(self.ciphertexts(body).view(f"V{self.ciphertext_bytes}"))

    def messages_to_bytes(self, messages: NDArray[Any]) -> list[bytes]:
        """Every message in `plaintext_bytes` bytes."""
        content = self._pack_numbers(messages) if self.has_numbers else messages.tobytes()
        plaintexts: list[bytes] = np.frombuffer(content, f"V{self.plaintext_bytes}").tolist()
        return plaintexts

    def _pack_numbers(self, messages: NDArray[Any]) -> bytes:
        if messages.dtype.kind not in "iub":
            raise errors.InvalidValue(f"messages of type {messages.dtype} are not whole numbers")
        flat = messages.reshape(-1)
        most = (1 << self.message_bits) - 1
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) <= most:
            raise errors.InvalidValue(
                f"a message of level {self.level} is not below 2^{self.message_bits}"
            )
        return to_bytes(flat, self.plaintext_bytes)

    def bytes_to_messages(self, plaintexts: Sequence[bytes]) -> NDArray[Any]:
        """The messages of plaintexts that all have the right length, however large they are."""
        if any(len(plaintext) != self.plaintext_bytes for plaintext in plaintexts):
            raise errors.InvalidValue(
                f"a plaintext of level {self.level} must have {self.plaintext_bytes} bytes"
            )
        content = b"".join(plaintexts)
        if self.has_numbers:
            return to_numbers(content, self.plaintext_bytes)
        return np.frombuffer(content, np.uint8).reshape(-1, self.plaintext_bytes)


@dataclass(frozen=True)
class Formats:
    """All formats of a deployed plan."""

    digest: bytes
    levels: tuple[LevelFormat, ...]

    @classmethod
    def of(cls, plan: Plan, digest: str | None = None) -> Formats:
        """The formats of a plan, or `InvalidValue` if it cannot be deployed.

        `digest` names what a report is made for: that of a document, so that a new key is another
        name even if the plan is the same; without one, the plan's.
        """
        errors.whole("the number of levels", plan.tree.levels, least=1, most=MOST_LEVELS)
        levels = tuple(
            _format_of(level, plan.most_users, mechanism)
            for level, mechanism in enumerate(plan.mechanisms, start=1)
        )
        formats = cls(bytes.fromhex(plan.digest if digest is None else digest), levels)
        if formats.report_length > MOST_REPORT_BYTES:
            raise errors.InvalidValue(
                f"{plan.messages_per_user} messages per user make a report of "
                f"{formats.report_length} bytes: at most {MOST_REPORT_BYTES} can be deployed"
            )
        return formats

    def level(self, number: int) -> LevelFormat:
        """The format of a level, counted from 1."""
        return self.levels[errors.whole("level", number, least=1, most=len(self.levels)) - 1]

    @cached_property
    def report_length(self) -> int:
        return report_bytes(level.part_bytes for level in self.levels)

    def pack_report(self, report: Report) -> bytes:
        """The bytes of a report."""
        _check_length("report's id", report.id, ID_BYTES)
        lengths = [len(part) for part in report.parts]
        if lengths != (expected := [level.part_bytes for level in self.levels]):
            raise errors.InvalidValue(f"parts of {lengths} bytes, not {expected}")
        return b"".join([REPORT_MAGIC, self.digest, report.id, *report.parts])

    def check_plan(self, head: bytes) -> None:
        """Raise `WrongPlan` if this is the beginning of a report for another plan."""
        if head[: len(REPORT_MAGIC)] == REPORT_MAGIC:
            self._check_header("report", REPORT_MAGIC, head)

    def unpack_report(self, body: bytes) -> Report:
        """What a user sent, if it is a report for this plan.

        The plan is looked at before the length: another plan's report has another length.
        """
        self._check_header("report", REPORT_MAGIC, body)
        _check_length("report", body, self.report_length)
        parts = tuple([body[part] for part in self._parts])
        for level, part in zip(self.levels, parts, strict=True):
            level.clear(part)  # refuse numbers that are too large
        return Report(body[HEADER_BYTES - ID_BYTES : HEADER_BYTES], parts)

    @cached_property
    def _parts(self) -> list[slice]:
        """Where the parts of a report are."""
        lengths = (level.part_bytes for level in self.levels)
        ends = list(accumulate(lengths, initial=HEADER_BYTES))
        return [slice(start, stop) for start, stop in zip(ends, ends[1:], strict=False)]

    @cached_property
    def most_release_bytes(self) -> int:
        """The length of the longest release: no offer and no sum is longer."""
        return _HEADER.size + max(level.batch_bytes() for level in self.levels)

    def pack(self, sent: Release | Offer | MaskedSum) -> bytes:
        """The bytes of what the shuffling service sends of a batch."""
        self._check(sent)
        head = _HEADER.pack(_KINDS[type(sent)][1], self.digest, *sent.batch, sent.own)
        return head + (sent.answer if isinstance(sent, MaskedSum) else b"") + sent.body

    def unpack(self, kind: type[Sent], sent: bytes) -> Sent:
        """What was sent, if it is one of this kind, of a batch of this plan."""
        what, magic = _KINDS[kind]
        self._check_header(what, magic, sent)
        if len(sent) < _HEADER.size:
            raise errors.InvalidValue(f"a {what} of {len(sent)} bytes ends in its header")
        _, _, level, number, own = _HEADER.unpack_from(sent)
        rest = sent[_HEADER.size :]
        parts = (rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]) if kind is MaskedSum else (rest,)
        found = kind(Batch(level, number), own, *parts)
        self._check(found)
        return found

    def pack_answer(self, offer: bytes, refused: Sequence[int] | NDArray[Any]) -> bytes:
        """The bytes of the answer to these of an offer: where the ciphertexts are that don't count.

        In ascending order, counted from 0.
        """
        positions = np.asarray(refused, np.int64)
        self._check_positions(offer, positions)
        digest = hashlib.sha256(offer).digest()
        return ANSWER_MAGIC + digest + positions.astype(_POSITION).tobytes()

    def unpack_answer(self, offer: bytes, answer: bytes) -> NDArray[np.int64]:
        """The positions that an answer to these bytes of an offer has."""
        digest = hashlib.sha256(offer).digest()
        if answer[:_ANSWER_HEADER] != ANSWER_MAGIC + digest:
            raise errors.InvalidValue("this is not an answer to the offer")
        content = answer[_ANSWER_HEADER:]
        if len(content) % _POSITION.itemsize:
            raise errors.InvalidValue(f"an answer of {len(answer)} bytes ends in a position")
        positions = np.frombuffer(content, _POSITION).astype(np.int64)
        self._check_positions(offer, positions)
        return positions

    def _check_header(self, what: str, magic: bytes, body: bytes) -> None:
        found = body[: len(magic)]
        if found != magic:
            is_older = found[:-1] == magic[:-1] and found[-1:].isdigit()
            advice = ": its sender speaks another version of the protocol" if is_older else ""
            raise errors.InvalidValue(f"a {what} starts with {magic!r}, not {found!r}{advice}")
        digest = body[len(magic) : len(magic) + DIGEST_BYTES]
        if len(digest) == DIGEST_BYTES and digest != self.digest:
            raise WrongPlan(
                f"a {what} for the plan {digest.hex()[:12]}, not {self.digest.hex()[:12]}"
            )

    def _check(self, sent: Release | Offer | MaskedSum) -> None:
        level, own = sent.batch.level, sent.own
        shape = self._shape(sent.batch, own)
        if isinstance(sent, Release):
            _check_length(f"batch of level {level}", sent.body, shape.batch_bytes(own))
        elif not shape.is_offered:
            raise errors.InvalidValue(f"batches of level {level} are not offered")
        elif isinstance(sent, Offer):
            due = shape.users(own) * shape.ciphertext_bytes
            return _check_length(f"offer of level {level}", sent.body, due)
        else:
            _check_length("digest of an answer", sent.answer, DIGEST_BYTES)
            _check_length(f"sum of level {level}", sent.body, shape.clear_bytes)
        shape.clear(sent.body)  # refuse numbers that are too large

    def _check_positions(self, offer: bytes, positions: NDArray[np.int64]) -> None:
        batch, own, _ = self.unpack(Offer, offer)
        users = self.level(batch.level).users(own)
        if positions.size and not (
            positions[0] >= 0 and positions[-1] < users and (np.diff(positions) > 0).all()
        ):
            raise errors.InvalidValue(f"positions of an answer ascend, from 0 on, below {users}")

    def _shape(self, batch: Batch, own: int) -> LevelFormat:
        shape = self.level(batch.level)
        last = min(shape.batches - 1, _MOST_BATCHES)
        errors.whole(f"the batch number at level {batch.level}", batch.number, least=0, most=last)
        errors.whole("the number of own reports", own, least=0, most=shape.size)
        return shape


def _format_of(level: int, most_users: int, mechanism: Mechanism) -> LevelFormat:
    bits = errors.whole(
        "message_bits", mechanism.layout.message_bits, least=1, most=MOST_MESSAGE_BITS
    )
    if bits > MOST_NUMBER_BITS and bits % 8:
        raise errors.InvalidValue(
            f"message_bits={bits} above {MOST_NUMBER_BITS} must be whole bytes"
        )
    least = int(mechanism.layout.clear_numbers > 0)
    if least and (mechanism.noise_by == "users" or mechanism.layout.messages_per_user != 1):
        raise errors.InvalidValue(
            "numbers in the clear stand beside one message, and services make their noise"
        )
    return LevelFormat(
        level,
        errors.whole("size", mechanism.size, least=1, most=_MOST_REPORTS),
        most_users // mechanism.size,
        mechanism.layout.messages_per_user,
        bits,
        mechanism.layout.clear_numbers,
        errors.whole("clear_bits", mechanism.layout.clear_bits, least=least, most=MOST_NUMBER_BITS),
        mechanism.layout.added_messages,
        mechanism.noise_by == "users",
    )


def _check_length(what: str, body: bytes, expected: int) -> None:
    if len(body) != expected:
        raise errors.InvalidValue(f"a {what} has {expected} bytes, not {len(body)}")
