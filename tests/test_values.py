"""What users hold: checked once, added up as it should be, and never further apart than stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from overhand.errors import InvalidValue
from overhand.randomness import Random, seeded_random
from overhand.values import (
    BITS,
    Bits,
    Histogram,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
    packed,
    unpacked,
    values_of,
)
from overhand.values.vectors import Ball
from sampled import assert_probability, assert_uniform_over

Floats = NDArray[np.float64]
Rows = NDArray[Any]

SIGNS = (-1.0, 1.0)

KINDS: dict[str, Values] = {
    kind.spec: kind
    for kind in (
        BITS,
        Reals(),
        Reals(-2.5, 7.5),
        Vectors(1),
        Vectors(3),
        Vectors(4, norm=2.5),
        SymmetricMatrices(1),
        SymmetricMatrices(3, norm=0.1),
        Moments(1),
        Moments(2),
        Moments(3),
        Histogram(2),
        Histogram(7),
    )
}
CASES = st.tuples(st.sampled_from(list(KINDS.values())), st.integers(0, 2**32))


def held(values: Values, users: int, seed: int) -> Rows:
    """What so many users might hold, half of them at the edge of what they may."""
    generator = np.random.default_rng(seed)

    def in_ball(*shape: int) -> Floats:
        points = generator.normal(size=(users, *shape))
        if len(shape) == 2:
            points += points.transpose(0, 2, 1)
        points /= np.sqrt((points**2).sum(axis=tuple(range(1, points.ndim)), keepdims=True))
        return np.minimum(1, generator.uniform(0, 2, (users,) + (1,) * len(shape))) * points

    match values:
        case Bits():
            return generator.integers(0, 2, users)
        case Reals():
            return np.clip(generator.uniform(-0.5, 1.5, users), 0, 1) * values.width + values.low
        case Vectors():
            return values.norm * in_ball(values.length)
        case SymmetricMatrices():
            return values.norm * in_ball(values.side, values.side)
        case Moments():
            responses = np.clip(generator.uniform(-2, 2, (users, 1)), -1, 1)
            return np.concatenate([in_ball(values.features), responses], axis=1)
        case Histogram():
            return generator.integers(0, values.buckets, users)
        case _:
            raise NotImplementedError(values)


def point(values: Values, value: Any) -> list[float]:
    """What one user adds to each coordinate, by the definition."""
    match values:
        case Vectors():
            return [float(number) for number in value]
        case SymmetricMatrices():
            return upper_triangle([[float(number) for number in row] for row in value])
        case Moments():
            *x, y = (float(number) for number in value)
            return [a * y for a in x] + upper_triangle([[a * b for a in x] for b in x])
        case Histogram():
            return [float(bucket == value) for bucket in range(values.buckets)]
        case _:
            return [float(value)]


def upper_triangle(matrix: list[list[float]]) -> list[float]:
    side = range(len(matrix))
    return [matrix[i][j] * (1 if i == j else math.sqrt(2)) for i in side for j in side if j >= i]


def distance(values: Values, rows: Rows) -> float:
    """Between the first two of them."""
    points = np.asarray(values.coordinates(rows), np.float64).reshape(len(rows), -1)
    return float(np.linalg.norm(points[0] - points[1]))


def test_every_kind_is_tested() -> None:
    kinds = {*Values.__subclasses__(), *Ball.__subclasses__()} - {Ball}
    assert {type(values) for values in KINDS.values()} == kinds


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
    assert Moments(1).rows(np.stack([column, column], axis=1)).tolist() == [[0, 0], [1, 1], [1, 1]]
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
    assert np.isfinite(Moments(2).rows([[value, value, value]])).all()
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
    (Moments(2), spread(math.nan, 3), "value of user 12 is not finite: nan"),
    (Moments(2), spread(1, 3) * [0, 0, -1.5], "user 12 has a response of size 1.5, above 1"),
    (Moments(2), [[0, 0, 0], [1, 1, 0]], "value of user 12 has norm 1.41421356, above 1"),
    (Moments(2), [[0, 0, 0], [1e308, 0, 0]], "value of user 12 has norm 1e+308, above 1"),
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
        (Moments(2), (2, 2), "(users, 3)"),
        (Moments(2), (2, 5), "(users, 3)"),
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
@pytest.mark.parametrize("kind", [Vectors, SymmetricMatrices, Moments, Histogram])
def test_a_dimension_that_is_none_is_refused(kind: Callable[[Any], Values], size: Any) -> None:
    with pytest.raises(InvalidValue, match="whole number from [12] to"):
        kind(size)


def test_one_bucket_is_none() -> None:
    with pytest.raises(InvalidValue, match="buckets=1"):
        Histogram(1)


# --- norms and clipping ---------------------------------------------------------------------------


def exceeds(vector: Floats, norm: float) -> bool:
    """Whether the norm is larger by more than the float's own rounding, in exact arithmetic."""
    square = sum((Fraction(float(number)) ** 2 for number in vector), Fraction(0))
    return square > Fraction(norm) ** 2 * (1 + Fraction(1, 10**14))


LENGTHS = st.floats(1e-3, 1e3)


@given(LENGTHS, st.integers(1, 9), st.floats(0, 0.99e-6), st.integers(0, 2**32))
def test_a_norm_too_large_by_a_rounding_error_is_scaled_back(
    norm: float, length: int, excess: float, seed: int
) -> None:
    vector = np.random.default_rng(seed).normal(size=length)
    vector *= norm * (1 + excess) / np.linalg.norm(vector)
    (row,) = Vectors(length, norm).rows([vector])
    assert not exceeds(row, norm)
    assert np.allclose(row, vector, rtol=1e-6, atol=0)


@given(LENGTHS, st.floats(1.01e-6, 1e6))
def test_a_norm_too_large_by_more_is_refused(norm: float, excess: float) -> None:
    with pytest.raises(InvalidValue, match="user 1 has norm"):
        Vectors(2, norm).rows([[0.0, -norm * (1 + excess)]])


@given(LENGTHS, st.integers(1, 6), st.floats(-150, 305), st.integers(0, 2**32))
def test_a_clipped_vector_keeps_its_direction(
    norm: float, length: int, exponent: float, seed: int
) -> None:
    direction = np.random.default_rng(seed).normal(size=length)
    direction /= np.linalg.norm(direction)
    vector = direction * 10**exponent
    (row,) = Vectors(length, norm, clip=True).rows([vector])
    assert not exceeds(row, norm)
    assert np.allclose(row, direction * min(norm, 10**exponent), rtol=1e-12, atol=0)


def test_only_what_is_too_long_is_clipped() -> None:
    table = np.array([[0.3, 0.4], [3, 4], [0.6, 0.8], [0, 0], [-1e308, 0]])
    rows = Vectors(2, clip=True).rows(table)
    expected = np.array([[0.3, 0.4], [0.6, 0.8], [0.6, 0.8], [0, 0], [-1, 0]])
    assert np.allclose(rows, expected, rtol=1e-15, atol=0)
    assert rows[0].tolist() == [0.3, 0.4]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_clipped_number_is_the_nearest_of_the_interval(number: float) -> None:
    assert Reals(-2.5, 7.5, clip=True).rows([number])[0] == min(max(number, -2.5), 7.5)


@pytest.mark.parametrize("spec", [spec for spec in KINDS if not KINDS[spec].is_whole])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_clipping_makes_no_number_of_what_is_none(spec: str, wrong: float) -> None:
    values = values_of(spec, clip=True)
    raw = held(values, 2, seed=1)
    raw[1] = wrong
    with pytest.raises(InvalidValue, match="user 2 is not finite"):
        values.rows(raw)


def test_features_and_response_are_clipped_apart() -> None:
    clipped = Moments(2, clip=True).rows([[3.0, 4, 0.5], [0.3, 0.4, -7], [1e308, 0, 1e308]])
    expected = Moments(2).rows([[0.6, 0.8, 0.5], [0.3, 0.4, -1], [1.0, 0, 1]])
    assert np.allclose(clipped, expected, rtol=1e-14)


@pytest.mark.parametrize("size", [1.0, 1e12, 1.7e308])
def test_a_clipped_matrix_is_symmetric_if_its_rounding_errors_are_small_beside_it(
    size: float,
) -> None:
    near = np.array([[0.5, 1.0], [np.nextafter(1.0, 0), 0.5]])
    (row,) = SymmetricMatrices(2, clip=True).rows([near * size])
    assert np.allclose(unpacked(row, 2), near / math.sqrt(2.5), rtol=1e-14)
    for mirrored in (-1.0, 0.99999):
        with pytest.raises(InvalidValue, match="matrix of user 1 is not symmetric"):
            SymmetricMatrices(2, clip=True).rows([np.array([[0, 1], [mirrored, 0]]) * size])


@given(st.integers(0, 2**32), st.floats(-1e-6, 1e-6))
def test_a_matrix_that_is_nearly_symmetric_is_no_longer_than_the_bound(
    seed: int, error: float
) -> None:
    """One triangle alone might be."""
    (matrix,) = held(SymmetricMatrices(3), 1, seed)
    matrix += np.triu(matrix, 1) * error
    matrix *= (1 + 9e-7) / max(1.0, float(np.linalg.norm(matrix)))
    (row,) = SymmetricMatrices(3).rows([matrix])
    assert not exceeds(row, 1.0)


# --- words ----------------------------------------------------------------------------------------

SPANS = st.floats(1e-90, 1e90)
NUMBERS = st.floats(-1e50, 1e50)
SPELLED: st.SearchStrategy[Values] = st.one_of(
    st.just(BITS),
    st.tuples(NUMBERS, NUMBERS)
    .filter(lambda ends: ends[1] - ends[0] > 1e-90)
    .map(lambda ends: Reals(*ends)),
    st.builds(Vectors, st.integers(1, 1 << 20), SPANS),
    st.builds(SymmetricMatrices, st.integers(1, 1 << 10), SPANS),
    st.builds(Moments, st.integers(1, 1 << 10)),
    st.builds(Histogram, st.integers(2, 1 << 20)),
    st.sampled_from([Reals(), Vectors(3), SymmetricMatrices(3)]),
)


@given(SPELLED)
def test_every_kind_is_read_as_it_is_spelled(values: Values) -> None:
    assert values_of(values.spec) == values
    assert str(values) == values.spec
    assert hash(values_of(values.spec)) == hash(values)


@pytest.mark.parametrize("word", ["real", "real:-1:1", "vector:2:3", "matrix:2", "moments:2"])
def test_a_kind_with_a_range_can_be_told_to_clip(word: str) -> None:
    clipping = values_of(word, clip=True)
    assert clipping != values_of(word)
    assert clipping.spec == word.replace("real:-1:1", "real:-1.0:1.0").replace(":3", ":3.0")
    assert np.isfinite(clipping.rows(100 * held(clipping, 3, seed=1))).all()


@pytest.mark.parametrize("word", ["bit", "histogram:3"])
def test_a_kind_without_a_range_cannot(word: str) -> None:
    with pytest.raises(InvalidValue, match=f"'{word}' have no range to clip to"):
        values_of(word, clip=True)


@pytest.mark.parametrize(
    "word",
    ["", "bits", "BIT", " bit", "bit:", "bit:1", "real:1", "real:0:1:2", "real:a:b", "real::"]
    + ["vector", "vector:", "vector:2.5", "vector:nan", "vector:inf", "vector:2:1:1", "matrix"]
    + ["vector:1e400", "histogram", "histogram:3:4", "histogram:2.5", "moments", "moments:2:1"],
)
def test_a_word_that_names_no_kind_is_refused_with_those_that_do(word: str) -> None:
    with pytest.raises(InvalidValue, match="must be bit, real, .* or moments:D") as raised:
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
        ("moments:0", "features=0"),
        ("histogram:1", "buckets=1"),
        ("histogram:1e9", "buckets=1000000000"),
    ],
)
def test_a_word_with_an_impossible_number_is_refused_with_it(word: str, culprit: str) -> None:
    with pytest.raises(InvalidValue, match=culprit):
        values_of(word)


# --- sums -----------------------------------------------------------------------------------------


@given(CASES, st.integers(1, 5), st.integers(0, 6))
def test_sums_are_those_of_a_loop_over_users(
    case: tuple[Values, int], size: int, blocks: int
) -> None:
    values, seed = case
    raw = held(values, size * blocks, seed)
    sums, so_far = [], [0.0] * values.dimension
    for value in raw:
        so_far = [a + b for a, b in zip(so_far, point(values, value), strict=True)]
        sums.append(so_far)
    truth = np.array(sums).reshape(len(raw), *values.shape)
    rows = values.rows(raw)
    running, after_blocks = values.running_sums(rows), values.sums_after_blocks(rows, size)
    assert running.shape == truth.shape
    assert np.allclose(running, truth, rtol=1e-12, atol=1e-12)
    assert after_blocks.shape == (blocks, *values.shape)
    assert np.allclose(after_blocks, truth[size - 1 :: size], rtol=1e-12, atol=1e-12)
    total = truth[-1] if len(raw) else np.zeros(values.shape)
    assert np.allclose(values.total(rows), total, rtol=1e-12, atol=1e-12)
    if values.is_whole:
        assert running.dtype == after_blocks.dtype == np.int64


@pytest.mark.parametrize("size", [1, 7, 64, 100, 40_000])
def test_many_bits_are_summed_as_few_are(size: int) -> None:
    bits = BITS.uniform(seeded_random(20230), 40_000 // size * size)
    truth = np.cumsum(bits, dtype=np.int64)
    assert np.array_equal(BITS.sums_after_blocks(bits, size), truth[size - 1 :: size])
    assert BITS.total(bits) == truth[-1]


def test_sums_of_small_numbers_do_not_overflow() -> None:
    for values in (BITS, Histogram(2)):
        rows = values.rows(np.ones(1000, np.uint8))
        ends = (values.total(rows), values.running_sums(rows)[-1])
        assert all(np.max(end) == 1000 for end in ends)
        assert np.max(values.sums_after_blocks(rows, 500)[-1]) == 1000


# --- how far apart --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", KINDS)
def test_opposites_are_as_far_apart_as_stated(spec: str) -> None:
    values = KINDS[spec]
    ends = values.opposites(np.array([0, 1, 1, 0], np.uint8))
    assert np.array_equal(ends[0], ends[3])
    assert np.array_equal(ends[1], ends[2])
    # With one feature, two moments are 2 apart at most: the stated bound holds for all numbers.
    apart = 2.0 if spec == "moments:1" else values.sensitivity
    assert math.isclose(distance(values, ends), apart, rel_tol=1e-12)
    assert len(values.opposites(np.zeros(0, np.uint8))) == 0


@pytest.mark.parametrize("spec", KINDS)
def test_no_two_values_are_further_apart_than_stated_nor_out_of_bounds(spec: str) -> None:
    values = KINDS[spec]
    samples = [values.rows(held(values, 400, seed)) for seed in (1, 2)]
    samples += [
        values.uniform(seeded_random(20230), 400),
        values.opposites(np.array([0, 1], np.uint8)),
    ]
    points = np.concatenate([values.coordinates(rows) for rows in samples]).astype(np.float64)
    points = points.reshape(-1, values.dimension)
    assert (points >= values.lows - 1e-12 * values.width).all()
    assert (points <= values.highs + 1e-12 * values.width).all()
    inner = points @ points.T
    squares = np.diag(inner)[:, np.newaxis] + np.diag(inner) - 2 * inner
    assert math.sqrt(squares.max()) <= values.sensitivity * (1 + 1e-12)
    if values.moves is not None:
        moved = (points[:, np.newaxis, :] != points[np.newaxis, :60, :]).sum(axis=2)
        assert moved.max() <= values.moves


def corners(values: Values) -> Any:
    """Values that reach both ends of every coordinate's interval."""
    unit = np.eye(values.dimension)
    match values:
        case Vectors():
            return values.norm * np.concatenate([unit, -unit])
        case SymmetricMatrices():
            ends = values.norm * np.concatenate([unit, -unit])
            return [unpacked(row, values.side) for row in ends]
        case Moments():
            axes = np.eye(values.features)
            between = [(a + sign * b) / np.sqrt(2) for a in axes for b in axes for sign in SIGNS]
            x = [a for a in (*axes, *between) if np.linalg.norm(a) < 1.1]
            return [[*a, y] for a in x for y in SIGNS]
        case Histogram():
            return range(values.buckets)
        case _:
            return [values.lows[0], values.highs[0]]


@pytest.mark.parametrize("spec", KINDS)
def test_no_interval_is_wider_than_it_has_to_be(spec: str) -> None:
    values = KINDS[spec]
    points = values.coordinates(values.rows(corners(values))).reshape(-1, values.dimension)
    assert np.allclose(points.min(axis=0), values.lows, rtol=1e-12, atol=0)
    assert np.allclose(points.max(axis=0), values.highs, rtol=1e-12, atol=0)
    assert math.isclose(values.width, float((values.highs - values.lows).max()))


def furthest(features: int, seed: int) -> float:
    """The largest distance between two moments that a local search finds from random starts."""
    moments = Moments(features)

    def squared(w: Floats) -> float:
        pairs = w.reshape(2, features + 1)
        x = pairs[:, :-1] / np.maximum(1, np.linalg.norm(pairs[:, :-1], axis=1, keepdims=True))
        rows = zip(x, np.sin(pairs[:, -1]), strict=True)
        first, second = (np.array(point(moments, [*a, y])) for a, y in rows)
        return -float(((first - second) ** 2).sum())

    starts = np.random.default_rng(seed).normal(size=(20, 2 * (features + 1)))
    return math.sqrt(max(-float(minimize(squared, start, tol=1e-10).fun) for start in starts))


@pytest.mark.parametrize("features", [1, 2, 3, 5])
def test_a_search_finds_the_joint_sensitivity_of_moments_and_no_more(features: int) -> None:
    found, stated = furthest(features, seed=20230), Moments(features).sensitivity
    assert stated == 3 / math.sqrt(2)
    assert found <= stated * (1 + 1e-12)
    # It would have found a larger one: it finds this.
    assert math.isclose(found, 2.0 if features == 1 else stated, rel_tol=1e-6)


# --- matrices as vectors --------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(0, 2**32))
def test_packing_keeps_inner_products_and_can_be_undone(side: int, seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, side, side))
    first, second = first + first.T, second + second.T
    a, b = packed(first), packed(second)
    assert a.shape == (side * (side + 1) // 2,)
    assert math.isclose(float(a @ b), float((first * second).sum()), rel_tol=1e-12, abs_tol=1e-12)
    assert np.allclose(unpacked(a, side), first, rtol=1e-14, atol=0)
    assert np.array_equal(packed(np.stack([first, second])), np.stack([a, b]))


@given(st.integers(1, 7), st.integers(0, 2**32))
def test_unpacking_is_undone_by_packing(side: int, seed: int) -> None:
    vector = np.random.default_rng(seed).normal(size=side * (side + 1) // 2)
    matrix = unpacked(vector, side)
    assert np.array_equal(matrix, matrix.T)
    assert np.allclose(packed(matrix), vector, rtol=1e-14, atol=0)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32))
def test_a_sum_of_moments_is_split_into_what_a_regression_needs(
    features: int, users: int, seed: int
) -> None:
    raw = held(Moments(features), users, seed)
    x, y = raw[:, :-1], raw[:, -1]
    vector, matrix = Moments(features).split(Moments(features).total(Moments(features).rows(raw)))
    assert np.allclose(vector, x.T @ y, rtol=1e-12, atol=1e-12)
    assert np.allclose(matrix, x.T @ x, rtol=1e-12, atol=1e-12)


# --- sampled: values spread evenly ----------------------------------------------------------------

Cells = Callable[[Rows], list[Hashable]]
USERS, DISCREPANCY = 12_000, 0.06


def thirds(shares: Floats) -> list[Hashable]:
    return list(np.minimum(3 * shares, 2.9).astype(int).tolist())


def of_ball(norm: float) -> Cells:
    """The third of the ball's volume and the side of the first coordinate, as equal cells."""

    def cells(rows: Rows) -> list[Hashable]:
        volume = (np.linalg.norm(rows, axis=1) / norm) ** rows.shape[1]
        return list(zip(thirds(volume), (rows[:, 0] > 0).tolist(), strict=True))

    return cells


def of_moments(rows: Rows) -> list[Hashable]:
    """The third of the ball that x is in (two features), and the third of |y|."""
    square = rows[:, 2] + rows[:, 4]
    size = np.linalg.norm(rows[:, :2], axis=1) / np.sqrt(square)
    return list(zip(thirds(square), thirds(size), strict=True))


SIDES = [(third, side) for third in range(3) for side in (False, True)]
EVEN: dict[str, tuple[Values, Cells, list[Any]]] = {
    "bit": (BITS, lambda rows: list(rows.tolist()), [0, 1]),
    "real": (Reals(-2, 4), lambda rows: thirds((rows + 2) / 6), [0, 1, 2]),
    "vector": (Vectors(3, norm=2.5), of_ball(2.5), SIDES),
    "matrix": (SymmetricMatrices(2), of_ball(1.0), SIDES),
    "moments": (Moments(2), of_moments, [(a, b) for a in range(3) for b in range(3)]),
    "histogram": (Histogram(5), lambda rows: list(rows.tolist()), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("kind", EVEN)
def test_uniform_values_are_spread_evenly(kind: str) -> None:
    values, cells, support = EVEN[kind]
    rows = values.uniform(seeded_random(20230), USERS)
    assert_uniform_over(cells(rows), support, discrepancy=DISCREPANCY)


class Squared(Random):
    """Uniforms are squares of uniforms, and a bit is set if it is in both of two words."""

    def __init__(self, seed: int) -> None:
        self._random = seeded_random(seed)

    def uniforms(self, count: int) -> Floats:
        return np.asarray(self._random.uniforms(count) ** 2)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        first, second = (self._random.words(count, dtype) for _ in range(2))
        return np.asarray(np.bitwise_and(first, second))

    def spawn(self, count: int) -> list[Random]:
        raise NotImplementedError

    @property
    def state(self) -> dict[str, Any]:
        raise NotImplementedError


def radius_without_root(values: Vectors | SymmetricMatrices) -> Rows:
    rows = values.uniform(seeded_random(20230), USERS)
    radius = np.linalg.norm(rows, axis=1, keepdims=True) / values.norm
    return np.asarray(rows * radius ** (values.dimension - 1))


def one_side(values: Values) -> Rows:
    rows = values.uniform(seeded_random(20230), USERS)
    rows[:, 0] = np.abs(rows[:, 0])
    return rows


# A cell, and how likely the mutant makes it.
UNEVEN: dict[str, tuple[str, Callable[[Values], Rows], Any, float]] = {
    "bits of two coins": ("bit", lambda v: v.uniform(Squared(20230), USERS), 1, 1 / 4),
    "squared": ("real", lambda v: v.uniform(Squared(20230), USERS), 0, 3**-0.5),
    "last bucket missing": (
        "histogram",
        lambda v: Histogram(4).uniform(seeded_random(20230), USERS),
        4,
        0.0,
    ),
    "radius without its root": (
        "vector",
        lambda v: radius_without_root(Vectors(3, norm=2.5)),
        (0, True),
        3 ** (-1 / 3) / 2,
    ),
    "a matrix on one side": ("matrix", one_side, (1, False), 0.0),
    "a small response": (
        "moments",
        lambda v: v.rows(held(Moments(2), USERS, 20230) * [1, 1, 0.3]),
        (1, 2),
        0.0,
    ),
}


@pytest.mark.parametrize("mutant", UNEVEN)
def test_the_test_of_even_values_sees(mutant: str) -> None:
    kind, draw, cell, probability = UNEVEN[mutant]
    values, cells, support = EVEN[kind]
    assert abs(probability - 1 / len(support)) > DISCREPANCY
    seen = cells(draw(values))
    assert_probability(seen.count(cell), USERS, probability, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(seen, support, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("spec", KINDS)
def test_uniform_values_are_values(spec: str) -> None:
    values = KINDS[spec]
    rows = values.uniform(seeded_random(20230), 1000)
    assert len(values.uniform(seeded_random(20230), 0)) == 0
    match values:
        case Bits() | Reals() | Histogram() | Vectors():
            assert np.array_equal(values.rows(rows), rows)
        case SymmetricMatrices():
            again = values.rows([unpacked(row, values.side) for row in rows])
            assert np.allclose(again, rows, rtol=1e-12, atol=0)
        case Moments():
            matrices = np.array([values.split(row)[1] for row in rows])
            assert (np.trace(matrices, axis1=1, axis2=2) <= 1 + 1e-12).all()
            assert (np.linalg.norm(rows[:, : values.features], axis=1) <= 1).all()
