"""Runs of sums by pairs: both engines have one law, in memory that no batch makes large."""

from __future__ import annotations

import math
import tracemalloc
from functools import cache
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.mechanisms import Coins, PairsSum, Polya
from overhand.model import Rows
from overhand.randomness import HALF, Random
from overhand.simulation import ENGINES, Engine, MessagesRun, estimate_all, simulate
from overhand.values import BITS, Histogram, Moments, Reals, Values, Vectors
from support.commands import as_json
from support.laws import expected_square
from support.plans import PRIVACY
from support.shares import shared

RUN_VALUES: list[tuple[Values, Any]] = [
    (BITS, 1),
    (Reals(-2.0, 5.0), 2.3),
    (Histogram(3), 1),
    (Vectors(2), [0.6, -0.5]),
]
each_run = pytest.mark.parametrize(
    ("values", "value"), [pytest.param(*case, id=str(case[0])) for case in RUN_VALUES]
)
SILENT = Coins(0, HALF)


@cache
def small(values: Values, *, silent: bool = False) -> oh.Plan:
    """Two levels of Laplace noise or coins: no guarantee, but an exact error."""
    tree = oh.RegularTree(29, (3, 4))
    mechanisms = tuple(
        PairsSum.fitted(
            size,
            SILENT if silent else Polya(shape, size, 0.5),
            honest=size,
            distance=1e-12,
            values=values,
            steps=1 if values.is_whole else 2 + shape,
        )
        for shape, size in enumerate(tree.sizes, start=1)
    )
    return oh.Plan(tree, mechanisms, PRIVACY, 2)


@each_run
@pytest.mark.parametrize("engine", ENGINES)
def test_measured_errors_are_as_predicted(values: Values, value: Any, engine: Engine) -> None:
    """Within six standard errors, which are at most a fourteenth of the error itself."""
    plan, runs = small(values), 500
    squares = np.array(
        [simulate(plan, [value] * 29, seed=s, engine=engine).rms_error ** 2 for s in range(runs)]
    )
    spread = 6 * squares.std() / math.sqrt(runs)
    assert spread < 0.35 * squares.mean()
    assert abs(squares.mean() - expected_square(plan, value)) < spread


@each_run
def test_chosen_plans_run_with_messages(values: Values, value: Any) -> None:
    plan = shared(values, 300, mechanism="pairs")
    assert plan.messages_per_user == plan.tree.levels
    for engine in ENGINES:
        result = simulate(plan, [value] * 300, runs=5, seed=3, engine=engine)
        assert 0 < result.rms_error < 3 * plan.rms_error


@pytest.mark.parametrize("at_once", [1, 2, 7, 10, 1 << 22])
def test_numbers_are_added_up_alike_in_any_portions(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise: every estimate is exact at the end of a batch, and counts all messages."""
    monkeypatch.setattr("overhand.simulation.messages._AT_ONCE", at_once)
    plan, rows = small(Histogram(3), silent=True), np.arange(29) % 3
    run = MessagesRun(plan, oh.seeded_random(1))
    estimates = run.estimates(rows)
    exact = np.cumsum(np.eye(3)[rows], axis=0)
    assert np.array_equal(estimates[2::3], exact[2::3])
    assert run.messages == 27 + 24  # the last users are in no batch, or in one


@pytest.mark.parametrize("tree", [oh.RegularTree(160, (80, 2)), oh.RegularTree(160, (8, 20))])
def test_one_message_may_carry_many_numbers_and_still_fits_the_memory(
    tree: oh.RegularTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has 1.3 MB of numbers at each level: neither encoders nor open batches keep them."""
    values, at_once = Histogram(1000), 1 << 13
    monkeypatch.setattr("overhand.simulation.messages._AT_ONCE", at_once)
    monkeypatch.setattr("overhand.simulation.run._CHUNK", at_once)
    mechanisms = tuple(PairsSum(size, SILENT, 12, values) for size in tree.sizes)
    run = MessagesRun(oh.Plan(tree, mechanisms, PRIVACY, 2), oh.seeded_random(1))
    widths: list[int] = []
    encoded = PairsSum.encode_rows

    def measured(mechanism: PairsSum, rows: Rows, random: Random) -> Any:
        widths.append(len(rows) * mechanism.clear_numbers)
        return encoded(mechanism, rows, random)

    monkeypatch.setattr(PairsSum, "encode_rows", measured)
    for start in range(0, 160, tree.lowest):
        tracemalloc.start()
        run.estimates(np.full(tree.lowest, start // tree.lowest))
        assert tracemalloc.get_traced_memory()[0] < 8 * 1000 * (tree.lowest + 200)
        tracemalloc.stop()
    assert max(widths) <= at_once


def test_the_command_runs_pairs_of_any_kind() -> None:
    printed = [
        as_json("simulate", "--mechanism", "pairs", "--values", values, "--engine", engine,
                "--horizon", "200", "--shufflers", "2", "--epsilon", "2", "--runs", "3")
        for values in ("bit", "real:10:50", "vector:2", "histogram:20", "matrix:2", "moments:2")
        for engine in ENGINES
    ]  # fmt: skip
    for one in printed:
        assert 0 < one["rms_error"] < 2 * one["predicted_rms_error"]


def test_estimates_of_moments_have_their_shape() -> None:
    plan = shared(Moments(2), 50, mechanism="pairs")
    for users in (0, 1, 50):
        rows = np.zeros((users, 3))
        estimates = estimate_all(plan, rows, oh.seeded_random(1), engine="messages")
        assert estimates.shape == (users, 5)
