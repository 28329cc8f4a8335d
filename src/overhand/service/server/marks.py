"""By what a message is known again, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARK_BYTES = 16
_GROWTH = 4  # few runs are quick to search, and seldom merged if each is so much longer

MarkArray = NDArray[np.bytes_]


def marks_of(ciphertexts: NDArray[np.uint8]) -> MarkArray:
    """The first half of the key that a message was sealed with (HPKE's `enc`), one per row.

    The message's secret depends on that key, and the rest is authenticated: a ciphertext of which a
    bit was changed does not open, so no other bytes mean the same. Two honest ones differ except
    with probability 2^-128. Only the service that has a message could forge its beginning before it
    comes, to have it struck out, and that service could simply drop it.
    """
    return _marks(np.ascontiguousarray(ciphertexts[:, :MARK_BYTES]))


def marks_from(kept: bytes) -> MarkArray:
    """Those that `tobytes` wrote."""
    return _marks(np.frombuffer(kept, np.uint8))


def _marks(content: NDArray[Any]) -> MarkArray:
    return content.reshape(-1).view(f"S{MARK_BYTES}")


class Marks:
    """A set that only grows, in 16 bytes for each: sorted runs, each far longer than the next.

    A table of them in the database would be as exact but far slower: they are scattered over it,
    so each needs a page of its own to be written.
    """

    def __init__(self) -> None:
        self._runs: list[MarkArray] = []

    def add(self, more: Iterable[MarkArray]) -> None:
        run = np.sort(np.concatenate([marks_from(b""), *more]))
        while self._runs and len(self._runs[-1]) <= _GROWTH * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # which merges what is sorted
        if len(run):
            self._runs.append(run)

    def having(self, marks: MarkArray) -> NDArray[np.bool_]:
        """Which of these are in the set: soonest found if they are sorted."""
        found = np.zeros(len(marks), np.bool_)
        for run in self._runs:
            places = np.searchsorted(run, marks)
            found |= run[np.minimum(places, len(run) - 1)] == marks
        return found
