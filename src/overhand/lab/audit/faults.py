"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, except with shared noise. Some are made by users or shufflers, others
by a shuffling service that makes noise; some are seen by the server, others by the shuffling
service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.lab.audit.attacks import KNOWN_SEED, Attacker, Listener
from overhand.lab.audit.cases import Deployment
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import Counts, Floats, Messages, NoiseBy, Rows, Shuffled
from overhand.noise import NoiseShare, ServiceNoise
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


class ReleasedAgain(Deployment):
    """A user takes its report back, and its batches are released again with another in its place.

    Each release alone is as it should be; their sums differ by what two users sent.
    """

    def gather(self, mechanism: Mechanism, messages: Messages, random: Random) -> Messages:
        """Every run's batches and, behind them, the first of them without its first user."""
        runs = len(messages.sealed) // self.users
        zeros = mechanism.values.opposites(np.zeros(runs, np.uint8))
        again = []
        for part, other in zip(messages, mechanism.encode_rows(zeros, random), strict=True):
            first = part.reshape(runs, -1, *part.shape[1:])[:, : mechanism.size].copy()
            first[:, 0] = other
            again.append(first.reshape(-1, *part.shape[1:]))
        both = messages.gather(mechanism.size), Messages(*again).gather(mechanism.size)
        return Messages(*(_join_runs(*parts, runs) for parts in zip(*both, strict=True)))


def _join_runs(batches: NDArray[Any], more: NDArray[Any], runs: int) -> NDArray[Any]:
    of_runs = [part.reshape(runs, len(part) // runs, *part.shape[1:]) for part in (batches, more)]
    return np.concatenate(of_runs, axis=1).reshape(len(batches) + len(more), *batches.shape[1:])


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

    def concerns(self, mechanism: Mechanism | type[Mechanism], noise_by: NoiseBy = "users") -> bool:
        """Whether it is a fault of this mechanism, if these make the noise."""
        return (
            noise_by in mechanism.noise_contributors
            and self.in_shuffle_model in (None, mechanism.is_shuffle_model)
            and self.noise_by in (None, noise_by)
        )


def halve_noise(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """With half the variance of their noise."""
    return tuple(mechanism.reduce(0.5) for mechanism in mechanisms)


def _plain_fault(name: str, deployment: type[Deployment], **fields: Any) -> Fault:
    """One that shows the value."""
    return Fault(name, lambda right, alone: deployment(right.mechanisms), plain=True, **fields)


@dataclass(frozen=True)
class Silent(ServiceNoise):
    """Noise of this law that is forgotten: 0 is drawn."""

    def draw(self, random: Random, count: int) -> Counts:
        return np.zeros(count, np.int64)


def without_noise(mechanism: Mechanism) -> Mechanism:
    """The same if no service adds noise: of its dummies, half are in no bucket."""
    part = mechanism.noise_share
    assert isinstance(part, ServiceNoise)
    return replace(mechanism, noise_share=Silent(part.part, part.bound))


@dataclass(frozen=True)
class Repeated(ServiceNoise):
    """The last of this many draws is the first again, of one number each."""

    every: int = 1

    def draw(self, random: Random, count: int) -> Counts:
        drawn = super().draw(random, count)
        drawn[self.every - 1 :: self.every] = drawn[:: self.every]
        return drawn


def _send_stock_twice(right: Deployment, alone: Deployment) -> Deployment:
    """The last batch of a level, in every run, has the dummies of the first."""
    mechanisms = []
    for mechanism in right.mechanisms:
        part = mechanism.noise_share
        assert isinstance(part, ServiceNoise)
        again = Repeated(part.part, part.bound, right.users // mechanism.size)
        mechanisms.append(replace(mechanism, noise_share=again))
    return Deployment(tuple(mechanisms))


class SeededService(Deployment):
    """The shuffling service draws from a generator with a seed that is known."""

    def service_random(self, random: Random, attempt: int) -> Random:
        return seeded_random(KNOWN_SEED + attempt)


class FrozenTwice(Deployment):
    """A release is lost before it is kept, and made again with other noise: two of one batch."""

    def gather(self, mechanism: Mechanism, messages: Messages, random: Random) -> Messages:
        batches, runs = messages.gather(mechanism.size), len(messages.sealed) // self.users
        each = self.users // mechanism.size
        return Messages(*(_join_runs(part, part[::each], runs) for part in batches))


class DummiesLast(Deployment):
    """Users' messages are permuted, and dummies come behind them."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        users = mechanism.size * mechanism.layout.messages_per_user
        sealed, dummies = batches.sealed[:, :users], batches.sealed[:, users:]
        permuted = shuffle(Messages(sealed, batches.clear), random)
        return Shuffled(np.concatenate([permuted.sealed, dummies], axis=1), batches.clear)


FAULTS = (
    Fault(
        "half the noise",
        lambda right, alone: Deployment(halve_noise(right.mechanisms)),
        noise_by=None,
    ),
    _plain_fault("no permutation", NoPermutation, in_shuffle_model=True, noise_by=None),
    _plain_fault("seeded generator", SeededGenerator),
    Fault("budget not split", lambda right, alone: alone, 2, noise_by=None),
    Fault("shared noise", lambda right, alone: RepeatedNoise.of(right), 2, True),
    _plain_fault("sum off by one user", ReleasedAgain, least_levels=2, in_shuffle_model=False),
    Fault(
        "share not masked",
        lambda right, alone: Deployment(as_kind(Unmasked, right.mechanisms)),
        plain=True,
        in_shuffle_model=False,
        seen_by=Listener,
    ),
    _plain_fault("seed used twice", SeedUsedTwice, in_shuffle_model=False, seen_by=Listener),
    _plain_fault("known masks", SeededGenerator, in_shuffle_model=False, seen_by=Listener),
)
"""`alone` is the deployment whose levels each have the whole budget."""

SERVICE_FAULTS = (
    Fault(
        "no noise added",
        lambda right, alone: Deployment(tuple(map(without_noise, right.mechanisms))),
        plain=True,
        noise_by="services",
    ),
    _plain_fault("seeded service", SeededService, noise_by="services"),
    Fault("frozen twice", lambda right, alone: FrozenTwice(right.mechanisms), noise_by="services"),
    Fault("stock sent twice", _send_stock_twice, 2, plain=True, noise_by="services"),
    _plain_fault("dummies last", DummiesLast, in_shuffle_model=True, noise_by="services"),
)
"""None of them can be seen in estimates, which stay as good as planned or become better."""
