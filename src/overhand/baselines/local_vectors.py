"""The local model for vectors, and which mechanism is the best for which values.

An answer is a point of a sphere, likelier to be on the value's side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincc, betainccinv, betaln

from overhand import errors
from overhand.baselines.local import (
    GaussianResponse,
    LocalResponse,
    LocalSum,
    SubsetResponse,
    just_above,
    likelier,
)
from overhand.baselines.local_reals import WindowResponse
from overhand.model import Floats, Privacy, Rows
from overhand.randomness import BinaryFraction, Random, generator_of
from overhand.values import (
    Bits,
    Buckets,
    Grouped,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
    packed,
)


@dataclass(frozen=True)
class Cap:
    """PrivUnit (Bhowmick et al. 2018): a random unit vector, likelier in a cap around a given one.

    The cap is where the cosine W with the given vector is at least `cosine`. With probability
    `miss` the point is uniform outside of it, else uniform inside: two densities, whose ratio is
    e^epsilon. No unbiased answer for unit vectors has less variance (Asi, Feldman and Talwar
    2022).
    """

    dimension: int
    cosine: float
    miss: BinaryFraction

    @classmethod
    def best(cls, dimension: int, epsilon: float) -> Cap:
        """The cap of the largest mean, its probability rounded against us.

        With q the cap's share of the sphere, T = E[W; W >= cosine] and k = e^epsilon - 1, the mean
        is m = k T / (1 + k q). As T falls by cosine where q falls by 1, it is largest where
        cosine = m. There the noise is the same in all directions: see `along`.
        """
        rest = math.exp(-epsilon)

        def excess(cosine: float) -> float:
            share, lever = _share(dimension, cosine), _lever(dimension, cosine)
            return cosine - (1 - rest) * lever / (rest + (1 - rest) * share)

        cosine = float(brentq(excess, 0.0, 1.0))
        share = _share(dimension, cosine)
        missed = rest * (1 - share)
        return cls(dimension, cosine, just_above(missed / (missed + share)))

    @cached_property
    def share(self) -> float:
        """The cap's share of the sphere."""
        return _share(self.dimension, self.cosine)

    @cached_property
    def mean(self) -> float:
        """E W: the answer is divided by it, and so has no bias."""
        miss = float(self.miss)
        gain = (1 - miss) / self.share - miss / (1 - self.share)
        return gain * _lever(self.dimension, self.cosine)

    @cached_property
    def square(self) -> float:
        """E W^2. By parts, E[W^2; W >= c] = ((d - 1) c E[W; W >= c] + P(W >= c)) / d."""
        return (1 + (self.dimension - 1) * self.cosine * self.mean) / self.dimension

    @property
    def along(self) -> float:
        """The variance of W / m: (1 / m^2 - 1) / d at the best cap, as is `across`."""
        return self.square / self.mean**2 - 1

    @property
    def across(self) -> float:
        """The variance of a coordinate at right angles to the given vector, divided by m."""
        return (1 - self.square) / ((self.dimension - 1) * self.mean**2)

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of the ratio of the densities inside and outside."""
        return likelier(self.miss, self.share, 1 - self.share)

    def points(self, directions: Floats, random: Random) -> Floats:
        """A point of the sphere for each of these unit vectors."""
        generator = generator_of(random)
        missed = random.coins(len(directions), self.miss)
        uniforms = generator.random(len(directions))
        tails = np.where(missed, self.share + uniforms * (1 - self.share), uniforms * self.share)
        cosines = _cosines(tails, self.dimension)[:, np.newaxis]
        noise = generator.standard_normal(directions.shape)
        noise -= np.einsum("ij,ij->i", noise, directions)[:, np.newaxis] * directions
        return np.asarray(cosines * directions + np.sqrt(1 - cosines**2) * _normalised(noise))


@dataclass(frozen=True)
class CapResponse(LocalSum):
    """The smallest ball of all values, and PrivUnit for the points of its sphere.

    A point inside is first made one of a sphere, in one of two ways. `lifted`, it gets one more
    coordinate, the one that makes it a unit vector, and the answer loses it again: as the noise
    is the same in all directions, every value has the same variance, R^2 (1 / m^2 - 1) / (d + 1).
    Otherwise it is, with probability 1 - |v|, a uniform direction: its answer is as long as any,
    so the variance is largest in the middle, R^2 / (d m^2). This is less in few dimensions, at
    small epsilon.

    >>> local = CapResponse.best(1000, Privacy(1.0, 1e-6), Vectors(20))
    >>> round(local.user_variance, 2), local.epsilon_spent <= 1.0
    (6.16, True)
    """

    cap: Cap
    lifted: bool

    is_simulated: ClassVar[bool] = True

    @classmethod
    def best(cls, horizon: int, privacy: Privacy, values: Values) -> CapResponse:
        """The better of the two ways; a sphere that is two points has no caps."""
        ways = (True, False) if values.dimension > 1 else (True,)
        candidates = (
            cls(horizon, values, Cap.best(values.dimension + lifted, privacy.epsilon), lifted)
            for lifted in ways
        )
        return min(candidates, key=lambda response: response.user_variance)

    @cached_property
    def ball(self) -> tuple[Floats, float]:
        return smallest_ball(self.values)

    @property
    def epsilon_spent(self) -> float:
        return self.cap.epsilon_spent

    @property
    def user_variance(self) -> float:
        if self.lifted:
            return self.worst_variance
        return self._scale**2 / self.cap.dimension

    @property
    def worst_variance(self) -> float:
        """The most over directions; and, if not `lifted`, over lengths l of values on an axis.

        There it is (l E W^2 + (1 - l) / d) / m^2 - l^2 with E W^2 - 1 / d = (d - 1) c m / d.
        """
        radius = self.ball[1]
        if self.lifted:
            return radius**2 * max(self.cap.along, self.cap.across)
        slope = (1 - 1 / self.cap.dimension) * self.cap.cosine / self.cap.mean
        length = min(1.0, slope / 2)
        return self.user_variance + radius**2 * length * (slope - length)

    @property
    def _scale(self) -> float:
        """The length of an answer, before the last coordinate is dropped."""
        return self.ball[1] / self.cap.mean

    @property
    def spread(self) -> float:
        return 2 * self._scale

    @property
    def reach(self) -> float:
        return self._scale + self.ball[1]

    def answers(self, rows: Rows, random: Random) -> Floats:
        centre, radius = self.ball
        points = (rows - centre) / radius
        directions = _lifted(points) if self.lifted else _flattened(points, random)
        answers = self.cap.points(directions, random)[:, : self.values.dimension]
        return np.asarray(centre + self._scale * answers)


def smallest_ball(values: Values) -> tuple[Floats, float]:
    """Centre and radius of the smallest ball that holds all values.

    Values that fill a ball are as far apart as its diameter. Moments z = (x y, x x^T) do not: a
    rotation of x or another sign of y maps them onto themselves, so the centre is (0, a I) for
    some a, and |z - (0, a I)|^2 = r^2 y^2 + r^4 - 2 a r^2 + a^2 D for D features and |x| = r.
    This is largest at r = 1 or r = 0, where it is 2 - 2 a + a^2 D and a^2 D; the least of the
    larger is 2 - 1 / D, at a = 1 / D.
    """
    if not isinstance(values, Moments):
        return (values.lows + values.highs) / 2, values.sensitivity / 2
    middle = packed(np.eye(values.features) / values.features)
    centre = np.concatenate([np.zeros(values.features), middle])
    return centre, math.sqrt(2 - 1 / values.features)


def _lifted(points: Floats) -> Floats:
    """Unit vectors of one more coordinate."""
    heights = np.sqrt(np.maximum(0.0, 1 - np.einsum("ij,ij->i", points, points)))
    return np.concatenate([points, heights[:, np.newaxis]], axis=1)


def _flattened(points: Floats, random: Random) -> Floats:
    """The direction of every point with a probability of its length, or else any direction."""
    generator = generator_of(random)
    directions = _normalised(generator.standard_normal(points.shape))
    lengths = np.sqrt(np.einsum("ij,ij->i", points, points))
    kept = generator.random(len(points)) < lengths
    directions[kept] = points[kept] / lengths[kept, np.newaxis]
    return directions


def _normalised(vectors: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return np.asarray(vectors / lengths[:, np.newaxis])


def _share(dimension: int, cosine: float) -> float:
    """P(W >= cosine) for the cosine W >= 0 of a uniform direction: W^2 has a beta law."""
    return 0.5 * float(betaincc(0.5, (dimension - 1) / 2, cosine**2))


def _lever(dimension: int, cosine: float) -> float:
    """E[W; W >= cosine], from the density (1 - w^2)^((d - 3) / 2) / B(1/2, (d - 1) / 2)."""
    half = (dimension - 1) / 2
    return float(np.exp(-betaln(0.5, half)) * (1 - cosine**2) ** half) / (2 * half)


def _cosines(tails: Floats, dimension: int) -> Floats:
    """The cosines that a uniform direction reaches or exceeds with these probabilities."""
    folded = 2 * np.minimum(tails, 1 - tails)
    sizes = np.sqrt(betainccinv(0.5, (dimension - 1) / 2, folded))
    return np.asarray(np.copysign(sizes, 0.5 - tails))


def local_counter(horizon: int, privacy: Privacy, values: Values) -> LocalSum:
    """The best known local mechanism for this kind of value.

    >>> from overhand.values import values_of
    >>> for spec in ("bit", "real", "vector:20", "histogram:200"):
    ...     local = local_counter(1000, Privacy(1.0, 1e-6), values_of(spec))
    ...     print(spec, type(local).__name__, round(local.user_variance, 3))
    bit LocalResponse 0.921
    real WindowResponse 1.003
    vector:20 CapResponse 6.158
    histogram:200 SubsetResponse 3.641
    """
    best: LocalSum
    match values:
        case Bits():
            return LocalResponse.best(horizon, privacy)
        case Buckets() | Grouped():
            best = SubsetResponse.best(horizon, privacy, values)
        case Reals() | Vectors(length=1) | SymmetricMatrices(side=1):
            best = WindowResponse.best(horizon, privacy, values)
        case Vectors() | SymmetricMatrices() | Moments():
            best = CapResponse.best(horizon, privacy, values)
        case _:
            raise errors.InvalidValue(f"no local mechanism for {values}")
    normal = GaussianResponse(horizon, values, privacy)
    return min(best, normal, key=lambda counter: counter.user_variance)
