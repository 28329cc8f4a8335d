"""Values that are one number: bits, and reals in an interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import HALF, WORD_BITS, Random
from overhand.values.kind import LARGEST, SMALLEST, Values, array_of, finite_array, shown

_PACKING_PAYS = 1 << 14


@dataclass(frozen=True)
class Bits(Values):
    """0 or 1.

    >>> Bits().rows([0, 1, True])
    array([0, 1, 1], dtype=uint8)
    """

    is_scalar: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True
    spec: ClassVar[str] = "bit"
    dimension: ClassVar[int] = 1
    moves: ClassVar[int] = 1
    sensitivity: ClassVar[float] = 1.0

    def rows(self, values: ArrayLike, *, first: int = 0) -> NDArray[np.uint8]:
        return as_bits(values, first=first)

    def cells(self, rows: Rows) -> Rows:
        return rows

    def opposites(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return bits

    def uniform(self, random: Random, users: int) -> NDArray[np.uint8]:
        return random.coins(users, HALF)

    def total(self, rows: Rows) -> int:
        return int(np.count_nonzero(rows))

    def running_sums(self, rows: Rows) -> Counts:
        return np.cumsum(rows, dtype=np.int64)

    def sums_after_blocks(self, rows: Rows, size: int) -> Counts:
        if len(rows) < _PACKING_PAYS:
            return np.cumsum(rows, dtype=np.int64)[size - 1 :: size]
        return prefix_sums(rows, np.arange(size, len(rows) + 1, size))


BITS = Bits()
"""What users hold by default."""


@dataclass(frozen=True)
class Reals(Values):
    """A number in an interval. One outside is an error, or is moved to the nearer end if `clip`.

    >>> Reals(0.0, 10.0).rows([2.5, 10])
    array([ 2.5, 10. ])
    >>> Reals(0.0, 10.0).rows([2.5, 11.0])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 11 of user 2 is not between 0 and 10
    >>> Reals(0.0, 10.0, clip=True).rows([2.5, 11.0])
    array([ 2.5, 10. ])
    """

    low: float = 0.0
    high: float = 1.0
    clip: bool = False

    is_scalar: ClassVar[bool] = True
    dimension: ClassVar[int] = 1
    moves: ClassVar[int] = 1

    def __post_init__(self) -> None:
        low = errors.number("low", self.low, above=-LARGEST, below=LARGEST)
        high = errors.number("high", self.high, above=-LARGEST, below=LARGEST)
        if high - low < SMALLEST:
            raise errors.InvalidValue(
                f"the interval from low={shown(low)} to high={shown(high)} is empty or too short"
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def spec(self) -> str:
        if (self.low, self.high) == (0.0, 1.0):
            return "real"
        return f"real:{self.low!r}:{self.high!r}"

    @cached_property
    def lows(self) -> Floats:
        return np.array([self.low])

    @cached_property
    def highs(self) -> Floats:
        return np.array([self.high])

    @property
    def sensitivity(self) -> float:
        return self.high - self.low

    @property
    def neutral(self) -> float:
        return min(max(0.0, self.low), self.high)

    def rows(self, values: ArrayLike, *, first: int = 0) -> Floats:
        numbers = finite_array(values, what="numbers", shape=(), first=first)
        if self.clip:
            return np.clip(numbers, self.low, self.high)
        wrong = (numbers < self.low) | (numbers > self.high)
        if wrong.any():
            user = int(np.argmax(wrong))
            raise errors.InvalidValue(
                f"value {shown(numbers[user])} of user {first + user + 1} is not between "
                f"{shown(self.low)} and {shown(self.high)}"
            )
        return numbers

    def opposites(self, bits: NDArray[np.uint8]) -> Floats:
        return np.where(bits, self.high, self.low)

    def uniform(self, random: Random, users: int) -> Floats:
        return np.minimum(self.low + self.width * random.uniforms(users), self.high)


def as_bits(values: ArrayLike, *, first: int = 0) -> NDArray[np.uint8]:
    """A one-dimensional array of bits, or an error that names the first that is not a bit.

    >>> as_bits([0, 2], first=10)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 2 of user 12 is not a bit (0 or 1)
    """
    array = array_of(values, "bits (0 or 1)")
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


def prefix_sums(bits: NDArray[np.uint8], places: Counts) -> Counts:
    """How many of the bits before each place are set.

    Bits are packed into words, words are counted, and only the words' counts are summed up: a
    sixty-fourth of the work of a running sum over users.
    """
    packed = np.packbits(bits, bitorder="little")
    words = np.zeros(len(bits) // WORD_BITS + 1, np.uint64)
    words.view(np.uint8)[: len(packed)] = packed
    before = np.zeros(len(words), np.int64)
    np.cumsum(np.bitwise_count(words[:-1]), dtype=np.int64, out=before[1:])
    word, bit = places // WORD_BITS, (places % WORD_BITS).astype(np.uint64)
    inside = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
    return before[word] + np.bitwise_count(inside)
