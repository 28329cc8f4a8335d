"""Estimates: their intervals, means, sums and largest coordinates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from overhand.errors import InvalidValue
from overhand.estimates import Estimate

CASES = st.tuples(
    st.floats(0.01, 0.9999),  # confidence
    st.floats(1e-3, 1e6),  # std
    st.floats(0.0, 30.0),  # bias_bound, in standard deviations
    st.floats(-1e6, 1e6),  # value
)


def coverage(estimate: Estimate, confidence: float, bias: float) -> float:
    """The probability that the interval holds a sum from which `value` is off by `bias` + noise."""
    low, high = estimate.interval(confidence)
    below, above = estimate.value - low, high - estimate.value
    return float(ndtr((above - bias) / estimate.std) - ndtr((-below - bias) / estimate.std))


@given(CASES)
def test_the_interval_covers_exactly_at_the_worst_bias(case: tuple[float, ...]) -> None:
    confidence, std, bias, value = case
    estimate = Estimate(t=9, value=value, std=std, bias_bound=bias * std)
    # The width is a difference of floats of the size of the value.
    rounding = 1e-10 + 4e-16 * (abs(value) / std + bias)
    for worst in (estimate.bias_bound, -estimate.bias_bound):
        assert math.isclose(coverage(estimate, confidence, worst), confidence, abs_tol=rounding)


@given(CASES, st.floats(-1, 1))
def test_the_interval_covers_at_least_as_often_at_any_smaller_bias(
    case: tuple[float, ...], part: float
) -> None:
    confidence, std, bias, _ = case
    estimate = Estimate(t=9, value=0.0, std=std, bias_bound=bias * std)
    assert coverage(estimate, confidence, 0.0) >= confidence - 1e-10
    assert coverage(estimate, confidence, part * estimate.bias_bound) >= confidence - 1e-10


@given(CASES)
def test_without_slack_the_interval_is_the_normal_one(case: tuple[float, ...]) -> None:
    confidence, std, _, _ = case
    low, high = Estimate(t=9, value=0.0, std=std).interval(confidence)
    assert math.isclose(low, -high, rel_tol=1e-12)
    assert math.isclose(2 * float(ndtr(high / std)) - 1, confidence, abs_tol=1e-11)


def held(estimate: Estimate, confidence: float, coins: int) -> float:
    """How often the interval holds a sum off by its bias bound and some fair coins, centred."""
    _, half_width = dataclasses.replace(estimate, value=0.0).interval(confidence)
    law = binom(2 * coins, 0.5)
    most, least = half_width - estimate.bias_bound, -half_width - estimate.bias_bound
    return float(law.cdf(math.floor(most) + coins) - law.cdf(math.ceil(least) + coins - 1))


@given(st.integers(1, 300), st.integers(0, 20), st.sampled_from((0.8, 0.9, 0.95, 0.99, 0.999)))
def test_noise_in_steps_is_held_as_often_as_the_interval_says(
    coins: int, pending: int, confidence: float
) -> None:
    std, bias_bound = math.sqrt(coins / 2), pending / 2
    estimate = Estimate(t=9, value=4.0, std=std, bias_bound=bias_bound, unit=1.0)
    assert held(estimate, confidence, coins) >= confidence


def test_without_its_unit_noise_in_steps_is_held_less_often() -> None:
    estimate = Estimate(t=9, value=4.0, std=1.0)
    assert held(estimate, 0.95, 2) == 7 / 8
    assert held(dataclasses.replace(estimate, unit=1.0), 0.95, 2) == 1.0


def test_the_steps_of_a_mean_are_as_much_smaller() -> None:
    estimate = Estimate(t=20, value=40.0, std=2.0, bias_bound=3.0, unit=1.0)
    low, high = estimate.interval()
    assert estimate.mean().interval() == pytest.approx((low / 20, high / 20))


def test_the_interval_is_symmetric_about_the_value_and_grows_with_confidence() -> None:
    estimate = Estimate(t=9, value=100.0, std=5.0, bias_bound=7.0)
    widths = []
    for confidence in (0.5, 0.9, 0.99, 0.999999):
        low, high = estimate.interval(confidence)
        assert math.isclose(100.0 - low, high - 100.0, rel_tol=1e-12)
        widths.append(high - low)
    assert widths == sorted(widths)


def test_without_noise_the_interval_is_the_bias_bound() -> None:
    assert Estimate(t=3, value=10.0, std=0.0, bias_bound=2.5).interval() == (7.5, 12.5)
    assert Estimate(t=3, value=10.0, std=0.0).interval() == (10.0, 10.0)


def test_noise_far_below_the_bias_bound_leaves_the_bias_bound() -> None:
    low, high = Estimate(t=3, value=0.0, std=1e-20, bias_bound=1.0).interval()
    assert math.isclose(low, -1.0)
    assert math.isclose(high, 1.0)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan, True, "0.95"], ids=repr)
def test_a_confidence_that_is_none_is_refused(confidence: Any) -> None:
    for std in (0.0, 1.0):
        with pytest.raises(InvalidValue, match="confidence"):
            Estimate(t=3, value=0.0, std=std).interval(confidence)


def test_rms_is_noise_and_worst_bias_together() -> None:
    assert Estimate(t=3, value=0.0, std=3.0, bias_bound=4.0).rms == 5.0


def test_an_estimate_is_of_the_users_after_its_start() -> None:
    assert Estimate(t=9, value=4.0, std=1.0).users == 9
    assert Estimate(t=9, value=4.0, std=1.0, start=3).users == 6
    assert Estimate(t=9, value=4.0, std=1.0, start=9).users == 0


def test_a_mean_is_the_sum_and_its_errors_divided_by_the_users() -> None:
    mean = Estimate(t=30, value=50.0, std=4.0, bias_bound=3.0, start=10).mean()
    assert mean == Estimate(t=30, value=2.5, std=0.2, bias_bound=0.15, start=10)


def test_a_mean_of_many_coordinates_is_taken_in_each() -> None:
    bias_bound = np.array([1.0, 2.0])
    estimate = Estimate(t=4, value=np.array([2.0, 6.0]), std=2.0, bias_bound=bias_bound)
    mean = estimate.mean()
    assert mean.value.tolist() == [0.5, 1.5]
    assert mean.bias_bound.tolist() == [0.25, 0.5]
    assert mean.std == 0.5
    assert (estimate.value.tolist(), bias_bound.tolist()) == ([2.0, 6.0], [1.0, 2.0])


@given(CASES, st.integers(1, 1000))
def test_the_interval_of_a_mean_is_that_of_the_sum_scaled(
    case: tuple[float, ...], users: int
) -> None:
    confidence, std, bias, value = case
    estimate = Estimate(t=users + 5, value=value, std=std, bias_bound=bias * std, start=5)
    ends = np.array(estimate.interval(confidence))
    scale = abs(value) + std * (bias + 1)
    assert np.allclose(
        np.array(estimate.mean().interval(confidence)) * users, ends, rtol=0, atol=1e-10 * scale
    )


def test_no_users_have_no_mean() -> None:
    with pytest.raises(InvalidValue, match="no users"):
        Estimate(t=0, value=0.0, std=0.0).mean()
    with pytest.raises(InvalidValue, match="no users"):
        Estimate(t=7, value=np.zeros(3), std=1.0, start=7).mean()


@given(st.lists(st.sampled_from([0.0, 0.5, 3.0, 100.0]), min_size=1, max_size=6), CASES)
def test_every_coordinate_has_the_interval_it_would_have_alone(
    bias_bounds: list[float], case: tuple[float, ...]
) -> None:
    confidence, std, _, value = case
    values = value + np.arange(len(bias_bounds))
    low, high = Estimate(5, values, std, np.array(bias_bounds)).interval(confidence)
    for i, bias_bound in enumerate(bias_bounds):
        alone = Estimate(5, float(values[i]), std, bias_bound).interval(confidence)
        assert (low[i], high[i]) == alone


def test_coordinates_share_a_slack_that_is_one_number() -> None:
    low, high = Estimate(t=5, value=np.array([1.0, 2.0]), std=0.0, bias_bound=2.0).interval()
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0], [3.0, 4.0])


def test_every_coordinate_has_its_own_rms() -> None:
    estimate = Estimate(t=5, value=np.zeros(2), std=3.0, bias_bound=np.array([4.0, 0.0]))
    assert estimate.rms.tolist() == [5.0, 3.0]


def test_the_top_is_the_largest_coordinates_in_order() -> None:
    estimate = Estimate(t=9, value=np.array([2.0, 7.0, -1.0, 7.0, 3.0]), std=1.0)
    assert [bar.coordinate for bar in estimate.top(3)] == [1, 3, 4]
    assert [bar.value for bar in estimate.top(3)] == [7.0, 7.0, 3.0]
    assert [bar.coordinate for bar in estimate.top()] == [1, 3, 4, 0, 2]
    assert all(bar.low < bar.value < bar.high for bar in estimate.top())


@given(st.integers(1, 200), st.floats(0.5, 0.999), st.floats(0, 5))
def test_all_bars_together_hold_as_often_as_they_say(
    coordinates: int, confidence: float, bias: float
) -> None:
    """Each leaves its share of the failures, so that all shares add up to them."""
    estimate = Estimate(
        9, np.zeros(coordinates), std=2.0, bias_bound=np.full(coordinates, 2 * bias)
    )
    bars = estimate.top(coordinates, confidence)
    missed = [float(ndtr(bias - b.high / 2) + ndtr(b.low / 2 - bias)) for b in bars]
    assert math.isclose(sum(missed), 1 - confidence, rel_tol=1e-6)
    assert max(missed) == min(missed)


def test_the_bars_do_not_depend_on_how_many_are_shown() -> None:
    estimate = Estimate(9, np.array([3.0, 1.0, 2.0]), std=2.0, bias_bound=np.array([0.0, 1.0, 5.0]))
    assert estimate.top(1) == estimate.top(3)[:1]
    (first, second, third) = estimate.top(3)
    assert first.high - first.low < third.high - third.low < second.high - second.low


def test_a_number_is_its_own_top() -> None:
    estimate = Estimate(t=9, value=4.0, std=2.0, bias_bound=1.0)
    (bar,) = estimate.top()
    assert bar[:4] == (0, 4.0, *estimate.interval())


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None], ids=repr)
def test_a_top_of_none_is_refused(count: Any) -> None:
    with pytest.raises(InvalidValue, match="count="):
        Estimate(t=9, value=np.zeros(3), std=1.0).top(count)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan, True, "0.95"], ids=repr)
def test_bars_of_no_confidence_are_refused(confidence: Any) -> None:
    with pytest.raises(InvalidValue, match="confidence"):
        Estimate(t=9, value=np.zeros(3), std=1.0).top(confidence=confidence)


def test_estimates_are_equal_if_all_they_say_is() -> None:
    one = Estimate(
        t=9, value=np.array([1.0, 2.0]), std=3.0, bias_bound=np.array([0.0, 1.0]), start=2
    )
    assert one == dataclasses.replace(
        one, value=np.array([1.0, 2.0]), bias_bound=np.array([0.0, 1.0])
    )
    for other in (
        dataclasses.replace(one, t=8),
        dataclasses.replace(one, value=np.array([1.0, 2.5])),
        dataclasses.replace(one, value=np.array([1.0])),
        dataclasses.replace(one, value=1.0),
        dataclasses.replace(one, std=3.5),
        dataclasses.replace(one, bias_bound=np.array([0.0, 2.0])),
        dataclasses.replace(one, bias_bound=0.0),
        dataclasses.replace(one, start=1),
    ):
        assert one != other
    assert one != (9, 1.0)
    assert Estimate(t=9, value=1.0, std=3.0) == Estimate(t=9, value=1, std=3)
    assert hash(Estimate(t=9, value=1.0, std=3.0)) == hash(Estimate(t=9, value=1, std=3))


def test_a_repr_is_one_short_line_whatever_was_added_up() -> None:
    assert repr(Estimate(t=9, value=1234567.0, std=1.0)) == "Estimate(t=9, value=1234567, std=1)"
    ranged = Estimate(t=9, value=0.5, std=1 / 3, start=4)
    assert repr(ranged) == "Estimate(t=9, value=0.5, std=0.3333, start=4)"
    many = repr(Estimate(t=9, value=np.arange(1e6), std=1.0))
    assert many == "Estimate(t=9, value=[0, 1, 2, ..., 999997, 999998, 999999], std=1)"


def test_an_estimate_of_one_number_is_a_number() -> None:
    assert float(Estimate(t=9, value=4.5, std=1.0)) == 4.5
    assert float(Estimate(t=9, value=np.array([1.0, 6.0]), std=1.0)[1]) == 6.0
    for value in (np.array([1.0, 6.0]), np.array([1.0])):
        with pytest.raises(InvalidValue, match=f"of {len(value)} coordinates is not one number"):
            float(Estimate(t=9, value=value, std=1.0))
