"""Environments of races of learners: who arrives, with which arms and which rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import overhand as oh
from overhand.lab.regret.environments import Diverse, Environment, Fixed, Offers, Segments
from support.sampling import assert_follows, kolmogorov, samples_for
from support.small_races import ROOT, assert_regret

ENVIRONMENTS: list[Environment] = [
    Diverse(5, 10),
    Diverse(3, 2),
    Fixed(5, 10),
    Fixed(3, 7),
    Segments(9, 10),
    Segments(5, 2),
    Segments(13, 4),
]
EACH = pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)


def generators(runs: Sequence[int], seed: int = 5) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, run]) for run in runs]


def test_the_next_users_are_others() -> None:
    audience = Diverse(dimension=3, arms=4).audience(10, [np.random.default_rng(1)])
    first, second = audience.offers(5), audience.offers(5)
    assert not (first.uniforms == second.uniforms).any()


def offers_of(
    environment: Environment, horizon: int, steps: Sequence[int], runs: Sequence[int] = (0,)
) -> Offers:
    """Those of so many users at a time, one after the other, an axis of users for each of them."""
    audience = environment.audience(horizon, generators(runs))
    parts = [audience.offers(step) for step in steps]
    shape = (len(runs), -1, environment.arms)
    alike = [parts[i].features.shape[1] == 1 for i in range(len(parts))]
    repeats = [step if same else 1 for step, same in zip(steps, alike, strict=True)]
    return Offers(
        np.concatenate(
            [p.features.repeat(r, axis=1) for p, r in zip(parts, repeats, strict=True)], axis=1
        ),
        np.concatenate(
            [p.means.repeat(r, axis=1).reshape(shape) for p, r in zip(parts, repeats, strict=True)],
            axis=1,
        ),
        np.concatenate([p.uniforms for p in parts], axis=1),
    )


@EACH
def test_environments_are_linear_bandits_with_a_constant_feature(environment: Environment) -> None:
    """Of norm 1 at most, means in [0, 1] and <theta, x> for one theta a run: least squares."""
    offers = offers_of(environment, 400, (30, 1, 169, 200), runs=(0, 1, 2))
    assert offers.features.shape == (3, 400, environment.arms, environment.dimension)
    assert offers.means.shape == offers.features.shape[:-1]
    assert offers.uniforms.shape == (3, 400)
    assert np.all(offers.features[..., 0] == np.float32(environment.constant))
    assert environment.constant == ROOT
    norms = np.linalg.norm(offers.features.astype(float), axis=-1)
    assert norms.max() <= 1 + 1e-6
    assert offers.means.min() >= -1e-6
    assert offers.means.max() <= 1 + 1e-6
    thetas = []
    for features, means in zip(offers.features.astype(float), offers.means, strict=True):
        x, y = features.reshape(-1, environment.dimension), means.reshape(-1)
        theta, _, rank, _ = np.linalg.lstsq(x, y)
        assert rank == environment.dimension
        assert x @ theta == pytest.approx(y, abs=1e-6)
        assert np.linalg.norm(theta) == pytest.approx(1, abs=1e-5)
        assert theta[0] == pytest.approx(ROOT, abs=1e-5)
        thetas.append(theta)
    assert np.linalg.norm(thetas[0] - thetas[1]) > 0.01
    assert np.linalg.norm(thetas[1] - thetas[2]) > 0.01


@EACH
def test_norms_are_1_but_for_the_origin_of_fixed_arms(environment: Environment) -> None:
    offers = offers_of(environment, 100, (100,))
    norms = np.linalg.norm(offers.features[0].astype(float), axis=-1)
    others = (
        np.delete(norms, environment.dimension - 1, 1) if environment.name == "fixed" else norms
    )
    assert others == pytest.approx(1, abs=1e-6)


@EACH
def test_users_of_a_run_do_not_depend_on_the_runs_beside_it(environment: Environment) -> None:
    together = offers_of(environment, 100, (40, 60), runs=(0, 1, 2))
    alone = offers_of(environment, 100, (40, 60), runs=(1,))
    for part in ("features", "uniforms"):
        of_all, of_one = getattr(together, part), getattr(alone, part)
        assert np.array_equal(of_all[1], of_one[0])
        assert not np.array_equal(of_all[0], of_one[0])
    np.testing.assert_allclose(together.means[1], alone.means[0], atol=1e-6)


def test_fixed_arms_and_their_users_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    """Of the others that is not said: features and uniforms of a chunk come from one stream."""
    whole, parts = (offers_of(Fixed(5, 10), 100, steps) for steps in ((100,), (1, 2, 50, 47)))
    for part in ("features", "means", "uniforms"):
        assert np.array_equal(getattr(whole, part), getattr(parts, part))


@EACH
def test_uniforms_are_even(environment: Environment) -> None:
    """Uniform in [0, 1): a mutant that leaves out a twentieth is seen."""
    number = samples_for(0.04)
    uniforms = offers_of(environment, number, (number,)).uniforms.astype(float)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    law, wrong = stats.randint(0, 1000), stats.randint(50, 1000)
    assert_follows((uniforms[0] * 1000).astype(np.int64), law, discrepancy=0.04)
    assert kolmogorov(law, wrong, range(1000)) > 0.04
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows((50 + uniforms[0] * 950).astype(np.int64), law, discrepancy=0.04)


@pytest.mark.parametrize("dimension", [5, 9, 13])
@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 10, 99, 100, 101, 102, 103])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_segments_vary_in_the_coordinates_of_their_quarter_only(
    horizon: int, dimension: int, chunk: int
) -> None:
    steps = [min(chunk, horizon - start) for start in range(0, horizon, chunk)]
    features = offers_of(Segments(dimension, 3), horizon, steps).features[0].astype(float)
    width = (dimension - 1) // 4
    assert len(features) == horizon
    for user, of_user in enumerate(features):
        # The q-th quarter are the users from floor(n q / 4) on, counted from 0.
        (quarter,) = [q for q in range(4) if q * horizon // 4 <= user < (q + 1) * horizon // 4]
        own = slice(1 + quarter * width, 1 + (quarter + 1) * width)
        assert np.linalg.norm(of_user[:, own], axis=-1) == pytest.approx(ROOT, abs=1e-6)
        others = np.delete(of_user[:, 1:], np.arange(quarter * width, (quarter + 1) * width), 1)
        assert not others.any()


class Zeros(np.random.Generator):
    """Whose normal numbers are what a single float is once in some millions."""

    def standard_normal(self, size: Any = None, *_: Any) -> Any:  # type: ignore[override]
        return np.zeros(size, np.float32)


def test_an_audience_of_one_coordinate_has_a_sign_whatever_is_drawn() -> None:
    """Of zero too: dividing by its norm would make features that are not numbers."""
    offers = Segments(5, 3).audience(8, [Zeros(np.random.PCG64(1))]).offers(8)
    assert np.isfinite(offers.means).all()
    np.testing.assert_allclose(np.linalg.norm(offers.features, axis=-1), 1.0, rtol=1e-6)


def test_every_audience_has_the_same_share_of_theta() -> None:
    offers = offers_of(Segments(9, 10), 400, (400,), runs=(0, 1))
    for features, means in zip(offers.features.astype(float), offers.means, strict=True):
        theta = np.linalg.lstsq(features.reshape(-1, 9), means.reshape(-1))[0]
        norms = np.linalg.norm(theta[1:].reshape(4, 2), axis=1)
        assert norms == pytest.approx(ROOT / 2, abs=1e-5)


@pytest.mark.parametrize("arms", [3, 5, 10])
def test_fixed_arms_begin_with_the_basis_and_the_origin(arms: int) -> None:
    features = offers_of(Fixed(5, arms), 10, (10,)).features[0]
    rows = np.vstack([np.eye(4), np.zeros(4)])[:arms] * ROOT
    assert features[0, :5, 1:] == pytest.approx(rows, abs=1e-7)
    assert np.all(features == features[:1])
    if arms > 5:
        others = features[0, 5:, 1:]
        assert np.linalg.norm(others, axis=1) == pytest.approx(ROOT, abs=1e-6)
        assert len(np.unique(others.round(5), axis=0)) == arms - 5


def random_regret(size: int, arms: int, scale: float) -> float:
    """scale E max of so many independent first coordinates of even points of a sphere, exactly."""
    law = stats.uniform(-1, 2) if size == 3 else stats.beta((size - 1) / 2, (size - 1) / 2, -1, 2)
    expected, _ = quad(lambda w: 1 - law.cdf(w) ** arms, -1, 1)
    return float(scale * (expected - 1))


# |u| |v| of the parts of features and theta that vary: 1/2, of which an audience has the half.
RANDOM = [(Diverse(5, 10), 4, 0.5, 0.364), (Segments(9, 10), 2, 0.25, 0.232)]


@pytest.mark.parametrize(("environment", "size", "scale", "stated"), RANDOM, ids=str)
def test_random_arms_miss_what_is_stated(
    environment: Environment, size: int, scale: float, stated: float
) -> None:
    """Of a user, max - mean of the means lies in [0, 2 scale]; three arms fewer would be seen."""
    expected = random_regret(size, environment.arms, scale)
    assert expected == pytest.approx(stated, abs=0.001)
    users, discrepancy = 250_000, 0.01 * scale / 0.25
    wrong = random_regret(size, environment.arms - 3, scale)
    assert expected - wrong > discrepancy
    means = np.concatenate(
        [offers_of(e, 10_000, (10_000,), runs=(r,)).means[0] for r in range(users // 10_000)
         for e in [environment]]
    ).astype(float)  # fmt: skip
    fewer = means[:, 3:]
    missed, mutant = means.max(axis=1) - means.mean(axis=1), fewer.max(axis=1) - fewer.mean(axis=1)
    assert_regret(missed, expected, 2 * scale, discrepancy=discrepancy)
    with pytest.raises(AssertionError, match="regret off"):
        assert_regret(mutant, expected, 2 * scale, discrepancy=discrepancy)


@pytest.mark.parametrize("kind", [Diverse, Fixed, Segments])
@pytest.mark.parametrize(
    ("dimension", "arms"), [(2, 10), (0, 10), (-5, 10), (5.0, 10), (True, 10), (5, 1), (5, 0)]
)
def test_bad_environments_are_refused(kind: Any, dimension: Any, arms: Any) -> None:
    with pytest.raises(oh.InvalidValue, match="dimension" if arms == 10 else "arms"):
        kind(dimension, arms)


@pytest.mark.parametrize("dimension", [3, 4, 6, 7, 8, 10])
def test_segments_need_four_audiences_of_the_same_width(dimension: int) -> None:
    with pytest.raises(oh.InvalidValue, match="multiple of 4"):
        Segments(dimension, 10)
