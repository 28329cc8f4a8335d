"""Who arrives, what may be offered to them, and what it is worth: the literature's instances."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors

Singles = NDArray[np.float32]
Generators = Sequence[np.random.Generator]
Drawn = Callable[[int], tuple[Singles, Singles]]

_HALF_ROOT = math.sqrt(0.5)


@dataclass(frozen=True)
class Offers:
    """What consecutive users of some runs, side by side, may be offered.

    The axes of `features` are runs, users, arms and features; the users' axis has length 1 if all
    are offered the same. The reward of an arm is 1 if the user's uniform is below the arm's mean.

    >>> offers = Diverse(dimension=3, arms=4).audience(10, [np.random.default_rng(1)]).offers(10)
    >>> offers.features.shape, offers.means.shape, offers.uniforms.shape
    ((1, 10, 4, 3), (1, 10, 4), (1, 10))
    """

    features: Singles
    means: Singles
    uniforms: Singles


class Audience:
    """The users of some runs, in the order of their arrival.

    `drawn` makes the features and means of the offers to the next so many of them.

    >>> audience = Diverse(dimension=3, arms=4).audience(10, [np.random.default_rng(1)])
    >>> first, second = audience.offers(5), audience.offers(5)
    >>> bool((first.uniforms == second.uniforms).any())  # the next users are others
    False
    """

    def __init__(self, randoms: Generators, drawn: Drawn) -> None:
        self._randoms = randoms
        self._drawn = drawn

    def offers(self, users: int) -> Offers:
        """Those of the next so many users."""
        features, means = self._drawn(users)
        users = users if features.shape[1] == 1 else features.shape[1]
        uniforms = np.stack([random.random(users, np.float32) for random in self._randoms])
        return Offers(features, means, uniforms)


@dataclass(frozen=True)
class Environment(ABC):
    """A family of linear bandits: |x| <= 1, |theta| <= 1, expected rewards <theta, x> in [0, 1].

    Every x has a constant feature, its first, so that rewards may be centred.

    What a user misses, on average, who takes any of ten arms:

    >>> randoms = [np.random.default_rng([1, run]) for run in range(20)]
    >>> for environment in (Diverse(5, 10), Fixed(5, 10), Segments(5, 10)):
    ...     means = environment.audience(1000, randoms).offers(1000).means
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
    def audience(self, horizon: int, randoms: Generators) -> Audience:
        """The users of as many runs as there are generators, each with a theta of its own."""


@dataclass(frozen=True)
class Diverse(Environment):
    """Fresh arms for every user, evenly spread: any consistent estimate soon does well.

    >>> offers = Diverse(dimension=3, arms=4).audience(10, [np.random.default_rng(1)]).offers(10)
    >>> len(np.unique(offers.features[0, :, :, 1]))  # the arms of ten users, all different
    40
    """

    name: ClassVar[str] = "diverse"

    def audience(self, horizon: int, randoms: Generators) -> Audience:
        thetas = np.stack([_on_sphere(random, (self.dimension - 1,)) for random in randoms])
        axes = (self.arms, self.dimension)

        def drawn(users: int) -> tuple[Singles, Singles]:
            features = np.full((len(randoms), users, *axes), _HALF_ROOT, np.float32)
            for of_run, random in zip(features, randoms, strict=True):
                _draw_on_sphere(random, of_run[..., 1:])
            return features, _means(features, thetas)

        return Audience(randoms, drawn)


@dataclass(frozen=True)
class Fixed(Environment):
    """The same arms all the time, as in Chowdhury and Zhou's experiment (2022), scaled to norm 1.

    Rows (u, 1) / sqrt(2) with u even on the sphere, the first of them the basis and the origin;
    what was tried early is never seen to be better than thought unless it is tried again.

    >>> offers = Fixed(dimension=3, arms=4).audience(10, [np.random.default_rng(1)]).offers(10)
    >>> offers.features.shape, offers.uniforms.shape  # one set of arms for all ten users
    ((1, 1, 4, 3), (1, 10))
    """

    name: ClassVar[str] = "fixed"

    def audience(self, horizon: int, randoms: Generators) -> Audience:
        size, arms = self.dimension - 1, self.arms
        thetas = np.stack([_on_sphere(random, (size,)) for random in randoms])
        features = np.full((len(randoms), 1, arms, size + 1), _HALF_ROOT, np.float32)
        basis = np.vstack([np.eye(size), np.zeros(size)])[:arms] * _HALF_ROOT
        for of_run, random in zip(features, randoms, strict=True):
            of_run[0, :, 1:] = _on_sphere(random, (arms, size))
            of_run[0, : len(basis), 1:] = basis
        means = _means(features, thetas)
        return Audience(randoms, lambda users: (features, means))


@dataclass(frozen=True)
class Segments(Environment):
    """A new audience every quarter: its users vary in two coordinates that nobody had before.

    The paper allows contexts to be chosen by an adversary; this one holds each part of theta back
    until its quarter. What was learnt of others is of no use.

    >>> offers = Segments(dimension=9, arms=4).audience(8, [np.random.default_rng(1)]).offers(8)
    >>> for user in (0, 2, 7):  # which features vary
    ...     print(np.flatnonzero(offers.features[0, user, 0, 1:]))
    [0 1]
    [2 3]
    [6 7]
    """

    name: ClassVar[str] = "segments"

    quarters: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.dimension - 1) % self.quarters:
            raise errors.InvalidValue(
                f"dimension={self.dimension} of segments must be 1 more than a multiple of 4"
            )

    def audience(self, horizon: int, randoms: Generators) -> Audience:
        width = (self.dimension - 1) // self.quarters
        ends = [horizon * q // self.quarters for q in range(1, self.quarters)]
        # Every quarter has the same share of theta, in a direction of its own.
        parts = [_on_sphere(random, (self.quarters, width)) for random in randoms]
        thetas = np.stack(parts).reshape(len(randoms), -1) / math.sqrt(self.quarters)
        t = 0

        def drawn(users: int) -> tuple[Singles, Singles]:
            nonlocal t
            features = np.zeros((len(randoms), users, self.arms, self.dimension), np.float32)
            features[..., 0] = _HALF_ROOT
            done = 0
            while done < users:
                quarter = sum(t >= end for end in ends)
                until = users if quarter == len(ends) else min(users, done + ends[quarter] - t)
                varied = slice(1 + quarter * width, 1 + (quarter + 1) * width)
                for of_run, random in zip(features, randoms, strict=True):
                    points = _on_sphere(random, (until - done, self.arms, width))
                    of_run[done:until, :, varied] = points
                t += until - done
                done = until
            return features, _means(features, thetas)

        return Audience(randoms, drawn)


def _means(features: Singles, thetas: Singles) -> Singles:
    """1/2 + <u, v>, u and v the parts of features and theta that are not constant."""
    runs, _, arms, dimension = features.shape
    whole = np.concatenate([np.full((runs, 1), _HALF_ROOT), thetas], axis=1).astype(np.float32)
    means: Singles = features.reshape(runs, -1, dimension) @ whole[:, :, np.newaxis]
    return means.reshape(runs, -1, arms)


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
        if size == 1:  # a sign: single floats are zero now and then, and have no direction
            normal = np.copysign(np.float32(1.0), normal)
        radius = np.float32(_HALF_ROOT) / np.sqrt(np.einsum("...i,...i->...", normal, normal))
        coordinates = [normal[..., i] for i in range(size)]
    for index, coordinate in enumerate(coordinates):
        np.multiply(coordinate, radius, out=points[..., index])
