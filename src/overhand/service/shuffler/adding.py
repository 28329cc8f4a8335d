"""What the service itself adds to batches: drawn when a batch is frozen, never stored apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from overhand.randomness import secure_random
from overhand.service.pools import WorkerPool
from overhand.service.protocol import Batch, Document, Sealer, info
from overhand.service.shuffler.store import Added, Adding


class Seals(Protocol):
    """What seals messages: here and now, or in many processes."""

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> Iterable[bytes]:
        """One ciphertext for every message, in order."""


class SealerPool(WorkerPool[bytes]):
    """Seals messages of one plan in processes of its own, which have the public key."""

    def __init__(self, public_key: bytes, digest: bytes, workers: int) -> None:
        Sealer(public_key, digest)  # refuse a key that hides nothing before anybody needs it
        self._digest = digest
        super().__init__(workers, _sealing, public_key, digest)

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> Iterator[bytes]:
        """The ciphertexts, in order; the workers are at it when this returns."""
        info(self._digest, level)
        return self._at_once(level, plaintexts)


def _sealing(public_key: bytes, digest: bytes) -> Callable[[int, list[bytes]], list[bytes]]:
    """What a worker does."""
    return Sealer(public_key, digest).seal


@contextmanager
def sealer_of(document: Document, workers: int) -> Iterator[Seals]:
    """What seals the service's messages: nobody is started for a plan that has none."""
    if not any(level.added_messages for level in document.formats.levels):
        yield document.sealer
        return
    with SealerPool(document.public_key, document.formats.digest, workers) as pool:
        yield pool


def added_by(document: Document, sealer: Seals | None = None) -> Adding:
    """What the plan's mechanisms have the service add to batches, sealed as users' messages are.

    It is drawn afresh whenever it is asked for: a second release of a batch with other dummies
    would tell which they are. So a store asks once for every release that it keeps.
    """
    seals = document.sealer if sealer is None else sealer

    def added(batch: Batch) -> Added:
        level = document.formats.level(batch.level)
        messages = document.mechanisms[batch.level - 1].added(secure_random())
        plaintexts = level.messages_to_bytes(messages.sealed)
        return seals.seal(level.level, plaintexts), messages.clear[0]

    return added
