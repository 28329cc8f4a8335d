"""Discrete Gaussian noise: drawn exactly, and the law of a Gaussian that was rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.model import Counts, Floats
from overhand.noise.laws import Noise, Pmf
from overhand.noise.tables import SCALE_BITS, Thresholds, exactly
from overhand.randomness import Random

_DEVIATIONS = 16  # on either side: what lies beyond has a probability of 2^-188
_CELLS_LOG = 4  # a standard deviation has at least 2^4 cells
_SURE = 2.0**-40  # a comparison of floats that is closer than this is not trusted
_WORD = 64
_MORE_BITS = 128  # by which a word is made longer where a float cannot decide
_LOG_TAIL = 46.0


class DiscreteGaussian:
    """Draws whole numbers x with probabilities in proportion to exp(-x^2 / (2 variance)).

    A cell of 2^h numbers is drawn from a table, by the largest of their probabilities; then a
    number of the cell, uniformly, which is accepted with its own probability divided by the
    largest. `distance` bounds the distance between the law drawn from and the ideal one.

    >>> from overhand.randomness import secure_random
    >>> law = DiscreteGaussian(Fraction(1 << 100))
    >>> drawn = law.draw(secure_random(), 1000)
    >>> drawn.dtype, bool((np.abs(drawn) < 16 << 50).all()), law.distance < 1e-32
    (dtype('int64'), True, True)
    """

    def __init__(self, variance: Fraction) -> None:
        self.variance = variance
        self.deviation = math.sqrt(variance)
        self._cell_bits = max(0, math.frexp(self.deviation)[1] - 1 - _CELLS_LOG)
        self._cells = math.ceil(_DEVIATIONS * self.deviation / 2**self._cell_bits)

    @property
    def distance(self) -> float:
        return 2 * Thresholds.bound_distance(2 * self._cells)  # at least half is accepted

    @cached_property
    def _table(self) -> Thresholds:
        """Made when it is needed: a plan only needs the distance."""
        numbers = range(-self._cells, self._cells)
        weights = [self._weigh(j) for j in numbers]
        total = sum(weights)
        return Thresholds(-self._cells, [(weight << SCALE_BITS) // total for weight in weights])

    def _nearest(self, cells: Any) -> Any:
        """The distance from 0 of the number of a cell that is nearest to it."""
        return np.where(cells >= 0, cells, -1 - cells) << self._cell_bits | (cells < 0)

    def _weigh(self, cell: int) -> int:
        import mpmath

        nearest = int(self._nearest(np.int64(cell))) if self._cell_bits else abs(cell)
        with mpmath.workprec(SCALE_BITS + 64):
            exponent = mpmath.mpf(-(nearest**2)) / 2 / exactly(self.variance)
            return int(mpmath.floor(mpmath.ldexp(mpmath.exp(exponent), SCALE_BITS)))

    def draw(self, random: Random, count: int) -> Counts:
        """`count` independent numbers; in a simulation, rounded floats of NumPy's."""
        return random.sample(
            lambda: self._draw_exactly(random, count),
            lambda generator: np.rint(generator.normal(0.0, self.deviation, count)).astype(
                np.int64
            ),
        )

    def _draw_exactly(self, random: Random, count: int) -> Counts:
        if not self._cell_bits:
            return self._table.draw(random, count)  # a cell is a number
        found = np.empty(count, np.int64)
        missing = np.arange(count)
        while len(missing):
            drawn, accepted = self._try(random, len(missing))
            found[missing[accepted]] = drawn[accepted]
            missing = missing[~accepted]
        return found

    def _try(self, random: Random, count: int) -> tuple[Counts, NDArray[np.bool_]]:
        cells = self._table.draw(random, count)
        inside = random.words(count, np.uint64) & np.uint64((1 << self._cell_bits) - 1)
        numbers = (cells << self._cell_bits) + inside.astype(np.int64)
        far, near = np.abs(numbers), self._nearest(cells)
        # Of two factors, neither of which was rounded by more than half a unit in the last place.
        exponents = (far - near) / self.deviation * ((far + near) / self.deviation) / 2
        chances, words = np.exp(-exponents), random.words(count, np.uint64)
        levels = words.astype(np.float64) * 2.0**-_WORD
        accepted = levels < chances
        for i in np.flatnonzero(np.abs(levels - chances) < _SURE):
            accepted[i] = self._decide(random, int(words[i]), int(far[i]), int(near[i]))
        return numbers, accepted

    def _decide(self, random: Random, word: int, far: int, near: int) -> bool:
        """Whether a uniform number that begins with this word is below the ratio: made longer."""
        import mpmath

        more = int.from_bytes(random.words(_MORE_BITS // 8, np.uint8).tobytes(), "big")
        with mpmath.workprec(SCALE_BITS):
            ratio = mpmath.exp(mpmath.mpf(near**2 - far**2) / 2 / exactly(self.variance))
            return bool(mpmath.ldexp(word << _MORE_BITS | more, -_WORD - _MORE_BITS) < ratio)


@lru_cache(maxsize=64)
def discrete_gaussian(variance: Fraction) -> DiscreteGaussian:
    """The sampler for this variance: its table is made once."""
    return DiscreteGaussian(variance)


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """A Gaussian number, rounded by at most `rounding`; `mean_square` includes the rounding.

    >>> law = GaussianNoise(20.0)
    >>> law.tail_quantile(1e-6), round(float(law.pmf.probabilities.max()), 4)
    (23, 0.0892)
    """

    mean_square: float
    rounding: float = 0.5

    fourth_cumulant = 0.0

    @property
    def variance(self) -> float:
        return self.mean_square

    @cached_property
    def pmf(self) -> Pmf:
        from scipy.special import ndtr

        deviation = math.sqrt(max(self.variance - 1 / 12, 1e-12))
        half = math.ceil(deviation * math.sqrt(2 * _LOG_TAIL)) + 1
        edges = ndtr((np.arange(half + 1) + 0.5) / -deviation)  # upper tails: none is lost
        right: Floats = edges[:-1] - edges[1:]
        weights = np.concatenate([right[::-1], [1 - 2 * edges[0]], right])
        return Pmf(-half, weights / weights.sum(), 2 * math.exp(-_LOG_TAIL))

    def summary(self) -> dict[str, Any]:
        return {"law": "gaussian", "variance": self.variance}

    def log_mgf_bound(self, s: float) -> float:
        return self.variance * s**2 / 2

    def tail(self, beyond: float) -> float:
        from scipy.special import erfc

        within = max(0.0, beyond - self.rounding)
        return float(min(1.0, erfc(within / math.sqrt(2 * self.variance))))

    def at_most(self, variance: float) -> GaussianNoise:
        return GaussianNoise(min(variance, self.variance), self.rounding)
