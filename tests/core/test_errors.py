"""The checks of arguments: what they let through, what they refuse, and with which words."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from overhand.errors import (
    DamagedPlan,
    Infeasible,
    InvalidValue,
    OverhandError,
    ProtocolViolation,
    finite_number,
    fraction,
    whole,
)


@pytest.mark.parametrize("error", [InvalidValue, ProtocolViolation, Infeasible, DamagedPlan])
def test_every_error_of_ours_is_an_overhand_error(error: type[Exception]) -> None:
    assert issubclass(error, OverhandError)


def test_an_invalid_value_is_a_value_error_and_the_others_are_not() -> None:
    assert issubclass(InvalidValue, ValueError)
    assert not any(
        issubclass(error, ValueError) for error in (ProtocolViolation, Infeasible, DamagedPlan)
    )


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3)], ids=["int", "numpy int64", "numpy uint8"]
)
def test_whole_gives_back_a_plain_int(value: object) -> None:
    result = whole("size", value, least=1)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize(
    "value",
    [True, False, np.True_, 3.0, np.float64(3), "3", None, 3j, math.nan, [3], Fraction(3)],
    ids=repr,
)
def test_whole_refuses_what_is_no_integer(value: object) -> None:
    with pytest.raises(InvalidValue, match="size=.* must be a whole number of at least 1"):
        whole("size", value, least=1)


def test_whole_holds_both_bounds_and_names_them() -> None:
    assert [whole("t", t, least=2, most=4) for t in (2, 3, 4)] == [2, 3, 4]
    for outside in (1, 5, -(10**40), 10**40):
        with pytest.raises(InvalidValue, match=rf"t={outside} .* from 2 to 4"):
            whole("t", outside, least=2, most=4)


def test_whole_without_an_upper_bound_has_none() -> None:
    assert whole("horizon", 10**400, least=1) == 10**400


@pytest.mark.parametrize(
    "value", [1, 1.0, np.float32(1), np.int64(1), Fraction(1)], ids=lambda v: type(v).__name__
)
def test_number_gives_back_a_plain_float(value: object) -> None:
    result = finite_number("epsilon", value, above=0)
    assert result == 1.0
    assert type(result) is float


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, [1.0], Decimal(1)], ids=repr)
def test_number_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(InvalidValue, match="epsilon=.* must be a number"):
        finite_number("epsilon", value, above=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1, -0.0], ids=repr)
def test_number_refuses_what_is_not_finite_or_not_above_the_bound(value: float) -> None:
    with pytest.raises(InvalidValue, match="epsilon=.* must be .*above 0"):
        finite_number("epsilon", value, above=0)


def test_number_bounds_are_strict() -> None:
    assert finite_number("delta", 5e-324, above=0, below=1) == 5e-324
    assert finite_number("delta", math.nextafter(1, 0), above=0, below=1) < 1
    for outside in (0.0, 1.0, 1.5):
        with pytest.raises(InvalidValue, match=f"delta={outside:g} must be between 0 and 1"):
            finite_number("delta", outside, above=0, below=1)


@pytest.mark.parametrize("value", [1, 0.25, np.float64(0.25), Fraction(1, 4), 5e-324], ids=repr)
def test_fraction_takes_all_that_is_above_zero_and_at_most_one(value: float) -> None:
    result = fraction("honest", value)
    assert result == float(value)
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [0, -0.1, 1.0000001, math.nan, math.inf, -math.inf, True, "0.5", None, Decimal("0.5")],
    ids=repr,
)
def test_fraction_refuses_the_rest(value: object) -> None:
    with pytest.raises(InvalidValue, match="honest=.* must be (above 0 and at most 1|a number)"):
        fraction("honest", value)


@pytest.mark.parametrize("huge", [10**400, Fraction(10**400)], ids=["int", "Fraction"])
def test_a_number_too_large_for_a_float_is_refused_like_any_other(huge: object) -> None:
    with pytest.raises(InvalidValue):
        finite_number("epsilon", huge, above=0)
    with pytest.raises(InvalidValue):
        fraction("honest", huge)
