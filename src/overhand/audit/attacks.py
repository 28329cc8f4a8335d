"""What an attacker would look at: a fixed family of statistics of what the server sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from overhand.accounting import SMALLEST_DELTA
from overhand.audit.cases import Deployment, base, moves, neighbours
from overhand.baselines import LocalSum, local_counter
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Messages, Privacy, Shuffled
from overhand.randomness import Random, seeded_random
from overhand.shufflers import with_added
from overhand.values import Values

KNOWN_SEED = 20230
"""A seed that an attacker tries: a fault has it, nothing that is shipped has any."""

STATISTICS = {
    "likelihood": "the likelihood ratio of the noisy sums, all levels together",
    "position": "the messages that would be the victim's if batches kept their order",
    "early": "the same of all reports, the first half of them less the second",
    "together": "the same of all reports, added up: what they would say if they stayed whole",
    "seed": "the sums less the noise of a generator with a known seed",
    "levels added": "the sums of the two lowest levels, added up",
    "levels subtracted": "the difference of the sums of the two lowest levels",
    "answer": "a local answer, along the line from the one value to the other",
}
"""All larger if the victim holds 1, if they tell anything.

Two need two levels; the last is that of local mechanisms.
"""

_MOST_LOSS = 40.0
"""The log-likelihood ratio of what is impossible under one of the inputs."""


def statistics_of(levels: int) -> list[str]:
    """The family for so many levels."""
    return list(STATISTICS)[: 7 if levels > 1 else 5]


class LevelView:
    """What an attacker makes of a level: of the coordinates that the victim moves."""

    def __init__(self, mechanism: Mechanism) -> None:
        moved = moves(mechanism)
        self._mechanism = mechanism
        self._coordinates = list(moved)
        self._steps = np.array(list(moved.values()), np.int64)
        self._losses = [_losses(mechanism, *move) for move in moved.items()]

    def sums(self, batches: Shuffled) -> Counts:
        """By batch and moved coordinate."""
        return self._mechanism.step_sums(batches)[:, self._coordinates]

    def likelihood(self, sums: Counts) -> Floats:
        """The log-likelihood ratio of the sums with the victim's 1 to those without."""
        ratios = [
            losses[np.clip(of_coordinate - first, 0, len(losses) - 1)]
            for (first, losses), of_coordinate in zip(self._losses, sums.T, strict=True)
        ]
        return np.asarray(np.sum(ratios, axis=0), np.float64)

    def own(self, batches: Shuffled) -> Floats:
        """By batch and place: how far toward a 1 the report is that would stand there.

        That is, if batches kept their order, or reports their messages.
        """
        size, each = self._mechanism.size, self._mechanism.messages_per_user
        reports = batches.sealed[:, : size * each].reshape(-1, each, *batches.sealed.shape[2:])
        clear = np.repeat(batches.clear, size, axis=0)
        steps = self._mechanism.own_steps(Messages(reports, clear))[:, self._coordinates]
        return self.toward(steps - np.maximum(0, -self._steps)).reshape(-1, size)

    def toward(self, steps: Counts) -> Floats:
        """From -1, at what a sum is without the victim's 1, to 1, at what it is with it."""
        parts = (np.abs(steps) - np.abs(steps - self._steps)) / np.abs(self._steps)
        return np.asarray(parts.sum(axis=1))

    def signed(self, sums: Counts) -> Floats:
        """Sums, every coordinate turned so that the victim's 1 raises it by one."""
        return np.asarray((sums / self._steps).sum(axis=-1))


def _losses(mechanism: Mechanism, coordinate: int, steps: int) -> tuple[int, Floats]:
    """The log-likelihood ratio of a sum with the victim's 1 to one without, from a sum on."""
    law, reach = mechanism.noise(), 2 * abs(steps)
    padded = np.pad(law.window.probabilities, reach)
    outcomes = np.arange(len(padded)) + law.window.first - reach
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(np.roll(padded, steps)) - np.log(padded)
    # Outside the window only the side tells.
    side = np.sign((outcomes - law.mean) * steps)
    losses = np.where(np.isnan(losses), side * _MOST_LOSS, losses)
    # What the sums have of the noise's mean is `offset`, and the rest is whole.
    first = int(outcomes[0]) + int(base(mechanism)[coordinate])
    return first + round(mechanism.offset - law.mean), np.clip(losses, -_MOST_LOSS, _MOST_LOSS)


class Attacker:
    """Knows the mechanisms, all other users' values, where the victim is, and one seed.

    >>> from overhand.audit import Case
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> attacker = Attacker(case.deployment())
    >>> zero, one = (attacker.play(victim, 1000, seeded_random(1), attempt=0) for victim in (0, 1))
    >>> bool(one[0].mean() > zero[0].mean())  # the sums tell something
    True
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._views = [LevelView(mechanism) for mechanism in deployment.mechanisms]

    @property
    def names(self) -> list[str]:
        return statistics_of(self.levels)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        return self._deployment.mechanisms

    @property
    def levels(self) -> int:
        return len(self._views)

    @property
    def messages(self) -> int:
        return self._deployment.messages

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """The statistics of so many runs in which the victim holds 0 or 1."""
        rows = neighbours(self.mechanisms[-1], victim, runs)
        transcript = self._deployment.transcript(rows, random, attempt)
        return self.statistics(transcript, KNOWN_SEED + attempt)

    def statistics(self, transcript: Sequence[Shuffled], seed: int) -> Floats:
        """A row for every statistic, a column for every run."""
        runs = len(transcript[-1].sealed)
        likelihood, position, early, together, seeded = np.zeros((5, runs))
        seen = []
        for level, view, guess in zip(
            transcript, self._views, self._guess(runs, seed), strict=True
        ):
            victims = _first_of_each_run(level, runs)
            sums = view.sums(victims)
            seen.append(view.signed(sums))
            likelihood += view.likelihood(sums)
            own = view.own(victims)
            half = own.shape[1] // 2
            position += own[:, 0]
            early += own[:, :half].sum(axis=1) - own[:, half:].sum(axis=1)
            together += own.sum(axis=1)
            seeded += view.toward(sums - view.sums(guess))
        between = self._between(transcript[0], *seen[:2]) if self.levels > 1 else ()
        return np.stack([likelihood, position, early, together, seeded, *between])

    def _guess(self, runs: int, seed: int) -> list[Shuffled]:
        """The victim's batches if users drew from a generator with this seed, in any order."""
        random = seeded_random(seed)
        sent = self._deployment.encode(neighbours(self.mechanisms[-1], 0, runs), random)
        return [
            Shuffled(*with_added(_first_of_each_run(messages.gathered(m.size), runs), m, random))
            for m, messages in zip(self.mechanisms, sent, strict=True)
        ]

    def _between(self, lowest: Shuffled, below: Floats, above: Floats) -> tuple[Floats, Floats]:
        """Noise that two levels share cancels in the sum or in the difference of their sums."""
        runs, (lower, upper) = len(above), self.mechanisms[:2]
        for batch in range(1, upper.size // lower.size):
            others = _first_of_each_run(lowest, runs, batch)
            below = below + self._views[0].signed(self._views[0].sums(others))
        return above + below, above - below


Batches = TypeVar("Batches", Messages, Shuffled)


def _first_of_each_run(batches: Batches, runs: int, place: int = 0) -> Batches:
    """One batch of every run: the first is the victim's."""
    return type(batches)(*(part[place :: len(part) // runs] for part in batches))


@dataclass(frozen=True)
class Answers:
    """A user who holds either of two values as far apart as two can be, and answers.

    One answer is all that the server sees of a user of a local mechanism.

    >>> from overhand.values import BITS
    >>> game = Answers.best(BITS, Privacy(1.0, 0.01))
    >>> zero, one = (game.play(bit, 1000, seeded_random(1), attempt=0).mean() for bit in (0, 1))
    >>> bool(zero < one)
    True
    """

    counter: LocalSum

    names: ClassVar[list[str]] = ["answer"]
    mechanisms: ClassVar[tuple[Mechanism, ...]] = ()
    levels: ClassVar[int] = 1

    @classmethod
    def best(cls, values: Values, privacy: Privacy) -> Answers:
        """Of the mechanism that is shipped for these values; they need no delta."""
        return cls(local_counter(1, replace(privacy, delta=SMALLEST_DELTA), values))

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
