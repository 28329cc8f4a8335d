"""Ballots: their messages, the noise that the services make and clip, and what it is charged."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import overhand as oh
from overhand.lab.simulation import simulate
from overhand.mechanisms import BallotSum, Mechanism
from overhand.model import Counts, Floats, Messages
from overhand.noise import CorrelatedNoise, IndependentNoise, Polya, ServiceNoise
from overhand.randomness import Random, seeded_random
from overhand.shuffle import shuffle, with_added
from overhand.values import BITS, Histogram, Reals, Values
from support.block_laws import nothing, transcripts
from support.chosen_coins import mean_noise, one_batch
from support.message_sums import ShuffledSum
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for

__all__ = ["mean_noise"]

PRIVACY = oh.Privacy(1.0, 1e-6)
INDEPENDENT = IndependentNoise(Polya(shape=1, users=1, ratio=0.6), cap=10**6)
CORRELATED = CorrelatedNoise.of(deviation=1.5, blocks=100)
DISCREPANCY = 0.05
each_noise = pytest.mark.parametrize("noise", [INDEPENDENT, CORRELATED], ids=["laplace", "gauss"])


def ballots(
    size: int = 20, values: Values = BITS, distance: float = 1e-4, noise: ServiceNoise = INDEPENDENT
) -> BallotSum:
    return BallotSum.with_noise(size, noise, honest=1, distance=distance, values=values)


def tight(buckets: int, noise: ServiceNoise = CORRELATED) -> BallotSum:
    """With dummies for next to no noise."""
    return BallotSum(20, noise, Histogram(buckets), dummies=buckets + 1, bound=1)


def first_rows(mechanism: Mechanism, random: Random, blocks: int = 1) -> Counts:
    noise, _ = mechanism.advance_noise(mechanism.start_noise(random), random, blocks)
    return noise


@pytest.fixture
def rng() -> Random:
    return oh.seeded_random(16)


# Messages.


@each_noise
@pytest.mark.parametrize("values", [BITS, Histogram(2), Histogram(7)], ids=str)
def test_a_block_has_the_same_messages_whatever_the_noise(
    values: Values, noise: ServiceNoise, rng: Random
) -> None:
    mechanism = ballots(values=values, noise=noise)
    own = first_rows(mechanism, rng, 500)
    added = mechanism.added(own)
    assert added.sealed.shape == (500, mechanism.dummies)
    assert mechanism.layout.messages_per_batch(mechanism.size) == 20 + mechanism.dummies
    assert added.sealed.max() == values.dimension < 1 << mechanism.layout.message_bits
    assert added.sealed.dtype == mechanism.encode_many(values.uniform(rng, 3), rng).sealed.dtype
    assert np.array_equal(mechanism.own_steps(added), own + mechanism.bound)
    assert len(np.unique(own)) > 3


def test_a_bit_is_a_one_or_a_blank_and_a_bucket_its_number(rng: Random) -> None:
    assert ballots().encode_many([0, 1, 1], rng).sealed.tolist() == [[0], [1], [1]]
    assert ballots().layout.message_bits == 1
    buckets = ballots(values=Histogram(3))
    assert buckets.encode_many([0, 2], rng).sealed.tolist() == [[1], [3]]
    assert buckets.layout.message_bits == 2


def test_an_own_row_of_messages_is_a_row_for_every_user() -> None:
    mechanism = ballots(values=Histogram(3))
    assert mechanism.own_steps(Messages.of(np.array([[0], [2]]))).tolist() == [[0, 0, 0], [0, 1, 0]]


def law_of(mechanism: BallotSum, contributors: int) -> Outcomes:
    pmf = mechanism.noise(contributors).pmf
    return Outcomes(pmf.first, pmf.probabilities)


@pytest.mark.parametrize("values", [BITS, Histogram(3)])
def test_a_release_shows_counts_with_the_noise_of_one_service(values: Values, rng: Random) -> None:
    """And the server's adds to that: of neither alone, of both."""
    mechanism = ballots(size=4, values=values, distance=1e-9)
    runs, truth = samples_for(DISCREPANCY), values.total(values.rows([1, 0, 1, 0]))
    rows, own = np.tile([1, 0, 1, 0], runs), first_rows(mechanism, rng, runs)
    batches = with_added(mechanism.encode_rows(rows, rng).gather(4), mechanism, own)
    shuffled, servers = shuffle(batches, rng), first_rows(mechanism, rng, runs)
    seen = mechanism.step_sums(shuffled) - int(mechanism.offset) - truth
    both = np.rint(mechanism.analyze(shuffled, servers).reshape(runs, -1) - truth)
    one, two = law_of(mechanism, 1), law_of(mechanism, 2)
    assert kolmogorov(one, two, range(-60, 61)) > DISCREPANCY
    for coordinate in range(values.dimension):
        of_both = both[:, coordinate].astype(np.int64)
        assert_follows(seen[:, coordinate], one, discrepancy=DISCREPANCY)
        assert_follows(of_both, two, discrepancy=DISCREPANCY)
        with pytest.raises(AssertionError, match="Kolmogorov"):
            assert_follows(of_both, one, discrepancy=DISCREPANCY)


def correlation(drawn: Counts) -> float:
    return abs(float(stats.pearsonr(*drawn.T).statistic))


@each_noise
def test_buckets_have_noise_of_their_own(noise: ServiceNoise, rng: Random) -> None:
    """The mutant: one number for all of them."""
    drawn = first_rows(ballots(values=Histogram(2), noise=noise, distance=1e-9), rng, 10_000)
    assert correlation(drawn) < 7 / math.sqrt(10_000)
    assert correlation(drawn[:, [0, 0]]) > 0.99


@given(st.lists(st.integers(0, 3), min_size=20, max_size=20), st.integers(0, 4))
def test_one_client_moves_one_count_by_one(held: list[int], sent: int) -> None:
    """Whatever it sends, and garbage takes away nobody else's ballot."""
    mechanism, random = ballots(values=Histogram(4)), seeded_random(1)
    assert mechanism.influence == 1.0
    messages = mechanism.encode_many(held, random).sealed
    dummies = mechanism.added(first_rows(mechanism, random)).sealed[0]
    other = messages.copy()
    other[0] = sent
    before, after = (
        mechanism.step_sums(one_batch(np.concatenate([one.reshape(-1), dummies])))
        for one in (messages, other)
    )
    assert np.abs(after - before).max() <= 1
    assert np.abs(after - before).sum() <= 2


def test_garbage_is_blank_and_may_have_been_anything(rng: Random) -> None:
    mechanism = ballots(values=Histogram(4))
    users = mechanism.encode_many([2] * 20, rng).gather(20)
    (messages,) = shuffle(with_added(users, mechanism, first_rows(mechanism, rng)), rng).sealed
    exact = mechanism.step_sums(one_batch(messages))
    strange = messages.copy()
    strange[:2] = 7  # opens, and is no bucket
    repaired, missing = mechanism.repair(one_batch(strange[:-3]), garbage=3)
    assert missing == 5
    found = mechanism.step_sums(repaired)
    assert np.abs(found - exact).sum() <= 5
    assert (found <= exact).all()
    servers = first_rows(mechanism, rng)
    assert np.array_equal(mechanism.step_sums(repaired, servers), found + servers)
    for garbage in (2, 4, -1):
        with pytest.raises(oh.InvalidValue, match="garbage"):
            mechanism.repair(one_batch(strange[:-3]), garbage)


def test_nothing_but_garbage_is_a_block_without_ballots_and_dummies() -> None:
    mechanism = ballots(values=Histogram(3))
    due = 20 + mechanism.dummies
    repaired, missing = mechanism.repair(one_batch(np.empty(0, np.uint8)), garbage=due)
    assert missing == due
    assert mechanism.analyze(repaired).tolist() == [[-float(mechanism.bound)] * 3]


def test_a_message_that_is_no_bucket_is_refused() -> None:
    mechanism = ballots(size=1)
    bad = np.full(mechanism.layout.messages_per_batch(mechanism.size), 2, np.uint8)
    with pytest.raises(oh.InvalidValue, match="a message is not below 2"):
        mechanism.step_sums(one_batch(bad))


def test_a_block_without_its_dummies_is_refused(rng: Random) -> None:
    mechanism = ballots(size=3)
    bare = shuffle(mechanism.encode_many([1, 0, 1], rng).gather(3), rng)
    with pytest.raises(oh.InvalidValue, match="3 messages in a batch that has"):
        mechanism.sum_of(bare)


# Blocks of fewer users.


@pytest.mark.usefixtures("mean_noise")
def test_a_block_of_fewer_users_is_read_as_one(rng: Random) -> None:
    mechanism = ballots(size=20)
    for users in (0, 1, 7):
        few = mechanism.with_users(users)
        assert few.entry() | {"size": 20} == mechanism.entry()
        assert few.noise() == mechanism.noise()
        own = first_rows(few, rng)
        sent = few.encode_many([1] * users, rng).sealed.reshape(1, users)
        block = shuffle(with_added(Messages.of(sent), few, own), rng)
        assert few.sum_of(block, first_rows(few, rng)) == users
    assert mechanism.with_users(20) is mechanism
    for users in (-1, 21):
        with pytest.raises(oh.InvalidValue, match=f"users={users}"):
            mechanism.with_users(users)


# Clipping: noise is only what there are dummies for.


def clipped_one_by_one(mechanism: BallotSum, noise: list[int]) -> list[int]:
    """Bucket after bucket takes what it wants of the dummies that are left."""
    left, found = mechanism.dummies, []
    for wanted in noise:
        taken = min(left, max(0, wanted + mechanism.bound))
        found.append(taken - mechanism.bound)
        left -= taken
    return found


@given(
    st.lists(st.integers(-(10**6), 10**6) | st.integers(-6, 6), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 9),
)
def test_noise_is_clipped_to_the_dummies_that_there_are(
    noise: list[int], bound: int, more: int
) -> None:
    buckets = len(noise)
    values = Histogram(buckets) if buckets > 1 else BITS
    mechanism = BallotSum(9, CORRELATED, values, dummies=buckets * bound + more, bound=bound)
    (found,) = mechanism._clip(np.array([noise])).tolist()
    assert found == clipped_one_by_one(mechanism, noise)
    (dummies,) = mechanism.added(np.array([found])).sealed.tolist()
    assert len(dummies) == mechanism.dummies
    assert [dummies.count(1 + j) - bound for j in range(buckets)] == found
    wanted = [one + bound for one in noise]
    if min(wanted) >= 0 and sum(wanted) <= mechanism.dummies:
        assert found == noise


@each_noise
@pytest.mark.parametrize("buckets", [1, 3, 20])
def test_noise_that_is_drawn_always_has_its_dummies(
    buckets: int, noise: ServiceNoise, rng: Random
) -> None:
    """However little there are: the state goes on from what was clipped."""
    mechanism = tight(buckets, noise) if buckets > 1 else BallotSum(9, noise, dummies=2, bound=1)
    drawn = first_rows(mechanism, rng, 300)
    assert drawn.min() == -1
    assert (drawn + 1).sum(axis=1).max() == mechanism.dummies
    dummies = mechanism.added(drawn)
    assert dummies.sealed.shape == (300, mechanism.dummies)
    assert np.array_equal(mechanism.own_steps(dummies), drawn + 1)


class NeverClips(BallotSum):
    @property
    def _clip(self) -> Any:
        return None


def test_noise_that_is_not_clipped_would_be_seen(rng: Random) -> None:
    sound = tight(3)
    mechanism = NeverClips(20, CORRELATED, Histogram(3), dummies=sound.dummies, bound=1)
    drawn = first_rows(mechanism, rng, 300)
    assert drawn.min() < -1
    with pytest.raises(ValueError, match="negative|less than zero"):
        mechanism.added(drawn)


# How rarely noise is clipped.


def law_of_last(noise: ServiceNoise, blocks: int, most: int) -> Floats:
    """The law of the noise of the last of so many blocks, by enumeration of those before it."""
    outcomes = np.arange(-most, most + 1)
    if not isinstance(noise, CorrelatedNoise):
        return np.asarray(0.6 ** np.abs(outcomes) * (0.4 / 1.6))
    joint = transcripts(noise, blocks, most, nothing)
    return np.asarray(joint.reshape(-1, len(outcomes)).sum(axis=0))


def exact_clip_probability(mechanism: BallotSum, blocks: int) -> float:
    """Of any bucket, or of all together, in the last of so many blocks."""
    noise, buckets = mechanism.noise_share, mechanism.values.dimension
    assert isinstance(noise, ServiceNoise)
    most = 14 if noise is CORRELATED and blocks > 1 else 60
    law = law_of_last(noise, blocks, most)
    inside = law[most - mechanism.bound :]  # of noise from -bound on
    all_inside = inside.sum() ** buckets
    dummies = reduce(np.convolve, [inside] * buckets)
    return float(1 - all_inside + dummies[mechanism.dummies + 1 :].sum())


CLIPPING = [
    (BITS, 3, 6), (BITS, 5, 9), (BITS, 6, 30), (Histogram(2), 4, 11),
    (Histogram(3), 4, 14), (Histogram(3), 3, 20),
]  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize(("values", "bound", "dummies"), CLIPPING, ids=str)
@each_noise
def test_noise_is_clipped_no_more_often_than_is_charged(
    noise: ServiceNoise, values: Values, bound: int, dummies: int, blocks: int
) -> None:
    mechanism = BallotSum(9, noise, values, dummies=dummies, bound=bound)
    exact = exact_clip_probability(mechanism, blocks)
    assert 1e-6 < exact <= mechanism.clip_probability == mechanism.view_distance(1)


class OneBucketOnly(BallotSum):
    """As if only one of the buckets could be clipped."""

    @cached_property
    def clip_probability(self) -> float:
        return self.noise_share.law(1).tail(self.bound) / 2


class NeverTooMany(BallotSum):
    """As if there were always enough dummies for all buckets together."""

    @cached_property
    def clip_probability(self) -> float:
        return self.values.dimension * self.noise_share.law(1).tail(self.bound) / 2


@pytest.mark.parametrize(
    ("mutant", "bound", "dummies"), [(OneBucketOnly, 5, 400), (NeverTooMany, 12, 240)]
)
def test_less_than_that_would_be_seen(mutant: type[BallotSum], bound: int, dummies: int) -> None:
    mechanism, sound = (
        kind(9, CORRELATED, Histogram(20), dummies=dummies, bound=bound)
        for kind in (mutant, BallotSum)
    )
    exact = exact_clip_probability(sound, 3)
    assert mechanism.clip_probability < exact <= sound.clip_probability


@each_noise
@pytest.mark.parametrize("values", [BITS, Histogram(2), Histogram(9)], ids=str)
@pytest.mark.parametrize("distance", [1e-3, 1e-8, 1e-20])
def test_there_are_no_more_dummies_than_it_takes(
    noise: ServiceNoise, values: Values, distance: float
) -> None:
    mechanism, buckets = ballots(values=values, distance=distance, noise=noise), values.dimension
    assert mechanism.clip_probability <= 2 * buckets * distance
    one, both = noise.law(1), noise.law(buckets)
    assert mechanism.bound == 1 or one.tail(mechanism.bound - 1) / 2 > distance
    together = mechanism.dummies - buckets * mechanism.bound
    assert both.tail(together - 1) / 2 > buckets * distance


# What is refused.


@pytest.mark.parametrize(
    ("values", "bound", "dummies", "words"),
    [
        (BITS, 10, 9, "dummies=9 must be a whole number of at least 10"),
        (Histogram(3), 10, 29, "dummies=29 must be a whole number of at least 30"),
        (BITS, 0, 9, "bound=0"),
        (BITS, 2.5, 9, "bound=2.5"),
        (Reals(0.0, 1.0), 3, 9, "ballots are for bits and histograms, not for real"),
    ],
)
def test_ballots_without_enough_dummies_are_refused(
    values: Values, bound: Any, dummies: int, words: str
) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        BallotSum(10, INDEPENDENT, values, dummies=dummies, bound=bound)


def test_an_edited_plan_of_ballots_is_refused() -> None:
    plan = oh.Plan.best(300, privacy=PRIVACY, mechanism="ballots")
    lied = plan.mechanisms[0].entry()
    text = plan.to_json()
    for name in ("dummies", "bound"):
        edited = text.replace(f'"{name}": {lied[name]}', f'"{name}": {lied[name] + 1}')
        assert edited != text
        with pytest.raises(oh.DamagedPlan):
            oh.Plan.from_json(edited)


# Plans.


@pytest.mark.parametrize("horizon", [300, 100_000])
@pytest.mark.parametrize("mechanism", ["ballots", "pairs"])
def test_half_the_noise_is_not_certified(mechanism: str, horizon: int) -> None:
    plan = oh.Plan.best(horizon, privacy=PRIVACY, mechanism=mechanism)
    assert plan.delta_spent <= PRIVACY.delta
    halved = replace(plan, mechanisms=(plan.mechanisms[0].reduce(0.5),))
    assert halved.delta_spent > 100 * PRIVACY.delta
    several = replace(plan, reports=2)
    assert several.delta_spent > 100 * PRIVACY.delta


@pytest.mark.parametrize("engine", ["counts", "messages"])
@pytest.mark.parametrize("mechanism", ["ballots", "pairs"])
@pytest.mark.slow
def test_measured_errors_are_the_predicted_ones(engine: Any, mechanism: str) -> None:
    """A tenth: forgetting the server's noise takes away three tenths."""
    plan = oh.Plan.best(2_000, privacy=PRIVACY, mechanism=mechanism)
    result = simulate(plan, "ones", runs=400, seed=3, engine=engine)
    assert result.rms_error == pytest.approx(plan.rms_error, rel=0.1)


@pytest.mark.usefixtures("mean_noise")
@pytest.mark.parametrize("mechanism", ["ballots", "pairs"])
def test_messages_go_through_the_model_of_the_paper(mechanism: str, rng: Random) -> None:
    """Exactly: all noise is its mean, and a pending user counts as half a one."""
    plan = oh.Plan.best(300, privacy=PRIVACY, mechanism=mechanism)
    total = ShuffledSum(plan, rng)
    for _ in range(299):
        total.update(1)
    assert 299 % plan.tree.lowest
    assert total.estimate.value == pytest.approx(299 - (299 % plan.tree.lowest) / 2, abs=1e-6)
