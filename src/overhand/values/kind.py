"""`reference.Mechanism.to_steps` and `to_sum`, fast, for every kind of value: `Quantizer`.

Also what every kind provides, and the kinds of one number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import HALF, WORD_BITS, Random

SMALLEST, LARGEST = 1e-100, 1e100
"""Norms and widths are between these, so that their squares are finite and not 0."""
_FLOAT_MARGIN = 1e-9
_PACKING_PAYS = 1 << 14


@dataclass(frozen=True)
class Sensitivity:
    """How far another value of one user moves a sum of values, or the steps of a batch.

    At most `l0` coordinates move, each by at most `linf`, or more of them in a way that is never
    easier to see; with an `l2`, all of them may, and `l2` bounds the whole move. `touched` is how
    many move at all, by however little, if that is not `l0`.

    >>> Sensitivity(linf=1.0, l0=2).norm  # one bucket less, another one more
    1.4142135623730951
    """

    linf: float
    l0: int = 1
    l2: float | None = None
    touched: int | None = None

    @property
    def norm(self) -> float:
        """A bound on the move in l2."""
        return self.linf * math.sqrt(self.l0) if self.l2 is None else self.l2

    @property
    def counts(self) -> int:
        """How many coordinates move at all."""
        return self.touched or self.l0


class Values(ABC):
    """A kind of value: what one user may hold, and the coordinates of a sum of such values.

    Coordinate j of one user's value lies in [lows[j], highs[j]].

    >>> from overhand.values import Bits, Histogram, RegressionStatistics, Vectors
    >>> for values in (Bits(), Histogram(200), Vectors(20), RegressionStatistics(5)):
    ...     moved = values.sensitivity
    ...     print(values, values.dimension, moved.l0, round(moved.norm, 3), moved.l2 is None)
    bit 1 1 1.0 True
    histogram:200 200 2 1.414 True
    vector:20 20 20 2.0 False
    regression:5 20 20 2.121 False
    """

    is_scalar: ClassVar[bool] = False
    """Whether sums are numbers rather than arrays."""

    is_whole: ClassVar[bool] = False
    """Whether coordinates are 0 or 1, so that nothing has to be rounded."""

    are_rows_points: ClassVar[bool] = True
    """Whether rows are what is added up, coordinate by coordinate."""

    label_columns: ClassVar[int] = 0
    """How many cells of a value, the first ones of its row in a table, are labels."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The kind as the command line and plan files spell it."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """How many coordinates a sum has."""

    @property
    def lows(self) -> Floats:
        return np.zeros(self.dimension)

    @property
    def highs(self) -> Floats:
        return np.ones(self.dimension)

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """How far another value of one user moves a sum."""

    @property
    def rounding(self) -> float:
        """The most that rounding one user's value adds to a coordinate's variance, in steps."""
        return 0.0 if self.is_whole else 0.25

    @property
    def labels(self) -> tuple[str, ...] | None:
        """What users call what they hold, if it has names.

        >>> from overhand.values import Bits, Histogram
        >>> Bits().labels, Histogram(["like", "love"], other="any other").labels
        (None, ('like', 'love', 'any other'))
        """
        return None

    @property
    def coordinate_names(self) -> tuple[str, ...] | None:
        """What the coordinates of a sum are called, if they have names.

        >>> from overhand.values import Binned
        >>> Binned(0, 10, bins=2).coordinate_names
        ('0 to 5', '5 to 10')
        """
        return None

    @abstractmethod
    def rows(self, values: ArrayLike, *, first: int = 0) -> Rows:
        """The values of consecutive users, checked: all of them, or an error that names one.

        `first` is how many users came before, so that the error counts from there.
        """

    @abstractmethod
    def opposites(self, bits: NDArray[np.uint8]) -> Rows:
        """For every bit, one of two values that are as far apart as possible."""

    @abstractmethod
    def uniform(self, random: Random, users: int) -> Rows:
        """Values spread evenly over all that may occur, for simulations."""

    @property
    def given_shape(self) -> tuple[int, ...]:
        """The shape of one user's value, as `rows` takes it: () for a number."""
        return ()

    @property
    def columns(self) -> int:
        """How many cells one user's value has in a table."""
        return math.prod(self.given_shape)

    def parse_cells(self, cells: Sequence[Sequence[str]]) -> Any:
        """What `rows` takes, from the rows of a table: cells other than labels are numbers."""
        numbers = [[float(cell) for cell in line] for line in cells]
        return np.array(numbers, np.float64).reshape(-1, *self.given_shape)

    @property
    def neutral(self) -> Any:
        """The value of the shuffling service's own reports, which fill up late batches.

        It is one that everybody knows: 0 if that is possible, else an agreed one. How many reports
        in a batch were the service's own is public, so the server subtracts them again.
        """
        return np.zeros(self.given_shape) if self.given_shape else 0

    def neutral_sum(self, reports: int) -> Any:
        """What this many reports of the neutral value add to a sum."""
        return reports * self.total(self.rows([self.neutral]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sum: () for a number."""
        return () if self.is_scalar else (self.dimension,)

    @property
    def width(self) -> float:
        """The length of the longest coordinate's interval."""
        return float((self.highs - self.lows).max())

    def round_rows(self, rows: Rows, unit: float, most: Counts, random: Random) -> Rows:
        """Rows rounded to whole steps of this unit, `most` per coordinate, at random, unbiased."""
        if self.is_whole:
            return rows
        exact = rows - (self.lows if self.shape else self.lows[0])
        exact /= unit
        exact += random.uniforms(rows.size).reshape(rows.shape)
        np.floor(exact, out=exact)
        np.clip(exact, 0, most if self.shape else most[0], out=exact)
        return exact.astype(np.int64)

    def cells(self, rows: Rows) -> Rows:
        """Of every user the coordinate that is 1, from 1 on, or 0 for none, if they are whole."""
        raise errors.InvalidValue(f"values of {self} do not have one coordinate each")

    def coordinates(self, rows: Rows) -> Rows:
        """The same values as points: what is added up."""
        return rows

    def total(self, rows: Rows) -> Any:
        """The sum of these users' values."""
        return self.coordinates(rows).sum(axis=0)

    def running_sums(self, rows: Rows) -> Rows:
        """The sums after each of these users."""
        return np.cumsum(self.coordinates(rows), axis=0)

    def sums_after_blocks(self, rows: Rows, size: int) -> Rows:
        """The sums up to the end of each block; the rows must be whole blocks."""
        blocks = self.coordinates(rows).reshape(-1, size, *self.shape).sum(axis=1)
        return np.cumsum(blocks, axis=0)

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True)
class Quantizer:
    """Values in whole steps, rounded at random and without bias, and sums of steps as values.

    Coordinate j of a value v becomes (v_j - low_j) / unit; the widest coordinate has `steps` steps.

    >>> quantizer = Quantizer(Reals(0.0, 10.0), steps=20)
    >>> quantizer.unit, quantizer.to_values(np.array([7.0]), users=2)
    (0.5, array([3.5]))
    """

    values: Values
    steps: int

    def __post_init__(self) -> None:
        errors.whole("steps", self.steps, least=1)
        if self.values.is_whole and self.steps != 1:
            raise errors.InvalidValue(f"steps={self.steps} must be 1 for {self.values}")

    @cached_property
    def unit(self) -> float:
        """What one step is worth."""
        return 1.0 if self.values.is_whole else self.values.width / self.steps

    @cached_property
    def coordinate_steps(self) -> Counts:
        """How many steps each coordinate has."""
        if self.values.is_whole:
            return np.ones(self.values.dimension, np.int64)
        widths = self.values.highs - self.values.lows
        return np.ceil(widths / self.unit * (1 - _FLOAT_MARGIN)).astype(np.int64)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far another value of one user moves the counts of a batch, in whole steps.

        Rounding is coupled: with the same uniform u, floor(v / unit + u) of two values differ by at
        most |v - v'| / unit, rounded up. A mixture is never easier to tell apart than its parts, so
        the l2 distance is at most that of the values, in units, plus sqrt(dimension).

        >>> from overhand.values import Histogram
        >>> Quantizer(Histogram(5), steps=1).sensitivity
        Sensitivity(linf=1, l0=2, l2=None, touched=None)
        """
        moved, dimension = self.values.sensitivity, self.values.dimension
        if moved.l2 is None:
            return Sensitivity(self.steps, moved.l0, touched=moved.touched)
        norm = moved.l2 / self.values.width * self.steps + math.sqrt(dimension)
        return Sensitivity(self.steps, dimension, norm * (1 + _FLOAT_MARGIN))

    @property
    def rounding_variance(self) -> float:
        """The most that rounding one user's value adds to the variance of a coordinate's sum."""
        return self.unit**2 * self.values.rounding

    def round(self, rows: Rows, random: Random) -> Rows:
        """Checked values in whole steps, as rows: rounded afresh with every call."""
        return self.values.round_rows(rows, self.unit, self.coordinate_steps, random)

    def to_steps(self, rows: Rows, random: Random) -> Rows:
        """The same by coordinate."""
        return self.values.coordinates(self.round(rows, random))

    def to_values(self, sums: Any, users: int) -> Any:
        """The sums of the values of this many users, from the sums of their steps."""
        if self.values.is_whole:
            return sums
        low = self.values.lows if self.values.shape else float(self.values.lows[0])
        return sums * self.unit + users * low

    def scale(self, noise: Floats) -> Floats:
        """Noise in steps, as it stands in sums of values, one per row."""
        if self.unit != 1.0:
            noise *= self.unit
        return noise.reshape(-1, *self.values.shape)


def array_of(values: Any, what: str) -> NDArray[Any]:
    """Values as an array of one type, whatever they are in; those of a generator are gathered.

    >>> array_of((bit for bit in [0, 1]), "bits")
    array([0, 1])
    """
    try:
        return np.asarray([*values] if isinstance(values, Iterator) else values)
    except ValueError:
        raise errors.InvalidValue(f"values must all be {what}, but they differ in length") from None


def finite_array(values: ArrayLike, *, what: str, shape: tuple[int, ...], first: int) -> Floats:
    """Floats of this shape for each user, or an error that names the first that is not.

    >>> finite_array([1, 2.5], what="numbers", shape=(), first=0)
    array([1. , 2.5])
    >>> finite_array([1.0, np.inf], what="numbers", shape=(), first=10)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value of user 12 is not finite: inf
    """
    array = array_of(values, what)
    if array.size == 0 and array.ndim == 1:
        array = array.reshape(0, *shape).astype(np.float64)
    if array.ndim != 1 + len(shape) or array.shape[1:] != shape:
        wanted = ("users", *map(str, shape))
        raise errors.InvalidValue(
            f"values of shape {array.shape} must be {what}, of shape ({', '.join(wanted)})"
        )
    if array.dtype.kind not in "iufb":
        raise errors.InvalidValue(f"values of type {array.dtype} must be {what}")
    with np.errstate(over="ignore"):  # a longer float may become infinite
        floats = np.ascontiguousarray(array, np.float64)
    wrong = ~np.isfinite(floats)
    if wrong.any():
        user = int(np.argmax(wrong.reshape(len(floats), -1).any(axis=1)))
        raise errors.InvalidValue(
            f"value of user {first + user + 1} is not finite: {format_exactly(floats[wrong][0])}"
        )
    return floats


def format_exactly(number: float) -> str:
    """All digits of a number, so that 10.0000001 is not shown as 10.

    >>> format_exactly(10.0000001), format_exactly(10.0)
    ('10.0000001', '10')
    """
    return repr(float(number)).removesuffix(".0")


@dataclass(frozen=True)
class Bits(Values):
    """0 or 1.

    >>> Bits().rows([0, 1, True])
    array([0, 1, 1], dtype=uint8)
    >>> Bits().rows([0, 2], first=10)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 2 of user 12 is not a bit (0 or 1)
    """

    is_scalar: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True
    spec: ClassVar[str] = "bit"
    dimension: ClassVar[int] = 1
    sensitivity: ClassVar[Sensitivity] = Sensitivity(1.0)

    def rows(self, values: ArrayLike, *, first: int = 0) -> NDArray[np.uint8]:
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

    def __post_init__(self) -> None:
        low = errors.finite_number("low", self.low, above=-LARGEST, below=LARGEST)
        high = errors.finite_number("high", self.high, above=-LARGEST, below=LARGEST)
        if high - low < SMALLEST:
            raise errors.InvalidValue(
                f"the interval from low={format_exactly(low)} to high={format_exactly(high)} "
                "is empty or too short"
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
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(self.high - self.low)

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
                f"value {format_exactly(numbers[user])} of user {first + user + 1} is not between "
                f"{format_exactly(self.low)} and {format_exactly(self.high)}"
            )
        return numbers

    def opposites(self, bits: NDArray[np.uint8]) -> Floats:
        return np.where(bits, self.high, self.low)

    def uniform(self, random: Random, users: int) -> Floats:
        return np.minimum(self.low + self.width * random.uniforms(users), self.high)


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
