"""What the shuffling service could make of the numbers that it is told in the clear."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from overhand.audit.attacks import KNOWN_SEED, LevelView
from overhand.audit.cases import ONCE, Deployment, Placement, neighbours
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Messages, Privacy
from overhand.randomness import Random, seeded_random

NOTHING = Privacy(1e-6, 1e-12)
"""What numbers in the clear may tell: they are uniform, whatever the values."""


class Listener:
    """The shuffling service: it knows who sent what, and all values but the victim's.

    It cannot open what is sealed; what it is told in the clear must mean nothing.

    >>> from overhand.audit import Case
    >>> from overhand.values import BITS
    >>> case = Case("pairs", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> service = Listener(case.deployment())
    >>> zero, one = (service.play(victim, 4000, seeded_random(1), attempt=0) for victim in (0, 1))
    >>> bool(abs(one.mean(axis=1) - zero.mean(axis=1)).max() < 0.1)
    True
    """

    mechanisms: ClassVar[tuple[Mechanism, ...]] = ()  # no law of noise tells what to expect
    placement: ClassVar[Placement] = ONCE

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._views = [LevelView(mechanism) for mechanism in deployment.mechanisms]

    @property
    def names(self) -> list[str]:
        across = ["mask of two levels"] if self.levels > 1 else []
        return ["unmasked", "same mask", *across, "known mask"]

    @property
    def levels(self) -> int:
        return len(self._views)

    @property
    def messages(self) -> int:
        return self._deployment.messages

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """The statistics of this many runs in which the victim holds 0 or 1."""
        highest = self._deployment.mechanisms[-1]
        heard = self._deployment.sent(neighbours(highest, victim, runs), random, attempt)
        known = seeded_random(KNOWN_SEED + attempt)
        guessed = self._deployment.encode(neighbours(highest, 0, runs), known)
        found = {name: np.zeros(runs) for name in self.names}
        for view, messages, guess in zip(self._views, heard, guessed, strict=True):
            own, other, known_own = (
                _numbers(view, part, runs, user)
                for part, user in ((messages, 0), (messages, 1), (guess, 0))
            )
            found["unmasked"] += view.toward(_about_zero(own, view.mechanism) - view.at_zero)
            found["same mask"] += view.toward(_about_zero(own - other, view.mechanism))
            found["known mask"] += view.toward(_about_zero(own - known_own, view.mechanism))
        if self.levels > 1:
            found["mask of two levels"] = self._across(heard, runs)
        return np.stack(list(found.values()))

    def _across(self, heard: list[Messages], runs: int) -> Floats:
        """A mask that two levels share cancels in the difference; the value only if steps agree."""
        (below, above), fewest = self._views[:2], self._deployment.mechanisms[0]
        difference = _numbers(above, heard[1], runs, 0) - _numbers(below, heard[0], runs, 0)
        return below.signed(_about_zero(difference, fewest))


def _numbers(view: LevelView, messages: Messages, runs: int, user: int) -> Counts:
    """Of this user of every run, those of the coordinates that the victim moves."""
    clear = messages.clear[user :: len(messages.clear) // runs]
    return clear[:, view.coordinates].astype(np.int64)


def _about_zero(numbers: Counts, mechanism: Mechanism) -> Counts:
    """Modulo what the numbers are added up in."""
    half = 1 << (mechanism.clear_bits - 1)
    return (numbers + half) % (2 * half) - half
