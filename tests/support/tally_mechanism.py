"""A third mechanism, as one would add it: this file, and a line of registration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from overhand import mechanisms
from overhand.mechanisms import Mechanism, MessageLayout, NoiseChoice
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.noise import Coins, Noise
from overhand.randomness import Random
from overhand.values import Values


@dataclass(frozen=True)
class TallySum(Mechanism):
    """A user seals a mask for every coordinate, and sends what it holds less the mask in the clear.

    The sealed masks and the clear total come to the sum modulo 2^48. Each of the two services
    adds the noise of one more user: the shuffler's behind masks of its own.
    """

    kind: ClassVar[str] = "tally"
    rounding_share: ClassVar[float] = 0.01
    norm_share: ClassVar[float] = 0.03
    clear_bits: ClassVar[int] = 48

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        return [NoiseChoice(cls)]

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        return np.full(sizes.shape, float(values.dimension))

    @property
    def layout(self) -> MessageLayout:
        dimension = self.values.dimension
        bits = self.clear_bits + (dimension - 1).bit_length()
        return MessageLayout(dimension, bits, dimension, self.clear_bits, added_messages=dimension)

    @property
    def influence(self) -> float:
        return (1 << self.clear_bits) * self.quantizer.unit

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        steps = self.quantizer.to_steps(rows, random).reshape(len(rows), self.values.dimension)
        noise = self.noise_share.draw(random, steps.size).reshape(steps.shape)
        return self._masked(steps.astype(np.int64) + noise, random)

    def _masked(self, secrets: Counts, random: Random) -> Messages:
        masks = random.words(secrets.size, np.uint64).reshape(secrets.shape) & self._mask
        labels = np.arange(self.values.dimension, dtype=np.uint64) << np.uint64(self.clear_bits)
        return Messages(masks | labels, (secrets.astype(np.uint64) - masks) & self._mask)

    @property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.clear_bits) - 1)

    def draw_added(self, random: Random, batches: int = 1) -> Messages:
        noise = self.noise_share.draw(random, batches * self.values.dimension)
        return self._masked(noise.reshape(batches, self.values.dimension), random)

    def server_noise(self, random: Random, batches: int) -> Counts | None:
        drawn = self.noise_share.draw(random, batches * self.values.dimension)
        return drawn.reshape(batches, self.values.dimension)

    def own_steps(self, messages: Messages) -> Counts:
        return self._lift((messages.sealed & self._mask) + messages.clear)

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        labels = shuffled.sealed >> np.uint64(self.clear_bits)
        masks = shuffled.sealed & self._mask
        sums = shuffled.clear.copy() if noise is None else shuffled.clear + noise.astype(np.uint64)
        for j in range(self.values.dimension):
            sums[:, j] += np.where(labels == j, masks, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        return self._lift(sums)

    def _lift(self, sums: Any) -> Counts:
        whole = (sums & self._mask).astype(np.int64)
        modulus = 1 << self.clear_bits
        return np.asarray(np.where(whole > modulus // 2, whole - modulus, whole))

    def noise(self, users: int | None = None) -> Noise:
        """Of all users and both services, or of so many users alone."""
        return self.noise_share.law(self.size + 2 if users is None else users)

    def draw_noise(self, random: Random, batches: int) -> Floats:
        count = batches * self.values.dimension
        return self.quantizer.scale(self.noise_share.draw_sums(random, self.size + 2, count))

    @property
    def draw_cost(self) -> int:
        assert isinstance(self.noise_share, Coins)
        return (self.size + 2) * self.noise_share.bits * self.values.dimension


@pytest.fixture
def tally() -> Iterator[type[TallySum]]:
    """The mechanism, registered as long as a test runs."""
    mechanisms.MECHANISMS[TallySum.kind] = TallySum
    yield TallySum
    del mechanisms.MECHANISMS[TallySum.kind]
