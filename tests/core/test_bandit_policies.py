"""Policies of LinUCB: which arm they give, and how they are made of private sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.bandits import LinUCB, Policy
from overhand.model import Floats
from overhand.values import RegressionStatistics
from support.learners import (
    CONSTANTS,
    Bare,
    assert_same_policy,
    by_hand,
    in_ball,
    learner,
    naive_scores,
    table,
    with_constant,
)

# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "precision"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("shape", [(4, 3), (6, 4, 3), (1, 3), (1, 1, 3), (2, 5, 4, 3)], ids=str)
def test_a_score_is_the_mean_and_the_norm_of_the_widths(
    shape: tuple[int, ...], kind: Any, precision: float
) -> None:
    rng = np.random.default_rng(5)
    theta, width = rng.standard_normal(3), rng.standard_normal((3, 3))  # not symmetric
    arms = in_ball(rng, *shape).astype(kind)
    scores = Policy(0, theta, width).scores(arms)
    assert scores.dtype == kind
    assert scores.shape == shape[:-1]
    np.testing.assert_allclose(scores, naive_scores(theta, width, arms), atol=precision)
    swapped = naive_scores(theta, width.T, arms)  # |width x| is another number
    assert np.abs(scores - swapped).max() > 100 * precision


@pytest.mark.parametrize(("kind", "precision"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("shape", [(7, 3), (5, 7, 3)], ids=str)
def test_policies_side_by_side_score_as_each_alone(
    shape: tuple[int, ...], kind: Any, precision: float
) -> None:
    rng = np.random.default_rng(6)
    thetas, widths = rng.standard_normal((4, 3)), rng.standard_normal((4, 3, 3))
    arms = in_ball(rng, 4, *shape).astype(kind)
    together = Policy(0, thetas, widths)
    assert together.scores(arms).shape == (4, *shape[:-1])
    for run in range(4):
        alone = Policy(0, thetas[run], widths[run])
        np.testing.assert_allclose(
            together.scores(arms)[run], naive_scores(thetas[run], widths[run], arms[run]),
            atol=precision,
        )  # fmt: skip
        assert np.array_equal(together.choose(arms)[run], alone.choose(arms[run]))


@pytest.mark.parametrize("shape", [(9, 3), (40, 9, 3)], ids=str)
def test_the_arm_is_that_of_the_largest_score(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    policy = Policy(0, rng.standard_normal(3), rng.standard_normal((3, 3)))
    arms = in_ball(rng, *shape)
    chosen = policy.choose(arms)
    scores = naive_scores(policy.theta, policy.width, arms)
    assert np.array_equal(chosen, scores.argmax(axis=-1))
    if len(shape) == 3:
        greedy = (arms @ policy.theta).argmax(axis=-1)
        assert (chosen != greedy).any()  # the widths matter
        assert len(set(chosen.tolist())) == 9  # every arm is somebody's best


@pytest.mark.parametrize(("kind", "precision"), [(np.float64, 1e-13), (np.float32, 1e-5)])
@pytest.mark.parametrize("dimension", [1, 2, 9])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_one_user_is_given_the_arm_of_the_largest_score(
    dimension: int, kind: Any, precision: float, layout: str
) -> None:
    """The short way for one user: but for scores that the precision cannot tell apart."""
    rng = np.random.default_rng(19)
    policy = Policy(0, rng.standard_normal(dimension), rng.standard_normal((dimension, dimension)))
    told, not_first = 0, 0
    for of_one in in_ball(rng, 400, 11, dimension).astype(kind):
        arms = {
            "rows": of_one,
            "columns": np.asfortranarray(of_one),
            "strided": np.repeat(of_one, 2, axis=0)[::2],
        }[layout]
        before = arms.copy()
        chosen, scores = policy.choose(arms), policy.scores(arms)
        assert chosen.shape == ()
        assert scores[chosen] >= scores.max() - precision
        second, first = np.sort(scores)[-2:]
        if first - second > 2 * precision:
            told += 1
            assert chosen == scores.argmax() == policy.choose(arms[np.newaxis])[0]
        not_first += bool(chosen)
        assert np.array_equal(arms, before)
        assert policy.choose(arms) == chosen  # nothing was changed on the way
    assert told > 395
    assert not_first > 200
    assert policy.choose(in_ball(rng, 1, dimension).astype(kind)) == 0


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_one_user_is_given_one_of_the_best_arms(kind: Any) -> None:
    policy = Policy(0, np.array([0.0, 1.0]), 0.3 * np.eye(2))
    arms = np.array([[0.8, -0.3], [0.8, 0.5], [0.8, 0.1], [0.8, 0.5]], kind)
    assert int(policy.choose(arms)) in (1, 3)


# --- from sums to policies ------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2, 5])
@pytest.mark.parametrize("ridge", [1e-9, 3.0])
def test_without_noise_theta_is_that_of_ridge_regression(dimension: int, ridge: float) -> None:
    x, y = table(dimension, 200)
    of = LinUCB(Bare(dimension, ridge))
    policy = of.policy(200, of.rows(x, y).sum(axis=0), 0.0)
    expected = np.linalg.solve(x.T @ x + ridge * np.eye(dimension), x.T @ y)
    np.testing.assert_allclose(policy.theta, expected, rtol=1e-8)
    assert policy.t == 200
    unshifted = np.linalg.solve(x.T @ x, x.T @ y)
    assert (np.abs(policy.theta / unshifted - 1).max() < 1e-6) == (ridge < 1)


def hand_made_scores(
    scaled: Floats,
    learnt: Floats,
    arms: Floats,
    std: float,
    *,
    noise: tuple[Floats, Floats] | None = None,
    exploration: float = 0.5,
    is_centred: bool = True,
) -> Floats:
    """Ridge regression by inverse matrices, all in the features that are reported."""
    d = scaled.shape[1]
    of_vector, of_matrix = noise or (np.zeros(d), np.zeros((d, d)))
    shift = 1 + 2 * std * math.sqrt(2 * d)
    inverse = np.linalg.inv(scaled.T @ scaled + of_matrix + shift * np.eye(d))
    theta = inverse @ (scaled.T @ learnt + of_vector)
    reward_variance, theta_square = (1.0, 2.0) if is_centred else (0.25, 1.0)
    of_noise = (1 + theta_square / 2) * (exploration * std) ** 2
    squares = [
        reward_variance * float(arm @ inverse @ arm)
        + of_noise * float(arm @ inverse @ inverse @ arm)
        for arm in arms
    ]
    return np.asarray(arms @ theta + np.sqrt(squares))


@pytest.mark.parametrize(
    ("constant", "exploration"),
    [(None, 0.5), (None, 2.0), *((c, 0.5) for c in CONSTANTS), (0.9, 2.0)],
)
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_scores_are_the_formula_by_inverse_matrices(
    dimension: int, constant: float | None, exploration: float
) -> None:
    """One standard deviation of the rewards' part, `exploration` of that of the sums' noise.

    The policy is for features as they are, learning is about features as they are reported.
    """
    x, y = table(dimension, 300, constant=constant)
    std = 2.5
    of = learner(dimension, constant=constant, exploration=exploration)
    policy = of.policy(300, of.rows(x, y).sum(axis=0), std)
    arms = with_constant(np.random.default_rng(8), constant, 20, dimension)
    learnt = y if constant is None else 2 * y - 1

    def expected(reported: Floats, other_arms: Floats, exploration: float) -> Floats:
        options: dict[str, Any] = {"exploration": exploration, "is_centred": bool(constant)}
        return hand_made_scores(reported, learnt, other_arms, std, **options)

    scaled = by_hand(x, constant)
    right = expected(scaled, by_hand(arms, constant), exploration)
    np.testing.assert_allclose(policy.scores(arms), right, rtol=1e-10)
    # Mutants: no doubt of the noise, features reported as they are, a policy for the reported ones.
    assert np.all(right > expected(scaled, by_hand(arms, constant), 0.0) * (1 + 1e-3))
    if constant is not None and constant > 0.5:
        for mutant in (
            expected(x, arms, exploration),
            expected(scaled, arms, exploration),
            expected(x, by_hand(arms, constant), exploration),
        ):
            assert np.abs(mutant - right).max() > 1e-3


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("dimension", [2, 5])
def test_policies_of_noisy_sums_are_given_back_in_the_features_of_arms(
    dimension: int, constant: float
) -> None:
    """Four runs side by side, with noise in all of what was reported."""
    rng, std = np.random.default_rng(20), 3.0
    x, y = table(dimension, 400, constant=constant)
    of = learner(dimension, constant=constant)
    total = of.rows(x, y).sum(axis=0)
    noise = std * rng.standard_normal((4, len(total)))
    together = of.policy(400, total + noise, std)
    arms = with_constant(rng, constant, 30, dimension)
    for run in range(4):
        of_run = (noise[run, :dimension], _matrix(noise[run, dimension:], dimension))
        right = hand_made_scores(
            by_hand(x, constant), 2 * y - 1, by_hand(arms, constant), std, noise=of_run
        )
        alone = of.policy(400, total + noise[run], std)
        np.testing.assert_allclose(alone.scores(arms), right, rtol=1e-9, atol=1e-12)
        beside = Policy(400, together.theta[run], together.width[run])
        np.testing.assert_allclose(beside.scores(arms), right, rtol=1e-9, atol=1e-12)


def test_the_noise_of_the_sums_makes_the_shift() -> None:
    quiet, loud = (learner(3).constants.shift(10, std) for std in (0.0, 100.0))
    assert quiet == 1
    rng = np.random.default_rng(9)
    # Every coordinate has this noise, those off the diagonal in the packed form.
    _, noise = RegressionStatistics(3).split(
        100 * rng.standard_normal((2000, RegressionStatistics(3).dimension))
    )
    norms = np.abs(np.linalg.eigvalsh(noise)).max(axis=-1)
    assert (norms < loud).mean() > 0.99
    assert np.median(norms) > loud / 4  # and not far more than it needs to be


@pytest.mark.parametrize("runs", [(3,), (2, 4)], ids=str)
def test_sums_side_by_side_give_the_policies_of_each(runs: tuple[int, ...]) -> None:
    of = learner(3)
    rng = np.random.default_rng(10)
    x, y = table(3, 400)
    total = of.rows(x, y).sum(axis=0)
    totals = total + 3 * rng.standard_normal((*runs, len(total)))
    together = of.policy(400, totals, 3.0)
    assert together.theta.shape == (*runs, 3)
    assert together.width.shape == (*runs, 3, 3)
    for index in np.ndindex(*runs):
        alone = of.policy(400, totals[index], 3.0)
        assert_same_policy(Policy(400, together.theta[index], together.width[index]), alone)
    flat = together.theta.reshape(-1, 3)
    assert np.abs(flat[0] - flat[1]).max() > 1e-3


class Spying:
    """Constants that remember which eigenvalues they were shown."""

    dimension = 3
    constant = None
    scales = np.ones(3)

    def __init__(self, shift: float) -> None:
        self.amount = shift
        self.seen: list[Floats] = []

    def shift(self, t: int, std: float) -> float:
        return self.amount

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        self.seen.append(eigenvalues)
        return np.asarray(1 / np.sqrt(eigenvalues))


@pytest.mark.parametrize("worst", [-1e6, -4.0, -3.0001, -2.9999, 0.0])
def test_an_eigenvalue_below_a_quarter_of_the_shift_is_set_to_it(worst: float) -> None:
    axes, _ = np.linalg.qr(np.random.default_rng(11).standard_normal((3, 3)))
    gram = axes @ np.diag([worst, 5.0, 50.0]) @ axes.T
    vector = axes @ np.array([1.0, 2.0, 3.0])
    packed = np.concatenate([vector, _packed(gram)])
    constants = Spying(4.0)
    policy = LinUCB(constants).policy(9, packed, 1.0)
    floored = max(1.0, worst + 4.0)
    assert sorted(constants.seen[0]) == pytest.approx([floored, 9.0, 54.0], rel=1e-6)
    assert np.isfinite(policy.theta).all()
    expected = axes @ np.array([1.0 / floored, 2.0 / 9.0, 3.0 / 54.0])
    assert policy.theta == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(policy.theta) <= np.linalg.norm(vector)


def _packed(matrix: Floats) -> Floats:
    """The upper triangle, off-diagonal entries times sqrt(2): written out once more."""
    side = len(matrix)
    return np.array(
        [
            matrix[i, j] * (1.0 if i == j else math.sqrt(2))
            for i in range(side)
            for j in range(i, side)
        ]
    )


def _matrix(entries: Floats, side: int) -> Floats:
    """What `_packed` was given."""
    matrix, place = np.zeros((side, side)), 0
    for i in range(side):
        for j in range(i, side):
            matrix[i, j] = matrix[j, i] = entries[place] / (1.0 if i == j else math.sqrt(2))
            place += 1
    return matrix


@given(
    st.integers(1, 6),
    st.floats(-6, 6),
    st.integers(0, 2**32 - 1),
    st.none() | st.floats(1e-6, 1 - 1e-6),
)
def test_any_sum_gives_a_finite_policy(
    dimension: int, log: float, seed: int, constant: float | None
) -> None:
    of = learner(dimension, constant=constant)
    total = 10**log * np.random.default_rng(seed).standard_normal(of.moments.dimension)
    policy = of.policy(1, total, 1.0)
    assert np.isfinite(policy.theta).all()
    assert np.isfinite(policy.width).all()
