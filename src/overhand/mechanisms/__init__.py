"""Shuffle mechanisms: public parameters, an encoder, an analyzer and the law of the noise.

A mechanism takes its noise as a parameter and never knows an accountant; the calibration in
`overhand.plan` chooses the parameter and `overhand.accounting` judges it.
"""

from overhand.mechanisms.binary import PUBLISHED_CONSTANT, BinarySum
from overhand.mechanisms.noise import CoinNoise, Window

__all__ = ["PUBLISHED_CONSTANT", "BinarySum", "CoinNoise", "Window"]
