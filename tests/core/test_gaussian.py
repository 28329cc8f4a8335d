"""Discrete Gaussian noise: drawn exactly, from tables and longer and longer words."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from overhand.model import Counts
from overhand.noise import DiscreteGaussian, GaussianNoise
from overhand.noise.gaussian import discrete_gaussian
from overhand.randomness import Random
from support.random_streams import Delegate, keyed
from support.sampling import Outcomes, assert_follows, assert_normal, samples_for

FEW, MANY = Fraction(1600), Fraction(1 << 100)
DISCREPANCY = 0.02


def law_of(variance: Fraction) -> Outcomes:
    half = math.ceil(12 * math.sqrt(variance))
    weights = np.exp(-(np.arange(-half, half + 1.0) ** 2) / (2 * float(variance)))
    return Outcomes(-half, weights / weights.sum())


class AcceptsAll(DiscreteGaussian):
    """A number of the cell, whatever its own probability is."""

    def _try(self, random: Random, count: int) -> tuple[Counts, NDArray[np.bool_]]:
        numbers, _ = super()._try(random, count)
        return numbers, np.ones(count, np.bool_)


def coarse(variance: Fraction, kind: type[DiscreteGaussian] = DiscreteGaussian) -> DiscreteGaussian:
    """With two cells to a standard deviation, so that the second step matters."""
    law = kind(variance)
    law._cell_bits = math.frexp(law.deviation)[1] - 2
    law._cells = math.ceil(16 * law.deviation / 2**law._cell_bits)
    return law


@pytest.mark.parametrize("variance", [Fraction(3, 7), Fraction(90), FEW])
def test_numbers_follow_the_law(variance: Fraction) -> None:
    drawn = DiscreteGaussian(variance).draw(keyed(1), samples_for(DISCREPANCY))
    assert_follows(drawn, law_of(variance), discrepancy=DISCREPANCY)


def test_numbers_from_coarse_cells_follow_the_law() -> None:
    drawn = coarse(FEW).draw(keyed(2), samples_for(DISCREPANCY))
    assert_follows(drawn, law_of(FEW), discrepancy=DISCREPANCY)


def test_a_sampler_that_accepts_everything_is_seen() -> None:
    drawn = coarse(FEW, AcceptsAll).draw(keyed(3), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError):
        assert_follows(drawn, law_of(FEW), discrepancy=DISCREPANCY)


def test_wide_numbers_are_normal_to_their_last_bits() -> None:
    law = discrete_gaussian(MANY)
    drawn = law.draw(keyed(4), 40_000)
    assert_normal(drawn / law.deviation, 1.0)
    assert_normal((drawn & 0xFFF) / 0x1000 * math.sqrt(12) - math.sqrt(3), 1.0)  # as if uniform


def test_half_the_deviation_is_seen() -> None:
    drawn = DiscreteGaussian(MANY / 4).draw(keyed(5), 40_000)
    with pytest.raises(AssertionError):
        assert_normal(drawn / math.sqrt(MANY), 1.0)


@given(st.integers(0, 6), st.integers(-40, 39))
def test_the_nearest_number_of_a_cell_is_its_nearest_to_zero(bits: int, cell: int) -> None:
    law = DiscreteGaussian(MANY)
    law._cell_bits = bits
    of_cell = range(cell << bits, (cell + 1) << bits)
    if bits:
        assert int(law._nearest(np.int64(cell))) == min(map(abs, of_cell))


def test_tables_have_the_probabilities_of_the_nearest_numbers() -> None:
    law = coarse(FEW)
    for j in (-5, -1, 0, 1, 7):
        near = min(abs(x) for x in range(j << law._cell_bits, (j + 1) << law._cell_bits))
        with mpmath.workprec(500):
            exact = mpmath.ldexp(mpmath.exp(mpmath.mpf(-(near**2)) / 3200), 320)
        assert 0 <= exact - law._weigh(j) < 1


class OneComparison(Delegate):
    """Draws the cell and the number that a test wants, and then the words that decide."""

    def __init__(self, inside: int, word: int, more: bytes) -> None:
        super().__init__(keyed(6))
        self.asked = list[str]()
        self._inside, self._word, self._more = inside, word, more

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        if dtype is np.uint8:
            self.asked.append("more")
            return np.frombuffer(self._more, np.uint8)
        given = [self._inside, self._word][len(self.asked)]
        self.asked.append("word")
        return np.full(count, given, np.uint64)


def test_a_comparison_that_a_float_cannot_decide_takes_a_longer_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law, cell, inside = discrete_gaussian(MANY), 20, 123_456_789_012
    monkeypatch.setattr(type(law._table), "draw", lambda table, random, count: np.full(count, cell))
    near = cell << law._cell_bits
    with mpmath.workprec(400):
        exponent = mpmath.mpf(near**2 - (near + inside) ** 2) / 2 / (1 << 100)
        ratio = int(mpmath.floor(mpmath.ldexp(mpmath.exp(exponent), 192)))
    word, rest = ratio >> 128, ratio & ((1 << 128) - 1)
    for more, due in ((rest - 1, True), (rest, True), (rest + 1, False)):
        random = OneComparison(inside, word, more.to_bytes(16, "big"))
        numbers, accepted = law._try(random, 1)
        assert (random.asked, accepted.tolist()) == (["word", "word", "more"], [due])
        assert numbers.tolist() == [near + inside]


def test_a_clear_comparison_takes_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    law = discrete_gaussian(MANY)
    monkeypatch.setattr(type(law._table), "draw", lambda table, random, count: np.full(count, 20))
    random = OneComparison(1 << 40, 0, b"")
    assert law._try(random, 1)[1].all()
    assert random.asked == ["word", "word"]


@pytest.mark.parametrize(("variance", "rounding"), [(0.5, 0.5), (20.0, 0.5), (3e4, 0.5)])
def test_the_law_of_a_rounded_number_adds_up_and_its_tails_are_bounds(
    variance: float, rounding: float
) -> None:
    law = GaussianNoise(variance, rounding)
    outcomes = law.pmf.first + np.arange(len(law.pmf.probabilities))
    assert math.isclose(law.pmf.probabilities.sum(), 1.0)
    assert math.isclose(law.pmf.probabilities @ outcomes**2, variance, rel_tol=2e-2)
    for beyond in (0, 1, round(2 * math.sqrt(variance)), round(5 * math.sqrt(variance))):
        exact = law.pmf.probabilities[np.abs(outcomes) > beyond].sum()
        assert exact <= law.tail(beyond) * (1 + 1e-9)
    quantile = law.least_tail_quantile(1e-9)
    assert law.tail(quantile) <= 1e-9 < law.tail(quantile - 1)
