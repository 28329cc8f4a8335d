"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and knows no accountant; the calibration in
`overhand.planning` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.ballots import BallotSum
from overhand.mechanisms.coins import CoinSum, published
from overhand.mechanisms.mechanism import (
    Mechanism,
    MessageLayout,
    NoiseChoice,
    byte_width,
    to_bytes,
    to_numbers,
)
from overhand.mechanisms.pairs import PairsSum
from overhand.mechanisms.shares import ModularSum, SharesSum

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism for mechanism in (CoinSum, SharesSum, PairsSum, BallotSum)
}
"""All kinds of mechanisms by name: a new one is registered here."""

__all__ = [
    "MECHANISMS",
    "BallotSum",
    "CoinSum",
    "Mechanism",
    "MessageLayout",
    "ModularSum",
    "NoiseChoice",
    "PairsSum",
    "SharesSum",
    "byte_width",
    "published",
    "to_bytes",
    "to_numbers",
]
