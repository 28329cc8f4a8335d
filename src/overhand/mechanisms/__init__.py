"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and never knows an accountant; the calibration in
`overhand.plan` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.coins import CoinSum
from overhand.mechanisms.laplace import LaplaceNoise
from overhand.mechanisms.mechanism import Mechanism
from overhand.mechanisms.noise import CoinNoise
from overhand.mechanisms.published import published
from overhand.mechanisms.shares import SharesSum
from overhand.mechanisms.user_noise import Coins, Noise, Polya, UserNoise

__all__ = [
    "CoinNoise",
    "CoinSum",
    "Coins",
    "LaplaceNoise",
    "Mechanism",
    "Noise",
    "Polya",
    "SharesSum",
    "UserNoise",
    "published",
]
