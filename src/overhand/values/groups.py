"""Values in groups: a user is in one group and holds one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import Random
from overhand.values.buckets import Labels
from overhand.values.kind import Bits, Reals, Sensitivity, Values

_FORMS = (
    "pairs of a label and a number, a tuple of the labels and the numbers, or a table of these "
    "two columns"
)
_GROUP, _HIGH, _LOW = 0, 1, 2  # the columns of the rows


@dataclass(frozen=True, init=False, repr=False)
class Grouped(Values):
    """A label and a number in an interval: the sum yields the count and sum of every group.

    A user of group j whose number is `low` counts one in the cell "j, low", and one whose number
    is `high` in the cell "j, high"; any other is divided between the two as its number lies
    between them. So a group's users are the sum of its two cells, and their numbers sum up to
    high times the one and low times the other: `counts_and_sums`. Coordinates are the `high` cells
    of all groups and then the `low` ones. Of bits the cells are those of a histogram.

    Sensitivity. A user is S steps (rounded, but always S in total: what one cell of its group
    does not have, the other has). Another value takes S steps out of the cells of one group, and
    puts S into those of one group. Out of one count and into another is the worst that can happen,
    as the noise is log-concave (`docs/accounting.md` has the proof), and it does happen. So the
    number of groups does not enter, and count and number are hidden by one noise: `l0` is 2, each
    by its whole width.

    That up to four counts move at all matters where a count is shown only nearly alone: `touched`.

    >>> incomes = Grouped(["DE", "FR"], of=Reals(0.0, 10.0))
    >>> rows = incomes.rows([("DE", 2.5), ("FR", 10.0), ("FR", 5.0)])
    >>> incomes.total(rows)
    array([0.25, 1.5 , 0.75, 0.5 ])
    >>> incomes.counts_and_sums(incomes.total(rows))
    (array([1., 2.]), array([ 2.5, 15. ]))
    """

    names: Labels
    of: Reals | Bits

    are_rows_points: ClassVar[bool] = False

    def __init__(self, labels: Sequence[str], of: Reals | Bits, other: str | None = None) -> None:
        if not isinstance(of, Reals | Bits):
            raise errors.InvalidValue(f"{of=!s} must be Reals or Bits")
        if other in ("bit", "real"):
            raise errors.InvalidValue(f"{other=} names a kind of number: choose another label")
        object.__setattr__(self, "names", Labels.of(labels, other))
        object.__setattr__(self, "of", of)

    @property
    def spec(self) -> str:
        return f"grouped:{self.names.spec}:{self.of.spec}"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.names.names

    @property
    def groups(self) -> int:
        return len(self.names.names)

    @property
    def dimension(self) -> int:
        return 2 * self.groups

    @property
    def clip(self) -> bool:
        return isinstance(self.of, Reals) and self.of.clip

    @property
    def is_whole(self) -> bool:  # type: ignore[override]
        return self.of.is_whole

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0, 2, touched=None if self.is_whole else 4)

    @property
    def rounding(self) -> float:
        """Twice that of one cell: what it gains the other loses, which a sum sees twice.

        So counts and sums may be treated as if cells had independent errors: a count does not
        have any rounding error, and (high - low)^2 <= 2 (high^2 + low^2).
        """
        return 0.0 if self.is_whole else 0.5

    @property
    def reader(self) -> Floats:
        """(count, sum) of a group, from (high cell, low cell): two lines of two coefficients.

        Cells have independent errors, all with the same distribution.

        >>> Grouped(["DE", "FR"], of=Reals(10.0, 50.0)).reader
        array([[ 1.,  1.],
               [50., 10.]])
        """
        return np.array([[1.0, 1.0], [self.of.highs[0], self.of.lows[0]]])

    def counts_and_sums(self, value: Floats) -> tuple[Floats, Floats]:
        """The users of every group, and the sums of their numbers, from a sum of values."""
        cells = np.asarray(value, np.float64).reshape(2, self.groups)
        counts, sums = self.reader @ cells
        return counts, sums

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        ends = (f"{self.of.highs[0]:.12g}", f"{self.of.lows[0]:.12g}")
        return tuple(f"{label} at {end}" for end in ends for label in self.labels)

    label_columns: ClassVar[int] = 1

    @property
    def columns(self) -> int:
        return 2

    def parse_cells(self, cells: Sequence[Sequence[str]]) -> Any:
        return [label for label, _ in cells], [float(number) for _, number in cells]

    @property
    def neutral(self) -> tuple[str, float]:
        return self.labels[0], self.of.neutral

    def rows(self, values: Any, *, first: int = 0) -> Rows:
        """A row per user: its group, and its shares of the high and the low cell."""
        labels, numbers = _two_columns(values)
        places = self.names.places(labels, first=first)
        held = self.of.rows(_plain(numbers), first=first)
        if len(places) != len(held):
            raise errors.InvalidValue(f"{len(places)} labels but {len(held)} numbers")
        return self._join(places, held)

    def _join(self, places: Counts, held: Rows) -> Rows:
        if self.is_whole:
            return np.stack([places, held.astype(np.int64), 1 - held.astype(np.int64)], axis=1)
        low, high = self.of.lows[0], self.of.highs[0]
        share = np.clip((held - low) / (high - low), 0.0, 1.0)
        return np.stack([places.astype(np.float64), share, 1.0 - share], axis=1)

    def round_rows(self, rows: Rows, unit: float, most: Counts, random: Random) -> Rows:
        """Both cells of a user have `most` steps together, whichever way it is rounded."""
        if self.is_whole:
            return rows
        high = rows[:, _HIGH] / unit
        high += random.uniforms(len(rows))
        steps = np.clip(np.floor(high).astype(np.int64), 0, most[0])
        return np.stack([rows[:, _GROUP].astype(np.int64), steps, most[0] - steps], axis=1)

    def cells(self, rows: Rows) -> Rows:
        return np.asarray(1 + rows[:, _GROUP] + self.groups * rows[:, _LOW])

    def coordinates(self, rows: Rows) -> Rows:
        points = np.zeros((len(rows), self.dimension), rows.dtype)
        users, places = np.arange(len(rows)), rows[:, _GROUP].astype(np.int64)
        points[users, places] = rows[:, _HIGH]
        points[users, places + self.groups] = rows[:, _LOW]
        return points

    def total(self, rows: Rows) -> Any:
        return self._block_sums(rows, 1, len(rows))[0]

    def sums_after_blocks(self, rows: Rows, size: int) -> Rows:
        return np.cumsum(self._block_sums(rows, len(rows) // size, size), axis=0)

    def _block_sums(self, rows: Rows, blocks: int, size: int) -> Rows:
        """The sum of every block of this many users, one row each."""
        cells = np.repeat(np.arange(blocks) * self.groups, size) + rows[:, _GROUP].astype(np.int64)
        ends = [
            np.bincount(cells, weights=rows[:, end], minlength=blocks * self.groups)
            for end in (_HIGH, _LOW)
        ]
        sums = np.concatenate([end.reshape(blocks, self.groups) for end in ends], axis=1)
        return sums.astype(rows.dtype)

    def opposites(self, bits: NDArray[np.uint8]) -> Rows:
        """The first group's low end, and its high one."""
        low, high = self.of.opposites(np.array([0, 1], np.uint8))
        return self._join(np.zeros(len(bits), np.int64), np.where(bits, high, low))

    def uniform(self, random: Random, users: int) -> Rows:
        places = np.floor(random.uniforms(users) * self.groups).astype(np.int64)
        return self._join(places, self.of.uniform(random, users))

    def __repr__(self) -> str:
        other = "" if self.names.other is None else f", other={self.names.other!r}"
        return f"Grouped({self.names.listed!r}, of={self.of!r}{other})"


def _two_columns(values: Any) -> tuple[Any, Any]:
    """The labels and the numbers, whichever way they are given."""
    if isinstance(values, list | tuple | np.ndarray) and len(values) == 0:
        return [], []
    names = getattr(values, "columns", None)  # of a data frame
    if names is None:
        names = getattr(getattr(values, "dtype", None), "names", None)  # of a structured array
    if names is not None:
        if len(names) != 2:
            raise errors.InvalidValue(f"a table of {len(names)} columns: values are {_FORMS}")
        return values[names[0]], values[names[1]]
    if isinstance(values, np.ndarray):
        if values.ndim != 2 or values.shape[1] != 2:
            raise errors.InvalidValue(f"values of shape {values.shape}: values are {_FORMS}")
        return values[:, 0], values[:, 1]
    if isinstance(values, tuple):
        if len(values) != 2:
            raise errors.InvalidValue(f"a tuple of {len(values)}: values are {_FORMS}")
        return values
    try:
        pairs = [_pair(one) for one in values]
    except (TypeError, ValueError):
        raise errors.InvalidValue(f"some values are not pairs: values are {_FORMS}") from None
    return [label for label, _ in pairs], [number for _, number in pairs]


def _pair(value: Any) -> tuple[Any, Any]:
    if isinstance(value, str):  # which may have two letters
        raise TypeError
    label, number = value
    return label, number


def _plain(numbers: Any) -> Any:
    """Restore numbers that shared an array with their labels."""
    return numbers.tolist() if getattr(numbers, "dtype", None) == np.dtype(object) else numbers
