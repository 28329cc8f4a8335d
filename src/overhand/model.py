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
    >>> messages.gather(2).sealed
    array([[1, 0, 1, 1]])
    """

    sealed: NDArray[Any]
    """Messages that only the server may read, each on its own."""
    clear: NDArray[np.uint64]
    """Numbers that a shuffler only adds up; most mechanisms send none."""

    @classmethod
    def of(cls, sealed: NDArray[Any]) -> Messages:
        """With no numbers in the clear."""
        return cls(sealed, np.empty((len(sealed), 0), np.uint64))

    @classmethod
    def concatenate(cls, parts: Sequence[Messages]) -> Messages:
        """The rows of all of them."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def gather(self, users: int) -> Messages:
        """By batches of this many users: messages side by side, numbers in the clear added up."""
        batches, numbers = len(self.sealed) // users, self.clear.shape[1]
        sealed = self.sealed.reshape(batches, users * self.sealed.shape[1], *self.sealed.shape[2:])
        clear = self.clear.reshape(batches, users, numbers).sum(axis=1, dtype=np.uint64)
        return Messages(sealed, clear)


class Shuffled(NamedTuple):
    """Batches after their shuffler, one per row: messages in random order, and clear sums.

    Only `overhand.shuffle` makes them, and the code that opens what a shuffler released: nothing
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
        object.__setattr__(self, "epsilon", errors.finite_number("epsilon", self.epsilon, above=0))
        object.__setattr__(
            self, "delta", errors.finite_number("delta", self.delta, above=0, below=1)
        )

    def share(self, levels: int) -> Privacy:
        """An equal share by simple composition: (epsilon / levels, delta / levels)."""
        levels = errors.whole("levels", levels, least=1)
        return Privacy(self.epsilon / levels, self.delta / levels)

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:g}, delta={self.delta:g}"


class Node(NamedTuple):
    """A batch's place in the tree: users `start` (inclusive) to `stop` (exclusive), from 0.

    The batches of the tree of Figure 2 that the sixth user is in:

    >>> from overhand.tree import RegularTree
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
