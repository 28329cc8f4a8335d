"""The search for a plan: never refuses what can be had, never worse for more, near the best."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.errors import WeakDelta
from overhand.mechanisms import MECHANISMS, PairsSum
from overhand.noise import CorrelatedNoise, IndependentNoise, Polya, ServiceNoise
from overhand.planning import Requirements, calibrate, kinds_of
from overhand.planning.blocks import blocks_tree
from overhand.planning.search import best_split, draft_tree
from overhand.tree import RegularTree
from overhand.values import BITS, Histogram, Reals, RegressionStatistics, Values, Vectors
from support.cli_runner import overhand as run_overhand

DELTA = 1e-6
MILLION = 10**6


def rms_error(horizon: int, shufflers: int, epsilon: float, **asked: Any) -> float:
    """Infinite if there is no such plan."""
    try:
        return oh.Plan.best(horizon, shufflers, oh.Privacy(epsilon, DELTA), **asked).rms_error
    except oh.Infeasible:
        return math.inf


# What is feasible is not refused.


@pytest.mark.parametrize("mechanism", ["best", "shares"])
@pytest.mark.parametrize(
    ("horizon", "epsilon", "honest"), [(60, 6.0, 1.0), (10_000, 4.0, 0.05), (4, 8.0, 1.0)]
)
def test_shares_find_batches_with_enough_honest_users(
    mechanism: str, horizon: int, epsilon: float, honest: float
) -> None:
    asked = oh.Privacy(epsilon, DELTA)
    plan = oh.Plan.best(horizon, 2, asked, mechanism=mechanism, honest=honest)
    assert plan.delta_spent <= DELTA
    assert math.floor(plan.tree.lowest * honest) >= 2 or plan.mechanisms[0].kind == "coins"


def test_a_candidate_that_turns_out_to_be_infeasible_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = oh.Plan.best(900, 2, oh.Privacy(1.0, DELTA))

    def refusing(sizes: Any, *others: Any) -> Any:
        if sizes == first.tree.sizes:
            raise oh.Infeasible("not this one")
        return calibrate(sizes, *others)

    monkeypatch.setattr("overhand.planning.search.calibrate", refusing)
    second = oh.Plan.best(900, 2, oh.Privacy(1.0, DELTA), reports=1, honest=1.0 - 1e-12)
    assert second.tree != first.tree
    assert second.rms_error <= 1.02 * first.rms_error


@pytest.mark.parametrize("epsilon", [16.0, 50.0])
@pytest.mark.parametrize("mechanism", ["coins", "shares"])
def test_a_large_epsilon_works(epsilon: float, mechanism: str) -> None:
    plan = oh.Plan.best(1000, 3, oh.Privacy(epsilon, DELTA), mechanism=mechanism)
    assert plan.delta_spent <= DELTA
    assert plan.rms_error < plan.error_bound() < 10


@pytest.mark.parametrize(("messages", "lowest"), [(3, 300), (5, 160)])
def test_few_messages_take_large_batches(messages: int, lowest: int) -> None:
    """Beyond what would pay without the limit."""
    plan = oh.Plan.best(1000, 3, oh.Privacy(0.3, DELTA), max_messages=messages)
    assert plan.messages_per_user <= messages
    assert lowest <= plan.tree.lowest <= 1.2 * lowest


# More is never worse.

GRID = [(1000, "coins", BITS), (1000, "shares", BITS)]
LARGE_GRID = [
    *[(n, "coins", BITS) for n in (7, 200, 5000, 10**5)],
    *[(1000, "coins", values) for values in (Reals(), Histogram(3), Vectors(3))],
    *[(n, "shares", values) for n in (60, 5000) for values in (BITS, Reals(), Vectors(3))],
]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in LARGE_GRID]
FEW_USERS = pytest.param(60, "coins", BITS, marks=pytest.mark.slow)


def assert_falling(errors: list[float]) -> None:
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(("horizon", "mechanism", "values"), [*GRID, FEW_USERS, *SLOW], ids=str)
@pytest.mark.slow
def test_more_shufflers_or_a_larger_epsilon_never_give_a_larger_error(
    horizon: int, mechanism: str, values: Values
) -> None:
    epsilons = (0.3, 0.8, 1.0, 1.2, 2.0, 3.0, 4.0, 6.0, 8.0)
    asked = {"mechanism": mechanism, "values": values}
    errors = {
        (k, epsilon): rms_error(horizon, k, epsilon, **asked)
        for k, epsilon in itertools.product((1, 2, 3), epsilons)
    }
    for epsilon in epsilons:
        assert_falling([errors[k, epsilon] for k in (1, 2, 3)])
    for k in (1, 2, 3):
        assert_falling([errors[k, epsilon] for epsilon in epsilons])


@pytest.mark.parametrize(("horizon", "mechanism", "values"), [*GRID, *SLOW], ids=str)
@pytest.mark.slow
def test_more_messages_never_give_a_larger_error(
    horizon: int, mechanism: str, values: Values
) -> None:
    asked = {"mechanism": mechanism, "values": values}
    limits = (3, 5, 8, 10, 12, 15, 20, 40, 150, 1000, None)
    assert_falling([rms_error(horizon, 3, 1.0, max_messages=most, **asked) for most in limits])


# Near the best of all small trees.


def small_trees(horizon: int, largest: int) -> Iterator[RegularTree]:
    for lowest in range(1, largest + 1):
        yield RegularTree(horizon, (lowest,))
        for degree in range(2, 20):
            if lowest * degree <= horizon // 2:
                yield RegularTree(horizon, (lowest, degree))


def least_error(horizon: int, shufflers: int, epsilon: float, values: Values) -> float:
    """By the library's own calibration, of every tree there is."""
    asked = Requirements(oh.Privacy(epsilon, DELTA), values=values)
    largest = min(horizon, math.ceil(1.6 * math.cbrt(3 * asked.gaussian_variance * horizon)))
    trees = (tree for tree in small_trees(horizon, largest) if tree.levels <= shufflers)
    least = min(draft_tree(tree, asked, best_split(tree)).cost for tree in trees)
    return math.sqrt(least) * values.width


SMALL = [(100, k, e, v) for k in (1, 2) for e in (3.0, 8.0) for v in (BITS, Reals())]
LARGER = [
    (n, k, e, v)
    for n in (100, 1000)
    for k in (1, 2)
    for e in (0.1, 0.3, 1.0, 2.0, 4.0, 6.0)
    for v in (BITS, Reals())
]


@pytest.mark.parametrize(
    ("horizon", "shufflers", "epsilon", "values"),
    [*SMALL, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGER)],
    ids=str,
)
def test_a_plan_is_within_a_hundredth_of_the_best_tree(
    horizon: int, shufflers: int, epsilon: float, values: Values
) -> None:
    least = least_error(horizon, shufflers, epsilon, values)
    assert rms_error(horizon, shufflers, epsilon, values=values) <= 1.01 * least


LIMITED = [
    ("coins", BITS, 6),
    pytest.param("shares", BITS, 9, marks=pytest.mark.slow),
    pytest.param("coins", Reals(), 9, marks=pytest.mark.slow),
    pytest.param("shares", Histogram(3), 33, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mechanism", "values", "messages"), LIMITED, ids=str)
def test_few_messages_are_spent_on_the_best_tree_that_has_no_more(
    mechanism: str, values: Values, messages: int
) -> None:
    """A batch that is a little larger may take one message less, so that any size is tried."""
    horizon = 400
    asked: Any = {"mechanism": mechanism, "values": values, "max_messages": messages}
    requirements = Requirements(oh.Privacy(1.0, DELTA), horizon=horizon, shufflers=2, **asked)
    drafts = (
        draft_tree(tree, choice, best_split(tree))
        for choice in requirements.choices()
        for tree in small_trees(horizon, horizon)
        if tree.lowest > 10
    )
    least = min(found.cost for found in drafts if found.draft.fits(messages, 1.002))
    plan = oh.Plan.best(horizon, 2, oh.Privacy(1.0, DELTA), **asked)
    assert plan.messages_per_user <= messages
    assert plan.rms_error <= 1.01 * math.sqrt(least) * values.width
    assert plan.rms_error > 1.1 * rms_error(horizon, 2, 1.0, mechanism=mechanism, values=values)


@pytest.mark.parametrize(
    ("shufflers", "epsilon", "values", "most"),
    [
        (1, 8.0, BITS, 0.83),
        (2, 8.0, BITS, 0.83),
        (1, 6.0, BITS, 1.82),
        (2, 6.0, BITS, 1.82),
        (2, 3.0, BITS, 6.29),
        (1, 8.0, Reals(), 5.47),
    ],
    ids=str,
)
def test_trees_that_the_gaussian_limit_hides_are_found(
    shufflers: int, epsilon: float, values: Values, most: float
) -> None:
    assert rms_error(1000, shufflers, epsilon, values=values) <= most


@pytest.mark.parametrize(
    ("values", "most", "messages"),
    [(Vectors(20), 82.5, 860), (RegressionStatistics(9), 86.9, 2322)],
    ids=str,
)
def test_rounding_takes_next_to_nothing_from_vectors_in_shares(
    values: Values, most: float, messages: int
) -> None:
    plan = oh.Plan.best(MILLION, 4, oh.Privacy(1.0, DELTA), values=values, mechanism="shares")
    assert plan.rms_error <= most
    assert plan.messages_per_user <= messages
    assert plan.delta_spent <= DELTA


def test_every_number_of_levels_is_drafted_by_what_it_needs() -> None:
    """Coins and Laplace noise alike: the unit of variance is that of the mechanism."""
    for mechanism in kinds_of(BITS, "users"):
        assert rms_error(1000, 1, 8.0, mechanism=mechanism) < 1


# Blocks of the services: near the best of all sizes.


def blocks_of(horizon: int, noise: ServiceNoise, values: Values, size: int) -> oh.Plan:
    """By pairs, as nothing is lost then to dummies that are too few."""
    pairs = PairsSum.with_noise(size, noise, honest=1, distance=1e-15, values=values)
    privacy = oh.Privacy(1.0, DELTA)  # which plays no part in errors
    return oh.Plan(blocks_tree(pairs), (pairs,), privacy, 1, horizon=horizon)


def least_block_error(horizon: int, epsilon: float, values: Values) -> float:
    """Of all sizes, and of the least noise that hides one change: by the book, for any delta."""
    change = values.sensitivity
    deviation = change.norm / gaussian_mu(oh.Privacy(epsilon, DELTA))
    laplace = Polya(1, 1, math.exp(-epsilon / change.l0))
    errors = []
    for size in range(1, min(120, horizon)):
        blocks = horizon // size
        correlated = CorrelatedNoise.of(deviation * CorrelatedNoise.of(1.0, blocks).norm, blocks)
        for noise in (correlated, IndependentNoise(laplace, cap=100 * blocks)):
            errors.append(blocks_of(horizon, noise, values, size).rms_error)
    return min(errors)


@pytest.mark.parametrize(
    ("horizon", "epsilon"), [(100, 1.0), (1000, 0.3), (1000, 1.0), (1000, 3.0), (3000, 1.0)]
)
@pytest.mark.parametrize("values", [BITS, Histogram(3)], ids=str)
def test_blocks_are_within_a_hundredth_of_the_best_ones(
    horizon: int, epsilon: float, values: Values
) -> None:
    """Those of ballots within a third: they are twice as large, so that fewer dummies are sent."""
    least = least_block_error(horizon, epsilon, values)
    asked: dict[str, Any] = {"privacy": oh.Privacy(epsilon, DELTA), "values": values}
    for mechanism, more in (("pairs", 1.01), ("ballots", 1.35)):
        plan = oh.Plan.best(horizon, mechanism=mechanism, **asked)
        assert plan.delta_spent <= DELTA
        assert plan.rms_error <= more * least


@pytest.mark.parametrize(("mechanism", "most"), [("pairs", 0.9), ("ballots", 1.1)])
def test_a_large_epsilon_works_in_blocks_too(mechanism: str, most: float) -> None:
    assert rms_error(1000, 1, 8.0, mechanism=mechanism) < most


# A delta that gives no protection.


def test_a_delta_above_one_over_the_horizon_is_named() -> None:
    with pytest.warns(WeakDelta, match=r"delta=0\.002 is above 1/horizon=0\.001: .* about 2 of"):
        oh.Plan.best(1000, 2, oh.Privacy(1.0, 0.002))


def test_a_weak_delta_is_named_whenever_it_is_asked_for() -> None:
    """The second plan is not searched for again."""
    for _ in range(2):
        with pytest.warns(WeakDelta) as shown:
            oh.Plan.best(1000, 2, oh.Privacy(1.0, 0.002))
        assert [warning.filename for warning in shown] == [__file__]


def test_a_weak_delta_is_named_once_for_an_error() -> None:
    for _ in range(2):
        with pytest.warns(WeakDelta) as shown:
            oh.Plan.for_error(1000, 2, error=20.0, delta=0.002)
        assert [warning.filename for warning in shown] == [__file__]


def test_a_plan_asked_for_again_is_not_searched_for_again() -> None:
    asked = (1000, 2, oh.Privacy(1.0, 1e-6))
    assert oh.Plan.best(*asked) is oh.Plan.best(*asked)


def test_the_best_mechanism_is_one_of_those_registered_now() -> None:
    def kind() -> str:
        plan = oh.Plan.best(1000, 2, oh.Privacy(1.0, 1e-6), mechanism="best")
        return plan.mechanisms[0].kind

    assert kind() == "shares"
    with mock.patch.dict(MECHANISMS):  # which puts it back in its place, not at the end
        del MECHANISMS["shares"]
        assert kind() == "coins"
    assert kind() == "shares"


def test_a_delta_of_one_over_the_horizon_is_not() -> None:
    oh.Plan.best(1000, 2, oh.Privacy(1.0, 0.001))  # a warning would be an error here


def test_the_command_line_says_so_once_and_on_stderr() -> None:
    arguments = ["plan", "--horizon", "1000", "--delta", "0.01", "--max-messages", "5", "--json"]
    done = run_overhand(*arguments)
    assert json.loads(done.stdout)["delta"] == 0.01
    assert done.stderr.count("warning: delta=0.01 is above 1/horizon=0.001") == 1
    assert done.stderr.count("\n") == 1
