"""What else the server's store does if the services make the noise.

The server's noise hides a user from everybody else, a lying shuffling service included, if the
user's message is in one batch of a level, and if the noise of a batch is drawn once. So a message
counts once in a plan's life, wherever the service puts it; and a batch cannot be opened again once
its sum is in the store, not even by a store that was restored from a copy, or by a second one: two
noises of one batch average out. So the keys of a store are made once, with its document, and never
by a server: whoever has lost them cannot begin a second store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.keys import UnsafeSecret
from overhand.deploy.protocol.sealing import strike_out
from overhand.deploy.protocol.wire import Batch, Formats, Release
from overhand.errors import InvalidValue

if TYPE_CHECKING:
    from overhand.deploy.server.store import ServerTables

Needed = Mapping[int, Collection[int]]
"""By level, batches without a sum; the last of a level stands for all after it as well."""

_ADVICE = (
    "Bring back the newest database, with its keys as they were last and not as they were made. If "
    "they are lost, this document cannot be served again: noise would be drawn twice for the same "
    "users. The published sum can go on: run `overhand settle` on the newest copy of the database, "
    "`overhand prepare` a plan in another directory, and start its server with --after"
)

MARK_BYTES = 16
_GROWTH = 4  # few runs are quick to search, and seldom merged if each is so much longer
Fingerprints = NDArray[np.bytes_]


class ReplayProtection:
    """The formats of a document, and the keys of its store's batches in the file `path`.

    Of every message that ever came the store keeps 16 bytes, in a row for each release (some 19
    bytes of a SQLite file for a message), and every process of the server has them in memory.
    """

    def __init__(self, formats: Formats, path: Path) -> None:
        self._formats = formats
        self._path = path
        self._levels = [level.level for level in formats.levels]
        self.keys: BatchKeys
        """Those of the store, once it was found."""
        self._marks = CiphertextIndex()
        self._place = 0
        self._lock = Lock()

    def make_keys(self) -> None:
        """Once in the life of a document: there is no second store of it."""
        BatchKeys.create(self._path, self._levels, self._formats.digest)

    def begin(self) -> str:
        """Take the keys that were made for a new store; their name."""
        if not self._path.exists():
            raise UnsafeSecret(
                f"there is no file {self._path} with the keys of the database. If this document "
                "was never served, move the file there that `overhand prepare` made with it, or "
                f"name it with --database-keys. If it was served: {_ADVICE}"
            )
        return BatchKeys.for_new_store(self._path, self._formats.digest, "database", _ADVICE).name

    def find(self, name: str) -> None:
        """Take the keys that a store was made with."""
        self.keys = BatchKeys.for_store(self._path, name, self._levels, "database", _ADVICE)

    def strike_repeats(self, release: Release, tables: ServerTables) -> tuple[Release, int]:
        """A release without messages that came before, and how many these are.

        Of equal ones the first stays; the others are struck out, as if that had been sent: whoever
        opens the release sees the same.
        """
        messages = self._formats.level(release.batch.level).ciphertexts(release.body)
        marks = fingerprints_of(messages)
        order = np.argsort(marks, kind="stable")
        marks = marks[order]
        place, is_repeat = self._compare(marks, tables)
        is_repeat[1:] |= marks[1:] == marks[:-1]
        tables.add_marks(place, marks[~is_repeat].tobytes())
        struck = order[is_repeat]
        if not len(struck):
            return release, 0
        body = strike_out(messages, struck).tobytes() + release.body[messages.size :]
        return replace(release, body=body), len(struck)

    def _compare(self, marks: Fingerprints, tables: ServerTables) -> tuple[int, NDArray[np.bool_]]:
        """The place for these marks in the store, and which of them it has.

        Memory has what was committed, and nothing else: a process that waits for the lock of the
        store reads what others put there, and its own come back from the store.
        """
        tables.lock()
        with self._lock:
            while found := tables.marks_after(self._place):
                self._marks.add(fingerprints_from(kept) for _, kept in found)
                self._place = found[-1][0]
            return self._place + 1, self._marks.find(marks)

    def seal(self, release: Release) -> Release:
        """As the store keeps it; `KeyGone` if the batch had a sum."""
        body = self.keys.seal(release.batch, release.own, release.body)
        return replace(release, body=body)

    def open(self, release: Release) -> Release:
        """What was sealed; `KeyGone` if the batch has a sum."""
        body = self.keys.open(release.batch, release.own, release.body)
        return replace(release, body=body)

    def check(self, needed: Needed) -> None:
        """Refuse a store whose keys are ahead of it."""
        batches = [Batch(level, number) for level in needed for number in needed[level]]
        last = [Batch(level, max(needed[level])) for level in needed]
        if not (all(map(self.keys.has, batches)) and all(map(self.keys.has_from, last))):
            raise InvalidValue(f"{self.too_old}. {_ADVICE}")

    @property
    def too_old(self) -> str:
        """What is wrong with a store that misses a key."""
        return (
            f"the database is older than its keys in {self._path}: it is a copy from before some "
            "sums were published"
        )


def fingerprints_of(ciphertexts: NDArray[np.uint8]) -> Fingerprints:
    """The first half of the key that a message was sealed with (HPKE's `enc`), one per row.

    The message's secret depends on that key, and the rest is authenticated: a ciphertext of which a
    bit was changed does not open, so no other bytes mean the same. Two honest ones differ except
    with probability 2^-128. Only the service that has a message could forge its beginning before it
    comes, to have it struck out, and that service could simply drop it.
    """
    return _marks(np.ascontiguousarray(ciphertexts[:, :MARK_BYTES]))


def fingerprints_from(kept: bytes) -> Fingerprints:
    """Those that `tobytes` wrote."""
    return _marks(np.frombuffer(kept, np.uint8))


def _marks(content: NDArray[Any]) -> Fingerprints:
    return content.reshape(-1).view(f"S{MARK_BYTES}")


class CiphertextIndex:
    """A set that only grows, in 16 bytes for each: sorted runs, each far longer than the next.

    A table of them in the database would be as exact but far slower: they are scattered over it,
    so each needs a page of its own to be written.
    """

    def __init__(self) -> None:
        self._runs: list[Fingerprints] = []

    def add(self, more: Iterable[Fingerprints]) -> None:
        run = np.sort(np.concatenate([fingerprints_from(b""), *more]))
        while self._runs and len(self._runs[-1]) <= _GROWTH * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # which merges what is sorted
        if len(run):
            self._runs.append(run)

    def find(self, marks: Fingerprints) -> NDArray[np.bool_]:
        """Which of these are in the set: soonest found if they are sorted."""
        found = np.zeros(len(marks), np.bool_)
        for run in self._runs:
            places = np.searchsorted(run, marks)
            found |= run[np.minimum(places, len(run) - 1)] == marks
        return found
