"""The `messages` engine: every message is made, permuted and analyzed."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import Mechanism
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.summation import SumServer

Floats = NDArray[np.float64]
Rows = NDArray[Any]

_AT_ONCE = 1 << 22  # messages that are made at once, if they are more than those of a block


class MessagesRun:
    """One run of Algorithm 3 over a stream, fed in whole blocks (but for the last users).

    The server is the one that is deployed. Batches of one size are permuted side by side; an
    upper batch keeps its users' messages until it is full, as its shuffler would.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> run = MessagesRun(plan, oh.seeded_random(1))
    >>> estimates = run.estimates(np.ones(300, np.uint8))
    >>> bool(abs(estimates - np.arange(1, 301)).max() < plan.error_bound(1e-3))
    True
    >>> run.messages, 300 * plan.messages_per_user  # the last three users are in one batch only
    (16779, 16800)
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self.granularity = plan.tree.lowest
        self.messages = 0
        self._plan = plan
        self._random = random
        self._server = SumServer(plan)
        self._t = 0
        self._open: dict[int, list[Rows]] = {level: [] for level in range(1, plan.tree.levels + 1)}
        self._sums: dict[int, deque[Any]] = {level: deque() for level in self._open}
        self._ramp: Floats = np.multiply.outer(
            np.arange(plan.tree.lowest, dtype=np.float64), plan.imputed
        )

    def estimates(self, rows: Rows) -> Floats:
        """The estimates after each of the next users."""
        blocks = max(1, _AT_ONCE // (self.granularity * self._plan.messages_per_user))
        users = blocks * self.granularity
        parts = [self._estimates(rows[i : i + users]) for i in range(0, len(rows), users)]
        return np.concatenate(parts) if parts else np.empty((0, *self._plan.values.shape))

    def _estimates(self, rows: Rows) -> Floats:
        lowest = self.granularity
        full = len(rows) // lowest
        self._send_blocks(rows[: full * lowest])
        for level in range(2, self._plan.tree.levels + 1):
            self._send_above(level, rows)
        base = [self._server.cover_sum]
        for _ in range(full):
            base.append(self._receive_block())
        filled: Floats = np.add(np.array(base)[:, np.newaxis], self._ramp)
        self._t += len(rows)
        return filled.reshape(-1, *self._plan.values.shape)[1 : len(rows) + 1]

    def _send_blocks(self, rows: Rows) -> None:
        (mechanism,) = self._plan.mechanisms[0]
        messages = self._encoded(mechanism, rows)
        batches = messages.reshape(-1, mechanism.size * mechanism.messages_per_user)
        self._sums[1].extend(self._shuffled_sums(mechanism, batches))

    def _shuffled_sums(self, mechanism: Mechanism, batches: Rows) -> list[Any]:
        shuffled = self._random.permute_rows(batches, mechanism.message_bits)
        sums = mechanism.analyze_many(shuffled)
        return sums.tolist() if mechanism.values.is_scalar else list(sums)

    def _send_above(self, level: int, rows: Rows) -> None:
        """Walk over the nodes of a level that these users are in."""
        place, stop = self._t, self._t + len(rows)
        while place < stop:
            node = next((n for n in self._plan.tree.nodes_above(place) if n.level == level), None)
            if node is None:
                place = place // self.granularity * self.granularity + self.granularity
                continue
            until = min(stop, node.stop)
            mechanism = self._plan.mechanism(node)
            self._open[level].append(
                self._encoded(mechanism, rows[place - self._t : until - self._t]).reshape(-1)
            )
            if until == node.stop:
                batch = np.concatenate(self._open[level])[np.newaxis]
                self._open[level] = []
                self._sums[level].extend(self._shuffled_sums(mechanism, batch))
            place = until

    def _encoded(self, mechanism: Mechanism, rows: Rows) -> Rows:
        self.messages += len(rows) * mechanism.messages_per_user
        encoded: Rows = mechanism.encode_rows(rows, self._random)
        return encoded

    def _receive_block(self) -> Any:
        value = self._sums[1].popleft()
        for node in self._server.receive_blocks(self._server.covered, 1, value):
            self._server.receive_sum(node, self._sums[node.level].popleft())
        return self._server.cover_sum
