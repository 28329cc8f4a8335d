"""The stream of values, and what arrays are called here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

ONE_IN = 10  # with one in two, our guess for users who are still pending would just happen to fit


def stream(horizon: int, seed: int) -> Bits:
    """The values: the same for every contestant."""
    drawn = np.random.default_rng(seed).integers(ONE_IN, size=horizon, dtype=np.uint8)
    return np.equal(drawn, 0).view(np.uint8)
