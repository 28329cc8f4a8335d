"""Simulations of every kind of value: engines, streams, files and the command line."""

from __future__ import annotations

import math
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.lower_bound import HardInput
from overhand.randomness import SeededRandom
from overhand.simulation import (
    ENGINES,
    CountsRun,
    Engine,
    MessagesRun,
    PlanCounter,
    estimate_all,
    read_rows,
    simulate,
    stream_for,
)
from overhand.simulation.rounding import RoundingErrors
from overhand.trees import Tree
from overhand.values import (
    Histogram,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
    values_of,
)
from plans import PRIVACY, REGULAR, pending
from sampled import assert_probability, assert_uniform_over, samples_for
from test_cli import as_json, overhand
from test_kinds_sums import (
    DISCREPANCY,
    FIGURE_2,
    KINDS,
    MANY,
    ROUNDED,
    SAMPLES,
    SMALL,
    SMALL_PATH,
    STEPS,
    TREES,
    Floats,
    Steady,
    assert_law_of_coordinates,
    children,
    chosen,
    estimate_law,
    expected_sum,
    kind_plan,
    many_vectors,
    points,
    shrunk,
    steady_estimates,
)


def run_in_parts(plan: oh.Plan, engine: Engine, rows: Any, blocks: int, seed: int = 1) -> Floats:
    """All estimates, from calls of so many whole blocks."""
    run, users = PlanCounter(plan, engine).start(oh.seeded_random(seed)), blocks * plan.tree.lowest
    parts = [run.estimates(rows[i : i + users]) for i in range(0, len(rows), users)]
    return np.concatenate(parts)


# Without sampling.


@pytest.mark.parametrize(("values", "choices"), KINDS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hold", [True, False])
def test_without_noise_estimates_are_the_sums_of_full_blocks(
    values: Values, choices: list[Any], tree: Tree, engine: Engine, hold: bool
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
    values: Values, choices: list[Any], tree: Tree, cuts: list[int], seed: int, combine: bool
) -> None:
    steps = tuple(range(3, 3 + tree.levels))
    plan = kind_plan(tree, values, noise_bits=0, steps=steps, combine=combine)
    raw = shrunk(values, choices, tree.horizon, seed)
    rows, run = values.rows(raw), CountsRun(plan, Steady(1))
    places = sorted({0, tree.horizon, *(tree.lowest * min(cut, tree.blocks) for cut in cuts)})
    parts = [run.estimates(rows[a:b]) for a, b in zip(places, places[1:], strict=False)]
    assert np.concatenate(parts) == pytest.approx(steady_estimates(plan, raw), abs=1e-6)


def forgetting(self: RoundingErrors, last: int) -> None:
    """A mutant: open nodes start anew with every call."""
    self._carried = [np.zeros(self._plan.values.shape)] * self._plan.tree.levels


def test_lost_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = kind_plan(REGULAR, Vectors(2), noise_bits=0, steps=3)
    raw = [[0.3, -0.4]] * 53
    rows = plan.values.rows(raw)
    monkeypatch.setattr(RoundingErrors, "forget", forgetting)
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
    plan = kind_plan(oh.PathTree(50, 2, 4, 5), values)
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
def test_parts_and_threads_change_nothing_but_the_noise(
    values: Values, choices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, raw = kind_plan(REGULAR, values, noise_bits=0), chosen(choices, 53)
    expected = np.array([expected_sum(plan, raw, 0, t)[0] for t in range(1, 54)])
    quiet = simulate(plan, raw).rms_error
    monkeypatch.setattr("overhand.simulation.run._CHUNK", 1)
    monkeypatch.setattr("overhand.simulation.counts._LARGE", 1)
    monkeypatch.setattr("overhand.simulation.counts._MANY", 1)
    monkeypatch.setattr("overhand.simulation.rounding._BUFFER", 1)
    monkeypatch.setattr("overhand.simulation.messages._AT_ONCE", 1)
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
    assert run.messages == sum(plan.mechanism(node).messages_per_user for node in sent)
    most = 5 * 3 * plan.messages_per_user
    monkeypatch.setattr("overhand.simulation.messages._AT_ONCE", most)
    sizes: list[int] = []
    whole = MessagesRun._estimates

    def measured(run: MessagesRun, rows: Any) -> Any:
        sizes.append(len(rows))
        return whole(run, rows)

    monkeypatch.setattr(MessagesRun, "_estimates", measured)
    MessagesRun(plan, oh.seeded_random(1)).estimates(rows)
    assert sizes == [15, 15, 15, 8]


@pytest.mark.parametrize("values", [Reals(), Vectors(8), Moments(2), Histogram(8)], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_does_not_grow_with_the_horizon(
    values: Values, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.simulation.run._CHUNK", 1 << 10)
    monkeypatch.setattr("overhand.simulation.messages._AT_ONCE", 1 << 12)
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
    engine: Engine, tree: Tree, t: int, combine: bool, hold: bool, blocks: int
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
    engine: Engine, tree: Tree, t: int, combine: bool, blocks: int
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
        pytest.param(Reals(-2.0, 5.0), NUMBERS[:6], SMALL_PATH, id="reals, path"),
        pytest.param(Moments(1), PAIRS, FIGURE_2, id="moments, regular"),
    ],
)
def test_estimates_of_each_coordinate_have_the_law_of_their_cover(
    engine: Engine, values: Values, raw: list[Any], tree: Tree
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
    monkeypatch.setattr(RoundingErrors, "forget", forgetting)
    samples = run_in_parts(plan, "counts", np.array(raw), 1)[-1]
    with pytest.raises(AssertionError, match="outside the support"):
        estimate_law(plan, raw, 4).assert_of(samples, discrepancy=DISCREPANCY)


# Measured errors.


def expected_square(plan: oh.Plan, value: Any) -> float:
    """The mean over time and coordinates of the expected squared error if all hold this value."""
    numbers = points(plan.values, [value])[0]
    bias = np.atleast_1d(plan.imputed) - numbers

    @cache
    def variance(node: oh.Node) -> Floats:
        m = plan.mechanism(node)
        part = (numbers - plan.values.lows) / m.unit % 1
        own = m.noise_variance + m.size * m.unit**2 * part * (1 - part)
        weight, *_ = plan.node_estimates[node.level, node.size]
        below = [variance(child) for child in children(plan.tree, node)] if weight < 1 else []
        return np.asarray(weight**2 * own + (1 - weight) ** 2 * sum(below))

    squares = [
        sum(variance(node) for node in plan.tree.cover(t)) + (pending(plan, t) * bias) ** 2
        for t in range(1, plan.horizon + 1)
    ]
    return float(np.mean(squares))


def in_ball(length: int, norm: float) -> Floats:
    direction = np.random.default_rng(2).normal(size=length)
    return np.asarray(norm * direction / np.linalg.norm(direction))


def symmetric(side: int) -> Floats:
    matrix = in_ball(side**2, 1.0).reshape(side, side)
    return (matrix + matrix.T) / 2


WAYS: dict[str, tuple[Tree, bool, bool, Engine]] = {
    "regular": (oh.RegularTree(29, (3, 4)), True, False, "counts"),
    "path": (oh.PathTree(19, 2, 3, 2), False, True, "counts"),
    "messages": (oh.PathTree(19, 2, 3, 2), True, False, "messages"),
}
MEASURED: list[tuple[Values, Any, int]] = [
    (Reals(-2.0, 5.0), 2.3, 3200),  # one coordinate a run, the others have a thousand
    (Vectors(1000, norm=3.0), in_ball(1000, 2.9), 8),
    (SymmetricMatrices(44), symmetric(44), 8),
    (Moments(43), np.append(in_ball(43, 0.95), -0.8), 8),
    (Histogram(1000), 7, 8),
]


def measured_squares(plan: oh.Plan, value: Any, runs: int, engine: Engine) -> Floats:
    """Of some runs each, on an input in which all users hold this value."""
    rows = plan.values.rows(np.array([value] * plan.horizon))
    truth = np.cumsum(points(plan.values, [value] * plan.horizon), axis=0)
    truth = truth.reshape(plan.horizon, *plan.values.shape)
    return np.array(
        [((run_in_parts(plan, engine, rows, 99, s) - truth) ** 2).mean() for s in range(runs)]
    )


@pytest.mark.parametrize(
    ("values", "value", "runs", "way"),
    [
        pytest.param(*case, way, id=f"{case[0]}-{way}")
        for case in MEASURED
        for way in WAYS
        if case[2] < 100 or way == "messages"
    ],
)
def test_measured_errors_are_as_predicted(values: Values, value: Any, runs: int, way: str) -> None:
    """Within 5 percent, with so many runs that this is six standard errors."""
    tree, combine, hold, engine = WAYS[way]
    plan = kind_plan(tree, values, noise_bits=3, steps=STEPS, combine=combine, hold=hold)
    squares = measured_squares(plan, value, runs, engine)
    measured, expected = float(squares.mean()), expected_square(plan, value)
    assert 6 * squares.std() / math.sqrt(len(squares)) < 0.1 * measured
    assert math.sqrt(measured) == pytest.approx(math.sqrt(expected), rel=0.05)
    assert math.sqrt(expected) <= plan.rms_error


@pytest.mark.parametrize("engine", ENGINES)
def test_the_comparison_of_errors_sees_a_missing_coin(engine: Engine) -> None:
    plan, mutant = (
        kind_plan(oh.RegularTree(29, (3, 4)), Vectors(1000), noise_bits=n, steps=STEPS)
        for n in (3, 2)
    )
    value = in_ball(1000, 0.9)
    measured = math.sqrt(measured_squares(mutant, value, 8, engine).mean())
    assert measured != pytest.approx(math.sqrt(expected_square(plan, value)), rel=0.05)


@pytest.mark.parametrize("values", [Reals(0.0, 50.0), Vectors(4), Histogram(6)], ids=str)
def test_chosen_plans_err_as_they_predict(values: Values) -> None:
    """On the worst input for the pending users, rounding may cost less than is allowed for."""
    plan = oh.Plan.best(400, 2, PRIVACY, values=values, tree="regular")
    value = values.opposites(np.ones(1, np.uint8))[0]
    squares = np.array([simulate(plan, "ones", seed=s).rms_error ** 2 for s in range(600)])
    spread = 6 * squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - expected_square(plan, value)) < spread
    assert spread < 0.25 * squares.mean()
    assert squares.mean() - spread < plan.rms_error**2


# Streams.


@pytest.mark.parametrize(
    ("values", "choices"), [*KINDS, pytest.param(Moments(3), [], id="moments:3")]
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
        farthest = 2.0 if values == Moments(1) else values.sensitivity
        assert np.linalg.norm(distinct[0] - distinct[1]) == pytest.approx(farthest)
    again = stream.parts(oh.seeded_random(3))
    assert np.array_equal(np.concatenate([again(0, 100), again(100, 500)]), rows)


def test_streams_are_spread_as_they_are_called() -> None:
    users = 60_000

    def drawn(form: str, values: Values, seed: int) -> Any:
        return stream_for(form, users, values=values).parts(oh.seeded_random(seed))(0, users)

    highs = int((drawn("bernoulli:0.3", Reals(2.0, 5.0), 1) == 5.0).sum())
    assert_probability(highs, users, 0.3, discrepancy=0.03)
    tenths = np.floor(drawn("uniform", Reals(2.0, 5.0), 2) * 10 / 3 - 20 / 3).astype(int)
    assert_uniform_over(tenths.tolist(), range(10), discrepancy=0.02)
    assert_uniform_over(drawn("uniform", Histogram(7), 3).tolist(), range(7), discrepancy=0.02)
    for values in (Vectors(3, norm=2.0), SymmetricMatrices(2, norm=2.0)):
        rows = drawn("uniform", values, 4)
        ranks = np.floor(10 * (np.linalg.norm(rows, axis=1) / 2) ** 3).astype(int)
        assert_uniform_over(ranks.tolist(), range(10), discrepancy=0.02)
        octants = (rows > 0) @ np.array([1, 2, 4])
        assert_uniform_over(octants.tolist(), range(8), discrepancy=0.02)
    hard = drawn("hard", Vectors(2), 5)[:, 0]
    bits = HardInput.against(users, 1, 1.0).draw(oh.seeded_random(5))
    assert hard.tolist() == (2.0 * bits - 1).tolist()


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_file_is_read_as_the_values_it_holds(
    values: Values, choices: list[Any], tmp_path: Path
) -> None:
    raw, file = shrunk(values, choices, 53), tmp_path / "values.csv"
    np.savetxt(file, np.array(raw).reshape(53, -1), delimiter=",", fmt="%.17g")
    assert np.array_equal(read_rows(file, values), values.rows(raw))
    plan = kind_plan(REGULAR, values)
    alike = [simulate(plan, form, seed=3).rms_error for form in (str(file), raw)]
    assert alike[0] == alike[1]
    with pytest.raises(oh.InvalidValue, match="53 values, the plan's horizon is 50"):
        stream_for(str(file), 50, values=values)


# The command line.


@pytest.mark.parametrize(
    ("spec", "dimension"),
    [("real", 1), ("real:0:50", 1), ("vector:3", 3), ("histogram:7", 7), ("matrix:2", 3),
     ("moments:2", 5)],
)  # fmt: skip
def test_plans_are_made_for_every_kind(spec: str, dimension: int, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    options = ("--horizon", "100", "--shufflers", "2", "--tree", "regular")
    printed = as_json("plan", *options, "--values", spec, "--save", str(file))
    plan = oh.Plan.load(file)
    assert values_of(printed["values"]) == plan.values == values_of(spec)
    assert plan.values.dimension == dimension
    assert printed["rms_error"] == plan.rms_error < printed["published"]["rms_error"]
    assert printed["delta_spent"] <= 1e-6
    assert {"steps", "unit", "rounding_variance"} <= set(printed["levels"][0])
    shown = overhand("plan", *options, "--values", spec).stdout
    assert f"100 users ({plan.values})" in shown
    assert ("rms error of a coordinate" in shown) == (dimension > 1)
    result = as_json("simulate", "--plan", str(file), "--input", "uniform", "--runs", "2")
    assert result["users"] == 100
    assert result["digest"] == plan.digest


def test_a_limit_on_messages_is_kept_and_its_cost_is_told() -> None:
    options = ("--horizon", "100", "--shufflers", "2", "--tree", "regular", "--values", "vector:3")
    printed = as_json("plan", *options, "--max-messages", "4000")
    unlimited = as_json("plan", *options)
    assert "unlimited" not in unlimited
    for name in ("rms_error", "messages_per_user"):
        assert printed["unlimited"][name] == unlimited[name]
    assert printed["messages_per_user"] <= 4000 < unlimited["messages_per_user"]
    assert printed["rms_error"] > unlimited["rms_error"]
    shown = overhand("plan", *options, "--max-messages", "4000").stdout
    assert "without the limit" in shown
    result = overhand("plan", *options, "--max-messages", "3")
    assert (result.returncode, result.stdout) == (2, "")
    assert "messages" in result.stderr


FILES = [
    ("real:0:50", "value\n" + "12.5\n0\n50\n" * 20),
    ("vector:3", "x,y,z\n" + "0.1,-0.2,0.3\n0,0,1\n" * 20),
    ("histogram:7", "6\n0\n3\n" * 20),
    ("matrix:2", "0.5,0.1,0.1,-0.5\n" * 30),
    ("moments:2", "a,b,response\n" + "0.6,0.8,-1\n0.1,0,0.5\n" * 20),
]


@pytest.mark.parametrize(("spec", "text"), FILES, ids=[spec for spec, _ in FILES])
def test_simulate_takes_files_of_every_kind(spec: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "values.csv"
    file.write_text(text)
    arguments = ("simulate", "--input", str(file), "--values", spec, "--shufflers", "1")
    for engine in ENGINES if spec in ("real:0:50", "histogram:7") else ENGINES[:1]:
        printed = as_json(*arguments, "--runs", "3", "--engine", engine)
        assert printed["users"] == len(read_rows(file, values_of(spec)))
        assert 0 < printed["rms_error"] < 3 * printed["predicted_rms_error"]
        assert printed["engine"] == engine


def test_values_out_of_range_are_refused_or_clipped(tmp_path: Path) -> None:
    file = tmp_path / "values.csv"
    file.write_text("10\n60\n" * 20)
    arguments = ("simulate", "--input", str(file), "--values", "real:0:50", "--shufflers", "1")
    refused = overhand(*arguments)
    assert refused.returncode == 2
    assert "value 60 of user 2 is not between 0 and 50" in refused.stderr
    assert as_json(*arguments, "--runs", "1", "--clip")["users"] == 40
    plan = tmp_path / "plan.json"
    made = ("plan", "--horizon", "40", "--shufflers", "1", "--values", "real:0:50", "--clip")
    assert overhand(*made, "--save", str(plan)).returncode == 0
    assert oh.Plan.load(plan).values == Reals(0.0, 50.0, clip=True)
    saved = ("simulate", "--plan", str(plan), "--input", str(file), "--runs", "1")
    assert as_json(*saved)["users"] == 40


@pytest.mark.parametrize(
    "spec",
    ["", "reals", "Real", "real:1", "real:1:0", "real:0:1:2", "real:a:b", "real:nan:1",
     "real:0:inf", "real:", "vector", "vector:0", "vector:2.5", "vector:-1", "vector:3:0",
     "vector:3:-1", "vector:3:nan", "vector:1e9", "histogram", "histogram:1", "histogram:x",
     "histogram:1e400", "histogram:5:2", "matrix:0", "matrix:2:2:2", "moments", "moments:0",
     "moments:2:1", "bit:1", "bits"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_bad_kind_is_one_line_and_exit_code_2(command: str, spec: str) -> None:
    result = overhand(command, "--horizon", "100", "--values", spec)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --horizon 100 --values bit --clip", "no range to clip"),
        ("plan --horizon 100 --values histogram:3 --clip", "no range to clip"),
        ("plan --horizon 100 --values real --max-messages 0", "max_messages=0"),
        ("plan --horizon 100 --values real --max-messages 5 --published", "--max-messages"),
        ("simulate --horizon 100 --values vector:2 --input missing.csv", "missing.csv"),
        ("simulate --values vector:2 --input missing.csv", "missing.csv"),
        ("simulate --values vector:2", "horizon"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: str, words: str) -> None:
    result = overhand(*line.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
