"""Simulations of every kind of value: both engines, their laws and their measured errors."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.lab.simulation import (
    CountsRun,
    Engine,
    MessagesRun,
    estimate_all,
    simulate,
    start_run,
    stream_for,
)
from overhand.lab.simulation.counts import _RoundingErrors
from overhand.lab.simulation.run import ENGINES
from overhand.model import Floats
from overhand.randomness import SeededRandom
from overhand.values import (
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.batch_laws import UPPER_BATCHES, assert_follow_laws, assert_mutant_is_seen
from support.estimate_laws import (
    Steady,
    assert_law_of_coordinates,
    estimate_law,
    expected_square,
    steady_estimates,
)
from support.kind_plans import (
    DISCREPANCY,
    FIGURE_2,
    KINDS,
    MANY,
    ROUNDED,
    SAMPLES,
    SINGLES,
    SMALL,
    STEPS,
    TREES,
    chosen,
    expected_sum,
    kind_plan,
    many_vectors,
    points,
    shrunk,
)
from support.reference_twins import pending
from support.sampling import samples_for
from support.small_plans import PRIVACY, REGULAR


def run_in_parts(plan: oh.Plan, engine: Engine, rows: Any, blocks: int, seed: int = 1) -> Floats:
    """All estimates, from calls of so many whole blocks."""
    run, users = start_run(plan, oh.seeded_random(seed), engine), blocks * plan.tree.lowest
    parts = [run.estimates(rows[i : i + users]) for i in range(0, len(rows), users)]
    return np.concatenate(parts)


# Without sampling.


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hold", [True, False])
def test_without_noise_estimates_are_the_sums_of_full_blocks(
    values: Values, choices: list[Any], tree: oh.RegularTree, engine: Engine, hold: bool
) -> None:
    plan, raw = kind_plan(tree, values, noise_bits=0, hold=hold), chosen(choices, tree.horizon)
    expected = [expected_sum(plan, raw, 0, t)[0] for t in range(1, tree.horizon + 1)]
    for blocks in (1, 4, 99):
        estimates = run_in_parts(plan, engine, values.rows(raw), blocks)
        assert estimates.shape == (tree.horizon, *values.shape)
        assert estimates == pytest.approx(np.array(expected))


@pytest.mark.parametrize(("values", "choices"), ROUNDED)
@pytest.mark.parametrize("tree", [*TREES, pytest.param(oh.RegularTree(70, (2,) * 5), id="binary")])
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, 25)), seed=st.integers(0, 99), combine=st.booleans())
def test_rounding_is_carried_from_call_to_call(
    values: Values,
    choices: list[Any],
    tree: oh.RegularTree,
    cuts: list[int],
    seed: int,
    combine: bool,
) -> None:
    steps = tuple(range(3, 3 + tree.levels))
    plan = kind_plan(tree, values, noise_bits=0, steps=steps, combine=combine)
    raw = shrunk(values, choices, tree.horizon, seed)
    rows, run = values.rows(raw), CountsRun(plan, Steady(1))
    places = sorted({0, tree.horizon, *(tree.lowest * min(cut, tree.blocks) for cut in cuts)})
    parts = [run.estimates(rows[a:b]) for a, b in zip(places, places[1:], strict=False)]
    assert np.concatenate(parts) == pytest.approx(steady_estimates(plan, raw), abs=1e-6)


def forgetting(self: _RoundingErrors, last: int) -> None:
    """A mutant: open nodes start anew with every call."""
    self._carried = [np.zeros(self._shape)] * self._tree.levels


def test_lost_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kind_plan(REGULAR, Vectors(2), noise_bits=0, steps=3)
    raw = [[0.3, -0.4]] * 53
    rows = plan.values.rows(raw)
    monkeypatch.setattr(_RoundingErrors, "forget", forgetting)
    whole = CountsRun(plan, Steady(1)).estimates(rows)
    run = CountsRun(plan, Steady(1))
    parts = np.concatenate([run.estimates(rows[i : i + 3]) for i in range(0, 53, 3)])
    assert whole == pytest.approx(steady_estimates(plan, raw))
    assert np.abs(parts - whole).max() > 1


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_users_than_a_block_are_all_pending(
    values: Values, choices: list[Any], engine: Engine
) -> None:
    plan = kind_plan(oh.RegularTree(50, (5, 3)), values)
    for users in (0, 1, 4):
        estimates = estimate_all(plan, choices[:1] * users, oh.seeded_random(1), engine=engine)
        assert estimates.shape == (users, *values.shape)
        for t in range(users):
            assert estimates[t] == pytest.approx((t + 1) * plan.imputed)
    assert simulate(plan, choices[:1] * 2, engine=engine).users == 2
    assert simulate(plan, chosen(choices, 47), engine=engine, runs=2).users == 47


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_errors_are_tallied_as_they_are(values: Values, choices: list[Any]) -> None:
    plan = kind_plan(oh.RegularTree(1003, (7, 5)), values, noise_bits=8)
    raw = shrunk(values, choices, 1003)
    noise = SeededRandom(np.random.default_rng([4, 0])).spawn(2)[1]
    estimates = estimate_all(plan, raw, noise).reshape(1003, -1)
    errors = estimates - np.cumsum(points(values, raw), axis=0)
    result = simulate(plan, raw, seed=4)
    assert result.rms_error == pytest.approx(math.sqrt((errors**2).mean()))
    assert result.max_error == result.mean_max_error == pytest.approx(np.abs(errors).max())
    starts = np.concatenate([[0], result.curve.t[:-1]])
    for start, stop, rms in zip(starts, result.curve.t, result.curve.rms, strict=True):
        assert rms == pytest.approx(math.sqrt((errors[start:stop] ** 2).mean()))


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_parts_change_nothing_but_the_noise(
    values: Values, choices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 53)
    expected = np.array([expected_sum(plan, raw, 0, t)[0] for t in range(1, 54)])
    quiet = simulate(plan, raw).rms_error
    monkeypatch.setattr("overhand.lab.simulation.run._CHUNK", 1)
    monkeypatch.setattr("overhand.lab.simulation.counts._MANY", 1)
    monkeypatch.setattr("overhand.lab.simulation.counts._BUFFER", 1)
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", 1)
    for engine in ENGINES:
        estimates = estimate_all(plan, raw, oh.seeded_random(1), engine=engine)
        assert estimates == pytest.approx(expected)
        assert simulate(plan, raw, engine=engine).rms_error == pytest.approx(quiet)


def test_messages_are_counted_and_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kind_plan(REGULAR, Vectors(2), noise_bits=3, steps=4)
    rows = np.zeros((53, 2))
    run = MessagesRun(plan, oh.seeded_random(1))
    run.estimates(rows)
    sent = [node for t in range(1, 54) for node in REGULAR.joins(t)]
    assert run.messages == sum(plan.mechanism(node).layout.messages_per_user for node in sent)
    most = 5 * 3 * plan.messages_per_user
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", most)
    sizes: list[int] = []
    whole = MessagesRun._estimates

    def measured(run: MessagesRun, rows: Any) -> Any:
        sizes.append(len(rows))
        return whole(run, rows)

    monkeypatch.setattr(MessagesRun, "_estimates", measured)
    MessagesRun(plan, oh.seeded_random(1)).estimates(rows)
    assert sizes == [15, 15, 15, 8]


@pytest.mark.parametrize(
    "values", [Reals(), Vectors(8), RegressionStatistics(2), Histogram(8)], ids=str
)
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_does_not_grow_with_the_horizon(
    values: Values, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.lab.simulation.run._CHUNK", 1 << 10)
    monkeypatch.setattr("overhand.lab.simulation.messages._AT_ONCE", 1 << 12)
    peaks: list[int] = []
    for horizon in (2**11, 2**13):
        plan = kind_plan(oh.RegularTree(horizon, (8, 8)), values, combine=True)
        tracemalloc.start()
        simulate(plan, "uniform", engine=engine)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


# Both engines have one law: that of the cover.


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tree", "t"), SMALL)
@pytest.mark.parametrize(("combine", "hold", "blocks"), [(True, False, 1), (False, True, 99)])
def test_estimates_of_vectors_have_the_law_of_their_cover(
    engine: Engine, tree: oh.RegularTree, t: int, combine: bool, hold: bool, blocks: int
) -> None:
    plan = kind_plan(tree, MANY, noise_bits=1, steps=STEPS, combine=combine, hold=hold)
    raw = many_vectors(t)
    estimates = run_in_parts(plan, engine, np.array(raw), blocks)
    for at in (t - 2, t):
        assert_law_of_coordinates(estimate_law(plan, raw, at), estimates[at - 1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tree", "t"), SMALL)
@pytest.mark.parametrize(("combine", "blocks"), [(True, 1), (False, 99)])
def test_estimates_of_histograms_have_the_law_of_their_cover(
    engine: Engine, tree: oh.RegularTree, t: int, combine: bool, blocks: int
) -> None:
    plan = kind_plan(tree, Histogram(2 * SAMPLES), noise_bits=3, combine=combine)
    raw = np.arange(t)
    estimates = run_in_parts(plan, engine, raw, blocks)
    for at in (t - 2, t):
        counted = np.arange(2 * SAMPLES) < at - pending(plan, at)
        law = estimate_law(plan, list(raw), at, 2 * t)
        assert_law_of_coordinates(law, estimates[at - 1] - counted)


NUMBERS = [-1.0, 4.9, 0.3, 5.0, 2.2, -1.7, 0.0]
PAIRS = [[0.3, 0.9], [1.0, 1.0], [-0.7, 0.2], [0.8, -1.0], [0.1, 0.4], [-1.0, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("values", "raw", "tree"),
    [
        pytest.param(Reals(-2.0, 5.0), NUMBERS, FIGURE_2, id="reals, regular"),
        pytest.param(Reals(-2.0, 5.0), NUMBERS[:6], SINGLES, id="reals, singles"),
        pytest.param(RegressionStatistics(1), PAIRS, FIGURE_2, id="moments, regular"),
    ],
)
def test_estimates_of_each_coordinate_have_the_law_of_their_cover(
    engine: Engine, values: Values, raw: list[Any], tree: oh.RegularTree
) -> None:
    plan = kind_plan(tree, values, noise_bits=1, steps=STEPS, combine=True)
    rows, runs = values.rows(raw), range(samples_for(0.2))
    samples = np.array([run_in_parts(plan, engine, rows, 2 + s % 3, seed=s) for s in runs])
    for at in (4, len(raw)):
        for j, of_coordinate in enumerate(samples[:, at - 1].reshape(len(runs), -1).T):
            estimate_law(plan, raw, at, j).assert_of(of_coordinate, discrepancy=0.2)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_laws_see_missing_coins(engine: Engine) -> None:
    plan, mutant = (kind_plan(FIGURE_2, MANY, noise_bits=n, steps=STEPS) for n in (3, 0))
    raw = many_vectors(7)
    law = estimate_law(plan, raw, 7)
    assert law.distance(estimate_law(mutant, raw, 7)) > DISCREPANCY
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(run_in_parts(mutant, engine, np.array(raw), 1)[-1], discrepancy=DISCREPANCY)


def test_the_laws_see_lost_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum without the rounding of its first block is no whole number of steps."""
    plan, raw = kind_plan(FIGURE_2, MANY, noise_bits=0, steps=3), many_vectors(4)
    monkeypatch.setattr(_RoundingErrors, "forget", forgetting)
    samples = run_in_parts(plan, "counts", np.array(raw), 1)[-1]
    with pytest.raises(AssertionError, match="outside the support"):
        estimate_law(plan, raw, 4).assert_of(samples, discrepancy=DISCREPANCY)


# Measured errors.


def in_ball(length: int, norm: float) -> Floats:
    direction = np.random.default_rng(2).normal(size=length)
    return np.asarray(norm * direction / np.linalg.norm(direction))


def symmetric(side: int) -> Floats:
    matrix = in_ball(side**2, 1.0).reshape(side, side)
    return (matrix + matrix.T) / 2


WAYS: dict[str, tuple[oh.RegularTree, bool, bool, Engine]] = {
    "regular": (oh.RegularTree(29, (3, 4)), True, False, "counts"),
    "wide": (oh.RegularTree(19, (2, 4)), False, True, "counts"),
    "messages": (oh.RegularTree(19, (2, 4)), True, False, "messages"),
}
HELD: list[tuple[Values, Any]] = [
    (Reals(-2.0, 5.0), 2.3),
    (Vectors(3, norm=3.0), in_ball(3, 2.9)),
    (SymmetricMatrices(2), symmetric(2)),
    (RegressionStatistics(2), np.append(in_ball(2, 0.95), -0.8)),
    (Histogram(3), 0),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("values", "value"), [pytest.param(*case, id=str(case[0])) for case in HELD]
)
def test_sums_of_batches_follow_their_laws(values: Values, value: Any, way: str) -> None:
    tree, combine, hold, engine = WAYS[way]
    long = replace(tree, horizon=tree.sizes[1] * UPPER_BATCHES)
    plan, short = (
        kind_plan(one, values, noise_bits=3, steps=STEPS, combine=combine, hold=hold)
        for one in (long, tree)
    )
    assert_follow_laws(plan, value, engine, seed=20233)
    assert expected_square(short, value) <= short.rms_error**2 * (1 + 1e-9)


@pytest.mark.parametrize(("coins", "levels"), [(2, 1), (1, 2)], ids=["one", "two"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_laws_of_batches_see_missing_coins(engine: Engine, coins: int, levels: int) -> None:
    """One of three is seen in lower batches, two are seen in all."""
    tree, value = oh.RegularTree(12 * UPPER_BATCHES, (3, 4)), [1.0, 0.0, 0.0]
    plan, mutant = (
        kind_plan(tree, Vectors(3), noise_bits=n, steps=STEPS, combine=True) for n in (3, coins)
    )
    assert_mutant_is_seen(plan, mutant, value, engine, levels=levels, seed=20234)


@pytest.mark.parametrize("values", [Reals(0.0, 50.0), Vectors(4), Histogram(6)], ids=str)
def test_chosen_plans_err_as_they_predict(values: Values) -> None:
    """On the worst input for the pending users, rounding may cost less than is allowed for."""
    plan = oh.Plan.best(400, 2, PRIVACY, values=values, tree="regular")
    value = values.opposites(np.ones(1, np.uint8))[0]
    assert 0.75 < expected_square(plan, value) / plan.rms_error**2 <= 1 + 1e-9


# Streams.


@pytest.mark.parametrize(
    ("values", "choices"), [*KINDS, pytest.param(RegressionStatistics(3), [], id="regression:3")]
)
@pytest.mark.parametrize("form", ["zeros", "ones", "bernoulli:0.3", "uniform", "hard"])
def test_streams_are_of_the_plans_kind(values: Values, choices: list[Any], form: str) -> None:
    stream = stream_for(form, 500, values=values)
    part = stream.parts(oh.seeded_random(3))
    rows = np.concatenate([part(0, 100), part(100, 500)])
    coordinates = values.coordinates(rows)
    assert stream.users == len(rows) == 500
    assert coordinates.shape == (500, *values.shape)
    flat = coordinates.reshape(500, -1).astype(np.float64)
    assert (flat >= values.lows - 1e-9).all()
    assert (flat <= values.highs + 1e-9).all()
    distinct = np.unique(flat, axis=0)
    if form in ("zeros", "ones"):
        assert len(distinct) == 1
    elif form != "uniform":
        assert len(distinct) == 2
        farthest = 2.0 if values == RegressionStatistics(1) else values.sensitivity.norm
        assert np.linalg.norm(distinct[0] - distinct[1]) == pytest.approx(farthest)
    again = stream.parts(oh.seeded_random(3))
    assert np.array_equal(np.concatenate([again(0, 100), again(100, 500)]), rows)
