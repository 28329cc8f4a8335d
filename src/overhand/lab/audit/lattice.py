"""A lattice attack on the stored bits of a state: do they betray the first blocks?

A state of whole numbers has no more bits than were drawn, if every draw has all of its bits. If
draws are coarser than the state, few of them lead to it, and those are the points of a lattice: of
two values that the victim may hold, the one is nearer to such a point. (Lenstra, Lenstra and Lovasz
1982 for a short basis, Babai 1986 for a near point.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from overhand.lab.audit.blocks import Filter, Leak, ServicesFault, ServicesGame, has_state
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats
from overhand.noise import CorrelatedNoise, DiscreteGaussian
from overhand.randomness import Random

BLOCKS = (1, 2, 3, 6, 8)
"""After how many blocks the state leaks; the victim is in the first."""
_UNIT_BITS = 50  # of a state, to a standard deviation of a draw
_FINE_BITS = 80  # of a unit, where a lattice is made of whole numbers
_SLACK_BITS = 1  # by about so much more than a unit, rounding moves a state
_DUAL_BITS = 512
_SHORTER = 99, 100  # Lovasz's condition


class Direction(NamedTuple):
    """A vector of a short basis; and what of it is at right angles to those before it.

    The latter, its shadow, is times 2^512; and the same divided by the square of its length, too.
    """

    vector: Any
    shadow: Any
    dual: Any


@dataclass(frozen=True)
class LatticeAttack(ServicesGame):
    """Knows the sums of all blocks, the values of all others, and the state after some blocks.

    What it does not know, the registers before the first block and a draw for each, is a point of a
    lattice whose image is near the state. It is scored by how likely its draws are, and by what
    they leave for the rest of the noise.
    """

    leak: Leak = "after"
    blocks: int = 1

    names = ["lattice", "coarse lattice"]
    messages = 1 << 10
    expected_mu = None  # what it scores is no Gaussian
    spreads: ClassVar[dict[str, float]] = {}

    @property
    def noise(self) -> CorrelatedNoise:
        share = self.mechanism.noise_share
        assert isinstance(share, CorrelatedNoise)
        return share

    @property
    def _coarse_bits(self) -> int:
        return coarse_bits(self.noise, self.blocks)

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        noise, state = self.noise.advance(self.noise.start(random, runs), random, self.blocks)
        noise[0] += victim
        zero, one = (self._target(noise, state, value) for value in (0, 1))
        return np.stack([_distances(zero, basis) - _distances(one, basis) for basis in self._bases])

    # All numbers are whole, of 2^-80 units, and by run. A vector has what a point lacks of the
    # state, then its registers and draws, then what is left of the noise of every block: the
    # latter two in their own standard deviations.

    def _target(self, sums: Counts, state: Counts, value: int) -> Any:
        """What the state and the noise of each block are, if the victim holds this value."""
        noise, signals = sums.astype(object), []
        noise[0] -= value
        registers: list[Any] = [np.zeros(sums.shape[1], object)] * len(self._weights)
        for drawn in noise << _FINE_BITS:
            registers, signal = self._pass_on(registers, 0)
            signals.append(self.noise.step * drawn - signal)
            gains = (rotation.gain for rotation in self.noise.rotations)
            registers = [one + gain * drawn for one, gain in zip(registers, gains, strict=True)]
        lacks = (state.astype(object) << _FINE_BITS) - np.stack(registers)
        nothing = np.zeros((len(registers) + self.blocks, sums.shape[1]), object)
        return np.concatenate([lacks, nothing, _in_deviations(np.stack(signals))])

    @cached_property
    def _bases(self) -> list[list[Direction]]:
        return [self._short_basis(1), self._short_basis(1 << self._coarse_bits)]

    def _short_basis(self, unit: int) -> list[Direction]:
        """Of the points that draws lead to which are multiples of this unit."""
        scales = [w**0.5 for w in self._weights] + [1.0] * self.blocks
        rows, one = [], unit << _FINE_BITS
        for place, scale in enumerate(scales):
            draws = [one * (place == i) for i in range(len(scales))]
            registers, signals = draws[: len(self._weights)], []
            for kept in draws[len(self._weights) :]:
                registers, signal = self._pass_on(registers, kept)
                signals.append(_in_deviations(signal))
            own = [round(_in_deviations(draw) * scale) for draw in draws]
            rows.append([*registers, *own, *signals])
        return reduce_basis(rows)

    def _pass_on(self, registers: list[Any], signal: Any) -> tuple[list[Any], Any]:
        """Through all rotations, without their rounding."""
        after = []
        for register, rotation in zip(registers, self.noise.rotations, strict=True):
            signal = signal - (rotation.sine * register >> rotation.sine_bits)
            after.append(register + (rotation.tangent * signal >> rotation.tangent_bits))
            signal = signal - (rotation.sine * after[-1] >> rotation.sine_bits)
        return after, signal

    @cached_property
    def _weights(self) -> Floats:
        return Filter(self.noise).weights


def _in_deviations(numbers: Any) -> Any:
    return numbers >> _UNIT_BITS - _SLACK_BITS


def _distances(target: Any, basis: list[Direction]) -> Floats:
    """The squared distances from the nearest points, in standard deviations."""
    left = _subtract_near_point(target, basis)
    return np.asarray(((left / (1 << _FINE_BITS + _SLACK_BITS)) ** 2).sum(axis=0), np.float64)


def _subtract_near_point(target: Any, basis: list[Direction]) -> Any:
    """Of the lattice, as Babai finds it: direction by direction, the last one first."""
    for vector, _, dual in reversed(basis):
        times = (dual @ target + (1 << _DUAL_BITS - 1)) >> _DUAL_BITS
        target = target - np.multiply.outer(vector, times)
    return target


@dataclass(frozen=True)
class CoarseDraws(CorrelatedNoise):
    """The last bits of everything that is drawn are 0, as if floats were drawn and scaled."""

    bits: int

    @cached_property
    def _samplers(self) -> Any:
        return [_Coarse(one, self.bits) for one in super()._samplers]


@dataclass(frozen=True)
class _Coarse:
    law: DiscreteGaussian
    bits: int

    def draw(self, random: Random, count: int) -> Counts:
        return np.asarray(self.law.draw(random, count) >> self.bits << self.bits)


def coarse_bits(noise: CorrelatedNoise, blocks: int) -> int:
    """If draws lack so many, a state after these blocks has about 50 more bits than entropy."""
    registers = len(noise.rotations)
    return math.ceil(_UNIT_BITS - _UNIT_BITS * (registers - 1) / (registers + blocks))


def coarsen(mechanism: Mechanism, blocks: int) -> Mechanism:
    """The same if draws lack their last bits."""
    noise = mechanism.noise_share
    assert isinstance(noise, CorrelatedNoise)
    bits = coarse_bits(noise, blocks)
    coarse = CoarseDraws(noise.step, noise.rotations, noise.cap, bits)
    return replace(mechanism, noise_share=coarse)


LATTICE_FAULTS = {
    f"coarse draws, {blocks}": ServicesFault(
        LatticeAttack, partial(coarsen, blocks=blocks), has_state, {"blocks": blocks}
    )
    for blocks in BLOCKS
}
"""Every one of them must be accused."""


def _square(vector: Any) -> int:
    return int(vector @ vector)


def reduce_basis(rows: list[list[int]]) -> list[Direction]:
    """A basis of the same lattice with short vectors: LLL (Cohen 1993, 2.6).

    It is found from its first vector on. One that is too short for its place changes places with
    the one before it, and nothing that was found before these two changes.

    >>> [one.vector.tolist() for one in reduce_basis([[1, 1, 1], [-1, 0, 2], [3, 5, 6]])]
    [[0, 1, 0], [1, 0, 1], [-2, 0, 1]]
    """
    left, found = [np.array(row, object) for row in reversed(rows)], list[Direction]()
    while left:
        vector = _subtract_near_point(left.pop(), found)
        shadow = longer = vector << _DUAL_BITS
        for before in found:
            longer = shadow
            shadow = shadow - ((vector @ before.dual) * before.shadow >> _DUAL_BITS)
        if found and _SHORTER[1] * _square(longer) < _SHORTER[0] * _square(found[-1].shadow):
            left += [found.pop().vector, vector]
        else:
            dual = (shadow << 2 * _DUAL_BITS) // _square(shadow)
            found.append(Direction(vector, shadow, dual))
    return found
