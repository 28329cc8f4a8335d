"""The `messages` engine: `reference.concurrent_shuffle` on arrays, message by message."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Messages, Rows
from overhand.noise import SERVICES
from overhand.planning import Plan
from overhand.randomness import Random
from overhand.shuffle import shuffle, with_added
from overhand.sums import SumServer

_AT_ONCE = 1 << 22  # messages and numbers in the clear that are in memory together


class MessagesRun:
    """One run of Algorithm 3 over a stream, fed in whole blocks (except for the last users).

    Messages are permuted by the function that services use, and added up by the same server.
    Batches of one size are permuted side by side; an upper batch keeps its users' messages until
    it is full, as its shuffler would, and of numbers in the clear their sum.

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
        self._states: list[Counts] = []  # of the two services' noise, if they make it
        if plan.noise_by == "services":
            self._states = [plan.mechanisms[0].start_noise(random) for _ in range(SERVICES)]
        self._t = 0
        self._open: list[list[Messages]] = [[] for _ in plan.mechanisms]  # of one batch each
        self._sums: list[deque[Any]] = [deque() for _ in plan.mechanisms]
        self._ramp: Floats = np.multiply.outer(
            np.arange(plan.tree.lowest, dtype=np.float64), plan.imputed
        )

    def estimates(self, rows: Rows) -> Floats:
        """The estimates after each of the next users."""
        blocks = max(1, _AT_ONCE // (self.granularity * sum(map(_numbers, self._plan.mechanisms))))
        users = blocks * self.granularity
        parts = [self._estimates(rows[i : i + users]) for i in range(0, len(rows), users)]
        return np.concatenate(parts) if parts else np.empty((0, *self._plan.values.shape))

    def _estimates(self, rows: Rows) -> Floats:
        lowest, mechanism = self.granularity, self._plan.mechanisms[0]
        full = len(rows) // lowest
        blocks = self._shuffled_sums(mechanism, self._batches(mechanism, rows[: full * lowest]))
        for index in range(1, self._plan.tree.levels):
            self._send_above(index, rows)
        covers = np.empty((full + 1, *self._plan.values.shape))
        covers[0], done = self._server.cover_sum, 0
        while done < full:
            done = self._receive_blocks(blocks, covers, done)
        filled: Floats = np.add(covers[:, np.newaxis], self._ramp)
        self._t += len(rows)
        return filled.reshape(-1, *self._plan.values.shape)[1 : len(rows) + 1]

    def _shuffled_sums(self, mechanism: Mechanism, batches: Messages) -> Floats:
        own: Counts | None = None
        if self._states:
            mine, own = (self._advance(mechanism, i, len(batches.sealed)) for i in range(SERVICES))
            batches = with_added(batches, mechanism, mine)
        shuffled = shuffle(batches, self._random, message_bits=mechanism.layout.message_bits)
        return mechanism.analyze(shuffled, own)

    def _advance(self, mechanism: Mechanism, service: int, blocks: int) -> Counts:
        """The noise of one service for the next blocks."""
        state, random = self._states[service], self._random
        noise, self._states[service] = mechanism.advance_noise(state, random, blocks)
        return noise

    def _batches(self, mechanism: Mechanism, rows: Rows) -> Messages:
        """Whole batches of these users: one may be too large to have all its numbers at once."""
        if len(rows) != mechanism.size or not mechanism.layout.clear_numbers:
            return self._encode(mechanism, rows).gather(mechanism.size)
        return _one_batch(self._portions(mechanism, rows))

    def _portions(self, mechanism: Mechanism, rows: Rows) -> list[Messages]:
        """What these users of one batch send, each portion gathered."""
        users = (
            max(1, _AT_ONCE // _numbers(mechanism)) if mechanism.layout.clear_numbers else len(rows)
        )
        portions = [rows[i : i + users] for i in range(0, len(rows), users)]
        return [self._encode(mechanism, some).gather(len(some)) for some in portions]

    def _send_above(self, index: int, rows: Rows) -> None:
        """Walk over the nodes of a level that these users are in."""
        mechanism = self._plan.mechanisms[index]
        size, last = mechanism.size, self._plan.horizon // mechanism.size * mechanism.size
        place, stop = self._t, min(last, self._t + len(rows))
        while place < stop:
            until = min(stop, place - place % size + size)
            some = rows[place - self._t : until - self._t]
            self._open[index] += self._portions(mechanism, some)
            if until % size == 0:
                batch = _one_batch(self._open[index])
                self._open[index] = []
                self._sums[index].extend(self._shuffled_sums(mechanism, batch))
            place = until

    def _encode(self, mechanism: Mechanism, rows: Rows) -> Messages:
        self.messages += len(rows) * mechanism.layout.messages_per_user
        return mechanism.encode_rows(rows, self._random)

    def _receive_blocks(self, blocks: Floats, covers: Floats, done: int) -> int:
        """Hand over blocks up to where others close, too; fill in the sums over the cover.

        Returns how many blocks are done.
        """
        tree, start = self._plan.tree, self._t + done * self.granularity
        above = tree.sizes[1] if tree.levels > 1 else tree.horizon
        until = min(len(blocks), done + (above - start % above) // self.granularity)
        running = np.cumsum(blocks[done:until], axis=0)
        np.add(running, covers[done], out=covers[done + 1 : until + 1])
        self._server.receive_blocks(start, until - done, running[-1])
        for node in tree.closes(self._t + until * self.granularity)[1:]:
            self._server.receive_sum(node, self._sums[node.level - 1].popleft())
        covers[until] = self._server.cover_sum
        return until


def _numbers(mechanism: Mechanism) -> int:
    """What a user sends, message by message and number by number."""
    return mechanism.layout.messages_per_user + mechanism.layout.clear_numbers


def _one_batch(portions: list[Messages]) -> Messages:
    """Gathered portions of a batch as the batch: messages side by side, numbers added up."""
    if len(portions) == 1:
        return portions[0]
    sealed, clear = zip(*portions, strict=True)
    together = np.concatenate([messages[0] for messages in sealed])
    return Messages(together[np.newaxis], np.sum(clear, axis=0, dtype=np.uint64))
