"""The nouns: what a guarantee, a batch, a message and an estimate are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from overhand import errors

_ONE_SIDED = 40.0  # standard deviations: from here on the far end of a bias cannot matter

Messages = NewType("Messages", NDArray[Any])
"""What users send: axis 0 runs over users, axis 1 over the messages of one user."""

Shuffled = NewType("Shuffled", NDArray[Any])
"""A batch after its shuffler: axis 0 runs over the messages of all its users, in random order."""


@dataclass(frozen=True)
class Privacy:
    """An (epsilon, delta) guarantee against the change of one user's value.

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
    """A batch's place in the tree: users `start` (inclusive) to `stop` (exclusive), from 0."""

    level: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Estimate:
    """A published sum of the first `t` users (or of a range that ends with them).

    `std` is the standard deviation of the noise, known exactly. `slack` is how far the users
    that no finished batch holds can move the sum from `value`: it is bounded, not random.

    >>> low, high = Estimate(t=100, value=40.0, std=5.0, slack=0.0).interval(0.95)
    >>> round(low, 1), round(high, 1)
    (30.2, 49.8)
    """

    t: int
    value: float
    std: float
    slack: float = 0.0

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The shortest symmetric interval that holds the sum with this confidence.

        Whatever the pending users hold: the bias is anywhere in [-slack, slack], and the
        half-width w solves Phi((w - slack) / std) - Phi((-w - slack) / std) = confidence.
        """
        confidence = errors.number("confidence", confidence, above=0, below=1)
        if self.std == 0:
            return self.value - self.slack, self.value + self.slack
        bias = self.slack / self.std
        if bias > _ONE_SIDED:
            width = self.slack + self.std * float(ndtri(confidence))
            return self.value - width, self.value + width
        most = bias + float(-ndtri((1 - confidence) / 2))
        width = self.std * brentq(
            lambda w: float(ndtr(w - bias) - ndtr(-w - bias)) - confidence, 0.0, most + 1.0
        )
        return self.value - width, self.value + width

    @property
    def rms(self) -> float:
        """Root of the expected squared error on the worst values of the pending users."""
        return math.hypot(self.std, self.slack)


class ShuffleMechanism(Protocol):
    """M = (E, m) with its analyzer: public parameters only (Section 2.3)."""

    @property
    def size(self) -> int:
        """How many users share one run."""

    @property
    def messages_per_user(self) -> int:
        """How many messages one user sends."""

    @property
    def variance(self) -> float:
        """Variance of the analyzed sum of one batch, whatever its values."""

    def encode_many(self, values: ArrayLike, random: Any) -> Messages:
        """Each user's messages, with noise of its own."""

    def analyze(self, shuffled: Shuffled) -> float:
        """An unbiased estimate of the sum of a batch's values."""


def as_bits(values: ArrayLike, *, first: int = 0) -> NDArray[np.uint8]:
    """A one-dimensional array of bits, or an error that names the first that is none.

    >>> as_bits([0, 1, True])
    array([0, 1, 1], dtype=uint8)
    >>> as_bits([0, 2], first=10)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 2 of user 12 is not a bit (0 or 1)
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise errors.InvalidValue("values must be one-dimensional, not nested") from None
    if array.ndim != 1:
        raise errors.InvalidValue(f"values must be one-dimensional, not of shape {array.shape}")
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.kind not in "iuf":
        raise errors.InvalidValue(f"values of type {array.dtype} are not bits (0 or 1)")
    if array.size == 0:
        return array.astype(np.uint8)
    if array.dtype == np.uint8:
        bad_somewhere = array.max() > 1
    else:
        bad_somewhere = not bool(((array == 0) | (array == 1)).all())
    if bad_somewhere:
        worst = int(np.argmax((array != 0) & (array != 1)))
        raise errors.InvalidValue(
            f"value {array[worst].item()!r} of user {first + worst + 1} is not a bit (0 or 1)"
        )
    return array if array.dtype == np.uint8 else array.astype(np.uint8)
