"""Planted faults: deployments that get one step wrong, for the audit to catch.

Each is a mistake that a person could make and that estimates do not show: they stay unbiased, and
as good as planned or better, but for shared noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from overhand import errors
from overhand.audit.deployment import KNOWN_SEED, Deployment, Rows, value_slots
from overhand.mechanisms import Coins, CoinSum, Polya, SharesSum, UserNoise
from overhand.plan.levels import AnyMechanism
from overhand.randomness import Random, restored_random, seeded_random


def thinned(mechanism: AnyMechanism, part: float) -> AnyMechanism:
    """The mechanism with this part of its noise's variance.

    >>> from overhand.randomness import HALF
    >>> mechanism = CoinSum(8, noise_bits=4, noise_probability=HALF)
    >>> mechanism.variance, round(thinned(mechanism, 0.25).variance, 2)
    (8.0, 2.0)
    """
    noise, size = mechanism.user_noise, mechanism.size
    variance = part * mechanism.noise().variance
    if isinstance(noise, Coins) and not noise.opposed:
        fewer: UserNoise = replace(noise, bits=max(1, round(part * noise.bits)))
    elif isinstance(noise, Coins):
        fewer = Coins.with_variance(size, variance)
    else:
        fewer = Polya.with_variance(noise.users, variance * noise.users / size, shape=noise.shape)
    if isinstance(mechanism, SharesSum):
        return replace(mechanism, user_noise=fewer)
    assert isinstance(fewer, Coins)
    return CoinSum.of(size, fewer, mechanism.values, mechanism.steps)


class NoPermutation(Deployment):
    """Shufflers hand on the messages as they came."""

    def shuffle(self, mechanism: AnyMechanism, batches: Rows, random: Random) -> Rows:
        return batches


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

    def encode(self, rows: Rows, random: Random) -> list[Rows]:
        state, sent = random.state, []
        for level, mechanism in enumerate(self.mechanisms):
            again = random if level == 0 else restored_random(state)
            messages = mechanism.encode_rows(rows, again)
            sent.append(_mirrored(mechanism, rows, messages) if level % 2 else messages)
        return sent


def _mirrored(mechanism: AnyMechanism, rows: Rows, messages: Rows) -> Rows:
    """The messages of scalar values, with every coin turned or the noise's sign changed."""
    if isinstance(mechanism, CoinSum):
        turned = messages ^ 1
        slots = value_slots(mechanism, 0)
        turned[:, slots] = messages[:, slots]
        return turned
    # Minus (value + noise), plus the value twice.
    turned = np.negative(messages)
    turned[:, 0] += 2 * rows.astype(np.uint64)
    return turned & np.uint64(mechanism.modulus - 1)


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, and how many levels it needs.

    `plain` faults show the value almost without noise: a tenth of the runs is enough.

    >>> from overhand.randomness import HALF
    >>> right = Deployment((CoinSum(8, noise_bits=4, noise_probability=HALF),))
    >>> half = FAULTS[0].planted(right, right)
    >>> FAULTS[0].name, right.mechanisms[0].variance, half.mechanisms[0].variance
    ('half the noise', 8.0, 4.0)
    """

    name: str
    planted: Callable[[Deployment, Deployment], Deployment]
    least_levels: int = 1
    plain: bool = False


def _half_noise(right: Deployment, alone: Deployment) -> Deployment:
    return Deployment(tuple(thinned(m, 0.5) for m in right.mechanisms))


def _shared_noise(right: Deployment, alone: Deployment) -> Deployment:
    """All levels with the noise of a user of the lowest: what is drawn once fits everywhere."""
    lowest = right.mechanisms[0]
    if not (lowest.values.is_scalar and lowest.values.is_whole):
        raise errors.InvalidValue(f"shared noise is planted for bits, not for {lowest.values}")
    return SharedNoise(tuple(_with_noise_of(lowest, m) for m in right.mechanisms))


def _with_noise_of(lowest: AnyMechanism, mechanism: AnyMechanism) -> AnyMechanism:
    if isinstance(lowest, CoinSum):
        return CoinSum.of(mechanism.size, lowest.user_noise)
    assert isinstance(mechanism, SharesSum)
    # One modulus and as many shares, or the generator's words would not be the same ones.
    top = max(lowest.modulus_bits, mechanism.modulus_bits) + 2
    return replace(lowest, size=mechanism.size, honest=mechanism.honest, modulus_bits=top)


FAULTS = (
    Fault("half the noise", _half_noise),
    Fault("no permutation", lambda right, alone: NoPermutation(right.mechanisms), 1, True),
    Fault("seeded generator", lambda right, alone: SeededGenerator(right.mechanisms), 1, True),
    Fault("budget not split", lambda right, alone: Deployment(alone.mechanisms), 2),
    Fault("shared noise", _shared_noise, 2, True),
)
"""`alone` is the deployment whose levels each have the whole budget."""
