"""Noise drawn ahead of its use, in portions that do not depend on how users arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import Mechanism
from overhand.randomness import Random

_PORTION_COINS = 1 << 16


class NoiseStock:
    """The analyzed noise of the next batches of one mechanism.

    Portions have a fixed length, so that one user at a time and a million at once meet the same
    noise in the same batches.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self._portion = max(1, min(256, _PORTION_COINS // max(1, mechanism.coins_a_batch)))
        self._ready: NDArray[np.float64] = np.empty((0, *mechanism.values.shape))
        self._used = 0

    def take(self, batches: int, random: Random) -> NDArray[np.float64]:
        """The noise of the next so many batches."""
        missing = self._used + batches - len(self._ready)
        if missing > 0:
            portions = -(-missing // self._portion)
            drawn = [self.mechanism.draw_noise(random, self._portion) for _ in range(portions)]
            self._ready = np.concatenate([self._ready[self._used :], *drawn])
            self._used = 0
        self._used += batches
        return self._ready[self._used - batches : self._used]

    def take_one(self, random: Random) -> Any:
        """The noise of the next batch."""
        if self._used == len(self._ready):
            self.take(1, random)
        else:
            self._used += 1
        if self._ready.ndim == 1:
            return self._ready.item(self._used - 1)
        return self._ready[self._used - 1]

    @property
    def state(self) -> list[Any]:
        return list(self._ready[self._used :].tolist())

    def restore(self, state: list[Any]) -> None:
        ready = np.array(state, np.float64)
        self._ready, self._used = ready.reshape(-1, *self.mechanism.values.shape), 0
