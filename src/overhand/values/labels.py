"""Labels: names for values, and their places."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.model import Counts
from overhand.values.kind import array_of

MOST_LABELS = 1 << 14
LONGEST_LABEL = 100
_SHOWN = 5  # labels that an error lists
_SHOWN_LETTERS = 60


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
            held = _listed(values)
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
            found = np.array([self._place(value) for value in held], np.int64)
        if self.other is not None:
            unknown = np.flatnonzero(found < 0)
            is_string = [isinstance(held[user], str | bytes) for user in unknown.tolist()]
            found[unknown[is_string]] = len(self.names) - 1
        return found

    def _place(self, value: Any) -> int:
        return self._place_of.get(value, -1) if isinstance(value, str | bytes) else -1

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


def _listed(values: Any) -> Sequence[Any]:
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
