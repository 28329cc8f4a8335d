"""What a server keeps: which batches came, spans of them, an archive of all sums."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from overhand import errors
from overhand.estimates import Estimate, Run
from overhand.model import Counts, Floats, Node
from overhand.plan import NodeSum, Plan, own_weight
from overhand.trees import RegularTree

Pending = Literal["middle", "rate"]
"""How users in no received batch count: as the middle, or at the rate of the last blocks."""
_RECENT = 256  # blocks whose rate is that of the users who are pending


def is_rate(pending: Pending, *, archive: bool) -> bool:
    """Whether pending users count at a rate, which needs an archive."""
    if pending not in get_args(Pending):
        known = ", ".join(get_args(Pending))
        raise errors.InvalidValue(f"pending={pending!r} must be one of {known}")
    if pending == "rate" and not archive:
        raise errors.InvalidValue("pending='rate' needs archive=True")
    return pending == "rate"


class Numbers:
    """Numbers of received batches, as half-open intervals: its size is its number of gaps.

    >>> numbers = Numbers()
    >>> [numbers.add(first, stop) for first, stop in ((0, 2), (5, 6), (4, 5), (2, 3), (1, 3))]
    [True, True, True, True, False]
    >>> numbers.stop, numbers.intervals, list(numbers.gaps(below=8))
    (6, 2, [3, 6, 7])
    """

    def __init__(self, starts: list[int] | None = None, stops: list[int] | None = None) -> None:
        self._starts, self._stops = list(starts or []), list(stops or [])

    def copy(self) -> Numbers:
        return Numbers(self._starts, self._stops)

    def state(self) -> list[list[int]]:
        return [self._starts.copy(), self._stops.copy()]

    @property
    def stop(self) -> int:
        """One more than the largest."""
        return self._stops[-1] if self._stops else 0

    @property
    def intervals(self) -> int:
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number)
        return place > 0 and number < self._stops[place - 1]

    def add(self, first: int, stop: int) -> bool:
        """Add consecutive numbers unless one is already there; returns whether one was."""
        place = bisect_right(self._starts, first)
        before = self._stops[place - 1] if place else -1
        after = self._starts[place] if place < len(self._starts) else math.inf
        if before > first or after < stop:
            return False
        if before == first and after == stop:
            self._stops[place - 1] = self._stops.pop(place)
            del self._starts[place]
        elif before == first:
            self._stops[place - 1] = stop
        elif after == stop:
            self._starts[place] = first
        else:
            self._starts.insert(place, first)
            self._stops.insert(place, stop)
        return True

    def gaps(self, below: int) -> Iterator[int]:
        """The numbers that are not there, smallest first."""
        start = 0
        for first, stop in zip(self._starts, self._stops, strict=True):
            yield from range(start, min(first, below))
            start = stop
        yield from range(start, below)


class Span(NamedTuple):
    """Consecutive batches that came, up to place `stop`: one that may change, or settled ones."""

    stop: int
    own: NodeSum | None
    """The own sum of a single one that is not lost."""
    best: NodeSum | None
    """The estimate of all, or None where one is lost and nothing stands in for all of it yet."""
    is_settled: bool
    """Whether no other batch can make it better."""
    is_lost: bool = False
    """Whether one of them is lost, so that they cannot be combined with a sum of all."""
    lost_users: int = 0
    """How many of their users are in no batch that has a sum, and not in `best`."""

    def joined(self, after: Span) -> Span:
        """Settled batches and settled ones right after them."""
        assert self.best is not None
        assert after.best is not None
        return Span(
            after.stop,
            None,
            self.best.plus(after.best),
            True,
            self.is_lost or after.is_lost,
            self.lost_users + after.lost_users,
        )

    def state(self) -> list[Any]:
        """Ready for JSON."""
        own, best = [None if one is None else one.state() for one in (self.own, self.best)]
        return [self.stop, own, best, *self[3:]]

    @classmethod
    def restored(cls, state: list[Any]) -> Span:
        stop, *sums, is_settled, is_lost, lost_users = state
        own, best = [None if one is None else NodeSum.restored(one) for one in sums]
        return cls(stop, own, best, is_settled, is_lost, lost_users)


class Children(NamedTuple):
    """What is known of the batches below one."""

    total: NodeSum | None
    """The sum of those who are in one that has a sum, if every one has come."""
    lost_users: int
    is_settled: bool
    is_lost: bool
    """Whether one of them is lost."""

    @classmethod
    def of(cls, spans: Mapping[int, Span], size: int, places: range) -> Children:
        """Those of this size that hold the users at these places."""
        total: NodeSum | None = None
        lost_users, is_whole, is_settled, is_lost, place = 0, True, True, False, places.start
        while place < places.stop:
            child = spans.get(place)
            is_lost = is_lost or (child is not None and child.is_lost)
            if child is None or child.best is None:
                is_whole, place = False, place + size
                continue
            total = child.best if total is None else total.plus(child.best)
            lost_users += child.lost_users
            is_settled, place = is_settled and child.is_settled, child.stop
        return cls(total if is_whole else None, lost_users, is_settled, is_lost)

    def under(self, span: Span) -> Span:
        """The batch above them at its best: combined with them, or they stand in if it is lost."""
        own, total = span.own, self.total
        if total is None or (own is None and not self.is_settled):
            return span
        if own is None:
            return Span(span.stop, None, total, True, True, self.lost_users)
        if self.is_lost:
            return span._replace(is_settled=True)
        weight = own_weight(own.variance, total.variance)
        return Span(span.stop, own, own.combined_with(total, weight), self.is_settled)

    def agree(self, plan: Plan, level: int, own: NodeSum) -> bool:
        """Whether they can be of the same users as the batch above, as far as they are there.

        Those who are lost count as the middle of what they may hold.
        """
        if self.total is None:
            return True
        value = self.total.value + plan.imputed * self.lost_users
        slack = self.total.slack + plan.pending_slack * self.lost_users
        return plan.plausibility.agree(level, own, self.total._replace(value=value, slack=slack))


class Prefix(NamedTuple):
    """The first users, as far as batches reach without a gap."""

    stop: int
    total: NodeSum
    """The sum of those who are in a batch that has one."""
    lost_users: int
    """How many are not."""
    is_fallback: bool
    """Whether a batch of the cover is missing or lost."""


class BatchSums:
    """The own sums of batches, by level and number, as they were received: NaN where none is.

    >>> from overhand.trees import RegularTree
    >>> sums = BatchSums(RegularTree(horizon=8, degrees=(2, 2)))
    >>> sums.put(1, slice(0, 2), np.array([1.0, 2.0]), 0.0)
    >>> sums.put(1, slice(3, 4), np.array([2.0]), 0.5)
    >>> sums.of_level(1, batches=4)
    (array([ 1.,  2., nan,  2.]), array([0. , 0. , 0. , 0.5]))
    """

    def __init__(self, tree: RegularTree, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self._values = [np.empty((0, *shape)) for _ in tree.sizes]
        self._slacks = [np.empty(0) for _ in tree.sizes]
        self.stops = [0] * tree.levels
        """One more than the largest number, by level."""
        self.lost_users: dict[int, int] = {}
        """Users in a lowest batch that is lost, by its number: not all, if some are nobody."""

    def put(self, level: int, numbers: slice | Counts, values: Floats, slacks: Any) -> None:
        """The sums of these batches, and how far each may be off beyond its noise."""
        index = level - 1
        stop = numbers.stop if isinstance(numbers, slice) else 1 + int(numbers.max(initial=-1))
        self.stops[index] = max(self.stops[index], stop)
        self._values[index] = _grown(self._values[index], stop, np.nan)
        self._slacks[index] = _grown(self._slacks[index], stop, 0.0)
        self._values[index][numbers] = values
        self._slacks[index][numbers] = slacks

    def drop(self, level: int, number: int) -> None:
        """Forget a sum that is not believed."""
        self._values[level - 1][number] = np.nan

    def of_level(self, level: int, batches: int) -> tuple[Floats, Floats]:
        """The sums of the first batches of a level, and their slacks."""
        index = level - 1
        self._values[index] = _grown(self._values[index], batches, np.nan)
        self._slacks[index] = _grown(self._slacks[index], batches, 0.0)
        return self._values[index][:batches], self._slacks[index][:batches]

    def state(self) -> dict[str, Any]:
        """Ready for JSON: a missing sum is null."""
        levels = [self.of_level(level, stop) for level, stop in enumerate(self.stops, start=1)]
        return {
            "sums": [_rows(values) for values, _ in levels],
            "slacks": [slacks.tolist() if slacks.any() else 0.0 for _, slacks in levels],
            "lost_users": list(self.lost_users.items()),
        }

    @classmethod
    def restored(
        cls, tree: RegularTree, shape: tuple[int, ...], state: Mapping[str, Any]
    ) -> BatchSums:
        sums, none = cls(tree, shape), np.full(shape, np.nan)
        kept = zip(state["sums"], state["slacks"], strict=True)
        for level, (values, slacks) in enumerate(kept, start=1):
            rows = np.array([none if value is None else value for value in values], np.float64)
            sums.put(level, slice(0, len(values)), rows.reshape(-1, *shape), slacks)
        sums.lost_users = dict(state["lost_users"])
        return sums


def flat(rows: Floats) -> Floats:
    """Rows of coordinates, whatever shape a value has."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _rows(values: Floats) -> list[Any]:
    rows: list[Any] = values.tolist()
    for number in np.flatnonzero(np.isnan(flat(values)).any(axis=1)):
        rows[number] = None
    return rows


def _grown(array: Floats, needed: int, missing: float) -> Floats:
    if needed <= len(array):
        return array
    grown = np.full((max(needed, 2 * len(array)), *array.shape[1:]), missing)
    grown[: len(array)] = array
    return grown


class Archive:
    """The sums and estimates of all nodes so far: public, and few compared with their users."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lowest = plan.tree.lowest
        self._block = plan.mechanisms[0]
        self.sums = BatchSums(plan.tree, plan.values.shape)
        self._best: dict[Node, NodeSum] = {}
        self._rate: tuple[int, Any] = (-1, None)  # of the users after so many, while it holds

    def keep_blocks(self, values: Floats) -> None:
        """The single sums of the lowest batches that follow those that came so far."""
        first = self.sums.stops[0]
        self.sums.put(1, slice(first, first + len(values)), values, 0.0)

    def keep_own(self, node: Node, own: NodeSum) -> None:
        """The sum of any batch, as it was received."""
        number = node.start // node.size
        row, self._rate = np.asarray(own.value)[np.newaxis], (-1, None)
        self.sums.put(node.level, slice(number, number + 1), row, own.slack)
        if node.level > 1:
            self._best[node] = own

    def keep_best(self, node: Node, best: NodeSum) -> None:
        """The estimate of a batch above the lowest level, which may be better than the last."""
        self._best[node] = best

    def lose(self, node: Node, users: int) -> None:
        """A batch of this many users has no sum, or none that is believed."""
        if node.level == 1:
            self.sums.lost_users[node.start // node.size] = users
        elif self._best.pop(node, None) is not None:
            self.sums.drop(node.level, node.start // node.size)

    def _found(self, node: Node) -> NodeSum | None:
        if node.level > 1:
            return self._best.get(node)
        number = node.start // self._lowest
        if number >= self.sums.stops[0]:
            return None
        values, slacks = self.sums.of_level(1, number + 1)
        if np.isnan(values[number]).any():
            return None
        law = self._block
        return NodeSum(values[number], law.variance, law.fourth_cumulant, float(slacks[number]))

    def rate(self, covered: int) -> Any:
        """What one later user is likely to hold, by coordinate: the rate of the last blocks.

        Shrunk towards the middle as far as noise alone would take it there (James and Stein): with
        m and s the middle and the variance of a coordinate's rate, m + w (rate - m), where w is 1
        less the ratio of s to the mean of (rate - m)^2 over all coordinates, and 0 if negative.
        """
        if self._rate[0] == covered:
            return self._rate[1]
        stop = covered // self._lowest
        rows = flat(self.sums.of_level(1, stop)[0])[max(0, stop - _RECENT) :]
        rows = rows[~np.isnan(rows).any(axis=1)]
        middle = np.ravel(np.asarray(self._plan.imputed, np.float64))
        rate, values = middle, self._plan.values
        if len(rows):
            away = rows.mean(axis=0) / self._lowest - middle
            noise, square = self._block.variance / len(rows) / self._lowest**2, np.mean(away**2)
            weight = max(0.0, 1 - noise / square) if square > 0 else 0.0
            rate = np.clip(middle + weight * away, values.lows, values.highs)
        found = float(rate[0]) if values.is_scalar else rate.reshape(values.shape)
        self._rate = covered, found
        return found

    def between(
        self, start: int, stop: int, covered: int, run: Run | None, *, has_rate: bool
    ) -> Estimate:
        """The sum of a range; users in none of its batches count as the middle of their values.

        With `has_rate`, they count at the rate of the last blocks up to the one its end is in.
        """
        start = errors.whole("start", start, least=0)
        stop = errors.whole("stop", stop, least=start)
        if stop > covered + self._lowest - 1:
            raise errors.InvalidValue(f"stop={stop} is beyond the {covered} users counted")
        zero = 0.0 if self._plan.values.is_scalar else np.zeros(self._plan.values.shape)
        total, users = NodeSum(zero, 0.0, 0.0, 0.0), 0
        place, end = -(-start // self._lowest) * self._lowest, min(stop, covered)
        while place + self._lowest <= end:
            nodes = self._plan.tree.starting_at(place, end)
            found = next(((n, s) for n in nodes if (s := self._found(n)) is not None), None)
            if found is None:
                place += self._lowest
                continue
            node, known = found
            total, users, place = total.plus(known), users + node.size, node.stop
        if self._plan.values.is_scalar:
            total = total._replace(value=float(total.value))
        pending, reached = stop - start - users, -(-stop // self._lowest) * self._lowest
        rate = self.rate(min(covered, reached)) if pending and has_rate else None
        return total.estimate(self._plan, stop, pending=pending, start=start, rate=rate, run=run)

    def state(self) -> dict[str, Any]:
        """Ready for JSON."""
        nodes = [[*node, known.state()] for node, known in self._best.items()]
        return {**self.sums.state(), "nodes": nodes}

    @classmethod
    def restored(cls, plan: Plan, state: Mapping[str, Any]) -> Archive:
        archive = cls(plan)
        archive.sums = BatchSums.restored(plan.tree, plan.values.shape, state)
        archive._best = {
            Node(level, start, stop): NodeSum.restored(known)
            for level, start, stop, known in state["nodes"]
        }
        return archive
