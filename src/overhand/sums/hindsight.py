"""The history of a sum in hindsight: every prefix from all batches received so far.

The sums of batches are measurements of the sums of lowest batches, with independent noise of known
variance. Generalised least squares over all of them is the best linear unbiased estimate of every
prefix at once. On a tree it takes two passes: upwards, what is known of a batch from those at and
below it; downwards, the weights with which all of that goes into a prefix. It is post-processing
of what is public, and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.estimates import Estimate, half_width, load_pandas
from overhand.model import Counts, Floats
from overhand.planning import BlockErrors, Plan
from overhand.values import Values

if TYPE_CHECKING:
    import pandas

    from overhand.sums.server import BatchSums

_DIGITS = 100.0  # steps within a factor of e: kurtosis and bias are rounded up to one


@dataclass(frozen=True, eq=False)
class Curve:
    """Sums of the first t users, for many t: arrays with a row per t.

    All fields mean the same as in an `Estimate`; `std` and `kurtosis` are the same for every
    coordinate.

    >>> deviations, nothing = np.array([1.0, 2.0]), np.zeros(2)
    >>> curve = Curve(np.array([10, 20]), np.array([4.0, 9.0]), deviations, nothing, nothing, 0.0)
    >>> low, high = curve.interval(0.95)
    >>> high.round(2).tolist(), round(curve.rms, 3)
    ([5.96, 12.92], 1.581)
    """

    t: Counts
    value: Floats
    std: Floats
    bias_bound: Floats
    kurtosis: Floats
    unit: float

    def __len__(self) -> int:
        return len(self.t)

    def at(self, places: Counts) -> Curve:
        """Only those at these places."""
        errors_of = self.std[places], self.bias_bound[places], self.kurtosis[places]
        return Curve(self.t[places], self.value[places], *errors_of, self.unit)

    @property
    def rms(self) -> float:
        """Root of the mean expected squared error over all of them, in the worst case."""
        worst = self.std**2 + np.mean(flat(self.bias_bound) ** 2, axis=1)
        return math.sqrt(np.mean(worst)) if len(self) else 0.0

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """For every t, the shortest symmetric interval that holds the sum with this confidence.

        Each on its own. Kurtosis and the ratio of bias to noise are rounded up by at most 1 %, so
        that few different intervals have to be computed.
        """
        confidence = errors.finite_number("confidence", confidence, above=0, below=1)
        rows = (len(self), *(1,) * (self.value.ndim - 1))
        std = np.broadcast_to(self.std.reshape(rows), self.bias_bound.shape)
        bias = np.divide(self.bias_bound, std, out=np.zeros(std.shape), where=std > 0)
        # A complex number is a pair that can be sorted quickly.
        laws = _round_up(bias) + 1j * _round_up(self.kurtosis).reshape(rows)
        distinct, which = np.unique(laws, return_inverse=True)
        ends = [half_width(1.0, law.real, confidence, kurtosis=law.imag) for law in distinct]
        widths = np.array(ends, np.float64)[which].reshape(std.shape)
        half = np.where(std > 0, std * widths + self.unit / 2, self.bias_bound)
        return self.value - half, self.value + half

    def after(self, earlier: Estimate) -> Curve:
        """The same sums with those of users before them, whose noise is independent."""
        std = np.hypot(self.std, earlier.std)
        fourth = self.kurtosis * self.std**4 + earlier.kurtosis * earlier.std**4
        return Curve(
            self.t + earlier.t,
            self.value + earlier.value,
            std,
            self.bias_bound + earlier.bias_bound,
            np.divide(fourth, std**4, out=np.zeros(len(std)), where=std > 0),
            max(self.unit, earlier.unit),
        )

    def with_later(self, later: Curve) -> Curve:
        """These sums, and then the last of them with those of later users added."""
        of_last = (
            self.value[-1],
            self.std[-1],
            self.bias_bound[-1],
            0,
            self.kurtosis[-1],
            self.unit,
        )
        rest = later.after(Estimate(int(self.t[-1]), *of_last))
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(rest, name)])
            for name in ("t", "value", "std", "bias_bound", "kurtosis")
        }
        return Curve(**both, unit=rest.unit)


def flat(rows: Floats) -> Floats:
    """Rows of coordinates, whatever shape a value has."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _round_up(numbers: Floats) -> Floats:
    logs = np.log(numbers, out=np.full(numbers.shape, -np.inf), where=numbers > 1e-6)
    return np.exp(np.ceil(_DIGITS * logs) / _DIGITS)


@dataclass(frozen=True, eq=False)
class Hindsight(Curve):
    """The history at the ends of lowest batches, from all batches received so far.

    What was published stays unchanged: `published` is that series, for comparison. (It is exact if
    batches come in order and none is lost or damaged; otherwise it is what the batches that end by
    t would give.)

    A lowest batch without a sum counts as a measurement too: the middle of what its users may hold,
    off by `bias_bound` at most. It has little weight where the batches above it tell more.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(10_000, shufflers=3, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = oh.ContinualSum(plan, oh.seeded_random(1))
    >>> total.update_many([1] * 10_000)
    >>> history = total.hindsight()
    >>> history.t[:2].tolist(), len(history) == plan.tree.blocks, round(history.ratio, 2)
    ([32, 64], True, 0.79)
    """

    published: Curve
    values: Values

    @property
    def ratio(self) -> float:
        """The rms error relative to that of what was published, computed from the noise."""
        return self.rms / self.published.rms if self.published.rms > 0 else 1.0

    def join(self, later: Hindsight) -> Hindsight:
        """This history, and then that of another plan for the users who came next."""
        told, published = self.with_later(later), self.published.with_later(later.published)
        return Hindsight(**vars(told), published=published, values=self.values)

    def possible(self) -> Floats:
        """The nearest possible history: no batch's sum is outside what its users may hold.

        A count of bits neither falls nor rises by more than one per user; in a histogram or vector,
        no coordinate leaves its own range. It uses least squares over all times: since the truth is
        such a history, this one is never farther from it, over all times together. It has no `std`:
        it is closer than that would say, and by how much depends on the data.
        """
        users = np.diff(self.t, prepend=0)
        ends = zip(flat(self.value).T, self.values.lows, self.values.highs, strict=True)
        paths = [nearest_path(column, users * low, users * high) for column, low, high in ends]
        return np.stack(paths, axis=1).reshape(self.value.shape)

    def to_frame(self, confidence: float = 0.95) -> pandas.DataFrame:
        """A row per t and, if there are several, per coordinate; see also `Estimate.to_frame`.

        Needs pandas: `pip install 'overhand[frames]'`.
        """
        pandas, (low, high) = load_pandas(), self.interval(confidence)
        coordinates = flat(self.value).shape[1]
        places: dict[str, Any] = {"t": np.repeat(self.t, coordinates)}
        if not self.values.is_scalar:
            names = self.values.coordinate_names or range(coordinates)
            places["coordinate"] = [*names] * len(self)
        curves = {"value": self.value, "low": low, "high": high, "bias_bound": self.bias_bound}
        curves |= {"std": np.repeat(self.std, coordinates), "published": self.published.value}
        return pandas.DataFrame({**places, **{name: one.ravel() for name, one in curves.items()}})


class _Known(NamedTuple):
    """Of some batches or prefixes, a row for each: estimates, and how they may be off.

    `errors` has columns for variance, fourth cumulant, bias bound and users who are in no sum.
    """

    values: Floats
    errors: Floats

    def times(self, weights: Floats) -> _Known:
        """The same if they go into something with these weights."""
        size = np.abs(weights)
        powers = np.stack([size**2, size**4, size, size], axis=1)
        return _Known(self.values * weights[:, np.newaxis], self.errors * powers)

    def plus(self, other: _Known) -> _Known:
        return _Known(self.values + other.values, self.errors + other.errors)

    def at(self, rows: Counts) -> _Known:
        return _Known(self.values[rows], self.errors[rows])

    def running(self) -> _Known:
        """Sums of the first 0, 1, 2, ... rows."""
        return _Known(_running(self.values), _running(self.errors))

    def between(self, first: Counts, stop: Counts) -> _Known:
        """Of running sums: the sums of rows first .. stop - 1."""
        after, before = self.at(stop), self.at(first)
        return _Known(after.values - before.values, after.errors - before.errors)


def _running(rows: Floats) -> Floats:
    return np.concatenate([np.zeros((1, *rows.shape[1:])), np.cumsum(rows, axis=0)])


class _Level(NamedTuple):
    """The batches of a level, each as those at and below it tell."""

    batches: int
    blocks: int
    """How many lowest batches are in one of them."""
    degree: int
    """How many of them are in one of the next level."""
    own: _Known
    own_weights: Floats
    squares: Floats
    """Expected squared errors of the estimates, by which they are weighted."""
    before: _Known
    """Running sums of the estimates."""

    def holding(self, ends: Counts) -> Counts:
        """The batch that holds the last of this many lowest ones; `batches` if there is none."""
        return np.minimum((ends - 1) // self.blocks, self.batches)


def in_hindsight(
    plan: Plan, sums: BatchSums, covered: int, coordinate: int | None = None
) -> Hindsight:
    """The history of the first `covered` users; of one coordinate, if `sums` has only that.

    Sums of another shape than a value's are those of several runs side by side.

    Two batches of two users and one of all four, which has more than they do: so the first has
    more than it says itself.

    >>> import overhand as oh
    >>> from overhand.sums import BatchSums
    >>> plan = oh.Plan.best(8, 2, oh.Privacy(1.0, 1e-6), tree="binary")
    >>> sums = BatchSums(plan.tree)
    >>> sums.put(1, slice(0, 2), np.array([1.0, 1.0]), 0.0)
    >>> sums.put(2, slice(0, 1), np.array([5.0]), 0.0)
    >>> history = in_hindsight(plan, sums, covered=4)
    >>> history.published.value.round(2).tolist(), history.value.round(2).tolist()
    ([1.0, 3.27], [1.63, 3.27])
    """
    ends = np.arange(1, 1 + covered // plan.tree.lowest, dtype=np.int64)
    own = _measure(plan, sums, covered, coordinate)
    if plan.block_errors is not None:
        told = _of_blocks(plan.block_errors, own[0][0], ends)
        curve = _curve(plan, ends * plan.tree.lowest, told, (len(ends), *sums.shape), coordinate)
        return Hindsight(**vars(curve), published=curve, values=plan.values)
    levels = _upwards(plan, own, combine=True)
    published = levels if plan.combine else _upwards(plan, own, combine=False)
    curves = [
        _curve(plan, ends * plan.tree.lowest, known, (len(ends), *sums.shape), coordinate)
        for known in (_downwards(levels, ends), _as_published(published, ends))
    ]
    return Hindsight(**vars(curves[0]), published=curves[1], values=plan.values)


def _measure(
    plan: Plan, sums: BatchSums, covered: int, coordinate: int | None
) -> list[tuple[_Known, Floats]]:
    """Every batch's own sum and its expected squared error, infinite where there is no sum.

    Level by level, as far as there are batches.
    """
    found = []
    for level, mechanism in enumerate(plan.mechanisms, start=1):
        values, bias_bounds = sums.of_level(level, covered // mechanism.size)
        if level > 1 and not len(values):
            break
        rows, law = flat(values), (mechanism.variance, mechanism.fourth_cumulant)
        is_here = np.asarray(~np.isnan(rows).any(axis=1))
        noise = np.where(is_here[:, np.newaxis], law, 0.0)
        bias_bounds, users = np.where(is_here, bias_bounds, 0.0), np.zeros(len(rows))
        squares = np.where(is_here, law[0] + bias_bounds**2, np.inf)
        rows = np.where(is_here[:, np.newaxis], rows, 0.0)
        if level == 1:
            users = _lost_users(sums, is_here, mechanism.size)
            rows += np.multiply.outer(users, _choose(plan.imputed, coordinate))
            squares = np.where(is_here, squares, (plan.pending_weight * users) ** 2)
        found.append((_Known(rows, np.column_stack([noise, bias_bounds, users])), squares))
    return found


def _lost_users(sums: BatchSums, is_here: NDArray[np.bool_], size: int) -> Floats:
    """How many users of every lowest batch are in no sum of it: they count as the middle."""
    users = np.where(is_here, 0.0, size)
    some = [number for number in sums.lost_users if number < len(users)]
    users[some] = [sums.lost_users[number] for number in some]
    return users


def _choose(by_coordinate: Any, coordinate: int | None) -> Floats:
    """All coordinates of what a plan says of each, or one of them."""
    every = np.ravel(np.asarray(by_coordinate, np.float64))
    return every if coordinate is None else every[[coordinate]]


def _upwards(
    plan: Plan, measured: Sequence[tuple[_Known, Floats]], *, combine: bool
) -> list[_Level]:
    """What is known of every batch from its own sum and those of its children."""
    levels: list[_Level] = []
    degrees = (*plan.tree.degrees[1:], 1)
    for (own, squares), size, degree in zip(measured, plan.tree.sizes, degrees, strict=False):
        weights, best = np.ones(len(squares)), own
        if levels:
            stops = np.arange(1, 1 + len(squares)) * levels[-1].degree
            below = levels[-1].before.between(stops - levels[-1].degree, stops)
            running = _running(levels[-1].squares)
            others = running[stops] - running[stops - levels[-1].degree]
            weights = np.where(np.isinf(squares), 0.0, 1.0)  # if sums are used as they come
            if combine:  # as `own_weight` has them
                total = squares + others
                weights = np.divide(others, total, out=np.ones(len(total)), where=total > 0)
            best = own.times(weights).plus(below.times(1 - weights))
            alone = np.where(np.isinf(squares), 0.0, squares)
            squares = weights**2 * alone + (1 - weights) ** 2 * others
        blocks = size // plan.tree.lowest
        levels.append(_Level(len(squares), blocks, degree, own, weights, squares, best.running()))
    return levels


def _slopes(levels: Sequence[_Level], ends: Counts) -> list[Floats]:
    """By how much a prefix within the batch that holds its end goes up with the batch's sum.

    Given that sum, those of the children share what they miss of it in proportion to their
    squared errors.
    """
    slopes = [np.ones(len(ends))]
    for level, above in zip(levels, levels[1:], strict=False):
        here, parent = level.holding(ends), above.holding(ends)
        exists = parent < above.batches
        running = _running(level.squares)
        first = parent * level.degree
        stop = np.minimum(first + level.degree, level.batches)
        inside = np.append(level.squares, 0.0)[here]
        part = running[here] - running[first] + slopes[-1] * inside
        whole = running[stop] - running[first]
        slopes.append(np.divide(part, whole, out=np.zeros(len(ends)), where=exists & (whole > 0)))
    return slopes


def _downwards(levels: Sequence[_Level], ends: Counts) -> _Known:
    """Every prefix: the estimates of batches before, after and around its end, with weights.

    With b the slopes, g the weight of the estimate of the batch around the end and w that of its
    own sum in it, all children of the batch have the weight (1 - w) g - b, and those before the end
    one more.
    """
    walk = list(zip(levels, [*levels[1:], None], _slopes(levels, ends), strict=True))
    shift = np.zeros(len(ends))
    total = _Known(np.zeros((len(ends), levels[0].own.values.shape[1])), np.zeros((len(ends), 4)))
    for level, above, slope in reversed(walk):
        here = level.holding(ends)
        exists = here < level.batches
        first = ends * 0 if above is None else above.holding(ends) * level.degree
        degree = level.batches if above is None else level.degree
        stop = np.minimum(first + degree, level.batches)
        earlier = level.before.between(first, here)
        later = level.before.between(np.minimum(here + 1, stop), stop)
        total = total.plus(earlier.times(1 + shift)).plus(later.times(shift))
        inside = np.minimum(here, level.batches - 1)
        weight = np.where(exists, slope + shift, 0.0)
        own_weight = np.where(exists, level.own_weights[inside], 0.0)
        total = total.plus(level.own.at(inside).times(weight * own_weight))
        shift = np.where(exists, (1 - own_weight) * weight - slope, 0.0)
    return total


def _of_blocks(errors_of: BlockErrors, own: _Known, ends: Counts) -> _Known:
    """Every prefix of blocks, which are the only measurements there are: nothing is to be gained.

    A lost one is not certain, however its users count, but has no noise.
    """
    known = own.running()
    is_here = own.errors[:, 0] > 0
    known.errors[:, 0] = errors_of.prefix_variances(is_here)
    return known.at(ends)


def _as_published(levels: Sequence[_Level], ends: Counts) -> _Known:
    """Every prefix from its cover alone (Definition 3.1)."""
    total = _Known(np.zeros((len(ends), levels[0].own.values.shape[1])), np.zeros((len(ends), 4)))
    for level, above in zip(levels, [*levels[1:], None], strict=True):
        first = ends * 0 if above is None else ends // above.blocks * level.degree
        total = total.plus(level.before.between(first, ends // level.blocks))
    return total


def _curve(
    plan: Plan, t: Counts, known: _Known, shape: tuple[int, ...], coordinate: int | None
) -> Curve:
    variance, fourth, bias_bound, lost = np.maximum(known.errors, 0.0).T
    pending = np.multiply.outer(lost, _choose(plan.pending_bias_bound, coordinate))
    return Curve(
        t,
        known.values.reshape(shape),
        np.sqrt(variance),
        np.broadcast_to(bias_bound[:, np.newaxis] + pending, known.values.shape).reshape(shape),
        np.divide(fourth, variance**2, out=np.zeros(len(t)), where=variance > 0),
        plan.unit,
    )


def nearest_path(path: Floats, low: Floats, high: Floats) -> Floats:
    """The path from 0 with every step in its [low, high] and the least sum of squared distances.

    Exact, by dynamic programming. The least cost of a path up to a place is convex in where it
    ends, and its derivative piecewise linear. A step leaves what is left of the minimum where it is
    and shifts the rest by high - low, once paths are counted from the lowest one. (With bounds on
    one side alone this is an isotonic regression; with both it is none, clipped or not.)

    >>> nearest_path(np.array([1.0, 0.5, 3.0]), np.zeros(3), np.ones(3))
    array([1.  , 1.25, 2.25])
    """
    start, widths = np.cumsum(low), (high - low).tolist()
    left, right, minima = _Side(-1), _Side(1), []
    for height, width in zip((path - start).tolist(), widths, strict=True):
        right.shift += width
        if height > right.start:
            minima.append(_move_zero(height, left, right))
        elif height < left.start:
            minima.append(_move_zero(height, right, left))
        else:
            left.push(height, 0.0, 1.0)
            right.push(height, 0.0, 1.0)
            minima.append(height)
    nearest = np.empty(len(path))
    here, width = math.inf, math.inf  # of the step after
    for place in range(len(path) - 1, -1, -1):
        here = minima[place] if here == math.inf else min(max(minima[place], here - width), here)
        nearest[place], width = here, widths[place]
    return np.asarray(nearest + start)


class _Side:
    """Where the derivative of a cost changes, left (-1) or right (1) of its zeros, nearest last.

    A knot is a place, without the shift, and by how much the derivative and its slope change there.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.shift = 0.0
        self.knots = [(0.0, math.inf, 0.0)]

    @property
    def start(self) -> float:
        """Where the nearest knot is."""
        return self.knots[-1][0] + self.shift

    def push(self, place: float, jump: float, bend: float) -> None:
        self.knots.append((place - self.shift, jump, bend))


def _move_zero(height: float, behind: _Side, ahead: _Side) -> float:
    """Pass the knots ahead, once the distance from the height is added, up to the new zero."""
    place, slope = ahead.start, 1.0
    value = -abs(place - height)
    while True:
        _, jump, bend = ahead.knots.pop()
        if value + jump >= 0:
            behind.push(place, -value, slope)
            ahead.push(place, value + jump, slope + bend)
            return place
        behind.push(place, jump, -bend)
        value, slope, gap = value + jump, slope + bend, abs(ahead.start - place)
        if value + slope * gap >= 0:
            place += ahead.sign * min(gap, -value / slope)
            behind.push(place, 0.0, slope)
            ahead.push(place, 0.0, slope)
            return place
        value, place = value + slope * gap, ahead.start
