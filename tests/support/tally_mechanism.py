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
from overhand.randomness import Random
from overhand.values import Values


@dataclass(frozen=True)
class TallySum(Mechanism):
    """A user seals two numbers for every coordinate, which come to what it holds modulo 2^48."""

    kind: ClassVar[str] = "tally"
    rounding_share: ClassVar[float] = 0.01
    norm_share: ClassVar[float] = 0.03
    bits: ClassVar[int] = 48

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        return [NoiseChoice(cls)]

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        return np.full(sizes.shape, 2.0 * values.dimension)

    @property
    def layout(self) -> MessageLayout:
        dimension = self.values.dimension
        return MessageLayout(2 * dimension, self.bits + (dimension - 1).bit_length())

    @property
    def influence(self) -> float:
        return (1 << self.bits) * self.quantizer.unit

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        steps = self.quantizer.to_steps(rows, random).reshape(len(rows), self.values.dimension)
        noise = self.noise_share.draw(random, steps.size).reshape(steps.shape)
        return self._masked(steps.astype(np.int64) + noise, random)

    def _masked(self, secrets: Counts, random: Random) -> Messages:
        masks = random.words(secrets.size, np.uint64).reshape(secrets.shape) & self._mask
        labels = np.arange(self.values.dimension, dtype=np.uint64) << np.uint64(self.bits)
        rest = (secrets.astype(np.uint64) - masks) & self._mask
        return Messages.of(np.hstack([masks | labels, rest | labels]))

    @property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.bits) - 1)

    def own_steps(self, messages: Messages) -> Counts:
        halves = np.hsplit(messages.sealed & self._mask, 2)
        return self._lift(halves[0] + halves[1])

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        labels, parts = shuffled.sealed >> np.uint64(self.bits), shuffled.sealed & self._mask
        sums = [
            np.where(labels == j, parts, np.uint64(0)).sum(axis=1, dtype=np.uint64)
            for j in range(self.values.dimension)
        ]
        return self._lift(np.stack(sums, axis=1))

    def _lift(self, sums: Any) -> Counts:
        whole = (sums & self._mask).astype(np.int64)
        modulus = 1 << self.bits
        return np.asarray(np.where(whole > modulus // 2, whole - modulus, whole))


@pytest.fixture
def tally() -> Iterator[type[TallySum]]:
    """The mechanism, registered as long as a test runs."""
    mechanisms.MECHANISMS[TallySum.kind] = TallySum
    yield TallySum
    del mechanisms.MECHANISMS[TallySum.kind]
