"""Vectors: what a change bounded in l2 costs, over all coordinates and levels at once.

For one coordinate moved by s, telling X + s from X is at least as hard as telling N(mu, 1) from
N(0, 1) and, with probability d0, as easy as it gets. Gaussian shifts compose by their squares, so
if mu(s) <= slope s for all s that occur, a move of norm |s| over all coordinates costs slope |s|:
no budget is divided among coordinates (Dong, Roth and Su 2022 for the composition).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from overhand import errors
from overhand.accounting.divergence import ROUNDING, Level, gaussian_delta
from overhand.model import Floats, Privacy
from overhand.noise import Noise

_EXCEPTION_SHARE = 0.01  # of delta, for the outcomes that no Gaussian is compared with
_EXCLUDED = 0.999  # of an exception is used, so that rounding cannot take away from it
_SINGLE_SHIFTS = 256  # from here on shifts are looked at in steps of _SHIFT_STEP
_SHIFT_STEP = 1.002
_FEW_SHIFTS = 32  # up to here nothing is gained by leaving out where a law is not steep
_A_LITTLE_MORE = 1 + 2e-5  # than the steepest single shift: what exceptions and rounding differ by
_ENOUGH = 15.0  # standard deviations per unit of norm and root of levels, for epsilon 1
_QUICK_VARIANCE = 1e4  # up to here all of a law is looked at: a part would save nothing


def dominated_delta(levels: Sequence[Level], privacy: Privacy) -> float:
    """What all levels of a user cost at this epsilon; `privacy.delta` sets the precision."""
    if not levels:
        raise errors.InvalidValue("a guarantee needs at least one level")
    runs = sum(level.sensitivity.l0 * level.reports for level in levels)
    exception = _EXCEPTION_SHARE * privacy.delta / runs
    # More noise never hides less, so a part of a law much wider than needed is enough.
    enough = _ENOUGH * math.sqrt(len(levels)) / privacy.epsilon
    square = 0.0
    for level in levels:
        norm, largest = _largest_move(level)
        most = max(_QUICK_VARIANCE, (enough * norm) ** 2)
        square += (slope(level.law.at_most(most), largest, exception) * norm) ** 2
    if not math.isfinite(square):
        return 1.0
    seen = gaussian_delta(math.sqrt(square), privacy.epsilon) if square > 0 else 0.0
    return min(1.0, seen + runs * exception + ROUNDING)


def _largest_move(level: Level) -> tuple[float, int]:
    """The largest move of one person, all reports in one direction, and that of one count."""
    if level.sensitivity.l2 is None:
        raise errors.InvalidValue("a change without a norm is counted coordinate by coordinate")
    placement = level.placement
    reports = math.sqrt(sum(batches * most**2 for most, batches in placement.items()))
    return reports * level.sensitivity.l2, max(placement) * int(level.sensitivity.linf)


def slope(law: Noise, largest: int, exception: float) -> float:
    """The least c such that no shift by s <= largest is easier to see than a Gaussian's by c s.

    Except with probability `exception`. The law is log-concave, so all tests are thresholds, and
    mu(s) is the largest difference of normal quantiles over all of them. A Gaussian is as far from
    its shift as its shift from it, so one direction bounds both, skewed laws' too.
    """
    probabilities, missing = law.pmf.probabilities, law.pmf.missing
    # Each tail is known up to `missing`, which is excepted as well.
    excluded = exception * _EXCLUDED - 2 * missing
    if excluded <= 0:
        return math.inf
    below = np.cumsum(probabilities)  # P[X <= x]
    above = np.append(np.cumsum(probabilities[:0:-1])[::-1], 0.0)  # P[X > x]
    first = int(np.searchsorted(below, excluded + missing, side="right"))
    last = len(above) - 1 - int(np.searchsorted(above[::-1], excluded + missing, side="right"))
    # A threshold after x is wrong on X with probability P[X > x], on X + s with P[X <= x - s].
    unmoved = -_quantiles(above[first:] - missing, below[first:], excluded)
    moved = _quantiles(below[: last + 1] - missing, above[: last + 1], excluded)
    if first > last or first < largest or last + largest >= len(below):
        return math.inf  # nearly all of it is at one place, or a shift leaves the pmf
    single = max(0.0, float(np.max(unmoved[: last + 2 - first] - moved[first - 1 :])))
    if largest > _FEW_SHIFTS:
        single *= _A_LITTLE_MORE
    low, high = _steeper(unmoved, moved, first, last, single)
    steepest = single
    for shift, divisor in _shifts(largest):
        # x runs from `first` to `last` + shift, x - shift from `first` - shift to `last`.
        under = unmoved[: low + shift - first] - moved[first - shift : low]
        over = unmoved[high - first : last + shift + 1 - first] - moved[high - shift :]
        steepest = max(steepest, float(max(np.max(under), np.max(over))) / divisor)
    return steepest


def _steeper(
    unmoved: Floats, moved: Floats, first: int, last: int, single: float
) -> tuple[int, int]:
    """The least and the largest x between which no shift by s is seen more than s times `single`.

    `unmoved` is never above `moved`, so a difference unmoved(x) - moved(x - s) is at most what
    `moved` rises up to the middle and `unmoved` from there on, one by one: where none of these
    rises is above that of a single shift, nothing need be looked at. Only the tails rise faster.
    """
    middle = first + int(np.searchsorted(unmoved, 0.0))
    middle = min(max(middle, first + 1), last)
    below = np.diff(moved[first - 1 : middle + 1]) > single  # first .. middle
    above = np.diff(unmoved[middle - first : last + 2 - first]) > single  # middle + 1 .. last + 1
    low = first + len(below) - int(np.argmax(below[::-1])) if below.any() else first + 1
    high = middle + 1 + int(np.argmax(above)) if above.any() else last + 1
    return low, high


def _quantiles(lower: Floats, upper: Floats, excluded: float) -> Floats:
    """Normal quantiles of lower / (1 - excluded), from the side on which they are precise."""
    from scipy.special import ndtri

    is_low = lower < 0.5
    smaller = np.where(is_low, lower, upper - excluded) / (1 - excluded)
    quantiles = ndtri(np.clip(smaller, 0.0, 1.0))
    return np.asarray(np.where(is_low, quantiles, -quantiles))


def _shifts(largest: int) -> list[tuple[int, int]]:
    """Shifts to look at, with the smallest that each stands for.

    A smaller shift is never easier to see, so mu(s) / s <= mu(b) / a for a <= s <= b.
    """
    shifts = [(s, s) for s in range(1, min(largest, _SINGLE_SHIFTS) + 1)]
    start = _SINGLE_SHIFTS + 1
    while start <= largest:
        stop = min(largest, math.floor(start * _SHIFT_STEP))
        shifts.append((stop, start))
        start = stop + 1
    return shifts
