"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and knows no accountant; the calibration in
`overhand.plan` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.ballots import BallotSum
from overhand.mechanisms.changes import change_of
from overhand.mechanisms.coins import CoinSum
from overhand.mechanisms.mechanism import Mechanism, Recipe
from overhand.mechanisms.modular import ModularSum
from overhand.mechanisms.noise import BoundedNoise, CoinNoise, LaplaceNoise, Noise
from overhand.mechanisms.pairs import PairsSum
from overhand.mechanisms.papers import published
from overhand.mechanisms.parts import (
    SERVICES,
    Coins,
    NoisePart,
    Polya,
    ServiceNoise,
    fewest_coins,
    noise_of,
)
from overhand.mechanisms.shares import SharesSum

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism for mechanism in (CoinSum, SharesSum, PairsSum, BallotSum)
}
"""All kinds of mechanisms by name: a new one is registered here."""

__all__ = [
    "MECHANISMS",
    "SERVICES",
    "BallotSum",
    "BoundedNoise",
    "CoinNoise",
    "CoinSum",
    "Coins",
    "LaplaceNoise",
    "Mechanism",
    "ModularSum",
    "Noise",
    "NoisePart",
    "PairsSum",
    "Polya",
    "Recipe",
    "ServiceNoise",
    "SharesSum",
    "change_of",
    "fewest_coins",
    "noise_of",
    "published",
]
