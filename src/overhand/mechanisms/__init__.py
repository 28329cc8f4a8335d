"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and never knows an accountant; the calibration in
`overhand.plan` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.coins import CoinSum, fewest_coins
from overhand.mechanisms.mechanism import Mechanism
from overhand.mechanisms.noise import CoinNoise, Window
from overhand.mechanisms.published import published

__all__ = ["CoinNoise", "CoinSum", "Mechanism", "Window", "fewest_coins", "published"]
