"""Small plans for every kind of value, and what their users hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.mechanisms import CoinSum
from overhand.model import Floats
from overhand.noise import Coins
from overhand.randomness import HALF
from overhand.values import (
    BITS,
    Grouped,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.sampling import samples_for
from support.small_plans import PRIVACY, REGULAR, WIDE

SIDE = math.sqrt(0.5)

# Every kind, and what a user may hold such that all coordinates are whole numbers of half widths.
# (Bins are a histogram once values are checked, and groups of bits are groups without rounding.)
WHOLE: list[tuple[Values, list[Any]]] = [
    (BITS, [0, 1]),
    (Reals(-2.0, 5.0), [-2.0, 1.5, 5.0]),
    (Vectors(2), [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]),
    (
        SymmetricMatrices(2),
        [np.diag([1.0, 0.0]), np.diag([0.0, -1.0]), [[0.0, SIDE], [SIDE, 0.0]]],
    ),
    (RegressionStatistics(1), [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),
    (Histogram(4), [0, 1, 2, 3]),
    (Histogram(["like", "love", "wow"]), ["like", "love", "wow"]),
    (
        Grouped(["DE", "FR"], of=Reals(-2.0, 5.0)),
        [("DE", -2.0), ("DE", 5.0), ("FR", 1.5), ("FR", -2.0), ("FR", 5.0)],
    ),
]
KINDS = [pytest.param(values, choices, id=values.spec) for values, choices in WHOLE]
ROUNDED = [pytest.param(v, choices, id=v.spec) for v, choices in WHOLE if not v.is_whole]
TREES = [pytest.param(REGULAR, id="regular"), pytest.param(WIDE, id="wide")]


def kind_plan(
    tree: oh.RegularTree,
    values: Values,
    *,
    noise_bits: int = 2,
    steps: int | tuple[int, ...] = 2,
    combine: bool = False,
    hold: bool = False,
) -> oh.Plan:
    """A plan of fair coins for any kind of value, with so many steps at all levels or at each."""
    by_level = steps if isinstance(steps, tuple) else (steps,) * tree.levels
    coins = Coins(noise_bits, HALF, opposed=noise_bits % 2 == 0)
    mechanisms = tuple(
        oh.CoinSum(size, coins, values, 1 if values.is_whole else level_steps)
        for size, level_steps in zip(tree.sizes, by_level, strict=True)
    )
    return oh.Plan(tree, mechanisms, PRIVACY, tree.levels, combine=combine, hold=hold)


def chosen(choices: list[Any], users: int, seed: int = 1) -> list[Any]:
    return [choices[i] for i in np.random.default_rng(seed).integers(0, len(choices), users)]


def shrunk(values: Values, choices: list[Any], users: int, seed: int = 1) -> list[Any]:
    """Values between the steps, if there is a between."""
    raw = chosen(choices, users, seed)
    if values.is_whole:
        return raw
    factors = np.random.default_rng(seed + 1).uniform(0, 1, users).tolist()
    if isinstance(values, Grouped):
        return [(label, n * factor) for (label, n), factor in zip(raw, factors, strict=True)]
    return [np.multiply(value, factor) for value, factor in zip(raw, factors, strict=True)]


def points(values: Values, raw: list[Any]) -> Floats:
    """One user a row, one coordinate a column, for numbers too."""
    rows = values.coordinates(values.rows(raw))
    return rows.reshape(len(raw), values.dimension).astype(np.float64)


def as_sum(values: Values, coordinates: Floats) -> Any:
    """A number, or an array."""
    return float(coordinates[0]) if values.is_scalar else coordinates


def fed(plan: oh.Plan, raw: list[Any], seed: int = 1) -> oh.ContinualSum:
    total = oh.ContinualSum(plan, oh.seeded_random(seed))
    total.update_many(raw)
    return total


def expected_sum(plan: oh.Plan, raw: list[Any], start: int, stop: int) -> tuple[Any, int]:
    """Without noise: the sum of the users in full batches, and how many others there are."""
    nodes = list(plan.tree.cover(start, stop))
    inside = points(plan.values, raw)[nodes[0].start : nodes[-1].stop] if nodes else np.zeros(0)
    rest = stop - start - sum(node.size for node in nodes)
    total = inside.reshape(-1, plan.values.dimension).sum(axis=0)
    return as_sum(plan.values, total) + plan.imputed * rest, rest


def coin_sum(plan: oh.Plan, node: oh.Node) -> CoinSum:
    mechanism = plan.mechanism(node)
    assert isinstance(mechanism, CoinSum)
    return mechanism


FIGURE_2 = oh.RegularTree(horizon=8, degrees=(2, 2))
SINGLES = oh.RegularTree(horizon=10, degrees=(1, 4))
SMALL = [pytest.param(FIGURE_2, 7, id="regular"), pytest.param(SINGLES, 6, id="singles")]
DISCREPANCY = 0.15
SAMPLES = samples_for(DISCREPANCY)
# A sample in every coordinate. Odd numbers of steps have no step in the middle, where most are.
MANY = Vectors(2 * SAMPLES, norm=80.0)
STEPS = (3, 5)


def many_vectors(users: int) -> list[Any]:
    """Vectors with one number in all coordinates."""
    numbers = np.random.default_rng(6).uniform(-0.99, 0.99, users)
    return [np.full(MANY.length, number) for number in numbers]
