"""What is audited: what is shipped, as plans small enough, and the way from values to the server.

All levels that one user, the victim, takes part in are run together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from warnings import catch_warnings, simplefilter

import numpy as np

from overhand import errors
from overhand.mechanisms import MECHANISMS, Mechanism, published
from overhand.model import Counts, Messages, Privacy, Rows, Shuffled
from overhand.noise import ServiceNoise
from overhand.planning import Plan, Requirements, calibrate, with_best_laplace
from overhand.randomness import Random, seeded_random
from overhand.shuffle import shuffle, with_added
from overhand.tree import RegularTree
from overhand.values import Values

PUBLISHED = "published"
KINDS = (*MECHANISMS, PUBLISHED)
"""How values are sent: by ours, or with the constants of the papers."""
SERVICES_KINDS = tuple(kind for kind, one in MECHANISMS.items() if one.noise_by == "services")
"""Those to which the two services add the noise, on one level of blocks."""
VALUES = ("bit", "real", "histogram:3", "vector:2")
"""The kinds of values that a full audit goes through."""
LEAST_RUNS = 1000
"""Fewer show nothing."""

EXPECTED_BLOCKS = 125
"""A plan of the services is for so many times `size` users: its noise is correlated."""

_DEGREE = 2
_COARSE = 64.0  # how much more rounding may add than it usually may
_DEAR_MESSAGES = 1000  # if a run has more, fewer runs are affordable
_COARSE_MESSAGES = 10_000  # from here on values are rounded in few steps
_MOST_MESSAGES = 50_000  # of a run


@dataclass(frozen=True)
class Deployment:
    """One mechanism per level, lowest level first, and the steps between a value and the server.

    A planted fault is a subclass that gets one of these steps wrong.
    """

    mechanisms: tuple[Mechanism, ...]

    @property
    def messages(self) -> int:
        return messages_of(self.mechanisms)

    def randoms(self, random: Random, attempt: int) -> tuple[Random, Random]:
        """Where users and the shuffling service take their randomness from."""
        return random, random

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        """The messages of these users, level by level: fresh ones for every level."""
        return [m.encode_rows(rows, random) for m in self.mechanisms]

    def add(self, mechanism: Mechanism, batches: Messages, random: Random) -> Messages:
        """Every batch with what the shuffling service adds to it, if it does: first blocks all."""
        if mechanism.noise_by == "users":
            return batches
        (((noise,), _),) = draw_noise(mechanism, len(batches.sealed), random, 1)
        return with_added(batches, mechanism, noise)

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        """Every batch in an order of its own: what shufflers do."""
        return shuffle(batches, random, message_bits=mechanism.layout.message_bits)

    def send(self, rows: Rows, random: Random, attempt: int) -> list[Messages]:
        """What the shuffling service is sent at every level, user by user."""
        users, _ = self.randoms(random, attempt)
        return self.encode(rows, users)

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Shuffled]:
        """What the server sees of every level, before it adds noise of its own."""
        sent, (_, service) = self.send(rows, random, attempt), self.randoms(random, attempt)
        shown = []
        for mechanism, messages in zip(self.mechanisms, sent, strict=True):
            batches = messages.gather(mechanism.size)
            shown.append(self.shuffle(mechanism, self.add(mechanism, batches, service), random))
        return shown


class OneByOne(Deployment):
    """The same with every batch shuffled on its own, as the concurrent shuffle model has it."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        pairs = zip(*batches, strict=True)
        alone = (Messages(*(part[np.newaxis] for part in pair)) for pair in pairs)
        released = [shuffle(batch, random) for batch in alone]
        return Shuffled(*(np.concatenate(parts) for parts in zip(*released, strict=True)))


def draw_noise(
    mechanism: Mechanism, runs: int, random: Random, *parts: int
) -> Iterator[tuple[Counts, Counts]]:
    """One service's noise of so many blocks, and of so many after them: by block, run, coordinate.

    Every part of the blocks comes with the state after it.
    """
    share, dimension = mechanism.noise_share, mechanism.values.dimension
    assert isinstance(share, ServiceNoise)
    state = share.start(random, runs * dimension)
    for blocks in parts:
        noise, state = mechanism.advance_noise(state, random, blocks)
        yield noise.reshape(blocks, runs, dimension), state


def messages_of(mechanisms: Sequence[Mechanism]) -> int:
    """Those of all users of the highest batch, on all levels, and what is added to them."""
    return sum(
        mechanisms[-1].size // m.size * m.layout.messages_per_batch(m.size) for m in mechanisms
    )


def neighbours(mechanism: Mechanism, victim: int, runs: int) -> Rows:
    """Users of this many runs of the same batch: one holds `victim` (0 or 1), all others 0.

    0 and 1 stand for two values that are as far apart as possible.
    """
    bits = np.zeros((runs, mechanism.size), np.uint8)
    bits[:, 0] = victim
    return mechanism.values.opposites(bits.reshape(-1))


def moves(mechanism: Mechanism, reports: int = 1) -> dict[int, int]:
    """The coordinates that the victim moves with this many reports, and by how many steps.

    These are at the ends of their intervals, where rounding is not random.
    """
    low, high = _steps(mechanism, mechanism.values.opposites(np.array([0, 1], np.uint8)))
    change = high - low
    whole = np.flatnonzero(np.abs(change) == mechanism.quantizer.coordinate_steps)
    return {int(j): reports * int(change[j]) for j in whole}


def base(mechanism: Mechanism) -> Counts:
    """The sums of the steps if the victim holds 0, as all others do: exact where it moves them."""
    return np.asarray(_steps(mechanism, neighbours(mechanism, 0, 1)).sum(axis=0))


def _steps(mechanism: Mechanism, rows: Rows) -> Counts:
    steps = mechanism.quantizer.to_steps(rows, seeded_random(0)).astype(np.int64)
    return np.asarray(steps.reshape(len(rows), -1))


@dataclass(frozen=True)
class Case:
    """A plan for a guarantee: batches of `size` users on the lowest of this many levels.

    Of the services there is one level, of blocks as the best plan has them.
    """

    kind: str
    values: Values
    levels: int
    size: int
    privacy: Privacy
    reports: int = 1
    """Of one person, who may choose where they go, if a service lies."""

    @property
    def name(self) -> str:
        levels = f", {self.levels} levels" if self.levels > 1 else ""
        return f"{self.kind}, {self.values}{levels}"

    @property
    def is_of_services(self) -> bool:
        return self.kind in SERVICES_KINDS

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """With the least noise that an accountant certifies, or as published."""
        if self.is_of_services:
            return self._blocks.mechanisms
        if self.kind == PUBLISHED:
            share = self.privacy.share(self.levels)
            return tuple(published(self.values, size, share) for size in self._tree.sizes)
        fine = self._calibrate()
        return fine if messages_of(fine) <= _COARSE_MESSAGES else self._calibrate(_COARSE)

    def _calibrate(self, coarseness: float = 1.0) -> tuple[Mechanism, ...]:
        """Every level has the same noise: Laplace noise, if these values can be sent with it."""
        choices = MECHANISMS[self.kind].noise_choices(self.values)
        choice = min(choices, key=lambda one: one.laplace is None)
        terms = Requirements(
            self.privacy, reports=self.reports, values=self.values, noise_choice=choice,
            coarseness=coarseness,
        )  # fmt: skip
        terms = with_best_laplace(terms, self.levels)
        return calibrate(self._tree.sizes, [1.0] * self.levels, terms)

    @cached_property
    def _blocks(self) -> Plan:
        with catch_warnings():
            simplefilter("ignore", errors.WeakDelta)  # a small delta could not be audited
            return Plan.best(
                EXPECTED_BLOCKS * self.size, 1, self.privacy, values=self.values,
                mechanism=self.kind, reports=self.reports,
            )  # fmt: skip

    @property
    def _tree(self) -> RegularTree:
        degrees = (self.size, *[_DEGREE] * (self.levels - 1))
        return RegularTree(self.size * int(_DEGREE ** (self.levels - 1)), degrees)

    @property
    def is_affordable(self) -> bool:
        """Whether there are so few messages that they can be sent at all."""
        return messages_of(self.mechanisms) <= _MOST_MESSAGES

    def plan(self) -> Plan:
        """A plan as all others are."""
        if self.is_of_services:
            return self._blocks
        return Plan(self._tree, self.mechanisms, self.privacy, self.levels, reports=self.reports)

    def deployment(self) -> Deployment:
        """What is to be audited, if the accountant has certified it."""
        if self.plan().delta_spent > self.privacy.delta:
            raise errors.Infeasible(f"{self.name}: no certificate for {self.privacy}")
        return Deployment(self.mechanisms)

    def unsplit_deployment(self) -> Deployment:
        """Every level with the whole budget."""
        alone = [replace(self, levels=1, size=size) for size in self._tree.sizes]
        return Deployment(tuple(case.deployment().mechanisms[0] for case in alone))


def can_send(kind: str, values: Values) -> bool:
    """Whether there is such a mechanism."""
    return kind == PUBLISHED or bool(MECHANISMS[kind].noise_choices(values))


def affordable_runs(runs: int, messages: int) -> int:
    """Fewer runs where each has very many messages."""
    most = runs * _DEAR_MESSAGES // messages
    return max(min(runs, LEAST_RUNS), min(runs, most))
