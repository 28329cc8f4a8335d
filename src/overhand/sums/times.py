"""When users came, and sums of ranges and windows of time.

Times come in any form, and are kept as whole microseconds since 1970 in UTC.

Nothing here is protected: times are taken to be public, and are kept as they are.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.estimates import Estimate, load_pandas
from overhand.model import Counts
from overhand.sums.saving import Resumable, whole

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
# What a datetime can say, in whatever zone.
_LEAST = (datetime.min + timedelta(days=1) - _EPOCH) // _MICROSECOND
_MOST = (datetime.max - timedelta(days=1) - _EPOCH) // _MICROSECOND
_FINER = ("ns", "ps", "fs", "as")  # than a microsecond: what is dropped
_COMPARED = 1 << 16  # at a time, so that they stay in the processor's cache

Times = Any
"""One time for every user: a pandas Series or index, a NumPy array, a list, of what `Time` is."""
Time = Any
"""A datetime or date, a pandas Timestamp, a NumPy datetime64, or ISO 8601 text."""
Stamp = tuple[int, tzinfo | None]
"""A time in microseconds, and its zone."""
_LENGTH = re.compile(r"(\d{1,9})\s*(w|d|h|min|s)")
_SECONDS = {"w": 7 * 86_400, "d": 86_400, "h": 3_600, "min": 60, "s": 1}
_DAY = timedelta(days=1)
_MOST_WINDOWS = 100_000


class CheckedTimes(NamedTuple):
    """The times of some users, in ascending order, as NumPy has them.

    Only those that are asked for become microseconds: two for every block, not one per user.
    """

    times: NDArray[np.datetime64]
    zone: tzinfo | None

    def moments(self, users: slice) -> Counts:
        return self.times[users].astype("M8[us]").view(np.int64)

    def moment(self, user: int) -> int:
        return int(self.times[user].astype("M8[us]").view(np.int64))

    def part(self, users: slice) -> CheckedTimes:
        return self._replace(times=self.times[users])


def check_times(at: Times, *, users: int, first: int) -> CheckedTimes:
    """One time per user, after `first` others; or an error that says whose time is wrong.

    >>> times = check_times(["2026-11-01T10:00", "2026-11-01T10:30"], users=2, first=0)
    >>> times.moment(1) - times.moment(0), times.zone
    (1800000000, None)
    """
    if isinstance(at, CheckedTimes):
        return at
    times, zone = _to_array(at, first)
    if len(times) != users:
        raise errors.InvalidValue(f"at has {len(times)} times for {users} users")
    place = _find_fall(times)
    if place is not None and np.datetime_data(times.dtype)[0] in _FINER:
        times = times.astype("M8[us]")  # to fall by less than a microsecond is not to fall
        place = _find_fall(times)
    # If none falls, all are between the first and the last.
    ends = (0, users - 1) if place is None else (place - 1, place)
    found = [
        moment_of(f"the time of user {first + user + 1}", times[user])[0] for user in ends if users
    ]
    if place is not None:
        raise _decrease_error(first + place + 1, found[1], found[0], zone)
    return CheckedTimes(times, zone)


def _decrease_error(
    user: int, moment: int, before: int, zone: tzinfo | None
) -> errors.InvalidValue:
    time, earlier = (to_datetime(one, zone).isoformat() for one in (moment, before))
    return errors.InvalidValue(
        f"times must not decrease: user {user} came at {time}, after one of {earlier}"
    )


def _find_fall(times: NDArray[np.datetime64]) -> int | None:
    """The first place whose time is before that of the one ahead of it, or is none (NaT)."""
    ticks = times.view(np.int64)
    for start in range(0, len(ticks) - 1, _COMPARED):
        part = ticks[start : start + _COMPARED + 1]
        falls = part[1:] < part[:-1]
        if falls.any():
            return start + 1 + int(np.argmax(falls))
    return None


def _to_array(at: Times, first: int) -> tuple[NDArray[np.datetime64], tzinfo | None]:
    """Times as NumPy has them, in UTC, and their zone."""
    zone = None
    is_numpy = isinstance(at, (np.ndarray, np.generic))
    if getattr(getattr(at, "dtype", None), "kind", "O") == "M" and not is_numpy:
        index = sys.modules["pandas"].DatetimeIndex(at)  # who has such a thing has loaded pandas
        zone, at = index.tz, index.tz_convert(None) if index.tz is not None else index
        at = at.to_numpy()
    if isinstance(at, np.ndarray) and at.ndim != 1:
        raise errors.InvalidValue(f"at of shape {at.shape} must be one-dimensional")
    if isinstance(at, np.ndarray) and at.dtype.kind == "M":
        return (at if at.dtype.isnative else at.astype(at.dtype.newbyteorder("="))), zone
    if isinstance(at, (str, bytes, date, np.datetime64, Mapping)) or not hasattr(at, "__iter__"):
        raise errors.InvalidValue(f"at={at!r} must have one time for every user")
    found = [moment_of(f"the time of user {user}", time) for user, time in enumerate(at, first + 1)]
    zones = [zone for _, zone in found]
    for place, zone in enumerate(zones):
        if (zone is None) != (zones[0] is None):
            raise _zone_error(f"the time of user {first + place + 1}", zone, f"user {first + 1}")
    return np.array([moment for moment, _ in found], "M8[us]"), zones[0] if zones else None


def _zone_error(time: str, zone: tzinfo | None, other: str) -> errors.InvalidValue:
    has, others = ("has no zone", "has one") if zone is None else ("has a zone", "has none")
    return errors.InvalidValue(f"{time} {has}, while that of {other} {others}")


def moment_of(name: str, time: Time) -> Stamp:
    """One time in microseconds, and its zone."""
    if isinstance(time, np.datetime64):
        time = _to_python(time)
        if time is None:
            raise errors.InvalidValue(f"{name} is missing (NaT)")
        if isinstance(time, int):  # more than Python can say
            raise errors.InvalidValue(f"{name} is not in the years 1 to 9999")
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise errors.InvalidValue(f"{name}, {time!r}, is not ISO 8601 text") from None
    elif isinstance(time, date) and not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)
    if not isinstance(time, datetime):
        given = time.item() if isinstance(time, np.generic) else time
        raise errors.InvalidValue(
            f"{name}, {given!r}, is not a datetime, a pandas or NumPy time or ISO 8601 text"
        )
    if time != time:  # pandas' NaT
        raise errors.InvalidValue(f"{name} is missing (NaT)")
    is_zoned = time.utcoffset() is not None
    moment = int((time - (_EPOCH_UTC if is_zoned else _EPOCH)) // _MICROSECOND)
    if not _LEAST <= moment <= _MOST:
        raise errors.InvalidValue(f"{name} is not in the years 1 to 9999")
    return moment, time.tzinfo if is_zoned else None


def _to_python(time: np.datetime64 | np.timedelta64) -> Any:
    """NumPy's time as Python has it, to the microsecond; a bare number if Python has none."""
    is_finer = np.datetime_data(time.dtype)[0] in _FINER
    return (time.astype(f"{time.dtype.kind}8[us]") if is_finer else time).item()


def to_datetime(moment: int, zone: tzinfo | None) -> datetime:
    """A time as it is shown: with a zone, if it was given with one.

    >>> to_datetime(0, None).isoformat(), to_datetime(0, timezone(timedelta(hours=1))).isoformat()
    ('1970-01-01T00:00:00', '1970-01-01T01:00:00+01:00')
    """
    if zone is None:
        return _EPOCH + moment * _MICROSECOND
    return (_EPOCH_UTC + moment * _MICROSECOND).astimezone(zone)


class Clock:
    """What the times of a stream have in common: a zone or none, and none is before the last.

    >>> clock = Clock()
    >>> clock.keep(clock.check(["2026-11-01T10:00Z"], users=1, first=0))
    >>> clock.check(["2026-11-01T10:30"], users=1, first=1)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: the time of user 2 has no zone, while that of user 1 has one
    """

    def __init__(self) -> None:
        self.zone: tzinfo | None = None
        """In which times are told: that of the first of all."""
        self.last: int | None = None
        """None if users have no times, or nobody came yet."""

    def check(self, at: Times | None, *, users: int, first: int) -> CheckedTimes | None:
        """The times of the next users, if they go with those of the `first` ones; none is kept."""
        if not self._has_times(at, users, first):
            return None
        times = check_times(at, users=users, first=first)
        if users:
            self._check_next(times.moment(0), times.zone, first)
        return times

    def check_one(self, at: Time | None, *, first: int) -> Stamp | None:
        """The same for the time of the next user."""
        if not self._has_times(at, 1, first):
            return None
        stamp = moment_of(f"the time of user {first + 1}", at)
        self._check_next(*stamp, first)
        return stamp

    def _has_times(self, at: object, users: int, first: int) -> bool:
        """Whether users have times: all of them do, or none."""
        if at is None and self.last is not None and users:
            raise errors.InvalidValue(
                f"at is missing: the {first} users so far have times, and so must user {first + 1}"
            )
        if at is not None and first and self.last is None:
            raise errors.InvalidValue(
                f"at is for all users or none: the {first} users so far have no times"
            )
        return at is not None

    def _check_next(self, moment: int, zone: tzinfo | None, first: int) -> None:
        if self.last is None:
            return
        if (zone is None) != (self.zone is None):
            raise _zone_error(f"the time of user {first + 1}", zone, "user 1")
        if moment < self.last:
            raise _decrease_error(first + 1, moment, self.last, self.zone)

    def keep(self, times: CheckedTimes) -> None:
        if len(times.times):
            self.keep_one((times.moment(0), times.zone))
            self.last = times.moment(-1)

    def keep_one(self, stamp: Stamp) -> None:
        moment, zone = stamp
        if self.last is None and zone is not None:
            self.zone = _savable_zone(zone, moment)
        self.last = moment

    def moment_of(self, name: str, time: Time) -> int:
        """The microseconds of a time that is compared with those of users."""
        if self.last is None:
            raise errors.InvalidValue(f"{name}={time!r} is a time, but users have no times")
        moment, zone = moment_of(name, time)
        if (zone is None) != (self.zone is None):
            raise _zone_error(f"{name}={time!r}", zone, "user 1")
        return moment

    def state(self) -> list[Any] | None:
        """Ready for JSON."""
        if self.last is None:
            return None
        name = getattr(self.zone, "key", None)
        return [self.zone and (name or to_datetime(0, self.zone).isoformat()[19:]), self.last]

    @classmethod
    def from_state(cls, state: list[Any] | None) -> Clock:
        clock = cls()
        if state is not None:
            name, clock.last = state
            if name and name[0] in "+-":
                clock.zone = datetime.fromisoformat(f"1970-01-01T00:00:00{name}").tzinfo
            else:
                clock.zone = name and ZoneInfo(name)
        return clock


def _savable_zone(zone: tzinfo, moment: int) -> tzinfo:
    """A zone that can be saved: by its name or, if it has none, as its offset at this time."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # of zoneinfo, of pytz
    try:
        return ZoneInfo(name) if isinstance(name, str) else _offset(zone, moment)
    except (LookupError, ValueError, OSError):  # a name that this machine does not know
        return _offset(zone, moment)


def _offset(zone: tzinfo, moment: int) -> timezone:
    offset = to_datetime(moment, zone).utcoffset()
    assert offset is not None
    return timezone(offset)


class BlockTimes:
    """The first and the last time of every block, the open one included: O(blocks), not O(users).

    A block is of the range in which its first user came. So every time is one border between
    blocks, which stays what it is when more users come, and ranges side by side share nobody.

    >>> blocks = BlockTimes(size=2)
    >>> times = check_times(np.arange(5).astype("M8[us]"), users=5, first=0)
    >>> blocks.keep(times, t=0)
    >>> [blocks.place(moment, t=5) for moment in range(7)], blocks.span(2, 5)
    ([0, 2, 2, 4, 4, 5, 5], (2, 4))
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._firsts, self._lasts = array("q"), array("q")

    def keep(self, times: CheckedTimes, t: int) -> None:
        """Users with these times came after `t` others."""
        size, users = self._size, len(times.times)
        self._firsts.frombytes(times.moments(slice(-t % size, None, size)).tobytes())
        if t % size and users:
            self._lasts.pop()  # of the open block
        self._lasts.frombytes(times.moments(slice(size - 1 - t % size, None, size)).tobytes())
        if (t + users) % size and users:
            self._lasts.append(times.moment(-1))

    def keep_one(self, moment: int, t: int) -> None:
        """The same for one user."""
        if t % self._size:
            self._lasts[-1] = moment
        else:
            self._firsts.append(moment)
            self._lasts.append(moment)

    def place(self, moment: int, t: int) -> int:
        """Where the first block starts whose first user came then or later, or the end of all."""
        return min(bisect_left(self._firsts, moment) * self._size, t)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """When the first and the last came of the blocks from one place to another."""
        return self._firsts[start // self._size], self._lasts[(stop - 1) // self._size]

    def state(self) -> list[list[int]]:
        """Ready for JSON."""
        return [self._firsts.tolist(), self._lasts.tolist()]

    @classmethod
    def from_state(cls, size: int, state: list[list[int]]) -> BlockTimes:
        times = cls(size)
        times._firsts, times._lasts = (array("q", moments) for moments in state)
        return times


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
    ['stop', 'first', 'last', 'users', 'value', 'std', 'bias_bound', 'low', 'high']
    """

    def to_frame(self, confidence: float = 0.95) -> Any:
        """A pandas frame with a row per window, by its start.

        If sums have several coordinates, a row per window and coordinate, by its name if it has
        one. `low` and `high` are the ends of each interval.
        """
        pandas = load_pandas()
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        columns = [*Window._fields[:-1], "users", "value", "std", "bias_bound", "low", "high"]
        rows = [row for window in self for row in _rows(window, confidence)]
        frame = pandas.DataFrame(rows, columns=["coordinate", *columns])
        if any(np.ndim(window.estimate.value) for window in self):
            return frame.set_index(["start", "coordinate"])
        return frame.drop(columns="coordinate").set_index("start")


def _rows(window: Window, confidence: float) -> Iterator[tuple[Any, ...]]:
    estimate = window.estimate
    numbers = (estimate.value, estimate.std, estimate.bias_bound, *estimate.interval(confidence))
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
        first = self._clock.moment_of("start", start)
        last = self._clock.moment_of("stop", stop)
        if last < first:
            raise errors.InvalidValue(f"stop={stop!r} is before start={start!r}")
        return self._window(first, last)

    def _check_archive(self) -> None:
        if not self._is_archived:
            raise errors.InvalidValue("a sum of a range needs archive=True")

    def _window(self, start: int, stop: int) -> Window:
        places, zone = (self._place(start), self._place(stop)), self._clock.zone
        span = self._span(*places) if places[0] < places[1] else ()
        first, last = [to_datetime(moment, zone) for moment in span] or (None, None)
        ends = to_datetime(start, zone), to_datetime(stop, zone)
        return Window(*ends, first, last, self._between_places(*places))

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
        step, zone, last = _to_step(length), self._clock.zone, self._clock.last
        if last is None:
            raise errors.InvalidValue("windows need times, but users came without `at`")
        first, _ = self._span(0, 1)
        return Windows(self._window(*pair) for pair in pairwise(_borders(first, last, step, zone)))


def _is_time(bound: object) -> bool:
    return isinstance(bound, (str, date, np.datetime64))


def _to_step(length: object) -> timedelta:
    """The length of a window, or an error that says what a length is."""
    step: object = length
    try:
        if isinstance(length, str) and (found := _LENGTH.fullmatch(length.strip().lower())):
            step = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        elif isinstance(length, np.timedelta64):
            step = _to_python(length)  # a number, if it is of months
        if isinstance(step, timedelta) and step >= _MICROSECOND:
            return timedelta(microseconds=step // _MICROSECOND)
    except OverflowError:
        pass
    raise errors.InvalidValue(
        f"length={length!r} must be a timedelta above 0 or text such as '7d', '12h' or '30min'"
    )


def _borders(first: int, last: int, step: timedelta, zone: tzinfo | None) -> list[int]:
    """Where windows of this length begin and end, from the first time to the last."""
    midnight = to_datetime(first, zone).replace(
        hour=0, minute=0, second=0, microsecond=0, tzinfo=None
    )
    origin, size = _moment(midnight, zone), step // _MICROSECOND
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
