"""The shuffle that is deployed: reports go through the real store, and its releases are attacked.

Sealing is replaced. It hides messages from the shuffling service, and what is asked here is what
the server sees, who can open them: so a message stands in the clear behind random bytes, and has a
ciphertext's length. The store, which reads neither, treats both alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import ID_BYTES, LevelFormat
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.batching import Arrival, OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.lab.audit.cases import Case, Deployment
from overhand.mechanisms import Mechanism
from overhand.model import Messages, Rows, Shuffled
from overhand.planning import SEAL_BYTES, Plan
from overhand.randomness import Random

_GROUPS = (*[1] * 8, 8, 2, 3, 3, 16, 5, 11)
"""Reports per commit: single ones, a whole batch, parts of one, two batches, across borders."""
_HEAD_BYTES = 8  # two honest ciphertexts begin alike with probability 2^-64
_EPHEMERAL_BYTES = 32  # of the key that every ciphertext begins with
_MEMORY = Path("/dev/shm")  # where there is one, a commit waits for no disk


@dataclass(frozen=True)
class ThroughStore(Deployment):
    """Every run is a batch of the highest level: all are in one store, with a long horizon.

    The order of messages comes from OS randomness, whatever the users draw from.
    """

    plan: Plan

    @classmethod
    def of(cls, case: Case) -> ThroughStore:
        return cls(case.deployment().mechanisms, case.plan())

    def seal_dummies(
        self, level: LevelFormat, messages: NDArray[Any], random: Random
    ) -> NDArray[np.uint8]:
        """What the service adds, sealed as users seal it."""
        return seal_behind_noise(level, messages, random)

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Shuffled]:
        """Encode, admit and freeze; then read the bytes of the releases, in their order."""

        document = document_of(self._plan_for(len(rows)))
        formats = document.formats
        sent = self.send(rows, random, attempt)
        parts = [_parts(*level, random) for level in zip(formats.levels, sent, strict=True)]
        arrivals = [
            Arrival(secrets.token_bytes(ID_BYTES), report) for report in zip(*parts, strict=True)
        ]
        noise = noise_behind(document, random, self.seal_dummies)
        with (
            temporary_directory() as home,
            closing(Store(Path(home, "store"), formats, noise=noise)) as store,
        ):
            left, sizes = iter(arrivals), cycle(_GROUPS)
            while group := list(islice(left, next(sizes))):
                store.admit(group)
            releases = store.freeze_all(store.full())
        return [
            _read(level, [one.body for one in releases if one.batch.level == level.level])
            for level in formats.levels
        ]

    def _plan_for(self, users: int) -> Plan:
        if self.plan.noise_by == "services":
            return self.plan
        return replace(self.plan, tree=replace(self.plan.tree, horizon=users), horizon=users)


def document_of(plan: Plan) -> Document:
    """A document of this plan, with a key that nobody needs."""

    return Document(plan, KeyPair.generate().public_key)


def noise_behind(document: Document, random: Random, seal: Any = None) -> OwnNoise | None:
    """The shuffling service's noise, its dummies sealed as everything is here."""

    level = document.formats.levels[0]
    sealer: Any = _BehindNoise(level, random, seal or seal_behind_noise)
    return None if document.plan.noise_by == "users" else OwnNoise(document, sealer, random)


@dataclass(frozen=True)
class _BehindNoise:
    """Seals dummies, which are those of one block each time."""

    format: LevelFormat
    random: Random
    seal_all: Callable[[LevelFormat, NDArray[Any], Random], NDArray[np.uint8]]

    def seal(self, level: int, plaintexts: list[bytes]) -> list[bytes]:
        if not plaintexts:
            return []
        messages = self.format.bytes_to_messages(plaintexts)[np.newaxis]
        return [row.tobytes() for row in self.seal_all(self.format, messages, self.random)[0]]


def temporary_directory() -> TemporaryDirectory[str]:
    """For a database that nobody needs for long."""
    return TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)


def seal_behind_noise(
    level: LevelFormat, messages: NDArray[Any], random: Random
) -> NDArray[np.uint8]:
    """By user and message, the bytes of what stands for a ciphertext: random ones, 0s, the message.

    The 0s stand for what authenticates it: other bytes do not open.
    """
    plain = np.frombuffer(b"".join(level.messages_to_bytes(messages)), np.uint8)
    rows = plain.reshape(-1, level.plaintext_bytes)
    hidden = random.words(len(rows) * _EPHEMERAL_BYTES, np.uint8).reshape(-1, _EPHEMERAL_BYTES)
    tags = np.zeros((len(rows), SEAL_BYTES - _EPHEMERAL_BYTES), np.uint8)
    sealed = np.concatenate([hidden, tags, rows], axis=1)
    return sealed.reshape(*messages.shape[:2], level.ciphertext_bytes)


def unseal(ciphertext: bytes) -> bytes | None:
    """The message behind random bytes, if it is one."""
    return None if any(ciphertext[_EPHEMERAL_BYTES:SEAL_BYTES]) else ciphertext[SEAL_BYTES:]


def _parts(level: LevelFormat, messages: Messages, random: Random) -> list[bytes]:
    """What every user's report says to a level."""
    rows = seal_behind_noise(level, messages.sealed, random)
    pairs = zip(rows, messages.clear, strict=True)
    return [level.pack(row.tobytes(), numbers) for row, numbers in pairs]


def _read(level: LevelFormat, bodies: Sequence[bytes]) -> Shuffled:
    """The messages of releases, one per row, in the order in which they were released.

    But those whose ciphertexts begin as others do come last: honest ones never do.
    """
    rows = np.stack([level.ciphertexts(body) for body in bodies])
    heads = np.ascontiguousarray(rows[:, :, :_HEAD_BYTES]).view(np.uint64)[:, :, 0]
    for row, of_row in zip(rows, heads, strict=True):
        _, places, counts = np.unique(of_row, return_inverse=True, return_counts=True)
        if counts.max() > 1:
            row[:] = row[np.argsort(counts[places], kind="stable")]
    plaintexts = rows[:, :, level.ciphertext_bytes - level.plaintext_bytes :]
    packed = np.ascontiguousarray(plaintexts).view(f"V{level.plaintext_bytes}").reshape(-1)
    messages = level.bytes_to_messages(packed.tolist())
    messages = messages.reshape(*rows.shape[:2], *messages.shape[1:])
    return Shuffled(messages, np.stack([level.clear(body) for body in bodies]))


class StoreFault(ThroughStore):
    """One that is planted in the store, where users take part in one level."""

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        """Whether it is a fault of this mechanism."""
        return mechanism.is_shuffle_model


class KeptOrder(StoreFault):
    """Messages stay as they came, in a commit group and in the release."""

    def permute(self, messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
        """What stands for the one function of the store that orders messages."""
        return messages

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Shuffled]:
        with patch.object(batching, "permute", self.permute):
            return super().transcript(rows, random, attempt)


class KeptReports(KeptOrder):
    """Whole reports are permuted, at the one level that there is."""

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        return super().concerns(mechanism) and mechanism.layout.messages_per_user > 1

    def permute(self, messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
        each = self.mechanisms[0].layout.messages_per_user
        reports = messages.reshape(-1, each, messages.shape[1])
        return random.permute(reports).reshape(messages.shape)


class LookAlike(StoreFault):
    """The ciphertexts of all dummies of a batch begin alike, as those of a poor generator would.

    In any order, they can be told from users' messages.
    """

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        return mechanism.layout.added_messages > 0

    def seal_dummies(
        self, level: LevelFormat, messages: NDArray[Any], random: Random
    ) -> NDArray[np.uint8]:
        sealed = super().seal_dummies(level, messages, random)
        sealed[:, :, :_HEAD_BYTES] = sealed[:, :1, :_HEAD_BYTES]
        return sealed


STORE_FAULTS: dict[str, type[StoreFault]] = {
    "store keeps order": KeptOrder,
    "store keeps reports": KeptReports,
    "dummies look alike": LookAlike,
}
"""Faults of the order in which messages leave."""
