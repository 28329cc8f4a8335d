"""What an attacker would look at: a fixed family of statistics of what the server sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from overhand.accounting import SMALLEST_DELTA
from overhand.audit.cases import ONCE, Deployment, Placement, base, moves, neighbours
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
    "batches subtracted": "the victim's sums less those of the last batches of their levels",
    "batches added": "the likelihood ratios of both, as if they were of the same users",
    "publications added": "the likelihood ratios of all sums that the victim's messages were in",
    "wrapped": "which sums the server took for small ones that a lying service moved to the edge",
    "opened": "what a lying service opens with a key of its own",
    "unmasked": "the victim's numbers in the clear, as if they had no mask",
    "same mask": "these less the next user's, as if both had the same mask",
    "mask of two levels": "those of the second level less those of the first, likewise",
    "known mask": "the victim's less those of a generator with a known seed",
    "answer": "a local answer, along the line from the one value to the other",
}
"""All larger if the victim holds 1, if they tell anything.

The server sees sums; the shuffling service what is in the clear; the last is that of local
mechanisms.
"""

_OF_ORDER = ("position", "early", "together")
"""Where the order of messages tells nothing, these do not either."""
_OF_LEVELS = ("levels added", "levels subtracted", "batches subtracted")
_OF_SERVICES = ("batches added",)
"""Where the users' noise is the same in every release, a second one tells nothing."""

_MOST_LOSS = 40.0
"""The log-likelihood ratio of what is impossible under one of the inputs."""


def statistics_of(mechanisms: Sequence[Mechanism]) -> list[str]:
    """What the server looks at."""
    in_order = _OF_ORDER if all(m.is_shuffle_model for m in mechanisms) else ()
    between = _OF_LEVELS if len(mechanisms) > 1 else ()
    again = _OF_SERVICES if mechanisms[0].noise_by == "services" else ()
    return ["likelihood", *in_order, "seed", *between, *again]


class LevelView:
    """What an attacker makes of a level: of the coordinates that the victim's reports move."""

    def __init__(self, mechanism: Mechanism, reports: int = 1) -> None:
        moved = moves(mechanism, reports)
        self.mechanism = mechanism
        self.coordinates = list(moved)
        self._steps = np.array(list(moved.values()), np.int64)
        self._losses = [_losses(mechanism, *move) for move in moved.items()]

    def sums(self, batches: Shuffled) -> Counts:
        """By batch and moved coordinate."""
        return self.mechanism.step_sums(batches)[:, self.coordinates]

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
        size, each = self.mechanism.size, self.mechanism.messages_per_user
        reports = batches.sealed[:, : size * each].reshape(-1, each, *batches.sealed.shape[2:])
        clear = np.repeat(batches.clear, size, axis=0)
        steps = self.mechanism.own_steps(Messages(reports, clear))[:, self.coordinates]
        return self.toward(steps - self.at_zero).reshape(-1, size)

    @property
    def at_zero(self) -> Counts:
        """The steps of a user who holds 0."""
        return np.maximum(0, -self._steps)

    def toward(self, steps: Counts) -> Floats:
        """From -1, at what a sum is without the victim's 1, to 1, at what it is with it."""
        parts = (np.abs(steps) - np.abs(steps - self._steps)) / np.abs(self._steps)
        return np.asarray(parts.sum(axis=1))

    def signed(self, sums: Counts) -> Floats:
        """Sums, every coordinate turned so that the victim's 1 raises it by one."""
        return np.asarray((sums / self._steps).sum(axis=-1))


def _losses(mechanism: Mechanism, coordinate: int, steps: int) -> tuple[int, Floats]:
    """The log-likelihood ratio of a sum with the victim's 1 to one without, from a sum on."""
    law, reach = mechanism.hiding_noise(), 2 * abs(steps)
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

    placement: ClassVar[Placement] = ONCE

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._views = [LevelView(mechanism) for mechanism in deployment.mechanisms]
        self._guessed: tuple[tuple[int, int], list[Counts]] | None = None

    @property
    def names(self) -> list[str]:
        return statistics_of(self.mechanisms)

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
        """The statistics of this many runs in which the victim holds 0 or 1."""
        rows = neighbours(self.mechanisms[-1], victim, runs)
        transcript = self._deployment.transcript(rows, random, attempt)
        return self.statistics(transcript, runs, KNOWN_SEED + attempt)

    def statistics(self, transcript: Sequence[Shuffled], runs: int, seed: int) -> Floats:
        """A row for every statistic, a column for every run."""
        found = {name: np.zeros(runs) for name in self.names}
        seen = []
        guesses = self._guess(runs, seed)
        for level, view, guess in zip(transcript, self._views, guesses, strict=True):
            victims = _first_of_each_run(level, runs)
            sums = view.sums(victims)
            seen.append(view.signed(sums))
            likelihood = view.likelihood(sums)
            found["likelihood"] += likelihood
            found["seed"] += view.toward(sums - guess)
            if "position" in found:
                own = view.own(victims)
                half = own.shape[1] // 2
                found["position"] += own[:, 0]
                found["early"] += own[:, :half].sum(axis=1) - own[:, half:].sum(axis=1)
                found["together"] += own.sum(axis=1)
            if len(level.sealed) > runs:
                last = view.sums(_first_of_each_run(level, runs, len(level.sealed) // runs - 1))
                if "batches subtracted" in found:
                    found["batches subtracted"] += view.toward(sums - last)
                if "batches added" in found:
                    found["batches added"] += likelihood + view.likelihood(last)
        if self.levels > 1:
            between = self._between(transcript[0], *seen[:2])
            found["levels added"], found["levels subtracted"] = between
        return np.stack(list(found.values()))

    def _guess(self, runs: int, seed: int) -> list[Counts]:
        """The victim's sums if all noise came from a generator with this seed, in any order.

        The same for either input: so the last is kept.
        """
        if self._guessed is None or self._guessed[0] != (runs, seed):
            users, service = seeded_random(seed), seeded_random(seed)
            zeros = neighbours(self.mechanisms[-1], 0, runs)
            sums = []
            for view, messages in zip(
                self._views, self._deployment.encode(zeros, users), strict=True
            ):
                batches = messages.gathered(view.mechanism.size)
                whole = with_added(batches, view.mechanism, service)
                sums.append(view.sums(Shuffled(*_first_of_each_run(whole, runs))))
            self._guessed = (runs, seed), sums
        return self._guessed[1]

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
    """A user who holds either of two values as far apart as possible, and answers.

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
    placement: ClassVar[Placement] = ONCE
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
