"""Where reports are kept from their arrival to the acknowledgement of their batch.

The life of a batch: *open* while reports are admitted; *full* once it holds exactly `size` of them;
*frozen* when its messages stand in random order as one release, byte for byte what will be sent,
however often, and the key to everything else that was ever stored of it is destroyed;
*acknowledged* when the server has it; *scrubbed* when nothing of it is left but its number and the
digest of its release. Every step is one transaction, and every step may be repeated after a crash:
keys that the crash left behind are destroyed at the next start, and before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.service.databases import (
    BatchKeys,
    Contents,
    Dialect,
    KeyGone,
    Transaction,
    keys_of,
    open_database,
)
from overhand.service.protocol import Batch, Formats, LevelFormat, Release
from overhand.service.shuffler.store import batching
from overhand.service.shuffler.store.batching import (
    Adding,
    Arrival,
    Gathered,
    Marks,
    Outcome,
    judge,
    lowest_of,
    may_be_late,
    nothing_added,
)
from overhand.service.shuffler.store.tables import (
    BODIES,
    LEVELS,
    MIGRATIONS,
    Overtaken,
    State,
    StoreTables,
    described,
    difference_of,
    origin,
    schema,
    table_of,
)

T = TypeVar("T")

_APPLICATION = 0x4F564853  # "OVHS"
_CACHE = 1 << 17  # KiB: marks are looked up all over the table
_ADVICE = (
    "Bring back the newest store and its keys. If they are lost, so are reports that were not "
    "sent: `overhand prepare` a new plan. An empty store of this document would fill batches that "
    "the server has and refuses, and would count a report twice that is sent again"
)


class Scrubbed(ProtocolViolation):
    """The server has this batch, and nothing is left of it here."""


class Store:
    """The reports of one document, in a SQLite file or a PostgreSQL database of their own.

    Many threads and, if the database allows it, many processes may use stores of the same document
    at the same time. It closes after the last whole batch: later reports could never be released.
    A database that is full, locked, read-only or down raises `StoreUnavailable` and changes
    nothing; the store works again when the database does. All steps may be run again, so the
    database may retry a transaction whose end it did not see.

    Nothing in it keeps the order or the time of arrival: rows have random keys. Both databases
    write a log that shows the order of commit groups, SQLite until the next checkpoint; PostgreSQL
    appends rows, so its files show it too. The order of a release does not come from them, and what
    the groups hold is sealed under the keys of the file `keys`, which is made together with the
    store, by default next to a SQLite file. Keep it out of every backup: a database from before a
    batch was frozen is refused, because its key is gone. What a later copy lacks is in no release.

    `added` says what the service itself adds to a batch when its release is made.
    """

    def __init__(
        self,
        address: str | Path,
        formats: Formats,
        keys: Path | None = None,
        added: Adding = nothing_added,
    ) -> None:
        self._keys_path = keys_of(address, keys, "store")
        self._levels = {level.level: level for level in formats.levels}
        lowest = lowest_of(formats)
        self._lowest, self._is_filled = lowest.size, lowest.is_filled
        self._horizon = self._lowest * formats.levels[0].batches
        self._origin, self._digest = described(formats), formats.digest
        self._added = added
        adds = not lowest.is_filled or any(level.added_messages for level in formats.levels)
        if added is nothing_added and adds:
            raise InvalidValue(
                "the service adds messages to batches of this plan: added= is missing"
            )
        made = (self._create, self._check, MIGRATIONS, _CACHE)
        self._database = open_database(address, Contents("store", _APPLICATION, "progress", *made))
        with self._database.closed_on_error():
            self._keys.claim()
            self.destroy_keys()

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        if not self._keys_path.exists():  # or somebody was killed before the database was whole
            BatchKeys.create(self._keys_path, list(self._levels), self._digest)
        keys = BatchKeys.begun(self._keys_path, self._digest, "store", _ADVICE)
        for statement in schema(self._levels, dialect):
            transaction.change(statement)
        StoreTables(transaction, keys).begin(self._origin)

    def _check(self, transaction: Transaction) -> None:
        """Refuse a store that was made for another plan or with other keys, or is out of date."""
        found = origin(transaction)
        if found is None:
            raise InvalidValue("the database is not a store: its table progress is empty")
        made_for, keys = found
        if made_for != self._origin:
            difference = difference_of(made_for, self._origin)
            raise InvalidValue(
                f"the store was made for {difference}: a new plan or key needs a new database"
            )
        self._keys = BatchKeys.found(self._keys_path, keys, list(self._levels), "store", _ADVICE)
        needed = self._needed(StoreTables(transaction, self._keys))
        batches = [Batch(level, number) for level in needed for number in needed[level]]
        if not all(map(self._keys.has, batches)):
            raise InvalidValue(
                f"the store is older than its keys in {self._keys_path}: it is a copy from before "
                f"some batches were frozen. {_ADVICE}"
            )

    def _needed(self, tables: StoreTables) -> dict[int, set[int]]:
        """By level, the batches that are not frozen, and the one that is open or to come."""
        opened = self._open_batches(tables.arrived())
        return {level: {*tables.numbers(level), number} for level, number in opened}

    def _open_batches(self, arrived: int) -> list[Batch]:
        shapes = self._levels.items()
        return [Batch(level, self._open_batch(shape, arrived)) for level, shape in shapes]

    def _open_batch(self, level: LevelFormat, arrived: int) -> int:
        """After the last report, one that will never be."""
        is_over = arrived == self._horizon
        return -(-arrived // level.size) if is_over else arrived // level.size

    def _read(self, work: Callable[[StoreTables], T]) -> T:
        return self._database.read(lambda transaction: work(StoreTables(transaction, self._keys)))

    def _write(self, work: Callable[[StoreTables], T]) -> T:
        return self._database.write(lambda transaction: work(StoreTables(transaction, self._keys)))

    def admit(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Admit reports: each to all its batches or to none, durable when this returns.

        One transaction for all of them. A report whose id is known is a repeat: it is counted
        once, also if copies come at the same time. If this raises `StoreUnavailable`, the
        reports may be sent again as they are: those that were taken after all are repeats then.
        """
        for arrival in arrivals:
            arrival.check(list(self._levels.values()))
        return self._write(lambda tables: self._admit(tables, arrivals)) if arrivals else []

    def _admit(self, tables: StoreTables, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Marks before the lock, so that processes wait for each other only to be counted."""
        marks = [Marks.of(arrival, self._keys) for arrival in arrivals]
        fresh = tables.remember({mark for report, token in marks for mark in (report, *token)})
        arrived = tables.lock()
        outcomes, unused = judge(arrivals, marks, fresh, arrived, self._horizon, self._lowest)
        tables.forget(unused)
        admitted = [
            arrival
            for arrival, outcome in zip(arrivals, outcomes, strict=True)
            if outcome is Outcome.ADMITTED
        ]
        if admitted:
            tables.add(batching.pieces(list(self._levels.values()), admitted, arrived))
            tables.advance(arrived + len(admitted))
        return outcomes

    def check_usable(self) -> None:
        """Raise what would keep a report from being admitted now, and change nothing."""
        self._write(lambda tables: tables.touch(self._open_batches))

    def leave_empty(self, number: int) -> int:
        """Close this late lowest batch: nobody takes the rest of its places any more.

        Where services make the noise, which does not depend on how many users there are. Returns
        how many places stay empty, at all levels; none if the batch is not the open one, or if
        nobody is in it: a batch is for somebody.
        """
        if self._is_filled:
            raise InvalidValue(
                "vacant places of this plan must be filled with reports: it needs noise"
            )
        return self._write(lambda tables: self._leave_empty(tables, number))

    def _leave_empty(self, tables: StoreTables, number: int) -> int:
        arrived = tables.lock()
        if not may_be_late(number, arrived, self._lowest):
            return 0
        missing = self._lowest - arrived % self._lowest
        tables.add(batching.empty_pieces(list(self._levels.values()), missing, arrived))
        tables.advance(arrived + missing)
        return missing

    @property
    def arrived(self) -> int:
        """How many places are taken: by reports, or by nobody any more."""
        return self._read(lambda tables: tables.arrived())

    def full(self) -> list[Batch]:
        """Batches that are full or frozen, and not acknowledged, lowest level and number first."""
        return self._read(self._full)

    def _full(self, tables: StoreTables) -> list[Batch]:
        return sorted([*self._unfrozen(tables), *tables.in_state(State.FROZEN)])

    def unfrozen(self) -> list[Batch]:
        """Batches that are full and not frozen, lowest level and number first."""
        return self._read(self._unfrozen)

    def _unfrozen(self, tables: StoreTables) -> list[Batch]:
        arrived = tables.arrived()
        return [
            Batch(level, number)
            for level, shape in self._levels.items()
            for number in sorted(tables.numbers(level))
            if number < arrived // shape.size
        ]

    def freeze_all(self, batches: Sequence[Batch]) -> list[Release]:
        """The releases of full batches: made once, the same bytes ever after, keys destroyed.

        The order, and what the service adds, are drawn from OS randomness, while others admit
        reports: a full batch never changes. One that is not full raises `ProtocolViolation`, and
        there is no way around it; those that were scrubbed are left out. Of equal messages one
        stays, and the others become bytes that nobody can open.
        """
        found = self._states_of(batches)
        fresh = self._released(zip(batches, found, strict=True))
        if fresh and not self._write(lambda tables: tables.freeze_all(fresh.values())):
            return self.freeze_all(batches)  # somebody was faster with one of them
        if any(map(self._keys.has, batches)):  # also if a crash, or another process, left them
            self.destroy_keys()
        releases = [fresh.get(batch, kept) for batch, kept in zip(batches, found, strict=True)]
        return [release for release in releases if isinstance(release, Release)]

    def _released(
        self, found: Iterable[tuple[Batch, Release | Gathered | None]]
    ) -> dict[Batch, Release]:
        """Releases of those that have none: nobody may see them before they are kept."""
        fresh = {batch: one for batch, one in found if isinstance(one, Gathered)}
        added = [self._added(batch) for batch in fresh]  # all, so that workers seal side by side
        return {
            batch: batching.released(batch, self._level(batch), gathered, more)
            for (batch, gathered), more in zip(fresh.items(), added, strict=True)
        }

    def _states_of(self, batches: Sequence[Batch]) -> list[Release | Gathered | None]:
        """What there is of full batches."""

        def look(tables: StoreTables) -> list[Release | Gathered | None]:
            return [self._state_of(tables, batch) for batch in batches]

        try:
            return self._read(look)
        except KeyGone:  # frozen since that transaction began: another one sees the release
            pass
        try:
            return self._read(look)
        except KeyGone as error:
            raise ProtocolViolation(
                f"{error}, and there is no release: the database is older than its keys in "
                f"{self._keys_path}"
            ) from error

    def _state_of(self, tables: StoreTables, batch: Batch) -> Release | Gathered | None:
        """The release of a full batch, or what it is to be made of; None if it was scrubbed."""
        record, level = tables.record(batch), self._level(batch)
        arrived = min(level.size, max(0, tables.arrived() - batch.number * level.size))
        if arrived < level.size:
            raise ProtocolViolation(
                f"{batch} cannot be frozen at {arrived} of {level.size} reports"
            )
        if record is None:
            return Gathered.of(level, tables.pieces(batch))
        body = tables.body(batch)
        if body is None:
            return None
        release = Release(batch, record.own, body, record.repeats)
        if release.digest != record.digest:
            raise ProtocolViolation(f"the release of {batch} is not what was stored")
        return release

    def destroy_keys(self) -> None:
        """Destroy the keys of frozen batches, here and in the file, whoever froze them."""
        self._keys.keep_only(self._read(self._needed))

    def fold(self, level: int) -> int:
        """Make one piece of many, of the open batch of a level; returns of how many.

        None if there are too few of them, or if others fold or freeze them meanwhile: in one
        transaction all of them go and the new one comes, or nothing happens.
        """
        if not self._database.claim(LEVELS, level):
            return 0
        try:
            batch, found = self._read(lambda tables: self._foldable(tables, self._levels[level]))
            if found is None:
                return 0
            keys, gathered = found
            piece = batching.folded(batch, self._levels[level], gathered)
            self._write(lambda tables: tables.fold(piece, keys))
        except (KeyGone, Overtaken):
            return 0
        finally:
            self._database.unclaim(LEVELS, level)
        return len(keys)

    def _foldable(
        self, tables: StoreTables, level: LevelFormat
    ) -> tuple[Batch, tuple[Sequence[bytes], Gathered] | None]:
        batch = Batch(level.level, self._open_batch(level, tables.arrived()))
        keys = batching.to_fold(level, tables.lengths(batch))
        found = keys, Gathered.of(level, tables.some_pieces(batch, keys))
        return batch, found if keys else None

    def freeze(self, batch: Batch) -> Release:
        """The release of one batch; `Scrubbed` if nothing is left of it."""
        for release in self.freeze_all([batch]):
            return release
        raise Scrubbed(f"{batch} was acknowledged and scrubbed")

    def acknowledge_all(self, digests: Mapping[Batch, bytes]) -> None:
        """The server has the releases with these digests: as often as it says so.

        Another digest than a release's raises `ProtocolViolation`, and none is acknowledged.
        """
        for batch in digests:
            self._level(batch)
        self._write(lambda tables: tables.acknowledge(digests))

    def acknowledge(self, batch: Batch, digest: bytes) -> None:
        """The server has this release."""
        self.acknowledge_all({batch: digest})

    def scrub(self) -> int:
        """Forget the releases of acknowledged batches for good; returns how many batches.

        And what can never be released, when the plan is over; and all keys that nobody needs: keys
        first, because a sweep may have to wait for others. The sweep overwrites what pieces and
        releases left in the files. Marked as done only then: after a crash they are swept again.
        """
        acknowledged, unfinished = self._write(self._drop)
        self.destroy_keys()
        dropped = {table_of(batch.level) for batch in (*acknowledged, *unfinished)}
        if dropped:
            self._database.sweep(dropped | {BODIES})
        return self._write(lambda tables: tables.end(acknowledged)) if dropped else 0

    def _drop(self, tables: StoreTables) -> tuple[list[Batch], list[Batch]]:
        """Batches that the server has, and those that will never be full."""
        arrived = tables.arrived()
        last = [Batch(level, arrived // shape.size) for level, shape in self._levels.items()]
        is_over = arrived == self._horizon
        unfinished = [
            batch for batch in last if is_over and batch.number in tables.numbers(batch.level)
        ]
        acknowledged = tables.in_state(State.ACKNOWLEDGED)
        for batch in acknowledged:
            tables.drop_body(batch)
        for batch in unfinished:
            tables.drop_pieces(batch)
        return acknowledged, unfinished

    def claim_sending(self) -> bool:
        """Whether this process may send batches, and no other until it is done or ends.

        It saves sending them twice, which would do no harm.
        """
        return self._database.claim("releases", 0)

    def end_sending(self) -> None:
        """Let other processes send batches."""
        self._database.unclaim("releases", 0)

    def _level(self, batch: Batch) -> LevelFormat:
        if batch.level not in self._levels or batch.number < 0:
            raise InvalidValue(f"the plan has no {batch}")
        return self._levels[batch.level]

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()
