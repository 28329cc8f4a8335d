"""What all blocks of a plan cost one user, if each of the two services makes the noise.

The noise of one service hides a user from the other one, and from everybody else. Correlated noise
is Gaussian: all blocks ever are together as hard to tell apart as N(mu, 1) and N(0, 1), whatever
was published before and however it was reacted to (`docs/correlated.md`). Independent noise is
accounted for like that of one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from overhand.accounting.composition import spent_delta, spent_epsilon
from overhand.accounting.divergence import Level, gaussian_delta
from overhand.mechanisms import Mechanism
from overhand.model import Privacy
from overhand.noise import SERVICES

_UP = 1 + 1e-9
_HALVINGS = 60
_CHARGED_SHARE = 1 / 16  # of delta


@dataclass(frozen=True)
class BlocksGuarantee:
    """What all blocks together spend of a guarantee for a person with so many reports.

    >>> from overhand.mechanisms import PairsSum
    >>> from overhand.noise import CorrelatedNoise
    >>> noise = CorrelatedNoise.of(deviation=8.9, blocks=40_000)
    >>> pairs = PairsSum.with_noise(25, noise, honest=25, distance=1e-12)
    >>> blocks = BlocksGuarantee(pairs, reports=1, privacy=Privacy(1.0, 1e-6))
    >>> round(blocks.mu, 4), f"{blocks.spent_delta:.2g}", f"{blocks.charged_delta(1.0):.1g}"
    (0.2357, '9.2e-07', '7e-12')
    >>> round(blocks.outside_epsilon, 2)
    0.69
    >>> round(replace(blocks, privacy=Privacy(30.0, 1e-6)).usable.epsilon, 1)
    10.4
    """

    mechanism: Mechanism
    reports: int
    privacy: Privacy

    @property
    def mu(self) -> float | None:
        """That of all blocks together; None if their noise is not Gaussian."""
        shift = self.mechanism.quantizer.sensitivity.norm
        return self.mechanism.service_noise.mu(self.reports * shift)

    @property
    def spent_delta(self) -> float:
        """The certificate: a bound on the delta that all blocks of one user spend at this epsilon.

        What is spent at a smaller epsilon is spent at this one, too: see `usable`.
        """
        return min(self._spend(privacy) for privacy in {self.privacy, self.usable})

    def _spend(self, privacy: Privacy) -> float:
        charged, mu = self.charged_delta(privacy.epsilon), self.mu
        if mu is None:
            return spent_delta([self._level(contributors=1)], privacy) + charged
        return gaussian_delta(mu, privacy.epsilon) * _UP + charged

    @property
    def usable(self) -> Privacy:
        """The guarantee, or one of a smaller epsilon, at which little of delta is charged.

        What is charged grows with e^epsilon: so an epsilon that is very large gives no more.
        """
        far, privacy = self._distance, self.privacy
        most = math.log(_CHARGED_SHARE * privacy.delta / far) if far > 0 else math.inf
        return privacy if most >= privacy.epsilon or most <= 0 else replace(privacy, epsilon=most)

    @property
    def outside_epsilon(self) -> float:
        """The epsilon that holds, at the same delta, against everybody but the two services.

        They see nothing but sums with both noises. For correlated noise, that these two are at most
        half as telling as one (mu / sqrt(2)) is proved for noise that is not rounded; with rounding
        it was checked, not proved.
        """
        privacy, mu = self.usable, self.mu
        if mu is None:
            left = privacy.delta - SERVICES * self.charged_delta(privacy.epsilon)
            if left <= 0:
                return privacy.epsilon
            both_levels = [self._level(contributors=SERVICES)]
            return spent_epsilon(both_levels, replace(privacy, delta=left))
        both, low, high = mu / math.sqrt(SERVICES), 0.0, privacy.epsilon
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            spent = gaussian_delta(both, middle) * _UP + SERVICES * self.charged_delta(middle)
            low, high = (low, middle) if spent <= privacy.delta else (middle, high)
        return high

    def charged_delta(self, epsilon: float) -> float:
        """The part of delta for all in which blocks are not quite what the theorem is about.

        Noise that is drawn from tables and kept in a state of whole numbers; and noise that is
        clipped, in any of all blocks that there may be, since a lying service may choose the user's
        after it has seen those before.
        """
        return (1 + math.exp(epsilon)) * self._distance

    @cached_property
    def _distance(self) -> float:
        mechanism, noise = self.mechanism, self.mechanism.service_noise
        far = noise.state_distance(mechanism.values.dimension)
        far += self.reports * mechanism.quantizer.sensitivity.counts * noise.sampling_distance
        if mechanism.has_view_distance:
            far += noise.cap * mechanism.view_distance(1)
        return far

    def _level(self, contributors: int) -> Level:
        sensitivity = self.mechanism.quantizer.sensitivity
        return Level(self.mechanism.noise(contributors), self.reports, sensitivity)
