"""Local answers about buckets: their law, and that no published mechanism is better."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines.local import SubsetResponse
from overhand.model import Floats
from overhand.randomness import BinaryFraction, SeededRandom
from overhand.values import Histogram
from support.local_mechanisms import EPSILONS, local
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for


def set_law(response: SubsetResponse, bucket: int) -> Floats:
    """The probability of every set of buckets, as a number with a bit for each."""
    buckets, size, miss = response.values.dimension, response.size, float(response.miss)
    law = np.zeros(2**buckets)
    for chosen in itertools.combinations(range(buckets), size):
        number = sum(1 << b for b in chosen)
        if bucket in chosen:
            law[number] = (1 - miss) / math.comb(buckets - 1, size - 1)
        else:
            law[number] = miss / math.comb(buckets - 1, size)
    return law


def sets_of(response: SubsetResponse, bucket: int, random: SeededRandom) -> NDArray[np.int64]:
    answers = response.answers(np.full(samples_for(0.02), bucket), random)
    return np.asarray((answers > 0) @ (1 << np.arange(response.values.dimension)), np.int64)


FIVE = SubsetResponse.best(100, oh.Privacy(0.25, 1e-6), Histogram(5))


def test_answers_about_buckets_have_their_mean_variance_and_epsilon() -> None:
    assert FIVE.size == 2
    laws = np.array([set_law(FIVE, bucket) for bucket in range(5)])
    sets = np.arange(32)[:, np.newaxis] >> np.arange(5) & 1
    worths = (sets - FIVE._other) * FIVE.spread
    assert laws.sum(axis=1) == pytest.approx(np.ones(5))
    assert laws @ worths == pytest.approx(np.eye(5))
    variances = laws @ worths**2 - np.eye(5)
    assert variances.mean(axis=1) == pytest.approx(np.full(5, FIVE.user_variance))
    assert variances.max() == pytest.approx(FIVE.worst_variance)
    sent = laws[:, laws[0] > 0]
    assert np.log(sent.max() / sent.min()) == pytest.approx(FIVE.epsilon_spent)


@pytest.mark.parametrize("bucket", [0, 2, 4])
def test_answers_about_buckets_follow_their_law(bucket: int) -> None:
    samples = sets_of(FIVE, bucket, oh.seeded_random(20234))
    assert_follows(samples, Outcomes(0, set_law(FIVE, bucket)), discrepancy=0.02)


class InOrder(SeededRandom):
    """Shuffles nothing."""

    def permute_rows(self, rows: NDArray[Any], message_bits: int = 1) -> NDArray[Any]:
        return rows


def test_the_law_of_sets_sees_a_wrong_probability_and_others_in_order() -> None:
    truth = Outcomes(0, set_law(FIVE, 2))
    less = replace(FIVE, miss=BinaryFraction.near(float(FIVE.miss) - 0.08))
    ordered = np.zeros(32)
    # others are bits of buckets 0, 1, 4 (in the place of 2) and 3, of which the first are set
    ordered[[0b00101, 0b00011]] = 1 - float(FIVE.miss), float(FIVE.miss)
    mutants = (
        (less, set_law(less, 2), oh.seeded_random(20234)),
        (FIVE, ordered, InOrder(20234)),
    )
    for mutant, lie, random in mutants:
        assert kolmogorov(truth, Outcomes(0, lie), range(32)) >= 0.02
        with pytest.raises(AssertionError, match="Kolmogorov"):
            assert_follows(sets_of(mutant, 2, random), truth, discrepancy=0.02)


def bits_variance(own: float, other: float, buckets: int) -> float:
    """Mean over buckets, if they are answered with these probabilities."""
    total = own * (1 - own) + (buckets - 1) * other * (1 - other)
    return total / (buckets * (own - other) ** 2)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("buckets", [2, 3, 5, 20, 200])
def test_no_published_mechanism_for_buckets_is_better(buckets: int, epsilon: float) -> None:
    ours = local(f"histogram:{buckets}", epsilon).user_variance
    odds, root = math.exp(epsilon), math.exp(epsilon / 2)
    direct = odds / (odds + buckets - 1), 1 / (odds + buckets - 1)
    optimised = 0.5, 1 / (odds + 1)
    symmetric = root / (root + 1), 1 / (root + 1)
    for own, other in (direct, optimised, symmetric):
        assert ours <= bits_variance(own, other, buckets) * (1 + 1e-8)
    one = SubsetResponse(100, Histogram(buckets), 1, BinaryFraction.near(1 - direct[0]))
    assert one.user_variance == pytest.approx(bits_variance(*direct, buckets))
