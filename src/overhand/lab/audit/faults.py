"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, except with shared noise. Some are seen by the server, others by the
shuffling service. Those of the services' noise are in `overhand.lab.audit.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.lab.audit.attacks import KNOWN_SEED, Attacker, Listener
from overhand.lab.audit.cases import Deployment
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import Counts, Messages, Rows, Shuffled
from overhand.noise import NoiseShare
from overhand.randomness import Random, restore_random, seeded_random
from overhand.shuffle import shuffle

_DISTANCE = 1e-9  # what messages may leak that carry the noise of another level


class NoPermutation(Deployment):
    """Shufflers hand on the messages as they came."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        return Shuffled(*batches)


class SeededGenerator(Deployment):
    """Users draw from a generator with a seed that is known: the noise can be computed again."""

    def randoms(self, random: Random, attempt: int) -> tuple[Random, Random]:
        return seeded_random(KNOWN_SEED + attempt), random


class RepeatedNoise(Deployment):
    """Users draw noise once, for all levels, and send its mirror image on every second one.

    As antithetic variates would, so that less noise is left when levels are combined. The noise
    of each batch alone has the right law, and is more than the plan asks for; but added up, the
    sums of two levels show the value without any. (Noise that is drawn once and sent with the
    same sign does not leak: a batch's sum is then that of the batches below it, and shows nothing
    that they did not.)
    """

    @classmethod
    def of(cls, right: Deployment) -> RepeatedNoise:
        """All levels with the noise of a user of the lowest: what is drawn once fits everywhere."""
        lowest = right.mechanisms[0]
        if not (lowest.values.is_scalar and lowest.values.is_whole):
            raise errors.InvalidValue(f"shared noise is planted for bits, not for {lowest.values}")
        mechanisms = []
        for level, one in enumerate(right.mechanisms):
            shared = one.with_noise(
                one.size, lowest.noise_share, honest=one.size, distance=_DISTANCE,
                values=one.values, steps=one.steps,
            )  # fmt: skip
            if level % 2:
                shared = replace(shared, noise_share=_mirror(shared.noise_share))
            mechanisms.append(shared)
        return cls(tuple(mechanisms))

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        """Bits are not rounded: the noise is the first that every level draws."""
        state, lowest = random.state, self.mechanisms[0].encode_rows(rows, random)
        higher = [m.encode_rows(rows, restore_random(state)) for m in self.mechanisms[1:]]
        return [lowest, *higher]


def _mirror(noise: NoiseShare) -> NoiseShare:
    """Noise that is symmetric about its mean, mirrored there: its law stays what it was."""

    class Mirrored(type(noise)):  # type: ignore[misc]
        def toss(self, random: Random, users: int) -> NDArray[np.uint8]:
            return np.asarray(super().toss(random, users) ^ np.uint8(1))

        def draw(self, random: Random, count: int) -> Counts:
            return np.asarray(-super().draw(random, count))

    return Mirrored(**vars(noise))


class SeedUsedTwice(Deployment):
    """Every second user has the seed of the one before, as two copies of one process would."""

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        sent = super().encode(rows, random)
        return [
            mask_with(mechanism, messages, np.repeat(messages.sealed[::2], 2, axis=0))
            for mechanism, messages in zip(self.mechanisms, sent, strict=True)
        ]


def mask_with(mechanism: Mechanism, messages: Messages, seeds: NDArray[Any]) -> Messages:
    """The same numbers under the masks of other seeds: the server's sums stay what they were."""
    nothing = np.zeros_like(messages.clear)
    masks, others = (mechanism.own_steps(Messages(s, nothing)) for s in (messages.sealed, seeds))
    clear = messages.clear + (masks - others).astype(np.uint64)
    return Messages(seeds, clear & np.uint64(2**mechanism.layout.clear_bits - 1))


class Unmasked(PairsSum):
    """Seeds expand to nothing, for users and the server alike."""

    def _stretch(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.zeros_like(super()._stretch(seeds))


def as_kind(kind: type[Mechanism], right: Mechanism) -> Mechanism:
    """The same parameters in a mechanism of this kind."""
    return kind.of_entry(right.entry(), right.noise_share, right.values)


class SeededService(Deployment):
    """The shuffling service draws from a generator with a seed that is known."""

    def randoms(self, random: Random, attempt: int) -> tuple[Random, Random]:
        return random, seeded_random(KNOWN_SEED + attempt)


class DummiesLast(Deployment):
    """Users' messages are permuted, and dummies come behind them."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        users = mechanism.size * mechanism.layout.messages_per_user
        sealed, dummies = batches.sealed[:, :users], batches.sealed[:, users:]
        permuted = shuffle(Messages(sealed, batches.clear), random)
        return Shuffled(np.concatenate([permuted.sealed, dummies], axis=1), batches.clear)


def halve(mechanism: Mechanism) -> Mechanism:
    """With half the variance of its noise."""
    return mechanism.reduce(0.5)


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, and how many levels it needs.

    `plain` faults show the value almost without noise: a tenth of the runs is enough.
    """

    name: str
    plant: Callable[[Deployment, Deployment], Deployment]
    least_levels: int = 1
    plain: bool = False
    concerns: Callable[[type[Mechanism]], bool] = lambda kind: kind.noise_by == "users"
    """Of which mechanisms it is a fault."""
    seen_by: type[Attacker] | type[Listener] = Attacker


def _is_masked(kind: type[Mechanism]) -> bool:
    return not kind.is_shuffle_model


def _plain_fault(
    name: str, deployment: Callable[[tuple[Mechanism, ...]], Deployment], **fields: Any
) -> Fault:
    """One that shows the value."""
    return Fault(name, lambda right, alone: deployment(right.mechanisms), plain=True, **fields)


_mask_fault = partial(_plain_fault, concerns=_is_masked, seen_by=Listener)

FAULTS = (
    Fault("half the noise", lambda right, alone: Deployment(tuple(map(halve, right.mechanisms)))),
    _plain_fault("no permutation", NoPermutation, concerns=lambda kind: kind.is_shuffle_model),
    _plain_fault("seeded generator", SeededGenerator),
    Fault("budget not split", lambda right, alone: alone, 2),
    Fault("shared noise", lambda right, alone: RepeatedNoise.of(right), 2, True),
    _plain_fault(
        "seeded service", SeededService, concerns=lambda kind: kind.noise_by == "services"
    ),
    _plain_fault("dummies last", DummiesLast, concerns=lambda kind: kind.adds_messages),
    _mask_fault(
        "share not masked", lambda right: Deployment(tuple(as_kind(Unmasked, m) for m in right))
    ),
    _mask_fault("masks reused", SeedUsedTwice),
    _mask_fault("known masks", SeededGenerator),
)
"""None can be seen in estimates. `alone` is the deployment whose levels each have all."""
