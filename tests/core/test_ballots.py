"""Ballots, and the noise that each of the two services makes: laws, messages, guarantees."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import overhand as oh
from overhand.accounting import (
    Level,
    composition,
    delta,
    shifted_pair,
    spent_delta,
    spent_epsilon,
)
from overhand.lab.simulation import simulate
from overhand.mechanisms import BallotSum, Mechanism, PairsSum
from overhand.model import Counts, Messages, Shuffled
from overhand.noise import BoundedNoise, Coins, LaplaceNoise, Polya, ServiceNoise, noise_of
from overhand.randomness import HALF, Random
from overhand.shuffle import shuffle, with_added
from overhand.values import BITS, Histogram, Reals, Values, Vectors
from support.chosen_coins import mean_noise
from support.message_sums import ShuffledSum
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for

__all__ = ["mean_noise"]

MILLION = 10**6
PRIVACY = oh.Privacy(1.0, 1e-6)
NOISE = ServiceNoise(Polya(shape=1, users=1, ratio=0.6))
DISCREPANCY = 0.02


def ballots(size: int = 20, values: Values = BITS, distance: float = 1e-4) -> BallotSum:
    return BallotSum.with_noise(size, NOISE, honest=1, distance=distance, values=values, steps=1)


def pairs(size: int = 20, values: Values = BITS, steps: int = 1) -> PairsSum:
    return PairsSum.with_noise(size, NOISE, honest=1, distance=1e-9, values=values, steps=steps)


def released(mechanism: Mechanism, raw: list[Any], random: Random) -> Shuffled:
    """What the server is given of one batch."""
    batch = mechanism.encode_many(raw, random).gather(len(raw))
    return shuffle(with_added(batch, mechanism, random), random)


# The law of bounded noise.


LAWS = st.builds(
    lambda shape, ratio, bound, count: BoundedNoise(
        LaplaceNoise(Fraction(shape), ratio), bound, count
    ),
    st.integers(1, 3),
    st.floats(0.05, 0.95),
    st.integers(1, 40),
    st.integers(1, 3),
)


@given(LAWS, st.floats(0.01, 0.99))
def test_moments_growth_and_tails_are_those_of_the_window(law: BoundedNoise, part: float) -> None:
    pmf = law.pmf
    outcomes = pmf.first + np.arange(len(pmf.probabilities), dtype=np.float64)
    assert pmf.first == -law.count * min(law.bound, -law.law.pmf.first)
    assert pmf.probabilities.sum() == pytest.approx(1)
    assert pmf.probabilities == pytest.approx(pmf.probabilities[::-1])
    second, fourth = (float(pmf.probabilities @ outcomes**power) for power in (2, 4))
    assert law.variance == pytest.approx(second)
    assert law.fourth_cumulant == pytest.approx(fourth - 3 * second**2, abs=1e-9 * fourth)
    s = part * law.mgf_limit
    assert math.log(pmf.probabilities @ np.exp(s * outcomes)) <= law.log_mgf_bound(s) + 1e-9
    beyond = part * law.count * law.bound
    outside = pmf.probabilities[np.abs(outcomes) > beyond].sum()
    assert outside <= law.tail(beyond) + 1e-12
    assert law.tail(law.count * law.bound) == 0


@given(LAWS)
def test_the_window_is_the_convolution_to_its_last_outcome(law: BoundedNoise) -> None:
    """A plain transform would lose what is below 1e-17, and with it the edge that costs delta."""
    single = replace(law, count=1).pmf.probabilities
    slow = reduce(np.convolve, [single] * law.count)
    assert law.pmf.probabilities == pytest.approx(slow, rel=1e-9, abs=0)


def test_what_a_bound_beyond_the_window_leaves_out_is_missing() -> None:
    """Draws go up to the bound: the accountant is told of those that the pmf does not show."""
    whole = LaplaceNoise(Fraction(1), 0.5)
    for bound, missing in ((20, 0.0), (10**6, whole.pmf.missing)):
        for count in (1, 2):
            assert BoundedNoise(whole, bound, count).pmf.missing == count * missing


def test_a_wide_window_takes_no_time_and_ends_as_precisely() -> None:
    """Of 100,000 outcomes; one after the other it would be minutes, whenever a server starts."""
    law = BoundedNoise(LaplaceNoise(Fraction(1), 0.999), 25_000, count=2)
    single, both = law._once.probabilities, law.pmf.probabilities
    assert both.sum() == pytest.approx(1)
    assert both[[-1, -2]] == pytest.approx(
        single[-1] ** 2 * np.array([1, 2 / 0.999]), rel=1e-9, abs=0
    )


def test_the_accountant_charges_for_what_is_cut_off() -> None:
    """Where one of two neighbours ends and the other goes on, no epsilon helps."""
    epsilon = 0.5
    for bound in (5, 10, 20):
        law = BoundedNoise(LaplaceNoise(Fraction(1), math.exp(-epsilon)), bound)
        moved, still = shifted_pair(law, 1)
        edge = float(moved[-1])
        assert still[-1] == 0
        assert edge <= delta(law, epsilon) <= edge + 1e-12


def test_noise_too_wide_for_a_table_is_refused_at_once() -> None:
    """A document of a stranger may ask for any: nothing of it is tabulated."""
    for part in (Polya(1, 1, 1 - 1e-12), Polya(1, 3, 0.5)):
        with pytest.raises(oh.InvalidValue, match="is not tabulated"):
            noise_of({"each_service": part.entry(), "bound": 3})
        unbounded = noise_of({"each_service": part.entry(), "bound": None})
        with pytest.raises(oh.Infeasible, match="is not tabulated"):
            _ = unbounded.law(1).pmf
    with pytest.raises(oh.InvalidValue, match="from 1 to 1024"):
        noise_of({"each_service": Polya(10**9, 1, 1e-9).entry(), "bound": None})
    with pytest.raises(oh.Infeasible, match="too wide to be drawn"):
        _ = Polya(1, 1, 1 - 1e-12).sampling_distance


def test_a_plan_whose_noise_is_too_wide_for_a_table_is_refused_at_once() -> None:
    with pytest.raises(oh.Infeasible, match=r"variance \S+ and shape \d is not tabulated"):
        oh.Plan.best(10_000, 1, oh.Privacy(1e-5, 1e-6), noise="services")


@pytest.mark.slow
def test_where_laplace_noise_is_too_wide_another_is_taken() -> None:
    plan = oh.Plan.best(10_000, 1, oh.Privacy(1e-5, 1e-6), mechanism="shares")
    assert isinstance(plan.mechanisms[0].noise_share, Coins)
    assert plan.delta_spent <= 1e-6


def test_draws_are_within_the_bound_and_have_the_law(rng: Random) -> None:
    count = samples_for(DISCREPANCY)
    noise = replace(NOISE, bound=4)
    pmf = noise.law(1).pmf
    law = Outcomes(pmf.first, pmf.probabilities)
    drawn = noise.draw(rng, count)
    assert np.abs(drawn).max() == 4
    assert_follows(drawn, law, discrepancy=DISCREPANCY)
    clipped = np.clip(NOISE.draw(rng, count), -4, 4)  # the mutant: cut, and not drawn again
    assert_rejected(clipped, law)


def test_both_services_draw_one_each(rng: Random) -> None:
    noise, count = replace(NOISE, bound=9), samples_for(DISCREPANCY)
    pmf = noise.law(2).pmf
    law = Outcomes(pmf.first, pmf.probabilities)
    assert_follows(noise.draw_sums(rng, 2, count).astype(np.int64), law, discrepancy=DISCREPANCY)
    assert_rejected(2 * noise.draw(rng, count), law)  # the mutant: one draw for both


def assert_rejected(samples: Counts, law: Outcomes) -> None:
    with pytest.raises(AssertionError):
        assert_follows(samples, law, discrepancy=DISCREPANCY)


@pytest.fixture
def rng() -> Random:
    return oh.seeded_random(16)


# Messages.


@pytest.mark.parametrize("values", [BITS, Histogram(2), Histogram(7)])
def test_a_batch_has_the_same_messages_whatever_the_noise(values: Values, rng: Random) -> None:
    mechanism = ballots(values=values)
    added = mechanism.draw_added(rng, 500)
    assert added.sealed.shape == (500, mechanism.dummies)
    assert mechanism.layout.messages_per_batch(mechanism.size) == 20 + mechanism.dummies
    assert added.sealed.max() == values.dimension < 1 << mechanism.layout.message_bits
    assert added.sealed.dtype == mechanism.encode_many(values.uniform(rng, 3), rng).sealed.dtype
    counts = mechanism.own_steps(added)
    bound = mechanism.noise_share.bound
    assert bound is not None
    assert counts.min() >= 0
    assert counts.max() <= 2 * bound


def test_a_bit_is_a_one_or_a_blank_and_a_bucket_its_number(rng: Random) -> None:
    assert ballots().encode_many([0, 1, 1], rng).sealed.tolist() == [[0], [1], [1]]
    assert ballots().layout.message_bits == 1
    buckets = ballots(values=Histogram(3))
    assert buckets.encode_many([0, 2], rng).sealed.tolist() == [[1], [3]]
    assert buckets.layout.message_bits == 2


@pytest.mark.parametrize("values", [BITS, Histogram(3)])
def test_a_release_shows_counts_with_the_noise_of_one_service(values: Values, rng: Random) -> None:
    """And the server's adds to that: of neither alone, of both, of a batch without dummies."""
    mechanism, runs = ballots(size=4, values=values), samples_for(DISCREPANCY)
    rows = np.tile(np.array([1, 0, 1, 0]), runs)
    batches = with_added(mechanism.encode_rows(rows, rng).gather(4), mechanism, rng)
    shuffled = shuffle(batches, rng)
    truth = values.total(values.rows([1, 0, 1, 0]))
    seen = mechanism.step_sums(shuffled) - int(mechanism.offset) - truth
    both = mechanism.analyze(shuffled, mechanism.server_noise(rng, runs)).reshape(runs, -1) - truth
    one, two = (
        Outcomes(law.pmf.first, law.pmf.probabilities)
        for law in (mechanism.honest_noise(), mechanism.noise())
    )
    assert kolmogorov(one, two, range(-60, 61)) > DISCREPANCY
    for coordinate in range(values.dimension):
        assert_follows(seen[:, coordinate], one, discrepancy=DISCREPANCY)
        assert_follows(both[:, coordinate].astype(np.int64), two, discrepancy=DISCREPANCY)


def test_buckets_have_noise_of_their_own(rng: Random) -> None:
    mechanism = ballots(values=Histogram(2))
    drawn = mechanism.own_steps(mechanism.draw_added(rng, 40_000))
    correlation = float(stats.pearsonr(*drawn.T).statistic)
    assert abs(correlation) < 7 / math.sqrt(40_000)


@given(st.lists(st.integers(0, 3), min_size=20, max_size=20), st.integers(0, 4))
def test_one_client_moves_one_count_by_one(held: list[int], sent: int) -> None:
    """Whatever it sends, and garbage takes away nobody else's ballot."""
    mechanism = ballots(values=Histogram(4))
    random = oh.seeded_random(1)
    messages = mechanism.encode_many(held, random)
    dummies = mechanism.draw_added(random).sealed[0]
    other = messages.sealed.copy()
    other[0] = sent
    before, after = (
        mechanism.step_sums(Shuffled(np.concatenate([m.reshape(-1), dummies])[np.newaxis], none))
        for m, none in ((messages.sealed, np.empty((1, 0), np.uint64)),
                        (other, np.empty((1, 0), np.uint64)))
    )  # fmt: skip
    assert np.abs(after - before).max() <= 1
    assert np.abs(after - before).sum() <= 2


def test_garbage_is_blank_and_may_have_been_anything(rng: Random) -> None:
    mechanism = ballots(values=Histogram(4))
    (messages,) = released(mechanism, [2] * 20, rng).sealed
    exact = mechanism.step_sums(Shuffled(messages[np.newaxis], np.empty((1, 0), np.uint64)))
    strange = messages.copy()
    strange[:2] = 7  # opens, and is no bucket
    shuffled = Shuffled(strange[np.newaxis, :-3], np.empty((1, 0), np.uint64))
    repaired, missing = mechanism.repair(shuffled, garbage=3)
    assert missing == 5
    assert np.abs(mechanism.step_sums(repaired) - exact).sum() <= 5
    _, bias_bound = mechanism.sum_batch(shuffled, 3, rng)
    assert bias_bound == 5


def test_a_message_that_is_no_bucket_is_refused(rng: Random) -> None:
    mechanism = ballots(size=1)
    bad = np.full((1, mechanism.layout.messages_per_batch(mechanism.size)), 2, np.uint8)
    with pytest.raises(oh.InvalidValue, match="a message is not below 2"):
        mechanism.step_sums(Shuffled(bad, np.empty((1, 0), np.uint64)))


# Pairs, if users add nothing.


@pytest.mark.parametrize(("values", "steps"), [(BITS, 1), (Histogram(3), 1), (Reals(-2.0, 5.0), 6)])
def test_users_of_pairs_send_their_steps_alone(values: Values, steps: int, rng: Random) -> None:
    mechanism = pairs(size=6, values=values, steps=steps)
    rows = values.opposites(np.array([1, 0, 1, 1, 0, 0], np.uint8))
    messages = mechanism.encode_rows(rows, rng)
    own = mechanism.own_steps(messages)
    sent = mechanism.quantizer.to_steps(rows, rng)  # at the ends of a range nothing is rounded
    assert (own == sent.reshape(own.shape)).all()
    exact = mechanism.step_sums(Shuffled(*messages.gather(6)))
    assert (exact == own.sum(axis=0)).all()
    with_noise = with_added(messages.gather(6), mechanism, rng)
    assert (with_noise.clear < mechanism.modulus).all()
    assert (with_noise.sealed == messages.gather(6).sealed).all()


def test_the_servers_noise_comes_before_lifting(rng: Random) -> None:
    """At the edge of the range a residue is one thing or the other: noise decides which."""
    mechanism = pairs(size=3)
    edge = mechanism.largest_sum + mechanism._room
    seeds = mechanism.encode_many([0, 0, 0], rng)
    zero = int(mechanism.own_steps(seeds).sum())
    clear = (seeds.clear.sum(axis=0) + np.uint64(edge - zero)) & np.uint64(mechanism.modulus - 1)
    at_edge = Shuffled(seeds.gather(3).sealed, clear[np.newaxis])
    assert mechanism.step_sums(at_edge).item() == edge
    lifted_first = mechanism.step_sums(at_edge).item() + 1
    assert mechanism.step_sums(at_edge, np.array([[1]])).item() == lifted_first - mechanism.modulus


def test_the_modulus_holds_both_noises() -> None:
    mechanism = pairs(size=50)
    assert mechanism.wrap_probability <= 1e-9
    assert mechanism.noise().variance == 2 * mechanism.honest_noise().variance


# Batches of fewer users.


@pytest.mark.usefixtures("mean_noise")
@pytest.mark.parametrize("make", [ballots, pairs])
def test_a_batch_of_fewer_users_is_read_as_one(make: Any, rng: Random) -> None:
    mechanism = make(size=20)
    few = mechanism.with_users(7)
    assert few.noise_share == mechanism.noise_share
    assert few.noise() == mechanism.noise()
    assert few.sum_of(released(few, [1] * 7, rng), few.server_noise(rng, 1)) == 7
    assert mechanism.with_users(20) is mechanism
    for users in (0, 21):
        with pytest.raises(oh.InvalidValue, match=f"users={users}"):
            mechanism.with_users(users)


def test_absent_users_do_not_count_as_the_low_end(rng: Random) -> None:
    mechanism = pairs(size=10, values=Reals(-4.0, 6.0), steps=5)
    few = mechanism.with_users(3)
    shuffled = released(few, [6.0, 6.0, -4.0], rng)
    noise = few.step_sums(shuffled).item() - 10
    assert few.sum_of(shuffled) == pytest.approx(8.0 + noise * few.quantizer.unit)


def test_users_noise_is_that_of_all_users() -> None:
    coins = oh.CoinSum(10, Coins(2, HALF))
    with pytest.raises(oh.InvalidValue, match="a batch of 9 users lacks the noise of 10"):
        coins.with_users(9)


# Plans.


@pytest.mark.parametrize(
    ("values", "shufflers", "mechanism", "kind", "error", "opened"),
    [
        (BITS, 3, None, "ballots", 40.5, 7),
        (BITS, 4, "best", "ballots", 39.9, 10),
        (BITS, 4, "pairs", "pairs", 39.9, 4),
        (Histogram(10), 4, None, "ballots", 73, 30),
        (Histogram(200), 4, None, "pairs", 73, 4),
        (Vectors(20), 4, None, "pairs", 117, 4),
    ],
)
def test_a_plan_has_one_message_per_level_and_little_error(
    values: Values, shufflers: int, mechanism: str | None, kind: str, error: float, opened: float
) -> None:
    asked = MILLION, shufflers, PRIVACY
    plan = oh.Plan.best(*asked, values=values, noise="services", mechanism=mechanism)
    assert {m.kind for m in plan.mechanisms} == {kind}
    assert plan.noise_by == "services"
    assert plan.messages_per_user == shufflers
    assert plan.rms_error <= error
    assert plan.costs.opened <= opened
    assert plan.delta_spent <= PRIVACY.delta
    assert (plan.influence == 1) == (kind == "ballots")
    assert oh.Plan.from_json(plan.to_json()) == plan
    halved = replace(plan, mechanisms=tuple(m.reduce(0.5) for m in plan.mechanisms))
    assert halved.delta_spent > 100 * PRIVACY.delta


def test_each_service_alone_is_enough_and_both_are_more() -> None:
    plan = oh.Plan.best(10_000, 2, PRIVACY, noise="services")
    assert 0.5 < plan.outside_epsilon < 0.95
    assert plan.summary()["noise_by"] == "services"
    users = oh.Plan.best(10_000, 2, PRIVACY)
    assert users.outside_epsilon == users.privacy.epsilon == 1.0
    assert users.noise_by == "users"


def test_no_epsilon_is_printed_that_was_not_certified() -> None:
    """Almost nothing is hidden: the only epsilon that is known is that of the guarantee."""
    bare = [Level(LaplaceNoise(Fraction(1), math.exp(-80)))]
    assert spent_delta(bare, oh.Privacy(64.0, 1e-6)) > 0.9
    assert spent_epsilon(bare, oh.Privacy(90.0, 1e-6)) == 90.0


def test_no_epsilon_is_looked_for_on_ever_finer_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where delta is large any epsilon will do, and the grid of a tiny one would fill memory."""
    asked: list[float] = []

    def nothing(levels: Any, privacy: oh.Privacy) -> float:
        asked.append(privacy.epsilon)
        return 0.0

    for name in ("quick_delta", "spent_delta"):
        monkeypatch.setattr(composition, name, nothing)
    assert 0.1 < spent_epsilon([Level(NOISE.law(1))], PRIVACY) == min(asked) < 0.2


def test_several_reports_of_a_person_need_more_noise() -> None:
    one, three = (oh.Plan.best(10_000, 2, PRIVACY, noise="services", reports=r) for r in (1, 3))
    assert three.delta_spent <= PRIVACY.delta
    assert three.rms_error > 1.5 * one.rms_error
    assert replace(one, reports=3).delta_spent > PRIVACY.delta


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"honest": 0.5}, "honest=0.5 has no meaning if the services make the noise"),
        ({"honest": "half"}, "honest='half' must be a number"),
        ({"mechanism": "coins"}, "mechanism='coins' cannot send bit with noise made by services"),
        ({"mechanism": "shares"}, "use one of pairs, ballots"),
        ({"mechanism": "ballots", "values": Vectors(3)}, "cannot send vector:3"),
        ({"noise": "nobody"}, "noise='nobody' must be one of users, services"),
        ({"noise": "users", "mechanism": "ballots"}, "with noise made by users"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Plan.best(1000, 2, PRIVACY, **({"noise": "services"} | options))


def test_one_plan_has_one_kind_of_contributors() -> None:
    plan = oh.Plan.best(1000, 2, PRIVACY, noise="services", mechanism="pairs")
    lowest = plan.mechanisms[0]
    assert isinstance(lowest, PairsSum)
    of_users = replace(lowest, noise_share=Polya(1, lowest.size, 0.9))
    with pytest.raises(oh.InvalidValue, match="at all levels"):
        replace(plan, mechanisms=(of_users, *plan.mechanisms[1:]))


@pytest.mark.parametrize(
    ("noise", "dummies", "words"),
    [
        (NOISE, 20, "need bounded noise"),
        (replace(NOISE, bound=10), 9, "dummies=9"),
        (replace(NOISE, bound=10), 21, "dummies=21"),
    ],
)
def test_ballots_without_enough_dummies_are_refused(
    noise: ServiceNoise, dummies: int, words: str
) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        BallotSum(10, noise, dummies=dummies)


@pytest.mark.parametrize("engine", ["counts", "messages"])
@pytest.mark.parametrize("mechanism", ["ballots", "pairs"])
@pytest.mark.slow
def test_measured_errors_are_the_predicted_ones(engine: Any, mechanism: str) -> None:
    """A tenth: forgetting the server's noise takes away three tenths."""
    plan = oh.Plan.best(2_000, 2, PRIVACY, noise="services", mechanism=mechanism)
    result = simulate(plan, "ones", runs=400, seed=3, engine=engine)
    assert result.rms_error == pytest.approx(plan.rms_error, rel=0.1)


@pytest.mark.usefixtures("mean_noise")
def test_messages_of_ballots_go_through_the_model_of_the_paper(rng: Random) -> None:
    """Exactly: all noise is its mean, and a pending user counts as half a one."""
    plan = oh.Plan.best(300, 2, PRIVACY, noise="services", tree="paper")
    total = ShuffledSum(plan, rng, rng)
    for _ in range(300):
        total.update(1)
    assert total.estimate.value == pytest.approx(300 - (300 % plan.tree.lowest) / 2, abs=1e-6)
    assert plan.tree.levels == 2


def test_an_own_row_of_messages_is_a_row_for_every_user(rng: Random) -> None:
    mechanism = ballots(values=Histogram(3))
    assert mechanism.own_steps(Messages.of(np.array([[0], [2]]))).tolist() == [[0, 0, 0], [0, 1, 0]]
