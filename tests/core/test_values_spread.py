"""Uniform values of every kind, sampled: spread evenly over all that users may hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from overhand.model import Floats, Rows
from overhand.randomness import Random, seeded_random
from overhand.values import (
    BITS,
    Bits,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
    unpack,
)
from support.sampling import assert_probability, assert_uniform_over
from support.value_strategies import KINDS, held

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
    "moments": (RegressionStatistics(2), of_moments, [(a, b) for a in range(3) for b in range(3)]),
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
        lambda v: v.rows(held(RegressionStatistics(2), USERS, 20230) * [1, 1, 0.3]),
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
            again = values.rows([unpack(row, values.side) for row in rows])
            assert np.allclose(again, rows, rtol=1e-12, atol=0)
        case RegressionStatistics():
            matrices = np.array([values.split(row)[1] for row in rows])
            assert (np.trace(matrices, axis1=1, axis2=2) <= 1 + 1e-12).all()
            assert (np.linalg.norm(rows[:, : values.features], axis=1) <= 1).all()
