"""Plans: what they guarantee, how much they err, which is best, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

import overhand as oh
from overhand.accounting import gaussian_variance
from overhand.cli import options
from overhand.lab.simulation import simulate
from overhand.mechanisms import PairsSum
from overhand.noise import Coins, IndependentNoise, Polya
from overhand.planning import (
    TREE_KINDS,
    Requirements,
    TreeKind,
)
from overhand.planning.requirements import DEFAULT_DELTA, DEFAULT_SHUFFLERS
from overhand.planning.search import best_split, draft_tree, find_candidates, least_epsilon
from overhand.randomness import HALF
from overhand.tree import RegularTree
from support.sampling import assert_probability
from support.small_plans import PRIVACY, REGULAR, WIDE, coin_plan

MILLION = 10**6


def delta_from_summary(summary: dict[str, Any], epsilon: float) -> float:
    """What `plan --json` claims, recomputed by dp-accounting alone from the printed levels."""
    composed: Any = None
    for level in summary["levels"]:
        law = np.ones(1)
        for part in level["noise"]:
            outcomes = np.arange(part["trials"] + 1)
            law = np.convolve(law, stats.binom.pmf(outcomes, part["trials"], part["probability"]))
        kept = {i: math.log(p) for i, p in enumerate(law) if p > 1e-18}
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            kept,
            {i + 1: log for i, log in kept.items()},
            pessimistic_estimate=True,
            value_discretization_interval=1e-4 * epsilon,
            symmetric=False,
        )
        composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize("shufflers", [1, 2, 3])
@pytest.mark.parametrize(
    "privacy", [PRIVACY, oh.Privacy(0.3, 1e-8), oh.Privacy(3.0, 1e-4)], ids=str
)
def test_the_guarantee_follows_from_what_is_printed(shufflers: int, privacy: oh.Privacy) -> None:
    plan = oh.Plan.best(3000, shufflers, privacy, tree="regular")
    recomputed = delta_from_summary(plan.summary(), privacy.epsilon)
    assert 0.8 * privacy.delta <= plan.delta_spent <= privacy.delta
    assert recomputed == pytest.approx(plan.delta_spent, rel=0.02)


def test_the_recomputation_sees_half_the_noise() -> None:
    summary = oh.Plan.best(3000, 2, PRIVACY, tree="regular").summary()
    for level in summary["levels"]:
        for part in level["noise"]:
            part["trials"] //= 2
    assert delta_from_summary(summary, 1.0) > 10 * PRIVACY.delta


@pytest.mark.parametrize("kind", TREE_KINDS)
@pytest.mark.parametrize("horizon", [2, 97, 20_011])
def test_a_calibrated_plan_wastes_little_of_its_delta(kind: TreeKind, horizon: int) -> None:
    shufflers = 20 if kind == "binary" else 4
    plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree=kind)
    assert 0.8 * PRIVACY.delta <= plan.delta_spent <= PRIVACY.delta
    assert plan.tree.levels <= shufflers


@pytest.mark.parametrize(("shufflers", "most"), [(1, 1.13), (3, 1.02), (5, 1.02), (8, 1.02)])
def test_noise_is_near_the_gaussian_limit_of_the_same_split(shufflers: int, most: float) -> None:
    tree = RegularTree(MILLION, (40, *[4] * (shufflers - 1)))
    candidate = draft_tree(tree, Requirements(PRIVACY), best_split(tree))
    cover = tree.mean_cover
    noise = candidate.cost - tree.mean_pending_square() / 4
    share = 1 / np.asarray(candidate.draft.split)
    limit = gaussian_variance(PRIVACY) * float(share.sum()) * np.asarray(candidate.draft.split)
    assert noise <= most * float(cover @ limit)


@pytest.mark.parametrize(("shufflers", "most"), [(1, 177.0), (2, 65.5), (3, 47.0), (5, 38.0)])
def test_a_million_users_reach_the_wanted_error(shufflers: int, most: float) -> None:
    assert oh.Plan.best(MILLION, shufflers, PRIVACY).rms_error <= most


def test_the_published_plan_errs_at_least_eight_times_as_much() -> None:
    best = oh.Plan.best(MILLION, 3, PRIVACY)
    assert oh.Plan.published(MILLION, 3, PRIVACY).rms_error >= 8 * best.rms_error


def test_messages_beyond_what_64_bits_count_are_counted() -> None:
    plan = oh.Plan.published(10**6, 4, oh.Privacy(1e-4, 1e-6), values="regression:3")
    assert plan.mechanisms[0].layout.messages_per_user > 2 * 10**19


def test_the_published_plan_keeps_its_promise() -> None:
    for shufflers in (1, 3, None):
        plan = oh.Plan.published(5000, shufflers, PRIVACY)
        assert plan.delta_spent <= PRIVACY.delta
        assert plan.hold
        assert not plan.combine


@pytest.mark.parametrize("composition", ["simple", "advanced"])
def test_looser_composition_costs_noise_and_is_still_certified(composition: Any) -> None:
    exact = oh.Plan.best(3000, 4, PRIVACY, tree="regular")
    loose = oh.Plan.best(3000, 4, PRIVACY, tree="regular", composition=composition)
    assert loose.tree == exact.tree
    assert loose.rms_error > 1.3 * exact.rms_error
    assert loose.delta_spent < 0.1 * PRIVACY.delta


@pytest.mark.parametrize("shufflers", [2, 3, 4])
def test_shares_of_a_budget_are_certified_together(shufflers: int) -> None:
    """Losses that add up to epsilon exactly are rounded up by the accountant's grid."""
    asked = oh.Privacy(4.0, 1e-6)
    plan = oh.Plan.best(MILLION, shufflers, asked, mechanism="shares", composition="simple")
    assert plan.delta_spent <= asked.delta


def test_best_is_the_minimum_over_all_small_trees() -> None:
    horizon, asked = 400, Requirements(PRIVACY, horizon=400, shufflers=2)
    trees = [RegularTree(horizon, (b,)) for b in range(1, 200)]
    trees += [
        RegularTree(horizon, (b, d))
        for b in range(1, 130)
        for d in range(2, 30)
        if b * d <= horizon
    ]
    promising = sorted(trees, key=_gaussian_error)[:60]
    least = min(draft_tree(tree, asked, best_split(tree)).cost for tree in promising)
    assert find_candidates(asked)[0].cost <= 1.002 * least


def _gaussian_error(tree: RegularTree) -> float:
    noise = float(np.sqrt(np.maximum(tree.mean_cover, 0)).sum()) ** 2
    return gaussian_variance(PRIVACY) * noise + tree.mean_pending_square() / 4


def test_more_shufflers_never_hurt() -> None:
    errors = [oh.Plan.best(10_007, k, PRIVACY).rms_error for k in range(1, 7)]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("plan", [coin_plan(REGULAR), coin_plan(WIDE),
                                  coin_plan(REGULAR, combine=True, hold=True)],
                         ids=["deep", "wide", "combined"])  # fmt: skip
def test_predicted_errors_are_sums_over_the_cover(plan: oh.Plan) -> None:
    t = np.arange(1, plan.horizon + 1)
    variances = [
        sum(plan.combination.variances[node.level - 1] for node in plan.tree.cover(int(s)))
        for s in t
    ]
    rest = [s - sum(node.size for node in plan.tree.cover(int(s))) for s in t]
    squares = np.array(variances) + (plan.pending_weight * np.array(rest)) ** 2
    assert plan.squared_error(t) == pytest.approx(squares)
    assert plan.rms_error == pytest.approx(math.sqrt(squares.mean()))
    assert plan.worst_std == pytest.approx(math.sqrt(max(variances)))


def test_combined_variances_are_those_of_the_best_weights() -> None:
    plan = coin_plan(oh.RegularTree(horizon=40, degrees=(2, 2, 3)), combine=True)
    own, (lowest, middle, top) = plan.level_variances, plan.combination.variances
    assert lowest == own[0]
    assert middle == pytest.approx(own[1] * 2 * lowest / (own[1] + 2 * lowest))
    assert top == pytest.approx(own[2] * 3 * middle / (own[2] + 3 * middle))
    weight = plan.combination.own_weights[1]
    for other in (weight - 0.05, weight + 0.05):
        assert other**2 * own[1] + (1 - other) ** 2 * 2 * lowest > middle


@pytest.mark.parametrize(
    ("mechanism", "wrong"), [("coins", 0.55), ("pairs", 0.4), ("ballots", 0.55)]
)
@pytest.mark.parametrize("ok", [True, False], ids=["bound", "mutant"])
def test_all_errors_stay_below_the_bound(ok: bool, mechanism: str, wrong: float) -> None:
    plan = oh.Plan.best(2000, 2, PRIVACY, mechanism=mechanism)
    bound = plan.error_bound(0.05) * (1 if ok else wrong)
    failures = sum(simulate(plan, "ones", seed=s).max_error > bound for s in range(400))
    if ok:
        assert failures <= 0.05 * 400
    else:
        with pytest.raises(AssertionError):
            assert_probability(failures, 400, 0.05, discrepancy=0.3)


@pytest.mark.parametrize(
    ("mechanism", "error"),
    [
        ("coins", 40.0),
        ("pairs", 20.0),
        pytest.param("ballots", 20.0, marks=pytest.mark.slow),
    ],
)
def test_accuracy_first_finds_the_smallest_epsilon(mechanism: str, error: float) -> None:
    plan = oh.Plan.for_error(10_000, 3, error=error, delta=1e-6, mechanism=mechanism)
    assert plan.rms_error <= error
    less = oh.Privacy(plan.privacy.epsilon * 0.99, 1e-6)
    assert oh.Plan.best(10_000, 3, less, mechanism=mechanism).rms_error > error


@pytest.mark.parametrize(
    ("power", "error", "epsilon"),
    [(1.0, 1000.0, 0.1), (1.0, 10.0, 10.0), (0.2, 80.0, (100 / 80) ** 5), (1.0, 1e9, 1e-3)],
    ids=["down", "up", "flat", "at the end"],
)
def test_accuracy_first_searches_both_ways_and_stops_at_the_ends(
    power: float, error: float, epsilon: float
) -> None:
    """With errors of 100 / epsilon^power."""

    def cost(asked: Requirements) -> float:
        return math.pow(100 / asked.privacy.epsilon**power, 2)

    assert least_epsilon(Requirements(PRIVACY), error, cost) == pytest.approx(epsilon, rel=5e-3)


def test_an_error_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="error=0.01 is not reached"):
        oh.Plan.for_error(10_000, 2, error=0.01, delta=1e-6)


def test_only_the_coins_of_honest_users_count() -> None:
    plan = oh.Plan.best(5000, 3, PRIVACY, honest=0.5)
    everyone = oh.Plan.best(5000, 3, PRIVACY)
    assert plan.delta_spent <= PRIVACY.delta
    assert plan.rms_error == pytest.approx(math.sqrt(2) * everyone.rms_error, rel=0.15)
    lied_about = oh.Plan(
        everyone.tree, everyone.mechanisms, PRIVACY, everyone.shufflers, honest=0.5
    )
    assert lied_about.delta_spent > 10 * PRIVACY.delta


def test_several_reports_of_one_person_cost_noise() -> None:
    one = oh.Plan.best(2000, 2, PRIVACY, tree="regular")
    two = oh.Plan.best(2000, 2, PRIVACY, tree="regular", reports=2)
    assert two.delta_spent <= PRIVACY.delta
    assert two.rms_error > 1.5 * one.rms_error


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    for kind in TREE_KINDS:
        plan = oh.Plan.best(500, 10, PRIVACY, tree=kind)
        plan.save(tmp_path / "plan.json")
        loaded = oh.Plan.load(tmp_path / "plan.json")
        assert loaded == plan
        assert loaded.digest == plan.digest
        assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


EDITS: dict[str, Any] = {
    "epsilon": 0.5,
    "delta": 1e-7,
    "horizon": 501,
    "shufflers": 9,
    "honest": 0.9,
    "reports": 3,
    "combine": False,
    "hold": True,
    "digest": "0" * 64,
}


@pytest.mark.parametrize("field", [*EDITS, "mechanisms", "summary"])
def test_an_edited_plan_is_refused(field: str) -> None:
    saved = json.loads(oh.Plan.best(500, 2, PRIVACY, tree="regular").to_json())
    if field == "mechanisms":
        saved["mechanisms"][0]["noise"]["bits"] += 2
    elif field == "summary":
        saved["summary"]["delta_spent"] /= 2
    else:
        assert saved[field] != EDITS[field]
        saved[field] = EDITS[field]
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "not json", '{"format": 99}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(oh.DamagedPlan, match="not a plan"):
        oh.Plan.from_json(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(oh.DamagedPlan, match="nowhere.json"):
        oh.Plan.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"horizon": 1}, "horizon=1"),
        ({"horizon": 10.5}, "horizon=10.5"),
        ({"shufflers": 0}, "shufflers=0"),
        ({"honest": 0.0}, "honest=0 "),
        ({"honest": math.nan}, "honest=nan"),
        ({"reports": 0}, "reports=0"),
        ({"reports": 1001}, "reports=1001"),
        ({"tree": "oak"}, "tree='oak'"),
        ({"composition": "none"}, "composition='none'"),
        ({"tree": "best"}, "tree='best' must be one of regular, paper, binary"),
        (
            {"mechanism": "oak"},
            "mechanism='oak' must be one of coins, shares, pairs, ballots, best",
        ),
        ({"max_messages": 0}, "max_messages=0"),
        ({"mechanism": "pairs", "honest": "half"}, "honest='half' must be a number"),
        ({"mechanism": "pairs", "reports": 1001}, "reports=1001"),
        (
            {"mechanism": "ballots", "values": "vector:3"},
            "mechanism='ballots' cannot send vector:3",
        ),
    ],
    ids=str,
)
def test_bad_arguments_are_named_with_their_numbers(changes: dict[str, Any], words: str) -> None:
    arguments = {"horizon": 100, "shufflers": 2, "privacy": PRIVACY, **changes}
    with pytest.raises(oh.InvalidValue, match=words.replace(".", r"\.")):
        oh.Plan.best(**arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error": 0.0}, "error=0 "),
        ({"error": math.nan}, "error=nan"),
        ({"delta": 0.0}, "delta=0 "),
        ({"delta": 1.0}, "delta=1 "),
        ({"horizon": 1}, "horizon=1 "),
        ({"tree": "oak"}, "tree='oak'"),
    ],
    ids=str,
)
def test_accuracy_first_names_bad_arguments_too(changes: dict[str, Any], words: str) -> None:
    arguments = {"horizon": 100, "shufflers": 2, "error": 20.0, "delta": 1e-6, **changes}
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Plan.for_error(**arguments)


def test_a_delta_too_small_to_compute_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="1e-13"):
        oh.Plan.best(100, 2, oh.Privacy(1.0, 1e-13))


def test_the_binary_tree_asks_for_its_shufflers() -> None:
    with pytest.raises(oh.Infeasible, match="needs 9 shufflers, not 3"):
        oh.Plan.best(1000, 3, PRIVACY, tree="binary")


def test_a_node_of_another_tree_has_no_mechanism() -> None:
    plan = oh.Plan.best(100, 2, PRIVACY)
    with pytest.raises(oh.InvalidValue, match="no batch of this plan"):
        plan.mechanism(oh.Node(1, 0, 99_999))


@pytest.mark.parametrize("degrees", [[], [0], [2, 1], ["a"], [7], [7, 2, 2]], ids=str)
def test_a_plan_of_another_tree_is_refused(degrees: list[Any]) -> None:
    saved = json.loads(oh.Plan.best(100, 2, PRIVACY).to_json())
    assert saved["degrees"] != degrees
    saved["degrees"] = degrees
    with pytest.raises(oh.DamagedPlan):
        oh.Plan.from_json(json.dumps(saved))


@pytest.mark.parametrize("kind", ["oak", "best", None, 7], ids=str)
def test_a_plan_of_an_unknown_mechanism_is_refused(kind: Any) -> None:
    saved = json.loads(oh.Plan.best(100, 2, PRIVACY).to_json())
    saved["mechanisms"][0]["mechanism"] = kind
    with pytest.raises(oh.DamagedPlan, match=f"mechanism {kind!r} is not one of coins, shares"):
        oh.Plan.from_json(json.dumps(saved))


def test_mechanisms_must_be_of_the_sizes_of_the_tree() -> None:
    plan = coin_plan(REGULAR)
    wrong = [
        plan.mechanisms[:-1],
        plan.mechanisms[::-1],
        (*plan.mechanisms, plan.mechanisms[-1]),
        (oh.CoinSum(4, Coins(4, HALF)), *plan.mechanisms[1:]),
    ]
    for mechanisms in wrong:
        with pytest.raises(oh.InvalidValue, match="mechanisms? .*(users|levels)"):
            replace(plan, mechanisms=mechanisms)


def test_a_tree_has_no_level_whose_noise_the_services_make() -> None:
    plan, noise = coin_plan(REGULAR), IndependentNoise(Polya(1, 1, 0.5), cap=10)
    for level, coins in enumerate(plan.mechanisms):
        pairs = PairsSum(coins.size, noise, modulus_bits=20)
        mixed = (*plan.mechanisms[:level], pairs, *plan.mechanisms[level + 1 :])
        with pytest.raises(oh.InvalidValue, match="the noise of one level, not of a tree"):
            replace(plan, mechanisms=mixed)


def test_what_was_asked_for_twice_is_found_once() -> None:
    plan = oh.Plan.best(777, 2, PRIVACY)
    assert oh.Plan.best(777, 2, oh.Privacy(1.0, 1e-6), tree="regular") is plan
    others: list[dict[str, Any]] = [
        {"honest": 0.9},
        {"reports": 2},
        {"tree": "paper"},
        {"mechanism": "shares"},
        {"mechanism": "pairs"},
    ]
    for other in others:
        assert oh.Plan.best(777, 2, PRIVACY, **other) != plan
    assert oh.Plan.best(778, 2, PRIVACY) != plan


def test_a_search_that_failed_fails_again() -> None:
    for _ in range(2):
        with pytest.raises(oh.Infeasible, match="needs 9 shufflers"):
            oh.Plan.best(1000, 3, PRIVACY, tree="binary")


def test_a_batch_without_an_honest_user_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="no honest user"):
        oh.Plan.best(1000, 9, PRIVACY, tree="binary", honest=0.3)


def test_a_plan_reads_as_a_sentence_a_level() -> None:
    text = str(oh.Plan.best(MILLION, 5, PRIVACY))
    assert "1,000,000 users (bit), 5 of 5 shufflers" in text
    assert text.count("level ") == 5


def test_words_and_pairs_of_numbers_are_no_guarantee_and_no_kind() -> None:
    with pytest.raises(oh.InvalidValue, match="must be a Privacy, such as"):
        oh.Plan.best(1000, 2, (1.0, 1e-6))  # type: ignore[arg-type]


# A guarantee can be given in two ways.


def test_a_guarantee_is_a_privacy_or_its_numbers() -> None:
    plan = oh.Plan.best(1000, 2, oh.Privacy(1.0, 1e-7))
    assert plan == oh.Plan.best(1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-7))
    assert plan == oh.Plan.best(1000, 2, epsilon=1.0, delta=1e-7)
    assert plan != oh.Plan.best(1000, 2, epsilon=1.0, delta=1e-8)
    published = oh.Plan.published(1000, 2, oh.Privacy(2.0, 1e-6))
    assert published == oh.Plan.published(1000, 2, epsilon=2.0)


def test_what_is_left_out_is_what_the_command_line_has() -> None:
    plan = oh.Plan.best(1000, epsilon=1.0)
    assert plan.privacy == oh.Privacy(1.0, DEFAULT_DELTA)
    assert (DEFAULT_DELTA, DEFAULT_SHUFFLERS) == (options.DEFAULT_DELTA, options.DEFAULT_SHUFFLERS)
    assert plan.shufflers == DEFAULT_SHUFFLERS
    assert oh.Plan.published(1000, epsilon=1.0).shufflers == DEFAULT_SHUFFLERS
    assert oh.Plan.for_error(1000, error=20.0).shufflers == DEFAULT_SHUFFLERS
    assert oh.Plan.for_error(1000, error=20.0).privacy.delta == DEFAULT_DELTA


@pytest.mark.parametrize("make", [oh.Plan.best, oh.Plan.published], ids=["best", "published"])
@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ((1000, 5), {}, "epsilon is missing"),
        ((1000, 5), {"delta": 1e-6}, "epsilon is missing"),
        ((1000, 5, 1.0), {}, "privacy=1.0 must be a Privacy"),
        ((1000, 5, (1.0, 1e-6)), {}, r"privacy=\(1.0, 1e-06\) must be a Privacy"),
        ((1000, 5, 1.0), {"epsilon": 1.0}, "privacy=1.0 must be a Privacy"),
        ((1000, 5, PRIVACY), {"epsilon": 1.0}, "epsilon=1.0 must be left out"),
        ((1000, 5, PRIVACY), {"delta": 1e-6}, "delta=1e-06 must be left out"),
        ((1000, 5), {"epsilon": "1"}, "epsilon='1' must be a number"),
        ((1000, 5), {"epsilon": 1.0, "delta": 2}, "delta=2 must be between 0 and 1"),
        (("x",), {"epsilon": 1.0}, "horizon='x' must be a whole number"),
        ((1000, PRIVACY), {}, "shufflers=Privacy.* must be a whole number"),
        ((1000, [2]), {"epsilon": 1.0}, r"shufflers=\[2\] must be a whole number"),
        (([1000], 2), {"epsilon": 1.0}, r"horizon=\[1000\] must be a whole number"),
    ],
    ids=str,
)
def test_a_guarantee_that_is_no_guarantee_is_named(
    make: Any, given: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        make(*given, **named)


def test_accuracy_first_needs_an_error() -> None:
    with pytest.raises(oh.InvalidValue, match="error=None must be a number"):
        oh.Plan.for_error(1000)


@pytest.mark.slow
def test_accuracy_first_keeps_to_a_limit_on_messages() -> None:
    plan = oh.Plan.for_error(10_000, 3, error=60.0, max_messages=8)
    assert plan.messages_per_user <= 8
    assert plan.rms_error <= 60.0
    less = oh.Privacy(0.98 * plan.privacy.epsilon, plan.privacy.delta)
    assert oh.Plan.best(10_000, 3, less, max_messages=8).rms_error > 60.0
