"""The whole protocol in one process: users in, estimates out (Algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.estimates import Estimate
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Node, Rows, Shuffled
from overhand.plan import Plan
from overhand.randomness import Random, SeededRandom, restored_random, source_of
from overhand.summation.archive import Pending
from overhand.summation.hindsight import Hindsight
from overhand.summation.saving import Resumable
from overhand.summation.server import SumServer
from overhand.summation.times import BlockTimes, Clock, Time, Times
from overhand.summation.windows import Ranged
from overhand.values import BITS

_PORTION_COINS = 1 << 16


def _bit(value: Any) -> int | None:
    """A bit as a number; None for anything else."""
    try:
        return int(value) if value in (0, 1) else None
    except (TypeError, ValueError):  # an array, or whatever else is equal to a bit but none
        return None


class ContinualSum(Ranged, Resumable):
    """A private running sum over one plan.

    Each batch's noise is drawn once from the distribution of its users' coins: exactly what the
    messages would have summed to. `overhand.simulation` has an engine that sends them all. It uses
    OS randomness; a simulation passes `seeded_random(seed)`.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = ContinualSum(plan, random=oh.seeded_random(7))
    >>> total.update_many([1] * 600)
    >>> total.update(0)
    >>> total.t, abs(total.estimate.value - 600) < 5 * total.estimate.rms
    (601, True)
    """

    def __init__(
        self,
        plan: Plan,
        random: Random | None = None,
        *,
        archive: bool = True,
        pending: Pending = "middle",
    ) -> None:
        random = source_of(random)
        self.plan = plan
        self.t = 0
        self._server = SumServer(plan, archive=archive, pending=pending)
        self._is_archived = archive
        self._lowest = plan.tree.lowest
        self._clock = Clock()
        self._block_times = BlockTimes(self._lowest)
        self._is_of_bits = plan.values == BITS
        self._streams = random.spawn(plan.tree.levels)
        rounding_streams = [] if plan.values.is_whole else random.spawn(plan.tree.levels)
        self._rounding = _Rounding(plan, rounding_streams)
        self._stocks = [_NoiseStock(mechanism) for mechanism in plan.mechanisms]
        # Steps of all users so far: private, as are those where open nodes start.
        zero: Any = 0 if plan.values.is_scalar else np.zeros(plan.values.shape, np.int64)
        self._sums = [zero] * self._rounding.tracks
        self._start_sums = [zero] * plan.tree.levels

    def update(self, value: Any, at: Time | None = None) -> None:
        """Add one user, and when it came: see `update_many`."""
        if not self._is_of_bits:
            self.update_many([value], None if at is None else [at])
            return
        bit = _bit(value)
        if bit is None:
            raise errors.InvalidValue(f"value {value!r} of user {self.t + 1} is not a bit (0 or 1)")
        if self.t >= self.plan.horizon:
            raise errors.InvalidValue(
                f"user {self.t + 1} comes after the horizon {self.plan.horizon}"
            )
        if at is not None or self._clock.last is not None:
            self._stamp(at)
        self.t += 1
        self._sums[0] += bit
        if self.t % self._lowest == 0:
            self._close_block()

    def _stamp(self, at: Time | None) -> None:
        """Keep the time of the next user, or refuse it."""
        stamp = self._clock.checked_one(at, first=self.t)
        if stamp is not None:
            self._clock.keep_one(stamp)
            if self._is_archived:
                self._block_times.keep_one(stamp[0], self.t)

    def update_many(self, values: ArrayLike, at: Times | None = None) -> None:
        """Add many users at once: the same as one by one, and all of them or none.

        `at` says when each of them came, which makes ranges and windows by time possible: a pandas
        Series or index, a NumPy array or a list of datetimes, Timestamps, datetime64 or ISO 8601
        text, for all users or for none, all with a zone or all without, in ascending order. The
        first and the last time of every block are kept, to the microsecond.

        Times are not protected by epsilon: they are kept and shown as they are. If the time of a
        user is sensitive, round the times, or leave them out.
        """
        self.update_rows(self.plan.values.rows(values, first=self.t), at)

    def update_rows(self, rows: Rows, at: Times | None = None) -> None:
        """The same for rows that the plan's values have checked."""
        users = len(rows)
        if self.t + users > self.plan.horizon:
            raise errors.InvalidValue(
                f"{users} users after {self.t} go beyond the horizon {self.plan.horizon}"
            )
        times = self._clock.checked(at, users=users, first=self.t)
        head = min(users, -self.t % self._lowest)
        stop, before = users - (users - head) % self._lowest, self.t
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
        if times is not None:
            self._clock.keep(times)
            if self._is_archived:
                self._block_times.keep(times, before)

    def _fill(self, tracks: list[Rows]) -> None:
        """Users that at most fill up the open block."""
        self.t += len(tracks[0])
        for index, track in enumerate(tracks):
            self._sums[index] = self._sums[index] + self.plan.values.total(track)
        if self.t % self._lowest == 0:
            self._close_block()

    def _close_block(self) -> None:
        stock = self._stocks[0]
        steps = self._sums[0] - self._start_sums[0]
        value = stock.mechanism.value_of(steps) + stock.take_one(self._streams[0])
        self._archive_blocks(np.asarray(value)[np.newaxis])
        self._receive(1, value)

    def _archive_blocks(self, values: Floats) -> None:
        if self._server.archive is not None:
            self._server.archive.keep_blocks(values)

    def _close_blocks(self, sums: list[Rows]) -> None:
        """Whole blocks at once: numpy for the lowest level, a step for each closing above it.

        `sums` are, for every track, the steps up to the end of each block.
        """
        blocks, lowest, before = len(sums[0]), self._lowest, list(self._sums)
        stock, tree = self._stocks[0], self.plan.tree
        above = tree.sizes[1] if tree.levels > 1 else (tree.blocks + 1) * lowest
        steps = sums[0].copy()
        steps[1:] -= sums[0][:-1]
        single = stock.mechanism.value_of(steps) + stock.take(blocks, self._streams[0])
        self._archive_blocks(single)
        sums_after, value_after = [_listed(track) for track in sums], _listed(single.cumsum(axis=0))
        done, seen = 0, 0.0
        while done < blocks:
            until = min(blocks, done + (above - self.t % above) // lowest)
            self.t += (until - done) * lowest
            self._sums = [
                start + after[until - 1] for start, after in zip(before, sums_after, strict=True)
            ]
            self._receive(until - done, value_after[until - 1] - seen)
            done, seen = until, value_after[until - 1]

    def _receive(self, blocks: int, value: Any) -> None:
        """Hand lowest batches to the server, then their ancestors that are full with them."""
        server, sums, track_of = self._server, self._sums, self._rounding.track_of
        server.receive_blocks(self.t - blocks * self._lowest, blocks, value)
        self._start_sums[0] = sums[0]
        for node in self.plan.tree.closes(self.t)[1:]:
            index, stock = node.level - 1, self._stocks[node.level - 1]
            steps = sums[track_of(node.level)] - self._start_sums[index]
            noise = stock.take_one(self._streams[index])
            server.receive_sum(node, stock.mechanism.value_of(steps) + noise)
            self._start_sums[index] = sums[track_of(node.level)]

    @property
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        return self._server.estimate(self.t)

    def _between_places(self, start: int, stop: int) -> Estimate:
        if errors.whole("stop", stop, least=0) > self.t:
            raise errors.InvalidValue(f"stop={stop} is beyond the {self.t} users so far")
        return self._server.between(start, stop)

    def hindsight(self) -> Hindsight:
        """The whole history, each point by all batches that are full now."""
        return self._server.hindsight()

    def _place(self, moment: int) -> int:
        return self._block_times.place(moment, self.t)

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self._block_times.span(start, stop)

    @property
    def past(self) -> tuple[SumServer, BlockTimes]:
        """Everything public about a sum that has ended."""
        return self._server, self._block_times

    def __repr__(self) -> str:
        return f"ContinualSum(t={self.t} of {self.plan.horizon}, {self.estimate.summary})"

    @property
    def _is_secret(self) -> bool:
        return not all(isinstance(stream, SeededRandom) for stream in self._streams)

    def _arguments(self, text: str) -> tuple[Any, ...]:
        return self.plan, text

    def secret_state(self) -> dict[str, Any]:
        """Everything needed to continue, ready for JSON."""
        return {
            "plan": self.plan.digest,
            "t": self.t,
            "sums": [np.asarray(steps).tolist() for steps in self._sums],
            "start_sums": [np.asarray(steps).tolist() for steps in self._start_sums],
            "server": self._server.state(),
            "stocks": [stock.state() for stock in self._stocks],
            "streams": [stream.state for stream in self._streams],
            "rounding": [stream.state for stream in self._rounding.streams],
            "clock": self._clock.state(),
            "block_times": self._block_times.state(),
        }

    @classmethod
    def from_json(cls, plan: Plan, text: str) -> ContinualSum:
        """The saved sum, over the same plan; `DamagedPlan` if it differs from what was saved."""
        return cls._restored(text, lambda state: cls.resumed(plan, state))

    @classmethod
    def resumed(cls, plan: Plan, state: Mapping[str, Any]) -> ContinualSum:
        """The sum that has this state."""
        if state["plan"] != plan.digest:
            raise errors.DamagedPlan(
                f"the state belongs to plan {state['plan'][:12]}, not {plan.digest[:12]}"
            )
        streams = [restored_random(stream) for stream in state["streams"]]
        random = restored_random(state["streams"][0])  # which it replaces all at once
        total = cls(plan, random, archive=state["server"]["archive"] is not None)
        total._streams = streams
        total._rounding = _Rounding(plan, [restored_random(s) for s in state["rounding"]])
        total.t = state["t"]
        total._sums = [_number_or_array(steps) for steps in state["sums"]]
        total._start_sums = [_number_or_array(steps) for steps in state["start_sums"]]
        total._server = SumServer.restored(plan, state["server"])
        total._clock = Clock.restored(state["clock"])
        total._block_times = BlockTimes.restored(plan.tree.lowest, state["block_times"])
        for stock, ready in zip(total._stocks, state["stocks"], strict=True):
            stock.restore(ready)
        return total


class TreeServer:
    """Algorithms 2 and 3 for `ConcurrentShufflers`: one shuffler per level of the tree.

    The first user opens a batch at every level:

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> batches = TreeServer(plan).activate(t=1, idle=frozenset({0, 1}))
    >>> {shuffler: mechanism.size for shuffler, mechanism in batches.items()}
    {0: 3, 1: 27}
    """

    def __init__(self, plan: Plan, random: Random | None = None) -> None:
        self.plan = plan
        self._random = source_of(random)
        self._sums = SumServer(plan)
        self._running: dict[int, Node] = {}

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
        """Step 1: a mechanism for every node of which user `t` is the first."""
        opening = [node for node in self.plan.tree.joins(t) if node.start == t - 1]
        self._running.update({node.level - 1: node for node in opening})
        return {node.level - 1: self.plan.mechanism(node) for node in opening}

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        """Step 4: whichever of the batches that close with one user comes first."""
        self._sums.receive(self._running.pop(shuffler), shuffled, self._random)

    def estimate(self, t: int) -> Estimate:
        """Step 5."""
        return self._sums.estimate(t)


class _Rounding:
    """Turns values into steps, once for all levels if they are whole, else for each level afresh.

    A track is the steps of some users as one or more levels see them; values add them up as they
    add up coordinates. Every level has a stream of its own, so that it does not matter how many
    users come at once.
    """

    def __init__(self, plan: Plan, streams: list[Random]) -> None:
        self.streams = [] if plan.values.is_whole else streams
        self._mechanisms = plan.mechanisms

    @property
    def tracks(self) -> int:
        return max(1, len(self.streams))

    def track_of(self, level: int) -> int:
        """The track that a level sees."""
        return level - 1 if self.streams else 0

    def tracks_of(self, rows: Rows) -> list[Rows]:
        """Checked values as every track has them."""
        if not self.streams:
            return [rows]
        return [
            mechanism.rounded(rows, stream)
            for mechanism, stream in zip(self._mechanisms, self.streams, strict=True)
        ]


class _NoiseStock:
    """The analyzed noise of the next batches of one mechanism, drawn ahead of its use.

    Portions have a fixed length, so that one user at a time and a million at once meet the same
    noise in the same batches.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self._portion = max(1, min(256, _PORTION_COINS // max(1, mechanism.draw_cost)))
        self._ready: Floats = np.empty((0, *mechanism.values.shape))
        self._used = 0

    def take(self, batches: int, random: Random) -> Floats:
        """The noise of the next `count` batches."""
        missing = self._used + batches - len(self._ready)
        if missing > 0:
            portions = -(-missing // self._portion)
            drawn = [self.mechanism.draw_noise(random, self._portion) for _ in range(portions)]
            self._ready = np.concatenate([self._ready[self._used :], *drawn])
            self._used = 0
        self._used += batches
        return self._ready[self._used - batches : self._used]

    def take_one(self, random: Random) -> Any:
        """The noise of the next batch."""
        if self._used == len(self._ready):
            self.take(1, random)
        else:
            self._used += 1
        if self._ready.ndim == 1:
            return self._ready.item(self._used - 1)
        return self._ready[self._used - 1]

    def state(self) -> list[Any]:
        return list(self._ready[self._used :].tolist())

    def restore(self, state: list[Any]) -> None:
        ready = np.array(state, np.float64)
        self._ready, self._used = ready.reshape(-1, *self.mechanism.values.shape), 0


def _listed(array: Rows) -> Any:
    """Numbers as a list, which is quicker to look up; rows as they are."""
    return array.tolist() if array.ndim == 1 else array


def _number_or_array(steps: Any) -> Any:
    return np.array(steps, np.int64) if isinstance(steps, list) else int(steps)
