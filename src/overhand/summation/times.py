"""When users came: times in any form, as whole microseconds since 1970 in UTC.

Nothing here is protected: times are taken to be public, and are kept as they are.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from overhand import errors
from overhand.model import Counts

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
# What a datetime can say, in whatever zone.
_LEAST = (datetime.min + timedelta(days=1) - _EPOCH) // MICROSECOND
_MOST = (datetime.max - timedelta(days=1) - _EPOCH) // MICROSECOND
_SECOND = 10**6
UNITS = {
    "W": (7 * 86_400 * _SECOND, 1), "D": (86_400 * _SECOND, 1), "h": (3_600 * _SECOND, 1),
    "m": (60 * _SECOND, 1), "s": (_SECOND, 1), "ms": (1_000, 1), "us": (1, 1),
    "ns": (1, 10**3), "ps": (1, 10**6), "fs": (1, 10**9), "as": (1, 10**12),
}  # fmt: skip
"""NumPy's units as fractions of microseconds, except months and years."""
_MONTHS = {"Y": 12, "M": 1}
_MOST_MONTHS = 12 * 10_000  # a little more than a datetime can say
_NOT_A_TIME = np.iinfo(np.int64).min
_COMPARED = 1 << 16  # at a time, so that they stay in the processor's cache

Times = Any
"""One time for every user: a pandas Series or index, a NumPy array, a list, of what `Time` is."""
Time = Any
"""A datetime or date, a pandas Timestamp, a NumPy datetime64, or ISO 8601 text."""
Stamp = tuple[int, tzinfo | None]
"""A time in microseconds, and its zone."""


@dataclass(frozen=True)
class Checked:
    """The times of some users, in ascending order: NumPy's ticks as they were given.

    Only those that are asked for become microseconds: two for every block, not one per user.
    """

    ticks: Counts
    multiplier: int
    divisor: int
    """A tick is multiplier / divisor microseconds; what is finer than a microsecond is dropped."""
    zone: tzinfo | None

    def moments(self, users: slice) -> Counts:
        """The microseconds of some of them."""
        moments = self.ticks[users]
        if self.multiplier > 1:
            moments = moments * self.multiplier
        return moments if self.divisor == 1 else moments // self.divisor

    def moment(self, user: int) -> int:
        return int(self.ticks[user]) * self.multiplier // self.divisor

    def part(self, users: slice) -> Checked:
        return replace(self, ticks=self.ticks[users])


def checked_times(at: Times, *, users: int, first: int) -> Checked:
    """One time per user, after `first` others; or an error that says whose time is wrong.

    >>> times = checked_times(["2026-11-01T10:00", "2026-11-01T10:30"], users=2, first=0)
    >>> times.moment(1) - times.moment(0), times.zone
    (1800000000, None)
    """
    if isinstance(at, Checked):
        return at
    ticks, unit, zone = _ticks(at, first)
    if len(ticks) != users:
        raise errors.InvalidValue(f"at has {len(ticks)} times for {users} users")
    times = Checked(ticks, *UNITS[unit], zone)
    place = _falling(ticks)
    if place is not None and times.divisor > 1:  # by less than a microsecond is not at all
        fallen = _falling(ticks // times.divisor)
        times = times if fallen is not None else Checked(ticks // times.divisor, 1, 1, zone)
        place = fallen
    # If none falls, all are between the first and the last.
    for user in (0, users - 1) if place is None else (place - 1, place):
        if users:
            _check(f"the time of user {first + user + 1}", times.ticks[user], times.moment(user))
    if place is not None:
        after, before = (shown(times.moment(user), zone) for user in (place, place - 1))
        raise falling(first + place + 1, after, before)
    return times


def _check(name: str, ticks: int, moment: int) -> None:
    if ticks == _NOT_A_TIME:
        raise errors.InvalidValue(f"{name} is missing (NaT)")
    if not _LEAST <= moment <= _MOST:
        raise errors.InvalidValue(f"{name} is not in the years 1 to 9999")


def falling(user: int, time: datetime, before: datetime) -> errors.InvalidValue:
    return errors.InvalidValue(
        f"times must not decrease: user {user} came at {time.isoformat()}, after one of "
        f"{before.isoformat()}"
    )


def _falling(ticks: Counts) -> int | None:
    """The first place whose time is before that of the one ahead of it."""
    for start in range(0, len(ticks) - 1, _COMPARED):
        part = ticks[start : start + _COMPARED + 1]
        falls = part[1:] < part[:-1]
        if falls.any():
            return start + 1 + int(np.argmax(falls))
    return None


def _ticks(at: Times, first: int) -> tuple[Counts, str, tzinfo | None]:
    """Times as NumPy counts them, in which unit, and their zone."""
    zone = None
    is_numpy = isinstance(at, (np.ndarray, np.generic))
    if getattr(getattr(at, "dtype", None), "kind", "O") == "M" and not is_numpy:
        index = sys.modules["pandas"].DatetimeIndex(at)  # who has such a thing has loaded pandas
        zone, at = index.tz, index.tz_convert(None) if index.tz is not None else index
        at = at.to_numpy()
    if isinstance(at, np.ndarray) and at.ndim != 1:
        raise errors.InvalidValue(f"at of shape {at.shape} must be one-dimensional")
    if isinstance(at, np.ndarray) and at.dtype.kind == "M":
        unit, count = np.datetime_data(at.dtype)
        if count == 1 and unit in UNITS:
            native = at if at.dtype.isnative else at.astype(at.dtype.newbyteorder("="))
            return native.view(np.int64), unit, zone
    return _ticks_of_each(at, first)


def _ticks_of_each(at: Times, first: int) -> tuple[Counts, str, tzinfo | None]:
    if isinstance(at, (str, bytes, date, np.datetime64, Mapping)) or not hasattr(at, "__iter__"):
        raise errors.InvalidValue(f"at={at!r} must have one time for every user")
    found = [moment_of(f"the time of user {user}", time) for user, time in enumerate(at, first + 1)]
    zones = [zone for _, zone in found]
    for place, zone in enumerate(zones):
        if (zone is None) != (zones[0] is None):
            raise unlike(f"the time of user {first + place + 1}", zone, f"user {first + 1}")
    moments: Counts = np.array([moment for moment, _ in found], np.int64)
    return moments, "us", zones[0] if zones else None


def unlike(time: str, zone: tzinfo | None, other: str) -> errors.InvalidValue:
    has, others = ("has no zone", "has one") if zone is None else ("has a zone", "has none")
    return errors.InvalidValue(f"{time} {has}, while that of {other} {others}")


def moment_of(name: str, time: Time) -> Stamp:
    """One time in microseconds, and its zone."""
    if isinstance(time, np.datetime64):
        return _moment_of_numpy(name, time)
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
    moment = int((time - (_EPOCH_UTC if is_zoned else _EPOCH)) // MICROSECOND)
    _check(name, 0, moment)
    return moment, time.tzinfo if is_zoned else None


def _moment_of_numpy(name: str, time: np.datetime64) -> Stamp:
    unit, count = np.datetime_data(time.dtype)
    own = int(time.view(np.int64))
    ticks = own * count
    if unit in _MONTHS:
        months = min(max(ticks * _MONTHS[unit], -_MOST_MONTHS), _MOST_MONTHS)
        ticks, unit = int(np.datetime64(months, "M").astype("M8[D]").view(np.int64)), "D"
    multiplier, divisor = UNITS.get(unit, (1, 1))  # only NaT has no unit
    _check(name, own, ticks * multiplier // divisor)
    return ticks * multiplier // divisor, None


def shown(moment: int, zone: tzinfo | None) -> datetime:
    """A time as it is shown: with a zone, if it was given with one.

    >>> shown(0, None).isoformat(), shown(0, timezone(timedelta(hours=1))).isoformat()
    ('1970-01-01T00:00:00', '1970-01-01T01:00:00+01:00')
    """
    if zone is None:
        return _EPOCH + moment * MICROSECOND
    return (_EPOCH_UTC + moment * MICROSECOND).astimezone(zone)


class Clock:
    """What the times of a stream have in common: a zone or none, and none is before the last.

    >>> clock = Clock()
    >>> clock.keep(clock.checked(["2026-11-01T10:00Z"], users=1, first=0))
    >>> clock.checked(["2026-11-01T10:30"], users=1, first=1)
    Traceback (most recent call last):
    overhand.errors.InvalidValue: the time of user 2 has no zone, while that of user 1 has one
    """

    def __init__(self) -> None:
        self.zone: tzinfo | None = None
        """In which times are told: that of the first of all."""
        self.last: int | None = None
        """None if users have no times, or nobody came yet."""

    def checked(self, at: Times | None, *, users: int, first: int) -> Checked | None:
        """The times of the next users, if they go with those of the `first` ones; none is kept."""
        if at is None or (first and self.last is None):
            self._check_that_all_or_none(at, users, first)
            return None
        times = checked_times(at, users=users, first=first)
        if users:
            self._check_next(times.moment(0), times.zone, first)
        return times

    def checked_one(self, at: Time | None, *, first: int) -> Stamp | None:
        """The same for the time of the next user."""
        if at is None or (first and self.last is None):
            self._check_that_all_or_none(at, 1, first)
            return None
        stamp = moment_of(f"the time of user {first + 1}", at)
        self._check_next(*stamp, first)
        return stamp

    def _check_that_all_or_none(self, at: object, users: int, first: int) -> None:
        if at is None and self.last is not None and users:
            raise errors.InvalidValue(
                f"at is missing: the {first} users so far have times, and so must user {first + 1}"
            )
        if at is not None:
            raise errors.InvalidValue(
                f"at is for all users or none: the {first} users so far have no times"
            )

    def _check_next(self, moment: int, zone: tzinfo | None, first: int) -> None:
        if self.last is None:
            return
        if (zone is None) != (self.zone is None):
            raise unlike(f"the time of user {first + 1}", zone, "user 1")
        if moment < self.last:
            raise falling(first + 1, shown(moment, self.zone), shown(self.last, self.zone))

    def keep(self, times: Checked) -> None:
        """Users with these times came."""
        if len(times.ticks):
            self.keep_one((times.moment(0), times.zone))
            self.last = times.moment(-1)

    def keep_one(self, stamp: Stamp) -> None:
        """A user with this time came."""
        moment, zone = stamp
        if self.last is None and zone is not None:
            self.zone = _kept_zone(zone, moment)
        self.last = moment

    def moment_of(self, name: str, time: Time) -> int:
        """The microseconds of a time that is compared with those of users."""
        if self.last is None:
            raise errors.InvalidValue(f"{name}={time!r} is a time, but users have no times")
        moment, zone = moment_of(name, time)
        if (zone is None) != (self.zone is None):
            raise unlike(f"{name}={time!r}", zone, "user 1")
        return moment

    def state(self) -> list[Any] | None:
        """Ready for JSON."""
        return None if self.last is None else [self.zone and _zone_name(self.zone), self.last]

    @classmethod
    def restored(cls, state: list[Any] | None) -> Clock:
        clock = cls()
        if state is not None:
            name, clock.last = state
            clock.zone = name and _named_zone(name)
        return clock


def _kept_zone(zone: tzinfo, moment: int) -> tzinfo:
    """A zone that can be saved: by its name or, if it has none, as its offset at this time."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # of zoneinfo, of pytz
    try:
        return ZoneInfo(name) if isinstance(name, str) else _offset(zone, moment)
    except (LookupError, ValueError, OSError):  # a name that this machine does not know
        return _offset(zone, moment)


def _offset(zone: tzinfo, moment: int) -> timezone:
    offset = shown(moment, zone).utcoffset()
    assert offset is not None
    return timezone(offset)


def _zone_name(zone: tzinfo) -> str:
    return zone.key if isinstance(zone, ZoneInfo) and zone.key else shown(0, zone).isoformat()[19:]


def _named_zone(name: str) -> tzinfo | None:
    if name[0] in "+-":
        return datetime.fromisoformat(f"1970-01-01T00:00:00{name}").tzinfo
    return ZoneInfo(name)


class BlockTimes:
    """The first and the last time of every block, the open one included: O(blocks), not O(users).

    A block is of the range in which its first user came. So every time is one border between
    blocks, which stays what it is when more users come, and ranges side by side share nobody.

    >>> blocks = BlockTimes(size=2)
    >>> times = checked_times(np.arange(5).astype("M8[us]"), users=5, first=0)
    >>> blocks.keep(times, t=0)
    >>> [blocks.place(moment, t=5) for moment in range(7)], blocks.span(2, 5)
    ([0, 2, 2, 4, 4, 5, 5], (2, 4))
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._firsts, self._lasts = array("q"), array("q")

    def keep(self, times: Checked, t: int) -> None:
        """Users with these times came after `t` others."""
        size, users = self._size, len(times.ticks)
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
    def restored(cls, size: int, state: list[list[int]]) -> BlockTimes:
        times = cls(size)
        times._firsts, times._lasts = (array("q", moments) for moments in state)
        return times
