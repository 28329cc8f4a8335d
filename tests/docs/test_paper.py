"""One test for every numbered statement that code can show, and for every erratum."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

import overhand as oh
from overhand.lab.lower_bound import HardInput, big_batch, bit_variance_root, repeats
from overhand.lab.simulation import simulate
from overhand.planning import Plan
from overhand.tree import RegularTree, binary_degrees, published_degrees
from support.divergences import delta, hockey_stick
from support.message_sums import ShuffledSum
from support.sampling import assert_probability
from support.small_plans import PRIVACY, coin_plan

FIGURE_2 = RegularTree(horizon=8, degrees=(2, 2))


def test_definition_2_1_all_errors_are_within_alpha_but_with_probability_beta() -> None:
    plan = Plan.best(1000, 2, PRIVACY, tree="regular")
    alpha = plan.error_bound(failure_probability=0.1)
    failures = sum(simulate(plan, "ones", seed=s).max_error > alpha for s in range(300))
    assert failures <= 0.1 * 300
    # A third of alpha is no bound, and so many runs see that.
    failures = sum(simulate(plan, "ones", seed=s).max_error > alpha / 3 for s in range(300))
    with pytest.raises(AssertionError):
        assert_probability(failures, 300, 0.1, discrepancy=0.35)


def test_figure_1_a_trusted_server_has_a_node_for_every_leaf() -> None:
    tree = RegularTree(horizon=4, degrees=(1, 2))
    assert [(n.start + 1, n.stop) for n in tree.cover(3)] == [(1, 2), (3, 3)]


def test_figure_2_batches_of_two_and_four() -> None:
    levels = Counter((n.level, n.size) for t in range(1, 9) for n in FIGURE_2.closes(t))
    assert levels == {(1, 2): 4, (2, 4): 2}


def test_definition_3_1_on_figure_2() -> None:
    covers = {t: [(n.start + 1, n.stop) for n in FIGURE_2.cover(t)] for t in (6, 7, 8)}
    assert covers == {6: [(1, 4), (5, 6)], 7: [(1, 4), (5, 6)], 8: [(1, 4), (5, 8)]}


def test_definition_3_1_left_siblings_on_the_path_to_the_next_leaf() -> None:
    """Walk from the root to leaf t + 1 of an explicit tree and collect what lies to the left."""
    tree = RegularTree(horizon=48, degrees=(2, 3, 4))
    for t in range(48):
        left: list[tuple[int, int]] = []
        start = 0
        for level in range(tree.levels, 0, -1):
            size = tree.sizes[level - 1]
            while start + size <= t:
                left.append((start, start + size))
                start += size
        assert [(n.start, n.stop) for n in tree.cover(t)] == left


def test_algorithm_1_a_user_is_in_at_most_k_batches_and_each_is_shuffled_once() -> None:
    plan = coin_plan(RegularTree(horizon=30, degrees=(2, 3, 2)))
    total = ShuffledSum(plan, oh.seeded_random(1))
    for t in range(1, 31):
        assert len(plan.tree.joins(t)) <= 3
        total.update(t % 2)
        assert total.estimate.t == t


def test_algorithm_2_uses_log_n_minus_1_shufflers() -> None:
    for log in (3, 10, 20):
        assert len(binary_degrees(2**log)) == log - 1
        assert Plan.published(2**log, None, PRIVACY).shufflers == log - 1


def test_theorem_3_2_privacy_by_simple_composition() -> None:
    plan = Plan.published(64, None, PRIVACY)
    share = PRIVACY.share(plan.tree.levels)
    for mechanism in plan.mechanisms:
        assert delta(mechanism.noise(), share.epsilon) <= share.delta
    assert plan.delta_spent <= PRIVACY.delta


def test_theorem_3_2_variance_of_at_most_one_node_a_level() -> None:
    plan = Plan.published(2**10, None, PRIVACY)
    largest = max(plan.level_variances)
    t = np.arange(1, 2**10)
    assert (plan.noise_variance(t) <= largest * plan.tree.levels).all()


def test_theorem_3_2_odd_times_repeat_the_estimate_before() -> None:
    total = oh.ContinualSum(Plan.published(64, None, PRIVACY), oh.seeded_random(3))
    last = 0.0
    for t in range(1, 65):
        total.update(1)
        if t % 2:
            assert total.estimate.value == last
        last = total.estimate.value


def test_footnote_2_advanced_composition_has_a_factor_epsilon_that_is_not_printed() -> None:
    """Exactly, for k randomised answers: with the factor it holds, without it it says nothing."""
    k, epsilon, slack = 100, 0.01, 1e-6
    root = 2 * math.sqrt(k * math.log(1 / slack))
    truth = 1 / (1 + math.exp(-epsilon))
    told, lied = (binom.pmf(np.arange(k + 1), k, p) for p in (truth, 1 - truth))
    assert hockey_stick(told, lied, k * epsilon**2 + root * epsilon) <= slack
    assert hockey_stick(told, lied, (k * epsilon**2 + root * epsilon) / 2) > slack
    assert k * epsilon**2 + root > 70 * k * epsilon  # simple composition gives k epsilon


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
def test_corollary_3_3_error_is_polylogarithmic() -> None:
    """From 2^10 to 2^20 users the error of log n shufflers grows by less than (20/10)^2."""
    errors = [Plan.best(2**log, log, PRIVACY, tree="binary").rms_error for log in (10, 20)]
    assert errors[1] / errors[0] < 4


def test_section_3_2_the_degrees() -> None:
    assert published_degrees(10**6, 3) == (7, 49, 49)
    assert published_degrees(10**6, 1) == (100,)
    for shufflers in (1, 2, 3, 4):
        degrees = published_degrees(10**8, shufflers)
        assert degrees[0] == round(10 ** (8 / (2 * shufflers + 1)))
        assert set(degrees[1:]) <= {degrees[0] ** 2}


def test_section_3_2_at_most_d_minus_1_nodes_a_level_but_d_at_the_end() -> None:
    """The text's k (d - 1) fails at t = n, where the cover is all d children of the root."""
    tree = RegularTree(horizon=4 * 16 * 16, degrees=(4, 16))
    for t in range(1, tree.horizon):
        counts = Counter(node.level for node in tree.cover(t))
        assert max(counts.values(), default=0) <= 15
    assert Counter(node.level for node in tree.cover(tree.horizon)) == {2: 16}


def test_theorem_3_4_the_cover_has_up_to_k_times_d_minus_1_nodes() -> None:
    """The proof's bound on the noise is for 1 + (k - 1) (d - 1) of them, which is too few."""
    lowest, degree = 4, 16
    for shufflers in (2, 3):
        degrees = (lowest, *[degree] * (shufflers - 1))
        tree = RegularTree(lowest * degree**shufflers, degrees)
        sizes = [len(list(tree.cover(t))) for t in range(0, tree.horizon, lowest)]
        most = max(sizes)
        assert most == sizes[-1] == shufflers * (degree - 1)
        assert most > 1 + (shufflers - 1) * (degree - 1)


def test_section_3_2_the_lowest_levels_alone_and_the_highest_alone() -> None:
    """Too many sums, or too long a wait. The k highest sizes end at n / 2: n itself is the root."""
    log, shufflers = 12, 3
    low = RegularTree(2**log, (2,) * shufflers)
    assert low.sizes == (2, 4, 8)
    assert len(list(low.cover(2**log))) == 2**log / 2**shufflers

    high = RegularTree(2**log, (2 ** (log - shufflers), *[2] * (shufflers - 1)))
    assert high.sizes == tuple(2**i for i in range(log - shufflers, log))
    assert not list(high.cover(2 ** (log - shufflers) - 1))


def test_section_3_2_intra_batch_error_is_less_than_the_lowest_batch() -> None:
    plan = coin_plan(RegularTree(horizon=40, degrees=(4, 3)), noise_bits=0, hold=True)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    for t in range(1, 41):
        total.update(1)
        assert 0 <= t - total.estimate.value <= 3


@pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")
@pytest.mark.parametrize("shufflers", [1, 2, 3])
def test_theorem_3_4_error_grows_as_n_to_the_1_over_2k_plus_1(shufflers: int) -> None:
    horizons = [10**4, 10**5, 10**6, 10**7, 10**8]
    errors = [Plan.best(n, shufflers, PRIVACY, tree="paper").rms_error for n in horizons]
    slope = np.polyfit(np.log(horizons), np.log(errors), 1)[0]
    assert slope == pytest.approx(1 / (2 * shufflers + 1), abs=0.03)


def test_corollary_3_5_published_variance_scales_as_stated() -> None:
    """Per level tau/2 or about tau/4 with tau = 96 ln(2k/delta) k^2 / epsilon^2."""
    for shufflers in (1, 2, 3):
        plan = Plan.published(10**6, shufflers, PRIVACY)
        tau = 96 * math.log(2 * shufflers / PRIVACY.delta) * (shufflers / PRIVACY.epsilon) ** 2
        for variance in plan.level_variances:
            assert 0.24 * tau <= variance <= 0.51 * tau


def test_section_4_rep_and_big() -> None:
    horizon, epsilon = 10**8, 0.5
    c = bit_variance_root(epsilon)
    for k in (1, 2, 3):
        power = 1 / (2 * k + 1)
        assert repeats(horizon, k, epsilon) == pytest.approx(
            0.5 * horizon**power * c ** (2 * k * power)
        )
        assert big_batch(horizon, k, epsilon) == pytest.approx(
            horizon ** ((2 * k - 1) * power) * c ** (2 * power)
        )


@pytest.mark.parametrize("shufflers", [1, 2, 3, 8])
def test_theorem_4_1_inside_a_big_batch_the_problem_is_the_same(shufflers: int) -> None:
    """rep_{n,k} = rep_{Big_{n,k}, k-1}, on which the induction rests."""
    horizon = 10**15
    inside = round(big_batch(horizon, shufflers, 0.5))
    assert repeats(inside, shufflers - 1, 0.5) == pytest.approx(
        repeats(horizon, shufflers, 0.5), rel=1e-3
    )


def test_theorem_4_1_no_plan_beats_rep_on_its_hard_inputs() -> None:
    for shufflers in (1, 2, 3):
        plan = Plan.best(10**6, shufflers, PRIVACY)
        hard = HardInput.against(10**6, shufflers, 1.0).draw(oh.seeded_random(shufflers))
        worst = simulate(plan, hard, seed=1).max_error
        assert worst > repeats(10**6, shufflers, 1.0)


def unlikely(one: NDArray[np.float64], other: NDArray[np.float64], epsilon: float) -> float:
    """How likely an outcome is that tells the two apart by more than a factor e^(2 epsilon)."""
    is_bad = np.maximum(one, other) > math.exp(2 * epsilon) * np.minimum(one, other)
    return float(max(one[is_bad].sum(), other[is_bad].sum()))


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0, 3.0])
def test_lemma_b_3_few_outcomes_tell_more_than_twice_epsilon(epsilon: float) -> None:
    law = oh.CoinSum.with_variance(10, 20.0).noise()
    one, other = (np.pad(law.pmf.probabilities, pad) for pad in ((1, 0), (0, 1)))
    allowed = 2 * delta(law, epsilon) / min(epsilon, 1)
    assert 0 < unlikely(one, other, epsilon) <= allowed


def test_lemma_b_2_is_for_an_epsilon_of_at_most_one() -> None:
    """It says O(delta / epsilon); one who tells all with probability delta is worse than that."""
    one, other = np.array([0.99, 0.01, 0.0]), np.array([0.99, 0.0, 0.01])
    for epsilon in (0.5, 1.0, 10.0, 100.0):
        spent = hockey_stick(one, other, epsilon)
        assert spent == unlikely(one, other, epsilon) == 0.01
        assert spent <= 2 * spent / min(epsilon, 1)  # as Lemma B.3 has it
        assert (spent <= 2 * spent / epsilon) == (epsilon <= 2)


def test_corollary_5_2_a_quarter_of_log_n_shufflers_is_enough() -> None:
    """The footnote: with k = log n / 4 - 1/2 the regret is twice the square root of n."""
    for log in (10, 20, 40):
        k = log / 4 - 1 / 2
        assert (k + 1) / (2 * k + 1) * log == pytest.approx(log / 2 + 1)


@pytest.mark.parametrize("dimension", [1, 5, 1000])
def test_theorem_c_3_the_union_bound_needs_half_of_the_probability(dimension: int) -> None:
    """1 / (n^2 (d^2 + d)) for every entry and time adds up to more than the alpha / 2 wanted."""
    horizon = 1000
    entries = oh.RegressionStatistics(
        dimension
    ).dimension  # d of the vector, d (d + 1) / 2 of the matrix
    failure = horizon * entries / (horizon**2 * (dimension**2 + dimension))
    assert 1 / (2 * horizon) < failure <= 1 / horizon


def test_lemma_b_5_output_may_include_bits_of_others() -> None:
    """Shown through the accountant: what others send is a constant shift of a batch's count."""
    mechanism = oh.CoinSum.with_variance(10, 20.0)
    alone = delta(mechanism.noise(), 1.0)
    pmf = mechanism.noise().pmf
    for others in (0, 4, 9):
        moved = np.concatenate([np.zeros(others + 1), pmf.probabilities])
        still = np.concatenate([np.zeros(others), pmf.probabilities, [0.0]])
        exact = np.maximum(moved - math.e * still, 0).sum() + pmf.missing
        assert exact == pytest.approx(alone)
