"""Values that are in one of many buckets: a number, a label, or a real between two edges."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import Random
from overhand.values.kind import LARGEST, Reals, Sensitivity, Values, array_of, format_exactly

MOST_LABELS = 1 << 14
LONGEST_LABEL = 100
_SHOWN = 5  # labels that an error lists
_SHOWN_LETTERS = 60
MOST_BUCKETS = 1 << 20
_MOST_EDGES = MOST_LABELS + 1


class Buckets(Values):
    """One of many buckets; rows hold its number, and the sum counts the users per bucket.

    Another value of one user takes one from a bucket and gives one to another: two coordinates
    move by one, however many there are.

    >>> isinstance(Histogram(3), Buckets), Binned(0, 10, bins=3).sensitivity.l0
    (True, 2)
    """

    is_whole: ClassVar[bool] = True
    are_rows_points: ClassVar[bool] = False
    sensitivity: ClassVar[Sensitivity] = Sensitivity(1.0, 2)

    @abstractmethod
    def rows(self, values: ArrayLike, *, first: int = 0) -> Counts: ...

    def cells(self, rows: Rows) -> Rows:
        return rows + 1

    def coordinates(self, rows: Rows) -> NDArray[np.uint8]:
        points = np.zeros((len(rows), self.dimension), np.uint8)
        points[np.arange(len(rows)), rows] = 1
        return points

    def total(self, rows: Rows) -> Counts:
        return np.bincount(rows, minlength=self.dimension)

    def running_sums(self, rows: Rows) -> Counts:
        return np.cumsum(self.coordinates(rows), axis=0, dtype=np.int64)

    def sums_after_blocks(self, rows: Rows, size: int) -> Counts:
        blocks = len(rows) // size
        cells = np.repeat(np.arange(blocks) * self.dimension, size) + rows
        counts = np.bincount(cells, minlength=blocks * self.dimension)
        return np.cumsum(counts.reshape(blocks, self.dimension), axis=0)

    def opposites(self, bits: NDArray[np.uint8]) -> Counts:
        return bits.astype(np.int64)

    def uniform(self, random: Random, users: int) -> Counts:
        return np.floor(random.uniforms(users) * self.dimension).astype(np.int64)


@dataclass(frozen=True, init=False, repr=False)
class Histogram(Buckets):
    """A bucket from 0 to `buckets` - 1, or one that has a label.

    A value without a label is an error, or goes to a last bucket named `other`, if there is one.

    >>> Histogram(3).coordinates(Histogram(3).rows([2, 0]))
    array([[0, 0, 1],
           [1, 0, 0]], dtype=uint8)
    >>> Histogram(3).rows([2, 3])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 3 of user 2 is not a bucket from 0 to 2
    >>> Histogram(["like", "love", "wow"]).rows(["wow", "like"])
    array([2, 0])
    >>> Histogram(["like", "love"], other="any other").rows(["wow", "like"])
    array([2, 0])
    """

    buckets: int
    names: Labels | None

    def __init__(self, buckets: int | Sequence[str], other: str | None = None) -> None:
        is_count = isinstance(buckets, str) or not hasattr(buckets, "__len__")
        if is_count and other is not None:
            raise errors.InvalidValue(
                f"{other=} is for unknown labels, but {buckets=} has no labels"
            )
        names = None if is_count else Labels.of(buckets, other)  # type: ignore[arg-type]
        count = buckets if names is None else len(names.names)
        count = errors.whole("buckets", count, least=2, most=MOST_BUCKETS)
        object.__setattr__(self, "buckets", count)
        object.__setattr__(self, "names", names)

    @property
    def spec(self) -> str:
        return f"histogram:{self.buckets if self.names is None else self.names.spec}"

    @property
    def dimension(self) -> int:
        return self.buckets

    @property
    def labels(self) -> tuple[str, ...] | None:
        return None if self.names is None else self.names.names

    @property
    def coordinate_names(self) -> tuple[str, ...] | None:
        return self.labels

    @property
    def label_columns(self) -> int:  # type: ignore[override]
        return 0 if self.names is None else 1

    @property
    def neutral(self) -> Any:
        return 0 if self.names is None else self.names.names[0]

    def parse_cells(self, cells: Sequence[Sequence[str]]) -> Any:
        return super().parse_cells(cells) if self.names is None else [cell for (cell,) in cells]

    def rows(self, values: ArrayLike, *, first: int = 0) -> Counts:
        if self.names is not None:
            return self.names.places(values, first=first)
        array = array_of(values, "bucket numbers")
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

    def __repr__(self) -> str:
        if self.names is None:
            return f"Histogram(buckets={self.buckets})"
        other = "" if self.names.other is None else f", other={self.names.other!r}"
        return f"Histogram({self.names.listed!r}{other})"


@dataclass(frozen=True, init=False, repr=False)
class Binned(Buckets):
    """A number in an interval, of which only its bin counts.

    There are `bins` of equal width from `low` to `high`, or one between every two neighbouring
    `edges`. An edge belongs to the bin above it, the last one to the bin below. A number outside is
    an error, or goes to the first or last bin if `clip`.

    >>> Binned(0, 10, bins=5).rows([0, 1.99, 2, 10])
    array([0, 0, 1, 4])
    >>> Binned(0, 10, bins=5).rows([2.5, 11.0])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value 11 of user 2 is not between 0 and 10
    >>> Binned(edges=[0, 1, 10, 100], clip=True).rows([0.5, 30, 500])
    array([0, 2, 2])
    """

    edges: tuple[float, ...]
    clip: bool

    def __init__(
        self,
        low: float | None = None,
        high: float | None = None,
        bins: int | None = None,
        clip: bool = False,
        *,
        edges: Sequence[float] | Floats | None = None,
    ) -> None:
        bounds = (low, high, bins)
        if edges is None and None not in bounds:
            made = _even(*bounds)  # type: ignore[arg-type]
        elif edges is not None and bounds == (None, None, None):
            made = _check_edges(edges)
        else:
            raise errors.InvalidValue("give low, high and bins, or edges=[...]")
        object.__setattr__(self, "edges", made)
        object.__setattr__(self, "clip", bool(clip))

    @property
    def spec(self) -> str:
        low, high, bins = self.edges[0], self.edges[-1], self.dimension
        if self.edges == _evenly(low, high, bins):
            return f"binned:{low!r}:{high!r}:{bins}"
        return "binned:" + ",".join(map(repr, self.edges))

    @property
    def dimension(self) -> int:
        return len(self.edges) - 1

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """`LOW to HIGH`, for every bin."""
        ends = [f"{edge:.12g}" for edge in self.edges]
        return tuple(f"{low} to {high}" for low, high in zip(ends[:-1], ends[1:], strict=True))

    @cached_property
    def _interval(self) -> Reals:
        return Reals(self.edges[0], self.edges[-1], self.clip)

    @cached_property
    def _inner_edges(self) -> Floats:
        return np.array(self.edges[1:-1])

    @property
    def neutral(self) -> float:
        return self._interval.neutral

    def rows(self, values: ArrayLike, *, first: int = 0) -> Counts:
        numbers = self._interval.rows(values, first=first)
        return np.searchsorted(self._inner_edges, numbers, side="right").astype(np.int64)

    def __repr__(self) -> str:
        clip = ", clip=True" if self.clip else ""
        low, high, bins = self.edges[0], self.edges[-1], self.dimension
        if self.edges == _evenly(low, high, bins):
            return f"Binned(low={low}, high={high}, bins={bins}{clip})"
        return f"Binned(edges={list(self.edges)}{clip})"


def _even(low: float, high: float, bins: int) -> tuple[float, ...]:
    interval = Reals(low, high)
    bins = errors.whole("bins", bins, least=2, most=MOST_BUCKETS)
    edges = _evenly(interval.low, interval.high, bins)
    if not (np.diff(edges) > 0).all():
        raise errors.InvalidValue(
            f"{bins} bins from {format_exactly(interval.low)} to {format_exactly(interval.high)} "
            "are narrower than floats can tell apart"
        )
    return edges


def _evenly(low: float, high: float, bins: int) -> tuple[float, ...]:
    return tuple(np.linspace(low, high, bins + 1).tolist())


def _check_edges(edges: Sequence[float] | Floats) -> tuple[float, ...]:
    try:
        listed = [*edges]
    except TypeError:
        raise errors.InvalidValue(f"{edges=} must be a list of numbers") from None
    errors.whole("the number of edges", len(listed), least=3, most=_MOST_EDGES)
    numbers = [
        errors.finite_number("an edge", edge, above=-LARGEST, below=LARGEST) for edge in listed
    ]
    for low, high in zip(numbers[:-1], numbers[1:], strict=True):
        if not low < high:
            raise errors.InvalidValue(
                f"edges must increase: {format_exactly(high)} comes after {format_exactly(low)}"
            )
    Reals(numbers[0], numbers[-1])
    return tuple(numbers)


@dataclass(frozen=True)
class Labels:
    """Names in the order of their places; `other` is the last of them, for all unknown ones.

    >>> labels = Labels.of(["like", "love", "wow"])
    >>> labels.places(["wow", "like"])
    array([2, 0])
    >>> labels.places(["wow", "lvoe"])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: 'lvoe' of user 2 is not one of the 3 labels: the nearest is 'love'
    >>> Labels.of(["like", "love"], other="any other").places(["wow", "like"])
    array([2, 0])
    """

    names: tuple[str, ...]
    other: str | None = None

    @classmethod
    def of(cls, labels: Sequence[str], other: str | None = None) -> Labels:
        """Distinct labels that can be written down, or an error that names the first bad one."""
        if isinstance(labels, str | bytes | set | frozenset | dict):  # or without an order
            raise errors.InvalidValue(f"labels={labels!r:.60} must be a list of labels")
        names = (*labels, *([] if other is None else [other]))
        errors.whole("the number of labels", len(names), least=2, most=MOST_LABELS)
        if len(labels) == 1 and _is_number(names[0]):
            raise errors.InvalidValue(f"a single label {names[0]!r} reads as a number of buckets")
        seen = set[str]()
        for name in names:
            _check_name(name)
            if name in seen:
                raise errors.InvalidValue(f"the label {name!r} occurs twice")
            seen.add(name)
        return cls(tuple(str(name) for name in names), None if other is None else str(other))

    @property
    def spec(self) -> str:
        """The names with commas between them, and after a colon the one for all others."""
        return ",".join(self.listed) + ("" if self.other is None else f":{self.other}")

    @property
    def listed(self) -> list[str]:
        """All but the one for all others."""
        return list(self.names if self.other is None else self.names[:-1])

    @cached_property
    def _place_of(self) -> dict[str | bytes, int]:
        places: dict[str | bytes, int] = {name: i for i, name in enumerate(self.names)}
        # NumPy's byte strings are another type, and never equal to a str.
        return places | {name.encode(): i for i, name in enumerate(self.names)}

    def places(self, values: ArrayLike, *, first: int = 0) -> Counts:
        """The place of every user's label, or an error that names a user who has none.

        Takes lists and arrays of strings (NumPy's too), and pandas' Series and Categorical. `first`
        is how many users came before, so that the error counts from there.
        """
        categories = _categories(values)
        if categories is None:
            held = _to_list(values)
            found = self._found(held)
        else:
            codes, names = categories
            held, found = names, np.append(self._found(names), -1)[codes]  # -1 is a missing value
        if len(found) and found.min() < 0:
            user = int(np.argmin(found))
            place = user if categories is None else int(categories[0][user])
            raise self._unknown(held[place] if place >= 0 else None, first + user + 1)
        return found

    def _found(self, held: Sequence[Any]) -> Counts:
        """The places, and -1 for unknown labels."""
        try:
            found = np.fromiter(map(self._place_of.get, held, repeat(-1)), np.int64, len(held))
        except TypeError:  # a list among them, or whatever else has no hash
            labels = (value if isinstance(value, str | bytes) else "" for value in held)
            found = np.fromiter(map(self._place_of.get, labels, repeat(-1)), np.int64, len(held))
        if self.other is not None:
            unknown = np.flatnonzero(found < 0)
            is_string = [isinstance(held[user], str | bytes) for user in unknown.tolist()]
            found[unknown[is_string]] = len(self.names) - 1
        return found

    def _unknown(self, value: Any, user: int) -> errors.InvalidValue:
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        listed = ", ".join(self.names[:_SHOWN]) + (", ..." if len(self.names) > _SHOWN else "")
        if not isinstance(value, str):
            held = f"{type(value).__name__} {value!r:.60}, not a label"
            found = "no label" if value is None else held
            return errors.InvalidValue(f"user {user} has {found}: {listed}")
        folded = {name.casefold(): name for name in self.names}
        near = difflib.get_close_matches(value[:LONGEST_LABEL].casefold(), folded, n=1)
        hint = f"the nearest is {folded[near[0]]!r}" if near else listed
        shown = value if len(value) <= _SHOWN_LETTERS else value[:_SHOWN_LETTERS] + "..."
        return errors.InvalidValue(
            f"{shown!r} of user {user} is not one of the {len(self.names)} labels: {hint}"
        )


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise errors.InvalidValue(f"the label {name!r:.60} must be a string")
    if not name or name != name.strip():
        raise errors.InvalidValue(f"the label {name!r:.60} is empty or has spaces around it")
    if len(name) > LONGEST_LABEL:
        raise errors.InvalidValue(
            f"the label {name[:_SHOWN_LETTERS]!r}... has {len(name)} letters, more than "
            f"{LONGEST_LABEL}"
        )
    if "," in name or ":" in name or not name.isprintable():
        raise errors.InvalidValue(
            f"the label {name!r} contains a comma, a colon or an unprintable character"
        )


def _is_number(name: object) -> bool:
    try:
        float(str(name))
    except ValueError:
        return False
    return True


def _categories(values: Any) -> tuple[Counts, list[Any]] | None:
    """The codes and categories of what pandas calls categorical; pandas itself is not needed."""
    held = getattr(values, "cat", values)  # that of a Series
    codes, categories = getattr(held, "codes", None), getattr(held, "categories", None)
    if codes is None or categories is None:
        return None
    return np.asarray(codes).astype(np.int64), np.asarray(categories).tolist()


def _to_list(values: Any) -> Sequence[Any]:
    """The values one by one as Python objects, which a dictionary looks up fastest."""
    if isinstance(values, list | tuple | Iterator):
        return [*values]
    if isinstance(values, str | bytes):
        raise errors.InvalidValue(
            f"a single string {values!r:.60} instead of the labels of many users"
        )
    array = array_of(values, "labels")
    if array.ndim != 1:
        raise errors.InvalidValue(f"values of shape {array.shape} must be labels, of shape (users)")
    listed: list[Any] = array.tolist()
    return listed
