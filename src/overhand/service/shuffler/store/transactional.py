"""The life of a batch as transactions of a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.service.databases import Contents, Database, Dialect, Transaction
from overhand.service.protocol import UnsafeSecret
from overhand.service.shuffler.store import batching
from overhand.service.shuffler.store.batch_keys import BatchKeys, KeyGone
from overhand.service.shuffler.store.batching import Marks, Piece
from overhand.service.shuffler.store.ledger import Ledger, State, messages_of, origin, schema
from overhand.service.shuffler.store.store import (
    Arrival,
    BatchName,
    Lane,
    Outcome,
    Release,
    Store,
)

T = TypeVar("T")


_APPLICATION = 0x4F564853  # "OVHS"
_CACHE = 1 << 17  # KiB: marks are looked up all over the table


class TransactionalStore(Store):
    """The store of one plan in a database of its own, which `opening` opens.

    All steps may be run again, so the database may retry a transaction whose end it did not see.

    Both databases write a log that shows the order of commit groups, SQLite until the next
    checkpoint; PostgreSQL appends rows, so its files show it too. The order of a release does not
    come from them, and what the groups hold is sealed under the keys of the file `keys`, which is
    made together with the store. Keep it out of every backup. `document` is the digest of what the
    reports are made for: others must not get into the same batches.
    """

    def __init__(
        self,
        opening: Callable[[Contents], Database],
        lanes: Sequence[Lane],
        horizon: int,
        keys: Path,
        document: str = "",
    ) -> None:
        self._plan = batching.described(lanes, horizon, document)
        self._lanes = tuple(lanes)
        self._horizon = horizon
        self._keys_path = keys
        contents = Contents("store", _APPLICATION, "progress", self._create, self._check, _CACHE)
        self._database = opening(contents)
        self._keys.claim()

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        if not self._keys_path.exists():  # or somebody was killed before the store was whole
            BatchKeys.create(self._keys_path, [lane.level for lane in self._lanes])
        keys = BatchKeys(self._keys_path)
        if keys.is_claimed:
            raise InvalidValue(
                f"{self._keys_path} has the keys of another store, or of this one before it was "
                "lost: a new store has new keys"
            )
        for statement in schema(self._lanes, dialect):
            transaction.change(statement)
        Ledger(transaction, keys).begin(self._plan)

    def _check(self, transaction: Transaction) -> None:
        """Refuse a store that was made for another plan or with other keys, or is out of date."""
        found = origin(transaction)
        if found is None:
            raise InvalidValue("the database is not a store: its table progress is empty")
        plan, keys = found
        if plan != self._plan:
            difference = batching.difference(plan, self._plan)
            raise InvalidValue(
                f"the store was made for {difference}: a new plan or key has a new database"
            )
        self._keys = self._found_keys()
        levels = [lane.level for lane in self._lanes]
        if keys != self._keys.name or self._keys.levels != levels:
            raise InvalidValue(f"{self._keys_path} has the keys of another store")
        needed = self._needed(Ledger(transaction, self._keys))
        if not all(self._keys.has(name) for name in _names(needed)):
            raise InvalidValue(
                f"the store is older than its keys in {self._keys_path}: it is a copy from before "
                "some batches were sent. Start a new plan, with new keys"
            )

    def _found_keys(self) -> BatchKeys:
        if not self._keys_path.exists():
            raise UnsafeSecret(
                f"there is no file {self._keys_path}: the keys were made with the store; copy them "
                "from the machine that made it. If they are gone, so is what is in the store"
            )
        return BatchKeys(self._keys_path)

    def _needed(self, ledger: Ledger) -> dict[int, set[int]]:
        """By level, the batches of which there is anything, and the one that is open or to come."""
        arrived = ledger.arrived()
        to_come = {lane.level: self._open_batch(lane, arrived) for lane in self._lanes}
        return {level: {*ledger.numbers(level), number} for level, number in to_come.items()}

    def _open_batch(self, lane: Lane, arrived: int) -> int:
        """After the last report, one that will never be."""
        is_over = arrived == self._horizon
        return -(-arrived // lane.size) if is_over else arrived // lane.size

    def _read(self, work: Callable[[Ledger], T]) -> T:
        return self._database.read(lambda transaction: work(Ledger(transaction, self._keys)))

    def _write(self, work: Callable[[Ledger], T]) -> T:
        return self._database.write(lambda transaction: work(Ledger(transaction, self._keys)))

    def admit(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        for arrival in arrivals:
            batching.check_arrival(arrival, self._lanes)
        return self._write(lambda ledger: self._admit(ledger, arrivals)) if arrivals else []

    def _admit(self, ledger: Ledger, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Marks before the lock, so that processes wait for each other only to be counted."""
        marks = [Marks.of(arrival, self._keys) for arrival in arrivals]
        fresh = ledger.remember({mark for ids, token in marks for mark in (*ids, *token)})
        arrived = ledger.lock()
        outcomes, unused = batching.judge(
            arrivals, marks, fresh, arrived, self._horizon, self._lanes[0].size
        )
        ledger.forget(unused)
        admitted = [
            arrival
            for arrival, outcome in zip(arrivals, outcomes, strict=True)
            if outcome is Outcome.ADMITTED
        ]
        if admitted:
            ledger.add(batching.pieces(self._lanes, admitted, arrived))
            ledger.advance(arrived + len(admitted))
        return outcomes

    @property
    def arrived(self) -> int:
        return self._read(lambda ledger: ledger.arrived())

    def full(self) -> list[BatchName]:
        return self._read(self._full)

    def _full(self, ledger: Ledger) -> list[BatchName]:
        arrived = ledger.arrived()
        return [
            name
            for lane in self._lanes
            for name in ledger.waiting(lane.level, arrived // lane.size)
        ]

    def freeze_all(self, names: Sequence[BatchName]) -> list[Release]:
        """A full batch never changes, so its order is drawn while others admit reports."""
        found = self._read(lambda ledger: [self._release_or_pieces(ledger, name) for name in names])
        fresh = {
            name: batching.released(name, self._lane(name), pieces)
            for name, pieces in zip(names, found, strict=True)
            if isinstance(pieces, list)
        }
        if fresh and not self._write(lambda ledger: _freeze(ledger, fresh.values())):
            return self.freeze_all(names)  # somebody was faster with one of them
        releases = [fresh.get(name, kept) for name, kept in zip(names, found, strict=True)]
        return [release for release in releases if isinstance(release, Release)]

    def _release_or_pieces(self, ledger: Ledger, name: BatchName) -> Release | list[Piece] | None:
        """What there is of a full batch; None if it was scrubbed."""
        record, lane = ledger.record(name), self._lane(name)
        arrived = min(lane.size, max(0, ledger.arrived() - name.number * lane.size))
        if arrived < lane.size:
            raise ProtocolViolation(f"{name} cannot be frozen at {arrived} of {lane.size} reports")
        try:
            found = ledger.pieces(name)
        except KeyGone:  # destroyed since this transaction began: nothing is left of the batch
            return None
        if record is None:
            return found
        if record.state is State.SCRUBBED or not found:
            return None
        return Release(name, found[0].body, record.own, record.digest, record.repeats)

    def acknowledge_all(self, releases: Sequence[tuple[BatchName, bytes]]) -> None:
        for name, _ in releases:
            self._lane(name)
        self._write(lambda ledger: _acknowledge(ledger, releases))

    def scrub(self) -> int:
        """Keys first: a sweep may have to wait for others.

        Marked as done only when the files were swept: after a crash they are swept again.
        """
        acknowledged, unfinished = self._write(self._drop)
        self._keys.keep_only(self._read(self._needed))
        dropped = {messages_of(name.level) for name in (*acknowledged, *unfinished)}
        if dropped:
            self._database.sweep(dropped)
        return self._write(lambda ledger: _mark_scrubbed(ledger, acknowledged)) if dropped else 0

    def _drop(self, ledger: Ledger) -> tuple[list[BatchName], list[BatchName]]:
        """Batches that the server has, and those that will never be full."""
        arrived = ledger.arrived()
        last = [BatchName(lane.level, arrived // lane.size) for lane in self._lanes]
        is_over = arrived == self._horizon
        unfinished = [
            name for name in last if is_over and name.number in ledger.numbers(name.level)
        ]
        acknowledged = ledger.acknowledged()
        for name in (*acknowledged, *unfinished):
            ledger.drop(name)
        return acknowledged, unfinished

    def claim_sending(self) -> bool:
        return self._database.claim("releases", 0)

    def end_sending(self) -> None:
        self._database.unclaim("releases", 0)

    def _lane(self, name: BatchName) -> Lane:
        lane = next((lane for lane in self._lanes if lane.level == name.level), None)
        if lane is None or name.number < 0:
            raise InvalidValue(f"the plan has no batch {name}")
        return lane

    def close(self) -> None:
        self._database.close()


def _freeze(ledger: Ledger, releases: Iterable[Release]) -> bool:
    """Whether all of them are new; those that are not stay as they were."""
    return all([ledger.freeze(release) for release in releases])


def _acknowledge(ledger: Ledger, releases: Iterable[tuple[BatchName, bytes]]) -> None:
    for name, digest in releases:
        record = ledger.record(name)
        if record is None:
            raise ProtocolViolation(f"{name} was acknowledged before it was frozen")
        if record.digest != digest:
            raise ProtocolViolation(
                f"{name} has the digest {record.digest.hex()}, {digest.hex()} was acknowledged"
            )
        ledger.move(name, State.FROZEN, State.ACKNOWLEDGED)


def _names(numbers: Mapping[int, Collection[int]]) -> Iterator[BatchName]:
    for level, some in numbers.items():
        for number in some:
            yield BatchName(level, number)


def _mark_scrubbed(ledger: Ledger, names: Sequence[BatchName]) -> int:
    return sum(ledger.move(name, State.ACKNOWLEDGED, State.SCRUBBED) for name in names)
