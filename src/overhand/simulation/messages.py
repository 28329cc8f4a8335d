"""The `messages` engine: every message is made, permuted and analyzed."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import BinarySum
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.summation import SumServer

Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]


class MessagesRun:
    """One run of Algorithm 3 over a stream, fed in whole blocks (but for the last users).

    The server is the one that is deployed. Batches of one size are permuted side by side; an
    upper batch keeps its users' messages until it is full, as its shuffler would.
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self.granularity = plan.tree.lowest
        self.messages = 0
        self._plan = plan
        self._random = random
        self._server = SumServer(plan)
        self._t = 0
        self._open: dict[int, list[Bits]] = {level: [] for level in range(1, plan.tree.levels + 1)}
        self._sums: dict[int, deque[float]] = {level: deque() for level in self._open}
        self._ramp: Floats = plan.imputed_weight * np.arange(plan.tree.lowest, dtype=np.float64)

    def estimates(self, bits: Bits) -> Floats:
        """The estimates after each of the next users."""
        lowest = self.granularity
        full = len(bits) // lowest
        self._send_blocks(bits[: full * lowest])
        for level in range(2, self._plan.tree.levels + 1):
            self._send_above(level, bits)
        base = [self._server.cover_sum]
        for _ in range(full):
            base.append(self._receive_block())
        filled: Floats = np.add(np.array(base)[:, np.newaxis], self._ramp)
        self._t += len(bits)
        return filled.reshape(-1)[1 : len(bits) + 1]

    def _send_blocks(self, bits: Bits) -> None:
        (mechanism,) = self._plan.mechanisms[0]
        rows = self._encoded(mechanism, bits).reshape(
            -1, mechanism.size * mechanism.messages_per_user
        )
        shuffled = self._random.permute_bits(rows)
        self._sums[1].extend(mechanism.analyze_many(shuffled).tolist())

    def _send_above(self, level: int, bits: Bits) -> None:
        """Walk over the nodes of a level that these users are in."""
        place, stop = self._t, self._t + len(bits)
        while place < stop:
            node = next((n for n in self._plan.tree.nodes_above(place) if n.level == level), None)
            if node is None:
                place = place // self.granularity * self.granularity + self.granularity
                continue
            until = min(stop, node.stop)
            mechanism = self._plan.mechanism(node)
            self._open[level].append(
                self._encoded(mechanism, bits[place - self._t : until - self._t]).reshape(-1)
            )
            if until == node.stop:
                row = np.concatenate(self._open[level])[np.newaxis]
                self._open[level] = []
                shuffled = self._random.permute_bits(row)
                self._sums[level].append(float(mechanism.analyze_many(shuffled)[0]))
            place = until

    def _encoded(self, mechanism: BinarySum, bits: Bits) -> Bits:
        self.messages += len(bits) * mechanism.messages_per_user
        encoded: Bits = mechanism.encode_many(bits, self._random)
        return encoded

    def _receive_block(self) -> float:
        value = self._sums[1].popleft()
        for node in self._server.receive_blocks(self._server.covered, 1, value):
            self._server.receive_sum(node, self._sums[node.level].popleft())
        return self._server.cover_sum
