"""How fast something grows: the exponent of the power of n that fits it best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def slope(horizons: Sequence[int], values: Sequence[float]) -> float:
    """The least-squares slope of the logarithms.

    >>> round(slope((10, 100, 1000), (3.0, 30.0, 300.0)), 6)
    1.0
    """
    return float(np.polyfit(np.log(horizons), np.log(values), 1)[0])


def slope_std(horizons: Sequence[int], relative_stds: Sequence[float]) -> float:
    """The standard deviation of that slope, from those of the values, relative to them.

    >>> round(slope_std((10, 1000), (0.01, 0.01)), 5)  # sqrt(2) 0.01 / log(100)
    0.00307
    """
    centred = np.log(horizons) - np.mean(np.log(horizons))
    return float(np.linalg.norm(centred * relative_stds) / (centred @ centred))
