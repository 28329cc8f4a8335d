"""Histograms: an answer is a set of buckets, likelier to hold the user's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.baselines.local.answers import Floats, LocalSum, just_above
from overhand.model import Privacy
from overhand.randomness import BinaryFraction, Random
from overhand.values import Histogram


@dataclass(frozen=True)
class SubsetResponse(LocalSum):
    """Subset selection (Ye and Barg 2018): a random set of `size` buckets.

    It misses the user's own with probability `miss`, and is uniform but for that. Sets of one
    bucket are k-ary randomised response. Unary encoding (RAPPOR, and the optimised one of Wang et
    al. 2017) is a mixture of all sizes: given how many bits are set, which ones is this mechanism
    with the same epsilon. As var X >= E var(X | size), and as by Jensen's inequality a mixture of
    unequal signals adds to that, the best size is at least as good as any unary encoding.

    With p the probability of the own bucket and q = (size - p) / (buckets - 1) that of another, a
    bucket of an answer is worth (1 - q) / (p - q) if it is in the set and -q / (p - q) if not.

    >>> local = SubsetResponse.best(1000, Privacy(1.0, 1e-6), Histogram(200))
    >>> local.size, round(local.user_variance, 2), local.epsilon_spent <= 1.0
    (54, 3.64, True)
    """

    size: int
    miss: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy, values: Histogram) -> SubsetResponse:
        """The size of least variance, its probability rounded against us."""
        buckets = values.buckets
        sizes = np.arange(1, buckets)
        missed = (buckets - sizes) * math.exp(-privacy.epsilon)
        misses = missed / (missed + sizes)
        own, other = _variances(sizes, misses, buckets)
        best = int(np.argmin(own + (buckets - 1) * other))
        return cls(horizon, values, int(sizes[best]), just_above(float(misses[best])))

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of how much likelier a set is for holding the own bucket."""
        miss = float(self.miss)
        others = self.values.dimension - self.size
        return math.log((1 - miss) / self.size) - math.log(miss / others)

    @property
    def user_variance(self) -> float:
        """The mean over buckets, whatever the value: one is the user's own, the others are not."""
        own, other = self._bucket_variances
        return own + (other - own) * (1 - 1 / self.values.dimension)

    @property
    def worst_variance(self) -> float:
        return max(self._bucket_variances)

    @property
    def _bucket_variances(self) -> tuple[float, float]:
        """Of the user's own bucket, and of another."""
        own, other = _variances(
            np.array(self.size), np.array(float(self.miss)), self.values.dimension
        )
        return float(own), float(other)

    @property
    def spread(self) -> float:
        own = 1 - float(self.miss)
        return 1 / (own - self._other)

    @property
    def _other(self) -> float:
        """The probability that a set holds a given bucket that is not the user's."""
        return (self.size - 1 + float(self.miss)) / (self.values.dimension - 1)

    def answers(self, rows: NDArray[Any], random: Random) -> Floats:
        sets = self._sets(rows, random)
        return np.asarray((sets - self._other) * self.spread, np.float64)

    def _sets(self, rows: NDArray[Any], random: Random) -> NDArray[np.uint8]:
        """By user and bucket, whether the user's answer holds the bucket.

        The other buckets' bits are in random order, so any will do for the last bucket: it takes
        the bit at the user's own place, which goes to the user's.
        """
        missed = random.coins(len(rows), self.miss)
        others = np.zeros((len(rows), self.values.dimension - 1), np.uint8)
        others[:, : self.size - 1] = 1
        others[:, self.size - 1] = missed
        sets = np.empty((len(rows), self.values.dimension), np.uint8)
        sets[:, :-1] = random.permute_rows(others)
        users = np.arange(len(rows))
        sets[:, -1] = sets[users, rows]
        sets[users, rows] = 1 - missed
        return sets


def _variances(sizes: NDArray[Any], misses: Floats, buckets: int) -> tuple[Floats, Floats]:
    """Variances of the user's own bucket and of another."""
    own, other = 1 - misses, (sizes - 1 + misses) / (buckets - 1)
    scale = (own - other) ** 2
    return np.asarray(own * misses / scale), np.asarray(other * (1 - other) / scale)
