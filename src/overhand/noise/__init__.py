"""Noise on the integers: exact laws, what one contributor adds, and how it is drawn."""

from overhand.noise.gaussian import DiscreteGaussian, GaussianNoise
from overhand.noise.laws import CoinNoise, LaplaceNoise, Noise
from overhand.noise.services import (
    BEYOND,
    SERVICES,
    Clip,
    CorrelatedNoise,
    IndependentNoise,
    ServiceNoise,
    noise_of,
)
from overhand.noise.shares import Coins, NoiseShare, Polya, fewest_coins

__all__ = [
    "BEYOND",
    "SERVICES",
    "Clip",
    "CoinNoise",
    "Coins",
    "CorrelatedNoise",
    "DiscreteGaussian",
    "GaussianNoise",
    "IndependentNoise",
    "LaplaceNoise",
    "Noise",
    "NoiseShare",
    "Polya",
    "ServiceNoise",
    "fewest_coins",
    "noise_of",
]
