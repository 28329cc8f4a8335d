"""Runs of sums by pairs: both engines have one law, in memory that no block makes large."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.simulation import Engine, MessagesRun, estimate_all, simulate, start_run
from overhand.lab.simulation.counts import _LevelNoise
from overhand.lab.simulation.run import ENGINES
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import Counts, Floats, Rows
from overhand.noise import Clip, CorrelatedNoise, IndependentNoise, Polya, ServiceNoise
from overhand.planning.blocks import blocks_tree
from overhand.randomness import Random
from overhand.values import BITS, Histogram, Reals, RegressionStatistics, Values, Vectors
from support.batch_laws import sum_law
from support.cli_runner import as_json
from support.estimate_laws import Law
from support.kind_plans import points
from support.sampling import SAMPLES, assert_normal, samples_for
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
each_engine = pytest.mark.parametrize("engine", ENGINES)

SIZE = 3
LAPLACE = Polya(shape=1, users=1, ratio=0.5)


class Silent(IndependentNoise):
    """Services that add nothing."""

    def advance(
        self, state: Counts, random: Random, blocks: int, clip: Clip | None = None
    ) -> tuple[Counts, Counts]:
        return np.zeros((blocks, state.shape[1]), np.int64), state


@cache
def small(values: Values, noise: ServiceNoise, blocks: int, size: int = SIZE) -> oh.Plan:
    """Blocks with little noise: no guarantee, but an exact error."""
    steps = 1 if values.is_whole else 4
    mechanism = PairsSum.with_noise(
        size, noise, honest=size, distance=1e-12, values=values, steps=steps
    )
    return oh.Plan(blocks_tree(mechanism), (mechanism,), PRIVACY, 1, horizon=size * blocks)


# Single blocks.

DISCREPANCY = 0.06
MANY = samples_for(DISCREPANCY)
INDEPENDENT = IndependentNoise(LAPLACE, cap=100 * MANY)


def sums_of_blocks(plan: oh.Plan, value: Any, engine: Engine, *, seed: int) -> Floats:
    """One coordinate of the sum of every block, all users holding this value."""
    found = estimate_all(plan, [value] * plan.horizon, oh.seeded_random(seed), engine=engine)
    ends = found.reshape(plan.horizon, -1)[plan.tree.lowest - 1 :: plan.tree.lowest, 0]
    return np.diff(ends, prepend=0.0)


def block_law(plan: oh.Plan, value: Any) -> Law:
    """Its law, by the book: the rounding of its users, and the noise of both services."""
    number, low = points(plan.values, [value])[0][0], float(plan.values.lows[0])
    return sum_law(plan.mechanisms[0], number, low)


@each_run
@each_engine
def test_sums_of_blocks_follow_their_law(values: Values, value: Any, engine: Engine) -> None:
    """And between the ends of blocks, estimates rise by what a pending user is taken to hold."""
    plan = small(values, INDEPENDENT, MANY)
    sums = sums_of_blocks(plan, value, engine, seed=20262)
    block_law(plan, value).assert_of(sums, discrepancy=DISCREPANCY)
    found = estimate_all(plan, [value] * 29, oh.seeded_random(1), engine=engine).reshape(29, -1)
    rise = np.broadcast_to(plan.imputed, found.shape[1:])
    np.testing.assert_allclose(np.diff(found, axis=0)[[2, 3, 26, 27]], [rise] * 4, atol=1e-9)


@each_engine
def test_the_law_of_blocks_sees_missing_noise(engine: Engine) -> None:
    plan = small(BITS, INDEPENDENT, MANY)
    mutant = replace(plan, mechanisms=(plan.mechanisms[0].reduce(0.5),))
    assert_missing_noise_is_seen(plan, sums_of_blocks(mutant, 1, engine, seed=20262))


@each_engine
def test_the_law_of_blocks_sees_a_service_that_adds_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = MessagesRun._advance

    def advance_the_first(
        self: MessagesRun, mechanism: Mechanism, service: int, blocks: int
    ) -> Counts:
        return advance(self, mechanism, service, blocks) * (service == 0)

    monkeypatch.setattr(MessagesRun, "_advance", advance_the_first)
    monkeypatch.setattr("overhand.lab.simulation.counts.SERVICES", 1)
    plan = small(BITS, INDEPENDENT, MANY)
    assert_missing_noise_is_seen(plan, sums_of_blocks(plan, 1, engine, seed=20262))


def assert_missing_noise_is_seen(plan: oh.Plan, sums: Floats) -> None:
    with pytest.raises(AssertionError, match="Kolmogorov"):
        block_law(plan, 1).assert_of(sums, discrepancy=DISCREPANCY)


# Blocks one after the other, with noise that is correlated.

BLOCKS = 15
WIDE = Histogram(2000)
CORRELATED = CorrelatedNoise.of(deviation=4.0, blocks=BLOCKS)
STRETCHES = ((0, 1), (0, 6), (0, BLOCKS), (6, BLOCKS))
"""Blocks that are added up; their noise is far from that of as many single ones."""


def noise_of_blocks(plan: oh.Plan, engine: Engine) -> Floats:
    """Of every block and coordinate, in so many runs; every call has some of the blocks."""
    users = np.arange(plan.horizon) % WIDE.dimension
    parts = [users[: 4 * SIZE], users[4 * SIZE : 5 * SIZE], users[5 * SIZE :]]
    true = np.zeros((plan.horizon, WIDE.dimension))
    true[np.arange(plan.horizon), users] = 1.0
    runs = []
    for seed in range(SAMPLES // WIDE.dimension):
        run = start_run(plan, oh.seeded_random(seed), engine)
        estimates = np.concatenate([run.estimates(part) for part in parts])
        ends = (estimates - np.cumsum(true, axis=0))[SIZE - 1 :: SIZE]
        runs.append(np.diff(ends, axis=0, prepend=0.0))
    return np.concatenate(runs, axis=1)


def assert_noise_is_as_stated(plan: oh.Plan, noise: Floats) -> None:
    assert plan.block_errors is not None
    for first, stop in STRETCHES:
        rows = (((first, stop),),) * 2
        assert_normal(
            noise[first:stop].sum(axis=0),
            plan.block_errors.covariance(rows, rows),
            tests=len(STRETCHES),
        )


@each_engine
def test_stretches_of_blocks_have_the_noise_that_is_stated(engine: Engine) -> None:
    plan = small(WIDE, CORRELATED, BLOCKS)
    assert_noise_is_as_stated(plan, noise_of_blocks(plan, engine))


@each_engine
def test_missing_correlated_noise_is_seen(engine: Engine) -> None:
    plan = small(WIDE, CORRELATED, BLOCKS)
    mutant = replace(plan, mechanisms=(plan.mechanisms[0].reduce(0.5),))
    with pytest.raises(AssertionError, match="variance ratio"):
        assert_noise_is_as_stated(plan, noise_of_blocks(mutant, engine))


@each_engine
def test_a_state_that_is_forgotten_is_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call starts anew, so that blocks do not correct what those before them added."""
    advance, advance_level = MessagesRun._advance, _LevelNoise._advance

    def advance_anew(self: MessagesRun, mechanism: Mechanism, service: int, blocks: int) -> Counts:
        self._states[service] = mechanism.start_noise(self._random)
        return advance(self, mechanism, service, blocks)

    def advance_level_anew(self: _LevelNoise, blocks: int) -> Floats:
        self._state = None
        return advance_level(self, blocks)

    monkeypatch.setattr(MessagesRun, "_advance", advance_anew)
    monkeypatch.setattr(_LevelNoise, "_advance", advance_level_anew)
    plan = small(WIDE, CORRELATED, BLOCKS)
    with pytest.raises(AssertionError, match="variance ratio"):
        assert_noise_is_as_stated(plan, noise_of_blocks(plan, engine))


# Plans as they are chosen, and how they are run.


@each_run
def test_chosen_plans_run_with_messages(values: Values, value: Any) -> None:
    plan = oh.Plan.best(300, privacy=PRIVACY, values=values, mechanism="pairs")
    assert plan.messages_per_user == plan.tree.levels == 1
    for engine in ENGINES:
        result = simulate(plan, [value] * 300, runs=5, seed=3, engine=engine)
        assert 0 < result.rms_error < 3 * plan.rms_error


@pytest.mark.parametrize("at_once", [1, 2, 7, 10, 1 << 22])
def test_numbers_are_added_up_alike_in_any_portions(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise: every estimate is exact at the end of a block, and counts all messages."""
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", at_once)
    plan, rows = small(Histogram(3), Silent(LAPLACE, cap=1000), 10), np.arange(29) % 3
    run = MessagesRun(plan, oh.seeded_random(1))
    estimates = run.estimates(rows)
    exact = np.cumsum(np.eye(3)[rows], axis=0)
    assert np.array_equal(estimates[2::3], exact[2::3])
    assert run.messages == 27  # the last users are in no block


def test_one_message_may_carry_many_numbers_and_still_fits_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block has 1.3 MB of numbers: neither encoders nor runs keep them."""
    values, at_once, size = Histogram(1000), 1 << 13, 160
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", at_once)
    run = MessagesRun(small(values, Silent(LAPLACE, cap=1000), 2, size), oh.seeded_random(1))
    widths: list[int] = []
    encoded = PairsSum.encode_rows

    def measured(mechanism: PairsSum, rows: Rows, random: Random) -> Any:
        widths.append(len(rows) * mechanism.layout.clear_numbers)
        return encoded(mechanism, rows, random)

    monkeypatch.setattr(PairsSum, "encode_rows", measured)
    for bucket in range(2):
        tracemalloc.start()
        run.estimates(np.full(size, bucket))
        assert tracemalloc.get_traced_memory()[0] < 8 * 1000 * 10
        tracemalloc.stop()
    assert sum(widths) == 2 * size * 1000
    assert max(widths) <= at_once


def test_the_command_runs_pairs_of_any_kind() -> None:
    printed = [
        as_json("lab", "simulate", "--mechanism", "pairs", "--values", values, "--engine", engine,
                "--horizon", "200", "--epsilon", "2", "--runs", "3")
        for values in ("bit", "real:10:50", "vector:2", "histogram:20", "matrix:2", "regression:2")
        for engine in ENGINES
    ]  # fmt: skip
    for one in printed:
        assert 0 < one["rms_error"] < 2 * one["predicted_rms_error"]


def test_estimates_of_moments_have_their_shape() -> None:
    plan = oh.Plan.best(50, privacy=PRIVACY, values=RegressionStatistics(2), mechanism="pairs")
    for users in (0, 1, 50):
        rows = np.zeros((users, 3))
        estimates = estimate_all(plan, rows, oh.seeded_random(1), engine="messages")
        assert estimates.shape == (users, 5)
