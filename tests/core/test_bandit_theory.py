"""The paper's constants and regret bound (Section 5 and its appendix), written out once more."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overhand as oh
from overhand.bandits import LinUCB, Theory, plan_for_regret, published_regret, regret_exponent
from overhand.bandits.theory import published_entry_error
from overhand.errors import InvalidValue
from overhand.lab.simulation import estimate_all
from overhand.model import Floats
from overhand.values import RegressionStatistics
from support.small_plans import PRIVACY

# --- the theorem of Shariff and Sheffet, for any regularity ---------------------------------------


def general_radius(
    t: float, d: int, sigma: float, alpha: float, rho_max: float, rho_min: float, gamma: float
) -> float:
    """beta_t of Theorem "ss18", with S = L = 1."""
    inside = 2 * math.log(2 / alpha) + d * math.log(rho_max / rho_min + t / (d * rho_min))
    return sigma * math.sqrt(inside) + math.sqrt(rho_max) + gamma


def general_regret(
    n: float, d: int, sigma: float, alpha: float, rho_max: float, rho_min: float, gamma: float
) -> float:
    """The regret of Theorem "ss18", with B = S = L = 1."""
    first = sigma * (2 * math.log(2 / alpha) + d * math.log(rho_max / rho_min + n / (d * rho_min)))
    second = (math.sqrt(rho_max) + gamma) * math.sqrt(d * math.log(1 + n / (d * rho_min)))
    return math.sqrt(8 * n) * (first + second)


def regularity(entry_error: float, d: int) -> tuple[float, float, float]:
    """rho_max, rho_min and gamma: noise of norm sigma' d on a shift of twice that."""
    norm, shift = entry_error * d, 2 * entry_error * d
    rho_max, rho_min = shift + norm, shift - norm
    return rho_max, rho_min, norm / math.sqrt(rho_min)


CASES = st.tuples(
    st.integers(1, 30), st.integers(1, 10**7), st.floats(1e-3, 1e6), st.floats(1e-2, 10.0)
)


@given(CASES, st.floats(0, 1))
def test_the_radius_is_that_of_the_theorem(
    case: tuple[int, int, float, float], part: float
) -> None:
    d, n, entry_error, sigma = case
    t = int(part * n)
    theory = Theory(d, n, entry_error, sigma)
    rho_max, rho_min, gamma = regularity(entry_error, d)
    expected = general_radius(t, d, sigma, 1 / n, rho_max, rho_min, gamma)
    assert theory.radius(t) == pytest.approx(expected, rel=1e-12)


@given(CASES)
def test_the_regret_is_that_of_the_theorem(case: tuple[int, int, float, float]) -> None:
    d, n, entry_error, sigma = case
    rho_max, rho_min, gamma = regularity(entry_error, d)
    expected = general_regret(n, d, sigma, 1 / n, rho_max, rho_min, gamma)
    assert Theory(d, n, entry_error, sigma).regret == pytest.approx(expected, rel=1e-6)


@given(CASES)
def test_both_are_as_printed_in_the_restatement(case: tuple[int, int, float, float]) -> None:
    """lambda = 2 sigma' d, sqrt(3 lambda / 2) + sqrt(lambda / 2), log(3 + 2 t / (d lambda))."""
    d, n, entry_error, sigma = case
    theory, lam = Theory(d, n, entry_error, sigma), 2 * entry_error * d
    assert theory.shift(n // 2, 123.0) == pytest.approx(lam)  # whatever the noise at that time
    noise = math.sqrt(3 * lam / 2) + math.sqrt(lam / 2)
    ellipsoid = 2 * math.log(2 * n) + d * math.log(3 + 2 * n / (d * lam))
    assert theory.radius(n) == pytest.approx(sigma * math.sqrt(ellipsoid) + noise, rel=1e-12)
    widths = math.sqrt(d * math.log(1 + 2 * n / (d * lam)))
    expected = math.sqrt(8 * n) * (sigma * ellipsoid + noise * widths)
    assert theory.regret == pytest.approx(expected, rel=1e-6)  # log(1 + x) of a small x


@given(CASES)
def test_the_regularity_is_what_the_theorem_needs(case: tuple[int, int, float, float]) -> None:
    d, n, entry_error, sigma = case
    rho_max, rho_min, gamma = regularity(entry_error, d)
    lam = Theory(d, n, entry_error, sigma).shift(1, 0.0)
    assert 0 < rho_min <= rho_max
    assert rho_max == pytest.approx(1.5 * lam)
    assert rho_min == pytest.approx(lam / 2)
    assert gamma == pytest.approx(math.sqrt(lam / 2))
    assert gamma == pytest.approx(math.sqrt(entry_error * d))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_entries_within_the_error_are_regular(d: int) -> None:
    """Random noise and extreme: |H| <= rho_max, |H^-1| <= 1 / rho_min, |h|_{H^-1} <= gamma."""
    rng, entry_error = np.random.default_rng(21), 7.0
    rho_max, rho_min, gamma = regularity(entry_error, d)
    shift = Theory(d, 100, entry_error).shift(0, 0.0) * np.eye(d)
    worst = [0.0, 0.0, 0.0]
    extremes = [sign * entry_error * np.ones((d, d)) for sign in (-1.0, 1.0)]
    for noise in [*extremes, *entry_error * rng.uniform(-1, 1, (200, d, d))]:
        upper = np.triu(noise)
        h_matrix = shift + upper + np.triu(noise, 1).T
        values = np.linalg.eigvalsh(h_matrix)
        for vector in (entry_error * np.ones(d), entry_error * rng.uniform(-1, 1, d)):
            norm = math.sqrt(float(vector @ np.linalg.solve(h_matrix, vector)))
            seen = (values.max() / rho_max, rho_min / values.min(), norm / gamma)
            worst = [max(pair) for pair in zip(worst, seen, strict=True)]
    assert max(worst) <= 1 + 1e-12
    assert worst[:2] == pytest.approx([1.0, 1.0])  # reached by the extremes


# --- mutants of both ------------------------------------------------------------------------------

Formula = Callable[[float, int, float, float], float]


def half_the_shift(n: float, d: int, entry_error: float, sigma: float) -> float:
    return general_regret(n, d, sigma, 1 / n, *regularity(entry_error / 2, d))


def a_fixed_alpha(n: float, d: int, entry_error: float, sigma: float) -> float:
    return general_regret(n, d, sigma, 0.05, *regularity(entry_error, d))


def no_gamma(n: float, d: int, entry_error: float, sigma: float) -> float:
    rho_max, rho_min, _ = regularity(entry_error, d)
    return general_regret(n, d, sigma, 1 / n, rho_max, rho_min, 0.0)


def swapped(n: float, d: int, entry_error: float, sigma: float) -> float:
    rho_max, rho_min, gamma = regularity(entry_error, d)
    return general_regret(n, d, sigma, 1 / n, rho_min, rho_max, gamma)


@pytest.mark.parametrize("mutant", [half_the_shift, a_fixed_alpha, no_gamma, swapped])
def test_another_formula_would_be_caught(mutant: Formula) -> None:
    regret = Theory(5, 100_000, 300.0).regret
    assert abs(mutant(100_000, 5, 300.0, 0.5) / regret - 1) > 1e-3


# --- as constants of a learner --------------------------------------------------------------------


def test_a_policy_of_theory_doubts_by_the_radius_in_the_norm_of_the_inverse() -> None:
    theory = Theory(dimension=3, horizon=500, entry_error=2.0)
    rng = np.random.default_rng(22)
    x = rng.uniform(-0.5, 0.5, (400, 3))
    y = rng.random(400)
    of = LinUCB(theory)
    policy = of.policy(400, of.rows(x, y).sum(axis=0), 99.0)
    v = x.T @ x + 2 * 2.0 * 3 * np.eye(3)
    beta = general_radius(400, 3, 0.5, 1 / 500, *regularity(2.0, 3))
    theta = np.linalg.solve(v, x.T @ y)  # of rewards as they are
    for arm in rng.uniform(-0.5, 0.5, (20, 3)):
        doubt = beta * math.sqrt(float(arm @ np.linalg.solve(v, arm)))
        assert float(policy.scores(arm[np.newaxis])[0]) == pytest.approx(float(arm @ theta) + doubt)


@pytest.mark.parametrize("dimension", [1, 3])
def test_the_theorem_is_about_rewards_and_features_as_they_are(dimension: int) -> None:
    theory = Theory(dimension, horizon=500, entry_error=2.0)
    assert theory.constant is None
    assert theory.scales.tolist() == [1.0] * dimension
    x = np.full((2, dimension), 0.3)
    expected = RegressionStatistics(dimension).rows(np.column_stack([x, [0.0, 1.0]]))
    assert np.array_equal(LinUCB(theory).rows(x, [0.0, 1.0]), expected)


def test_the_radius_grows_with_time_and_the_regret_with_everything() -> None:
    theory = Theory(5, 10_000, 30.0)
    radii = [theory.radius(t) for t in range(0, 10_001, 500)]
    assert radii == sorted(set(radii))
    base = theory.regret
    for other in (Theory(6, 10_000, 30.0), Theory(5, 11_000, 30.0), Theory(5, 10_000, 33.0),
                  Theory(5, 10_000, 30.0, 0.6)):  # fmt: skip
        assert other.regret > 1.01 * base


@pytest.mark.parametrize(
    ("name", "value"),
    [("dimension", 0), ("dimension", 2.0), ("horizon", 0), ("horizon", "9"), ("entry_error", 0.0),
     ("entry_error", math.nan), ("entry_error", math.inf), ("reward_std", -1.0),
     ("reward_std", None)],
    ids=str,
)  # fmt: skip
def test_what_no_theorem_is_about_is_refused(name: str, value: Any) -> None:
    asked: dict[str, Any] = {"dimension": 2, "horizon": 9, "entry_error": 1.0, name: value}
    with pytest.raises(InvalidValue, match=name):
        Theory(**asked)


# --- how the regret grows -------------------------------------------------------------------------

NEAR, FAR = 1e100, 1e300


def exponent_of(shift_at: Callable[[float], float], d: int = 5) -> float:
    """The growth of the bound, if this is the shift at a horizon."""

    def regret(n: float) -> float:
        lam = shift_at(n)
        return general_regret(n, d, 0.5, 1 / n, 1.5 * lam, lam / 2, math.sqrt(lam / 2))

    return math.log(regret(FAR) / regret(NEAR)) / math.log(FAR / NEAR)


@pytest.mark.parametrize("shufflers", [1, 2, 3, 5])
@pytest.mark.parametrize("dimension", [1, 5, 20])
def test_the_regret_grows_as_the_abstract_says(shufflers: int, dimension: int) -> None:
    claimed = (shufflers + 1) / (2 * shufflers + 1)
    assert regret_exponent(shufflers, dimension=dimension) == pytest.approx(claimed, abs=0.01)
    assert regret_exponent(shufflers, oh.Privacy(0.1, 1e-9)) == pytest.approx(claimed, abs=0.01)


@pytest.mark.parametrize("dimension", [1, 5, 20])
def test_with_logarithmically_many_shufflers_it_grows_as_the_square_root(dimension: int) -> None:
    assert regret_exponent(None, dimension=dimension) == pytest.approx(0.5, abs=0.01)
    assert regret_exponent(1) > 0.66


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_the_exponent_is_that_of_the_published_error(shufflers: int) -> None:
    exponent = exponent_of(
        lambda n: 2 * 5 * published_entry_error(n, shufflers, PRIVACY, dimension=5)
    )
    assert regret_exponent(shufflers) == pytest.approx(exponent, abs=1e-9)


@pytest.mark.parametrize("shufflers", [1, 2, 3, 5])
def test_a_bound_that_forgets_the_shift_would_be_caught(shufflers: int) -> None:
    claimed = (shufflers + 1) / (2 * shufflers + 1)
    assert abs(exponent_of(lambda n: 10.0) - claimed) > 0.01


@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_an_error_of_another_power_would_be_caught(shufflers: int) -> None:
    """n^(1 / 2k) instead of n^(1 / (2k + 1)): for more shufflers the two are too near."""
    claimed = (shufflers + 1) / (2 * shufflers + 1)
    assert abs(exponent_of(lambda n: 10 * n ** (1 / (2 * shufflers))) - claimed) > 0.01
    assert exponent_of(lambda n: 10 * n ** (1 / (2 * shufflers + 1))) == pytest.approx(
        claimed, abs=0.01
    )


def test_log_n_shufflers_that_stay_few_would_be_caught() -> None:
    assert abs(regret_exponent(20) - 0.5) > 0.01


def test_the_published_error_is_that_of_the_corollary() -> None:
    """k log(d k / delta) / epsilon a level, sqrt(k) n^(1 / (2k + 1)) nodes, a union bound."""
    for n, k, d in ((1e4, 1, 2), (1e6, 3, 5), (1e9, 6, 20)):
        expected = (
            k**1.5 / 0.5 * n ** (1 / (2 * k + 1)) * math.log(d * k / 1e-8)
            * math.sqrt(math.log(n**3 * (d**2 + d)))
        )  # fmt: skip
        got = published_entry_error(n, k, oh.Privacy(0.5, 1e-8), d)
        assert got == pytest.approx(expected, rel=1e-12)


def test_the_published_regret_is_the_bound_at_that_error() -> None:
    for k in (1, 3):
        error = published_entry_error(10**6, k, PRIVACY, 5)
        expected = Theory(5, 10**6, error).regret
        assert published_regret(10**6, k, PRIVACY, 5) == pytest.approx(expected, rel=1e-12)
    assert published_regret(2**20, None, PRIVACY, 5) == published_regret(2**20, 20, PRIVACY, 5)


@pytest.mark.parametrize("shufflers", [0, -1, 1.5, "1"], ids=repr)
def test_an_impossible_number_of_shufflers_is_refused(shufflers: Any) -> None:
    with pytest.raises(InvalidValue, match="shufflers"):
        regret_exponent(shufflers)
    with pytest.raises(InvalidValue, match="shufflers"):
        published_regret(1e6, shufflers, PRIVACY, 5)


# --- the error bound of a real plan ---------------------------------------------------------------

RUNS, HORIZON, FEATURES = 20, 2000, 3


@cache
def real_plan() -> oh.Plan:
    return plan_for_regret(HORIZON, 3, PRIVACY, FEATURES)


@cache
def noise_of_runs() -> tuple[Floats, Floats]:
    """Vector and matrix noise at every release of every run, from sums of silent users."""
    plan = real_plan()
    silent = np.zeros((HORIZON, FEATURES + 1))
    times = np.arange(plan.tree.lowest, HORIZON + 1, plan.tree.lowest)
    assert len(times) > 3
    runs = [estimate_all(plan, silent, oh.seeded_random(seed))[times - 1] for seed in range(RUNS)]
    return RegressionStatistics(FEATURES).split(np.stack(runs))


def test_the_noise_of_a_plan_is_as_regular_as_the_theorem_needs() -> None:
    """A run may fail with probability 1 / (2 n), so any of them with 1 / 200: seeds are fixed."""
    entry_error = real_plan().error_bound(1 / (2 * HORIZON))
    vectors, matrices = noise_of_runs()
    norms = np.abs(np.linalg.eigvalsh(matrices)).max(axis=-1)
    assert norms.max() <= entry_error * FEATURES
    assert np.linalg.norm(vectors, axis=-1).max() <= entry_error * FEATURES
    shift = Theory(FEATURES, HORIZON, entry_error).shift(0, 0.0)
    eigenvalues = np.linalg.eigvalsh(matrices + shift * np.eye(FEATURES))
    rho_max, rho_min, gamma = regularity(entry_error, FEATURES)
    assert eigenvalues.min() >= rho_min
    assert eigenvalues.max() <= rho_max
    inside = np.linalg.solve(matrices + shift * np.eye(FEATURES), vectors[..., np.newaxis])
    assert np.sqrt((vectors * inside[..., 0]).sum(axis=-1)).max() <= gamma


def test_every_entry_is_within_the_bound_and_the_bound_is_no_formality() -> None:
    entry_error = real_plan().error_bound(1 / (2 * HORIZON))
    entries = np.concatenate([part.reshape(RUNS, -1) for part in noise_of_runs()], axis=1)
    waiting = real_plan().pending_weight * real_plan().tree.most_pending
    assert np.abs(entries).max() <= entry_error - waiting  # nobody is pending at a release
    assert np.abs(entries).max() > (entry_error - waiting) / 3


def test_noise_that_is_not_that_of_the_plan_would_be_caught() -> None:
    """Twentyfold: what a plan of an epsilon twenty times smaller has."""
    entry_error = real_plan().error_bound(1 / (2 * HORIZON))
    _, matrices = noise_of_runs()
    assert 20 * np.abs(np.linalg.eigvalsh(matrices)).max() > entry_error * FEATURES
