"""What runs can show: bounds that hold at every number of runs, and what to expect of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betainccinv, betaincinv

from overhand.accounting import shifted_pair
from overhand.audit.cases import ONCE, Placement, moves
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Privacy

_MOST_LOSS = 12.0
_STEPS = 3000
_HALVINGS = 10
_MOST_THRESHOLDS = 300


def least_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """Clopper and Pearson's bound: above the true probability at most this often.

    >>> float(least_probability(0, 10, 0.05)), float(least_probability(10, 10, 0.5).round(3))
    (0.0, 0.933)
    """
    x = np.asarray(successes, np.float64)
    bound = betaincinv(np.maximum(x, 1e-300), trials - x + 1, rate)
    return np.where(x <= 0, 0.0, bound)


def most_probability(successes: ArrayLike, trials: int, rate: float) -> Floats:
    """The other side: below the true probability at most this often.

    What never happened in 1,000 runs may still happen in 3 of 1,000:

    >>> float(most_probability(0, 1000, rate=0.05).round(4))
    0.003
    """
    x = np.asarray(successes, np.float64)
    bound = betainccinv(x + 1, np.maximum(trials - x, 1e-300), rate)
    return np.where(x >= trials, 1.0, bound)


def epsilon_shown(
    likely: ArrayLike, rare: ArrayLike, trials: int, *, delta: float, rate: float
) -> Any:
    """The epsilon that an event shows, wrong (too large) with probability at most `rate`.

    It happened `likely` times in `trials` runs on one input and `rare` times in as many on the
    other: P[E] <= e^epsilon Q[E] + delta leaves no smaller epsilon.

    >>> round(float(epsilon_shown(900, 100, 1000, delta=0.0, rate=1e-3)), 2)
    1.86
    """
    above = least_probability(likely, trials, rate / 2) - delta
    below = most_probability(rare, trials, rate / 2)
    return np.maximum(0.0, np.log(np.maximum(above, 1e-300) / below))


def largest_epsilon(trials: int, *, delta: float, rate: float) -> float:
    """The most that this many runs can show: an event that always happens, or never.

    >>> [round(largest_epsilon(trials, delta=0.01, rate=1e-3), 1) for trials in (1000, 60_000)]
    [4.9, 9.0]
    """
    return float(epsilon_shown(trials, 0, trials, delta=delta, rate=rate))


@dataclass(frozen=True)
class LossLaw:
    """The log-likelihood ratio of all levels together, on a grid: its law on both inputs.

    It is computed from the exact law of the noise: there is no sampling here. Two levels spend
    the whole epsilon, of which 60,000 runs can show a part:

    >>> from overhand.audit import Case
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=2, size=8, privacy=Privacy(1.0, 0.01))
    >>> law = LossLaw.of(case.deployment().mechanisms)
    >>> round(law.epsilon(delta=0.01), 2), round(law.shown(60_000, delta=0.01, rate=1e-3), 2)
    (1.0, 0.85)
    """

    losses: Floats
    one: Floats
    zero: Floats

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], placement: Placement = ONCE) -> LossLaw:
        one, zero = np.ones(1), np.ones(1)
        parts = 0
        for mechanism in mechanisms:
            for steps in [*moves(mechanism, placement.reports).values()] * placement.batches:
                pair = _on_grid(mechanism, steps)
                one, zero = _convolved(one, pair[0]), _convolved(zero, pair[1])
                parts += 1
        losses = np.linspace(-parts * _MOST_LOSS, parts * _MOST_LOSS, len(one))
        return cls(losses, np.maximum(one, 0.0), np.maximum(zero, 0.0))

    def epsilon(self, delta: float) -> float:
        """The epsilon that the levels truly have at this delta, to about the grid's step."""
        low, high = 0.0, float(self.losses[-1])
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._delta(middle) > delta else (low, middle)
        return high

    def _delta(self, epsilon: float) -> float:
        scale = math.exp(epsilon)
        up = np.maximum(self.one - scale * self.zero, 0.0).sum()
        down = np.maximum(self.zero - scale * self.one, 0.0).sum()
        return float(max(up, down))

    def shown(self, runs: int, *, delta: float, rate: float) -> float:
        """About the bound that this many runs reach, with the best event there is."""
        up = [np.cumsum(law[::-1])[::-1] for law in (self.one, self.zero)]
        down = [np.cumsum(law) for law in (self.zero, self.one)]
        bounds = []
        for likely, rare in (up, down):
            worth = np.flatnonzero((likely > delta) & (likely < 1))
            at = worth[:: 1 + len(worth) // _MOST_THRESHOLDS]
            often, seldom = np.floor(runs * likely[at]), np.ceil(runs * rare[at])
            bound = epsilon_shown(often, np.minimum(seldom, runs), runs, delta=delta, rate=rate)
            bounds.append(float(np.max(bound, initial=0.0)))
        return max(bounds)


def noticed_part(
    mechanisms: Sequence[Mechanism],
    claimed: Privacy,
    *,
    runs: int,
    rate: float,
    placement: Placement = ONCE,
) -> float:
    """The part of its variance down to which noise may be reduced without being noticed, about.

    With more runs, less noise that is missing is noticed:

    >>> from overhand.audit import Case
    >>> from overhand.values import BITS
    >>> case = Case("coins", BITS, levels=1, size=8, privacy=Privacy(1.0, 0.01))
    >>> mechanisms = case.deployment().mechanisms
    >>> for runs in (10_000, 1_000_000):
    ...     print(round(noticed_part(mechanisms, case.privacy, runs=runs, rate=1e-3), 2))
    0.52
    0.89
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        law = LossLaw.of([mechanism.reduced(middle) for mechanism in mechanisms], placement)
        seen = law.shown(runs, delta=claimed.delta, rate=rate) > claimed.epsilon
        low, high = (middle, high) if seen else (low, middle)
    return low


def _convolved(law: Floats, other: Floats) -> Floats:
    length = len(law) + len(other) - 1
    size = next_fast_len(length, real=True)
    return np.asarray(irfft(rfft(law, size) * rfft(other, size), size)[:length], np.float64)


def _on_grid(mechanism: Mechanism, steps: int) -> tuple[Floats, Floats]:
    """One count's likelihood ratio, with the victim's 1 and without."""
    moved, still = shifted_pair(mechanism.hiding_noise(), abs(steps))
    if steps < 0:
        moved, still = still, moved
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.nan_to_num(np.log(moved) - np.log(still), nan=0.0)
    at = np.rint(np.clip(losses, -_MOST_LOSS, _MOST_LOSS) / _MOST_LOSS * _STEPS).astype(int)
    one, zero = (
        np.asarray(np.bincount(at + _STEPS, weights=law, minlength=2 * _STEPS + 1), np.float64)
        for law in (moved, still)
    )
    return one, zero
