"""The server of Algorithms 2 and 3 as a pure state machine: batches in any order, estimates out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.model import Estimate, Node, Shuffled
from overhand.plan import NodeSum, Plan, own_weight
from overhand.randomness import Random, source_of
from overhand.summation.archive import Archive, Numbers


class SumServer:
    """Adds up whatever batches there are, in any order, late ones included.

    Where a batch is missing, those below it stand in, with the larger error bar that is theirs;
    where a lowest batch is missing, the estimate waits for one above it. Whoever of the users of
    an estimate is in no batch that came counts as the middle of what it may hold.

    What no later estimate can need is forgotten: batches below one that is settled, and settled
    ones that every estimate begins with. So memory grows with batches that are missing, not with
    those that came. With `archive`, every node's estimate is kept, which is what the sum of a
    range needs.

    Full batches in, as their shufflers release them; estimates out:

    >>> import overhand as oh
    >>> from overhand.shufflers import shuffle
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> server, random = SumServer(plan), oh.seeded_random(1)
    >>> for t in range(1, 301):
    ...     for node in plan.tree.closes(t):
    ...         messages = plan.mechanism(node).encode_many([1] * node.size, random)
    ...         server.receive(node, shuffle(messages.gathered(node.size), random))
    >>> estimate = server.estimate(300)
    >>> abs(estimate.value - 300) < 4 * estimate.rms
    True

    A batch is late, and those below it stand in for it:

    >>> server = SumServer(plan)
    >>> for number in range(9):
    ...     server.receive_sum(plan.tree.node(level=1, number=number), 3.0)
    >>> first, was_fallback = server.estimate(27), server.is_fallback
    >>> server.receive_sum(plan.tree.node(level=2, number=0), 27.0)
    >>> was_fallback, server.is_fallback, server.estimate(27).std < first.std
    (True, False, True)
    """

    def __init__(self, plan: Plan, *, archive: bool = False) -> None:
        self.plan = plan
        self._tree = plan.tree
        self._sizes = plan.tree.sizes
        self._laws = [(m.variance, m.fourth_cumulant) for m in plan.mechanisms]
        self._shape = plan.values.shape
        self._came = [Numbers() for _ in self._sizes]
        self._spans: list[dict[int, _Span]] = [{} for _ in self._sizes]
        self._tails = [-1] * len(self._sizes)  # where the span starts that grew last
        self._upper_reach = 0  # where the last batch above the lowest level ends
        self._begin = 0  # every estimate begins with the same sum of so many users
        self._beginning = NodeSum(
            0.0 if plan.values.is_scalar else np.zeros(plan.values.shape), 0.0, 0.0, 0.0
        )
        self._lost_stop = math.inf  # where the first lost batch ends that the beginning went into
        self._is_blocked = False  # all batches of some user are lost: no estimate goes past it
        self._found: tuple[int, NodeSum, bool] | None = None  # what `_prefix` says, while it holds
        self.archive = Archive(plan) if archive else None

    def copy(self) -> SumServer:
        """Another one that has received the same, without an archive."""
        result = SumServer(self.plan)
        result._came = [came.copy() for came in self._came]
        result._spans = [spans.copy() for spans in self._spans]
        result._tails, result._upper_reach = self._tails.copy(), self._upper_reach
        result._begin, result._beginning = self._begin, self._beginning
        result._lost_stop, result._is_blocked = self._lost_stop, self._is_blocked
        return result

    def receive(self, node: Node, shuffled: Shuffled, random: Random | None = None) -> None:
        """A batch that became full (Algorithm 2, step 4); `random` is for the server's own noise.

        Which is the operating system's, unless a simulation says a seed.
        """
        mechanism = self.plan.mechanism(node)
        noise = mechanism.server_noise(source_of(random), 1)
        self.receive_sum(node, mechanism.sum_of(shuffled, noise))

    def receive_sum(self, node: Node, value: Any, slack: float = 0.0) -> None:
        """The analyzed sum of a batch, which may be off by `slack` beyond its noise."""
        if (self._shape or not isinstance(value, float)) and np.shape(value) != self._shape:
            raise errors.InvalidValue(
                f"a sum of shape {np.shape(value)} where one of shape {self._shape} is due"
            )
        self._note(node)
        # A copy: what was received stays as it was received.
        kept = np.array(value, np.float64) if self._shape else float(value)
        own = NodeSum(kept, *self._laws[node.level - 1], slack)
        if self.archive is not None:
            self.archive.keep(node, own)
        self._take(*node, own)

    def receive_blocks(self, start: int, blocks: int, total: Any) -> None:
        """The sum of consecutive lowest batches within one batch of the next level.

        An archive is told of them one by one, by `archive.keep_blocks`.
        """
        stop = start + blocks * self._sizes[0]
        if len(self._sizes) > 1 and start // self._sizes[1] != (stop - 1) // self._sizes[1]:
            raise ProtocolViolation(f"lowest batches {start} .. {stop} are not of one batch above")
        self._note(Node(1, start, stop), blocks)
        variance, fourth = self._laws[0]
        self._take(1, start, stop, NodeSum(total, blocks * variance, blocks * fourth, 0.0))

    def lose(self, node: Node) -> None:
        """A batch came, and its sum cannot be told: no estimate waits for it."""
        self._note(node)
        self._take(*node, None)

    def _note(self, node: Node, batches: int = 1) -> None:
        """Refuse what is no batch of the plan, or so many of them, or came already."""
        level, start, stop = node
        size = self._sizes[level - 1] if 1 <= level <= len(self._sizes) else 0
        is_whole = size > 0 and start % size == 0 and stop - start == batches * size
        if not is_whole or not 0 <= start < stop <= self._tree.horizon:
            raise errors.InvalidValue(f"no batch of this plan is {node}")
        if not self._came[level - 1].add(start // size, stop // size):
            raise ProtocolViolation(f"{node} received twice")

    # Everything that came, as spans: batches of one level side by side, all of one batch above.

    def _take(self, level: int, start: int, stop: int, own: NodeSum | None) -> None:
        is_covered = self._is_covered(level, start, stop)
        if level > 1:
            self._upper_reach = max(self._upper_reach, stop)
        if self._is_blocked or is_covered:
            return
        self._found = None
        if self._improve(level, start, stop, own) == self._begin:
            self._extend_beginning()

    def _is_covered(self, level: int, start: int, stop: int) -> bool:
        """Whether every estimate from now on has another sum of these users."""
        if stop <= self._begin:
            return True
        if start >= self._upper_reach:  # as always, where batches come in order
            return False
        for above in range(level, len(self._sizes)):
            size = self._sizes[above]
            first = start - start % size
            span = self._spans[above].get(first)
            if span is not None:
                if span.is_settled and span.best is not None:
                    return True
            elif first >= self._begin and first // size in self._came[above]:
                return True  # it is joined to the span before it, or below one that is settled
        return False

    def _improve(self, level: int, start: int, stop: int, own: NodeSum | None) -> int:
        """Combine a batch with its children, and then the one above if that is made better.

        Returns where the highest that changed starts.
        """
        best, is_settled = self._best(level, start, stop, own)
        if self.archive is not None and best is not None and best is not own:
            self.archive.keep(Node(level, start, stop), best)
        self._put(level, start, _Span(stop, own, best, is_settled))
        if is_settled and best is not None:
            self._forget_below(level, start, stop)
        if level < len(self._sizes):
            size = self._sizes[level]
            parent = start - start % size
            above = self._spans[level].get(parent)
            if above is not None and above.own is not None and not above.is_settled:
                return self._improve(level + 1, parent, parent + size, above.own)
        return start

    def _best(
        self, level: int, start: int, stop: int, own: NodeSum | None
    ) -> tuple[NodeSum | None, bool]:
        """The best sum of a batch that came, and whether it stays so."""
        if level == 1 or own is None or not self.plan.combine:
            return own, True
        spans, size = self._spans[level - 2], self._sizes[level - 2]
        total: NodeSum | None = None
        is_whole = is_settled = True
        place = start
        while place < stop:
            span = spans.get(place)
            if span is None:
                is_whole, place = False, place + size
                continue
            if span.best is None:
                return own, True  # one is lost, so they never add up to this batch
            total = span.best if total is None else total.plus(span.best)
            is_settled, place = is_settled and span.is_settled, span.stop
        if total is None or not is_whole:
            return own, False
        weight = own_weight(own.variance, total.variance)
        return own.combined_with(total, weight), is_settled

    def _put(self, level: int, start: int, span: _Span) -> None:
        """Keep a span, joined to the one before it if neither can change any more."""
        spans = self._spans[level - 1]
        if span.is_settled and span.best is not None:
            tail = self._tails[level - 1]
            left = spans.get(tail)
            is_first = level < len(self._sizes) and start % self._sizes[level] == 0
            is_beside = left is not None and left.stop == start and left.is_settled
            if left is not None and left.best is not None and is_beside and not is_first:
                spans.pop(start, None)
                spans[tail] = _Span(span.stop, None, left.best.plus(span.best), True)
                return
            self._tails[level - 1] = start
        spans[start] = span

    def _forget_below(self, level: int, start: int, stop: int) -> None:
        for below in range(level - 1):
            spans, size, place = self._spans[below], self._sizes[below], start
            while place < stop and spans:
                span = spans.pop(place, None)
                place = place + size if span is None else span.stop

    def _extend_beginning(self) -> None:
        """Add up what every later estimate will begin with."""
        while (found := self._settled_next()) is not None:
            level, best, stop = found
            for at_level in range(level - 1, len(self._sizes)):  # those above are lost
                self._spans[at_level].pop(self._begin, None)
            self._beginning = self._beginning.plus(best)
            self._begin = stop

    def _settled_next(self) -> tuple[int, NodeSum, int] | None:
        """The span that follows the beginning, if nothing can take its place any more."""
        place = self._begin
        if self._is_blocked or place + self._sizes[0] > self._tree.horizon:
            return None
        for node in self._tree.starting_at(place, self._tree.horizon):
            span = self._spans[node.level - 1].get(place)
            if span is None or not span.is_settled:
                return None
            if span.best is not None:
                return node.level, span.best, span.stop
            self._lost_stop = min(self._lost_stop, node.stop)
        self._is_blocked = True
        for spans in self._spans:
            spans.clear()
        return None

    # What is read off them.

    def _prefix(self) -> tuple[int, NodeSum, bool]:
        """How many users are counted, their sum, and whether a batch of the cover is missing."""
        if self._found is None:
            self._found = self._added_up()
        return self._found

    def _added_up(self) -> tuple[int, NodeSum, bool]:
        place, total, starts = self._begin, self._beginning, list[tuple[int, int]]()
        while (found := self._next(place)) is not None:
            level, span = found
            assert span.best is not None
            total = total.plus(span.best)
            starts.append((level, place))
            place = span.stop
        is_fallback = place >= self._lost_stop or any(
            level < len(self._sizes)
            and start % self._sizes[level] == 0
            and start + self._sizes[level] <= place
            for level, start in starts
        )
        return place, total, is_fallback

    def _next(self, place: int) -> tuple[int, _Span] | None:
        """The highest span that starts at this place and has a sum."""
        for level in range(len(self._sizes), 0, -1):
            if place % self._sizes[level - 1] == 0:
                span = self._spans[level - 1].get(place)
                if span is not None and span.best is not None:
                    return level, span
        return None

    @property
    def covered(self) -> int:
        """How many users the batches so far reach without a gap."""
        return self._prefix()[0]

    @property
    def is_fallback(self) -> bool:
        """Whether the last estimate has to do without a batch of the cover (Definition 3.1)."""
        return self._prefix()[2]

    @property
    def cover_sum(self) -> Any:
        """The sum over the cover: the estimate without pending users."""
        return self._prefix()[1].value

    def estimate(self, t: int | None = None) -> Estimate:
        """The sum of the first `t` users, or of all that batches reach."""
        covered, total, _ = self._prefix()
        t = covered if t is None else errors.whole("t", t, least=0, most=self.plan.horizon)
        if t < covered:
            raise ProtocolViolation(f"no estimate at t={t}: {covered} users are counted already")
        return total.estimate(self.plan, t, pending=t - covered)

    def between(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1, from the fewest batches."""
        if self.archive is None:
            raise errors.InvalidValue("sums of a range need a server with archive=True")
        start = errors.whole("start", start, least=0)
        stop = errors.whole("stop", stop, least=start)
        covered = self.covered
        if stop > covered + self._sizes[0] - 1:
            raise errors.InvalidValue(f"stop={stop} is beyond the {covered} users counted")
        return self.archive.between(start, stop, min(stop, covered))

    @property
    def reach(self) -> int:
        """Where the last batch that came ends."""
        return max(size * came.stop for size, came in zip(self._sizes, self._came, strict=True))

    def missing(self, level: int, below: int) -> Iterator[int]:
        """The numbers below this of the batches of a level that did not come."""
        return self._came[level - 1].gaps(below)

    @property
    def kept(self) -> int:
        """How many spans and intervals of batches are in memory."""
        intervals = sum(came.intervals for came in self._came)
        return intervals + sum(len(spans) for spans in self._spans)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, ready for JSON: nothing here is private."""
        return {
            "came": [came.state() for came in self._came],
            "spans": [
                [[start, span.stop, *map(_saved, (span.own, span.best)), span.is_settled]
                 for start, span in spans.items()]
                for spans in self._spans
            ],
            "tails": self._tails.copy(),
            "begin": [self._begin, _saved(self._beginning)],
            "lost": [None if self._lost_stop == math.inf else self._lost_stop, self._is_blocked],
            "archive": None if self.archive is None else self.archive.state(),
        }  # fmt: skip

    @classmethod
    def restored(cls, plan: Plan, state: Mapping[str, Any]) -> SumServer:
        """The server that `state` was taken from."""
        server = cls(plan)
        server._came = [Numbers(*intervals) for intervals in state["came"]]
        server._spans = [
            {start: _Span(stop, _read(own), _read(best), settled)
             for start, stop, own, best, settled in spans}
            for spans in state["spans"]
        ]  # fmt: skip
        server._tails = list(state["tails"])
        ends = zip(server._sizes[1:], server._came[1:], strict=True)
        server._upper_reach = max((size * came.stop for size, came in ends), default=0)
        begin, beginning = state["begin"]
        server._begin, server._beginning = begin, _read(beginning) or server._beginning
        lost_stop, server._is_blocked = state["lost"]
        server._lost_stop = math.inf if lost_stop is None else lost_stop
        if state["archive"] is not None:
            server.archive = Archive.restored(plan, state["archive"])
        return server


class _Span(NamedTuple):
    """Consecutive batches that came, up to place `stop`: one that may change, or settled ones.

    `own` is the own sum of a single one, `best` the estimate of all; both are None if it is lost.
    """

    stop: int
    own: NodeSum | None
    best: NodeSum | None
    is_settled: bool
    """Whether no other batch can make it better."""


def _saved(found: NodeSum | None) -> list[Any] | None:
    return None if found is None else found.state()


def _read(saved: list[Any] | None) -> NodeSum | None:
    return None if saved is None else NodeSum.restored(saved)
