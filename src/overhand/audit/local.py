"""Local mechanisms: one answer is all that the server sees of a user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from overhand.accounting import SMALLEST_DELTA
from overhand.audit.attacks import Floats
from overhand.baselines import LocalSum, local_counter
from overhand.model import Privacy
from overhand.plan.levels import AnyMechanism
from overhand.randomness import Random, seeded_random
from overhand.values import Values


@dataclass(frozen=True)
class Answers:
    """A user who holds either of two values as far apart as two can be, and answers."""

    counter: LocalSum

    names: ClassVar[list[str]] = ["answer"]
    mechanisms: ClassVar[tuple[AnyMechanism, ...]] = ()

    @classmethod
    def best(cls, values: Values, privacy: Privacy) -> Answers:
        """Of the mechanism that is shipped for these values; they need no delta."""
        return cls(local_counter(1, replace(privacy, delta=SMALLEST_DELTA), values))

    @property
    def levels(self) -> int:
        return 1

    @property
    def messages(self) -> int:
        return self.counter.values.dimension

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """How far the answer of each run lies from the one value toward the other."""
        values = self.counter.values
        low, high = values.coordinates(values.opposites(np.array([0, 1], np.uint8))).astype(float)
        rows = values.opposites(np.full(runs, victim, np.uint8))
        # Baselines are simulated, never deployed: some draw real numbers.
        simulated = seeded_random(int(random.words(1, np.uint64)[0]))
        answers = self.counter.answers(rows, simulated).reshape(runs, -1)
        return np.asarray(answers @ np.atleast_1d(high - low))[np.newaxis]
