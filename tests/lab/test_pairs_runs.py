"""Runs of sums by pairs: both engines have one law, in memory that no batch makes large."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.simulation import Engine, MessagesRun, estimate_all, simulate
from overhand.lab.simulation.run import ENGINES
from overhand.mechanisms import PairsSum
from overhand.model import Rows
from overhand.noise import Coins, Polya
from overhand.randomness import HALF, Random
from overhand.values import BITS, Histogram, Reals, RegressionStatistics, Values, Vectors
from support.batch_laws import (
    UPPER_BATCHES,
    assert_follow_laws,
    assert_mutant_is_seen,
)
from support.cli_runner import as_json
from support.estimate_laws import expected_square
from support.share_plans import shared
from support.small_plans import PRIVACY

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
def small(values: Values, *, silent: bool = False, horizon: int = 29) -> oh.Plan:
    """Two levels of Laplace noise or coins: no guarantee, but an exact error."""
    tree = oh.RegularTree(horizon, (3, 4))
    mechanisms = tuple(
        PairsSum.with_noise(
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
def test_sums_of_batches_follow_their_laws(values: Values, value: Any, engine: Engine) -> None:
    """And between the ends of batches, estimates rise by what a pending user is taken to hold."""
    plan = small(values, horizon=12 * UPPER_BATCHES)
    assert_follow_laws(plan, value, engine, seed=20262)
    found = estimate_all(plan, [value] * 29, oh.seeded_random(1), engine=engine).reshape(29, -1)
    rise = np.broadcast_to(plan.imputed, found.shape[1:])
    np.testing.assert_allclose(np.diff(found, axis=0)[[2, 3, 26, 27]], [rise] * 4, atol=1e-9)
    assert expected_square(small(values), value) <= small(values).rms_error ** 2 * (1 + 1e-9)


@pytest.mark.parametrize(("part", "levels"), [(0.5, 1), (0.25, 2)], ids=["half", "a quarter"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_laws_of_batches_see_missing_noise(engine: Engine, part: float, levels: int) -> None:
    """Half of it is seen in lower batches, a quarter is seen in all."""
    plan = small(BITS, horizon=12 * UPPER_BATCHES)
    mutant = replace(plan, mechanisms=tuple(m.reduce(part) for m in plan.mechanisms))
    assert_mutant_is_seen(plan, mutant, 1, engine, levels=levels, seed=20262)


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
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", at_once)
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
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", at_once)
    monkeypatch.setattr("overhand.lab.simulation.run._CHUNK", at_once)
    mechanisms = tuple(PairsSum(size, SILENT, values, modulus_bits=12) for size in tree.sizes)
    run = MessagesRun(oh.Plan(tree, mechanisms, PRIVACY, 2), oh.seeded_random(1))
    widths: list[int] = []
    encoded = PairsSum.encode_rows

    def measured(mechanism: PairsSum, rows: Rows, random: Random) -> Any:
        widths.append(len(rows) * mechanism.layout.clear_numbers)
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
        as_json("lab", "simulate", "--mechanism", "pairs", "--values", values, "--engine", engine,
                "--horizon", "200", "--shufflers", "2", "--epsilon", "2", "--runs", "3")
        for values in ("bit", "real:10:50", "vector:2", "histogram:20", "matrix:2", "regression:2")
        for engine in ENGINES
    ]  # fmt: skip
    for one in printed:
        assert 0 < one["rms_error"] < 2 * one["predicted_rms_error"]


def test_estimates_of_moments_have_their_shape() -> None:
    plan = shared(RegressionStatistics(2), 50, mechanism="pairs")
    for users in (0, 1, 50):
        rows = np.zeros((users, 3))
        estimates = estimate_all(plan, rows, oh.seeded_random(1), engine="messages")
        assert estimates.shape == (users, 5)
