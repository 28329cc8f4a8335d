"""Algorithm 4 by its parts: users who choose and report, a server that makes policies of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import LinUCB, Policy, Practical, Theory, choose_arms
from overhand.errors import ProtocolViolation
from overhand.mechanisms import SharesSum
from overhand.model import Floats, Messages, Node, Shuffled
from overhand.shuffle import shuffle
from overhand.sums import SumServer
from support.chosen_coins import one_batch
from support.learners import GOOD, ROUNDS, assert_same_policy, learner, report, small_plan
from support.message_sums import release
from support.random_streams import keyed
from support.sampling import FALSE_FAIL, assert_uniform_over


@dataclass
class Night:
    """What happened over a whole plan."""

    policies: list[Policy | None]
    sums: dict[Node, Floats]
    totals: list[Floats]
    sent: list[tuple[Node, Messages]]


def arms_of(t: int) -> Floats:
    rng = np.random.default_rng([16, t])
    return np.column_stack([np.full(3, 0.9), rng.uniform(-0.4, 0.4, 3)])


@cache
def played(seed: int, secure: bool = False, constants: Theory | Practical | None = None) -> Night:
    """Algorithm 4 with shufflers that shuffle, one to a level."""
    plan = small_plan()
    of = LinUCB(constants or Practical(2))
    chance = keyed(seed) if secure else oh.seeded_random(seed)
    rewards = np.random.default_rng([17, seed])
    server, policy = SumServer(plan), None
    batches: dict[Node, list[Messages]] = {}
    night = Night([], {}, [], [])
    total = np.zeros(plan.values.dimension)
    for t in range(1, plan.horizon + 1):
        arms = arms_of(t)
        arm = int(choose_arms(policy, arms, chance))
        reward = float(rewards.random() < 0.5 + arms[arm, 1])
        total = total + of.rows(arms[arm][np.newaxis], [reward])[0]
        for node, messages in report(plan, of, t, arms[arm], reward, chance):
            batches.setdefault(node, []).append(messages)
            night.sent.append((node, messages))
        for node in plan.tree.closes(t):
            shuffled = release(plan.mechanism(node), batches.pop(node), chance)
            night.sums[node] = plan.mechanism(node).sum_of(shuffled)
            server.receive(node, shuffled)
            policy = policy_of(server, of)
        night.policies.append(policy)
        night.totals.append(total)
    return night


def policy_of(server: SumServer, of: LinUCB) -> Policy | None:
    """Step 7: the policy of the batches so far, or none before the first of them."""
    estimate = server.estimate()
    return of.policy(estimate.t, estimate.value, estimate.std) if estimate.t else None


def node_estimate(plan: oh.Plan, sums: dict[Node, Floats], node: Node) -> tuple[Floats, float]:
    """A batch's own sum and its children's, by the inverse of their variances."""
    own = plan.mechanism(node).variance
    if node.level == 1:
        return sums[node], own
    inside = [n for n in sums if n.level == node.level - 1 and node.start <= n.start < node.stop]
    assert sum(n.size for n in inside) == node.size
    parts = [node_estimate(plan, sums, child) for child in inside]
    below = sum(variance for _, variance in parts)
    weight = below / (own + below)
    value = weight * sums[node] + (1 - weight) * sum(value for value, _ in parts)
    return value, weight**2 * own + (1 - weight) ** 2 * below


def released(plan: oh.Plan, sums: dict[Node, Floats], t: int) -> tuple[Floats, float]:
    """The sum of the first t users by Definition 3.1, and its standard deviation."""
    parts = [node_estimate(plan, sums, node) for node in plan.tree.cover(t)]
    assert sum(node.size for node in plan.tree.cover(t)) == t
    return np.sum([value for value, _ in parts], axis=0), math.sqrt(sum(v for _, v in parts))


THEORY = Theory(dimension=2, horizon=60, entry_error=4.0)


@pytest.mark.parametrize(
    "constants",
    [None, Practical(2, 0.9), THEORY],
    ids=["practical", "practical, constant", "theory"],
)
@pytest.mark.parametrize("secure", [False, True], ids=["seeded", "secure"])
def test_after_every_batch_the_policy_is_that_of_the_analyzed_sums(
    secure: bool, constants: Theory | Practical | None
) -> None:
    plan, night = small_plan(), played(1, secure, constants)
    of, lowest = LinUCB(constants or Practical(2)), plan.tree.lowest
    assert night.policies[: lowest - 1] == [None] * (lowest - 1)
    for t in range(lowest, plan.horizon + 1):
        covered = t - t % lowest
        total, std = released(plan, night.sums, covered)
        assert_same_policy(night.policies[t - 1], of.policy(covered, total, std))


@pytest.mark.parametrize("constants", [THEORY, Practical(2, 0.9)], ids=["theory", "constant"])
def test_the_policies_of_other_constants_differ(constants: Theory | Practical) -> None:
    one, other = played(1).policies[-1], played(1, False, constants).policies[-1]
    assert one is not None
    assert other is not None
    with pytest.raises(AssertionError):
        assert_same_policy(one, other)


def errors_in_stds(night: Night, forgotten: int = 0) -> Floats:
    """At every release, how far the sums are from the truth; the first `forgotten` users' lost."""
    plan, found = small_plan(), []
    for t in range(plan.tree.lowest, plan.horizon + 1, plan.tree.lowest):
        total, std = released(plan, night.sums, t)
        lost = night.totals[forgotten - 1] if forgotten else 0.0
        found.append((total - (night.totals[t - 1] - lost)) / std)
    return np.array(found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_sums_are_as_near_the_truth_as_their_noise_is(seed: int) -> None:
    """Of 30 numbers; the noise of coins that are nearly fair is sub-Gaussian."""
    most = math.sqrt(2 * math.log(2 * 30 / FALSE_FAIL))
    errors = errors_in_stds(played(seed))
    assert errors.shape == (6, 5)
    assert np.abs(errors).max() < most
    assert np.abs(errors).max() > 0.5  # there is noise
    lost = errors_in_stds(played(seed), forgotten=small_plan().tree.lowest)
    assert np.abs(lost).max() > most  # a batch that is not counted is seen


def test_messages_are_whole_numbers_of_the_shape_that_the_mechanism_says() -> None:
    plan, night = small_plan(), played(1)
    senders: dict[Node, int] = {}
    for node, messages in night.sent:
        mechanism = plan.mechanism(node)
        assert isinstance(mechanism, SharesSum)
        assert messages.sealed.shape == (1, mechanism.layout.messages_per_user)
        assert messages.sealed.dtype.kind == "u"
        assert int(messages.sealed.max()) < 1 << mechanism.layout.message_bits
        assert messages.clear.shape == (1, 0)
        senders[node] = senders.get(node, 0) + 1
    lowest, upper = plan.tree.sizes
    expected = {Node(1, s, s + lowest): lowest for s in range(0, 54, lowest)}
    expected |= {Node(2, s, s + upper): upper for s in range(0, 60 - upper + 1, upper)}
    assert senders == expected
    seen = np.concatenate([messages.sealed.ravel() for _, messages in night.sent])
    assert len(np.unique(seen)) > 1000  # shares, and not values


def test_a_user_sends_other_messages_each_time() -> None:
    plan = small_plan()
    sent = [report(plan, learner(), 1, GOOD, 1.0, oh.seeded_random(seed)) for seed in (1, 2)]
    for (node, one), (same, other) in zip(*sent, strict=True):
        assert node == same
        assert not np.array_equal(one.sealed, other.sealed)


def test_a_server_is_given_shuffled_batches_and_nothing_else() -> None:
    """A batch of zeros for shares is as good as any: no value is ever asked for."""
    plan, of = small_plan(), learner()
    node = Node(1, 0, plan.tree.lowest)
    mechanism = plan.mechanism(node)
    assert isinstance(mechanism, SharesSum)
    labels = np.repeat(np.arange(5, dtype=np.uint64), mechanism.size * mechanism.shares)
    zeros = one_batch(labels << np.uint64(mechanism.modulus_bits))
    server = SumServer(plan)
    assert policy_of(server, of) is None
    server.receive(node, zeros)
    total, std = mechanism.sum_of(zeros), math.sqrt(mechanism.variance)
    assert_same_policy(policy_of(server, of), of.policy(node.stop, total, std))


def test_a_policy_is_of_the_batches_that_came_in_whatever_order() -> None:
    """One that is late is stood in for, and the policy is made anew as soon as it comes."""
    plan, night, of = small_plan(), played(1), learner()
    server = SumServer(plan)
    batches = {node: shuffled_anew(plan, night, node) for node in night.sums}
    first, second, above = sorted(n for n in batches if n.stop <= 18)
    server.receive(second, batches[second])
    assert policy_of(server, of) is None  # the first users are in no batch that came
    server.receive(first, batches[first])
    stood_in = of.policy(
        18,
        night.sums[first] + night.sums[second],
        math.sqrt(2 * plan.mechanism(first).variance),
    )
    assert_same_policy(policy_of(server, of), stood_in)
    with pytest.raises(ProtocolViolation, match="twice"):
        server.receive(first, batches[first])
    server.receive(above, batches[above])
    assert_same_policy(policy_of(server, of), of.policy(18, *released(plan, night.sums, 18)))
    with pytest.raises(AssertionError):
        assert_same_policy(policy_of(server, of), stood_in)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_policy_does_not_depend_on_who_came_first(seed: int) -> None:
    plan, night = small_plan(), played(1)
    server, nodes = SumServer(plan), sorted(night.sums)
    for index in np.random.default_rng(seed).permutation(len(nodes)):
        server.receive(nodes[index], shuffled_anew(plan, night, nodes[index]))
        _ = policy_of(server, learner())  # asking in between changes nothing
    assert_same_policy(policy_of(server, learner()), night.policies[-1])


def shuffled_anew(plan: oh.Plan, night: Night, node: Node) -> Shuffled:
    messages = Messages.concatenate([messages for n, messages in night.sent if n == node])
    assert messages.sealed.shape == (node.size, plan.mechanism(node).layout.messages_per_user)
    return shuffle(messages.gather(node.size), oh.seeded_random(5))


def test_a_user_takes_the_arm_of_the_policy_and_any_arm_without_one() -> None:
    policy = Policy(9, np.array([0.0, 1.0]), 0.01 * np.eye(2))
    arms = np.array([[0.9, -0.3], [0.9, 0.4], [0.9, 0.0]])
    chance = oh.seeded_random(1)
    assert {int(choose_arms(policy, arms, chance)) for _ in range(20)} == {1}
    drawn = [int(choose_arms(None, arms, chance)) for _ in range(ROUNDS)]
    assert_uniform_over(drawn, range(3), discrepancy=0.08)
    with pytest.raises(AssertionError):
        assert_uniform_over([1] * ROUNDS, range(3), discrepancy=0.08)


def test_users_report_the_arm_that_they_took() -> None:
    """With next to no noise on the far side: a batch of one arm adds up to that arm's moments."""
    plan, of = small_plan(), learner()
    arms = np.array([[0.9, -0.4], [0.9, 0.4]])
    for arm in (0, 1):
        policy = Policy(1, arms[arm] - arms[1 - arm], np.zeros((2, 2)))
        node, chance = Node(2, 0, 18), oh.seeded_random(6)
        sent = []
        for t in range(1, 19):
            assert choose_arms(policy, arms, chance) == arm
            sent += [m for n, m in report(plan, of, t, arms[arm], 1.0, chance) if n == node]
        mechanism = plan.mechanism(node)
        total = mechanism.sum_of(shuffle(Messages.concatenate(sent).gather(node.size), chance))
        off = np.abs(total - 18 * of.rows(arms[[arm]], [1.0])[0]) / math.sqrt(mechanism.variance)
        assert off.max() < 6
        other = np.abs(total - 18 * of.rows(arms[[1 - arm]], [1.0])[0])
        assert other.max() / math.sqrt(mechanism.variance) > 6
