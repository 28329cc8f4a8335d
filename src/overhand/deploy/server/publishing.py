"""From releases to estimates: open, analyze, add up, publish."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from threading import Lock, RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import MOST_HELD
from overhand.deploy.http.telemetry import log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import PolicyKey
from overhand.deploy.protocol.sealing import Opens, open_release
from overhand.deploy.protocol.wire import Batch, Offer, Release
from overhand.deploy.server.policy import REWARD_COORDINATE, PolicyMaker
from overhand.deploy.server.replay import NOISE_LEVEL, Needed
from overhand.deploy.server.store import (
    AnsweredSum,
    BatchSum,
    BatchTotal,
    Coordinate,
    LevelTally,
    Published,
    ServerStore,
    by_coordinate,
    sum_of,
)
from overhand.errors import InvalidValue, LostBatch
from overhand.estimates import Estimate
from overhand.model import Counts
from overhand.planning import Plan
from overhand.sums import BatchSums, SumServer, in_hindsight

CONFIDENCE = 0.95
_HISTORY = 500
_AT_ONCE = 1 << 17  # numbers of sums that are read together
_AT_A_TIME = 8  # batches that are being opened
_MOST_RETOLD = 64  # coordinates whose history is kept as it was told again
_MOST_MISSING = 1000  # batches that are named


@dataclass(frozen=True)
class Total:
    """The first `count` sums of a store, and the final sum of an earlier plan if there was one.

    It never changes: what is new makes a new one.
    """

    server: SumServer
    earlier: Estimate | None
    """What an earlier plan ended with."""
    count: int = 0
    drawn: int = 0
    """How many of them have noise of the server, if that makes any: all that are not lost."""
    distrusted: tuple[Batch, ...] = ()
    """Batches with a sum that honest users cannot have, until somebody was told."""

    @classmethod
    def begin(cls, plan: Plan, store: ServerStore) -> Total:
        """Without any sum of the store."""
        settled = store.settled
        server = SumServer(plan, checks=True)
        return cls(server, None if settled is None else settled.estimate(plan.values))

    def follow(self, store: ServerStore, stop: float = math.inf) -> Total:
        """With all sums that are in the store now, or the first of them up to `stop`."""
        total, most = self, max(1, _AT_ONCE // self.server.plan.values.dimension)
        while total.count < stop and (
            sums := store.sums(total.count, int(min(most, stop - total.count)))
        ):
            total = total.with_sums(sums)
        return total

    def with_sums(self, sums: Sequence[BatchSum]) -> Total:
        server = self.server.copy()
        for summed in sums:
            node = server.plan.tree.node(*summed.batch)
            if summed.value is None:
                server.lose(node, summed.own)
            else:
                value = sum_of(server.plan.values, summed.value)
                server.receive_sum(node, value, summed.bias_bound, summed.absent)
        distrusted = (
            *self.distrusted,
            *(Batch(n.level, n.start // n.size) for n in server.distrusted),
        )
        drawn = self.drawn + sum(summed.value is not None for summed in sums)
        return replace(
            self, server=server, count=self.count + len(sums), drawn=drawn, distrusted=distrusted
        )

    def to_come(self) -> Needed:
        """The first blocks without a sum, up to the one after all that have one.

        As many as keys are kept of one by one, and one more: it stands for all after it.
        """
        blocks = islice(self.server.to_come(1), 1 + MOST_HELD)
        return {NOISE_LEVEL: [self.drawn], 1: list(blocks)}

    def latest(self) -> Estimate | None:
        """The sum of all users so far, those of earlier plans included; None if there are none."""
        latest = self.server.estimate() if self.server.covered else None
        if self.earlier is None or latest is None:
            return latest or self.earlier
        return self.earlier + latest


class Turns:
    """When batches get noise that cancels in the order of their numbers."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[int, float] = {}  # when a missing one was seen to hold up others

    def stop(self, waiting: Sequence[int], to_come: Sequence[int], now: float) -> int:
        """Those of `waiting` that are below this may have noise now.

        One holds up all after it until it comes, for a while, and only while few wait. But none
        may have noise whose key could not be destroyed then, because too many before it have no
        sum: their keys would keep it. So a service that holds batches back holds up later ones,
        and cannot have an old copy of the store taken.
        """
        after = to_come[-1]
        stop = after + MOST_HELD + 2 - len(to_come)
        last = max((number for number in waiting if number < stop), default=0)
        missing = {n for n in (*to_come, *range(after, last)) if n < last}.difference(waiting)
        known = {n: since for n, since in self._since.items() if n in to_come or n > after}
        is_full = sum(number > min(missing, default=stop) for number in waiting) > MOST_HELD
        fresh = {n: -math.inf if is_full else known.get(n, now) for n in missing}
        self._since = known | fresh
        return min([n for n in missing if now - fresh[n] < self._patience], default=stop)


class Publisher:
    """Opens the releases of a store, together with other processes.

    All that it knows follows from the sums in the store, in their order. Memory never has what the
    store has not: it is replaced after a transaction, so any step may fail and be taken again.

    Where the server makes noise, that of a batch is drawn in the transaction that stores its sum,
    and is nowhere else. Only then the sum is looked at: in a transaction of its own an estimate is
    published. The key of a batch that has a sum is destroyed before that.

    Such batches are published in their order, in which noise cancels: while one is missing, those
    after it wait, at most `MOST_HELD` of them and at most `patience` seconds.
    """

    def __init__(
        self,
        document: Document,
        store: ServerStore,
        opener: Opens,
        policy_key: PolicyKey | None = None,
        patience: float = 60.0,
    ) -> None:
        self.document = document
        self._maker = PolicyMaker.of(document, policy_key)
        self._plan = document.plan
        self._store = store
        self._opener = opener
        self._patience = patience
        self._lock = RLock()
        if self._plan.noise_by == "services" and store.protection is None:
            raise InvalidValue(
                "services make the noise of this plan: its database needs replay protection"
            )
        begun, self._status = Total.begin(self._plan, store), store.status()
        self._first = _to_published(begun)
        self._told = begun.follow(store, self._status.length.told)
        self._total = self._told.follow(store)
        if store.protection is not None:
            store.protection.check(self._total.to_come())
        self._since: dict[Batch, float] = {}
        self._turns = Turns(patience)
        self._distrusted: frozenset[Batch] = frozenset()
        self._retold: tuple[int, dict[int, dict[str, Any]]] = (0, {})
        self._retelling = Lock()
        self.follow()

    def step(self) -> bool:
        """Open what waits and nobody is opening, and publish; returns whether there was any."""
        if self._publish():  # what came of a step before a crash
            return True
        with self._store.claim_releases(self._select_due) as waiting:
            if not waiting:
                return False
            with ThreadPoolExecutor(_AT_A_TIME) as threads:  # small ones keep one worker busy each
                totals = list(threads.map(self._total_of, waiting))
            self._store.add_sums(totals)
        self._publish()
        return True

    def _select_due(self, waiting: list[Batch]) -> list[Batch]:
        """Those that may be published now, in that order."""
        if self._store.protection is None:
            return waiting
        numbers = [batch.number for batch in waiting]
        stop = self._turns.stop(numbers, list(self._total.to_come()[1]), time.monotonic())
        return [batch for batch in waiting if batch.number < stop]

    def answer(self, offer: Offer) -> bytes:
        """Which messages of an offer do not count: they do not open, or came before."""
        known = self._store.find_answer(offer)
        if known is not None:
            return known
        (level,), (mechanism,) = self.document.formats.levels, self.document.mechanisms
        messages = np.frombuffer(offer.body, np.uint8).reshape(-1, level.ciphertext_bytes)
        opened = self._opener.open(level.level, (row.tobytes() for row in messages))
        width = level.plaintext_bytes
        found = [one if one is not None and len(one) == width else None for one in opened]
        is_open = np.array([one is not None for one in found], np.bool_)
        seeds = np.frombuffer(b"".join(one or bytes(width) for one in found), np.uint8)
        seeds = seeds.reshape(-1, width)
        masks = mechanism.mask_sums(seeds[np.newaxis, is_open])[0]

        def masks_of(counts: NDArray[np.bool_]) -> NDArray[np.uint64]:
            without = mechanism.mask_sums(seeds[np.newaxis, is_open & ~counts])
            return np.asarray(masks - without[0])

        return self._store.answer(offer, messages, is_open, masks_of)

    def follow(self) -> bool:
        """Take in what others published; whether anything is new."""
        with self._lock:
            status = self._store.status()
            total = self._total.follow(self._store, status.length.sums)
            for batch in total.distrusted:  # also after a restart: the same alarm is one
                self._store.alarm(f"{batch} has a sum that honest users cannot have: it is lost")
            if self._store.protection is not None:  # before anything of it is shown
                self._store.protection.keys.keep_only(total.to_come())
            self._distrusted = self._distrusted.union(total.distrusted)
            self._total = replace(total, distrusted=())
            before, self._status = self._status, status
            return status != before

    def _publish(self) -> bool:
        """Publish an estimate after each sum that has none yet; whether there was one."""
        with self._lock:
            self.follow()  # which destroys the keys of batches that have sums
            length = self._status.length
            if length.told == length.sums:
                return False
            told = self._told.follow(self._store, length.told)
            steps = [told]

            def estimates_of(unseen: list[BatchSum], known: int) -> list[Published | None]:
                steps[:] = [told.with_sums(unseen[:known])]
                for summed in unseen[known:]:
                    steps.append(steps[-1].with_sums([summed]))
                estimates = map(_to_published, steps[1:])
                return [None if one == self._first else one for one in estimates]

            def policy_of(number: int, place: int) -> str:
                assert self._maker is not None
                return self._maker.make_policy(number, steps[1 + place].latest())

            policies = None if self._maker is None else policy_of
            self._store.publish(told.count, estimates_of, policies)
            self._told = replace(steps[-1], distrusted=())
            self.follow()
            return True

    def policy(self, number: int | None = None) -> str | None:
        """The newest policy as signed, or that of an earlier estimate; None before the first.

        With replay protection, nothing is shown whose key this process has not destroyed.
        """
        known = self.estimates
        number = known if number is None else min(number, known)
        return self._store.read(lambda tables: tables.policy(number))

    def lessons(self) -> dict[str, Any]:
        """What the recommender has learned: mean reward so far, theta by feature, the arms."""
        assert self._maker is not None
        with self._lock:  # or the sum may be one whose key is still there
            policy, latest = self.policy(), self._total.latest()
        points = self.thin_points(REWARD_COORDINATE)
        return self._maker.lessons(policy, points, self._people([one.t for one in points]), latest)

    def groups(self) -> dict[str, Any]:
        """Count, sum and mean of every group, each with its bounds, by all sums known now."""
        with self._lock:  # or the sum may be one whose key is still there
            latest = self._total.latest()
        if latest is None:
            return {"t": 0, "groups": []}
        return {"t": latest.t, "groups": [one.entry() for one in latest.groups(CONFIDENCE)]}

    def _people(self, times: list[int]) -> list[int]:
        """The users by these times without places that the shuffling service took, or left."""
        tally = self._status.levels.get(1, LevelTally())
        if not (tally.own or tally.garbage):
            return times
        count = self._total.count
        rows = self._store.read(lambda tables: tables.sums_of(REWARD_COORDINATE, count))
        lowest = sorted((number, own) for level, number, own, *_ in rows if level == 1)
        numbers, own = np.array(lowest, np.int64).reshape(-1, 2).T
        t = np.array(times, np.int64)
        blocks = (t - self.users_before) // self._plan.tree.lowest
        taken = np.concatenate([[0], own.cumsum()])[np.searchsorted(numbers, blocks)]
        return list((t - taken).tolist())

    def _total_of(self, one: Release | AnsweredSum) -> BatchTotal:
        return self._open(one) if isinstance(one, Release) else self._unmask(one)

    def _open(self, release: Release) -> BatchTotal:
        """A release without the service's own reports, or that it is lost.

        Places that the service left empty are nobody's: there is nothing to take out.
        """
        batch, own = release.batch, release.own
        shuffled, garbage = open_release(self.document.formats, release, self._opener)
        if garbage:
            log("garbage in a batch", level=logging.WARNING, messages=garbage)
        level = self.document.formats.level(batch.level)
        mechanism = self.document.mechanisms[level.level - 1].with_users(level.users(own))
        try:
            repaired, missing = mechanism.repair(shuffled, garbage)
        except LostBatch:
            log("a batch is lost", level=logging.ERROR, batch_level=level.level)
            return BatchTotal(BatchSum(batch, own, garbage, 0.0, None))
        neutral = self._plan.values.neutral_sum(own if level.is_filled else 0)
        bias_bound = missing * mechanism.quantizer.unit

        def add(noise: Counts | None) -> Any:
            return mechanism.sum_of(repaired, noise) - neutral

        return BatchTotal(BatchSum(batch, own, garbage, bias_bound, None), add)

    def _unmask(self, one: AnsweredSum) -> BatchTotal:
        """The sum of those whose messages count; the others are nobody."""
        (level,), (mechanism,) = self.document.formats.levels, self.document.mechanisms
        mechanism = mechanism.with_users(level.users(one.own) - one.refused)
        unmask = partial(mechanism.unmask, level.clear(one.body), one.masks)
        return BatchTotal(BatchSum(one.batch, one.own, one.refused, 0.0, None, one.refused), unmask)

    @property
    def estimates(self) -> int:
        """How many were published, as far as this process knows."""
        return self._status.length.estimates

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The last that was published, as far as this process knows.

        Before that it is what an earlier plan ended with, if there was one.
        """
        estimate = self._status.estimate or self._first
        return None if estimate is None else self._to_entry(estimate)

    def _to_entry(self, estimate: Published) -> dict[str, Any]:
        is_scalar = self._plan.values.is_scalar
        ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        curves = {name: one[0] if is_scalar else list(one) for name, one in ends.items()}
        rest = {"fallback": estimate.is_fallback, "lost_users": estimate.lost_users}
        return {"t": estimate.t, **curves, "std": estimate.std, **rest}

    @property
    def users_before(self) -> int:
        """How many users earlier plans had."""
        return 0 if self._first is None else self._first.t

    def levels(self) -> list[dict[str, Any]]:
        """What came of the batches of every level, as far as this process knows."""
        return [
            {
                "level": level.level,
                "size": level.size,
                "batches": self._plan.horizon // level.size,
                **self._tally(level.level)._asdict(),
            }
            for level in self.document.formats.levels
        ]

    def _tally(self, level: int) -> LevelTally:
        """As the store counts, but a batch with a sum that is not believed is lost."""
        tally = self._status.levels.get(level, LevelTally())
        lost = sum(batch.level == level for batch in self._distrusted)
        lost = min(lost, tally.published)  # which may not have the last of them yet
        return tally._replace(published=tally.published - lost, lost=tally.lost + lost)

    def thin(self, coordinate: int) -> dict[str, list[float]]:
        """The history of one coordinate, in at most 500 points that end with the last known."""
        points = self.thin_points(coordinate)
        return {name: [getattr(one, name) for one in points] for name in Coordinate._fields}

    def thin_points(self, coordinate: int) -> list[Coordinate]:
        """The estimates at even steps, as many as are allowed, the last included."""
        first, points = self._first, list[Coordinate]()
        if first is not None:
            ends = (end[coordinate] for end in (first.value, first.low, first.high))
            points.append(Coordinate(first.t, *ends))
        # With replay protection, nothing is shown whose key this process has not destroyed.
        known = (
            self._status if self._store.protection is not None else self._store.status()
        ).length.estimates
        if known == 0:
            return points
        numbers = range(known, 0, -max(1, -(-known // (_HISTORY - len(points)))))
        return points + self._store.read(lambda tables: tables.coordinates(numbers, coordinate))

    def hindsight(self, coordinate: int) -> dict[str, Any]:
        """The history of one coordinate by all sums that are known now, in at most 500 points.

        Post-processing of what the store keeps for ever. What was published is not touched: it is
        another series, under another name. Computed once per number of sums. Where the services
        make the noise there is nothing to gain: it is what was published.
        """
        if self._plan.noise_by == "services":
            return {**self.thin(coordinate), "ratio": 1.0}
        with self._lock:
            total, distrusted = self._total, self._distrusted
        with self._retelling:  # one at a time: it reads all sums
            if self._retold[0] != total.count or len(self._retold[1]) >= _MOST_RETOLD:
                self._retold = total.count, {}
            told = self._retold[1]
            if coordinate not in told:
                told[coordinate] = self._retell(total, distrusted, coordinate)
            return told[coordinate]

    def _retell(
        self, total: Total, distrusted: Collection[Batch], coordinate: int
    ) -> dict[str, Any]:
        sums = BatchSums(self._plan.tree)
        rows = self._store.read(lambda tables: tables.sums_of(coordinate, total.count))
        known = [row for row in rows if row[-1] is not None and Batch(*row[:2]) not in distrusted]
        for level, size in enumerate(self._plan.tree.sizes, start=1):
            here = [row[1:] for row in known if row[0] == level]
            numbers, _, bias_bounds, values = np.array(here, np.float64).reshape(-1, 4).T
            sums.put(level, numbers.astype(np.int64), values, bias_bounds)
            if level == 1:
                there = set(numbers.tolist())
                lost = (row for row in rows if row[0] == 1 and row[1] not in there)
                sums.lost_users = {number: size - own for _, number, own, *_ in lost}
        history = in_hindsight(self._plan, sums, total.server.covered, coordinate)
        step = max(1, -(-len(history) // _HISTORY))
        curve = history.at(np.arange(len(history) - 1, -1, -step)[::-1])
        if total.earlier is not None:
            is_scalar = self._plan.values.is_scalar
            curve = curve.after(total.earlier if is_scalar else total.earlier[coordinate])
        low, high = curve.interval(CONFIDENCE)
        lines = {"t": curve.t, "value": curve.value, "low": low, "high": high}
        return {**{name: one.tolist() for name, one in lines.items()}, "ratio": history.ratio}

    def find_missing(self) -> list[Batch]:
        """Batches that should be here, and did not come: the first of them.

        The last user of any batch that came was admitted, and so were all before: every batch of
        those users alone was full when that one was.
        """
        total, formats = self._total, self.document.formats
        waiting = self._store.read(lambda tables: tables.find_waiting(total.count))
        ends = (formats.level(level).size * (number + 1) for level, number in waiting)
        reach = max([total.server.reach, *ends])
        batches = (
            Batch(level.level, number)
            for level in formats.levels
            for number in total.server.missing(level.level, reach // level.size)
        )
        return list(islice((one for one in batches if one not in waiting), _MOST_MISSING))

    def find_overdue(self, now: float) -> list[Batch]:
        """Those that this process has seen missing for so long, on a clock that only goes on."""
        since = self._since
        self._since = {batch: since.get(batch, now) for batch in self.find_missing()}
        return [batch for batch, first in self._since.items() if now - first >= self._patience]


def _to_published(total: Total) -> Published | None:
    estimate = total.latest()
    if estimate is None:
        return None
    low, high = estimate.interval(CONFIDENCE)
    value, low, high = map(by_coordinate, (estimate.value, low, high))
    rest = (total.server.is_fallback, total.server.lost_users)
    return Published(estimate.t, value, low, high, estimate.std, *rest)
