"""Sums of blocks with correlated noise: prefixes, ranges, what is late, lost or not believed."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import SecretState
from overhand.estimates import Estimate
from overhand.mechanisms import PairsSum
from overhand.model import Counts, Floats
from overhand.noise import CorrelatedNoise
from overhand.planning import BlockErrors
from overhand.planning.blocks import blocks_tree
from overhand.sums import SumServer
from overhand.sums.continual import _NoiseStock
from overhand.sums.server import NoiseRows

BLOCKS = 12


@lru_cache
def small_plan() -> oh.Plan:
    """Blocks of five, whose noise is not enough for any guarantee but has every property."""
    noise = CorrelatedNoise.of(2.0, BLOCKS)
    blocks = PairsSum.with_noise(5, noise, honest=5, distance=1e-12, values=oh.Reals(), steps=8)
    return oh.Plan(blocks_tree(blocks), (blocks,), oh.Privacy(1.0, 1e-6), 1, horizon=5 * BLOCKS)


def errors_of(plan: oh.Plan) -> BlockErrors:
    assert plan.block_errors is not None
    return plan.block_errors


def weights_of(intervals: Any, rows: int = BLOCKS) -> Floats:
    weights = np.zeros(rows)
    for first, stop in intervals:
        weights[first:stop] += 1
    return weights


def brute_force(plan: oh.Plan, left: Any, right: Any) -> float:
    """The covariance of two sets of blocks, from the covariances of single ones."""
    mechanism, noise = plan.mechanisms[0], errors_of(plan).noise
    ends = np.arange(BLOCKS + 1)
    single = np.diff(np.diff(noise.covariance(ends[:, np.newaxis], ends), axis=0), axis=1)
    of_noise = sum(
        weights_of(mine) @ single @ weights_of(theirs)
        for mine, theirs in zip(left, right, strict=True)
    )
    shared = weights_of(left[0]) @ weights_of(right[0])
    return float(mechanism.quantizer.unit**2 * of_noise + shared * mechanism.rounding_variance)


def intervals_of(blocks: Any) -> tuple[tuple[int, int], ...]:
    runs = []
    for _, group in itertools.groupby(enumerate(sorted(blocks)), lambda one: one[1] - one[0]):
        members = [number for _, number in group]
        runs.append((members[0], members[-1] + 1))
    return tuple(runs)


SETS = st.sets(st.integers(0, BLOCKS - 1))


@given(SETS, SETS, SETS, SETS)
def test_covariances_of_any_sets_of_blocks(
    a: set[int], b: set[int], c: set[int], d: set[int]
) -> None:
    plan = small_plan()
    left, right = ((intervals_of(one), intervals_of(two)) for one, two in ((a, b), (c, d)))
    found, due = errors_of(plan).covariance(left, right), brute_force(plan, left, right)
    assert math.isclose(found, due, rel_tol=1e-9, abs_tol=1e-9)


def test_many_gaps_are_added_up_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan()
    odd, even = intervals_of(range(1, BLOCKS, 2)), intervals_of(range(0, BLOCKS, 2))
    due = errors_of(plan).covariance((odd, even), (even, even))
    monkeypatch.setattr("overhand.planning.blocks._MANY_PAIRS", 4)
    assert math.isclose(errors_of(plan).covariance((odd, even), (even, even)), due, rel_tol=1e-9)


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)), st.integers(0, 8), st.integers(0, 8))
def test_rows_are_numbered_as_they_are_drawn(
    order: list[int], unused: set[int], first: int, stop: int
) -> None:
    rows, row_of = NoiseRows(), dict[int, int]()
    for row, block in enumerate(order):
        rows.draw(block, block + 1, is_used=block not in unused)
        if block not in unused:
            row_of[block] = row
    known = [block for block in range(first, stop) if block in row_of]
    due = intervals_of(known), intervals_of([row_of[block] for block in known])
    assert rows.of(first, stop) == due
    assert NoiseRows(*rows.state()).of(first, stop) == due


def receive(server: SumServer, number: int, value: float = 2.0) -> None:
    server.receive_sum(server.plan.tree.node(1, number), value)


@given(st.permutations(range(BLOCKS)), st.sets(st.integers(0, BLOCKS - 1), max_size=3))
@settings(max_examples=40)
def test_estimates_have_the_noise_of_the_blocks_that_are_in_them(
    order: list[int], lost: set[int]
) -> None:
    plan = small_plan()
    server = SumServer(plan, archive=True)
    row_of = dict[int, int]()
    for block in order:
        if block in lost:
            server.lose(plan.tree.node(1, block))
        else:
            row_of[block] = len(row_of)
            receive(server, block)
        reached = server.covered // 5
        here = [one for one in range(reached) if one in row_of]
        rows = intervals_of(here), intervals_of([row_of[one] for one in here])
        estimate = server.estimate()
        assert math.isclose(estimate.std**2, brute_force(plan, rows, rows), abs_tol=1e-9)
        assert math.isclose(float(estimate.value), 2 * len(here) + 2.5 * (reached - len(here)))
        copied = SumServer.from_state(plan, server.state())
        assert copied.estimate() == estimate


def test_a_sum_that_is_not_believed_has_taken_its_noise() -> None:
    plan = small_plan()
    server = SumServer(plan, checks=True)
    receive(server, 0)
    receive(server, 1, 1e6)
    receive(server, 2)
    assert [node.start for node in server.distrusted] == [5]
    rows = ((0, 1), (2, 3)), ((0, 1), (2, 3))
    assert math.isclose(server.estimate().std ** 2, brute_force(plan, rows, rows))


def summed(plan: oh.Plan, users: int = 5 * BLOCKS) -> oh.ContinualSum:
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    total.update_many(np.full(users, 0.5))
    return total


@given(st.lists(st.integers(0, BLOCKS), min_size=4, max_size=4))
def test_ranges_differences_and_sums_know_what_they_share(ends: list[int]) -> None:
    plan = small_plan()
    total = summed(plan)
    (a, b), (c, d) = sorted(ends[:2]), sorted(ends[2:])
    left, right = total.between(5 * a, 5 * b), total.between(5 * c, 5 * d)
    rows, others = (((a, b),),) * 2, (((c, d),),) * 2
    own, other = brute_force(plan, rows, rows), brute_force(plan, others, others)
    shared = brute_force(plan, rows, others)
    assert math.isclose(left.std**2, own, abs_tol=1e-9)
    difference = left - right
    assert not difference.is_cautious
    assert math.isclose(difference.std**2, max(0.0, own + other - 2 * shared), abs_tol=1e-6)
    if b <= c:
        joined = left + right
        assert math.isclose(joined.std**2, own + other + 2 * shared, abs_tol=1e-6)


def test_two_halves_have_the_noise_of_the_whole() -> None:
    total = summed(small_plan())
    halves = total.between(0, 30) + total.between(30, 60)
    whole = total.between(0, 60)
    assert math.isclose(halves.std, whole.std, rel_tol=1e-9)
    assert halves.value == pytest.approx(whole.value)
    assert math.isclose(whole.std, total.estimate.std, rel_tol=1e-9)


def test_adding_variances_of_neighbours_would_be_far_off() -> None:
    total = summed(small_plan())
    one, two = total.between(0, 30), total.between(30, 60)
    assert (one - two).std > 1.1 * math.hypot(one.std, two.std)
    assert (one + two).std < 0.9 * math.hypot(one.std, two.std)


def test_a_mean_and_a_coordinate_keep_their_covariance() -> None:
    noise = CorrelatedNoise.of(2.0, BLOCKS)
    blocks = PairsSum.with_noise(5, noise, honest=5, distance=1e-12, values=oh.Histogram(3))
    plan = oh.Plan(blocks_tree(blocks), (blocks,), oh.Privacy(1.0, 1e-6), 1, horizon=60)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    total.update_many([1, 2] * 30)
    first, last = total.between(0, 30), total.between(30, 60)
    whole = (first - last).std
    assert math.isclose((first[1] - last[1]).std, whole)
    assert math.isclose((first.mean() - last.mean()).std, whole / 30)
    assert math.isclose((first[1] - last[2]).std, math.hypot(first.std, last.std))


def test_ratios_of_neighbours_are_not_cautious() -> None:
    total = summed(small_plan())
    ratio = total.between(30, 60) / total.between(0, 30)
    assert not ratio.is_cautious
    assert np.isfinite(ratio.value)


def test_hindsight_has_nothing_to_gain() -> None:
    total = summed(small_plan())
    history = total.hindsight()
    np.testing.assert_array_equal(history.value, history.published.value)
    assert history.ratio == 1.0
    due = errors_of(small_plan()).noise_variance(np.arange(1, BLOCKS + 1))
    np.testing.assert_allclose(history.std**2, due)


@given(st.sets(st.integers(0, BLOCKS - 1), min_size=1, max_size=4))
@settings(max_examples=25)
def test_hindsight_leaves_out_the_noise_of_lost_blocks(lost: set[int]) -> None:
    plan = small_plan()
    server = SumServer(plan, archive=True)
    for block in range(BLOCKS):
        if block in lost:
            server.lose(plan.tree.node(1, block))
        else:
            receive(server, block)
    history = server.hindsight()
    for end in range(1, BLOCKS + 1):
        here = [one for one in range(end) if one not in lost]
        rows = intervals_of(here), ((0, len(here)),) if here else ()
        due = brute_force(plan, rows, rows)
        assert math.isclose(history.std[end - 1] ** 2, due, abs_tol=1e-8)


def test_a_rate_of_recent_blocks_is_trusted_as_far_as_its_noise_allows() -> None:
    plan = oh.Plan.best(10_000, epsilon=1.0, mechanism="pairs")
    ends = oh.ContinualSum(plan, oh.seeded_random(2), pending="rate")
    ends.update_many([1] * 5019)
    middle = oh.ContinualSum(plan, oh.seeded_random(2))
    middle.update_many([1] * 5019)
    pending = 5019 % plan.tree.lowest
    assert ends.estimate.value - middle.estimate.value == pytest.approx(pending / 2, rel=0.2)


@pytest.mark.parametrize("mechanism", ["pairs", "ballots"])
@pytest.mark.parametrize("horizon", [100, 5000])
def test_a_saved_sum_has_the_same_future(mechanism: str, horizon: int) -> None:
    plan = oh.Plan.best(horizon, epsilon=1.0, mechanism=mechanism)
    total = oh.ContinualSum(plan, oh.seeded_random(3))
    total.update_many([1, 0] * 30)
    saved = oh.ContinualSum.from_json(plan, total.to_json())
    for one in (total, saved):
        one.update_many([1] * 300)
    assert saved.estimate == total.estimate


def test_noise_that_is_drawn_ahead_goes_on_from_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overhand.sums.continual._PORTION_COINS", 4 * 256)  # four blocks at a time
    mechanism, random = small_plan().mechanisms[0], oh.seeded_random(6)
    stock = _NoiseStock(mechanism)
    found = np.concatenate([stock.take(blocks, random) for blocks in (3, 1, 4, 2)])
    again, states = oh.seeded_random(6), list[Counts]()
    portions = []
    for _ in range(3):
        portion, states = mechanism.draw_services_noise(again, 4, states)
        portions.append(portion)
    np.testing.assert_array_equal(found, np.concatenate(portions)[:10])


def test_a_sum_of_secure_noise_says_that_its_state_is_secret() -> None:
    total = oh.ContinualSum(oh.Plan.best(5000, epsilon=1.0, mechanism="pairs"))
    with pytest.warns(SecretState):
        total.to_json()


def test_one_user_at_a_time_is_the_same_as_all_at_once() -> None:
    plan = oh.Plan.best(5000, epsilon=1.0, mechanism="pairs")
    one, all_at_once = (oh.ContinualSum(plan, oh.seeded_random(4)) for _ in range(2))
    bits = [1, 0, 1, 1] * 150
    for bit in bits:
        one.update(bit)
    all_at_once.update_many(bits)
    assert one.estimate == all_at_once.estimate
    assert one.between(100, 300) == all_at_once.between(100, 300)


def test_an_endless_sum_goes_from_plan_to_plan() -> None:
    def plan_for(horizon: int) -> oh.Plan:
        return oh.Plan.best(horizon, epsilon=1.0, mechanism="pairs")

    total = oh.EndlessSum(plan_for, oh.seeded_random(5), first=500)
    total.update_many([1] * 4000)
    assert len(total.plans) == 4
    assert all(plan.horizon % plan.tree.lowest == 0 for plan in total.plans)
    assert abs(total.estimate.value - 4000) < 6 * total.estimate.rms
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(total.between(100, 3900), Estimate)
