"""Differences and ratios of estimates: what noise they have in common, and Fieller's interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.errors import InvalidValue
from overhand.estimates import Difference, Ratio, half_width
from overhand.model import Floats, Node

PRIVACY = oh.Privacy(1.0, 1e-4)
USERS = 170


@cache
def plan_for(values: oh.Values | None = None) -> oh.Plan:
    """A tree with three levels, all of them of use, and users at the end that no batch holds."""
    kind = oh.Bits() if values is None else values
    plan = oh.Plan.best(USERS, 3, PRIVACY, values=kind, mechanism="best", tree="paper")
    assert plan.tree.levels == 3
    return plan


def nodes_of(plan: oh.Plan) -> Iterator[Node]:
    for t in range(1, plan.horizon + 1):
        yield from plan.tree.closes(t)


def server_with(sums: Callable[[Node], float | None]) -> oh.SumServer:
    """A server that has the sums of all batches, or of some."""
    server = oh.SumServer(plan_for(), archive=True)
    for node in nodes_of(plan_for()):
        value = sums(node)
        if value is not None:
            server.receive_sum(node, value)
    return server


Read = Callable[[oh.SumServer], oh.Estimate]


def users(start: int, stop: int) -> Read:
    return lambda server: server.between(start, stop)


@cache
def with_one_sum() -> list[oh.SumServer]:
    """For every batch, a server where its sum is 1 and all others are 0; and one without any."""
    alone: list[Node | None] = [*nodes_of(plan_for()), None]
    return [server_with(partial(eq_as_float, one)) for one in alone]


def eq_as_float(one: Node | None, other: Node) -> float:
    return float(one == other)


def coefficients(read: Read) -> Floats:
    """What an estimate has of every batch's sum, by the definition: it is linear in them."""
    values = np.array([read(server).value for server in with_one_sum()])
    return np.asarray(values[:-1] - values[-1])


PAIRS = {
    "a prefix and a longer one": (users(0, 52), users(0, 168)),
    "a prefix and a range in it": (users(0, 168), users(16, 116)),
    "ranges that overlap": (users(12, 100), users(48, 144)),
    "a range next to another": (users(40, 80), users(80, 120)),
    "within one batch": (users(33, 39), users(34, 64)),
    "one and the same": (users(12, 100), users(12, 100)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_the_noise_of_a_difference_is_that_of_all_batches_that_are_left(name: str) -> None:
    """A slow twin: the batches' sums one by one. To take covariances for 0 fails all but one."""
    left, right = PAIRS[name]
    plan = plan_for()
    server = server_with(lambda node: float(node.size))
    found = left(server) - right(server)
    rest = coefficients(left) - coefficients(right)
    mechanisms = [plan.mechanism(node) for node in nodes_of(plan)]
    variance = rest**2 @ [one.variance for one in mechanisms]
    fourth = rest**4 @ [one.fourth_cumulant for one in mechanisms]
    assert not found.is_cautious
    assert found.std == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)
    if variance > 1e-9:
        assert found.kurtosis == pytest.approx(fourth / variance**2, rel=1e-6)
    independent = math.hypot(left(server).std, right(server).std)
    assert (found.std < 0.97 * independent) == (name != "a range next to another")


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_means_and_multiples_weigh_what_is_in_common() -> None:
    server = server_with(lambda node: float(node.size))
    left, right = users(0, 166), users(20, 100)
    found = left(server).mean() - right(server).mean()
    rest = coefficients(left) / 166 - coefficients(right) / 80
    variances = [plan_for().mechanism(node).variance for node in nodes_of(plan_for())]
    assert found.std == pytest.approx(math.sqrt(rest**2 @ variances), rel=1e-6)


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_where_batches_are_missing_the_worst_is_assumed() -> None:
    missing = plan_for().tree.node(level=2, number=1)
    server = server_with(lambda node: None if node == missing else float(node.size))
    ahead, behind = server.between(0, 168), server.between(0, missing.stop)
    assert (ahead - behind).is_cautious
    assert (ahead - behind).std == pytest.approx(ahead.std + behind.std)
    assert (ahead / behind).is_cautious
    # Whatever stands in for a batch, it is not of other users.
    apart = server.between(missing.stop, 168) - server.between(0, missing.stop)
    assert not apart.is_cautious
    after = missing.stop
    assert not (server.between(after, 166) - server.between(after, 120)).is_cautious


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_where_batches_are_lost_the_worst_is_assumed() -> None:
    server = oh.SumServer(plan_for())
    for node in nodes_of(plan_for()):
        if node.level == 1 and node.start:
            server.receive_sum(node, 1.0)
        elif node.start == 0:
            server.lose(node)
    estimate = server.estimate()
    assert estimate.bias_bound > 0
    assert (estimate - estimate).is_cautious


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_reports_of_the_service_itself_leave_the_number_of_users_open() -> None:
    server = oh.SumServer(plan_for())
    first, second = (plan_for().tree.node(1, number) for number in (0, 1))
    server.receive_sum(first, 1.0)
    assert server.estimate().in_batches().users == first.size
    server.receive_sum(second, 1.0, own=1)
    for one in (server, server.copy(), oh.SumServer.from_state(plan_for(), server.state())):
        assert one.estimate().in_batches().users is None
        assert (one.estimate() - one.estimate()).is_cautious


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_a_run_stays_the_same_when_it_is_saved() -> None:
    total = oh.ContinualSum(plan_for(), oh.seeded_random(3))
    total.update_many([1, 0] * 60)
    before = total.estimate
    restored = oh.ContinualSum.from_json(plan_for(), total.to_json())
    for one in (total, restored):
        one.update_many([1, 0] * 20)
    less = total.estimate - before
    assert (restored.estimate - before).std == less.std
    assert less.std < 0.97 * math.hypot(total.estimate.std, before.std)
    other = oh.ContinualSum(plan_for(), oh.seeded_random(4))
    other.update_many([1] * 120)
    apart = other.estimate - before
    assert (apart.std, apart.is_cautious) == (math.hypot(other.estimate.std, before.std), False)


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_a_sum_without_an_end_is_of_several_runs() -> None:
    def plan_of(horizon: int) -> oh.Plan:
        return oh.Plan.best(horizon, 2, PRIVACY, tree="paper")

    total = oh.EndlessSum(plan_of, oh.seeded_random(5), first=100)
    total.update_many([1] * 250)
    before = total.estimate
    total.update_many([1] * 40)
    found = total.estimate - before
    assert not found.is_cautious
    # What earlier plans ended with is in both, and cancels out.
    settled = before.origin
    assert settled is not None
    assert len(settled) == 2
    assert found.std**2 < total.estimate.std**2 + before.std**2 - 1.99 * settled[0].variance
    known = oh.EndlessSum.from_json(plan_of, total.to_json())
    assert not (known.estimate - before).is_cautious
    assert (known.estimate - before).std == found.std


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_coordinates_have_no_noise_in_common() -> None:
    total = oh.ContinualSum(plan_for(oh.Histogram(3)), oh.seeded_random(6))
    total.update_many([0, 1, 1, 2] * 40 + [0])
    votes = total.estimate
    one, other = votes[0], votes[1]
    assert (one.value, one.std) == (votes.value[0], votes.std)
    assert one.bias_bound == votes.bias_bound[0]
    assert (one - other).std == math.hypot(one.std, other.std)
    assert (one - votes[0]).std == 0
    assert not (one / other).is_cautious
    earlier = total.between(0, 80)
    assert (one - earlier[0]).std < (one - earlier[1]).std


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_sums_of_the_same_users_are_not_added_up() -> None:
    total = oh.ContinualSum(plan_for(), oh.seeded_random(7))
    total.update_many([1] * 160)
    joined = total.between(0, 80) + total.between(80, 160)
    assert joined.t == 160
    assert (joined - total.between(0, 80)).is_cautious is False
    with pytest.raises(InvalidValue, match="they have users in common"):
        total.estimate + total.between(80, 160)


def test_a_difference_has_labels_and_bars_but_no_users() -> None:
    left = oh.Estimate(9, np.array([3.0, 9.0]), 1.0, values=oh.Histogram(2))
    found = left - oh.Estimate(5, np.array([1.0, 2.0]), 1.0, values=oh.Histogram(2))
    assert [bar.coordinate for bar in found.top()] == [1, 0]
    assert found.values == oh.Histogram(2)
    assert repr(found) == "Difference(value=[2, 7], std=2, is_cautious=True)"
    for ask in (found.mean, lambda: found.users):
        with pytest.raises(InvalidValue, match="not the sum of any users"):
            ask()


NUMBERS = st.floats(-50, 50)


def ratio_of(a: float, b: float, bias_bound: float = 0.0, **more: Any) -> Ratio:
    return oh.Estimate(9, a, 2.0, bias_bound, **more) / oh.Estimate(9, b, 3.0, bias_bound, **more)


@given(NUMBERS, NUMBERS, st.sampled_from([0.0, 1.5]), st.floats(-3, 3))
def test_a_ratio_is_in_the_interval_if_the_difference_may_be_nothing(
    a: float, b: float, bias_bound: float, r: float
) -> None:
    """The definition of Fieller's set, and so its coverage: exact for every ratio r."""
    low, high = ratio_of(a, b, bias_bound, kurtosis=1.0, unit=0.5).interval(0.9)
    law = {"kurtosis": 1.0, "unit": 0.5}
    if abs(b) <= half_width(3.0, bias_bound, 0.9, **law):
        assert (low, high) == (-math.inf, math.inf)
        return
    unit = max(1.0, abs(r)) * 0.5
    width = half_width(2.0 + abs(r) * 3, (1 + abs(r)) * bias_bound, 0.9, kurtosis=1.0, unit=unit)
    if abs(abs(a - r * b) - width) > 1e-6:  # at the ends themselves, rounding decides
        assert (low <= r <= high) == (abs(a - r * b) <= width)


def test_a_ratio_of_arrays_is_that_of_their_entries() -> None:
    above, below, bias_bound = np.array([3.0, -8.0]), np.array([40.0, 1.0]), np.array([0.0, 2.0])
    ratio = oh.Estimate(9, above, 2.0, bias_bound) / oh.Estimate(9, below, 3.0, bias_bound)
    assert ratio.value.tolist() == [3 / 40, -8.0]
    low, high = ratio.interval()
    for i in range(2):
        alone = ratio_of(above[i], below[i], float(bias_bound[i])).interval()
        assert (low[i], high[i]) == alone
    assert repr(ratio) == "Ratio(value=[0.075, -8], is_cautious=True)"


def test_over_nothing_there_is_no_ratio() -> None:
    ratio = oh.Estimate(9, 3.0, 0.0) / oh.Estimate(9, 0.0, 0.0)
    assert math.isnan(ratio.value)
    assert ratio.interval() == (-math.inf, math.inf)


def test_without_noise_a_ratio_is_exact() -> None:
    assert (oh.Estimate(9, 3.0, 0.0) / oh.Estimate(9, 4.0, 0.0)).interval() == (0.75, 0.75)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "shapes": (
        lambda: oh.Estimate(9, 1.0, 1.0) / oh.Estimate(9, np.ones(3), 1.0),
        r"no ratio of estimates of shapes \(\) and \(3,\)",
    ),
    "kinds": (
        lambda: (
            oh.Estimate(9, np.ones(3), 1.0, values=oh.Histogram(3))
            - oh.Estimate(9, np.ones(3), 1.0, values=oh.Vectors(3))
        ),
        "no difference of estimates of histogram:3 and vector:3",
    ),
    "a number plus coordinates": (
        lambda: oh.Estimate(9, np.ones(3), 1.0) + oh.Estimate(9, 1.0, 1.0),
        r"no sum of estimates of shapes \(3,\) and \(\)",
    ),
    "plus a number": (lambda: oh.Estimate(9, 1.0, 1.0) + 2.0, "an estimate and 2.0"),  # type: ignore[operator]
    "numbers": (lambda: oh.Estimate(9, 1.0, 1.0) / 2.0, "an estimate and 2.0"),  # type: ignore[operator]
    "confidence": (lambda: ratio_of(1.0, 2.0).interval(1.0), "confidence=1 must be between 0"),
    "NaN": (lambda: ratio_of(1.0, 2.0).interval(math.nan), "confidence=nan"),
    "a coordinate of none": (lambda: oh.Estimate(9, 1.0, 1.0)[0], "has no coordinates"),
    "one too far": (lambda: oh.Estimate(9, np.ones(3), 1.0)[3], "coordinate=3 must be"),
    "one from the end": (lambda: oh.Estimate(9, np.ones(3), 1.0)[-1], "coordinate=-1 must be"),
    "no such name": (lambda: oh.Estimate(9, np.ones(3), 1.0)["wow"], "is called 'wow'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused_in_one_line(case: str) -> None:
    ask, message = REFUSED[case]
    with pytest.raises(InvalidValue, match=message):
        ask()


def test_differences_and_ratios_are_types_of_their_own() -> None:
    one = oh.Estimate(9, 4.0, 1.0)
    assert type(one - one) is Difference
    assert type(one / one) is Ratio
