"""LinUCB over private sums: rules, learners, both sides of the protocol, and plans for them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

import overhand as oh
from overhand.accounting import gaussian_delta
from overhand.bandits import (
    BanditServer,
    BanditUser,
    Constants,
    LinUCB,
    Policy,
    Practical,
    Recommender,
    Theory,
    plan_for_regret,
)
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.mechanisms import CoinSum, SharesSum
from overhand.model import Node, Shuffled
from overhand.shufflers import Shuffler
from overhand.summation import SumServer
from overhand.trees import PathTree, RegularTree
from overhand.values import Moments
from plans import PRIVACY
from sampled import assert_uniform_over
from test_shares import leaked

Floats = NDArray[np.float64]

LOOSE = oh.Privacy(20.0, 1e-6)
WIDEST = 3 / math.sqrt(2)
CONSTANT = 0.8
"""The first feature of the arms of a stream."""
CONSTANTS = [0.3, 0.5, math.sqrt(0.5), 0.9]
PLAIN_OR_CONSTANT = pytest.mark.parametrize("constant", [None, CONSTANT], ids=["plain", "constant"])


@cache
def small_plan() -> oh.Plan:
    """Two levels of shares over sixty users, and little noise."""
    plan = plan_for_regret(60, 2, LOOSE, dimension=2, users_per_std=8.0)
    assert plan.tree.levels == 2
    assert plan.horizon % plan.tree.lowest  # so that some users are never in a full batch
    return plan


def learner(dimension: int = 2, **options: Any) -> LinUCB:
    return LinUCB(Practical(dimension, **options))


def recommender(seed: int = 1, constant: float | None = None) -> Recommender:
    return Recommender(small_plan(), oh.seeded_random(seed), constant=constant)


def user(seed: int = 1, constant: float | None = None) -> BanditUser:
    return BanditUser(small_plan(), learner(constant=constant), oh.seeded_random(seed))


def stream(users: int = 60, seed: int = 3) -> tuple[Floats, Floats]:
    """Features with a constant, and rewards that depend on the other one."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([np.full(users, CONSTANT), rng.uniform(-0.6, 0.6, users)])
    return features, (rng.random(users) < 0.5 + features[:, 1] / 2).astype(np.float64)


def in_ball(rng: np.random.Generator, *shape: int) -> Floats:
    """Points of norm at most 1."""
    normal = rng.standard_normal(shape)
    lengths = rng.random(shape[:-1])
    return np.asarray(normal * (lengths / np.linalg.norm(normal, axis=-1))[..., np.newaxis])


def with_constant(
    rng: np.random.Generator, constant: float | None, *shape: int, length: float | None = None
) -> Floats:
    """Points of norm at most 1, or of this one, whose first coordinate is the constant."""
    if constant is None:
        points = in_ball(rng, *shape)
        if length is not None:
            points *= length / np.linalg.norm(points, axis=-1, keepdims=True)
        return points
    points = np.full(shape, constant)
    if shape[-1] > 1:
        others = in_ball(rng, *shape[:-1], shape[-1] - 1)
        if length is not None:
            others /= np.linalg.norm(others, axis=-1, keepdims=True)
        room = (1.0 if length is None else length) ** 2 - constant**2
        points[..., 1:] = math.sqrt(room) * others
    return points


def by_hand(x: Floats, constant: float | None) -> Floats:
    """Features as a learner reports them, written out once more."""
    if constant is None:
        return np.asarray(x, np.float64)
    small = constant if constant < 0.5 else 0.5
    first = x[..., :1] * (small / constant)
    return np.concatenate(
        [first, x[..., 1:] * (math.sqrt(1 - small * small) / math.sqrt(1 - constant * constant))],
        axis=-1,
    )


def assert_same_rule(got: Policy | None, expected: Policy | None) -> None:
    if got is None or expected is None:
        assert got is expected
        return
    assert got.t == expected.t
    np.testing.assert_allclose(got.theta, expected.theta, rtol=1e-9, atol=1e-12)
    # Eigenvectors have no sign of their own: what counts is the norm.
    for one, other in zip(
        got.width.reshape(-1, *got.width.shape[-2:]),
        expected.width.reshape(-1, *expected.width.shape[-2:]),
        strict=True,
    ):
        np.testing.assert_allclose(one @ one.T, other @ other.T, rtol=1e-8, atol=1e-13)


# --- rules ----------------------------------------------------------------------------------------


def naive_score(theta: Floats, width: Floats, x: Floats) -> float:
    mean = sum(float(theta[i]) * float(x[i]) for i in range(len(x)))
    along = [sum(float(width[i, j]) * float(x[i]) for i in range(len(x))) for j in range(len(x))]
    return mean + math.sqrt(sum(a * a for a in along))


def naive_scores(theta: Floats, width: Floats, arms: Floats) -> Floats:
    flat = [naive_score(theta, width, x) for x in arms.reshape(-1, arms.shape[-1])]
    return np.array(flat).reshape(arms.shape[:-1])


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
def test_rules_side_by_side_score_as_each_alone(
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
    rule = Policy(0, rng.standard_normal(3), rng.standard_normal((3, 3)))
    arms = in_ball(rng, *shape)
    chosen = rule.choose(arms)
    scores = naive_scores(rule.theta, rule.width, arms)
    assert np.array_equal(chosen, scores.argmax(axis=-1))
    if len(shape) == 3:
        greedy = (arms @ rule.theta).argmax(axis=-1)
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
    rule = Policy(0, rng.standard_normal(dimension), rng.standard_normal((dimension, dimension)))
    told, not_first = 0, 0
    for of_one in in_ball(rng, 400, 11, dimension).astype(kind):
        arms = {
            "rows": of_one,
            "columns": np.asfortranarray(of_one),
            "strided": np.repeat(of_one, 2, axis=0)[::2],
        }[layout]
        before = arms.copy()
        chosen, scores = rule.choose(arms), rule.scores(arms)
        assert chosen.shape == ()
        assert scores[chosen] >= scores.max() - precision
        second, first = np.sort(scores)[-2:]
        if first - second > 2 * precision:
            told += 1
            assert chosen == scores.argmax() == rule.choose(arms[np.newaxis])[0]
        not_first += bool(chosen)
        assert np.array_equal(arms, before)
        assert rule.choose(arms) == chosen  # nothing was changed on the way
    assert told > 395
    assert not_first > 200
    assert rule.choose(in_ball(rng, 1, dimension).astype(kind)) == 0


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_one_user_is_given_one_of_the_best_arms(kind: Any) -> None:
    rule = Policy(0, np.array([0.0, 1.0]), 0.3 * np.eye(2))
    arms = np.array([[0.8, -0.3], [0.8, 0.5], [0.8, 0.1], [0.8, 0.5]], kind)
    assert int(rule.choose(arms)) in (1, 3)


# --- from sums to rules ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Bare:
    """Constants of a tiny shift: ridge regression that is hardly one."""

    dimension: int
    ridge: float = 1e-9
    constant: float | None = None

    @property
    def scales(self) -> Floats:
        return np.ones(self.dimension)

    def shift(self, t: int, std: float) -> float:
        return self.ridge

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        return np.asarray(1 / np.sqrt(eigenvalues))


def table(
    dimension: int, users: int, seed: int = 2, constant: float | None = None
) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = with_constant(rng, constant, users, dimension)
    return x, np.clip(0.5 + x @ in_ball(rng, dimension) / 2 + rng.normal(0, 0.1, users), 0, 1)


@pytest.mark.parametrize("dimension", [1, 2, 5])
@pytest.mark.parametrize("ridge", [1e-9, 3.0])
def test_without_noise_theta_is_that_of_ridge_regression(dimension: int, ridge: float) -> None:
    x, y = table(dimension, 200)
    of = LinUCB(Bare(dimension, ridge))
    rule = of.policy(200, of.rows(x, y).sum(axis=0), 0.0)
    expected = np.linalg.solve(x.T @ x + ridge * np.eye(dimension), x.T @ y)
    np.testing.assert_allclose(rule.theta, expected, rtol=1e-8)
    assert rule.t == 200
    unshifted = np.linalg.solve(x.T @ x, x.T @ y)
    assert (np.abs(rule.theta / unshifted - 1).max() < 1e-6) == (ridge < 1)


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

    The rule is for features as they are, learning is about features as they are reported.
    """
    x, y = table(dimension, 300, constant=constant)
    std = 2.5
    of = learner(dimension, constant=constant, exploration=exploration)
    rule = of.policy(300, of.rows(x, y).sum(axis=0), std)
    arms = with_constant(np.random.default_rng(8), constant, 20, dimension)
    learnt = y if constant is None else 2 * y - 1

    def expected(reported: Floats, other_arms: Floats, exploration: float) -> Floats:
        options: dict[str, Any] = {"exploration": exploration, "is_centred": bool(constant)}
        return hand_made_scores(reported, learnt, other_arms, std, **options)

    scaled = by_hand(x, constant)
    right = expected(scaled, by_hand(arms, constant), exploration)
    np.testing.assert_allclose(rule.scores(arms), right, rtol=1e-10)
    # Mutants: no doubt of the noise, features reported as they are, a rule for the reported ones.
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
def test_rules_of_noisy_sums_are_given_back_in_the_features_of_arms(
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
    _, noise = Moments(3).split(100 * rng.standard_normal((2000, Moments(3).dimension)))
    norms = np.abs(np.linalg.eigvalsh(noise)).max(axis=-1)
    assert (norms < loud).mean() > 0.99
    assert np.median(norms) > loud / 4  # and not far more than it needs to be


@pytest.mark.parametrize("runs", [(3,), (2, 4)], ids=str)
def test_sums_side_by_side_give_the_rules_of_each(runs: tuple[int, ...]) -> None:
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
        assert_same_rule(Policy(400, together.theta[index], together.width[index]), alone)
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
    rule = LinUCB(constants).policy(9, packed, 1.0)
    floored = max(1.0, worst + 4.0)
    assert sorted(constants.seen[0]) == pytest.approx([floored, 9.0, 54.0], rel=1e-6)
    assert np.isfinite(rule.theta).all()
    expected = axes @ np.array([1.0 / floored, 2.0 / 9.0, 3.0 / 54.0])
    assert rule.theta == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(rule.theta) <= np.linalg.norm(vector)


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
def test_any_sum_gives_a_finite_rule(
    dimension: int, log: float, seed: int, constant: float | None
) -> None:
    of = learner(dimension, constant=constant)
    total = 10**log * np.random.default_rng(seed).standard_normal(of.moments.dimension)
    rule = of.policy(1, total, 1.0)
    assert np.isfinite(rule.theta).all()
    assert np.isfinite(rule.width).all()


# --- rewards --------------------------------------------------------------------------------------


def of_rewards(of: LinUCB, x: Floats, y: Floats) -> Floats:
    return of.policy(len(x), of.rows(x, y).sum(axis=0), 0.0).theta


@pytest.mark.parametrize("constant", [0.8, 0.0])
def test_a_constant_feature_makes_centring_free(constant: float) -> None:
    """<theta, x> of 2 y - 1 is 2 <theta, x> - 1 of y: the same order. Without one it is not."""
    rng = np.random.default_rng(12)
    users = 20_000
    x = np.column_stack([np.full(users, constant), 0.6 * in_ball(rng, users, 2)])
    y = (rng.random(users) < 0.8 + 0.25 * x[:, 1]).astype(np.float64)
    plain, centred = (LinUCB(Bare(3, 1.0, constant=c)) for c in (None, constant))
    arms = np.column_stack([np.full(40, constant), 0.6 * in_ball(rng, 40, 2)])
    uncentred = arms @ of_rewards(plain, x, y)
    off = np.abs(arms @ of_rewards(centred, x, y) - (2 * uncentred - 1)).max()
    if not constant:
        assert off > 0.5
        return
    assert off < 1e-3
    ranks = np.argsort(np.round(uncentred, 3), kind="stable")
    again = np.round((arms @ of_rewards(centred, x, y))[ranks], 2)
    assert (np.diff(again) >= -0.01).all()
    assert again[-1] - again[0] > 0.1


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_rows_are_the_moments_of_scaled_features_and_centred_rewards(
    kind: Any, constant: float
) -> None:
    x, y = table(3, 50, constant=constant)
    x, y = x.astype(kind), y.astype(kind)
    scaled, learnt = by_hand(x.astype(np.float64), constant), 2 * y.astype(np.float64) - 1
    of = learner(3, constant=constant)
    expected = Moments(3).rows(np.column_stack([scaled, learnt]))
    np.testing.assert_allclose(of.rows(x, y), expected, rtol=1e-12, atol=1e-15)
    assert of.moments == Moments(3)
    plain = Moments(3).rows(np.column_stack([x, y]))
    assert np.array_equal(learner(3).rows(x, y), plain)
    assert learner(3).moments == Moments(3)
    # Neither is done without the other.
    for other in (np.column_stack([scaled, y]), np.column_stack([x, learnt])):
        assert (np.abs(expected - Moments(3).rows(other)).max() > 0.05) or constant <= 0.5
    assert np.abs(expected - plain).max() > 0.1


@pytest.mark.parametrize(
    "rewards", [[0, 1, 1], [False, True, True], np.array([0, 1, 1], np.uint8)], ids=repr
)
@pytest.mark.parametrize(("constant", "lowest"), [(None, 0.0), (0.4, -1.0)])
def test_rewards_of_any_numeric_type_are_read(
    rewards: Any, constant: float | None, lowest: float
) -> None:
    x, _ = table(2, 3, constant=constant)
    expected = Moments(2).rows(np.column_stack([x, [lowest, 1.0, 1.0]]))
    assert np.array_equal(learner(constant=constant).rows(x, rewards), expected)


# --- a constant feature ---------------------------------------------------------------------------


def reported(of: LinUCB, x: Floats) -> Floats:
    """The features that users of reward 1 report, from the vectors of their rows."""
    return np.asarray(of.rows(x, np.ones(len(x)))[:, : of.dimension])


@given(st.integers(1, 8), st.floats(1e-3, 0.9999), st.integers(0, 2**32 - 1), st.booleans())
def test_scaled_features_have_norm_1_at_most(
    dimension: int, constant: float, seed: int, is_unit: bool
) -> None:
    rng = np.random.default_rng(seed)
    length = 1.0 if is_unit else None
    x = with_constant(rng, constant, 20, dimension, length=length)
    of = learner(dimension, constant=constant)
    small = min(constant, 0.5)
    for scaled in (reported(of, x), x * of.constants.scales):
        norms = np.linalg.norm(scaled, axis=1)
        assert norms.max() <= 1 + 1e-11
        if dimension > 1 and is_unit:
            assert norms.min() >= 1 - 1e-11  # all the room there is
        assert scaled[:, 0] == pytest.approx(np.full(20, small), rel=1e-11)
        np.testing.assert_allclose(scaled, by_hand(x, constant), rtol=1e-10)
    if constant <= 0.5:
        np.testing.assert_allclose(reported(of, x), x, rtol=1e-11)


@given(st.integers(2, 8), st.floats(1e-3, 0.95), st.integers(0, 2**32 - 1))
def test_features_too_long_by_rounding_are_reported_with_norm_1(
    dimension: int, constant: float, seed: int
) -> None:
    """By 1e-7, as single precision may do: they come out too long by more, and are cut."""
    rng = np.random.default_rng(seed)
    x = with_constant(rng, constant, 20, dimension, length=1 + 1e-7)
    assert np.linalg.norm(x, axis=1).min() > 1 + 0.9e-7
    scaled = reported(learner(dimension, constant=constant), x)
    assert np.linalg.norm(scaled, axis=1) == pytest.approx(np.ones(20), abs=1e-12)
    assert scaled[:, 0] == pytest.approx(np.full(20, min(constant, 0.5)), rel=2e-6)
    np.testing.assert_allclose(scaled, by_hand(x, constant), rtol=2e-6)


@pytest.mark.parametrize("constant", [1e-9, 0.1, 0.3, 0.4999, 0.5])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_a_small_constant_leaves_features_as_they_are(dimension: int, constant: float) -> None:
    assert Practical(dimension, constant).scales.tolist() == [1.0] * dimension
    assert Practical(dimension).scales.tolist() == [1.0] * dimension


@pytest.mark.parametrize("constant", [0.51, math.sqrt(0.5), 0.9, 0.999])
def test_a_large_constant_makes_room_for_the_others(constant: float) -> None:
    scales = Practical(4, constant).scales
    assert scales.shape == (4,)
    assert scales[0] * constant == pytest.approx(0.5)
    assert len(set(scales[1:].tolist())) == 1
    assert scales[1] > 1 > scales[0]
    assert 0.25 + scales[1] ** 2 * (1 - constant**2) == pytest.approx(1)


BAD_CONSTANTS = [1.0, 1, 1.5, 0.0, 0, -0.0, -0.5, math.nan, math.inf, -math.inf, "0.5", True, 0.5j,
                 [0.5], 10**400]  # fmt: skip


@pytest.mark.parametrize("constant", BAD_CONSTANTS, ids=lambda c: repr(c)[:9])
def test_a_constant_that_is_none_is_refused(constant: Any) -> None:
    for made in (
        lambda: Practical(2, constant),
        lambda: Practical(2, constant=constant),
        lambda: Recommender(small_plan(), oh.seeded_random(1), constant=constant),
    ):
        with pytest.raises(InvalidValue, match="constant"):
            made()


def test_constants_of_a_recommender_are_told_by_name() -> None:
    make: Any = Recommender
    for anything in (Practical(2), CONSTANT):
        with pytest.raises(TypeError, match="positional"):
            make(small_plan(), oh.seeded_random(1), anything)


# The constant of the stream is 0.8, and thirteen users came before.
OTHER_FIRST: dict[str, tuple[Any, str]] = {
    "another": (np.array([0.5, 0.3]), "is 0.5, not the constant 0.8"),
    "another, as a list": ([0.5, 0.3], "is 0.5, not the constant 0.8"),
    "another by little": (np.array([0.80001, 0.3]), "is 0.80001, not the constant 0.8"),
    "below by little": (np.array([0.799998, 0.3]), "is 0.799998, not the constant 0.8"),
    "its opposite": (np.array([-0.8, 0.3]), "is -0.8, not the constant 0.8"),
    "none": (np.array([0.0, 0.3]), "is 0, not the constant 0.8"),
    "scaled already": (np.array([0.5, 0.5]), "is 0.5, not the constant 0.8"),
    "the last": (np.array([0.3, 0.8]), "is 0.3, not the constant 0.8"),
    "single precision": (np.array([0.6, 0.3], np.float32), "is 0.600000024, not the constant 0.8"),
    "whole numbers": ([1, 0], "is 1, not the constant 0.8"),
}


@pytest.mark.parametrize("case", OTHER_FIRST)
def test_rows_with_another_first_feature_are_refused(case: str) -> None:
    features, words = OTHER_FIRST[case]
    of, good = learner(constant=CONSTANT), [CONSTANT, 0.3]
    for before, first in ((0, 0), (4, 0), (2, 100)):
        x = [good] * before + [list(features)] + [good, list(features)]
        with pytest.raises(
            InvalidValue, match=re.escape(f"user {first + before + 1} {words}") + "$"
        ):
            of.rows(x, [1.0] * len(x), first=first)
    learner().rows([features], [1.0])  # no constant, no such rule


def test_a_first_feature_may_be_off_by_rounding() -> None:
    of = learner(constant=CONSTANT)
    single = np.array([[CONSTANT, 0.3]], np.float32)
    for x in (single, [[CONSTANT + 5e-7, 0.3]], [[CONSTANT - 5e-7, 0.3]]):
        expected = Moments(2).rows(np.column_stack([by_hand(np.asarray(x), CONSTANT), [1.0]]))
        np.testing.assert_allclose(of.rows(x, [1.0]), expected, rtol=1e-6)


@pytest.mark.parametrize("case", OTHER_FIRST)
@pytest.mark.parametrize("at_once", [0, 1, 31], ids=["update", "one", "many"])
def test_another_first_feature_is_refused_and_leaves_nothing_behind(
    case: str, at_once: int
) -> None:
    wrong, words = OTHER_FIRST[case]
    features, rewards = stream()
    at = recommender(constant=CONSTANT)
    at.update_many(features[:13], rewards[:13])
    before = [GOOD] * (at_once - 1)
    step = update_many([*before, wrong], [1.0] * at_once) if at_once else update(wrong, 1.0)
    with pytest.raises(InvalidValue, match=re.escape(f"user {14 + len(before)} {words}")):
        step(at)
    assert_goes_on_after_13(at, CONSTANT)


@pytest.mark.parametrize("case", OTHER_FIRST)
def test_a_user_does_not_report_another_first_feature(case: str) -> None:
    """And may still choose another arm."""
    wrong, words = OTHER_FIRST[case]
    at = user(constant=CONSTANT)
    at.choose(None, [wrong])
    for t in (1, 60):
        with pytest.raises(InvalidValue, match=re.escape(f"user {t} {words}")):
            at.report(t, 1.0)
    at.choose(None, [GOOD])
    assert len(at.report(1, 1.0)) == 2
    with pytest.raises(ProtocolViolation):
        at.report(1, 1.0)


class Longer(Practical):
    """A mutant: features 1.1 times as long."""

    @cached_property
    def scales(self) -> Floats:
        return 1.1 * Practical(self.dimension, self.constant).scales


@pytest.mark.parametrize("constant", [None, *CONSTANTS])
def test_features_scaled_by_too_much_are_refused(constant: float | None) -> None:
    rng = np.random.default_rng(23)
    x = with_constant(rng, constant, 5, 2, length=1.0)
    with pytest.raises(InvalidValue, match=re.escape("user 1 has norm 1.1, above 1")):
        LinUCB(Longer(2, constant)).rows(x, np.ones(5))
    at = Recommender(small_plan(), oh.seeded_random(1), constants=Longer(2, constant))
    with pytest.raises(InvalidValue, match=re.escape("user 1 has norm 1.1, above 1")):
        at.update_many(x, np.ones(5))
    assert at.t == 0
    assert len(learner(constant=constant).rows(x, np.ones(5))) == 5


# --- sensitivity ----------------------------------------------------------------------------------


def distance(of: LinUCB, one: tuple[Floats, float], other: tuple[Floats, float]) -> float:
    rows = of.rows(np.stack([one[0], other[0]]), [one[1], other[1]])
    return float(np.linalg.norm(rows[0] - rows[1]))


def widest_of(rows: Floats) -> float:
    return max(float(np.linalg.norm(rows - row, axis=1).max()) for row in rows)


@pytest.mark.parametrize("constant", [None, *CONSTANTS])
@pytest.mark.parametrize("dimension", [1, 2, 3, 9])
def test_no_two_users_of_a_learner_are_farther_apart_than_the_plan_thinks(
    dimension: int, constant: float | None
) -> None:
    """In the ball, on the sphere, and beyond it by rounding."""
    rng = np.random.default_rng(13)
    of = learner(dimension, constant=constant)
    parts = [
        with_constant(rng, constant, 500, dimension, length=length)
        for length in (None, 1, 1 + 1e-7)
    ]
    y = rng.choice([0.0, 1.0, 0.5], 1500)
    rows = of.rows(np.concatenate(parts), y)
    widest = widest_of(rows)
    assert widest <= WIDEST * (1 + 1e-12)
    assert widest > (0.9 * WIDEST if 1 < dimension < 9 else 0.3)
    assert Moments(dimension).sensitivity == pytest.approx(WIDEST, rel=1e-15)


@pytest.mark.parametrize("constant", [0.1, *CONSTANTS, 0.95])
def test_no_pair_of_two_features_and_rewards_is_farther_apart(constant: float) -> None:
    """All pairs of a grid, ends and beyond: (constant, v), with v and reward as they like."""
    most = math.sqrt((1 + 1e-7) ** 2 - constant**2)
    v, y = np.meshgrid(np.linspace(-most, most, 121), np.linspace(0, 1, 5))
    x = np.column_stack([np.full(v.size, constant), v.ravel()])
    widest = widest_of(learner(constant=constant).rows(x, y.ravel()))
    assert widest <= WIDEST * (1 + 1e-12)
    assert widest > 0.94 * WIDEST  # and no grid that is too narrow


def test_the_joint_sensitivity_is_reached() -> None:
    """Unit features at a cosine of -1/2 with the same reward."""
    of = learner(3)
    angles = np.linspace(0, np.pi, 721)  # of a quarter degree each
    first = np.array([1.0, 0.0, 0.0])
    around = [np.array([math.cos(a), math.sin(a), 0.0]) * (1 - 1e-12) for a in angles]
    same = [distance(of, (first, 1.0), (x, 1.0)) for x in around]
    opposite = [distance(of, (first, 1.0), (x, 0.0)) for x in around]
    assert max(same + opposite) <= WIDEST * (1 + 1e-12)
    assert max(same) == pytest.approx(WIDEST, rel=1e-9)
    assert angles[int(np.argmax(same))] == pytest.approx(math.radians(120))
    assert max(same) > 1.05 * 2  # a sensitivity of 2 would be caught


@pytest.mark.parametrize("constant", [0.1, *CONSTANTS, 0.95])
def test_the_joint_sensitivity_is_reached_with_a_constant(constant: float) -> None:
    """At a cosine of -1/2 with the same reward, or of 1/2 with opposite ones.

    As long as the constant is 1/2 at most when it is reported: two points of the sphere are then
    as far apart as that.
    """
    of, small = learner(3, constant=constant), min(constant, 0.5)
    room = math.sqrt(1 - constant**2)
    first = np.array([constant, room, 0.0])

    def farthest(cosine: float, reward: float) -> float:
        """The largest distance on the circle, which must be that at this cosine of reports."""
        right = math.acos(max(-1.0, (cosine - small**2) / (1 - small**2)))
        angles = np.array([right, *np.linspace(0, np.pi, 361)])
        around = np.column_stack(
            [np.full(362, constant), room * np.cos(angles), room * np.sin(angles)]
        )
        found = [distance(of, (first, 1.0), (x, reward)) for x in around]
        assert max(found) <= WIDEST * (1 + 1e-12)
        assert found[0] == pytest.approx(max(found), rel=1e-12)
        return found[0]

    assert farthest(-0.5, 1.0) == pytest.approx(WIDEST, rel=1e-9)
    assert farthest(0.5, 0.0) == pytest.approx(WIDEST, rel=1e-9)


# --- bad input ------------------------------------------------------------------------------------

HUGE = np.longdouble("1e4000")
BAD_CONTEXTS: dict[str, tuple[Any, str]] = {
    "another dimension": ([[0.1, 0.2, 0.3]], "(1, 3)"),
    "too long": ([[0.1, 0.2], [0.9, 0.9]], "1.272792"),
    "too long by little": ([[1 + 2e-6, 0.0]], "1.000002"),
    "NaN": ([[0.1, 0.2], [0.1, math.nan]], "nan"),
    "NaN before a good one": ([[math.nan, 0.1], [0.1, 0.2]], "nan"),
    "infinite": ([[0.1, math.inf]], "inf"),
    "infinite both ways": ([[-math.inf, math.inf]], "inf"),
    "words": ([["a", "b"]], "<U1"),
    "numbers as words": ([["0.1", "0.2"]], "<U3"),
    "ragged": ([[0.1, 0.2], [0.1]], ""),
    "nothing": ([], "(0,)"),
    "no features": ([[]], "(1, 0)"),
    "no arms": (np.zeros((3, 0, 2)), "(3, 0, 2)"),
    "one row": ([0.1, 0.2], "(2,)"),
    "a number": (0.3, "()"),
    "four axes": (np.zeros((1, 1, 1, 2)), "(1, 1, 1, 2)"),
    "None": (None, "object"),
    "None inside": ([[None, 0.1]], "object"),
    "complex": ([[0.1j, 0.1]], "complex"),
    "a square that overflows": ([[1e200, 0.0]], ""),
    "a float32 whose square overflows": (np.array([[1e30, 0.0]], np.float32), ""),
    "a number too large for a float": (np.array([[HUGE, 0.0]]), ""),
    "a large whole number": ([[10**400, 0]], ""),
}
BAD_FEATURES: dict[str, tuple[Any, str]] = {
    "another dimension": ([0.1, 0.2, 0.3], "3)"),
    "too long": ([0.9, 0.9], "1.272792"),
    "too long, as an array": (np.array([0.9, 0.9]), "1.272792"),
    "too long by little": (np.array([1 + 2e-6, 0.0]), "1.000002"),
    "NaN": ([0.1, math.nan], "nan"),
    "NaN, as an array": (np.array([math.nan, 0.1]), "nan"),
    "infinite": (np.array([0.1, -math.inf]), "inf"),
    "words": (["a", "b"], ""),
    "numbers as words": (["0.1", "0.2"], ""),
    "ragged": ([[0.1, 0.2], [0.1]], ""),
    "nothing": ([], "0)"),
    "a table": ([[0.1, 0.2]], "(1, 1, 2)"),
    "a number": (0.3, "(1,)"),
    "None": (None, ""),
    "None inside": ([None, 0.1], ""),
    "complex": ([0.1j, 0.1], ""),
    "a square that overflows": (np.array([1e200, 0.0]), "1e+200"),
    "a number too large for a float": (np.array([HUGE, 0.0]), ""),
    "a large whole number": ([10**400, 0], ""),
}
BAD_REWARDS: dict[str, tuple[Any, str]] = {
    "negative": (-0.1, "-0.1"),
    "too large": (1.5, "1.5"),
    "NaN": (math.nan, "nan"),
    "infinite": (math.inf, "inf"),
    "None": (None, "object"),
    "a word": ("1", "<U1"),
    "a list": ([0.5], "(1, 1)"),
    "ragged": ([[1.0], [1.0, 1.0]], ""),
    "complex": (1j, "complex"),
    "a large whole number": (10**400, ""),
}
GOOD = np.array([CONSTANT, 0.3])

Step = Callable[[Recommender], object]

# Thirteen users came before.
BAD_TABLES: dict[str, tuple[Any, Any, str]] = {
    "too many rewards": ([GOOD], [1.0, 1.0], "2 rewards"),
    "too few rewards": ([GOOD, GOOD], [1.0], "1 rewards"),
    "no rewards": ([GOOD], [], "0 rewards"),
    "one number for all rewards": ([GOOD], 1.0, "()"),
    "rewards of two axes": ([GOOD], [[1.0]], "(1, 1)"),
    "ragged rewards": ([GOOD, GOOD], [[1.0], [1.0, 1.0]], ""),
    "None for rewards": ([GOOD], None, "()"),
    "one user's features": (GOOD, [1.0], "(2,)"),
    "users of different lengths": ([[0.1, 0.2], [0.1]], [1.0, 1.0], ""),
    "the last of many is too long": ([GOOD] * 30 + [[1.0, 1.0]], [1.0] * 31, "user 44"),
    "the last of many has a bad reward": ([GOOD] * 31, [1.0] * 30 + [2.0], "user 44"),
    "more users than are left": ([GOOD] * 48, [1.0] * 48, "48 users after 13"),
}


def said(words: str) -> str | None:
    """What an error must match: these very words, if there are any."""
    return re.escape(words) if words else None


def recommend(contexts: Any) -> Step:
    return lambda at: at.recommend(contexts)


def update(features: Any, reward: Any) -> Step:
    return lambda at: at.update(features, reward)


def update_many(features: Any, rewards: Any) -> Step:
    return lambda at: at.update_many(features, rewards)


def bad_steps() -> Iterator[tuple[str, Step, str]]:
    """What a recommender must refuse, each as one call, and what it must say."""
    for name, (contexts, words) in BAD_CONTEXTS.items():
        yield f"recommend: {name}", recommend(contexts), words
    for name, (features, words) in BAD_FEATURES.items():
        yield f"update: {name}", update(features, 1.0), words
        yield f"update_many: {name}", update_many([features], [1.0]), words
    for name, (reward, words) in BAD_REWARDS.items():
        yield f"update: reward {name}", update(GOOD, reward), words
        yield f"update_many: reward {name}", update_many([GOOD], [reward]), words
    for name, (table, rewards, words) in BAD_TABLES.items():
        yield f"update_many: {name}", update_many(table, rewards), words


@cache
def untouched(constant: float | None = None) -> tuple[Policy | None, ...]:
    """The rules of a stream in which nothing went wrong, after 13 users and after each more."""
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:13], rewards[:13])
    rules = [at.policy]
    for x, y in zip(features[13:], rewards[13:], strict=True):
        at.update(x, float(y))
        rules.append(at.policy)
    return tuple(rules)


def assert_goes_on_after_13(at: Recommender, constant: float | None) -> None:
    """It has learnt from 13 users of the stream, and from the rest it learns as if untouched."""
    features, rewards = stream()
    assert at.t == 13
    assert_same_rule(at.policy, untouched(constant)[0])
    for x, y, rule in zip(features[13:], rewards[13:], untouched(constant)[1:], strict=True):
        at.update(x, float(y))
        assert_same_rule(at.policy, rule)
    assert at.t == 60


def has_the_constant(name: str) -> bool:
    """Whether what is wrong has nothing to do with the first feature."""
    return name.startswith("recommend") or "reward" in name or "users than" in name


@pytest.mark.parametrize(
    ("step", "words", "constant"),
    [
        pytest.param(step, words, constant, id=f"{name}{'' if constant is None else ', constant'}")
        for constant in (None, CONSTANT)
        for name, step, words in bad_steps()
        if constant is None or has_the_constant(name)
    ],
)
def test_a_bad_call_is_refused_and_leaves_nothing_behind(
    step: Step, words: str, constant: float | None
) -> None:
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:13], rewards[:13])  # a full batch, and four users of the next
    with pytest.raises(InvalidValue, match=said(words)):
        step(at)
    assert_goes_on_after_13(at, constant)


def test_a_user_after_the_horizon_is_refused() -> None:
    features, rewards = stream()
    at = recommender()
    at.update_many(features, rewards)
    rule = at.policy
    for step in (
        update(GOOD, 1.0),
        update(GOOD.tolist(), 1),
        update_many([GOOD], [1.0]),
        update_many([GOOD] * 100, [1.0] * 100),
    ):
        with pytest.raises(InvalidValue, match="users after 60 go beyond the horizon 60"):
            step(at)
        assert at.t == 60
        assert at.policy is rule
    at.update_many(np.empty((0, 2)), [])  # nobody at all is fine


@pytest.mark.parametrize("case", BAD_CONTEXTS)
def test_a_user_refuses_bad_contexts(case: str) -> None:
    contexts, words = BAD_CONTEXTS[case]
    at = user()
    for rule in (None, Policy(0, np.zeros(2), np.eye(2))):
        with pytest.raises(InvalidValue, match=said(words)):
            at.choose(rule, contexts)
    with pytest.raises(ProtocolViolation):
        at.report(1, 1.0)  # nothing was chosen


def test_what_may_be_chosen_may_be_reported() -> None:
    """Whoever took an arm is not told afterwards that its features are too long."""
    rng = np.random.default_rng(18)
    angles, lengths = rng.uniform(0, 2 * np.pi, 3000), 1 + rng.uniform(0, 2e-6, 3000)
    arms = np.column_stack([lengths * np.cos(angles), lengths * np.sin(angles)])
    accepted = 0
    for arm in [*arms, *arms.astype(np.float32)]:
        at = user()
        try:
            at.choose(None, arm[np.newaxis])
        except InvalidValue:
            continue
        accepted += 1
        assert len(at.report(1, 1.0)) == 2
    assert 1000 < accepted < 5000  # of 6,000, half of which are within the tolerance


BEYOND = pytest.mark.parametrize(
    ("constant", "off", "square"),
    [
        (math.sqrt(0.5), 0.0, 1 + 9e-7),
        (math.sqrt(0.5), -9e-7, 1.0),
        (0.9, 0.0, 1 + 1e-7),
        (0.9, 0.0, 1 + 9e-7),
        (math.sqrt(0.5), -9e-7, 1 + 9e-7),
        (0.99, 0.0, 1 + 1e-7),
    ],
)


def beyond(constant: float, off: float, square: float) -> Floats:
    """Features that are a little longer than 1, or whose constant is a little off."""
    return np.array([constant + off, math.sqrt(square - (constant + off) ** 2)])


@BEYOND
def test_what_may_be_chosen_with_a_constant_may_be_reported(
    constant: float, off: float, square: float
) -> None:
    """Scaling makes rounding errors larger: by 3 / (4 - 4 constant^2), if it is above 1/2."""
    at = user(constant=constant)
    at.choose(None, [beyond(constant, off, square)])
    assert len(at.report(1, 1.0)) == 2


@BEYOND
def test_a_user_is_refused_at_once_or_learnt_from(
    constant: float, off: float, square: float
) -> None:
    """One by one, and not when the batch is full: the others in it would be lost."""
    at, good = recommender(constant=constant), np.array([constant, 0.1])
    x, lowest = beyond(constant, off, square), small_plan().tree.lowest
    taken = 0
    for features in (good, x, *[good] * lowest):
        try:
            at.update(features, 1.0)
        except InvalidValue:
            assert features is x
        else:
            taken += 1
        assert at.t == taken
    assert at.policy is not None
    assert at.policy.t == lowest


def test_a_user_has_the_contexts_of_one() -> None:
    with pytest.raises(InvalidValue, match=re.escape("(5, 3, 2)")):
        user().choose(None, np.zeros((5, 3, 2)))


@pytest.mark.parametrize("case", BAD_REWARDS)
def test_a_user_refuses_a_bad_reward_and_may_try_again(case: str) -> None:
    reward, words = BAD_REWARDS[case]
    at = user()
    at.choose(None, [GOOD])
    with pytest.raises(InvalidValue, match=said(words)):
        at.report(1, reward)
    assert len(at.report(1, 0.5)) == 2


@pytest.mark.parametrize("t", [0, -1, 61, 1.5, "1", None, True], ids=repr)
def test_a_user_refuses_a_time_that_is_none(t: Any) -> None:
    at = user()
    at.choose(None, [GOOD])
    with pytest.raises(InvalidValue, match=re.escape(f"t={t!r}")):
        at.report(t, 1.0)


@pytest.mark.parametrize("arms", [2, 3, 6])
def test_a_user_refuses_a_rule_for_other_features(arms: int) -> None:
    rule = Policy(0, np.zeros(3), np.eye(3))
    with pytest.raises(InvalidValue, match="3"):
        user().choose(rule, np.full((arms, 2), 0.1))


@pytest.mark.parametrize("arms", [2, 4, 8])
def test_a_user_refuses_the_rules_of_many_runs(arms: int) -> None:
    rule = Policy(0, np.zeros((4, 2)), np.zeros((4, 2, 2)))
    with pytest.raises(InvalidValue, match=re.escape("(4, 2)")):
        user().choose(rule, np.full((arms, 2), 0.1))


@pytest.mark.parametrize("dimension", [1, 3])
def test_a_learner_of_another_dimension_than_the_plan_is_refused(dimension: int) -> None:
    for made in (
        lambda: BanditUser(small_plan(), learner(dimension), oh.seeded_random(1)),
        lambda: BanditServer(small_plan(), learner(dimension)),
    ):
        with pytest.raises(InvalidValue, match=f"moments:2 .* moments:{dimension}"):
            made()


@pytest.mark.parametrize(
    "constants", [Practical(9), Theory(dimension=9, horizon=60, entry_error=3.0)], ids=repr
)
def test_constants_of_another_dimension_than_the_plan_are_refused(constants: Constants) -> None:
    """They would make the shift too small for the noise, or too large."""
    with pytest.raises(InvalidValue, match="9"):
        Recommender(small_plan(), oh.seeded_random(1), constants=constants)


def test_a_plan_of_anything_but_moments_is_refused() -> None:
    bits = oh.Plan.best(100, 2, PRIVACY)
    with pytest.raises(InvalidValue, match="moments, not bit"):
        Recommender(bits, oh.seeded_random(1))
    for made in (
        lambda: BanditUser(bits, learner(), oh.seeded_random(1)),
        lambda: BanditServer(bits, learner()),
    ):
        with pytest.raises(InvalidValue, match="a plan for bit"):
            made()


@pytest.mark.parametrize(
    ("name", "value"),
    [("exploration", 0.0), ("exploration", math.nan), ("exploration", "1"), ("dimension", 0),
     ("dimension", 1.5), ("dimension", True)],
    ids=str,
)  # fmt: skip
def test_constants_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=name):
        Practical(**{"dimension": 2, name: value})


# --- the recommender ------------------------------------------------------------------------------


def fed(
    cuts: list[int], singles: bool, seed: int = 1, constant: float | None = None
) -> list[Policy | None]:
    """The rules after each part of the stream."""
    features, rewards = stream()
    at, rules = recommender(seed, constant), []
    for start, stop in itertools.pairwise([0, *cuts, 60]):
        if singles and stop - start <= 3:
            for place in range(start, stop):
                at.update(
                    features[place].tolist() if place % 2 else features[place], rewards[place]
                )
        else:
            at.update_many(features[start:stop], rewards[start:stop])
        assert at.t == stop
        rules.append(at.policy)
    return rules


@cache
def one_by_one(constant: float | None = None) -> tuple[Policy | None, ...]:
    """The rules after 0, 1, ... 60 users."""
    return (None, *fed(list(range(1, 60)), singles=True, constant=constant))


@given(
    st.lists(st.integers(0, 60), max_size=12).map(sorted),
    st.booleans(),
    st.sampled_from([None, CONSTANT]),
)
@settings(max_examples=60)
def test_any_split_of_the_stream_gives_the_same_rules(
    cuts: list[int], singles: bool, constant: float | None
) -> None:
    for stop, rule in zip([*cuts, 60], fed(cuts, singles, constant=constant), strict=True):
        assert_same_rule(rule, one_by_one(constant)[stop])


class OnlySingles(Recommender):
    """A recommender that never takes a closer look at one user."""

    def update_many(self, features: Any, rewards: Any) -> None:
        raise AssertionError("a closer look")


@pytest.mark.parametrize("constant", [None, 0.3, math.sqrt(0.5), 0.9, 0.99])
@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_features_of_norm_1_need_no_closer_look(ulps: int, constant: float | None) -> None:
    """But for rounding: and the rules are the same as after one."""
    rng = np.random.default_rng(24)
    x = with_constant(rng, constant, 60, 2, length=1 + ulps * 2.0**-52)
    squares = [float(of_one.dot(of_one)) for of_one in x]
    assert min(squares) > 1 - 1e-15
    assert max(squares) < 1 + 1e-15
    if ulps > 0:
        assert max(squares) > 1
    _, rewards = stream()
    quick = OnlySingles(small_plan(), oh.seeded_random(1), constant=constant)
    close = recommender(constant=constant)
    for t in range(60):
        quick.update(x[t], float(rewards[t]))
        close.update_many(x[t : t + 1], rewards[t : t + 1])
        assert quick.t == close.t == t + 1
        assert_same_rule(quick.policy, close.policy)
    assert quick.policy is not None
    assert quick.policy.t == 54
    with pytest.raises(AssertionError, match="a closer look"):
        OnlySingles(small_plan(), oh.seeded_random(1)).update([0.8, 0.1], 1.0)


def test_another_seed_gives_other_rules() -> None:
    ours, other = one_by_one()[-1], fed([], singles=False, seed=2)[-1]
    assert ours is not None
    assert other is not None
    assert np.abs(ours.theta - other.theta).max() > 1e-3


def test_a_rule_changes_only_when_a_lowest_batch_is_full() -> None:
    lowest = small_plan().tree.lowest
    changes = [t for t in range(1, 61) if one_by_one()[t] is not one_by_one()[t - 1]]
    assert changes == list(range(lowest, 61, lowest))
    for t in changes:
        rule = one_by_one()[t]
        assert rule is not None
        assert rule.t == t


@PLAIN_OR_CONSTANT
def test_the_rule_is_that_of_the_private_sums(constant: float | None) -> None:
    """Against a sum over the same plan with the same chance."""
    features, rewards = stream()
    of = learner(constant=constant)
    reported, learnt = by_hand(features, constant), 2 * rewards - 1 if constant else rewards
    _, chance = oh.seeded_random(1).spawn(2)
    total = oh.ContinualSum(small_plan(), chance)
    for t in range(60):
        total.update([*reported[t], learnt[t]])
        if (t + 1) % small_plan().tree.lowest == 0:
            expected = of.policy(t + 1, total.estimate.value, total.estimate.std)
            assert_same_rule(one_by_one(constant)[t + 1], expected)


def trained(users: int = 27, constant: float | None = None) -> Recommender:
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:users], rewards[:users])
    return at


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@PLAIN_OR_CONSTANT
def test_many_users_are_recommended_what_each_would_be(kind: Any, constant: float | None) -> None:
    at = trained(constant=constant)
    contexts = with_constant(np.random.default_rng(14), constant, 50, 5, 2).astype(kind)
    arms = at.recommend(contexts)
    assert arms.shape == (50,)
    assert arms.tolist() == [at.recommend(of_one) for of_one in contexts]
    assert arms.tolist() == [at.recommend(of_one.tolist()) for of_one in contexts]
    assert len(set(arms.tolist())) > 1
    assert at.policy is not None
    assert arms.tolist() == naive_scores(
        at.policy.theta, at.policy.width, contexts.astype(np.float64)
    ).argmax(axis=1).tolist()  # fmt: skip
    assert isinstance(at.recommend(contexts[0]), int)
    assert at.t == 27  # asking is not learning


ROUNDS, ARMS = 6000, 4


def first_arms(at: Recommender, *, together: bool) -> list[int]:
    contexts = np.tile(in_ball(np.random.default_rng(15), ARMS, 2), (ROUNDS, 1, 1))
    if together:
        return [int(arm) for arm in at.recommend(contexts)]
    return [at.recommend(of_one) for of_one in contexts]


@pytest.mark.parametrize("together", [True, False])
def test_before_the_first_release_every_arm_is_as_likely(together: bool) -> None:
    at = recommender()
    at.update_many(*(part[:8] for part in stream()))  # one user short of a batch
    assert at.policy is None
    assert_uniform_over(first_arms(at, together=together), range(ARMS), discrepancy=0.08)


def test_a_rule_that_knows_nothing_instead_of_chance_would_be_caught() -> None:
    at = recommender()
    at.policy = Policy(0, np.zeros(2), np.zeros((2, 2)))
    with pytest.raises(AssertionError):
        assert_uniform_over(first_arms(at, together=True), range(ARMS), discrepancy=0.08)


def test_an_arm_left_out_would_be_caught() -> None:
    at = recommender()
    contexts = np.tile(in_ball(np.random.default_rng(15), ARMS - 1, 2), (ROUNDS, 1, 1))
    with pytest.raises(AssertionError):
        assert_uniform_over(map(int, at.recommend(contexts)), range(ARMS), discrepancy=0.08)


# --- both sides of the boundary -------------------------------------------------------------------


@dataclass
class Night:
    """What happened over a whole plan."""

    rules: list[Policy | None]
    sums: dict[Node, Floats]
    totals: list[Floats]
    sent: list[tuple[Node, Any]]
    before: list[Policy | None]


def arms_of(t: int) -> Floats:
    rng = np.random.default_rng([16, t])
    return np.column_stack([np.full(3, 0.9), rng.uniform(-0.4, 0.4, 3)])


@cache
def played(seed: int, secure: bool = False, constants: Theory | Practical | None = None) -> Night:
    """Algorithm 4 with shufflers that shuffle, one to a level."""
    plan = small_plan()
    of = LinUCB(constants or Practical(2))
    chance = oh.secure_random() if secure else oh.seeded_random(seed)
    rewards = np.random.default_rng([17, seed])
    server = BanditServer(plan, of)
    shufflers = [Shuffler() for _ in range(plan.tree.levels)]
    night = Night([], {}, [], [], [])
    total = np.zeros(plan.values.dimension)
    for t in range(1, plan.horizon + 1):
        arms, rule = arms_of(t), server.policy
        night.before.append(rule)
        device = BanditUser(plan, of, chance)
        arm = device.choose(rule, arms)
        reward = float(rewards.random() < 0.5 + arms[arm, 1])
        total = total + of.rows(arms[arm][np.newaxis], [reward])[0]
        for node, messages in device.report(t, reward):
            shuffler = shufflers[node.level - 1]
            if node.start == t - 1:
                shuffler.activate(plan.mechanism(node))
            shuffler.send(t, messages)
            night.sent.append((node, messages))
        for node in plan.tree.closes(t):
            shuffled = shufflers[node.level - 1].release(chance)
            night.sums[node] = np.asarray(plan.mechanism(node).analyze(shuffled))
            server.receive(node, shuffled)
        night.rules.append(server.policy)
        night.totals.append(total)
    return night


def node_estimate(plan: oh.Plan, sums: dict[Node, Floats], node: Node) -> tuple[Floats, float]:
    """A batch's own sum and its children's, by the inverse of their variances."""
    own = plan.mechanism(node).variance
    if node.level == 1:
        return sums[node], own
    inside = [n for n in sums if n.level == node.level - 1 and node.start <= n.start < node.stop]
    assert sum(n.size for n in inside) == node.size
    parts = [node_estimate(plan, sums, child) for child in inside]
    below = sum(variance for _, variance in parts)
    weight = below / (own + below)
    value = weight * sums[node] + (1 - weight) * sum(value for value, _ in parts)
    return value, weight**2 * own + (1 - weight) ** 2 * below


def released(plan: oh.Plan, sums: dict[Node, Floats], t: int) -> tuple[Floats, float]:
    """The sum of the first t users by Definition 3.1, and its standard deviation."""
    parts = [node_estimate(plan, sums, node) for node in plan.tree.cover(t)]
    assert sum(node.size for node in plan.tree.cover(t)) == t
    return np.sum([value for value, _ in parts], axis=0), math.sqrt(sum(v for _, v in parts))


THEORY = Theory(dimension=2, horizon=60, entry_error=4.0)


@pytest.mark.parametrize(
    "constants",
    [None, Practical(2, 0.9), THEORY],
    ids=["practical", "practical, constant", "theory"],
)
@pytest.mark.parametrize("secure", [False, True], ids=["seeded", "secure"])
def test_after_every_batch_the_rule_is_that_of_the_analyzed_sums(
    secure: bool, constants: Theory | Practical | None
) -> None:
    plan, night = small_plan(), played(1, secure, constants)
    of, lowest = LinUCB(constants or Practical(2)), plan.tree.lowest
    assert night.rules[: lowest - 1] == [None] * (lowest - 1)
    for t in range(lowest, plan.horizon + 1):
        covered = t - t % lowest
        total, std = released(plan, night.sums, covered)
        assert_same_rule(night.rules[t - 1], of.policy(covered, total, std))
        if t % lowest:
            assert night.rules[t - 1] is night.rules[t - 2]


@pytest.mark.parametrize("constants", [THEORY, Practical(2, 0.9)], ids=["theory", "constant"])
def test_the_rules_of_other_constants_differ(constants: Theory | Practical) -> None:
    one, other = played(1).rules[-1], played(1, False, constants).rules[-1]
    assert one is not None
    assert other is not None
    with pytest.raises(AssertionError):
        assert_same_rule(one, other)


def errors_in_stds(night: Night, forgotten: int = 0) -> Floats:
    """At every release, how far the sums are from the truth; the first `forgotten` users' lost."""
    plan, found = small_plan(), []
    for t in range(plan.tree.lowest, plan.horizon + 1, plan.tree.lowest):
        total, std = released(plan, night.sums, t)
        lost = night.totals[forgotten - 1] if forgotten else 0.0
        found.append((total - (night.totals[t - 1] - lost)) / std)
    return np.array(found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_sums_are_within_six_standard_deviations_of_the_truth(seed: int) -> None:
    """Of 30 numbers; sub-Gaussian noise is beyond with a probability of at most 1e-6."""
    errors = errors_in_stds(played(seed))
    assert errors.shape == (6, 5)
    assert np.abs(errors).max() < 6
    assert np.abs(errors).max() > 0.5  # there is noise
    lost = errors_in_stds(played(seed), forgotten=small_plan().tree.lowest)
    assert np.abs(lost).max() > 6  # a batch that is not counted is seen


def test_messages_are_whole_numbers_of_the_shape_that_the_mechanism_says() -> None:
    plan, night = small_plan(), played(1)
    senders: dict[Node, int] = {}
    for node, messages in night.sent:
        mechanism = plan.mechanism(node)
        assert isinstance(mechanism, SharesSum)
        assert messages.shape == (1, mechanism.messages_per_user)
        assert messages.dtype.kind == "u"
        assert int(messages.max()) < 1 << mechanism.message_bits
        senders[node] = senders.get(node, 0) + 1
    lowest, upper = plan.tree.lowest, plan.tree.sizes(2)[0]
    expected = {Node(1, s, s + lowest): lowest for s in range(0, 54, lowest)}
    expected |= {Node(2, s, s + upper): upper for s in range(0, 60 - upper + 1, upper)}
    assert senders == expected
    seen = np.concatenate([messages.ravel() for _, messages in night.sent])
    assert len(np.unique(seen)) > 1000  # shares, and not values


def test_a_user_sends_other_messages_each_time() -> None:
    sent = []
    for seed in (1, 2):
        at = user(seed)
        at.choose(None, [GOOD])
        sent.append(at.report(1, 1.0))
    for (node, one), (same, other) in zip(*sent, strict=True):
        assert node == same
        assert not np.array_equal(one, other)


def test_a_server_is_given_shuffled_batches_and_nothing_else() -> None:
    """A batch of zeros for shares is as good as any: no value is ever asked for."""
    plan, of = small_plan(), learner()
    node = Node(1, 0, plan.tree.lowest)
    mechanism = plan.mechanism(node)
    assert isinstance(mechanism, SharesSum)
    labels = np.repeat(np.arange(5, dtype=np.uint64), mechanism.size * mechanism.shares)
    zeros = Shuffled(labels << np.uint64(mechanism.modulus_bits))
    server = BanditServer(plan, of)
    assert server.policy is None
    server.receive(node, zeros)
    sums = SumServer(plan)
    sums.receive(node, zeros)
    estimate = sums.estimate(node.stop)
    assert_same_rule(server.policy, of.policy(node.stop, estimate.value, estimate.std))


def test_batches_come_in_order_and_all_that_close_together_before_a_rule() -> None:
    plan, night = small_plan(), played(1)
    server = BanditServer(plan, learner())
    batches = {node: shuffled_anew(plan, night, node) for node in night.sums}
    first, second, above = sorted(n for n in batches if n.stop <= 18)
    with pytest.raises(ProtocolViolation, match="due"):
        server.receive(second, batches[second])
    server.receive(first, batches[first])
    rule = server.policy
    assert rule is not None
    with pytest.raises(ProtocolViolation, match="due"):
        server.receive(first, batches[first])
    server.receive(second, batches[second])
    with pytest.raises(ProtocolViolation, match="due"):
        _ = server.policy  # the batch above is full, too
    server.receive(above, batches[above])
    assert server.policy is not None
    assert server.policy.t == 18


def shuffled_anew(plan: oh.Plan, night: Night, node: Node) -> Shuffled:
    messages = np.concatenate([m.ravel() for n, m in night.sent if n == node])
    assert len(messages) == node.size * plan.mechanism(node).messages_per_user
    return Shuffled(oh.seeded_random(5).permute(messages))


def test_a_user_chooses_before_it_reports_and_reports_once() -> None:
    at = user()
    with pytest.raises(ProtocolViolation, match="chooses before it reports"):
        at.report(1, 1.0)
    at.choose(None, [GOOD])
    assert len(at.report(1, 1.0)) == 2
    with pytest.raises(ProtocolViolation, match="reports once"):
        at.report(1, 1.0)
    with pytest.raises(ProtocolViolation, match="reports once"):
        at.report(2, 1.0)


def test_a_user_takes_the_arm_of_the_rule_and_any_arm_without_one() -> None:
    rule = Policy(9, np.array([0.0, 1.0]), 0.01 * np.eye(2))
    arms = np.array([[0.9, -0.3], [0.9, 0.4], [0.9, 0.0]])
    assert {user(seed).choose(rule, arms) for seed in range(20)} == {1}
    at = user()
    drawn = [at.choose(None, arms) for _ in range(ROUNDS)]
    assert_uniform_over(drawn, range(3), discrepancy=0.08)
    with pytest.raises(AssertionError):
        assert_uniform_over([at.choose(rule, arms) for _ in range(ROUNDS)], range(3),
                            discrepancy=0.08)  # fmt: skip


def test_users_report_the_arm_that_they_took() -> None:
    """With next to no noise on the far side: a batch of one arm adds up to that arm's moments."""
    plan, of = small_plan(), learner()
    arms = np.array([[0.9, -0.4], [0.9, 0.4]])
    for arm in (0, 1):
        rule = Policy(1, arms[arm] - arms[1 - arm], np.zeros((2, 2)))
        node, chance = Node(2, 0, 18), oh.seeded_random(6)
        sent = []
        for t in range(1, 19):
            device = BanditUser(plan, of, chance)
            assert device.choose(rule, arms) == arm
            sent += [m for n, m in device.report(t, 1.0) if n == node]
        mechanism = plan.mechanism(node)
        total = mechanism.analyze(Shuffled(np.concatenate([m.ravel() for m in sent])))
        off = np.abs(total - 18 * of.rows(arms[[arm]], [1.0])[0]) / math.sqrt(mechanism.variance)
        assert off.max() < 6
        other = np.abs(total - 18 * of.rows(arms[[1 - arm]], [1.0])[0])
        assert other.max() / math.sqrt(mechanism.variance) > 6


# --- plans ----------------------------------------------------------------------------------------


@cache
def regret_plan(
    horizon: int = 10_000, shufflers: int = 4, dimension: int = 3, users_per_std: float = 8.0
) -> oh.Plan:
    return plan_for_regret(horizon, shufflers, PRIVACY, dimension, users_per_std=users_per_std)


def cost(plan: oh.Plan, users_per_std: float = 8.0) -> float:
    """In users: the root mean square of the noise, at so many each, and of those who wait."""
    assert isinstance(plan.values, Moments)
    t = np.arange(1, plan.horizon + 1)
    noise = math.sqrt(float(np.mean(plan.noise_variance(t))))
    waiting = math.sqrt(float(np.mean((t % plan.tree.lowest) ** 2.0)))
    return users_per_std * math.sqrt(plan.values.features) * noise + waiting


def test_the_dearer_noise_is_the_larger_are_the_batches() -> None:
    prices = (0.25, 1.0, 4.0, 8.0, 16.0, 64.0)
    plans = [regret_plan(users_per_std=price) for price in prices]
    lowest = [plan.tree.lowest for plan in plans]
    assert lowest == sorted(lowest)
    assert lowest[-1] > 10 * lowest[0]
    for price, plan in zip(prices, plans, strict=True):
        # At its own price, no other of these plans is better.
        assert cost(plan, price) <= 1.01 * min(cost(other, price) for other in plans)


@pytest.mark.parametrize("dimension", [2, 9])
def test_another_shuffler_is_never_worse(dimension: int) -> None:
    costs = [cost(regret_plan(10_000, shufflers, dimension)) for shufflers in range(1, 6)]
    for more, fewer in itertools.pairwise(reversed(costs)):
        assert more <= 1.001 * fewer
    assert costs[3] < 0.85 * costs[0]


def one_level_costs(plan: oh.Plan) -> dict[int, float]:
    """By the size of a batch, the cost of a tree of one level: any has the noise of this one."""
    t, variance = np.arange(1, plan.horizon + 1), plan.mechanisms[0][0].variance
    return {
        size: 8 * math.sqrt(3) * math.sqrt(variance * float(np.mean(t // size)))
        + math.sqrt(float(np.mean((t % size) ** 2.0)))
        for size in range(1, plan.horizon // 2, 3)
    }


def test_one_level_has_the_best_of_all_batch_sizes() -> None:
    plan = regret_plan(shufflers=1)
    assert plan.tree.levels == 1
    costs = one_level_costs(plan)
    assert cost(plan) <= 1.01 * min(costs.values())
    assert min(costs[size] for size in costs if size < plan.tree.lowest / 2) > 1.1 * cost(plan)


@pytest.mark.parametrize("dimension", [2, 9])
def test_the_plan_of_a_counter_costs_a_learner_more(dimension: int) -> None:
    counter = oh.Plan.best(
        10_000, 4, PRIVACY, values=Moments(dimension), mechanism="shares", tree="regular"
    )
    plan = regret_plan(dimension=dimension)
    assert cost(counter) > 1.1 * cost(plan)
    assert counter.tree.lowest < plan.tree.lowest / 4
    assert counter.rms_error < plan.rms_error


def all_of(plan: oh.Plan) -> list[Any]:
    return [mechanism for of_level in plan.mechanisms for mechanism in of_level]


def test_unless_told_otherwise_values_are_shared_over_a_regular_tree() -> None:
    plan = regret_plan()
    assert isinstance(plan.tree, RegularTree)
    assert all(isinstance(mechanism, SharesSum) for mechanism in all_of(plan))
    assert (plan.values, plan.horizon, plan.shufflers) == (Moments(3), 10_000, 4)
    assert (plan.privacy, plan.honest, plan.reports) == (PRIVACY, 1.0, 1)


def test_unless_told_otherwise_noise_costs_five_users_a_unit() -> None:
    usual = plan_for_regret(10_000, 4, PRIVACY, 3)
    assert usual == regret_plan(users_per_std=5.0)
    assert usual != regret_plan(users_per_std=8.0)


def test_other_options_are_those_of_any_plan() -> None:
    plan = regret_plan(2000, 2)
    path = plan_for_regret(2000, 2, PRIVACY, 3, tree="path")
    assert isinstance(path.tree, PathTree)
    coins = plan_for_regret(2000, 2, PRIVACY, 3, mechanism="coins")
    assert all(isinstance(mechanism, CoinSum) for mechanism in all_of(coins))
    half = plan_for_regret(2000, 2, PRIVACY, 3, honest=0.5)
    assert half.honest == 0.5
    assert half.mechanisms[0][0].variance > 1.5 * plan.mechanisms[0][0].variance
    twice = plan_for_regret(2000, 2, PRIVACY, 3, reports=2)
    assert twice.reports == 2
    assert twice.mechanisms[0][0].variance > 3 * plan.mechanisms[0][0].variance
    for other in (plan, path, coins, half, twice):
        assert other.delta_spent <= PRIVACY.delta


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"error": 3.0}, "error="),
        ({"error": 3.0, "delta": 1e-6}, "error="),
        ({"users_per_std": 0.0}, "users_per_std=0"),
        ({"users_per_std": -8}, "users_per_std=-8"),
        ({"users_per_std": math.nan}, "users_per_std=nan"),
        ({"users_per_std": math.inf}, "users_per_std=inf"),
        ({"users_per_std": "8"}, "users_per_std='8'"),
        ({"dimension": 0}, "features=0"),
        ({"dimension": 1.5}, "features=1.5"),
        ({"dimension": True}, "features=True"),
        ({"dimension": "3"}, "features='3'"),
        ({"tree": "oak"}, "oak"),
        ({"mechanism": "oak"}, "oak"),
        ({"honest": 0.0}, "honest=0"),
        ({"horizon": 1}, "horizon=1"),
        ({"shufflers": 0}, "shufflers=0"),
    ],
    ids=str,
)
def test_what_no_plan_can_be_made_for_is_refused(options: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"horizon": 1000, "shufflers": 2, "privacy": PRIVACY, "dimension": 3}
    with pytest.raises(InvalidValue, match=re.escape(words)):
        plan_for_regret(**(asked | options))


def test_accuracy_first_is_not_about_regret() -> None:
    nothing: Any = None
    with pytest.raises(InvalidValue, match="error=3.0 is not what Delay"):
        plan_for_regret(1000, 2, nothing, 3, error=3.0, delta=1e-6)


# --- the privacy of vector and matrix together ----------------------------------------------------


def coin_law(parts: list[dict[str, Any]], spared: float = 1.0) -> Floats:
    """The law of printed coins, but for outcomes ten standard deviations out."""
    law = np.ones(1)
    for part in parts:
        trials = int(part["trials"] * spared)
        half = 10 * math.sqrt(trials * part["probability"] * (1 - part["probability"]))
        middle = trials * part["probability"]
        points = np.arange(max(0, math.floor(middle - half)), min(trials, math.ceil(middle + half)))
        law = np.convolve(law, stats.binom.pmf(points, trials, part["probability"]))
    return np.asarray(law / law.sum())


def steepest(law: Floats, largest: int, excepted: float) -> float:
    """The smallest c for which X + s is no easier to tell from X than N(c s, 1) from N(0, 1).

    For all shifts s up to the largest and all thresholds: a test that says "moved" above x is
    wrong with P[X > x] and P[X + s <= x], where all but an excepted part of X is looked at.
    """
    still = np.append(np.cumsum(law[:0:-1])[::-1], 0.0) / (1 - excepted)
    moved = np.cumsum(law) / (1 - excepted)
    on_still = np.where(still < 1, -ndtri(np.minimum(still, 1)), -np.inf)
    on_moved = np.where(moved < 1, ndtri(np.minimum(moved, 1)), np.inf)
    assert still[largest] >= 1  # what is left out of the law would be excepted anyway
    assert moved[-largest - 1] >= 1
    return max(
        float(np.max(on_still[s:-1] - on_moved[: -s - 1])) / s for s in range(1, largest + 1)
    )


@cache
def joint_delta(plan: oh.Plan, spared: float = 1.0, sensitivity: float = WIDEST) -> float:
    """The guarantee from what is printed: all levels, and all coordinates in one norm."""
    summary = plan.summary()
    features = int(summary["values"].removeprefix("moments:"))
    coordinates = features + features * (features + 1) // 2
    excepted = 0.01 * summary["delta"] / (coordinates * len(summary["levels"]))
    square = 0.0
    for row in summary["levels"]:
        assert row["unit"] == pytest.approx(2 / row["steps"])  # x y goes from -1 to 1
        norm = sensitivity / row["unit"] + math.sqrt(coordinates)
        square += (norm * steepest(coin_law(row["noise"], spared), row["steps"], excepted)) ** 2
    told = gaussian_delta(math.sqrt(square), summary["epsilon"])
    return told + 0.01 * float(summary["delta"]) + leaked(summary)


JOINT = [(10_000, 3), (100_000, 9)]


@pytest.mark.parametrize(("horizon", "dimension"), JOINT)
def test_vector_and_matrix_of_all_levels_are_within_the_budget(
    horizon: int, dimension: int
) -> None:
    plan = regret_plan(horizon, 4, dimension)
    assert len(plan.summary()["levels"]) == plan.tree.levels == 4  # one size a level
    assert joint_delta(plan) <= PRIVACY.delta
    assert joint_delta(plan) == pytest.approx(plan.delta_spent, rel=0.02)


@pytest.mark.parametrize(("horizon", "dimension"), JOINT[:1])
def test_a_tenth_less_noise_would_be_over_the_budget(horizon: int, dimension: int) -> None:
    assert joint_delta(regret_plan(horizon, 4, dimension), spared=0.81) > 2 * PRIVACY.delta


def test_two_vectors_of_norm_one_would_be_over_the_budget() -> None:
    """What a user would need if vector and matrix had no joint sensitivity."""
    plan = regret_plan(*JOINT[0][:1], 4, JOINT[0][1])
    assert joint_delta(plan, sensitivity=2 * math.sqrt(2)) > 10 * PRIVACY.delta


def told_apart(plan: oh.Plan, epsilon: float) -> float:
    """The delta of two given users over all levels, by dp-accounting: no bound is used."""
    ends = Moments(3).opposites(np.array([0, 1], np.uint8))
    composed: Any = None
    for row in plan.summary()["levels"]:
        law = coin_law(row["noise"])
        kept = {i: math.log(p) for i, p in enumerate(law) if p > 1e-15}
        for shift in np.rint(np.abs(ends[1] - ends[0]) / row["unit"]).astype(int).tolist():
            if shift:
                loss = privacy_loss_distribution.from_two_probability_mass_functions(
                    kept,
                    {i + shift: log for i, log in kept.items()},
                    pessimistic_estimate=False,
                    value_discretization_interval=1e-3,
                    symmetric=False,
                )
                composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_delta_for_epsilon(epsilon))


def test_the_two_users_that_differ_most_are_hardly_better_hidden_than_the_budget_says() -> None:
    """No noise is wasted: what separates the two is the allowance for rounding."""
    plan = regret_plan(2000, 2)
    truth = told_apart(plan, PRIVACY.epsilon)
    assert truth <= plan.delta_spent
    assert truth > 0.3 * plan.delta_spent


def test_the_guarantee_of_the_plan_holds_for_its_file() -> None:
    plan = regret_plan()
    assert oh.Plan.from_json(plan.to_json()) == plan
    assert replace(plan, honest=0.8).delta_spent > PRIVACY.delta
