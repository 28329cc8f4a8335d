"""Pending users who count at the rate of the last blocks: closer, and never beyond the bound."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.baselines.local import LocalResponse
from overhand.lab.simulation import simulate, start_run
from overhand.mechanisms import CoinSum
from overhand.noise import Coins
from overhand.planning import Plan
from overhand.randomness import HALF
from overhand.sums import ContinualSum, SumServer
from overhand.tree import RegularTree
from support.kind_plans import kind_plan
from support.small_plans import PRIVACY, REGULAR, coin_plan

EXACT = Plan(
    RegularTree(2_000, (10, 5)),
    (CoinSum(10, Coins(0, HALF)), CoinSum(50, Coins(0, HALF))),
    PRIVACY,
    2,
)
"""Without noise: all that is missed is pending users."""


def test_pending_users_count_as_the_last_256_blocks_did() -> None:
    """A rate over all blocks, or over fewer, would be another one."""
    plan = Plan(RegularTree(4_000, (10,)), (CoinSum(10, Coins(0, HALF)),), PRIVACY, 1)
    total = ContinualSum(plan, oh.seeded_random(1), pending="rate")
    total.update_many([1] * 440 + [1, 0] * 1280)
    total.update_many([0] * 7)
    assert total.estimate.value == 440 + 1280 + 7 * 0.5
    total.update_many([0] * 3)
    total.update_many([0] * 4)
    rate = 1275 / 2560
    assert total.estimate.value == pytest.approx(1720 + 4 * rate)
    assert total.estimate.bias_bound == pytest.approx(4 * (1 - rate))
    assert total.between(0, total.t) == total.estimate
    # A range in the past has the rate of the blocks at its end, not of today's.
    assert total.between(0, 437).value == 430 + 7


@pytest.mark.parametrize("values", [oh.Histogram(3), oh.Vectors(2), oh.Reals(-2.0, 5.0)])
def test_whatever_pending_users_hold_is_within_the_bias_bound(values: Any) -> None:
    plan = kind_plan(REGULAR, values)
    rows = values.uniform(oh.seeded_random(6), 53)
    total = ContinualSum(plan, oh.seeded_random(5), pending="rate")
    middle = ContinualSum(plan, oh.seeded_random(5))
    for t, row in enumerate(rows, start=1):
        total.update_rows(row[np.newaxis])
        middle.update_rows(row[np.newaxis])
        pending = t % plan.tree.lowest
        one, other = total.estimate, middle.estimate
        assert one.std == other.std
        ends = np.ravel(other.value), pending * (values.highs - values.lows) / 2
        far = np.ravel(one.bias_bound) + 1e-9
        assert (np.ravel(one.value) - far <= ends[0] - ends[1]).all()
        assert (np.ravel(one.value) + far >= ends[0] + ends[1]).all()
        if not pending:
            assert np.array_equal(one.value, other.value)


def test_noise_alone_moves_nobody_from_the_middle() -> None:
    """Of users at the middle the rate is noise, most of which is taken out."""
    plan = coin_plan(RegularTree(4_000, (4, 5)), noise_bits=40)
    total = ContinualSum(plan, oh.seeded_random(4), pending="rate")
    total.update_many([0, 1] * 2_000)
    assert total._server.archive is not None
    rates = [total._server.archive.rate(covered) for covered in range(400, 4_001, 40)]
    plain = 4.0 * np.sqrt(plan.mechanisms[0].variance / 256) / 16
    assert np.sqrt(np.mean((np.array(rates) - 0.5) ** 2)) < plain


def test_no_block_no_rate_and_a_late_one_counts() -> None:
    server = SumServer(EXACT, archive=True, pending="rate")
    assert server.estimate(7).value == 3.5
    server.receive_sum(EXACT.tree.node(2, 0), 50.0)  # none of its blocks came
    assert server.estimate(57).value == 53.5
    server.receive_sum(EXACT.tree.node(1, 3), 10.0)
    assert server.estimate(57).value == 57.0
    assert server.estimate(57).bias_bound == 7.0
    assert server.copy().estimate(57).value == 53.5


@pytest.mark.parametrize("values", [oh.Bits(), oh.Histogram(3), oh.Reals(-2.0, 5.0)], ids=str)
def test_a_simulation_has_the_estimates_of_a_sum(values: Any) -> None:
    plan = kind_plan(REGULAR, values)
    rows = values.uniform(oh.seeded_random(6), 53)
    total = ContinualSum(plan, oh.seeded_random(5), pending="rate")
    run = start_run(plan, oh.seeded_random(5), pending="rate")
    cut = 3 * plan.tree.lowest
    found = np.concatenate([run.estimates(rows[:cut]), run.estimates(rows[cut:])])
    for t, row in enumerate(rows):
        total.update_rows(row[np.newaxis])
        np.testing.assert_allclose(found[t], total.estimate.value, atol=1e-9)


def test_where_few_hold_a_one_a_rate_is_closer() -> None:
    rare = np.arange(2_000) % 97 == 0
    middle, rate = (simulate(EXACT, rare, pending=one).rms_error for one in ("middle", "rate"))
    assert rate < 0.2 * middle
    with pytest.raises(oh.InvalidValue, match="pending='rate' needs engine='counts'"):
        simulate(EXACT, rare, engine="messages", pending="rate")
    with pytest.raises(oh.InvalidValue, match="pending='half' must be one of"):
        simulate(EXACT, rare, pending="half")  # type: ignore[arg-type]
    with pytest.raises(oh.InvalidValue, match="pending='rate' are for a plan"):
        simulate(LocalResponse.best(len(rare), EXACT.privacy), rare, pending="rate")


def test_it_goes_on_where_it_was_saved_and_bad_words_are_refused() -> None:
    total = ContinualSum(EXACT, oh.seeded_random(1), pending="rate")
    total.update_many([1] * 105)
    again = ContinualSum.from_json(EXACT, json.dumps(json.loads(total.to_json())))
    assert again.estimate == total.estimate
    assert again.estimate.value == 105.0
    with pytest.raises(oh.InvalidValue, match="pending='half' must be one of middle, rate"):
        ContinualSum(EXACT, pending="half")  # type: ignore[arg-type]
    with pytest.raises(oh.InvalidValue, match="archive=True"):
        ContinualSum(EXACT, archive=False, pending="rate")
