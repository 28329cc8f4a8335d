"""Learners for tests: a small plan, streams of users, and policies written out once more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import overhand as oh
from overhand.bandits import LinUCB, Policy, Practical, Recommender
from overhand.lab.regret import Field
from overhand.model import Floats, Messages, Node
from overhand.randomness import Random

LOOSE = oh.Privacy(20.0, 1e-6)
WIDEST = 3 / math.sqrt(2)
CONSTANT = 0.8
"""The first feature of the arms of a stream."""
CONSTANTS = [0.3, 0.5, math.sqrt(0.5), 0.9]
GOOD = np.array([CONSTANT, 0.3])
ROUNDS = 6000
"""Draws of an arm: enough to see that the odds are uneven by 0.08."""


@cache
def small_plan() -> oh.Plan:
    """Two levels of shares over sixty users, and little noise."""
    plan = Field(horizon=60, shufflers=2, privacy=LOOSE, dimension=2).plan(degrees=(9, 2))
    assert plan.horizon % plan.tree.lowest  # so that some users are never in a full batch
    return plan


def learner(dimension: int = 2, **options: Any) -> LinUCB:
    return LinUCB(Practical(dimension, **options))


def recommender(seed: int = 1, constant: float | None = None) -> Recommender:
    return Recommender(small_plan(), oh.seeded_random(seed), constant=constant)


def report(
    plan: oh.Plan, of: LinUCB, t: int, features: Floats, reward: float, random: Random
) -> list[tuple[Node, Messages]]:
    """Step 5 of Algorithm 4: the t-th user's messages for every batch that it is in."""
    rows = of.rows(features[np.newaxis], [reward], first=t - 1)
    return [(node, plan.mechanism(node).encode_rows(rows, random)) for node in plan.tree.joins(t)]


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


def assert_same_policy(got: Policy | None, expected: Policy | None) -> None:
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


def naive_score(theta: Floats, width: Floats, x: Floats) -> float:
    mean = sum(float(theta[i]) * float(x[i]) for i in range(len(x)))
    along = [sum(float(width[i, j]) * float(x[i]) for i in range(len(x))) for j in range(len(x))]
    return mean + math.sqrt(sum(a * a for a in along))


def naive_scores(theta: Floats, width: Floats, arms: Floats) -> Floats:
    flat = [naive_score(theta, width, x) for x in arms.reshape(-1, arms.shape[-1])]
    return np.array(flat).reshape(arms.shape[:-1])


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
