"""Servers and endless sums of every kind of value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.model import Floats
from overhand.shuffle import shuffle
from overhand.sums import SumServer
from overhand.values import Histogram, Reals, Values, Vectors
from support.kind_plans import (
    KINDS,
    TREES,
    as_sum,
    chosen,
    expected_sum,
    kind_plan,
    points,
    shrunk,
)
from support.message_sums import ShuffledSum
from support.reference_twins import slow_estimate
from support.small_plans import REGULAR

# Servers.


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("combine", [True, False])
def test_a_server_of_analyzed_sums_agrees_with_a_slow_reference(
    values: Values, choices: list[Any], tree: oh.RegularTree, combine: bool
) -> None:
    plan = kind_plan(tree, values, combine=combine)
    rng = np.random.default_rng(3)
    sums: dict[oh.Node, Floats] = {}
    server = SumServer(plan, archive=True)
    for t in range(1, tree.horizon + 1):
        for node in tree.closes(t):
            sums[node] = rng.normal(size=values.dimension)
            server.receive_sum(node, as_sum(values, sums[node]))
        expected, _ = slow_estimate(plan, sums, t)
        assert np.atleast_1d(server.estimate(t).value) == pytest.approx(expected)
        again = SumServer.from_state(plan, json.loads(json.dumps(server.state())))
        assert again.estimate(t) == server.estimate(t)
        assert again.between(t // 3, t) == server.between(t // 3, t)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_server_takes_shuffled_messages_of_every_kind(values: Values, choices: list[Any]) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 53)
    server, random = SumServer(plan), oh.seeded_random(1)
    for t in range(1, 54):
        for node in REGULAR.closes(t):
            messages = plan.mechanism(node).encode_many(raw[node.start : node.stop], random)
            server.receive(node, shuffle(messages.gather(node.size), random))
        assert server.estimate(t).value == pytest.approx(expected_sum(plan, raw, 0, t)[0])


def test_a_sum_of_the_wrong_shape_or_place_is_refused() -> None:
    vectors, numbers = (SumServer(kind_plan(REGULAR, v)) for v in (Vectors(2), Reals()))
    for value in (5.0, np.zeros(3), np.zeros((1, 2))):
        with pytest.raises(oh.InvalidValue, match="a sum of shape"):
            vectors.receive_sum(oh.Node(1, 0, 3), value)
    with pytest.raises(oh.InvalidValue, match="a sum of shape"):
        numbers.receive_sum(oh.Node(1, 0, 3), np.zeros(1))
    with pytest.raises(oh.InvalidValue, match="no batch of this plan"):
        numbers.receive_sum(oh.Node(1, 0, 6), 1.0)
    assert vectors.covered == numbers.covered == 0


def test_sums_that_were_received_stay_as_they_were() -> None:
    server, buffer = SumServer(kind_plan(REGULAR, Vectors(2)), archive=True), np.ones(2)
    for node in (oh.Node(1, 0, 3), oh.Node(1, 3, 6), oh.Node(2, 0, 6)):
        buffer[:] = node.size
        server.receive_sum(node, buffer)
    buffer[:] = 99.0
    assert server.estimate(6).value.tolist() == server.between(0, 6).value.tolist() == [6.0, 6.0]
    assert server.between(0, 3).value.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_bad_value_reaches_no_shuffler(values: Values, choices: list[Any]) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 12)
    total = ShuffledSum(plan, oh.seeded_random(1))
    for t, value in enumerate(raw, start=1):
        with pytest.raises(oh.InvalidValue):
            total.update("no value")
        total.update(value)
        assert total.estimate.value == pytest.approx(expected_sum(plan, raw, 0, t)[0])


# Without a horizon.


def plans_for(values: Values, **parameters: Any) -> Callable[[int], oh.Plan]:
    return lambda horizon: kind_plan(oh.RegularTree(horizon, (3, 2)), values, **parameters)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_an_endless_sum_goes_on_from_plan_to_plan(values: Values, choices: list[Any]) -> None:
    raw = shrunk(values, choices, 100)
    total = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=10)
    one_by_one = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=10)
    exact = oh.EndlessSum(plans_for(values, noise_bits=0), oh.seeded_random(2), first=10)
    whole = chosen(choices, 100)
    for start in (0, 40):
        total.update_many(raw[start : start + 40])
        exact.update_many(whole[start : start + 40])
    for value in raw[:80]:
        one_by_one.update(value)
    assert total.t == one_by_one.t == 80
    assert [plan.horizon for plan in total.plans] == [9, 18, 39, 78]
    assert total.estimate.value == pytest.approx(one_by_one.estimate.value)
    variance = sum(float(p.noise_variance(np.array([p.horizon]))[0]) for p in total.plans[:3])
    variance += float(total.plans[3].noise_variance(np.array([80 - 66]))[0])
    assert total.estimate.std == pytest.approx(math.sqrt(variance))
    covered = points(values, whole[:78]).sum(axis=0) + 2 * np.atleast_1d(exact.plans[0].imputed)
    assert np.atleast_1d(exact.estimate.value) == pytest.approx(covered)
    assert exact.estimate.bias_bound == pytest.approx(2 * exact.plans[0].pending_bias_bound)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_restored_endless_sum_has_the_same_future(values: Values, choices: list[Any]) -> None:
    raw, plan_for = shrunk(values, choices, 60), plans_for(values, noise_bits=24)
    first = oh.EndlessSum(plan_for, oh.seeded_random(2), first=10)
    first.update_many(raw[:20])
    second = oh.EndlessSum.from_json(plan_for, first.to_json())
    assert second.to_json() == first.to_json()
    for total in (first, second):
        total.update_many(raw[20:])
    assert second.estimate == first.estimate
    assert second.plans == first.plans


def test_an_endless_sum_keeps_to_its_kind() -> None:
    """A plan that is refused leaves everything as it was, and can be asked for again."""
    kinds: list[Values] = [Vectors(3), Vectors(2), Vectors(3, norm=2.0), Histogram(3), Vectors(3)]
    asked = iter(kinds)
    total = oh.EndlessSum(lambda h: plans_for(next(asked))(h), oh.seeded_random(1), first=12)
    total.update_many(np.zeros((12, 3)))
    before, saved = total.estimate, total.to_json()
    for wrong in ("vector:2", "vector:3:2.0", "histogram:3"):
        with pytest.raises(oh.InvalidValue, match=f"a plan for {wrong} after one for vector:3"):
            total.update(np.zeros(3))
        assert (total.t, total.estimate, total.to_json()) == (12, before, saved)
    total.update(np.zeros(3))
    assert total.t == 13


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_an_endless_sum_names_a_bad_value_by_its_place_among_all(
    values: Values, choices: list[Any]
) -> None:
    total = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=12)
    for users in (12, 11):  # at the end of a plan, and within one
        total.update_many(chosen(choices, users))
        before = total.estimate
        bad: Any = np.full(np.shape(choices[0]), 9.0)
        with pytest.raises(oh.InvalidValue, match=f"user {total.t + 1} "):
            total.update(bad if np.ndim(bad) else 9)
        with pytest.raises(oh.InvalidValue, match=f"user {total.t + 2} "):
            total.update_many([choices[0], bad if np.ndim(bad) else 9])
        assert total.estimate == before
