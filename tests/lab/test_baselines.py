"""Rivals that trust everybody or nobody: the central trees, and local answers of every kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.errors import InvalidValue
from overhand.lab.baselines import (
    CapResponse,
    GaussianResponse,
    SquareRoot,
    local_counter,
    trusted_tree,
)
from overhand.lab.baselines.local import (
    LocalResponse,
    LocalSum,
    SubsetResponse,
    WindowResponse,
    round_up,
)
from overhand.lab.baselines.trusted import _coefficients
from overhand.lab.simulation import simulate
from overhand.model import Floats
from overhand.randomness import Random, secure_random
from overhand.values import Histogram, Vectors, values_of
from support.local_mechanisms import EPSILONS, assert_errs, local, squared_errors
from support.sampling import FALSE_FAIL
from support.small_plans import PRIVACY


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
    monkeypatch.setattr("overhand.lab.baselines.trusted._EXACT", 2**16)
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


# The local model, for every kind of value.

KINDS = {
    "real": WindowResponse,
    "real:-3:5": WindowResponse,
    "vector:1:2": WindowResponse,
    "matrix:1": WindowResponse,
    "vector:2": CapResponse,
    "vector:20:3": CapResponse,
    "matrix:4": CapResponse,
    "regression:1": CapResponse,
    "regression:3": CapResponse,
    "histogram:2": SubsetResponse,
    "histogram:200": SubsetResponse,
}


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("spec", KINDS)
def test_every_kind_has_a_local_mechanism_that_costs_what_it_may(spec: str, epsilon: float) -> None:
    counter = local(spec, epsilon)
    assert type(counter) is KINDS[spec]
    assert epsilon - 1e-8 < counter.epsilon_spent <= epsilon
    assert counter.delta_spent == 0
    assert counter.messages_per_user == 1
    assert counter.rms_error == pytest.approx(math.sqrt(50.5 * counter.user_variance))
    assert counter.user_variance <= counter.worst_variance <= (counter.worst_std / 9.99) ** 2


def test_unknown_kinds_and_empty_horizons_are_refused() -> None:
    unknown: Any = type("Unknown", (), {"__str__": lambda _: "letters"})()
    with pytest.raises(InvalidValue, match="no local mechanism for letters"):
        local_counter(9, PRIVACY, unknown)
    for spec in KINDS:
        with pytest.raises(InvalidValue, match="horizon=0"):
            local(spec, horizon=0)


def test_probabilities_are_rounded_up_by_little() -> None:
    for probability in (1e-9, 0.1, 1 / 3, 0.5 - 2**-40, 0.5, 0.75):
        above = float(round_up(probability))
        assert probability < above <= probability * (1 + 2**-30)


def test_only_a_large_delta_makes_normal_noise_worth_while() -> None:
    for spec in KINDS:
        values = values_of(spec)
        for epsilon in EPSILONS:
            normal = GaussianResponse(100, values, oh.Privacy(epsilon, 1e-6))
            assert normal.user_variance > 5 * local(spec, epsilon).user_variance
        loose = local_counter(100, oh.Privacy(0.05, 0.3), values)
        assert isinstance(loose, GaussianResponse)
        assert loose.delta_spent == pytest.approx(0.3)
        assert loose.epsilon_spent == 0.05


# All kinds: runs.

SIMULATED = {
    "real:-3:5": ("uniform", 1200),
    "vector:20": ("ones", 200),
    "matrix:4": ("zeros", 200),
    "regression:2": ("uniform", 300),
    "histogram:30": ("bernoulli:0.3", 200),
}
ALIKE: list[LocalSum] = [
    local("real", 1.0, 20),
    local("vector:1:2", 4.0, 20),
    local("vector:3", 1.0, 20),
    local("matrix:4", 4.0, 20),
    local("regression:2", 1.0, 20),
    local("histogram:30", 1.0, 20),
    GaussianResponse(20, Histogram(30), PRIVACY),
]
"""Their variance is the same on all values, so that any input will do."""


@pytest.mark.parametrize("counter", ALIKE, ids=lambda c: f"{type(c).__name__}-{c.values}")
def test_local_counters_err_as_they_say(counter: LocalSum) -> None:
    runs = 15_000 // math.ceil(counter.values.dimension / 2)
    rows = counter.values.uniform(oh.seeded_random(20236), 20 * runs)
    squares = squared_errors(counter, rows)
    assert_errs(squares, counter.rms_error**2, discrepancy=0.15)
    for share in (0.82, 1.22):
        with pytest.raises(AssertionError, match="errs by"):
            assert_errs(share * squares, counter.rms_error**2, discrepancy=0.19)


@pytest.mark.parametrize("spec", SIMULATED)
def test_simulations_of_local_counters_err_as_predicted(spec: str) -> None:
    counter = local(spec, 1.0, horizon=20)
    form, runs = SIMULATED[spec]
    squares = [simulate(counter, form, seed=seed).rms_error ** 2 for seed in range(runs)]
    assert_errs(np.array(squares), counter.rms_error**2, discrepancy=0.5)


@pytest.mark.parametrize("spec", ["real", "vector:20", "histogram:30"])
def test_error_bounds_hold_at_their_rate(spec: str) -> None:
    counter = local(spec, 1.0, horizon=40)
    largest = np.array([simulate(counter, "ones", seed=s).max_error for s in range(150)])
    allowed = stats.binom.isf(FALSE_FAIL, 150, 0.2)
    assert (largest > counter.error_bound(0.2)).sum() <= allowed
    assert (largest > counter.error_bound(0.2) / 4).sum() > allowed
    assert counter.error_bound(0.01) > counter.error_bound(0.2)
    with pytest.raises(InvalidValue, match="failure_probability"):
        counter.error_bound(0.0)


def test_error_bounds_are_hoeffding_s_for_few_users_and_bernstein_s_for_many() -> None:
    few, many = local("real", 1.0, 10), local("vector:20", 1.0, 10**6)
    events = math.log(2 * 10 / 0.05)
    assert few.error_bound() == pytest.approx(few.spread * math.sqrt(10 * events / 2))
    events = math.log(2 * 20 * 10**6 / 0.05)
    gaussian = many.worst_std * math.sqrt(2 * events)
    assert gaussian < many.error_bound() < 1.02 * gaussian
    normal = GaussianResponse(10**6, Vectors(20), PRIVACY)
    assert normal.error_bound() == pytest.approx(normal.worst_std * math.sqrt(2 * events))


class Exact(GaussianResponse):
    """Adds no noise."""

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        return np.array(self.values.coordinates(rows), np.float64)


def test_runs_go_on_where_they_stopped() -> None:
    rows = np.random.default_rng(6).integers(0, 3, 50)
    values = Histogram(3)
    run = Exact(50, values, PRIVACY).start(oh.seeded_random(1))
    parts = [run.estimates(part) for part in np.split(rows, [1, 20])]
    assert np.array_equal(np.concatenate(parts), values.running_sums(rows))


@pytest.mark.parametrize("spec", KINDS)
def test_only_answers_made_of_integers_are_deployed(spec: str) -> None:
    counter = local(spec)
    rows = counter.values.opposites(np.ones(100, np.uint8))
    normal = GaussianResponse(100, counter.values, PRIVACY)
    for response in (counter, normal):
        if isinstance(response, WindowResponse | SubsetResponse):
            estimates = response.start(secure_random()).estimates(rows)
            assert estimates.shape == (100, *counter.values.shape)
        else:
            with pytest.raises(InvalidValue, match="never deployed"):
                response.start(secure_random())


def test_local_mechanisms_at_epsilon_one_are_as_good_as_they_are_known_to_be() -> None:
    bit = LocalResponse.best(1_000_000, PRIVACY)
    assert (round(float(bit.flip), 3), round(bit.epsilon_spent, 6)) == (0.269, 1.0)
    assert round(bit.rms_error) == 678
    subset = SubsetResponse.best(1000, PRIVACY, oh.Histogram(200))
    assert (subset.size, round(subset.user_variance, 2)) == (54, 3.64)
    window = WindowResponse.best(1000, PRIVACY, oh.Reals(0.0, 1.0))
    assert round(window.user_variance, 2) == 1.0
    assert max(subset.epsilon_spent, window.epsilon_spent) <= 1.0
