"""Values that are one of many: every user is in one bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.randomness import Random
from overhand.values.kind import Floats, Rows, Values

MOST_BUCKETS = 1 << 20


@dataclass(frozen=True)
class Histogram(Values):
    """A bucket from 0 to `buckets` - 1; the sum counts the users of each.

    Another value of one user takes one from a bucket and gives one to another: two coordinates
    move by one, however many there are.

    >>> Histogram(3).coordinates(Histogram(3).rows([2, 0]))
    array([[0, 0, 1],
           [1, 0, 0]], dtype=uint8)
    >>> Histogram(3).rows([2, 3])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 3 of user 2 is not a bucket from 0 to 2
    """

    buckets: int

    is_whole: ClassVar[bool] = True
    moves: ClassVar[int] = 2
    sensitivity: ClassVar[float] = math.sqrt(2)
    neutral: ClassVar[int] = 0

    def __post_init__(self) -> None:
        errors.whole("buckets", self.buckets, least=2, most=MOST_BUCKETS)

    @property
    def spec(self) -> str:
        return f"histogram:{self.buckets}"

    @property
    def dimension(self) -> int:
        return self.buckets

    @property
    def lows(self) -> Floats:
        return np.zeros(self.buckets)

    @property
    def highs(self) -> Floats:
        return np.ones(self.buckets)

    def rows(self, values: ArrayLike, *, first: int = 0) -> NDArray[np.int64]:
        try:
            array = np.asarray(values)
        except ValueError:
            raise errors.InvalidValue("values must be bucket numbers, not nested") from None
        if array.ndim != 1:
            raise errors.InvalidValue(
                f"values of shape {array.shape} must be bucket numbers, of shape (users)"
            )
        if array.size == 0:
            return np.empty(0, np.int64)
        if array.dtype.kind not in "iuf":
            raise errors.InvalidValue(f"values of type {array.dtype} are not bucket numbers")
        inside = (array >= 0) & (array < np.int64(self.buckets))  # which a float16 may not hold
        if array.dtype.kind == "f":
            inside &= array == np.floor(array)
        if not inside.all():
            user = int(np.argmin(inside))
            raise errors.InvalidValue(
                f"value {array[user].item()!r} of user {first + user + 1} is not a bucket "
                f"from 0 to {self.buckets - 1}"
            )
        return array.astype(np.int64)

    def coordinates(self, rows: Rows) -> NDArray[np.uint8]:
        points = np.zeros((len(rows), self.buckets), np.uint8)
        points[np.arange(len(rows)), rows] = 1
        return points

    def total(self, rows: Rows) -> NDArray[np.int64]:
        return np.bincount(rows, minlength=self.buckets)

    def running_sums(self, rows: Rows) -> NDArray[np.int64]:
        return np.cumsum(self.coordinates(rows), axis=0, dtype=np.int64)

    def sums_after_blocks(self, rows: Rows, size: int) -> NDArray[np.int64]:
        blocks = len(rows) // size
        cells = np.repeat(np.arange(blocks) * self.buckets, size) + rows
        counts = np.bincount(cells, minlength=blocks * self.buckets)
        return np.cumsum(counts.reshape(blocks, self.buckets), axis=0)

    def opposites(self, bits: NDArray[np.uint8]) -> NDArray[np.int64]:
        return bits.astype(np.int64)

    def uniform(self, random: Random, users: int) -> NDArray[np.int64]:
        return np.floor(random.uniforms(users) * self.buckets).astype(np.int64)
