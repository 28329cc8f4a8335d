"""Long runs of trees of two levels: sums of batches, read off the estimates, and their laws."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from scipy import stats

import overhand as oh
from overhand.lab.simulation import Engine, estimate_all
from overhand.mechanisms import Mechanism
from overhand.model import Floats
from support.estimate_laws import Law
from support.kind_plans import points
from support.sampling import samples_for

DISCREPANCIES = (0.06, 0.095)
"""What is told apart in the sums of lower batches, and in those of upper ones."""
UPPER_BATCHES = samples_for(DISCREPANCIES[1])
"""With three lower ones each that are published alone: these are enough for theirs."""


def batch_sums(plan: oh.Plan, value: Any, engine: Engine, *, seed: int) -> tuple[Floats, Floats]:
    """The sums of lower batches and of upper ones: one coordinate, all users holding this value.

    The last lower batch of an upper one is published only with that, and is not among them.
    """
    found = estimate_all(plan, [value] * plan.horizon, oh.seeded_random(seed), engine=engine)
    small, large = plan.tree.sizes
    estimates = np.concatenate([[0.0], found.reshape(plan.horizon, -1)[:, 0]])
    lower = np.diff(estimates[::small]).reshape(-1, large // small)[:, :-1]
    return lower.reshape(-1), np.diff(estimates[::large])


def batch_laws(plan: oh.Plan, value: Any) -> tuple[Law, Law]:
    """Their laws, by the book: users' rounding and noise; above, combined with what is below."""
    number, low = points(plan.values, [value])[0][0], float(plan.values.lows[0])
    lower, own = (sum_law(mechanism, number, low) for mechanism in plan.mechanisms)
    weight = plan.combination.own_weights[1]
    below = reduce(Law.__add__, [lower] * plan.tree.degrees[1])
    return lower, own.times(weight) + below.times(1 - weight)


def assert_follow_laws(plan: oh.Plan, value: Any, engine: Engine, *, seed: int) -> None:
    """The sums of batches of a long run follow their laws."""
    found = batch_sums(plan, value, engine, seed=seed)
    for sums, law, off in zip(found, batch_laws(plan, value), DISCREPANCIES, strict=True):
        law.assert_of(sums, discrepancy=off)


def assert_mutant_is_seen(
    plan: oh.Plan, mutant: oh.Plan, value: Any, engine: Engine, *, levels: int, seed: int
) -> None:
    """The mutant's sums of batches of the lowest levels do not follow the plan's laws."""
    found = batch_sums(mutant, value, engine, seed=seed)[:levels]
    laws, lies = batch_laws(plan, value)[:levels], batch_laws(mutant, value)[:levels]
    for sums, law, lie, off in zip(found, laws, lies, DISCREPANCIES[:levels], strict=True):
        assert law.distance(lie) > off
        with pytest.raises(AssertionError, match="Kolmogorov|outside the support"):
            law.assert_of(sums, discrepancy=off)


def sum_law(mechanism: Mechanism, number: float, low: float) -> Law:
    """Of a batch whose users all hold this number: their rounding, and its noise."""
    exact = (number - low) / mechanism.quantizer.unit
    down = np.floor(exact + 1e-9)
    users = np.arange(mechanism.size + 1)
    ups = stats.binom.pmf(users, mechanism.size, np.clip(exact - down, 0.0, 1.0))
    noise = mechanism.noise()
    law = np.convolve(ups, noise.pmf.probabilities)
    steps = mechanism.size * down + np.arange(len(law)) + noise.pmf.first - noise.mean
    return Law.of(steps * mechanism.quantizer.unit + mechanism.size * low, law)
