"""Who arrives, what may be offered to them, and what it is worth: the literature's instances."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_HALF_ROOT = math.sqrt(0.5)


@dataclass(frozen=True)
class Offers:
    """What consecutive users of some runs, side by side, may be offered.

    The axes of `features` are runs, users, arms and features; the users' axis has length 1 if all
    are offered the same. The reward of an arm is 1 if the user's uniform is below the arm's mean.

    >>> offers = Diverse(dimension=3, arms=4).crowd(10, [np.random.default_rng(1)]).offers(10)
    >>> offers.features.shape, offers.means.shape, offers.uniforms.shape
    ((1, 10, 4, 3), (1, 10, 4), (1, 10))
    """

    features: Singles
    means: Singles
    uniforms: Singles


class Crowd(ABC):
    """The users of some runs, in the order of their arrival.

    >>> crowd = Diverse(dimension=3, arms=4).crowd(10, [np.random.default_rng(1)])
    >>> first, second = crowd.offers(5), crowd.offers(5)
    >>> bool((first.uniforms == second.uniforms).any())  # the next users are others
    False
    """

    @abstractmethod
    def offers(self, users: int) -> Offers:
        """Those of the next so many users."""


@dataclass(frozen=True)
class Environment(ABC):
    """A family of linear bandits: |x| <= 1, |theta| <= 1, expected rewards <theta, x> in [0, 1].

    Every x has a constant feature, its first, so that rewards may be centred.

    What a user misses, on average, who takes any of ten arms:

    >>> randoms = [np.random.default_rng([1, run]) for run in range(20)]
    >>> for environment in (Diverse(5, 10), Fixed(5, 10), Segments(5, 10)):
    ...     means = environment.crowd(1000, randoms).offers(1000).means
    ...     missed = means.max(axis=-1) - means.mean(axis=-1)
    ...     print(environment.name, round(float(missed.mean()), 2))
    diverse 0.36
    fixed 0.35
    segments 0.25
    """

    name: ClassVar[str]
    constant: ClassVar[float] = _HALF_ROOT
    """What the constant feature is."""

    dimension: int
    arms: int

    def __post_init__(self) -> None:
        errors.whole("dimension", self.dimension, least=3)
        errors.whole("arms", self.arms, least=2)

    @abstractmethod
    def crowd(self, horizon: int, randoms: Sequence[np.random.Generator]) -> Crowd:
        """The users of as many runs as there are generators, each with a theta of its own."""


@dataclass(frozen=True)
class Diverse(Environment):
    """Fresh arms for every user, evenly spread: any consistent estimate soon does well.

    >>> offers = Diverse(dimension=3, arms=4).crowd(10, [np.random.default_rng(1)]).offers(10)
    >>> len(np.unique(offers.features[0, :, :, 1]))  # the arms of ten users, all different
    40
    """

    name: ClassVar[str] = "diverse"

    def crowd(self, horizon: int, randoms: Sequence[np.random.Generator]) -> Crowd:
        return _DiverseCrowd(self, randoms)


class _DiverseCrowd(Crowd):
    def __init__(self, environment: Environment, randoms: Sequence[np.random.Generator]) -> None:
        self._environment = environment
        self._randoms = randoms
        size = environment.dimension - 1
        self._thetas = np.stack([_on_sphere(random, (size,)) for random in randoms])

    def offers(self, users: int) -> Offers:
        arms, dimension = self._environment.arms, self._environment.dimension
        features = np.full((len(self._randoms), users, arms, dimension), _HALF_ROOT, np.float32)
        for of_run, random in zip(features, self._randoms, strict=True):
            _draw_on_sphere(random, of_run[..., 1:])
        return _offers(features, self._thetas, self._randoms)


@dataclass(frozen=True)
class Fixed(Environment):
    """The same arms all the time, as in Chowdhury and Zhou's experiment (2022), scaled to norm 1.

    Rows (u, 1) / sqrt(2) with u even on the sphere, the first of them the basis and the origin;
    what was tried early is never seen to be better than thought unless it is tried again.

    >>> offers = Fixed(dimension=3, arms=4).crowd(10, [np.random.default_rng(1)]).offers(10)
    >>> offers.features.shape, offers.uniforms.shape  # one set of arms for all ten users
    ((1, 1, 4, 3), (1, 10))
    """

    name: ClassVar[str] = "fixed"

    def crowd(self, horizon: int, randoms: Sequence[np.random.Generator]) -> Crowd:
        return _FixedCrowd(self, randoms)


class _FixedCrowd(Crowd):
    def __init__(self, environment: Fixed, randoms: Sequence[np.random.Generator]) -> None:
        self._randoms = randoms
        size, arms = environment.dimension - 1, environment.arms
        self._thetas = np.stack([_on_sphere(random, (size,)) for random in randoms])
        self._features = np.full((len(randoms), 1, arms, size + 1), _HALF_ROOT, np.float32)
        basis = np.vstack([np.eye(size), np.zeros(size)])[:arms] * _HALF_ROOT
        for of_run, random in zip(self._features, randoms, strict=True):
            of_run[0, :, 1:] = _on_sphere(random, (arms, size))
            of_run[0, : len(basis), 1:] = basis

    def offers(self, users: int) -> Offers:
        return _offers(self._features, self._thetas, self._randoms, users=users)


@dataclass(frozen=True)
class Segments(Environment):
    """A new audience every quarter: its users vary in two coordinates that nobody had before.

    The paper allows contexts to be chosen by an adversary; this one holds each part of theta back
    until its quarter. What was learnt of others is of no use.

    >>> offers = Segments(dimension=9, arms=4).crowd(8, [np.random.default_rng(1)]).offers(8)
    >>> for user in (0, 2, 7):  # which features vary
    ...     print(np.flatnonzero(offers.features[0, user, 0, 1:]))
    [0 1]
    [2 3]
    [6 7]
    """

    name: ClassVar[str] = "segments"

    audiences: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.dimension - 1) % self.audiences:
            raise errors.InvalidValue(
                f"dimension={self.dimension} of segments must be 1 more than a multiple of 4"
            )

    def crowd(self, horizon: int, randoms: Sequence[np.random.Generator]) -> Crowd:
        return _SegmentsCrowd(self, horizon, randoms)


class _SegmentsCrowd(Crowd):
    def __init__(
        self, environment: Segments, horizon: int, randoms: Sequence[np.random.Generator]
    ) -> None:
        self._environment = environment
        self._randoms = randoms
        self._width = (environment.dimension - 1) // environment.audiences
        self._ends = [horizon * q // environment.audiences for q in range(1, environment.audiences)]
        self._t = 0
        # Every audience has the same share of theta, in a direction of its own.
        shape = (environment.audiences, self._width)
        parts = [_on_sphere(random, shape) for random in randoms]
        self._thetas = np.stack(parts).reshape(len(randoms), -1) / math.sqrt(environment.audiences)

    def offers(self, users: int) -> Offers:
        arms, dimension = self._environment.arms, self._environment.dimension
        features = np.zeros((len(self._randoms), users, arms, dimension), np.float32)
        features[..., 0] = _HALF_ROOT
        done = 0
        while done < users:
            audience = sum(self._t >= end for end in self._ends)
            until = users
            if audience < len(self._ends):
                until = min(users, done + self._ends[audience] - self._t)
            first = 1 + audience * self._width
            for of_run, random in zip(features, self._randoms, strict=True):
                drawn = _on_sphere(random, (until - done, arms, self._width))
                of_run[done:until, :, first : first + self._width] = drawn
            self._t += until - done
            done = until
        return _offers(features, self._thetas, self._randoms)


def _offers(
    features: Singles,
    thetas: NDArray[Any],
    randoms: Sequence[np.random.Generator],
    *,
    users: int | None = None,
) -> Offers:
    """With means 1/2 + <u, v>, u and v the parts of features and theta that are not constant."""
    runs, _, arms, dimension = features.shape
    whole = np.concatenate([np.full((runs, 1), _HALF_ROOT), thetas], axis=1).astype(np.float32)
    means = features.reshape(runs, -1, dimension) @ whole[:, :, np.newaxis]
    users = features.shape[1] if users is None else users
    uniforms = np.stack([random.random(users, np.float32) for random in randoms])
    return Offers(features, means.reshape(runs, -1, arms), uniforms)


def _on_sphere(random: np.random.Generator, shape: tuple[int, ...]) -> Singles:
    """Even on the sphere of radius sqrt(1/2) in the last axis."""
    points = np.empty(shape, np.float32)
    _draw_on_sphere(random, points)
    return points


def _draw_on_sphere(random: np.random.Generator, points: Singles) -> None:
    """Fill an array: coordinate by coordinate, for the last axis is short."""
    *shape, size = points.shape
    if size == 2:  # much the quickest
        angles = random.random(shape, np.float32)
        angles *= np.float32(2 * math.pi)
        coordinates, radius = [np.cos(angles), np.sin(angles)], np.float32(_HALF_ROOT)
    else:
        normal = random.standard_normal(points.shape, np.float32)
        radius = np.float32(_HALF_ROOT) / np.sqrt(np.einsum("...i,...i->...", normal, normal))
        coordinates = [normal[..., i] for i in range(size)]
    for index, coordinate in enumerate(coordinates):
        np.multiply(coordinate, radius, out=points[..., index])
