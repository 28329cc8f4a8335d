"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and never knows an accountant; the calibration in
`overhand.plan` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.coins import CoinSum
from overhand.mechanisms.mechanism import Mechanism, Recipe, change_of
from overhand.mechanisms.noise import CoinNoise, LaplaceNoise, Noise
from overhand.mechanisms.pairs import PairsSum
from overhand.mechanisms.papers import published
from overhand.mechanisms.shares import SharesSum
from overhand.mechanisms.user_noise import Coins, Polya, UserNoise, fewest_coins, noise_of

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism for mechanism in (CoinSum, SharesSum, PairsSum)
}
"""All kinds of mechanisms by name: a new one is registered here."""

__all__ = [
    "MECHANISMS",
    "CoinNoise",
    "CoinSum",
    "Coins",
    "LaplaceNoise",
    "Mechanism",
    "Noise",
    "PairsSum",
    "Polya",
    "Recipe",
    "SharesSum",
    "UserNoise",
    "change_of",
    "fewest_coins",
    "noise_of",
    "published",
]
