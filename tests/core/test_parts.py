"""A user's noise: tables that draw it, the laws of its sums, and how it is written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from overhand.errors import Infeasible, InvalidValue
from overhand.model import Floats
from overhand.noise import Coins, LaplaceNoise, NoiseShare, Polya, fewest_coins, noise_of
from overhand.noise import shares as shares_module
from overhand.noise.laws import ratio_of
from overhand.noise.tables import Thresholds, binomial_thresholds, polya_thresholds
from overhand.randomness import HALF, BinaryFraction, Random, restore_random, seeded_random
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for

RATIOS = [0.1, 0.5, 0.9]
SCALE_BITS = 320  # probabilities of tables are in units of 2^-320


def keyed(key: int) -> Random:
    """The secure stream under a literal key, so that a test repeats."""
    return restore_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


class Scripted(Random):
    """Hands out integers of 128 bits by their bits 16, 48 and 64, each time of fewer integers.

    The 48 of all that are not below the first limit by their 16, the last 64 of all that have the
    upper half of a limit: who asks for others gets too few or too many.
    """

    def __init__(self, integers: list[int], limits: list[int]) -> None:
        above = [x for x in integers if x >> 112 >= limits[0] >> 112]
        tied = [x for x in above if x >> 64 in {limit >> 64 for limit in limits}]
        noise = 0xBEEF << 48  # of a word of 64 bits only 48 are asked for
        self._script = [
            [x >> 112 for x in integers],
            [noise | (x >> 64) % (1 << 48) for x in above],
            [x % (1 << 64) for x in tied],
        ]

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        words = self._script.pop(0)
        assert len(words) == count
        return np.array(words, dtype)

    @property
    def state(self) -> dict[str, Any]:
        return {}

    def spawn(self, count: int) -> list[Random]:
        raise NotImplementedError


def limits_of(table: Thresholds) -> list[int]:
    """The least integers that are drawn as the second outcome, the third, ..."""
    pairs = zip(table._high.tolist(), table._low.tolist(), strict=True)
    return [(high << 64) + low for high, low in pairs]


def law_of(table: Thresholds) -> dict[int, Fraction]:
    """The exact probability of every outcome of a table."""
    edges = [0, *limits_of(table), 1 << 128]
    masses = [Fraction(b - a, 1 << 128) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return {table.first + i: mass for i, mass in enumerate(masses)}


def distance_to(table: Thresholds, probability: Callable[[int], Any]) -> Any:
    """The total variation between what a table draws and a law, all mass of it counted."""
    with mpmath.workprec(500):
        law = law_of(table)
        ideal = {x: mpmath.mpf(probability(x)) for x in law}
        drawn = {x: mpmath.mpf(p.numerator) / p.denominator for x, p in law.items()}
        gaps = sum((abs(drawn[x] - ideal[x]) for x in law), mpmath.mpf(0))
        return (gaps + abs(1 - sum(ideal.values(), mpmath.mpf(0)))) / 2


def polya_mass(shape: Fraction, ratio: float) -> Callable[[int], Any]:
    """Gamma(x + shape) / (x! Gamma(shape)) ratio^x (1 - ratio)^shape, to 150 digits."""

    def mass(x: int) -> Any:
        with mpmath.workprec(500):
            a, r = mpmath.mpf(shape.numerator) / shape.denominator, mpmath.mpf(ratio)
            return mpmath.rf(a, x) / mpmath.factorial(x) * r**x * (1 - r) ** a

    return mass


def binomial_mass(trials: int, probability: BinaryFraction) -> Callable[[int], Any]:
    """The same for a binomial, as a quotient of whole numbers."""
    p, bits = probability.numerator, probability.bits
    q = (1 << bits) - p

    def mass(x: int) -> Any:
        with mpmath.workprec(500):
            return mpmath.ldexp(math.comb(trials, x) * p**x * q ** (trials - x), -bits * trials)

    return mass


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [Fraction(1, 64), Fraction(1, 3), Fraction(1), Fraction(7, 2)])
def test_a_polya_table_is_within_its_distance_of_the_law(shape: Fraction, ratio: float) -> None:
    table = polya_thresholds(shape, ratio)
    assert distance_to(table, polya_mass(shape, ratio)) <= table.distance < 2.0**-100


@pytest.mark.parametrize(
    ("trials", "probability"),
    [
        (1, BinaryFraction(1, 4)),
        (65, HALF),
        (100, BinaryFraction(1, 16)),
        (500, BinaryFraction(19661, 16)),
        (3000, BinaryFraction(13, 16)),
        (200, BinaryFraction(65535, 16)),
    ],
)
def test_a_binomial_table_is_within_its_distance_of_the_law(
    trials: int, probability: BinaryFraction
) -> None:
    table = binomial_thresholds(trials, probability)
    assert distance_to(table, binomial_mass(trials, probability)) <= table.distance < 2.0**-100


def test_a_table_of_another_law_is_seen() -> None:
    table = polya_thresholds(Fraction(1, 3), 0.5)
    assert distance_to(table, polya_mass(Fraction(1, 3), 0.5 + 2.0**-53)) > table.distance
    assert distance_to(table, polya_mass(Fraction(1, 3) + Fraction(1, 10**20), 0.5)) > 2.0**-100


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(polya_thresholds(Fraction(1, 3), 0.5), id="polya"),
        pytest.param(binomial_thresholds(100, BinaryFraction(1, 16)), id="binomial"),
        pytest.param(binomial_thresholds(3000, HALF), id="ties-at-both-ends"),
    ],
)
def test_integers_at_a_threshold_pass_it_and_those_below_do_not(table: Thresholds) -> None:
    """With many upper halves equal at the ends, where the lower halves decide."""
    limits = limits_of(table)
    integers = [
        x
        for limit in limits
        for x in (limit - (1 << 64), limit - 1, limit, limit + 1, limit + (1 << 64))
        if 0 <= x < 1 << 128
    ]
    integers += [0, 1, (1 << 64) - 1, 1 << 64, (1 << 127), (1 << 128) - 1]
    expected = [table.first + sum(limit <= x for limit in limits) for x in integers]
    assert table.draw(Scripted(integers, limits), len(integers)).tolist() == expected


def test_a_table_has_thresholds_of_equal_upper_halves() -> None:
    upper = [limit >> 64 for limit in limits_of(polya_thresholds(Fraction(1, 3), 0.5))]
    assert len(set(upper)) < len(upper)


def test_a_single_outcome_is_certain() -> None:
    table = Thresholds(7, [1 << SCALE_BITS])
    assert table.draw(keyed(1), 5).tolist() == [7] * 5


DISCREPANCY = 0.03
POLYA_LAW = stats.nbinom(1 / 3, 0.5)
BINOMIAL_LAW = stats.binom(100, 1 / 16)


def test_a_polya_table_draws_its_law() -> None:
    samples = polya_thresholds(Fraction(1, 3), 0.5).draw(keyed(2), samples_for(DISCREPANCY))
    assert_follows(samples, POLYA_LAW, discrepancy=DISCREPANCY)


def test_a_binomial_table_draws_its_law() -> None:
    table = binomial_thresholds(100, BinaryFraction(1, 4))
    samples = table.draw(keyed(3), samples_for(DISCREPANCY))
    assert_follows(samples, BINOMIAL_LAW, discrepancy=DISCREPANCY)


@pytest.mark.parametrize(
    ("law", "table", "other"),
    [
        pytest.param(
            POLYA_LAW,
            polya_thresholds(Fraction(1, 4), 0.5),
            stats.nbinom(1 / 4, 0.5),
            id="one-more-user",
        ),
        pytest.param(
            POLYA_LAW,
            polya_thresholds(Fraction(1, 3), 0.375),
            stats.nbinom(1 / 3, 0.625),
            id="less-noise",
        ),
        pytest.param(
            BINOMIAL_LAW,
            binomial_thresholds(99, BinaryFraction(9, 7)),
            stats.binom(99, 9 / 128),
            id="another-coin",
        ),
    ],
)
def test_the_law_of_a_table_sees(law: Any, table: Thresholds, other: Any) -> None:
    assert kolmogorov(law, other, range(101)) > DISCREPANCY
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(table.draw(keyed(4), samples_for(DISCREPANCY)), law, discrepancy=DISCREPANCY)


def laplace(ratio: float, half: int) -> Floats:
    """P[k] = (1 - r) / (1 + r) r^|k|, for |k| up to half."""
    return np.asarray((1 - ratio) / (1 + ratio) * ratio ** np.abs(np.arange(-half, half + 1.0)))


def laplace_sum(shape: int, ratio: float, half: int) -> Floats:
    """The sum of so many, for sums up to half either way."""
    law = reduce(np.convolve, [laplace(ratio, half)] * shape)
    middle = len(law) // 2
    return np.asarray(law[middle - half : middle + half + 1])


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [1, 2, 3])
def test_the_window_of_laplace_noise_is_its_law(shape: int, ratio: float) -> None:
    pmf = LaplaceNoise(Fraction(shape), ratio).pmf
    half = -pmf.first
    assert len(pmf.probabilities) == 2 * half + 1
    wide = laplace_sum(shape, ratio, 2 * half)
    np.testing.assert_allclose(pmf.probabilities, wide[half : 3 * half + 1], rtol=1e-11, atol=1e-17)
    assert wide.sum() - wide[half : 3 * half + 1].sum() <= pmf.missing + 1e-14
    assert wide[:half].sum() + wide[3 * half + 1 :].sum() <= pmf.missing


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [1, 2, 5])
def test_the_moments_of_laplace_noise_are_sums_over_its_law(shape: int, ratio: float) -> None:
    noise = LaplaceNoise(Fraction(shape), ratio)
    half = math.ceil(95 / noise.mgf_limit)  # ratio^half is e^-95
    k, law = np.arange(-half, half + 1.0), laplace_sum(shape, ratio, half)
    variance = math.fsum(law * k**2)
    assert noise.mean == 0.0
    assert noise.variance == pytest.approx(variance, rel=1e-10)
    fourth = math.fsum(law * k**4) - 3 * variance**2
    assert noise.fourth_cumulant == pytest.approx(fourth, rel=1e-7)
    for part in (-0.5, 0.1, 0.3, 0.5):
        s = part * noise.mgf_limit
        assert noise.log_mgf_bound(s) == pytest.approx(
            math.log(math.fsum(law * np.exp(s * k))), rel=1e-9
        )


def test_laplace_noise_has_no_exponential_moments_beyond_its_own() -> None:
    noise = LaplaceNoise(Fraction(2), 0.5)
    assert noise.log_mgf_bound(noise.mgf_limit) == math.inf
    assert noise.log_mgf_bound(noise.mgf_limit * (1 - 1e-9)) < math.inf
    assert noise.log_mgf_bound(0.0) == 0.0


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("shape", [1, 2, 5])
def test_the_tail_of_laplace_noise_is_bounded(shape: int, ratio: float) -> None:
    noise = LaplaceNoise(Fraction(shape), ratio)
    half = 900
    law = laplace_sum(shape, ratio, half)
    beyond = 2 * np.cumsum(law[::-1])  # beyond[i]: further than half - i - 1
    bounds = [noise.tail(distance) for distance in range(200)]
    for distance, bound in enumerate(bounds):
        assert min(1.0, float(beyond[half - distance - 1])) * (1 - 1e-9) <= bound <= 1
    assert bounds == sorted(bounds, reverse=True)
    for probability in (0.5, 1e-3, 1e-9):
        reach = noise.tail_quantile(probability)
        assert float(beyond[half - reach - 1]) <= probability
        assert noise.tail(reach) <= probability


def test_the_tail_is_the_best_of_chernoff_bounds() -> None:
    noise = LaplaceNoise(Fraction(3, 2), 0.7)
    grid = np.linspace(0, noise.mgf_limit, 2001)[:-1]
    for beyond in (1.0, 5.0, 40.0):
        best = min(2 * math.exp(noise.log_mgf_bound(float(s)) - s * beyond) for s in grid)
        assert noise.tail(beyond) == pytest.approx(min(1.0, best), rel=1e-3)


@pytest.mark.parametrize("digits", [6, 8, 9, 10])
def test_the_tail_of_a_ratio_near_one_is_that_of_its_scale(digits: int) -> None:
    """In units of its standard deviation the noise hardly changes any more."""
    coarse, fine = (LaplaceNoise(Fraction(2), 1 - 10.0**-d) for d in (4, digits))
    for deviations in (3, 10, 30):
        expected = coarse.tail(deviations * math.sqrt(coarse.variance))
        assert fine.tail(deviations * math.sqrt(fine.variance)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("wanted", [5.0, 40.0, 100.0, 399.0])
def test_a_part_of_laplace_noise_has_at_most_the_variance_wanted(wanted: float) -> None:
    noise = LaplaceNoise(Fraction(100), 0.5)
    part = noise.at_most(wanted)
    assert part.ratio == noise.ratio
    assert part.is_tabulated
    assert wanted - 4.0 < part.variance <= wanted


def test_a_part_of_laplace_noise_is_all_of_it_or_at_least_one_of_the_summed() -> None:
    noise = LaplaceNoise(Fraction(5, 2), 0.5)
    assert noise.at_most(10.0) is noise
    assert noise.at_most(9.0).shape == 2
    assert noise.at_most(1.0).shape == 1
    assert LaplaceNoise(Fraction(1, 2), 0.5).at_most(1.0).shape == Fraction(1, 2)


def test_a_law_of_a_broken_shape_is_not_tabulated() -> None:
    noise = LaplaceNoise(Fraction(1, 2), 0.5)
    assert not noise.is_tabulated
    with pytest.raises(Infeasible, match="1/2 is not tabulated"):
        _ = noise.pmf


def test_noise_too_wide_for_a_table_is_refused_at_once() -> None:
    """A document of a stranger may ask for any: nothing of it is tabulated."""
    for part in (Polya(1, 1, 1 - 1e-12), Polya(1, 3, 0.5)):
        for noise in (part, noise_of({"each_service": part.entry(), "cap": 3})):
            with pytest.raises(Infeasible, match="is not tabulated"):
                _ = noise.law(1).pmf
    with pytest.raises(InvalidValue, match="from 1 to 1024"):
        noise_of({"each_service": Polya(1, 1, 1e-9).entry() | {"shape": 10**9}, "cap": 3})
    with pytest.raises(Infeasible, match="too wide to be drawn"):
        _ = Polya(1, 1, 1 - 1e-12).sampling_distance


@pytest.mark.parametrize("shape", [0.25, 1.0, 17.0])
@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e8])
def test_the_ratio_of_a_variance_has_it(shape: float, variance: float) -> None:
    ratio = ratio_of(shape, variance)
    assert LaplaceNoise(Fraction(shape), ratio).variance == pytest.approx(variance, rel=1e-6)


def polya_difference(shape: float, ratio: float, half: int) -> Floats:
    """The law of the difference of two Polya variables, from -half to half."""
    one = stats.nbinom(shape, 1 - ratio).pmf(np.arange(2 * half + 1))
    middle = 2 * half
    return np.asarray(np.convolve(one, one[::-1])[middle - half : middle + half + 1])


@pytest.mark.parametrize(("shape", "users"), [(1, 1), (1, 2), (1, 5), (2, 3), (3, 3)])
def test_the_laws_of_all_users_add_up_to_laplace_noise(shape: int, users: int) -> None:
    noise, half = Polya(shape, users, ratio=0.5), 120
    one = noise.law(1)
    assert one.shape == Fraction(shape, users)
    together = reduce(np.convolve, [polya_difference(float(one.shape), 0.5, half)] * users)
    middle = len(together) // 2
    law = noise.law(users)
    assert law.shape == shape
    pmf = law.pmf
    reach = min(-pmf.first, half)
    np.testing.assert_allclose(
        pmf.probabilities[-pmf.first - reach : -pmf.first + reach + 1],
        together[middle - reach : middle + reach + 1],
        rtol=1e-9,
        atol=1e-16,
    )


@pytest.mark.parametrize("opposed", [True, False])
@pytest.mark.parametrize("users", [1, 2, 5])
@pytest.mark.parametrize("probability", [HALF, BinaryFraction(3, 4)])
def test_the_laws_of_all_users_add_up_to_that_of_their_coins(
    users: int, probability: BinaryFraction, opposed: bool
) -> None:
    coins = Coins(6, probability, opposed=opposed)
    p = float(probability)
    chances = [p] * 3 + [1 - p] * 3 if opposed else [p] * 6
    law = reduce(np.convolve, [np.array([1 - each, each]) for each in chances * users])
    pmf = coins.law(users).pmf
    assert (pmf.first, len(pmf.probabilities)) == (0, 6 * users + 1)
    np.testing.assert_allclose(pmf.probabilities, law, rtol=1e-10)


STREAMS = [pytest.param(keyed, id="secure"), pytest.param(seeded_random, id="seeded")]
NOISES = [
    pytest.param(Polya(1, 8, 0.5), id="polya"),
    pytest.param(Polya(3, 2, 0.75), id="polya-of-more"),
    pytest.param(Coins(6, BinaryFraction(1, 2)), id="few-coins"),
    pytest.param(Coins(300, BinaryFraction(1, 4)), id="many-coins"),
    pytest.param(Coins(300, HALF), id="fair-coins"),
]


def centred(noise: NoiseShare, users: int) -> Outcomes:
    """The law of the noise of so many users, less its mean."""
    if isinstance(noise, Polya):
        shape = float(noise.law(users).shape)
        return Outcomes(-200, polya_difference(shape, noise.ratio, 200))
    law = noise.law(users)
    return Outcomes(law.pmf.first - round(law.mean), law.pmf.probabilities)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("noise", NOISES)
def test_single_users_draw_their_law(noise: NoiseShare, stream: Callable[[int], Random]) -> None:
    samples = noise.draw(stream(5), samples_for(DISCREPANCY))
    assert samples.dtype == np.int64
    assert_follows(samples, centred(noise, 1), discrepancy=DISCREPANCY)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("noise", NOISES)
def test_users_together_draw_their_law(noise: NoiseShare, stream: Callable[[int], Random]) -> None:
    sums = noise.draw_sums(stream(6), 4, samples_for(DISCREPANCY))
    assert_follows(sums.astype(np.int64), centred(noise, 4), discrepancy=DISCREPANCY)


@pytest.mark.parametrize("noise", NOISES)
def test_the_laws_drawn_from_have_mean_zero_and_the_variance_promised(noise: NoiseShare) -> None:
    for users in (1, 4):
        law = centred(noise, users)
        k = law.first + np.arange(len(law.probabilities))
        assert math.fsum(law.probabilities * k) == pytest.approx(0.0, abs=1e-9)
        variance = math.fsum(law.probabilities * k**2)
        assert variance == pytest.approx(noise.law(users).variance, rel=1e-9)


@pytest.mark.parametrize("noise", NOISES)
def test_the_law_of_users_sees_one_user_missing(noise: NoiseShare) -> None:
    truth, lie = centred(noise, 2), centred(noise, 1)
    assert kolmogorov(truth, lie, range(-400, 401)) > DISCREPANCY
    samples = noise.draw(keyed(7), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, truth, discrepancy=DISCREPANCY)


def test_a_great_many_coins_are_drawn_from_a_table_if_they_need_not_be_exact() -> None:
    coins, users, count = Coins(200, BinaryFraction(1, 4)), 400, samples_for(DISCREPANCY)
    sums = coins.draw_sums(keyed(8), users, count, exact=False)
    assert_follows(sums.astype(np.int64), centred(coins, users), discrepancy=DISCREPANCY)


def test_coins_that_are_not_opposed_have_their_mean_taken_off() -> None:
    coins = Coins(3, BinaryFraction(1, 2), opposed=False)
    ones = coins.draw_sums(keyed(9), 4, samples_for(DISCREPANCY)) + 3
    assert_follows(ones.astype(np.int64), stats.binom(12, 0.25), discrepancy=DISCREPANCY)
    with pytest.raises(InvalidValue, match="only if coins are opposed"):
        coins.draw(keyed(9), 1)


@pytest.mark.parametrize("users", [1, 8, 1000])
@pytest.mark.parametrize("variance", [0.5, 10.0, 5000.0])
def test_noise_made_for_a_variance_has_it(users: int, variance: float) -> None:
    polya = Polya.with_variance(users, variance, shape=2)
    assert polya.law(users).variance == pytest.approx(variance, rel=1e-9)
    coins = Coins.with_variance(users, variance)
    assert coins.bits == fewest_coins(users, variance)
    assert variance * (1 - 1e-12) <= coins.law(users).variance <= variance * (1 + 1 / 4000)


def test_how_far_a_draw_may_be_from_its_law() -> None:
    assert Coins(128, BinaryFraction(1, 4)).sampling_distance == 0.0
    assert 0 < Coins(130, BinaryFraction(1, 4)).sampling_distance < 2.0**-100
    assert 0 < Polya(1, 8, 0.5).sampling_distance < 2.0**-100


@pytest.mark.parametrize(
    "noise",
    [
        Coins(6, BinaryFraction(3, 4)),
        Coins(3, HALF, opposed=False),
        Coins(0, HALF),
        Polya(1, 8, 0.1),
        Polya(3, 10**6, math.nextafter(1.0, 0.0)),
    ],
)
def test_an_entry_is_read_back(noise: NoiseShare) -> None:
    assert noise_of(noise.entry()) == noise


@pytest.mark.parametrize(
    ("make", "name"),
    [
        pytest.param(lambda: Coins(3, HALF), "even", id="odd-opposed-coins"),
        pytest.param(lambda: Coins(-2, HALF), "noise_bits", id="fewer-than-no-coins"),
        pytest.param(lambda: Coins.with_variance(0, 1.0), "size", id="coins-of-nobody"),
        pytest.param(lambda: Coins.with_variance(8, 0.0), "variance", id="coins-of-no-variance"),
        pytest.param(lambda: Coins.with_variance(8, 1.0, bits=0), "noise_bits", id="no-coins"),
        pytest.param(lambda: Polya(0, 8, 0.5), "shape", id="no-shape"),
        pytest.param(lambda: Polya(1, 0, 0.5), "users", id="polya-of-nobody"),
        pytest.param(lambda: Polya(1, 8, 1.0), "ratio", id="ratio-of-one"),
        pytest.param(lambda: Polya(1, 8, 0.0), "ratio", id="ratio-of-zero"),
        pytest.param(
            lambda: Polya.with_variance(8, -1.0, shape=1), "variance", id="negative-variance"
        ),
        pytest.param(lambda: LaplaceNoise(Fraction(0), 0.5), "shape", id="laplace-of-no-shape"),
        pytest.param(lambda: LaplaceNoise(Fraction(1), math.nan), "ratio", id="ratio-of-nan"),
    ],
)
def test_noise_without_a_meaning_is_refused(make: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        make()


def test_too_few_coins_for_a_variance_are_refused() -> None:
    with pytest.raises(Infeasible, match="cannot have a variance of"):
        Coins.with_variance(8, 100.0, bits=2)


def test_coins_too_many_for_one_table_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 and 100 opposed coins by tables of 40, 40 and 20: their law, and each table's distance.

    A mutant that leaves out the rest has the law of a fifth fewer coins.
    """
    coins = Coins(200, BinaryFraction(1, 2))
    whole = coins.sampling_distance
    monkeypatch.setattr(shares_module, "_MOST_TABULATED", 40)
    assert whole < coins.sampling_distance < 4 * whole
    law, fewer = (centred_law(Coins(bits, coins.probability)) for bits in (200, 160))
    discrepancy = 0.025
    assert kolmogorov(law, fewer, range(-100, 101)) > discrepancy
    drawn = coins.draw(keyed(5), samples_for(discrepancy))
    assert_follows(drawn, law, discrepancy=discrepancy)
    without_rest = Coins(160, coins.probability).draw(keyed(5), samples_for(discrepancy))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(without_rest, law, discrepancy=discrepancy)


def centred_law(coins: Coins) -> Outcomes:
    """That of one contributor's opposed coins, of which half are expected to show 1."""
    pmf = coins.law(1).pmf
    return Outcomes(pmf.first - coins.bits // 2, pmf.probabilities)
