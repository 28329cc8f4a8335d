"""The nouns: what a guarantee, a batch and a message are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand import errors

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Rows = NDArray[Any]
"""Checked values, one row per user."""
NoiseBy = Literal["users", "services"]
"""Who makes the noise: every user a part of it, as in the paper, or each of the two services."""


class Messages(NamedTuple):
    """What users send for one level: a row per user or, gathered, per batch.

    >>> messages = Messages.of(np.array([[1, 0], [1, 1]]))
    >>> messages.gathered(2).sealed
    array([[1, 0, 1, 1]])
    """

    sealed: NDArray[Any]
    """Messages that only the server may read, each on its own."""
    clear: NDArray[np.uint64]
    """Numbers that a shuffler only adds up; most mechanisms send none."""

    @classmethod
    def of(cls, sealed: NDArray[Any], clear: NDArray[np.uint64] | None = None) -> Messages:
        return cls(sealed, np.empty((len(sealed), 0), np.uint64) if clear is None else clear)

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """The rows of all of them."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def gathered(self, users: int) -> Messages:
        """By batches of this many users: messages side by side, numbers in the clear added up."""
        batches, numbers = len(self.sealed) // users, self.clear.shape[1]
        sealed = self.sealed.reshape(batches, users * self.sealed.shape[1], *self.sealed.shape[2:])
        if not numbers:
            return Messages.of(sealed)
        clear = self.clear.reshape(batches, users, numbers).sum(axis=1, dtype=np.uint64)
        return Messages(sealed, clear)


def byte_width(bits: int) -> int:
    """How many bytes a number of `bits` bits takes."""
    return -(-bits // 8)


def to_bytes(numbers: NDArray[Any], width: int) -> bytes:
    """Little-endian numbers of `width` bytes each, one after the other.

    >>> to_bytes(np.array([1, 258]), width=2)
    b'\\x01\\x00\\x02\\x01'
    """
    words = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return words[:, :width].tobytes()


def to_numbers(content: bytes, width: int) -> NDArray[np.uint64]:
    """What `to_bytes` wrote."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    words = np.zeros((len(rows), 8), np.uint8)
    words[:, :width] = rows
    return words.view("<u8").reshape(-1).astype(np.uint64)


class Shuffled(NamedTuple):
    """Batches after their shuffler, one per row: messages in random order, and clear sums.

    Only `overhand.shufflers` makes them, and the code that opens what a shuffler released: nothing
    else can be analyzed.
    """

    sealed: NDArray[Any]
    clear: NDArray[np.uint64]


@dataclass(frozen=True)
class Privacy:
    """An (epsilon, delta) guarantee for a change of one user's value.

    >>> Privacy(epsilon=1.0, delta=1e-6)
    Privacy(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", errors.number("epsilon", self.epsilon, above=0))
        object.__setattr__(self, "delta", errors.number("delta", self.delta, above=0, below=1))

    def share(self, levels: int) -> Privacy:
        """An equal share by simple composition: (epsilon / levels, delta / levels)."""
        levels = errors.whole("levels", levels, least=1)
        return Privacy(self.epsilon / levels, self.delta / levels)

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:g}, delta={self.delta:g}"


class Node(NamedTuple):
    """A batch's place in the tree: users `start` (inclusive) to `stop` (exclusive), from 0.

    The batches of the tree of Figure 2 that the sixth user is in:

    >>> from overhand.trees import RegularTree
    >>> for node in RegularTree(horizon=8, degrees=(2, 2)).joins(6):
    ...     print(node, node.size)
    Node(level=1, start=4, stop=6) 2
    Node(level=2, start=4, stop=8) 4
    """

    level: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Change:
    """How another value of one user can change the counts of a batch, in whole steps.

    At most `coordinates` of them change, each by at most `largest`, or more of them in a way that
    is never easier to see; with a `norm`, all of them may, and `norm` bounds the change in l2.
    `touched` is how many change at all, if that is not `coordinates`.
    """

    largest: int
    coordinates: int = 1
    norm: float | None = None
    touched: int | None = None

    @property
    def counts(self) -> int:
        """How many counts another value can change, by however little."""
        return self.touched or self.coordinates
