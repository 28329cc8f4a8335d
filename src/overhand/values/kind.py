"""What every kind of value provides."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import Random

SMALLEST, LARGEST = 1e-100, 1e100
"""Norms and widths are between these, so that their squares are finite and not 0."""


class Values(ABC):
    """A kind of value: what one user may hold, and the coordinates of a sum of such values.

    Coordinate j of one user's value lies in [lows[j], highs[j]]. How a change of one value can
    move a sum is given in one of two ways: it moves at most `moves` coordinates, each by at most
    its whole width; or, if `moves` is None, any of them, by `sensitivity` in l2.

    >>> from overhand.values import Bits, Histogram, Moments, Vectors
    >>> for values in (Bits(), Histogram(200), Vectors(20), Moments(5)):
    ...     print(values, values.dimension, values.moves, round(values.sensitivity, 3))
    bit 1 1 1.0
    histogram:200 200 2 1.414
    vector:20 20 None 2.0
    moments:5 20 None 2.121
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
    def moves(self) -> int | None: ...

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The largest l2 distance between two users' values."""

    @property
    def touches(self) -> int:
        """How many coordinates another value of one user moves at most, by however little."""
        return self.moves or self.dimension

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

    def given(self, cells: Sequence[Sequence[str]]) -> Any:
        """What `rows` takes, from the rows of a table: cells other than labels are numbers."""
        numbers = [[float(cell) for cell in line] for line in cells]
        return np.array(numbers, np.float64).reshape(-1, *self.given_shape)

    @property
    def neutral(self) -> Any:
        """The value of the shuffling service's own reports, which fill up late batches.

        It is one that everybody knows: 0 if that is possible, else an agreed one. How many reports
        in a batch were the service's own is public, so the server subtracts them again.

        >>> from overhand.values import Bits, Histogram, Reals
        >>> Bits().neutral, Reals(10, 50).neutral, Histogram(3).neutral
        (0, 10.0, 0)
        """
        return np.zeros(self.given_shape) if self.given_shape else 0

    def neutral_sum(self, reports: int) -> Any:
        """What this many reports of the neutral value add to a sum.

        >>> from overhand.values import Histogram, Reals
        >>> float(Reals(10, 50).neutral_sum(3)), Histogram(3).neutral_sum(5)
        (30.0, array([5, 0, 0]))
        """
        return reports * self.total(self.rows([self.neutral]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sum: () for a number."""
        return () if self.is_scalar else (self.dimension,)

    @property
    def width(self) -> float:
        """The length of the longest coordinate's interval."""
        return float((self.highs - self.lows).max())

    def rounded(self, rows: Rows, unit: float, most: Counts, random: Random) -> Rows:
        """Rows rounded to whole steps of this unit, `most` per coordinate, at random, unbiased."""
        if self.is_whole:
            return rows
        exact = rows - (self.lows if self.shape else self.lows[0])
        exact /= unit
        exact += random.uniforms(rows.size).reshape(rows.shape)
        np.floor(exact, out=exact)
        np.maximum(exact, 0, out=exact)
        np.minimum(exact, most if self.shape else most[0], out=exact)
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
            f"value of user {first + user + 1} is not finite: {shown(floats[wrong][0])}"
        )
    return floats


def shown(number: float) -> str:
    """All digits of a number, so that 10.0000001 is not shown as 10.

    >>> shown(10.0000001), shown(10.0)
    ('10.0000001', '10')
    """
    return repr(float(number)).removesuffix(".0")
