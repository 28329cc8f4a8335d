"""A third mechanism, as one would add it: this file, and a line of registration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from overhand import mechanisms
from overhand.mechanisms import Coins, Mechanism, Noise, NoisePart, Recipe
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.randomness import Random
from overhand.values import BITS, Values


@dataclass(frozen=True)
class TallySum(Mechanism):
    """A user seals a mask for every coordinate, and sends what it holds less the mask in the clear.

    The sealed masks and the clear total come to the sum modulo 2^48. Each of the two services
    adds the noise of one more user: the shuffler's behind masks of its own.
    """

    kind: ClassVar[str] = "tally"
    rounding_share: ClassVar[float] = 0.01
    norm_share: ClassVar[float] = 0.03
    clear_bits = 48

    size: int
    noise_part: NoisePart
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        self._check()

    @classmethod
    def recipes(cls, values: Values) -> list[Recipe]:
        return [Recipe(cls)]

    @classmethod
    def fitted(
        cls,
        size: int,
        noise_part: NoisePart,
        *,
        honest: int,
        distance: float,
        values: Values,
        steps: int,
    ) -> TallySum:
        return cls(size, noise_part, values, steps)

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        return np.full(sizes.shape, float(values.dimension))

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> TallySum:
        return cls(saved["size"], noise, values, saved["steps"])

    @property
    def messages_per_user(self) -> int:
        return self.values.dimension

    @property
    def clear_numbers(self) -> int:  # type: ignore[override]
        return self.values.dimension

    @property
    def added_messages(self) -> int:  # type: ignore[override]
        return self.values.dimension

    @property
    def message_bits(self) -> int:
        return self.clear_bits + (self.values.dimension - 1).bit_length()

    @property
    def influence(self) -> float:
        return (1 << self.clear_bits) * self.unit

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        steps = self.steps_of(rows, random).reshape(len(rows), self.values.dimension)
        noise = self.noise_part.draw(random, steps.size).reshape(steps.shape)
        return self._masked(steps.astype(np.int64) + noise, random)

    def _masked(self, secrets: Counts, random: Random) -> Messages:
        masks = random.words(secrets.size, np.uint64).reshape(secrets.shape) & self._mask
        labels = np.arange(self.values.dimension, dtype=np.uint64) << np.uint64(self.clear_bits)
        return Messages(masks | labels, (secrets.astype(np.uint64) - masks) & self._mask)

    @property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.clear_bits) - 1)

    def added(self, random: Random, batches: int = 1) -> Messages:
        noise = self.noise_part.draw(random, batches * self.values.dimension)
        return self._masked(noise.reshape(batches, self.values.dimension), random)

    def server_noise(self, random: Random, batches: int) -> Counts | None:
        drawn = self.noise_part.draw(random, batches * self.values.dimension)
        return drawn.reshape(batches, self.values.dimension)

    def own_steps(self, messages: Messages) -> Counts:
        return self._lifted((messages.sealed & self._mask) + messages.clear)

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        labels = shuffled.sealed >> np.uint64(self.clear_bits)
        masks = shuffled.sealed & self._mask
        sums = shuffled.clear.copy() if noise is None else shuffled.clear + noise.astype(np.uint64)
        for j in range(self.values.dimension):
            sums[:, j] += np.where(labels == j, masks, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        return self._lifted(sums)

    def _lifted(self, sums: Any) -> Counts:
        whole = (sums & self._mask).astype(np.int64)
        modulus = 1 << self.clear_bits
        return np.asarray(np.where(whole > modulus // 2, whole - modulus, whole))

    def noise(self, users: int | None = None) -> Noise:
        """Of all users and both services, or of so many users alone."""
        return self.noise_part.law(self.size + 2 if users is None else users)

    def draw_noise(self, random: Random, batches: int) -> Floats:
        count = batches * self.values.dimension
        return self.scaled(self.noise_part.draw_sums(random, self.size + 2, count))

    @property
    def draw_cost(self) -> int:
        assert isinstance(self.noise_part, Coins)
        return (self.size + 2) * self.noise_part.bits * self.values.dimension


@pytest.fixture
def tally() -> Iterator[type[TallySum]]:
    """The mechanism, registered as long as a test runs."""
    mechanisms.MECHANISMS[TallySum.kind] = TallySum
    yield TallySum
    del mechanisms.MECHANISMS[TallySum.kind]
