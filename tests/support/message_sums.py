"""Algorithm 1 with the fast mechanisms, message by message: what `reference` does with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import overhand as oh
from overhand.mechanisms import Mechanism
from overhand.model import Messages, Node, Shuffled
from overhand.randomness import Random
from overhand.shuffle import shuffle, with_added


def release(mechanism: Mechanism, users: Sequence[Messages], random: Random) -> Shuffled:
    """Step 3: the messages of one full batch, with what the service adds, in random order."""
    batch = Messages.concatenate(list(users))
    assert len(batch.sealed) == mechanism.size
    return shuffle(with_added(batch.gather(mechanism.size), mechanism, random), random)


class ShuffledSum:
    """A running sum of which every user sends messages to one shuffler per level of the tree."""

    def __init__(self, plan: oh.Plan, random: Random, server_random: Random | None = None) -> None:
        self.plan, self.t = plan, 0
        self._random, self._server_random = random, server_random
        self._server = oh.SumServer(plan)
        self._open: dict[Node, list[Messages]] = {}

    def update(self, value: Any) -> None:
        """One user arrives: steps 1 to 3."""
        nodes = self.plan.tree.joins(self.t + 1)
        sent = [self.plan.mechanism(node).encode_many([value], self._random) for node in nodes]
        self.t += 1
        for node, messages in zip(nodes, sent, strict=True):
            self._open.setdefault(node, []).append(messages)
        for node in self.plan.tree.closes(self.t):
            shuffled = release(self.plan.mechanism(node), self._open.pop(node), self._random)
            self._server.receive(node, shuffled, self._server_random)

    @property
    def estimate(self) -> oh.Estimate:
        """Step 4."""
        return self._server.estimate(self.t)
