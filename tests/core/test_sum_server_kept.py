"""What the server of a running sum keeps: sums of ranges, its state, and what it forgets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.model import Node
from overhand.planning import NodeSum, Plan
from overhand.sums import SumServer
from overhand.tree import RegularTree
from support.slow_server import (
    PLAIN,
    ZERO,
    Coming,
    ForgetsNothing,
    assert_same,
    bias_bound_of,
    deliver,
    fates,
    imputed,
    lost_batches,
    nodes_of,
    plans,
    skewed_plan,
)

# --- ranges ---------------------------------------------------------------------------------------


def archived(server: SumServer, node: Node) -> NodeSum:
    """What the archive has of a batch, on its own."""
    assert server.archive is not None
    found = server.archive._found(node)
    assert found is not None
    return found


@settings(max_examples=60)
@given(fates(), st.data())
def test_a_range_is_the_sum_of_the_fewest_batches_there_are(
    drawn: tuple[Plan, Coming], data: st.DataObject
) -> None:
    plan, coming = drawn
    server, twin = SumServer(plan, archive=True), ForgetsNothing(plan)
    for node, is_lost in coming:
        deliver(server, node, is_lost)
        if not is_lost:
            twin.receive(node, bias_bound_of(node))
    for node in twin.sums:
        known = archived(server, node)
        if plan.combine and any(is_lost for _, is_lost in coming):
            # A lost batch settles those above it: what comes late below makes nothing better.
            worth = [twin.sums[node], *twin.bests[node]]
            assert any(known == pytest.approx(each, rel=1e-11) for each in worth)
        else:
            assert known == pytest.approx(twin.best(node), rel=1e-11)
    again = SumServer.from_state(plan, json.loads(json.dumps(server.state())))
    for _ in range(5):
        start = data.draw(st.integers(0, server.covered))
        last = min(server.covered + plan.tree.lowest - 1, plan.horizon)
        stop = data.draw(st.integers(start, max(start, last)))
        told = server.between(start, stop)
        assert_same(told, summed_range(server, twin, start, stop))
        assert again.between(start, stop) == told


def summed_range(server: SumServer, twin: ForgetsNothing, start: int, stop: int) -> oh.Estimate:
    """What is archived of the highest batches within a range, and the middle for all others."""
    total, users, lowest = ZERO, 0, server.plan.tree.lowest
    for place in range(0, stop, lowest):
        inside = [n for n in twin.sums if start <= n.start and n.stop <= min(stop, server.covered)]
        holding = [n for n in inside if n.start <= place < n.stop]
        if holding and max(holding, key=lambda n: n.level).start == place:
            node = max(holding, key=lambda n: n.level)
            total, users = total.plus(archived(server, node)), users + node.size
    return imputed(server.plan, total, stop - start - users, start, stop)


def test_a_late_batch_is_there_for_ranges_though_no_estimate_needs_it() -> None:
    server = SumServer(PLAIN, archive=True)
    server.receive_sum(Node(3, 0, 24), 24.0)
    server.receive_sum(Node(2, 6, 12), 6.0)
    assert server.between(6, 12).value == 6.0
    assert server.between(6, 12).bias_bound == 0.0
    assert server.between(0, 24).value == 24.0
    assert server.between(0, 6).bias_bound == 3.0  # nothing came of them alone


# --- saved, copied --------------------------------------------------------------------------------


def seen(server: SumServer) -> tuple[Any, ...]:
    """All that can be read off a server."""
    numbers = [
        number
        for level, size in enumerate(server.plan.tree.sizes, start=1)
        for number in server.missing(level, server.plan.horizon // size)
    ]
    return (
        server.estimate(), server.is_fallback, server.lost_users, server.covered, server.reach,
        server.kept, numbers,
    )  # fmt: skip


def through_json(server: SumServer) -> SumServer:
    return SumServer.from_state(server.plan, json.loads(json.dumps(server.state())))


def from_a_state_that_is_kept(server: SumServer) -> SumServer:
    """Restored from the very objects of the state."""
    return SumServer.from_state(server.plan, server.state())


@pytest.mark.parametrize("again", [SumServer.copy, through_json, from_a_state_that_is_kept])
@given(drawn=fates(), after=st.integers(0, 60))
def test_a_server_that_is_copied_or_restored_goes_its_own_way(
    again: Callable[[SumServer], SumServer], drawn: tuple[Plan, Coming], after: int
) -> None:
    plan, coming = drawn
    first = SumServer(plan)
    for node, is_lost in coming[:after]:
        deliver(first, node, is_lost)
    second, state = again(first), first.state()
    before, saved = seen(first), json.dumps(state)
    straight = SumServer.from_state(plan, json.loads(saved))
    assert seen(second) == before
    for node, is_lost in coming[after:]:
        deliver(second, node, is_lost)
        deliver(straight, node, is_lost)
        assert seen(second) == seen(straight)
    assert seen(first) == before
    for node, is_lost in coming[after:]:
        deliver(first, node, is_lost)
    assert seen(first) == seen(second)
    assert json.dumps(state) == saved  # what was taken stays as it was taken


# --- what is forgotten ----------------------------------------------------------------------------


@settings(max_examples=150)
@given(plans(), st.data())
def test_nothing_is_kept_of_batches_once_all_came(plan: Plan, data: st.DataObject) -> None:
    nodes = data.draw(st.permutations(nodes_of(plan)))
    lost = data.draw(lost_batches(nodes))
    server = SumServer(plan)
    for node in nodes:
        deliver(server, node, node in lost)
    assert server.kept == plan.tree.levels  # which numbers came, and nothing else


LONG = [
    skewed_plan(RegularTree(6000, degrees), combine=combine)
    for degrees in ((2, 3, 4), (3,), (2, 2, 2, 2, 2))
    for combine in (True, False)
]


@pytest.mark.parametrize("plan", LONG, ids=lambda p: f"{p.tree.degrees} {p.combine}")
@pytest.mark.parametrize(
    "way", ["in order", "late by up to 40", "one in 50 lost", "all lost at times", "after a gap"]
)
def test_memory_does_not_grow_with_the_batches_that_came(plan: Plan, way: str) -> None:
    random = np.random.default_rng(7)
    nodes = nodes_of(plan)
    if way == "late by up to 40":
        nodes = [
            nodes[i] for i in np.argsort(np.arange(len(nodes)) + random.uniform(0, 40, len(nodes)))
        ]
    first = plan.tree.node(plan.tree.levels, 0)
    server, most = SumServer(plan), 0
    for node in nodes:
        is_lost = way == "one in 50 lost" and random.random() < 0.02
        at_times = way in ("all lost at times", "after a gap") and -node.start % 500 < node.size
        if way != "after a gap" or node != first:
            deliver(server, node, is_lost or at_times)
        most = max(most, server.kept)
    if way == "after a gap":
        server.receive_sum(first, 1.0)
    assert (server.covered, server.kept) == (plan.horizon, plan.tree.levels)
    if "lost" not in way and way != "after a gap":
        assert server.lost_users == 0
    elif way != "one in 50 lost":
        assert server.lost_users >= 11 * plan.tree.lowest // 2
    degrees, levels = sum(plan.tree.degrees), plan.tree.levels
    allowed = {"in order": 2 * levels - 1, "late by up to 40": degrees + 2 * levels + 80}
    assert most <= allowed.get(way, degrees + 2 * levels)
