"""What else the server's store does if the services make the noise.

The server's noise hides a user from everybody else, a lying shuffling service included, if the
user's message is in one batch, and if the noise of a batch is drawn once. So a message counts once
in a plan's life, wherever the service puts it: its mark is kept in the transaction that stores the
answer to an offer, or the release where there was none. And a batch cannot be opened again once its
sum is in the store, not even by a store that was restored from a copy, or by a second one: two
noises of one batch average out. So the keys of a store are made once, with its document, and never
by a server: whoever has lost them cannot begin a second store.

The noise of all batches goes on from one state (`overhand.noise.services`). It is sealed under a
key for the next batch that will have noise, which is destroyed when that has it: so no copy of the
store shows a state from before the last batch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import BatchKeys, KeyGone
from overhand.deploy.http.telemetry import log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import UnsafeSecret
from overhand.deploy.protocol.sealing import strike_out
from overhand.deploy.protocol.wire import Batch, Offer, Release
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import Counts
from overhand.randomness import Random, source_of

if TYPE_CHECKING:
    from overhand.deploy.server.store import ServerTables

Needed = Mapping[int, Collection[int]]
"""By level, batches without a sum, and rows of noise that were not drawn.

The last of a level stands for all after it as well."""

_ADVICE = (
    "Bring back the newest database, with its keys as they were last and not as they were made. If "
    "they are lost, this document cannot be served again: noise would be drawn twice for the same "
    "users. The published sum can go on: run `overhand settle` on the newest copy of the database, "
    "`overhand prepare` a plan in another directory, and start its server with --after"
)

MARK_BYTES = 16
_MARK = np.dtype(f"S{MARK_BYTES}")
NOISE_LEVEL = 0
"""In the place of a level, for the keys of the noise's state: their numbers are those of rows."""
_GROWTH = 4  # few runs are quick to search, and seldom merged if each is so much longer
Fingerprints = NDArray[np.bytes_]


class NotOffered(ProtocolViolation):
    """A batch was released with messages that are not those that were offered for it."""


class ReplayProtection:
    """Of a document's store, with the keys of its batches in the file `path`.

    Of every message that ever came the store keeps 16 bytes, in a row for each release (some 19
    bytes of a SQLite file for a message), and every process of the server has them in memory.

    The server's noise is a row for every batch with a sum, drawn once. What is drawn is in the sum
    that goes into the store in the same transaction, as the state that comes after it is, and
    nowhere else.
    """

    def __init__(self, document: Document, path: Path) -> None:
        self._formats = document.formats
        self._level, self._mechanism = self._formats.levels[0], document.mechanisms[0]
        self._random: Random | None = None
        self._path = path
        self._levels = [NOISE_LEVEL, self._level.level]
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

    def mark(self, messages: NDArray[np.uint8], tables: ServerTables) -> NDArray[np.bool_]:
        """Keep the marks of the messages of a batch, one per row; which of them came before.

        Of equal ones the first is new.
        """
        marks = fingerprints_of(messages)
        order = np.argsort(marks, kind="stable")
        marks = marks[order]
        place, is_repeat = self._compare(marks, tables)
        is_repeat[1:] |= marks[1:] == marks[:-1]
        tables.add_marks(place, marks[~is_repeat].tobytes())
        result = np.empty_like(is_repeat)
        result[order] = is_repeat
        return result

    def strike_repeats(self, release: Release, tables: ServerTables) -> tuple[bytes, int]:
        """The body of a release without messages that came before, and how many these are."""
        struck = np.flatnonzero(self.mark(self._level.ciphertexts(release.body), tables))
        return self._strike(release, struck), len(struck)

    def strike_refused(self, release: Release, answer: bytes) -> bytes:
        """The same without messages that do not count by the answer to the offer of its batch."""
        sealed = self._level.ciphertexts(release.body).tobytes()
        offer = self._formats.pack(Offer(release.batch, release.own, sealed))
        try:
            refused = self._formats.unpack_answer(offer, answer)
        except InvalidValue as error:
            raise NotOffered(
                f"{release.batch} was released with other messages than offered"
            ) from error
        return self._strike(release, refused)

    def _strike(self, release: Release, struck: NDArray[np.intp]) -> bytes:
        """As if others had been sent: whoever opens the release sees no difference."""
        if not len(struck):
            return release.body
        messages = self._level.ciphertexts(release.body)
        return strike_out(messages, struck).tobytes() + release.body[messages.size :]

    def answer(self, offer: Offer, counts: NDArray[np.bool_]) -> bytes:
        """That these messages of an offer count."""
        return self._formats.pack_answer(self._formats.pack(offer), np.flatnonzero(~counts))

    def is_answer(self, answer: bytes, offer: Offer) -> bool:
        """Whether this was the answer to exactly this offer."""
        try:
            self._formats.unpack_answer(self._formats.pack(offer), answer)
        except InvalidValue:
            return False
        return True

    def _compare(self, marks: Fingerprints, tables: ServerTables) -> tuple[int, NDArray[np.bool_]]:
        """The place for these marks in the store, and which of them it has.

        Memory has what was committed, and nothing else: a process that waits for the lock of the
        store reads what others put there, and its own come back from the store.
        """
        tables.lock()
        with self._lock:
            while found := tables.marks_after(self._place):
                self._marks.add(np.frombuffer(kept, _MARK) for _, kept in found)
                self._place = found[-1][0]
            return self._place + 1, self._marks.find(marks)

    def draw_noise(self, tables: ServerTables, rows: int) -> Counts:
        """The next rows of the noise; the store must be locked.

        Each draw has a random stream of its own: whoever reads a process's memory finds no key that
        reproduces earlier noise.
        """
        if not rows:
            return np.empty((0, self._mechanism.values.dimension), np.int64)
        random = source_of(self._random)
        drawn, state = self._find_noise(tables, random)
        noise, state = self._mechanism.advance_noise(state, random, rows)
        key = Batch(NOISE_LEVEL, drawn + rows)
        tables.keep_noise(key.number, self.keys.seal(key, 0, state.tobytes()))
        return noise

    def _find_noise(self, tables: ServerTables, random: Random) -> tuple[int, Counts]:
        """How many rows were drawn, and the state after them: a new one if it is lost.

        That costs no privacy, but noise that does not cancel: somebody should know.
        """
        kept = tables.noise()
        state = None if kept is None else self._open_noise(*kept)
        if kept is not None and state is not None:
            return kept[0], state
        drawn = tables.count_values()
        if drawn:
            tables.alarm(f"the state of the server's noise was lost after {drawn} batches")
            log("noise goes on from a new state", level=logging.ERROR, batches=drawn)
        return drawn, self._mechanism.start_noise(random)

    def _open_noise(self, drawn: int, sealed: bytes) -> Counts | None:
        try:
            content = self.keys.open(Batch(NOISE_LEVEL, drawn), 0, sealed)
        except KeyGone as error:
            raise ProtocolViolation(self.too_old) from error
        except ProtocolViolation:  # it was damaged
            return None
        return np.frombuffer(content, np.int64).reshape(-1, self._mechanism.values.dimension).copy()

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
    return np.ascontiguousarray(ciphertexts[:, :MARK_BYTES]).reshape(-1).view(_MARK)


class CiphertextIndex:
    """A set that only grows, in 16 bytes for each: sorted runs, each far longer than the next.

    A table of them in the database would be as exact but far slower: they are scattered over it,
    so each needs a page of its own to be written.
    """

    def __init__(self) -> None:
        self._runs: list[Fingerprints] = []

    def add(self, more: Iterable[Fingerprints]) -> None:
        run = np.sort(np.concatenate([np.empty(0, _MARK), *more]))
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
