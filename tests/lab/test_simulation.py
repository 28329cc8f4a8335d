"""Simulations: both engines have the law of the cover, and errors are as predicted."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.baselines import SquareRoot, trusted_tree
from overhand.lab.baselines.local import LocalResponse
from overhand.lab.lower_bound import HardInput
from overhand.lab.simulation import (
    Counter,
    Engine,
    estimate_all,
    read_rows,
    simulate,
    stream_for,
)
from overhand.lab.simulation.counts import AliasTable, CountsRun, CoverNoise
from overhand.lab.simulation.run import ENGINES
from overhand.lab.simulation.streams import Stream
from overhand.model import Floats
from overhand.noise import CoinNoise
from overhand.planning import TreeKind
from overhand.randomness import BinaryFraction, SeededRandom
from overhand.values import (
    BITS,
    Histogram,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
)
from support.estimate_laws import expected_square
from support.reference_twins import error_law
from support.sampling import (
    SAMPLES,
    Outcomes,
    assert_follows,
    assert_normal,
    kolmogorov,
    samples_for,
)
from support.small_plans import PRIVACY, WIDE, coin_plan

FIGURE_2 = oh.RegularTree(horizon=8, degrees=(2, 2))
DISCREPANCY = 0.18


def noise_samples(plan: oh.Plan, t: int, engine: Engine) -> np.ndarray[Any, np.dtype[np.int64]]:
    bits = [1, 0, 1, 1, 0, 1, 1, 0, 1, 0][: plan.horizon]
    covered = max(node.stop for node in plan.tree.cover(t))
    truth = sum(bits[:covered]) + (t - covered) / 2
    errors = [
        estimate_all(plan, bits, oh.seeded_random(seed), engine=engine)[t - 1] - truth
        for seed in range(samples_for(DISCREPANCY))
    ]
    return np.array(errors).round().astype(np.int64)


SINGLES = oh.RegularTree(horizon=10, degrees=(1, 3, 3))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tree", "t"), [(FIGURE_2, 7), (SINGLES, 6), (SINGLES, 10)])
def test_both_engines_draw_from_the_law_of_the_cover(
    engine: Engine, tree: oh.RegularTree, t: int
) -> None:
    plan = coin_plan(tree, noise_bits=5)
    samples = noise_samples(plan, t, engine)
    assert_follows(samples, error_law(plan, t), discrepancy=DISCREPANCY)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("noise_bits", [0, 1], ids=["no noise", "a fifth of it"])
def test_the_law_test_sees(engine: Engine, noise_bits: int) -> None:
    plan, mutant = (coin_plan(FIGURE_2, noise_bits=bits) for bits in (5, noise_bits))
    truth = error_law(plan, 7)
    assert kolmogorov(truth, error_law(mutant, 7), range(-40, 40)) > DISCREPANCY
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(noise_samples(mutant, 7, engine), truth, discrepancy=DISCREPANCY)


KINDS: list[tuple[TreeKind, int, int]] = [
    ("regular", 1, 2003),
    ("regular", 3, 5003),
    ("regular", 2, 1999),
    ("paper", 2, 3011),
    ("binary", 20, 1021),
    ("regular", 5, 4001),
]


@pytest.mark.parametrize(
    ("kind", "shufflers", "horizon"),
    [one if one[0] == "regular" else pytest.param(*one, marks=pytest.mark.slow) for one in KINDS],
    ids=str,
)
def test_predicted_errors_are_those_of_the_law(
    kind: TreeKind, shufflers: int, horizon: int
) -> None:
    plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree=kind)
    for bit in (0, 1):
        assert expected_square(plan, bit) == pytest.approx(plan.rms_error**2, rel=1e-9)


def cover_noise(plan: oh.Plan, *, seed: int) -> list[tuple[int, Floats]]:
    """At three times, the noise of many runs: normal noise of the same variance stands in."""
    noise = CoverNoise(plan, oh.seeded_random(seed), runs=(SAMPLES,), gaussian=True)
    ends = [0, *(plan.tree.blocks * part // 8 for part in (3, 7, 8))]
    return [
        (last * plan.tree.lowest, noise.after(first, last, np.empty(0)))
        for first, last in itertools.pairwise(ends)
    ]


@pytest.mark.parametrize(("kind", "shufflers", "horizon"), KINDS, ids=str)
def test_estimates_have_the_noise_of_the_plan(kind: TreeKind, shufflers: int, horizon: int) -> None:
    plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree=kind)
    for t, samples in cover_noise(plan, seed=20235):
        assert_normal(samples, plan.noise_variance(np.array([t]))[0], tests=3)


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_the_noise_of_estimates_sees_too_little(share: float) -> None:
    plan = oh.Plan.best(5003, 3, PRIVACY, tree="regular")
    thin = tuple(oh.CoinSum.with_variance(m.size, share * m.variance) for m in plan.mechanisms)
    mutant = oh.Plan(plan.tree, thin, PRIVACY, plan.shufflers)
    for t, samples in cover_noise(mutant, seed=20236):
        lie, truth = (float(one.noise_variance(np.array([t]))[0]) for one in (mutant, plan))
        assert lie < truth / 1.15
        with pytest.raises(AssertionError, match="variance ratio"):
            assert_normal(samples, truth, tests=3)


def test_the_error_of_a_simulation_is_that_of_all_its_estimates() -> None:
    plan = oh.Plan.best(2003, 2, PRIVACY, tree="regular")
    squares, largest = [], []
    for run in range(3):
        _, noise = SeededRandom(np.random.default_rng([4, run])).spawn(2)
        errors = CountsRun(plan, noise).estimates(np.ones(2003, np.uint8)) - np.arange(1, 2004)
        squares.append(np.square(errors).mean())
        largest.append(np.abs(errors).max())
    found = simulate(plan, "ones", runs=3, seed=4)
    assert found.rms_error == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-12)
    assert found.max_error == pytest.approx(max(largest), rel=1e-12)
    assert found.mean_max_error == pytest.approx(np.mean(largest), rel=1e-12)


COUNTERS: list[tuple[Counter, Engine]] = [
    (oh.Plan.published(3001, 2, PRIVACY), "counts"),
    (oh.Plan.best(500, 2, PRIVACY), "messages"),
    (trusted_tree(700, PRIVACY, combine=True), "counts"),
    (trusted_tree(700, PRIVACY, combine=False), "counts"),
    (LocalResponse.best(1000, PRIVACY), "counts"),
    (SquareRoot(1000, PRIVACY), "counts"),
]


@pytest.mark.parametrize(("counter", "engine"), COUNTERS, ids=lambda c: type(c).__name__)
def test_every_counter_errs_as_it_says_and_pays_for_it(counter: Counter, engine: Engine) -> None:
    measured = [simulate(counter, "ones", seed=s, engine=engine).rms_error for s in range(850)]
    squares = np.square(measured)
    spread = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - counter.rms_error**2) < 6.2 * spread
    assert 6.2 * spread < 0.35 * counter.rms_error**2
    assert counter.delta_spent <= PRIVACY.delta * (1 + 1e-9)
    assert counter.worst_std <= counter.error_bound(0.05)
    assert counter.messages_per_user >= 1


def test_a_simulation_is_the_same_for_the_same_seed_and_longer_ones_begin_alike() -> None:
    plan = oh.Plan.best(1000, 2, PRIVACY)
    once, again = (simulate(plan, "bernoulli:0.3", runs=3, seed=5) for _ in range(2))
    assert once.rms_error == again.rms_error
    assert simulate(plan, "bernoulli:0.3", runs=1, seed=5).max_error <= once.max_error
    assert simulate(plan, "bernoulli:0.3", runs=3, seed=6).rms_error != once.rms_error


def test_errors_are_tallied_as_they_are() -> None:
    plan = oh.Plan.best(1003, 2, PRIVACY)
    bits = np.random.default_rng(8).integers(0, 2, 1003)
    random = np.random.default_rng([4, 0])
    noise = oh.randomness.SeededRandom(random).spawn(2)[1]
    errors = estimate_all(plan, bits, noise) - np.cumsum(bits)
    result = simulate(plan, bits, seed=4)
    assert result.rms_error == pytest.approx(math.sqrt((errors**2).mean()))
    assert result.max_error == result.mean_max_error == pytest.approx(np.abs(errors).max())
    starts = np.concatenate([[0], result.curve.t[:-1]])
    for start, stop, rms in zip(starts, result.curve.t, result.curve.rms, strict=True):
        assert rms == pytest.approx(math.sqrt((errors[start:stop] ** 2).mean()))


def test_chunks_meet_without_a_seam() -> None:
    """Without noise, estimates in parts are the estimates of the whole."""
    for tree in (oh.RegularTree(100, (3, 2, 4)), WIDE, oh.RegularTree(64, (2,) * 5)):
        plan = coin_plan(tree, noise_bits=0)
        bits = np.random.default_rng(1).integers(0, 2, tree.horizon).astype(np.uint8)
        run = CountsRun(plan, oh.seeded_random(1))
        step = 4 * tree.lowest
        parts = [run.estimates(bits[i : i + step]) for i in range(0, tree.horizon, step)]
        whole = estimate_all(plan, bits, oh.seeded_random(1), engine="messages")
        assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_memory_does_not_grow_with_the_horizon() -> None:
    peaks: list[int] = []
    for horizon in (2**20, 2**22):
        plan = oh.Plan.best(horizon, 3, PRIVACY)
        tracemalloc.start()
        simulate(plan, "zeros")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_alias_tables_draw_from_their_law() -> None:
    third = BinaryFraction.near(1 / 3)
    law = CoinNoise(((9, third), (5, BinaryFraction(1, 1))))
    draws = AliasTable(law).draw(oh.seeded_random(9), samples_for(0.02))
    outcomes = (draws + law.mean).round().astype(np.int64)
    exact = Outcomes(law.pmf.first, law.pmf.probabilities)
    assert_follows(outcomes, exact, discrepancy=0.02)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(outcomes + (outcomes > 5), exact, discrepancy=0.02)


@pytest.mark.parametrize(
    ("form", "mean"), [("zeros", 0.0), ("ones", 1.0), ("bernoulli:0.25", 0.25), ("hard", 0.5)]
)
def test_streams_are_what_they_are_called(form: str, mean: float) -> None:
    stream = stream_for(form, 40_000, shufflers=2, epsilon=1.0)
    part = stream.parts(oh.seeded_random(3))
    bits = np.concatenate([part(0, 10_000), part(10_000, 40_000)])
    assert bits.dtype == np.uint8
    assert bits.size == 40_000
    assert abs(bits.mean() - mean) < 0.04


def test_a_hard_input_is_one_against_its_plan() -> None:
    plan = oh.Plan.best(20_000, 3, oh.Privacy(0.5, 1e-6), tree="regular")
    copies = HardInput.against(20_000, 3, 0.5).copies
    assert copies != HardInput.against(20_000, 1, 1.0).copies
    expected = stream_for("hard", 20_000, shufflers=3, epsilon=0.5)
    measured = simulate(plan, "hard", seed=2).rms_error
    assert measured == simulate(plan, expected, seed=2).rms_error
    assert measured != simulate(plan, stream_for("hard", 20_000), seed=2).rms_error


@pytest.mark.parametrize("form", ["noise", "bernoulli:", "bernoulli:2", "bernoulli:nan", ""])
def test_unknown_streams_are_refused(form: str) -> None:
    with pytest.raises(oh.InvalidValue):
        stream_for(form, 10)


@pytest.mark.parametrize(
    "text",
    ["0\n1\n1\n", "0\n1\n1", "value\n0\n1\n1\n", "\ufeffbit\r\n0\r\n1\r\n1\r\n",
     "name,bit\na,0\nb,1\nc,1\n", " 0\n1 \n1\n"],
    ids=["plain", "no last newline", "header", "windows", "column", "spaces"],
)  # fmt: skip
def test_bits_are_read_from_csv(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bits.csv"
    file.write_text(text, encoding="utf-8")
    assert read_rows(file, BITS).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\n1\n2\n", "value 2.0 of user 3 is not a bit"),
        ("bit\n0\nyes\n", "line 3: 'yes'"),
        ("0\n\n1\n", "line 2: ''"),
        ("bit\n0\n0.5\n", "value 0.5 of user 3 is not a bit"),
        ("", "no values"),
        ("bit\n", "no values"),
        ("a,b\n0,1\n", "2 columns"),
        ("bit\n0\n0,1\n", "line 3: '0,1' has 2 columns, not 1"),
        ("name,bit\na,0\nb\n", "line 3: 'b' has 1 columns, not 2"),
        ("name,bit\na,0\nb,1,c\n", "line 3: 'b,1,c' has 3 columns, not 2"),
        ("0\n1\n\n", "line 3: ''"),
        ('1\n"0\n1"\n', r"line 2: '0\\n1'"),
    ],
)
def test_a_wrong_line_is_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bits.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(oh.InvalidValue, match=words):
        read_rows(file, BITS)


TABLES: list[tuple[Values, str, Any]] = [
    (Reals(), "0.5\n1\n1e-3\n", [0.5, 1.0, 0.001]),
    (Reals(), "age\n0.5\n1\n", [0.5, 1.0]),
    (Reals(-5.0, 5.0), "\ufeffName,Value,note\r\na,-5,x\r\nb,+2.5,y\r\n", [-5.0, 2.5]),
    (Reals(-5.0, 5.0), '"1.5"\n-2\n', [1.5, -2.0]),
    (Reals(0.0, 1.0, clip=True), "7\n-1\n0.5\n", [1.0, 0.0, 0.5]),
    (Histogram(4), "3\n0\n2.0\n", [3, 0, 2]),
    (Histogram(4), "user,value\n1,3\n2,0\n", [3, 0]),
    (Histogram(4), "bucket\n3\n0", [3, 0]),
    (oh.Histogram(["like", "love"]), "love\n like\n", [1, 0]),
    (oh.Histogram(["like", "love"]), "Label\nlove\n", [1]),
    (oh.Histogram(["like", "love"]), "when,label\n1,love\n", [1]),
    (oh.Histogram(["like", "value"]), "value\nlike\n", [1, 0]),
    (oh.Histogram(["1", "2"]), "name,value\n1,2\n2,1\n", [1, 0]),
    (oh.Binned(0, 9, bins=3), "spent\n0\n9\n", [0, 2]),
    (oh.Grouped(["DE", "FR"], of=BITS), "FR,1\nDE,0\n", [[1, 1, 0], [0, 0, 1]]),
    (oh.Grouped(["DE", "FR"], of=BITS), "group,clicked\nFR,1\n", [[1, 1, 0]]),
    (Vectors(2), "0.6,0.8\n0, -1\n", [[0.6, 0.8], [0.0, -1.0]]),
    (Vectors(2), "x,y\n0.6,0.8\n", [[0.6, 0.8]]),
    (Vectors(1), "x\n0.5\n-1\n", [[0.5], [-1.0]]),
    (Vectors(2, clip=True), "3,4\n", [[0.6, 0.8]]),
    (SymmetricMatrices(2), "a,b,c,d\n0.5,0,0,-0.5\n", [[0.5, 0.0, -0.5]]),
    (SymmetricMatrices(2, norm=2.0), "0,1,1,0\n", [[0.0, math.sqrt(2), 0.0]]),
    (SymmetricMatrices(1), "0.25\n", [[0.25]]),
    (RegressionStatistics(1), "x,response\n0.5,-1\n1,0.5\n", [[-0.5, 0.25], [0.5, 1.0]]),
]


@pytest.mark.parametrize(("values", "text", "expected"), TABLES)
def test_values_of_every_kind_are_read_from_csv(
    values: Values, text: str, expected: Any, tmp_path: Path
) -> None:
    file = tmp_path / "values.csv"
    file.write_bytes(text.encode())
    assert read_rows(file, values) == pytest.approx(np.array(expected))


@pytest.mark.parametrize(
    ("values", "text", "words"),
    [
        (Reals(), "0\n0,5\n1\n", "line 2: '0,5' has 2 columns, not 1"),
        (Reals(), "0.5\nhalf\n", "line 2: 'half' is not 1 number"),
        (Reals(), "x\n0.5\n1.5\n", "value 1.5 of user 3 is not between 0 and 1"),
        (Reals(), "0.5\nnan\n", "user 2 is not finite"),
        (Reals(), "0.5,0.5\n", "2 columns, none named value or bit"),
        (Reals(), "label,spent\na,0.5\n", "2 columns, none named value or bit"),
        (oh.Histogram(["like", "love"]), "when,mood\n1,love\n", "none named value or label"),
        (Reals(), '1\n"0.\n5"\n', "line 2"),
        (Reals(), "\n0.5\n", "line 1: ''"),
        (Reals(), "value\n", "no values"),
        (Histogram(4), "1\n4\n", "value 4.0 of user 2 is not a bucket from 0 to 3"),
        (Histogram(4), "1\n1.5\n", "value 1.5 of user 2 is not a bucket"),
        (Histogram(4), "1\n-1\n", "value -1.0 of user 2 is not a bucket"),
        (oh.Histogram(["like", "love"]), "like\nlvoe\n", "'lvoe' of user 2 .* is 'love'"),
        (oh.Histogram(["like", "love"]), "mood\nlove\n", "'mood' of user 1 is not one"),
        (oh.Histogram(["like", "love"]), "value\nlove\n\n", "line 3: ''"),
        (oh.Grouped(["DE", "FR"], of=BITS), "DE,1\nFR,x\n", "line 2: 'FR,x' is not 1 number"),
        (oh.Grouped(["DE", "FR"], of=BITS), "DE,1\nFX,1\n", "'FX' of user 2 is not one"),
        (oh.Grouped(["DE", "FR"], of=BITS), "DE\nFR\n", "1 columns, but a value has 2"),
        (Vectors(2), "0.1,0.2\n0.3,0.4,0.5\n", "line 2: '0.3,0.4,0.5' has 3 columns, not 2"),
        (Vectors(2), "x,y\n0.1\n", "line 2: '0.1' has 1 columns, not 2"),
        (Vectors(2), "0.1\n0.2\n", "1 columns, but a value has 2"),
        (Vectors(2), "x,y,z\n0.1,0.2,0.3\n", "3 columns, but a value has 2"),
        (Vectors(2), "0.1,0.2x\n0.1,0.2\n", "line 1: '0.1,0.2x' is not 2 numbers"),
        (Vectors(2), "0.1,\n0.1,0.2\n", "line 1: '0.1,' is not 2 numbers"),
        (Vectors(2), ",\n0.1,0.2\n", "line 1: ',' is not 2 numbers"),
        (Vectors(2), "x,y\n0.1,0.2\n1,1\n", "value of user 3 has norm"),
        (Vectors(2), "", "no values"),
        (SymmetricMatrices(2), "0,0.5,0.4,0\n", "matrix of user 1 is not symmetric"),
        (SymmetricMatrices(2), "0,0.5,0\n", "3 columns, but a value has 4"),
        (RegressionStatistics(1), "0.5,0.5\n0.5,1.5\n", "value of user 2 has a response of size"),
        (RegressionStatistics(2), "0.5,0.5\n", "2 columns, but a value has 3"),
    ],
)
def test_a_line_that_is_no_value_of_its_kind_is_named(
    values: Values, text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.csv"
    file.write_text(text)
    with pytest.raises(oh.InvalidValue, match=words) as refused:
        read_rows(file, values)
    assert "values.csv" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(oh.InvalidValue, match="cannot read"):
        read_rows(tmp_path / "none.csv", BITS)
    (tmp_path / "raw.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(oh.InvalidValue, match="not a CSV"):
        read_rows(tmp_path / "raw.csv", BITS)
    (tmp_path / "long.csv").write_text("1\n" * 11)
    with pytest.raises(oh.InvalidValue, match="11 values, but the plan's horizon is 10"):
        stream_for(str(tmp_path / "long.csv"), 10)


@pytest.mark.parametrize(
    "change",
    [{"runs": 0}, {"seed": -1}, {"engine": "fast"}, {"input": [0, 2]}, {"input": [0] * 99}],
)
def test_bad_simulations_are_refused(change: dict[str, Any]) -> None:
    plan = coin_plan(FIGURE_2)
    arguments: dict[str, Any] = {"input": "zeros", **change}
    with pytest.raises(oh.InvalidValue):
        simulate(plan, **arguments)
    with pytest.raises(oh.InvalidValue, match="exceed the horizon"):
        estimate_all(plan, [0] * 9, oh.seeded_random(1))
    with pytest.raises(oh.InvalidValue, match="0 values"):
        simulate(plan, Stream(0, lambda _: lambda a, b: np.zeros(0, np.uint8)))


def test_a_trusted_factorisation_is_never_deployed() -> None:
    with pytest.raises(oh.InvalidValue, match="never deployed"):
        SquareRoot(10, PRIVACY).start(oh.secure_random())
    with pytest.raises(oh.Infeasible, match="in memory"):
        SquareRoot(10**9, PRIVACY).start(oh.seeded_random(1))
