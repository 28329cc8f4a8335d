"""Noise on the integers: exact laws, the share of one contributor, and how it is drawn."""

from overhand.noise.laws import BoundedNoise, CoinNoise, LaplaceNoise, Noise
from overhand.noise.shares import (
    SERVICES,
    Coins,
    NoiseShare,
    Polya,
    ServiceNoise,
    fewest_coins,
    noise_of,
)

__all__ = [
    "SERVICES",
    "BoundedNoise",
    "CoinNoise",
    "Coins",
    "LaplaceNoise",
    "Noise",
    "NoiseShare",
    "Polya",
    "ServiceNoise",
    "fewest_coins",
    "noise_of",
]
