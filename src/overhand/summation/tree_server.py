"""The server of Algorithms 2 and 3 among shufflers that run at the same time."""

from __future__ import annotations

from collections.abc import Mapping

from overhand.estimates import Estimate
from overhand.mechanisms import Mechanism
from overhand.model import Node, Shuffled
from overhand.plan import Plan
from overhand.randomness import Random, source_of
from overhand.summation.server import SumServer


class TreeServer:
    """Algorithms 2 and 3 for `ConcurrentShufflers`: one shuffler per level of the tree.

    The first user opens a batch at every level:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> batches = TreeServer(plan).activate(t=1, idle=frozenset({0, 1}))
    >>> {shuffler: mechanism.size for shuffler, mechanism in batches.items()}
    {0: 3, 1: 27}
    """

    def __init__(self, plan: Plan, random: Random | None = None) -> None:
        self.plan = plan
        self._random = source_of(random)
        self._sums = SumServer(plan)
        self._running: dict[int, Node] = {}

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
        """Step 1: a mechanism for every node of which user `t` is the first."""
        opening = [node for node in self.plan.tree.joins(t) if node.start == t - 1]
        self._running.update({node.level - 1: node for node in opening})
        return {node.level - 1: self.plan.mechanism(node) for node in opening}

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        """Step 4: whichever of the batches that close with one user comes first."""
        self._sums.receive(self._running.pop(shuffler), shuffled, self._random)

    def estimate(self, t: int) -> Estimate:
        """Step 5."""
        return self._sums.estimate(t)
