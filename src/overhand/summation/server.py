"""The server of Algorithms 2 and 3 as a pure state machine: batches in any order, estimates out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.estimates import Estimate, Run
from overhand.model import Node, Shuffled
from overhand.plan import NodeSum, Plan, run_of
from overhand.randomness import Random, source_of
from overhand.summation.archive import Archive, Children, Numbers, Pending, Prefix, Span, is_rate
from overhand.summation.hindsight import Hindsight, in_hindsight


class SumServer:
    """Adds up the batches received so far, in any order, late ones included.

    Where a batch is missing, those below it stand in, with their larger error bar; where a lowest
    batch is missing, the estimate waits for it or for one above it. A user of an estimate who is in
    no received batch counts as the middle of what it may hold or, with `pending="rate"`, at the
    rate of the last 256 lowest batches.

    A batch that is lost (it came, but its sum is unknown) holds up nothing. Those below it stand in
    for good. The users of a lowest one count as pending at once, and for as long as no batch above
    it has a sum.

    What no later estimate can need is forgotten: batches below one that is settled, and settled
    ones that every estimate begins with. So memory grows with the number of missing batches, not
    of received or lost ones. With `archive`, every node's sum and estimate are kept, as sums of
    ranges, `hindsight` and `pending="rate"` require. With `checks`, a sum that honest users cannot
    have is lost, and one that disagrees with those below it gives way to them: both are
    `distrusted`.

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
    """

    def __init__(
        self,
        plan: Plan,
        *,
        archive: bool = False,
        checks: bool = False,
        pending: Pending = "middle",
    ) -> None:
        self.plan = plan
        self._run: Run | None = run_of(plan)  # None if there may be fewer users than places
        self._checks = plan.plausibility if checks else None
        self.distrusted: list[Node] = []  # since it was made or copied
        self._tree = plan.tree
        self._sizes = plan.tree.sizes
        self._laws = [(m.variance, m.fourth_cumulant) for m in plan.mechanisms]
        self._shape = plan.values.shape
        self._came = [Numbers() for _ in self._sizes]
        self._spans: list[dict[int, Span]] = [{} for _ in self._sizes]
        self._tails = [-1] * len(self._sizes)  # where the span starts that grew last
        self._upper_reach = 0  # where the last batch above the lowest level ends
        self._begin = 0  # every estimate begins with the same sum of this many users
        nothing: Any = 0.0 if plan.values.is_scalar else np.zeros(plan.values.shape)
        self._zero = self._beginning = NodeSum(nothing, 0.0, 0.0, 0.0)
        self._begin_lost = 0  # of those users, how many are in no batch that has a sum
        self._lost_stop = math.inf  # where the first lost batch ends that the beginning went into
        self._found: Prefix | None = None  # what `_prefix` says, while it holds
        self.archive = Archive(plan) if archive else None
        self._has_rate = is_rate(pending, archive=archive)

    def copy(self) -> SumServer:
        """A server that has received the same, without an archive and what needs one."""
        result = copy.copy(self)
        result.distrusted, result.archive, result._has_rate = [], None, False
        result._came, result._tails = [came.copy() for came in self._came], self._tails.copy()
        result._spans = [spans.copy() for spans in self._spans]
        return result

    def receive(self, node: Node, shuffled: Shuffled, random: Random | None = None) -> None:
        """Receive a full batch (Algorithm 2, step 4); `random` is for the server's own noise.

        That is OS randomness, unless a simulation gives a seed.
        """
        mechanism = self.plan.mechanism(node)
        noise = mechanism.server_noise(source_of(random), 1)
        self.receive_sum(node, mechanism.sum_of(shuffled, noise))

    def receive_sum(self, node: Node, value: Any, slack: float = 0.0, own: int = 0) -> None:
        """Receive the analyzed sum of a batch, which may be off by `slack` beyond its noise.

        `own` reports of it were the shuffling service's, which count as nothing.
        """
        if (self._shape or not isinstance(value, float)) and np.shape(value) != self._shape:
            raise errors.InvalidValue(f"a sum of shape {np.shape(value)} instead of {self._shape}")
        self._note(node, own=own)
        checks, users = self._checks, node.size - own
        if checks is not None and not checks.is_possible(node.level, users, value, slack):
            self.distrusted.append(node)
            self._lose(node, users)
            return
        # A copy: later changes by the caller do not reach it.
        kept = np.array(value, np.float64) if self._shape else float(value)
        known = NodeSum(kept, *self._laws[node.level - 1], slack)
        if self.archive is not None:
            self.archive.keep_own(node, known)
        is_settled = node.level == 1 or not self.plan.combine
        self._take(node.level, node.start, Span(node.stop, known, known, is_settled))

    def receive_blocks(self, start: int, blocks: int, total: Any) -> None:
        """Receive the sum of consecutive lowest batches within one batch of the next level.

        An archive is told of them one by one, by `archive.keep_blocks`.
        """
        stop = start + blocks * self._sizes[0]
        if len(self._sizes) > 1 and start // self._sizes[1] != (stop - 1) // self._sizes[1]:
            raise ProtocolViolation(f"lowest batches {start} .. {stop} are not in one batch above")
        self._note(Node(1, start, stop), blocks)
        variance, fourth = self._laws[0]
        own = NodeSum(total, blocks * variance, blocks * fourth, 0.0)
        self._take(1, start, Span(stop, own, own, True))

    def lose(self, node: Node, own: int = 0) -> None:
        """Note that a batch came whose sum is unknown: no estimate waits for it.

        `own` reports of it were the shuffling service's, which count as nothing.
        """
        own = errors.whole("own", own, least=0, most=max(0, node.size))
        self._note(node, own=own)
        self._lose(node, node.size - own)

    def _lose(self, node: Node, users: int) -> None:
        if self.archive is not None:
            self.archive.lose(node, users)
        lost = Span(node.stop, None, None, False, True)
        if node.level == 1:
            lost = Span(node.stop, None, self._zero, True, True, users)
        self._take(node.level, node.start, lost)

    def _note(self, node: Node, batches: int = 1, own: int = 0) -> None:
        """Refuse anything that is not `count` batches of the plan, or that came already."""
        level, start, stop = node
        size = self._sizes[level - 1] if 1 <= level <= len(self._sizes) else 0
        is_whole = size > 0 and start % size == 0 and stop - start == batches * size
        if not is_whole or not 0 <= start < stop <= self._tree.horizon:
            raise errors.InvalidValue(f"no batch of this plan is {node}")
        if not self._came[level - 1].add(start // size, stop // size):
            raise ProtocolViolation(f"{node} was received twice")
        self._run = None if own else self._run

    # Everything that came, as spans: batches of one level side by side, all of one batch above.

    def _take(self, level: int, start: int, span: Span) -> None:
        is_covered = self._is_covered(level, start, span.stop)
        if level > 1:
            self._upper_reach = max(self._upper_reach, span.stop)
        if is_covered:
            return
        self._found = None
        if self._improve(level, start, span) == self._begin:
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
                if span.is_settled:
                    return True
            elif first >= self._begin and first // size in self._came[above]:
                return True  # it is joined to the span before it, or below one that is settled
        return False

    def _improve(self, level: int, start: int, span: Span) -> int:
        """Combine a batch with its children, and then the one above if that is made better.

        Returns where the highest that changed starts.
        """
        if not span.is_settled:
            span = self._with_children(level, start, span)
            if self.archive is not None and span.own is not None and span.best is not None:
                self.archive.keep_best(Node(level, start, span.stop), span.best)
        self._put(level, start, span)
        if span.is_settled and level > 1:
            self._forget_below(level, start, span.stop)
        if level < len(self._sizes):
            parent = start - start % self._sizes[level]
            above = self._spans[level].get(parent)
            if above is not None and not above.is_settled:
                return self._improve(level + 1, parent, above)
        return start

    def _with_children(self, level: int, start: int, span: Span) -> Span:
        """A batch above the lowest level at its best, given what is known of its children.

        They are combined with its own sum, or stand in for it for good if it is lost.
        """
        own, has_checks = span.own, self._checks is not None
        below = Children.of(self._spans[level - 2], self._sizes[level - 2], range(start, span.stop))
        if own is not None and below.is_lost and not has_checks:
            return span._replace(is_settled=True)  # they never add up to this batch
        if own is not None and has_checks and not below.agree(self.plan, level, own):
            self.distrusted.append(Node(level, start, span.stop))
            if self.archive is not None:
                self.archive.lose(self.distrusted[-1], span.stop - start)
            span = Span(span.stop, None, None, False, True)
        return below.under(span)

    def _put(self, level: int, start: int, span: Span) -> None:
        """Keep a span, joined to the one before it if neither can change any more."""
        spans = self._spans[level - 1]
        if span.is_settled:
            tail = self._tails[level - 1]
            left = spans.get(tail)
            is_first = level < len(self._sizes) and start % self._sizes[level] == 0
            is_beside = left is not None and left.stop == start and left.is_settled
            if left is not None and is_beside and not is_first:
                spans.pop(start, None)
                spans[tail] = left.joined(span)
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
            level, span = found
            assert span.best is not None
            for at_level in range(level - 1, len(self._sizes)):  # those above are lost
                self._spans[at_level].pop(self._begin, None)
            self._beginning = self._beginning.plus(span.best)
            self._begin, self._begin_lost = span.stop, self._begin_lost + span.lost_users
            if span.is_lost:
                self._lost_stop = min(self._lost_stop, span.stop)

    def _settled_next(self) -> tuple[int, Span] | None:
        """The span that follows the beginning, if nothing can take its place any more."""
        for node in self._tree.starting_at(self._begin, self._tree.horizon):
            span = self._spans[node.level - 1].get(self._begin)
            if span is None:
                return None
            if span.best is not None:
                return (node.level, span) if span.is_settled else None
            # It is lost, and what stands in for it is not whole yet.
            self._lost_stop = min(self._lost_stop, node.stop)
        return None

    # What is read off them.

    def _prefix(self) -> Prefix:
        self._found = self._found or self._added_up()
        return self._found

    def _added_up(self) -> Prefix:
        place, total, lost_users = self._begin, self._beginning, self._begin_lost
        stops = [self._lost_stop]  # where batches end that are missing or lost
        while (found := self._next(place)) is not None:
            level, span = found
            assert span.best is not None
            total, lost_users = total.plus(span.best), lost_users + span.lost_users
            if span.is_lost:
                stops.append(span.stop)
            if level < len(self._sizes) and place % self._sizes[level] == 0:
                stops.append(place + self._sizes[level])
            place = span.stop
        return Prefix(place, total, lost_users, is_fallback=min(stops) <= place)

    def _next(self, place: int) -> tuple[int, Span] | None:
        """The highest span that starts at this place and has a sum, or others that stand in."""
        for level in range(len(self._sizes), 0, -1):
            if place % self._sizes[level - 1] == 0:
                span = self._spans[level - 1].get(place)
                if span is not None and span.best is not None:
                    return level, span
        return None

    @property
    def covered(self) -> int:
        """How many users the batches so far reach without a gap, lost ones included."""
        return self._prefix().stop

    @property
    def lost_users(self) -> int:
        """How many of them are only in lost batches: they count as the middle of their values."""
        return self._prefix().lost_users

    @property
    def is_fallback(self) -> bool:
        """Whether the last estimate has to do without a batch of the cover (Definition 3.1)."""
        return self._prefix().is_fallback

    @property
    def cover_sum(self) -> Any:
        """The sum over the cover: the estimate without pending and lost users."""
        return self._prefix().total.value

    def estimate(self, t: int | None = None) -> Estimate:
        """The sum of the first `t` users, or of all that batches reach."""
        covered, total, lost_users, _ = self._prefix()
        t = covered if t is None else errors.whole("t", t, least=0, most=self.plan.horizon)
        if t < covered:
            raise ProtocolViolation(f"no estimate at t={t}: {covered} users are already counted")
        pending = t - covered + lost_users
        rate = self._archived("a rate").rate(covered) if pending and self._has_rate else None
        return total.estimate(self.plan, t, pending=pending, rate=rate, run=self._run)

    def between(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1, from the fewest batches."""
        archive, has_rate = self._archived("a sum of a range"), self._has_rate
        return archive.between(start, stop, self.covered, self._run, has_rate=has_rate)

    def hindsight(self) -> Hindsight:
        """The whole history at the ends of lowest batches, by all batches that are in now."""
        return in_hindsight(self.plan, self._archived("hindsight").sums, self.covered)

    def _archived(self, what: str) -> Archive:
        if self.archive is None:
            raise errors.InvalidValue(f"{what} needs archive=True")
        return self.archive

    @property
    def reach(self) -> int:
        """Where the last batch that came ends."""
        return max(size * came.stop for size, came in zip(self._sizes, self._came, strict=True))

    def missing(self, level: int, below: int) -> Iterator[int]:
        """The numbers below this of the batches of a level that did not come."""
        return self._came[level - 1].gaps(below)

    def to_come(self, level: int) -> Iterator[int]:
        """The numbers of a level's batches that did not come, up to the one after all that did."""
        return self._came[level - 1].gaps(self._came[level - 1].stop + 1)

    @property
    def kept(self) -> int:
        """How many spans and intervals of batches are in memory."""
        return sum(came.intervals for came in self._came) + sum(map(len, self._spans))

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, ready for JSON: nothing here is private."""
        return {
            "run": self._run and self._run.name,
            "came": [came.state() for came in self._came],
            "spans": [
                [[start, *span.state()] for start, span in spans.items()] for spans in self._spans
            ],
            "tails": self._tails.copy(),
            "begin": [self._begin, self._beginning.state()],
            "lost": [None if self._lost_stop == math.inf else self._lost_stop, self._begin_lost],
            "has_rate": self._has_rate,
            "archive": None if self.archive is None else self.archive.state(),
        }  # fmt: skip

    @classmethod
    def restored(cls, plan: Plan, state: Mapping[str, Any]) -> SumServer:
        """The server that `state` was taken from."""
        server = cls(plan)
        server._run = state["run"] and run_of(plan, state["run"])
        server._came = [Numbers(*intervals) for intervals in state["came"]]
        server._spans = [
            {start: Span.restored(span) for start, *span in spans} for spans in state["spans"]
        ]
        server._tails = list(state["tails"])
        ends = zip(server._sizes[1:], server._came[1:], strict=True)
        server._upper_reach = max((size * came.stop for size, came in ends), default=0)
        begin, beginning = state["begin"]
        server._begin, server._beginning = begin, NodeSum.restored(beginning)
        lost_stop, server._begin_lost = state["lost"]
        server._lost_stop = math.inf if lost_stop is None else lost_stop
        server._has_rate = state["has_rate"]
        if state["archive"] is not None:
            server.archive = Archive.restored(plan, state["archive"])
        return server
