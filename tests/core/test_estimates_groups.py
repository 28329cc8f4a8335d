"""Groups: counts, sums and means, and the estimates as tables."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import overhand as oh
from overhand.errors import InvalidValue, OverhandError
from overhand.estimates import Group, half_width
from overhand.estimates.intervals import fieller
from overhand.estimates.shared_noise import Segment, TreeRun
from overhand.tree import RegularTree

PAY = oh.Grouped(["DE", "FR", "IT"], of=oh.Reals(10.0, 50.0))
RUN = TreeRun("a run", RegularTree(1000, (10,)), (1.0,), (1.0,), (0.0,))
RATE = 1e-9


def cells(counts: Any, means: Any) -> Any:
    """The cells of groups that have so many users, of this mean."""
    high = np.asarray(counts) * (np.asarray(means) - 10.0) / 40.0
    return np.concatenate([high, counts - high])


TRUTH = cells([400, 90, 0], [20.0, 45.0, 10.0])


def summed(value: Any, std: float = 0.0, *, pending: int = 0) -> oh.Estimate:
    imputed = np.full(6, pending / 2)
    part = Segment(RUN, 0, 490 + pending, pending, imputed, std**2)
    value = value + imputed
    return oh.Estimate(490 + pending, value, std, pending / 2, values=PAY, origin=(part,))


def test_without_noise_groups_are_what_they_are() -> None:
    german, french, italian = summed(TRUTH).groups()
    assert german == Group("DE", (400, 400, 400), (8000, 8000, 8000), (20, 20, 20))  # type: ignore[arg-type]
    assert french.mean is not None
    assert french.mean.value == pytest.approx(45)
    assert (italian.count.value, italian.sum.value) == pytest.approx((0, 0))


def test_the_mean_of_nobody_is_no_number_and_says_so() -> None:
    italian = summed(TRUTH, std=2.0).groups()[2]
    assert italian.mean is None
    assert italian.note == "no mean: IT may have no users at all"
    assert italian.count.low == 0


def test_a_mean_has_fiellers_interval_of_two_sums_with_noise_in_common() -> None:
    std, z = 2.0, half_width(1.0, 0.0, 0.95)
    french = summed(TRUTH, std).groups()[1]
    assert french.mean is not None
    # All six cells add up to the users: what they have in common is known, and taken out.
    variance, of_count, of_both = (
        std**2 * (50**2 + 10**2 - 60**2 / 6),
        std**2 * (2 - 4 / 6),
        std**2 * (60 - 60 * 2 / 6),
    )
    low, high = fieller(np.array([4050.0]), np.array([90.0]), variance, of_count, of_both, z)
    assert (french.mean.low, french.mean.high) == pytest.approx((low[0], high[0]))
    assert french.sum.high - french.sum.value == pytest.approx(z * math.sqrt(variance))
    assert french.count.high - french.count.value == pytest.approx(z * math.sqrt(of_count))


def test_bounds_end_where_nothing_is_possible_beyond() -> None:
    german, french, italian = summed(cells([470, 20, 0], [49.9, 49.9, 10.0]), std=20.0).groups()
    assert german.mean is not None
    assert german.mean.high == 50.0
    assert (german.count.high, german.sum.high) == (490, 490 * 50)
    assert french.mean is None
    assert (italian.count.low, italian.sum.low) == (0, 0)


def test_pending_users_may_be_in_any_group_and_hold_anything() -> None:
    german, french, _ = summed(TRUTH, pending=10).groups()
    assert (french.count.low, french.count.high) == (90, 100)
    assert (french.sum.low, french.sum.high) == pytest.approx((4050, 4050 + 500))
    assert french.mean is not None
    assert french.mean.low == pytest.approx((4050 + 100) / 100)
    assert french.mean.high == pytest.approx((4050 + 500) / 100)
    assert german.mean is not None
    assert german.mean.low == pytest.approx((8000 + 100) / 410)


def test_of_an_unknown_origin_slack_is_in_every_cell() -> None:
    _, french, _ = oh.Estimate(490, TRUTH, 0.0, bias_bound=1.0, values=PAY).groups()
    assert (french.count.low, french.count.high) == (88, 92)
    assert (french.sum.low, french.sum.high) == pytest.approx((4050 - 60, 4050 + 60))
    assert french.mean is not None
    assert french.mean.low <= (4050 - 50 + 10) / 90 <= (4050 + 50 - 10) / 90 <= french.mean.high


def test_the_largest_groups_by_any_of_their_numbers() -> None:
    estimate = summed(TRUTH, std=2.0)
    assert [bar.label for bar in estimate.top()] == ["DE", "FR", "IT"]
    assert [bar.label for bar in estimate.top(2, by="sum")] == ["DE", "FR"]
    french, german = estimate.top(by="mean")  # IT has none
    assert (french.label, french.coordinate, german.label) == ("FR", 1, "DE")
    alone = estimate.groups(1 - 0.05 / 3)[1].mean
    assert french[1:4] == alone  # bars hold all at once


@cache
def held(narrower: float, runs: int = 600) -> dict[str, int]:
    """How often the intervals of the second group held, of so many runs."""
    random, std = np.random.default_rng(19), 4.0
    found = {"count": 0, "sum": 0, "mean": 0}
    truth = {"count": 90.0, "sum": 4050.0, "mean": 45.0}
    for noise in random.normal(0, std, (runs, 6)):
        french = summed(TRUTH + noise, std * narrower).groups()[1]
        for name, true in truth.items():
            one = getattr(french, name)
            found[name] += one is None or one.low <= true <= one.high
    return found


def test_intervals_hold_as_often_as_they_say() -> None:
    for name, times in held(1.0).items():
        assert binom.cdf(times, 600, 0.95) > RATE, name
        # Where means end, at 50, an interval ends too, and is held a little more often.
        assert binom.cdf(times, 600, 0.99) < RATE or name == "mean"


def test_intervals_for_two_thirds_of_the_noise_are_seen() -> None:
    """The mutant holds in 81 of 100 runs, 15 standard errors from 95."""
    assert all(binom.cdf(times, 600, 0.95) < RATE for times in held(2 / 3).values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_means_of_rounded_values_hold_in_real_sums() -> None:
    plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-4), values=PAY, tree="paper")
    labels = np.array(["DE", "FR", "FR"])[np.arange(295) % 3]
    numbers = 10 + 40 * (np.arange(295) * 7 % 11) / 10
    truth = numbers[labels == "FR"].mean()
    runs, times = 1500, 0
    for seed in range(runs):
        total = oh.ContinualSum(plan, oh.seeded_random(seed))
        total.update_many((labels, numbers))
        mean = total.estimate.groups()[1].mean
        times += mean is None or mean.low <= truth <= mean.high
    assert binom.cdf(times, runs, 0.95) > RATE


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no groups": (
        lambda: oh.Estimate(9, 1.0, 1.0, values=oh.Bits()).groups(),
        "no groups: a sum of bit has no groups: only sums of Grouped values do",
    ),
    "an unknown kind": (lambda: oh.Estimate(9, 1.0, 1.0).groups(), "an unknown kind has no groups"),
    "a mean": (lambda: summed(TRUTH).mean().groups(), "a mean or a difference has no groups"),
    "confidence": (lambda: summed(TRUTH).groups(math.nan), "confidence=nan must be"),
    "by": (lambda: summed(TRUTH).top(by="median"), "by='median' must be"),  # type: ignore[arg-type]
    "by of no groups": (
        lambda: oh.Estimate(9, np.ones(3), 1.0).top(by="mean"),
        "by='mean': a sum of an unknown kind has no groups",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_groups_is_refused_in_one_line(case: str) -> None:
    ask, message = REFUSED[case]
    with pytest.raises(InvalidValue, match=message):
        ask()


def test_a_table_has_a_line_for_every_group() -> None:
    table = summed(TRUTH, std=2.0).to_frame()
    assert table.index.tolist() == ["DE", "FR", "IT"]
    assert table["mean"].round(6).tolist()[:2] == [20, 45]
    assert math.isnan(table.loc["IT", "mean"])
    assert table.loc["FR", "mean_low"] < 45 < table.loc["FR", "mean_high"]


def test_a_table_has_a_line_for_every_coordinate() -> None:
    votes = oh.Estimate(9, np.array([1.0, 6.0]), 1.0, values=oh.Histogram(["like", "love"]))
    table = votes.to_frame(0.9)
    assert table.index.tolist() == ["like", "love"]
    assert table["value"].tolist() == [1.0, 6.0]
    assert table["low"].tolist() == pytest.approx(votes.interval(0.9)[0])
    one = oh.Estimate(9, 4.0, 1.0, values=oh.Bits()).to_frame()
    assert one["value"].tolist() == [4.0]
    assert summed(TRUTH).mean().to_frame().shape == (6, 3)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OverhandError, match=r"overhand\[frames\]"):
        oh.Estimate(9, 4.0, 1.0).to_frame()
