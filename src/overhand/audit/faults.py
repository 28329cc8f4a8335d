"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, except with shared noise. Some are seen by the server, others by the
shuffling service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.audit.attacks import KNOWN_SEED, Attacker
from overhand.audit.cases import Deployment
from overhand.audit.listening import Listener
from overhand.mechanisms import Mechanism, Noise, NoisePart, PairsSum
from overhand.model import Counts, Floats, Messages, NoiseBy, Rows, Shuffled
from overhand.randomness import Random, restored_random, seeded_random

_DISTANCE = 1e-9  # what messages may leak that carry the noise of another level


class NoPermutation(Deployment):
    """Shufflers hand on the messages as they came."""

    def shuffle(self, mechanism: Mechanism, batches: Messages, random: Random) -> Shuffled:
        return Shuffled(*batches)


class SeededGenerator(Deployment):
    """Users draw from a generator with a seed that is known: the noise can be computed again."""

    def users_random(self, random: Random, attempt: int) -> Random:
        return seeded_random(KNOWN_SEED + attempt)


class SharedNoise(Deployment):
    """Users draw noise once, for all levels, and send its mirror image on every second one.

    As antithetic variates would, so that less noise is left when levels are combined. The noise
    of each batch alone has the right law, and is more than the plan asks for; but added up, the
    sums of two levels show the value without any. (Noise that is drawn once and sent with the
    same sign does not leak: a batch's sum is then that of the batches below it, and shows nothing
    that they did not.)
    """

    @classmethod
    def of(cls, right: Deployment) -> SharedNoise:
        """All levels with the noise of a user of the lowest: what is drawn once fits everywhere."""
        lowest = right.mechanisms[0]
        if not (lowest.values.is_scalar and lowest.values.is_whole):
            raise errors.InvalidValue(f"shared noise is planted for bits, not for {lowest.values}")
        fitted = [_with_noise(mechanism, lowest.noise_part) for mechanism in right.mechanisms]
        return cls(tuple(_mirrored(m) if level % 2 else m for level, m in enumerate(fitted)))

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        """Bits are not rounded: the noise is the first that every level draws."""
        state, lowest = random.state, self.mechanisms[0].encode_rows(rows, random)
        higher = [m.encode_rows(rows, restored_random(state)) for m in self.mechanisms[1:]]
        return [lowest, *higher]


def _with_noise(mechanism: Mechanism, noise: NoisePart) -> Mechanism:
    size, values, steps = mechanism.size, mechanism.values, mechanism.steps
    return mechanism.fitted(
        size, noise, honest=size, distance=_DISTANCE, values=values, steps=steps
    )


def _mirrored(mechanism: Mechanism) -> Mechanism:
    noise = Mirrored(mechanism.noise_part)
    return replace(mechanism, noise_part=noise)  # type: ignore[type-var]


@dataclass(frozen=True)
class Mirrored(NoisePart):
    """Noise that is symmetric about its mean, mirrored there: its law stays what it was."""

    noise: NoisePart

    def toss(self, random: Random, users: int) -> NDArray[np.uint8]:
        return self.noise.toss(random, users) ^ np.uint8(1)

    def draw(self, random: Random, count: int) -> Counts:
        return -self.noise.draw(random, count)

    def draw_sums(self, random: Random, users: int, count: int, *, exact: bool = True) -> Floats:
        return -self.noise.draw_sums(random, users, count, exact=exact)

    def law(self, users: int) -> Noise:
        return self.noise.law(users)

    @property
    def sampling_distance(self) -> float:
        return self.noise.sampling_distance

    def reduced(self, part: float, users: int) -> NoisePart:
        return Mirrored(self.noise.reduced(part, users))

    def entry(self) -> dict[str, Any]:
        return self.noise.entry()

    def __getattr__(self, name: str) -> Any:
        """What a mechanism knows of this noise alone, such as how many coins it has."""
        if name == "noise":  # on a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.noise, name)


class SeedUsedTwice(Deployment):
    """Every second user has the seed of the one before, as two copies of one process would."""

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        sent = super().encode(rows, random)
        return [
            masked_by(mechanism, messages, np.repeat(messages.sealed[::2], 2, axis=0))
            for mechanism, messages in zip(self.mechanisms, sent, strict=True)
        ]


def masked_by(mechanism: Mechanism, messages: Messages, seeds: NDArray[Any]) -> Messages:
    """The same numbers under the masks of other seeds: the server's sums stay what they were."""
    nothing = np.zeros_like(messages.clear)
    masks, others = (mechanism.own_steps(Messages(s, nothing)) for s in (messages.sealed, seeds))
    clear = messages.clear + (masks - others).astype(np.uint64)
    return Messages(seeds, clear & np.uint64(2**mechanism.clear_bits - 1))


class Unmasked(PairsSum):
    """Seeds expand to nothing, for users and the server alike."""

    def _stretched(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.zeros_like(super()._stretched(seeds))


def as_kind(kind: type[Mechanism], mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """The same parameters in mechanisms of this kind."""
    return tuple(kind.of_entry(m.entry(), m.noise_part, m.values) for m in mechanisms)


class ReleasedAgain(Deployment):
    """A user takes its report back, and its batches are released again with another in its place.

    Each release alone is as it should be; their sums differ by what two users sent.
    """

    def gathered(self, mechanism: Mechanism, messages: Messages, random: Random) -> Messages:
        runs = len(messages.sealed) // self.users
        return _twice(mechanism, messages, runs, random)


def _twice(mechanism: Mechanism, messages: Messages, runs: int, random: Random) -> Messages:
    """Every run's batches and, behind them, the first of them without its first user."""
    zeros = mechanism.values.opposites(np.zeros(runs, np.uint8))
    again = []
    for part, other in zip(messages, mechanism.encode_rows(zeros, random), strict=True):
        first = part.reshape(runs, -1, *part.shape[1:])[:, : mechanism.size].copy()
        first[:, 0] = other
        again.append(first.reshape(-1, *part.shape[1:]))
    both = messages.gathered(mechanism.size), Messages(*again).gathered(mechanism.size)
    return Messages(*(side_by_side(*parts, runs) for parts in zip(*both, strict=True)))


def side_by_side(batches: NDArray[Any], more: NDArray[Any], runs: int) -> NDArray[Any]:
    of_runs = [part.reshape(runs, len(part) // runs, *part.shape[1:]) for part in (batches, more)]
    return np.concatenate(of_runs, axis=1).reshape(len(batches) + len(more), *batches.shape[1:])


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, and how many levels it needs.

    `plain` faults show the value almost without noise: a tenth of the runs is enough. Some can be
    made in the shuffle model alone, others alone where two services add up what they have.

    >>> from overhand.mechanisms import Coins, CoinSum
    >>> from overhand.randomness import HALF
    >>> right = Deployment((CoinSum(8, Coins(4, HALF)),))
    >>> half = FAULTS[0].planted(right, right)
    >>> FAULTS[0].name, right.mechanisms[0].variance, half.mechanisms[0].variance
    ('half the noise', 8.0, 4.0)
    >>> [fault.name for fault in FAULTS if not fault.concerns(PairsSum)]
    ['no permutation']
    """

    name: str
    planted: Callable[[Deployment, Deployment], Deployment]
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
            noise_by in mechanism.noise_makers
            and self.in_shuffle_model in (None, mechanism.is_shuffle_model)
            and self.noise_by in (None, noise_by)
        )


def halved(mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """With half the variance of their noise."""
    return tuple(mechanism.reduced(0.5) for mechanism in mechanisms)


def plain_fault(name: str, deployment: type[Deployment], **fields: Any) -> Fault:
    """One that shows the value."""
    return Fault(name, lambda right, alone: deployment(right.mechanisms), plain=True, **fields)


FAULTS = (
    Fault(
        "half the noise",
        lambda right, alone: Deployment(halved(right.mechanisms)),
        noise_by=None,
    ),
    plain_fault("no permutation", NoPermutation, in_shuffle_model=True, noise_by=None),
    plain_fault("seeded generator", SeededGenerator),
    Fault("budget not split", lambda right, alone: alone, 2, noise_by=None),
    Fault("shared noise", lambda right, alone: SharedNoise.of(right), 2, True),
    plain_fault("sum off by one user", ReleasedAgain, least_levels=2, in_shuffle_model=False),
    Fault(
        "share not masked",
        lambda right, alone: Deployment(as_kind(Unmasked, right.mechanisms)),
        plain=True,
        in_shuffle_model=False,
        seen_by=Listener,
    ),
    plain_fault("seed used twice", SeedUsedTwice, in_shuffle_model=False, seen_by=Listener),
    plain_fault("known masks", SeededGenerator, in_shuffle_model=False, seen_by=Listener),
)
"""`alone` is the deployment whose levels each have the whole budget."""
