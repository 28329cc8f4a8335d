"""What else a book does if the services make the noise.

The server's noise hides a user from everybody else, a lying shuffling service included, if the
user's message is in one batch of a level, and if the noise of a batch is drawn once. So a message
counts once in a plan's life, wherever the service puts it; and a batch cannot be opened again once
its sum is in the book, not even by a book that was restored from a copy, or by a second one: two
noises of one batch average out. So the keys of a book are made once, with its document, and never
by a server: whoever has lost them cannot begin a second book.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue
from overhand.service.databases import BatchKeys
from overhand.service.protocol import Batch, Formats, Release, UnsafeSecret, struck_out
from overhand.service.server.marks import MarkArray, Marks, marks_from, marks_of
from overhand.service.server.tables import BookTables

Needed = Mapping[int, Collection[int]]
"""By level, batches without a sum; the last of a level stands for all after it as well."""

_ADVICE = (
    "Bring back the newest book, with its keys as they were last and not as they were made. If "
    "they are lost, this document cannot be served again: noise would be drawn twice for the same "
    "users. The published sum can go on: run `overhand settle` on the newest copy of the book, "
    "`overhand prepare` a plan in another directory, and start its server with --after"
)


class Guard:
    """The formats of a document, and the keys of its book's batches in the file `path`.

    Of every message that ever came the book keeps 16 bytes, in a row for each release (some 19
    bytes of a SQLite file for a message), and every process of the server has them in memory.
    """

    def __init__(self, formats: Formats, path: Path) -> None:
        self._formats = formats
        self._path = path
        self._levels = [level.level for level in formats.levels]
        self._keys: BatchKeys
        self._marks = Marks()
        self._place = 0
        self._lock = Lock()

    def make_keys(self) -> None:
        """Once in the life of a document: there is no second book of it."""
        BatchKeys.create(self._path, self._levels, self._formats.digest)

    def begin(self) -> str:
        """Take the keys that were made for a new book; their name."""
        if not self._path.exists():
            raise UnsafeSecret(
                f"there is no file {self._path} with the keys of the book. If this document was "
                "never served, move the file there that `overhand prepare` made with it, or name "
                f"it with --book-keys. If it was served: {_ADVICE}"
            )
        return BatchKeys.begun(self._path, self._formats.digest, "book", _ADVICE).name

    def find(self, name: str) -> None:
        """Take the keys that a book was made with."""
        self._keys = BatchKeys.found(self._path, name, self._levels, "book", _ADVICE)

    def claim(self) -> None:
        """The keys belong to a book now."""
        self._keys.claim()

    def once(self, release: Release, tables: BookTables) -> tuple[Release, int]:
        """A release without messages that came before, and how many these are.

        Of equal ones the first stays; the others are struck out, as if that had been sent: whoever
        opens the release sees the same.
        """
        messages = self._formats.level(release.batch.level).ciphertexts(release.body)
        marks = marks_of(messages)
        order = np.argsort(marks, kind="stable")
        marks = marks[order]
        place, is_repeat = self._compared(marks, tables)
        is_repeat[1:] |= marks[1:] == marks[:-1]
        tables.add_marks(place, marks[~is_repeat].tobytes())
        struck = order[is_repeat]
        if not len(struck):
            return release, 0
        body = struck_out(messages, struck).tobytes() + release.body[messages.size :]
        return replace(release, body=body), len(struck)

    def _compared(self, marks: MarkArray, tables: BookTables) -> tuple[int, NDArray[np.bool_]]:
        """The place for these marks in the book, and which of them it has.

        Memory has what was committed, and nothing else: a process that waits for the lock of the
        book reads what others put there, and its own come back from the book.
        """
        tables.lock()
        with self._lock:
            while found := tables.marks_after(self._place):
                self._marks.add(marks_from(kept) for _, kept in found)
                self._place = found[-1][0]
            return self._place + 1, self._marks.having(marks)

    def sealed(self, release: Release) -> Release:
        """As the book keeps it; `KeyGone` if the batch had a sum."""
        body = self._keys.seal(release.batch, release.own, release.body)
        return replace(release, body=body)

    def opened(self, release: Release) -> Release:
        """What was sealed; `KeyGone` if the batch has a sum."""
        body = self._keys.open(release.batch, release.own, release.body)
        return replace(release, body=body)

    def check(self, needed: Needed) -> None:
        """Refuse a book whose keys are ahead of it."""
        batches = [Batch(level, number) for level in needed for number in needed[level]]
        last = [Batch(level, max(needed[level])) for level in needed]
        if not (all(map(self._keys.has, batches)) and all(map(self._keys.has_from, last))):
            raise InvalidValue(f"{self.too_old}. {_ADVICE}")

    @property
    def too_old(self) -> str:
        """What is wrong with a book that misses a key."""
        return (
            f"the book is older than its keys in {self._path}: it is a copy from before some sums "
            "were published"
        )

    def keep_only(self, needed: Needed) -> None:
        """Destroy the keys of batches that have a sum, here and in the file."""
        self._keys.keep_only(needed)
