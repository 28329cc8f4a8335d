"""The whole protocol in one process: users in, estimates out (Algorithms 2 and 3)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Estimate, as_bits
from overhand.plan import Plan
from overhand.randomness import Random, restored_random
from overhand.summation.blocks import sums_after_blocks
from overhand.summation.server import SumServer
from overhand.summation.stock import NoiseStock


def _is_bit(value: object) -> bool:
    try:
        return value in (0, 1)
    except ValueError:  # an array, whose truth is ambiguous
        return False


class ContinualSum:
    """A private running count over one plan.

    Each batch's noise is drawn once from the law of its users' coins: exactly what the messages
    would have summed to. `overhand.simulation` has an engine that sends them all.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = ContinualSum(plan, random=oh.seeded_random(7))
    >>> total.update_many([1] * 600)
    >>> total.update(0)
    >>> total.t, abs(total.estimate.value - 600) < 5 * total.estimate.rms
    (601, True)
    """

    def __init__(self, plan: Plan, random: Random, *, archive: bool = True) -> None:
        self.plan = plan
        self.t = 0
        self._server = SumServer(plan, archive=archive)
        self._lowest = plan.tree.lowest
        self._streams = random.spawn(plan.tree.levels)
        self._stocks = {
            (level, mechanism.size): NoiseStock(mechanism)
            for level, of_level in enumerate(plan.mechanisms, start=1)
            for mechanism in of_level
        }
        self._lowest_stock = self._stocks[1, self._lowest]
        self._sum = 0  # of all users so far: private, as are the sums where open nodes start
        self._start_sums = [0] * plan.tree.levels

    def update(self, value: int) -> None:
        """One user."""
        if not _is_bit(value):
            raise errors.InvalidValue(f"value {value!r} of user {self.t + 1} is not a bit (0 or 1)")
        if self.t >= self.plan.horizon:
            raise errors.InvalidValue(
                f"user {self.t + 1} comes after the horizon {self.plan.horizon}"
            )
        self.t += 1
        self._sum += int(value)
        if self.t % self._lowest == 0:
            self._close_block()

    def update_many(self, values: ArrayLike) -> None:
        """Many users at once: the same as one by one, and all of them or none."""
        bits = as_bits(values, first=self.t)
        if self.t + len(bits) > self.plan.horizon:
            raise errors.InvalidValue(
                f"{len(bits)} users after {self.t} go beyond the horizon {self.plan.horizon}"
            )
        head = min(len(bits), -self.t % self._lowest)
        stop = len(bits) - (len(bits) - head) % self._lowest
        if head:
            self._fill(bits[:head])
        if stop > head:
            self._close_blocks(sums_after_blocks(bits[head:stop], self._lowest))
        if stop < len(bits):
            self._fill(bits[stop:])

    def _fill(self, bits: NDArray[np.uint8]) -> None:
        """Users that at most fill up the open block."""
        self.t += len(bits)
        self._sum += int(np.count_nonzero(bits))
        if self.t % self._lowest == 0:
            self._close_block()

    def _close_block(self) -> None:
        noise = self._lowest_stock.take_one(self._streams[0])
        value = self._sum - self._start_sums[0] + noise
        self._server.archive_blocks(np.array([value]))
        self._receive(1, value)

    def _close_blocks(self, sums: NDArray[np.int64]) -> None:
        """Whole blocks at once: numpy for the lowest level, a step for each closing above it.

        `sums` are of all bits up to the end of each block.
        """
        blocks, lowest, before = len(sums), self._lowest, self._sum
        noise = self._lowest_stock.take(blocks, self._streams[0])
        single = sums + noise
        single[1:] -= sums[:-1]
        self._server.archive_blocks(single)
        sum_after, value_after = sums.tolist(), single.cumsum().tolist()
        done, seen = 0, 0.0
        while done < blocks:
            until = done + (self._server.schedule.boundary - self.t) // lowest
            if not done < until <= blocks:
                until = blocks
            self.t += (until - done) * lowest
            self._sum = before + sum_after[until - 1]
            self._receive(until - done, value_after[until - 1] - seen)
            done, seen = until, value_after[until - 1]

    def _receive(self, blocks: int, value: float) -> None:
        """Hand lowest batches to the server, then their ancestors that are full with them."""
        server, sum_now = self._server, self._sum
        closing = server.receive_blocks(self.t - blocks * self._lowest, blocks, value)
        self._start_sums[0] = sum_now
        if closing:
            for node in closing:
                level, start, stop = node
                noise = self._stocks[level, stop - start].take_one(self._streams[level - 1])
                server.receive_sum(node, sum_now - self._start_sums[level - 1] + noise)
            for node in server.schedule.opened:
                self._start_sums[node.level - 1] = sum_now

    @property
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        return self._server.estimate(self.t)

    def between(self, start: int, stop: int) -> Estimate:
        """The sum of the users at places start .. stop - 1 (from 0), with an error of its own."""
        if stop > self.t:
            raise errors.InvalidValue(f"stop={stop} is beyond the {self.t} users so far")
        return self._server.between(start, stop)

    def saved(self) -> str:
        """The state, from which `restored` goes on with the very same future.

        It holds what no server may see: the sums of open batches, noise not yet used and the
        keys of the random streams. Keep it as safe as the values themselves.
        """
        return json.dumps(
            {
                "plan": self.plan.digest,
                "t": self.t,
                "sum": self._sum,
                "start_sums": self._start_sums,
                "server": self._server.state,
                "stocks": [[*key, stock.state] for key, stock in self._stocks.items()],
                "streams": [stream.state for stream in self._streams],
            }
        )

    @classmethod
    def restored(cls, plan: Plan, saved: str) -> ContinualSum:
        """The sum that was saved, over the same plan."""
        state: dict[str, Any] = json.loads(saved)
        if state["plan"] != plan.digest:
            raise errors.DamagedPlan(
                f"the state belongs to plan {state['plan'][:12]}, not {plan.digest[:12]}"
            )
        streams = [restored_random(stream) for stream in state["streams"]]
        total = cls(plan, streams[0])
        total._streams = streams
        total.t, total._sum = state["t"], state["sum"]
        total._start_sums = list(state["start_sums"])
        total._server = SumServer.restored(plan, state["server"])
        for level, size, ready in state["stocks"]:
            total._stocks[level, size].restore(ready)
        return total
