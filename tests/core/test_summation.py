"""Running sums of bits: against a slow reference, interleaved, saved, restored and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.sums import SumServer
from overhand.values import Bits
from overhand.values.kind import prefix_sums
from support.chosen_coins import mean_noise
from support.message_sums import ShuffledSum
from support.reference_twins import error_law, nodes, pending, slow_estimate
from support.sampling import assert_follows, kolmogorov, samples_for
from support.small_plans import PRIVACY, REGULAR, WIDE, coin_plan

__all__ = ["mean_noise"]

BINARY = oh.RegularTree(horizon=45, degrees=(2, 2, 2, 2))
TREES = [
    pytest.param(REGULAR, id="regular"),
    pytest.param(WIDE, id="wide"),
    pytest.param(BINARY, id="binary"),
    pytest.param(oh.RegularTree(horizon=31, degrees=(4,)), id="one level"),
    pytest.param(oh.RegularTree(horizon=24, degrees=(2, 3, 2)), id="a product of its degrees"),
]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("combine", [True, False])
@pytest.mark.parametrize("hold", [True, False])
def test_the_server_agrees_with_a_slow_reference(
    tree: oh.RegularTree, combine: bool, hold: bool
) -> None:
    plan = coin_plan(tree, combine=combine, hold=hold)
    values = np.random.default_rng(5).normal(size=len(nodes(tree)))
    sums = dict(zip(nodes(tree), values.tolist(), strict=True))
    server = SumServer(plan)
    for t in range(1, tree.horizon + 1):
        for node in tree.closes(t):
            server.receive_sum(node, sums[node])
        (expected,), _ = slow_estimate(plan, sums, t)
        assert server.estimate(t).value == pytest.approx(expected)


@pytest.mark.parametrize("tree", TREES)
def test_without_noise_estimates_are_the_sums_of_full_blocks(tree: oh.RegularTree) -> None:
    plan = coin_plan(tree, noise_bits=0)
    bits = np.random.default_rng(2).integers(0, 2, tree.horizon)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    for t, bit in enumerate(bits.tolist(), start=1):
        total.update(bit)
        rest = pending(plan, t)
        estimate = total.estimate
        assert estimate.value == bits[: t - rest].sum() + rest / 2
        assert (estimate.t, estimate.std, estimate.bias_bound) == (t, 0.0, rest / 2)
        assert abs(estimate.value - bits[:t].sum()) <= estimate.bias_bound


@pytest.mark.parametrize("tree", TREES)
@given(data=st.data())
def test_any_interleaving_gives_the_same_estimates(
    tree: oh.RegularTree, data: st.DataObject
) -> None:
    plan = coin_plan(tree, combine=True)
    bits = data.draw(st.lists(st.integers(0, 1), min_size=tree.horizon, max_size=tree.horizon))
    seed = data.draw(st.integers(0, 1000))
    slow = oh.ContinualSum(plan, oh.seeded_random(seed))
    expected: list[oh.Estimate] = []
    for bit in bits:
        slow.update(bit)
        expected.append(slow.estimate)
    fast, t = oh.ContinualSum(plan, oh.seeded_random(seed)), 0
    while t < tree.horizon:
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, tree.horizon - t))
            fast.update_many(bits[t : t + count])
        else:
            count = 1
            fast.update(bits[t])
        t += count
        if t:
            assert fast.estimate.value == pytest.approx(expected[t - 1].value)
            assert fast.estimate.std == expected[t - 1].std


def run_continual(plan: oh.Plan, bits: list[int], seed: int) -> list[oh.Estimate]:
    total = oh.ContinualSum(plan, oh.seeded_random(seed))
    estimates: list[oh.Estimate] = []
    for bit in bits:
        total.update(bit)
        estimates.append(total.estimate)
    return estimates


def run_algorithm_1(plan: oh.Plan, bits: list[int], seed: int) -> list[oh.Estimate]:
    total = ShuffledSum(plan, oh.seeded_random(seed))
    estimates: list[oh.Estimate] = []
    for bit in bits:
        total.update(bit)
        estimates.append(total.estimate)
    return estimates


class ForgetsANode(SumServer):
    """A mutant: one node of every cover is left out."""

    def receive_sum(
        self, node: oh.Node, value: float, bias_bound: float = 0.0, own: int = 0
    ) -> None:
        super().receive_sum(node, 0.0 if node.start == 0 and node.level > 1 else value, bias_bound)


TINY = coin_plan(oh.RegularTree(horizon=8, degrees=(2, 2)), noise_bits=5)
AT = 7  # the cover is a node of level 2 and one of level 1 (Figure 2)
BITS = [1, 0, 1, 1, 0, 1, 1, 0]


def noise_at(
    run: Callable[[oh.Plan, list[int], int], list[oh.Estimate]], plan: oh.Plan
) -> np.ndarray[Any, np.dtype[np.int64]]:
    truth = sum(BITS[:6]) + 0.5
    errors = [run(plan, BITS, seed)[AT - 1].value - truth for seed in range(samples_for(0.18))]
    return np.array(errors).round().astype(np.int64)


@pytest.mark.parametrize("run", [run_continual, run_algorithm_1])
def test_estimates_have_the_noise_of_their_cover(run: Any) -> None:
    assert_follows(noise_at(run, TINY), error_law(TINY, AT), discrepancy=0.18)


@pytest.mark.parametrize("noise_bits", [0, 1], ids=["no noise", "a fifth of it"])
@pytest.mark.parametrize("run", [run_continual, run_algorithm_1])
def test_the_law_test_sees_too_little_noise(run: Any, noise_bits: int) -> None:
    mutant = coin_plan(TINY.tree, noise_bits=noise_bits)
    truth, lie = error_law(TINY, AT), error_law(mutant, AT)
    assert kolmogorov(truth, lie, range(-40, 40)) > 0.18
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(noise_at(run, mutant), truth, discrepancy=0.18)


def test_the_reference_sees_a_forgotten_node() -> None:
    plan = coin_plan(REGULAR)
    sums = {node: 1.0 for node in nodes(REGULAR)}
    server, wrong = ForgetsANode(plan), 0
    for t in range(1, REGULAR.horizon + 1):
        for node in REGULAR.closes(t):
            server.receive_sum(node, sums[node])
        (expected,), _ = slow_estimate(plan, sums, t)
        wrong += server.estimate(t).value != pytest.approx(expected)
    assert wrong > REGULAR.horizon / 2


@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_a_restored_sum_has_the_same_future(tree: oh.RegularTree, random: Any) -> None:
    plan = coin_plan(tree, combine=True)
    bits = np.random.default_rng(3).integers(0, 2, tree.horizon).tolist()
    for cut in (0, 1, tree.lowest, tree.horizon // 2, tree.horizon - 1, tree.horizon):
        first = oh.ContinualSum(plan, random(7))
        first.update_many(bits[:cut])
        second = oh.ContinualSum.from_json(plan, first.to_json())
        assert second.estimate == first.estimate
        for bit in bits[cut:]:
            first.update(bit)
            second.update(bit)
            assert second.estimate == first.estimate
        assert second.between(0, tree.horizon) == first.between(0, tree.horizon)


def test_a_state_of_another_plan_is_refused() -> None:
    saved = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1)).to_json()
    with pytest.raises(oh.DamagedPlan, match="belongs to plan"):
        oh.ContinualSum.from_json(coin_plan(WIDE), saved)


@pytest.mark.parametrize("tree", TREES)
def test_sums_of_a_range_come_from_its_cover(tree: oh.RegularTree) -> None:
    plan = coin_plan(tree, noise_bits=0)
    noisy = coin_plan(tree, combine=True)
    bits = np.random.default_rng(4).integers(0, 2, tree.horizon)
    exact = oh.ContinualSum(plan, oh.seeded_random(1))
    private = oh.ContinualSum(noisy, oh.seeded_random(1))
    exact.update_many(bits)
    private.update_many(bits)
    for start in range(0, tree.horizon, 5):
        for stop in range(start, tree.horizon + 1, 3):
            nodes = list(tree.cover(start, stop))
            inside = sum(int(bits[node.start : node.stop].sum()) for node in nodes)
            rest = stop - start - sum(node.size for node in nodes)
            assert exact.between(start, stop).value == inside + rest / 2
            variance = sum(noisy.combination.variances[node.level - 1] for node in nodes)
            assert private.between(start, stop).std == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize(("start", "stop"), [(3, 2), (-1, 4), (0, 54), (0.5, 3)])
def test_a_bad_range_is_refused(start: Any, stop: Any) -> None:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    total.update_many([1] * 53)
    with pytest.raises(oh.InvalidValue):
        total.between(start, stop)


def test_a_range_needs_an_archive() -> None:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1), archive=False)
    total.update_many([1] * 20)
    with pytest.raises(oh.InvalidValue, match="archive=True"):
        total.between(0, 10)


@pytest.mark.parametrize(
    "value",
    [2, -1, 0.5, math.nan, "1", None, pd.NA, 1 + 0j, [1], np.array([1]), np.array([0, 1])],
    ids=repr,
)
def test_a_value_that_is_no_bit_changes_nothing(value: Any) -> None:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    total.update_many([1] * 5)
    before = total.to_json()
    with pytest.raises(oh.InvalidValue, match="of user 6|not bits|one-dimensional"):
        total.update(value)
    with pytest.raises(oh.InvalidValue):
        total.update_many([1, value])
    assert total.to_json() == before


def test_nobody_comes_after_the_horizon() -> None:
    total = oh.ContinualSum(coin_plan(REGULAR), oh.seeded_random(1))
    total.update_many([1] * 50)
    before = total.to_json()
    with pytest.raises(oh.InvalidValue, match="4 users after 50 go beyond the horizon 53"):
        total.update_many([1] * 4)
    assert total.to_json() == before
    total.update_many([1] * 3)
    with pytest.raises(oh.InvalidValue, match="user 54 comes after the horizon 53"):
        total.update(1)


def test_a_refused_batch_leaves_no_trace() -> None:
    server = SumServer(coin_plan(REGULAR), archive=True)
    server.receive_sum(oh.Node(1, 0, 3), 1.0)
    before = json.dumps(server.state())
    with pytest.raises(oh.ProtocolViolation, match="received twice"):
        server.receive_sum(oh.Node(1, 0, 3), 7.0)
    for node in (oh.Node(1, 1, 4), oh.Node(1, 0, 6), oh.Node(2, 3, 9), oh.Node(2, 48, 54)):
        with pytest.raises(oh.InvalidValue, match="no batch of this plan"):
            server.receive_sum(node, 7.0)
    with pytest.raises(oh.ProtocolViolation, match="1 .* counted|3 users are already counted"):
        server.estimate(2)
    assert json.dumps(server.state()) == before


def test_the_memory_of_the_server_is_bounded_by_its_levels() -> None:
    """However many users came, and however few of them at a time."""
    plan = coin_plan(oh.RegularTree(horizon=6**5, degrees=(6, 6, 6)))
    total, most = oh.ContinualSum(plan, oh.seeded_random(1), archive=False), 0
    for _ in range(6**2):
        for _ in range(6**2):
            total.update_many([1] * 6)
            most = max(most, total._server.kept)
        # What came is an interval a level, and what it came to is in the beginning.
        assert total._server.kept == plan.tree.levels
    assert most == 2 * plan.tree.levels - 1  # and one sum for every level that has none above yet


def plan_for(horizon: int) -> oh.Plan:
    return oh.Plan.best(horizon, 2, PRIVACY)


def test_an_endless_sum_goes_on_from_plan_to_plan() -> None:
    total = oh.EndlessSum(plan_for, oh.seeded_random(2), first=100, growth=2)
    one_by_one = oh.EndlessSum(plan_for, oh.seeded_random(2), first=100, growth=2)
    bits = np.random.default_rng(1).integers(0, 2, 1500)
    total.update_many(bits[:700])
    total.update_many(bits[700:])
    for bit in bits.tolist():
        one_by_one.update(bit)
    assert total.t == one_by_one.t == 1500
    assert total.estimate == one_by_one.estimate
    assert [plan.horizon for plan in total.plans][:2] == [
        plan_for(n).tree.blocks * plan_for(n).tree.lowest for n in (100, 200)
    ]
    assert total.estimate.std > oh.ContinualSum(total.plans[-1], oh.seeded_random(1)).estimate.std


@pytest.mark.usefixtures("mean_noise")
def test_an_endless_sum_is_that_of_all_its_plans() -> None:
    """Exactly: all noise is its mean, and a pending user counts as half a one."""
    total = oh.EndlessSum(plan_for, oh.seeded_random(2), first=100, growth=2)
    bits = np.random.default_rng(1).integers(0, 2, 1500)
    for t in range(0, 1500, 100):
        total.update_many(bits[t : t + 100])
        done = sum(plan.horizon for plan in total.plans[:-1])
        pending = (total.t - done) % total.plans[-1].tree.lowest
        covered = total.t - pending
        assert total.estimate.value == pytest.approx(bits[:covered].sum() + pending / 2, abs=1e-6)
    assert len(total.plans) > 2


def test_a_restored_endless_sum_has_the_same_future() -> None:
    bits = np.random.default_rng(1).integers(0, 2, 900).tolist()
    first = oh.EndlessSum(plan_for, oh.seeded_random(2), first=100, growth=2)
    first.update_many(bits[:250])
    second = oh.EndlessSum.from_json(plan_for, first.to_json())
    for bit in bits[250:]:
        first.update(bit)
        second.update(bit)
    assert second.estimate == first.estimate
    assert second.plans == first.plans
    assert len(first.plans) > 2


def test_a_server_is_restored_between_two_batches_that_close_at_once() -> None:
    plan = coin_plan(REGULAR)
    server = SumServer(plan)
    for start in (0, 3):
        server.receive_sum(oh.Node(1, start, start + 3), 1.0)
    again = SumServer.from_state(plan, json.loads(json.dumps(server.state())))
    again.receive_sum(oh.Node(2, 0, 6), 5.0)
    assert again.estimate(6).value == 5.0


def test_an_endless_sum_refuses_several_reports_and_bad_values() -> None:
    with pytest.raises(oh.Infeasible, match="different plans"):
        oh.EndlessSum(
            lambda n: oh.Plan.best(n, 1, PRIVACY, reports=2), oh.seeded_random(1), first=100
        )
    with pytest.raises(oh.InvalidValue, match=r"plan_for\(100\) made None instead of a plan"):
        oh.EndlessSum(lambda n: None, oh.seeded_random(1), first=100)  # type: ignore[arg-type, return-value]
    total = oh.EndlessSum(plan_for, oh.seeded_random(2), first=100)
    with pytest.raises(oh.InvalidValue, match="user 3"):
        total.update_many([0, 1, 5])
    assert total.t == 0


@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 5))
def test_sums_after_blocks_are_running_sums(size: int, blocks: int, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 2, size * blocks).astype(np.uint8)
    expected = np.cumsum(bits.reshape(blocks, size).sum(axis=1, dtype=np.int64))
    assert Bits().sums_after_blocks(bits, size).tolist() == expected.tolist()
    places = np.arange(0, len(bits) + 1, size)
    sums = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])[places]
    assert prefix_sums(bits, places).tolist() == sums.tolist()


@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
def test_saved_states_are_plain_json() -> None:
    total = oh.ContinualSum(coin_plan(WIDE), oh.secure_random())
    total.update_many([1] * 20)
    assert json.loads(total.to_json())["t"] == 20


@pytest.mark.parametrize("random", [np.random.default_rng(0), 42, np.random.RandomState(1), "0"])
def test_sums_take_no_stream_that_was_made_for_something_else(random: Any) -> None:
    """A generator with a seed would be noise that anybody can compute again."""
    plan = coin_plan(WIDE)
    with pytest.raises(oh.InvalidValue, match=r"OS randomness.*oh\.seeded_random\(seed\)"):
        oh.ContinualSum(plan, random)
    with pytest.raises(oh.InvalidValue, match=r"OS randomness.*oh\.seeded_random\(seed\)"):
        oh.EndlessSum(lambda horizon: plan, random)


@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
def test_sums_are_noisy_by_the_system_s_randomness_unless_told_otherwise() -> None:
    plan = coin_plan(WIDE)
    totals = [oh.ContinualSum(plan) for _ in range(2)]
    assert len({json.dumps(json.loads(total.to_json())["streams"]) for total in totals}) == 2
    for total in totals:
        assert {s["kind"] for s in json.loads(total.to_json())["streams"]} == {"secure"}


# What a sum is made of.


def test_a_sum_of_a_horizon_and_epsilon_has_the_best_plan() -> None:
    total = oh.ContinualSum(horizon=500, epsilon=2.0)
    assert total.plan == oh.Plan.best(500, epsilon=2.0)
    assert total.plan.privacy == oh.Privacy(2.0, 1e-6)
    other = oh.ContinualSum(
        horizon=500, epsilon=2.0, delta=1e-5, shufflers=2, values=oh.Histogram(3), archive=False
    )
    expected = oh.Plan.best(500, 2, oh.Privacy(2.0, 1e-5), values=oh.Histogram(3))
    assert other.plan == expected
    other.update_many([0, 1, 2, 2])
    assert other.t == 4


REFUSED_SUMS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "a number for a plan": ((1000,), {}, "plan=1000 is not a plan"),
    "a number and an epsilon": ((1000,), {"epsilon": 1.0}, "plan=1000 is not a plan"),
    "a plan and a horizon": ((TINY,), {"horizon": 8}, "horizon=8 cannot be given with a plan"),
    "a plan and values": ((TINY,), {"values": "bit"}, "values='bit' cannot be given with a plan"),
    "nothing": ((), {}, "plan is missing"),
    "only a horizon": ((), {"horizon": 8}, "epsilon is missing"),
    "only an epsilon": ((), {"epsilon": 1.0}, "horizon is missing"),
    "only a delta": ((), {"delta": 1e-6}, "horizon is missing"),
    "no horizon": ((), {"horizon": None, "epsilon": 1.0}, "horizon is missing"),
}


@pytest.mark.parametrize("case", REFUSED_SUMS)
def test_a_sum_of_anything_else_is_refused_with_both_ways(case: str) -> None:
    arguments, options, words = REFUSED_SUMS[case]
    ways = r"ContinualSum\(plan\), .* ContinualSum\(horizon=100_000, epsilon=1\.0\)"
    with pytest.raises(oh.InvalidValue, match=f"^{words}.*: .*{ways}"):
        oh.ContinualSum(*arguments, **options)


@pytest.mark.parametrize(("name", "value"), [("epsilon", -1.0), ("delta", 2.0), ("horizon", 0)])
def test_numbers_that_no_plan_has_are_refused_by_name(name: str, value: float) -> None:
    request: dict[str, Any] = {"horizon": 500, "epsilon": 1.0, name: value}
    with pytest.raises(oh.InvalidValue, match=name):
        oh.ContinualSum(**request)
