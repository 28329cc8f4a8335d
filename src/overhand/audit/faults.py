"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, but for shared noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.audit.attacks import KNOWN_SEED
from overhand.audit.cases import Deployment
from overhand.mechanisms import Mechanism, Noise, UserNoise
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
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
    same sign is no leak: a batch's sum is then that of the batches below it, and shows nothing
    that they did not.)
    """

    @classmethod
    def of(cls, right: Deployment) -> SharedNoise:
        """All levels with the noise of a user of the lowest: what is drawn once fits everywhere."""
        lowest = right.mechanisms[0]
        if not (lowest.values.is_scalar and lowest.values.is_whole):
            raise errors.InvalidValue(f"shared noise is planted for bits, not for {lowest.values}")
        fitted = [_with_noise(mechanism, lowest.user_noise) for mechanism in right.mechanisms]
        return cls(tuple(_mirrored(m) if level % 2 else m for level, m in enumerate(fitted)))

    def encode(self, rows: Rows, random: Random) -> list[Messages]:
        """Bits are not rounded: the noise is the first that every level draws."""
        state, lowest = random.state, self.mechanisms[0].encode_rows(rows, random)
        higher = [m.encode_rows(rows, restored_random(state)) for m in self.mechanisms[1:]]
        return [lowest, *higher]


def _with_noise(mechanism: Mechanism, noise: UserNoise) -> Mechanism:
    size, values, steps = mechanism.size, mechanism.values, mechanism.steps
    return mechanism.fitted(
        size, noise, honest=size, distance=_DISTANCE, values=values, steps=steps
    )


def _mirrored(mechanism: Mechanism) -> Mechanism:
    noise = Mirrored(mechanism.user_noise)
    return replace(mechanism, user_noise=noise)  # type: ignore[type-var]


@dataclass(frozen=True)
class Mirrored(UserNoise):
    """Noise that is symmetric about its mean, mirrored there: its law stays what it was."""

    noise: UserNoise

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

    def reduced(self, part: float, users: int) -> UserNoise:
        return Mirrored(self.noise.reduced(part, users))

    def entry(self) -> dict[str, Any]:
        return self.noise.entry()

    def summary(self, users: int) -> dict[str, Any]:
        return self.noise.summary(users)

    def __getattr__(self, name: str) -> Any:
        """What a mechanism knows of this noise alone, such as how many coins it has."""
        if name == "noise":  # on a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.noise, name)


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, and how many levels it needs.

    `plain` faults show the value almost without noise: a tenth of the runs is enough.

    >>> from overhand.mechanisms import Coins, CoinSum
    >>> from overhand.randomness import HALF
    >>> right = Deployment((CoinSum(8, Coins(4, HALF)),))
    >>> half = FAULTS[0].planted(right, right)
    >>> FAULTS[0].name, right.mechanisms[0].variance, half.mechanisms[0].variance
    ('half the noise', 8.0, 4.0)
    """

    name: str
    planted: Callable[[Deployment, Deployment], Deployment]
    least_levels: int = 1
    plain: bool = False


def _half_noise(right: Deployment, alone: Deployment) -> Deployment:
    return Deployment(tuple(mechanism.reduced(0.5) for mechanism in right.mechanisms))


FAULTS = (
    Fault("half the noise", _half_noise),
    Fault("no permutation", lambda right, alone: NoPermutation(right.mechanisms), 1, True),
    Fault("seeded generator", lambda right, alone: SeededGenerator(right.mechanisms), 1, True),
    Fault("budget not split", lambda right, alone: alone, 2),
    Fault("shared noise", lambda right, alone: SharedNoise.of(right), 2, True),
)
"""`alone` is the deployment whose levels each have the whole budget."""
