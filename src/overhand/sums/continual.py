"""Algorithms 2 and 3 as a whole, fast: `reference.concurrent_shuffle` under its `TreeServer`.

One process: users in, estimates out. What a batch's messages add up to is drawn, not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.estimates import Estimate
from overhand.mechanisms import Mechanism
from overhand.model import Counts, Floats, Rows
from overhand.planning import Plan
from overhand.randomness import Random, SeededRandom, restore_random, source_of
from overhand.sums.hindsight import Hindsight
from overhand.sums.saving import CUT_SHORT, whole
from overhand.sums.server import Pending, SumServer
from overhand.sums.times import BlockTimes, Clock, Ranged, Time, Times
from overhand.values import BITS

_PORTION_COINS = 1 << 16


def _bit(value: Any) -> int | None:
    """A bit as a number; None for anything else."""
    try:
        return int(value) if value in (0, 1) else None
    except (TypeError, ValueError):  # an array, or whatever else is equal to a bit but none
        return None


class ContinualSum(Ranged):
    """A private running sum over one plan: one that is given, or the best for these numbers.

    Besides `horizon` and `epsilon`, everything that `Plan.best` takes may be given in place of a
    plan: `delta` (1e-6 if it is not), `values`, `mechanism`.

    Each batch's noise is drawn once from the distribution of its users' coins: exactly what the
    messages would have summed to. `overhand.lab.simulation` has an engine that sends them all. It
    uses OS randomness; a simulation passes `seeded_random(seed)`. Several threads may use it: each
    call is whole. Several processes may not: that is what the services are for.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(horizon=1000, shufflers=2, privacy=oh.Privacy(1.0, 1e-6))
    >>> total = ContinualSum(plan, random=oh.seeded_random(7))
    >>> total.update_many([1] * 600)
    >>> total.update(0)
    >>> total.t, abs(total.estimate.value - 600) < 5 * total.estimate.rms
    (601, True)
    >>> ContinualSum(horizon=1000, epsilon=1.0, values=oh.Reals(0, 10)).plan.values
    Reals(low=0.0, high=10.0, clip=False)
    """

    def __init__(
        self,
        plan: Plan | None = None,
        random: Random | None = None,
        *,
        archive: bool = True,
        pending: Pending = "middle",
        **request: Any,
    ) -> None:
        plan, random = _plan_for(plan, request), source_of(random)
        self.plan = plan
        self.t = 0
        self._server = SumServer(plan, archive=archive, pending=pending)
        self._is_archived = archive
        self._lowest, self._most = plan.tree.lowest, plan.most_users
        self._values = plan.values
        self._clock = Clock()
        self._block_times = BlockTimes(self._lowest)
        self._is_of_bits = plan.values == BITS
        self._streams = random.spawn(plan.tree.levels)
        self._rounding = [] if plan.values.is_whole else random.spawn(plan.tree.levels)
        self._stocks = [_NoiseStock(mechanism) for mechanism in plan.mechanisms]
        # Steps of all users so far: private, as are those where open nodes start.
        zero: Any = 0 if plan.values.is_scalar else np.zeros(plan.values.shape, np.int64)
        self._sums = [zero] * max(1, len(self._rounding))  # one per track: see `_round`
        self._start_sums = [zero] * plan.tree.levels

    def update(self, value: Any, at: Time | None = None) -> None:
        """Add one user, and when it came: see `update_many`."""
        if not self._is_of_bits:
            self.update_many([value], None if at is None else [at])
            return
        bit = value if type(value) is int and 0 <= value <= 1 else _bit(value)
        with self._lock:
            t = self.t + 1
            if bit is None:
                raise errors.InvalidValue(f"value {value!r} of user {t} is not a bit (0 or 1)")
            if t > self._most:
                raise errors.InvalidValue(f"user {t} comes after {self._end}")
            if self._closed:
                self._check_open()
            if at is not None or self._clock.last is not None or t % self._lowest == 0:
                self._add(bit, at)
            else:
                self._sums[0] += bit
                self.t = t

    @property
    def _end(self) -> str:
        if self._most == self.plan.horizon:
            return f"the horizon {self._most}"
        return f"the {self._most} users that the guarantee is for"

    def _add(self, bit: int, at: Time | None) -> None:
        """A user who has a time, or with whom a block is full."""
        before, t, stamp = self.t, self.t + 1, None
        if at is not None or self._clock.last is not None:
            stamp = self._clock.check_one(at, first=before)
        self._draw_ahead(t)
        if stamp is not None:
            self._clock.keep_one(stamp)
        self._closed = CUT_SHORT
        if stamp is not None and self._is_archived:
            self._block_times.keep_one(stamp[0], before)
        self._sums[0] += bit
        if t % self._lowest == 0:
            self._close_block(t)
        self.t, self._closed = t, None

    def _draw_ahead(self, until: int) -> None:
        """The noise of all batches that are full by then: if that fails, nothing has changed."""
        for index, size in enumerate(self.plan.tree.sizes):
            batches = until // size - self.t // size
            if not batches:
                break
            self._stocks[index].draw_ahead(batches, self._streams[index])

    def update_many(self, values: ArrayLike, at: Times | None = None) -> None:
        """Add many users at once: the same as one by one, and all of them or none.

        `at` says when each of them came, which makes ranges and windows by time possible: a pandas
        Series or index, a NumPy array or a list of datetimes, Timestamps, datetime64 or ISO 8601
        text, for all users or for none, all with a zone or all without, in ascending order. The
        first and the last time of every block are kept, to the microsecond.

        Times are not protected by epsilon: they are kept and shown as they are. If the time of a
        user is sensitive, round the times, or leave them out.
        """
        self.update_rows(self._values.rows(values, first=self.t), at)

    @whole
    def update_rows(self, rows: Rows, at: Times | None = None) -> None:
        """The same for rows that the plan's values have checked."""
        self._check_open()
        users, before = len(rows), self.t
        if before + users > self._most:
            raise errors.InvalidValue(f"{users} users after {before} go beyond {self._end}")
        times = None
        if at is not None or self._clock.last is not None:
            times = self._clock.check(at, users=users, first=before)
        head = min(users, -before % self._lowest)
        stop = users - (users - head) % self._lowest
        self._draw_ahead(before + users)
        tracks, total = self._round(rows), self._values.sums_after_blocks
        sums = [total(track[head:stop], self._lowest) for track in tracks if stop > head]
        if times is not None:
            self._clock.keep(times)
        self._closed = CUT_SHORT
        if times is not None and self._is_archived:
            self._block_times.keep(times, before)
        if head:
            self._fill([track[:head] for track in tracks], before + head)
        if sums:
            self._close_blocks(sums, before + head)
        if stop < users:
            self._fill([track[stop:] for track in tracks], before + users)
        self.t, self._closed = before + users, None

    def _round(self, rows: Rows) -> list[Rows]:
        """Checked values in steps: once for all levels if they are whole, else for each afresh.

        Each is a track: the steps of some users as one or more levels see them; values add them up
        as they add up coordinates. Every level has a stream of its own, so that it does not matter
        how many users come at once.
        """
        if not self._rounding:
            return [rows]
        streams = zip(self.plan.mechanisms, self._rounding, strict=True)
        return [mechanism.quantizer.round(rows, stream) for mechanism, stream in streams]

    def _fill(self, tracks: list[Rows], t: int) -> None:
        """Users up to `t`, who at most fill up the open block."""
        for index, track in enumerate(tracks):
            self._sums[index] = self._sums[index] + self._values.total(track)
        if t % self._lowest == 0:
            self._close_block(t)

    def _close_block(self, t: int) -> None:
        stock = self._stocks[0]
        steps = self._sums[0] - self._start_sums[0]
        value = stock.to_values(steps) + stock.take_one(self._streams[0])
        if self._server.archive is not None:
            self._server.archive.keep_blocks(np.asarray(value)[np.newaxis])
        self._receive(t, 1, value)

    def _close_blocks(self, sums: list[Rows], t: int) -> None:
        """Whole blocks at once: numpy for the lowest level, a step for each closing above it.

        They follow `t` users. `sums` are, for every track, the steps up to the end of each block.
        """
        blocks, lowest, before = len(sums[0]), self._lowest, list(self._sums)
        stock, tree = self._stocks[0], self.plan.tree
        above = tree.sizes[1] if tree.levels > 1 else (tree.blocks + 1) * lowest
        steps = sums[0].copy()
        steps[1:] -= sums[0][:-1]
        single = stock.to_values(steps) + stock.take(blocks, self._streams[0])
        if self._server.archive is not None:
            self._server.archive.keep_blocks(single)
        sums_after, value_after = list(map(_to_list, sums)), _to_list(single.cumsum(axis=0))
        done, seen = 0, 0.0
        while done < blocks:
            until = min(blocks, done + (above - t % above) // lowest)
            t += (until - done) * lowest
            self._sums = [
                start + after[until - 1] for start, after in zip(before, sums_after, strict=True)
            ]
            self._receive(t, until - done, value_after[until - 1] - seen)
            done, seen = until, value_after[until - 1]

    def _receive(self, t: int, blocks: int, value: Any) -> None:
        """Hand lowest batches up to `t` to the server, then their ancestors that are full by it."""
        server, sums = self._server, self._sums
        server.receive_blocks(t - blocks * self._lowest, blocks, value)
        self._start_sums[0] = sums[0]
        for node in self.plan.tree.closes(t)[1:]:
            index, stock = node.level - 1, self._stocks[node.level - 1]
            so_far = sums[index if self._rounding else 0]
            noise = stock.take_one(self._streams[index])
            steps = so_far - self._start_sums[index]
            server.receive_sum(node, stock.to_values(steps) + noise)
            self._start_sums[index] = so_far

    @property
    @whole
    def estimate(self) -> Estimate:
        """The running sum of all users so far."""
        return self._server.estimate(self.t)

    def _between_places(self, start: int, stop: int) -> Estimate:
        if errors.whole("stop", stop, least=0) > self.t:
            raise errors.InvalidValue(f"stop={stop} is beyond the {self.t} users so far")
        return self._server.between(start, stop)

    @whole
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

    @whole
    def __repr__(self) -> str:
        return f"ContinualSum(t={self.t} of {self.plan.horizon}, {self.estimate.summary})"

    @property
    def _is_secret(self) -> bool:
        return not all(isinstance(stream, SeededRandom) for stream in self._streams)

    def _arguments(self, text: str) -> tuple[Any, ...]:
        return self.plan, text

    @whole
    def secret_state(self) -> dict[str, Any]:
        """Everything needed to continue, ready for JSON."""
        self._check_open()
        return {
            "plan": self.plan.digest,
            "t": self.t,
            "sums": [np.asarray(steps).tolist() for steps in self._sums],
            "start_sums": [np.asarray(steps).tolist() for steps in self._start_sums],
            "server": self._server.state(),
            "stocks": [stock.state() for stock in self._stocks],
            "streams": [stream.state for stream in self._streams],
            "rounding": [stream.state for stream in self._rounding],
            "clock": self._clock.state(),
            "block_times": self._block_times.state(),
        }

    @classmethod
    def from_json(cls, plan: Plan, text: str) -> ContinualSum:
        """The saved sum, over the same plan; `DamagedPlan` if it differs from what was saved."""
        return cls._restore(text, lambda state: cls.from_state(plan, state))

    @classmethod
    def from_state(cls, plan: Plan, state: Mapping[str, Any]) -> ContinualSum:
        if state["plan"] != plan.digest:
            raise errors.DamagedPlan(
                f"the state belongs to plan {state['plan'][:12]}, not {plan.digest[:12]}"
            )
        streams = [restore_random(stream) for stream in state["streams"]]
        random = restore_random(state["streams"][0])  # which it replaces all at once
        total = cls(plan, random, archive=state["server"]["archive"] is not None)
        total._streams = streams
        total._rounding = [restore_random(stream) for stream in state["rounding"]]
        total.t = state["t"]
        total._sums = [_number_or_array(steps) for steps in state["sums"]]
        total._start_sums = [_number_or_array(steps) for steps in state["start_sums"]]
        total._server = SumServer.from_state(plan, state["server"])
        total._clock = Clock.from_state(state["clock"])
        total._block_times = BlockTimes.from_state(plan.tree.lowest, state["block_times"])
        for stock, ready in zip(total._stocks, state["stocks"], strict=True):
            stock.restore(ready)
        return total


def _plan_for(plan: Plan | None, request: dict[str, Any]) -> Plan:
    """The plan that is given or asked for, or an error that names what is wrong and both ways."""
    if isinstance(plan, Plan) and not request:
        return plan
    missing = [name for name in ("horizon", "epsilon") if request.get(name) is None]
    if plan is not None and not isinstance(plan, Plan):
        wrong = f"plan={plan!r:.60} is not a plan"
    elif plan is not None:
        name, given = next(iter(request.items()))
        wrong = f"{name}={given!r:.60} cannot be given with a plan, which has its own"
    elif missing:
        wrong = f"{missing[0]} is missing" if request else "plan is missing"
    else:
        return Plan.best(**request)
    raise errors.InvalidValue(
        f"{wrong}: a sum takes a plan, ContinualSum(plan), or what the best plan is made of, "
        "ContinualSum(horizon=100_000, epsilon=1.0)"
    )


class _NoiseStock:
    """The analyzed noise of the next batches of one mechanism, drawn ahead of its use.

    Portions have a fixed length, so that one user at a time and a million at once meet the same
    noise in the same batches. Noise of the two services goes on from their `states`.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self._portion = max(1, min(256, _PORTION_COINS // max(1, mechanism.draw_cost)))
        self._ready: Floats = np.empty((0, *mechanism.values.shape))
        self._used = 0
        self._states: list[Counts] = []

    def to_values(self, steps: Any) -> Any:
        """The sums of the values of batches, from those of their steps."""
        return self.mechanism.quantizer.to_values(steps, self.mechanism.size)

    def draw_ahead(self, batches: int, random: Random) -> None:
        missing = self._used + batches - len(self._ready)
        if missing > 0:
            portions = -(-missing // self._portion)
            drawn, states = [], self._states
            for _ in range(portions):
                portion, states = self._draw(random, states)
                drawn.append(portion)
            self._ready = np.concatenate([self._ready[self._used :], *drawn])
            self._used, self._states = 0, states

    def _draw(self, random: Random, states: list[Counts]) -> tuple[Floats, list[Counts]]:
        if self.mechanism.noise_by == "users":
            return self.mechanism.draw_noise(random, self._portion), []
        return self.mechanism.draw_services_noise(random, self._portion, states)

    def take(self, batches: int, random: Random) -> Floats:
        self.draw_ahead(batches, random)
        self._used += batches
        return self._ready[self._used - batches : self._used]

    def take_one(self, random: Random) -> Any:
        if self._used == len(self._ready):
            self.draw_ahead(1, random)
        self._used += 1
        if self._ready.ndim == 1:
            return self._ready.item(self._used - 1)
        return self._ready[self._used - 1]

    def state(self) -> list[Any]:
        states = [state.tolist() for state in self._states]
        return [list(self._ready[self._used :].tolist()), states]

    def restore(self, state: list[Any]) -> None:
        ready, states = state
        self._ready = np.array(ready, np.float64).reshape(-1, *self.mechanism.values.shape)
        dimension = self.mechanism.values.dimension
        self._states = [np.array(one, np.int64).reshape(-1, dimension) for one in states]
        self._used = 0


def _to_list(array: Rows) -> Any:
    """Numbers as a list, which is quicker to look up; rows as they are."""
    return array.tolist() if array.ndim == 1 else array


def _number_or_array(steps: Any) -> Any:
    return np.array(steps, np.int64) if isinstance(steps, list) else int(steps)
