"""Probabilities of all outcomes that matter, without cancellation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from overhand.model import Floats

_RUN_UP = 64
LOG_TAIL = 46.0
"""Outcomes of probability below about e^-46 are left out of a window, and counted as missing."""


@dataclass(frozen=True)
class Window:
    """Probabilities of the outcomes `first`, `first + 1`, ...; `missing` bounds all others'."""

    first: int
    probabilities: Floats
    missing: float


def opposed_window(trials: int, p: float, q: float) -> Window:
    """Bin(N, p) + Bin(N, q) with q = 1 - p, in time linear in the width of the window.

    The generating function is (a + b z + a z^2)^N with a = p q and b = p^2 + q^2, so that
    a (k + 1) c_{k+1} = b (N - k) c_k + a (2 N - k + 1) c_{k-1}. All terms are positive up to the
    middle, k = N, and towards it the ratios c_{k+1} / c_k forget a wrong start by a factor
    exp(-distance^2 / variance); the other half is the mirror image.
    """
    a, b = p * q, p * p + q * q
    variance = 2 * trials * a
    half = min(trials, math.ceil(math.sqrt(2 * variance * LOG_TAIL) + LOG_TAIL) + 1)
    first = max(0, trials - half - _RUN_UP)
    # At the start, the ratio that would reproduce itself; exact where c_{-1} = 0.
    linear, last = b * (trials - first), a * (2 * trials - first + 1) * (first > 0)
    scale = a * (first + 1)
    ratio = (linear + math.sqrt(linear**2 + 4 * scale * last)) / (2 * scale)
    k = np.arange(first + 1, trials, dtype=np.float64)
    below = a * (k + 1)
    rise = _recurrence(ratio, b * (trials - k) / below, a * (2 * trials - k + 1) / below)
    rise = rise[len(rise) - 1 - half :]
    weights = np.concatenate([rise, rise[-2::-1]])
    missing = 0.0 if half == trials else 2 * math.exp(-LOG_TAIL)
    return Window(trials - half, weights / weights.sum(), missing)


def _recurrence(second: float, own: Floats, before: Floats) -> Floats:
    """1, second, ...: each own times the last one plus before times the one before that.

    In stretches side by side, each from (1, 0) and from (0, 1): what is linear in its start is
    put together afterwards, and as all terms are positive, nothing is lost.
    """
    terms = len(own)
    length = math.isqrt(terms) + 1
    count = -(-terms // length)
    own, before = (_stretches(factors, count, length) for factors in (own, before))
    parts = np.empty((length + 2, 2, count))
    parts[0], parts[1] = [[1.0], [0.0]], [[0.0], [1.0]]
    for j in range(length):
        np.multiply(own[j], parts[j + 1], out=parts[j + 2])
        parts[j + 2] += before[j] * parts[j]
    starts = np.empty((count + 1, 2))
    starts[0] = 1.0, second
    for i in range(count):
        starts[i + 1] = parts[-2:, :, i] @ starts[i]
    followed = parts[2:, 0] * starts[:-1, 0] + parts[2:, 1] * starts[:-1, 1]
    return np.concatenate([starts[0], followed.T.reshape(-1)[:terms]])


def _stretches(factors: Floats, count: int, length: int) -> Floats:
    padded = np.concatenate([factors, np.zeros(count * length - len(factors))])
    return np.ascontiguousarray(padded.reshape(count, length).T)


def binomial_window(trials: int, probability: float, complement: float) -> Window:
    """Bin(trials, probability) by the ratio of neighbours, from the mode outwards.

    Ratios keep a relative precision of about 1e-13 where differences of log-gammas lose it.
    The window is wide enough for Bernstein's inequality to leave less than 2 e^-46 outside.
    """
    variance = trials * probability * complement
    mode = min(trials, math.floor((trials + 1) * probability))
    half = math.ceil(math.sqrt(2 * variance * LOG_TAIL) + LOG_TAIL) + 1
    first, last = max(0, mode - half), min(trials, mode + half)
    odds = math.log(probability) - math.log(complement)
    up = np.arange(mode, last, dtype=np.float64)
    down = np.arange(mode, first, -1, dtype=np.float64)
    above = np.cumsum(np.log((trials - up) / (up + 1)) + odds)
    below = np.cumsum(np.log(down / (trials - down + 1)) - odds)
    weights = np.exp(np.concatenate([below[::-1], [0.0], above]))
    whole = first == 0 and last == trials
    missing = 0.0 if whole else 2 * math.exp(-LOG_TAIL)
    return Window(first, weights / weights.sum(), missing)


def spread(weights: Floats, ratio: float) -> Floats:
    """The law of X + Y, in proportion, for Y with P[k] in proportion to ratio^|k|."""
    forwards, backwards = _trailed(weights, ratio), _trailed(weights[::-1], ratio)[::-1]
    forwards[:-1] += ratio * backwards[1:]
    return forwards


def _trailed(weights: Floats, ratio: float) -> Floats:
    """y_k = x_k + ratio y_{k-1}, by doubling the stretch that is summed up."""
    result, step, power = weights.copy(), 1, ratio
    while step < len(result) and power > 0:
        result[step:] = result[step:] + power * result[:-step]
        step, power = 2 * step, power * power
    return result
