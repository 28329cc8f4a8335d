"""Trees by arithmetic against trees that are built, node by node, as their definitions say."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overhand.trees.tree import Closing

from overhand.model import Node
from overhand.trees import PathTree, RegularTree, Tree, Weights
from support.built import EXAMPLES, nodes


@cache
def covers(tree: Tree) -> list[list[Node]]:
    """At every time, the full nodes that no other full node holds (Definition 3.1)."""
    return [highest(tree, 0, t) for t in range(tree.horizon + 1)]


def highest(tree: Tree, start: int, stop: int) -> list[Node]:
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


@st.composite
def path_trees(draw: st.DrawFn) -> PathTree:
    levels, terms = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    block = draw(st.integers(1, 3))
    capacity = block * math.comb(levels + terms, levels)
    whole = draw(st.booleans())
    horizon = capacity if whole else draw(st.integers(block, capacity))
    return PathTree(horizon, levels, terms, block)


TREES: st.SearchStrategy[Tree] = st.one_of(regular_trees(), path_trees())


def weights_for(tree: Tree) -> st.SearchStrategy[tuple[list[float], ...]]:
    sizes = [len(tree.sizes(level)) for level in range(1, tree.levels + 1)]
    return st.tuples(*(st.lists(st.floats(0, 100), min_size=n, max_size=n) for n in sizes))


@pytest.mark.parametrize("tree", EXAMPLES, ids=repr)
def test_the_slow_truth_is_a_family_of_nested_or_disjoint_batches(tree: Tree) -> None:
    for one, other in itertools.combinations(nodes(tree), 2):
        apart = one.stop <= other.start or other.stop <= one.start
        inside = one.start <= other.start and other.stop <= one.stop
        assert apart or (inside and one.level > other.level) or one.level < other.level


@given(TREES)
def test_users_join_the_nodes_that_hold_them_lowest_first(tree: Tree) -> None:
    for t in range(1, tree.horizon + 1):
        joined = tree.joins(t)
        assert joined == [node for node in nodes(tree) if node.start < t <= node.stop]
        assert len(joined) <= tree.levels
        assert tree.closes(t) == [node for node in joined if node.stop == t]


@given(TREES)
def test_the_nodes_of_a_level_are_disjoint_and_every_one_is_joined_and_closed(tree: Tree) -> None:
    joined = {node for t in range(1, tree.horizon + 1) for node in tree.joins(t)}
    closed = [node for t in range(1, tree.horizon + 1) for node in tree.closes(t)]
    assert sorted(joined) == sorted(closed) == nodes(tree)
    for level in range(1, tree.levels + 1):
        of_level = [node for node in nodes(tree) if node.level == level]
        assert all(one.stop <= other.start for one, other in itertools.pairwise(of_level))
        assert tree.sizes(level) == tuple(sorted({node.size for node in of_level}))


@given(TREES)
def test_cover_is_the_highest_full_batches_and_partitions_the_full_blocks(tree: Tree) -> None:
    for t in range(tree.horizon + 1):
        cover = list(tree.cover(t))
        assert cover == covers(tree)[t]
        edges = [0, *(node.stop for node in cover)]
        assert [node.start for node in cover] == edges[:-1]
        assert 0 <= t - edges[-1] < tree.lowest


@given(TREES, st.data())
def test_the_cover_of_a_range_partitions_it_as_far_as_blocks_can(
    tree: Tree, data: st.DataObject
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


@given(TREES)
def test_nodes_above_hold_the_place_and_opening_nodes_start_there(tree: Tree) -> None:
    for place in range(tree.horizon):
        above = [n for n in nodes(tree) if n.level > 1 and n.start <= place < n.stop]
        assert tree.nodes_above(place) == above
        held = [n for n in nodes(tree) if n.start <= place < n.stop]
        assert tree.nodes_of(place) == held
        if place % tree.lowest == 0:
            assert tree.opening(place) == [node for node in above if node.start == place]


@given(TREES)
def test_no_node_opens_inside_a_block(tree: Tree) -> None:
    for place in range(tree.horizon):
        if place % tree.lowest:
            assert tree.opening(place) == []


@given(TREES)
def test_counts_of_full_and_of_covering_nodes_are_those_of_the_built_tree(tree: Tree) -> None:
    boundaries = np.arange(tree.blocks + 1)
    in_cover, closed = tree.in_cover(boundaries), tree.closed(boundaries)
    assert len(in_cover) == len(closed) == tree.levels
    for blocks in boundaries.tolist():
        users = blocks * tree.lowest
        for level in range(1, tree.levels + 1):
            covering = [node for node in covers(tree)[users] if node.level == level]
            full = [n for n in nodes(tree) if n.level == level and n.stop <= users]
            assert in_cover[level - 1][blocks] == len(covering)
            assert closed[level - 1][blocks] == len(full)


@given(TREES, st.data())
def test_a_walk_tells_what_happens_above_the_lowest_level(tree: Tree, data: st.DataObject) -> None:
    last = data.draw(st.integers(1, tree.blocks))
    first = data.draw(st.integers(0, last - 1))
    walk = tree.walk(first, last)
    assert len(walk.closed) == len(walk.covering) == len(walk.closing) == tree.levels - 1
    starts = walk.starts.tolist()
    assert starts == sorted(set(starts))
    assert starts[0] <= first
    assert starts[-1] < last
    assert len(starts) == 1 or starts[1] > first
    for blocks in range(first, last):
        run = max(i for i, start in enumerate(starts) if start <= blocks)
        cover = covers(tree)[blocks * tree.lowest]
        assert sum(node.level == 1 for node in cover) == blocks - starts[run]
        for level in range(2, tree.levels + 1):
            of_level = [n for n in nodes(tree) if n.level == level]
            full = [node for node in of_level if node.stop <= blocks * tree.lowest]
            covering = [node for node in cover if node.level == level]
            assert walk.closed[level - 2][run] == len(full)
            assert walk.covering[level - 2][run] == len(covering)
            assert full[len(full) - len(covering) :] == covering
    for level in range(2, tree.levels + 1):
        closing = [
            node
            for node in nodes(tree)
            if node.level == level and first * tree.lowest < node.stop <= last * tree.lowest
        ]
        told = walk.closing[level - 2]
        assert told.sizes.tolist() == [node.size for node in closing]
        assert [told_children(tree, level, told, i) for i in range(len(closing))] == [
            children(tree, node) for node in closing
        ]


def children(tree: Tree, node: Node) -> list[Node]:
    """The largest nodes inside a node, in their order."""
    inside = [
        n
        for n in nodes(tree)
        if n.level < node.level and node.start <= n.start and n.stop <= node.stop
    ]
    largest = [
        n
        for n in inside
        if not any(o.level > n.level and o.start <= n.start < o.stop for o in inside)
    ]
    return sorted(largest, key=lambda n: n.start)


def told_children(tree: Tree, level: int, told: Closing, index: int) -> list[Node]:
    below = [n for n in nodes(tree) if n.level == level - 1]
    found = below[told.first_children[index] : told.after_children[index]]
    if told.last_blocks is not None:
        place = int(told.last_blocks[index]) * tree.lowest
        found = [*found, Node(1, place, place + tree.lowest)]
    return found


@given(TREES, st.data())
def test_children_weigh_what_they_weigh_together(tree: Tree, data: st.DataObject) -> None:
    weights = data.draw(weights_for(tree))
    for level in range(2, tree.levels + 1):
        told = tree.children_weights(level, weights[level - 2], weights[0][0])
        assert len(told) == len(tree.sizes(level))
        for node in (n for n in nodes(tree) if n.level == level):
            truth = math.fsum(weight_of(tree, weights, n) for n in children(tree, node))
            index = tree.sizes(level).index(node.size)
            assert math.isclose(told[index], truth, rel_tol=1e-12, abs_tol=1e-12)


@given(TREES)
def test_the_mean_cover_is_the_mean_over_all_times(tree: Tree) -> None:
    truth = np.zeros(tree.levels)
    for t in range(1, tree.horizon + 1):
        for node in covers(tree)[t]:
            truth[node.level - 1] += 1 / tree.horizon
    assert np.allclose(tree.mean_cover(), truth, rtol=1e-12, atol=1e-12)


@given(TREES, st.data())
def test_the_weights_of_covers_are_those_of_their_nodes(tree: Tree, data: st.DataObject) -> None:
    for _ in range(5):
        weights = data.draw(weights_for(tree))
        truth = [math.fsum(weight_of(tree, weights, n) for n in cover) for cover in covers(tree)]
        mean, most = math.fsum(truth[1:]) / tree.horizon, max(truth)
        assert math.isclose(tree.mean_weight(weights), mean, rel_tol=1e-11, abs_tol=1e-11)
        assert math.isclose(tree.heaviest_cover(weights), most, rel_tol=1e-12, abs_tol=1e-12)
        blocks = np.arange(tree.blocks + 1)
        expected = [truth[int(b) * tree.lowest] for b in blocks]
        assert np.allclose(tree.cover_weight(blocks, weights), expected, rtol=1e-12, atol=1e-12)


def weight_of(tree: Tree, weights: Weights, node: Node) -> float:
    return weights[node.level - 1][tree.sizes(node.level).index(node.size)]


@given(TREES)
def test_pending_users_are_those_of_no_full_block(tree: Tree) -> None:
    pending = [t - sum(node.size for node in covers(tree)[t]) for t in range(1, tree.horizon + 1)]
    mean = sum(count**2 for count in pending) / tree.horizon
    assert math.isclose(tree.mean_pending_square(), mean, rel_tol=1e-12)
    assert tree.most_pending == max(pending)
    assert tree.blocks == sum(node.level == 1 for node in nodes(tree))


@given(path_trees())
def test_a_path_tree_never_covers_with_more_than_its_terms(tree: PathTree) -> None:
    capacity = tree.block * math.comb(tree.levels + tree.terms, tree.levels)
    for t in range(tree.horizon + 1):
        own_block = t == capacity  # the last block of all counts for itself
        assert len(list(tree.cover(t))) <= tree.terms + own_block


@given(regular_trees())
def test_a_regular_tree_covers_with_fewer_than_its_degrees_below_the_top(
    tree: RegularTree,
) -> None:
    for t in range(tree.horizon + 1):
        levels = [node.level for node in tree.cover(t)]
        for level, degree in enumerate(tree.degrees[1:], start=1):
            assert levels.count(level) <= degree - 1


@settings(max_examples=25)
@given(TREES)
def test_equal_trees_are_equal_and_say_so(tree: Tree) -> None:
    assert hash(tree) == hash(nodes_twin(tree))
    assert tree == nodes_twin(tree)


def nodes_twin(tree: Tree) -> Tree:
    description = tree.description()
    kind = description.pop("kind")
    if kind == "regular":
        return RegularTree(tree.horizon, tuple(description["degrees"]))
    assert kind == "path"
    return PathTree(tree.horizon, **description)
