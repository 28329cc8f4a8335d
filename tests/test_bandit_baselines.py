"""The sums of a bandit's rivals: a trusted tree, growing batches, and the normal stand-in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import overhand as oh
from overhand.baselines import GaussianTree, GrowingBatches
from overhand.baselines.gaussian_tree import GaussianTreeNoise
from overhand.mechanisms import Coins
from overhand.plan import TreeKind
from overhand.plan.recipe import Recipe
from overhand.randomness import HALF, generator_of
from overhand.simulation.counts import CountsRun, CoverNoise
from overhand.simulation.regret.sums import GrowingSums
from overhand.trees import Tree
from overhand.values import BITS, Histogram, Moments, Reals, Values, Vectors
from plans import PATH, PRIVACY, REGULAR, coin_plan
from sampled import FALSE_FAIL, FALSE_PASS, TooFewSamples

Floats = NDArray[np.float64]
Interval = tuple[int, int]

SHARES = Recipe(shares=True)
MOMENTS = Moments(3)
SAMPLES = 40_000


def assert_normal(
    samples: Floats, variance: float, *, factor: float = 1.15, offset: float = 0.1, tests: int = 1
) -> None:
    """Independent normal samples have mean 0 and this variance: exact normal and chi-square tails.

    Other normal laws, of a variance `factor` times more or less, or with a mean that is `offset`
    standard deviations off, are told from it, or the sample is refused. So many `tests` share the
    rate at which the truth fails.
    """
    number, rate = samples.size, FALSE_FAIL / (4 * tests)
    squares, standard = stats.chi2(number), stats.norm()
    low, high = squares.ppf(rate), squares.isf(rate)
    radius = standard.isf(rate) / math.sqrt(number)
    unseen = max(squares.cdf(high / factor), squares.sf(low * factor))
    if unseen > FALSE_PASS or radius + standard.isf(FALSE_PASS) / math.sqrt(number) > offset:
        raise TooFewSamples(f"{number} samples")
    mean = float(samples.mean()) / math.sqrt(variance)
    assert abs(mean) <= radius, f"mean {mean:.4f} standard deviations > {radius:.4f}"
    ratio, (least, most) = (
        float(np.square(samples).mean()) / variance,
        (low / number, high / number),
    )
    assert least <= ratio <= most, f"variance ratio {ratio:.4f} outside [{least:.4f}, {most:.4f}]"


@pytest.mark.parametrize(
    ("scale", "mean", "words"),
    [(1.0, 0.0, None), (1.08, 0.0, "ratio"), (0.92, 0.0, "ratio"), (1.0, 0.1, "mean")],
)
def test_the_assertion_on_normal_samples_sees(scale: float, mean: float, words: str | None) -> None:
    samples = np.random.default_rng(1).normal(mean, scale, SAMPLES)
    if words is None:
        assert_normal(samples, 1.0)
    else:
        with pytest.raises(AssertionError, match=words):
            assert_normal(samples, 1.0)
    with pytest.raises(TooFewSamples):
        assert_normal(samples[:1000], 1.0)


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


@pytest.mark.parametrize("values", [Moments(1), Moments(5), Vectors(4), Reals(-3.0, 3.0)], ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("horizon", [1, 2, 3, 64, 65, 100_000])
def test_noise_of_a_node_is_the_least_for_the_guarantee(
    horizon: int, epsilon: float, values: Values
) -> None:
    tree = GaussianTree(horizon, oh.Privacy(epsilon, 1e-6), values)

    def delta_of(std: float) -> float:
        """From the definition, N(mu, 1) against N(0, 1)."""
        mu = values.sensitivity * math.sqrt(levels) / std
        lower = stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + lower))

    levels = max(1, math.ceil(math.log2(horizon)))
    assert tree.levels == levels
    assert tree.delta_spent == pytest.approx(1e-6, rel=1e-9)
    assert delta_of(tree.node_std) == pytest.approx(1e-6, rel=1e-6)
    assert delta_of(0.999 * tree.node_std) > 1.001e-6
    assert tree.node_std == pytest.approx(
        values.sensitivity * math.sqrt(levels) / oh.accounting.gaussian_mu(tree.privacy)
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
            expected = tree.node_std * math.sqrt(len(fewest(t, horizon)))
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
    return np.stack([noise.at(t) for t in times]) / tree.node_std


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
    assert_of_covers(sampled_noise(15, times), covers, gaussian_tree(15).node_std)


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
    assert_of_covers(np.stack([true.at(t) for t in times]), covers, tree.node_std)
    if mutant is Stale:  # its node (4, 6) is taken for (12, 14), too
        wrong.at(6), wrong.at(7)
        times, covers = (7, 14), [fewest(t, 15) for t in (7, 14)]
    with pytest.raises(AssertionError, match="ratio"):
        assert_of_covers(np.stack([wrong.at(t) for t in times]), covers, tree.node_std)


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
    shares: bool = True,
) -> GrowingBatches:
    return GrowingBatches.best(
        horizon,
        oh.Privacy(epsilon, 1e-6),
        Moments(1),
        first=first,
        ratio=ratio,
        recipe=Recipe(shares=shares),
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
    assert GrowingSums(batches).next_release(0) == batches.sizes[0]


def with_noise(batches: GrowingBatches, share: float) -> GrowingBatches:
    """The same batches with this share of the standard deviation."""
    mechanisms = []
    for mechanism in batches.mechanisms:
        variance = mechanism.noise().variance * share**2
        coins = Coins.with_variance(mechanism.size, variance)
        if isinstance(mechanism, oh.CoinSum):
            mechanism = oh.CoinSum.of(mechanism.size, coins, mechanism.values, mechanism.steps)
        else:
            mechanism = replace(mechanism, user_noise=coins)
        assert mechanism.noise().variance == pytest.approx(variance, rel=0.01)
        mechanisms.append(mechanism)
    return replace(batches, mechanisms=tuple(mechanisms))


@pytest.mark.parametrize("shares", [True, False], ids=["shares", "coins"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_growing_batches_spend_the_guarantee_and_hardly_less(epsilon: float, shares: bool) -> None:
    batches = growing(epsilon=epsilon, shares=shares)
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
    releases = GrowingSums(batches).start(randoms)
    largest, t = np.zeros(runs), 0
    for size in batches.sizes:
        t += size
        sums = releases.after(np.ones((runs, size, 2)))
        np.maximum(largest, np.abs(sums - t).max(axis=1), out=largest)
    return largest


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
    arguments: dict[str, Any] = {"horizon": 200, "recipe": SHARES, **change}
    with pytest.raises(oh.InvalidValue, match=next(iter(change))):
        GrowingBatches.best(privacy=PRIVACY, values=MOMENTS, **arguments)


# The noise of many runs, side by side.


def calibrated_plan(values: Values, tree: TreeKind) -> oh.Plan:
    return oh.Plan.best(1003, 3, PRIVACY, values=values, tree=tree, mechanism="shares")


PLANS = {
    "bits, regular": lambda: calibrated_plan(BITS, "regular"),
    "bits, path": lambda: calibrated_plan(BITS, "path"),
    "reals, path": lambda: calibrated_plan(Reals(-2.0, 1.0), "path"),
    "histogram, regular": lambda: calibrated_plan(Histogram(5), "regular"),
    "vectors, regular": lambda: calibrated_plan(Vectors(3), "regular"),
    "moments, regular": lambda: calibrated_plan(Moments(2), "regular"),
    "moments, path": lambda: calibrated_plan(Moments(2), "path"),
    "coins, plain": lambda: coin_plan(REGULAR),
    "coins, combined": lambda: coin_plan(PATH, combine=True),
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
    mechanisms = tuple(
        tuple(
            oh.CoinSum(size, 0, HALF, opposed=True, values=values, steps=steps)
            for size in REGULAR.sizes(level)
        )
        for level in range(1, REGULAR.levels + 1)
    )
    return oh.Plan(REGULAR, mechanisms, PRIVACY, REGULAR.levels, combine=False)


@pytest.mark.parametrize("values", [Reals(0.0, 3.0), Vectors(2, 1.5), Moments(2)], ids=str)
def test_every_run_rounds_its_own_values(values: Values) -> None:
    """Sums of rounded values are whole numbers of steps, which sums of other values are not."""
    plan = rounding_plan(values)
    unit, lows = plan.mechanisms[0][0].unit, values.lows.reshape(values.shape)
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
def gaussian_errors(tree: Tree, combine: bool, noise_bits: int = 4) -> Floats:
    """Of a plan of fair coins, for all numbers of blocks and many runs."""
    plan = coin_plan(tree, noise_bits=noise_bits, combine=combine)
    noise = CoverNoise(plan, oh.seeded_random(11), runs=(SAMPLES,), gaussian=True)
    parts = [np.zeros((1, SAMPLES))]
    for first, last in pairwise([0, 1, 3, 10, tree.blocks]):
        bits = np.zeros(((last - first) * tree.lowest, SAMPLES), np.uint8)
        parts.append(noise.at(first, last, bits)[1:])
    return np.concatenate(parts)


TIMES: dict[Tree, tuple[int, ...]] = {
    REGULAR: (3, 4, 6, 21, 24, 30, 53),
    PATH: (3, 5, 12, 24, 33, 48, 50),
}
KINDS = [(tree, combine) for tree in TIMES for combine in (False, True)]


def variance_by_definition(plan: oh.Plan, t: int) -> float:
    """The sum over the cover, without combination: a user's fair coins have 1/4 each."""
    assert not plan.combine
    return sum(plan.mechanism(node).variance for node in plan.tree.cover(t))


@pytest.mark.parametrize(("tree", "combine"), KINDS, ids=str)
def test_normal_noise_has_the_variance_of_the_plan(tree: Tree, combine: bool) -> None:
    plan, errors = coin_plan(tree, combine=combine), gaussian_errors(tree, combine)
    variances = plan.noise_variance(np.array(TIMES[tree]))
    for t, variance in zip(TIMES[tree], variances, strict=True):
        assert_normal(errors[t // tree.lowest], float(variance), tests=len(variances))
        if not combine:
            assert variance == pytest.approx(variance_by_definition(plan, t))


@pytest.mark.parametrize(("tree", "combine"), KINDS, ids=str)
def test_the_variance_test_sees_half_the_noise_and_a_missing_node(
    tree: Tree, combine: bool
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
    assert all(m.rounding_variance > 0 for of_level in plan.mechanisms for m in of_level)
    runs, lowest = 15_000, plan.tree.lowest
    zeros, ends = (
        CoverNoise(plan, oh.seeded_random(6), runs=(runs,), gaussian=True).at(
            0, 1, np.full((lowest, runs, 3), value)
        )[-1]
        for value in (0.0, 0.5)
    )
    assert zeros.tolist() == ends.tolist()
    assert_normal(zeros, plan.mechanisms[0][0].variance)


def test_runs_side_by_side_are_independent() -> None:
    plan, runs = coin_plan(PATH, combine=True), 2 * SAMPLES
    noise = CoverNoise(plan, oh.seeded_random(12), runs=(runs,), gaussian=True)
    (at,) = noise.at(0, 11, np.zeros((33, runs), np.uint8))[-1:]
    variance = float(plan.noise_variance(np.array([33]))[0])
    assert_normal(at[: runs // 2] - at[runs // 2 :], 2 * variance, tests=2)
    assert_normal(at[: runs // 2] + at[runs // 2 :], 2 * variance, tests=2)


def test_normal_noise_is_never_deployed() -> None:
    plan = coin_plan(REGULAR)
    bits = np.zeros((6, 1), np.uint8)
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        CoverNoise(plan, oh.secure_random(), runs=(1,), gaussian=True).at(0, 2, bits)
    assert CoverNoise(plan, oh.secure_random(), runs=(1,)).at(0, 2, bits).shape == (3, 1)
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        gaussian_tree(9).noise(generator_of(oh.secure_random()), (1,))
