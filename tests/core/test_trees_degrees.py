"""Trees of the paper and of any size: degrees, capacities, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.errors import InvalidValue
from overhand.model import Node
from overhand.tree import RegularTree, binary_degrees, published_degrees
from support.reference_twins import EXAMPLES, nodes

# --- the paper ------------------------------------------------------------------------------------


def format_exactly(batches: list[Node]) -> list[tuple[int, int]]:
    """Nodes as Figure 2 writes them: v_i^j holds the users i to j."""
    return [(node.start + 1, node.stop) for node in batches]


def test_figure_2() -> None:
    tree = RegularTree(horizon=8, degrees=(2, 2))
    assert format_exactly([n for n in nodes(tree) if n.level == 1]) == [
        (1, 2),
        (3, 4),
        (5, 6),
        (7, 8),
    ]
    assert format_exactly([n for n in nodes(tree) if n.level == 2]) == [(1, 4), (5, 8)]
    assert (
        format_exactly(list(tree.cover(6)))
        == format_exactly(list(tree.cover(7)))
        == [(1, 4), (5, 6)]
    )
    assert format_exactly(list(tree.cover(8))) == [(1, 4), (5, 8)]
    assert format_exactly(tree.joins(7)) == [(7, 8), (5, 8)]
    assert format_exactly(tree.closes(8)) == [(7, 8), (5, 8)]
    assert tree.closes(7) == []


@pytest.mark.parametrize("shufflers", [1, 2, 3, 4])
@pytest.mark.parametrize("lowest", [2, 3, 5, 10])
def test_published_degrees_are_those_of_section_3_2(shufflers: int, lowest: int) -> None:
    horizon = lowest ** (2 * shufflers + 1)
    degrees = published_degrees(horizon, shufflers)
    assert degrees == (lowest, *[lowest**2] * (shufflers - 1))
    # The root, which is no batch, has d children too: d^k d_low = n.
    assert math.prod(degrees) * lowest**2 == horizon


@given(st.integers(1, 10**9), st.integers(1, 12))
def test_published_degrees_fit_every_horizon(horizon: int, shufflers: int) -> None:
    degrees = published_degrees(horizon, shufflers)
    assert 1 <= len(degrees) <= shufflers
    tree = RegularTree(horizon, degrees)
    assert tree.levels == len(degrees)
    assert set(degrees[1:]) <= {degrees[0] ** 2}
    nearest = horizon ** (1 / (2 * shufflers + 1))
    assert degrees[0] == min(horizon, max(2, round(nearest)))


@pytest.mark.parametrize("levels", range(1, 12))
def test_binary_degrees_are_log_n_less_one(levels: int) -> None:
    assert binary_degrees(2 ** (levels + 1)) == (2,) * levels
    assert binary_degrees(2 ** (levels + 1) + 1) == (2,) * (levels + 1)
    assert binary_degrees(2) == (2,)


@given(st.integers(2, 10**9))
def test_binary_degrees_fit_every_horizon(horizon: int) -> None:
    degrees = binary_degrees(horizon)
    RegularTree(horizon, degrees)
    assert math.prod(degrees) < horizon or horizon == 2
    assert horizon <= 2 * math.prod(degrees)


# --- large trees and bad arguments ----------------------------------------------------------------


def test_a_huge_tree_is_never_built() -> None:
    tree = RegularTree(10**12 + 5, (10, 1000, 1000, 1000))
    ones = [1.0] * tree.levels
    for t in (1, 10**6 + 7, tree.horizon - 1, tree.horizon):
        cover = list(tree.cover(t))
        assert sum(node.size for node in cover) == t // 10 * 10
        counts = [int(c[0]) for c in tree.in_cover(np.array([t // 10]))]
        levels = [node.level for node in cover]
        assert counts == [levels.count(level) for level in range(1, tree.levels + 1)]
        assert sum(counts) <= tree.heaviest_cover(ones)
    assert tree.mean_cover.sum() <= tree.heaviest_cover(ones)


@pytest.mark.parametrize(
    ("horizon", "degrees"),
    [
        (0, (1,)),
        (-8, (2,)),
        (8.0, (2, 2)),
        (True, (1,)),
        (8, ()),
        (8, (0,)),
        (8, (2, 1)),
        (8, (2, 2.0)),
        (8, (2, 2, 4)),
        (3, (4,)),
    ],
    ids=repr,
)
def test_a_bad_regular_tree_is_refused(horizon: Any, degrees: Any) -> None:
    with pytest.raises(InvalidValue):
        RegularTree(horizon, degrees)


@pytest.mark.parametrize("tree", EXAMPLES, ids=repr)
def test_times_outside_the_horizon_are_refused(tree: RegularTree) -> None:
    for t in (0, -1, tree.horizon + 1, 1.0, True, None):
        with pytest.raises(InvalidValue):
            tree.joins(t)  # type: ignore[arg-type]
    for t in (0, -1, tree.horizon + 1, tree.sizes[-1] * (tree.horizon + 1)):
        assert tree.closes(t) == []  # nobody else comes, so nothing else becomes full
    for stop in (-1, tree.horizon + 1, 1.0, True):
        with pytest.raises(InvalidValue):
            list(tree.cover(stop))  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            list(tree.cover(0, stop))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        list(tree.cover(1, 0))


@pytest.mark.parametrize(
    ("horizon", "shufflers"), [(0, 1), (10, 0), (10.0, 2), (10, 2.0), (True, 1)], ids=repr
)
def test_bad_arguments_of_published_degrees_are_refused(horizon: Any, shufflers: Any) -> None:
    with pytest.raises(InvalidValue):
        published_degrees(horizon, shufflers)


@pytest.mark.parametrize("horizon", [1, 0, -2, 8.0, True], ids=repr)
def test_bad_arguments_of_binary_degrees_are_refused(horizon: Any) -> None:
    with pytest.raises(InvalidValue):
        binary_degrees(horizon)
