"""Estimates of every kind of value, sampled: their law is that of the cover, atom by atom."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.model import Floats
from overhand.tree import RegularTree
from overhand.values import Histogram, Quantizer, Reals, RegressionStatistics, Values
from support.estimate_laws import (
    Law,
    Steady,
    assert_law_of_coordinates,
    estimate_law,
    steady_estimates,
)
from support.kind_plans import (
    DISCREPANCY,
    FIGURE_2,
    MANY,
    ROUNDED,
    SAMPLES,
    SINGLES,
    SMALL,
    STEPS,
    TREES,
    fed,
    kind_plan,
    many_vectors,
    points,
    shrunk,
)
from support.message_sums import ShuffledSum
from support.reference_twins import pending
from support.sampling import samples_for

# The law of an estimate, atom by atom.


@pytest.mark.parametrize(("values", "choices"), ROUNDED)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("combine", [True, False])
def test_every_level_adds_up_its_own_steps(
    values: Values, choices: list[Any], tree: RegularTree, combine: bool
) -> None:
    plan = kind_plan(tree, values, noise_bits=0, steps=(3, 4, 5)[: tree.levels], combine=combine)
    raw = shrunk(values, choices, tree.horizon)
    expected = steady_estimates(plan, raw)
    for at_once in (1, 7):
        total = oh.ContinualSum(plan, Steady(1))
        for start in range(0, tree.horizon, at_once):
            total.update_many(raw[start : start + at_once])
            assert total.estimate.value == pytest.approx(expected[total.t - 1])


Runner = Callable[[oh.Plan, list[Any], int], Any]


def by_continual_sum(plan: oh.Plan, raw: list[Any], seed: int) -> Any:
    return fed(plan, raw, seed).estimate.value


def by_algorithm_1(plan: oh.Plan, raw: list[Any], seed: int) -> Any:
    total = ShuffledSum(plan, oh.seeded_random(seed))
    for value in raw:
        total.update(value)
    return total.estimate.value


RUNNERS = [by_continual_sum, by_algorithm_1]


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(("tree", "t"), SMALL)
@pytest.mark.parametrize(("combine", "hold"), [(True, False), (False, True)])
def test_estimates_of_vectors_have_the_law_of_their_cover(
    run: Runner, tree: RegularTree, t: int, combine: bool, hold: bool
) -> None:
    plan = kind_plan(tree, MANY, noise_bits=1, steps=STEPS, combine=combine, hold=hold)
    raw = many_vectors(t)
    assert_law_of_coordinates(estimate_law(plan, raw, t), run(plan, raw, 5))


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(("tree", "t"), SMALL)
def test_estimates_of_histograms_have_the_law_of_their_cover(
    run: Runner, tree: RegularTree, t: int
) -> None:
    plan = kind_plan(tree, Histogram(2 * SAMPLES), noise_bits=3, combine=tree == FIGURE_2)
    raw = list(range(t))
    counted = np.arange(2 * SAMPLES) < t - pending(plan, t)
    assert_law_of_coordinates(estimate_law(plan, raw, t, 2 * t), run(plan, raw, 5) - counted)


SEEDED: list[tuple[Values, list[Any], Runner]] = [
    (Reals(-2.0, 5.0), [-1.0, 4.9, 0.3, 5.0, 2.2, -1.7, 0.0], by_continual_sum),
    (Reals(-2.0, 5.0), [-1.0, 4.9, 0.3, 5.0, 2.2, -1.7, 0.0], by_algorithm_1),
    (
        RegressionStatistics(1),
        [[0.3, 0.9], [1.0, 1.0], [-0.7, 0.2], [0.8, -1.0]] * 2,
        by_continual_sum,
    ),
]


@pytest.mark.parametrize(
    ("values", "raw", "run"),
    [pytest.param(*case, id=f"{case[0]}-{case[2].__name__}") for case in SEEDED],
)
def test_estimates_are_unbiased_with_the_law_of_their_cover(
    values: Values, raw: list[Any], run: Runner
) -> None:
    plan, raw = kind_plan(FIGURE_2, values, noise_bits=1, steps=STEPS, combine=True), raw[:7]
    truth = points(values, raw)[:6].sum(axis=0) + plan.imputed
    samples = np.array([run(plan, raw, seed) for seed in range(samples_for(0.2))])
    for j, of_coordinate in enumerate(samples.reshape(len(samples), -1).T):
        law = estimate_law(plan, raw, 7, j)
        law.assert_of(of_coordinate, discrepancy=0.2)
        assert law.mean == pytest.approx(truth[j])
        assert law.variance < plan.noise_variance(np.array([7]))[0]


@pytest.mark.parametrize("tree", [FIGURE_2, SINGLES])
@pytest.mark.parametrize("combine", [True, False])
def test_the_promised_deviation_is_reached_half_way_between_steps(
    tree: RegularTree, combine: bool
) -> None:
    plan = kind_plan(tree, Reals(-2.0, 5.0), noise_bits=1, steps=STEPS, combine=combine)
    for t in range(1, 8):
        law = estimate_law(plan, [1.5] * t, t)
        std = fed(plan, [1.5] * t).estimate.std
        assert math.sqrt(law.variance) == pytest.approx(std)


# What these tests must see.


def test_the_laws_see_missing_coins() -> None:
    plan, mutant = (kind_plan(FIGURE_2, MANY, noise_bits=n, steps=STEPS) for n in (3, 0))
    raw = many_vectors(7)
    law = estimate_law(plan, raw, 7)
    assert law.distance(estimate_law(mutant, raw, 7)) > DISCREPANCY
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(by_continual_sum(mutant, raw, 5), discrepancy=DISCREPANCY)


def test_the_laws_see_values_that_are_rounded_to_the_nearest_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, raw = kind_plan(FIGURE_2, MANY, noise_bits=1, steps=STEPS), many_vectors(7)

    def nearest(self: Quantizer, rows: Floats, random: Any) -> Any:
        return np.round((rows - self.values.lows) / self.unit).astype(np.int64)

    law = estimate_law(plan, raw, 7)
    biased = law.atoms + plan.mechanisms[0].quantizer.unit
    assert law.distance(Law(biased, law.probabilities)) > DISCREPANCY
    monkeypatch.setattr(Quantizer, "round", nearest)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(by_continual_sum(plan, raw, 5), discrepancy=DISCREPANCY)


def test_the_laws_see_one_rounding_for_all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node and its children would then add up to the same: nothing is gained by combining."""
    plan = kind_plan(FIGURE_2, MANY, noise_bits=0, steps=3, combine=True)
    alone = kind_plan(FIGURE_2, MANY, noise_bits=0, steps=3)
    raw = many_vectors(4)
    law, lie = (estimate_law(p, raw, 4) for p in (plan, alone))
    assert law.distance(lie) > DISCREPANCY

    def once(self: oh.ContinualSum, rows: Floats) -> list[Any]:
        steps = plan.mechanisms[0].quantizer.to_steps(rows, self._rounding[0])
        return [steps] * len(self._rounding)

    monkeypatch.setattr(oh.ContinualSum, "_round", once)
    samples = by_continual_sum(plan, raw, 5)
    lie.assert_of(samples, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        law.assert_of(samples, discrepancy=DISCREPANCY)


def test_the_laws_see_coordinates_that_share_their_noise() -> None:
    plan, raw = kind_plan(FIGURE_2, MANY, noise_bits=1, steps=STEPS), many_vectors(7)
    samples = np.sort(by_continual_sum(plan, raw, 5))  # neighbours are alike, the law is the same
    law = estimate_law(plan, raw, 7)
    law.assert_of(samples, discrepancy=DISCREPANCY)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_law_of_coordinates(law, samples)
