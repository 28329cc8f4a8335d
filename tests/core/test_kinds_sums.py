"""Running sums of every kind of value: sums by the book, saved states, ranges and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.values import (
    BITS,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.kind_plans import (
    KINDS,
    TREES,
    WHOLE,
    chosen,
    coin_sum,
    expected_sum,
    fed,
    kind_plan,
    points,
    shrunk,
)
from support.reference_twins import pending
from support.small_plans import REGULAR, WIDE


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("hold", [True, False])
def test_without_noise_estimates_are_the_sums_of_full_blocks(
    values: Values, choices: list[Any], tree: oh.RegularTree, hold: bool
) -> None:
    plan = kind_plan(tree, values, noise_bits=0, hold=hold)
    raw = chosen(choices, tree.horizon)
    truth = np.cumsum(points(values, raw), axis=0)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    for t, value in enumerate(raw, start=1):
        total.update(value)
        expected, rest = expected_sum(plan, raw, 0, t)
        estimate = total.estimate
        assert np.shape(estimate.value) == values.shape
        assert estimate.value == pytest.approx(expected)
        assert estimate.std == pytest.approx(math.sqrt(plan.noise_variance(np.array([t]))[0]))
        assert estimate.bias_bound == pytest.approx(plan.pending_bias_bound * rest)
        assert rest == pending(plan, t)
        assert (np.abs(estimate.value - truth[t - 1]) <= np.add(estimate.bias_bound, 1e-9)).all()


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("hold", [True, False])
def test_pending_users_at_an_end_use_up_the_bias_bound(
    values: Values, choices: list[Any], hold: bool
) -> None:
    """Nobody is in a full block yet, so the error is that of the pending users alone."""
    plan = kind_plan(oh.RegularTree(20, (7,)), values, hold=hold)
    missed = np.zeros(values.dimension)
    for value in choices:
        estimate = fed(plan, [value] * 6).estimate
        error = np.abs(estimate.value - 6 * points(values, [value])[0])
        assert estimate.std == 0.0
        assert (error <= np.add(estimate.bias_bound, 1e-9)).all()
        missed = np.maximum(missed, error)
    assert np.atleast_1d(estimate.bias_bound) == pytest.approx(missed)
    assert estimate.bias_bound == pytest.approx(6 * plan.pending_bias_bound)


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 50)), seed=st.integers(0, 1000), combine=st.booleans())
def test_any_interleaving_gives_the_same_estimates(
    values: Values,
    choices: list[Any],
    tree: oh.RegularTree,
    cuts: list[int],
    seed: int,
    combine: bool,
) -> None:
    plan = kind_plan(tree, values, steps=(3, 4, 5)[: tree.levels], combine=combine)
    raw = shrunk(values, choices, tree.horizon, seed)
    slow, expected = oh.ContinualSum(plan, oh.seeded_random(seed)), []
    for value in raw:
        slow.update(value)
        expected.append(slow.estimate)
    fast = oh.ContinualSum(plan, oh.seeded_random(seed))
    for cut in sorted([*cuts, tree.horizon]):
        fast.update_many(raw[fast.t : cut])
        if fast.t:
            same = expected[fast.t - 1]
            assert fast.estimate.value == pytest.approx(same.value, abs=1e-9)
            assert fast.estimate.std == pytest.approx(same.std)
            assert np.array_equal(fast.estimate.bias_bound, same.bias_bound)
    assert fast.between(4, 40).value == pytest.approx(slow.between(4, 40).value, abs=1e-9)


@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_a_restored_sum_has_the_same_future(
    values: Values, choices: list[Any], tree: oh.RegularTree, random: Callable[[int], Any]
) -> None:
    plan = kind_plan(tree, values, steps=(3, 4, 5)[: tree.levels], combine=True)
    raw = shrunk(values, choices, tree.horizon)
    for cut in (0, 1, tree.lowest, tree.horizon // 2, tree.horizon):
        first = oh.ContinualSum(plan, random(7), archive=cut != 1)
        first.update_many(raw[:cut])
        saved = first.to_json()
        second = oh.ContinualSum.from_json(plan, saved)
        assert second.estimate == first.estimate
        assert second.to_json() == saved
        for start in range(cut, tree.horizon, 4):
            first.update_many(raw[start : start + 4])
            second.update_many(raw[start : start + 4])
            assert second.estimate == first.estimate
        assert second.to_json() == first.to_json()


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_state_of_another_kind_is_refused(values: Values, choices: list[Any]) -> None:
    saved = fed(kind_plan(REGULAR, values), choices).to_json()
    other = kind_plan(REGULAR, Vectors(3, norm=2.0))
    with pytest.raises(oh.DamagedPlan, match="belongs to plan"):
        oh.ContinualSum.from_json(other, saved)


BAD: list[tuple[Values, list[Any]]] = [
    (Reals(-2.0, 5.0), [5.01, -2.5, math.nan, math.inf, "1", None, [1.0], 1j]),
    (Vectors(2), [[1.0, 1.0], [0.0, math.nan], [0.0], [0.0, 0.0, 0.0], 0.0, [[0.0, 0.0]], "ab"]),
    (SymmetricMatrices(2), [np.eye(2), [[0.0, 0.5], [0.4, 0.0]], np.zeros((2, 3)), [0.0] * 3, 0.0]),
    (RegressionStatistics(1), [[1.5, 0.0], [0.5, -1.5], [0.5], [0.5, math.nan], [0.1, 0.1, 0.1]]),
    (Histogram(4), [4, -1, 0.5, math.nan, "1", None, [1]]),
]


@pytest.mark.parametrize(
    ("values", "value"),
    [pytest.param(v, bad, id=f"{v.spec}-{bad}") for v, of_kind in BAD for bad in of_kind],
)
def test_a_bad_value_changes_nothing(values: Values, value: Any) -> None:
    choices = dict(WHOLE)[values]
    for before in (0, 5, 6):
        total = fed(kind_plan(REGULAR, values), chosen(choices, before))
        saved = total.to_json()
        with pytest.raises(oh.InvalidValue):
            total.update(value)
        for good in (1, 4, 9):
            with pytest.raises(oh.InvalidValue):
                total.update_many([*chosen(choices, good), value, *chosen(choices, good)])
        assert total.to_json() == saved


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_bad_value_is_named_by_its_place(values: Values, choices: list[Any]) -> None:
    worse: dict[Values, Any] = {BITS: 2, Histogram(4): 9, SymmetricMatrices(2): np.eye(2)}
    bad = worse.get(values, np.full_like(choices[0], 7.0))
    total = fed(kind_plan(REGULAR, values), chosen(choices, 20))
    with pytest.raises(oh.InvalidValue, match="user 24 "):
        total.update_many([*chosen(choices, 3), bad, choices[0], bad])
    with pytest.raises(oh.InvalidValue, match="user 21 "):
        total.update(bad)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_nobody_comes_after_the_horizon(values: Values, choices: list[Any]) -> None:
    total = fed(kind_plan(REGULAR, values), chosen(choices, 50))
    saved = total.to_json()
    with pytest.raises(oh.InvalidValue, match="4 users after 50 go beyond the horizon 53"):
        total.update_many(chosen(choices, 4))
    assert total.to_json() == saved
    total.update_many(chosen(choices, 3))
    total.update_many([])
    with pytest.raises(oh.InvalidValue, match="horizon 53"):
        total.update(choices[0])
    assert total.t == 53


def test_values_out_of_range_are_clipped_if_the_plan_says_so() -> None:
    plan = kind_plan(oh.RegularTree(8, (2, 2)), Reals(0.0, 1.0, clip=True), noise_bits=0)
    assert fed(plan, [3.0, -1.0, 7.0, 1.0]).estimate.value == 3.0
    vectors = kind_plan(oh.RegularTree(8, (2, 2)), Vectors(2, clip=True), noise_bits=0)
    assert fed(vectors, [[9.0, 0.0], [0.0, -4.0]]).estimate.value == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("hold", [True, False])
def test_sums_of_a_range_come_from_its_cover(
    values: Values, choices: list[Any], tree: oh.RegularTree, hold: bool
) -> None:
    raw = chosen(choices, tree.horizon)
    plan = kind_plan(tree, values, noise_bits=0, hold=hold)
    exact = fed(plan, raw)
    noisy = fed(kind_plan(tree, values, combine=True, hold=hold), raw)
    truth = points(values, raw)
    for start in range(0, tree.horizon, 5):
        for stop in range(start + 1, tree.horizon + 1, 4):
            expected, rest = expected_sum(plan, raw, start, stop)
            estimate = exact.between(start, stop)
            assert estimate.value == pytest.approx(expected)
            assert (estimate.start, estimate.t, estimate.users) == (start, stop, stop - start)
            assert estimate.bias_bound == pytest.approx(plan.pending_bias_bound * rest)
            error = np.abs(estimate.value - truth[start:stop].sum(axis=0))
            assert (error <= np.add(estimate.bias_bound, 1e-9)).all()
            mean = estimate.mean()
            assert mean.value == pytest.approx(expected / (stop - start))
            assert mean.bias_bound == pytest.approx(plan.pending_bias_bound * rest / (stop - start))
            variances = noisy.plan.combination.variances
            variance = sum(variances[node.level - 1] for node in tree.cover(start, stop))
            assert noisy.between(start, stop).std == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_ranges_need_an_archive_and_are_of_users_that_came(
    values: Values, choices: list[Any]
) -> None:
    plan, raw = kind_plan(REGULAR, values), chosen(choices, 20)
    forgetful = oh.ContinualSum(plan, oh.seeded_random(1), archive=False)
    forgetful.update_many(raw)
    assert forgetful.estimate == fed(plan, raw).estimate
    assert json.loads(forgetful.to_json())["server"]["archive"] is None
    for total in (forgetful, oh.ContinualSum.from_json(plan, forgetful.to_json())):
        with pytest.raises(oh.InvalidValue, match="archive=True"):
            total.between(0, 10)
    with pytest.raises(oh.InvalidValue, match="beyond the 20 users"):
        fed(plan, raw).between(0, 21)


def test_an_estimate_that_someone_writes_into_does_no_harm() -> None:
    raw = chosen([0, 1, 2, 3], 20)
    total = fed(kind_plan(REGULAR, Histogram(4)), raw)
    before = total.estimate, total.between(3, 9), total.between(4, 9)
    for estimate in (total.estimate, total.between(3, 9), total.between(4, 9), total.between(0, 0)):
        estimate.value[:] = 99.0
        if (
            estimate.users % REGULAR.lowest
        ):  # else nobody is pending: a bias_bound of 0.0, by itself
            estimate.bias_bound[:] = 99.0
    assert (total.estimate, total.between(3, 9), total.between(4, 9)) == before


def reach(plan: oh.Plan, t: int) -> float:
    """What coins and rounding together cannot exceed at t: no sampling error to allow for."""
    mechanisms = [coin_sum(plan, node) for node in plan.tree.cover(t)]
    return sum((m.noise_share.bits / 2 + 1) * m.size * m.quantizer.unit for m in mechanisms)


@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_secure_randomness_serves_every_kind(values: Values, choices: list[Any]) -> None:
    plan = kind_plan(WIDE, values, noise_bits=3)
    raw = shrunk(values, choices, 50)
    truth = np.cumsum(points(values, raw), axis=0)
    totals = [oh.ContinualSum(plan, oh.secure_random()) for _ in range(2)]
    for start in range(0, 50, 10):
        for total in totals:
            total.update_many(raw[start : start + 10])
            error = np.abs(total.estimate.value - truth[total.t - 1])
            assert (error <= reach(plan, total.t) + np.add(total.estimate.bias_bound, 1e-9)).all()
    blocks = [json.loads(total.to_json())["server"]["archive"]["sums"] for total in totals]
    assert blocks[0] != blocks[1]  # all 16 are alike with a probability below 1e-11
