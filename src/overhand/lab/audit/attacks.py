"""What an attacker would look at: a fixed family of statistics of what is seen.

The server sees batches; the shuffling service sees numbers in the clear, and who sent them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overhand.accounting import SMALLEST_DELTA
from overhand.lab.audit.audit import Claim, Game, loss_of
from overhand.lab.audit.cases import Deployment, base, moves, neighbours
from overhand.lab.baselines import LocalSum, local_counter
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Messages, Privacy, Shuffled
from overhand.randomness import Random, seeded_random
from overhand.values import Values

KNOWN_SEED = 20230
"""A seed that an attacker tries: a fault has it, nothing that is shipped has any."""

NOTHING = Privacy(1e-6, 1e-12)
"""What numbers in the clear may tell: they are uniform, whatever the values."""

STATISTICS = {
    "likelihood": "the likelihood ratio of the noisy sums, all levels together",
    "position": "the messages that would be the victim's if batches kept their order",
    "early": "the same of all reports, the first half of them less the second",
    "together": "the same of all reports, added up: what they would say if they stayed whole",
    "seed": "the sums less the noise of a generator with a known seed",
    "levels added": "the sums of the two lowest levels, added up",
    "levels subtracted": "the difference of the sums of the two lowest levels",
    "batches subtracted": "the victim's sums less those of the last batches of their levels",
    "filtered": "sums of blocks from the victim's on, as the best test of such noise has them",
    "block": "the sum of the victim's block alone",
    "running sum": "that of all blocks together: what errors depend on",
    "state": "filtered sums, and what a state that leaked lacks to what they make of it",
    "state alone": "the latter alone",
    "lattice": "the stored bits of a state: which of two values is nearer to a lattice point",
    "coarse lattice": "the same, as if all draws lacked their last bits",
    "asked again": "what a service adds when it is asked twice, added up",
    "subsets subtracted": "what it adds for two subsets of a block, the one less the other",
    "publications added": "all sums that the victim's messages were in, less what is known",
    "wrapped": "which sums the server took for small ones that a lying service moved to the edge",
    "opened": "what a lying service opens with a key of its own",
    "unmasked": "the victim's numbers in the clear, as if they had no mask",
    "same mask": "these less the next user's, as if both had the same mask",
    "known mask": "the victim's less those of a generator with a known seed",
    "answer": "a local answer, along the line from the one value to the other",
}
"""All larger if the victim holds 1, if they tell anything.

The server sees sums; the shuffling service what is in the clear; the last is that of local
mechanisms.
"""

_MOST_LOSS = 40.0
"""The log-likelihood ratio of what is impossible under one of the inputs."""


def statistics_of(mechanisms: Sequence[Mechanism]) -> list[str]:
    """What the server looks at: not at order that tells nothing, nor twice at the same noise."""
    names = ["likelihood", "seed"]
    if all(m.is_shuffle_model for m in mechanisms):
        names[1:1] = "position", "early", "together"
    if len(mechanisms) > 1:
        names += "levels added", "levels subtracted", "batches subtracted"
    return names


class LevelView:
    """What an attacker makes of a level: of the coordinates that the victim's reports move."""

    def __init__(self, mechanism: Mechanism) -> None:
        moved = moves(mechanism)
        self.mechanism = mechanism
        self.coordinates = list(moved)
        self._steps = np.array(list(moved.values()), np.int64)
        self._losses = [loss_of(mechanism, steps) for steps in moved.values()]
        # What the sums have of the noise's mean is `offset`, and the rest is whole.
        mean = round(mechanism.offset - mechanism.honest_noise().mean)
        self._starts = [
            loss.first + mean + int(base(mechanism)[j])
            for j, loss in zip(moved, self._losses, strict=True)
        ]

    def sums(self, batches: Shuffled, runs: int) -> Counts:
        """By run, batch of it, and moved coordinate; the first batch is the victim's."""
        moved = self.mechanism.step_sums(batches)[:, self.coordinates]
        return moved.reshape(runs, -1, len(self.coordinates))

    def likelihood(self, sums: Counts) -> Floats:
        """The log-likelihood ratio of the sums with the victim's 1 to those without."""
        total = np.zeros(len(sums))
        for start, loss, of_one in zip(self._starts, self._losses, sums.T, strict=True):
            ratios = np.clip(loss.losses, -_MOST_LOSS, _MOST_LOSS)
            total += ratios[np.clip(of_one - start, 0, len(ratios) - 1)]
        return total

    def own_leans(self, batches: Shuffled, runs: int) -> Floats:
        """By run and place in the victim's batch: how far the report there leans toward a 1.

        That is, if batches kept their order, or reports their messages.
        """
        sealed, clear = (part[:: len(part) // runs] for part in batches)
        size, each = self.mechanism.size, self.mechanism.layout.messages_per_user
        reports = sealed[:, : size * each].reshape(-1, each, *sealed.shape[2:])
        sent = Messages(reports, np.repeat(clear, size, axis=0))
        return self.own_lean(sent).reshape(-1, size)

    def own_lean(self, sent: Messages) -> Floats:
        """How far users, of whom it is known what they sent, lean toward a 1."""
        return self.lean(self.mechanism.own_steps(sent)[:, self.coordinates] - self.at_zero)

    @property
    def at_zero(self) -> Counts:
        """The steps of a user who holds 0."""
        return np.maximum(0, -self._steps)

    def lean(self, steps: Counts) -> Floats:
        """From -1, at what a sum is without the victim's 1, to 1, at what it is with it."""
        parts = (np.abs(steps) - np.abs(steps - self._steps)) / np.abs(self._steps)
        return np.asarray(parts.sum(axis=1))

    def align(self, sums: Counts) -> Floats:
        """Sums, every coordinate turned so that the victim's 1 raises it by one."""
        return np.asarray((sums / self._steps).sum(axis=-1))


class _Watcher(Game):
    """Looks at every level of a deployment, in each of which the victim is once."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._views = [LevelView(mechanism) for mechanism in deployment.mechanisms]

    @property
    def levels(self) -> int:
        return len(self._views)

    @property
    def messages(self) -> int:
        return self._deployment.messages


class Attacker(_Watcher):
    """Knows the mechanisms, all other users' values, where the victim is, and one seed."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.names = statistics_of(deployment.mechanisms)
        self._guessed: tuple[tuple[int, int], list[Counts]] | None = None

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Those of the services' blocks are looked at elsewhere, all blocks together."""
        return tuple(m for m in self._deployment.mechanisms if m.noise_by == "users")

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        rows = neighbours(self._deployment.mechanisms[-1], victim, runs)
        transcript = self._deployment.transcript(rows, random, attempt)
        return self.statistics(transcript, runs, KNOWN_SEED + attempt)

    def statistics(self, transcript: Sequence[Shuffled], runs: int, seed: int) -> Floats:
        """A row for every statistic, a column for every run."""
        found = {name: np.zeros(runs) for name in self.names}
        seen = []
        guesses = self._guess(runs, seed)
        for level, view, guess in zip(transcript, self._views, guesses, strict=True):
            by_run = view.sums(level, runs)
            seen.append(view.align(by_run))
            victims, last = by_run[:, 0], by_run[:, -1]
            found["likelihood"] += view.likelihood(victims)
            found["seed"] += view.lean(victims - guess)
            if "position" in found:
                own = view.own_leans(level, runs)
                half = own.shape[1] // 2
                found["position"] += own[:, 0]
                found["early"] += own[:, :half].sum(axis=1) - own[:, half:].sum(axis=1)
                found["together"] += own.sum(axis=1)
            if "batches subtracted" in found and by_run.shape[1] > 1:
                found["batches subtracted"] += view.lean(victims - last)
        if self.levels > 1:
            # Noise that two levels share cancels in the sum or in the difference of their sums.
            lower, upper = self._deployment.mechanisms[:2]
            below = seen[0][:, : upper.size // lower.size].sum(axis=1)
            above = seen[1][:, 0]
            found["levels added"], found["levels subtracted"] = above + below, above - below
        return np.stack(list(found.values()))

    def _guess(self, runs: int, seed: int) -> list[Counts]:
        """The victim's sums if all noise came from a generator with this seed, in any order.

        The same for either input: so the last is kept.
        """
        if self._guessed is None or self._guessed[0] != (runs, seed):
            users, service = seeded_random(seed), seeded_random(seed)
            zeros = neighbours(self._deployment.mechanisms[-1], 0, runs)
            sums = []
            sent = self._deployment.encode(zeros, users)
            for view, messages in zip(self._views, sent, strict=True):
                batches = messages.gather(view.mechanism.size)
                whole = self._deployment.add(view.mechanism, batches, service)
                sums.append(view.sums(Shuffled(*whole), runs)[:, 0])
            self._guessed = (runs, seed), sums
        return self._guessed[1]


@dataclass(frozen=True)
class Answers(Game):
    """A user who holds either of two values as far apart as possible, and answers.

    One answer is all that the server sees of a user of a local mechanism.
    """

    counter: LocalSum

    names = ["answer"]

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


class Listener(_Watcher):
    """The shuffling service: it knows who sent what, and all values but the victim's.

    It cannot open what is sealed; what it is told in the clear must mean nothing.
    """

    names = ["unmasked", "same mask", "known mask"]
    claim = Claim(NOTHING)

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        (mechanism,), (view,) = self._deployment.mechanisms, self._views
        (heard,) = self._deployment.send(neighbours(mechanism, victim, runs), random, attempt)
        known = seeded_random(KNOWN_SEED + attempt)
        (guessed,) = self._deployment.encode(neighbours(mechanism, 0, runs), known)
        (own, other, *_), (known_own, *_) = (
            messages.clear.reshape(runs, mechanism.size, -1)[:, :, view.coordinates]
            .astype(np.int64).swapaxes(0, 1)
            for messages in (heard, guessed)
        )  # fmt: skip
        leans = [
            view.lean(about_zero(own, mechanism) - view.at_zero),
            view.lean(about_zero(own - other, mechanism)),
            view.lean(about_zero(own - known_own, mechanism)),
        ]
        return np.stack(leans)


def about_zero(numbers: Counts, mechanism: Mechanism) -> Counts:
    """Modulo what the numbers are added up in."""
    half = 1 << (mechanism.layout.clear_bits - 1)
    return (numbers + half) % (2 * half) - half
