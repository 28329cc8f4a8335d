"""The laws of the noise of a few blocks, by enumeration of all that may come out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import norm

from overhand.model import Counts, Floats
from overhand.noise import CorrelatedNoise

Clip = Callable[[Counts], Counts]
Moves = Callable[[Counts], Counts]
"""What is in the next block, by what came out of those before it: a row for every past."""


def filter_of(noise: CorrelatedNoise, blocks: int) -> Floats:
    """c_0, c_1, ..., from the covariance by which errors are predicted."""
    ends = np.arange(blocks + 1)
    of_sums = noise.covariance(ends[:, np.newaxis], ends)
    root = np.linalg.cholesky(np.diff(np.diff(of_sums, axis=0), axis=1))
    return np.asarray(np.linalg.inv(root / root[0, 0])[:, 0])


def transcripts(
    noise: CorrelatedNoise, blocks: int, most: int, moves: Moves, clip: Clip | None = None
) -> Floats:
    """The probabilities of all that may come out of so many blocks, each from -most to most.

    What comes out is what is in a block and noise, W_t = clip(round(z_t - sum_k c_k W_(t-k))).
    """
    c, outcomes = filter_of(noise, blocks), np.arange(-most, most + 1)
    edges = np.arange(-2 * most - 1, 2 * most + 2) - 0.5
    drawn = np.arange(-2 * most - 1, 2 * most + 1)
    kept = drawn if clip is None else clip(drawn)
    seen, hidden, joint = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64), np.ones(1)
    for block in range(blocks):
        centres = -hidden @ c[1 : block + 1][::-1]
        cells = np.diff(norm.cdf((edges - centres[:, np.newaxis]) / noise.deviation), axis=1)
        moved = moves(seen)
        chances = np.zeros((len(joint), len(outcomes)))
        for column, out in enumerate(outcomes):
            chances[:, column] = (cells * (kept == (out - moved)[:, np.newaxis])).sum(axis=1)
        joint = (joint[:, np.newaxis] * chances).reshape(-1)
        new = np.tile(outcomes, len(seen))
        seen = np.column_stack([np.repeat(seen, len(outcomes), axis=0), new])
        of_noise = new - np.repeat(moved, len(outcomes))
        hidden = np.column_stack([np.repeat(hidden, len(outcomes), axis=0), of_noise])
    return joint


def nothing(seen: Counts) -> Counts:
    return np.zeros(len(seen), np.int64)
