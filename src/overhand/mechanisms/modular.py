"""Sums modulo a power of two: what shares and pairs share."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, Recipe
from overhand.mechanisms.parts import Coins, NoisePart, ServiceNoise
from overhand.model import Counts, Rows
from overhand.randomness import Random
from overhand.values import Values

MOST_MODULUS_BITS = 48


class ModularSum(Mechanism):
    """A user hides its steps plus its noise modulo 2^modulus_bits, coordinate by coordinate.

    A batch shows their sum, and the server brings it back to the range that sums and noise have.

    >>> from overhand.mechanisms import MECHANISMS
    >>> [kind for kind, mechanism in MECHANISMS.items() if issubclass(mechanism, ModularSum)]
    ['shares', 'pairs']
    """

    rounding_share: ClassVar[float] = 0.01
    norm_share: ClassVar[float] = 0.003
    leaks: ClassVar[bool] = True

    modulus_bits: int

    def _check(self) -> None:
        super()._check()
        errors.whole("modulus_bits", self.modulus_bits, least=1, most=MOST_MODULUS_BITS)
        noise = self.noise_part
        part = noise.part if isinstance(noise, ServiceNoise) else noise
        if isinstance(part, Coins) and not part.opposed:
            raise errors.InvalidValue(f"the coins of {self.kind} must be opposed")

    @classmethod
    def recipes(cls, values: Values) -> list[Recipe]:
        """Laplace noise is not bounded in l2."""
        return [Recipe(cls)] if values.moves is None else [Recipe(cls), Recipe(cls, laplace=1)]

    @staticmethod
    def fewest_bits(largest_sum: int, noise: NoisePart, size: int, distance: float) -> int:
        """The bits into which the sum and its noise fit, except with this probability."""
        reach = noise.batch_law(size).reach(distance)
        bits = (largest_sum + 2 * reach).bit_length()
        if bits > MOST_MODULUS_BITS:
            raise errors.Infeasible(
                f"sums of {size} users need {bits} bits, more than {MOST_MODULUS_BITS}"
            )
        return bits

    @property
    def influence(self) -> float:
        """One number, chosen at will, moves the sum to wherever its sender wants."""
        return self.modulus * self.unit

    @property
    def largest_sum(self) -> int:
        """The largest sum of steps that a coordinate can have."""
        return self.size * int(self.coordinate_steps.max())

    @property
    def modulus(self) -> int:
        return 1 << self.modulus_bits

    @property
    def _mask(self) -> np.uint64:
        return np.uint64(self.modulus - 1)

    @cached_property
    def wrap_probability(self) -> float:
        """A bound on the probability that a coordinate's sum does not fit into the modulus."""
        return self.noise().tail(self._room) if self._room >= 0 else 1.0

    @property
    def _room(self) -> int:
        """How far noise may go on either side of the sums without leaving the modulus."""
        return (self.modulus - 1 - self.largest_sum) // 2

    @cached_property
    def sampling_distance(self) -> float:
        """How far the noise that hides a user may be from its law, if each draws its own."""
        return self.noise_part.hiders(self.size) * self.noise_part.sampling_distance

    def entry(self) -> dict[str, Any]:
        return super().entry() | {"modulus_bits": self.modulus_bits}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "modulus_bits": self.modulus_bits,
            "sampling_distance": self.sampling_distance,
            "wrap_probability": self.wrap_probability,
        }

    def _secrets(self, rows: Rows, random: Random) -> NDArray[np.uint64]:
        """The steps of every user and, if users make it, their noise, modulo 2^64."""
        steps = self.steps_of(rows, random).reshape(len(rows), self.values.dimension)
        whole: Counts = steps.astype(np.int64)
        if self.noise_by == "users":
            whole += self._drawn(random, len(rows))
        return whole.astype(np.uint64)

    def _about_zero(self, residues: NDArray[np.uint64]) -> Counts:
        """What one user hides: its noise may be on either side of 0."""
        whole = (residues & self._mask).astype(np.int64)
        return np.asarray(np.where(whole > self.modulus // 2, whole - self.modulus, whole))

    def _lifted(self, sums: NDArray[np.uint64], noise: Counts | None) -> Counts:
        """Residues as the whole numbers of the range, the room for noise on both sides of it."""
        if noise is not None:  # before lifting: a residue hides where it came from
            sums = sums + noise.astype(np.uint64)
        whole = (sums & self._mask).astype(np.int64)
        return np.where(whole > self.largest_sum + self._room, whole - self.modulus, whole)

    @abstractmethod
    def leak(self, honest: int) -> float: ...
