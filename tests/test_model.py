"""The nouns: guarantees, nodes, estimates with their intervals, and bits."""

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
from overhand.model import Estimate, Node, Privacy
from overhand.values.scalars import as_bits


def coverage(estimate: Estimate, confidence: float, bias: float) -> float:
    """The probability that the interval holds a sum from which `value` is off by `bias` + noise."""
    low, high = estimate.interval(confidence)
    below, above = estimate.value - low, high - estimate.value
    return float(ndtr((above - bias) / estimate.std) - ndtr((-below - bias) / estimate.std))


def test_privacy_keeps_plain_floats() -> None:
    privacy = Privacy(epsilon=1, delta=np.float64(1e-6))
    assert privacy == Privacy(1.0, 1e-6)
    assert type(privacy.epsilon) is float
    assert type(privacy.delta) is float
    assert str(privacy) == "epsilon=1, delta=1e-06"


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, True, "1", None], ids=repr)
def test_privacy_refuses_an_epsilon_that_is_none(epsilon: Any) -> None:
    with pytest.raises(InvalidValue, match="epsilon"):
        Privacy(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0, 1, -1e-9, 1.5, math.nan, False, "0.1", None], ids=repr)
def test_privacy_refuses_a_delta_that_is_none(delta: Any) -> None:
    with pytest.raises(InvalidValue, match="delta"):
        Privacy(1.0, delta)


def test_privacy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Privacy(1.0, 1e-6).epsilon = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("levels", [1, 2, 7])
def test_the_shares_of_all_levels_add_up_to_the_whole(levels: int) -> None:
    share = Privacy(1.0, 1e-6).share(levels)
    assert math.isclose(levels * share.epsilon, 1.0, rel_tol=1e-15)
    assert math.isclose(levels * share.delta, 1e-6, rel_tol=1e-15)


@pytest.mark.parametrize("levels", [0, -1])
def test_a_share_of_no_levels_is_refused(levels: int) -> None:
    with pytest.raises(InvalidValue):
        Privacy(1.0, 1e-6).share(levels)


def test_a_node_has_the_size_of_its_interval() -> None:
    assert Node(level=2, start=4, stop=12).size == 8


CASES = st.tuples(
    st.floats(0.01, 0.9999),  # confidence
    st.floats(1e-3, 1e6),  # std
    st.floats(0.0, 30.0),  # slack, in standard deviations
    st.floats(-1e6, 1e6),  # value
)


@given(CASES)
def test_the_interval_covers_exactly_at_the_worst_bias(case: tuple[float, ...]) -> None:
    confidence, std, bias, value = case
    estimate = Estimate(t=9, value=value, std=std, slack=bias * std)
    # The width is a difference of floats of the size of the value.
    rounding = 1e-10 + 4e-16 * (abs(value) / std + bias)
    for worst in (estimate.slack, -estimate.slack):
        assert math.isclose(coverage(estimate, confidence, worst), confidence, abs_tol=rounding)


@given(CASES, st.floats(-1, 1))
def test_the_interval_covers_at_least_as_often_at_any_smaller_bias(
    case: tuple[float, ...], part: float
) -> None:
    confidence, std, bias, _ = case
    estimate = Estimate(t=9, value=0.0, std=std, slack=bias * std)
    assert coverage(estimate, confidence, 0.0) >= confidence - 1e-10
    assert coverage(estimate, confidence, part * estimate.slack) >= confidence - 1e-10


@given(CASES)
def test_without_slack_the_interval_is_the_normal_one(case: tuple[float, ...]) -> None:
    confidence, std, _, _ = case
    low, high = Estimate(t=9, value=0.0, std=std).interval(confidence)
    assert math.isclose(low, -high, rel_tol=1e-12)
    assert math.isclose(2 * float(ndtr(high / std)) - 1, confidence, abs_tol=1e-11)


def held(estimate: Estimate, confidence: float, coins: int) -> float:
    """How often the interval holds a sum off by `slack` and a number of fair coins, centred."""
    _, half_width = dataclasses.replace(estimate, value=0.0).interval(confidence)
    law = binom(2 * coins, 0.5)
    most, least = half_width - estimate.slack, -half_width - estimate.slack
    return float(law.cdf(math.floor(most) + coins) - law.cdf(math.ceil(least) + coins - 1))


@given(st.integers(1, 300), st.integers(0, 20), st.sampled_from((0.8, 0.9, 0.95, 0.99, 0.999)))
def test_noise_in_steps_is_held_as_often_as_the_interval_says(
    coins: int, pending: int, confidence: float
) -> None:
    std, slack = math.sqrt(coins / 2), pending / 2
    estimate = Estimate(t=9, value=4.0, std=std, slack=slack, unit=1.0)
    assert held(estimate, confidence, coins) >= confidence


def test_without_its_unit_noise_in_steps_is_held_less_often() -> None:
    estimate = Estimate(t=9, value=4.0, std=1.0)
    assert held(estimate, 0.95, 2) == 7 / 8
    assert held(dataclasses.replace(estimate, unit=1.0), 0.95, 2) == 1.0


def test_the_steps_of_a_mean_are_as_much_smaller() -> None:
    estimate = Estimate(t=20, value=40.0, std=2.0, slack=3.0, unit=1.0)
    low, high = estimate.interval()
    assert estimate.mean().interval() == pytest.approx((low / 20, high / 20))


def test_the_interval_is_symmetric_about_the_value_and_grows_with_confidence() -> None:
    estimate = Estimate(t=9, value=100.0, std=5.0, slack=7.0)
    widths = []
    for confidence in (0.5, 0.9, 0.99, 0.999999):
        low, high = estimate.interval(confidence)
        assert math.isclose(100.0 - low, high - 100.0, rel_tol=1e-12)
        widths.append(high - low)
    assert widths == sorted(widths)


def test_without_noise_the_interval_is_the_slack() -> None:
    assert Estimate(t=3, value=10.0, std=0.0, slack=2.5).interval() == (7.5, 12.5)
    assert Estimate(t=3, value=10.0, std=0.0).interval() == (10.0, 10.0)


def test_noise_far_below_the_slack_leaves_the_slack() -> None:
    low, high = Estimate(t=3, value=0.0, std=1e-20, slack=1.0).interval()
    assert math.isclose(low, -1.0)
    assert math.isclose(high, 1.0)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan, True, "0.95"], ids=repr)
def test_a_confidence_that_is_none_is_refused(confidence: Any) -> None:
    for std in (0.0, 1.0):
        with pytest.raises(InvalidValue, match="confidence"):
            Estimate(t=3, value=0.0, std=std).interval(confidence)


def test_rms_is_noise_and_worst_bias_together() -> None:
    assert Estimate(t=3, value=0.0, std=3.0, slack=4.0).rms == 5.0


# --- estimates of some users, and of many coordinates ---------------------------------------------


def test_an_estimate_is_of_the_users_after_its_start() -> None:
    assert Estimate(t=9, value=4.0, std=1.0).users == 9
    assert Estimate(t=9, value=4.0, std=1.0, start=3).users == 6
    assert Estimate(t=9, value=4.0, std=1.0, start=9).users == 0


def test_a_mean_is_the_sum_and_its_errors_divided_by_the_users() -> None:
    mean = Estimate(t=30, value=50.0, std=4.0, slack=3.0, start=10).mean()
    assert mean == Estimate(t=30, value=2.5, std=0.2, slack=0.15, start=10)


def test_a_mean_of_many_coordinates_is_taken_in_each() -> None:
    slack = np.array([1.0, 2.0])
    estimate = Estimate(t=4, value=np.array([2.0, 6.0]), std=2.0, slack=slack)
    mean = estimate.mean()
    assert mean.value.tolist() == [0.5, 1.5]
    assert mean.slack.tolist() == [0.25, 0.5]
    assert mean.std == 0.5
    assert (estimate.value.tolist(), slack.tolist()) == ([2.0, 6.0], [1.0, 2.0])


@given(CASES, st.integers(1, 1000))
def test_the_interval_of_a_mean_is_that_of_the_sum_scaled(
    case: tuple[float, ...], users: int
) -> None:
    confidence, std, bias, value = case
    estimate = Estimate(t=users + 5, value=value, std=std, slack=bias * std, start=5)
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
    slacks: list[float], case: tuple[float, ...]
) -> None:
    confidence, std, _, value = case
    values = value + np.arange(len(slacks))
    low, high = Estimate(5, values, std, np.array(slacks)).interval(confidence)
    for i, slack in enumerate(slacks):
        alone = Estimate(5, float(values[i]), std, slack).interval(confidence)
        assert (low[i], high[i]) == alone


def test_coordinates_share_a_slack_that_is_one_number() -> None:
    low, high = Estimate(t=5, value=np.array([1.0, 2.0]), std=0.0, slack=2.0).interval()
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0], [3.0, 4.0])


def test_every_coordinate_has_its_own_rms() -> None:
    estimate = Estimate(t=5, value=np.zeros(2), std=3.0, slack=np.array([4.0, 0.0]))
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
    estimate = Estimate(9, np.zeros(coordinates), std=2.0, slack=np.full(coordinates, 2 * bias))
    bars = estimate.top(coordinates, confidence)
    missed = [float(ndtr(bias - b.high / 2) + ndtr(b.low / 2 - bias)) for b in bars]
    assert math.isclose(sum(missed), 1 - confidence, rel_tol=1e-6)
    assert max(missed) == min(missed)


def test_the_bars_do_not_depend_on_how_many_are_shown() -> None:
    estimate = Estimate(9, np.array([3.0, 1.0, 2.0]), std=2.0, slack=np.array([0.0, 1.0, 5.0]))
    assert estimate.top(1) == estimate.top(3)[:1]
    (first, second, third) = estimate.top(3)
    assert first.high - first.low < third.high - third.low < second.high - second.low


def test_a_number_is_its_own_top() -> None:
    estimate = Estimate(t=9, value=4.0, std=2.0, slack=1.0)
    (bar,) = estimate.top()
    assert bar == (0, 4.0, *estimate.interval())


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None], ids=repr)
def test_a_top_of_none_is_refused(count: Any) -> None:
    with pytest.raises(InvalidValue, match="count="):
        Estimate(t=9, value=np.zeros(3), std=1.0).top(count)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan, True, "0.95"], ids=repr)
def test_bars_of_no_confidence_are_refused(confidence: Any) -> None:
    with pytest.raises(InvalidValue, match="confidence"):
        Estimate(t=9, value=np.zeros(3), std=1.0).top(confidence=confidence)


def test_estimates_are_equal_if_all_they_say_is() -> None:
    one = Estimate(t=9, value=np.array([1.0, 2.0]), std=3.0, slack=np.array([0.0, 1.0]), start=2)
    assert one == dataclasses.replace(one, value=np.array([1.0, 2.0]), slack=np.array([0.0, 1.0]))
    for other in (
        dataclasses.replace(one, t=8),
        dataclasses.replace(one, value=np.array([1.0, 2.5])),
        dataclasses.replace(one, value=np.array([1.0])),
        dataclasses.replace(one, value=1.0),
        dataclasses.replace(one, std=3.5),
        dataclasses.replace(one, slack=np.array([0.0, 2.0])),
        dataclasses.replace(one, slack=0.0),
        dataclasses.replace(one, start=1),
    ):
        assert one != other
    assert one != (9, 1.0)
    assert Estimate(t=9, value=1.0, std=3.0) == Estimate(t=9, value=1, std=3)
    assert hash(Estimate(t=9, value=1.0, std=3.0)) == hash(Estimate(t=9, value=1, std=3))


# --- bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 1],
        (False, True, True),
        [0.0, 1.0, 1.0],
        [-0.0, True, 1],
        np.array([0, 1, 1], np.uint8),
        np.array([0, 1, 1], np.int64),
        np.array([0, 1, 1], np.float16),
        np.array([False, True, True]),
        np.array([0, 5, 1, 5, 1, 5])[::2],
        np.array([False, False, True, False, True, False])[::2],
    ],
    ids=lambda v: f"{type(v).__name__} of {getattr(v, 'dtype', type(v[0]).__name__)}",
)
def test_bits_in_every_guise_become_bytes(values: Any) -> None:
    bits = as_bits(values)
    assert bits.dtype == np.uint8
    assert bits.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "values",
    [[], (), np.zeros(0, np.uint8), np.zeros(0, bool), np.zeros(0, np.int32)],
    ids=["list", "tuple", "bytes", "booleans", "integers"],
)
def test_no_values_are_no_bits(values: Any) -> None:
    bits = as_bits(values)
    assert bits.dtype == np.uint8
    assert bits.shape == (0,)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (2, "2"),
        (-1, "-1"),
        (256, "256"),
        (257, "257"),
        (2**32, "4294967296"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (0.5, "0.5"),
        (1 + 2**-40, "1.00000000000"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (1e300, "1e\\+300"),
    ],
)
def test_the_first_value_that_is_no_bit_is_named_with_its_user(bad: float, shown: str) -> None:
    with pytest.raises(InvalidValue, match=f"value {shown}.* of user 13 is not a bit"):
        as_bits([0, 1, bad, bad], first=10)


def test_a_byte_that_is_no_bit_is_named() -> None:
    with pytest.raises(InvalidValue, match="value 2 of user 2 is not a bit"):
        as_bits(np.array([1, 2, 0, 255], np.uint8))


@pytest.mark.parametrize(
    "values",
    [
        ["0", "1"],
        [b"1"],
        [None],
        [0, None],
        [10**30],
        np.array([0, 1], object),
        np.array([], object),
        [1j],
        np.array(["2020-01-01"], "datetime64[D]"),
        {"a": 1},
        "01",
        None,
    ],
    ids=repr,
)
def test_what_is_no_array_of_numbers_is_refused(values: Any) -> None:
    with pytest.raises(InvalidValue):
        as_bits(values)


@pytest.mark.parametrize(
    "values", [1, True, [[0, 1]], np.zeros((2, 0)), np.zeros((1, 1, 1), np.uint8)], ids=repr
)
def test_another_shape_is_refused_by_name(values: Any) -> None:
    with pytest.raises(InvalidValue, match="one-dimensional"):
        as_bits(values)


def test_ragged_values_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous|one-dimensional"):
        as_bits([[0], [0, 1]])
