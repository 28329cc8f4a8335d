"""Sums with coins, sampled: each test is shown the mutants that it must see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from overhand.mechanisms import CoinSum
from overhand.model import Messages
from overhand.noise import CoinNoise, Coins, Noise
from overhand.randomness import HALF, Random, restore_random, seeded_random
from overhand.shuffle import shuffle
from overhand.values import Histogram, Quantizer, Reals, Vectors
from support.chosen_coins import EIGHTH, QUARTER, Given
from support.message_sums import release
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for

# --- sampled: encoder, shuffler, analyzer ---------------------------------------------------------

DISCREPANCY = 0.078
VALUES = [1, 0, 1, 1, 0, 1, 0, 1]
MECHANISM = CoinSum(8, Coins(4, QUARTER))


class ForgetsNoise(CoinSum):
    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages.sealed[:, 1:] = 0
        return messages


class HalfTheNoise(CoinSum):
    """Every second user's coins show their mean."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages.sealed[::2, 1:] = [0, 0, 1, 1]
        return messages


class OneCoinShort(CoinSum):
    """The first user of a batch sends one coin less than the analyzer counts on."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages.sealed[:: self.size, -1] = 0
        return messages


class NotComplemented(CoinSum):
    """The second half of the coins is like the first."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages.sealed[:, 1 + self.noise_share.bits // 2 :] ^= 1
        return messages


class OffsetForgotten(CoinSum):
    @property
    def offset(self) -> float:
        return 0.0


class LastUserDropped(CoinSum):
    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        messages = super().encode_many(values, random)
        messages.sealed[self.size - 1 :: self.size, 0] = 0
        return messages


def keyed(key: int) -> Random:
    return restore_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


def estimates(mechanism: CoinSum, random: Random) -> NDArray[np.int64]:
    """Analyzed sums of many batches of `VALUES`, each through a shuffler of its own."""
    runs = samples_for(DISCREPANCY)
    messages = mechanism.encode_many(np.tile(VALUES, runs), random)
    sums = np.empty(runs)
    for run in range(runs):
        first = run * mechanism.size
        users = Messages.of(messages.sealed[first : first + mechanism.size])
        sums[run] = mechanism.sum_of(release(mechanism, [users], random))
    assert np.array_equal(sums, np.rint(sums))
    return sums.astype(np.int64)


def law_of(*binomials: tuple[int, float], offset: int = 0) -> Outcomes:
    """An offset and a sum of binomials."""
    probabilities = np.ones(1)
    for trials, p in binomials:
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
    samples = estimates(mutant(8, Coins(4, QUARTER)), keyed(20230))
    assert_follows(samples, MUTANTS[mutant], discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, TRUTH, discrepancy=DISCREPANCY)


DRAWN = {
    "opposed": (CoinSum(8, Coins(4, QUARTER)), law_of((16, 0.25), (16, 0.75))),
    "fair": (CoinSum(10, Coins(2, HALF)), law_of((20, 0.5))),
    "plain": (CoinSum(50, Coins(1, EIGHTH, opposed=False)), law_of((50, 0.125))),
    "none": (CoinSum(5, Coins(0, HALF)), law_of()),
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
        return self.noise_share.draw_sums(random, self.size // 2, batches)

    def noise(self, users: int | None = None) -> Noise:
        return super().noise(self.size // 2)


class DrawsNotOpposed(CoinSum):
    def draw_noise(self, random: Random, batches: int) -> NDArray[np.float64]:
        ones = random.binomial(self.draw_cost, self.noise_share.probability, batches)
        return np.asarray(ones - self.noise().mean, np.float64)


@pytest.mark.parametrize(
    ("mutant", "wrong"),
    [(DrawsHalf, law_of((8, 0.25), (8, 0.75))), (DrawsNotOpposed, law_of((32, 0.25)))],
    ids=["half the noise", "not opposed"],
)
def test_the_test_of_drawn_noise_sees(mutant: type[CoinSum], wrong: Outcomes) -> None:
    law = DRAWN["opposed"][1]
    assert kolmogorov(law, wrong, range(-1, 41)) > DISCREPANCY
    samples = drawn(mutant(8, Coins(4, QUARTER)), keyed(20230))
    assert_follows(samples, wrong, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, law, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("size", [3, 50, 1000, 10**6])
@pytest.mark.parametrize("variance", [0.7, 30.0, 6000.0])
def test_the_recurrence_for_opposed_coins_agrees_with_their_convolution(
    size: int, variance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = 2 + CoinSum.with_variance(size, variance).noise_share.bits  # one pair more: never fair
    binomials = Coins.with_variance(size, variance, bits=bits).law(size).binomials
    monkeypatch.setattr("overhand.noise.laws._LARGE_VARIANCE", math.inf)
    slow = CoinNoise(binomials).pmf
    monkeypatch.setattr("overhand.noise.laws._LARGE_VARIANCE", 0.0)
    fast = CoinNoise(binomials).pmf
    assert fast.missing <= slow.missing
    start = max(fast.first, slow.first)
    shared = min(len(w.probabilities) + w.first for w in (fast, slow)) - start
    quick, exact = (w.probabilities[start - w.first :][:shared] for w in (fast, slow))
    known = exact > 1e-16
    assert known.sum() >= 3
    assert np.abs(quick[known] / exact[known] - 1).max() < 1e-9
    assert math.isclose(quick.sum(), 1.0, rel_tol=1e-12)


# --- values that are not bits: sampled ------------------------------------------------------------

JOINT_DISCREPANCY = 0.06
HELD: dict[str, tuple[CoinSum, Any]] = {
    "real": (CoinSum(4, Coins(2, QUARTER), Reals(-1, 3), 2), [-1, 0.5, 2.2, 3]),
    "vector": (
        CoinSum(3, Coins(2, QUARTER), Vectors(2), 2),
        [[1, 0], [-0.6, 0.8], [0.2, -0.5]],
    ),
    "histogram": (CoinSum(4, Coins(2, QUARTER), Histogram(3)), [0, 2, 2, 2]),
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


def noise_trials(mechanism: CoinSum) -> int:
    return mechanism.size * mechanism.noise_share.bits


def coin_law(mechanism: CoinSum) -> Ones:
    trials, p = noise_trials(mechanism) // 2, float(mechanism.noise_share.probability)
    return law_of((trials, p), (trials, 1 - p)).probabilities


def places(mechanism: CoinSum) -> NDArray[np.int64]:
    """What a one of each coordinate counts when all coordinates are written as one number."""
    most = mechanism.size * (mechanism.noise_share.bits + mechanism.steps)
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
    ones = np.rint(steps + noise_trials(mechanism) / 2).astype(np.int64)
    return np.asarray(ones @ places(mechanism))


def sampled_sums(mechanism: CoinSum, held: Any, random: Random) -> NDArray[np.int64]:
    runs = samples_for(JOINT_DISCREPANCY)
    rows = np.concatenate([mechanism.values.rows(held)] * runs)
    batches = mechanism.encode_rows(rows, random).gather(mechanism.size)
    shuffled = shuffle(batches, random, message_bits=mechanism.layout.message_bits)
    return as_one_number(mechanism, mechanism.analyze(shuffled))


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
    @cached_property
    def quantizer(self) -> Quantizer:
        return RoundsWith(self.values, self.steps, 0.0)


class RoundsToNearest(CoinSum):
    @cached_property
    def quantizer(self) -> Quantizer:
        return RoundsWith(self.values, self.steps, 0.5)


@dataclass(frozen=True)
class RoundsWith(Quantizer):
    uniform: float

    def to_steps(self, rows: NDArray[Any], random: Random) -> NDArray[Any]:
        return super().to_steps(rows, Given(self.uniform))


class LowsForgotten(CoinSum):
    @cached_property
    def quantizer(self) -> Quantizer:
        return WithoutLows(self.values, self.steps)


class WithoutLows(Quantizer):
    def to_values(self, sums: Any, users: int) -> Any:
        return sums * self.unit


class LastCoinsMissing(CoinSum):
    """The two coins of the last coordinate show their mean."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages.sealed[:, -2:] = messages.sealed[:, -2:] & 254 | np.array([0, 1], np.uint8)
        return messages


class LabelsSwapped(CoinSum):
    """The first two coordinates carry each other's labels."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages.sealed[messages.sealed < 4] ^= 2
        return messages


class SameCoins(CoinSum):
    """Every coordinate has the coins of the first."""

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        coins = messages.sealed.reshape(len(rows), self.values.dimension, -1)[:, :, -2:]
        coins[:] = coins & 254 | coins[:, :1]
        return messages


def without_the_last_coins(kind: str) -> Outcomes:
    mechanism, exact = HELD[kind][0], exact_steps(kind)
    offset = np.zeros(noise_trials(mechanism) // 2)
    last = np.concatenate([offset, rounded_laws(exact)[-1]])
    return jointly(mechanism, [*with_coins(kind, exact)[:-1], last])


def with_labels_swapped(kind: str) -> Outcomes:
    first, second, *others = with_coins(kind, exact_steps(kind))
    return jointly(HELD[kind][0], [second, first, *others])


def with_the_same_coins(kind: str) -> Outcomes:
    mechanism = HELD[kind][0]
    alone = jointly(mechanism, rounded_laws(exact_steps(kind))).probabilities
    shared = np.zeros(noise_trials(mechanism) * places(mechanism).sum() + 1)
    shared[:: places(mechanism).sum()] = coin_law(mechanism)
    return Outcomes(0, np.convolve(alone, shared))


def like(mutant: type[CoinSum], kind: str) -> CoinSum:
    sound, _ = HELD[kind]
    return mutant(sound.size, Coins(2, QUARTER), sound.values, sound.steps)


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
    @cached_property
    def quantizer(self) -> Quantizer:
        return WithoutUnit(self.values, self.steps)


class WithoutUnit(Quantizer):
    def scale(self, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        return noise.reshape(-1, *self.values.shape)


def drawn_once(kind: str) -> Outcomes:
    mechanism, _ = HELD[kind]
    joint = np.zeros(noise_trials(mechanism) * places(mechanism).sum() + 1)
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
