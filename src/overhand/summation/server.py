"""The server of Algorithms 2 and 3 as a pure state machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.model import Estimate, Node, Shuffled
from overhand.plan import Plan
from overhand.summation.schedule import Schedule

Floats = NDArray[np.float64]


class SumServer:
    """Takes shuffled batches in the order in which they become full, answers with estimates.

    It keeps one sum and one variance a level: those of the cover. (Siblings whose parent is full
    are replaced by it, Section 3.1.) With `archive`, it also keeps every node's estimate, which
    is what the sum of a range needs.

    Full batches in, as their shufflers release them; estimates out:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> server, random = SumServer(plan), oh.seeded_random(1)
    >>> for t in range(1, 301):
    ...     for node in plan.tree.closes(t):
    ...         messages = plan.mechanism(node).encode_many([1] * node.size, random)
    ...         server.receive(node, Shuffled(random.permute(messages.reshape(-1))))
    >>> estimate = server.estimate(300)
    >>> abs(estimate.value - 300) < 4 * estimate.rms
    True
    """

    def __init__(self, plan: Plan, *, archive: bool = False) -> None:
        self.plan = plan
        self.covered = 0
        self.schedule = Schedule(plan.tree)
        self._lowest = plan.tree.lowest
        self._node_estimates = plan.node_estimates
        _, self._block_variance, self._block_fourth = plan.node_estimates[1, self._lowest]
        self._shape = plan.values.shape
        self._zero: Any = 0.0 if plan.values.is_scalar else np.zeros(plan.values.shape)
        self._sums = [self._zero] * plan.tree.levels
        self._variances = [0.0] * plan.tree.levels
        self._fourths = [0.0] * plan.tree.levels
        self._due: list[Node] = []
        self._archive = Archive(plan) if archive else None

    def receive(self, node: Node, shuffled: Shuffled) -> None:
        """A batch that became full (Algorithm 2, step 4)."""
        self.receive_sum(node, self.plan.mechanism(node).analyze(shuffled))

    def receive_sum(self, node: Node, value: Any) -> None:
        """The analyzed sum of a batch that became full."""
        if (self._shape or not isinstance(value, float)) and np.shape(value) != self._shape:
            raise errors.InvalidValue(
                f"a sum of shape {np.shape(value)} where one of shape {self._shape} is due"
            )
        if node != (self._due[0] if self._due else self._expected()):
            raise ProtocolViolation(f"{node} received where {self._expected()} was due")
        if node.level == 1:
            self.receive_blocks(node.start, 1, value)
            self.archive_blocks(np.asarray(value)[np.newaxis])
            return
        self._due = self._due[1:]
        level, start, stop = node
        own, variance, fourth = self._node_estimates[level, stop - start]
        index = level - 1
        if own < 1.0:
            # What is below in the cover are the node's children, and nothing else.
            value = own * value + (1 - own) * sum(self._sums[:index])
        self._sums[:index] = [self._zero] * index
        self._variances[:index] = self._fourths[:index] = [0.0] * index
        self._sums[index] = self._sums[index] + value
        self._variances[index] += variance
        self._fourths[index] += fourth
        if self._archive is not None:
            self._archive.keep(node, value)

    def receive_blocks(self, start: int, blocks: int, total: Any) -> list[Node]:
        """The sum of consecutive lowest batches; returns the nodes that close with the last."""
        stop = start + blocks * self._lowest
        if self._due or start != self.covered or stop > max(self.schedule.boundary, start):
            raise ProtocolViolation(
                f"lowest batches {start} .. {stop} received where {self._expected()} was due"
            )
        self.covered = stop
        self._sums[0] = self._sums[0] + total
        self._variances[0] += blocks * self._block_variance
        self._fourths[0] += blocks * self._block_fourth
        if stop == self.schedule.boundary:
            self._due = self.schedule.close()
        return self._due

    def archive_blocks(self, values: Floats) -> None:
        """Keep the single sums of the next lowest batches, if there is an archive."""
        if self._archive is not None:
            self._archive.keep_blocks(values)

    def _expected(self) -> Node:
        return self._due[0] if self._due else Node(1, self.covered, self.covered + self._lowest)

    @property
    def cover_sum(self) -> Any:
        """The sum over the cover: the estimate without pending users."""
        return _added(self._sums)

    def estimate(self, t: int) -> Estimate:
        """The sum over V*_t, and what is said of the users no full batch holds yet."""
        t = errors.whole("t", t, least=0, most=self.plan.horizon)
        pending = t - self.covered
        if self._due or not 0 <= pending < self._lowest:
            raise ProtocolViolation(
                f"no estimate at t={t}: the next batch due is {self._expected()}"
            )
        noise = math.fsum(self._variances), math.fsum(self._fourths)
        return _imputed(self.plan, t, self.cover_sum, noise, pending)

    def between(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1, from the fewest batches."""
        if self._archive is None:
            raise errors.InvalidValue("sums of a range need a server with archive=True")
        start = errors.whole("start", start, least=0)
        stop = errors.whole("stop", stop, least=start)
        if stop > self.covered + self._lowest - 1:
            raise errors.InvalidValue(f"stop={stop} is beyond the {self.covered} users counted")
        last = min(stop, self.covered)
        nodes = list(self.plan.tree.cover(min(start, last), last))
        value = _added([self._zero, *(self._archive.value(node) for node in nodes)])
        parts = [self._node_estimates[node.level, node.size] for node in nodes]
        noise = math.fsum(p.variance for p in parts), math.fsum(p.fourth_cumulant for p in parts)
        uncovered = stop - start - sum(node.size for node in nodes)
        return _imputed(self.plan, stop, value, noise, uncovered, start)

    @property
    def state(self) -> dict[str, Any]:
        """Everything needed to go on, ready for JSON: nothing here is private."""
        return {
            "covered": self.covered,
            "sums": [np.asarray(value).tolist() for value in self._sums],
            "variances": self._variances,
            "fourths": self._fourths,
            "due": [list(node) for node in self._due],
            "archive": None if self._archive is None else self._archive.state,
        }

    @classmethod
    def restored(cls, plan: Plan, state: dict[str, Any]) -> SumServer:
        """The server that `state` was taken from."""
        server = cls(plan)
        server.covered = state["covered"]
        server.schedule = Schedule(plan.tree, server.covered)
        server._sums = [_number_or_array(value) for value in state["sums"]]
        server._variances, server._fourths = list(state["variances"]), list(state["fourths"])
        server._due = [Node(*node) for node in state["due"]]
        if state["archive"] is not None:
            server._archive = Archive.restored(plan, state["archive"])
        return server


class Archive:
    """The estimates of all nodes so far: public, and small beside the users they came from."""

    def __init__(self, plan: Plan) -> None:
        self._lowest = plan.tree.lowest
        self._blocks = np.empty((64, *plan.values.shape))
        self._used = 0
        self._above: list[dict[int, Any]] = [{} for _ in range(plan.tree.levels - 1)]

    def keep_blocks(self, values: Floats) -> None:
        needed = self._used + len(values)
        if needed > len(self._blocks):
            grown = np.empty((max(needed, 2 * len(self._blocks)), *self._blocks.shape[1:]))
            grown[: self._used] = self._blocks[: self._used]
            self._blocks = grown
        self._blocks[self._used : needed] = values
        self._used = needed

    def keep(self, node: Node, value: Any) -> None:
        # A copy: what was received stays as it was received.
        kept = value.copy() if isinstance(value, np.ndarray) else value
        self._above[node.level - 2][node.start] = kept

    def value(self, node: Node) -> Any:
        if node.level == 1:
            return self._blocks[node.start // self._lowest]
        return self._above[node.level - 2][node.start]

    @property
    def state(self) -> dict[str, Any]:
        above = [
            [[start, np.asarray(value).tolist()] for start, value in level.items()]
            for level in self._above
        ]
        return {"blocks": self._blocks[: self._used].tolist(), "above": above}

    @classmethod
    def restored(cls, plan: Plan, state: dict[str, Any]) -> Archive:
        archive = cls(plan)
        blocks = np.array(state["blocks"], np.float64)
        archive.keep_blocks(blocks.reshape(-1, *plan.values.shape))
        archive._above = [
            {int(start): _number_or_array(value) for start, value in level}
            for level in state["above"]
        ]
        return archive


def _added(values: list[Any]) -> Any:
    """A sum of numbers without rounding in between, or of arrays."""
    return sum(values) if isinstance(values[0], np.ndarray) else math.fsum(values)


def _number_or_array(value: Any) -> Any:
    return np.array(value, np.float64) if isinstance(value, list) else float(value)


def _imputed(
    plan: Plan, t: int, value: Any, noise: tuple[float, float], pending: int, start: int = 0
) -> Estimate:
    """Add what the plan says of the pending users: the middle of what they may hold, or nothing."""
    variance, fourth = noise
    kurtosis = max(0.0, fourth / variance**2) if variance > 0 else 0.0
    value = value + plan.imputed * pending
    slack = plan.pending_slack * pending
    return Estimate(t, value, math.sqrt(variance), slack, start, kurtosis, plan.unit)
