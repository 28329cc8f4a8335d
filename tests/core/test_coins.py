"""Sums of bits with coins: encoder, analyzer and the law of the noise say the same thing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import CoinSum
from overhand.mechanisms.coins import BITS_CONSTANT, binary_sum
from overhand.model import Privacy, Shuffled
from overhand.noise import CoinNoise, Coins
from overhand.randomness import HALF, BinaryFraction, seeded_random
from support.chosen_coins import EIGHTH, QUARTER, Chosen, one_batch
from support.divergences import delta
from support.reference_twins import coins_law

Law = dict[int, Fraction]

TINY = {
    "no coins": CoinSum(3, Coins(0, HALF)),
    "opposed fair": CoinSum(2, Coins(2, HALF)),
    "opposed": CoinSum(2, Coins(4, EIGHTH)),
    "one user": CoinSum(1, Coins(6, QUARTER)),
    "plain": CoinSum(3, Coins(2, EIGHTH, opposed=False)),
    "odd": CoinSum(3, Coins(1, BinaryFraction(5, 4), opposed=False)),
    "plain fair": CoinSum(2, Coins(3, HALF, opposed=False)),
}


def every_batch(mechanism: CoinSum, values: Sequence[int]) -> Iterator[tuple[Fraction, Shuffled]]:
    """All batches that the encoder can send for these values, with their probabilities."""
    for shown in itertools.product((0, 1), repeat=mechanism.size * mechanism.noise_share.bits):
        random = Chosen(shown)
        messages = mechanism.encode_many(values, random)
        yield random.chance, one_batch(messages.sealed)


def moment(law: Law, power: int) -> Fraction:
    mean = sum((x * chance for x, chance in law.items()), Fraction(0))
    return sum(((x - mean) ** power * chance for x, chance in law.items()), Fraction(0))


# --- exact: encoder, analyzer, noise law ----------------------------------------------------------


@pytest.mark.parametrize("kind", TINY)
def test_the_window_is_the_law_of_all_coins(kind: str) -> None:
    mechanism = TINY[kind]
    truth, pmf = coins_law(mechanism.noise_share, mechanism.size), mechanism.noise().pmf
    assert pmf.missing == 0.0
    shown = {pmf.first + i: p for i, p in enumerate(pmf.probabilities)}
    assert shown.keys() >= {x for x, chance in truth.items() if chance}
    for outcome, probability in shown.items():
        assert math.isclose(probability, truth.get(outcome, 0), rel_tol=1e-13)


@pytest.mark.parametrize("kind", TINY)
def test_mean_and_variance_are_those_of_all_coins(kind: str) -> None:
    mechanism = TINY[kind]
    truth = coins_law(mechanism.noise_share, mechanism.size)
    mean = sum((x * chance for x, chance in truth.items()), Fraction(0))
    assert mechanism.noise().mean == mean
    assert math.isclose(mechanism.variance, moment(truth, 2), rel_tol=1e-14)


@pytest.mark.parametrize("kind", TINY)
def test_the_analyzed_batch_is_unbiased_with_the_stated_variance_on_every_input(kind: str) -> None:
    mechanism = TINY[kind]
    for values in itertools.product((0, 1), repeat=mechanism.size):
        law: Law = {}
        expected = Fraction(0)
        for chance, shuffled in every_batch(mechanism, values):
            estimate = Fraction(mechanism.sum_of(shuffled))
            expected += chance * estimate
            error = 16 * (estimate - sum(values))  # all means here are multiples of 1/16
            assert error.denominator == 1
            law[int(error)] = law.get(int(error), Fraction(0)) + chance
        assert sum(law.values()) == 1
        assert expected == sum(values)
        assert math.isclose(moment(law, 2) / 256, mechanism.variance, rel_tol=1e-14)


@pytest.mark.parametrize("kind", TINY)
def test_the_encoder_has_the_law_that_the_noise_states(kind: str) -> None:
    mechanism = TINY[kind]
    law: Law = {}
    for chance, shuffled in every_batch(mechanism, [0] * mechanism.size):
        ones = int(np.count_nonzero(shuffled.sealed))
        law[ones] = law.get(ones, Fraction(0)) + chance
    assert law == coins_law(mechanism.noise_share, mechanism.size)


@pytest.mark.parametrize("users", [0, 1, 2])
def test_the_noise_of_some_users_is_that_of_a_smaller_batch(users: int) -> None:
    for mechanism in TINY.values():
        if users < mechanism.size:
            whole = mechanism.noise_share.law(mechanism.size)
            assert mechanism.noise() == whole
            smaller = CoinNoise(tuple((t * users // mechanism.size, p) for t, p in whole.binomials))
            assert mechanism.noise(users) == smaller
    assert TINY["plain"].noise(3) == TINY["plain"].noise()


def test_fair_opposed_coins_are_one_binomial() -> None:
    assert CoinSum(5, Coins(4, HALF)).noise() == CoinNoise(((20, HALF),))
    assert CoinSum(5, Coins(4, BinaryFraction(2, 2))).noise() == CoinNoise(((20, HALF),))


def test_messages_are_counted_per_user_and_per_batch() -> None:
    mechanism = CoinSum(5, Coins(4, EIGHTH))
    assert mechanism.layout.messages_per_user == 5
    assert mechanism.layout.messages_per_batch(mechanism.size) == 25
    messages = mechanism.encode_many([0, 1, 1], seeded_random(20230))
    assert messages.sealed.shape == (3, 5)
    assert messages.sealed.dtype == np.uint8
    assert messages.sealed[:, 0].tolist() == [0, 1, 1]
    assert messages.clear.shape == (3, 0)
    assert mechanism.encode(1, seeded_random(20230)).sealed.shape == (1, 5)
    assert mechanism.encode_many([], seeded_random(20230)).sealed.shape == (0, 5)


@pytest.mark.parametrize("bad", [2, -1, 0.5, math.nan, "1", None], ids=repr)
def test_a_value_that_is_no_bit_is_not_encoded(bad: Any) -> None:
    with pytest.raises(InvalidValue):
        CoinSum(5, Coins(4, EIGHTH)).encode(bad, seeded_random(20230))


@pytest.mark.parametrize("messages", [0, 9, 11, 20])
def test_a_wrong_number_of_messages_is_refused(messages: int) -> None:
    with pytest.raises(InvalidValue, match=f"{messages} messages in a batch that has 10"):
        CoinSum(2, Coins(4, EIGHTH)).analyze(one_batch(np.zeros(messages, np.uint8)))


def test_a_batch_that_was_not_shuffled_is_refused() -> None:
    mechanism = CoinSum(2, Coins(4, EIGHTH))
    messages = mechanism.encode_many([0, 1], seeded_random(20230))
    with pytest.raises(InvalidValue, match="5 messages in a batch that has 10"):
        mechanism.analyze(Shuffled(*messages))


@pytest.mark.parametrize(
    ("size", "noise_bits", "opposed"),
    [(0, 2, True), (-1, 2, True), (1.0, 2, True), (2, -2, True), (2, 3, True), (2, 1.5, False)],
    ids=repr,
)
def test_bad_parameters_are_refused(size: Any, noise_bits: Any, opposed: bool) -> None:
    with pytest.raises(InvalidValue):
        CoinSum(size, Coins(noise_bits, HALF, opposed=opposed))


# --- with_variance --------------------------------------------------------------------------------

SIZES = st.integers(1, 10**6)
VARIANCES = st.floats(1e-3, 1e6)


@given(SIZES, VARIANCES)
def test_with_variance_has_the_variance_that_was_asked_for(size: int, variance: float) -> None:
    mechanism = CoinSum.with_variance(size, variance)
    assert mechanism.size == size
    assert variance * (1 - 1e-12) <= mechanism.variance <= variance * (1 + 1 / 4000)


@given(SIZES, VARIANCES)
def test_with_variance_takes_the_fewest_coins(size: int, variance: float) -> None:
    mechanism = CoinSum.with_variance(size, variance)
    assert mechanism.noise_share.opposed
    # Opposed coins come in pairs, and a pair has a variance of at most a half.
    assert size * (mechanism.noise_share.bits - 2) / 4 < variance * (1 + 1e-9)


@given(SIZES, VARIANCES, st.integers(0, 40))
def test_with_variance_takes_as_many_coins_as_it_is_told(
    size: int, variance: float, more: int
) -> None:
    fewest = CoinSum.with_variance(size, variance).noise_share.bits
    mechanism = CoinSum.with_variance(size, variance, noise_bits=fewest + 2 * more)
    assert mechanism.noise_share.bits == fewest + 2 * more
    assert variance * (1 - 1e-12) <= mechanism.variance <= variance * (1 + 1 / 4000)


def test_with_variance_refuses_more_than_the_coins_can_have() -> None:
    assert CoinSum.with_variance(10, 5.0, noise_bits=2).noise_share.probability.is_half
    with pytest.raises(Infeasible, match="variance of 5.01"):
        CoinSum.with_variance(10, 5.01, noise_bits=2)


@pytest.mark.parametrize("variance", [0.0, -1.0, -100.0, math.nan, math.inf], ids=repr)
@pytest.mark.parametrize("noise_bits", [None, 4], ids=["fewest coins", "four coins"])
def test_with_variance_refuses_a_variance_that_is_none(
    variance: float, noise_bits: int | None
) -> None:
    with pytest.raises((Infeasible, InvalidValue)):
        CoinSum.with_variance(10, variance, noise_bits=noise_bits)


@pytest.mark.parametrize(
    ("size", "noise_bits"), [(0, None), (10, 0), (10, 3), (10, -2), (-3, 2)], ids=repr
)
def test_with_variance_refuses_impossible_numbers(size: int, noise_bits: int | None) -> None:
    with pytest.raises((Infeasible, InvalidValue)):
        CoinSum.with_variance(size, 1.0, noise_bits=noise_bits)


# --- published ------------------------------------------------------------------------------------

PRIVACY = {
    "1, 1e-6": Privacy(1.0, 1e-6),
    "0.5, 1e-3": Privacy(0.5, 1e-3),
    "0.1, 1e-9": Privacy(0.1, 1e-9),
}


def tau(privacy: Privacy) -> float:
    return 96 * math.log(2 / privacy.delta) / privacy.epsilon**2


@pytest.mark.parametrize("guarantee", PRIVACY)
def test_a_small_published_batch_sends_fair_coins(guarantee: str) -> None:
    privacy = PRIVACY[guarantee]
    for size in (1, 7, math.floor(tau(privacy) / 2), math.ceil(tau(privacy)) - 1):
        mechanism = binary_sum(size, privacy)
        rounds = math.ceil(tau(privacy) / size)
        assert mechanism == CoinSum(size, Coins(rounds, HALF, opposed=False))
        assert mechanism.layout.messages_per_user == rounds + 1
        assert mechanism.noise().mean == size * rounds / 2
        assert mechanism.variance == size * rounds / 4
        assert delta(mechanism.noise(), privacy.epsilon) <= privacy.delta


@pytest.mark.parametrize("guarantee", PRIVACY)
def test_a_large_published_batch_sends_one_coin_each(guarantee: str) -> None:
    privacy = PRIVACY[guarantee]
    for size in (math.ceil(tau(privacy)), 3 * math.ceil(tau(privacy)), 10**7):
        mechanism = binary_sum(size, privacy)
        assert mechanism.layout.messages_per_user == 2
        assert not mechanism.noise_share.opposed
        probability = float(mechanism.noise_share.probability)
        assert math.isclose(probability, tau(privacy) / (2 * size), rel_tol=1e-9)
        assert math.isclose(mechanism.noise().mean, tau(privacy) / 2, rel_tol=1e-9)
        assert mechanism.variance <= tau(privacy) / 2
        assert delta(mechanism.noise(), privacy.epsilon) <= privacy.delta


def test_the_published_constant_is_a_parameter() -> None:
    assert BITS_CONSTANT == 96
    privacy = Privacy(1.0, 1e-6)
    half = binary_sum(10, privacy, constant=48)
    assert half.noise_share.bits == math.ceil(48 * math.log(2e6) / 10)


def test_without_the_published_noise_the_check_of_delta_would_fail() -> None:
    """The mutant of the two tests above: a twenty-fourth of the constant is not enough."""
    privacy = Privacy(1.0, 1e-6)
    for size in (7, 10**5):
        mechanism = binary_sum(size, privacy, constant=4)
        assert delta(mechanism.noise(), privacy.epsilon) > privacy.delta


# --- the noise ------------------------------------------------------------------------------------

BINOMIALS = [
    (1, 0.5),
    (10, 0.25),
    (100, 0.5),
    (1000, 0.001),
    (5000, 0.9375),
    (100_000, 0.0002),
    (300_000, 0.5),
    (1_000_000, 0.03),
]


@pytest.mark.parametrize(("trials", "probability"), BINOMIALS)
def test_a_window_is_the_binomial_where_it_matters(trials: int, probability: float) -> None:
    p = BinaryFraction.near(probability)
    pmf = CoinNoise(((trials, p),)).pmf
    truth = stats.binom(trials, float(p))
    outcomes = np.arange(pmf.first, pmf.first + len(pmf.probabilities))
    expected = truth.pmf(outcomes)
    seen = expected > 1e-15
    assert np.allclose(pmf.probabilities[seen], expected[seen], rtol=1e-10, atol=0)
    assert math.isclose(pmf.probabilities.sum(), 1.0, rel_tol=1e-12)
    outside = truth.cdf(outcomes[0] - 1) + truth.sf(outcomes[-1])
    assert outside <= pmf.missing + 1e-300
    assert pmf.missing < 1e-19


@pytest.mark.parametrize(
    ("trials", "probability"), [(200, 0.125), (40_000, 0.01), (64, 0.5), (100_000, 1e-4)]
)
def test_the_window_of_a_sum_is_the_convolution_of_its_binomials(
    trials: int, probability: float
) -> None:
    p = BinaryFraction.near(probability)
    opposed = BinaryFraction((1 << p.bits) - p.numerator, p.bits)
    pmf = CoinNoise(((trials, p), (trials, opposed))).pmf
    part = stats.binom(trials, float(p)).pmf(np.arange(trials + 1))
    kept = np.flatnonzero(part > 1e-40)
    part = part[kept[0] : kept[-1] + 1]
    expected = np.convolve(part, part[::-1])
    # The opposed coins show between trials - kept[-1] and trials - kept[0] ones.
    outcomes = kept[0] + trials - kept[-1] + np.arange(len(expected))
    for outcome, q in zip(outcomes, expected, strict=True):
        if q > 1e-15:
            assert math.isclose(pmf.probabilities[outcome - pmf.first], q, rel_tol=1e-10)
    assert math.isclose(pmf.probabilities.sum(), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("bits", [40, 54, 60, 64])
def test_the_rarest_coins_have_a_window_too(bits: int) -> None:
    pmf = CoinSum(4, Coins(2, BinaryFraction(1, bits))).noise().pmf
    assert math.isclose(pmf.probabilities.sum(), 1.0, rel_tol=1e-12)
    at_mean = pmf.probabilities[4 - pmf.first]
    assert math.isclose(at_mean, 1.0, abs_tol=1e-10)


def noise_by_enumeration(noise: CoinNoise) -> list[float]:
    """The probabilities of 0, 1, ... ones, coin by coin."""
    law = [Fraction(1)]
    for trials, p in noise.binomials:
        one = Fraction(p.numerator, 2**p.bits)
        for _ in range(trials):
            law = [
                (1 - one) * stays + one * comes
                for stays, comes in zip([*law, Fraction(0)], [Fraction(0), *law], strict=True)
            ]
    return [float(chance) for chance in law]


TERMS = st.lists(
    st.tuples(
        st.integers(0, 6), st.integers(1, 15).map(lambda numerator: BinaryFraction(numerator, 4))
    ),
    min_size=1,
    max_size=3,
)


@given(TERMS)
def test_window_mean_and_variance_agree_with_each_other(
    terms: list[tuple[int, BinaryFraction]],
) -> None:
    noise = CoinNoise(tuple(terms))
    law, pmf = noise_by_enumeration(noise), noise.pmf
    assert pmf.first == 0
    assert np.allclose(pmf.probabilities, law, rtol=1e-12, atol=0)
    outcomes = np.arange(len(law))
    assert math.isclose(float(outcomes @ law), noise.mean, rel_tol=1e-12, abs_tol=1e-12)
    spread = float((outcomes - noise.mean) ** 2 @ law)
    assert math.isclose(spread, noise.variance, rel_tol=1e-12, abs_tol=1e-12)


@given(TERMS)
def test_noise_that_claims_to_be_symmetric_is(terms: list[tuple[int, BinaryFraction]]) -> None:
    law = noise_by_enumeration(CoinNoise(tuple(terms)))
    if CoinNoise(tuple(terms)).is_symmetric:
        assert np.allclose(law, law[::-1], rtol=1e-12, atol=0)


@given(TERMS)
def test_noise_and_its_opposite_together_are_symmetric(
    terms: list[tuple[int, BinaryFraction]],
) -> None:
    opposite = [(t, BinaryFraction((1 << p.bits) - p.numerator, p.bits)) for t, p in terms]
    assert CoinNoise((*terms, *opposite)).is_symmetric


@pytest.mark.parametrize(
    ("noise", "symmetric"),
    [
        (CoinNoise(((7, HALF),)), True),
        (CoinNoise(((7, EIGHTH),)), False),
        (CoinNoise(((7, EIGHTH), (6, BinaryFraction(7, 3)))), False),
        (CoinNoise(((7, EIGHTH), (7, BinaryFraction(3, 2)))), False),
        (CoinSum(3, Coins(4, EIGHTH)).noise(), True),
        (CoinSum(3, Coins(4, EIGHTH, opposed=False)).noise(), False),
    ],
    ids=["fair", "skewed", "unequal numbers", "unequal coins", "opposed", "not opposed"],
)
def test_symmetry_is_known(noise: CoinNoise, symmetric: bool) -> None:
    assert noise.is_symmetric == symmetric
