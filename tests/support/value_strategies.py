"""Every kind of value, and what users may hold of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from overhand.model import Floats, Rows
from overhand.values import (
    BITS,
    Binned,
    Bits,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)

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
        RegressionStatistics(1),
        RegressionStatistics(2),
        RegressionStatistics(3),
        Histogram(2),
        Histogram(7),
        Binned(-2.5, 7.5, bins=4),
        Binned(edges=[0.1, 0.2, 30.0]),
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
        case RegressionStatistics():
            responses = np.clip(generator.uniform(-2, 2, (users, 1)), -1, 1)
            return np.concatenate([in_ball(values.features), responses], axis=1)
        case Histogram():
            return generator.integers(0, values.buckets, users)
        case Binned():
            inside = generator.uniform(values.edges[0], values.edges[-1], users)
            return np.where(generator.random(users) < 0.5, inside, values.edges[0])
        case _:
            raise NotImplementedError(values)


def point(values: Values, value: Any) -> list[float]:
    """What one user adds to each coordinate, by the definition."""
    match values:
        case Vectors():
            return [float(number) for number in value]
        case SymmetricMatrices():
            return upper_triangle([[float(number) for number in row] for row in value])
        case RegressionStatistics():
            *x, y = (float(number) for number in value)
            return [a * y for a in x] + upper_triangle([[a * b for a in x] for b in x])
        case Histogram():
            return [float(bucket == value) for bucket in range(values.buckets)]
        case Binned():
            *bins, last = zip(values.edges[:-1], values.edges[1:], strict=True)
            inside = [low <= value < high for low, high in bins]
            return [*map(float, inside), float(last[0] <= value <= last[1])]
        case _:
            return [float(value)]


def upper_triangle(matrix: list[list[float]]) -> list[float]:
    side = range(len(matrix))
    return [matrix[i][j] * (1 if i == j else math.sqrt(2)) for i in side for j in side if j >= i]
