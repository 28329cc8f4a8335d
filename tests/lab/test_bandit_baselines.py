"""The sums of a bandit's rivals: a trusted tree and growing batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

import overhand as oh
from overhand.lab.baselines import GaussianTree
from overhand.lab.baselines.trusted import GaussianTreeNoise
from overhand.lab.regret.rivals import GrowingBatches
from overhand.lab.simulation.counts import CoverNoise
from overhand.mechanisms import CoinSum, Mechanism, NoiseChoice, SharesSum
from overhand.noise import Coins
from overhand.randomness import generator_of
from overhand.values import Reals, RegressionStatistics, Values, Vectors
from support.sampling import FALSE_FAIL, SAMPLES, Floats, assert_normal
from support.small_plans import PRIVACY, REGULAR, coin_plan

Interval = tuple[int, int]

SHARES = NoiseChoice(SharesSum)
MOMENTS = RegressionStatistics(3)


# The trusted server's binary tree.


def dyadic(horizon: int) -> list[Interval]:
    """All batches [a 2^l, (a + 1) 2^l) that are shorter than the whole; single users always."""
    whole = 1
    while whole < horizon:
        whole *= 2
    sizes = [2**level for level in range(12) if level == 0 or 2**level < whole]
    return [(start, start + size) for size in sizes for start in range(0, whole, size)]


@cache
def fewest(t: int, horizon: int) -> frozenset[Interval]:
    """The smallest set of these that is a partition of [0, t), found by trying all."""
    if t == 0:
        return frozenset()
    ends = [node for node in dyadic(horizon) if node[1] == t]
    return min((fewest(node[0], horizon) | {node} for node in ends), key=len)


def gaussian_tree(horizon: int, values: Values = MOMENTS) -> GaussianTree:
    return GaussianTree(horizon, PRIVACY, values)


HORIZONS = range(1, 65)


def test_the_brute_force_cover_is_what_it_should_be() -> None:
    assert fewest(7, 8) == {(0, 4), (4, 6), (6, 7)}
    assert fewest(8, 8) == {(0, 4), (4, 8)}
    assert fewest(8, 9) == {(0, 8)}
    assert fewest(1, 1) == {(0, 1)}
    assert fewest(2, 2) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    "values",
    [RegressionStatistics(1), RegressionStatistics(5), Vectors(4), Reals(-3.0, 3.0)],
    ids=str,
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("horizon", [1, 2, 3, 64, 65, 100_000])
def test_noise_of_a_node_is_the_least_for_the_guarantee(
    horizon: int, epsilon: float, values: Values
) -> None:
    tree = GaussianTree(horizon, oh.Privacy(epsilon, 1e-6), values)

    def delta_of(std: float) -> float:
        """From the definition, N(mu, 1) against N(0, 1)."""
        mu = values.sensitivity.norm * math.sqrt(levels) / std
        lower = stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + lower))

    levels = max(1, math.ceil(math.log2(horizon)))
    assert tree.levels == levels
    assert tree.delta_spent == pytest.approx(1e-6, rel=1e-9)
    assert delta_of(tree.step_std) == pytest.approx(1e-6, rel=1e-6)
    assert delta_of(0.999 * tree.step_std) > 1.001e-6
    assert tree.step_std == pytest.approx(
        values.sensitivity.norm * math.sqrt(levels) / oh.accounting.gaussian_mu(tree.privacy)
    )


def test_no_user_is_in_more_nodes_than_are_paid_for() -> None:
    for horizon in HORIZONS:
        used = frozenset().union(*(fewest(t, horizon) for t in range(1, horizon + 1)))
        for user in range(horizon):
            nodes = [node for node in used if node[0] <= user < node[1]]
            assert len(nodes) <= gaussian_tree(horizon).levels


def test_std_is_that_of_the_fewest_nodes() -> None:
    for horizon in HORIZONS:
        tree = gaussian_tree(horizon)
        for t in range(1, horizon + 1):
            expected = tree.step_std * math.sqrt(len(fewest(t, horizon)))
            assert tree.std(t) == pytest.approx(expected), (horizon, t)


class Ledger:
    """Instead of a normal, every draw is a new unit vector: covariances are inner products."""

    def __init__(self) -> None:
        self.draws = 0

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> Floats:
        assert mean == 0
        drawn = np.zeros(shape)
        drawn[self.draws] = std
        self.draws += 1
        return drawn


def exact_noise(tree: GaussianTree, times: Iterable[int]) -> Floats:
    """The noise at these times in terms of the draws, in units of a node's."""
    noise = tree.noise(cast(np.random.Generator, Ledger()), (2 * tree.horizon + 4,))
    return np.stack([noise.at(t) for t in times]) / tree.step_std


def common(horizon: int, times: Iterable[int]) -> Floats:
    """How many nodes the covers at any two of these times have in common."""
    covers = [fewest(t, horizon) for t in times]
    return np.array([[float(len(a & b)) for b in covers] for a in covers])


def some_times(horizon: int) -> list[list[int]]:
    """All times, and some with gaps, up to the horizon."""
    random = np.random.default_rng(horizon)
    gaps = [sorted({*random.integers(1, horizon + 1, k).tolist(), horizon}) for k in (3, 6, 12)]
    return [list(range(1, horizon + 1)), *gaps, list(range(horizon % 3 + 1, horizon + 1, 3))]


def test_covariances_are_those_of_common_nodes() -> None:
    """For all pairs of times, exactly, but for the last of a full tree (see the next test)."""
    for horizon in HORIZONS:
        tree = gaussian_tree(horizon)
        for times in some_times(horizon):
            times = [t for t in times if t < 2**tree.levels]
            if times:
                noise = exact_noise(tree, times)
                assert noise @ noise.T == pytest.approx(common(horizon, times)), (horizon, times)


@pytest.mark.parametrize("horizon", [2, 4, 8, 16, 32, 64])
def test_the_last_sum_of_a_full_tree_is_of_the_same_halves(horizon: int) -> None:
    """The first half has been in every sum since half-time: its noise must not be drawn anew."""
    times = list(range(1, horizon + 1))
    noise = exact_noise(gaussian_tree(horizon), times)
    assert noise @ noise.T == pytest.approx(common(horizon, times))


@pytest.mark.parametrize("horizon", [1, 2, 4, 7, 8, 64])
def test_asking_again_draws_nothing_new(horizon: int) -> None:
    tree = gaussian_tree(horizon)
    noise = tree.noise(np.random.default_rng(2), (4,))
    for t in range(1, horizon + 1):
        assert noise.at(t).tolist() == noise.at(t).tolist(), t


@cache
def sampled_noise(horizon: int, times: tuple[int, ...]) -> Floats:
    """The noise of many coordinates at once."""
    noise = gaussian_tree(horizon).noise(np.random.default_rng(20_183), (SAMPLES,))
    return np.stack([noise.at(t) for t in times])


def assert_of_covers(sampled: Floats, covers: list[frozenset[Interval]], std: float) -> None:
    """Variances at all times, and of differences and sums of all pairs: and so covariances."""
    pairs = [(i, j) for j in range(len(covers)) for i in range(j)]
    tests = 2 * len(pairs) + len(covers)
    for at, cover in zip(sampled, covers, strict=True):
        assert_normal(at, std**2 * len(cover), tests=tests)
    for i, j in pairs:
        apart = std**2 * len(covers[i] ^ covers[j])
        assert_normal(sampled[j] - sampled[i], apart, tests=tests)
        together = apart + 4 * std**2 * len(covers[i] & covers[j])
        assert_normal(sampled[j] + sampled[i], together, factor=1.12, tests=tests)


@pytest.mark.parametrize(
    "times", [(1, 2, 3, 4, 5, 6, 7, 8, 9), (4, 5, 12, 13, 14), (3, 8, 11)], ids=str
)
def test_drawn_noise_has_the_covariances_of_the_covers(times: tuple[int, ...]) -> None:
    covers = [fewest(t, 15) for t in times]
    assert_of_covers(sampled_noise(15, times), covers, gaussian_tree(15).step_std)


class Redrawn(GaussianTreeNoise):
    """A mutant: every sum has fresh noise."""

    def at(self, t: int) -> Floats:
        self._t = 0
        return super().at(t)


class Stale(GaussianTreeNoise):
    """A mutant: only the lowest bit that changed brings new noise."""

    def at(self, t: int) -> Floats:
        kept = self._nodes[1:].copy()
        total = super().at(t)
        if kept[0].any() and self._nodes[1].any():
            total = total - self._nodes[1] + kept[0]
            self._nodes[1] = kept[0]
        return total


@pytest.mark.parametrize("mutant", [Redrawn, Stale])
def test_the_covariance_test_sees(mutant: type[GaussianTreeNoise]) -> None:
    tree = gaussian_tree(15)
    times: tuple[int, ...] = (4, 5, 6, 7, 12, 14)
    covers = [fewest(t, 15) for t in times]
    true, wrong = (
        kind(tree, np.random.default_rng(5), (SAMPLES,)) for kind in (GaussianTreeNoise, mutant)
    )
    assert_of_covers(np.stack([true.at(t) for t in times]), covers, tree.step_std)
    if mutant is Stale:  # its node (4, 6) is taken for (12, 14), too
        wrong.at(6), wrong.at(7)
        times, covers = (7, 14), [fewest(t, 15) for t in (7, 14)]
    with pytest.raises(AssertionError, match="ratio"):
        assert_of_covers(np.stack([wrong.at(t) for t in times]), covers, tree.step_std)


def all_noise(tree: GaussianTree, runs: int, *, scale: float = 1.0) -> Floats:
    """The largest error of each run, over all times and coordinates."""
    noise = tree.noise(np.random.default_rng(3), (runs, tree.values.dimension))
    largest = np.zeros(runs)
    for t in range(1, tree.horizon + 1):
        np.maximum(largest, np.abs(scale * noise.at(t)).max(axis=1), out=largest)
    return largest


@pytest.mark.parametrize("horizon", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("failure", [0.05, 1e-3])
def test_all_errors_of_the_trusted_tree_are_within_the_bound(horizon: int, failure: float) -> None:
    """Otherwise more than `failure` of the runs exceed it: seen at a rate of 1e-9."""
    runs, tree = 20_000, gaussian_tree(horizon, Vectors(2))
    exceeded = int((all_noise(tree, runs) > tree.error_bound(failure)).sum())
    assert exceeded <= stats.binom.isf(FALSE_FAIL, runs, failure)
    twice = int((all_noise(tree, runs, scale=3.0) > tree.error_bound(failure)).sum())
    assert twice > stats.binom.isf(FALSE_FAIL, runs, failure)


@pytest.mark.parametrize("horizon", [0, -1, 2.0, True])
def test_a_trusted_tree_needs_users(horizon: Any) -> None:
    with pytest.raises(oh.InvalidValue, match="horizon"):
        gaussian_tree(horizon)


# Growing batches.


@cache
def growing(
    horizon: int = 2000,
    *,
    first: int = 100,
    ratio: float = 1.5,
    epsilon: float = 1.0,
    kind: type[Mechanism] = SharesSum,
) -> GrowingBatches:
    return GrowingBatches.best(
        horizon,
        oh.Privacy(epsilon, 1e-6),
        RegressionStatistics(1),
        first=first,
        ratio=ratio,
        noise_choice=NoiseChoice(kind),
    )


@pytest.mark.parametrize(
    ("horizon", "first", "ratio"),
    [(2000, 100, 1.5), (1000, 10, 2.0), (500, 3, 1.2), (100, 100, 1.5), (249, 100, 1.5),
     (250, 100, 1.5), (77, 2, 7.5)],
)  # fmt: skip
def test_batches_grow_by_the_ratio_and_fit_the_horizon(
    horizon: int, first: int, ratio: float
) -> None:
    batches = growing(horizon, first=first, ratio=ratio)
    assert batches.sizes == tuple(m.size for m in batches.mechanisms)
    for index, size in enumerate(batches.sizes):
        assert abs(size - first * ratio**index) <= 0.5 + 1e-9
    following = round(first * ratio ** len(batches.sizes))
    assert sum(batches.sizes) <= horizon < sum(batches.sizes) + following


def test_every_user_is_in_one_batch_at_most_and_only_the_last_in_none() -> None:
    batches = growing(500, first=3, ratio=1.2)
    ends = [0, *accumulate(batches.sizes)]
    users = [user for start, stop in pairwise(ends) for user in range(start, stop)]
    assert len(users) == len(set(users))
    assert users == list(range(sum(batches.sizes)))
    assert batches.next_release(0) == batches.sizes[0]


def with_noise(batches: GrowingBatches, share: float) -> GrowingBatches:
    """The same batches with this share of the standard deviation."""
    mechanisms = []
    for mechanism in batches.mechanisms:
        variance = mechanism.noise().variance * share**2
        assert isinstance(mechanism, CoinSum | SharesSum)
        coins = Coins.with_variance(mechanism.size, variance)
        changed = replace(mechanism, noise_share=coins)
        assert changed.noise().variance == pytest.approx(variance, rel=0.01)
        mechanisms.append(changed)
    return replace(batches, mechanisms=tuple(mechanisms))


@pytest.mark.parametrize("kind", [SharesSum, CoinSum], ids=["shares", "coins"])
@pytest.mark.parametrize("epsilon", [pytest.param(0.1, marks=pytest.mark.slow), 1.0, 5.0])
def test_growing_batches_spend_the_guarantee_and_hardly_less(
    epsilon: float, kind: type[Mechanism]
) -> None:
    batches = growing(epsilon=epsilon, kind=kind)
    assert {type(mechanism) for mechanism in batches.mechanisms} == {kind}
    assert 0.9e-6 < batches.delta_spent <= 1e-6
    assert with_noise(batches, 0.9).delta_spent > 1e-6
    assert with_noise(batches, 1.1).delta_spent < batches.delta_spent


def test_a_user_pays_for_its_own_batch_only() -> None:
    """However many batches there are, each needs what the first would need if it were alone."""
    many, one = growing(), growing(100)
    assert len(many.sizes) == 5
    assert len(one.sizes) == 1
    assert many.mechanisms[0].noise_variance == pytest.approx(
        one.mechanisms[0].noise_variance, rel=0.03
    )
    for mechanism in many.mechanisms:
        assert mechanism.noise_variance == pytest.approx(
            many.mechanisms[0].noise_variance, rel=0.03
        )


def growing_errors(batches: GrowingBatches, runs: int, *, seed: int = 8) -> Floats:
    """The largest error of each run: users are all at a value that rounding leaves alone."""
    randoms = [oh.seeded_random(seed * 10_000 + run) for run in range(runs)]
    releases = batches.start(randoms)
    largest, t = np.zeros(runs), 0
    for size in batches.sizes:
        t += size
        sums, _ = releases.after(np.ones((runs, size, 2)))
        np.maximum(largest, np.abs(sums - t).max(axis=1), out=largest)
    return largest


@pytest.mark.slow
def test_all_errors_of_growing_batches_are_within_the_bound() -> None:
    """At an epsilon at which noise is more than the users of a batch: the bound is about noise."""
    runs, batches = 1000, growing(300, first=20, epsilon=0.02)
    bound = batches.error_bound(0.05)
    deviation = math.sqrt(sum(m.variance for m in batches.mechanisms))
    assert 2 * deviation < bound < 6 * deviation
    most = stats.binom.isf(FALSE_FAIL, runs, 0.05)
    assert int((growing_errors(batches, runs) > bound).sum()) <= most
    mutant = with_noise(batches, 3.0)
    assert int((growing_errors(mutant, runs) > bound).sum()) > most


def test_bounds_grow_as_less_may_fail() -> None:
    for counter in (growing(), gaussian_tree(100)):
        bounds = [counter.error_bound(failure) for failure in (0.5, 0.05, 1e-6)]
        assert bounds == sorted(set(bounds))


@pytest.mark.parametrize("failure", [0.0, -1.0, 1.0, 2.0, math.nan])
@pytest.mark.parametrize("counter", [growing(), gaussian_tree(100)], ids=["growing", "tree"])
def test_a_failure_probability_is_a_probability(
    counter: GrowingBatches | GaussianTree, failure: float
) -> None:
    with pytest.raises(oh.InvalidValue, match="failure_probability"):
        counter.error_bound(failure)


@pytest.mark.parametrize(
    "change",
    [{"first": 1}, {"first": 2.5}, {"ratio": 1.0}, {"ratio": 0.5}, {"ratio": math.nan},
     {"ratio": math.inf}, {"horizon": 1}, {"horizon": 99.5}],
    ids=str,
)  # fmt: skip
def test_bad_batches_are_refused(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"horizon": 200, "noise_choice": SHARES, **change}
    with pytest.raises(oh.InvalidValue, match=next(iter(change))):
        GrowingBatches.best(privacy=PRIVACY, values=MOMENTS, **arguments)


# The normal stand-in.


def test_normal_noise_is_never_deployed() -> None:
    plan = coin_plan(REGULAR)
    bits = np.zeros((6, 1), np.uint8)
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        CoverNoise(plan, oh.secure_random(), runs=(1,), gaussian=True).at(0, 2, bits)
    assert CoverNoise(plan, oh.secure_random(), runs=(1,)).at(0, 2, bits).shape == (3, 1)
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        gaussian_tree(9).noise(generator_of(oh.secure_random()), (1,))
