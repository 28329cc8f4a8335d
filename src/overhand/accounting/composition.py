"""`reference.composed_delta`, fast and certified: what all batches of one user cost together.

At the release of a batch, given all that was shown before, its count is a function of the
transcript and of the other users, plus the victim's value, plus noise that nothing shown before
depends on. So the victim's view is an adaptive composition of additive-noise mechanisms, one per
level, whatever the batches share and however others react to what is published.

A person with many reports may have them in one batch of a level or in many. Under log-concave
noise the worst is that all are in one batch or, if it is too small for them, in as few as can be
(the proof is in `docs/accounting.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.accounting.divergence import (
    ROUNDING,
    Level,
    check_delta,
    gaussian_delta,
    gaussian_mu,
    profile,
)
from overhand.accounting.domination import dominated_delta
from overhand.model import Floats, Privacy
from overhand.noise import Noise

_TAIL = 1e-17
_SPLITS = 12  # ways to divide reports into those that move counts up and those that move them down
_NEXT_TO_NOTHING = math.log(1e-9)
_SEARCH_STEPS = 500
_CERTIFICATE_STEPS = 5000
_MOST_STEPS = 1 << 26  # of a grid of losses: more would fill memory

_LEAST_PART = 1 / 8  # of an epsilon: to look for less takes ever finer grids
_CLOSE = 1.001
_PRECISION = 2e-5
_WIDEST_UP, _WIDEST_DOWN = math.log(4096.0), math.log(1e-6)
_A_LITTLE = 0.01
_BEYOND = 1.2  # of the way to where the guarantee should be met: a bracket ends behind it
_SECANTS = 6
_STRANGE = 64.0  # times as steep, or as flat, as for a Gaussian: no line to follow
_LEAST_STEP, _MOST_STEP = 2e-4, 0.5


def spent_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The certificate: a bound on the delta that all levels spend together at this epsilon.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> [spent_delta([level] * count, Privacy(1.0, 1e-6)) <= 1e-6 for count in (1, 2, 3)]
    [True, True, False]
    """
    return _delta(levels, privacy, certified_delta)


def quick_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """The same to about a thousandth, for searches.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> [f"{delta([level] * 2, Privacy(1.0, 1e-6)):.1e}" for delta in (spent_delta, quick_delta)]
    ['1.6e-07', '1.6e-07']
    """
    return _delta(levels, privacy, search_delta)


def _delta(
    levels: Sequence[Level],
    privacy: Privacy,
    composed_delta: Callable[[Sequence[Level], float], float],
) -> float:
    """What noise and leaks spend; changes that are bounded in norm are dominated, not composed."""
    if any(level.sensitivity.l2 is not None for level in levels):
        spent = dominated_delta(levels, privacy)
    else:
        spent = composed_delta(levels, privacy.epsilon)
    return spent + leaked_delta(levels, privacy.epsilon)


def spent_epsilon(levels: Sequence[Level], privacy: Privacy) -> float:
    """An epsilon at which levels that give a guarantee spend no more than its delta: certified.

    It is the least such epsilon to about a thousandth, down to a part of the guarantee's own; it is
    the guarantee's own if no other is found.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise())
    >>> epsilon = spent_epsilon([level] * 2, Privacy(1.0, 1e-6))
    >>> round(epsilon, 2), spent_delta([level] * 2, Privacy(epsilon, 1e-6)) <= 1e-6
    (0.92, True)
    """
    low, high = _LEAST_PART * privacy.epsilon, privacy.epsilon
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        is_enough = quick_delta(levels, replace(privacy, epsilon=middle)) <= privacy.delta
        low, high = (low, middle) if is_enough else (middle, high)
    while high < privacy.epsilon:
        if spent_delta(levels, replace(privacy, epsilon=high)) <= privacy.delta:
            return high
        high *= _CLOSE
    return privacy.epsilon


def leaked_delta(levels: Sequence[Level], epsilon: float) -> float:
    """The cost of counts that follow their laws only approximately.

    A count within eta of its law, on either of two neighbouring inputs, adds eta + e^epsilon eta;
    only counts that one person can move are concerned.

    >>> from overhand.mechanisms import CoinSum
    >>> level = Level(CoinSum.with_variance(size=1000, variance=40.0).noise(), view_distance=1e-9)
    >>> f"{leaked_delta([level] * 2, epsilon=1.0):.2e}"
    '7.44e-09'
    """
    leaks = (level.reports * level.sensitivity.counts * level.view_distance for level in levels)
    return (1 + math.exp(epsilon)) * math.fsum(leaks)


def least_scale(
    levels_at: Callable[[float], Sequence[Level]],
    privacy: Privacy,
    *,
    start: float,
    precision: float = _PRECISION,
) -> float:
    """The least scale of the noise at which the levels together give the guarantee.

    `levels_at(scale)` must hide more as the scale grows; `start`, usually the Gaussian limit,
    only saves time. Nothing is certified here: the grid is coarse.

    The least variance of three levels of coins; Gaussian noise needs 53.5:

    >>> from overhand.mechanisms import CoinSum
    >>> def levels_at(variance: float) -> list[Level]:
    ...     return [Level(CoinSum.with_variance(1000, variance).noise())] * 3
    >>> round(least_scale(levels_at, Privacy(1.0, 1e-6), start=53.5), 1)
    52.4
    """
    from scipy.optimize import brentq

    check_delta(privacy)
    seen: dict[float, float] = {}

    def excess(log_scale: float) -> float:
        if log_scale not in seen:
            found = quick_delta(levels_at(start * math.exp(log_scale)), privacy)
            seen[log_scale] = math.log(found / privacy.delta)
        return seen[log_scale]

    fall = _gaussian_fall(privacy)
    root = _secant(excess, fall, precision)
    if root is None:
        low, high = _bracket(excess, fall, privacy)
        root = low if low == high else float(brentq(excess, low, high, xtol=precision))
    return start * math.exp(root)


def _secant(excess: Callable[[float], float], fall: float, precision: float) -> float | None:
    """If ln delta is nearly linear, as it is for most noise, a few steps along the line suffice."""
    at, beyond = 0.0, excess(0.0)
    slope = fall
    for _ in range(_SECANTS):
        step = beyond / slope
        if abs(step) > _MOST_STEP:
            return None
        if abs(step) < precision:
            return at + step
        following = excess(at + step)
        slope = (beyond - following) / step
        if not fall / _STRANGE < slope < fall * _STRANGE:
            return None
        at, beyond = at + step, following
    return None


def _bracket(
    excess: Callable[[float], float], fall: float, privacy: Privacy
) -> tuple[float, float]:
    """Logarithms of scales, from 0 on, between which the guarantee is met first.

    Or the least that is tried, twice, if even that is enough.
    """
    at, is_up = 0.0, excess(0.0) > 0
    step = _BEYOND * abs(excess(0.0)) / fall
    step = min(_MOST_STEP, max(_LEAST_STEP, step))
    while True:
        following = min(_WIDEST_UP, at + step) if is_up else max(_WIDEST_DOWN, at - step)
        if (excess(following) > 0) != is_up:
            return min(at, following), max(at, following)
        if following == _WIDEST_UP:
            raise errors.Infeasible(
                f"no noise up to {math.exp(_WIDEST_UP):g} times the Gaussian limit gives {privacy}"
            )
        if following == _WIDEST_DOWN:
            return following, following
        at, step = following, 2 * step


def _gaussian_fall(privacy: Privacy) -> float:
    """By how much ln delta falls as the logarithm of a Gaussian's variance grows."""
    mu = gaussian_mu(privacy)
    less = gaussian_delta(mu * math.exp(-_A_LITTLE / 2), privacy.epsilon)
    return max(1.0, math.log(gaussian_delta(mu, privacy.epsilon) / less) / _A_LITTLE)


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
        loss, infinite = _convolve(masses, counts)
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
    if any(level.sensitivity.l2 is not None for level in levels):
        raise errors.InvalidValue("changes that are bounded in norm are not counted one by one")
    runs: dict[_Move, int] = {}
    for level in levels:
        law, moved = level.law, level.sensitivity
        # Under skewed noise all ways to divide reports are bounded as if a batch held them all.
        placement = level.placement if law.is_symmetric else {level.reports: 1}
        for reports, batches in placement.items():
            move = _Move(law, reports, int(moved.linf), level.both_ways)
            runs[move] = runs.get(move, 0) + batches * moved.l0
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
    probabilities = law.pmf.probabilities
    tail = np.cumsum(probabilities[::-1])[::-1]
    up = max(shift, int(np.searchsorted(-tail, -_TAIL)) - 1)
    head = np.cumsum(probabilities)
    down = min(len(head) - 1 - shift, int(np.searchsorted(head, _TAIL)) + 1)
    if up >= len(head) or down < 0 or down + shift >= len(head):
        # Too little noise for any finite loss to be likely: the whole pmf counts.
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
    loss, infinite = _convolve([_connect_dots(deltas, step) for deltas in moves], [1, 1])
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


def _convolve(
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
