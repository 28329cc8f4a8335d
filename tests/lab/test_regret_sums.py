"""What learners in a race are told of those who came: when it is released, and its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.baselines import GaussianResponse, GaussianTree, local_counter
from overhand.lab.baselines.local import LocalSum
from overhand.lab.regret.rivals import (
    RIVALS,
    ExactSums,
    Field,
    GrowingBatches,
    LocalSums,
    PlanSums,
    Sums,
    TrustedSums,
)
from overhand.lab.simulation.counts import CountsRun
from overhand.mechanisms import NoiseChoice, SharesSum
from overhand.model import Floats
from overhand.randomness import Random
from overhand.values import RegressionStatistics
from support.sampling import (
    FALSE_FAIL,
    Outcomes,
    assert_follows,
    assert_normal,
    kolmogorov,
    samples_for,
)
from support.small_plans import PRIVACY
from support.small_races import PLANNED, ROOT, SMALL, assert_regret, release_times, small

SHARES = NoiseChoice(SharesSum)


@pytest.mark.parametrize("name", RIVALS)
def test_releases_come_one_after_the_other_after_whole_batches(name: str) -> None:
    sums = small(name).sums
    times = release_times(sums, 2000)
    assert times == sorted(set(times))
    if not isinstance(sums, GrowingBatches):
        assert all(t % sums.lowest == 0 for t in times)
        gaps = np.diff([0, *times])
        assert gaps.max() < 64 + sums.lowest
        if sums.lowest > 64:
            assert set(gaps) == {sums.lowest}


@pytest.mark.parametrize("horizon", [2000, 100_000])
def test_sums_of_every_user_are_asked_for_ever_less_often(horizon: int) -> None:
    gaps = np.diff([0, *release_times(ExactSums(), horizon)])
    assert np.all(np.diff(gaps) >= 0)
    assert gaps.max() <= 64
    assert gaps[0] < gaps[-1] or horizon == 2000


def test_growing_sums_are_released_when_a_batch_is_full() -> None:
    sums = small("one-shuffler-growing").sums
    assert isinstance(sums, GrowingBatches)
    ends = list(accumulate(sums.sizes))
    assert release_times(sums, 2000) == [*ends, 2001]
    for t in range(2001):
        assert sums.next_release(t) == min([end for end in ends if end > t], default=2001)
        variances = [m.variance for m, end in zip(sums.mechanisms, ends, strict=True) if end <= t]
        assert sums.std(t) == pytest.approx(math.sqrt(sum(variances)))


def test_the_noise_of_two_services_is_that_of_their_plan_up_to_the_horizon() -> None:
    sums = small("services").sums
    assert isinstance(sums, PlanSums)
    times = [time for time in release_times(sums, 2000) if time <= 2000]
    told = [sums.std(time) ** 2 for time in times]
    assert told == pytest.approx(sums.source.noise_variance(np.array(times)))
    assert told == sorted(told)


@pytest.mark.parametrize("name", [name for name in PLANNED if name != "services"])
def test_noise_of_a_planned_sum_is_that_of_its_cover(name: str) -> None:
    sums = small(name).sums
    assert isinstance(sums, PlanSums)
    plan = sums.source
    for t in [time for time in release_times(sums, 2000) if time <= 2000]:
        nodes = plan.tree.cover(t)
        variance = sum(plan.combination.variances[node.level - 1] for node in nodes)
        assert sums.std(t) == pytest.approx(math.sqrt(variance))
        assert sums.std(t) > 0


def test_exact_sums_are_exact() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 50, 20))
    releases = ExactSums().start([oh.seeded_random(run) for run in range(3)])
    assert ExactSums().std(7) == 0
    for start, stop in ((0, 1), (1, 9), (9, 50)):
        expected = rows[:, :stop].sum(axis=1)
        released, std = releases.after(rows[:, start:stop])
        assert released == pytest.approx(expected, abs=1e-12)
        assert std == 0


def errors_at(sums: Sums, times: Sequence[int], runs: int, dimension: int, seed: int = 3) -> Floats:
    """Errors of the release at the last of these times, one before at each of the others.

    All users have x = 1 in one feature and y = 1: steps that rounding leaves alone.
    """
    randoms: list[Random] = [oh.seeded_random(seed * 100_000 + run) for run in range(runs)]
    releases = sums.start(randoms)
    values = RegressionStatistics(dimension)
    row = values.rows([[1.0, *[0.0] * (dimension - 1), 1.0]])[0]
    released = np.zeros(0)
    for start, stop in zip([0, *times[:-1]], times, strict=True):
        released, std = releases.after(np.broadcast_to(row, (runs, stop - start, len(row))))
        assert std == sums.std(stop)
    return np.asarray(released - times[-1] * row)


def trusted_sums() -> TrustedSums:
    return TrustedSums(GaussianTree(100, PRIVACY, RegressionStatistics(5)))


def gaussian_plan_sums() -> PlanSums:
    return PlanSums(replace_field(100).plan((5, 4)), gaussian=True)


def services_sums(*blocks: int) -> tuple[PlanSums, tuple[int, ...]]:
    """In steps so fine that their noise, which is correlated, is as good as normal."""
    sums = small("services").sums
    assert isinstance(sums, PlanSums)
    return sums, tuple(block * sums.lowest for block in blocks)


def replace_field(horizon: int, dimension: int = 5) -> Field:
    return replace(SMALL, horizon=horizon, dimension=dimension)


NORMAL: dict[str, tuple[Sums, tuple[int, ...]]] = {
    "trusted": (trusted_sums(), (4, 13, 14)),
    "local": (LocalSums(GaussianResponse(100, RegressionStatistics(5), PRIVACY)), (1, 4, 10)),
    "stand-in, one level": (gaussian_plan_sums(), (10,)),
    "stand-in, two levels": (gaussian_plan_sums(), (5, 15, 35)),
    "services": services_sums(1, 2, 5),
}


@pytest.mark.parametrize("name", NORMAL)
def test_releases_with_normal_noise_have_mean_0_and_the_stated_variance(name: str) -> None:
    """For runs and coordinates, which are independent; and no other std is taken for it."""
    sums, times = NORMAL[name]
    errors = errors_at(sums, times, 2000, 5)
    assert errors.shape == (2000, 20)
    assert_normal(errors, sums.std(times[-1]) ** 2)
    for scale in (0.9, 1.1):
        with pytest.raises(AssertionError, match="ratio"):
            assert_normal(scale * errors, sums.std(times[-1]) ** 2)
    # Runs are not copies of each other.
    assert_normal((errors[:1000] - errors[1000:]) * ROOT, sums.std(times[-1]) ** 2)


def lattice_law(laws: Sequence[Any]) -> Outcomes:
    """The law of the sum of centred noises, in steps."""
    law, mean = np.ones(1), 0.0
    for noise in laws:
        law = np.convolve(law, noise.pmf.probabilities)
        mean += noise.mean - noise.pmf.first
    return Outcomes(-round(mean), law)


def lattice_cases() -> dict[str, tuple[Sums, tuple[int, ...], list[Any]]]:
    batches = GrowingBatches.best(
        500, PRIVACY, RegressionStatistics(1), first=20, ratio=2.0, noise_choice=SHARES
    )  # 20, 40, 80, 160
    plan = replace_field(100, 1).plan((5, 4))
    single = replace_field(100, 1).plan((7,))
    return {
        "growing": (batches, (20, 60, 140), list(batches.mechanisms[:3])),
        "two levels": (PlanSums(plan), (10,), [plan.mechanisms[0]] * 2),
        "one level": (PlanSums(single), (7, 21), [single.mechanisms[0]] * 3),
    }


LATTICE = lattice_cases()


@pytest.mark.parametrize("name", LATTICE)
def test_releases_of_shufflers_have_the_law_of_their_batches(name: str) -> None:
    """So mean 0, and the stated variance but for what rounding could have added; no batch less."""
    sums, times, mechanisms = LATTICE[name]
    law = lattice_law([m.noise() for m in mechanisms])
    # The first coordinate is x y, at the end of its range.
    steps = errors_at(sums, times, samples_for(0.08), 1)[:, 0] / mechanisms[0].quantizer.unit
    assert steps == pytest.approx(np.round(steps), abs=1e-5)
    samples = np.round(steps).astype(np.int64)
    assert_follows(samples, law, discrepancy=0.08)
    fewer = lattice_law([m.noise() for m in mechanisms[:1]])
    assert kolmogorov(law, fewer, range(-9000, 9000)) > 0.08
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, fewer, discrepancy=0.08)
    points = law.first + np.arange(len(law.probabilities))
    assert float(points @ law.probabilities) == pytest.approx(0, abs=1e-3)
    variance = float(points**2 @ law.probabilities) * mechanisms[0].quantizer.unit ** 2
    assert variance <= sums.std(times[-1]) ** 2 <= 1.02 * variance


def test_a_planned_sum_is_that_of_the_counts_engine() -> None:
    plan = replace_field(300).plan((5, 4, 3))
    rows = plan.values.uniform(oh.seeded_random(1), 300)
    releases = PlanSums(plan).start([oh.seeded_random(7)])
    counts = CountsRun(plan, oh.seeded_random(7))
    for start, stop in ((0, 5), (5, 20), (20, 135), (135, 300)):
        expected = counts.estimates(rows[start:stop])[-1]
        (released,), _ = releases.after(rows[np.newaxis, start:stop])
        assert released == pytest.approx(expected, abs=1e-8)


def test_the_stand_in_is_never_deployed() -> None:
    releases = gaussian_plan_sums().start([oh.secure_random()])
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        releases.after(np.zeros((1, 5, 20)))


def test_the_best_local_sum_has_the_stated_variance() -> None:
    """The mean over coordinates of squared errors is bounded: Hoeffding."""
    counter = local_counter(100, PRIVACY, RegressionStatistics(5))
    assert isinstance(counter, LocalSum)
    sums, runs, times = LocalSums(counter), 20_000, (1, 3)
    errors = errors_at(sums, times, runs, 5)
    squares, expected = (errors**2).mean(axis=1), sums.std(3) ** 2
    most = (3 * counter.reach) ** 2 / errors.shape[1]
    assert_regret(squares, expected, most, discrepancy=0.25 * expected)
    with pytest.raises(AssertionError, match="off by"):
        assert_regret(0.75 * squares, expected, most, discrepancy=0.25 * expected)
    reach = 3 * counter.reach
    radius = 2 * reach * math.sqrt(math.log(2 * 20 / FALSE_FAIL) / (2 * runs))
    assert np.abs(errors.mean(axis=0)).max() < radius < 0.2 * reach
