"""The lower bound of Section 4: its constants, its hard inputs, and where it says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

import overhand as oh
from overhand.lab.lower_bound import (
    LEAST_VARIANCE,
    HardInput,
    big_batch,
    bit_variance_root,
    is_proved,
    largest_delta,
    least_horizon,
    repeats,
)
from overhand.lab.simulation import simulate, values_stream
from support.small_plans import PRIVACY


def test_the_constant_is_that_of_section_4() -> None:
    for epsilon in (0.1, 1.0, 2.0):
        expected = math.exp(epsilon) / (math.exp(2 * epsilon) + 1)
        assert bit_variance_root(epsilon) == pytest.approx(expected)


@pytest.mark.parametrize("shufflers", [1, 2, 3, 7])
def test_repeats_and_big_batches_balance(shufflers: int) -> None:
    """c sqrt(n / Big_{n,k}) = 2 rep_{n,k}: what the proof of Lemma B.6 ends with."""
    horizon, epsilon = 10**9, 0.7
    root = math.sqrt(horizon / big_batch(horizon, shufflers, epsilon))
    assert bit_variance_root(epsilon) * root == pytest.approx(
        2 * repeats(horizon, shufflers, epsilon)
    )


def test_without_shufflers_half_of_the_users_are_in_the_dark() -> None:
    assert repeats(1000, 0, 1.0) == 500


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_the_bound_is_vacuous_below_its_least_horizon(shufflers: int) -> None:
    least = least_horizon(shufflers, 1.0)
    delta = largest_delta(2 * least, shufflers, 1.0) / 2
    assert is_proved(math.ceil(1.001 * least), shufflers, 1.0, delta)
    assert not is_proved(math.floor(0.999 * least), shufflers, 1.0, delta)
    assert not is_proved(2 * least, shufflers, 1.0, 1e-3)
    spread = least * bit_variance_root(1.0) ** 2 / big_batch(least, shufflers, 1.0)
    assert spread == pytest.approx(LEAST_VARIANCE, rel=1e-3)


@pytest.mark.parametrize(("prefix", "bit"), [(0, 0), (3, 0), (4, 1)])
def test_hard_inputs_are_prefix_single_and_repeated_bits(prefix: int, bit: int) -> None:
    hard = HardInput(horizon=100, copies=4, prefix=prefix, prefix_bit=bit)
    drawn = [hard.draw(oh.seeded_random(seed)) for seed in range(60)]
    singles = np.arange(prefix, 100, 5)
    for bits in drawn:
        assert bits.shape == (100,)
        assert (bits[:prefix] == bit).all()
        for place in singles:
            assert len(set(bits[place + 1 : place + 5].tolist())) <= 1
    together = np.array(drawn)
    assert set(together[:, singles].reshape(-1).tolist()) == {0, 1}
    assert (together[:, singles[0]] != together[:, singles[0] + 1]).any()


@pytest.mark.parametrize(("copies", "prefix", "bit"), [(0, 0, 0), (3, 4, 0), (3, -1, 0), (3, 1, 2)])
def test_inputs_outside_the_family_are_refused(copies: int, prefix: int, bit: int) -> None:
    with pytest.raises(oh.InvalidValue):
        HardInput(10, copies, prefix, bit)


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_errors_on_hard_inputs_grow_as_proved(shufflers: int) -> None:
    """rms errors on Delta_{n,k}, measured, against n: exponent 1/(2k+1), and above rep_{n,k}."""
    horizons = [10**4, 10**5, 10**6]
    errors: list[float] = []
    for horizon in horizons:
        plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree="paper")
        hard = HardInput.against(horizon, shufflers, 1.0)
        squares = [
            simulate(plan, values_stream(hard.draw(oh.seeded_random(s))), seed=s).rms_error ** 2
            for s in range(40)
        ]
        errors.append(math.sqrt(float(np.mean(squares))))
        assert errors[-1] > repeats(horizon, shufflers, 1.0)
    slope = np.polyfit(np.log(horizons), np.log(errors), 1)[0]
    assert slope == pytest.approx(1 / (2 * shufflers + 1), abs=0.05)
