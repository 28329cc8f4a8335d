"""Any mechanism, also one that nothing else knows of: registered, it is planned, kept and run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.errors import DamagedPlan, InvalidValue
from overhand.lab.simulation import Engine, PlanCounter
from overhand.lab.simulation.run import ENGINES
from overhand.mechanisms import MECHANISMS, SharesSum
from overhand.model import Counts, Messages, Rows
from overhand.noise import Coins
from overhand.randomness import HALF, Random, seeded_random
from overhand.shuffle import shuffle, with_added
from overhand.values import BITS, Histogram, Reals, Values, Vectors
from support.kind_plans import chosen, points
from support.message_sums import ShuffledSum, release
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for
from support.small_plans import PRIVACY, REGULAR
from support.tally_mechanism import TallySum, tally

__all__ = ["tally"]

SILENT = Coins(0, HALF)
KINDS: list[tuple[Values, list[Any]]] = [
    (BITS, [0, 1]),
    (Reals(-1.0, 3.0), [-1.0, 0.0, 3.0]),
    (Vectors(2), [[0.5, -0.5], [0.0, 1.0], [0.5, 0.0]]),
    (Histogram(3), [0, 1, 2]),
]
each_kind = pytest.mark.parametrize(
    ("values", "choices"), [pytest.param(*case, id=str(case[0])) for case in KINDS]
)


def silent(values: Values, tree: oh.RegularTree = REGULAR) -> oh.Plan:
    """A plan of tallies without noise, of steps in which all choices are whole."""
    steps = 1 if values.is_whole else 4
    mechanisms = tuple(TallySum(size, SILENT, values, steps) for size in tree.sizes)
    return oh.Plan(tree, mechanisms, PRIVACY, tree.levels)


# A new mechanism is a file and a line.


@pytest.mark.usefixtures("tally")
@each_kind
def test_a_registered_mechanism_is_planned_saved_and_read_back(
    values: Values, choices: list[Any], tmp_path: Path
) -> None:
    plan = oh.Plan.best(300, 2, PRIVACY, values=values, mechanism="tally")
    assert all(type(mechanism) is TallySum for mechanism in plan.mechanisms)
    assert 0.8 * PRIVACY.delta <= plan.delta_spent <= PRIVACY.delta
    assert plan.messages_per_user == plan.tree.levels * values.dimension
    assert "tally" in repr(plan)
    assert {level["mechanism"] for level in plan.summary()["levels"]} == {"tally"}
    plan.save(tmp_path / "plan.json")
    assert oh.Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.usefixtures("tally")
def test_a_limit_of_messages_that_only_it_keeps_to_chooses_it() -> None:
    with pytest.raises(oh.Infeasible):
        oh.Plan.best(301, 2, PRIVACY, max_messages=1)
    plan = oh.Plan.best(301, 2, PRIVACY, max_messages=1, mechanism="tally")
    assert (plan.messages_per_user, plan.tree.levels) == (1, 1)


@pytest.mark.usefixtures("tally")
@pytest.mark.parametrize("engine", ENGINES)
@each_kind
def test_both_engines_run_it_exactly_if_it_has_no_noise(
    values: Values, choices: list[Any], engine: Engine
) -> None:
    plan, raw = silent(values), chosen(choices, REGULAR.horizon)
    run = PlanCounter(plan, engine).start(seeded_random(3))
    estimates = run.estimates(values.rows(raw)).reshape(len(raw), -1)
    lowest, truth = plan.tree.lowest, points(values, raw).cumsum(axis=0)
    assert np.allclose(estimates[lowest - 1 :: lowest], truth[lowest - 1 :: lowest])


def by_algorithm_1(plan: oh.Plan, raw: list[Any], seed: int) -> oh.Estimate:
    total = ShuffledSum(plan, oh.seeded_random(seed), oh.seeded_random(seed + 1))
    for value in raw:
        total.update(value)
    return total.estimate


@pytest.mark.usefixtures("tally")
@each_kind
def test_concurrent_shufflers_and_a_continual_sum_run_it(
    values: Values, choices: list[Any]
) -> None:
    plan, raw = silent(values), chosen(choices, 48)
    total = oh.ContinualSum(plan, oh.seeded_random(2))
    total.update_many(raw)
    for estimate in (by_algorithm_1(plan, raw, 1), total.estimate):
        assert estimate.t == 48
        assert estimate.std**2 == pytest.approx(plan.noise_variance(np.array([48]))[0])
        assert np.atleast_1d(estimate.value) == pytest.approx(points(values, raw).sum(axis=0))


DISCREPANCY = 0.09
NOISE = Coins(2, HALF)
ONE_A_BATCH = oh.RegularTree(samples_for(DISCREPANCY), (1,))
Runner = Callable[[oh.Plan], list[float]]


def distance_law(users: int) -> Outcomes:
    """How far from 0 the noise of so many users is."""
    law = NOISE.law(users).pmf.probabilities
    folded = law[users:].copy()
    folded[1:] += law[:users][::-1]
    return Outcomes(0, folded)


def by_shufflers(plan: oh.Plan) -> list[float]:
    total = ShuffledSum(plan, seeded_random(1), seeded_random(2))
    estimates: list[float] = []
    for _ in range(plan.horizon):
        total.update(0)
        estimates.append(total.estimate.value)
    return estimates


def by_messages(plan: oh.Plan) -> list[float]:
    return list(PlanCounter(plan, "messages").start(seeded_random(3)).estimates(zeros(plan)))


def by_counts(plan: oh.Plan) -> list[float]:
    return list(PlanCounter(plan, "counts").start(seeded_random(4)).estimates(zeros(plan)))


def by_continual_sum(plan: oh.Plan) -> list[float]:
    total = oh.ContinualSum(plan, seeded_random(5))
    estimates: list[float] = []
    for _ in range(plan.horizon):
        total.update(0)
        estimates.append(total.estimate.value)
    return estimates


def zeros(plan: oh.Plan) -> Rows:
    return plan.values.rows([0] * plan.horizon)


def noise_seen(mechanism: TallySum, run: Runner) -> Counts:
    plan = oh.Plan(ONE_A_BATCH, (mechanism,), PRIVACY, 1)
    return np.abs(np.rint(np.diff(run(plan), prepend=0.0))).astype(np.int64)


@pytest.mark.parametrize("run", [by_shufflers, by_messages, by_counts, by_continual_sum])
def test_the_noise_is_that_of_the_user_and_of_both_services(run: Runner) -> None:
    seen = noise_seen(TallySum(1, NOISE), run)
    assert_follows(seen, distance_law(3), discrepancy=DISCREPANCY)


class ShufflerForgets(TallySum):
    def draw_added(self, random: Random, batches: int = 1) -> Messages:
        return TallySum(self.size, SILENT).draw_added(random, batches)


class ServerForgets(TallySum):
    def server_noise(self, random: Random, batches: int) -> Counts | None:
        return None


@pytest.mark.parametrize("mutant", [ShufflerForgets, ServerForgets])
@pytest.mark.parametrize("run", [by_shufflers, by_messages])
def test_the_law_sees_a_service_that_forgets_its_noise(run: Runner, mutant: type[TallySum]) -> None:
    assert kolmogorov(distance_law(3), distance_law(2), range(4)) > DISCREPANCY
    seen = noise_seen(mutant(1, NOISE), run)
    assert_follows(seen, distance_law(2), discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen, distance_law(3), discrepancy=DISCREPANCY)


@pytest.mark.parametrize(("noise", "sums"), [(NOISE, {-1.0, 0.0, 1.0}), (SILENT, {0.0})], ids=str)
def test_a_sum_with_garbage_in_mind_has_the_noise_of_the_server(
    noise: Coins, sums: set[float]
) -> None:
    mechanism, random = TallySum(2, SILENT), seeded_random(1)
    messages = mechanism.encode_many([0, 0], random).gather(2)
    shuffled = shuffle(with_added(messages, mechanism, random), random)
    noisy = TallySum(2, noise)
    assert {noisy.sum_batch(shuffled, 0, random) for _ in range(100)} == {(s, 0.0) for s in sums}


@pytest.mark.usefixtures("tally")
def test_an_unregistered_mechanism_is_unknown_to_plans_and_files() -> None:
    saved = oh.Plan.best(300, 2, PRIVACY, mechanism="tally").to_json()
    del MECHANISMS["tally"]
    try:
        with pytest.raises(InvalidValue, match="mechanism='tally' must be one of coins, shares"):
            oh.Plan.best(301, 2, PRIVACY, mechanism="tally")  # a plan made before is remembered
        with pytest.raises(DamagedPlan, match="'tally' is not one of coins, shares"):
            oh.Plan.from_json(saved)
    finally:
        MECHANISMS["tally"] = TallySum


# What services add, where users make all the noise: nothing.


@pytest.mark.parametrize(
    "mechanism",
    [
        oh.CoinSum(3, Coins(2, HALF)),
        SharesSum(3, Coins(2, HALF), Histogram(2), shares=3, modulus_bits=6, honest=3),
    ],
    ids=["coins", "shares"],
)
def test_services_add_nothing_to_coins_and_shares(mechanism: Any) -> None:
    random = seeded_random(1)
    added = mechanism.draw_added(random)
    assert (added.sealed.shape, added.clear.shape) == ((1, 0), (1, 0))
    assert mechanism.server_noise(random, 3) is None
    messages = mechanism.encode_many([0, 1, 1], random).gather(3)
    assert with_added(messages, mechanism, random) is messages


@each_kind
def test_what_a_service_adds_is_in_the_released_batch(values: Values, choices: list[Any]) -> None:
    mechanism = TallySum(3, SILENT, values, 1 if values.is_whole else 4)
    raw, random = chosen(choices, 3), seeded_random(1)
    messages = mechanism.encode_many(raw, random)
    released = release(mechanism, [messages], random)
    assert (
        released.sealed.shape
        == (1, 4 * values.dimension)
        == (1, mechanism.layout.messages_per_batch(mechanism.size))
    )
    assert set(messages.sealed.reshape(-1).tolist()) < set(released.sealed.reshape(-1).tolist())
    assert released.clear.shape == (1, values.dimension)
    assert np.atleast_1d(mechanism.sum_of(released)) == pytest.approx(points(values, raw).sum(0))
    bare = shuffle(messages.gather(3), random)
    with pytest.raises(InvalidValue, match="messages in a batch that has"):
        mechanism.sum_of(bare)


# Nothing in src but a mechanism's own module asks which mechanism it has.

SRC = Path(oh.__file__).parent


def asked_kinds(source: str) -> Iterator[str]:
    """The mechanisms that isinstance, issubclass, type() or a match statement is asked about."""
    kinds = {mechanism.__name__ for mechanism in MECHANISMS.values()}
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass"):
                asked = list(node.args[1:])
        elif isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Call) and getattr(part.func, "id", "") == "type"
            for part in (node.left, *node.comparators)
        ):
            asked = [node]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        for part in asked:
            for named in ast.walk(part):
                name = getattr(named, "id", getattr(named, "attr", ""))
                if name in kinds:
                    yield name


@pytest.mark.parametrize("source", ["isinstance(m, CoinSum)", "isinstance(m, (A, oh.SharesSum))",
                         "type(m) is CoinSum", "type(m) in (CoinSum,)", "issubclass(t, SharesSum)",
                         "match m:\n  case SharesSum():\n    pass"])  # fmt: skip
def test_the_check_of_the_source_sees(source: str) -> None:
    assert list(asked_kinds(source))


@pytest.mark.parametrize("source", ["isinstance(m, Coins)", "CoinSum(3, n)", "type(m).__name__"])
def test_the_check_of_the_source_passes(source: str) -> None:
    assert not list(asked_kinds(source))


def test_no_module_asks_which_mechanism_it_has() -> None:
    asking = {
        path.relative_to(SRC).parts[0]
        for path in SRC.rglob("*.py")
        if path.relative_to(SRC).parts[0] != "mechanisms"
        and list(asked_kinds(path.read_text(encoding="utf-8")))
    }
    assert not asking


def test_a_mechanism_asks_after_no_other() -> None:
    own = {Path(SRC / "mechanisms" / f"{kind}.py"): cls for kind, cls in MECHANISMS.items()}
    for path in (SRC / "mechanisms").glob("*.py"):
        allowed = {own[path].__name__} if path in own else set()
        assert set(asked_kinds(path.read_text(encoding="utf-8"))) <= allowed
    assert all(path.exists() for path in own)


def test_every_kind_is_registered_by_its_own_name() -> None:
    assert list(MECHANISMS) == [mechanism.kind for mechanism in MECHANISMS.values()]
    for mechanism in MECHANISMS.values():
        assert {choice.mechanism for choice in mechanism.noise_choices(BITS)} == {mechanism}
