"""The local model for reals: an answer near the value is likelier than one far from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from overhand.baselines.local import LocalSum, just_above, likelier
from overhand.model import Counts, Floats, Privacy, Rows
from overhand.randomness import BinaryFraction, Random
from overhand.values import Values

_PLACES = 96


@dataclass(frozen=True)
class WindowResponse(LocalSum):
    """Users answer with a place; those in a window that follows the value are e^epsilon likelier.

    Of N places in a row the value chooses n neighbours. The answer is one of them, each as likely
    as another, or with probability `miss` one of the rest. Place j stands for `worths[j]`, in
    units in which the values are [-1, 1]; with c what a place gains in probability by being in the
    window, a window at i has the mean t_i = c (worths[i] + ... + worths[i + n - 1]), and a value
    between two of these means is first rounded to one of them without bias.

    Published mechanisms are worse choices of the worths. That of Duchi, Jordan and Wainwright
    (2018) has two places and a window of one; the piecewise mechanism of Wang et al. (2019) is
    the limit of many places at equal distances; and their hybrid is a mixture of both. See
    `best_worths` for ours: at epsilon 1 the variance is 6 % below the hybrid's, at 4 it is 41 %,
    and up to epsilon 16 it is never above.

    >>> from overhand.values import Reals
    >>> local = WindowResponse.best(1000, Privacy(1.0, 1e-6), Reals(0.0, 1.0))
    >>> round(local.user_variance, 2), local.epsilon_spent <= 1.0
    (1.0, True)
    """

    window: int
    worths: tuple[float, ...]
    miss: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy, values: Values) -> WindowResponse:
        """The window of least variance, its probability rounded against us."""
        candidates = (
            cls.with_window(horizon, privacy, values, window)
            for window in range(1, _PLACES // 2 + 1)
        )
        return min(candidates, key=lambda response: response.user_variance)

    @classmethod
    def with_window(
        cls, horizon: int, privacy: Privacy, values: Values, window: int, places: int = _PLACES
    ) -> WindowResponse:
        """A window of this many neighbours among this many places, with their best worths."""
        outside = (places - window) * math.exp(-privacy.epsilon)
        miss = just_above(outside / (outside + window))
        worths = best_worths(places, window, float(miss))
        return cls(horizon, values, window, tuple(worths.tolist()), miss)

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of how much likelier a place is in the window than outside."""
        return likelier(self.miss, self.window, self._others)

    @property
    def _others(self) -> int:
        return len(self.worths) - self.window

    @cached_property
    def _windows(self) -> Floats:
        """What every place gains in probability, by window."""
        return gains(len(self.worths), self.window, float(self.miss))

    @cached_property
    def _worths(self) -> Floats:
        return np.array(self.worths)

    @cached_property
    def _means(self) -> Floats:
        """The means of the windows, from -1 to 1."""
        return np.asarray(self._windows @ self._worths)

    @cached_property
    def user_variance(self) -> float:
        """Between two means the second moment is linear in the value, so the variance a parabola.

        From t_i to t_{i+1} one place leaves the window and one enters, so the slope of the second
        moment is the difference of their squares by the difference of their worths: their sum.
        """
        outside = float(self.miss) / self._others
        moments = outside * (self._worths**2).sum() + self._windows @ self._worths**2
        slopes = self._worths[: -self.window] + self._worths[self.window :]
        starts, stops = self._means[:-1], self._means[1:]
        if not (starts < stops).all():
            return math.inf  # these worths are no order of the windows
        peaks = np.clip(slopes / 2, starts, stops)
        variances = moments[:-1] + slopes * (peaks - starts) - peaks**2
        return float(variances.max()) * (self.values.width / 2) ** 2

    @property
    def spread(self) -> float:
        return (max(self.worths) - min(self.worths)) * self.values.width / 2

    def answers(self, rows: Rows, random: Random) -> Floats:
        half = self.values.width / 2
        middle = float(self.values.lows[0]) + half
        windows = self._rounded((rows.reshape(-1) - middle) / half, random)
        missed = random.coins(len(windows), self.miss).view(np.bool_)
        # Remainders are uniform up to a part in 2^57: less than `miss` is rounded up by.
        choices = np.where(missed, np.uint64(self._others), np.uint64(self.window))
        offsets = (random.words(len(windows), np.uint64) % choices).astype(np.int64)
        beside = offsets + self.window * (offsets >= windows)
        places = np.where(missed, beside, windows + offsets)
        return np.asarray(middle + half * self._worths[places]).reshape(rows.shape)

    def _rounded(self, points: Floats, random: Random) -> Counts:
        """For every point of [-1, 1] one of the two windows whose means are next to it."""
        below = np.searchsorted(self._means, points, side="right") - 1
        below = np.clip(below, 0, len(self._means) - 2)
        starts, stops = self._means[below], self._means[below + 1]
        up = random.uniforms(len(points)) < (points - starts) / (stops - starts)
        return np.asarray(below + up, np.int64)


def gains(places: int, window: int, miss: float) -> Floats:
    """By window and place: how much likelier the place is for being in the window."""
    more = (1 - miss) / window - miss / (places - window)
    offset = np.arange(places) - np.arange(places - window + 1)[:, np.newaxis]
    return np.where((offset >= 0) & (offset < window), more, 0.0)


def best_worths(places: int, window: int, miss: float) -> Floats:
    """Of the worths that give the mean of every window the same variance, those of the least.

    The next window has the same variance if the two places in which they differ are worth as much
    as the two means: worths[i] + worths[i + n] = t_i + t_{i+1}. With the last mean at 1 and
    opposite places of opposite worth this is a linear system, of whose solutions the shortest is
    the best, weighted by the probabilities that the last window gives. Up to epsilon 4 it is
    within 2 % of the best unbiased mechanism that a linear program finds.

    >>> best_worths(2, 1, miss=0.25)
    array([-2.,  2.])
    """
    half = places // 2
    upper = np.eye(places)[:, -half:] - np.eye(places)[:, half - 1 :: -1][:, :half]
    rises = gains(places, window, miss)
    means = rises @ upper
    same = upper[:-window] + upper[window:] - means[:-1] - means[1:]
    weights = (rises[-1] + miss / (places - window)) @ upper**2
    system = np.vstack([same, means[-1]]) / np.sqrt(weights)
    ends = np.zeros(len(system))
    ends[-1] = 1.0
    worths = upper @ (np.linalg.lstsq(system, ends, rcond=None)[0] / np.sqrt(weights))
    # Answers have no bias whatever the solver's precision: the last mean is made to be 1.
    return np.asarray(worths / (rises[-1] @ worths))
