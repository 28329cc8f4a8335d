"""Trees that are built, node by node, as their definition says: the slow truth."""

from __future__ import annotations

from functools import cache

from overhand.model import Node
from overhand.trees import RegularTree


@cache
def nodes(tree: RegularTree) -> list[Node]:
    """Every batch that becomes full within the horizon, by level and place.

    Level by level: so many users under a lowest node, so many nodes under the next.
    """
    members = [(place, place + 1) for place in range(tree.horizon)]
    built: list[Node] = []
    for level, degree in enumerate(tree.degrees, start=1):
        groups = [members[i : i + degree] for i in range(0, len(members), degree)]
        members = [(group[0][0], group[-1][1]) for group in groups if len(group) == degree]
        built += [Node(level, start, stop) for start, stop in members]
    return sorted(built)


EXAMPLES = [RegularTree(1, (1,)), RegularTree(8, (2, 2)), RegularTree(29, (3, 2, 2))]
