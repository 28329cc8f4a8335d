"""The local model: every user answers for itself, and nobody is trusted.

For every kind of value it has the best mechanism known to us. All answers are unbiased and
independent, so the error of a running sum grows as sqrt(t). This module has what they share, and
the simple answers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.model import Floats, Privacy, Rows
from overhand.plan import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import BinaryFraction, Random, generator_of
from overhand.values import BITS, Values

_SIGNIFICANT_BITS = 32


@dataclass(frozen=True)
class LocalSum(ABC):
    """Every user sends one private answer whose mean is its value; the answers are added up.

    Answers are independent, so the error at t has t times the variance of one answer.

    >>> from overhand.baselines import local_counter
    >>> from overhand.model import Privacy
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import Histogram
    >>> local = local_counter(1000, Privacy(1.0, 1e-6), Histogram(4))
    >>> sums = local.start(seeded_random(1)).estimates(np.full(1000, 2))
    >>> bool(np.abs(sums[-1] - [0, 0, 1000, 0]).max() < 4 * local.worst_std)
    True
    """

    horizon: int
    values: Values

    is_simulated: ClassVar[bool] = False
    """Whether it is never deployed, as its noise is not made of integers."""

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)

    @property
    @abstractmethod
    def epsilon_spent(self) -> float:
        """What one answer costs, from the parameters it is drawn with."""

    @property
    @abstractmethod
    def user_variance(self) -> float:
        """Mean over coordinates of the variance of one answer, for the value where it is most."""

    @property
    def worst_variance(self) -> float:
        """The most that the variance of any coordinate of an answer can be."""
        return self.user_variance

    @property
    @abstractmethod
    def spread(self) -> float:
        """The length of the interval that a coordinate of an answer lies in."""

    @property
    def reach(self) -> float:
        """How far a coordinate of an answer can be from its mean."""
        return self.spread

    @abstractmethod
    def answers(self, rows: Rows, random: Random) -> Floats:
        """The answers of these users, in the shape of their values' coordinates."""

    @property
    def delta_spent(self) -> float:
        return 0.0

    @property
    def messages_per_user(self) -> int:
        return 1

    @property
    def rms_error(self) -> float:
        """Root of the mean, over t = 1 .. horizon and coordinates, of the squared error."""
        return math.sqrt(self.user_variance * (self.horizon + 1) / 2)

    @property
    def worst_std(self) -> float:
        return math.sqrt(self.worst_variance * self.horizon)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """The better of Hoeffding's and Bernstein's inequalities, and a union bound over all."""
        events = self._events(failure_probability)
        hoeffding = self.spread * math.sqrt(self.horizon * events / 2)
        slack = self.reach * events / 3
        bernstein = slack + math.sqrt(slack**2 + 2 * self.worst_std**2 * events)
        return min(hoeffding, bernstein)

    def _events(self, failure_probability: float) -> float:
        """-ln of the failure probability that a union bound leaves to one error of one sign."""
        chance = errors.number("failure_probability", failure_probability, above=0, below=1)
        return math.log(2 * self.horizon * self.values.dimension / chance)

    def start(self, random: Random) -> AnswersRun:
        """A run over a stream of values."""
        if self.is_simulated:
            generator_of(random)
        return AnswersRun(self, random)


class AnswersRun:
    """Answers of users as they come, and their running sum."""

    granularity = 1

    def __init__(self, counter: LocalSum, random: Random) -> None:
        self._counter = counter
        self._random = random
        self._sum: Any = 0.0

    def estimates(self, rows: Rows) -> Floats:
        """The estimates after each of the next users."""
        sums = self._counter.answers(rows, self._random)
        np.cumsum(sums, axis=0, out=sums)
        sums += self._sum
        self._sum = sums[-1].copy()
        return sums


def likelier(miss: BinaryFraction, inside: float, outside: float) -> float:
    """How much likelier an answer is inside than outside, as a logarithm: what an answer costs.

    With probability `miss` it is one of `outside`, all alike, else one of `inside`.
    """
    return math.log1p(-float(miss)) - math.log(inside) - math.log(float(miss) / outside)


def just_above(probability: float) -> BinaryFraction:
    """A fraction larger by at most a part in 2^31: a probability that is rounded against us."""
    near = BinaryFraction.near(probability)
    spare = min(_SIGNIFICANT_BITS - near.numerator.bit_length(), 64 - near.bits)
    return BinaryFraction((near.numerator << spare) + 1, near.bits + spare)


@dataclass(frozen=True)
class LocalResponse(LocalSum):
    """Randomised response: a bit is flipped with probability 1 / (1 + e^epsilon).

    The best there is for one bit per user; the error of its running sum grows as sqrt(t).

    >>> local = LocalResponse.best(1_000_000, Privacy(1.0, 1e-6))
    >>> round(float(local.flip), 3), round(local.epsilon_spent, 6), round(local.rms_error)
    (0.269, 1.0, 678)
    """

    flip: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy) -> LocalResponse:
        """The least flipping that gives the guarantee, rounded against us."""
        return cls(horizon, BITS, just_above(1 / (1 + math.exp(privacy.epsilon))))

    @property
    def epsilon_spent(self) -> float:
        """ln((1 - q) / q): what one answer costs, with delta = 0."""
        return likelier(self.flip, 1, 1)

    @property
    def user_variance(self) -> float:
        """q (1 - q) / (1 - 2 q)^2, whatever the bit."""
        flip = float(self.flip)
        return flip * (1 - flip) * self.spread**2

    @property
    def spread(self) -> float:
        return 1 / (1 - 2 * float(self.flip))

    def answers(self, rows: Rows, random: Random) -> Floats:
        said = rows ^ random.coins(len(rows), self.flip)
        return np.asarray((said - float(self.flip)) * self.spread)


@dataclass(frozen=True)
class SubsetResponse(LocalSum):
    """Subset selection (Ye and Barg 2018): a random set of `size` buckets.

    It misses the user's own with probability `miss`, and is uniform otherwise. Sets of one
    bucket are k-ary randomised response. Unary encoding (RAPPOR, and the optimised one of Wang et
    al. 2017) is a mixture of all sizes: given how many bits are set, which ones is this mechanism
    with the same epsilon. As var X >= E var(X | size), and as by Jensen's inequality a mixture of
    unequal signals adds to that, the best size is at least as good as any unary encoding.

    With p the probability of the own bucket and q = (size - p) / (buckets - 1) that of another, a
    bucket of an answer is worth (1 - q) / (p - q) if it is in the set and -q / (p - q) if not.
    A number of a group is first rounded to an end of its interval: then there are buckets, too.

    >>> from overhand.values import Histogram
    >>> local = SubsetResponse.best(1000, Privacy(1.0, 1e-6), Histogram(200))
    >>> local.size, round(local.user_variance, 2), local.epsilon_spent <= 1.0
    (54, 3.64, True)
    """

    size: int
    miss: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy, values: Values) -> SubsetResponse:
        """The size of least variance, its probability rounded against us."""
        buckets = values.dimension
        sizes = np.arange(1, buckets)
        missed = (buckets - sizes) * math.exp(-privacy.epsilon)
        misses = missed / (missed + sizes)
        own, other = _variances(sizes, misses, buckets)
        best = int(np.argmin(own + (buckets - 1) * other))
        return cls(horizon, values, int(sizes[best]), just_above(float(misses[best])))

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of how much likelier a set is for holding the own bucket."""
        return likelier(self.miss, self.size, self.values.dimension - self.size)

    @property
    def user_variance(self) -> float:
        """The mean over buckets, whatever the value: one is the user's own, the others are not.

        Rounding adds at most a quarter to each of two buckets.
        """
        own, other = self._bucket_variances
        rounding = self.values.rounding / self.values.dimension
        return own + (other - own) * (1 - 1 / self.values.dimension) + rounding

    @property
    def worst_variance(self) -> float:
        return max(self._bucket_variances) + self.values.rounding / 2

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

    def answers(self, rows: Rows, random: Random) -> Floats:
        sets = self._sets(rows, random)
        return np.asarray((sets - self._other) * self.spread, np.float64)

    def _sets(self, rows: Rows, random: Random) -> NDArray[np.uint8]:
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
        whole = self.values.rounded(rows, 1.0, np.ones(self.values.dimension, np.int64), random)
        users, own = np.arange(len(rows)), self.values.cells(whole) - 1
        sets[:, -1] = sets[users, own]
        sets[users, own] = 1 - missed
        return sets


def _variances(sizes: NDArray[Any], misses: Floats, buckets: int) -> tuple[Floats, Floats]:
    """Variances of the user's own bucket and of another."""
    own, other = 1 - misses, (sizes - 1 + misses) / (buckets - 1)
    scale = (own - other) ** 2
    return np.asarray(own * misses / scale), np.asarray(other * (1 - other) / scale)


@dataclass(frozen=True)
class GaussianResponse(LocalSum):
    """The Gaussian mechanism: the only one here that makes use of delta.

    At epsilon 1 and delta 1e-6 its variance is 71 for vectors of norm 1, whatever their length;
    that of `CapResponse` is below 6.4.

    >>> from overhand.values import Vectors
    >>> [
    ...     round(GaussianResponse(1000, Vectors(length), Privacy(1.0, 1e-6)).user_variance, 1)
    ...     for length in (2, 200)
    ... ]
    [71.4, 71.4]
    """

    privacy: Privacy

    is_simulated: ClassVar[bool] = True

    @property
    def std(self) -> float:
        return self.values.sensitivity / gaussian_mu(self.privacy)

    @property
    def epsilon_spent(self) -> float:
        return self.privacy.epsilon

    @property
    def delta_spent(self) -> float:
        return gaussian_delta(self.values.sensitivity / self.std, self.privacy.epsilon)

    @property
    def user_variance(self) -> float:
        return self.std**2

    @property
    def spread(self) -> float:
        return math.inf

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Normal tails and a union bound."""
        return self.worst_std * math.sqrt(2 * self._events(failure_probability))

    def answers(self, rows: Rows, random: Random) -> Floats:
        points = self.values.coordinates(rows)
        return np.asarray(points + generator_of(random).normal(0.0, self.std, points.shape))
