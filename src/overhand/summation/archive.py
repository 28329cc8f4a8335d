"""What a server keeps: which batches came, spans of them, an archive of all nodes' estimates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from overhand.estimates import Estimate, Run
from overhand.model import Floats, Node
from overhand.plan import NodeSum, Plan


class Numbers:
    """Numbers of batches that came, as half-open intervals: no larger than its gaps are many.

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
        """Add consecutive numbers, unless one of them is there: whether that was so."""
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
    """Whether one of them is."""

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

    def with_lost(self, plan: Plan) -> NodeSum:
        """The sum of all, those who are lost as the middle of what they may hold."""
        assert self.total is not None
        value = self.total.value + plan.imputed * self.lost_users
        return self.total._replace(
            value=value, slack=self.total.slack + plan.pending_slack * self.lost_users
        )


class Prefix(NamedTuple):
    """The first users, as far as batches reach without a gap."""

    stop: int
    total: NodeSum
    """The sum of those who are in a batch that has one."""
    lost_users: int
    """How many are not."""
    is_fallback: bool
    """Whether a batch of the cover is missing or lost."""


class Archive:
    """The estimates of all nodes so far: public, and small beside the users they came from."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lowest = plan.tree.lowest
        self._block = plan.mechanisms[0]
        self._blocks = np.empty((64, *plan.values.shape))
        self._used = 0  # blocks that came one after the other, from the first on
        self._nodes: dict[Node, NodeSum] = {}

    def keep_blocks(self, values: Floats) -> None:
        """The single sums of the lowest batches that follow those that came so far."""
        needed = self._used + len(values)
        if needed > len(self._blocks):
            grown = np.empty((max(needed, 2 * len(self._blocks)), *self._blocks.shape[1:]))
            grown[: self._used] = self._blocks[: self._used]
            self._blocks = grown
        self._blocks[self._used : needed] = values
        self._used = needed

    def keep(self, node: Node, known: NodeSum) -> None:
        """The estimate of any node, which may be better than the last."""
        if node.level == 1 and node.start == self._used * self._lowest and known.slack == 0:
            self.keep_blocks(np.asarray(known.value)[np.newaxis])
        else:
            self._nodes[node] = known

    def _found(self, node: Node) -> NodeSum | None:
        if node.level == 1 and node.stop <= self._used * self._lowest:
            value = self._blocks[node.start // self._lowest]
            return NodeSum(value, self._block.variance, self._block.fourth_cumulant, 0.0)
        return self._nodes.get(node)

    def between(self, start: int, stop: int, covered: int, run: Run | None) -> Estimate:
        """The sum of a range; who is in none of its batches counts as the middle of its values."""
        zero = 0.0 if self._plan.values.is_scalar else np.zeros(self._plan.values.shape)
        total, users = NodeSum(zero, 0.0, 0.0, 0.0), 0
        place = -(-start // self._lowest) * self._lowest
        while place + self._lowest <= covered:
            nodes = self._plan.tree.starting_at(place, covered)
            found = next(((n, s) for n in nodes if (s := self._found(n)) is not None), None)
            if found is None:
                place += self._lowest
                continue
            node, known = found
            total, users, place = total.plus(known), users + node.size, node.stop
        if self._plan.values.is_scalar:
            total = total._replace(value=float(total.value))
        pending = stop - start - users
        return total.estimate(self._plan, stop, pending=pending, start=start, run=run)

    def state(self) -> dict[str, Any]:
        """Ready for JSON."""
        nodes = [[*node, known.state()] for node, known in self._nodes.items()]
        return {"blocks": self._blocks[: self._used].tolist(), "nodes": nodes}

    @classmethod
    def restored(cls, plan: Plan, state: Mapping[str, Any]) -> Archive:
        archive = cls(plan)
        blocks = np.array(state["blocks"], np.float64)
        archive.keep_blocks(blocks.reshape(-1, *plan.values.shape))
        archive._nodes = {
            Node(level, start, stop): NodeSum.restored(known)
            for level, start, stop, known in state["nodes"]
        }
        return archive
