"""Coins for tests: how likely they are, and outcomes that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from overhand.model import Counts, Shuffled
from overhand.noise import Coins, CorrelatedNoise, IndependentNoise, NoiseShare, Polya
from overhand.randomness import BinaryFraction, Random

EIGHTH, QUARTER = BinaryFraction(1, 3), BinaryFraction(1, 2)


def one_batch(messages: NDArray[Any]) -> Shuffled:
    """All of these messages as one batch, in the order that they are in."""
    return Shuffled(messages.reshape(1, -1), np.empty((1, 0), np.uint64))


class Chosen(Random):
    """Shows chosen coins, and keeps how likely each of them was."""

    def __init__(self, shown: Sequence[int]) -> None:
        self._left = list(shown)
        self.chance = Fraction(1)

    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        shown, self._left = self._left[:count], self._left[count:]
        assert len(shown) == count
        for coin in shown:
            one = Fraction(probability.numerator, 2**probability.bits)
            self.chance *= one if coin else 1 - one
        return np.array(shown, np.uint8)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        raise NotImplementedError

    def spawn(self, count: int) -> list[Random]:
        raise NotImplementedError

    @property
    def state(self) -> dict[str, Any]:
        raise NotImplementedError


class Given(Chosen):
    """Rounds by chosen uniforms, too."""

    def __init__(self, uniforms: ArrayLike, shown: Sequence[int] = ()) -> None:
        super().__init__(shown)
        self._uniforms = np.asarray(uniforms, np.float64)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        return np.broadcast_to(self._uniforms.reshape(-1), count).copy()


@pytest.fixture
def mean_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """All noise is its mean, whoever makes it: of opposed coins one half shows 1 and one half 0.

    Plans keep their laws, bounds and guarantees, and sums of values in whole steps are exact.
    """

    def toss(coins: Coins, random: object, users: int) -> Any:
        assert coins.opposed
        return np.tile(np.repeat(np.array([0, 1], np.uint8), coins.bits // 2), (users, 1))

    def draw(share: NoiseShare, random: object, count: int) -> Any:
        return np.zeros(count, np.int64)

    def draw_sums(share: NoiseShare, random: object, users: int, count: int, **_: object) -> Any:
        return np.zeros(count)

    def advance(
        share: NoiseShare, state: Counts, random: object, blocks: int, clip: object = None
    ) -> Any:
        return np.zeros((blocks, state.shape[1]), np.int64), state

    monkeypatch.setattr(Coins, "toss", toss)
    for kind in (Coins, Polya):
        monkeypatch.setattr(kind, "draw", draw)
        monkeypatch.setattr(kind, "draw_sums", draw_sums)
    for services in (CorrelatedNoise, IndependentNoise):
        monkeypatch.setattr(services, "advance", advance)
