"""`overhand`, whose services make no noise: `python -m benchmarks.noiseless server`, for example.

So that a soak sees sums that are exactly those of the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overhand.cli import run
from overhand.model import Counts
from overhand.noise import Clip, CorrelatedNoise, IndependentNoise


def _advance(
    self: Any, state: Counts, random: Any, blocks: int, clip: Clip | None = None
) -> tuple[Counts, Counts]:
    nothing = np.zeros((blocks, state.shape[1]), np.int64)
    return (nothing if clip is None else clip(nothing)), state


if __name__ == "__main__":
    for kind in (CorrelatedNoise, IndependentNoise):
        kind.advance = _advance  # type: ignore[method-assign]
    run()
