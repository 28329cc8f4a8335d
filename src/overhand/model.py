"""The nouns: what a guarantee, a batch, a message and an estimate are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, roots_genlaguerre

from overhand import errors

_ONE_SIDED = 40.0  # standard deviations: from here on the far end of a bias cannot matter
_NEARLY_NORMAL = 0.02  # excess kurtosis below which tails are taken for Gaussian
_QUADRATURE = 48

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Rows = NDArray[Any]
"""Checked values, one user to a row."""
NoiseBy = Literal["users", "services"]
"""Who makes the noise: every user a part of it, as in the paper, or each of the two services."""


class Messages(NamedTuple):
    """What users send for one level: a row for every user or, gathered, for every batch.

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
        """By batches of so many users: their messages side by side, and what is clear added up."""
        batches, numbers = len(self.sealed) // users, self.clear.shape[1]
        sealed = self.sealed.reshape(batches, users * self.sealed.shape[1], *self.sealed.shape[2:])
        if not numbers:
            return Messages.of(sealed)
        clear = self.clear.reshape(batches, users, numbers).sum(axis=1, dtype=np.uint64)
        return Messages(sealed, clear)


def byte_width(bits: int) -> int:
    """How many bytes a number of so many bits is written in."""
    return -(-bits // 8)


def to_bytes(numbers: NDArray[Any], width: int) -> bytes:
    """Little-endian numbers in so many bytes each, one after the other.

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
    """Batches after their shuffler, one to a row: messages in random order, and what was added up.

    Only `overhand.shufflers` makes them, and whoever opens what a shuffler has released: nothing
    else can be analyzed.
    """

    sealed: NDArray[Any]
    clear: NDArray[np.uint64]


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


class Bar(NamedTuple):
    """One of the largest coordinates of a sum, with its error bar."""

    coordinate: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A published sum of the first `t` users, or of those after place `start`.

    `value` is a number, or an array with an entry for every coordinate. `std` is the standard
    deviation of a coordinate's noise (and, for values that are rounded, a bound on it: rounding
    counts with the most it can do), and `kurtosis` how much heavier than Gaussian its tails are.
    Noise comes in whole steps of `unit` (0 if there are none): a batch of bits is off by 3 or by 4.
    `slack` is how far the users that no finished batch holds can move the sum from `value`: it is
    bounded, not random.

    >>> low, high = Estimate(t=100, value=40.0, std=5.0).interval(0.95)
    >>> round(low, 1), round(high, 1)
    (30.2, 49.8)
    >>> Estimate(t=100, value=40.0, std=5.0).mean()
    Estimate(t=100, value=0.4, std=0.05, slack=0.0, start=0, kurtosis=0.0, unit=0.0)
    """

    t: int
    value: Any
    std: float
    slack: Any = 0.0
    start: int = 0
    kurtosis: float = 0.0
    unit: float = 0.0

    @property
    def users(self) -> int:
        """How many users the sum is of."""
        return self.t - self.start

    def mean(self) -> Estimate:
        """The mean of the users' values: the sum and its error, divided by the number of users."""
        if self.users == 0:
            raise errors.InvalidValue("no mean: the sum is of no users")
        return replace(
            self,
            value=self.value / self.users,
            std=self.std / self.users,
            slack=self.slack / self.users,
            unit=self.unit / self.users,
        )

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of these users and of others after them, whose noise is independent.

        >>> Estimate(t=100, value=40.0, std=3.0) + Estimate(t=50, value=10.0, std=4.0)
        Estimate(t=150, value=50.0, std=5.0, slack=0.0, start=0, kurtosis=0.0, unit=0.0)
        """
        std = math.hypot(self.std, other.std)
        fourth = self.kurtosis * self.std**4 + other.kurtosis * other.std**4
        return Estimate(
            self.t + other.users,
            self.value + other.value,
            std,
            self.slack + other.slack,
            self.start,
            fourth / std**4 if std > 0 else 0.0,
            max(self.unit, other.unit),
        )

    def top(self, count: int = 10, confidence: float = 0.95) -> list[Bar]:
        """The largest coordinates, with bars that hold all of them at once.

        The bars allow for having looked at every coordinate, not only at those returned: each
        holds with probability 1 - (1 - confidence) / coordinates.

        >>> Estimate(t=9, value=np.array([1.0, 6.0, 2.0]), std=0.0).top(1)
        [Bar(coordinate=1, value=6.0, low=6.0, high=6.0)]
        """
        values = np.atleast_1d(np.asarray(self.value, np.float64))
        count = errors.whole("count", count, least=1)
        confidence = errors.number("confidence", confidence, above=0, below=1)
        low, high = map(np.atleast_1d, self.interval(1 - (1 - confidence) / len(values)))
        order = np.argsort(-values, kind="stable")[:count]
        return [Bar(int(i), float(values[i]), float(low[i]), float(high[i])) for i in order]

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """The shortest symmetric interval that holds the sum with this confidence.

        Whatever the pending users hold: the bias is anywhere in [-slack, slack], and the
        half-width w solves F((w - slack) / std) - F((-w - slack) / std) = confidence, F being the
        noise's law (`standard_tail`). Noise in steps can fall just short of a step that F has half
        within: so w is half a `unit` more, which is the least that will do for noise of one size
        of step, and a little too much where batches were combined.

        >>> Estimate(t=11, value=11.0, std=0.44).interval()[1]  # continuous noise
        11.862...
        >>> Estimate(t=11, value=11.0, std=0.44, unit=1.0).interval()[1]  # it may well be 12
        12.362...
        """
        confidence = errors.number("confidence", confidence, above=0, below=1)
        if np.ndim(self.slack) == 0:
            width: Any = self._half_width(float(self.slack), confidence)
        else:
            distinct, which = np.unique(self.slack, return_inverse=True)
            width = np.array([self._half_width(float(s), confidence) for s in distinct])[which]
        return self.value - width, self.value + width

    def _half_width(self, slack: float, confidence: float) -> float:
        if self.std == 0:
            return slack
        bias = slack / self.std

        def excess(beyond: float) -> float:
            outside = standard_tail(beyond, self.kurtosis)
            if bias < _ONE_SIDED:
                outside += standard_tail(beyond + 2 * bias, self.kurtosis)
            return outside - (1 - confidence)

        most = 1.0
        while excess(most) > 0:
            most *= 2
        beyond = float(brentq(excess, -min(bias, _ONE_SIDED), most))
        return slack + self.std * beyond + self.unit / 2

    @property
    def rms(self) -> Any:
        """Root of a coordinate's expected squared error on the worst values of pending users."""
        return (
            np.hypot(self.std, self.slack)
            if np.ndim(self.slack)
            else math.hypot(self.std, self.slack)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Estimate):
            return NotImplemented
        mine = (self.t, self.start, self.std, self.kurtosis, self.unit)
        return (
            mine == (other.t, other.start, other.std, other.kurtosis, other.unit)
            and np.array_equal(self.value, other.value)
            and np.array_equal(self.slack, other.slack)
        )


@dataclass(frozen=True)
class Change:
    """What another value of one user can do to the counts of a batch, in whole steps.

    At most `coordinates` of them move, each by at most `largest`; with a `norm`, all of them may,
    and `norm` bounds the move in l2.
    """

    largest: int
    coordinates: int = 1
    norm: float | None = None


def standard_tail(x: float, kurtosis: float) -> float:
    """P[X > x] for noise of variance 1 and this excess kurtosis, symmetric about 0.

    Sums of Laplace noise are normal variables whose variance is itself random, Gamma distributed
    with shape 3 / kurtosis; for none, they are normal.

    >>> round(standard_tail(2.0, 0.0), 4), round(standard_tail(2.0, 3.0), 4)
    (0.0228, 0.0296)
    """
    if kurtosis < _NEARLY_NORMAL:
        return float(ndtr(-x))
    variances, weights = _random_variances(kurtosis)
    return float(weights @ ndtr(-x / np.sqrt(variances)))


@lru_cache(maxsize=256)
def _random_variances(kurtosis: float) -> tuple[Floats, Floats]:
    shape = 3 / kurtosis
    nodes, weights = roots_genlaguerre(_QUADRATURE, shape - 1)
    return nodes / shape, weights / weights.sum()
