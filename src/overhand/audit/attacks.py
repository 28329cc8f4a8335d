"""What an attacker would look at: a fixed family of statistics of what the server sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overhand.audit.deployment import (
    KNOWN_SEED,
    Counts,
    Deployment,
    Rows,
    base,
    counts,
    moves,
    neighbours,
    value_slots,
)
from overhand.mechanisms import SharesSum
from overhand.plan.levels import AnyMechanism
from overhand.randomness import Random, seeded_random

Floats = NDArray[np.float64]

_MOST_LOSS = 40.0
"""The log-likelihood ratio of what is impossible under one of the inputs."""

STATISTICS = {
    "likelihood": "the likelihood ratio of the noisy sums, all levels together",
    "position": "the messages that would be the victim's if batches kept their order",
    "seed": "the sums less the noise of a generator with a known seed",
    "levels added": "the sums of the two lowest levels, added up",
    "levels subtracted": "the difference of the sums of the two lowest levels",
    "answer": "a local answer, along the line from the one value to the other",
}
"""All larger if the victim holds 1. Two need two levels; the last is that of local mechanisms."""


def statistics_of(levels: int) -> list[str]:
    """The family for so many levels."""
    return list(STATISTICS)[: 5 if levels > 1 else 3]


@dataclass(frozen=True)
class _Moved:
    """A coordinate of a level that the victim moves."""

    mechanism: AnyMechanism
    coordinate: int
    steps: int

    def counts(self, batches: Rows) -> Counts:
        return counts(self.mechanism, batches, self.coordinate)

    def own(self, batches: Rows) -> Counts:
        """The steps in the messages that come first."""
        m = self.mechanism
        first = batches[:, : m.messages_per_user]
        if not isinstance(m, SharesSum):
            slots = first[:, value_slots(m, self.coordinate)]
            return np.asarray((slots & 1).sum(axis=1, dtype=np.int64))
        sums = self.counts(first) % m.modulus
        return np.where(sums > m.modulus // 2, sums - m.modulus, sums)

    def toward(self, steps: Counts) -> Floats:
        """From -1, at what the sum is without the victim's 1, to 1, at what it is with it."""
        return (np.abs(steps) - np.abs(steps - self.steps)) / abs(self.steps)


class Attacker:
    """Knows the mechanisms, all other users' values, where the victim is, and one seed.

    >>> from overhand.audit import Case
    >>> from overhand.model import Privacy
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> attacker = Attacker(case.deployment())
    >>> zero, one = (attacker.play(victim, 1000, seeded_random(1), attempt=0) for victim in (0, 1))
    >>> bool((one.mean(axis=1) > zero.mean(axis=1)).all())  # every statistic tells something
    True
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._levels = [
            [_Moved(m, j, steps) for j, steps in moves(m).items()] for m in deployment.mechanisms
        ]
        self._losses = [[_losses(moved) for moved in level] for level in self._levels]

    @property
    def names(self) -> list[str]:
        return statistics_of(self.levels)

    @property
    def mechanisms(self) -> tuple[AnyMechanism, ...]:
        return self._deployment.mechanisms

    @property
    def levels(self) -> int:
        return len(self._levels)

    @property
    def messages(self) -> int:
        return self._deployment.messages

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """The statistics of so many runs in which the victim holds 0 or 1."""
        rows = neighbours(self.mechanisms[-1], victim, runs)
        transcript = self._deployment.transcript(rows, random, attempt)
        return self.statistics(transcript, KNOWN_SEED + attempt)

    def statistics(self, transcript: Sequence[Rows], seed: int) -> Floats:
        """A row for every statistic, a column for every run."""
        runs = len(transcript[0])
        guessed = self._guess(runs, seed)
        likelihood, position, seeded = np.zeros((3, runs))
        for index, level in enumerate(self._levels):
            victims = transcript[index][:, 0]
            for place, moved in enumerate(level):
                sums = moved.counts(victims)
                likelihood += _looked_up(self._losses[index][place], sums)
                position += moved.toward(moved.own(victims) - max(0, -moved.steps))
                seeded += moved.toward(sums - guessed[index][place])
        between = self._between(transcript) if len(self._levels) > 1 else []
        return np.stack([likelihood, position, seeded, *between])

    def _guess(self, runs: int, seed: int) -> list[list[Counts]]:
        """The sums of the victim's batches if users drew from a generator with this seed."""
        rows = neighbours(self._deployment.mechanisms[-1], 0, runs)
        sent = self._deployment.encode(rows, seeded_random(seed))
        guessed = []
        for mechanism, messages, level in zip(
            self._deployment.mechanisms, sent, self._levels, strict=True
        ):
            victims = mechanism.size * mechanism.messages_per_user
            batches = messages.reshape(runs, -1)[:, :victims]
            guessed.append([moved.counts(batches) for moved in level])
        return guessed

    def _between(self, transcript: Sequence[Rows]) -> list[Floats]:
        """Noise that two levels share cancels in the sum or in the difference of their sums."""
        lower, upper = self._deployment.mechanisms[:2]
        inside = upper.size // lower.size
        below = sum(self._signed(0, transcript[0][:, batch]) for batch in range(inside))
        above = self._signed(1, transcript[1][:, 0])
        return [above + below, above - below]

    def _signed(self, level: int, batches: Rows) -> Floats:
        """A batch's sum, every coordinate turned so that the victim's 1 raises it by one."""
        parts = [moved.counts(batches) / moved.steps for moved in self._levels[level]]
        return np.asarray(np.sum(parts, axis=0))


def _losses(moved: _Moved) -> tuple[int, Floats]:
    """The log-likelihood ratio of a sum with the victim's 1 to one without, from a sum on."""
    law, reach = moved.mechanism.noise(), 2 * abs(moved.steps)
    padded = np.pad(law.window.probabilities, reach)
    outcomes = np.arange(len(padded)) + law.window.first - reach
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(np.roll(padded, moved.steps)) - np.log(padded)
    # Outside the window only the side tells.
    side = np.sign((outcomes - law.mean) * moved.steps)
    losses = np.where(np.isnan(losses), side * _MOST_LOSS, losses)
    first = int(outcomes[0]) + base(moved.mechanism, moved.coordinate)
    if isinstance(moved.mechanism, SharesSum):
        first -= round(law.mean)  # shares carry noise less its mean, which is whole
    return first, np.clip(losses, -_MOST_LOSS, _MOST_LOSS)


def _looked_up(losses: tuple[int, Floats], sums: Counts) -> Floats:
    first, table = losses
    return np.asarray(table[np.clip(sums - first, 0, len(table) - 1)])
