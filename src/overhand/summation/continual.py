"""The whole protocol in one process: users in, estimates out (Algorithms 2 and 3)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Estimate
from overhand.plan import Plan
from overhand.randomness import Random, restored_random
from overhand.summation.server import SumServer
from overhand.summation.steps import Rounding
from overhand.summation.stock import NoiseStock
from overhand.values import BITS

Rows = NDArray[Any]


def _is_bit(value: object) -> bool:
    try:
        return value in (0, 1)
    except ValueError:  # an array, whose truth is ambiguous
        return False


class ContinualSum:
    """A private running sum over one plan.

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
        self._is_of_bits = plan.values == BITS
        self._streams = random.spawn(plan.tree.levels)
        rounding_streams = [] if plan.values.is_whole else random.spawn(plan.tree.levels)
        self._rounding = Rounding(plan, rounding_streams)
        self._stocks = {
            (level, mechanism.size): NoiseStock(mechanism)
            for level, of_level in enumerate(plan.mechanisms, start=1)
            for mechanism in of_level
        }
        self._lowest_stock = self._stocks[1, self._lowest]
        # Steps of all users so far: private, as are those where open nodes start.
        zero: Any = 0 if plan.values.is_scalar else np.zeros(plan.values.shape, np.int64)
        self._sums = [zero] * self._rounding.tracks
        self._start_sums = [zero] * plan.tree.levels

    def update(self, value: Any) -> None:
        """One user."""
        if not self._is_of_bits:
            self.update_many([value])
            return
        if not _is_bit(value):
            raise errors.InvalidValue(f"value {value!r} of user {self.t + 1} is not a bit (0 or 1)")
        if self.t >= self.plan.horizon:
            raise errors.InvalidValue(
                f"user {self.t + 1} comes after the horizon {self.plan.horizon}"
            )
        self.t += 1
        self._sums[0] += int(value)
        if self.t % self._lowest == 0:
            self._close_block()

    def update_many(self, values: ArrayLike) -> None:
        """Many users at once: the same as one by one, and all of them or none."""
        self.update_rows(self.plan.values.rows(values, first=self.t))

    def update_rows(self, rows: Rows) -> None:
        """The same for rows that the plan's values have checked."""
        users = len(rows)
        if self.t + users > self.plan.horizon:
            raise errors.InvalidValue(
                f"{users} users after {self.t} go beyond the horizon {self.plan.horizon}"
            )
        head = min(users, -self.t % self._lowest)
        stop = users - (users - head) % self._lowest
        tracks = self._rounding.tracks_of(rows)
        if head:
            self._fill([track[:head] for track in tracks])
        if stop > head:
            self._close_blocks(
                [
                    self.plan.values.sums_after_blocks(track[head:stop], self._lowest)
                    for track in tracks
                ]
            )
        if stop < users:
            self._fill([track[stop:] for track in tracks])

    def _fill(self, tracks: list[Rows]) -> None:
        """Users that at most fill up the open block."""
        self.t += len(tracks[0])
        for index, track in enumerate(tracks):
            self._sums[index] = self._sums[index] + self.plan.values.total(track)
        if self.t % self._lowest == 0:
            self._close_block()

    def _close_block(self) -> None:
        stock = self._lowest_stock
        steps = self._sums[0] - self._start_sums[0]
        value = stock.mechanism.value_of(steps) + stock.take_one(self._streams[0])
        self._server.archive_blocks(np.asarray(value)[np.newaxis])
        self._receive(1, value)

    def _close_blocks(self, sums: list[Rows]) -> None:
        """Whole blocks at once: numpy for the lowest level, a step for each closing above it.

        `sums` are, for every track, the steps up to the end of each block.
        """
        blocks, lowest, before = len(sums[0]), self._lowest, list(self._sums)
        stock = self._lowest_stock
        steps = sums[0].copy()
        steps[1:] -= sums[0][:-1]
        single = stock.mechanism.value_of(steps) + stock.take(blocks, self._streams[0])
        self._server.archive_blocks(single)
        sums_after, value_after = [_listed(track) for track in sums], _listed(single.cumsum(axis=0))
        done, seen = 0, 0.0
        while done < blocks:
            until = done + (self._server.schedule.boundary - self.t) // lowest
            if not done < until <= blocks:
                until = blocks
            self.t += (until - done) * lowest
            self._sums = [
                start + after[until - 1] for start, after in zip(before, sums_after, strict=True)
            ]
            self._receive(until - done, value_after[until - 1] - seen)
            done, seen = until, value_after[until - 1]

    def _receive(self, blocks: int, value: Any) -> None:
        """Hand lowest batches to the server, then their ancestors that are full with them."""
        server, sums, track_of = self._server, self._sums, self._rounding.track_of
        closing = server.receive_blocks(self.t - blocks * self._lowest, blocks, value)
        self._start_sums[0] = sums[0]
        if closing:
            for node in closing:
                level, start, stop = node
                stock = self._stocks[level, stop - start]
                steps = sums[track_of(level)] - self._start_sums[level - 1]
                noise = stock.take_one(self._streams[level - 1])
                server.receive_sum(node, stock.mechanism.value_of(steps) + noise)
            for node in server.schedule.opened:
                self._start_sums[node.level - 1] = sums[track_of(node.level)]

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
                "sums": [np.asarray(steps).tolist() for steps in self._sums],
                "start_sums": [np.asarray(steps).tolist() for steps in self._start_sums],
                "server": self._server.state,
                "stocks": [[*key, stock.state] for key, stock in self._stocks.items()],
                "streams": [stream.state for stream in self._streams],
                "rounding": [stream.state for stream in self._rounding.streams],
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
        total = cls(plan, restored_random(state["streams"][0]))  # which it replaces all at once
        total._streams = streams
        total._rounding = Rounding(plan, [restored_random(s) for s in state["rounding"]])
        total.t = state["t"]
        total._sums = [_number_or_array(steps) for steps in state["sums"]]
        total._start_sums = [_number_or_array(steps) for steps in state["start_sums"]]
        total._server = SumServer.restored(plan, state["server"])
        for level, size, ready in state["stocks"]:
            total._stocks[level, size].restore(ready)
        return total


def _listed(array: Rows) -> Any:
    """Numbers as a list, which is quicker to look up; rows as they are."""
    return array.tolist() if array.ndim == 1 else array


def _number_or_array(steps: Any) -> Any:
    return np.array(steps, np.int64) if isinstance(steps, list) else int(steps)
