"""Norms and clipping: what is too long is scaled back, clipped or refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.errors import InvalidValue
from overhand.model import Floats
from overhand.values import (
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Vectors,
    unpack,
    values_of,
)
from support.value_strategies import KINDS, held


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
    clipped = RegressionStatistics(2, clip=True).rows(
        [[3.0, 4, 0.5], [0.3, 0.4, -7], [1e308, 0, 1e308]]
    )
    expected = RegressionStatistics(2).rows([[0.6, 0.8, 0.5], [0.3, 0.4, -1], [1.0, 0, 1]])
    assert np.allclose(clipped, expected, rtol=1e-14)


@pytest.mark.parametrize("size", [1.0, 1e12, 1.7e308])
def test_a_clipped_matrix_is_symmetric_if_its_rounding_errors_are_small_beside_it(
    size: float,
) -> None:
    near = np.array([[0.5, 1.0], [np.nextafter(1.0, 0), 0.5]])
    (row,) = SymmetricMatrices(2, clip=True).rows([near * size])
    assert np.allclose(unpack(row, 2), near / math.sqrt(2.5), rtol=1e-14)
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
