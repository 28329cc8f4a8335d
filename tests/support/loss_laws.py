"""What the law of the noise says of a deployment's privacy, to hold an audit against."""

from __future__ import annotations

import math

import numpy as np

from overhand.lab.audit.audit import LossLaw


def true_epsilon(law: LossLaw, delta: float) -> float:
    """The epsilon that the levels truly have at this delta, to about the grid's step."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(law, middle) > delta else (low, middle)
    return high


def _delta(law: LossLaw, epsilon: float) -> float:
    scale = math.exp(epsilon)
    up = np.maximum(law.one - scale * law.zero, 0.0).sum()
    down = np.maximum(law.zero - scale * law.one, 0.0).sum()
    return float(max(up, down))
