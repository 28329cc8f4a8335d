"""What the noise of one service shows of a user, block after block: exactly, by enumeration."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm

import overhand as oh
from overhand.accounting import BlocksGuarantee
from overhand.mechanisms import BallotSum, PairsSum
from overhand.model import Counts, Floats
from overhand.noise import CorrelatedNoise
from support.block_laws import Moves, filter_of, nothing, transcripts

BLOCKS, MOST = 3, 22
NOISE = replace(CorrelatedNoise.of(deviation=2.0, blocks=30), cap=BLOCKS)
EPSILONS = (0.0, 0.3, 1.0, 2.0)


def at(*moved: int) -> Moves:
    """A report in these blocks, so many in each, whatever was seen."""
    return lambda seen: np.full(len(seen), moved[seen.shape[1]], np.int64)


def when_the_sum_is_high(seen: Counts) -> Counts:
    """A lying service holds the report back until what came out so far is above 0."""
    block = seen.shape[1]
    if block == 0:
        return np.zeros(len(seen), np.int64)
    was_due = [(seen[:, :past].sum(axis=1) > 0) for past in range(1, block)]
    is_sent = np.any(was_due, axis=0) if was_due else np.zeros(len(seen), np.bool_)
    return np.asarray(~is_sent & (seen.sum(axis=1) > 0), np.int64)


PLACES: dict[str, Moves] = {
    "first": at(1, 0, 0),
    "second": at(0, 1, 0),
    "last": at(0, 0, 1),
    "when the sum is high": when_the_sum_is_high,
}
TWICE: dict[str, Moves] = {
    "both in the first": at(2, 0, 0),
    "one after the other": at(1, 1, 0),
    "apart, and against each other": at(1, 0, -1),
}


def shown(with_user: Floats, without: Floats, epsilon: float) -> float:
    """The delta of the two, whichever way round; what is beyond `MOST` is next to nothing."""
    assert min(with_user.sum(), without.sum()) > 1 - 1e-9
    both = (with_user, without), (without, with_user)
    return max(float(np.maximum(one - math.exp(epsilon) * o, 0).sum()) for one, o in both)


def certified(noise: CorrelatedNoise, epsilon: float, reports: int = 1) -> float:
    pairs = PairsSum(20, noise, modulus_bits=20)
    return BlocksGuarantee(pairs, reports, oh.Privacy(epsilon or 1e-9, 0.5)).spent_delta


def gaussian_delta(mu: float, epsilon: float) -> float:
    far = norm.cdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * far)


ALONE = transcripts(NOISE, BLOCKS, MOST, nothing)


@pytest.mark.parametrize("moves", PLACES.values(), ids=PLACES)
def test_all_that_comes_out_shows_no_more_than_is_certified(moves: Moves) -> None:
    """Nor much less, if there are blocks after it: what is certified is for all that may follow."""
    moved = transcripts(NOISE, BLOCKS, MOST, moves)
    for epsilon in EPSILONS:
        assert shown(moved, ALONE, epsilon) <= certified(NOISE, epsilon) + 1e-9


def test_it_shows_what_a_gaussian_of_the_same_blocks_does() -> None:
    """Whole numbers hide a hundredth of the deviation here."""
    moved = transcripts(NOISE, BLOCKS, MOST, at(1, 0, 0))
    mu = float(np.linalg.norm(filter_of(NOISE, BLOCKS))) / NOISE.deviation
    assert 0.85 * NOISE.mu(1.0) < mu < NOISE.mu(1.0)
    for epsilon in EPSILONS:
        exact = shown(moved, ALONE, epsilon)
        assert gaussian_delta(0.98 * mu, epsilon) < exact < gaussian_delta(mu, epsilon)


@pytest.mark.parametrize("moves", TWICE.values(), ids=TWICE)
def test_so_it_is_for_two_reports_wherever_they_are(moves: Moves) -> None:
    moved = transcripts(NOISE, BLOCKS, MOST, moves)
    for epsilon in EPSILONS:
        exact = shown(moved, ALONE, epsilon)
        assert exact <= certified(NOISE, epsilon, reports=2) + 1e-9
    if moves is TWICE["both in the first"]:
        assert exact > certified(NOISE, epsilon)


def test_half_the_variance_would_be_seen() -> None:
    less = NOISE.reduce(0.5, 1)
    moved, still = (transcripts(less, BLOCKS, MOST, one) for one in (at(1, 0, 0), nothing))
    for epsilon in EPSILONS:
        assert shown(moved, still, epsilon) > 1.1 * certified(NOISE, epsilon)


def test_so_would_a_certificate_of_a_single_block() -> None:
    """What later blocks correct shows the noise that was in the user's."""
    moved = transcripts(NOISE, BLOCKS, MOST, at(1, 0, 0))
    for epsilon in EPSILONS:
        assert shown(moved, ALONE, epsilon) > 1.08 * gaussian_delta(1 / NOISE.deviation, epsilon)


# Everybody but the two services, who sees the noise of both.

ORDERS = ((0, 1, 2), (1, 0, 2), (2, 1, 0))
"""In which the server draws for the blocks as the shuffling service numbers them."""


def shown_to_others(both: Floats, block: int, epsilon: float) -> float:
    """The delta of sums with this noise and a report in a block, whatever else is in them."""
    return shown(np.roll(both, 1, axis=block), both, epsilon)


def noise_of_both(order: tuple[int, ...]) -> Floats:
    """Its law, with room on all sides for a report."""
    alone = ALONE.reshape((2 * MOST + 1,) * BLOCKS)
    together = fftconvolve(alone, alone.transpose(order))
    return np.pad(np.maximum(together, 0.0), 1)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_others_are_shown_no_more_than_is_claimed(order: tuple[int, ...]) -> None:
    """That is proved for noise which is not rounded; this is rounded."""
    both = noise_of_both(order)
    for block in range(BLOCKS):
        for epsilon in EPSILONS:
            claimed = gaussian_delta(NOISE.mu(1.0) / math.sqrt(2), epsilon)
            assert shown_to_others(both, block, epsilon) <= claimed + 1e-9
    if order == (0, 1, 2):
        mu = float(np.linalg.norm(filter_of(NOISE, BLOCKS))) / NOISE.deviation / math.sqrt(2)
        for epsilon in EPSILONS:
            exact = shown_to_others(both, 0, epsilon)
            assert gaussian_delta(0.96 * mu, epsilon) < exact < gaussian_delta(mu, epsilon)


def test_the_noise_of_one_service_is_less_than_is_claimed_for_others() -> None:
    alone = np.pad(ALONE.reshape((2 * MOST + 1,) * BLOCKS), 1)
    for epsilon in EPSILONS:
        claimed = gaussian_delta(NOISE.mu(1.0) / math.sqrt(2), epsilon)
        assert shown_to_others(alone, 0, epsilon) > 1.1 * claimed


# Noise that is clipped.


@pytest.mark.parametrize(("bound", "dummies"), [(6, 12), (4, 12), (7, 11)])
@pytest.mark.parametrize("moves", PLACES.values(), ids=PLACES)
def test_clipped_noise_shows_no_more_than_is_charged(
    moves: Moves, bound: int, dummies: int
) -> None:
    votes = BallotSum(20, NOISE, bound=bound, dummies=dummies)

    def clip(drawn: Counts) -> Counts:
        return votes._fit_dummies(drawn[:, np.newaxis])[:, 0]

    moved, still = (transcripts(NOISE, BLOCKS, MOST, one, clip) for one in (moves, nothing))
    for epsilon in EPSILONS:
        charged = BlocksGuarantee(votes, 1, oh.Privacy(epsilon or 1e-9, 0.5)).spent_delta
        assert shown(moved, still, epsilon) <= charged + 1e-9


def test_clipping_that_is_not_charged_would_be_seen() -> None:
    """A count that no noise of a block without the user comes to."""
    votes = BallotSum(20, NOISE, bound=4, dummies=12)

    def clip(drawn: Counts) -> Counts:
        return votes._fit_dummies(drawn[:, np.newaxis])[:, 0]

    moved, still = (transcripts(NOISE, BLOCKS, MOST, one, clip) for one in (at(0, 1, 0), nothing))
    assert shown(moved, still, 2.0) > certified(NOISE, 2.0) + 0.01
