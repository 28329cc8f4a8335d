"""Quantiles and distributions of values in bins."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import overhand as oh
from overhand.errors import InvalidValue
from overhand.estimates import half_width
from overhand.estimates.readings import _to_simplex
from overhand.estimates.shared_noise import Segment, TreeRun
from overhand.model import Floats
from overhand.tree import RegularTree

BINS = oh.Binned(0, 10, bins=10)
RUN = TreeRun("a run", RegularTree(1000, (10,)), (1.0,), (1.0,), (0.0,))
RATE = 1e-9  # of either error: see the style of sampled tests
RUNS = 600


def counted(
    counts: Any, std: float = 0.0, *, pending: int = 0, values: oh.Values = BINS, **more: Any
) -> oh.Estimate:
    """Noisy counts of users in batches, whose true sum is that of `counts` without noise."""
    users = more.pop("users", int(np.sum(counts)))
    imputed = np.full(len(counts), pending / 2)
    part = Segment(RUN, 0, users + pending, pending, imputed, std**2)
    law = {"bias_bound": pending / 2, "values": values, **more}
    return oh.Estimate(users + pending, counts + imputed, std, origin=(part,), **law)


COUNTS = st.lists(st.floats(-50, 50), min_size=2, max_size=12).map(np.array)


@given(COUNTS, st.floats(0.5, 200))
def test_the_fitted_counts_are_the_nearest_possible(counts: Floats, total: float) -> None:
    """The conditions that only the nearest point satisfies: all that is left moved alike."""
    fitted = _to_simplex(counts, total)
    assert fitted.min() >= 0
    assert fitted.sum() == pytest.approx(total)
    moved = counts - fitted
    assert np.ptp(moved[fitted > 0]) < 1e-9
    assert (counts[fitted == 0] <= moved[fitted > 0][0] + 1e-9).all()


PARTS = st.floats(0.01, 0.99)


@given(st.lists(st.floats(0, 9.99), min_size=1, max_size=30), PARTS)
def test_without_noise_the_interval_is_the_bin_of_the_quantile(held: list[float], q: float) -> None:
    counts = np.bincount(BINS.rows(held), minlength=10).astype(float)
    truth = np.sort(held)[max(0, math.ceil(q * len(held) - 1e-12) - 1)]
    for estimate in (counted(counts), oh.Estimate(len(held), counts, 0.0, values=BINS)):
        found = estimate.quantile(q)
        assert found.low <= truth <= found.high
        assert found.low <= found.value <= found.high
        is_between = np.isclose(np.cumsum(counts) / len(held), q).any()
        assert found.high - found.low == pytest.approx(1) or is_between
        assert estimate.cdf().at(found.value) == pytest.approx(q) or is_between


@pytest.mark.parametrize("edge", [1, 3, 9])
def test_the_known_total_makes_the_band_narrow(edge: int) -> None:
    """By generalised least squares, as the textbook has it."""
    counts, std, users = np.linspace(0, 40, 10), 3.0, 200
    band = counted(counts, std, users=users).cdf()
    weights = (np.arange(10) < edge).astype(float)
    to_total = np.ones((10, 10)) / 10  # what the constraint takes out of all covariances
    variance = std**2 * weights @ (np.eye(10) - to_total) @ weights
    width = half_width(math.sqrt(variance), 0.0, 0.95)
    middle = weights @ (counts + (users - counts.sum()) / 10)
    assert band.low[edge] == pytest.approx(max(0.0, (middle - width) / users))
    assert band.high[edge] == pytest.approx((middle + width) / users)
    assert variance < std**2 * edge


def test_pending_users_may_be_in_any_bin() -> None:
    counts = np.full(10, 10.0)
    alone, with_pending = counted(counts).cdf(), counted(counts, pending=25).cdf()
    assert alone.low[5] == alone.high[5] == 0.5
    assert (with_pending.low[5], with_pending.high[5]) == (50 / 125, 75 / 125)
    assert with_pending.value[5] == 0.5
    found = counted(counts, pending=25).quantile(0.5)
    assert (found.low, found.high) == (3.0, 7.0)


def test_nobody_in_a_batch_yet_is_anything() -> None:
    estimate = counted(np.zeros(10), pending=9)
    assert estimate.quantile(0.5) == (5.0, 0.0, 10.0)


def test_of_an_unknown_origin_the_total_has_noise_too() -> None:
    counts, std = np.linspace(10, 40, 10), 3.0
    known = counted(counts, std).cdf()
    unknown = oh.Estimate(250, counts, std, values=BINS).cdf()
    q = counts[:4].sum() / 250
    width = half_width(std * math.sqrt(4 * (1 - q) ** 2 + 6 * q**2), 0.0, 0.95)
    assert unknown.high[4] - unknown.low[4] == pytest.approx(2 * width / 250, rel=0.01)
    assert unknown.high[4] - unknown.low[4] > known.high[4] - known.low[4]
    bias_bound = oh.Estimate(250, counts, std, bias_bound=2.0, values=BINS).cdf()
    assert bias_bound.low[4] < unknown.low[4] - 0.04
    assert bias_bound.high[4] > unknown.high[4] + 0.04


def test_all_quantiles_at_once_have_wider_intervals_and_a_band_that_rises() -> None:
    estimate = counted(np.linspace(10, 40, 10), 12.0)
    parts = [0.1, 0.5, 0.9]
    alone, together = estimate.quantile(parts), estimate.quantile(parts, simultaneous=True)
    assert together == estimate.quantile(parts, 1 - 0.05 / 3)
    assert alone != together
    many = np.linspace(0.01, 0.99, 500).tolist()
    assert estimate.quantile(many, simultaneous=True) == estimate.quantile(many, 1 - 0.05 / 9)
    band = estimate.cdf(simultaneous=True)
    assert (np.diff(band.low) >= 0).all()
    assert (np.diff(band.high) >= 0).all()


@cache
def held_by_the_band(narrower: float) -> tuple[Floats, int, int]:
    """Of 600 runs: how often every edge's band held, all did at once, and the median's did."""
    random, std, runs = np.random.default_rng(18), 6.0, RUNS
    truth = np.array([5.0, 40, 0, 60, 20, 0, 0, 30, 10, 35])
    below = np.concatenate([[0.0], np.cumsum(truth)]) / 200
    held, all_held, median_held = np.zeros(11), 0, 0
    for noise in random.normal(0, std, (runs, 10)):
        estimate = counted(truth + noise, std * narrower, users=200)
        band = estimate.cdf()
        held += (band.low <= below) & (below <= band.high)
        every = estimate.cdf(simultaneous=True)
        all_held += bool(((every.low <= below) & (below <= every.high)).all())
        median = estimate.quantile(0.5)
        median_held += median.low <= 3.0 and median.high >= 4.0  # 45 below 3, 105 below 4
    return held[1:-1], all_held, median_held


def is_at_least(held: float, share: float, runs: int = RUNS) -> bool:
    """Whether so few would not be seen once in a billion, were it this share."""
    return bool(binom.cdf(held, runs, share) > RATE)


def test_bands_and_intervals_hold_as_often_as_they_say() -> None:
    held, all_held, median_held = held_by_the_band(1.0)
    assert all(is_at_least(one, 0.95) for one in held)
    assert not any(is_at_least(one, 0.99) for one in held)
    assert is_at_least(all_held, 0.95)
    assert is_at_least(median_held, 0.95)


def test_bands_for_two_thirds_of_the_noise_are_seen() -> None:
    """The mutant holds in 81 of 100 runs, 15 standard errors from 95."""
    held, all_held, _ = held_by_the_band(2 / 3)
    assert not any(is_at_least(one, 0.95) for one in held)
    assert not is_at_least(all_held, 0.95)


def test_a_sum_of_bins_says_which_bin_is_largest() -> None:
    estimate = counted(np.arange(10.0))
    assert estimate.top(1)[0].label == "9 to 10"
    assert estimate["9 to 10"].value == 9.0


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_a_real_sum_knows_who_is_pending() -> None:
    plan = oh.Plan.best(400, 2, oh.Privacy(1.0, 1e-4), values=BINS, tree="paper")
    total = oh.ContinualSum(plan, oh.seeded_random(2))
    total.update_many(np.linspace(0, 9.9, 391))
    pending = 391 % plan.tree.lowest
    batched = total.estimate.in_batches()
    assert pending
    assert (batched.users, batched.pending) == (391 - pending, pending)
    assert np.allclose(batched.value + pending / 2, total.estimate.value)
    found = total.between(100, 300).quantile(0.5)
    assert found.low <= 5.05 <= found.high


WORKING = counted(np.arange(10.0))


def test_quantiles_and_fractions_are_asked_for_in_any_form() -> None:
    pandas = pytest.importorskip("pandas")
    several = WORKING.quantile([0.25, 0.5])
    many: list[Any] = [(0.25, 0.5), np.array([0.25, 0.5]), pandas.Series([0.25, 0.5])]
    one: list[Any] = [0.5, np.float32(0.5), np.array(0.5)]
    assert [WORKING.quantile(asked) for asked in many] == [several] * 3
    assert [WORKING.quantile(asked) for asked in one] == [several[1]] * 3
    ends = [BINS.edges[0], BINS.edges[-1]]
    assert WORKING.cdf().at(ends).tolist() == [0.0, 1.0] == [WORKING.cdf().at(x) for x in ends]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "zero": (lambda: WORKING.quantile(0.0), "quantile q=0 must be between 0 and 1"),
    "one": (lambda: WORKING.quantile(1), "quantile q=1 must be between 0 and 1"),
    "NaN": (lambda: WORKING.quantile(math.nan), "quantile q=nan must be"),
    "one of several": (lambda: WORKING.quantile([0.5, 1.5]), "quantile q=1.5 must be"),
    "a word": (lambda: WORKING.quantile("0.5"), "q=.* must be a number"),  # type: ignore[arg-type]
    "a table": (lambda: WORKING.quantile(np.full((2, 2), 0.5)), "must be a number"),  # type: ignore[call-overload]
    "confidence": (lambda: WORKING.cdf(1.0), "confidence=1 must be"),
    "no edges": (
        lambda: oh.Estimate(9, np.ones(3), 1.0, values=oh.Histogram(3)).quantile(0.5),
        "no quantiles: a sum of histogram:3 has no edges",
    ),
    "an unknown kind": (lambda: oh.Estimate(9, 1.0, 1.0).cdf(), "of an unknown kind has no edges"),
    "a mean": (lambda: WORKING.mean().quantile(0.5), "a mean or a difference has no quantiles"),
    "a difference": (lambda: (WORKING - WORKING).cdf(), "a mean or a difference has no quantiles"),
    "nobody": (lambda: counted(np.zeros(10)).quantile(0.5), "no quantiles: the sum has no users"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_quantile_is_refused_in_one_line(case: str) -> None:
    ask, message = REFUSED[case]
    with pytest.raises(InvalidValue, match=message):
        ask()
