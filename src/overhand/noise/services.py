"""The noise of the two services: what each of them adds to the blocks of a plan, one by one.

Each hides a user from the other service and from everybody else; estimates have both. Noise may be
correlated over blocks, so it has a state, which is secret: whoever publishes a block replaces the
state in the same step (`docs/correlated.md`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.model import Counts, Floats
from overhand.noise.gaussian import DiscreteGaussian, GaussianNoise, discrete_gaussian
from overhand.noise.laws import LaplaceNoise, Noise
from overhand.noise.shares import NoiseShare, Polya, share_of
from overhand.noise.tables import exactly
from overhand.randomness import Random

SERVICES = 2
"""The shuffling service and the server."""
BEYOND = 100
"""A plan goes on for this many times its expected blocks: that many are paid for."""

Clip = Callable[[Counts], Counts]
"""What a mechanism makes of the noise of one block before it is used, and remembered."""

_ROTATIONS = 6
_ROTATION_BITS = 7
_LOG_FIRST, _LAST = math.log(1.2), 0.68  # 1 - pole: from 1.2 / blocks to 0.68, evenly in logarithms
_FEWEST_BLOCKS = 3
_UNIT_BITS = 50  # a state is in units of which 2^50 are a standard deviation of a draw
_UNITS = 1 << _UNIT_BITS
_BETA = 2  # a draw is half kept in the state, half forgotten: a leak costs that factor of mu^2
_FEWEST_UNITS = 1 << 16  # of a step
_MOST_SHIFT, _MOST_GAIN, _MOST_WEIGHT = 40, 16, 2  # far more than the rule comes to
_AT_ONCE = 1 << 16  # numbers of a signal, or variances: they fit into a cache
_WORK_BITS = 400
_FEW_COORDINATES = 12  # for fewer, Python's whole numbers are quicker than arrays
_MANY_TIMES = 1 << 12
_NO_INVERSE = "poles and zeros of the noise do not alternate in (0, 1): its variance is not known"


class ServiceNoise(NoiseShare):
    """What each of the two services adds to a block; `cap` is how many blocks there may be.

    Rows of noise are numbered by the service that draws them, from 0. All variances are of one
    coordinate of one service's noise, in squared steps.

    >>> from overhand.randomness import secure_random
    >>> noise: ServiceNoise = CorrelatedNoise.of(deviation=3.0, blocks=100)
    >>> random = secure_random()
    >>> state = noise.start(random, coordinates=2)
    >>> rows, state = noise.advance(state, random, blocks=4)
    >>> rows.shape, noise.cap
    ((4, 2), 10000)
    >>> noise.prefix_variance([1, 4, 100]).round(1)  # and not four times, or a hundred times it
    array([ 9.1, 15.4, 34.6])
    """

    cap: int

    def batch_law(self, users: int) -> Noise:
        return self.law(SERVICES)

    @abstractmethod
    def start(self, random: Random, coordinates: int) -> Counts:
        """A fresh state: whole numbers, a column for every coordinate. Secret."""

    @abstractmethod
    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        """The noise of the next blocks, a row for each, and the state after them."""

    def mu(self, shift: float) -> float | None:
        """All blocks ever are mu-GDP for a user who moves one of them by this in l2, if any mu."""
        return None

    def state_distance(self, coordinates: int) -> float:
        """How far all blocks are, in total variation, from the noise that `mu` is about."""
        return 0.0

    @abstractmethod
    def covariance(self, left: Any, right: Any) -> Floats:
        """Of the noise of the first `left` rows together, and of the first `right` ones."""

    @abstractmethod
    def whiten(self, weights: Floats) -> Floats:
        """Independent noise of these weights and of variance 1 has the variances of this noise.

        And so the covariance of two weighted sums of rows is the product of what this makes of
        their weights.
        """

    def prefix_variance(self, rows: Any) -> Floats:
        """Of the noise of the first rows together; of many, some at a time."""
        rows = np.asarray(rows)
        parts = np.array_split(rows.reshape(-1), 1 + rows.size // _AT_ONCE)
        found = np.concatenate([self.covariance(part, part) for part in parts])
        return found.reshape(rows.shape)

    @abstractmethod
    def mean_prefix_variance(self, rows: int) -> float:
        """The mean of `prefix_variance` over 0 .. rows - 1."""

    def prefix_log_mgf(self, s: float, services: int, rows: int) -> float:
        """A bound on ln E exp(+-s X) of the noise of the first rows of so many services."""
        return services * float(self.prefix_variance(rows)) * s**2 / 2


@dataclass(frozen=True)
class IndependentNoise(ServiceNoise):
    """Discrete Laplace noise, afresh for every block: there is no state.

    >>> noise = IndependentNoise(Polya(shape=1, users=1, ratio=0.5), cap=100)
    >>> noise.law(2).variance, noise.prefix_variance([1, 3])
    (8.0, array([ 4., 12.]))
    """

    part: Polya
    cap: int

    def __post_init__(self) -> None:
        errors.whole("cap", self.cap, least=1)

    def law(self, contributors: int) -> LaplaceNoise:
        return self.part.law(contributors)

    def start(self, random: Random, coordinates: int) -> Counts:
        return np.zeros((0, coordinates), np.int64)

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        coordinates = state.shape[1]
        drawn = self.part.draw(random, blocks * coordinates).reshape(blocks, coordinates)
        return (drawn if clip is None else clip(drawn)), state

    @cached_property
    def _variance(self) -> float:
        return self.part.law(1).variance

    def covariance(self, left: Any, right: Any) -> Floats:
        return np.asarray(self._variance * np.minimum(left, right))

    def whiten(self, weights: Floats) -> Floats:
        return np.asarray(math.sqrt(self._variance) * weights)

    def mean_prefix_variance(self, rows: int) -> float:
        return self._variance * (rows - 1) / 2

    def prefix_log_mgf(self, s: float, services: int, rows: int) -> float:
        return self.part.law(services * rows).log_mgf_bound(s)

    @property
    def sampling_distance(self) -> float:
        return self.part.sampling_distance

    def reduce(self, part: float, users: int) -> IndependentNoise:
        return replace(self, part=self.part.reduce(part, 1))

    def entry(self) -> dict[str, Any]:
        return {"each_service": self.part.entry(), "cap": self.cap}


class Rotation(NamedTuple):
    """A section of the filter: a plane rotation of its register and the signal, in three shears.

    A shear adds floor(c x + u) of one to the other, with a uniform offset u below 1; so a rotation
    is a bijection of whole numbers. Its shears are by `sine` / 2^`sine_bits` and `tangent` /
    2^`tangent_bits`; then `gain` times the noise that was drawn is added to the register.
    """

    sine: int
    sine_bits: int
    tangent: int
    tangent_bits: int
    gain: int

    def check(self, step: int) -> None:
        """Refuse what could be too large for a state in words of 64 bits, or is no rotation."""
        for name in ("sine", "tangent"):
            errors.whole(name, getattr(self, name), least=1, most=1 << _ROTATION_BITS)
            errors.whole(f"{name}_bits", getattr(self, f"{name}_bits"), least=0, most=_MOST_SHIFT)
        errors.whole("gain", self.gain, least=-_MOST_GAIN * step, most=_MOST_GAIN * step)
        if not 0 < self.pole < 1:
            raise errors.InvalidValue(f"a pole of {float(self.pole):g} is not in (0, 1)")
        if not 1 / _MOST_WEIGHT <= self.weight <= _MOST_WEIGHT:
            raise errors.InvalidValue(
                f"the weight of a register, {float(self.weight):g}, is not near 1"
            )

    @property
    def s(self) -> Fraction:
        return Fraction(self.sine, 1 << self.sine_bits)

    @property
    def t(self) -> Fraction:
        return Fraction(self.tangent, 1 << self.tangent_bits)

    @property
    def pole(self) -> Fraction:
        return 1 - self.s * self.t

    @property
    def weight(self) -> Fraction:
        """The register's: weight x register^2 + signal^2 does not change."""
        return self.s * (2 - self.s * self.t) / self.t

    @property
    def through(self) -> Fraction:
        """How much of the register goes into the signal."""
        return self.s * (2 - self.s * self.t)


class _Poles(NamedTuple):
    """C and its inverse in floats, by what their poles lack to 1: see `docs/correlated.md`.

    The coefficients of the inverse's running sums are sum_i amplitudes_i (1 - lacks_i)^k, of which
    the first lacks nothing.
    """

    lacks: Floats
    amplitudes: Floats

    @property
    def logs(self) -> Floats:
        return np.log1p(-self.lacks)

    @property
    def products(self) -> tuple[Floats, Floats]:
        """What the products of two of them lack to 1, and their logarithms; 1 and 0 for the first.

        (Sums of its powers are not those of a geometric series.)
        """
        lacks = self.lacks[:, np.newaxis] + self.lacks - self.lacks[:, np.newaxis] * self.lacks
        lacks[0, 0] = 1.0
        return lacks, self.logs[:, np.newaxis] + self.logs


@dataclass(frozen=True)
class CorrelatedNoise(ServiceNoise):
    """W_t = round(z_t - sum_k c_k W_(t-k)), by a chain of `rotations` of whole numbers.

    The z_t are Gaussian; `step` is how many units of the state a step of a count has, so they have
    a standard deviation of 2^50 sqrt(2) / step. The c_k follow from the rotations.

    The state never shows the noise that went into it: one leak of it, at any time, costs a user
    twice the mu^2 of the plan at most.

    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> round(noise.deviation, 3), round(noise.norm, 3), round(noise.mu(1.0), 4)
    (8.9, 2.098, 0.2357)
    """

    step: int
    rotations: tuple[Rotation, ...]
    cap: int

    def __post_init__(self) -> None:
        errors.whole("cap", self.cap, least=1)
        errors.whole("step", self.step, least=_FEWEST_UNITS, most=1 << 62)
        errors.whole("the number of rotations", len(self.rotations), least=1, most=16)
        for rotation in self.rotations:
            rotation.check(self.step)
        if len({rotation.pole for rotation in self.rotations}) < len(self.rotations):
            raise errors.InvalidValue("two rotations have the same pole")

    @classmethod
    def of(cls, deviation: float, blocks: int) -> CorrelatedNoise:
        """The noise with the least error over so many blocks, for this deviation of z_t."""
        deviation = errors.finite_number("deviation", deviation, above=0)
        step = math.floor(_UNITS * math.sqrt(_BETA) / deviation)
        if step < _FEWEST_UNITS:
            raise errors.Infeasible(f"noise of standard deviation {deviation:.3g} is too wide")
        rotations = tuple(
            Rotation(*shears, math.floor(gain * step + 0.5)) for shears, gain in _rule(blocks)
        )
        return cls(step, rotations, BEYOND * blocks)

    # What privacy depends on, exactly.

    @cached_property
    def deviation(self) -> float:
        """That of z_t, in steps."""
        return _UNITS * math.sqrt(_BETA) / self.step

    @cached_property
    def square_norm(self) -> Fraction:
        """The sum of c_k^2 over all k, to infinity."""
        gains = (r.weight * Fraction(r.gain, self.step) ** 2 for r in self.rotations)
        return 1 + sum(gains, Fraction(0))

    @property
    def norm(self) -> float:
        return math.sqrt(self.square_norm)

    def mu(self, shift: float) -> float:
        """Rounded up."""
        return float(shift * self.norm / self.deviation * (1 + 1e-12))

    def state_distance(self, coordinates: int) -> float:
        """Together with one leak of the state, at any time."""
        spread = sum((2 + r.weight + r.s**2) / 4 for r in self.rotations)
        inexact = math.sqrt(float(spread) * self.cap * coordinates / 4) / _UNITS
        draws = coordinates * (2 * self.cap + len(self.rotations))
        return float(inexact + draws * max(law.distance for law in self._samplers))

    # Drawing.

    @cached_property
    def _samplers(self) -> list[DiscreteGaussian]:
        """Of a draw, and of every register before the first block."""
        weights = [Fraction(1), *(r.weight for r in self.rotations)]
        return [discrete_gaussian(_UNITS**2 / weight) for weight in weights]

    def start(self, random: Random, coordinates: int) -> Counts:
        return np.stack([law.draw(random, coordinates) for law in self._samplers[1:]])

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        registers, coordinates = state.shape
        most, noise = max(1, _AT_ONCE // max(1, coordinates)), list[Counts]()
        for start in range(0, blocks, most):
            some = min(most, blocks - start)
            drawn = self._samplers[0].draw(random, 2 * some * coordinates)
            kept, forgotten = drawn.reshape(2, some, coordinates)
            offsets = random.words(3 * registers * some, np.uint64).reshape(some, 3 * registers)
            offsets = (offsets & self._offset_masks).astype(np.int64)
            is_many = coordinates > _FEW_COORDINATES
            rows, state = self._move(state, kept, forgotten, offsets, clip, at_once=is_many)
            noise.append(rows)
        return np.concatenate(noise) if noise else np.empty((0, coordinates), np.int64), state

    @cached_property
    def _offset_masks(self) -> Any:
        bits = [(r.sine_bits, r.tangent_bits, r.sine_bits) for r in self.rotations]
        return np.array([(1 << one) - 1 for three in bits for one in three], np.uint64)

    def _move(
        self, state: Counts, kept: Counts, forgotten: Counts, offsets: Counts, clip: Clip | None,
        *, at_once: bool,
    ) -> tuple[Counts, Counts]:  # fmt: skip
        """A block after the other: all coordinates at once, or each in Python's whole numbers."""
        noise = np.empty_like(kept)
        columns: list[Any] = [list(state)] if at_once else state.T.tolist()

        def split(row: Counts) -> list[Any]:
            return [row] if at_once else row.tolist()

        gains, half = [r.gain for r in self.rotations], self.step // 2
        for block, of_block in enumerate(offsets.tolist()):
            draws = zip(columns, split(kept[block]), split(forgotten[block]), strict=True)
            signals = [self._rotate(one, signal, of_block) + more for one, signal, more in draws]
            row = [(signal + half) // self.step for signal in signals]
            here = noise[block : block + 1]
            here[:] = row
            if clip is not None:
                here[:] = clip(here)
                row = split(here[0])
            for registers, drawn in zip(columns, row, strict=True):
                for i, gain in enumerate(gains):
                    registers[i] = registers[i] + gain * drawn
        after = np.array(columns, np.int64)
        return noise, after[0] if at_once else after.T.copy()

    def _rotate(self, registers: list[Any], signal: Any, offsets: list[int]) -> Any:
        """The signal after all sections; the registers are replaced."""
        for i, (sine, sine_bits, tangent, tangent_bits, _) in enumerate(self.rotations):
            register = registers[i]
            signal = signal - ((sine * register + offsets[3 * i]) >> sine_bits)
            register = register + ((tangent * signal + offsets[3 * i + 1]) >> tangent_bits)
            signal = signal - ((sine * register + offsets[3 * i + 2]) >> sine_bits)
            registers[i] = register
        return signal

    # What errors depend on, in floats.

    @cached_property
    def _variance(self) -> float:
        """Of z_t and of rounding."""
        return self.deviation**2 + 1 / 12

    @cached_property
    def _poles(self) -> _Poles:
        return _invert(self.rotations, self.step)

    def law(self, contributors: int) -> GaussianNoise:
        """Of a single block, if nothing is known of others.

        Its own rounding, and what is left of that of blocks before it, move it by less than 1; but
        to go beyond a whole number is to go beyond it by 1.
        """
        # Beside that of z_t, the variance of W_t is the sum of squares of the inverse's terms.
        variance = contributors * self._variance * _sum_of_squares(self._poles)
        return GaussianNoise(variance, contributors - 1)

    def covariance(self, left: Any, right: Any) -> Floats:
        return self._variance * _covariance(self._poles, np.asarray(left), np.asarray(right))

    def whiten(self, weights: Floats) -> Floats:
        from scipy.signal import lfilter

        backwards = weights[::-1]
        whole = backwards.astype(np.float64)
        for lack, amplitude in zip(self._poles.lacks[1:], self._poles.amplitudes[1:], strict=True):
            whole += lfilter([0.0, -amplitude * lack], [1.0, lack - 1], backwards)
        return np.asarray(math.sqrt(self._variance) * whole[::-1])

    def mean_prefix_variance(self, rows: int) -> float:
        return self._variance * _mean_prefix_variance(self._poles, rows)

    @property
    def sampling_distance(self) -> float:
        return 0.0  # `state_distance` has it

    def reduce(self, part: float, users: int) -> CorrelatedNoise:
        """Narrower draws go through the same filter."""
        step = round(self.step / math.sqrt(part))
        gains = (round(r.gain * step / self.step) for r in self.rotations)
        rotations = (r._replace(gain=g) for r, g in zip(self.rotations, gains, strict=True))
        return replace(self, step=step, rotations=tuple(rotations))

    def entry(self) -> dict[str, Any]:
        rotations = [list(rotation) for rotation in self.rotations]
        return {"step": self.step, "rotations": rotations, "cap": self.cap}


def noise_of(entry: dict[str, Any]) -> NoiseShare:
    """The noise of an entry: a user's share of it, or that of each service.

    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> noise_of(noise.entry()) == noise
    True
    """
    if "step" in entry:
        rotations = tuple(Rotation(*one) for one in entry["rotations"])
        return CorrelatedNoise(entry["step"], rotations, entry["cap"])
    if "each_service" in entry:
        part = share_of(entry["each_service"])
        if not isinstance(part, Polya):
            raise errors.InvalidValue("independent noise of services is Laplace noise")
        return IndependentNoise(part, entry["cap"])
    return share_of(entry)


@lru_cache(maxsize=256)
def _rule(blocks: int) -> tuple[tuple[tuple[int, int, int, int], float], ...]:
    """The shears of every rotation, and its gain in steps, for the least error over `blocks`.

    Poles and zeros of C lack amounts to 1 that are evenly spaced in logarithms.
    """
    import mpmath

    first = _LOG_FIRST - math.log(max(blocks, _FEWEST_BLOCKS))
    logs = np.linspace(first, math.log(_LAST), 2 * _ROTATIONS)
    lacks = np.exp(logs).tolist()
    shears = [_shears(lack) for lack in lacks[::2]]
    rotations = [Rotation(*one, 0) for one in shears]
    with mpmath.workprec(_WORK_BITS):
        poles = [exactly(r.pole) for r in rotations]
        zeros = [1 - mpmath.mpf(lack) for lack in lacks[1::2]]
        residues = [
            mpmath.fprod(pole - zero for zero in zeros)
            / mpmath.fprod(pole - other for other in poles if other != pole)
            for pole in poles
        ]
        return tuple(zip(shears, _gains(rotations, poles, residues), strict=True))


def _shears(lack: float) -> tuple[int, int, int, int]:
    """s = sqrt((1 - pole) / (1 + pole)) and t = (1 - pole) / s, to seven bits."""
    sine, sine_bits = _to_bits(math.sqrt(lack / (2 - lack)))
    tangent, tangent_bits = _to_bits(lack / (sine / 2**sine_bits))
    return sine, sine_bits, tangent, tangent_bits


def _to_bits(number: float) -> tuple[int, int]:
    bits = max(0, _ROTATION_BITS - math.frexp(number)[1])
    return round(number * 2**bits), bits


def _gains(rotations: list[Rotation], poles: list[Any], residues: list[Any]) -> list[float]:
    """What makes C(x) = 1 + sum_i residues_i x / (1 - poles_i x).

    At x = poles_j all sections before the j-th vanish: so the last gain comes first.
    """
    import mpmath

    gains: list[Any] = [mpmath.mpf(0)] * len(rotations)
    for j, x in reversed(list(enumerate(poles))):
        through = _transfers(rotations, poles, x)
        wanted = mpmath.fdot(residues, [1 / (1 - p * x) for p in poles])
        gains[j] = (wanted - mpmath.fdot(gains, through)) / through[j]
    return [float(gain) for gain in gains]


def _transfers(rotations: Sequence[Rotation], poles: list[Any], x: Any) -> list[Any]:
    """From the register of every section to the output, through all sections after it."""
    found, after = list[Any](), 1
    for rotation, pole in reversed(list(zip(rotations, poles, strict=True))):
        found.append(exactly(rotation.through) / (1 - pole * x) * after)
        after *= (pole - x) / (1 - pole * x)
    return found[::-1]


@lru_cache(maxsize=256)
def _invert(rotations: tuple[Rotation, ...], step: int) -> _Poles:
    """The running sums of C's inverse."""
    import mpmath
    from scipy.optimize import brentq

    with mpmath.workprec(_WORK_BITS):
        lacks = [exactly(r.s * r.t) for r in rotations]
        gains = [exactly(r.through * r.gain / step) for r in rotations]
        order = sorted(range(len(lacks)), key=lambda m: lacks[m])
        poles, weights = [lacks[m] for m in order], [_residue(lacks, gains, m) for m in order]
        if min(weights) <= 0:
            raise errors.InvalidValue(_NO_INVERSE)

        def denominator(lack: Any) -> Any:
            return 1 + mpmath.fsum(w / (p - lack) for w, p in zip(weights, poles, strict=True))

        # Zeros of C lie between its poles, and one beyond the last, if all residues are positive.
        ends = [*poles[1:], poles[-1] + mpmath.fsum(weights)]
        zeros = []
        for low, high in zip(poles, ends, strict=True):
            margin = (high - low) / 2**40
            ends_inside = float(low + margin), float(high - margin)
            try:
                root = brentq(lambda x: float(denominator(mpmath.mpf(x))), *ends_inside)
            except ValueError as error:  # a pole and a zero cancel, or nearly
                raise errors.InvalidValue(_NO_INVERSE) from error
            zero = mpmath.findroot(denominator, (root, root * (1 + 1e-9)))
            if not low < zero < min(high, 1):
                raise errors.InvalidValue(_NO_INVERSE)
            zeros.append(zero)
        steady = mpmath.fprod(poles) / mpmath.fprod(zeros)
        amplitudes = [
            mpmath.fprod(pole - zero for pole in poles)
            / mpmath.fprod(other - zero for other in zeros if other != zero)
            / -zero
            for zero in zeros
        ]
        return _Poles(
            np.array([0.0, *map(float, zeros)]), np.array([float(steady), *map(float, amplitudes)])
        )


def _residue(lacks: list[Any], gains: list[Any], m: int) -> Any:
    """How much of the m-th pole there is in C, through all sections after each register."""
    import mpmath

    poles = [1 - lack for lack in lacks]
    x = 1 / poles[m]
    passed = [(pole - x) / (1 - pole * x) for j, pole in enumerate(poles) if j != m]
    total = gains[m] * mpmath.fprod(passed[m:])
    for i in range(m):
        total += gains[i] / (1 - poles[i] * x) * mpmath.fprod(passed[i + 1 :]) * (poles[m] - x)
    return total


def _covariance(poles: _Poles, left: Counts, right: Counts) -> Floats:
    """Cov(N_t, N_u) = sum_ij a_i a_j r_j^(u-t) (1 - (r_i r_j)^t) / (1 - r_i r_j) for t <= u."""
    amplitudes, (both_lack, both_logs) = poles.amplitudes, poles.products
    t, u = np.broadcast_arrays(np.minimum(left, right), np.maximum(left, right))
    t, apart = t[..., np.newaxis, np.newaxis], (u - t)[..., np.newaxis]
    terms = -np.expm1(t * both_logs) / both_lack
    terms[..., 0, 0] = t[..., 0, 0]
    decayed = amplitudes * np.exp(apart * poles.logs)
    return np.asarray(np.einsum("i,...ij,...j->...", amplitudes, terms, decayed))


def _mean_prefix_variance(poles: _Poles, rows: int) -> float:
    """The same for t = u, over t = 0 .. rows - 1; a sum of geometric series if there are many."""
    if rows <= _MANY_TIMES:
        times = np.arange(rows)
        return float(_covariance(poles, times, times).mean()) if rows else 0.0
    amplitudes, (both_lack, both_logs) = poles.amplitudes, poles.products
    terms = (rows + np.expm1(rows * both_logs) / both_lack) / both_lack
    terms[0, 0] = rows * (rows - 1) / 2
    return float(amplitudes @ terms @ amplitudes) / rows


def _sum_of_squares(poles: _Poles) -> float:
    """Of the coefficients of C's inverse: the differences of those of its running sums."""
    steps, (both, _) = poles.amplitudes[1:] * -poles.lacks[1:], poles.products
    # b_0 = 1, and then b_k - b_(k-1) = sum_i a_i (r_i - 1) r_i^(k-1)
    return 1 + float(steps @ (1 / both[1:, 1:]) @ steps)
