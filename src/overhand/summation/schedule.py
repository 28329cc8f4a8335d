"""Which nodes above the lowest level are open, and where the next of them closes."""

from __future__ import annotations

from overhand.model import Node
from overhand.trees import Tree


class Schedule:
    """Walks along a tree from one closing to the next.

    Nodes are nested, so the innermost open one closes first; and a node above the lowest level
    opens only where another closes, or at the very start.
    """

    def __init__(self, tree: Tree, place: int = 0) -> None:
        self._tree = tree
        self._open = [n for n in reversed(self._nodes(place)) if place < n.stop]
        self.opened = list(self._open)

    @property
    def boundary(self) -> int:
        """The next place at which a node above the lowest level closes, or the horizon."""
        return self._open[-1].stop if self._open else self._tree.horizon

    def close(self) -> list[Node]:
        """The nodes that close at the boundary, lowest first; those after them open."""
        if not self._open:
            return []
        place = self._open[-1].stop
        closing: list[Node] = []
        while self._open and self._open[-1].stop == place:
            closing.append(self._open.pop())
        self.opened = [node for node in reversed(self._nodes(place)) if node.start == place]
        self._open += self.opened
        return closing

    def _nodes(self, place: int) -> list[Node]:
        return [] if place >= self._tree.horizon else self._tree.nodes_above(place)
