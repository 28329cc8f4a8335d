"""Planted faults of a shuffling service that makes noise, for the server to see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from overhand.audit.attacks import KNOWN_SEED
from overhand.audit.cases import Deployment
from overhand.audit.faults import Fault, plain_fault, side_by_side
from overhand.mechanisms import Mechanism, ServiceNoise
from overhand.model import Counts, Messages, Shuffled
from overhand.randomness import Random, seeded_random
from overhand.shufflers import shuffle


@dataclass(frozen=True)
class Silent(ServiceNoise):
    """Noise of this law that is forgotten: 0 is drawn."""

    def draw(self, random: Random, count: int) -> Counts:
        return np.zeros(count, np.int64)


def without_noise(mechanism: Mechanism) -> Mechanism:
    """The same if no service adds noise: of its dummies, half are in no bucket.

    >>> from overhand.mechanisms import BallotSum, Polya
    >>> from overhand.values import BITS
    >>> noise = ServiceNoise(Polya(shape=1, users=1, ratio=0.5), bound=3)
    >>> mechanism = without_noise(BallotSum(8, noise, dummies=6, values=BITS))
    >>> mechanism.added(seeded_random(1)).sealed
    array([[0, 0, 0, 1, 1, 1]], dtype=uint8)
    """
    part = mechanism.noise_part
    assert isinstance(part, ServiceNoise)
    return replace(mechanism, noise_part=Silent(part.part, part.bound))  # type: ignore[type-var]


@dataclass(frozen=True)
class Repeated(ServiceNoise):
    """The last of this many draws is the first again, of one number each."""

    every: int = 1

    def draw(self, random: Random, count: int) -> Counts:
        drawn = super().draw(random, count)
        drawn[self.every - 1 :: self.every] = drawn[:: self.every]
        return drawn


def _stock_sent_twice(right: Deployment, alone: Deployment) -> Deployment:
    """The last batch of a level, in every run, has the dummies of the first."""
    mechanisms = []
    for mechanism in right.mechanisms:
        part = mechanism.noise_part
        assert isinstance(part, ServiceNoise)
        again = Repeated(part.part, part.bound, right.users // mechanism.size)
        mechanisms.append(replace(mechanism, noise_part=again))  # type: ignore[type-var]
    return Deployment(tuple(mechanisms))


class SeededService(Deployment):
    """The shuffling service draws from a generator with a seed that is known."""

    def service_random(self, random: Random, attempt: int) -> Random:
        return seeded_random(KNOWN_SEED + attempt)


class FrozenTwice(Deployment):
    """A release is lost before it is kept, and made again with other noise: two of one batch."""

    def gathered(self, mechanism: Mechanism, messages: Messages, random: Random) -> Messages:
        batches, runs = messages.gathered(mechanism.size), len(messages.sealed) // self.users
        each = self.users // mechanism.size
        return Messages(*(side_by_side(part, part[::each], runs) for part in batches))


class DummiesLast(Deployment):
    """Users' messages are permuted, and dummies come behind them."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        users = mechanism.size * mechanism.messages_per_user
        sealed, dummies = batches.sealed[:, :users], batches.sealed[:, users:]
        permuted = shuffle(Messages(sealed, batches.clear), random)
        return Shuffled(np.concatenate([permuted.sealed, dummies], axis=1), batches.clear)


def _silent(right: Deployment, alone: Deployment) -> Deployment:
    return Deployment(tuple(without_noise(mechanism) for mechanism in right.mechanisms))


SERVICE_FAULTS = (
    Fault("no noise added", _silent, plain=True, noise_by="services"),
    plain_fault("seeded service", SeededService, noise_by="services"),
    Fault(
        "frozen twice",
        lambda right, alone: FrozenTwice(right.mechanisms),
        noise_by="services",
    ),
    Fault("stock sent twice", _stock_sent_twice, 2, plain=True, noise_by="services"),
    plain_fault("dummies last", DummiesLast, in_shuffle_model=True, noise_by="services"),
)
"""None of them can be seen in estimates, which stay as good as planned or become better."""
