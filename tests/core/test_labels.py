"""Labels and bins: which bucket a value is in, and what is said of one that is in none."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.mechanisms import MECHANISMS
from overhand.values import values_of
from overhand.values.buckets import LONGEST_LABEL, MOST_LABELS
from support.kind_plans import kind_plan
from support.small_plans import PRIVACY, REGULAR

MOODS = oh.Histogram(["like", "love", "wow"])
OPEN = oh.Histogram(["like", "love"], other="any other")
SAID = ["wow", "like", "love", "wow"]
PLACES = [2, 0, 1, 2]


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        SAID,
        tuple(SAID),
        np.array(SAID),
        np.array(SAID, "S"),
        np.array(SAID, object),
        np.array(SAID, np.dtypes.StringDType()),
        [np.str_(word) for word in SAID],
    ],
    ids=["list", "tuple", "U", "S", "object", "StringDType", "scalars"],
)
def test_strings_of_every_type_are_labels(given: Any) -> None:
    rows = MOODS.rows(given)
    assert rows.tolist() == PLACES
    assert rows.dtype == np.int64


def test_series_and_categories_of_pandas_are_labels() -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(SAID)
    for given in (
        series,
        series.astype("category"),
        pandas.Categorical(SAID, categories=["wow", "never said", "love", "like"]),
        pandas.Index(SAID),
        series.to_frame("mood")["mood"],
    ):
        assert MOODS.rows(given).tolist() == PLACES
    with pytest.raises(oh.InvalidValue, match="user 2 has no label: "):
        MOODS.rows(pandas.Categorical(["wow", None]))
    with pytest.raises(oh.InvalidValue, match="'lvoe' of user 2 .* the nearest is 'love'"):
        MOODS.rows(pandas.Series(["wow", "lvoe"], dtype="category"))
    with pytest.raises(oh.InvalidValue, match="user 2 has .* nan, not a label"):
        MOODS.rows(pandas.Series(["wow", None]))


def test_categories_need_no_pandas() -> None:
    codes, categories = np.array([1, 0], np.int8), np.array(["like", "wow"])
    categorical = SimpleNamespace(codes=codes, categories=categories)
    for given in (categorical, SimpleNamespace(cat=categorical)):
        assert MOODS.rows(given).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["wow", "lvoe"], "'lvoe' of user 12 is not one of the 3 labels: the nearest is 'love'"),
        (["zebra"], "'zebra' of user 11 is not one of the 3 labels: like, love, wow"),
        (["LOVE"], "'LOVE' of user 11 .* the nearest is 'love'"),
        ([b"lvoe"], "'lvoe' of user 11 .* the nearest is 'love'"),
        ([2], "user 11 has int 2, not a label: like, love, wow"),
        (np.array([2, 0]), "user 11 has int 2, not"),
        (["wow", None], "user 12 has no label"),
        (["wow", math.nan], "user 12 has float nan, not"),
        (["wow", ["wow"]], r"user 12 has list \['wow'\], not"),
        ([["wow"], ["wow"]], "user 11 has list .*, not"),
        ("wow", "a single string 'wow'"),
        (np.array([["wow"]]), r"shape \(1, 1\) must be labels"),
        (np.array("wow"), r"shape \(\) must be labels"),
        (["x" * 10**6], "'xxx.*' of user 11"),
    ],
    ids=lambda given: repr(given)[:20],
)
def test_what_is_no_label_is_named_with_the_nearest(given: Any, words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words) as refused:
        MOODS.rows(given, first=10)
    assert len(str(refused.value)) < 200


def test_unknown_labels_have_a_bucket_where_there_is_one() -> None:
    assert OPEN.labels == ("like", "love", "any other")
    assert OPEN.rows(["wow", "love", "any other"]).tolist() == [2, 1, 2]
    assert OPEN.rows(np.array([b"wow", b"love"])).tolist() == [2, 1]
    missing: Any
    for missing in (None, 2, math.nan):
        with pytest.raises(oh.InvalidValue, match="user 2 has .*label"):
            OPEN.rows(["wow", missing])


@pytest.mark.parametrize(
    ("labels", "other", "words"),
    [
        (["a"], None, "number of labels=1 must be"),
        ([], None, "number of labels=0"),
        (["5"], "6", "label '5' reads as a number of buckets"),
        (["a", ""], None, "'' is empty"),
        (["a", " b"], None, "' b' is empty or has spaces"),
        (["a", "b,c"], None, "'b,c' contains a comma"),
        (["a", "b:c"], None, "'b:c' contains a comma, a colon"),
        (["a", "b\n"], None, "spaces around"),
        (["a", "b\x00c"], None, "unprintable"),
        (["a", "\ud800"], None, "unprintable"),
        (["a", "b", "a"], None, "'a' occurs twice"),
        (["a", "b"], "b", "'b' occurs twice"),
        (["a", "x" * (LONGEST_LABEL + 1)], None, f"{LONGEST_LABEL + 1} letters"),
        (["a", 3], None, "3 must be a string"),
        (frozenset({"a"}), None, "must be a list of labels"),  # the id of two would vary
        ({"a": 1, "b": 2}, None, "must be a list of labels"),
        ([["a", "b"]], "c", "must be a string"),
        (list(map(str, range(MOST_LABELS + 1))), None, "labels=16385"),
    ],
    ids=lambda given: repr(given)[:20],
)
def test_labels_that_cannot_be_told_apart_or_written_are_refused(
    labels: Any, other: Any, words: str
) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Histogram(labels, other)
    with pytest.raises(oh.InvalidValue):
        oh.Grouped(labels, oh.Bits(), other)


def test_a_number_of_buckets_has_no_others() -> None:
    with pytest.raises(oh.InvalidValue, match="other='x' is for unknown labels, but buckets=3"):
        oh.Histogram(3, other="x")


def test_labels_of_digits_are_no_number_of_buckets() -> None:
    digits = oh.Histogram(["1", "2"])
    assert digits.spec == "histogram:1,2"
    assert values_of("histogram:1,2") == digits != values_of("histogram:12")
    with pytest.raises(oh.InvalidValue, match="user 1 has int 1, not a label"):
        digits.rows([1])


def test_labels_are_in_the_plan_and_its_digest() -> None:
    plans = [kind_plan(REGULAR, values) for values in (MOODS, OPEN, oh.Histogram(3))]
    assert len({plan.digest for plan in plans}) == 3
    for plan in plans:
        assert oh.Plan.from_json(plan.to_json()) == plan
    assert oh.Plan.from_json(plans[1].to_json()).values.labels == OPEN.labels
    edited = plans[0].to_json().replace("like,love", "love,like")
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(edited)


def test_a_plan_without_labels_has_the_digest_that_it_had() -> None:
    """A mutant that writes an empty list of labels into every plan changes it."""
    plan = oh.Plan.published(1000, 2, PRIVACY, values=oh.Histogram(5))
    assert plan.digest.startswith("dfab2b6e78b9eaf4")


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_mechanism_serves_labels_and_bins(kind: str) -> None:
    for values, said in ((MOODS, SAID), (oh.Binned(0, 9, bins=3), [7, 1, 5, 9])):
        plan = oh.Plan.best(40, 1, oh.Privacy(8.0, 1e-3), values=values, mechanism=kind)
        total = oh.ContinualSum(plan, oh.seeded_random(1))
        total.update_many(10 * said)
        assert (np.abs(total.estimate.value - [10, 10, 20]) < plan.error_bound(1e-3)).all()


def test_a_word_will_do_where_a_kind_is_due() -> None:
    assert oh.Plan.published(100, 2, PRIVACY, values="histogram:like,love,wow").values == MOODS
    for bad in ("histogram:x", 5, None):
        with pytest.raises(oh.InvalidValue, match="values"):
            oh.Plan.best(100, 2, PRIVACY, values=bad)  # type: ignore[arg-type]


# --- bins -----------------------------------------------------------------------------------------


def test_an_edge_is_in_the_bin_above_it_and_the_last_one_below() -> None:
    edges = [0.1, 0.2, 0.3, 0.4]
    for values in (oh.Binned(edges=edges), oh.Binned(edges=np.array(edges))):
        assert values.rows(edges).tolist() == [0, 1, 2, 2]
        assert values.rows(np.nextafter(edges[1:], 0)).tolist() == [0, 1, 2]
        assert values.edges == tuple(edges)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "user 12 is not finite: nan"),
        (math.inf, "user 12 is not finite: inf"),
        (np.nextafter(9.0, 10), "value 9.0+2 of user 12 is not between 0 and 9"),
        (-0.5, "value -0.5 of user 12 is not between 0 and 9"),
        ("a", "must be numbers"),
    ],
)
def test_a_number_in_no_bin_is_named(value: Any, words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Binned(0, 9, bins=3).rows([1.0, value], first=10)


def test_clipping_goes_to_the_outer_bins() -> None:
    clipping = oh.Binned(0, 9, bins=3, clip=True)
    assert clipping.rows([-5, 1e300, 4]).tolist() == [0, 2, 1]
    assert clipping != oh.Binned(0, 9, bins=3)
    assert values_of(clipping.spec, clip=True) == clipping
    with pytest.raises(oh.InvalidValue, match="not finite"):
        clipping.rows([math.nan])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give low, high and bins, or edges"),
        ({"low": 0, "high": 1}, "give low, high and bins, or edges"),
        ({"low": 0, "high": 1, "bins": 3, "edges": [0, 1, 2]}, "give low, high and bins, or edges"),
        ({"low": 1, "high": 1, "bins": 3}, "is empty"),
        ({"low": 0, "high": math.nan, "bins": 3}, "high=nan"),
        ({"low": 0, "high": 1, "bins": 1}, "bins=1"),
        ({"low": 0, "high": 1, "bins": 2.0}, "bins=2.0"),
        ({"low": 1, "high": 1 + 1e-15, "bins": 99}, "narrower than floats can tell apart"),
        ({"edges": [0, 1]}, "number of edges=2"),
        ({"edges": [0, 1, 1]}, "edges must increase: 1 comes after 1"),
        ({"edges": [0, 2, 1]}, "edges must increase: 1 comes after 2"),
        ({"edges": [0, 1, math.inf]}, "an edge=inf"),
        ({"edges": [0, 1, "2"]}, "an edge='2'"),
        ({"edges": 7}, "must be a list of numbers"),
    ],
)
def test_bins_that_are_none_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Binned(**arguments)


def test_bins_of_one_width_are_spelled_alike_however_they_were_given() -> None:
    even, listed = oh.Binned(0, 1, bins=3), oh.Binned(edges=np.linspace(0, 1, 4))
    assert even == listed == values_of(even.spec)
    assert even.spec == "binned:0.0:1.0:3"
    uneven = oh.Binned(edges=[0.1, 1 / 3, 1e9])
    assert uneven.spec == "binned:0.1,0.3333333333333333,1000000000.0"
    assert values_of(uneven.spec) == uneven
