"""The mechanisms that the papers prove private, with the papers' constants.

The constants are parameters: a guarantee rests on the accountant, not on the paper.
"""

from __future__ import annotations

import math

from overhand import errors
from overhand.mechanisms.coins import CoinSum
from overhand.mechanisms.parts import Coins
from overhand.model import Privacy
from overhand.randomness import HALF, BinaryFraction
from overhand.values import BITS, Values

BITS_CONSTANT = 96.0
REALS_CONSTANT = 90.0
VECTORS_CONSTANT = 24e4


def published(
    values: Values, size: int, privacy: Privacy, *, constant: float | None = None
) -> CoinSum:
    """The published mechanism for this kind of value.

    Gaussian noise would need a variance of 18 for the same guarantee:

    >>> round(published(BITS, 10_000, Privacy(1.0, 1e-6)).variance)
    648
    """
    errors.whole("size", size, least=1)
    if constant is not None:
        errors.number("constant", constant, above=0)
    if values == BITS:
        return binary_sum(size, privacy, constant or BITS_CONSTANT)
    if values.moves == 2 and not values.is_whole:
        # A number divided between two counts: as a histogram, by the mechanism for numbers.
        return real_sum(values, size, privacy.share(2), constant or REALS_CONSTANT)
    if values.moves == 2:
        return histogram_sum(values, size, privacy, constant or BITS_CONSTANT)
    if values.moves == 1:
        return real_sum(values, size, privacy, constant or REALS_CONSTANT)
    return vector_sum(values, size, privacy, constant or VECTORS_CONSTANT)


def binary_sum(size: int, privacy: Privacy, constant: float = BITS_CONSTANT) -> CoinSum:
    """Algorithm 3 of Tenenbaum, Kaplan, Mansour and Stemmer (2021).

    With tau = constant ln(2 / delta) / epsilon^2: in a batch of fewer than tau users, each
    sends ceil(tau / size) fair coins; in a larger one, one coin of probability tau / (2 size).
    """
    tau = constant * math.log(2 / privacy.delta) / privacy.epsilon**2
    if size < tau:
        return CoinSum(size, Coins(math.ceil(tau / size), HALF, opposed=False))
    return CoinSum(size, Coins(1, BinaryFraction.near(tau / (2 * size)), opposed=False))


def histogram_sum(
    values: Values, size: int, privacy: Privacy, constant: float = BITS_CONSTANT
) -> CoinSum:
    """The same in every bucket, with half of the budget: a change moves two of them."""
    return CoinSum(size, binary_sum(size, privacy.share(2), constant).noise_part, values)


def real_sum(
    values: Values, size: int, privacy: Privacy, constant: float = REALS_CONSTANT
) -> CoinSum:
    """P_1D of Cheu, Joseph, Mao and Peng (2021), Lemma 3.1: g = sqrt(size) steps."""
    steps = math.ceil(math.sqrt(size))
    mass = constant * steps**2 * math.log(2 / privacy.delta) / (privacy.epsilon**2 * size)
    coins = math.floor(2 * mass) + 1
    noise = Coins(coins, BinaryFraction.near(mass / coins), opposed=False)
    return CoinSum(size, noise, values, steps)


def vector_sum(
    values: Values, size: int, privacy: Privacy, constant: float = VECTORS_CONSTANT
) -> CoinSum:
    """P_vec of the same paper: every coordinate by P_1D, coins of probability 1/4."""
    dimension = values.dimension
    steps = math.ceil(max(2 * math.sqrt(size), dimension, 4))
    log = math.log(4 * (dimension**2 + 1) / privacy.delta)
    coins = math.ceil(constant * (steps * log / privacy.epsilon) ** 2 / size)
    return CoinSum(size, Coins(coins, BinaryFraction(1, 2), opposed=False), values, steps)
