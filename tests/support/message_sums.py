"""Algorithm 1 with the fast mechanisms, message by message: what `reference` does with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import overhand as oh
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Messages, Node, Shuffled
from overhand.randomness import Random
from overhand.shuffle import shuffle, with_added


def release(
    mechanism: Mechanism, users: Sequence[Messages], random: Random, noise: Counts | None = None
) -> Shuffled:
    """Step 3: the messages of one full batch in random order, with what the service adds to it.

    That is a row of noise of its own, if services make it.
    """
    batch = Messages.concatenate(list(users))
    assert len(batch.sealed) == mechanism.size
    batches = batch.gather(mechanism.size)
    if noise is not None:
        batches = with_added(batches, mechanism, noise)
    return shuffle(batches, random)


class Service:
    """One of the two services, which draws the noise of block after block, if it makes any."""

    def __init__(self, mechanism: Mechanism, random: Random) -> None:
        self._mechanism, self._random = mechanism, random
        self._makes_noise = mechanism.noise_by == "services"
        if self._makes_noise:
            self._state = mechanism.start_noise(random)

    def draw(self) -> Counts | None:
        """The noise of the next block."""
        if not self._makes_noise:
            return None
        noise, self._state = self._mechanism.advance_noise(self._state, self._random)
        return noise


class ShuffledSum:
    """A running sum of which every user sends messages to one shuffler per level of the tree."""

    def __init__(self, plan: oh.Plan, random: Random, server_random: Random | None = None) -> None:
        self.plan, self.t = plan, 0
        self._random = random
        self._shuffler, self._server_noise = (
            Service(plan.mechanisms[0], one) for one in (random, server_random or random)
        )
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
            mechanism, users = self.plan.mechanism(node), self._open.pop(node)
            shuffled = release(mechanism, users, self._random, self._shuffler.draw())
            self._server.receive(node, shuffled, self._server_noise.draw())

    @property
    def estimate(self) -> oh.Estimate:
        """Step 4."""
        return self._server.estimate(self.t)
