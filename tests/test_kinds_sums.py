"""Running sums of every kind of value, from exact twins: sums by the book, and their laws."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import overhand as oh
from overhand.mechanisms import CoinSum, Mechanism
from overhand.model import Shuffled
from overhand.randomness import HALF, SeededRandom
from overhand.shufflers import ConcurrentShufflers
from overhand.summation import SumServer, TreeServer
from overhand.summation.steps import Rounding
from overhand.trees import Tree
from overhand.values import BITS, Histogram, Moments, Reals, SymmetricMatrices, Values, Vectors
from plans import PATH, PRIVACY, REGULAR, pending
from sampled import Outcomes, assert_follows, samples_for

Floats = NDArray[np.float64]
SIDE = math.sqrt(0.5)

# Every kind, and what a user may hold such that all coordinates are whole numbers of half widths.
WHOLE: list[tuple[Values, list[Any]]] = [
    (BITS, [0, 1]),
    (Reals(-2.0, 5.0), [-2.0, 1.5, 5.0]),
    (Vectors(2), [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]),
    (
        SymmetricMatrices(2),
        [np.diag([1.0, 0.0]), np.diag([0.0, -1.0]), [[0.0, SIDE], [SIDE, 0.0]]],
    ),
    (Moments(1), [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),
    (Histogram(4), [0, 1, 2, 3]),
]
KINDS = [pytest.param(values, choices, id=values.spec) for values, choices in WHOLE]
ROUNDED = [pytest.param(v, choices, id=v.spec) for v, choices in WHOLE if not v.is_whole]
TREES = [pytest.param(REGULAR, id="regular"), pytest.param(PATH, id="path")]


def kind_plan(
    tree: Tree,
    values: Values,
    *,
    noise_bits: int = 2,
    steps: int | tuple[int, ...] = 2,
    combine: bool = False,
    hold: bool = False,
) -> oh.Plan:
    """A plan of fair coins for any kind of value, with so many steps at all levels or at each."""
    by_level = steps if isinstance(steps, tuple) else (steps,) * tree.levels
    mechanisms = tuple(
        tuple(
            oh.CoinSum(
                size,
                noise_bits,
                HALF,
                opposed=noise_bits % 2 == 0,
                values=values,
                steps=1 if values.is_whole else by_level[level - 1],
            )
            for size in tree.sizes(level)
        )
        for level in range(1, tree.levels + 1)
    )
    return oh.Plan(tree, mechanisms, PRIVACY, tree.levels, combine=combine, hold=hold)


def chosen(choices: list[Any], users: int, seed: int = 1) -> list[Any]:
    return [choices[i] for i in np.random.default_rng(seed).integers(0, len(choices), users)]


def shrunk(values: Values, choices: list[Any], users: int, seed: int = 1) -> list[Any]:
    """Values between the steps, if there is a between."""
    raw = chosen(choices, users, seed)
    if values.is_whole:
        return raw
    factors = np.random.default_rng(seed + 1).uniform(0, 1, users).tolist()
    return [np.multiply(value, factor) for value, factor in zip(raw, factors, strict=True)]


def points(values: Values, raw: list[Any]) -> Floats:
    """One user a row, one coordinate a column, for numbers too."""
    rows = values.coordinates(values.rows(raw))
    return rows.reshape(len(raw), values.dimension).astype(np.float64)


def as_sum(values: Values, coordinates: Floats) -> Any:
    """A number, or an array."""
    return float(coordinates[0]) if values.is_scalar else coordinates


def fed(plan: oh.Plan, raw: list[Any], seed: int = 1) -> oh.ContinualSum:
    total = oh.ContinualSum(plan, oh.seeded_random(seed))
    total.update_many(raw)
    return total


def expected_sum(plan: oh.Plan, raw: list[Any], start: int, stop: int) -> tuple[Any, int]:
    """Without noise: the sum of the users in full batches, and how many others there are."""
    nodes = list(plan.tree.cover(start, stop))
    inside = points(plan.values, raw)[nodes[0].start : nodes[-1].stop] if nodes else np.zeros(0)
    rest = stop - start - sum(node.size for node in nodes)
    total = inside.reshape(-1, plan.values.dimension).sum(axis=0)
    return as_sum(plan.values, total) + plan.imputed * rest, rest


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("hold", [True, False])
def test_without_noise_estimates_are_the_sums_of_full_blocks(
    values: Values, choices: list[Any], tree: Tree, hold: bool
) -> None:
    plan = kind_plan(tree, values, noise_bits=0, hold=hold)
    raw = chosen(choices, tree.horizon)
    truth = np.cumsum(points(values, raw), axis=0)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    for t, value in enumerate(raw, start=1):
        total.update(value)
        expected, rest = expected_sum(plan, raw, 0, t)
        estimate = total.estimate
        assert np.shape(estimate.value) == values.shape
        assert estimate.value == pytest.approx(expected)
        assert estimate.std == pytest.approx(math.sqrt(plan.noise_variance(np.array([t]))[0]))
        assert estimate.slack == pytest.approx(plan.pending_slack * rest)
        assert rest == pending(plan, t)
        assert (np.abs(estimate.value - truth[t - 1]) <= np.add(estimate.slack, 1e-9)).all()


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("hold", [True, False])
def test_pending_users_at_an_end_use_up_the_slack(
    values: Values, choices: list[Any], hold: bool
) -> None:
    """Nobody is in a full block yet, so the error is that of the pending users alone."""
    plan = kind_plan(oh.RegularTree(20, (7,)), values, hold=hold)
    missed = np.zeros(values.dimension)
    for value in choices:
        estimate = fed(plan, [value] * 6).estimate
        error = np.abs(estimate.value - 6 * points(values, [value])[0])
        assert estimate.std == 0.0
        assert (error <= np.add(estimate.slack, 1e-9)).all()
        missed = np.maximum(missed, error)
    assert np.atleast_1d(estimate.slack) == pytest.approx(missed)
    assert estimate.slack == pytest.approx(6 * plan.pending_slack)


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 50)), seed=st.integers(0, 1000), combine=st.booleans())
def test_any_interleaving_gives_the_same_estimates(
    values: Values, choices: list[Any], tree: Tree, cuts: list[int], seed: int, combine: bool
) -> None:
    plan = kind_plan(tree, values, steps=(3, 4, 5), combine=combine)
    raw = shrunk(values, choices, tree.horizon, seed)
    slow, expected = oh.ContinualSum(plan, oh.seeded_random(seed)), []
    for value in raw:
        slow.update(value)
        expected.append(slow.estimate)
    fast = oh.ContinualSum(plan, oh.seeded_random(seed))
    for cut in sorted([*cuts, tree.horizon]):
        fast.update_many(raw[fast.t : cut])
        if fast.t:
            same = expected[fast.t - 1]
            assert fast.estimate.value == pytest.approx(same.value, abs=1e-9)
            assert fast.estimate.std == pytest.approx(same.std)
            assert np.array_equal(fast.estimate.slack, same.slack)
    assert fast.between(4, 40).value == pytest.approx(slow.between(4, 40).value, abs=1e-9)


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_a_restored_sum_has_the_same_future(
    values: Values, choices: list[Any], tree: Tree, random: Callable[[int], Any]
) -> None:
    plan = kind_plan(tree, values, steps=(3, 4, 5), combine=True)
    raw = shrunk(values, choices, tree.horizon)
    for cut in (0, 1, tree.lowest, tree.horizon // 2, tree.horizon):
        first = oh.ContinualSum(plan, random(7), archive=cut != 1)
        first.update_many(raw[:cut])
        saved = first.saved()
        second = oh.ContinualSum.restored(plan, saved)
        assert second.estimate == first.estimate
        assert second.saved() == saved
        for start in range(cut, tree.horizon, 4):
            first.update_many(raw[start : start + 4])
            second.update_many(raw[start : start + 4])
            assert second.estimate == first.estimate
        assert second.saved() == first.saved()


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_state_of_another_kind_is_refused(values: Values, choices: list[Any]) -> None:
    saved = fed(kind_plan(REGULAR, values), choices).saved()
    other = kind_plan(REGULAR, Vectors(3, norm=2.0))
    with pytest.raises(oh.DamagedPlan, match="belongs to plan"):
        oh.ContinualSum.restored(other, saved)


BAD: list[tuple[Values, list[Any]]] = [
    (Reals(-2.0, 5.0), [5.01, -2.5, math.nan, math.inf, "1", None, [1.0], 1j]),
    (Vectors(2), [[1.0, 1.0], [0.0, math.nan], [0.0], [0.0, 0.0, 0.0], 0.0, [[0.0, 0.0]], "ab"]),
    (SymmetricMatrices(2), [np.eye(2), [[0.0, 0.5], [0.4, 0.0]], np.zeros((2, 3)), [0.0] * 3, 0.0]),
    (Moments(1), [[1.5, 0.0], [0.5, -1.5], [0.5], [0.5, math.nan], [0.1, 0.1, 0.1]]),
    (Histogram(4), [4, -1, 0.5, math.nan, "1", None, [1]]),
]


@pytest.mark.parametrize(
    ("values", "value"),
    [pytest.param(v, bad, id=f"{v.spec}-{bad}") for v, of_kind in BAD for bad in of_kind],
)
def test_a_bad_value_changes_nothing(values: Values, value: Any) -> None:
    choices = dict(WHOLE)[values]
    for before in (0, 5, 6):
        total = fed(kind_plan(REGULAR, values), chosen(choices, before))
        saved = total.saved()
        with pytest.raises(oh.InvalidValue):
            total.update(value)
        for good in (1, 4, 9):
            with pytest.raises(oh.InvalidValue):
                total.update_many([*chosen(choices, good), value, *chosen(choices, good)])
        assert total.saved() == saved


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_bad_value_is_named_by_its_place(values: Values, choices: list[Any]) -> None:
    worse: dict[Values, Any] = {BITS: 2, Histogram(4): 9, SymmetricMatrices(2): np.eye(2)}
    bad = worse.get(values, np.full_like(choices[0], 7.0))
    total = fed(kind_plan(REGULAR, values), chosen(choices, 20))
    with pytest.raises(oh.InvalidValue, match="user 24 "):
        total.update_many([*chosen(choices, 3), bad, choices[0], bad])
    with pytest.raises(oh.InvalidValue, match="user 21 "):
        total.update(bad)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_nobody_comes_after_the_horizon(values: Values, choices: list[Any]) -> None:
    total = fed(kind_plan(REGULAR, values), chosen(choices, 50))
    saved = total.saved()
    with pytest.raises(oh.InvalidValue, match="4 users after 50 go beyond the horizon 53"):
        total.update_many(chosen(choices, 4))
    assert total.saved() == saved
    total.update_many(chosen(choices, 3))
    total.update_many([])
    with pytest.raises(oh.InvalidValue, match="horizon 53"):
        total.update(choices[0])
    assert total.t == 53


def test_values_out_of_range_are_clipped_if_the_plan_says_so() -> None:
    plan = kind_plan(oh.RegularTree(8, (2, 2)), Reals(0.0, 1.0, clip=True), noise_bits=0)
    assert fed(plan, [3.0, -1.0, 7.0, 1.0]).estimate.value == 3.0
    vectors = kind_plan(oh.RegularTree(8, (2, 2)), Vectors(2, clip=True), noise_bits=0)
    assert fed(vectors, [[9.0, 0.0], [0.0, -4.0]]).estimate.value == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("hold", [True, False])
def test_sums_of_a_range_come_from_its_cover(
    values: Values, choices: list[Any], tree: Tree, hold: bool
) -> None:
    raw = chosen(choices, tree.horizon)
    plan = kind_plan(tree, values, noise_bits=0, hold=hold)
    exact = fed(plan, raw)
    noisy = fed(kind_plan(tree, values, combine=True, hold=hold), raw)
    truth = points(values, raw)
    for start in range(0, tree.horizon, 5):
        for stop in range(start + 1, tree.horizon + 1, 4):
            expected, rest = expected_sum(plan, raw, start, stop)
            estimate = exact.between(start, stop)
            assert estimate.value == pytest.approx(expected)
            assert (estimate.start, estimate.t, estimate.users) == (start, stop, stop - start)
            assert estimate.slack == pytest.approx(plan.pending_slack * rest)
            error = np.abs(estimate.value - truth[start:stop].sum(axis=0))
            assert (error <= np.add(estimate.slack, 1e-9)).all()
            mean = estimate.mean()
            assert mean.value == pytest.approx(expected / (stop - start))
            assert mean.slack == pytest.approx(plan.pending_slack * rest / (stop - start))
            variance = sum(
                noisy.plan.node_estimates[node.level, node.size][1]
                for node in tree.cover(start, stop)
            )
            assert noisy.between(start, stop).std == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_ranges_need_an_archive_and_are_of_users_that_came(
    values: Values, choices: list[Any]
) -> None:
    plan, raw = kind_plan(REGULAR, values), chosen(choices, 20)
    forgetful = oh.ContinualSum(plan, oh.seeded_random(1), archive=False)
    forgetful.update_many(raw)
    assert forgetful.estimate == fed(plan, raw).estimate
    assert json.loads(forgetful.saved())["server"]["archive"] is None
    for total in (forgetful, oh.ContinualSum.restored(plan, forgetful.saved())):
        with pytest.raises(oh.InvalidValue, match="archive=True"):
            total.between(0, 10)
    with pytest.raises(oh.InvalidValue, match="beyond the 20 users"):
        fed(plan, raw).between(0, 21)


def test_an_estimate_that_someone_writes_into_does_no_harm() -> None:
    raw = chosen([0, 1, 2, 3], 20)
    total = fed(kind_plan(REGULAR, Histogram(4)), raw)
    before, range_before = total.estimate, total.between(3, 9)
    for estimate in (total.estimate, total.between(3, 9), total.between(0, 0)):
        estimate.value[:] = 99.0
        estimate.slack[:] = 99.0
    assert total.estimate == before
    assert total.between(3, 9) == range_before


def coin_sum(plan: oh.Plan, node: oh.Node) -> CoinSum:
    mechanism = plan.mechanism(node)
    assert isinstance(mechanism, CoinSum)
    return mechanism


def reach(plan: oh.Plan, t: int) -> float:
    """What coins and rounding together cannot exceed at t: no sampling error to allow for."""
    mechanisms = [coin_sum(plan, node) for node in plan.tree.cover(t)]
    return sum((m.noise_trials / 2 + m.size) * m.unit for m in mechanisms)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_secure_randomness_serves_every_kind(values: Values, choices: list[Any]) -> None:
    plan = kind_plan(PATH, values, noise_bits=3)
    raw = shrunk(values, choices, 50)
    truth = np.cumsum(points(values, raw), axis=0)
    totals = [oh.ContinualSum(plan, oh.secure_random()) for _ in range(2)]
    for start in range(0, 50, 10):
        for total in totals:
            total.update_many(raw[start : start + 10])
            error = np.abs(total.estimate.value - truth[total.t - 1])
            assert (error <= reach(plan, total.t) + np.add(total.estimate.slack, 1e-9)).all()
    blocks = [json.loads(total.saved())["server"]["archive"]["blocks"] for total in totals]
    assert blocks[0] != blocks[1]  # all 16 are alike with a probability below 1e-11


# The law of an estimate, atom by atom.


@dataclass(frozen=True)
class Law:
    """Where a number can be, in ascending order, and how likely."""

    atoms: Floats
    probabilities: Floats

    @classmethod
    def of(cls, atoms: Floats, probabilities: Floats) -> Law:
        """Atoms that differ by floating-point noise are one."""
        order = np.argsort(atoms)
        atoms, probabilities = atoms[order], probabilities[order]
        which = np.cumsum(np.diff(atoms, prepend=-math.inf) > 1e-7) - 1
        first = np.unique(which, return_index=True)[1]
        return cls(atoms[first], np.bincount(which, probabilities).astype(np.float64))

    def __add__(self, other: Law) -> Law:
        atoms = np.add.outer(self.atoms, other.atoms)
        weights = np.multiply.outer(self.probabilities, other.probabilities)
        return Law.of(atoms.reshape(-1), weights.reshape(-1))

    def times(self, factor: float) -> Law:
        return Law.of(factor * self.atoms, self.probabilities)

    @property
    def variance(self) -> float:
        mean = float(self.probabilities @ self.atoms)
        return float(self.probabilities @ (self.atoms - mean) ** 2)

    @property
    def mean(self) -> float:
        return float(self.probabilities @ self.atoms)

    def distance(self, other: Law) -> float:
        """Kolmogorov's, seen between the atoms."""
        places = np.concatenate([self.atoms, other.atoms]) + 1e-6
        return float(np.abs(self._below(places) - other._below(places)).max())

    def _below(self, places: Floats) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.asarray(sums[np.searchsorted(self.atoms, places)])

    def assert_of(self, samples: Floats, *, discrepancy: float) -> None:
        """Every sample is an atom, and shows as often as it should."""
        ranks = np.searchsorted((self.atoms[1:] + self.atoms[:-1]) / 2, samples)
        assert np.abs(self.atoms[ranks] - samples).max() < 1e-6, "outside the support"
        assert_follows(ranks, Outcomes(0, self.probabilities), discrepancy=discrepancy)


def batch_law(mechanism: oh.CoinSum, column: Floats, low: float) -> Law:
    """One coordinate of a batch's analyzed sum: its users' rounding, and their coins."""
    exact = (column - low) / mechanism.unit
    down = np.floor(exact + 1e-9)
    ups = np.ones(1)
    for rest in np.clip(exact - down, 0, 1):
        ups = np.convolve(ups, [1 - rest, rest])
    trials = mechanism.noise_trials
    coins = stats.binom.pmf(np.arange(trials + 1), trials, 0.5)
    law = np.convolve(ups, coins)
    steps = down.sum() + np.arange(len(law)) - trials / 2
    return Law.of(steps * mechanism.unit + mechanism.size * low, law)


def children(tree: Tree, node: oh.Node) -> list[oh.Node]:
    """The largest nodes inside of a node, side by side."""
    inside: list[oh.Node] = []
    place = node.start
    while place < node.stop:
        starting = [n for n in tree.nodes_of(place) if n.start == place and n.level < node.level]
        inside.append(max(starting, key=lambda n: n.level))
        place = inside[-1].stop
    return inside


def estimate_by_the_book(plan: oh.Plan, sums: dict[oh.Node, Floats], t: int) -> Floats:
    """The estimate at t from the sums of batches: each with its children, added up over V*_t."""

    def value_of(node: oh.Node) -> Floats:
        weight, *_ = plan.node_estimates[node.level, node.size]
        inside = children(plan.tree, node) if weight < 1 else []
        below = sum((value_of(child) for child in inside), start=np.zeros(plan.values.dimension))
        return weight * sums[node] + (1 - weight) * below

    pending_sum = pending(plan, t) * np.atleast_1d(plan.imputed)
    return sum((value_of(node) for node in plan.tree.cover(t)), start=pending_sum)


def node_law(plan: oh.Plan, node: oh.Node, column: Floats, low: float) -> Law:
    own = batch_law(coin_sum(plan, node), column[node.start : node.stop], low)
    weight, *_ = plan.node_estimates[node.level, node.size]
    if weight == 1.0:
        return own
    below = [node_law(plan, child, column, low) for child in children(plan.tree, node)]
    return own.times(weight) + reduce(Law.__add__, below).times(1 - weight)


def estimate_law(plan: oh.Plan, raw: list[Any], t: int, coordinate: int = 0) -> Law:
    """The law of the estimate at t by Definition 3.1: the nodes of the cover, and those pending."""
    column, low = points(plan.values, raw)[:, coordinate], float(plan.values.lows[coordinate])
    imputed = np.atleast_1d(plan.imputed)[coordinate] * pending(plan, t)
    law = Law.of(np.array([imputed]), np.ones(1))
    return reduce(Law.__add__, [node_law(plan, n, column, low) for n in plan.tree.cover(t)], law)


class Steady(SeededRandom):
    """Uniforms that are all the same: rounding no longer depends on who is rounded when."""

    SHARE = 0.3

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        return np.full(count, int(self.SHARE * 2 ** (8 * np.dtype(dtype).itemsize)), dtype)

    def uniforms(self, count: int) -> Floats:
        return np.full(count, self.SHARE)

    def spawn(self, count: int) -> list[Any]:
        return [Steady(generator) for generator in self.generator.spawn(count)]


def steady_estimates(plan: oh.Plan, raw: list[Any]) -> Floats:
    """What rounding of that kind comes to, by the book."""
    sums: dict[oh.Node, Floats] = {}
    lows, coordinates = plan.values.lows, points(plan.values, raw)
    estimates: list[Floats] = []
    for t in range(1, plan.horizon + 1):
        for node in plan.tree.closes(t):
            unit = plan.mechanism(node).unit
            steps = np.floor((coordinates[node.start : node.stop] - lows) / unit + Steady.SHARE)
            sums[node] = steps.sum(axis=0) * unit + node.size * lows
        estimates.append(estimate_by_the_book(plan, sums, t))
    return np.array(estimates).reshape(plan.horizon, *plan.values.shape)


@pytest.mark.parametrize(("values", "choices"), ROUNDED)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("combine", [True, False])
def test_every_level_adds_up_its_own_steps(
    values: Values, choices: list[Any], tree: Tree, combine: bool
) -> None:
    plan = kind_plan(tree, values, noise_bits=0, steps=(3, 4, 5), combine=combine)
    raw = shrunk(values, choices, tree.horizon)
    expected = steady_estimates(plan, raw)
    for at_once in (1, 7):
        total = oh.ContinualSum(plan, Steady(1))
        for start in range(0, tree.horizon, at_once):
            total.update_many(raw[start : start + at_once])
            assert total.estimate.value == pytest.approx(expected[total.t - 1])


FIGURE_2 = oh.RegularTree(horizon=8, degrees=(2, 2))
SMALL_PATH = oh.PathTree(horizon=10, levels=2, terms=3, block=1)
SMALL = [pytest.param(FIGURE_2, 7, id="regular"), pytest.param(SMALL_PATH, 6, id="path")]
DISCREPANCY = 0.15
SAMPLES = samples_for(DISCREPANCY)
# A sample in every coordinate. Odd numbers of steps have no step in the middle, where most are.
MANY = Vectors(2 * SAMPLES, norm=80.0)
STEPS = (3, 5)

Runner = Callable[[oh.Plan, list[Any], int], Any]


def by_continual_sum(plan: oh.Plan, raw: list[Any], seed: int) -> Any:
    return fed(plan, raw, seed).estimate.value


def by_algorithm_1(plan: oh.Plan, raw: list[Any], seed: int) -> Any:
    server = TreeServer(plan)
    shufflers = ConcurrentShufflers(plan.tree.levels, server, oh.seeded_random(seed))
    for value in raw:
        shufflers.update(value)
    return server.estimate(shufflers.t).value


RUNNERS = [by_continual_sum, by_algorithm_1]


def many_vectors(users: int) -> list[Any]:
    """Vectors with one number in all coordinates."""
    numbers = np.random.default_rng(6).uniform(-0.99, 0.99, users)
    return [np.full(MANY.length, number) for number in numbers]


def assert_law_of_coordinates(law: Law, samples: Floats) -> None:
    """All have this law, and two differ as two that are independent do."""
    law.assert_of(samples, discrepancy=DISCREPANCY)
    apart = law + law.times(-1.0)
    apart.assert_of(samples[::2] - samples[1::2], discrepancy=DISCREPANCY)


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(("tree", "t"), SMALL)
@pytest.mark.parametrize(("combine", "hold"), [(True, False), (False, True)])
def test_estimates_of_vectors_have_the_law_of_their_cover(
    run: Runner, tree: Tree, t: int, combine: bool, hold: bool
) -> None:
    plan = kind_plan(tree, MANY, noise_bits=1, steps=STEPS, combine=combine, hold=hold)
    raw = many_vectors(t)
    assert_law_of_coordinates(estimate_law(plan, raw, t), run(plan, raw, 5))


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(("tree", "t"), SMALL)
def test_estimates_of_histograms_have_the_law_of_their_cover(
    run: Runner, tree: Tree, t: int
) -> None:
    plan = kind_plan(tree, Histogram(2 * SAMPLES), noise_bits=3, combine=tree == FIGURE_2)
    raw = list(range(t))
    counted = np.arange(2 * SAMPLES) < t - pending(plan, t)
    assert_law_of_coordinates(estimate_law(plan, raw, t, 2 * t), run(plan, raw, 5) - counted)


SEEDED: list[tuple[Values, list[Any], Runner]] = [
    (Reals(-2.0, 5.0), [-1.0, 4.9, 0.3, 5.0, 2.2, -1.7, 0.0], by_continual_sum),
    (Reals(-2.0, 5.0), [-1.0, 4.9, 0.3, 5.0, 2.2, -1.7, 0.0], by_algorithm_1),
    (Moments(1), [[0.3, 0.9], [1.0, 1.0], [-0.7, 0.2], [0.8, -1.0]] * 2, by_continual_sum),
]


@pytest.mark.parametrize(
    ("values", "raw", "run"),
    [pytest.param(*case, id=f"{case[0]}-{case[2].__name__}") for case in SEEDED],
)
def test_estimates_are_unbiased_with_the_law_of_their_cover(
    values: Values, raw: list[Any], run: Runner
) -> None:
    plan, raw = kind_plan(FIGURE_2, values, noise_bits=1, steps=STEPS, combine=True), raw[:7]
    truth = points(values, raw)[:6].sum(axis=0) + plan.imputed
    samples = np.array([run(plan, raw, seed) for seed in range(samples_for(0.2))])
    for j, of_coordinate in enumerate(samples.reshape(len(samples), -1).T):
        law = estimate_law(plan, raw, 7, j)
        law.assert_of(of_coordinate, discrepancy=0.2)
        assert law.mean == pytest.approx(truth[j])
        assert law.variance < plan.noise_variance(np.array([7]))[0]


@pytest.mark.parametrize("tree", [FIGURE_2, SMALL_PATH])
@pytest.mark.parametrize("combine", [True, False])
def test_the_promised_deviation_is_reached_half_way_between_steps(
    tree: Tree, combine: bool
) -> None:
    plan = kind_plan(tree, Reals(-2.0, 5.0), noise_bits=1, steps=STEPS, combine=combine)
    for t in range(1, 8):
        law = estimate_law(plan, [1.5] * t, t)
        std = fed(plan, [1.5] * t).estimate.std
        assert math.sqrt(law.variance) == pytest.approx(std)


# What these tests must see.


def test_the_laws_see_missing_coins() -> None:
    plan, mutant = (kind_plan(FIGURE_2, MANY, noise_bits=n, steps=STEPS) for n in (3, 0))
    raw = many_vectors(7)
    law = estimate_law(plan, raw, 7)
    assert law.distance(estimate_law(mutant, raw, 7)) > DISCREPANCY
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(by_continual_sum(mutant, raw, 5), discrepancy=DISCREPANCY)


def test_the_laws_see_values_that_are_rounded_to_the_nearest_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, raw = kind_plan(FIGURE_2, MANY, noise_bits=1, steps=STEPS), many_vectors(7)

    def nearest(self: Mechanism, rows: Floats, random: Any) -> Any:
        return np.round((rows - self.values.lows) / self.unit).astype(np.int64)

    law = estimate_law(plan, raw, 7)
    biased = law.atoms + plan.mechanisms[0][0].unit
    assert law.distance(Law(biased, law.probabilities)) > DISCREPANCY
    monkeypatch.setattr(Mechanism, "steps_of", nearest)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(by_continual_sum(plan, raw, 5), discrepancy=DISCREPANCY)


def test_the_laws_see_one_rounding_for_all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node and its children would then add up to the same: nothing is gained by combining."""
    plan = kind_plan(FIGURE_2, MANY, noise_bits=0, steps=3, combine=True)
    alone = kind_plan(FIGURE_2, MANY, noise_bits=0, steps=3)
    raw = many_vectors(4)
    law, lie = (estimate_law(p, raw, 4) for p in (plan, alone))
    assert law.distance(lie) > DISCREPANCY

    def once(self: Rounding, rows: Floats) -> list[Any]:
        steps = plan.mechanisms[0][0].steps_of(rows, self.streams[0])
        return [steps] * len(self.streams)

    monkeypatch.setattr(Rounding, "tracks_of", once)
    samples = by_continual_sum(plan, raw, 5)
    lie.assert_of(samples, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(samples, discrepancy=DISCREPANCY)


def test_the_laws_see_coordinates_that_share_their_noise() -> None:
    plan, raw = kind_plan(FIGURE_2, MANY, noise_bits=1, steps=STEPS), many_vectors(7)
    samples = np.sort(by_continual_sum(plan, raw, 5))  # neighbours are alike, the law is the same
    law = estimate_law(plan, raw, 7)
    law.assert_of(samples, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_law_of_coordinates(law, samples)


# Servers.


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("combine", [True, False])
def test_a_server_of_analyzed_sums_agrees_with_a_slow_reference(
    values: Values, choices: list[Any], tree: Tree, combine: bool
) -> None:
    plan = kind_plan(tree, values, combine=combine)
    rng = np.random.default_rng(3)
    sums: dict[oh.Node, Floats] = {}
    server = SumServer(plan, archive=True)
    for t in range(1, tree.horizon + 1):
        for node in tree.closes(t):
            sums[node] = rng.normal(size=values.dimension)
            server.receive_sum(node, as_sum(values, sums[node]))
        expected = estimate_by_the_book(plan, sums, t)
        assert np.atleast_1d(server.estimate(t).value) == pytest.approx(expected)
        again = SumServer.restored(plan, json.loads(json.dumps(server.state)))
        assert again.estimate(t) == server.estimate(t)
        assert again.between(t // 3, t) == server.between(t // 3, t)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_server_takes_shuffled_messages_of_every_kind(values: Values, choices: list[Any]) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 53)
    server, random = SumServer(plan), oh.seeded_random(1)
    for t in range(1, 54):
        for node in REGULAR.closes(t):
            messages = plan.mechanism(node).encode_many(raw[node.start : node.stop], random)
            shuffled = random.permute(messages.reshape(-1, *messages.shape[2:]))
            server.receive(node, Shuffled(shuffled))
        assert server.estimate(t).value == pytest.approx(expected_sum(plan, raw, 0, t)[0])


def test_a_sum_of_the_wrong_shape_or_place_is_refused() -> None:
    vectors, numbers = (SumServer(kind_plan(REGULAR, v)) for v in (Vectors(2), Reals()))
    for value in (5.0, np.zeros(3), np.zeros((1, 2))):
        with pytest.raises(oh.InvalidValue, match="a sum of shape"):
            vectors.receive_sum(oh.Node(1, 0, 3), value)
    with pytest.raises(oh.InvalidValue, match="a sum of shape"):
        numbers.receive_sum(oh.Node(1, 0, 3), np.zeros(1))
    with pytest.raises(oh.ProtocolViolation, match="was due"):
        numbers.receive_sum(oh.Node(1, 0, 6), 1.0)
    assert vectors.covered == numbers.covered == 0


def test_sums_that_were_received_stay_as_they_were() -> None:
    server, buffer = SumServer(kind_plan(REGULAR, Vectors(2)), archive=True), np.ones(2)
    for node in (oh.Node(1, 0, 3), oh.Node(1, 3, 6), oh.Node(2, 0, 6)):
        buffer[:] = node.size
        server.receive_sum(node, buffer)
    buffer[:] = 99.0
    assert server.estimate(6).value.tolist() == server.between(0, 6).value.tolist() == [6.0, 6.0]
    assert server.between(0, 3).value.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_bad_value_reaches_no_shuffler(values: Values, choices: list[Any]) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 12)
    server = TreeServer(plan)
    shufflers = ConcurrentShufflers(3, server, oh.seeded_random(1))
    for t, value in enumerate(raw, start=1):
        with pytest.raises(oh.InvalidValue):
            shufflers.update("no value")
        shufflers.update(value)
        assert server.estimate(t).value == pytest.approx(expected_sum(plan, raw, 0, t)[0])


# Without a horizon.


def plans_for(values: Values, **parameters: Any) -> Callable[[int], oh.Plan]:
    return lambda horizon: kind_plan(oh.RegularTree(horizon, (3, 2)), values, **parameters)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_an_endless_sum_goes_on_from_plan_to_plan(values: Values, choices: list[Any]) -> None:
    raw = shrunk(values, choices, 100)
    total = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=10)
    one_by_one = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=10)
    exact = oh.EndlessSum(plans_for(values, noise_bits=0), oh.seeded_random(2), first=10)
    whole = chosen(choices, 100)
    for start in (0, 40):
        total.update_many(raw[start : start + 40])
        exact.update_many(whole[start : start + 40])
    for value in raw[:80]:
        one_by_one.update(value)
    assert total.t == one_by_one.t == 80
    assert [plan.horizon for plan in total.plans] == [9, 18, 39, 78]
    assert total.estimate.value == pytest.approx(one_by_one.estimate.value)
    variance = sum(float(p.noise_variance(np.array([p.horizon]))[0]) for p in total.plans[:3])
    variance += float(total.plans[3].noise_variance(np.array([80 - 66]))[0])
    assert total.estimate.std == pytest.approx(math.sqrt(variance))
    covered = points(values, whole[:78]).sum(axis=0) + 2 * np.atleast_1d(exact.plans[0].imputed)
    assert np.atleast_1d(exact.estimate.value) == pytest.approx(covered)
    assert exact.estimate.slack == pytest.approx(2 * exact.plans[0].pending_slack)


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_restored_endless_sum_has_the_same_future(values: Values, choices: list[Any]) -> None:
    raw, plan_for = shrunk(values, choices, 60), plans_for(values, noise_bits=24)
    first = oh.EndlessSum(plan_for, oh.seeded_random(2), first=10)
    first.update_many(raw[:20])
    second = oh.EndlessSum.restored(plan_for, first.saved())
    assert second.saved() == first.saved()
    for total in (first, second):
        total.update_many(raw[20:])
    assert second.estimate == first.estimate
    assert second.plans == first.plans


def test_an_endless_sum_keeps_to_its_kind() -> None:
    """A plan that is refused leaves everything as it was, and can be asked for again."""
    kinds: list[Values] = [Vectors(3), Vectors(2), Vectors(3, norm=2.0), Histogram(3), Vectors(3)]
    asked = iter(kinds)
    total = oh.EndlessSum(lambda h: plans_for(next(asked))(h), oh.seeded_random(1), first=12)
    total.update_many(np.zeros((12, 3)))
    before, saved = total.estimate, total.saved()
    for wrong in ("vector:2", "vector:3:2.0", "histogram:3"):
        with pytest.raises(oh.InvalidValue, match=f"a plan for {wrong} after one for vector:3"):
            total.update(np.zeros(3))
        assert (total.t, total.estimate, total.saved()) == (12, before, saved)
    total.update(np.zeros(3))
    assert total.t == 13


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_an_endless_sum_names_a_bad_value_by_its_place_among_all(
    values: Values, choices: list[Any]
) -> None:
    total = oh.EndlessSum(plans_for(values), oh.seeded_random(2), first=12)
    for users in (12, 11):  # at the end of a plan, and within one
        total.update_many(chosen(choices, users))
        before = total.estimate
        bad: Any = np.full(np.shape(choices[0]), 9.0)
        with pytest.raises(oh.InvalidValue, match=f"user {total.t + 1} "):
            total.update(bad if np.ndim(bad) else 9)
        with pytest.raises(oh.InvalidValue, match=f"user {total.t + 2} "):
            total.update_many([choices[0], bad if np.ndim(bad) else 9])
        assert total.estimate == before
