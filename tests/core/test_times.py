"""Times of users: all that is one, the same whatever it comes as, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

import overhand as oh
from support.small_plans import REGULAR, coin_plan, without_runs

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 10, 24, 22, 30)
NAIVE = [START + timedelta(minutes=37 * i, microseconds=i) for i in range(20)]
ZONED = [time.replace(tzinfo=UTC).astimezone(BERLIN) for time in NAIVE]  # the clock is changed
NUMPY = np.array(NAIVE, "M8[us]")
ALIKE: dict[str, Any] = {
    "datetimes": NAIVE,
    "a tuple": tuple(NAIVE),
    "a generator": (time for time in NAIVE),
    "ISO text": [time.isoformat() for time in NAIVE],
    "an array of text": np.array([time.isoformat() for time in NAIVE]),
    "a column of text": pd.Series([time.isoformat() for time in NAIVE]),
    "microseconds": NUMPY,
    "nanoseconds": NUMPY.astype("M8[ns]") + np.timedelta64(999, "ns"),
    "big-endian": NUMPY.astype(">M8[us]"),
    "every second of an array": np.repeat(NUMPY, 2)[::2],
    "a list of NumPy's": list(NUMPY),
    "objects": np.array(NAIVE, object),
    "a column": pd.Series(NAIVE),
    "an index": pd.DatetimeIndex(NAIVE),
    "Timestamps": [pd.Timestamp(time) for time in NAIVE],
    "mixed": [*NAIVE[:5], *NUMPY[5:10], *(time.isoformat() for time in NAIVE[10:])],
}
ALIKE_WITH_A_ZONE: dict[str, Any] = {
    "datetimes": ZONED,
    "ISO text": [time.isoformat() for time in ZONED],
    "ISO text of UTC": [time.isoformat() + "Z" for time in NAIVE],
    "a column": pd.Series(ZONED),
    "an index in nanoseconds": pd.DatetimeIndex(ZONED).as_unit("ns"),
    "Timestamps": [pd.Timestamp(time) for time in ZONED],
    "several zones": [t.astimezone(timezone(timedelta(hours=i))) for i, t in enumerate(ZONED)],
}  # fmt: skip


def timed(at: Any, users: int = 20) -> oh.ContinualSum:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    total.update_many([1] * users, at=at)
    return total


@pytest.mark.parametrize("name", ALIKE)
def test_times_are_the_same_whatever_they_come_as(name: str) -> None:
    expected = [(NAIVE[0], NAIVE[2]), (NAIVE[3], NAIVE[5]), (NAIVE[18], NAIVE[19])]
    total = timed(ALIKE[name])
    spans = [total._span(*places) for places in ((0, 3), (3, 6), (18, 20))]
    epoch = datetime(1970, 1, 1)
    assert spans == [tuple((t - epoch) // timedelta(microseconds=1) for t in e) for e in expected]


@pytest.mark.parametrize("name", ALIKE_WITH_A_ZONE)
def test_times_with_a_zone_are_instants(name: str) -> None:
    total = timed(ALIKE_WITH_A_ZONE[name])
    window = total.window(ZONED[0], ZONED[4])
    assert window.first is not None
    assert window.last is not None
    # One of them comes twice a year, which equals nothing in another zone.
    assert window.first.timestamp() == ZONED[0].timestamp()
    assert window.last.timestamp() == ZONED[5].timestamp()
    assert window.first.utcoffset() == _first(ALIKE_WITH_A_ZONE[name]).utcoffset()


def _first(at: Any) -> datetime:
    one = at.iloc[0] if isinstance(at, pd.Series) else at[0]
    return datetime.fromisoformat(one) if isinstance(one, str) else one


@pytest.mark.parametrize(
    ("times", "moments"),
    [
        (np.array(["2026-01", "2026-03"], "M8[M]"), ["2026-01-01", "2026-03-01"]),
        (np.array(["2024", "2026"], "M8[Y]"), ["2024-01-01", "2026-01-01"]),
        (np.array(["2026-01-01", "2026-01-09"], "M8[W]"), ["2026-01-01", "2026-01-08"]),
        (np.array([0, 1], "M8[12h]"), ["1970-01-01", "1970-01-01T12:00"]),
        (np.array([-1, 1], "M8[fs]"), ["1969-12-31T23:59:59.999999", "1970-01-01"]),
        ([date(2026, 1, 1), "2026-01-02"], ["2026-01-01", "2026-01-02"]),
    ],
)
def test_units_of_all_sizes(times: Any, moments: list[str]) -> None:
    window = timed(times, users=2).window("1960-01-01", "2030-01-01")
    assert [window.first, window.last] == [datetime.fromisoformat(one) for one in moments]


LATE = np.array(["2026-01-01", "2026-01-03", "2026-01-02"], "M8[ns]")
REFUSED: dict[str, tuple[Any, str]] = {
    "it falls": (LATE, "user 9 came at 2026-01-02T00:00:00, after one of 2026-01-03T00:00:00"),
    "a list falls": (LATE.astype("M8[us]").tolist(), "times must not decrease: user 9"),
    "it falls after those before": (["2020-01-01"] * 3, "user 7 came at 2020-01-01T00:00:00"),
    "too few": (LATE[:2], "at has 2 times for 3 users"),
    "one for all": ("2026-01-01", "at='2026-01-01' must have one time for every user"),
    "one datetime for all": (START, "one time for every user"),
    "one datetime64 for all": (NUMPY[0], "one time for every user"),
    "a number for all": (3, "at=3 must have one time for every user"),
    "numbers": ([1, 2, 3], "the time of user 7, 1, is not a datetime"),
    "an array of numbers": (np.arange(3), "user 7, 0, is not a datetime"),
    "a column of numbers": (pd.Series([1, 2, 3]), "is not a datetime"),
    "a table": (NUMPY[:6].reshape(3, 2), r"at of shape \(3, 2\) must be one-dimensional"),
    "not ISO": (["2026-01-01", "next week", ""], "user 8, 'next week', is not ISO 8601 text"),
    "nothing": ([NAIVE[19], None, NAIVE[19]], "user 8, None, is not"),
    "periods": (pd.period_range("2026-11-01", periods=3), "user 7, Period.* is not a datetime"),
    "NaT first": (np.array(["NaT", "2027", "2027"], "M8[s]"), r"user 7 is missing \(NaT\)"),
    "NaT within": (np.array(["2027", "NaT", "2027"], "M8[s]"), r"user 8 is missing \(NaT\)"),
    "NaT without a unit": ([np.datetime64("NaT")] * 3, r"user 7 is missing \(NaT\)"),
    "NaT of pandas": ([NAIVE[19], NAIVE[19], pd.NaT], r"user 9 is missing \(NaT\)"),
    "NaT in a column": (pd.Series([NAIVE[19], NAIVE[19], pd.NaT]), r"user 9 is missing \(NaT\)"),
    "beyond all years": (np.array([2**62] * 3, "M8[s]"), "user 7 is not in the years 1 to 9999"),
    "beyond at last": (np.array([2**31, 2**31, 2**60], "M8[s]"), "user 9 is not in the years"),
    "beyond, and falls": (np.array([2**31, 2**60, 1], "M8[s]"), "user 8 is not in the years"),
    "years": (np.array([10**15] * 3, "M8[Y]"), "user 7 is not in the years 1 to 9999"),
    "before all": (["0001-01-01"] * 3, "user 7 is not in the years"),
    "a zone": (ZONED[:3], "the time of user 7 has a zone, while that of user 1 has none"),
    "a zone within": ([NAIVE[19], ZONED[19], NAIVE[19]], "user 8 has a zone, while that of user 7"),
    "a zone in a column": (pd.Series(ZONED[:3]), "the time of user 7 has a zone"),
    "none at all": (None, "at is missing: the 6 users so far have times, and so must user 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(name: str) -> None:
    at, message = REFUSED[name]
    total = timed(NAIVE[:6], users=6)
    before = total.to_json()
    with pytest.raises(oh.InvalidValue, match=message):
        total.update_many([1] * 3, at=at)
    assert total.to_json() == before
    total.update(1, at=NAIVE[6])
    assert total.t == 7


def test_bad_values_and_horizons_keep_no_times() -> None:
    total = timed(NAIVE[:6], users=6)
    before = total.to_json()
    for values, users in (([1, 2], 2), ([1] * 48, 48)):
        with pytest.raises(oh.InvalidValue, match="not a bit|beyond the horizon"):
            total.update_many(values, at=[NAIVE[7]] * users)
    for at in (NAIVE[4], ZONED[7], "soon", None, 7):
        with pytest.raises(oh.InvalidValue, match="decrease|zone|ISO|missing|datetime"):
            total.update(1, at=at)
    assert total.to_json() == before


def test_times_are_for_all_users_or_none() -> None:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    total.update_many([], at=[])  # nobody: it is still open whether users have times
    total.update_many([1] * 5)
    with pytest.raises(oh.InvalidValue, match="the 5 users so far have no times"):
        total.update(1, at=START)
    assert total.t == 5
    total.update_many([])
    with pytest.raises(oh.InvalidValue, match="users have no times"):
        total.between("2026-01-01", "2026-02-01")
    with pytest.raises(oh.InvalidValue, match="windows need times"):
        total.windows("7d")


def test_less_than_a_microsecond_is_no_fall() -> None:
    """The same one by one, where each is rounded down by itself, and all at once."""
    at = np.array([1_700, 1_300, 2_000], "M8[ns]")
    once, singly = timed(at, users=3), oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    for time in at:
        singly.update(1, at=time)
    assert without_runs(once.secret_state()) == without_runs(singly.secret_state())
    with pytest.raises(oh.InvalidValue, match="must not decrease"):
        timed(np.array([1_000, 999], "M8[ns]"), users=2)


def test_a_fall_is_found_wherever_it_is() -> None:
    """A mutant that looks at parts of the array on their own misses the one between two parts."""
    from overhand.sums.times import _COMPARED, check_times

    ticks = np.arange(3 * _COMPARED)
    for place in (1, _COMPARED - 1, _COMPARED, _COMPARED + 1, 2 * _COMPARED, 3 * _COMPARED - 1):
        wrong = ticks.copy()
        wrong[place] = wrong[place - 1] - 1
        wrong[place + 1 :] += 5
        with pytest.raises(oh.InvalidValue, match=f"user {place + 1} came"):
            check_times(wrong.astype("M8[s]"), users=len(wrong), first=0)


@pytest.mark.parametrize("zone", [None, UTC, BERLIN, timezone(-timedelta(hours=3, minutes=30))])
def test_the_zone_is_saved_with_the_times(zone: Any) -> None:
    at = [time.replace(tzinfo=zone) for time in NAIVE]
    total = timed(at)
    again = oh.ContinualSum.from_json(total.plan, total.to_json())
    assert again.windows("1d") == total.windows("1d")
    first = again.windows("1d")[0].first
    assert first is not None
    assert first.isoformat() == at[0].isoformat()


def test_a_zone_without_a_name_is_kept_as_its_offset() -> None:
    class Own(type(UTC).__base__):  # type: ignore[misc]
        def utcoffset(self, when: datetime | None) -> timedelta:
            return timedelta(hours=2)

        def dst(self, when: datetime | None) -> timedelta:
            return timedelta(0)

    total = timed([time.replace(tzinfo=Own()) for time in NAIVE])
    again = oh.ContinualSum.from_json(total.plan, total.to_json())
    assert again.windows("1d")[0].start.isoformat() == "2026-10-24T00:00:00+02:00"
