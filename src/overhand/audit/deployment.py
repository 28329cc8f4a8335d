"""What is audited: the encoders and shufflers of all the levels that one user takes part in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import CoinSum, SharesSum
from overhand.model import Messages
from overhand.plan.levels import AnyMechanism
from overhand.randomness import Random, ones_in_rows, seeded_random
from overhand.shufflers import Shuffler

Rows = NDArray[Any]
Counts = NDArray[np.int64]

LEAST_RUNS = 1000
"""Fewer show nothing."""

KNOWN_SEED = 20230
"""A seed that an attacker tries: a fault has it, nothing that is shipped has any."""


@dataclass(frozen=True)
class Deployment:
    """One mechanism a level, lowest level first, and the steps between a value and the server.

    A planted fault is a subclass that gets one of these steps wrong.

    >>> from overhand.randomness import HALF
    >>> coins = [CoinSum(size, noise_bits=4, noise_probability=HALF) for size in (2, 4)]
    >>> deployment = Deployment(tuple(coins))
    >>> rows = neighbours(coins[-1], victim=1, runs=3)
    >>> [level.shape for level in deployment.transcript(rows, seeded_random(1), attempt=0)]
    [(3, 2, 10), (3, 1, 20)]
    """

    mechanisms: tuple[AnyMechanism, ...]

    @property
    def users(self) -> int:
        """The users of the highest batch: lower batches divide them."""
        return self.mechanisms[-1].size

    @property
    def messages(self) -> int:
        """The messages of all these users, on all levels."""
        return self.users * sum(m.messages_per_user for m in self.mechanisms)

    def users_random(self, random: Random, attempt: int) -> Random:
        """Where users take their randomness from."""
        return random

    def encode(self, rows: Rows, random: Random) -> list[Rows]:
        """The messages of these users, level by level: fresh ones for every level."""
        return [m.encode_rows(rows, random) for m in self.mechanisms]

    def shuffle(self, mechanism: AnyMechanism, batches: Rows, random: Random) -> Rows:
        """Every batch in an order of its own: what shufflers do."""
        return random.permute_rows(batches, mechanism.message_bits)

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Rows]:
        """What the server sees: for every level, an array of (runs, batches, messages)."""
        sent = self.encode(rows, self.users_random(random, attempt))
        shown = []
        for mechanism, messages in zip(self.mechanisms, sent, strict=True):
            batches = messages.reshape(-1, mechanism.size * mechanism.messages_per_user)
            shuffled = self.shuffle(mechanism, batches, random)
            shown.append(shuffled.reshape(-1, self.users // mechanism.size, batches.shape[1]))
        return shown


class OneByOne(Deployment):
    """The same with a `Shuffler` object for every batch: slow, and what services run."""

    def shuffle(self, mechanism: AnyMechanism, batches: Rows, random: Random) -> Rows:
        return np.stack([_released(mechanism, batch, random) for batch in batches])


def _released(mechanism: AnyMechanism, batch: Rows, random: Random) -> Rows:
    shuffler = Shuffler()
    shuffler.activate(mechanism)
    shuffler.send_many(range(mechanism.size), Messages(batch.reshape(mechanism.size, -1)))
    return shuffler.release(random)


def neighbours(mechanism: AnyMechanism, victim: int, runs: int) -> Rows:
    """Users of so many runs of the same batch: one holds `victim` (0 or 1), all others 0.

    0 and 1 stand for two values that are as far apart as two can be.
    """
    bits = np.zeros((runs, mechanism.size), np.uint8)
    bits[:, 0] = victim
    return mechanism.values.opposites(bits.reshape(-1))


def moves(mechanism: AnyMechanism) -> dict[int, int]:
    """The coordinates that the victim moves, and by how many steps.

    These are at the ends of their intervals, where rounding is not random.
    """
    ends = mechanism.values.opposites(np.array([0, 1], np.uint8))
    low, high = _steps(mechanism, ends)
    change = high - low
    whole = np.flatnonzero(np.abs(change) == mechanism.coordinate_steps)
    return {int(j): int(change[j]) for j in whole}


def _steps(mechanism: AnyMechanism, rows: Rows) -> Counts:
    steps = mechanism.steps_of(rows, seeded_random(0)).astype(np.int64)
    return np.asarray(steps.reshape(len(rows), -1))


def base(mechanism: AnyMechanism, coordinate: int) -> int:
    """The sum of a moved coordinate's steps if the victim holds 0, as all others do."""
    return int(_steps(mechanism, neighbours(mechanism, 0, 1))[:, coordinate].sum())


def counts(mechanism: AnyMechanism, batches: Rows, coordinate: int) -> Counts:
    """A coordinate's noisy sum of steps in every row of messages."""
    if isinstance(mechanism, SharesSum):
        return _share_sums(mechanism, batches, coordinate)
    if mechanism.values.is_scalar:
        return ones_in_rows(np.ascontiguousarray(batches))
    return np.asarray(np.count_nonzero(batches == 2 * coordinate + 1, axis=1), np.int64)


def _share_sums(mechanism: SharesSum, batches: Rows, coordinate: int) -> Counts:
    bits, mask = np.uint64(mechanism.modulus_bits), np.uint64(mechanism.modulus - 1)
    shares = batches & mask
    if mechanism.values.dimension > 1:
        shares[batches >> bits != coordinate] = 0
    sums = (shares.sum(axis=1, dtype=np.uint64) & mask).astype(np.int64)
    room = (mechanism.modulus - 1 - mechanism.largest_sum) // 2
    return np.asarray(
        np.where(sums > mechanism.largest_sum + room, sums - mechanism.modulus, sums), np.int64
    )


def value_slots(mechanism: CoinSum, coordinate: int) -> slice:
    """Where a user's unary value stands among the messages that it sends."""
    start = int((mechanism.coordinate_steps[:coordinate] + mechanism.noise_bits).sum())
    return slice(start, start + int(mechanism.coordinate_steps[coordinate]))
