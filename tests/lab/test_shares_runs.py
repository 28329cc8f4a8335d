"""Runs of sums by shares: measured errors, saved states, and the tails of their noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.estimates import standard_tail
from overhand.lab.simulation import Engine, estimate_all, simulate
from overhand.lab.simulation.run import ENGINES
from overhand.mechanisms import SharesSum
from overhand.noise import Polya
from overhand.randomness import Random
from overhand.values import BITS, Histogram, Reals, Values, Vectors
from support.batch_laws import (
    UPPER_BATCHES,
    assert_follow_laws,
    assert_mutant_is_seen,
)
from support.estimate_laws import expected_square
from support.share_plans import shared, truth
from support.small_plans import PRIVACY

# Runs.

RUN_VALUES: list[tuple[Values, Any]] = [
    (BITS, 1),
    (Reals(-2.0, 5.0), 2.3),
    (Histogram(3), 1),
    (Vectors(2), [0.6, -0.5]),
]
each_run = pytest.mark.parametrize(
    ("values", "value"), [pytest.param(*case, id=str(case[0])) for case in RUN_VALUES]
)


@cache
def small(values: Values, *, horizon: int = 29) -> oh.Plan:
    """Two levels of Laplace noise or coins in shares: no guarantee, but an exact error."""
    tree = oh.RegularTree(horizon, (3, 4))
    mechanisms = tuple(
        SharesSum.with_noise(
            size,
            Polya(shape, size, 0.5),
            honest=size,
            distance=1e-12,
            values=values,
            steps=1 if values.is_whole else 2 + shape,
        )
        for shape, size in enumerate(tree.sizes, start=1)
    )
    return oh.Plan(tree, mechanisms, PRIVACY, 2)


@each_run
@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_batches_follow_their_laws(values: Values, value: Any, engine: Engine) -> None:
    """And between the ends of batches, estimates rise by what a pending user is taken to hold."""
    plan = small(values, horizon=12 * UPPER_BATCHES)
    assert_follow_laws(plan, value, engine, seed=20261)
    found = estimate_all(plan, [value] * 29, oh.seeded_random(1), engine=engine).reshape(29, -1)
    rise = np.broadcast_to(plan.imputed, found.shape[1:])
    np.testing.assert_allclose(np.diff(found, axis=0)[[2, 3, 26, 27]], [rise] * 4, atol=1e-9)
    assert expected_square(small(values), value) <= small(values).rms_error ** 2 * (1 + 1e-9)


@pytest.mark.parametrize(("part", "levels"), [(0.5, 1), (0.25, 2)], ids=["half", "a quarter"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_laws_of_batches_see_missing_noise(engine: Engine, part: float, levels: int) -> None:
    """Half of it is seen in lower batches, a quarter is seen in all."""
    plan = small(BITS, horizon=12 * UPPER_BATCHES)
    mutant = replace(plan, mechanisms=tuple(m.reduce(part) for m in plan.mechanisms))
    assert_mutant_is_seen(plan, mutant, 1, engine, levels=levels, seed=20261)


@each_run
def test_chosen_plans_of_shares_run_with_messages(values: Values, value: Any) -> None:
    plan = shared(values, 300)
    for engine in ENGINES:
        result = simulate(plan, [value] * 300, runs=5, seed=3, engine=engine)
        assert 0 < result.rms_error < 3 * plan.rms_error


def fed(plan: oh.Plan, raw: list[Any], cuts: list[int]) -> oh.ContinualSum:
    total = oh.ContinualSum(plan, oh.seeded_random(5))
    for start, stop in itertools.pairwise([0, *cuts, len(raw)]):
        total.update_many(raw[start:stop])
    return total


@each_run
def test_it_does_not_matter_in_which_parts_users_come(values: Values, value: Any) -> None:
    plan, raw = small(values), [value] * 29
    whole = fed(plan, raw, [])
    for cuts in ([1], [3, 12, 13], [2, 4, 20, 27], list(range(1, 29))):
        parts = fed(plan, raw, cuts)
        assert parts.estimate.value == pytest.approx(whole.estimate.value)
        assert parts.estimate.kurtosis == whole.estimate.kurtosis
        assert parts.between(3, 24).value == pytest.approx(whole.between(3, 24).value)


@each_run
def test_a_sum_by_shares_goes_on_where_it_was_saved(values: Values, value: Any) -> None:
    plan, raw = small(values), [value] * 29
    for stop in (0, 4, 12, 17):
        before = fed(plan, raw[:stop], [])
        after = oh.ContinualSum.from_json(plan, before.to_json())
        assert after.estimate == before.estimate
        for total in (before, after):
            total.update_many(raw[stop:])
        assert after.estimate == before.estimate
        assert after.between(3, 24) == before.between(3, 24)


@each_run
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_sums_are_near_the_truth(
    values: Values, value: Any, random: Callable[[int], Random]
) -> None:
    """Thirty standard deviations: even exponential tails are beyond 1e-9 there."""
    plan = shared(values, 400)
    one = truth(values, [value])
    total = oh.ContinualSum(plan, random(6))
    total.update_many([value] * 400)
    for estimate in (total.estimate, total.between(100, 350)):
        off = np.abs(estimate.value - estimate.users * one)
        assert (off <= 30 * estimate.std + estimate.bias_bound + 1e-6).all()
        assert estimate.kurtosis >= 0


@each_run
def test_endless_sums_by_shares_go_on_and_are_restored(values: Values, value: Any) -> None:
    def plan_for(horizon: int) -> oh.Plan:
        return shared(values, horizon)

    total = oh.EndlessSum(plan_for, oh.seeded_random(3), first=100)
    total.update_many([value] * 450)
    again = oh.EndlessSum.from_json(plan_for, total.to_json())
    for part in (total, again):
        part.update_many([value] * 300)
    assert again.estimate == total.estimate
    estimate, one = total.estimate, truth(values, [value])
    assert (np.abs(estimate.value - 750 * one) <= 30 * estimate.std + estimate.bias_bound).all()
    assert len(total.plans) >= 3
    if values.sensitivity.l2 is None:
        assert estimate.kurtosis > 0


# Tails.


@pytest.mark.parametrize("x", [0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_with_kurtosis_3_the_tail_is_that_of_laplace_noise(x: float) -> None:
    laplace = math.exp(-math.sqrt(2) * x) / 2
    assert standard_tail(x, 3.0) == pytest.approx(laplace, rel=0.02)
    assert standard_tail(-x, 3.0) == pytest.approx(1 - laplace, rel=0.02)


@cache
def heavy() -> oh.Plan:
    """One level of so much Laplace noise that it hardly matters that it is whole."""
    privacy = oh.Privacy(0.1, 1e-6)
    plan = oh.Plan.best(20_000, 1, privacy, tree="regular", mechanism="shares")
    assert isinstance(plan.mechanisms[0].noise_share, Polya)
    return plan


def first_estimate(blocks: int) -> oh.Estimate:
    """After so many full blocks."""
    total = oh.ContinualSum(heavy(), oh.seeded_random(1))
    total.update_many([1] * (blocks * heavy().tree.lowest))
    return total.estimate


def test_the_noise_of_one_batch_has_kurtosis_3_and_of_many_less() -> None:
    kurtoses = [first_estimate(blocks).kurtosis for blocks in range(1, 6)]
    assert kurtoses == pytest.approx([3 / blocks for blocks in range(1, 6)], rel=0.01)


def coverage(estimate: oh.Estimate, blocks: int) -> float:
    low, high = estimate.interval(0.95)
    noise = heavy().mechanisms[0].draw_noise(oh.seeded_random(11), 100_000 * blocks)
    noise = noise.reshape(blocks, -1).sum(axis=0)
    return float((np.abs(noise) <= (high - low) / 2).mean())


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_early_intervals_hold_as_often_as_they_say(blocks: int) -> None:
    assert 0.935 <= coverage(first_estimate(blocks), blocks) <= 0.965


def test_intervals_at_high_confidence_need_the_kurtosis() -> None:
    estimate = first_estimate(1)
    low, high = estimate.interval(0.999)
    bare_low, bare_high = replace(estimate, kurtosis=0.0).interval(0.999)
    assert high - low > 1.4 * (bare_high - bare_low)
