"""Sums of a range, by place or by time, and of windows side by side."""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.estimates import Estimate, loaded_pandas
from overhand.summation.saving import Resumable, whole
from overhand.summation.times import MICROSECOND, UNITS, Clock, Time, moment_of, shown

_LENGTH = re.compile(r"(\d{1,9})\s*(w|d|h|min|s)")
_SECONDS = {"w": 7 * 86_400, "d": 86_400, "h": 3_600, "min": 60, "s": 1}
_DAY = timedelta(days=1)
_MOST_WINDOWS = 100_000


class Window(NamedTuple):
    """The users of a range of time, to the nearest block, and their sum.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(1000, 2, oh.Privacy(1.0, 1e-6))
    >>> total = oh.ContinualSum(plan, oh.seeded_random(1))
    >>> total.update_many([1] * 300, at=np.datetime64("2026-11-01T00", "h") + np.arange(300))
    >>> week = total.windows("7d")[0]
    >>> print(week.start, week.stop, week.last, sep=", ")
    2026-11-01 00:00:00, 2026-11-08 00:00:00, 2026-11-08 13:00:00
    >>> week.estimate.start, week.estimate.t, abs(week.estimate.value - 182) < 50
    (0, 182, True)
    """

    start: datetime
    stop: datetime
    """From `start` on, and before `stop`."""
    first: datetime | None
    last: datetime | None
    """When the first and the last came of those who are in the sum; None if nobody is."""
    estimate: Estimate
    """Of the users at places `estimate.start` to `estimate.t`."""


class Windows(list[Window]):
    """Adjacent windows; nobody is in two of them.

    >>> Windows().to_frame().columns.tolist()
    ['stop', 'first', 'last', 'users', 'value', 'std', 'slack', 'low', 'high']
    """

    def to_frame(self, confidence: float = 0.95) -> Any:
        """A pandas frame with a row per window, by its start.

        If sums have several coordinates, a row per window and coordinate, by its name if it has
        one. `low` and `high` are the ends of each interval.
        """
        pandas = loaded_pandas()
        confidence = errors.number("confidence", confidence, above=0, below=1)
        columns = [*_COLUMNS, "users", "value", "std", "slack", "low", "high"]
        rows = [row for window in self for row in _rows(window, confidence)]
        frame = pandas.DataFrame(rows, columns=["coordinate", *columns])
        if any(np.ndim(window.estimate.value) for window in self):
            return frame.set_index(["start", "coordinate"])
        return frame.drop(columns="coordinate").set_index("start")


_COLUMNS = Window._fields[:-1]


def _rows(window: Window, confidence: float) -> Iterator[tuple[Any, ...]]:
    estimate = window.estimate
    numbers = (estimate.value, estimate.std, estimate.slack, *estimate.interval(confidence))
    table = np.broadcast_arrays(*(np.atleast_1d(np.asarray(n, np.float64)) for n in numbers))
    rows = np.stack(table, axis=1).tolist()
    for coordinate, row in zip(estimate.names or range(len(rows)), rows, strict=True):
        yield coordinate, *window[:-1], estimate.users, *row


class Ranged(Resumable):
    """A running sum that also answers for ranges."""

    _clock: Clock
    _is_archived: bool
    """Whether the sums and times of batches are kept."""

    @abstractmethod
    def _between_places(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1."""

    @abstractmethod
    def _place(self, moment: int) -> int:
        """The border between blocks that a time is."""

    @abstractmethod
    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """When the first and the last came of those between two borders."""

    @whole
    def between(self, start: int | Time, stop: int | Time) -> Estimate:
        """The sum of a range of users, with an error of its own.

        By place, it is of those at places start .. stop - 1, from 0. By time, of those who came
        from `start` on and before `stop`, to the nearest blocks: a block is in if its first user
        is, so that adjacent ranges share nobody and leave nobody out. The estimate is of the users
        at places `estimate.start` to `estimate.t`; `window` says when they came. Users in a block
        that is not full count as pending.

        Times are anything that `at` takes. They are not protected by epsilon.
        """
        if not (_is_time(start) or _is_time(stop)):
            self._check_archive()
            return self._between_places(start, stop)
        if not (_is_time(start) and _is_time(stop)):
            raise errors.InvalidValue(f"{start=} and {stop=} must be two places or two times")
        return self.window(start, stop).estimate

    @whole
    def window(self, start: Time, stop: Time) -> Window:
        """What `between` says of a range of time, and when its users came."""
        self._check_archive()
        moments = [
            self._clock.moment_of(name, time) for name, time in (("start", start), ("stop", stop))
        ]
        if moments[1] < moments[0]:
            raise errors.InvalidValue(f"stop={stop!r} is before start={start!r}")
        return self._window(moments[0], moments[1])

    def _check_archive(self) -> None:
        if not self._is_archived:
            raise errors.InvalidValue("a sum of a range needs archive=True")

    def _window(self, start: int, stop: int) -> Window:
        places, zone = (self._place(start), self._place(stop)), self._clock.zone
        span = self._span(*places) if places[0] < places[1] else ()
        first, last = [shown(moment, zone) for moment in span] or (None, None)
        return Window(
            shown(start, zone), shown(stop, zone), first, last, self._between_places(*places)
        )

    @whole
    def windows(self, length: str | timedelta) -> Windows:
        """All users so far, in windows of this length that start with the first user's.

        A length is a timedelta or text: "12h", "30min", "15s", and "7d" or "1w" for days. As
        pandas' `resample` has it, windows are counted from midnight of the day of the first time,
        in the zone of that time; those of whole days go from midnight to midnight even where the
        clock is changed. Borders go to blocks as those of `between` do.

        The last window may not be over yet, and windows in which nobody came are included.
        """
        self._check_archive()
        step, zone, last = _step(length), self._clock.zone, self._clock.last
        if last is None:
            raise errors.InvalidValue("windows need times, but users came without `at`")
        first, _ = self._span(0, 1)
        return Windows(self._window(*pair) for pair in pairwise(_borders(first, last, step, zone)))


def _is_time(bound: object) -> bool:
    return isinstance(bound, (str, date, np.datetime64))


def _step(length: object) -> timedelta:
    """The length of a window, or an error that says what a length is."""
    microseconds = _microseconds(length)
    try:
        if microseconds > 0:
            return timedelta(microseconds=microseconds)
    except OverflowError:
        pass
    raise errors.InvalidValue(
        f"length={length!r} must be a timedelta above 0 or text such as '7d', '12h' or '30min'"
    )


def _microseconds(length: object) -> int:
    """Of a length, or 0 if it is none."""
    if isinstance(length, str) and (found := _LENGTH.fullmatch(length.strip().lower())):
        return int(found[1]) * _SECONDS[found[2]] * 10**6
    if isinstance(length, np.timedelta64) and not np.isnat(length):
        unit, count = np.datetime_data(length.dtype)
        multiplier, divisor = UNITS.get(unit, (0, 1))  # months are no length
        return int(length.view(np.int64)) * count * multiplier // divisor
    if isinstance(length, timedelta):
        return int(length // MICROSECOND)
    return 0


def _borders(first: int, last: int, step: timedelta, zone: tzinfo | None) -> list[int]:
    """Where windows of this length begin and end, from the first time to the last."""
    midnight = shown(first, zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    origin, size = _moment(midnight, zone), step // MICROSECOND
    count = (last - origin) // size + 2  # one more than there are, if a day has 25 hours
    if count > _MOST_WINDOWS:
        raise errors.InvalidValue(
            f"length={step} makes about {count:,} windows, more than {_MOST_WINDOWS:,}"
        )
    if step % _DAY:
        return list(range(origin + (first - origin) // size * size, last + size + 1, size))
    borders = [_moment(midnight + number * step, zone) for number in range(count + 1)]
    return borders[: bisect_right(borders, last) + 1]


def _moment(wall: datetime, zone: tzinfo | None) -> int:
    """When a clock on the wall shows this."""
    return moment_of("a border of windows", wall.replace(tzinfo=zone))[0]
