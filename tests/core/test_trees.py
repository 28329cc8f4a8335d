"""Trees by arithmetic against trees that are built, node by node, as their definition says."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.errors import InvalidValue
from overhand.model import Node
from overhand.tree import RegularTree, Weights
from support.reference_twins import EXAMPLES, nodes


@cache
def covers(tree: RegularTree) -> list[list[Node]]:
    """At every time, the full nodes that no other full node holds (Definition 3.1)."""
    return [highest(tree, 0, t) for t in range(tree.horizon + 1)]


def highest(tree: RegularTree, start: int, stop: int) -> list[Node]:
    """The nodes within a range that no other node within it holds, from left to right."""
    inside = [node for node in nodes(tree) if start <= node.start and node.stop <= stop]
    top: list[Node] = []
    for node in sorted(inside, key=lambda node: (node.start, -node.stop)):
        if not top or node.start >= top[-1].stop:
            top.append(node)
    return top


@st.composite
def regular_trees(draw: st.DrawFn) -> RegularTree:
    degrees = [draw(st.integers(1, 4))]
    while len(degrees) < 4 and math.prod(degrees) <= 12 and draw(st.booleans()):
        degrees.append(draw(st.integers(2, 4)))
    size = math.prod(degrees)
    return RegularTree(size + draw(st.integers(0, 2 * size + 3)), tuple(degrees))


def weights_for(tree: RegularTree) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0, 100), min_size=tree.levels, max_size=tree.levels)


@pytest.mark.parametrize("tree", EXAMPLES, ids=repr)
def test_the_slow_truth_is_a_family_of_nested_or_disjoint_batches(tree: RegularTree) -> None:
    for one, other in itertools.combinations(nodes(tree), 2):
        apart = one.stop <= other.start or other.stop <= one.start
        inside = one.start <= other.start and other.stop <= one.stop
        assert apart or (inside and one.level > other.level) or one.level < other.level


@given(regular_trees())
def test_users_join_the_nodes_that_hold_them_lowest_first(tree: RegularTree) -> None:
    for t in range(1, tree.horizon + 1):
        joined = tree.joins(t)
        assert joined == [node for node in nodes(tree) if node.start < t <= node.stop]
        assert len(joined) <= tree.levels
        assert tree.closes(t) == [node for node in joined if node.stop == t]


@given(regular_trees())
def test_the_nodes_of_a_level_are_disjoint_and_every_one_is_joined_and_closed(
    tree: RegularTree,
) -> None:
    joined = {node for t in range(1, tree.horizon + 1) for node in tree.joins(t)}
    closed = [node for t in range(1, tree.horizon + 1) for node in tree.closes(t)]
    assert sorted(joined) == sorted(closed) == nodes(tree)
    for level in range(1, tree.levels + 1):
        of_level = [node for node in nodes(tree) if node.level == level]
        assert all(one.stop <= other.start for one, other in itertools.pairwise(of_level))
        assert {tree.sizes[level - 1]} == {node.size for node in of_level}


@given(regular_trees())
def test_cover_is_the_highest_full_batches_and_partitions_the_full_blocks(
    tree: RegularTree,
) -> None:
    for t in range(tree.horizon + 1):
        cover = list(tree.cover(t))
        assert cover == covers(tree)[t]
        edges = [0, *(node.stop for node in cover)]
        assert [node.start for node in cover] == edges[:-1]
        assert 0 <= t - edges[-1] < tree.lowest


@given(regular_trees(), st.data())
def test_the_cover_of_a_range_partitions_it_as_far_as_blocks_can(
    tree: RegularTree, data: st.DataObject
) -> None:
    for _ in range(20):
        start = data.draw(st.integers(0, tree.horizon))
        stop = data.draw(st.integers(start, tree.horizon))
        cover = list(tree.cover(start, stop))
        assert cover == highest(tree, start, stop)
        if cover:
            assert all(one.stop == other.start for one, other in itertools.pairwise(cover))
            assert cover[0].start - start < tree.lowest
            assert stop - cover[-1].stop < tree.lowest
        else:
            assert stop - start < 2 * tree.lowest - 1


@given(regular_trees())
def test_the_nodes_of_a_place_hold_it_lowest_first(tree: RegularTree) -> None:
    for place in range(tree.horizon):
        assert tree.joins(place + 1) == [n for n in nodes(tree) if n.start <= place < n.stop]


@given(regular_trees())
def test_the_nodes_that_start_at_a_place_come_highest_first(tree: RegularTree) -> None:
    for place in range(tree.horizon):
        for stop in range(place, tree.horizon + 1):
            starting = [n for n in nodes(tree) if n.start == place and n.stop <= stop]
            assert list(tree.starting_at(place, stop)) == starting[::-1]


@given(regular_trees())
def test_nodes_are_numbered_within_their_level(tree: RegularTree) -> None:
    for level in range(1, tree.levels + 1):
        of_level = [node for node in nodes(tree) if node.level == level]
        assert [tree.node(level, number) for number in range(len(of_level))] == of_level
        for number in (-1, len(of_level), 0.0, True):
            with pytest.raises(InvalidValue, match="number"):
                tree.node(level, number)  # type: ignore[arg-type]
    for level in (0, tree.levels + 1):
        with pytest.raises(InvalidValue, match="level"):
            tree.node(level, 0)


@given(regular_trees())
def test_counts_of_full_and_of_covering_nodes_are_those_of_the_built_tree(
    tree: RegularTree,
) -> None:
    boundaries = np.arange(tree.blocks + 1)
    in_cover, closed = tree.in_cover(boundaries), tree.closed_nodes(boundaries)
    assert len(in_cover) == len(closed) == tree.levels
    for blocks in boundaries.tolist():
        users = blocks * tree.lowest
        for level in range(1, tree.levels + 1):
            covering = [node for node in covers(tree)[users] if node.level == level]
            full = [n for n in nodes(tree) if n.level == level and n.stop <= users]
            assert in_cover[level - 1][blocks] == len(covering)
            assert closed[level - 1][blocks] == len(full)


@given(regular_trees())
def test_the_mean_cover_is_the_mean_over_all_times(tree: RegularTree) -> None:
    truth = np.zeros(tree.levels)
    for t in range(1, tree.horizon + 1):
        for node in covers(tree)[t]:
            truth[node.level - 1] += 1 / tree.horizon
    assert np.allclose(tree.mean_cover, truth, rtol=1e-12, atol=1e-12)


@given(regular_trees(), st.data())
def test_the_weights_of_covers_are_those_of_their_nodes(
    tree: RegularTree, data: st.DataObject
) -> None:
    for _ in range(5):
        weights = data.draw(weights_for(tree))
        truth = [math.fsum(weight_of(weights, n) for n in cover) for cover in covers(tree)]
        mean, most = math.fsum(truth[1:]) / tree.horizon, max(truth)
        assert math.isclose(tree.mean_weight(weights), mean, rel_tol=1e-11, abs_tol=1e-11)
        assert math.isclose(tree.heaviest_cover(weights), most, rel_tol=1e-12, abs_tol=1e-12)
        blocks = np.arange(tree.blocks + 1)
        expected = [truth[int(b) * tree.lowest] for b in blocks]
        assert np.allclose(tree.cover_weight(blocks, weights), expected, rtol=1e-12, atol=1e-12)


def weight_of(weights: Weights, node: Node) -> float:
    return weights[node.level - 1]


@given(regular_trees())
def test_pending_users_are_those_of_no_full_block(tree: RegularTree) -> None:
    pending = [t - sum(node.size for node in covers(tree)[t]) for t in range(1, tree.horizon + 1)]
    mean = sum(count**2 for count in pending) / tree.horizon
    assert math.isclose(tree.mean_pending_square(), mean, rel_tol=1e-12)
    assert tree.most_pending == max(pending)
    assert tree.blocks == sum(node.level == 1 for node in nodes(tree))


@given(regular_trees())
def test_a_regular_tree_covers_with_fewer_than_its_degrees_below_the_top(
    tree: RegularTree,
) -> None:
    for t in range(tree.horizon + 1):
        levels = [node.level for node in tree.cover(t)]
        for level, degree in enumerate(tree.degrees[1:], start=1):
            assert levels.count(level) <= degree - 1


@settings(max_examples=25)
@given(regular_trees())
def test_equal_trees_are_equal_and_say_so(tree: RegularTree) -> None:
    twin = RegularTree(tree.horizon, tree.degrees)
    assert tree == twin
    assert hash(tree) == hash(twin)
    assert tree != RegularTree(tree.horizon + 1, tree.degrees)
    assert repr(tree) == f"RegularTree(horizon={tree.horizon}, degrees={tree.degrees})"
