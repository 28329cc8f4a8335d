"""What users add to the sums of open batches: their values, in steps."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from overhand.plan import Plan
from overhand.randomness import Random

Rows = NDArray[Any]


class Rounding:
    """Turns values into steps, once for all levels if they are whole, else for each level afresh.

    A track is the steps of some users as one or more levels see them; values add them up as they
    add up coordinates. Every level has a stream of
    its own, so that it does not matter how many users come at once.
    """

    def __init__(self, plan: Plan, streams: list[Random]) -> None:
        self.streams = [] if plan.values.is_whole else streams
        # All batches of a level have the same steps.
        self._mechanisms = [of_level[0] for of_level in plan.mechanisms]

    @property
    def tracks(self) -> int:
        return max(1, len(self.streams))

    def track_of(self, level: int) -> int:
        """The track that a level sees."""
        return level - 1 if self.streams else 0

    def tracks_of(self, rows: Rows) -> list[Rows]:
        """Checked values as every track has them."""
        if not self.streams:
            return [rows]
        return [
            mechanism.steps_of(rows, stream)
            for mechanism, stream in zip(self._mechanisms, self.streams, strict=True)
        ]
