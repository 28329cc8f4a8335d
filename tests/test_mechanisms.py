"""Sums of bits: the encoder, the analyzer and the law of the noise say the same thing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from overhand import accounting
from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import CoinNoise, CoinSum
from overhand.mechanisms.published import BITS_CONSTANT, binary_sum
from overhand.model import Change, Messages, Privacy, Shuffled
from overhand.randomness import HALF, BinaryFraction, Random, restored_random, seeded_random
from overhand.shufflers import Shuffler
from overhand.values import (
    BITS,
    Histogram,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
)
from sampled import Outcomes, assert_follows, kolmogorov, samples_for

EIGHTH, QUARTER = BinaryFraction(1, 3), BinaryFraction(1, 2)
Law = dict[int, Fraction]

TINY = {
    "no coins": CoinSum(3, 0, HALF),
    "opposed fair": CoinSum(2, 2, HALF),
    "opposed": CoinSum(2, 4, EIGHTH),
    "one user": CoinSum(1, 6, QUARTER),
    "plain": CoinSum(3, 2, EIGHTH, opposed=False),
    "odd": CoinSum(3, 1, BinaryFraction(5, 4), opposed=False),
    "plain fair": CoinSum(2, 3, HALF, opposed=False),
}


class Chosen(Random):
    """Shows chosen coins, and keeps how likely each of them was."""

    def __init__(self, shown: Sequence[int]) -> None:
        self._left = list(shown)
        self.chance = Fraction(1)

    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        shown, self._left = self._left[:count], self._left[count:]
        assert len(shown) == count
        for coin in shown:
            one = Fraction(probability.numerator, 2**probability.bits)
            self.chance *= one if coin else 1 - one
        return np.array(shown, np.uint8)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        raise NotImplementedError

    def spawn(self, count: int) -> list[Random]:
        raise NotImplementedError

    @property
    def state(self) -> dict[str, Any]:
        raise NotImplementedError


def every_batch(mechanism: CoinSum, values: Sequence[int]) -> Iterator[tuple[Fraction, Shuffled]]:
    """All batches that the encoder can send for these values, with their probabilities."""
    for shown in itertools.product((0, 1), repeat=mechanism.noise_trials):
        random = Chosen(shown)
        messages = mechanism.encode_many(values, random)
        yield random.chance, Shuffled(messages.reshape(-1))


def law_by_enumeration(mechanism: CoinSum) -> Law:
    """The number of ones among the coins, over every outcome of every coin of the definition."""
    p = Fraction(mechanism.noise_probability.numerator, 2**mechanism.noise_probability.bits)
    straight = mechanism.noise_bits // 2 if mechanism.opposed else mechanism.noise_bits
    chances = ([p] * straight + [1 - p] * (mechanism.noise_bits - straight)) * mechanism.size
    law: Law = {}
    for shown in itertools.product((0, 1), repeat=len(chances)):
        chance = math.prod(
            (c if coin else 1 - c for c, coin in zip(chances, shown, strict=True)),
            start=Fraction(1),
        )
        law[sum(shown)] = law.get(sum(shown), Fraction(0)) + chance
    return law


def moment(law: Law, power: int) -> Fraction:
    mean = sum((x * chance for x, chance in law.items()), Fraction(0))
    return sum(((x - mean) ** power * chance for x, chance in law.items()), Fraction(0))


# --- exact: encoder, analyzer, noise law ----------------------------------------------------------


@pytest.mark.parametrize("kind", TINY)
def test_the_window_is_the_law_of_all_coins(kind: str) -> None:
    mechanism = TINY[kind]
    truth, window = law_by_enumeration(mechanism), mechanism.noise().window
    assert window.missing == 0.0
    shown = {window.first + i: p for i, p in enumerate(window.probabilities)}
    assert shown.keys() >= {x for x, chance in truth.items() if chance}
    for outcome, probability in shown.items():
        assert math.isclose(probability, truth.get(outcome, 0), rel_tol=1e-13)


@pytest.mark.parametrize("kind", TINY)
def test_mean_and_variance_are_those_of_all_coins(kind: str) -> None:
    mechanism = TINY[kind]
    truth = law_by_enumeration(mechanism)
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
            estimate = Fraction(mechanism.analyze(shuffled))
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
        ones = int(np.count_nonzero(shuffled))
        law[ones] = law.get(ones, Fraction(0)) + chance
    assert law == law_by_enumeration(mechanism)


@pytest.mark.parametrize("users", [0, 1, 2])
def test_the_noise_of_some_users_is_that_of_a_smaller_batch(users: int) -> None:
    for mechanism in TINY.values():
        if users < mechanism.size:
            smaller = CoinNoise(
                tuple((t * users // mechanism.size, p) for t, p in mechanism.noise().terms)
            )
            assert mechanism.noise(users) == smaller
    assert TINY["plain"].noise(3) == TINY["plain"].noise()


def test_fair_opposed_coins_are_one_binomial() -> None:
    assert CoinSum(5, 4, HALF).noise() == CoinNoise(((20, HALF),))
    assert CoinSum(5, 4, BinaryFraction(2, 2)).noise() == CoinNoise(((20, HALF),))


def test_messages_are_counted_per_user_and_per_batch() -> None:
    mechanism = CoinSum(5, 4, EIGHTH)
    assert mechanism.messages_per_user == 5
    assert mechanism.noise_trials == 20
    messages = mechanism.encode_many([0, 1, 1], seeded_random(20230))
    assert messages.shape == (3, 5)
    assert messages.dtype == np.uint8
    assert messages[:, 0].tolist() == [0, 1, 1]
    assert mechanism.encode(1, seeded_random(20230)).shape == (1, 5)
    assert mechanism.encode_many([], seeded_random(20230)).shape == (0, 5)


@pytest.mark.parametrize("bad", [2, -1, 0.5, math.nan, "1", None], ids=repr)
def test_a_value_that_is_no_bit_is_not_encoded(bad: Any) -> None:
    with pytest.raises(InvalidValue):
        CoinSum(5, 4, EIGHTH).encode(bad, seeded_random(20230))


@pytest.mark.parametrize("messages", [0, 9, 11, 20])
def test_a_wrong_number_of_messages_is_refused(messages: int) -> None:
    with pytest.raises(InvalidValue, match=f"{messages} messages in a batch that has 10"):
        CoinSum(2, 4, EIGHTH).analyze(Shuffled(np.zeros(messages, np.uint8)))


def test_a_batch_that_was_not_shuffled_is_refused() -> None:
    mechanism = CoinSum(2, 4, EIGHTH)
    messages = mechanism.encode_many([0, 1], seeded_random(20230))
    with pytest.raises(InvalidValue, match="2 messages"):
        mechanism.analyze(Shuffled(messages))


@pytest.mark.parametrize(
    ("size", "noise_bits", "opposed"),
    [(0, 2, True), (-1, 2, True), (1.0, 2, True), (2, -2, True), (2, 3, True), (2, 1.5, False)],
    ids=repr,
)
def test_bad_parameters_are_refused(size: Any, noise_bits: Any, opposed: bool) -> None:
    with pytest.raises(InvalidValue):
        CoinSum(size, noise_bits, HALF, opposed)


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
    assert mechanism.opposed
    # Opposed coins come in pairs, and a pair has a variance of at most a half.
    assert size * (mechanism.noise_bits - 2) / 4 < variance * (1 + 1e-9)


@given(SIZES, VARIANCES, st.integers(0, 40))
def test_with_variance_takes_as_many_coins_as_it_is_told(
    size: int, variance: float, more: int
) -> None:
    fewest = CoinSum.with_variance(size, variance).noise_bits
    mechanism = CoinSum.with_variance(size, variance, noise_bits=fewest + 2 * more)
    assert mechanism.noise_bits == fewest + 2 * more
    assert variance * (1 - 1e-12) <= mechanism.variance <= variance * (1 + 1 / 4000)


def test_with_variance_refuses_more_than_the_coins_can_have() -> None:
    assert CoinSum.with_variance(10, 5.0, noise_bits=2).noise_probability.is_half
    with pytest.raises(Infeasible, match="variance 5.01"):
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
        assert mechanism == CoinSum(size, rounds, HALF, opposed=False)
        assert mechanism.messages_per_user == rounds + 1
        assert mechanism.noise().mean == size * rounds / 2
        assert mechanism.variance == size * rounds / 4
        assert accounting.delta(mechanism.noise(), privacy.epsilon) <= privacy.delta


@pytest.mark.parametrize("guarantee", PRIVACY)
def test_a_large_published_batch_sends_one_coin_each(guarantee: str) -> None:
    privacy = PRIVACY[guarantee]
    for size in (math.ceil(tau(privacy)), 3 * math.ceil(tau(privacy)), 10**7):
        mechanism = binary_sum(size, privacy)
        assert mechanism.messages_per_user == 2
        assert not mechanism.opposed
        probability = float(mechanism.noise_probability)
        assert math.isclose(probability, tau(privacy) / (2 * size), rel_tol=1e-9)
        assert math.isclose(mechanism.noise().mean, tau(privacy) / 2, rel_tol=1e-9)
        assert mechanism.variance <= tau(privacy) / 2
        assert accounting.delta(mechanism.noise(), privacy.epsilon) <= privacy.delta


def test_the_published_constant_is_a_parameter() -> None:
    assert BITS_CONSTANT == 96
    privacy = Privacy(1.0, 1e-6)
    half = binary_sum(10, privacy, constant=48)
    assert half.noise_bits == math.ceil(48 * math.log(2e6) / 10)


def test_without_the_published_noise_the_check_of_delta_would_fail() -> None:
    """The mutant of the two tests above: a twenty-fourth of the constant is not enough."""
    privacy = Privacy(1.0, 1e-6)
    for size in (7, 10**5):
        mechanism = binary_sum(size, privacy, constant=4)
        assert accounting.delta(mechanism.noise(), privacy.epsilon) > privacy.delta


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
    window = CoinNoise(((trials, p),)).window
    truth = stats.binom(trials, float(p))
    outcomes = np.arange(window.first, window.first + len(window.probabilities))
    expected = truth.pmf(outcomes)
    seen = expected > 1e-15
    assert np.allclose(window.probabilities[seen], expected[seen], rtol=1e-10, atol=0)
    assert math.isclose(window.probabilities.sum(), 1.0, rel_tol=1e-12)
    outside = truth.cdf(outcomes[0] - 1) + truth.sf(outcomes[-1])
    assert outside <= window.missing + 1e-300
    assert window.missing < 1e-19


@pytest.mark.parametrize(
    ("trials", "probability"), [(200, 0.125), (40_000, 0.01), (64, 0.5), (100_000, 1e-4)]
)
def test_the_window_of_a_sum_is_the_convolution_of_its_terms(
    trials: int, probability: float
) -> None:
    p = BinaryFraction.near(probability)
    opposed = BinaryFraction((1 << p.bits) - p.numerator, p.bits)
    window = CoinNoise(((trials, p), (trials, opposed))).window
    part = stats.binom(trials, float(p)).pmf(np.arange(trials + 1))
    kept = np.flatnonzero(part > 1e-40)
    part = part[kept[0] : kept[-1] + 1]
    expected = np.convolve(part, part[::-1])
    # The opposed coins show between trials - kept[-1] and trials - kept[0] ones.
    outcomes = kept[0] + trials - kept[-1] + np.arange(len(expected))
    for outcome, q in zip(outcomes, expected, strict=True):
        if q > 1e-15:
            assert math.isclose(window.probabilities[outcome - window.first], q, rel_tol=1e-10)
    assert math.isclose(window.probabilities.sum(), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("bits", [40, 54, 60, 64])
def test_the_rarest_coins_have_a_window_too(bits: int) -> None:
    window = CoinSum(4, 2, BinaryFraction(1, bits)).noise().window
    assert math.isclose(window.probabilities.sum(), 1.0, rel_tol=1e-12)
    at_mean = window.probabilities[4 - window.first]
    assert math.isclose(at_mean, 1.0, abs_tol=1e-10)


def noise_by_enumeration(noise: CoinNoise) -> list[float]:
    """The probabilities of 0, 1, ... ones, coin by coin."""
    law = [Fraction(1)]
    for trials, p in noise.terms:
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
    law, window = noise_by_enumeration(noise), noise.window
    assert window.first == 0
    assert np.allclose(window.probabilities, law, rtol=1e-12, atol=0)
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
        (CoinSum(3, 4, EIGHTH).noise(), True),
        (CoinSum(3, 4, EIGHTH, opposed=False).noise(), False),
    ],
    ids=["fair", "skewed", "unequal numbers", "unequal coins", "opposed", "not opposed"],
)
def test_symmetry_is_known(noise: CoinNoise, symmetric: bool) -> None:
    assert noise.is_symmetric == symmetric


# --- sampled: encoder, shuffler, analyzer ---------------------------------------------------------

DISCREPANCY = 0.078
VALUES = [1, 0, 1, 1, 0, 1, 0, 1]
MECHANISM = CoinSum(8, 4, QUARTER)


class ForgetsNoise(CoinSum):
    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages[:, 1:] = 0
        return messages


class HalfTheNoise(CoinSum):
    """Every second user's coins show their mean."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages[::2, 1:] = [0, 0, 1, 1]
        return messages


class OneCoinShort(CoinSum):
    """The first user of a batch sends one coin less than the analyzer counts on."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages[:: self.size, -1] = 0
        return messages


class NotComplemented(CoinSum):
    """The second half of the coins is like the first."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages[:, 1 + self.noise_bits // 2 :] ^= 1
        return messages


class OffsetForgotten(CoinSum):
    def analyze(self, shuffled: Shuffled) -> float:
        return int(np.count_nonzero(shuffled))


class LastUserDropped(CoinSum):
    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages[self.size - 1 :: self.size, 0] = 0
        return messages


def keyed(key: int) -> Random:
    return restored_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


def estimates(mechanism: CoinSum, random: Random) -> NDArray[np.int64]:
    """Analyzed sums of many batches of `VALUES`, each through a shuffler of its own."""
    runs = samples_for(DISCREPANCY)
    messages = mechanism.encode_many(np.tile(VALUES, runs), random)
    shuffler, sums = Shuffler(), np.empty(runs)
    for run in range(runs):
        first = run * mechanism.size
        users = range(first, first + mechanism.size)
        shuffler.activate(mechanism)
        shuffler.send_many(users, Messages(messages[users.start : users.stop]))
        sums[run] = mechanism.analyze(shuffler.release(random))
    assert np.array_equal(sums, np.rint(sums))
    return sums.astype(np.int64)


def law_of(*terms: tuple[int, float], offset: int = 0) -> Outcomes:
    """An offset and a sum of binomials."""
    probabilities = np.ones(1)
    for trials, p in terms:
        probabilities = np.convolve(probabilities, stats.binom(trials, p).pmf(range(trials + 1)))
    return Outcomes(offset, probabilities)


TRUTH = law_of((16, 0.25), (16, 0.75), offset=sum(VALUES) - 16)
MUTANTS: dict[type[CoinSum], Outcomes] = {
    ForgetsNoise: law_of(offset=sum(VALUES) - 16),
    HalfTheNoise: law_of((8, 0.25), (8, 0.75), offset=sum(VALUES) + 8 - 16),
    OneCoinShort: law_of((16, 0.25), (15, 0.75), offset=sum(VALUES) - 16),
    NotComplemented: law_of((32, 0.25), offset=sum(VALUES) - 16),
    OffsetForgotten: law_of((16, 0.25), (16, 0.75), offset=sum(VALUES)),
    LastUserDropped: law_of((16, 0.25), (16, 0.75), offset=sum(VALUES) - 1 - 16),
}
STREAMS: dict[str, Callable[[int], Random]] = {"secure": keyed, "seeded": seeded_random}


@pytest.mark.parametrize("stream", STREAMS)
def test_the_estimate_is_the_sum_plus_centred_noise(stream: str) -> None:
    assert_follows(estimates(MECHANISM, STREAMS[stream](20230)), TRUTH, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_the_test_of_the_estimate_sees(mutant: type[CoinSum]) -> None:
    assert kolmogorov(TRUTH, MUTANTS[mutant], range(-40, 60)) > DISCREPANCY
    samples = estimates(mutant(8, 4, QUARTER), keyed(20230))
    assert_follows(samples, MUTANTS[mutant], discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, TRUTH, discrepancy=DISCREPANCY)


DRAWN = {
    "opposed": (CoinSum(8, 4, QUARTER), law_of((16, 0.25), (16, 0.75))),
    "fair": (CoinSum(10, 2, HALF), law_of((20, 0.5))),
    "plain": (CoinSum(50, 1, EIGHTH, opposed=False), law_of((50, 0.125))),
    "none": (CoinSum(5, 0, HALF), law_of()),
}


def drawn(mechanism: CoinSum, random: Random) -> NDArray[np.int64]:
    """Drawn noise, with the mean of the coins put back so that it is whole."""
    noise = mechanism.draw_noise(random, samples_for(DISCREPANCY)) + mechanism.noise().mean
    assert np.array_equal(noise, np.rint(noise))
    return noise.astype(np.int64)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("stream", STREAMS)
def test_drawn_noise_has_the_law_of_the_messages(stream: str, kind: str) -> None:
    mechanism, law = DRAWN[kind]
    assert_follows(drawn(mechanism, STREAMS[stream](20230)), law, discrepancy=DISCREPANCY)


class DrawsHalf(CoinSum):
    def draw_noise(self, random: Random, batches: int) -> NDArray[np.float64]:
        return self.user_noise.draw_sums(random, self.size // 2, batches)

    def noise(self, users: int | None = None) -> CoinNoise:
        return super().noise(self.size // 2)


class DrawsNotOpposed(CoinSum):
    def draw_noise(self, random: Random, batches: int) -> NDArray[np.float64]:
        ones = random.binomial(self.noise_trials, self.noise_probability, batches)
        return np.asarray(ones - self.noise().mean, np.float64)


@pytest.mark.parametrize(
    ("mutant", "wrong"),
    [(DrawsHalf, law_of((8, 0.25), (8, 0.75))), (DrawsNotOpposed, law_of((32, 0.25)))],
    ids=["half the noise", "not opposed"],
)
def test_the_test_of_drawn_noise_sees(mutant: type[CoinSum], wrong: Outcomes) -> None:
    law = DRAWN["opposed"][1]
    assert kolmogorov(law, wrong, range(-1, 41)) > DISCREPANCY
    samples = drawn(mutant(8, 4, QUARTER), keyed(20230))
    assert_follows(samples, wrong, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, law, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("size", [3, 50, 1000, 10**6])
@pytest.mark.parametrize("variance", [0.7, 30.0, 6000.0])
def test_the_recurrence_for_opposed_coins_agrees_with_their_convolution(
    size: int, variance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = 2 + CoinSum.with_variance(size, variance).noise_bits  # one pair more: never fair
    terms = CoinSum.with_variance(size, variance, noise_bits=bits).noise().terms
    monkeypatch.setattr("overhand.mechanisms.noise._LARGE_VARIANCE", math.inf)
    slow = CoinNoise(terms).window
    monkeypatch.setattr("overhand.mechanisms.noise._LARGE_VARIANCE", 0.0)
    fast = CoinNoise(terms).window
    assert fast.missing <= slow.missing
    start = max(fast.first, slow.first)
    shared = min(len(w.probabilities) + w.first for w in (fast, slow)) - start
    quick, exact = (w.probabilities[start - w.first :][:shared] for w in (fast, slow))
    known = exact > 1e-16
    assert known.sum() >= 3
    assert np.abs(quick[known] / exact[known] - 1).max() < 1e-9
    assert math.isclose(quick.sum(), 1.0, rel_tol=1e-12)


# --- values that are not bits: steps --------------------------------------------------------------

PARTS = 64

KINDS: dict[str, CoinSum] = {
    "bit": CoinSum(3, 4, QUARTER),
    "real": CoinSum(3, 4, QUARTER, values=Reals(-2, 6), steps=4),
    "vector": CoinSum(3, 4, QUARTER, values=Vectors(2, norm=4), steps=8),
    "matrix": CoinSum(3, 2, QUARTER, values=SymmetricMatrices(3), steps=5),
    "moments": CoinSum(3, 1, QUARTER, opposed=False, values=Moments(2), steps=3),
    "histogram": CoinSum(3, 0, HALF, values=Histogram(5)),
}
ROUNDED = ("real", "vector", "matrix", "moments")
DYADIC = ("real", "vector")  # (value - low) / unit is exact for them


class Given(Chosen):
    """Rounds by chosen uniforms, too."""

    def __init__(self, uniforms: ArrayLike, shown: Sequence[int] = ()) -> None:
        super().__init__(shown)
        self._uniforms = np.asarray(uniforms, np.float64)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        return np.broadcast_to(self._uniforms.reshape(-1), count).copy()


@st.composite
def parts_of_steps(draw: st.DrawFn) -> tuple[CoinSum, list[list[int]]]:
    """Two values of every coordinate, in sixty-fourths of a step."""
    mechanism = KINDS[draw(st.sampled_from(DYADIC))]
    numbers = [st.integers(0, PARTS * int(most)) for most in mechanism.coordinate_steps]
    return mechanism, [draw(st.tuples(*numbers).map(list)) for _ in range(2)]


def rounded(mechanism: CoinSum, parts: list[int], uniforms: ArrayLike) -> NDArray[np.int64]:
    """The steps of a value that is so many sixty-fourths of a step above the lowest."""
    points = mechanism.values.lows + np.array(parts) * (mechanism.unit / PARTS)
    rows = points if mechanism.values.is_scalar else points[np.newaxis]
    return np.asarray(mechanism.steps_of(rows, Given(uniforms))).reshape(-1)


@given(parts_of_steps())
def test_rounding_is_unbiased_and_adds_at_most_a_quarter_to_the_variance(
    case: tuple[CoinSum, list[list[int]]],
) -> None:
    """Over sixty-four uniforms, exactly: Hermite's identity is what makes it so."""
    mechanism, (parts, _) = case
    steps = np.array([rounded(mechanism, parts, u / PARTS) for u in range(PARTS)])
    assert steps.dtype == np.int64
    assert (steps >= 0).all()
    assert (steps <= mechanism.coordinate_steps).all()
    assert steps.sum(axis=0).tolist() == parts
    variance = PARTS * (steps**2).sum(axis=0) - np.array(parts) ** 2
    assert (4 * variance <= PARTS**2).all()


@given(parts_of_steps(), st.lists(st.integers(0, PARTS - 1), min_size=2, max_size=2))
def test_two_values_rounded_alike_differ_by_their_distance_rounded_up(
    case: tuple[CoinSum, list[list[int]]], uniforms: list[int]
) -> None:
    mechanism, (first, second) = case
    chosen = np.array(uniforms[: len(first)]) / PARTS
    moved = rounded(mechanism, first, chosen) - rounded(mechanism, second, chosen)
    assert (np.abs(moved) <= -(-np.abs(np.subtract(first, second)) // PARTS)).all()


@given(st.sampled_from(list(KINDS)), st.integers(0, 2**32))
def test_no_other_value_moves_the_counts_further_than_stated(kind: str, seed: int) -> None:
    mechanism = KINDS[kind]
    values, change = mechanism.values, mechanism.change
    ends = values.opposites(np.array([0, 1] * 20, np.uint8))
    anywhere = values.uniform(seeded_random(seed), 40)
    rows = np.concatenate([ends[:20], anywhere])
    others = np.concatenate([ends[1:21], values.uniform(seeded_random(seed + 1), 20), ends[:20]])
    steps, moved = (mechanism.steps_of(r, seeded_random(seed)).astype(int) for r in (rows, others))
    away = np.abs(steps - moved).reshape(len(rows), -1)
    assert away.max() <= change.largest
    assert (away > 0).sum(axis=1).max() <= change.coordinates
    if change.norm is not None:
        assert np.linalg.norm(away, axis=1).max() <= change.norm


def test_rounding_can_move_the_counts_by_more_than_the_sensitivity() -> None:
    """So the root of the dimension in `change.norm` is needed."""
    mechanism = CoinSum(1, 2, HALF, values=Vectors(4), steps=3)
    ends = np.array([[0.5] * 4, [-0.5] * 4])
    steps = mechanism.steps_of(ends, Given(0.125))
    away = float(np.linalg.norm(steps[0] - steps[1]))
    assert mechanism.change.norm is not None
    assert mechanism.values.sensitivity / mechanism.unit < away <= mechanism.change.norm


def test_the_change_is_as_large_as_the_kind_allows() -> None:
    assert KINDS["bit"].change == Change(1)
    assert KINDS["real"].change == Change(4)
    assert KINDS["histogram"].change == Change(1, 2)
    for kind, norm in (
        ("vector", 8 + math.sqrt(2)),
        ("matrix", 5 + math.sqrt(6)),
        ("moments", 3 / math.sqrt(2) / (2 / 3) + math.sqrt(5)),
    ):
        change = KINDS[kind].change
        assert change.largest == KINDS[kind].steps
        assert change.coordinates == KINDS[kind].values.dimension
        assert change.norm is not None
        assert norm <= change.norm <= norm * (1 + 1e-8)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("kind", ROUNDED)
def test_the_ends_of_every_interval_stay_within_the_steps(kind: str, uniform: float) -> None:
    mechanism = KINDS[kind]
    values = mechanism.values
    for end in (values.lows, values.highs):
        rows = end if values.is_scalar else end[np.newaxis]
        steps = mechanism.steps_of(rows, Given(uniform)).reshape(-1)
        assert (steps >= 0).all()
        assert (steps <= mechanism.coordinate_steps).all()
        assert (np.abs(steps * mechanism.unit - (end - values.lows)) < mechanism.unit).all()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 300))
def test_every_coordinate_has_as_many_steps_as_it_is_wide(
    low: float, width: float, steps: int
) -> None:
    mechanism = CoinSum(2, 2, HALF, values=Reals(low, low + width), steps=steps)
    assert mechanism.coordinate_steps.tolist() == [steps]
    moments = CoinSum(2, 2, HALF, values=Moments(2), steps=steps)
    reached = moments.coordinate_steps * moments.unit
    widths = moments.values.highs - moments.values.lows
    assert (reached >= widths * (1 - 1e-8)).all()
    assert (reached < widths + moments.unit).all()


@pytest.mark.parametrize("values", [BITS, Histogram(3)], ids=str)
def test_whole_values_have_one_step(values: Values) -> None:
    with pytest.raises(InvalidValue, match="steps=2 must be 1"):
        CoinSum(2, 2, HALF, values=values, steps=2)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None], ids=repr)
def test_steps_that_are_none_are_refused(steps: Any) -> None:
    with pytest.raises(InvalidValue, match="steps="):
        CoinSum(2, 2, HALF, values=Reals(), steps=steps)


# --- values that are not bits: messages -----------------------------------------------------------


def some(mechanism: CoinSum, users: int = 3) -> NDArray[Any]:
    return mechanism.values.uniform(seeded_random(20230), users)


def by_coordinate(mechanism: CoinSum, messages: NDArray[Any]) -> NDArray[np.int64]:
    """How many zeros and ones of each coordinate every user sends, counted one by one."""
    counts = np.zeros((len(messages), mechanism.values.dimension, 2), np.int64)
    for user, row in enumerate(messages.tolist()):
        for message in row:
            counts[user, message // 2, message % 2] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_every_user_sends_so_many_messages_of_every_coordinate(kind: str) -> None:
    mechanism = KINDS[kind]
    messages = mechanism.encode_rows(some(mechanism, 7), seeded_random(20230))
    assert messages.shape == (7, mechanism.messages_per_user)
    assert messages.dtype == np.uint8
    expected = mechanism.coordinate_steps + mechanism.noise_bits
    assert (by_coordinate(mechanism, messages).sum(axis=2) == expected).all()
    assert mechanism.messages_per_user == expected.sum()
    nobody = mechanism.encode_rows(some(mechanism, 0), seeded_random(20230))
    assert nobody.shape == (0, mechanism.messages_per_user)


@pytest.mark.parametrize("kind", KINDS)
def test_without_coins_the_ones_are_the_steps(kind: str) -> None:
    bare = replace(KINDS[kind], noise_bits=0)
    rows = some(bare)
    steps = bare.steps_of(rows, seeded_random(20230)).reshape(len(rows), -1)
    messages = bare.encode_rows(rows, seeded_random(20230))
    assert np.array_equal(by_coordinate(bare, messages)[:, :, 1], steps)
    shuffled = Shuffled(seeded_random(1).permute(messages.reshape(-1)))
    total = np.reshape(bare.value_of(steps.sum(axis=0)), bare.values.shape)
    assert np.allclose(bare.analyze(shuffled), total, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bit", [0, 1, 1]),
        ("real", [-2, 4, 6]),
        ("vector", [[0, -4], [2, 3], [-1, 1]]),
        ("histogram", [4, 0, 4]),
    ],
)
def test_without_coins_values_of_whole_steps_are_summed_exactly(kind: str, values: Any) -> None:
    bare = replace(KINDS[kind], noise_bits=0)
    shuffler, random = Shuffler(), seeded_random(20230)
    shuffler.activate(bare)
    for user, value in enumerate(values):
        shuffler.send(user, bare.encode(value, random))
    result = bare.analyze(shuffler.release(random))
    assert np.array_equal(result, bare.values.total(bare.values.rows(values)))
    assert isinstance(result, float) == bare.values.is_scalar


@pytest.mark.parametrize(
    ("dimension", "bits", "dtype"),
    [(2, 2, np.uint8), (3, 3, np.uint8), (128, 8, np.uint8), (129, 9, np.uint16)],
)
def test_messages_are_as_short_as_their_labels_allow(
    dimension: int, bits: int, dtype: type[np.generic]
) -> None:
    mechanism = CoinSum(1, 1, HALF, opposed=False, values=Histogram(dimension))
    assert mechanism.message_bits == bits
    messages = mechanism.encode(dimension - 1, seeded_random(20230))
    assert messages.dtype == dtype
    assert 2 ** (bits - 1) <= int(messages.max()) < 2**bits
    shuffled = seeded_random(1).permute_rows(messages, mechanism.message_bits)
    assert np.array_equal(np.sort(shuffled), np.sort(messages))
    assert mechanism.analyze_many(shuffled).shape == (1, dimension)


def test_the_labels_of_the_most_buckets_leave_room_for_the_keys_of_a_shuffle() -> None:
    mechanism = CoinSum(1, 1, HALF, opposed=False, values=Histogram(1 << 20))
    assert mechanism.message_bits == 21
    batch = np.array([[0, (1 << 21) - 1]], np.uint32)
    shuffled = seeded_random(1).permute_rows(batch, mechanism.message_bits)
    assert np.array_equal(np.sort(shuffled), batch)


def test_a_bit_and_a_real_are_sent_as_bits() -> None:
    for kind in ("bit", "real"):
        assert KINDS[kind].message_bits == 1
        assert KINDS[kind].encode_rows(some(KINDS[kind]), seeded_random(20230)).max() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_batches_have_no_sums(kind: str) -> None:
    mechanism = KINDS[kind]
    nothing = np.empty((0, mechanism.size * mechanism.messages_per_user), np.uint8)
    assert mechanism.analyze_many(nothing).shape == (0, *mechanism.values.shape)
    assert mechanism.draw_noise(seeded_random(1), 0).shape == (0, *mechanism.values.shape)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].values.dimension > 1])
@pytest.mark.parametrize("tampered", [2, -1, -2, 255, 10**12], ids=repr)
def test_a_batch_with_a_message_of_a_wrong_coordinate_is_refused(kind: str, tampered: int) -> None:
    mechanism = KINDS[kind]
    batch = mechanism.encode_rows(some(mechanism), seeded_random(20230)).reshape(-1).astype(int)
    mechanism.analyze(Shuffled(batch))
    batch[0] = tampered  # where a message of the first coordinate, 0 or 1, was
    with pytest.raises(InvalidValue, match="messages of the wrong coordinates"):
        mechanism.analyze(Shuffled(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_a_message_less_is_refused(kind: str) -> None:
    mechanism = KINDS[kind]
    batch = mechanism.encode_rows(some(mechanism), seeded_random(20230)).reshape(-1)
    with pytest.raises(InvalidValue, match=f"{len(batch) - 1} messages in a batch that has"):
        mechanism.analyze(Shuffled(batch[1:]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_that_of_the_coins_and_the_most_of_the_rounding(kind: str) -> None:
    mechanism = KINDS[kind]
    unit = mechanism.values.width / mechanism.steps
    assert mechanism.unit == unit
    assert mechanism.noise_variance == mechanism.noise().variance * unit**2
    rounding = 3 * unit**2 / 4 if kind in ROUNDED else 0.0
    assert mechanism.rounding_variance == rounding
    assert mechanism.variance == mechanism.noise_variance + rounding


@pytest.mark.parametrize("kind", KINDS)
def test_steps_become_the_values_they_were(kind: str) -> None:
    mechanism = KINDS[kind]
    values = mechanism.values
    lows = np.reshape(values.lows, values.shape)
    assert np.allclose(mechanism.value_of(np.zeros(values.shape)), 3 * lows)
    steps = np.reshape(mechanism.coordinate_steps, values.shape)
    assert np.allclose(mechanism.value_of(3 * steps), 3 * (lows + steps * mechanism.unit))


@given(st.integers(1, 1000), st.floats(0.1, 1e4), st.sampled_from(ROUNDED), st.integers(1, 50))
def test_a_variance_is_asked_for_in_steps(
    size: int, variance: float, kind: str, steps: int
) -> None:
    mechanism = CoinSum.with_variance(size, variance, values=KINDS[kind].values, steps=steps)
    assert (mechanism.values, mechanism.steps) == (KINDS[kind].values, steps)
    wanted = variance * (mechanism.values.width / steps) ** 2
    assert wanted * (1 - 1e-9) <= mechanism.noise_variance <= wanted * (1 + 1 / 3000)


# --- values that are not bits: every outcome ------------------------------------------------------

ENUMERATED: dict[str, tuple[CoinSum, Any]] = {
    "real": (CoinSum(2, 2, QUARTER, values=Reals(-1, 1), steps=2), [-0.75, 0.5]),
    "real, not opposed": (CoinSum(2, 1, EIGHTH, False, Reals(0, 4), 1), [1.0, 3.0]),
    "vector": (CoinSum(1, 2, QUARTER, values=Vectors(2, norm=2), steps=4), [[0.25, -1.5]]),
    "histogram": (CoinSum(2, 2, QUARTER, values=Histogram(2)), [1, 1]),
    "skewed histogram": (CoinSum(2, 1, EIGHTH, False, Histogram(3)), [0, 2]),
}


@pytest.mark.parametrize("kind", ENUMERATED)
def test_every_outcome_of_coins_and_rounding_is_unbiased_and_independent(kind: str) -> None:
    """The values are quarters of a step, so four uniforms are as good as all."""
    mechanism, values = ENUMERATED[kind]
    rows, dimension = mechanism.values.rows(values), mechanism.values.dimension
    coins = mechanism.noise_trials * dimension
    quarters = 1 if mechanism.values.is_whole else 4
    outcomes, chances = [], []
    for uniforms in itertools.product(range(quarters), repeat=rows.size):
        for shown in itertools.product((0, 1), repeat=coins):
            random = Given(np.array(uniforms) / 4, shown)
            messages = mechanism.encode_rows(rows, random)
            outcomes.append(np.atleast_1d(mechanism.analyze(Shuffled(messages.reshape(-1)))))
            chances.append(float(random.chance) / quarters**rows.size)
    chance, outcome = np.array(chances), np.array(outcomes)
    assert math.isclose(chance.sum(), 1.0, rel_tol=1e-12)
    mean = chance @ outcome
    assert np.allclose(mean, mechanism.values.total(rows), rtol=0, atol=1e-12)
    covariance = (outcome - mean).T @ ((outcome - mean) * chance[:, np.newaxis])
    exact = np.reshape(mechanism.values.coordinates(rows), (len(rows), -1)) - mechanism.values.lows
    fraction = exact / mechanism.unit % 1
    spread = mechanism.noise_variance + mechanism.unit**2 * (fraction * (1 - fraction)).sum(axis=0)
    assert np.allclose(covariance, np.diag(spread), rtol=0, atol=1e-12)
    assert (spread <= mechanism.variance).all()


# --- values that are not bits: sampled ------------------------------------------------------------

JOINT_DISCREPANCY = 0.06
HELD: dict[str, tuple[CoinSum, Any]] = {
    "real": (CoinSum(4, 2, QUARTER, values=Reals(-1, 3), steps=2), [-1, 0.5, 2.2, 3]),
    "vector": (
        CoinSum(3, 2, QUARTER, values=Vectors(2), steps=2),
        [[1, 0], [-0.6, 0.8], [0.2, -0.5]],
    ),
    "histogram": (CoinSum(4, 2, QUARTER, values=Histogram(3)), [0, 2, 2, 2]),
}
Ones = NDArray[np.float64]
"""The probabilities of 0, 1, ... ones of a coordinate."""


def exact_steps(kind: str) -> NDArray[np.float64]:
    """Of each user and coordinate, before they are rounded."""
    mechanism, held = HELD[kind]
    values = mechanism.values
    points = np.reshape(values.coordinates(values.rows(held)), (mechanism.size, -1))
    return np.asarray((points - values.lows) / values.width * mechanism.steps, np.float64)


def rounded_laws(exact: NDArray[np.float64]) -> list[Ones]:
    """Of all users together: each is rounded up with the probability of its rest."""
    laws = []
    for column in exact.T:
        law = np.ones(1)
        for rest in column % 1:
            law = np.convolve(law, [1 - rest, rest])
        laws.append(np.concatenate([np.zeros(int(np.floor(column).sum())), law]))
    return laws


def coin_law(mechanism: CoinSum) -> Ones:
    trials, p = mechanism.noise_trials // 2, float(mechanism.noise_probability)
    return law_of((trials, p), (trials, 1 - p)).probabilities


def places(mechanism: CoinSum) -> NDArray[np.int64]:
    """What a one of each coordinate counts when all coordinates are written as one number."""
    most = mechanism.size * (mechanism.noise_bits + mechanism.steps)
    return (most + 1) ** np.arange(mechanism.values.dimension)


def jointly(mechanism: CoinSum, laws: Sequence[Ones]) -> Outcomes:
    """The law of that number, if the coordinates are independent."""
    place = places(mechanism)
    joint = np.ones(1)
    for at, law in zip(place, laws, strict=True):
        spread = np.zeros(at * (len(law) - 1) + 1)
        spread[::at] = law
        joint = np.convolve(joint, spread)
    return Outcomes(0, joint)


def as_one_number(mechanism: CoinSum, sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """Analyzed sums back to ones, and the ones of all coordinates to one number."""
    low, width = mechanism.values.lows, mechanism.values.width
    steps = (sums.reshape(len(sums), -1) - mechanism.size * low) / width * mechanism.steps
    ones = np.rint(steps + mechanism.noise_trials / 2).astype(np.int64)
    return np.asarray(ones @ places(mechanism))


def sampled_sums(mechanism: CoinSum, held: Any, random: Random) -> NDArray[np.int64]:
    runs = samples_for(JOINT_DISCREPANCY)
    rows = np.concatenate([mechanism.values.rows(held)] * runs)
    batches = mechanism.encode_rows(rows, random).reshape(runs, -1)
    shuffled = random.permute_rows(batches, mechanism.message_bits)
    return as_one_number(mechanism, mechanism.analyze_many(shuffled))


def with_coins(kind: str, exact: NDArray[np.float64]) -> list[Ones]:
    coins = coin_law(HELD[kind][0])
    return [np.convolve(law, coins) for law in rounded_laws(exact)]


def truth_of(kind: str) -> Outcomes:
    return jointly(HELD[kind][0], with_coins(kind, exact_steps(kind)))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", HELD)
def test_the_sums_of_all_coordinates_are_those_of_the_values_plus_noise(
    kind: str, stream: str
) -> None:
    samples = sampled_sums(*HELD[kind], STREAMS[stream](20230))
    assert_follows(samples, truth_of(kind), discrepancy=JOINT_DISCREPANCY)


class RoundsDown(CoinSum):
    def steps_of(self, rows: NDArray[Any], random: Random) -> NDArray[Any]:
        return super().steps_of(rows, Given(0.0))


class RoundsToNearest(CoinSum):
    def steps_of(self, rows: NDArray[Any], random: Random) -> NDArray[Any]:
        return super().steps_of(rows, Given(0.5))


class LowsForgotten(CoinSum):
    def value_of(self, steps: Any) -> Any:
        return steps * self.unit


class LastCoinsMissing(CoinSum):
    """The two coins of the last coordinate show their mean."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages[:, -2:] = messages[:, -2:] & 254 | np.array([0, 1], np.uint8)
        return messages


class LabelsSwapped(CoinSum):
    """The first two coordinates carry each other's labels."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages[messages < 4] ^= 2
        return messages


class SameCoins(CoinSum):
    """Every coordinate has the coins of the first."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        coins = messages.reshape(len(rows), self.values.dimension, -1)[:, :, -2:]
        coins[:] = coins & 254 | coins[:, :1]
        return messages


def without_the_last_coins(kind: str) -> Outcomes:
    mechanism, exact = HELD[kind][0], exact_steps(kind)
    offset = np.zeros(mechanism.noise_trials // 2)
    last = np.concatenate([offset, rounded_laws(exact)[-1]])
    return jointly(mechanism, [*with_coins(kind, exact)[:-1], last])


def with_labels_swapped(kind: str) -> Outcomes:
    first, second, *others = with_coins(kind, exact_steps(kind))
    return jointly(HELD[kind][0], [second, first, *others])


def with_the_same_coins(kind: str) -> Outcomes:
    mechanism = HELD[kind][0]
    alone = jointly(mechanism, rounded_laws(exact_steps(kind))).probabilities
    shared = np.zeros(mechanism.noise_trials * places(mechanism).sum() + 1)
    shared[:: places(mechanism).sum()] = coin_law(mechanism)
    return Outcomes(0, np.convolve(alone, shared))


def like(mutant: type[CoinSum], kind: str) -> CoinSum:
    sound, _ = HELD[kind]
    return mutant(sound.size, 2, QUARTER, values=sound.values, steps=sound.steps)


def deterministic(kind: str, added: float) -> Outcomes:
    return jointly(HELD[kind][0], with_coins(kind, np.floor(exact_steps(kind) + added)))


WRONG: dict[tuple[type[CoinSum], str], Outcomes] = {
    (RoundsDown, "real"): deterministic("real", 0.0),
    (RoundsDown, "vector"): deterministic("vector", 0.0),
    (RoundsToNearest, "real"): deterministic("real", 0.5),
    (RoundsToNearest, "vector"): deterministic("vector", 0.5),
    (LowsForgotten, "real"): replace(truth_of("real"), first=2),
    (LastCoinsMissing, "real"): without_the_last_coins("real"),
    (LastCoinsMissing, "vector"): without_the_last_coins("vector"),
    (LastCoinsMissing, "histogram"): without_the_last_coins("histogram"),
    (LabelsSwapped, "vector"): with_labels_swapped("vector"),
    (LabelsSwapped, "histogram"): with_labels_swapped("histogram"),
    (SameCoins, "vector"): with_the_same_coins("vector"),
    (SameCoins, "histogram"): with_the_same_coins("histogram"),
}


@pytest.mark.parametrize(("mutant", "kind"), WRONG, ids=lambda v: getattr(v, "__name__", v))
def test_the_test_of_all_coordinates_sees(mutant: type[CoinSum], kind: str) -> None:
    truth, wrong = truth_of(kind), WRONG[mutant, kind]
    assert kolmogorov(truth, wrong, range(len(truth.probabilities) + 2)) > JOINT_DISCREPANCY
    samples = sampled_sums(like(mutant, kind), HELD[kind][1], seeded_random(20230))
    assert_follows(samples, wrong, discrepancy=JOINT_DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, truth, discrepancy=JOINT_DISCREPANCY)


def drawn_jointly(mechanism: CoinSum, random: Random) -> NDArray[np.int64]:
    """Drawn noise of all coordinates as one number, as if every value were the lowest."""
    noise = mechanism.draw_noise(random, samples_for(JOINT_DISCREPANCY))
    assert noise.shape[1:] == mechanism.values.shape
    lowest = np.reshape(mechanism.size * mechanism.values.lows, mechanism.values.shape)
    return as_one_number(mechanism, noise + lowest)


def noise_truth(kind: str) -> Outcomes:
    mechanism, _ = HELD[kind]
    return jointly(mechanism, [coin_law(mechanism)] * mechanism.values.dimension)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", HELD)
def test_drawn_noise_of_all_coordinates_is_that_of_the_messages(kind: str, stream: str) -> None:
    samples = drawn_jointly(HELD[kind][0], STREAMS[stream](20230))
    assert_follows(samples, noise_truth(kind), discrepancy=JOINT_DISCREPANCY)


class DrawsOnce(CoinSum):
    """All coordinates get one draw."""

    def draw_noise(self, random: Random, batches: int) -> NDArray[np.float64]:
        noise = super().draw_noise(random, batches)
        noise[:] = noise[:, :1]
        return noise


class DrawsInSteps(CoinSum):
    def scaled(self, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        return noise.reshape(-1, *self.values.shape)


def drawn_once(kind: str) -> Outcomes:
    mechanism, _ = HELD[kind]
    joint = np.zeros(mechanism.noise_trials * places(mechanism).sum() + 1)
    joint[:: places(mechanism).sum()] = coin_law(mechanism)
    return Outcomes(0, joint)


def drawn_in_steps(kind: str) -> Outcomes:
    """Taken for values, steps are worth half a step here: and are rounded to be looked at."""
    coins = coin_law(HELD[kind][0])
    middle = len(coins) // 2
    shown = np.rint((np.arange(len(coins)) - middle) / 2 + middle).astype(np.int64)
    probabilities = np.zeros(len(coins))
    np.add.at(probabilities, shown, coins)
    return Outcomes(0, probabilities)


@pytest.mark.parametrize(
    ("mutant", "kind", "wrong"),
    [
        (DrawsOnce, "vector", drawn_once("vector")),
        (DrawsOnce, "histogram", drawn_once("histogram")),
        (DrawsInSteps, "real", drawn_in_steps("real")),
    ],
    ids=["once for a vector", "once for a histogram", "in steps"],
)
def test_the_test_of_drawn_noise_of_all_coordinates_sees(
    mutant: type[CoinSum], kind: str, wrong: Outcomes
) -> None:
    truth = noise_truth(kind)
    assert kolmogorov(truth, wrong, range(len(truth.probabilities))) > JOINT_DISCREPANCY
    samples = drawn_jointly(like(mutant, kind), seeded_random(20230))
    assert_follows(samples, wrong, discrepancy=JOINT_DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, truth, discrepancy=JOINT_DISCREPANCY)
