"""Any mechanism, also one that nothing else knows of: registered, it is planned, kept and run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.errors import DamagedPlan, InvalidValue
from overhand.lab.simulation import Engine, start_run
from overhand.lab.simulation.run import ENGINES
from overhand.mechanisms import MECHANISMS, BallotSum, Mechanism, PairsSum, SharesSum
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.noise import Clip, Coins, CorrelatedNoise, IndependentNoise, Polya, ServiceNoise
from overhand.planning.blocks import blocks_tree
from overhand.randomness import HALF, Random, seeded_random
from overhand.values import BITS, Histogram, Reals, Values, Vectors
from support.kind_plans import chosen, fed, points
from support.message_sums import ShuffledSum
from support.sampling import (
    SAMPLES,
    Outcomes,
    assert_follows,
    assert_normal,
    kolmogorov,
    samples_for,
)
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
    assert plan.messages_per_user == 2 * plan.tree.levels * values.dimension
    assert "tally" in repr(plan)
    assert {level["mechanism"] for level in plan.summary()["levels"]} == {"tally"}
    plan.save(tmp_path / "plan.json")
    assert oh.Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.usefixtures("tally")
def test_a_limit_of_messages_that_only_it_keeps_to_chooses_it() -> None:
    with pytest.raises(oh.Infeasible):
        oh.Plan.best(301, 2, PRIVACY, max_messages=2)
    plan = oh.Plan.best(301, 2, PRIVACY, max_messages=2, mechanism="tally")
    assert (plan.messages_per_user, plan.tree.levels) == (2, 1)


class Pledges(PairsSum):
    """A mechanism of the services under another name."""

    kind = "pledges"


@each_kind
def test_so_is_one_whose_noise_the_services_make(
    values: Values, choices: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MECHANISMS, "pledges", Pledges)
    plan = oh.Plan.best(300, privacy=PRIVACY, values=values, mechanism="pledges")
    assert type(plan.mechanisms[0]) is Pledges
    assert (plan.noise_by, plan.tree.levels, plan.messages_per_user) == ("services", 1, 1)
    less = replace(plan, mechanisms=(plan.mechanisms[0].reduce(0.98),))
    assert plan.delta_spent <= PRIVACY.delta < less.delta_spent
    plan.save(tmp_path / "plan.json")
    assert oh.Plan.load(tmp_path / "plan.json") == plan
    raw = chosen(choices, 290)
    for estimate in (by_algorithm_1(plan, raw, 1), fed(plan, raw).estimate):
        off = np.atleast_1d(estimate.value) - points(values, raw).sum(axis=0)
        assert np.abs(off).max() <= plan.error_bound(1e-9)


@pytest.mark.usefixtures("tally")
@pytest.mark.parametrize("engine", ENGINES)
@each_kind
def test_both_engines_run_it_exactly_if_it_has_no_noise(
    values: Values, choices: list[Any], engine: Engine
) -> None:
    plan, raw = silent(values), chosen(choices, REGULAR.horizon)
    run = start_run(plan, seeded_random(3), engine)
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


# Noise, of users or of both services, however it is run.

DISCREPANCY = 0.09
BATCHES = samples_for(DISCREPANCY)
COINS, STEPS = Coins(2, HALF), Polya(shape=1, users=1, ratio=0.4)
TALLY = TallySum(1, COINS)
PAIRS = PairsSum(1, IndependentNoise(STEPS, cap=BATCHES), modulus_bits=20)
BALLOTS = BallotSum(1, IndependentNoise(STEPS, cap=BATCHES), bound=30, dummies=60)
Runner = Callable[[oh.Plan], Floats]


def by_shufflers(plan: oh.Plan) -> Floats:
    return one_by_one(ShuffledSum(plan, seeded_random(1), seeded_random(2)), plan)


def by_messages(plan: oh.Plan) -> Floats:
    return start_run(plan, seeded_random(3), "messages").estimates(zeros(plan))


def by_counts(plan: oh.Plan) -> Floats:
    return start_run(plan, seeded_random(4), "counts").estimates(zeros(plan))


def by_continual_sum(plan: oh.Plan) -> Floats:
    return one_by_one(oh.ContinualSum(plan, seeded_random(5)), plan)


def one_by_one(total: ShuffledSum | oh.ContinualSum, plan: oh.Plan) -> Floats:
    estimates: list[Any] = []
    for _ in range(plan.horizon):
        total.update(0)
        estimates.append(total.estimate.value)
    return np.array(estimates)


def zeros(plan: oh.Plan) -> Rows:
    return plan.values.rows([0] * plan.horizon)


RUNNERS = [by_shufflers, by_messages, by_counts, by_continual_sum]


def one_a_batch(mechanism: Mechanism) -> oh.Plan:
    if isinstance(mechanism.noise_share, ServiceNoise):
        return oh.Plan(blocks_tree(mechanism), (mechanism,), PRIVACY, 1)
    return oh.Plan(oh.RegularTree(BATCHES, (1,)), (mechanism,), PRIVACY, 1)


def noise_seen(mechanism: Mechanism, run: Runner) -> Counts:
    """How far from 0 the sums of all batches are: of one user each, who holds 0."""
    return np.abs(np.rint(np.diff(run(one_a_batch(mechanism)), prepend=0.0))).astype(np.int64)


def distance_law(mechanism: Mechanism, contributors: int) -> Outcomes:
    """How far from 0 the noise of so many is."""
    law = mechanism.noise(contributors)
    pmf = law.pmf
    middle = round(law.mean) - pmf.first
    folded = pmf.probabilities[middle:].copy()
    folded[1:] += pmf.probabilities[:middle][::-1]
    return Outcomes(0, folded)


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(
    ("mechanism", "contributors"), [(TALLY, 1), (PAIRS, 2), (BALLOTS, 2)], ids=str
)
def test_the_noise_is_that_of_the_user_or_of_both_services(
    mechanism: Mechanism, contributors: int, run: Runner
) -> None:
    law = distance_law(mechanism, contributors)
    assert_follows(noise_seen(mechanism, run), law, discrepancy=DISCREPANCY)


class ShufflerForgets(PairsSum):
    def added(self, noise: Counts) -> Messages:
        return super().added(np.zeros_like(noise))


class ServerForgets(PairsSum):
    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        return super().step_sums(shuffled)


class BallotsForgotten(BallotSum):
    def added(self, noise: Counts) -> Messages:
        return super().added(np.zeros_like(noise))


class UserForgets(TallySum):
    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        return TallySum(self.size, SILENT, self.values, self.steps).encode_rows(rows, random)


MUTANTS = [(ShufflerForgets, PAIRS, 1), (ServerForgets, PAIRS, 1), (BallotsForgotten, BALLOTS, 1)]


@pytest.mark.parametrize(("mutant", "sound", "left"), [*MUTANTS, (UserForgets, TALLY, 0)], ids=str)
@pytest.mark.parametrize("run", [by_shufflers, by_messages])
def test_the_law_sees_somebody_who_forgets_their_noise(
    run: Runner, mutant: type[Mechanism], sound: Mechanism, left: int
) -> None:
    due = distance_law(sound, left + 1)
    own = {name: getattr(sound, name) for name in sound.parameters}
    seen = noise_seen(mutant(1, sound.noise_share, **own), run)
    if left:
        less = distance_law(sound, left)
        assert kolmogorov(due, less, range(4)) > DISCREPANCY
        assert_follows(seen, less, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen, due, discrepancy=DISCREPANCY)


CORRELATED = CorrelatedNoise.of(deviation=8.0, blocks=16)
MANY = PairsSum(1, CORRELATED, Histogram(SAMPLES), modulus_bits=20)


def assert_correlated(mechanism: PairsSum, run: Runner) -> None:
    """Every coordinate is a sample: of the estimates of all times."""
    plan = oh.Plan(blocks_tree(mechanism), (mechanism,), PRIVACY, 1, horizon=16)
    estimates = run(plan)
    assert estimates.shape == (16, SAMPLES)
    estimates[:, 0] -= np.arange(1, 17)
    for t in (1, 2, 5, 16):
        assert_normal(estimates[t - 1], 2 * float(CORRELATED.prefix_variance(t)), tests=4)


@pytest.mark.parametrize("run", RUNNERS)
def test_noise_of_the_services_goes_on_from_block_to_block(run: Runner) -> None:
    assert_correlated(MANY, run)


class StartsAgain(CorrelatedNoise):
    """The state that is handed on is never that of the blocks before."""

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        rows = [
            CorrelatedNoise.advance(self, self.start(random, state.shape[1]), random, 1, clip)[0]
            for _ in range(blocks)
        ]
        return np.concatenate(rows), state


@pytest.mark.parametrize("run", RUNNERS)
def test_noise_that_does_not_go_on_would_be_seen(run: Runner) -> None:
    afresh = float(CORRELATED.prefix_variance(1))
    assert 5 * afresh > 1.3 * float(CORRELATED.prefix_variance(5))
    noise = StartsAgain(CORRELATED.step, CORRELATED.rotations, CORRELATED.cap)
    with pytest.raises(AssertionError, match="variance ratio"):
        assert_correlated(replace(MANY, noise_share=noise), run)


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
    random, row = seeded_random(1), np.zeros((1, mechanism.values.dimension), np.int64)
    assert mechanism.layout.added_messages == 0
    with pytest.raises(InvalidValue, match="the shuffling service adds nothing to batches of"):
        mechanism.added(row)
    with pytest.raises(InvalidValue, match=f"users make the noise of {mechanism.kind}"):
        mechanism.start_noise(random)
    with pytest.raises(InvalidValue, match=f"users make the noise of {mechanism.kind}"):
        mechanism.advance_noise(row, random)


@pytest.mark.parametrize("kind", [kind for kind in MECHANISMS if kind != "pairs"])
def test_only_pairs_have_masks(kind: str) -> None:
    mechanism = oh.Plan.best(300, epsilon=1.0, mechanism=kind).mechanisms[0]
    one = np.zeros(1, np.uint64)
    with pytest.raises(InvalidValue, match=f"messages of {kind} have no masks"):
        mechanism.mask_sums(np.zeros((1, 2, 16), np.uint8))
    with pytest.raises(InvalidValue, match=f"messages of {kind} have no masks"):
        mechanism.unmask(one, one, np.zeros((1, 1), np.int64))


def test_the_noise_of_one_family_is_refused_by_the_other() -> None:
    """Nobody would add it."""
    of_users: list[Any] = [COINS, STEPS]
    of_services: list[Any] = [CORRELATED, IndependentNoise(STEPS, cap=10)]
    for kind, mechanism in MECHANISMS.items():
        is_of_users = mechanism.noise_by == "users"
        wrong, by = (of_services, "services") if is_of_users else (of_users, "users")
        for noise in wrong:
            with pytest.raises(InvalidValue, match=f"{kind} cannot have noise made by the {by}"):
                mechanism.with_noise(20, noise, honest=20, distance=1e-3)
    with pytest.raises(InvalidValue, match="coins cannot have noise made by the services"):
        oh.CoinSum(3, CORRELATED)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="pairs cannot have noise made by the users"):
        replace(PAIRS, noise_share=COINS)


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
