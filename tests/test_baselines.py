from __future__ import annotations

import math

import numpy as np
import pytest

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.baselines import LocalResponse, SquareRoot, trusted_tree
from overhand.baselines.trusted import _coefficients
from plans import PRIVACY


@pytest.mark.parametrize("levels", [8, 10, 12])
def test_the_binary_tree_has_the_variance_of_the_literature(levels: int) -> None:
    """Worst L^2 and mean L^2 / 2, in units of 1 / mu^2, but for the coins' distance to normal."""
    plan = trusted_tree(2**levels, PRIVACY, combine=False)
    unit = gaussian_mu(PRIVACY) ** 2
    assert plan.worst_std**2 * unit == pytest.approx(levels**2, rel=0.01)
    assert plan.rms_error**2 * unit == pytest.approx(levels**2 / 2, rel=0.02)


def test_combining_nodes_with_children_halves_the_variance() -> None:
    plain, combined = (trusted_tree(4096, PRIVACY, combine=c) for c in (False, True))
    assert combined.rms_error**2 < 0.57 * plain.rms_error**2
    assert combined.delta_spent <= PRIVACY.delta


def test_the_square_root_squared_is_the_running_sum() -> None:
    size = 40
    c = _coefficients(size)
    root = np.array([[c[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])
    assert root @ root == pytest.approx(np.tril(np.ones((size, size))))
    assert c[5] == pytest.approx(math.comb(10, 5) / 4**5)


def test_the_square_root_has_the_variance_of_the_literature() -> None:
    unit = gaussian_mu(PRIVACY) ** 2
    for horizon, worst, mean in ((256, 8.0, 7.1), (4096, 13.8, 12.6), (65536, 21.1, 19.7)):
        best = SquareRoot(horizon, PRIVACY)
        assert best.worst_std**2 * unit == pytest.approx(worst, abs=0.06)
        assert best.rms_error**2 * unit == pytest.approx(mean, abs=0.06)


def test_long_square_roots_continue_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = SquareRoot(2**20, PRIVACY)
    errors = exact.rms_error, exact.worst_std
    monkeypatch.setattr("overhand.baselines.trusted._EXACT", 2**16)
    long = SquareRoot(2**20, PRIVACY)
    assert (long.rms_error, long.worst_std) == pytest.approx(errors, rel=1e-5)


def test_local_answers_cost_what_they_say_and_not_more() -> None:
    for epsilon in (0.1, 1.0, 3.0):
        local = LocalResponse.best(100, oh.Privacy(epsilon, 1e-6))
        assert epsilon - 1e-6 < local.epsilon_spent <= epsilon
        expected = math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2
        assert local.user_variance == pytest.approx(expected, rel=1e-6)


def test_the_order_of_the_models_is_the_order_of_trust() -> None:
    horizon = 100_000
    local = LocalResponse.best(horizon, PRIVACY).rms_error
    one = oh.Plan.best(horizon, 1, PRIVACY).rms_error
    five = oh.Plan.best(horizon, 5, PRIVACY).rms_error
    trusted = SquareRoot(horizon, PRIVACY).rms_error
    assert local > 2 * one > 4 * five > 4 * trusted
