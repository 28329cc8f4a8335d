"""What NumPy alone does: the sum without privacy, and the binary tree of a trusted server."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.arrays import Bits, Floats
from benchmarks.task import Ready, Task


def cumsum(task: Task) -> Ready:
    return Ready(run=np.cumsum, expected_rms=lambda: 0.0)


def binary_tree(task: Task) -> Ready:
    levels = task.horizon.bit_length()
    sigma = math.sqrt(levels) * task.unit_sigma
    random = np.random.default_rng(task.seed)
    return Ready(
        run=lambda values: binary_tree_sums(values, sigma, random),
        expected_rms=lambda: sigma * math.sqrt(mean_cover(task.horizon, [1.0] * levels)),
    )


def binary_tree_sums(values: Bits, sigma: float, random: np.random.Generator) -> Floats:
    """All prefix sums from a binary tree of noisy nodes, a level at a time.

    The prefix t is the sum of one node for each bit set in t. A node of level l is in use while
    that bit stays set: for 2^l times in a row, then not at all for as many. So a level is a
    matrix of such pairs of rows, and its noise is added to every second row.
    """
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    for level in range(len(values).bit_length()):
        width = 1 << level
        pairs, rest = divmod(len(sums), 2 * width)
        noise = random.normal(0.0, sigma, pairs + 1)
        whole = sums[: len(sums) - rest].reshape(pairs, 2, width)
        whole[:, 1] += noise[:pairs, np.newaxis]
        sums[len(sums) - rest + width :] += noise[pairs]
    return sums[1:]


def mean_cover(horizon: int, variances: Sequence[float]) -> float:
    """The variance of a prefix, averaged over t: a node of level l counts while bit l is set."""
    t = np.arange(1, horizon + 1)
    return sum(
        variance * float(np.count_nonzero(t >> level & 1)) / horizon
        for level, variance in enumerate(variances)
    )
