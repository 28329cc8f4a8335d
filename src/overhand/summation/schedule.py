"""Which nodes above the lowest level are open, and where the next of them closes."""

from __future__ import annotations

from overhand.model import Node
from overhand.trees import Tree


class Schedule:
    """Walks along a tree from one closing to the next.

    Nodes are nested, so the innermost open one closes first; and a node above the lowest level
    opens only where another closes, or at the very start. `boundary` is the next place at which
    one closes, or the horizon; `opened` are those that opened at the last such place.
    """

    def __init__(self, tree: Tree, place: int = 0) -> None:
        self._tree = tree
        self._open = tree.nodes_above(place)[::-1] if place < tree.horizon else []
        self.opened = self._open
        self.boundary = self._open[-1].stop if self._open else tree.horizon

    def close(self) -> list[Node]:
        """The nodes that close at the boundary, lowest first; those after them open."""
        place, still_open = self.boundary, self._open
        closing: list[Node] = []
        while still_open and still_open[-1].stop == place:
            closing.append(still_open.pop())
        self.opened = self._tree.following(closing[-1])[::-1] if closing else []
        still_open += self.opened
        self.boundary = still_open[-1].stop if still_open else self._tree.horizon
        return closing
