"""What a store of the shuffling service promises, whichever database keeps it.

The life of a batch: *open* while reports are admitted; *full* once it holds exactly `size` of them;
*frozen* when its messages stand in random order as one release, byte for byte what will be sent,
however often; *acknowledged* when the server has it; *scrubbed* when nothing of it is left but its
number and the digest of its release. Every step is one transaction, and every step may be asked for
again after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from overhand.errors import ProtocolViolation


@dataclass(frozen=True)
class Lane:
    """One level of the plan, as a store sees it: fixed numbers, and bytes it cannot read."""

    level: int
    size: int
    """Reports of a batch: exactly so many."""
    messages: int
    """Ciphertexts of a report."""
    length: int
    """Bytes of a ciphertext."""

    @property
    def report_bytes(self) -> int:
        return self.messages * self.length


class BatchName(NamedTuple):
    """A batch: the reports number * size + 1 .. (number + 1) * size, at this level."""

    level: int
    number: int


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

    `parts` has its ciphertexts for every lane, lowest level first; `ids` a digest of each part. A
    token, if there is one, admits one report only.
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


@dataclass(frozen=True)
class Release:
    """A frozen batch: its ciphertexts in random order, and how many reports were the service's."""

    name: BatchName
    body: bytes
    own: int
    digest: bytes
    repeats: int = 0
    """Messages that came more than once: struck out, a reason to look at who may send reports."""


class Scrubbed(ProtocolViolation):
    """The server has this batch, and nothing is left of it here."""


class Store(ABC):
    """The reports of one plan, from their arrival to the acknowledgement of their batch.

    Many threads and, if the database allows it, many processes may use stores of the same plan at
    the same time. Nothing in it keeps the order or the time of arrival: rows have random keys.
    A database that is full, locked, read-only or down raises `StoreUnavailable` and changes
    nothing; the store works again when the database does.
    """

    @abstractmethod
    def admit(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Admit reports: each to all its batches or to none, durable when this returns.

        One transaction for all of them. A report any of whose ids is known is a repeat: it is
        counted once, also if copies come at the same time. If this raises `StoreUnavailable`, the
        reports may be sent again as they are: those that were taken after all are repeats then.
        """

    @property
    @abstractmethod
    def arrived(self) -> int:
        """How many reports were admitted."""

    @abstractmethod
    def full(self) -> list[BatchName]:
        """Batches that are full or frozen, and not acknowledged, lowest level and number first."""

    @abstractmethod
    def freeze_all(self, names: Sequence[BatchName]) -> list[Release]:
        """The releases of full batches: made once, the same bytes ever after.

        The order is drawn from the system's randomness. A batch that is not full raises
        `ProtocolViolation`, and there is no way around it; those that were scrubbed are left out.
        Of messages that are equal one stays, and the others become bytes that nobody can open.
        """

    def freeze(self, name: BatchName) -> Release:
        """The release of one batch; `Scrubbed` if nothing is left of it."""
        for release in self.freeze_all([name]):
            return release
        raise Scrubbed(f"{name} was acknowledged and scrubbed")

    @abstractmethod
    def acknowledge_all(self, releases: Sequence[tuple[BatchName, bytes]]) -> None:
        """The server has the releases with these digests: as often as it says so.

        Another digest than a release's raises `ProtocolViolation`, and none is acknowledged.
        """

    def acknowledge(self, name: BatchName, digest: bytes) -> None:
        """The server has this release."""
        self.acknowledge_all([(name, digest)])

    @abstractmethod
    def scrub(self) -> int:
        """Forget the messages of acknowledged batches for good; returns how many batches.

        And destroy the keys of all batches of which nothing is left, whoever forgot them.
        """

    @abstractmethod
    def claim_sending(self) -> bool:
        """Whether this process may send batches, and no other until it is done or ends.

        It saves sending them twice, which would do no harm.
        """

    @abstractmethod
    def end_sending(self) -> None:
        """Let other processes send batches."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""
