"""Every fast module against the part of `overhand.reference` that it is: the paper, slow and exact.

Comparisons are exact, or to the last digits of floating point. Where a fast module only draws, its
samples are held against the exact law (`support.sampling`).
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import overhand as oh
from overhand import reference
from overhand.accounting import Level, certified_delta
from overhand.accounting.composition import search_delta
from overhand.bandits import LinUCB, Recommender, Theory
from overhand.lab.lower_bound import (
    HardInput,
    big_batch,
    bit_variance_root,
    is_proved,
    largest_delta,
    least_horizon,
    repeats,
)
from overhand.lab.simulation.counts import CountsRun, CoverNoise
from overhand.lab.simulation.messages import MessagesRun
from overhand.mechanisms import CoinSum, published
from overhand.model import Floats, Messages, Node, Shuffled
from overhand.noise import Coins, Noise
from overhand.noise.laws import opposed_pmf
from overhand.planning import Plan
from overhand.randomness import HALF, BinaryFraction, restore_random, seeded_random
from overhand.shuffle import shuffle
from overhand.sums import SumServer
from overhand.tree import Combination, RegularTree, binary_degrees, published_degrees
from overhand.values import BITS, Reals, Sensitivity, Values
from support.chosen_coins import EIGHTH, QUARTER, Given
from support.divergences import delta
from support.reference_twins import (
    counts_as,
    cover,
    fast_batch,
    fast_node,
    nodes,
    pending,
    slow_batch,
    slow_coins,
    slow_estimate,
    slow_mechanism,
    slow_server,
    slow_tree,
    weigh,
)
from support.sampling import Outcomes, assert_follows, assert_uniform_over, samples_for
from support.small_plans import PRIVACY


def plan_of(
    tree: RegularTree,
    *coins: Coins,
    values: Values = BITS,
    steps: Sequence[int] | None = None,
    combine: bool = False,
    hold: bool = True,
) -> Plan:
    """Coins of one kind at each level, or the same at all: no guarantee, but an exact law."""
    of_levels = coins * tree.levels if len(coins) == 1 else coins
    by_level = steps or [1] * tree.levels
    mechanisms = tuple(
        CoinSum(size, part, values, g)
        for size, part, g in zip(tree.sizes, of_levels, by_level, strict=True)
    )
    return Plan(tree, mechanisms, PRIVACY, tree.levels, combine=combine, hold=hold)


FAIR, OPPOSED, SILENT = Coins(2, HALF), Coins(4, EIGHTH), Coins(0, HALF)
RARE, OFTEN = Coins(1, EIGHTH, opposed=False), Coins(3, BinaryFraction(3, 2), opposed=False)
REGULAR, WIDE = RegularTree(53, (3, 2, 4)), RegularTree(49, (3, 5))
FIGURE_2, SINGLES = RegularTree(8, (2, 2)), RegularTree(10, (1, 4))
TREES = [REGULAR, WIDE, FIGURE_2, SINGLES, RegularTree(24, (3, 2, 4)), RegularTree(7, (4,))]
trees = pytest.mark.parametrize("tree", TREES, ids=str)
combining = pytest.mark.parametrize("combine", [False, True], ids=["plain", "combined"])


def test_the_reference_imports_the_standard_library_alone() -> None:
    source = Path(reference.__file__).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)]
    others = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    names.update(str(node.module) for node in others)
    assert all(node.level == 0 for node in others)
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    assert len(source.splitlines()) <= 320  # it is read in one go


def test_modules_name_parts_of_the_reference_that_exist() -> None:
    """Every fast module that is a part of it says which one in its first line."""
    package = Path(reference.__file__).parent
    first_lines = [
        path.read_text(encoding="utf-8").split("\n", 1)[0] for path in package.rglob("*.py")
    ]
    named = [name for line in first_lines for name in re.findall(r"`reference\.([\w.]+)`", line)]
    assert len(set(named)) >= 12
    for name in named:
        assert operator.attrgetter(name)(reference)


# Section 2.3: the mechanism of one batch.

MECHANISMS = {
    "fair": CoinSum(2, FAIR),
    "opposed": CoinSum(1, OPPOSED),
    "rare": CoinSum(3, RARE),
    "often": CoinSum(1, OFTEN),
    "numbers": CoinSum(1, Coins(2, QUARTER), Reals(-2.0, 5.0), 4),
    "silent": CoinSum(2, SILENT),
}
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
PARTS = 16
"""Values are whole numbers of this part of a step, and uniforms lie in between."""


def holdings(mechanism: CoinSum) -> list[tuple[float, ...]]:
    """What the users of a batch may hold."""
    if mechanism.values.is_whole:
        return list(itertools.product((0, 1), repeat=mechanism.size))
    low, high = mechanism.values.lows[0], mechanism.values.highs[0]
    return [(low + mechanism.quantizer.unit * part / PARTS,) for part in (0, 3, 21, 48)] + [(high,)]


@mechanisms
def test_what_users_send_adds_up_to_the_law_of_the_paper(mechanism: CoinSum) -> None:
    """Over every outcome of every coin, and over uniforms that round as often as they should."""
    coins = mechanism.size * mechanism.noise_share.bits
    uniforms = [0.5] if mechanism.values.is_whole else [(i + 0.5) / PARTS for i in range(PARTS)]
    for held in holdings(mechanism):
        law: dict[float, Fraction] = {}
        for uniform, *shown in itertools.product(uniforms, *[(0, 1)] * coins):
            random = Given([uniform], [int(bit) for bit in shown])
            sent = mechanism.encode_many(held, random).gather(mechanism.size)
            (total,) = mechanism.analyze(Shuffled(*sent))
            chance = random.chance / len(uniforms)
            law[float(total)] = law.get(float(total), Fraction(0)) + chance
        truth = reference.sum_law(slow_mechanism(mechanism), held)
        assert_same_law({Fraction(x): p for x, p in law.items()}, truth)


def assert_same_law(law: reference.Law, truth: reference.Law) -> None:
    """Where they are likely, and how likely, but for the last digits."""
    found, expected = (sorted((x, p) for x, p in of.items() if p) for of in (law, truth))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert [float(number) for number in one] == pytest.approx([float(n) for n in other])


@mechanisms
def test_a_user_sends_as_many_messages_as_in_the_paper(mechanism: CoinSum) -> None:
    (*_, held) = holdings(mechanism)
    for value in held:
        sent = mechanism.encode_many([value], seeded_random(1)).sealed
        expected = slow_mechanism(mechanism).encode([value], Random(1))
        assert sent.shape == (1, mechanism.layout.messages_per_user) == (1, len(expected))


VECTORS = [
    CoinSum(3, Coins(2, QUARTER), oh.Vectors(3), 4),
    CoinSum(2, OPPOSED, oh.Vectors(2), 1),
    CoinSum(4, RARE, oh.Vectors(2), 6),
    CoinSum(5, OFTEN, Reals(-2.0, 5.0), 7),
]


@pytest.mark.parametrize("mechanism", [*MECHANISMS.values(), *VECTORS], ids=repr)
def test_a_batch_is_analyzed_as_in_the_paper(mechanism: CoinSum) -> None:
    """Messages that either side made, read by both."""
    rng, chance = np.random.default_rng(5), Random(5)
    truth, dimension = slow_mechanism(mechanism), mechanism.values.dimension
    for _ in range(20):
        held = rng.choice([mechanism.values.lows[0], mechanism.values.highs[0]], mechanism.size)
        rows = np.zeros((mechanism.size, dimension))
        rows[:, 0] = held
        batch = [message for row in rows.tolist() for message in truth.encode(row, chance)]
        (sums,) = mechanism.analyze(fast_batch(batch))
        np.testing.assert_allclose(np.atleast_1d(sums), truth.analyze(batch), rtol=1e-12, atol=1e-9)
        given = rows if dimension > 1 else rows[:, 0]
        sent = shuffle(mechanism.encode_many(given, seeded_random(7)).gather(mechanism.size),
                       seeded_random(8))  # fmt: skip
        (sums,), (row,) = mechanism.analyze(sent), sent.sealed
        np.testing.assert_allclose(
            np.atleast_1d(sums), truth.analyze(slow_batch(row)), rtol=1e-12, atol=1e-9
        )


def test_every_coordinate_of_a_vector_has_its_own_sum() -> None:
    """Without coins, and of whole steps, nothing is left to chance."""
    mechanism, rows = CoinSum(2, SILENT, oh.Vectors(3), 4), [[0.5, -0.5, 0.0], [0.5, 0.0, 0.0]]
    truth = slow_mechanism(mechanism)
    batch = [message for row in rows for message in truth.encode(row, Random(1))]
    sent = mechanism.encode_many(rows, seeded_random(1)).gather(2)
    assert truth.analyze(batch) == [1.0, -0.5, 0.0]
    assert mechanism.analyze(Shuffled(*sent)).tolist() == [[1.0, -0.5, 0.0]]


@pytest.mark.parametrize("bits", [3, 64], ids=["short messages", "long messages"])
def test_a_shuffled_batch_is_in_uniformly_random_order(bits: int) -> None:
    """Two batches side by side: all pairs of orders, so each is on its own."""
    orders = list(itertools.permutations(range(3)))
    pairs = [one + tuple(i + 3 for i in other) for one in orders for other in orders]
    rows = np.tile(np.array([[0, 1, 2], [3, 4, 5]], np.uint8), (20_000, 1))
    shuffled = shuffle(Messages.of(rows), seeded_random(11), message_bits=bits)
    found = map(tuple, shuffled.sealed.reshape(-1, 6).tolist())
    assert_uniform_over(found, pairs, discrepancy=0.018)
    random, batch = Random(5), [(0, i) for i in range(3)]
    slowly = [tuple(i for _, i in reference.shuffle(batch, random)) for _ in range(3000)]
    assert_uniform_over(slowly, orders, discrepancy=0.1)


def test_the_published_mechanism_is_the_papers() -> None:
    for size, epsilon in [(10, 1.0), (100, 0.5), (3000, 1.0), (1393, 1.0), (1392, 1.0)]:
        found = slow_mechanism(published(BITS, size, oh.Privacy(epsilon, 1e-6)))
        truth = reference.binary_summation(size, epsilon, 1e-6)
        assert (found.size, len(found.coins)) == (truth.size, len(truth.coins))
        assert float(found.coins[0]) == pytest.approx(float(truth.coins[0]), rel=1e-6)


# Section 3: Algorithm 1, and the tree.


class Adaptive:
    """A server that lets batches grow with what the last one showed."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def activate(self, t: int, idle: set[int]) -> dict[int, reference.Mechanism]:
        return {i: reference.Mechanism(1 + i + len(self.seen) % 3, ()) for i in idle}

    def receive(self, t: int, shuffler: int, shuffled: list[reference.Message]) -> None:
        self.seen.append((t, shuffler, len(shuffled)))

    def estimate(self, t: int) -> list[float]:
        return [float(len(self.seen))]


def test_algorithm_1_serves_any_server() -> None:
    server = Adaptive()
    estimates = list(reference.concurrent_shuffle([[1]] * 8, 2, server, Random(1)))
    assert server.seen == [
        (1, 0, 1), (2, 1, 2), (3, 0, 2), (4, 0, 1), (6, 0, 2), (6, 1, 4), (7, 0, 1), (8, 1, 2),
    ]  # fmt: skip
    assert [e[0] for e in estimates] == [1, 2, 3, 4, 4, 6, 7, 8]


@trees
def test_every_user_is_in_the_batches_of_the_paper(tree: RegularTree) -> None:
    for t in range(1, tree.horizon + 1):
        assert tree.joins(t) == [n for n in nodes(tree) if n.start < t <= n.stop]
        assert tree.closes(t) == [n for n in nodes(tree) if n.stop == t]
    for level, size in enumerate(tree.sizes, start=1):
        of_level = [n for n in nodes(tree) if n.level == level]
        assert [tree.node(level, i) for i in range(tree.horizon // size)] == of_level
    lowest = [n for n in nodes(tree) if n.level == 1]
    assert (tree.blocks, tree.covered) == (len(lowest), lowest[-1].stop)
    assert tree.lowest == tree.sizes[0] == lowest[0].size


@trees
def test_the_cover_is_that_of_definition_3_1(tree: RegularTree) -> None:
    for t in range(tree.horizon + 1):
        assert list(tree.cover(t)) == cover(tree, t)


@trees
def test_covers_are_counted_without_building_them(tree: RegularTree) -> None:
    levels, times = range(1, tree.levels + 1), range(1, tree.horizon + 1)
    covers = {t: Counter(node.level for node in cover(tree, t)) for t in (0, *times)}
    ends = np.arange(tree.blocks + 1)
    for level, counts, full in zip(
        levels, tree.in_cover(ends), tree.closed_nodes(ends), strict=True
    ):
        assert [covers[b * tree.lowest][level] for b in ends] == counts.tolist()
        stops = [node.stop for node in nodes(tree) if node.level == level]
        assert [sum(stop <= b * tree.lowest for stop in stops) for b in ends] == full.tolist()
        mean = sum(covers[t][level] for t in times) / tree.horizon
        assert tree.mean_cover[level - 1] == pytest.approx(mean)
    weights = [1.5, 7.0, 2.25][: tree.levels]
    heavy = {t: sum(weights[v.level - 1] for v in cover(tree, t)) for t in covers}
    assert tree.cover_weight(ends, weights) == pytest.approx([heavy[b * tree.lowest] for b in ends])
    assert tree.mean_weight(weights) == pytest.approx(np.mean([heavy[t] for t in times]))
    assert tree.heaviest_cover(weights) == pytest.approx(max(heavy.values()))
    waiting = [t - max((v.stop for v in cover(tree, t)), default=0) for t in times]
    assert tree.mean_pending_square() == pytest.approx(np.mean(np.square(waiting)))
    assert tree.most_pending == min(tree.lowest - 1, tree.horizon) >= max(waiting)


def test_the_degrees_of_the_paper() -> None:
    for n in [*range(2, 400), 10**4, 10**6, 10**8]:
        assert binary_degrees(n) == reference.binary_degrees(n)
        for k in range(1, 7):
            assert published_degrees(n, k) == reference.published_degrees(n, k)


# Theorems 3.2 and 3.4: laws, variances, and what all batches of a user cost.

LAWS = {
    "fair": (6, Coins(4, HALF)),
    "opposed": (5, OPPOSED),
    "rare": (20, RARE),
    "often": (7, OFTEN),
    "quarter": (3, Coins(6, QUARTER)),
    "many": (100, OFTEN),  # of which the pmf leaves out the beginning
}
laws = pytest.mark.parametrize(("size", "coins"), LAWS.values(), ids=LAWS.keys())


def noise_law(mechanism: reference.Mechanism) -> reference.Law:
    """The noise of a batch in steps, before its mean is subtracted."""
    return reference.ones_law(mechanism.coins * mechanism.size)


def cumulants(law: reference.Law) -> tuple[float, float, float]:
    mean = sum(x * p for x, p in law.items())
    second, fourth = (
        sum(((x - mean) ** power * p for x, p in law.items()), Fraction(0)) for power in (2, 4)
    )
    return float(mean), float(second), float(fourth - 3 * second**2)


@laws
def test_the_noise_of_a_batch_has_the_law_of_its_coins(size: int, coins: Coins) -> None:
    noise: Noise = CoinSum(size, coins).noise()
    truth = noise_law(slow_mechanism(CoinSum(size, coins)))
    pmf = noise.pmf
    found = {pmf.first + i: p for i, p in enumerate(pmf.probabilities.tolist())}
    assert {int(x) for x, p in truth.items() if p > 1e-15} <= set(found)
    for x, p in truth.items():
        assert found.get(int(x), 0.0) == pytest.approx(float(p), rel=1e-12, abs=1e-18)
    assert (noise.mean, noise.variance, noise.fourth_cumulant) == pytest.approx(cumulants(truth))
    mirrored = {2 * Fraction(noise.mean) - x: p for x, p in truth.items()}
    assert noise.is_symmetric == (mirrored == truth)


def test_the_recurrence_for_many_opposed_coins_has_the_same_law() -> None:
    for p in (EIGHTH, QUARTER, BinaryFraction(5, 4)):
        pmf = opposed_pmf(20, float(p), float(p.complement))
        truth = noise_law(slow_mechanism(CoinSum(20, Coins(2, p))))
        found = {pmf.first + i: q for i, q in enumerate(pmf.probabilities.tolist())}
        for x, q in truth.items():
            assert found.get(int(x), 0.0) == pytest.approx(float(q), rel=1e-10, abs=1e-16)


def outcomes(law: reference.Law, step: Fraction = Fraction(1)) -> tuple[Outcomes, Fraction]:
    """A law as one on the integers, and where its first value is."""
    first, last = min(law), max(law)
    number = int((last - first) / step) + 1
    return Outcomes(
        0, np.array([float(law.get(first + i * step, 0)) for i in range(number)])
    ), first


def assert_drawn(samples: Floats, law: reference.Law, step: float = 1.0) -> None:
    """Samples that are all possible, as often as they should be."""
    exact = Fraction(step).limit_denominator(1 << 20)
    truth, first = outcomes(law, exact)
    ranks = (samples - float(first)) / step
    assert np.abs(ranks - np.round(ranks)).max() < 1e-6
    assert_follows(np.round(ranks).astype(np.int64), truth, discrepancy=0.08)


KEYED = {"kind": "secure", "key": f"{3:064x}", "used": 0}


@laws
@pytest.mark.parametrize("is_seeded", [True, False], ids=["seeded", "secure"])
def test_noise_that_is_drawn_for_a_whole_batch_follows_the_law(
    size: int, coins: Coins, is_seeded: bool
) -> None:
    mechanism, random = (
        CoinSum(size, coins),
        seeded_random(3) if is_seeded else restore_random(KEYED),
    )
    drawn = mechanism.draw_noise(random, samples_for(0.08))
    assert_drawn(drawn, reference.sum_law(slow_mechanism(mechanism), [0] * size))


def test_the_variance_of_a_sum_is_that_of_its_law() -> None:
    for mechanism in (*MECHANISMS.values(), *VECTORS):
        truth = slow_mechanism(mechanism)
        still = reference.sum_law(truth, [truth.low] * truth.size)
        assert mechanism.noise_variance == pytest.approx(float(reference.variance(still)))
        assert mechanism.fourth_cumulant == pytest.approx(cumulants(still)[2], abs=1e-12)
        if not mechanism.values.is_whole:  # at most what it is half-way between two steps
            halfway = truth.low + Fraction(truth.high - truth.low, 2 * truth.steps)
            moved = reference.sum_law(truth, [float(halfway)] * truth.size)
            assert mechanism.variance == pytest.approx(float(reference.variance(moved)))


COMPOSED: dict[str, list[tuple[int, Coins, int]]] = {
    "one level": [(10, FAIR, 1)],
    "ones are rare": [(20, RARE, 1)],
    "zeros are rare": [(10, OFTEN, 1)],
    "three equal levels": [(6, FAIR, 1)] * 3,
    "unequal levels": [(5, Coins(2, QUARTER), 1), (10, Coins(2, EIGHTH), 1)],
    "three unequal levels": [(4, FAIR, 1), (8, FAIR, 1), (16, Coins(2, EIGHTH), 1)],
    "several steps": [(6, Coins(6, HALF), 2), (12, Coins(4, QUARTER), 3)],
    "skewed": [(30, RARE, 1), (40, Coins(1, BinaryFraction(1, 4), opposed=False), 1)],
    "skewed both ways": [(30, RARE, 1), (30, Coins(1, BinaryFraction(7, 3), opposed=False), 1)],
    "skewed steps": [(25, OFTEN, 2), (50, RARE, 2)],
    "little is seen": [(40, FAIR, 1)] * 2,
}


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("levels", COMPOSED.values(), ids=COMPOSED.keys())
def test_the_composed_delta_is_that_of_all_outcomes(
    levels: list[tuple[int, Coins, int]], epsilon: float
) -> None:
    truth = reference.composed_delta(
        [reference.Mechanism(size, slow_coins(coins), steps) for size, coins, steps in levels],
        epsilon,
    )
    of = [Level(coins.law(size), sensitivity=Sensitivity(steps)) for size, coins, steps in levels]
    assert truth * (1 - 1e-12) <= certified_delta(of, epsilon) <= truth * (1 + 1e-7) + 1e-13
    assert truth * (1 - 1e-12) <= search_delta(of, epsilon) <= truth * (1 + 1e-4) + 1e-13
    if len(levels) == 1:
        assert delta(of[0].law, epsilon) == pytest.approx(truth, rel=1e-12)


def test_a_plan_spends_what_it_says() -> None:
    plan = Plan.best(200, 2, oh.Privacy(1.5, 1e-3), tree="paper")
    assert plan.tree.degrees == (3, 9)
    truth = reference.composed_delta([slow_mechanism(m) for m in plan.mechanisms], 1.5)
    assert truth <= plan.delta_spent <= truth * (1 + 1e-6)
    assert 0.98e-3 <= truth <= 1e-3


# Algorithms 2 and 3: the estimates of a whole run, and their errors.

PLANS = [
    plan_of(REGULAR, FAIR),
    plan_of(REGULAR, OPPOSED, RARE, OFTEN),
    plan_of(WIDE, OPPOSED, FAIR, hold=False),
    plan_of(FIGURE_2, Coins(4, QUARTER)),
    plan_of(SINGLES, FAIR, OPPOSED, hold=False),
    plan_of(WIDE, Coins(4, HALF), FAIR, values=Reals(-2.0, 5.0), steps=(3, 5)),
    plan_of(WIDE, FAIR, values=Reals(-2.0, 5.0), steps=(1, 2), hold=False),
]
plans = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.tree.degrees}")


def held_by(plan: Plan, seed: int = 1) -> list[float]:
    """Everybody's value, at one of the ends: then nothing is rounded."""
    ends = [float(plan.values.lows[0]), float(plan.values.highs[0])]
    return [ends[i] for i in np.random.default_rng(seed).integers(0, 2, plan.horizon)]


def with_combination(plan: Plan) -> Plan:
    return Plan(plan.tree, plan.mechanisms, plan.privacy, plan.shufflers, hold=plan.hold)


@plans
@combining
def test_the_server_says_what_algorithm_3_says(plan: Plan, combine: bool) -> None:
    """From the same messages of the same batches."""
    plan = with_combination(plan) if combine else plan
    truth, server = slow_server(plan), SumServer(plan)
    values = [[number] for number in held_by(plan)]
    run = reference.concurrent_shuffle(
        values, plan.tree.levels, Relay(truth, server, plan), Random(2)
    )
    for t, estimate in enumerate(run, start=1):
        (value,), variance = slow_estimate(plan, sums_of(truth), t)
        if not combine and plan.hold:
            assert estimate[0] == pytest.approx(value)
        found = server.estimate(t)
        assert found.value == pytest.approx(value, rel=1e-12, abs=1e-9)
        assert found.std == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert server.covered == t - t % plan.tree.lowest


def sums_of(server: reference.TreeServer) -> dict[Node, Floats]:
    return {fast_node(v): np.array(total) for v, total in server.sums.items()}


class Relay:
    """Hands all that the slow server receives to the fast one, too."""

    def __init__(self, truth: reference.TreeServer, server: SumServer, plan: Plan) -> None:
        self._truth, self._server, self._plan = truth, server, plan
        self.activate, self.estimate = truth.activate, truth.estimate

    def receive(self, t: int, shuffler: int, shuffled: list[reference.Message]) -> None:
        self._truth.receive(t, shuffler, shuffled)
        size = self._plan.tree.sizes[shuffler]
        self._server.receive(Node(shuffler + 1, t - size, t), fast_batch(shuffled))


@plans
@combining
def test_a_continual_sum_says_what_algorithm_3_says_of_its_batches(
    plan: Plan, combine: bool
) -> None:
    plan = with_combination(plan) if combine else plan
    total, sums = oh.ContinualSum(plan, seeded_random(4)), dict[Node, float]()
    plain = oh.ContinualSum(without_combination(plan), seeded_random(4))
    for t, value in enumerate(held_by(plan), start=1):
        total.update(value)
        plain.update(value)
        for node in plan.tree.closes(t):
            sums[node] = plain.between(node.start, node.stop).value
        (expected,), variance = slow_estimate(plan, sums, t)
        assert total.estimate.value == pytest.approx(expected, rel=1e-12, abs=1e-9)
        assert total.estimate.std == pytest.approx(math.sqrt(variance), rel=1e-12)


def without_combination(plan: Plan) -> Plan:
    """Of which the range of a batch has its sum as it came."""
    return Plan(plan.tree, plan.mechanisms, plan.privacy, plan.shufflers, combine=False)


SILENT_PLANS = [
    plan_of(REGULAR, SILENT),
    plan_of(WIDE, SILENT, hold=False),
    plan_of(WIDE, SILENT, values=Reals(-2.0, 5.0), steps=(3, 5)),
]


@pytest.mark.parametrize("plan", SILENT_PLANS, ids=lambda plan: str(plan.values))
def test_without_coins_all_runs_are_the_same(plan: Plan) -> None:
    held, truth = held_by(plan, seed=9), slow_server(plan)
    values = [[number] for number in held]
    list(reference.concurrent_shuffle(values, plan.tree.levels, truth, Random(1)))
    sums = sums_of(truth)
    expected = [slow_estimate(plan, sums, t)[0][0] for t in range(1, plan.horizon + 1)]
    rows = plan.values.rows(held)
    for engine in (CountsRun, MessagesRun):
        estimates = engine(plan, seeded_random(1)).estimates(rows)
        np.testing.assert_allclose(estimates, expected, rtol=1e-12, atol=1e-9)
    total, many = oh.ContinualSum(plan, seeded_random(1)), oh.ContinualSum(plan, seeded_random(1))
    for t, number in enumerate(held, start=1):
        total.update(number)
        assert total.estimate.value == pytest.approx(expected[t - 1], abs=1e-9)
    many.update_many(held)
    assert many.estimate.value == pytest.approx(expected[-1], abs=1e-9)


LONG = plan_of(RegularTree(3 * samples_for(0.08) * 2, (3, 2)), OPPOSED, RARE)


def test_the_batches_of_a_continual_sum_have_the_law_of_the_paper() -> None:
    """Each of them, and a batch less its children: noise that is independent."""
    total = oh.ContinualSum(LONG, seeded_random(5))
    total.update_many(np.zeros(LONG.horizon, np.uint8))
    low, high = (reference.sum_law(slow_mechanism(m), [0] * m.size) for m in LONG.mechanisms)
    below, own = (
        np.array([total.between(node.start, node.stop).value for node in nodes])
        for nodes in ([LONG.tree.node(level, i) for i in range(LONG.horizon // size)]
                      for level, size in enumerate(LONG.tree.sizes, start=1))
    )  # fmt: skip
    assert_drawn(below, low)
    assert_drawn(own, high)
    pairs = reference.combine(operator.add, low, low)
    assert_drawn(
        own - below.reshape(-1, 2).sum(axis=1), reference.combine(operator.sub, high, pairs)
    )


@pytest.mark.parametrize("gap", [0, 5], ids=["at once", "bit by bit"])
def test_the_simulation_has_the_law_of_the_estimate(gap: int) -> None:
    """At many times of as many runs side by side."""
    plan, runs = plan_of(RegularTree(40, (2, 3, 3)), FAIR, OPPOSED, RARE), samples_for(0.08)
    truth = slow_server(plan)
    engine = CoverNoise(plan, seeded_random(6), runs=(runs,))
    nobody = np.empty(0)
    if gap:
        early = engine.at(0, gap, nobody)
        noise = np.concatenate([early[:-1], engine.at(gap, 20, nobody)])
    else:
        noise = engine.at(0, 20, nobody)
    for t in (2, 16, 18, 34, 40):
        law = reference.estimate_law(truth.tree, truth.mechanisms, [0] * 40, t)
        assert_drawn(noise[t // 2], law)


def test_the_simulation_of_combined_sums_has_their_law() -> None:
    plan, runs = plan_of(FIGURE_2, FAIR, OPPOSED, combine=True), samples_for(0.08)
    weight = Fraction(plan.combination.own_weights[1]).limit_denominator(1000)
    assert float(weight) == plan.combination.own_weights[1]
    low, high = (reference.sum_law(slow_mechanism(m), [0] * m.size) for m in plan.mechanisms)
    both = reference.combine(operator.add, low, low)
    law = reference.combine(lambda x, y: weight * x + (1 - weight) * y, high, both)
    noise = CoverNoise(plan, seeded_random(6), runs=(runs,)).at(0, 2, np.empty(0))
    assert_drawn(noise[2], law, step=1 / weight.denominator)


@plans
@combining
def test_the_errors_of_a_plan_are_those_of_its_law(plan: Plan, combine: bool) -> None:
    plan = with_combination(plan) if combine else plan
    times, nothing = range(1, plan.horizon + 1), dict.fromkeys(nodes(plan.tree), 0.0)
    noise = [slow_estimate(plan, nothing, t)[1] for t in times]
    (middle,), ends = counts_as(plan), (plan.values.lows[0], plan.values.highs[0])
    worst = max(abs(end - middle) for end in ends) * np.array([pending(plan, t) for t in times])
    at = np.array(times)
    assert plan.noise_variance(at) == pytest.approx(noise)
    assert plan.squared_error(at) == pytest.approx(noise + worst**2)
    assert plan.rms_error == pytest.approx(math.sqrt(np.mean(noise + worst**2)))
    assert plan.worst_std == pytest.approx(math.sqrt(max(noise)))
    if plan.values.is_whole and not combine:
        truth = slow_server(plan)
        for t in (plan.tree.lowest, plan.horizon // 2, plan.horizon):
            law = reference.estimate_law(truth.tree, truth.mechanisms, [0] * plan.horizon, t)
            assert noise[t - 1] == pytest.approx(float(reference.variance(law)))


def is_same(one: Node, other: Node) -> float:
    return float(one == other)


@plans
def test_the_combination_of_least_variance(plan: Plan) -> None:
    combined = with_combination(plan)
    found = Combination.of(plan.tree, plan.level_variances, combine=True)
    for level, (weight, variance) in enumerate(
        zip(found.own_weights, found.variances, strict=True)
    ):
        node = plan.tree.node(level + 1, 0)
        expected = weigh(combined, partial(is_same, node), node)
        assert (weight, variance) == pytest.approx(expected)
        if level:
            below = plan.tree.degrees[level] * found.variances[level - 1]
            best = min(
                w**2 * plan.level_variances[level] + (1 - w) ** 2 * below
                for w in np.linspace(0, 1, 1001)
            )
            assert variance <= best <= variance * 1.001
    assert found == combined.combination


@pytest.mark.parametrize("shufflers", [None, 1, 2, 3])
def test_the_published_plan_is_the_papers(shufflers: int | None) -> None:
    plan = Plan.published(200, shufflers, PRIVACY)
    degrees = (
        reference.published_degrees(200, shufflers) if shufflers else reference.binary_degrees(200)
    )
    share = len(degrees)
    assert plan.tree.degrees == degrees
    for mechanism in plan.mechanisms:
        truth = reference.binary_summation(mechanism.size, 1.0 / share, 1e-6 / share)
        assert slow_mechanism(mechanism) == truth
    assert (plan.combine, plan.imputed) == (False, 0.0)


# Section 4: the lower bound.


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_rep_and_big_are_the_papers(k: int, epsilon: float) -> None:
    for n in (100, 10**6, 10**12):
        rep, big = reference.rep_and_big(n, k, epsilon)
        assert (repeats(n, k, epsilon), big_batch(n, k, epsilon)) == pytest.approx((rep, big))
        # n c^2 / Big, which is (2 rep)^2, must exceed 200^2.
        largest = min(epsilon, 1) / (40 * n * (k + 1))
        assert largest_delta(n, k, epsilon) == pytest.approx(largest)
        assert is_proved(n, k, epsilon, 0.9 * largest) == (2 * rep > 200)
        assert not is_proved(n, k, epsilon, 1.1 * largest)
        assert n * bit_variance_root(epsilon) ** 2 / big == pytest.approx((2 * rep) ** 2)
    least = least_horizon(k, epsilon)
    assert reference.rep_and_big(least * (1 - 1e-6), k, epsilon)[0] < 100
    assert reference.rep_and_big(least * (1 + 1e-6), k, epsilon)[0] > 100


def told(bits: Iterable[int]) -> Random:
    """Shows bits that a test chooses, and then zeros."""
    stream = itertools.chain(bits, itertools.repeat(0))
    return cast(Random, SimpleNamespace(getrandbits=lambda _: next(stream)))


@pytest.mark.parametrize(("n", "copies", "prefix"), [(23, 3, (1, 1)), (12, 1, ()), (30, 6, (0,))])
def test_hard_inputs_are_those_of_delta(n: int, copies: int, prefix: tuple[int, ...]) -> None:
    hard = HardInput(n, copies, len(prefix), prefix[0] if prefix else 0)
    rounds = -(-(n - len(prefix)) // (copies + 1))
    zeros = reference.hard_input(n, copies, prefix, told([]))
    single: list[int] = []
    for chosen in range(2 * rounds):
        bits = [int(coin == chosen) for coin in range(2 * rounds)]
        expected = reference.hard_input(n, copies, prefix, told(bits))
        assert hard.draw(Given([], bits)).tolist() == expected
        if chosen % 2 == 0:
            single += [i for i in range(n) if expected[i] != zeros[i]]
    assert list(range(len(prefix), n, copies + 1)) == single
    assert HardInput.against(10**6, 2, 1.0).copies == int(reference.rep_and_big(10**6, 2, 1.0)[0])


# Section 5: Algorithm 4.

D, N = 3, 60
THEORY = Theory(dimension=D, horizon=N, entry_error=2.0)
TRUE_THETA = (0.6, -0.5, 0.4)
BANDIT_TREE = RegularTree(N, (4, 3))


def arms_of_users(rng: np.random.Generator, users: int, arms: int = 4) -> list[list[list[float]]]:
    raw = rng.uniform(-1, 1, (users, arms, D))
    lengths = np.maximum(1, np.linalg.norm(raw, axis=-1, keepdims=True))
    return (raw / lengths).tolist()  # type: ignore[no-any-return]


def pack(sums: Sequence[float]) -> Floats:
    """The slow server's sums as the fast one has them: off the diagonal sqrt(2) times as large."""
    pairs = list(itertools.combinations_with_replacement(range(D), 2))
    factors = [1.0] * D + [1.0 if i == j else math.sqrt(2) for i, j in pairs]
    return np.array(sums) * factors


@pytest.fixture(scope="module")
def game() -> tuple[reference.BanditServer, list[list[list[float]]], list[reference.Vector]]:
    """Algorithm 4 over two shufflers, with coins."""
    mechanisms = [reference.Mechanism(m, (reference.HALF,) * 2, 8, -1, 1) for m in (4, 12)]
    server = reference.BanditServer(slow_tree(BANDIT_TREE), mechanisms, D, THEORY.entry_error)
    users, chance = arms_of_users(np.random.default_rng(3), N), Random(4)
    chosen = reference.play(
        users,
        lambda x: float(chance.random() < 0.5 + reference.dot(x, TRUE_THETA) / 2),
        server,
        chance,
    )
    return server, users, chosen


def regret(users: Any, chosen: Sequence[reference.Vector]) -> float:
    best = [max(reference.dot(TRUE_THETA, x) for x in arms) for arms in users]
    return sum(b - reference.dot(TRUE_THETA, x) for b, x in zip(best, chosen, strict=True))


def test_the_learner_makes_the_policies_of_algorithm_4(game: Any) -> None:
    """Of the same sums, at every release: the same theta, the same scores, the same choices."""
    server, users, chosen = game
    learner, arms = LinUCB(THEORY), np.array(users)
    earned: list[reference.Vector] = []
    for t in range(4, N + 1):
        policy = learner.policy(t, pack(server.estimate(t)), std=1.0)
        score = server.policy(t)
        along = [(score(axis) - score((-axis).tolist())) / 2 for axis in np.eye(D)]
        np.testing.assert_allclose(policy.theta, along, rtol=1e-9, atol=1e-12)
        scores = [[score(x) for x in choices] for choices in users]
        np.testing.assert_allclose(policy.scores(arms), scores, rtol=1e-9)
        picked = policy.choose(arms)
        assert picked.tolist() == np.argmax(scores, axis=1).tolist()
        assert [int(policy.choose(own)) for own in arms] == picked.tolist()
        if t < N:
            earned.append(users[t][int(picked[t])])
    assert earned == chosen[4:]
    assert regret(users[4:], earned) == pytest.approx(regret(users[4:], chosen[4:]))


def test_users_report_what_algorithm_4_says() -> None:
    learner, rng = LinUCB(THEORY), np.random.default_rng(8)
    x, y = np.array(arms_of_users(rng, 1, 50)[0]), rng.uniform(0, 1, 50)
    expected = [reference.report(row, reward) for row, reward in zip(x.tolist(), y, strict=True)]
    np.testing.assert_allclose(learner.rows(x, y), [pack(row) for row in expected], rtol=1e-12)
    vector, gram = learner.moments.split(learner.rows(x, y).sum(axis=0))
    np.testing.assert_allclose(vector, x.T @ y, rtol=1e-12)
    np.testing.assert_allclose(gram, x.T @ x, rtol=1e-12)


def test_the_constants_of_theorem_c_3() -> None:
    """Before the first batch, when all that is known of a matrix is its shift."""
    for d, n, error in [(1, 100, 3.0), (3, 60, 2.0), (5, 10**5, 300.0)]:
        theory, whole = Theory(d, n, error), [reference.Mechanism(n, ())]
        server = reference.BanditServer(reference.Tree(n, (n,)), whole, d, error)
        axis = [1.0] + [0.0] * (d - 1)
        assert theory.shift(0, 0.0) == server.shift
        for t in (0, n // 2, n - 1):
            width = server.policy(t)(axis)
            assert theory.radius(t) == pytest.approx(width * math.sqrt(server.shift))
            assert theory.widths(np.array([server.shift]), t, 0.0) == pytest.approx([width])


def test_a_recommender_without_noise_plays_algorithm_4() -> None:
    """Features 1 and -1, which are whole steps: nothing is left to chance but the first batch."""
    tree = RegularTree(60, (5, 3))
    mechanisms = tuple(CoinSum(size, SILENT, oh.RegressionStatistics(1), 2) for size in tree.sizes)
    plan = Plan(tree, mechanisms, PRIVACY, 2, combine=True)
    recommender = Recommender(plan, seeded_random(2), constants=Theory(1, 60, 0.5))
    server = reference.BanditServer(
        slow_tree(tree), [slow_mechanism(m) for m in mechanisms], 1, 0.5
    )
    chosen: list[float] = []
    users = [[[1.0], [-1.0]] if t % 3 else [[-1.0], [0.0], [1.0]] for t in range(60)]

    def reports() -> Iterable[reference.Vector]:
        for t, arms in enumerate(users, start=1):
            arm = recommender.recommend(arms)
            if t > 5:
                assert arms[arm] == max(arms, key=server.policy((t - 1) // 5 * 5))
            (x,) = arms[arm]
            reward = (1 + x) / 2
            recommender.update(np.array([x]), reward)
            chosen.append(x)
            yield reference.report([x], reward)

    for t, sums in enumerate(
        reference.concurrent_shuffle(reports(), 2, server, Random(1)), start=1
    ):
        if t % 5 == 0:
            policy = recommender.policy
            assert policy is not None
            assert policy.t == t
            assert policy.theta[0] == pytest.approx(sums[0] / (sums[1] + server.shift))
    assert set(chosen[5:]) == {1.0}
