"""The nouns: guarantees, nodes and bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from overhand.errors import InvalidValue
from overhand.model import Node, Privacy
from overhand.values import BITS


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
    bits = BITS.rows(values)
    assert bits.dtype == np.uint8
    assert bits.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "values",
    [[], (), np.zeros(0, np.uint8), np.zeros(0, bool), np.zeros(0, np.int32)],
    ids=["list", "tuple", "bytes", "booleans", "integers"],
)
def test_no_values_are_no_bits(values: Any) -> None:
    bits = BITS.rows(values)
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
        BITS.rows([0, 1, bad, bad], first=10)


def test_a_byte_that_is_no_bit_is_named() -> None:
    with pytest.raises(InvalidValue, match="value 2 of user 2 is not a bit"):
        BITS.rows(np.array([1, 2, 0, 255], np.uint8))


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
        BITS.rows(values)


@pytest.mark.parametrize(
    "values", [1, True, [[0, 1]], np.zeros((2, 0)), np.zeros((1, 1, 1), np.uint8)], ids=repr
)
def test_another_shape_is_refused_by_name(values: Any) -> None:
    with pytest.raises(InvalidValue, match="one-dimensional"):
        BITS.rows(values)


def test_ragged_values_are_refused() -> None:
    with pytest.raises(InvalidValue, match="differ in length"):
        BITS.rows([[0], [0, 1]])
