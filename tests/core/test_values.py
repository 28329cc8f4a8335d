"""Every kind of value: what is accepted, what is refused, and how it is spelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.errors import InvalidValue
from overhand.model import Floats
from overhand.values import (
    BITS,
    Binned,
    Buckets,
    Grouped,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
    values_of,
)
from overhand.values.vectors import Ball
from support.value_strategies import CASES, KINDS, held, point


def test_every_kind_is_tested() -> None:
    """Groups, whose values are pairs, have tests of their own: `test_groups`."""
    kinds = {k for base in (Values, Ball, Buckets) for k in base.__subclasses__()}
    assert {type(values) for values in KINDS.values()} == kinds - {Ball, Buckets, Grouped}


# --- what is accepted -----------------------------------------------------------------------------


@given(CASES, st.integers(0, 5))
def test_what_users_may_hold_is_accepted_as_it_is(case: tuple[Values, int], users: int) -> None:
    values, seed = case
    raw = held(values, users, seed)
    rows = values.rows(raw)
    assert len(rows) == users
    points = np.asarray(values.coordinates(rows), np.float64).reshape(users, values.dimension)
    expected = np.array([point(values, value) for value in raw]).reshape(users, values.dimension)
    assert np.allclose(points, expected, rtol=1e-14, atol=1e-14)


@given(CASES, st.integers(1, 5))
def test_checking_never_changes_what_was_given(case: tuple[Values, int], users: int) -> None:
    values, seed = case
    raw = held(values, users, seed).astype(np.float64)
    if not values.is_whole:
        raw *= 1 + 9e-7
        raw = raw if not isinstance(values, Reals) else np.clip(raw, values.low, values.high)
    before = raw.copy()
    values.rows(raw)
    assert np.array_equal(raw, before)


@pytest.mark.parametrize("spec", [spec for spec in KINDS if not KINDS[spec].is_whole])
def test_clipping_never_changes_what_was_given(spec: str) -> None:
    values = values_of(spec, clip=True)
    raw = 10 * held(values, 9, seed=20230)
    before = raw.copy()
    assert not np.array_equal(values.rows(raw), values.rows(raw / 20))
    assert np.array_equal(raw, before)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.float16, np.float32])
def test_numbers_of_every_type_are_accepted(dtype: type[np.generic]) -> None:
    column = np.array([0, 1, 1], dtype)
    assert BITS.rows(column).tolist() == [0, 1, 1]
    assert Reals().rows(column).tolist() == [0.0, 1.0, 1.0]
    assert Histogram(1 << 20).rows(column).tolist() == [0, 1, 1]
    assert Vectors(1).rows(column[:, np.newaxis]).tolist() == [[0.0], [1.0], [1.0]]
    assert SymmetricMatrices(1).rows(column.reshape(3, 1, 1)).tolist() == [[0.0], [1.0], [1.0]]
    assert RegressionStatistics(1).rows(np.stack([column, column], axis=1)).tolist() == [
        [0, 0],
        [1, 1],
        [1, 1],
    ]
    assert Histogram(2).rows(column).dtype == np.int64
    assert Reals().rows(column).dtype == np.float64


def test_every_second_row_of_a_larger_table_is_accepted() -> None:
    table = np.arange(24.0).reshape(4, 6) / 100
    assert np.array_equal(Vectors(3).rows(table[::2, ::2]), table[::2, ::2])
    assert np.array_equal(Reals().rows(table[:, 0]), table[:, 0])
    assert np.array_equal(Histogram(24).rows((100 * table[:, 0]).round()[::2]), [0, 12])


@pytest.mark.parametrize("spec", KINDS)
def test_no_users_are_no_rows(spec: str) -> None:
    values = KINDS[spec]
    nobody: Any
    for nobody in ([], (), np.zeros(0), held(values, 1, 0)[:0]):
        rows = values.rows(nobody)
        assert len(rows) == 0
        assert values.coordinates(rows).shape == (0, *values.shape)
        assert values.running_sums(rows).shape == (0, *values.shape)
        assert values.sums_after_blocks(rows, 3).shape == (0, *values.shape)
        assert np.array_equal(values.total(rows), np.zeros(values.shape))


@pytest.mark.parametrize("value", [5e-324, -5e-324, 1e-308, 0.0, -0.0])
def test_numbers_next_to_zero_are_values_like_others(value: float) -> None:
    assert Reals(-1, 1).rows([value])[0] == value
    assert Vectors(2).rows([[value, value]])[0].tolist() == [value, value]
    assert np.isfinite(RegressionStatistics(2).rows([[value, value, value]])).all()
    assert np.isfinite(SymmetricMatrices(2).rows(np.full((1, 2, 2), value))).all()


def test_the_ends_of_an_interval_belong_to_it() -> None:
    assert Reals(0.1, 0.3).rows([0.1, 0.3]).tolist() == [0.1, 0.3]
    for outside in (np.nextafter(0.1, 0), np.nextafter(0.3, 1)):
        with pytest.raises(InvalidValue, match="user 1 is not between 0.1 and 0.3"):
            Reals(0.1, 0.3).rows([outside])


# --- what is refused ------------------------------------------------------------------------------

FIRST = 10
FAR = np.longdouble("1e4000") if np.finfo(np.longdouble).maxexp > 1024 else math.inf
NONSENSE: dict[str, Any] = {
    "strings": ["0", "1"],
    "bytes": [b"0"],
    "objects": np.array([0, 1], object),
    "integers that no machine holds": [0, 10**30],
    "complex": [0, 1j],
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "none": [None],
    "a dictionary": {"a": 1},
    "a string": "01",
    "nothing": None,
    "one number": 1,
    "ragged": [[0, 0], [0]],
    "three axes too many": np.zeros((1, 1, 1, 1)),
    "records": np.array([(0, 1)], "i4,i4"),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_is_no_array_of_such_values_is_refused_by_one_error(nonsense: str) -> None:
    for values in KINDS.values():
        with pytest.raises(InvalidValue, match="values ") as raised:
            values.rows(NONSENSE[nonsense])
        assert raised.value.__context__ is None or raised.value.__suppress_context__


def spread(value: float, *shape: int) -> Floats:
    """Zeros for three users, but for a number of the second and third."""
    table = np.zeros((3, *shape))
    table.reshape(3, -1)[1:, -1] = value
    return table


NAMED: list[tuple[Values, Any, str]] = [
    (BITS, [0, 2, 3], "value 2 of user 12 is not a bit"),
    (Reals(0, 10), [0, math.nan], "value of user 12 is not finite: nan"),
    (Reals(0, 10), [0, -math.inf, math.nan], "value of user 12 is not finite: -inf"),
    (Reals(0, 10), np.array([0, FAR]), "value of user 12 is not finite: inf"),
    (Reals(0, 10), [0, 11, 12], "value 11 of user 12 is not between 0 and 10"),
    (Reals(0, 10), [0, 10.0000001], "value 10.0000001 of user 12 is not between 0 and 10"),
    (Reals(0, 10), [0, -5e-324], "value -5e-324 of user 12 is not between"),
    (Reals(0, 10), [0, 2**64 - 1], "value 1.8446744073709552e+19 of user 12 is not between"),
    (Reals(0, 10), [0, 1e308], "value 1e+308 of user 12 is not between"),
    (Reals(0.25, 0.5), [0.3, True], "value 1 of user 12 is not between 0.25 and 0.5"),
    (Vectors(3), spread(math.nan, 3), "value of user 12 is not finite: nan"),
    (Vectors(3), spread(1.25, 3), "value of user 12 has norm 1.25, above 1"),
    (Vectors(3), spread(1.0000015, 3), "value of user 12 has norm 1.0000015, above 1"),
    (Vectors(3), spread(1e308, 3), "value of user 12 has norm 1e+308, above 1"),
    (Vectors(2, norm=1e99), [[0, 0], [1e308, 1e308]], "user 12 has norm 1.41421356e+308, above"),
    (Vectors(2, norm=1e-99), [[0, 0], [1e-98, 0]], "value of user 12 has norm 1e-98, above 1e-99"),
    (SymmetricMatrices(2), spread(math.inf, 2, 2), "value of user 12 is not finite: inf"),
    (SymmetricMatrices(2), spread(2, 2, 2), "value of user 12 has norm 2, above 1"),
    (SymmetricMatrices(2), spread(1e308, 2, 2), "value of user 12 has norm 1e+308, above 1"),
    (SymmetricMatrices(2), spread(1, 2, 2)[:, ::-1] / 3, "matrix of user 12 is not symmetric"),
    (SymmetricMatrices(2, 1e-9), spread(2e-15, 2, 2)[:, ::-1], "user 12 is not symmetric"),
    (RegressionStatistics(2), spread(math.nan, 3), "value of user 12 is not finite: nan"),
    (
        RegressionStatistics(2),
        spread(1, 3) * [0, 0, -1.5],
        "user 12 has a response of size 1.5, above 1",
    ),
    (
        RegressionStatistics(2),
        [[0, 0, 0], [1, 1, 0]],
        "value of user 12 has norm 1.41421356, above 1",
    ),
    (
        RegressionStatistics(2),
        [[0, 0, 0], [1e308, 0, 0]],
        "value of user 12 has norm 1e+308, above 1",
    ),
    (Histogram(3), [0, 3], "value 3 of user 12 is not a bucket from 0 to 2"),
    (Histogram(3), [0, -1, 9], "value -1 of user 12 is not a bucket from 0 to 2"),
    (Histogram(3), [0, 1.5], "value 1.5 of user 12 is not a bucket"),
    (Histogram(3), [0, math.nan], "value nan of user 12 is not a bucket"),
    (Histogram(3), [0, math.inf], "value inf of user 12 is not a bucket"),
    (Histogram(3), [0, 2**63 - 1], "value 9223372036854775807 of user 12 is not a bucket"),
    (Histogram(3), np.array([2**64 - 1], np.uint64), "value 18446744073709551615 of user 11"),
    (Histogram(1 << 20), np.array([0, -1], np.int8), "value -1 of user 12 is not a bucket"),
    (Histogram(1 << 20), np.array([0, math.inf], np.float16), "value inf of user 12"),
]


@pytest.mark.parametrize(("values", "raw", "message"), NAMED, ids=[row[2] for row in NAMED])
def test_the_first_user_with_a_wrong_value_is_named_with_it(
    values: Values, raw: Any, message: str
) -> None:
    with pytest.raises(InvalidValue) as raised:
        values.rows(raw, first=FIRST)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 90


@pytest.mark.parametrize(
    ("values", "shape", "wanted"),
    [
        (Reals(), (2, 1), "(users)"),
        (Histogram(3), (2, 3), "(users)"),
        (Vectors(3), (3,), "(users, 3)"),
        (Vectors(3), (2, 2), "(users, 3)"),
        (Vectors(3), (0, 2), "(users, 3)"),
        (Vectors(3), (2, 0), "(users, 3)"),
        (Vectors(3), (2, 3, 3), "(users, 3)"),
        (SymmetricMatrices(2), (2, 2), "(users, 2, 2)"),
        (SymmetricMatrices(2), (2, 3), "(users, 2, 2)"),
        (SymmetricMatrices(2), (2, 2, 3), "(users, 2, 2)"),
        (RegressionStatistics(2), (2, 2), "(users, 3)"),
        (RegressionStatistics(2), (2, 5), "(users, 3)"),
    ],
    ids=repr,
)
def test_another_shape_is_refused_with_the_one_that_is_wanted(
    values: Values, shape: tuple[int, ...], wanted: str
) -> None:
    with pytest.raises(InvalidValue) as raised:
        values.rows(np.zeros(shape))
    assert str(shape) in str(raised.value)
    assert str(raised.value).endswith(f"of shape {wanted}")


@pytest.mark.parametrize(
    ("values", "raw"),
    [
        (BITS, [0, 1]),
        (Reals(), [0.0, 0.5]),
        (Histogram(3), [2, 0]),
        (Histogram(["a", "b"]), ["b", "a"]),
        (Vectors(2), [[0.0, 1.0], [0.5, 0.5]]),
    ],
    ids=str,
)
def test_a_generator_is_gathered(values: Values, raw: list[Any]) -> None:
    assert np.array_equal(values.rows(one for one in raw), values.rows(raw))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        values.rows(one for one in [*raw, None])  # type: ignore[arg-type]


def test_truth_values_are_numbers_but_no_buckets() -> None:
    assert Reals().rows([False, True]).tolist() == [0.0, 1.0]
    assert Vectors(2).rows([[False, True]]).tolist() == [[0.0, 1.0]]
    with pytest.raises(InvalidValue, match="bool"):
        Histogram(3).rows([False, True])


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (1, 1, "from low=1 to high=1 is empty"),
        (2, 1, "from low=2 to high=1 is empty"),
        (0, 5e-324, "from low=0 to high=5e-324 is empty or too short"),
        (-math.inf, 1, "low=-inf"),
        (0, math.inf, "high=inf"),
        (math.nan, 1, "low=nan"),
        (0, math.nan, "high=nan"),
        (-1e308, 1e308, "low=-1e\\+308"),
        (0, 1e200, "high=1e\\+200"),
        (0, 10**400, "high is too large"),
        (True, 2, "low=True"),
        ("0", 1, "low='0'"),
        (0, None, "high=None"),
    ],
)
def test_an_interval_that_is_none_is_refused(low: Any, high: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Reals(low, high)


@pytest.mark.parametrize("norm", [0, -1, math.nan, math.inf, 1e-200, 1e200, True, "1"], ids=repr)
@pytest.mark.parametrize("kind", [Vectors, SymmetricMatrices])
def test_a_norm_that_bounds_nothing_is_refused(
    kind: type[Vectors] | type[SymmetricMatrices], norm: Any
) -> None:
    with pytest.raises(InvalidValue, match="norm="):
        kind(2, norm)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2", None, 1 << 21], ids=repr)
@pytest.mark.parametrize("kind", [Vectors, SymmetricMatrices, RegressionStatistics, Histogram])
def test_a_dimension_that_is_none_is_refused(kind: Callable[[Any], Values], size: Any) -> None:
    with pytest.raises(InvalidValue, match="whole number from [12] to"):
        kind(size)


def test_one_bucket_is_none() -> None:
    with pytest.raises(InvalidValue, match="buckets=1"):
        Histogram(1)


# --- words ----------------------------------------------------------------------------------------

SPANS = st.floats(1e-90, 1e90)
NUMBERS = st.floats(-1e50, 1e50)
REALS = st.builds(Reals, st.floats(-9, 0), st.floats(1, 9))
LABELS = st.lists(st.from_regex(r"\A\w[\w ]*\w\Z"), min_size=2, max_size=9, unique=True)
SPELLED: st.SearchStrategy[Values] = st.one_of(
    st.just(BITS),
    st.tuples(NUMBERS, NUMBERS)
    .filter(lambda ends: ends[1] - ends[0] > 1e-90)
    .map(lambda ends: Reals(*ends)),
    st.builds(Vectors, st.integers(1, 1 << 20), SPANS),
    st.builds(SymmetricMatrices, st.integers(1, 1 << 10), SPANS),
    st.builds(RegressionStatistics, st.integers(1, 1 << 10)),
    st.builds(Histogram, st.integers(2, 1 << 20)),
    st.builds(Histogram, LABELS, st.none() | st.just("all others")),
    st.builds(Grouped, LABELS, st.just(BITS) | REALS, st.none() | st.just("all others")),
    st.builds(Binned, st.floats(-9, 0), st.floats(1, 9), st.integers(2, 100)),
    st.sets(NUMBERS, min_size=3).map(lambda edges: Binned(edges=sorted(edges))),
    st.sampled_from([Reals(), Vectors(3), SymmetricMatrices(3)]),
)


@given(SPELLED)
def test_every_kind_is_read_as_it_is_spelled(values: Values) -> None:
    assert values_of(values.spec) == values
    assert str(values) == values.spec
    assert hash(values_of(values.spec)) == hash(values)


@pytest.mark.parametrize(
    "word", ["real", "real:-1:1", "vector:2:3", "matrix:2", "regression:2", "binned:-1.0:1.0:4"]
)
def test_a_kind_with_a_range_can_be_told_to_clip(word: str) -> None:
    clipping = values_of(word, clip=True)
    assert clipping != values_of(word)
    assert clipping.spec == word.replace("real:-1:1", "real:-1.0:1.0").replace(":3", ":3.0")
    assert np.isfinite(clipping.rows(100 * held(clipping, 3, seed=1))).all()


@pytest.mark.parametrize("word", ["bit", "histogram:3", "histogram:a,b", "grouped:a,b:bit"])
def test_a_kind_without_a_range_cannot(word: str) -> None:
    with pytest.raises(InvalidValue, match=f"'{word}' have no range to clip to"):
        values_of(word, clip=True)


@pytest.mark.parametrize(
    "word",
    ["", "bits", "BIT", " bit", "bit:", "bit:1", "real:1", "real:0:1:2", "real:a:b", "real::"]
    + ["vector", "vector:", "vector:2.5", "vector:nan", "vector:inf", "vector:2:1:1", "matrix"]
    + [
        "vector:1e400",
        "histogram",
        "histogram:3:4",
        "histogram:2.5",
        "regression",
        "regression:2:1",
    ]
    + ["binned", "binned:0:1", "binned:0:1:2.5", "binned:0,1,a", "binned:0:1:2:3"]
    + ["grouped", "grouped:a,b", "grouped:a,b:c", "grouped:a,b:vector:2", "histogram:a"],
)
def test_a_word_that_names_no_kind_is_refused_with_those_that_do(word: str) -> None:
    with pytest.raises(InvalidValue, match="must be bit, real, .* or regression:D") as raised:
        values_of(word)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("word", "culprit"),
    [
        ("real:1:1", "low=1 to high=1"),
        ("real:nan:1", "low=nan"),
        ("real:0:1e400", "high=inf"),
        ("vector:0", "length=0"),
        ("vector:-3", "length=-3"),
        ("vector:2:0", "norm=0"),
        ("vector:2:inf", "norm=inf"),
        ("matrix:0", "side=0"),
        ("matrix:5000", "side=5000"),
        ("regression:0", "features=0"),
        ("histogram:1", "buckets=1"),
        ("histogram:1e9", "buckets=1000000000"),
    ],
)
def test_a_word_with_an_impossible_number_is_refused_with_it(word: str, culprit: str) -> None:
    with pytest.raises(InvalidValue, match=culprit):
        values_of(word)
