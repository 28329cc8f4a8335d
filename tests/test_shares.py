"""Sums by shares: the mechanism, its plans, their runs and what the command line says of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import overhand as oh
from overhand.accounting import gaussian_mu
from overhand.baselines import SquareRoot
from overhand.mechanisms import Coins, LaplaceNoise, Polya, SharesSum
from overhand.mechanisms.mechanism import Mechanism
from overhand.model import Messages, Shuffled, standard_tail
from overhand.plan import MechanismKind, TreeKind
from overhand.randomness import HALF, Random
from overhand.simulation import ENGINES, Engine, simulate
from overhand.values import BITS, Histogram, Reals, Values, Vectors, values_of
from plans import PRIVACY
from sampled import Outcomes, assert_follows, assert_uniform_over, kolmogorov, samples_for
from test_cli import as_json, overhand
from test_kinds_simulation import expected_square

MILLION = 10**6
DISCREPANCY = 0.08
SILENT = Coins(0, HALF)
TINY_KINDS: list[tuple[Values, int, list[Any]]] = [
    (BITS, 1, [1, 0, 1]),
    (Reals(-1.0, 3.0), 4, [-1.0, 3.0, 2.0]),
    (Vectors(2), 4, [[0.5, -0.5], [0.0, 1.0], [0.5, 0.0]]),
    (Histogram(3), 1, [2, 0, 2]),
]
KINDS: list[Values] = [values for values, *_ in TINY_KINDS]
each_kind = pytest.mark.parametrize(
    ("values", "steps", "raw"), [pytest.param(*case, id=str(case[0])) for case in TINY_KINDS]
)


@cache
def shared(
    values: Values = BITS,
    horizon: int = 300,
    shufflers: int = 2,
    tree: TreeKind = "regular",
    mechanism: MechanismKind = "shares",
    honest: float = 1.0,
    reports: int = 1,
) -> oh.Plan:
    return oh.Plan.best(
        horizon,
        shufflers,
        PRIVACY,
        values=values,
        tree=tree,
        mechanism=mechanism,
        honest=honest,
        reports=reports,
    )


def all_shares(plan: oh.Plan) -> list[SharesSum]:
    found = [m for of_level in plan.mechanisms for m in of_level]
    assert all(isinstance(m, SharesSum) for m in found)
    return [m for m in found if isinstance(m, SharesSum)]


# The mechanism: what is sent and what comes back.


def tiny(values: Values = BITS, steps: int = 1, noise: Coins | Polya | None = None) -> SharesSum:
    noise = Polya(1, 3, 0.5) if noise is None else noise
    return SharesSum(3, noise, 3, 10, 3, values, steps)


def sum_of(mechanism: Mechanism, raw: list[Any], random: Random) -> Any:
    """What the server sees of one batch that was sent and shuffled."""
    messages = mechanism.encode_many(raw, random)
    return mechanism.analyze(Shuffled(random.permute(messages.reshape(-1))))


def truth(values: Values, raw: list[Any]) -> Any:
    rows = values.coordinates(values.rows(raw))
    return rows.astype(np.float64).sum(axis=0)


@each_kind
def test_without_noise_a_batch_of_shares_gives_the_very_sum(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps, SILENT)
    for seed in range(20):
        assert sum_of(mechanism, raw, oh.seeded_random(seed)) == pytest.approx(truth(values, raw))


@pytest.mark.parametrize("modulus_bits", [3, 24, 25, 48])
def test_so_it_does_at_every_modulus(modulus_bits: int) -> None:
    for values, raw in ((BITS, [1, 1, 1]), (Histogram(3), [2, 2, 2])):
        mechanism = SharesSum(3, SILENT, 5, modulus_bits, 3, values)
        got = sum_of(mechanism, raw, oh.seeded_random(modulus_bits))
        assert np.array_equal(got, truth(values, raw))


def noise_seen(mechanism: SharesSum, raw: list[Any], random: Random, count: int) -> Any:
    """The noise, in steps, of so many batches of messages: coordinates one after the other."""
    messages = mechanism.encode_many(raw * count, random)
    batches = random.permute_rows(messages.reshape(count, -1), mechanism.message_bits)
    noise = (mechanism.analyze_many(batches) - truth(mechanism.values, raw)) / mechanism.unit
    assert np.abs(noise - np.rint(noise)).max() < 1e-6
    return np.rint(noise).astype(np.int64).reshape(count, -1).T


def law_of(noise: LaplaceNoise) -> Outcomes:
    return Outcomes(noise.window.first, noise.window.probabilities)


LAW = law_of(Polya(1, 3, 0.5).law(3))


@each_kind
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_each_coordinate_has_the_sum_of_its_users_noise(
    values: Values, steps: int, raw: list[Any], random: Callable[[int], Random]
) -> None:
    seen = noise_seen(tiny(values, steps), raw, random(7), samples_for(DISCREPANCY))
    assert len(seen) == values.dimension
    for of_coordinate in seen:
        assert_follows(of_coordinate, LAW, discrepancy=DISCREPANCY)


@each_kind
def test_noise_drawn_for_a_whole_batch_has_the_same_law(
    values: Values, steps: int, raw: list[Any]
) -> None:
    mechanism = tiny(values, steps)
    drawn = mechanism.draw_noise(oh.seeded_random(8), samples_for(DISCREPANCY)) / mechanism.unit
    for of_coordinate in drawn.reshape(len(drawn), -1).T:
        assert_follows(np.rint(of_coordinate).astype(np.int64), LAW, discrepancy=DISCREPANCY)


class LosesAShare(SharesSum):
    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        messages = super().encode_rows(rows, random)
        messages[:, 1] = 0
        return messages


def test_the_law_sees_a_lost_share() -> None:
    mutant = LosesAShare(3, Polya(1, 3, 0.5), 3, 10, 3)
    seen = noise_seen(mutant, [1, 0, 1], oh.seeded_random(7), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen[0], LAW, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("noise", [Polya(2, 3, 0.5), SILENT], ids=["doubled", "missing"])
def test_the_law_sees_other_noise(noise: Coins | Polya) -> None:
    window = noise.law(3).window
    other = Outcomes(window.first, window.probabilities)
    assert kolmogorov(LAW, other, range(-100, 101)) > DISCREPANCY
    seen = noise_seen(tiny(noise=noise), [1, 0, 1], oh.seeded_random(7), samples_for(DISCREPANCY))
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(seen[0], LAW, discrepancy=DISCREPANCY)


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_all_shares_but_one_are_uniform(value: int, hidden: int) -> None:
    mechanism = SharesSum(20_000, Polya(1, 20_000, 0.5), 3, 2, 20_000)
    messages = mechanism.encode_many([value] * 20_000, oh.seeded_random(9))
    others = np.delete(messages, hidden, axis=1).tolist()
    support = list(itertools.product(range(4), repeat=2))
    assert_uniform_over(map(tuple, others), support, discrepancy=0.03)


def test_all_shares_together_are_not() -> None:
    mechanism = SharesSum(40_000, SILENT, 2, 1, 40_000)
    messages = mechanism.encode_many([1] * 40_000, oh.seeded_random(9)).tolist()
    support = list(itertools.product(range(2), repeat=2))
    with pytest.raises(AssertionError, match="shows 0 times"):
        assert_uniform_over(map(tuple, messages), support, discrepancy=0.03)


@given(size=st.integers(1, 40), spare=st.integers(0, 40), seed=st.integers(0, 99))
def test_every_sum_within_the_room_for_noise_is_lifted_to_itself(
    size: int, spare: int, seed: int
) -> None:
    bits = (size + spare).bit_length()
    mechanism = SharesSum(size, SILENT, 2, bits, size)
    room = (mechanism.modulus - 1 - size) // 2
    random = np.random.default_rng(seed)
    for total in (-room, -1 if room else 0, 0, size, size + room):
        batch = random.integers(0, mechanism.modulus, 2 * size, dtype=np.uint64)
        rest = int(batch[1:].sum())
        batch[0] = (total - rest) % mechanism.modulus
        assert mechanism.analyze(Shuffled(batch)) == total


@pytest.mark.parametrize("dimension", [1, 3])
def test_batches_that_no_users_sent_are_refused(dimension: int) -> None:
    values = BITS if dimension == 1 else Histogram(3)
    mechanism = SharesSum(3, SILENT, 3, 6, 3, values)
    good = mechanism.encode_many([0, 1, 1], oh.seeded_random(1)).reshape(-1)
    mechanism.analyze(Shuffled(good))
    for count in (0, len(good) - 1, len(good) + 1):
        with pytest.raises(oh.InvalidValue, match=f"{count} messages in a batch"):
            mechanism.analyze(Shuffled(np.resize(good, count)))
    bad = good.copy()
    bad[-1] = np.uint64(dimension << 6)
    with pytest.raises(oh.InvalidValue, match="not below 64" if dimension == 1 else "wrong coord"):
        mechanism.analyze(Shuffled(bad))


def test_a_share_moved_to_another_coordinate_is_seen() -> None:
    mechanism = SharesSum(3, SILENT, 3, 6, 3, Histogram(3))
    batch = mechanism.encode_many([0, 1, 1], oh.seeded_random(1)).reshape(-1)
    batch[0] += np.uint64(64)
    with pytest.raises(oh.InvalidValue, match="wrong coordinates"):
        mechanism.analyze(Shuffled(batch))


@each_kind
@pytest.mark.parametrize("honest", [30, 100])
@pytest.mark.parametrize("distance", [1e-4, 1e-12])
def test_fitted_shares_keep_to_the_distance_and_are_the_fewest(
    values: Values, steps: int, raw: list[Any], honest: int, distance: float
) -> None:
    noise = Polya(1, 100, 0.9)
    fitted = SharesSum.fitted(
        100, noise, honest=honest, distance=distance, values=values, steps=steps
    )
    assert fitted.honest == honest
    assert fitted.view_distance <= distance
    assert fitted.wrap_probability <= distance
    assert fitted.sampling_distance <= 1e-20
    assert fitted.leak(fitted.honest) <= 2.01 * distance
    assert replace(fitted, shares=fitted.shares - 1).view_distance > distance
    assert fitted.largest_sum == 100 * steps < fitted.modulus
    assert fitted.messages_per_user == values.dimension * fitted.shares
    labels = math.ceil(math.log2(values.dimension))
    assert fitted.message_bits == fitted.modulus_bits + labels
    messages = fitted.encode_many(raw, oh.seeded_random(2))
    assert messages.shape == (3, fitted.messages_per_user)
    assert int(messages.max()) < 1 << fitted.message_bits


def test_fewer_honest_users_need_more_shares() -> None:
    by_honest = [
        SharesSum.fitted(1000, Polya(1, 1000, 0.9), honest=honest, distance=1e-9).shares
        for honest in (5, 30, 1000)
    ]
    assert by_honest == sorted(by_honest, reverse=True)
    assert by_honest[0] > by_honest[-1]


def test_a_sum_does_not_fit_as_often_as_is_claimed_at_most() -> None:
    """The bound against the law itself."""
    for bits in (3, 4, 6, 8):
        mechanism = replace(tiny(), modulus_bits=bits)
        window = Polya(1, 3, 0.5).law(3).window
        noise = window.first + np.arange(len(window.probabilities))
        room = (mechanism.modulus - 1 - mechanism.largest_sum) // 2
        exact = float(window.probabilities[np.abs(noise) > room].sum())
        assert exact <= mechanism.wrap_probability <= 200 * exact + 1e-15


@pytest.mark.parametrize("size", [2, 3, 5, 100])
def test_a_modulus_below_the_largest_sum_never_fits(size: int) -> None:
    assert SharesSum(size, Polya(1, size, 0.5), 3, 1, size).wrap_probability == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"shares": 1}, {"modulus_bits": 0}, {"modulus_bits": 49}, {"honest": 0}, {"honest": 4},
     {"size": 0}, {"steps": 2}],
    ids=str,
)  # fmt: skip
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(oh.InvalidValue):
        replace(tiny(), **wrong)


def test_what_cannot_be_hidden_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="hide nothing"):
        SharesSum.fitted(3, Polya(1, 3, 0.5), honest=1, distance=1e-6)
    with pytest.raises(oh.Infeasible, match="bits, not 48"):
        SharesSum.fitted(100, Polya(1, 100, 0.5), honest=9, distance=1e-6, values=Reals(),
                         steps=1 << 45)  # fmt: skip


# Plans: what they reach.


@pytest.mark.parametrize(
    ("shufflers", "error"), [(1, 92.0), (2, 36.5), (3, 29.5), (4, 28.5)], ids=str
)
def test_a_million_bits_err_little_with_few_shufflers(shufflers: int, error: float) -> None:
    plan = shared(BITS, MILLION, shufflers, "best", "best")
    assert plan.rms_error <= error
    assert plan.delta_spent <= PRIVACY.delta


def test_four_shufflers_come_close_to_the_best_trusted_server() -> None:
    trusted = SquareRoot(MILLION, PRIVACY).rms_error
    assert shared(BITS, MILLION, 4, "best", "best").rms_error <= 1.3 * trusted


def test_vectors_by_shares_need_few_messages_and_little_more_than_gaussian_noise() -> None:
    values = Vectors(20)
    plan = shared(values, MILLION, 5, "regular")
    precision = sum(1 / max(m.noise_variance for m in row) for row in plan.mechanisms)
    gaussian = values.sensitivity / gaussian_mu(PRIVACY)
    assert gaussian < math.sqrt(1 / precision) <= 1.10 * gaussian
    assert plan.messages_per_user <= 2000
    assert plan.delta_spent <= PRIVACY.delta


def test_reals_by_shares_err_as_bits_do() -> None:
    bits, reals = (shared(values, MILLION, 5, "best") for values in (BITS, Reals()))
    assert bits.rms_error < reals.rms_error <= 1.02 * bits.rms_error


# Plans: what they spend.


def leaked(summary: dict[str, Any]) -> float:
    """What the printed shares leak, over the counts that one person can move."""
    values = values_of(summary["values"])
    moved = summary["reports"] * (values.moves or values.dimension)
    worst: dict[int, float] = {}
    for row in summary["levels"]:
        leak = row["view_distance"] + row["sampling_distance"] + row["wrap_probability"]
        worst[row["level"]] = max(worst.get(row["level"], 0.0), leak)
    return float((1 + math.exp(summary["epsilon"])) * moved * sum(worst.values()))


def laplace_pmf(noise: dict[str, Any]) -> NDArray[np.float64]:
    """The law as it is printed, by convolution of the geometric laws it is made of."""
    assert noise["law"] == "laplace"
    half = math.ceil(45 / -math.log(noise["ratio"]))
    one = noise["ratio"] ** np.abs(np.arange(-half, half + 1.0))
    law = np.ones(1)
    for _ in range(int(noise["shape"])):
        law = np.convolve(law, one / one.sum())
    return law


def composed(summary: dict[str, Any]) -> float:
    """The delta of the printed laws, by dp-accounting alone."""
    total: Any = None
    for row in {row["level"]: row for row in summary["levels"]}.values():
        law = laplace_pmf(row["noise"])
        kept = {i: math.log(p) for i, p in enumerate(law) if p > 1e-18}
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            kept,
            {i + row["steps"]: log for i, log in kept.items()},
            pessimistic_estimate=True,
            value_discretization_interval=1e-4,
            symmetric=False,
        )
        for _ in range(values_of(summary["values"]).moves or 1):
            total = loss if total is None else total.compose(loss)
    return float(total.get_delta_for_epsilon(summary["epsilon"]))


@pytest.mark.parametrize("values", KINDS, ids=str)
@pytest.mark.parametrize("tree", ["regular", "path"])
def test_a_plan_of_shares_keeps_its_promise(values: Values, tree: TreeKind) -> None:
    plan = shared(values, 400, 2, tree)
    assert plan.delta_leaked <= plan.delta_spent <= PRIVACY.delta
    assert 0 < plan.delta_leaked <= 0.0101 * PRIVACY.delta
    assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


def test_so_does_one_for_a_million_users() -> None:
    for plan in (shared(BITS, MILLION, 4, "best", "best"), shared(Vectors(20), MILLION, 5)):
        assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 0.8])
@pytest.mark.parametrize(
    ("values", "horizon", "shufflers"),
    [(BITS, 300, 1), (BITS, 20_000, 3), (Reals(), 20_000, 2), (Histogram(3), 20_000, 2)],
    ids=str,
)
def test_the_guarantee_follows_from_the_printed_laws(
    values: Values, horizon: int, shufflers: int, epsilon: float
) -> None:
    """At a smaller epsilon: at its own, Laplace noise spends next to nothing or everything."""
    plan = shared(values, horizon, shufflers)
    plan = replace(plan, privacy=oh.Privacy(epsilon, 0.5))
    summary = plan.summary()
    assert composed(summary) == pytest.approx(
        summary["delta_spent"] - summary["delta_leaked"], rel=0.02
    )


def test_the_recomputation_sees_more_noise_than_there_is() -> None:
    summary = replace(shared(BITS, 20_000, 3), privacy=oh.Privacy(0.8, 0.5)).summary()
    for row in summary["levels"]:
        row["noise"]["ratio"] **= 0.9
    assert composed(summary) < 0.9 * (summary["delta_spent"] - summary["delta_leaked"])


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_only_the_shares_and_noise_of_honest_users_count(values: Values) -> None:
    everyone, plan = shared(values, 400), shared(values, 400, honest=0.5)
    assert plan.delta_spent <= PRIVACY.delta
    assert everyone.rms_error < plan.rms_error < 1.6 * everyone.rms_error
    for mechanism in all_shares(plan):
        assert mechanism.honest == mechanism.size // 2
    assert plan.delta_leaked == pytest.approx(leaked(plan.summary()), rel=1e-9)


@pytest.mark.parametrize("values", [BITS, Histogram(3), Vectors(2)], ids=str)
def test_several_reports_of_one_person_cost_noise(values: Values) -> None:
    one, two = shared(values, 400), shared(values, 400, reports=2)
    assert two.delta_spent <= PRIVACY.delta
    assert two.rms_error > 1.4 * one.rms_error
    assert two.delta_leaked == pytest.approx(leaked(two.summary()), rel=1e-9)


@pytest.mark.parametrize("values", KINDS, ids=str)
def test_a_plan_of_shares_survives_its_file(values: Values, tmp_path: Path) -> None:
    plan = shared(values, 400)
    plan.save(tmp_path / "plan.json")
    loaded = oh.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.summary() == plan.summary()
    assert json.loads(json.dumps(plan.summary())) == plan.summary()


@pytest.mark.parametrize(
    ("name", "value"),
    [("shares", 2), ("shares", 200), ("modulus_bits", 40), ("honest", 3), ("honest", 0),
     ("honest", 10**6), ("noise", {"shape": 2, "users": 9, "ratio": "0x1p-1"}), ("noise", {}),
     ("shares", None)],
    ids=str,
)  # fmt: skip
def test_an_edited_plan_of_shares_is_refused(name: str, value: Any) -> None:
    saved = json.loads(shared(BITS, 400).to_json())
    saved["mechanisms"][0][0][name] = value
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


def test_laplace_noise_is_only_carried_by_shares() -> None:
    saved = json.loads(shared(BITS, 400).to_json())
    del saved["mechanisms"][0][0]["shares"]
    with pytest.raises(oh.DamagedPlan, match="only shares carry"):
        oh.Plan.from_json(json.dumps(saved))


# Runs.

RUN_VALUES: list[tuple[Values, Any]] = [
    (BITS, 1),
    (Reals(-2.0, 5.0), 2.3),
    (Histogram(3), 1),
    (Vectors(2), [0.6, -0.5]),
]
each_run = pytest.mark.parametrize(
    ("values", "value"), [pytest.param(*case, id=str(case[0])) for case in RUN_VALUES]
)


@cache
def small(values: Values) -> oh.Plan:
    """Two levels of Laplace noise or coins in shares: no guarantee, but an exact error."""
    tree = oh.RegularTree(29, (3, 4))
    mechanisms = tuple(
        tuple(
            SharesSum.fitted(
                size,
                Polya(shape, size, 0.5),
                honest=size,
                distance=1e-12,
                values=values,
                steps=1 if values.is_whole else 2 + shape,
            )
            for size in tree.sizes(shape)
        )
        for shape in (1, 2)
    )
    return oh.Plan(tree, mechanisms, PRIVACY, 2)


@each_run
@pytest.mark.parametrize("engine", ENGINES)
def test_measured_errors_are_as_predicted(values: Values, value: Any, engine: Engine) -> None:
    """Within six standard errors, which are at most a twentieth of the error itself."""
    plan, runs = small(values), 1000
    squares = np.array(
        [simulate(plan, [value] * 29, seed=s, engine=engine).rms_error ** 2 for s in range(runs)]
    )
    spread = 6 * squares.std() / math.sqrt(runs)
    assert spread < 0.25 * squares.mean()
    assert abs(squares.mean() - expected_square(plan, value)) < spread
    assert squares.mean() - spread < plan.rms_error**2


def halved(noise: Coins | Polya) -> Polya:
    assert isinstance(noise, Polya)
    return replace(noise, users=2 * noise.users)


def test_the_comparison_of_errors_sees_half_the_noise() -> None:
    plan = small(BITS)
    half = tuple(
        tuple(replace(m, user_noise=halved(m.user_noise)) for m in row if isinstance(m, SharesSum))
        for row in plan.mechanisms
    )
    mutant = replace(plan, mechanisms=half)
    squares = [simulate(mutant, [1] * 29, seed=s).rms_error ** 2 for s in range(1000)]
    assert np.mean(squares) < 0.75 * expected_square(plan, 1)


@each_run
def test_chosen_plans_of_shares_run_with_messages(values: Values, value: Any) -> None:
    plan = shared(values, 300)
    for engine in ENGINES:
        result = simulate(plan, [value] * 300, runs=5, seed=3, engine=engine)
        assert 0 < result.rms_error < 3 * plan.rms_error


def fed(plan: oh.Plan, raw: list[Any], cuts: list[int]) -> oh.ContinualSum:
    total = oh.ContinualSum(plan, oh.seeded_random(5))
    for start, stop in itertools.pairwise([0, *cuts, len(raw)]):
        total.update_many(raw[start:stop])
    return total


@each_run
def test_it_does_not_matter_in_which_parts_users_come(values: Values, value: Any) -> None:
    plan, raw = small(values), [value] * 29
    whole = fed(plan, raw, [])
    for cuts in ([1], [3, 12, 13], [2, 4, 20, 27], list(range(1, 29))):
        parts = fed(plan, raw, cuts)
        assert parts.estimate.value == pytest.approx(whole.estimate.value)
        assert parts.estimate.kurtosis == whole.estimate.kurtosis
        assert parts.between(3, 24).value == pytest.approx(whole.between(3, 24).value)


@each_run
def test_a_sum_by_shares_goes_on_where_it_was_saved(values: Values, value: Any) -> None:
    plan, raw = small(values), [value] * 29
    for stop in (0, 4, 12, 17):
        before = fed(plan, raw[:stop], [])
        after = oh.ContinualSum.restored(plan, before.saved())
        assert after.estimate == before.estimate
        for total in (before, after):
            total.update_many(raw[stop:])
        assert after.estimate == before.estimate
        assert after.between(3, 24) == before.between(3, 24)


@each_run
@pytest.mark.parametrize("random", [oh.seeded_random, lambda seed: oh.secure_random()],
                         ids=["seeded", "secure"])  # fmt: skip
def test_sums_are_near_the_truth(
    values: Values, value: Any, random: Callable[[int], Random]
) -> None:
    """Thirty standard deviations: even exponential tails are beyond 1e-9 there."""
    plan = shared(values, 400)
    one = truth(values, [value])
    total = oh.ContinualSum(plan, random(6))
    total.update_many([value] * 400)
    for estimate in (total.estimate, total.between(100, 350)):
        off = np.abs(estimate.value - estimate.users * one)
        assert (off <= 30 * estimate.std + estimate.slack + 1e-6).all()
        assert estimate.kurtosis >= 0


@each_run
def test_endless_sums_by_shares_go_on_and_are_restored(values: Values, value: Any) -> None:
    def plan_for(horizon: int) -> oh.Plan:
        return shared(values, horizon)

    total = oh.EndlessSum(plan_for, oh.seeded_random(3), first=100)
    total.update_many([value] * 450)
    again = oh.EndlessSum.restored(plan_for, total.saved())
    for part in (total, again):
        part.update_many([value] * 300)
    assert again.estimate == total.estimate
    estimate, one = total.estimate, truth(values, [value])
    assert (np.abs(estimate.value - 750 * one) <= 30 * estimate.std + estimate.slack).all()
    assert len(total.plans) >= 3
    if values.moves is not None:
        assert estimate.kurtosis > 0


# Tails.


@pytest.mark.parametrize("x", [0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_with_kurtosis_3_the_tail_is_that_of_laplace_noise(x: float) -> None:
    laplace = math.exp(-math.sqrt(2) * x) / 2
    assert standard_tail(x, 3.0) == pytest.approx(laplace, rel=0.02)
    assert standard_tail(-x, 3.0) == pytest.approx(1 - laplace, rel=0.02)


@cache
def heavy() -> oh.Plan:
    """One level of so much Laplace noise that it hardly matters that it is whole."""
    privacy = oh.Privacy(0.1, 1e-6)
    plan = oh.Plan.best(20_000, 1, privacy, tree="regular", mechanism="shares")
    assert isinstance(plan.mechanisms[0][0].user_noise, Polya)
    return plan


def first_estimate(blocks: int) -> oh.Estimate:
    """After so many full blocks."""
    total = oh.ContinualSum(heavy(), oh.seeded_random(1))
    total.update_many([1] * (blocks * heavy().tree.lowest))
    return total.estimate


def test_the_noise_of_one_batch_has_kurtosis_3_and_of_many_less() -> None:
    kurtoses = [first_estimate(blocks).kurtosis for blocks in range(1, 6)]
    assert kurtoses == pytest.approx([3 / blocks for blocks in range(1, 6)], rel=0.01)


def coverage(estimate: oh.Estimate, blocks: int) -> float:
    low, high = estimate.interval(0.95)
    noise = heavy().mechanisms[0][0].draw_noise(oh.seeded_random(11), 100_000 * blocks)
    noise = noise.reshape(blocks, -1).sum(axis=0)
    return float((np.abs(noise) <= (high - low) / 2).mean())


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_early_intervals_hold_as_often_as_they_say(blocks: int) -> None:
    assert 0.935 <= coverage(first_estimate(blocks), blocks) <= 0.965


def test_intervals_at_high_confidence_need_the_kurtosis() -> None:
    estimate = first_estimate(1)
    low, high = estimate.interval(0.999)
    bare_low, bare_high = replace(estimate, kurtosis=0.0).interval(0.999)
    assert high - low > 1.4 * (bare_high - bare_low)


# The command line.

SMALL_PLAN = ("plan", "--horizon", "2000", "--shufflers", "2")


@pytest.mark.parametrize("values", ["bit", "real", "histogram:3", "vector:2"])
def test_plan_prints_shares(values: str) -> None:
    printed = as_json(*SMALL_PLAN, "--values", values, "--mechanism", "shares")
    names = {"shares", "modulus_bits", "view_distance", "sampling_distance", "wrap_probability"}
    assert all(names <= set(row) for row in printed["levels"])
    assert printed["delta_leaked"] <= printed["delta_spent"] <= 1e-6
    assert printed["delta_leaked"] == pytest.approx(leaked(printed), rel=1e-9)
    assert printed["bits_per_user"] >= printed["messages_per_user"]
    assert overhand(*SMALL_PLAN, "--values", values, "--mechanism", "shares").returncode == 0


def test_the_best_mechanism_is_no_worse_than_any() -> None:
    error = {
        name: as_json(*SMALL_PLAN, "--mechanism", name)["rms_error"]
        for name in ("coins", "shares", "best")
    }
    assert error["best"] <= 1.001 * min(error.values())


def test_the_frontier_shows_every_trade(tmp_path: Path) -> None:
    asked = ("plan", "--frontier", "--horizon", "5000", "--shufflers", "2")
    figure = tmp_path / "frontier.svg"
    rows = as_json(*asked, "--plot", str(figure))["frontier"]
    assert figure.stat().st_size > 0
    fields = {"mechanism", "tree", "shufflers", "rms_error", "messages_per_user", "bits_per_user",
              "is_best"}  # fmt: skip
    assert all(set(row) == fields for row in rows)
    assert {row["mechanism"] for row in rows} == {"coins", "shares"}
    assert {row["tree"] for row in rows} == {"regular", "path"}
    assert {row["shufflers"] for row in rows} <= {1, 2}
    for row in rows:
        better = [
            other
            for other in rows
            if other["rms_error"] <= row["rms_error"]
            and other["messages_per_user"] <= row["messages_per_user"]
            and (other["rms_error"], other["messages_per_user"])
            != (row["rms_error"], row["messages_per_user"])
        ]
        assert row["is_best"] == (not better)
    shown = overhand(*asked)
    assert shown.returncode == 0
    assert "no other has both" in shown.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --horizon 100 --plot figure.svg", "--frontier"),
        ("plan --horizon 100 --frontier --error 5", "--error"),
        ("plan --horizon 100 --frontier --max-messages 5", "--max-messages"),
        ("plan --horizon 100 --frontier --plot missing/figure.svg", "missing"),
        ("plan --horizon 100 --mechanism oak", "oak"),
    ],
)
def test_what_does_not_go_together_is_refused(line: str, words: str) -> None:
    result = overhand(*line.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_shares_are_trusted_to_no_more_honest_users_than_the_plan_says() -> None:
    plan = oh.Plan.best(400, 2, PRIVACY, values=Vectors(2), mechanism="shares", tree="regular")
    fewer = replace(plan, honest=0.1)
    assert fewer.delta_leaked > 100 * plan.delta_leaked
    assert fewer.delta_spent > plan.privacy.delta
