"""Where reports are kept from their arrival to the acknowledgement of their batch.

The life of a batch: *open* while reports are admitted; *full* once it holds exactly `size` of them;
*frozen* when its messages stand in random order as one release, byte for byte what will be sent,
however often, and the key to everything else that was ever stored of it is destroyed;
*acknowledged* when the server has it; *scrubbed* when nothing of it is left but its number and the
digest of its release. Every step is one transaction, and every step may be repeated after a crash:
keys that the crash left behind are destroyed at the next start, and before anything is sent.

progress      one row: what the store is made for, its keys' name, and how many reports arrived
seen          marks of the ids and tokens of admitted reports, kept until the plan ends
levels        a row per level: held while pieces are replaced by others
messages_<l>  level l: the pieces of its batches that are not frozen, sealed, in no order
releases      a row per frozen batch: its digest, and how far it got
bodies        releases as they are sent, until the server has them: no longer sealed

What is secret is in the pieces. In SQLite the bodies of pieces and releases start in pages of their
own (`Dialect.padding`): rows that are moved leave no copies of them, and deleted ones are
overwritten whole. That is a second line of defence: the first is that the key of a batch is gone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from overhand.deploy.databases.batch_keys import SEALED_BYTES, BatchKeys, KeyGone
from overhand.deploy.databases.database import (
    Contents,
    Dialect,
    Transaction,
    keys_of,
    open_database,
)
from overhand.deploy.protocol.wire import Batch, Formats, LevelFormat, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.batching import (
    Adding,
    Arrival,
    Gathered,
    Outcome,
    Piece,
    ReportFingerprints,
    add_nothing,
    judge,
    lowest_of,
    may_be_late,
)
from overhand.errors import InvalidValue, ProtocolViolation

KEY_BYTES = 16
LEVELS, BODIES = "levels", "bodies"
_PIECES_AT_ONCE = 16

SCHEMA = 2
"""Whoever changes the tables adds to `Contents.migrations` what makes the next schema of this."""
T = TypeVar("T")
_APPLICATION = 0x4F564853  # "OVHS"
_CACHE = 1 << 17  # KiB: marks are looked up all over the table
_ADVICE = (
    "Bring back the newest store and its keys. If they are lost, so are reports that were not "
    "sent: `overhand prepare` a new plan. An empty store of this document would fill batches that "
    "the server has and refuses, and would count a report twice that is sent again"
)


class Overtaken(Exception):
    """Pieces that somebody else has put others in the place of: nothing is to be changed."""


class State(IntEnum):
    """How far a release got."""

    FROZEN = 0
    ACKNOWLEDGED = 1
    SCRUBBED = 2


class Record(NamedTuple):
    """What is known of a release apart from its body."""

    digest: bytes
    own: int
    repeats: int
    state: State


def schema(levels: Collection[int], dialect: Dialect) -> list[str]:
    """What makes the tables.

    They have no hidden row number, which would be the order of arrival.
    """
    blob, ending = dialect.blob, dialect.ending
    key = f"level INTEGER, number BIGINT, digest {blob} NOT NULL, own BIGINT NOT NULL"
    body = f"{dialect.padding}body {blob} NOT NULL"
    piece = f"number BIGINT, key {blob}, own BIGINT NOT NULL, {body}"
    return [
        "CREATE TABLE progress (plan TEXT PRIMARY KEY, keys TEXT NOT NULL, "
        f"arrived BIGINT NOT NULL) {ending}",
        f"CREATE TABLE seen (mark {blob} PRIMARY KEY) {ending}",
        f"CREATE TABLE releases ({key}, repeats BIGINT NOT NULL, state INTEGER NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        "CREATE INDEX unscrubbed ON releases (state) WHERE state < 2",
        f"CREATE TABLE {BODIES} (level INTEGER, number BIGINT, {body}, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE {LEVELS} (level INTEGER PRIMARY KEY) {ending}",
        *(f"INSERT INTO {LEVELS} (level) VALUES ({level})" for level in levels),
        *(
            f"CREATE TABLE {table_of(level)} ({piece}, PRIMARY KEY (number, key)) {ending}"
            for level in levels
        ),
        *(
            one
            for table in (BODIES, *map(table_of, levels))
            for one in dialect.storage_statements(table)
        ),
    ]


def table_of(level: int) -> str:
    """The table of a level's messages."""
    return f"messages_{level}"


def origin(transaction: Transaction) -> tuple[str, str] | None:
    """The plan that a store was made for, and its keys' name, if it is a store."""
    found = transaction.rows("SELECT plan, keys FROM progress")
    return next(((str(plan), str(keys)) for plan, keys in found), None)


def describe(formats: Formats) -> str:
    """Everything that a store is made for, in one line."""
    levels = [asdict(level) for level in formats.levels]
    return json.dumps({"document": formats.digest.hex(), "levels": levels})


class StoreTables:
    """The tables inside one transaction.

    Those who admit take marks first, in their order, then `progress`; those who freeze or fold take
    rows of `levels`, in their order, and nothing that the others take.
    """

    def __init__(self, transaction: Transaction, keys: BatchKeys) -> None:
        self._transaction = transaction
        self._keys = keys

    def lock(self) -> int:
        """How many reports arrived; none can until this transaction ends."""
        return int(self._transaction.lock_rows("SELECT arrived FROM progress")[0][0])

    def remember(self, marks: Collection[bytes]) -> set[bytes]:
        """Keep these marks; those that were not kept before."""
        return self._transaction.insert_new("seen", "mark", marks)

    def begin(self, plan: str) -> None:
        self._transaction.change(
            "INSERT INTO progress (plan, keys, arrived) VALUES (?, ?, 0)", plan, self._keys.name
        )

    def count_arrived(self) -> int:
        return int(self._transaction.rows("SELECT arrived FROM progress")[0][0])

    def advance(self, arrived: int) -> None:
        self._transaction.change("UPDATE progress SET arrived = ?", arrived)

    def touch(self, open_batches: Callable[[int], Iterable[Batch]]) -> None:
        """Write what is there, if the keys of all batches that are open then are there as well."""
        arrived = self.lock()  # nobody fills and freezes them meanwhile
        for batch in open_batches(arrived):
            self._keys.seal(batch, 0, b"")
        self.advance(arrived)

    def forget(self, marks: Iterable[bytes]) -> None:
        self._transaction.change_many(
            "DELETE FROM seen WHERE mark = ?", [(mark,) for mark in sorted(marks)]
        )

    def add(self, pieces: Iterable[Piece]) -> None:
        """Put pieces, lowest level first, into their batches."""
        pieces = list(pieces)
        lengths = [len(piece.body) for piece in pieces]
        self._transaction.scatter(list(map(table_of, self._keys.levels)), lengths)
        for level, group in groupby(pieces, lambda piece: piece.batch.level):
            self._transaction.change_many(
                f"INSERT INTO {table_of(level)} (number, key, own, body) VALUES (?, ?, ?, ?)",
                [
                    (
                        piece.batch.number,
                        secrets.token_bytes(KEY_BYTES),
                        piece.own,
                        self._keys.seal(piece.batch, piece.own, piece.body),
                    )
                    for piece in group
                ],
            )

    def pieces(self, batch: Batch) -> Iterator[Piece]:
        """All of a batch, a few of them in memory at a time."""
        table, last = table_of(batch.level), b""
        while found := self._transaction.rows(
            f"SELECT key, own, body FROM {table} WHERE number = ? AND key > ? "
            f"ORDER BY key LIMIT {_PIECES_AT_ONCE}",
            batch.number,
            last,
        ):
            last = found[-1][0]
            for _, own, sealed in found:
                yield Piece(batch, own, self._keys.open(batch, own, sealed))

    def some_pieces(self, batch: Batch, keys: Iterable[bytes]) -> Iterator[Piece]:
        """Those with these keys, one at a time."""
        table = table_of(batch.level)
        statement = f"SELECT own, body FROM {table} WHERE number = ? AND key = ?"
        for key in keys:
            for own, sealed in self._transaction.rows(statement, batch.number, key):
                yield Piece(batch, own, self._keys.open(batch, own, sealed))

    def lengths(self, batch: Batch) -> dict[bytes, int]:
        """How long the pieces of a batch are, by their keys."""
        table = table_of(batch.level)
        found = self._transaction.rows(
            f"SELECT key, length(body) FROM {table} WHERE number = ?", batch.number
        )
        return {key: length - SEALED_BYTES for key, length in found}

    def hold(self, levels: Iterable[int]) -> None:
        """Nobody else freezes or folds batches of these levels until this transaction ends."""
        for level in sorted(levels):
            self._transaction.lock_rows(f"SELECT level FROM {LEVELS} WHERE level = ?", level)

    def fold(self, piece: Piece, keys: Iterable[bytes]) -> None:
        """Put a piece in the place of those with these keys, or raise `Overtaken`."""
        level, number = piece.batch
        self.hold([level])
        statement = f"DELETE FROM {table_of(level)} WHERE number = ? AND key = ?"
        for key in keys:
            if not self._transaction.change(statement, number, key):
                raise Overtaken
        self.add([piece])

    def numbers(self, level: int) -> set[int]:
        """The batches of a level of which there are pieces: those that are not frozen."""
        found = self._transaction.rows(f"SELECT DISTINCT number FROM {table_of(level)}")
        return {number for (number,) in found}

    def record(self, batch: Batch) -> Record | None:
        found = self._transaction.rows(
            "SELECT digest, own, repeats, state FROM releases WHERE level = ? AND number = ?",
            *batch,
        )
        records = (
            Record(digest, own, repeats, State(state)) for digest, own, repeats, state in found
        )
        return next(records, None)

    def freeze_all(self, releases: Collection[Release]) -> bool:
        """Whether all of them are new; those that are not stay as they were."""
        self.hold({release.batch.level for release in releases})
        return all([self.freeze(release) for release in releases])

    def freeze(self, release: Release) -> bool:
        """The release instead of pieces, unless somebody was faster."""
        first = self._transaction.change(
            "INSERT INTO releases (level, number, digest, own, repeats, state) "
            "VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
            *release.batch,
            release.digest,
            release.own,
            release.repeats,
        )
        if first:
            self.drop_pieces(release.batch)
            self._transaction.change(
                f"INSERT INTO {BODIES} (level, number, body) VALUES (?, ?, ?)",
                *release.batch,
                release.body,
            )
        return bool(first)

    def body(self, batch: Batch) -> bytes | None:
        """The body of a release, if it is still there."""
        found = self._transaction.rows(
            f"SELECT body FROM {BODIES} WHERE level = ? AND number = ?", *batch
        )
        return next((body for (body,) in found), None)

    def drop_pieces(self, batch: Batch) -> None:
        self._transaction.change(
            f"DELETE FROM {table_of(batch.level)} WHERE number = ?", batch.number
        )

    def drop_body(self, batch: Batch) -> None:
        self._transaction.change(f"DELETE FROM {BODIES} WHERE level = ? AND number = ?", *batch)

    def in_state(self, state: State) -> list[Batch]:
        """Batches whose release got so far."""
        found = self._transaction.rows(
            f"SELECT level, number FROM releases WHERE state = {int(state)}"
        )
        return sorted(Batch(*row) for row in found)

    def acknowledge(self, digests: Mapping[Batch, bytes]) -> None:
        for batch, digest in digests.items():
            record = self.record(batch)
            if record is None:
                raise ProtocolViolation(f"{batch} was acknowledged before it was frozen")
            if record.digest != digest:
                raise ProtocolViolation(
                    f"{batch} has the digest {record.digest.hex()}, {digest.hex()} was acknowledged"
                )
            self.move(batch, State.FROZEN, State.ACKNOWLEDGED)

    def end(self, batches: Iterable[Batch]) -> int:
        """Acknowledged batches are scrubbed now; how many were not before."""
        return sum(self.move(batch, State.ACKNOWLEDGED, State.SCRUBBED) for batch in batches)

    def move(self, batch: Batch, before: State, after: State) -> bool:
        """Take a release one state further, unless somebody did."""
        statement = "UPDATE releases SET state = ? WHERE level = ? AND number = ? AND state = ?"
        return bool(self._transaction.change(statement, int(after), *batch, int(before)))


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
        added: Adding = add_nothing,
    ) -> None:
        self._keys_path = keys_of(address, keys, "store")
        self._levels = {level.level: level for level in formats.levels}
        lowest = lowest_of(formats)
        self._lowest, self._is_filled = lowest.size, lowest.is_filled
        self._horizon = self._lowest * formats.levels[0].batches
        self._origin, self._digest = describe(formats), formats.digest
        self._added = added
        adds = not lowest.is_filled or any(level.added_messages for level in formats.levels)
        if added is add_nothing and adds:
            raise InvalidValue(
                "the service adds messages to batches of this plan: added= is missing"
            )
        contents = Contents(
            "store", _APPLICATION, "progress", self._create, self._check, SCHEMA, cache=_CACHE
        )
        self._database = open_database(address, contents)
        with self._database.close_on_error():
            self._keys.claim()
            self.destroy_keys()

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        if not self._keys_path.exists():  # or somebody was killed before the database was whole
            BatchKeys.create(self._keys_path, list(self._levels), self._digest)
        keys = BatchKeys.for_new_store(self._keys_path, self._digest, "store", _ADVICE)
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
            before, now = json.loads(made_for), json.loads(self._origin)
            difference = f"{before['levels']}, not {now['levels']}"
            if before["document"] != now["document"]:
                difference = f"the document {before['document'][:12]}, not {now['document'][:12]}"
            raise InvalidValue(
                f"the store was made for {difference}: a new plan or key needs a new database"
            )
        self._keys = BatchKeys.for_store(
            self._keys_path, keys, list(self._levels), "store", _ADVICE
        )
        needed = self._needed_batches(StoreTables(transaction, self._keys))
        batches = [Batch(level, number) for level in needed for number in needed[level]]
        if not all(map(self._keys.has, batches)):
            raise InvalidValue(
                f"the store is older than its keys in {self._keys_path}: it is a copy from before "
                f"some batches were frozen. {_ADVICE}"
            )

    def _needed_batches(self, tables: StoreTables) -> dict[int, set[int]]:
        """By level, the batches that are not frozen, and the one that is open or to come."""
        opened = self._open_batches(tables.count_arrived())
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
        marks = [ReportFingerprints.of(arrival, self._keys) for arrival in arrivals]
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
        return self._read(lambda tables: tables.count_arrived())

    def full(self) -> list[Batch]:
        """Batches that are full or frozen, and not acknowledged, lowest level and number first."""
        return self._read(
            lambda tables: sorted([*self._unfrozen(tables), *tables.in_state(State.FROZEN)])
        )

    def unfrozen(self) -> list[Batch]:
        """Batches that are full and not frozen, lowest level and number first."""
        return self._read(self._unfrozen)

    def _unfrozen(self, tables: StoreTables) -> list[Batch]:
        arrived = tables.count_arrived()
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
        gathered = {
            batch: one
            for batch, one in zip(batches, found, strict=True)
            if isinstance(one, Gathered)
        }
        added = [self._added(batch) for batch in gathered]  # all, so that workers seal side by side
        fresh = {  # nobody may see them before they are kept
            batch: batching.build_release(batch, self._level(batch), one, more)
            for (batch, one), more in zip(gathered.items(), added, strict=True)
        }
        if fresh and not self._write(lambda tables: tables.freeze_all(fresh.values())):
            return self.freeze_all(batches)  # somebody was faster with one of them
        if any(map(self._keys.has, batches)):  # also if a crash, or another process, left them
            self.destroy_keys()
        releases = [fresh.get(batch, kept) for batch, kept in zip(batches, found, strict=True)]
        return [release for release in releases if isinstance(release, Release)]

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
        arrived = min(level.size, max(0, tables.count_arrived() - batch.number * level.size))
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
        self._keys.keep_only(self._read(self._needed_batches))

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
            piece = batching.fold_pieces(batch, self._levels[level], gathered)
            self._write(lambda tables: tables.fold(piece, keys))
        except (KeyGone, Overtaken):
            return 0
        finally:
            self._database.unclaim(LEVELS, level)
        return len(keys)

    def _foldable(
        self, tables: StoreTables, level: LevelFormat
    ) -> tuple[Batch, tuple[Sequence[bytes], Gathered] | None]:
        batch = Batch(level.level, self._open_batch(level, tables.count_arrived()))
        keys = batching.to_fold(level, tables.lengths(batch))
        found = keys, Gathered.of(level, tables.some_pieces(batch, keys))
        return batch, found if keys else None

    def acknowledge_all(self, digests: Mapping[Batch, bytes]) -> None:
        """The server has the releases with these digests: as often as it says so.

        Another digest than a release's raises `ProtocolViolation`, and none is acknowledged.
        """
        for batch in digests:
            self._level(batch)
        self._write(lambda tables: tables.acknowledge(digests))

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
        arrived = tables.count_arrived()
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
