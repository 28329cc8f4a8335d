"""Trees that are built, node by node, as their definitions say: the slow truth."""

from __future__ import annotations

import math
from functools import cache

from overhand.model import Node
from overhand.trees import PathTree, RegularTree, Tree


def regular_nodes(tree: RegularTree) -> list[Node]:
    """Level by level: so many users under a lowest node, so many nodes under the next."""
    members = [(place, place + 1) for place in range(tree.horizon)]
    nodes: list[Node] = []
    for level, degree in enumerate(tree.degrees, start=1):
        groups = [members[i : i + degree] for i in range(0, len(members), degree)]
        members = [(group[0][0], group[-1][1]) for group in groups if len(group) == degree]
        nodes += [Node(level, start, stop) for start, stop in members]
    return nodes


def path_nodes(tree: PathTree) -> list[Node]:
    """T(k, m) is a block if k = 0 or m = 0, else a node over T(k - 1, m) and then T(k, m - 1)."""
    found: set[Node] = set()

    def build(over: int, terms: int, first: int) -> int:
        """Adds the nodes of T(over, terms) from block `first` on; the block after its last."""
        if over == 0 or terms == 0:
            found.add(Node(1, first * tree.block, (first + 1) * tree.block))
            return first + 1
        last = build(over - 1, terms, first)
        found.add(Node(over, first * tree.block, last * tree.block))
        return build(over, terms - 1, last)

    assert build(tree.levels, tree.terms, 0) == math.comb(tree.levels + tree.terms, tree.terms)
    return [node for node in found if node.stop <= tree.horizon]


@cache
def nodes(tree: Tree) -> list[Node]:
    """Every batch that becomes full within the horizon, by level and place."""
    built = regular_nodes(tree) if isinstance(tree, RegularTree) else path_nodes(_path(tree))
    return sorted(built)


def _path(tree: Tree) -> PathTree:
    assert isinstance(tree, PathTree)
    return tree


EXAMPLES = [
    RegularTree(1, (1,)),
    RegularTree(8, (2, 2)),
    RegularTree(29, (3, 2, 2)),
    PathTree(1, 1, 1, 1),
    PathTree(10, 2, 3, 1),
    PathTree(39, 3, 3, 2),
]
