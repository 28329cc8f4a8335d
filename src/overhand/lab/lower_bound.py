"""Section 4, fast: `reference.rep_and_big` and `reference.hard_input`, and when they bind.

With c = e^epsilon / (e^(2 epsilon) + 1):

    rep_{n,k} = 1/2 n^(1/(2k+1)) c^(2k/(2k+1))      Big_{n,k} = n^((2k-1)/(2k+1)) c^(2/(2k+1))

Theorem 4.1: any algorithm with k shufflers has an error of order rep_{n,k} on an input drawn from
Delta_{n,k}, with constant probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.randomness import HALF, Random

LEAST_VARIANCE = 200.0**2
"""What the anti-concentration lemma requires of the single bits' variance (Lemma B.4)."""


def bit_variance_root(epsilon: float) -> float:
    """c_epsilon: a bit seen through an epsilon-private transcript has at least its square.

    >>> [round(bit_variance_root(epsilon), 3) for epsilon in (0.1, 1.0, 4.0)]
    [0.498, 0.324, 0.018]
    """
    epsilon = errors.finite_number("epsilon", epsilon, above=0)
    return 1 / (math.exp(epsilon) + math.exp(-epsilon))


def repeats(horizon: int, shufflers: int, epsilon: float) -> float:
    """rep_{n,k}: how often a bit is repeated, and the error that no algorithm avoids.

    >>> round(repeats(10**6, 1, 1.0), 2)
    23.59
    """
    power = 1 / (2 * shufflers + 1)
    root = bit_variance_root(epsilon)
    return 0.5 * math.pow(horizon, power) * math.pow(root, 2 * shufflers * power)


def big_batch(horizon: int, shufflers: int, epsilon: float) -> float:
    """Big_{n,k}: batches above it leave the error of k - 1 shufflers inside them.

    >>> [round(big_batch(10**6, shufflers, epsilon=1.0)) for shufflers in (1, 2, 3)]
    [47, 2536, 13992]
    """
    power = 1 / (2 * shufflers + 1)
    root = bit_variance_root(epsilon)
    return math.pow(horizon, (2 * shufflers - 1) * power) * math.pow(root, 2 * power)


def is_proved(horizon: int, shufflers: int, epsilon: float, delta: float) -> bool:
    """Whether the theorem's conditions hold: enough single bits, and a small enough delta.

    The theorem requires many users; with fewer, the bound is a guide and not a proof:

    >>> [is_proved(horizon, 1, epsilon=1.0, delta=1e-12) for horizon in (10**6, 10**8)]
    [False, True]
    """
    spread = horizon * bit_variance_root(epsilon) ** 2 / big_batch(horizon, shufflers, epsilon)
    return spread > LEAST_VARIANCE and delta < largest_delta(horizon, shufflers, epsilon)


def largest_delta(horizon: int, shufflers: int, epsilon: float) -> float:
    """The delta at and above which the theorem says nothing.

    >>> largest_delta(10**6, shufflers=4, epsilon=1.0)
    5e-09
    """
    return min(epsilon, 1.0) / (40 * horizon * (shufflers + 1))


def least_horizon(shufflers: int, epsilon: float) -> int:
    """The fewest users for which the bound is not vacuous.

    >>> [f"{least_horizon(k, 1.0):.1e}" for k in (1, 2, 3)]
    ['7.6e+07', '2.9e+13', '1.1e+19']
    """
    # n c^2 / Big = n^(2/(2k+1)) c^(4k/(2k+1))
    power = 2 / (2 * shufflers + 1)
    scale = math.pow(bit_variance_root(epsilon), 2 * shufflers * power)
    return math.floor(math.pow(LEAST_VARIANCE / scale, 1 / power)) + 1


@dataclass(frozen=True)
class HardInput:
    """A distribution of Delta_{n,k}.

    A prefix of at most rep_{n,k} equal bits, then a single fair bit and rep_{n,k} copies of
    another fair bit, over and over. Over a batch that is not small nothing but its own users
    tells the single bits; over a small one its noise does not pay off.

    >>> from overhand.randomness import seeded_random
    >>> HardInput(horizon=12, copies=3, prefix=2, prefix_bit=1).draw(seeded_random(1)).size
    12
    """

    horizon: int
    copies: int
    prefix: int = 0
    prefix_bit: int = 0

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)
        errors.whole("copies", self.copies, least=1)
        errors.whole("prefix", self.prefix, least=0, most=self.copies)
        errors.whole("prefix_bit", self.prefix_bit, least=0, most=1)

    @classmethod
    def against(cls, horizon: int, shufflers: int, epsilon: float) -> HardInput:
        """The member of Delta_{n,k} without a prefix."""
        return cls(horizon, max(1, math.floor(repeats(horizon, shufflers, epsilon))))

    def draw(self, random: Random) -> NDArray[np.uint8]:
        """One input."""
        period = self.copies + 1
        rounds = -(-(self.horizon - self.prefix) // period)
        coins = random.coins(2 * rounds, HALF).reshape(rounds, 2)
        lengths = np.tile([1, self.copies], rounds)
        tail = np.repeat(coins.reshape(-1), lengths)
        head = np.full(self.prefix, self.prefix_bit, np.uint8)
        return np.concatenate([head, tail])[: self.horizon]
