"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, except with shared noise. Some are seen by the server, others by the
shuffling service. Those of the services' noise are in `overhand.lab.audit.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.lab.audit.attacks import KNOWN_SEED, Attacker, Listener
from overhand.lab.audit.cases import Deployment
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import Counts, Floats, Messages, NoiseBy, Rows, Shuffled
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

    def users_random(self, random: Random, attempt: int) -> Random:
        return seeded_random(KNOWN_SEED + attempt)


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
        for level, right_one in enumerate(right.mechanisms):
            size, values, steps = right_one.size, right_one.values, right_one.steps
            shared = right_one.with_noise(
                size,
                lowest.noise_share,
                honest=size,
                distance=_DISTANCE,
                values=values,
                steps=steps,
            )
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

        def draw_sums(self, *asked: Any, exact: bool = True) -> Floats:
            return np.asarray(-super().draw_sums(*asked, exact=exact))

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


def as_kind(kind: type[Mechanism], mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """The same parameters in mechanisms of this kind."""
    return tuple(kind.of_entry(m.entry(), m.noise_share, m.values) for m in mechanisms)


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, and how many levels it needs.

    `plain` faults show the value almost without noise: a tenth of the runs is enough. Some can be
    made in the shuffle model alone, others alone where two services add up what they have.
    """

    name: str
    plant: Callable[[Deployment, Deployment], Deployment]
    least_levels: int = 1
    plain: bool = False
    in_shuffle_model: bool | None = None
    """Whether only there, or only outside of it; None for both."""
    seen_by: type[Attacker] | type[Listener] = Attacker
    noise_by: NoiseBy | None = "users"
    """Where it is planted: with whose noise; None for both."""

    def concerns(self, mechanism: type[Mechanism]) -> bool:
        """Whether it is a fault of this mechanism."""
        is_alike = self.in_shuffle_model in (None, mechanism.is_shuffle_model)
        return is_alike and self.noise_by in (None, mechanism.noise_by)


def halve_noise(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """With half the variance of their noise."""
    return tuple(mechanism.reduce(0.5) for mechanism in mechanisms)


def _plain_fault(name: str, deployment: type[Deployment], **fields: Any) -> Fault:
    """One that shows the value."""
    return Fault(name, lambda right, alone: deployment(right.mechanisms), plain=True, **fields)


_service_fault = partial(_plain_fault, noise_by="services")


class SeededService(Deployment):
    """The shuffling service draws from a generator with a seed that is known."""

    def service_random(self, random: Random, attempt: int) -> Random:
        return seeded_random(KNOWN_SEED + attempt)


class DummiesLast(Deployment):
    """Users' messages are permuted, and dummies come behind them."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        users = mechanism.size * mechanism.layout.messages_per_user
        sealed, dummies = batches.sealed[:, :users], batches.sealed[:, users:]
        permuted = shuffle(Messages(sealed, batches.clear), random)
        return Shuffled(np.concatenate([permuted.sealed, dummies], axis=1), batches.clear)


FAULTS = (
    Fault("half the noise", lambda right, alone: Deployment(halve_noise(right.mechanisms))),
    _plain_fault("no permutation", NoPermutation, in_shuffle_model=True, noise_by=None),
    _plain_fault("seeded generator", SeededGenerator),
    Fault("budget not split", lambda right, alone: alone, 2),
    Fault("shared noise", lambda right, alone: RepeatedNoise.of(right), 2, True),
    _service_fault("seeded service", SeededService),
    _service_fault("dummies last", DummiesLast, in_shuffle_model=True),
    Fault(
        "share not masked",
        lambda right, alone: Deployment(as_kind(Unmasked, right.mechanisms)),
        plain=True,
        in_shuffle_model=False,
        seen_by=Listener,
        noise_by="services",
    ),
    _service_fault("masks reused", SeedUsedTwice, in_shuffle_model=False, seen_by=Listener),
    _service_fault("known masks", SeededGenerator, in_shuffle_model=False, seen_by=Listener),
)
"""None can be seen in estimates. `alone` is the deployment whose levels each have all."""
