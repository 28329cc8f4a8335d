"""What all blocks of a plan cost one user, if each of the two services makes the noise.

The noise of one service hides a user from the other one, and from everybody else. Correlated noise
is Gaussian: all blocks ever are together as hard to tell apart as N(mu, 1) and N(0, 1), whatever
was published before and however it was reacted to (`docs/correlated.md`). Independent noise is
accounted for like that of one batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from overhand.accounting.composition import spent_delta, spent_epsilon
from overhand.accounting.divergence import Level, gaussian_delta
from overhand.mechanisms import Mechanism
from overhand.model import Privacy
from overhand.noise import SERVICES

_UP = 1 + 1e-9
_HALVINGS = 60
_CHARGED_SHARE = 1 / 16  # of delta


def services_mu(mechanism: Mechanism, reports: int = 1) -> float | None:
    """The mu of all blocks together, for a person with so many reports; None if not Gaussian.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> round(services_mu(pairs), 4), round(services_mu(pairs, reports=2), 4)
    (0.2357, 0.4715)
    """
    shift = mechanism.quantizer.sensitivity.norm
    return mechanism.service_noise.mu(reports * shift)


def services_delta(mechanism: Mechanism, reports: int, privacy: Privacy) -> float:
    """The certificate: a bound on the delta that all blocks of one user spend at this epsilon.

    What is spent at a smaller epsilon is spent at this one, too: see `usable_privacy`.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> f"{services_delta(pairs, reports=1, privacy=Privacy(1.0, 1e-6)):.2g}"
    '9.2e-07'
    """
    usable = usable_privacy(mechanism, reports, privacy)
    return min(_spent_delta(mechanism, reports, one) for one in {privacy, usable})


def _spent_delta(mechanism: Mechanism, reports: int, privacy: Privacy) -> float:
    charged = charged_delta(mechanism, reports, privacy.epsilon)
    mu = services_mu(mechanism, reports)
    if mu is None:
        return spent_delta([_level(mechanism, reports, contributors=1)], privacy) + charged
    return gaussian_delta(mu, privacy.epsilon) * _UP + charged


def usable_privacy(mechanism: Mechanism, reports: int, privacy: Privacy) -> Privacy:
    """The guarantee, or one of a smaller epsilon, at which little of delta is charged.

    What is charged grows with e^epsilon: so an epsilon that is very large gives no more.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> usable = [usable_privacy(pairs, 1, Privacy(epsilon, 1e-6)) for epsilon in (1.0, 30.0)]
    >>> [round(privacy.epsilon, 1) for privacy in usable]
    [1.0, 10.4]
    """
    far = _distance(mechanism, reports)
    most = math.log(_CHARGED_SHARE * privacy.delta / far) if far > 0 else math.inf
    return privacy if most >= privacy.epsilon or most <= 0 else replace(privacy, epsilon=most)


def outside_epsilon(mechanism: Mechanism, reports: int, privacy: Privacy) -> float:
    """The epsilon that holds, at the same delta, against everybody but the two services.

    They see nothing but sums with both noises. For correlated noise, that these two are at most
    half as telling as one (mu / sqrt(2)) is proved for noise that is not rounded; with rounding it
    was checked, not proved.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> round(outside_epsilon(pairs, reports=1, privacy=Privacy(1.0, 1e-6)), 2)
    0.69
    """
    privacy = usable_privacy(mechanism, reports, privacy)
    mu = services_mu(mechanism, reports)
    if mu is None:
        left = privacy.delta - SERVICES * charged_delta(mechanism, reports, privacy.epsilon)
        if left <= 0:
            return privacy.epsilon
        both_levels = [_level(mechanism, reports, contributors=SERVICES)]
        return spent_epsilon(both_levels, replace(privacy, delta=left))
    both, low, high = mu / math.sqrt(SERVICES), 0.0, privacy.epsilon
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spent = gaussian_delta(both, middle) * _UP
        spent += SERVICES * charged_delta(mechanism, reports, middle)
        low, high = (low, middle) if spent <= privacy.delta else (middle, high)
    return high


def charged_delta(mechanism: Mechanism, reports: int, epsilon: float) -> float:
    """The part of delta for everything in which blocks are not quite what the theorem is about.

    Noise that is drawn from tables and kept in a state of whole numbers; and noise that is clipped,
    in any of all blocks that there may be, since a lying service may choose the user's after it has
    seen those before.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> f"{charged_delta(pairs, reports=1, epsilon=1.0):.1g}"
    '7e-12'
    """
    return (1 + math.exp(epsilon)) * _distance(mechanism, reports)


def _distance(mechanism: Mechanism, reports: int) -> float:
    noise, moved = mechanism.service_noise, mechanism.quantizer.sensitivity.counts
    far = noise.state_distance(mechanism.values.dimension)
    far += reports * moved * noise.sampling_distance
    if mechanism.has_view_distance:
        far += noise.cap * mechanism.view_distance(1)
    return far


def _level(mechanism: Mechanism, reports: int, contributors: int) -> Level:
    return Level(mechanism.noise(contributors), reports, mechanism.quantizer.sensitivity)
