"""The noise of many runs of a bandit's sums side by side, and the normal stand-in for it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import overhand as oh
from overhand.lab.simulation.counts import CountsRun, CoverNoise
from overhand.noise import Coins
from overhand.planning import TreeKind
from overhand.randomness import HALF
from overhand.values import BITS, Histogram, Reals, RegressionStatistics, Values, Vectors
from support.sampling import SAMPLES, Floats, assert_normal
from support.small_plans import PRIVACY, REGULAR, WIDE, coin_plan

# The noise of many runs, side by side.


def calibrated_plan(values: Values, tree: TreeKind) -> oh.Plan:
    return oh.Plan.best(1003, 3, PRIVACY, values=values, tree=tree, mechanism="shares")


PLANS = {
    "bits, regular": lambda: calibrated_plan(BITS, "regular"),
    "bits, paper": lambda: calibrated_plan(BITS, "paper"),
    "reals, paper": lambda: calibrated_plan(Reals(-2.0, 1.0), "paper"),
    "histogram, regular": lambda: calibrated_plan(Histogram(5), "regular"),
    "vectors, regular": lambda: calibrated_plan(Vectors(3), "regular"),
    "moments, regular": lambda: calibrated_plan(RegressionStatistics(2), "regular"),
    "moments, paper": lambda: calibrated_plan(RegressionStatistics(2), "paper"),
    "coins, plain": lambda: coin_plan(REGULAR),
    "coins, combined": lambda: coin_plan(WIDE, combine=True),
}


def pieces_of(plan: oh.Plan) -> list[tuple[int, int]]:
    """The stream in pieces of different numbers of blocks."""
    lengths = np.random.default_rng(3).choice([1, 2, 3, 7], plan.tree.blocks)
    ends = [int(end) for end in np.cumsum(lengths) if end <= plan.tree.blocks]
    assert len(ends) > 1
    return list(pairwise([0, *ends]))


@pytest.mark.parametrize("gaussian", [False, True], ids=["real", "gaussian"])
@pytest.mark.parametrize("name", PLANS)
def test_one_run_side_by_side_is_a_run_alone(name: str, gaussian: bool) -> None:
    """In the same pieces, as noise is drawn piece by piece; and it is that of the engine."""
    plan = PLANS[name]()
    rows = plan.values.uniform(oh.seeded_random(1), plan.horizon)
    alone = CoverNoise(plan, oh.seeded_random(7), gaussian=gaussian)
    beside = CoverNoise(plan, oh.seeded_random(7), runs=(1,), gaussian=gaussian)
    engine, total = CountsRun(plan, oh.seeded_random(7)), np.zeros(plan.values.shape)
    for first, last in pieces_of(plan):
        piece = rows[first * plan.tree.lowest : last * plan.tree.lowest]
        noise = alone.at(first, last, piece)
        assert beside.at(first, last, piece[:, np.newaxis])[:, 0] == pytest.approx(noise, abs=1e-9)
        total = total + plan.values.running_sums(piece)[-1]
        estimate = engine.estimates(piece)[-1]
        if gaussian:
            assert estimate != pytest.approx(total + noise[-1], abs=1e-8)
        else:
            assert estimate == pytest.approx(total + noise[-1], abs=1e-8)


def rounding_plan(values: Values, *, steps: int = 3) -> oh.Plan:
    """A plan without noise, of which rounding is the only error."""
    mechanisms = tuple(oh.CoinSum(size, Coins(0, HALF), values, steps) for size in REGULAR.sizes)
    return oh.Plan(REGULAR, mechanisms, PRIVACY, REGULAR.levels, combine=False)


@pytest.mark.parametrize(
    "values", [Reals(0.0, 3.0), Vectors(2, 1.5), RegressionStatistics(2)], ids=str
)
def test_every_run_rounds_its_own_values(values: Values) -> None:
    """Sums of rounded values are whole numbers of steps, which sums of other values are not."""
    plan = rounding_plan(values)
    unit, lows = plan.mechanisms[0].quantizer.unit, values.lows.reshape(values.shape)
    rows = np.stack(
        [values.uniform(oh.seeded_random(run), plan.tree.blocks * 3) for run in range(4)], axis=1
    )
    noise, total = CoverNoise(plan, oh.seeded_random(9), runs=(4,)), np.zeros((4, *values.shape))
    for first, last in pieces_of(plan):
        piece = rows[3 * first : 3 * last]
        error = noise.at(first, last, piece)[-1]
        total = total + piece.sum(axis=0)
        steps = (total + error - 3 * last * lows) / unit
        assert steps == pytest.approx(np.round(steps), abs=1e-6)
        assert np.abs(error).max() < 3 * last * unit
        assert np.abs(error).min() > 0
        assert total / unit != pytest.approx(np.round(total / unit), abs=1e-3)


# The normal stand-in.


@cache
def gaussian_errors(tree: oh.RegularTree, combine: bool, noise_bits: int = 4) -> Floats:
    """Of a plan of fair coins, for all numbers of blocks and many runs."""
    plan = coin_plan(tree, noise_bits=noise_bits, combine=combine)
    noise = CoverNoise(plan, oh.seeded_random(11), runs=(SAMPLES,), gaussian=True)
    parts = [np.zeros((1, SAMPLES))]
    for first, last in pairwise([0, 1, 3, 10, tree.blocks]):
        bits = np.zeros(((last - first) * tree.lowest, SAMPLES), np.uint8)
        parts.append(noise.at(first, last, bits)[1:])
    return np.concatenate(parts)


TIMES: dict[oh.RegularTree, tuple[int, ...]] = {
    REGULAR: (3, 4, 6, 21, 24, 30, 53),
    WIDE: (3, 5, 12, 24, 33, 48, 50),
}
KINDS = [(tree, combine) for tree in TIMES for combine in (False, True)]


def variance_by_definition(plan: oh.Plan, t: int) -> float:
    """The sum over the cover, without combination: a user's fair coins have 1/4 each."""
    assert not plan.combine
    return sum(plan.mechanism(node).variance for node in plan.tree.cover(t))


@pytest.mark.parametrize(("tree", "combine"), KINDS, ids=str)
def test_normal_noise_has_the_variance_of_the_plan(tree: oh.RegularTree, combine: bool) -> None:
    plan, errors = coin_plan(tree, combine=combine), gaussian_errors(tree, combine)
    variances = plan.noise_variance(np.array(TIMES[tree]))
    for t, variance in zip(TIMES[tree], variances, strict=True):
        assert_normal(errors[t // tree.lowest], float(variance), tests=len(variances))
        if not combine:
            assert variance == pytest.approx(variance_by_definition(plan, t))


@pytest.mark.parametrize(("tree", "combine"), KINDS, ids=str)
def test_the_variance_test_sees_half_the_noise_and_a_missing_node(
    tree: oh.RegularTree, combine: bool
) -> None:
    """The missing node is that of a block whose sum is not the same without it."""
    plan, lowest = coin_plan(tree, combine=combine), tree.lowest
    times = np.arange(2 * lowest, tree.horizon + 1, lowest)
    ratios = plan.noise_variance(times - lowest) / plan.noise_variance(times)
    t = int(times[np.argmin(ratios)])
    assert ratios.min() < 1 / 1.15
    variance = float(plan.noise_variance(np.array([t]))[0])
    errors, half = (gaussian_errors(tree, combine, bits) for bits in (4, 2))
    assert_normal(errors[t // lowest], variance)
    for mutant in (half[t // lowest], errors[t // lowest - 1]):
        with pytest.raises(AssertionError, match="ratio"):
            assert_normal(mutant, variance)


def test_rounding_is_part_of_the_normal_noise() -> None:
    """All of its variance is there, whatever the values, though nothing is rounded."""
    plan = calibrated_plan(Vectors(3), "regular")
    assert all(m.rounding_variance > 0 for m in plan.mechanisms)
    runs, lowest = 15_000, plan.tree.lowest
    zeros, ends = (
        CoverNoise(plan, oh.seeded_random(6), runs=(runs,), gaussian=True).at(
            0, 1, np.full((lowest, runs, 3), value)
        )[-1]
        for value in (0.0, 0.5)
    )
    assert zeros.tolist() == ends.tolist()
    assert_normal(zeros, plan.mechanisms[0].variance)


def test_runs_side_by_side_are_independent() -> None:
    plan, runs = coin_plan(WIDE, combine=True), 2 * SAMPLES
    noise = CoverNoise(plan, oh.seeded_random(12), runs=(runs,), gaussian=True)
    (at,) = noise.at(0, 11, np.zeros((33, runs), np.uint8))[-1:]
    variance = float(plan.noise_variance(np.array([33]))[0])
    assert_normal(at[: runs // 2] - at[runs // 2 :], 2 * variance, tests=2)
    assert_normal(at[: runs // 2] + at[runs // 2 :], 2 * variance, tests=2)
