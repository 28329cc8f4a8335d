"""dpcrpy: mechanisms of continual release in Python, one user at a time.

Two of its Gaussian mechanisms: Honaker's tree, the fastest that is accurate, and AuBCR, the most
accurate of those that are ready at once. Its KTCR would be 3 % better still, but solves for
minutes before the first release and writes the solution into the installed package.
"""

from __future__ import annotations

import math
from typing import Any

import dpcrpy
import numpy as np

from benchmarks.arrays import Bits, Floats
from benchmarks.contestants.plain_numpy import mean_cover
from benchmarks.task import Ready, Task


def honaker(task: Task) -> Ready:
    order = (task.horizon - 1).bit_length()
    noise = _noise(task)
    _, deviations = dpcrpy.Honaker(order, noise).genWn(order)  # this scales the noise, too
    variances = [noise.getMse() * float(deviation) ** 2 for deviation in deviations]
    return Ready(
        run=lambda values: _releases(dpcrpy.Honaker(order, noise), values),
        expected_rms=lambda: math.sqrt(mean_cover(task.horizon, variances)),
    )


def aubcr(task: Task) -> Ready:
    order, noise = task.horizon.bit_length(), _noise(task)
    return Ready(
        run=lambda values: _releases(dpcrpy.AuBCR(order, abandonLast=True, noiMech=noise), values)
    )


def _noise(task: Task) -> Any:
    """Gaussian noise by dpcrpy's own calibration, which is the analytic one."""
    return dpcrpy.noiMech.GaussNoiMech(task.epsilon, task.delta)


def _releases(mechanism: Any, values: Bits) -> Floats:
    releases = (mechanism.dpRelease(value)[0] for value in values.tolist())
    return np.fromiter(releases, np.float64, len(values))
