"""Opening messages in processes of their own: it holds the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from overhand.service.pools import WorkerPool
from overhand.service.protocol import KeyPair, Opened, Opener, info


class OpenerPool(WorkerPool[Opened]):
    """Opens messages of one plan in processes of its own, which have the key."""

    def __init__(self, key: KeyPair, digest: bytes, workers: int) -> None:
        info(digest, 1)
        self._digest = digest
        super().__init__(workers, _opening, key.raw, digest)

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> Iterator[Opened]:
        """The plaintexts, in order; a few chunks at a time are in memory, however many come."""
        info(self._digest, level)
        return self._as_read(level, ciphertexts)


def _opening(private_key: bytes, digest: bytes) -> Callable[[int, list[bytes]], list[Opened]]:
    """What a worker does."""
    return Opener(KeyPair.of_raw(private_key), digest).open
