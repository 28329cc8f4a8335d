"""Errors of many runs side by side: all noise is drawn, and users are not gone through one by one.

Users who all hold the same extreme value make the largest error that pending users can. What an
estimate is off by is then known between the ends of batches, so that it takes one draw a batch to
have the error at every time: with one shuffler a hundred times less work than a simulation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.plan import Plan
from overhand.randomness import Random
from overhand.simulation.counts import CoverNoise

Floats = NDArray[np.float64]

_CELLS = 1 << 20  # numbers at a time: more do not fit the cache, fewer are all overhead
_SIDE_BY_SIDE = 4  # runs at a time, at least: the walk along the tree is shared
_WALK = 1.16
"""The standard deviation of the mean square of a random walk, over its mean (2 / sqrt(3))."""


def runs_for(precision: float, levels: int) -> int:
    """How many runs tell the root mean square error with this relative standard deviation.

    The noise of a level is a random walk until the level above is full. Those of the highest level
    take the whole run, with a share of 1 / levels of all squares; of the others there are many.

    >>> runs_for(0.01, levels=1), runs_for(0.01, levels=3)
    (3364, 374)
    """
    return math.ceil((_WALK / (2 * levels * precision)) ** 2)


def mean_squares(plan: Plan, runs: int, random: Random) -> Floats:
    """Run by run, the mean over all times of the squared error, all users holding the high end.

    It is what `simulate(plan, "ones")` measures, for whole values and without their estimates.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> measured = mean_squares(plan, 4000, oh.seeded_random(1)).mean() ** 0.5
    >>> bool(abs(measured / plan.rms_error - 1) < 0.02)
    True
    """
    side_by_side = max(_SIDE_BY_SIDE, _CELLS // max(1, plan.tree.blocks))
    groups = [min(side_by_side, runs - first) for first in range(0, runs, side_by_side)]
    return np.concatenate([_group_mean_squares(plan, group, random) for group in groups])


def _group_mean_squares(plan: Plan, runs: int, random: Random) -> Floats:
    tree = plan.tree
    noise = CoverNoise(plan, random, runs=(runs,))
    missed = plan.pending_weight * np.arange(tree.lowest, dtype=np.float64)
    at_once = max(1, _CELLS // runs)
    total = np.zeros(runs)
    after = np.zeros((1, runs))
    for first in range(0, tree.blocks, at_once):
        last = min(first + at_once, tree.blocks)
        after = noise.at(first, last, np.empty(0))
        total += _squares(after[:-1], missed)
    total += _squares(after[-1:], missed[: tree.horizon - tree.covered + 1])
    return total / tree.horizon


def _squares(noise: Floats, missed: Floats) -> Floats:
    """Run by run, the sum of (noise - missed)^2 over all batches and all pending users."""
    squares: Any = np.einsum("br,br->r", noise, noise)
    return np.asarray(
        len(missed) * squares
        - 2 * missed.sum() * noise.sum(axis=0)
        + len(noise) * float(missed @ missed)
    )
