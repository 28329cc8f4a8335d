"""The local model: every user answers for itself and trusts no one.

For every kind of value it has the best mechanism known to us. All answers are unbiased and
independent, so the error of a running sum grows as sqrt(t).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincc, betainccinv, betaln

from overhand import errors
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.model import Counts, Floats, Privacy, Rows
from overhand.planning import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import BinaryFraction, Random, generator_of
from overhand.values import (
    BITS,
    Bits,
    Buckets,
    Grouped,
    Reals,
    RegressionStatistics,
    SymmetricMatrices,
    Values,
    Vectors,
    pack,
)

_SIGNIFICANT_BITS = 32


@dataclass(frozen=True)
class LocalSum(ABC):
    """Every user sends one private answer whose mean is its value; the answers are added up.

    Answers are independent, so the error at t has t times the variance of one answer.

    >>> from overhand.lab.baselines import local_counter
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

    messages_per_user: ClassVar[int] = 1
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
        chance = errors.finite_number("failure_probability", failure_probability, above=0, below=1)
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
        sums = self._counter.answers(rows, self._random)
        np.cumsum(sums, axis=0, out=sums)
        sums += self._sum
        self._sum = sums[-1].copy()
        return sums


def cost_of_answer(miss: BinaryFraction, inside: float, outside: float) -> float:
    """How much likelier an answer is inside than outside, as a logarithm: what an answer costs.

    With probability `miss` it is one of `outside`, all alike, else one of `inside`.
    """
    return math.log1p(-float(miss)) - math.log(inside) - math.log(float(miss) / outside)


def round_up(probability: float) -> BinaryFraction:
    """A fraction larger by at most a part in 2^31: a probability that is rounded against us."""
    near = BinaryFraction.near(probability)
    spare = min(_SIGNIFICANT_BITS - near.numerator.bit_length(), 64 - near.bits)
    return BinaryFraction((near.numerator << spare) + 1, near.bits + spare)


@dataclass(frozen=True)
class LocalResponse(LocalSum):
    """Randomised response: a bit is flipped with probability 1 / (1 + e^epsilon).

    The best there is for one bit per user; the error of its running sum grows as sqrt(t).
    """

    flip: BinaryFraction

    @classmethod
    def best(cls, horizon: int, privacy: Privacy) -> LocalResponse:
        """The least flipping that gives the guarantee, rounded against us."""
        return cls(horizon, BITS, round_up(1 / (1 + math.exp(privacy.epsilon))))

    @property
    def epsilon_spent(self) -> float:
        """ln((1 - q) / q): what one answer costs, with delta = 0."""
        return cost_of_answer(self.flip, 1, 1)

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
        return cls(horizon, values, int(sizes[best]), round_up(float(misses[best])))

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of how much likelier a set is for holding the own bucket."""
        return cost_of_answer(self.miss, self.size, self.values.dimension - self.size)

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
        miss = np.array(float(self.miss))
        own, other = _variances(np.array(self.size), miss, self.values.dimension)
        return float(own), float(other)

    @property
    def spread(self) -> float:
        return 1 / (1 - float(self.miss) - self._other)

    @property
    def _other(self) -> float:
        """The probability that a set holds a given bucket that is not the user's."""
        return (self.size - 1 + float(self.miss)) / (self.values.dimension - 1)

    def answers(self, rows: Rows, random: Random) -> Floats:
        # By user and bucket, whether the user's answer holds the bucket. The other buckets' bits
        # are in random order, so any will do for the last bucket: it takes the bit at the user's
        # own place, which goes to the user's.
        missed = random.coins(len(rows), self.miss)
        others = np.zeros((len(rows), self.values.dimension - 1), np.uint8)
        others[:, : self.size - 1] = 1
        others[:, self.size - 1] = missed
        sets = np.empty((len(rows), self.values.dimension), np.uint8)
        sets[:, :-1] = random.permute_rows(others)
        whole = self.values.round_rows(rows, 1.0, np.ones(self.values.dimension, np.int64), random)
        users, own = np.arange(len(rows)), self.values.cells(whole) - 1
        sets[:, -1] = sets[users, own]
        sets[users, own] = 1 - missed
        return np.asarray((sets - self._other) * self.spread, np.float64)


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
        return self.values.sensitivity.norm / gaussian_mu(self.privacy)

    @property
    def epsilon_spent(self) -> float:
        return self.privacy.epsilon

    @property
    def delta_spent(self) -> float:
        return gaussian_delta(self.values.sensitivity.norm / self.std, self.privacy.epsilon)

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
        miss = round_up(outside / (outside + window))
        worths = best_worths(places, window, float(miss))
        return cls(horizon, values, window, tuple(worths.tolist()), miss)

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of how much likelier a place is in the window than outside."""
        return cost_of_answer(self.miss, self.window, self._others)

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
        windows = self._round((rows.reshape(-1) - middle) / half, random)
        missed = random.coins(len(windows), self.miss).view(np.bool_)
        # Remainders are uniform up to a part in 2^57: less than `miss` is rounded up by.
        choices = np.where(missed, np.uint64(self._others), np.uint64(self.window))
        offsets = (random.words(len(windows), np.uint64) % choices).astype(np.int64)
        beside = offsets + self.window * (offsets >= windows)
        places = np.where(missed, beside, windows + offsets)
        return np.asarray(middle + half * self._worths[places]).reshape(rows.shape)

    def _round(self, points: Floats, random: Random) -> Counts:
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


@dataclass(frozen=True)
class Cap:
    """PrivUnit (Bhowmick et al. 2018): a random unit vector, likelier in a cap around a given one.

    The cap is where the cosine W with the given vector is at least `cosine`. With probability
    `miss` the point is uniform outside of it, else uniform inside: two densities, whose ratio is
    e^epsilon. No unbiased answer for unit vectors has less variance (Asi, Feldman and Talwar
    2022).
    """

    dimension: int
    cosine: float
    miss: BinaryFraction

    @classmethod
    def best(cls, dimension: int, epsilon: float) -> Cap:
        """The cap of the largest mean, its probability rounded against us.

        With q the cap's share of the sphere, T = E[W; W >= cosine] and k = e^epsilon - 1, the mean
        is m = k T / (1 + k q). As T falls by cosine where q falls by 1, it is largest where
        cosine = m. There the noise is the same in all directions: see `along`.
        """
        rest = math.exp(-epsilon)

        def excess(cosine: float) -> float:
            share, lever = _share(dimension, cosine), _lever(dimension, cosine)
            return cosine - (1 - rest) * lever / (rest + (1 - rest) * share)

        cosine = float(brentq(excess, 0.0, 1.0))
        share = _share(dimension, cosine)
        missed = rest * (1 - share)
        return cls(dimension, cosine, round_up(missed / (missed + share)))

    @cached_property
    def share(self) -> float:
        """The cap's share of the sphere."""
        return _share(self.dimension, self.cosine)

    @cached_property
    def mean(self) -> float:
        """E W: the answer is divided by it, and so has no bias."""
        miss = float(self.miss)
        gain = (1 - miss) / self.share - miss / (1 - self.share)
        return gain * _lever(self.dimension, self.cosine)

    @cached_property
    def square(self) -> float:
        """E W^2. By parts, E[W^2; W >= c] = ((d - 1) c E[W; W >= c] + P(W >= c)) / d."""
        return (1 + (self.dimension - 1) * self.cosine * self.mean) / self.dimension

    @property
    def along(self) -> float:
        """The variance of W / m: (1 / m^2 - 1) / d at the best cap, as is `across`."""
        return self.square / self.mean**2 - 1

    @property
    def across(self) -> float:
        """The variance of a coordinate at right angles to the given vector, divided by m."""
        return (1 - self.square) / ((self.dimension - 1) * self.mean**2)

    @property
    def epsilon_spent(self) -> float:
        """The logarithm of the ratio of the densities inside and outside."""
        return cost_of_answer(self.miss, self.share, 1 - self.share)

    def points(self, directions: Floats, random: Random) -> Floats:
        """A point of the sphere for each of these unit vectors."""
        generator = generator_of(random)
        missed = random.coins(len(directions), self.miss)
        uniforms = generator.random(len(directions))
        tails = np.where(missed, self.share + uniforms * (1 - self.share), uniforms * self.share)
        cosines = _cosines(tails, self.dimension)[:, np.newaxis]
        noise = generator.standard_normal(directions.shape)
        noise -= np.einsum("ij,ij->i", noise, directions)[:, np.newaxis] * directions
        return np.asarray(cosines * directions + np.sqrt(1 - cosines**2) * _normalise(noise))


@dataclass(frozen=True)
class CapResponse(LocalSum):
    """The smallest ball of all values, and PrivUnit for the points of its sphere.

    A point inside is first made one of a sphere, in one of two ways. `lifted`, it gets one more
    coordinate, the one that makes it a unit vector, and the answer loses it again: as the noise
    is the same in all directions, every value has the same variance, R^2 (1 / m^2 - 1) / (d + 1).
    Otherwise it is, with probability 1 - |v|, a uniform direction: its answer is as long as any,
    so the variance is largest in the middle, R^2 / (d m^2). This is less in few dimensions, at
    small epsilon.

    >>> local = CapResponse.best(1000, Privacy(1.0, 1e-6), Vectors(20))
    >>> round(local.user_variance, 2), local.epsilon_spent <= 1.0
    (6.16, True)
    """

    cap: Cap
    lifted: bool

    is_simulated: ClassVar[bool] = True

    @classmethod
    def best(cls, horizon: int, privacy: Privacy, values: Values) -> CapResponse:
        """The better of the two ways; a sphere that is two points has no caps."""
        candidates = (
            cls(horizon, values, Cap.best(values.dimension + lifted, privacy.epsilon), lifted)
            for lifted in ((True, False) if values.dimension > 1 else (True,))
        )
        return min(candidates, key=lambda response: response.user_variance)

    @cached_property
    def ball(self) -> tuple[Floats, float]:
        return smallest_ball(self.values)

    @property
    def epsilon_spent(self) -> float:
        return self.cap.epsilon_spent

    @property
    def user_variance(self) -> float:
        if self.lifted:
            return self.worst_variance
        return self._scale**2 / self.cap.dimension

    @property
    def worst_variance(self) -> float:
        """The most over directions; and, if not `lifted`, over lengths l of values on an axis.

        There it is (l E W^2 + (1 - l) / d) / m^2 - l^2 with E W^2 - 1 / d = (d - 1) c m / d.
        """
        radius = self.ball[1]
        if self.lifted:
            return radius**2 * max(self.cap.along, self.cap.across)
        slope = (1 - 1 / self.cap.dimension) * self.cap.cosine / self.cap.mean
        length = min(1.0, slope / 2)
        return self.user_variance + radius**2 * length * (slope - length)

    @property
    def _scale(self) -> float:
        """The length of an answer, before the last coordinate is dropped."""
        return self.ball[1] / self.cap.mean

    @property
    def spread(self) -> float:
        return 2 * self._scale

    @property
    def reach(self) -> float:
        return self._scale + self.ball[1]

    def answers(self, rows: Rows, random: Random) -> Floats:
        centre, radius = self.ball
        points = (rows - centre) / radius
        directions = _lift(points) if self.lifted else _flatten(points, random)
        answers = self.cap.points(directions, random)[:, : self.values.dimension]
        return np.asarray(centre + self._scale * answers)


def smallest_ball(values: Values) -> tuple[Floats, float]:
    """Centre and radius of the smallest ball that holds all values.

    Values that fill a ball are as far apart as its diameter. Statistics z = (x y, x x^T) do not: a
    rotation of x or another sign of y maps them onto themselves, so the centre is (0, a I) for
    some a, and |z - (0, a I)|^2 = r^2 y^2 + r^4 - 2 a r^2 + a^2 D for D features and |x| = r.
    This is largest at r = 1 or r = 0, where it is 2 - 2 a + a^2 D and a^2 D; the least of the
    larger is 2 - 1 / D, at a = 1 / D.
    """
    if not isinstance(values, RegressionStatistics):
        return (values.lows + values.highs) / 2, values.sensitivity.norm / 2
    middle = pack(np.eye(values.features) / values.features)
    centre = np.concatenate([np.zeros(values.features), middle])
    return centre, math.sqrt(2 - 1 / values.features)


def _lift(points: Floats) -> Floats:
    """Unit vectors of one more coordinate."""
    heights = np.sqrt(np.maximum(0.0, 1 - np.einsum("ij,ij->i", points, points)))
    return np.concatenate([points, heights[:, np.newaxis]], axis=1)


def _flatten(points: Floats, random: Random) -> Floats:
    """The direction of every point with a probability of its length, or else any direction."""
    generator = generator_of(random)
    directions = _normalise(generator.standard_normal(points.shape))
    lengths = np.sqrt(np.einsum("ij,ij->i", points, points))
    kept = generator.random(len(points)) < lengths
    directions[kept] = points[kept] / lengths[kept, np.newaxis]
    return directions


def _normalise(vectors: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return np.asarray(vectors / lengths[:, np.newaxis])


def _share(dimension: int, cosine: float) -> float:
    """P(W >= cosine) for the cosine W >= 0 of a uniform direction: W^2 has a beta law."""
    return 0.5 * float(betaincc(0.5, (dimension - 1) / 2, cosine**2))


def _lever(dimension: int, cosine: float) -> float:
    """E[W; W >= cosine], from the density (1 - w^2)^((d - 3) / 2) / B(1/2, (d - 1) / 2)."""
    half = (dimension - 1) / 2
    return float(np.exp(-betaln(0.5, half)) * (1 - cosine**2) ** half) / (2 * half)


def _cosines(tails: Floats, dimension: int) -> Floats:
    """The cosines that a uniform direction reaches or exceeds with these probabilities."""
    folded = 2 * np.minimum(tails, 1 - tails)
    sizes = np.sqrt(betainccinv(0.5, (dimension - 1) / 2, folded))
    return np.asarray(np.copysign(sizes, 0.5 - tails))


def local_counter(horizon: int, privacy: Privacy, values: Values) -> LocalSum:
    """The best known local mechanism for this kind of value.

    >>> from overhand.values import values_of
    >>> for spec in ("bit", "real", "vector:20", "histogram:200"):
    ...     local = local_counter(1000, Privacy(1.0, 1e-6), values_of(spec))
    ...     print(spec, type(local).__name__, round(local.user_variance, 3))
    bit LocalResponse 0.921
    real WindowResponse 1.003
    vector:20 CapResponse 6.158
    histogram:200 SubsetResponse 3.641
    """
    best: LocalSum
    match values:
        case Bits():
            return LocalResponse.best(horizon, privacy)
        case Buckets() | Grouped():
            best = SubsetResponse.best(horizon, privacy, values)
        case Reals() | Vectors(length=1) | SymmetricMatrices(side=1):
            best = WindowResponse.best(horizon, privacy, values)
        case Vectors() | SymmetricMatrices() | RegressionStatistics():
            best = CapResponse.best(horizon, privacy, values)
        case _:
            raise errors.InvalidValue(f"no local mechanism for {values}")
    normal = GaussianResponse(horizon, values, privacy)
    return min(best, normal, key=lambda counter: counter.user_variance)
