"""What all batches of one user cost together.

At the release of a batch, given all that was shown before, its count is a function of the
transcript and of the other users, plus the victim's value, plus noise that nothing shown before
depends on. So the victim's view is an adaptive composition of additive-noise mechanisms, one per
level, whatever the batches share and however others react to what is published.

A person with many reports may have them in one batch of a level or in many. Under log-concave
noise the worst is known: moving a count by a + 1 and another by b - 1, where a + 1 >= b, is never
harder to see than moving them by a and b (the proof is in `docs/accounting.md`). So all reports
are in one batch or, if it is too small for them, in as few as can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.accounting.divergence import profile
from overhand.mechanisms import Noise
from overhand.model import Change, Floats, Privacy

SMALLEST_DELTA = 1e-12
"""Below this, rounding in the transforms is no longer small compared with delta."""

ROUNDING = 1e-14
"""Added to every composed delta: more than the rounding of sums and transforms can take away."""

MOST_REPORTS = 1000
"""How many reports of one person are accounted for."""

_TAIL = 1e-17
_SPLITS = 12  # ways to divide reports into those that move counts up and those that move them down
_NEXT_TO_NOTHING = math.log(1e-9)
_SEARCH_STEPS = 500
_CERTIFICATE_STEPS = 5000
_MOST_STEPS = 1 << 26  # of a grid of losses: more would fill memory


@dataclass(frozen=True)
class Level:
    """One participation of a user: the distribution of its batch's noise.

    `change` is how another value of the user can change the batch, `reports` how many values one
    person may hold among the users of the plan, and `leak` how far one count of a batch is, in
    total variation, from being shown as its law says. A batch holds at most `size` reports, if
    given.

    What it costs that one person may report twice:

    >>> from overhand.mechanisms import CoinSum
    >>> noise = CoinSum.with_variance(size=1000, variance=60.0).noise()
    >>> for reports in (1, 2):
    ...     print(f"{certified_delta([Level(noise, reports)], epsilon=0.5):.1e}")
    1.4e-06
    3.2e-03
    """

    law: Noise
    reports: int = 1
    change: Change = Change(largest=1)
    leak: float = 0.0
    size: int | None = None

    @property
    def placement(self) -> dict[int, int]:
        """Where one person's reports cost most: how many of them are in how many batches each.

        >>> from overhand.mechanisms import CoinSum
        >>> noise = CoinSum.with_variance(size=8, variance=60.0).noise()
        >>> Level(noise, reports=20).placement, Level(noise, reports=20, size=8).placement
        ({20: 1}, {8: 2, 4: 1})
        """
        most = self.reports if self.size is None else min(self.reports, self.size)
        full, rest = divmod(self.reports, most)
        return {most: full, rest: 1} if rest else {most: full}

    @property
    def both_ways(self) -> bool:
        """Whether one person may move some counts up and others down."""
        return self.reports > 1 or self.change.coordinates > 1


def check_delta(privacy: Privacy) -> None:
    """Refuse a delta for which floating-point transforms are not precise enough.

    >>> check_delta(Privacy(1.0, 1e-13))
    Traceback (most recent call last):
    overhand.errors.Infeasible: delta=1e-13 is below 1e-12, where composed privacy losses ...
    """
    if privacy.delta < SMALLEST_DELTA:
        raise errors.Infeasible(
            f"delta={privacy.delta:g} is below {SMALLEST_DELTA:g}, where composed privacy losses "
            "cannot be trusted"
        )


def search_delta(levels: Sequence[Level], epsilon: float) -> float:
    """The composed delta on a coarse grid, by one transform per distinct level."""
    step = epsilon / _SEARCH_STEPS
    runs = _runs(levels)
    curves = [_curves(move, step) for move in runs]
    counts = list(runs.values())
    directions = 1 if all(curve.symmetric for curve in curves) else 2
    worst = 0.0
    for direction in range(directions):
        masses = [_connect_dots(curve.deltas[direction], step) for curve in curves]
        lowest = sum(curve.first * count for curve, count in zip(curves, counts, strict=True))
        loss, infinite = _convolved(masses, counts)
        first = max(0, math.floor(epsilon / step) + 1 - lowest)
        beyond = (np.arange(first, len(loss)) + lowest) * step
        seen = -(np.expm1(np.minimum(0.0, epsilon - beyond)) * loss[first:]).sum()
        worst = max(worst, infinite + float(seen))
    return worst + ROUNDING


def certified_delta(levels: Sequence[Level], epsilon: float) -> float:
    """dp-accounting's pessimistic estimate of the delta that all levels spend together.

    A second level with the same noise takes far more than as much again:

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=30.0).noise())
    >>> [f"{certified_delta([level] * count, epsilon=1.0):.1e}" for count in (1, 2)]
    ['2.6e-11', '3.3e-06']
    """
    # Imported here because it takes most of a second, which a search does not need.
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    step = epsilon / _CERTIFICATE_STEPS
    runs = _runs(levels)
    if _is_bare(runs, step):
        return 1.0
    composed: Any = None
    for move, count in runs.items():
        curve = _curves(move, step)
        up, down = (
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
                step, curve.first, curve.first + len(deltas) - 1, deltas
            )
            for deltas in curve.deltas
        )
        loss = privacy_loss_distribution.PrivacyLossDistribution(
            up, None if curve.symmetric else down
        )
        if count > 1:
            loss = loss.self_compose(count)
        composed = loss if composed is None else composed.compose(loss)
    return float(composed.get_delta_for_epsilon(epsilon)) + ROUNDING


def _is_bare(runs: Mapping[_Move, int], step: float) -> bool:
    """Whether almost nothing is hidden: then dp-accounting has no finite loss to compose."""
    hidden = 0.0
    for move, count in runs.items():
        seen = max(float(deltas[-1]) for deltas in _curves(move, step).deltas)
        hidden += count * math.log1p(-seen) if seen < 1 else -math.inf
    return hidden < _NEXT_TO_NOTHING


def advanced_share(privacy: Privacy, levels: int) -> Privacy:
    """What each of `levels` mechanisms may cost under advanced composition.

    (e0, d0) each gives sqrt(2 k ln(1/d')) e0 + k e0 (e^e0 - 1) at delta k d0 + d' (Dwork,
    Rothblum and Vadhan 2010; the footnote of Section 1 abbreviates it), with d' = delta / 2.
    For few levels simple composition allows more, and is used instead.

    At 4 levels it is the share of simple composition, which at 100 would be 0.01:

    >>> [round(advanced_share(Privacy(1.0, 1e-6), levels).epsilon, 3) for levels in (4, 100)]
    [0.25, 0.018]
    """
    from scipy.optimize import brentq

    slack = privacy.delta / 2

    def total(epsilon: float) -> float:
        root = math.sqrt(2 * levels * math.log(1 / slack))
        return root * epsilon + levels * epsilon * math.expm1(epsilon)

    most = max(1.0, math.log1p(privacy.epsilon))  # there e0 (e^e0 - 1) alone is above epsilon
    epsilon = float(brentq(lambda e: total(e) - privacy.epsilon, 0.0, most))
    simple = privacy.share(levels)
    return simple if simple.epsilon >= epsilon else Privacy(epsilon, slack / levels)


class _Move(NamedTuple):
    """What one person's reports in one batch do to a count."""

    law: Noise
    reports: int
    largest: int
    both_ways: bool


@dataclass(frozen=True)
class _Curves:
    """Privacy profiles of a move, up and down, at the epsilons first * step, ... ."""

    first: int
    deltas: tuple[Floats, Floats]
    symmetric: bool


def _runs(levels: Sequence[Level]) -> dict[_Move, int]:
    """The distinct moves, and how many counts are moved so, at all levels together."""
    if not levels:
        raise errors.InvalidValue("a guarantee needs at least one level")
    if any(level.change.norm is not None for level in levels):
        raise errors.InvalidValue("changes that are bounded in norm are not counted one by one")
    runs: dict[_Move, int] = {}
    for level in levels:
        law, change = level.law, level.change
        # Under skewed noise all ways to divide reports are bounded as if a batch held them all.
        placement = level.placement if law.is_symmetric else {level.reports: 1}
        for reports, batches in placement.items():
            move = _Move(law, reports, change.largest, level.both_ways)
            runs[move] = runs.get(move, 0) + batches * change.coordinates
    return runs


@lru_cache(maxsize=64)
def _curves(move: _Move, step: float) -> _Curves:
    """The largest profile over all that the reports can do, in whichever direction.

    A pointwise maximum of profiles is a profile and dominates each of them, so composing it is
    sound, whichever way each of the counts moves, if they can move both ways.
    """
    law, shift = move.law, move.reports * move.largest
    last = math.ceil(_reach(law, shift) / step) + 1
    if last > _MOST_STEPS:
        raise errors.Infeasible(
            f"losses of up to {last * step:.3g} cannot be composed in steps of {step:.3g}: epsilon "
            "is too small for so little noise"
        )
    epsilons = np.arange(-last, last + 1, dtype=np.float64) * step
    if law.is_symmetric or not move.both_ways:
        return _Curves(-last, profile(law, shift, epsilons), law.is_symmetric)
    worst = np.maximum.reduce(
        [
            _both_ways(law, ups * move.largest, downs * move.largest, epsilons, step)
            for ups, downs in _splits(move.reports)
        ]
    )
    return _Curves(-last, (worst, worst), True)


def _reach(law: Noise, shift: int) -> float:
    """A loss that a change by `shift` exceeds with probability at most about 1e-17."""
    probabilities = law.window.probabilities
    tail = np.cumsum(probabilities[::-1])[::-1]
    up = max(shift, int(np.searchsorted(-tail, -_TAIL)) - 1)
    head = np.cumsum(probabilities)
    down = min(len(head) - 1 - shift, int(np.searchsorted(head, _TAIL)) + 1)
    if up >= len(head) or down < 0 or down + shift >= len(head):
        # Too little noise for any finite loss to be likely: the whole window counts.
        finite = probabilities[probabilities > 0]
        return float(np.log(finite.max()) - np.log(finite.min()))
    losses = (
        math.log(probabilities[up - shift] / probabilities[up]),
        math.log(probabilities[down + shift] / probabilities[down]),
    )
    return max(*losses, 1e-6)


def _splits(reports: int) -> Iterator[tuple[int, int]]:
    """How many reports move counts up and how many down, at most: no division exceeds all of them.

    Up to 12 reports it is every division. Of more, up to a twelfth more are looked at.
    """
    if reports <= _SPLITS:
        yield from ((ups, reports - ups) for ups in range(reports + 1))
    else:
        for part in range(1, _SPLITS + 1):
            yield -(-reports * part // _SPLITS), -(-reports * (_SPLITS + 1 - part) // _SPLITS)


def _both_ways(law: Noise, up: int, down: int, epsilons: Floats, step: float) -> Floats:
    """The profile when one count of a level moves up, and that of another batch down."""
    if not (up and down):
        return profile(law, up or down, epsilons)[0 if up else 1]
    moves = profile(law, up, epsilons)[0], profile(law, down, epsilons)[1]
    loss, infinite = _convolved([_connect_dots(deltas, step) for deltas in moves], [1, 1])
    grid = np.arange(len(loss), dtype=np.float64) * step + 2 * float(epsilons[0])
    return _deltas_of(loss, grid, infinite, epsilons)


def _connect_dots(deltas: Floats, step: float) -> tuple[Floats, float]:
    """Losses on the grid whose profile is the chord through the given points: never below it.

    (Doroshenko et al. 2022, "Connect the Dots", Algorithm 1.) Also the mass at infinity.
    """
    rise = math.expm1(step)
    change = np.diff(deltas)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + change[0] / rise
    masses[1:-1] = (change[1:] - (1 + rise) * change[:-1]) / rise
    masses[-1] = change[-1] / math.expm1(-step)
    return np.maximum(masses, 0.0), float(deltas[-1])


def _convolved(
    masses: Sequence[tuple[Floats, float]], counts: Sequence[int]
) -> tuple[Floats, float]:
    """The losses of all mechanisms together, each run `counts` times, and the mass at infinity."""
    from scipy.fft import irfft, next_fast_len, rfft

    length = sum((len(m) - 1) * count for (m, _), count in zip(masses, counts, strict=True)) + 1
    size = next_fast_len(length, real=True)
    product = np.ones(size // 2 + 1, np.complex128)
    finite = 0.0
    for (mass, infinite), count in zip(masses, counts, strict=True):
        product *= rfft(mass, size) ** count
        finite += count * (math.log1p(-infinite) if infinite < 1 else -math.inf)
    loss = np.maximum(irfft(product, size)[:length], 0.0)
    return loss, -math.expm1(finite)


def _deltas_of(loss: Floats, grid: Floats, infinite: float, epsilons: Floats) -> Floats:
    """The profile of a discrete privacy loss at many epsilons."""
    at = np.searchsorted(grid, epsilons, side="right")
    mass = np.concatenate([np.cumsum(loss[::-1])[::-1], [0.0]])
    damped = np.concatenate([np.cumsum((loss * np.exp(-grid))[::-1])[::-1], [0.0]])
    return np.asarray(np.clip(infinite + mass[at] - np.exp(epsilons) * damped[at], 0.0, 1.0))
