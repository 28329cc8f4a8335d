"""What users report to a learner: rewards, features with a constant, and how far apart two are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.bandits import LinUCB, Practical
from overhand.model import Floats
from overhand.values import RegressionStatistics
from support.learners import (
    CONSTANTS,
    WIDEST,
    Bare,
    by_hand,
    in_ball,
    learner,
    table,
    with_constant,
)

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
    expected = RegressionStatistics(3).rows(np.column_stack([scaled, learnt]))
    np.testing.assert_allclose(of.rows(x, y), expected, rtol=1e-12, atol=1e-15)
    assert of.moments == RegressionStatistics(3)
    plain = RegressionStatistics(3).rows(np.column_stack([x, y]))
    assert np.array_equal(learner(3).rows(x, y), plain)
    assert learner(3).moments == RegressionStatistics(3)
    # Neither is done without the other.
    for other in (np.column_stack([scaled, y]), np.column_stack([x, learnt])):
        assert (
            np.abs(expected - RegressionStatistics(3).rows(other)).max() > 0.05
        ) or constant <= 0.5
    assert np.abs(expected - plain).max() > 0.1


@pytest.mark.parametrize(
    "rewards", [[0, 1, 1], [False, True, True], np.array([0, 1, 1], np.uint8)], ids=repr
)
@pytest.mark.parametrize(("constant", "lowest"), [(None, 0.0), (0.4, -1.0)])
def test_rewards_of_any_numeric_type_are_read(
    rewards: Any, constant: float | None, lowest: float
) -> None:
    x, _ = table(2, 3, constant=constant)
    expected = RegressionStatistics(2).rows(np.column_stack([x, [lowest, 1.0, 1.0]]))
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
    assert RegressionStatistics(dimension).sensitivity.norm == pytest.approx(WIDEST, rel=1e-15)


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
