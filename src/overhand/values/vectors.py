"""Values of bounded l2 norm: vectors, symmetric matrices, and the statistics of a regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Rows
from overhand.randomness import Random
from overhand.values.kind import LARGEST, SMALLEST, Sensitivity, Values, finite_array

MOST_COORDINATES = 1 << 20
TOLERANCE = 1e-6
"""A norm that is too large by at most this fraction is a rounding error and is scaled back."""


def check_norms(
    vectors: Floats,
    bound: float,
    *,
    clip: bool,
    first: int,
    name: str = "norm",
    tolerance: float = TOLERANCE,
) -> Floats:
    """Vectors of l2 norm at most `bound`, or an error that names the first that is too long.

    >>> check_norms(np.array([[3.0, 4.0], [0.6, 0.8]]), 1.0, clip=True, first=0)
    array([[0.6, 0.8],
           [0.6, 0.8]])
    """
    norms = _norms(vectors)
    wrong = norms > bound * (1 + tolerance)
    if wrong.any() and not clip:
        user = int(np.argmax(wrong))
        norm = math.hypot(*vectors[user])  # unlike a sum of squares, not infinite for 1e200
        raise errors.InvalidValue(
            f"value of user {first + user + 1} has {name} {norm:.9g}, above {bound:.9g}"
        )
    long = norms > bound
    if long.any():
        scaled = vectors[long]
        scaled /= np.abs(scaled).max(axis=1, keepdims=True)
        vectors = vectors.copy()
        vectors[long] = scaled * (bound / _norms(scaled))[:, np.newaxis]
    return vectors


def _norms(vectors: Floats) -> Floats:
    """The l2 norms, or infinity where a square overflows."""
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


class Ball(Values):
    """Values whose coordinates are the points of a ball about the origin."""

    norm: float
    clip: bool

    def _check_norm(self) -> None:
        norm = errors.finite_number("norm", self.norm, above=SMALLEST, below=LARGEST)
        object.__setattr__(self, "norm", norm)

    @property
    def _spelled_norm(self) -> str:
        return "" if self.norm == 1 else f":{self.norm!r}"

    @cached_property
    def lows(self) -> Floats:
        return np.full(self.dimension, -self.norm)

    @cached_property
    def highs(self) -> Floats:
        return np.full(self.dimension, self.norm)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(2 * self.norm, self.dimension, 2 * self.norm)

    def opposites(self, bits: NDArray[np.uint8]) -> Floats:
        ends = np.zeros((len(bits), self.dimension))
        ends[:, 0] = self.norm * (2.0 * bits - 1)
        return ends

    def uniform(self, random: Random, users: int) -> Floats:
        return self.norm * _in_ball(random, users, self.dimension)


@dataclass(frozen=True)
class Vectors(Ball):
    """A vector of l2 norm at most `norm`; a longer one is an error, or scaled back if `clip`.

    >>> Vectors(2).rows([[0.6, 0.8]])
    array([[0.6, 0.8]])
    >>> Vectors(2).rows([[0.6, 0.8], [1.0, 1.0]])
    Traceback (most recent call last):
    overhand.errors.InvalidValue: value of user 2 has norm 1.41421356, above 1
    """

    length: int
    norm: float = 1.0
    clip: bool = False

    def __post_init__(self) -> None:
        errors.whole("length", self.length, least=1, most=MOST_COORDINATES)
        self._check_norm()

    @property
    def dimension(self) -> int:
        return self.length

    @property
    def spec(self) -> str:
        return f"vector:{self.length}" + self._spelled_norm

    @property
    def given_shape(self) -> tuple[int, ...]:
        return (self.length,)

    def rows(self, values: ArrayLike, *, first: int = 0) -> Floats:
        what = f"vectors of {self.dimension} numbers"
        vectors = finite_array(values, what=what, shape=self.given_shape, first=first)
        return check_norms(vectors, self.norm, clip=self.clip, first=first)


@dataclass(frozen=True)
class SymmetricMatrices(Ball):
    """A symmetric matrix of Frobenius norm at most `norm`, as the vector that `pack` makes.

    >>> matrices = SymmetricMatrices(2)
    >>> rows = matrices.rows([[[0.6, 0.4], [0.4, 0.5]]])
    >>> rows.round(4), unpack(rows[0], 2)
    (array([[0.6   , 0.5657, 0.5   ]]), array([[0.6, 0.4], [0.4, 0.5]]))
    """

    side: int
    norm: float = 1.0
    clip: bool = False

    def __post_init__(self) -> None:
        errors.whole("side", self.side, least=1, most=1 << 10)
        self._check_norm()

    @property
    def spec(self) -> str:
        return f"matrix:{self.side}" + self._spelled_norm

    @property
    def dimension(self) -> int:
        return self.side * (self.side + 1) // 2

    @property
    def given_shape(self) -> tuple[int, ...]:
        return (self.side, self.side)

    def rows(self, values: ArrayLike, *, first: int = 0) -> Floats:
        what, shape = "square matrices", self.given_shape
        matrices = finite_array(values, what=what, shape=shape, first=first)
        vectors = matrices.reshape(len(matrices), self.side**2)
        vectors = check_norms(vectors, self.norm, clip=self.clip, first=first)
        matrices = vectors.reshape(matrices.shape)
        mirrored = matrices.transpose(0, 2, 1)
        apart = np.abs(matrices - mirrored).max(axis=(1, 2), initial=0.0)
        if (apart > TOLERANCE * self.norm).any():
            user = int(np.argmax(apart > TOLERANCE * self.norm))
            raise errors.InvalidValue(f"the matrix of user {first + user + 1} is not symmetric")
        # The mean of both triangles, not one of them: its norm is no larger.
        return pack((matrices + mirrored) / 2)


@dataclass(frozen=True)
class RegressionStatistics(Values):
    """What a linear regression adds up: x y and x x^T, from a row (x, y), |x| <= 1, |y| <= 1.

    Both are one vector z = (x y, pack(x x^T)), hidden by one noise. Its sensitivity: with
    r = |x|, r' = |x'| and c the cosine between them, |z - z'|^2 is convex in each of y and y', so
    largest where both are +-1, and there at most

        r^2 + r'^2 + 2 r r' |c| + r^4 + r'^4 - 2 r^2 r'^2 c^2.

    If r r' >= 1/2 this is largest at |c| = 1 / (2 r r'), where it is r^2 + r'^2 + r^4 + r'^4 + 1/2,
    at most 9/2. Otherwise it is largest at |c| = 1, where it is (r + r')^2 + (r^2 - r'^2)^2, at
    most 3 + 1. So the joint sensitivity is 3 / sqrt(2) = 2.1213, reached by unit x at a cosine of
    -1/2: less than the 2 sqrt(2) of two vectors of norm 1, and no budget is split between them.

    >>> z = RegressionStatistics(2).rows([[0.6, 0.8, 1.0]])
    >>> z.round(3)
    array([[0.6  , 0.8  , 0.36 , 0.679, 0.64 ]])
    >>> RegressionStatistics(2).split(z[0])[1].round(2)
    array([[0.36, 0.48],
           [0.48, 0.64]])
    """

    features: int
    clip: bool = False

    def __post_init__(self) -> None:
        errors.whole("features", self.features, least=1, most=1 << 10)

    @property
    def spec(self) -> str:
        return f"regression:{self.features}"

    @property
    def dimension(self) -> int:
        return self.features + self.features * (self.features + 1) // 2

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(2.0, self.dimension, 3 / math.sqrt(2))

    @cached_property
    def highs(self) -> Floats:
        # |x_i x_j| <= 1/2 off the diagonal, which `pack` multiplies by sqrt(2).
        matrix = pack(np.full((1, self.features, self.features), 0.5))[0]
        matrix[_diagonal(self.features)] = 1.0
        return np.concatenate([np.ones(self.features), matrix])

    @cached_property
    def lows(self) -> Floats:
        lows = -self.highs
        lows[self.features :][_diagonal(self.features)] = 0.0
        return lows

    @property
    def given_shape(self) -> tuple[int, ...]:
        return (self.features + 1,)

    def rows(self, values: ArrayLike, *, first: int = 0) -> Floats:
        what = f"rows of {self.features} features and a response"
        table = finite_array(values, what=what, shape=self.given_shape, first=first)
        x = check_norms(table[:, :-1], 1.0, clip=self.clip, first=first)
        y = check_norms(table[:, -1:], 1.0, clip=self.clip, first=first, name="a response of size")
        return self.join_columns(x, y)

    def join_columns(self, x: Floats, y: Floats) -> Floats:
        """The rows of features and responses (a column) that were checked."""
        i, j = _triangle(self.features)
        products = x[..., i] * x[..., j]
        products *= self._stretch
        return np.concatenate([x * y, products], axis=-1)

    @cached_property
    def _stretch(self) -> Floats:
        return pack(np.ones((self.features, self.features)))

    def split(self, total: Floats) -> tuple[Floats, Floats]:
        """A sum as its two parts, of x y and of x x^T as a matrix; or arrays of sums."""
        return total[..., : self.features], unpack(total[..., self.features :], self.features)

    def opposites(self, bits: NDArray[np.uint8]) -> Floats:
        """Two points at the joint sensitivity: y = 1 and the cosine of the x is -1/2."""
        ends = np.zeros((len(bits), self.features + 1))
        ends[:, 0] = np.where(bits, 1.0, -0.5)
        if self.features == 1:
            ends[:, 0] = 2.0 * bits - 1
        else:
            ends[:, 1] = np.where(bits, 0.0, math.sqrt(0.75))
        ends[:, -1] = 1.0
        return self.rows(ends)

    def uniform(self, random: Random, users: int) -> Floats:
        x = _in_ball(random, users, self.features)
        y = 2 * random.uniforms(users) - 1
        return self.rows(np.concatenate([x, y[:, np.newaxis]], axis=1))


def pack(matrices: Floats) -> Floats:
    """Symmetric matrices as vectors with the same inner products.

    The upper triangle, row by row, its off-diagonal entries multiplied by sqrt(2): l2 distances
    of the vectors are Frobenius distances of the matrices, so noise is spent evenly on both.

    >>> matrix = np.array([[3.0, 4.0], [4.0, 0.0]])
    >>> [float(np.linalg.norm(a).round(4)) for a in (matrix, pack(matrix))]
    [6.4031, 6.4031]
    """
    side = matrices.shape[-1]
    i, j = _triangle(side)
    vectors = matrices[..., i, j] * math.sqrt(2)
    vectors[..., _diagonal(side)] = matrices[..., range(side), range(side)]
    return vectors


def unpack(vectors: Floats, side: int) -> Floats:
    """The symmetric matrices whose `pack` form this is.

    >>> unpack(pack(np.array([[3.0, 4.0], [4.0, 0.0]])), side=2).round(4)
    array([[3., 4.],
           [4., 0.]])
    """
    i, j = _triangle(side)
    matrices = np.empty((*vectors.shape[:-1], side, side))
    matrices[..., i, j] = matrices[..., j, i] = vectors / math.sqrt(2)
    matrices[..., range(side), range(side)] = vectors[..., _diagonal(side)]
    return matrices


@lru_cache(maxsize=64)
def _triangle(side: int) -> tuple[Counts, Counts]:
    """The row and column of every entry of the packed upper triangle."""
    return np.triu_indices(side)


@lru_cache(maxsize=64)
def _diagonal(side: int) -> Counts:
    """The places of the diagonal in the packed upper triangle."""
    i, j = _triangle(side)
    return np.flatnonzero(i == j)


def _in_ball(random: Random, users: int, dimension: int) -> Rows:
    """Uniform in the unit ball: a normal direction, and a radius of the right law."""
    from scipy.special import ndtri

    uniform = np.maximum(random.uniforms(users * dimension), 2.0**-54)
    normal = np.asarray(ndtri(uniform), np.float64).reshape(users, dimension)
    radius = random.uniforms(users) ** (1 / dimension)
    return np.asarray(normal * (radius / np.maximum(_norms(normal), 1e-300))[:, np.newaxis])
