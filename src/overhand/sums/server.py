"""Algorithms 2 and 3 on the server's side, fast: `reference.TreeServer` for batches in any order.

A pure state machine: sums of batches in, estimates out. `IntervalSet` says which batches came,
`Span` what is known of those that an estimate may still need, `Archive` keeps all of them.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.estimates import Estimate, RunInfo
from overhand.model import Counts, Floats, Node, Shuffled
from overhand.planning import Intervals, NodeSum, Plan, Rows, run_of
from overhand.sums.hindsight import Hindsight, flat, in_hindsight
from overhand.tree import RegularTree, own_weight

Pending = Literal["middle", "rate"]
"""How users in no received batch count: as the middle, or at the rate of the last blocks."""
_RECENT = 256  # blocks whose rate is that of the users who are pending


def is_rate(pending: Pending, *, archive: bool) -> bool:
    """Whether pending users count at a rate, which needs an archive."""
    errors.one_of("pending", pending, get_args(Pending))
    if pending == "rate" and not archive:
        raise errors.InvalidValue("pending='rate' needs archive=True")
    return pending == "rate"


class IntervalSet:
    """Numbers of received batches, as half-open intervals: its size is its number of gaps.

    >>> numbers = IntervalSet()
    >>> [numbers.add(first, stop) for first, stop in ((0, 2), (5, 6), (4, 5), (2, 3), (1, 3))]
    [True, True, True, True, False]
    >>> numbers.stop, numbers.pairs(), list(numbers.gaps(below=8))
    (6, ((0, 3), (4, 6)), [3, 6, 7])
    """

    def __init__(self, starts: Sequence[int] = (), stops: Sequence[int] = ()) -> None:
        self._starts, self._stops = list(starts), list(stops)

    def pairs(self) -> Intervals:
        return tuple(zip(self._starts, self._stops, strict=True))

    def state(self) -> list[list[int]]:
        return [self._starts.copy(), self._stops.copy()]

    @property
    def stop(self) -> int:
        """One more than the largest."""
        return self._stops[-1] if self._stops else 0

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
        for first, stop in self.pairs():
            yield from range(start, min(first, below))
            start = stop
        yield from range(start, below)


class NoiseRows:
    """Which rows of the services' noise are in the sums of blocks.

    Those of the shuffling service are numbered as blocks are, those of the server in the order in
    which it drew them.

    >>> rows = NoiseRows()
    >>> for first, stop in ((0, 2), (3, 4), (2, 3)):
    ...     rows.draw(first, stop)
    >>> rows.of(0, 3), rows.of(3, 4)
    ((((0, 3),), ((0, 2), (3, 4))), (((3, 4),), ((2, 3),)))
    """

    def __init__(self, runs: Sequence[Sequence[int]] = (), drawn: int = 0) -> None:
        self._runs, self._drawn = [list(run) for run in runs], drawn

    def state(self) -> list[Any]:
        return [[list(run) for run in self._runs], self._drawn]

    def draw(self, first: int, stop: int, *, is_used: bool = True) -> None:
        """The server drew noise for consecutive blocks, whose sums may not be believed."""
        row, self._drawn = self._drawn, self._drawn + stop - first
        if not is_used:
            return
        if self._runs:
            last, after, start = self._runs[-1]
            if after == first and start + after - last == row:
                self._runs[-1][1] = stop
                return
        self._runs.append([first, stop, row])

    def of(self, first: int, stop: int) -> Rows:
        """The rows in the sums of these blocks that are known."""
        blocks, draws = IntervalSet(), IntervalSet()
        for start, after, row in self._runs:
            low, high = max(first, start), min(stop, after)
            if low < high:
                blocks.add(low, high)
                draws.add(row + low - start, row + high - start)
        return blocks.pairs(), draws.pairs()


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

    def join(self, after: Span) -> Span:
        """Settled batches and settled ones right after them."""
        assert self.best is not None
        assert after.best is not None
        lost = self.is_lost or after.is_lost, self.lost_users + after.lost_users
        return Span(after.stop, None, self.best.plus(after.best), True, *lost)

    @classmethod
    def of_children(cls, spans: Mapping[int, Span], size: int, start: int, stop: int) -> Span:
        """What spans of this size tell of the batch above: a sum if every one has come."""
        total: NodeSum | None = None
        lost_users, is_whole, is_settled, is_lost, place = 0, True, True, False, start
        while place < stop:
            child = spans.get(place)
            is_lost = is_lost or (child is not None and child.is_lost)
            if child is None or child.best is None:
                is_whole, place = False, place + size
                continue
            total = child.best if total is None else total.plus(child.best)
            lost_users += child.lost_users
            is_settled, place = is_settled and child.is_settled, child.stop
        return cls(stop, None, total if is_whole else None, is_settled, is_lost, lost_users)

    def state(self) -> list[Any]:
        """Ready for JSON."""
        own, best = [None if one is None else one.state() for one in (self.own, self.best)]
        return [self.stop, own, best, *self[3:]]

    @classmethod
    def from_state(cls, state: list[Any]) -> Span:
        stop, *sums, is_settled, is_lost, lost_users = state
        own, best = [None if one is None else NodeSum.from_state(one) for one in sums]
        return cls(stop, own, best, is_settled, is_lost, lost_users)


class Prefix(NamedTuple):
    """The first users, as far as batches reach without a gap."""

    stop: int
    total: NodeSum
    """The sum of those who are in a batch that has one."""
    lost_users: int
    """How many are not."""
    is_fallback: bool
    """Whether a batch of the cover is missing or lost."""


def _nothing(plan: Plan) -> NodeSum:
    """The sum of nobody."""
    return NodeSum(0.0 if plan.values.is_scalar else np.zeros(plan.values.shape), 0.0, 0.0, 0.0)


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
    >>> from overhand.shuffle import shuffle
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> server, random = SumServer(plan), oh.seeded_random(1)
    >>> for t in range(1, 301):
    ...     for node in plan.tree.closes(t):
    ...         messages = plan.mechanism(node).encode_many([1] * node.size, random)
    ...         server.receive(node, shuffle(messages.gather(node.size), random))
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
        self._run: RunInfo | None = run_of(plan)  # None if there may be fewer users than places
        self._checks = plan.plausibility if checks else None
        self.distrusted: list[Node] = []  # since it was made or copied
        self._tree = plan.tree
        self._sizes = plan.tree.sizes
        self._rows = NoiseRows() if plan.block_errors is not None else None
        self._laws = [(m.variance, m.fourth_cumulant) for m in plan.mechanisms]
        self._shape = plan.values.shape
        self._came = [IntervalSet() for _ in self._sizes]
        self._spans: list[dict[int, Span]] = [{} for _ in self._sizes]
        self._tails = [-1] * len(self._sizes)  # where the span starts that grew last
        self._upper_reach = 0  # where the last batch above the lowest level ends
        self._begin = 0  # every estimate begins with the same sum of this many users
        self._zero = self._beginning = _nothing(plan)
        self._begin_lost = 0  # of those users, how many are in no batch that has a sum
        self._lost_stop = math.inf  # where the first lost batch ends that the beginning went into
        self._found: Prefix | None = None  # what `_prefix` says, while it holds
        self.archive = Archive(plan) if archive else None
        self._has_rate = is_rate(pending, archive=archive)

    def copy(self) -> SumServer:
        """A server that has received the same, without an archive and what needs one."""
        result = copy.copy(self)
        result.distrusted, result.archive, result._has_rate = [], None, False
        result._came = [IntervalSet(*came.state()) for came in self._came]
        result._spans, result._tails = [dict(spans) for spans in self._spans], self._tails.copy()
        result._rows = None if self._rows is None else NoiseRows(*self._rows.state())
        return result

    def receive(self, node: Node, shuffled: Shuffled, noise: Counts | None = None) -> None:
        """Receive a full batch (Algorithm 2, step 4), and the server's own noise, if it has any."""
        self.receive_sum(node, self.plan.mechanism(node).sum_of(shuffled, noise))

    def receive_sum(self, node: Node, value: Any, bias_bound: float = 0.0, own: int = 0) -> None:
        """Receive the analyzed sum of a batch, which may be off by `bias_bound` beyond its noise.

        `own` reports of it were the shuffling service's, which count as nothing.
        """
        if (self._shape or not isinstance(value, float)) and np.shape(value) != self._shape:
            raise errors.InvalidValue(f"a sum of shape {np.shape(value)} instead of {self._shape}")
        self._note(node, own=own)
        checks, users = self._checks, node.size - own
        is_believed = checks is None or checks.is_possible(node.level, users, value, bias_bound)
        if self._rows is not None:
            number = node.start // node.size
            self._rows.draw(number, number + 1, is_used=is_believed)
        if not is_believed:
            self.distrusted.append(node)
            self._lose(node, users)
            return
        # A copy: later changes by the caller do not reach it.
        kept = np.array(value, np.float64) if self._shape else float(value)
        known = NodeSum(kept, *self._laws[node.level - 1], bias_bound)
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
        if self._rows is not None:
            self._rows.draw(start // self._sizes[0], stop // self._sizes[0])
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
                self.archive.best[Node(level, start, span.stop)] = span.best
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
        spans, size = self._spans[level - 2], self._sizes[level - 2]
        below = Span.of_children(spans, size, start, span.stop)
        if own is not None and below.is_lost and not has_checks:
            return span._replace(is_settled=True)  # they never add up to this batch
        if own is not None and has_checks and not self._agree(level, own, below):
            self.distrusted.append(Node(level, start, span.stop))
            if self.archive is not None:
                self.archive.lose(self.distrusted[-1], span.stop - start)
            own, span = None, Span(span.stop, None, None, False, True)
        if below.best is None or (own is None and not below.is_settled):
            return span
        if own is None:
            return below._replace(is_settled=True, is_lost=True)
        if below.is_lost:
            return span._replace(is_settled=True)
        weight = own_weight(own.variance, below.best.variance)
        return Span(span.stop, own, own.combine_with(below.best, weight), below.is_settled)

    def _agree(self, level: int, own: NodeSum, below: Span) -> bool:
        """Whether children can be of the same users as their batch, as far as they are there.

        Those who are lost count as the middle of what they may hold.
        """
        if below.best is None:
            return True
        value = below.best.value + self.plan.imputed * below.lost_users
        bias_bound = below.best.bias_bound + self.plan.pending_bias_bound * below.lost_users
        total = below.best._replace(value=value, bias_bound=bias_bound)
        return self.plan.plausibility.agree(level, own, total)

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
                spans[tail] = left.join(span)
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
        while (found := self._next_settled()) is not None:
            level, span = found
            assert span.best is not None
            for at_level in range(level - 1, len(self._sizes)):  # those above are lost
                self._spans[at_level].pop(self._begin, None)
            self._beginning = self._beginning.plus(span.best)
            self._begin, self._begin_lost = span.stop, self._begin_lost + span.lost_users
            if span.is_lost:
                self._lost_stop = min(self._lost_stop, span.stop)

    def _next_settled(self) -> tuple[int, Span] | None:
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
        if self._found is not None:
            return self._found
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
        self._found = Prefix(place, total, lost_users, is_fallback=min(stops) <= place)
        return self._found

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
        t = covered if t is None else errors.whole("t", t, least=0, most=self._tree.horizon)
        if t < covered:
            raise ProtocolViolation(f"no estimate at t={t}: {covered} users are already counted")
        pending = t - covered + lost_users
        rate = self._require_archive("a rate").rate(covered) if pending and self._has_rate else None
        rows = None if self._rows is None else self._rows.of(0, covered // self._sizes[0])
        return total.estimate(self.plan, t, pending=pending, rate=rate, run=self._run, rows=rows)

    def between(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1, from the fewest batches.

        Those in none of its batches count as the middle of their values, or at the rate of the last
        blocks up to the one its end is in.
        """
        archive, covered = self._require_archive("a sum of a range"), self.covered
        start = errors.whole("start", start, least=0)
        stop = errors.whole("stop", stop, least=start)
        lowest = self._sizes[0]
        if stop > covered + lowest - 1:
            raise errors.InvalidValue(f"stop={stop} is beyond the {covered} users counted")
        first = -(-start // lowest)
        last = max(first, min(stop, covered) // lowest)
        if self._rows is None:
            total, users = archive.add_nodes(first * lowest, last * lowest)
            rows = None
        else:
            total, users = archive.add_blocks(first, last)
            rows = self._rows.of(first, last)
        if self.plan.values.is_scalar:
            total = total._replace(value=float(total.value))
        pending, reached = stop - start - users, -(-stop // lowest) * lowest
        rate = archive.rate(min(covered, reached)) if pending and self._has_rate else None
        return total.estimate(
            self.plan, stop, pending=pending, start=start, rate=rate, run=self._run, rows=rows
        )

    def hindsight(self) -> Hindsight:
        """The whole history at the ends of lowest batches, by all batches that are in now."""
        return in_hindsight(self.plan, self._require_archive("hindsight").sums, self.covered)

    def _require_archive(self, what: str) -> Archive:
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
        return sum(len(came.pairs()) for came in self._came) + sum(map(len, self._spans))

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
            "rows": None if self._rows is None else self._rows.state(),
            "archive": None if self.archive is None else self.archive.state(),
        }  # fmt: skip

    @classmethod
    def from_state(cls, plan: Plan, state: Mapping[str, Any]) -> SumServer:
        server = cls(plan)
        server._run = state["run"] and run_of(plan, state["run"])
        server._came = [IntervalSet(*intervals) for intervals in state["came"]]
        server._spans = [
            {start: Span.from_state(span) for start, *span in spans} for spans in state["spans"]
        ]
        server._tails = list(state["tails"])
        ends = zip(server._sizes[1:], server._came[1:], strict=True)
        server._upper_reach = max((size * came.stop for size, came in ends), default=0)
        begin, beginning = state["begin"]
        server._begin, server._beginning = begin, NodeSum.from_state(beginning)
        lost_stop, server._begin_lost = state["lost"]
        server._lost_stop = math.inf if lost_stop is None else lost_stop
        server._has_rate = state["has_rate"]
        server._rows = None if state["rows"] is None else NoiseRows(*state["rows"])
        if state["archive"] is not None:
            server.archive = Archive.from_state(plan, state["archive"])
        return server


class Archive:
    """The sums and estimates of all nodes so far: public, and few compared with their users."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lowest = plan.tree.lowest
        self._block = plan.mechanisms[0]
        self.sums = BatchSums(plan.tree, plan.values.shape)
        self.best: dict[Node, NodeSum] = {}
        """Above the lowest level, the estimate of a batch, which may become better."""
        self._rate: tuple[int, Any] = (-1, None)  # of the users after so many, while it holds

    def keep_blocks(self, values: Floats) -> None:
        """The single sums of the lowest batches that follow those that came so far."""
        first = self.sums.stops[0]
        self.sums.put(1, slice(first, first + len(values)), values, 0.0)

    def keep_own(self, node: Node, own: NodeSum) -> None:
        """The sum of any batch, as it was received."""
        number = node.start // node.size
        row, self._rate = np.asarray(own.value)[np.newaxis], (-1, None)
        self.sums.put(node.level, slice(number, number + 1), row, own.bias_bound)
        if node.level > 1:
            self.best[node] = own

    def lose(self, node: Node, users: int) -> None:
        """A batch of this many users has no sum, or none that is believed."""
        if node.level == 1:
            self.sums.lost_users[node.start // node.size] = users
        elif self.best.pop(node, None) is not None:
            number = node.start // node.size
            self.sums.put(node.level, slice(number, number + 1), np.nan, 0.0)

    def _found(self, node: Node) -> NodeSum | None:
        if node.level > 1:
            return self.best.get(node)
        number = node.start // self._lowest
        own, users = self.add_blocks(number, number + 1)
        return own if users else None

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
            of_blocks = self._plan.block_errors
            if of_blocks is None:
                variance = len(rows) * self._block.variance
            else:  # correlated: a sum of many has less noise than that
                variance = of_blocks.range_variance(len(rows))
            noise, square = variance / (len(rows) * self._lowest) ** 2, np.mean(away**2)
            weight = max(0.0, 1 - noise / square) if square > 0 else 0.0
            rate = np.clip(middle + weight * away, values.lows, values.highs)
        found = float(rate[0]) if values.is_scalar else rate.reshape(values.shape)
        self._rate = covered, found
        return found

    def add_nodes(self, place: int, end: int) -> tuple[NodeSum, int]:
        """The sum of the fewest batches of these places, and how many users they have."""
        total, users = _nothing(self._plan), 0
        while place + self._lowest <= end:
            nodes = self._plan.tree.starting_at(place, end)
            found = next(((n, s) for n in nodes if (s := self._found(n)) is not None), None)
            if found is None:
                place += self._lowest
                continue
            node, known = found
            total, users, place = total.plus(known), users + node.size, node.stop
        return total, users

    def add_blocks(self, first: int, last: int) -> tuple[NodeSum, int]:
        """The same of blocks by their numbers, if there are blocks alone."""
        values, bias_bounds = self.sums.of_level(1, last)
        is_here = ~np.isnan(flat(values[first:])).any(axis=1)
        value = values[first:][is_here].sum(axis=0)
        blocks, law = int(is_here.sum()), self._block
        bias_bound = float(bias_bounds[first:][is_here].sum())
        own = NodeSum(value, blocks * law.variance, blocks * law.fourth_cumulant, bias_bound)
        return own, blocks * self._lowest

    def state(self) -> dict[str, Any]:
        """Ready for JSON."""
        nodes = [[*node, known.state()] for node, known in self.best.items()]
        return {**self.sums.state(), "nodes": nodes}

    @classmethod
    def from_state(cls, plan: Plan, state: Mapping[str, Any]) -> Archive:
        archive = cls(plan)
        archive.sums = BatchSums.from_state(plan.tree, plan.values.shape, state)
        archive.best = {
            Node(level, start, stop): NodeSum.from_state(known)
            for level, start, stop, known in state["nodes"]
        }
        return archive


class BatchSums:
    """The own sums of batches, by level and number, as they were received: NaN where none is.

    >>> from overhand.tree import RegularTree
    >>> sums = BatchSums(RegularTree(horizon=8, degrees=(2, 2)))
    >>> sums.put(1, slice(0, 2), np.array([1.0, 2.0]), 0.0)
    >>> sums.put(1, slice(3, 4), np.array([2.0]), 0.5)
    >>> sums.of_level(1, batches=4)
    (array([ 1.,  2., nan,  2.]), array([0. , 0. , 0. , 0.5]))
    """

    def __init__(self, tree: RegularTree, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self._values = [np.empty((0, *shape)) for _ in tree.sizes]
        self._bias_bounds = [np.empty(0) for _ in tree.sizes]
        self.stops = [0] * tree.levels
        """One more than the largest number, by level."""
        self.lost_users: dict[int, int] = {}
        """Users in a lowest batch that is lost, by its number: not all, if some are nobody."""

    def put(self, level: int, numbers: slice | Counts, values: Any, bias_bounds: Any) -> None:
        """The sums of these batches, and how far each may be off beyond its noise."""
        stop = numbers.stop if isinstance(numbers, slice) else 1 + int(numbers.max(initial=-1))
        self.stops[level - 1] = max(self.stops[level - 1], stop)
        kept_values, kept_bounds = self.of_level(level, stop)
        kept_values[numbers], kept_bounds[numbers] = values, bias_bounds

    def of_level(self, level: int, batches: int) -> tuple[Floats, Floats]:
        """The sums of the first batches of a level, and their bias_bounds."""
        index = level - 1
        self._values[index] = _grow(self._values[index], batches, np.nan)
        self._bias_bounds[index] = _grow(self._bias_bounds[index], batches, 0.0)
        return self._values[index][:batches], self._bias_bounds[index][:batches]

    def state(self) -> dict[str, Any]:
        """Ready for JSON: a missing sum is null."""
        levels = [self.of_level(level, stop) for level, stop in enumerate(self.stops, start=1)]
        return {
            "sums": [_rows(values) for values, _ in levels],
            "bias_bounds": [
                bias_bounds.tolist() if bias_bounds.any() else 0.0 for _, bias_bounds in levels
            ],
            "lost_users": list(self.lost_users.items()),
        }

    @classmethod
    def from_state(
        cls, tree: RegularTree, shape: tuple[int, ...], state: Mapping[str, Any]
    ) -> BatchSums:
        sums, none = cls(tree, shape), np.full(shape, np.nan)
        kept = zip(state["sums"], state["bias_bounds"], strict=True)
        for level, (values, bias_bounds) in enumerate(kept, start=1):
            rows = np.array([none if value is None else value for value in values], np.float64)
            sums.put(level, slice(0, len(values)), rows.reshape(-1, *shape), bias_bounds)
        sums.lost_users = dict(state["lost_users"])
        return sums


def _rows(values: Floats) -> list[Any]:
    rows: list[Any] = values.tolist()
    for number in np.flatnonzero(np.isnan(flat(values)).any(axis=1)):
        rows[number] = None
    return rows


def _grow(array: Floats, needed: int, missing: float) -> Floats:
    if needed <= len(array):
        return array
    grown = np.full((max(needed, 2 * len(array)), *array.shape[1:]), missing)
    grown[: len(array)] = array
    return grown
