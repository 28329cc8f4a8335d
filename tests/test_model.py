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

from overhand.errors import InvalidValue
from overhand.model import Estimate, Node, Privacy
from overhand.values import as_bits


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
