"""The published mechanisms have the parameters of the papers, and the guarantee they claim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from overhand.accounting import Level, certified_delta
from overhand.accounting.domination import dominated_delta
from overhand.errors import InvalidValue
from overhand.mechanisms import CoinSum, published
from overhand.mechanisms.coins import (
    BITS_CONSTANT,
    REALS_CONSTANT,
    VECTORS_CONSTANT,
    binary_sum,
    real_sum,
    vector_sum,
)
from overhand.model import Privacy
from overhand.noise import Coins
from overhand.randomness import HALF
from overhand.values import (
    BITS,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)

PRIVACY = [Privacy(1.0, 1e-6), Privacy(0.25, 1e-4), Privacy(4.0, 1e-9), Privacy(15.0, 0.4)]
SIZES = [1, 2, 8, 64, 1000, 10**6]
each_privacy = pytest.mark.parametrize("privacy", PRIVACY, ids=str)
each_size = pytest.mark.parametrize("size", SIZES)


def spent(mechanism: CoinSum, privacy: Privacy) -> float:
    """What the accountant says one batch costs."""
    level = Level(mechanism.noise(), sensitivity=mechanism.quantizer.sensitivity)
    if mechanism.quantizer.sensitivity.l2 is None:
        return certified_delta([level], privacy.epsilon)
    return dominated_delta([level], privacy)


# --- parameters -----------------------------------------------------------------------------------


@each_privacy
@each_size
@pytest.mark.parametrize("values", [Reals(), Reals(-3, 5)], ids=str)
def test_a_real_is_summed_as_lemma_3_1_says(values: Reals, size: int, privacy: Privacy) -> None:
    """g >= sqrt(n), b > 180 g^2 ln(2/delta) / (eps^2 n), p = 90 g^2 ln(2/delta) / (b eps^2 n)."""
    mechanism = real_sum(values, size, privacy)
    g, b = mechanism.steps, mechanism.noise_share.bits
    assert g - 1 < math.sqrt(size) <= g
    needed = 180 * g**2 * math.log(2 / privacy.delta) / (privacy.epsilon**2 * size)
    assert b - 1 <= needed < b
    p = float(mechanism.noise_share.probability)
    assert math.isclose(p, needed / (2 * b), rel_tol=1e-9)
    assert p < 0.5
    assert not mechanism.noise_share.opposed
    assert mechanism.layout.messages_per_user == g + b
    assert (mechanism.values, mechanism.size) == (values, size)


@each_privacy
@each_size
def test_a_sum_of_reals_has_the_variance_of_the_lemma(size: int, privacy: Privacy) -> None:
    """Rounding at most width^2 n / (4 g^2), noise from 45 to 90 width^2 ln(2/delta) / eps^2."""
    mechanism = real_sum(Reals(-3, 5), size, privacy)
    square = 8.0**2
    assert math.isclose(mechanism.rounding_variance, square * size / (4 * mechanism.steps**2))
    share = mechanism.noise_variance / (square * math.log(2 / privacy.delta) / privacy.epsilon**2)
    assert 45 * (1 - 1e-9) <= share <= 90


@each_privacy
@each_size
@pytest.mark.parametrize(
    "values", [Vectors(1), Vectors(5, norm=2.5), Vectors(50), SymmetricMatrices(3)], ids=str
)
def test_a_vector_is_summed_as_p_vec_says(values: Values, size: int, privacy: Privacy) -> None:
    """g = max(2 sqrt(n), d, 4), p = 1/4, b = 24e4 g^2 ln(4 (d^2 + 1) / delta)^2 / (eps^2 n)."""
    mechanism = vector_sum(values, size, privacy)
    d, g, b = values.dimension, mechanism.steps, mechanism.noise_share.bits
    assert g - 1 < max(2 * math.sqrt(size), d, 4) <= g
    log = math.log(4 * (d**2 + 1) / privacy.delta)
    needed = 24 * 10**4 * g**2 * log**2 / (privacy.epsilon**2 * size)
    assert needed * (1 - 1e-12) <= b < needed * (1 + 1e-12) + 1
    assert float(mechanism.noise_share.probability) == 0.25
    assert not mechanism.noise_share.opposed
    assert mechanism.quantizer.unit == 2 * values.highs[0] / g
    assert mechanism.layout.messages_per_user == d * (g + b)
    assert (mechanism.values, mechanism.size) == (values, size)


@each_privacy
@each_size
def test_a_histogram_is_summed_as_bits_with_half_of_the_budget(size: int, privacy: Privacy) -> None:
    mechanism = published(Histogram(7), size, privacy)
    tau = 96 * math.log(2 / (privacy.delta / 2)) / (privacy.epsilon / 2) ** 2
    if size < tau:
        assert mechanism.noise_share.bits == math.ceil(tau / size)
        assert mechanism.noise_share.probability.is_half
    else:
        assert mechanism.noise_share.bits == 1
        assert math.isclose(
            float(mechanism.noise_share.probability), tau / (2 * size), rel_tol=1e-9
        )
    assert not mechanism.noise_share.opposed
    assert mechanism.layout.messages_per_user == 7 * (1 + mechanism.noise_share.bits)
    assert (mechanism.values, mechanism.size, mechanism.steps) == (Histogram(7), size, 1)


def test_the_constants_are_those_of_the_papers() -> None:
    assert (BITS_CONSTANT, REALS_CONSTANT, VECTORS_CONSTANT) == (96, 90, 24 * 10**4)


def test_every_kind_has_its_published_mechanism_and_constant() -> None:
    privacy = PRIVACY[0]
    histogram, reals = Histogram(3), Reals(0, 50)
    assert published(BITS, 10, privacy) == binary_sum(10, privacy)
    half = binary_sum(10, privacy.share(2)).noise_share
    assert published(histogram, 10, privacy) == CoinSum(10, half, histogram)
    assert published(reals, 10, privacy) == real_sum(reals, 10, privacy)
    for values in (Vectors(3), SymmetricMatrices(2), RegressionStatistics(2)):
        assert published(values, 10, privacy) == vector_sum(values, 10, privacy)
        assert published(values, 10, privacy, constant=7) == vector_sum(values, 10, privacy, 7)
    assert published(BITS, 10, privacy, constant=7) == binary_sum(10, privacy, 7)
    half = binary_sum(10, privacy.share(2), 7).noise_share
    assert published(histogram, 10, privacy, constant=7) == CoinSum(10, half, histogram)
    assert published(reals, 10, privacy, constant=7) == real_sum(reals, 10, privacy, 7)


EACH = [BITS, Reals(), Vectors(2), Histogram(3)]


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None], ids=repr)
@pytest.mark.parametrize("values", EACH, ids=str)
def test_a_size_that_is_none_is_refused(values: Values, size: Any) -> None:
    with pytest.raises(InvalidValue, match="size="):
        published(values, size, PRIVACY[0])


@pytest.mark.parametrize("constant", [0, -1, math.nan, math.inf, "96"], ids=repr)
@pytest.mark.parametrize("values", EACH, ids=str)
def test_a_constant_that_is_none_is_refused(values: Values, constant: Any) -> None:
    with pytest.raises(InvalidValue, match="constant="):
        published(values, 10, PRIVACY[0], constant=constant)


# --- guarantees -----------------------------------------------------------------------------------

JUDGED = [Privacy(1.0, 1e-6), Privacy(0.5, 1e-3), Privacy(4.0, 1e-9)]


@pytest.mark.parametrize("privacy", JUDGED, ids=str)
@pytest.mark.parametrize("size", [1, 8, 300])
@pytest.mark.parametrize(
    "values",
    [
        Reals(0, 50),
        Histogram(3),
        Vectors(1),
        Vectors(4),
        SymmetricMatrices(2),
        RegressionStatistics(2),
    ],
    ids=str,
)
def test_the_accountant_confirms_the_published_guarantee(
    values: Values, size: int, privacy: Privacy
) -> None:
    assert spent(published(values, size, privacy), privacy) <= privacy.delta


# Of the published constants, how much is too little: the margins of the papers are wide.
TOO_LITTLE = {
    Reals(): 1.0,
    Histogram(3): 0.5,
    Vectors(1): 0.1,
    Vectors(4): 0.1,
    RegressionStatistics(2): 0.1,
}


@pytest.mark.parametrize("values", TOO_LITTLE, ids=str)
def test_the_accountant_would_see_a_constant_that_is_too_small(values: Values) -> None:
    """The mutant of the test above."""
    for privacy in JUDGED[:2]:
        mechanism = published(values, 300, privacy, constant=TOO_LITTLE[values])
        assert spent(mechanism, privacy) > privacy.delta


def test_noise_that_hides_a_bit_does_not_hide_a_change_of_bucket() -> None:
    """Two counts move: what hides one of them with little to spare does not hide both."""
    privacy = Privacy(1.0, 1e-6)
    tight = replace(binary_sum(80, privacy), noise_share=Coins(1, HALF, opposed=False))
    assert spent(tight, privacy) <= privacy.delta
    assert spent(replace(tight, values=Histogram(3)), privacy) > privacy.delta
