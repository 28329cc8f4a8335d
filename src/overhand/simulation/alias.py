"""Fast draws from a known integer law, for simulations."""

from __future__ import annotations

import numpy as np

from overhand.mechanisms import Noise
from overhand.model import Counts, Floats
from overhand.randomness import Random

_WORD_BITS = 64


class AliasTable:
    """Walker's alias method: one word, one comparison and one look-up for every draw.

    Probabilities are rounded to 2^-55 or so, far below what any simulation resolves. What is
    deployed draws its coins one by one instead (`CoinSum.draw_noise`).
    """

    def __init__(self, law: Noise) -> None:
        window = law.window
        self._first = window.first - law.mean
        columns_bits = max(1, (len(window.probabilities) - 1).bit_length())
        self._shift = np.uint64(_WORD_BITS - columns_bits)
        heights, self._alias = _alias_columns(window.probabilities, 1 << columns_bits)
        self._thresholds = (heights * float(1 << int(self._shift))).astype(np.uint64)
        self._mask = np.uint64((1 << int(self._shift)) - 1)

    def draw(self, random: Random, count: int) -> Floats:
        """`count` independent values of the noise, minus its mean."""
        words = random.words(count, np.uint64)
        column = (words >> self._shift).astype(np.intp)
        words &= self._mask
        outcome = np.where(words < self._thresholds[column], column, self._alias[column])
        return outcome + self._first


def _alias_columns(probabilities: Floats, columns: int) -> tuple[Floats, Counts]:
    """Cut the probabilities into columns of equal weight, each of at most two outcomes."""
    heights = np.zeros(columns)
    heights[: len(probabilities)] = probabilities / probabilities.sum() * columns
    alias = np.arange(columns)
    small = [i for i in range(columns) if heights[i] < 1]
    large = [i for i in range(columns) if heights[i] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        alias[low] = high
        heights[high] -= 1 - heights[low]
        if heights[high] < 1:
            small.append(large.pop())
    for rest in (*small, *large):  # what rounding leaves over
        heights[rest] = 1.0
        alias[rest] = rest
    return np.minimum(heights, 1.0), alias
