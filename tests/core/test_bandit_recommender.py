"""A recommender: policies after any part of a stream, and arms for one user or many."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.bandits import Policy, Recommender, Rounds
from overhand.model import Floats
from support.learners import (
    CONSTANT,
    ROUNDS,
    assert_same_policy,
    by_hand,
    in_ball,
    learner,
    naive_scores,
    recommender,
    small_plan,
    stream,
    with_constant,
)
from support.sampling import assert_uniform_over

ARMS = 4
PLAIN_OR_CONSTANT = pytest.mark.parametrize("constant", [None, CONSTANT], ids=["plain", "constant"])


def fed(
    cuts: list[int], singles: bool, seed: int = 1, constant: float | None = None
) -> list[Policy | None]:
    """The policies after each part of the stream."""
    features, rewards = stream()
    at, policies = recommender(seed, constant), []
    for start, stop in itertools.pairwise([0, *cuts, 60]):
        if singles and stop - start <= 3:
            for place in range(start, stop):
                at.update(
                    features[place].tolist() if place % 2 else features[place], rewards[place]
                )
        else:
            at.update_many(features[start:stop], rewards[start:stop])
        assert at.t == stop
        policies.append(at.policy)
    return policies


@cache
def one_by_one(constant: float | None = None) -> tuple[Policy | None, ...]:
    """The policies after 0, 1, ... 60 users."""
    return (None, *fed(list(range(1, 60)), singles=True, constant=constant))


@given(
    st.lists(st.integers(0, 60), max_size=12).map(sorted),
    st.booleans(),
    st.sampled_from([None, CONSTANT]),
)
@settings(max_examples=60)
def test_any_split_of_the_stream_gives_the_same_policies(
    cuts: list[int], singles: bool, constant: float | None
) -> None:
    for stop, policy in zip([*cuts, 60], fed(cuts, singles, constant=constant), strict=True):
        assert_same_policy(policy, one_by_one(constant)[stop])


class OnlySingles(Recommender):
    """A recommender that never takes a closer look at one user."""

    def update_many(self, features: Any, rewards: Any) -> None:
        raise AssertionError("a closer look")


@pytest.mark.parametrize("constant", [None, 0.3, math.sqrt(0.5), 0.9, 0.99])
@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_features_of_norm_1_need_no_closer_look(ulps: int, constant: float | None) -> None:
    """But for rounding: and the policies are the same as after one."""
    rng = np.random.default_rng(24)
    x = with_constant(rng, constant, 60, 2, length=1 + ulps * 2.0**-52)
    squares = [float(of_one.dot(of_one)) for of_one in x]
    assert min(squares) > 1 - 1e-15
    assert max(squares) < 1 + 1e-15
    if ulps > 0:
        assert max(squares) > 1
    _, rewards = stream()
    quick = OnlySingles(small_plan(), oh.seeded_random(1), constant=constant)
    close = recommender(constant=constant)
    for t in range(60):
        quick.update(x[t], float(rewards[t]))
        close.update_many(x[t : t + 1], rewards[t : t + 1])
        assert quick.t == close.t == t + 1
        assert_same_policy(quick.policy, close.policy)
    assert quick.policy is not None
    assert quick.policy.t == 54
    with pytest.raises(AssertionError, match="a closer look"):
        OnlySingles(small_plan(), oh.seeded_random(1)).update([0.8, 0.1], 1.0)


class EveryFifth:
    """Sums without noise, released after every fifth user."""

    def __init__(self) -> None:
        self.total: Any = 0.0

    def next_release(self, t: int) -> int:
        return t - t % 5 + 5

    def after(self, rows: Floats) -> tuple[Floats, float]:
        self.total = self.total + rows.sum(axis=-2)
        return self.total, 0.0


@given(st.lists(st.integers(0, 20), max_size=6).map(sorted))
def test_rounds_of_runs_side_by_side_are_those_of_each_alone(cuts: list[int]) -> None:
    features, rewards = stream()
    x, y = features.reshape(3, 20, 2), rewards.reshape(3, 20)
    rows = learner().unchecked_rows
    together = Rounds(learner(), EveryFifth(), rows, runs=(3,))
    alone = [Rounds(learner(), EveryFifth(), rows) for _ in range(3)]
    for start, stop in itertools.pairwise([0, *cuts, 20]):
        together.keep(x[:, start:stop], y[:, start:stop], stop - start)
        for run, rounds in enumerate(alone):
            rounds.keep(x[run, start:stop], y[run, start:stop], stop - start)
            assert (rounds.t, rounds.due) == (stop, stop - stop % 5 + 5)
            if rounds.policy is not None and together.policy is not None:
                assert rounds.policy.t == together.policy.t == stop - stop % 5
                theta = together.policy.theta[run]
                np.testing.assert_allclose(rounds.policy.theta, theta, rtol=1e-9, atol=1e-12)
            else:
                assert rounds.policy is together.policy is None


def test_another_seed_gives_other_policies() -> None:
    ours, other = one_by_one()[-1], fed([], singles=False, seed=2)[-1]
    assert ours is not None
    assert other is not None
    assert np.abs(ours.theta - other.theta).max() > 1e-3


def test_a_policy_changes_only_when_a_lowest_batch_is_full() -> None:
    lowest = small_plan().tree.lowest
    changes = [t for t in range(1, 61) if one_by_one()[t] is not one_by_one()[t - 1]]
    assert changes == list(range(lowest, 61, lowest))
    for t in changes:
        policy = one_by_one()[t]
        assert policy is not None
        assert policy.t == t


@PLAIN_OR_CONSTANT
def test_the_policy_is_that_of_the_private_sums(constant: float | None) -> None:
    """Against a sum over the same plan with the same chance."""
    features, rewards = stream()
    of = learner(constant=constant)
    reported, learnt = by_hand(features, constant), 2 * rewards - 1 if constant else rewards
    _, chance = oh.seeded_random(1).spawn(2)
    total = oh.ContinualSum(small_plan(), chance)
    for t in range(60):
        total.update([*reported[t], learnt[t]])
        if (t + 1) % small_plan().tree.lowest == 0:
            expected = of.policy(t + 1, total.estimate.value, total.estimate.std)
            assert_same_policy(one_by_one(constant)[t + 1], expected)


def trained(users: int = 27, constant: float | None = None) -> Recommender:
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:users], rewards[:users])
    return at


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@PLAIN_OR_CONSTANT
def test_many_users_are_recommended_what_each_would_be(kind: Any, constant: float | None) -> None:
    at = trained(constant=constant)
    contexts = with_constant(np.random.default_rng(14), constant, 50, 5, 2).astype(kind)
    arms = at.recommend(contexts)
    assert arms.shape == (50,)
    assert arms.tolist() == [at.recommend(of_one) for of_one in contexts]
    assert arms.tolist() == [at.recommend(of_one.tolist()) for of_one in contexts]
    assert len(set(arms.tolist())) > 1
    assert at.policy is not None
    assert arms.tolist() == naive_scores(
        at.policy.theta, at.policy.width, contexts.astype(np.float64)
    ).argmax(axis=1).tolist()  # fmt: skip
    assert isinstance(at.recommend(contexts[0]), int)
    assert at.t == 27  # asking is not learning


def first_arms(at: Recommender, *, together: bool) -> list[int]:
    contexts = np.tile(in_ball(np.random.default_rng(15), ARMS, 2), (ROUNDS, 1, 1))
    if together:
        return [int(arm) for arm in at.recommend(contexts)]
    return [at.recommend(of_one) for of_one in contexts]


@pytest.mark.parametrize("together", [True, False])
def test_before_the_first_release_every_arm_is_as_likely(together: bool) -> None:
    at = recommender()
    at.update_many(*(part[:8] for part in stream()))  # one user short of a batch
    assert at.policy is None
    assert_uniform_over(first_arms(at, together=together), range(ARMS), discrepancy=0.08)


def test_a_policy_that_knows_nothing_instead_of_chance_would_be_caught() -> None:
    at = recommender()
    at._rounds.policy = Policy(0, np.zeros(2), np.zeros((2, 2)))
    with pytest.raises(AssertionError):
        assert_uniform_over(first_arms(at, together=True), range(ARMS), discrepancy=0.08)


def test_an_arm_left_out_would_be_caught() -> None:
    at = recommender()
    contexts = np.tile(in_ball(np.random.default_rng(15), ARMS - 1, 2), (ROUNDS, 1, 1))
    with pytest.raises(AssertionError):
        assert_uniform_over(map(int, at.recommend(contexts)), range(ARMS), discrepancy=0.08)
