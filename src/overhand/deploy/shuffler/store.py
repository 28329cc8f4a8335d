"""Where reports are kept from their arrival to the acknowledgement of their batch.

The life of a batch: *open* while reports are admitted; *full* once it holds exactly `size` of them;
*offered*, if its reports have numbers in the clear, when the order is fixed in which the server
sees its ciphertexts; *frozen* when what will be sent of it stands there, byte for byte, however
often, and the key to everything else that was ever stored of it is destroyed: a release with its
messages in random order, or a sum of numbers. *Acknowledged* when the server has it; *scrubbed*
when nothing of it is left but its number and a digest. Every step is one transaction, and every
step may be repeated after a crash: keys that the crash left behind are destroyed at the next start,
and before anything is sent.

If services make the noise, batches are frozen in the order of their numbers, and the transaction
that freezes some also takes the state of the noise forward. The state is sealed under the key of
the next batch to be frozen: with the key of a frozen batch goes the state that its noise is from.

progress      one row: what the store is made for, its keys' name, and how many reports arrived
seen          marks of the ids and tokens of admitted reports, kept until the plan ends
messages_<l>  level l: the pieces of its batches that are not frozen, sealed, in no order
noise         one row, if services make it: the next batch to be frozen, and the state, sealed
offers        a row per offered batch: since when, its ciphertexts, and their order, sealed
releases      a row per frozen batch: its digest, and how far it got
bodies        what is sent of frozen batches, until the server has it: no longer sealed

What is secret is in the pieces. In SQLite the bodies of pieces and releases start in pages of their
own (`Dialect.padding`): rows that are moved leave no copies of them, and deleted ones are
overwritten whole. That is a second line of defence: the first is that the key of a batch is gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import Enum, IntEnum
from functools import partial
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import STATE, BatchKeys, KeyGone
from overhand.deploy.databases.database import (
    Contents,
    Dialect,
    Transaction,
    keys_of,
    open_database,
)
from overhand.deploy.http.telemetry import log
from overhand.deploy.protocol.wire import Batch, Formats, LevelFormat, MaskedSum, Offer, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.batching import (
    Added,
    Arranged,
    Arrival,
    Gathered,
    Outcome,
    OwnNoise,
    Piece,
    build_release,
    judge,
    lowest_of,
    mask_sum,
    may_be_late,
    release_offer,
)
from overhand.errors import InvalidValue, ProtocolViolation

KEY_BYTES = 16
BODIES, OFFERS, NOISE = "bodies", "offers", "noise"
_PIECES_AT_ONCE = 64

SCHEMA = 3
"""Whoever changes the tables adds to `Contents.migrations` what makes the next schema of this."""
T = TypeVar("T")
_APPLICATION = 0x4F564853  # "OVHS"
_CACHE = 1 << 17  # KiB: marks are looked up all over the table
_ADVICE = (
    "Bring back the newest store and its keys. If they are lost, so are reports that were not "
    "sent: `overhand prepare` a new plan. An empty store of this document would fill batches that "
    "the server has and refuses, and would count a report twice that is sent again"
)


Outgoing = Release | MaskedSum
"""What is sent of a frozen batch."""


class Alarm(Enum):
    """What should never happen; the service goes on."""

    DAMAGED = "a batch is damaged and lost"
    NOISE = "the state of the noise was lost: noise starts anew"
    ANSWER = "the server answered an offer in another way than before, or too late"


class State(IntEnum):
    """How far a release got."""

    FROZEN = 0
    ACKNOWLEDGED = 1
    SCRUBBED = 2


class Record(NamedTuple):
    """What is known of a frozen batch apart from what is sent of it."""

    digest: bytes
    own: int
    repeats: int
    answer: bytes
    """The digest of the answer that its sum is for; nothing if it is a release."""


class Block(NamedTuple):
    """A full batch: what was stored of it, and what was offered, unless it is damaged."""

    batch: Batch
    gathered: Gathered | None
    arranged: Arranged | None = None

    def is_whole(self, level: LevelFormat) -> bool:
        return self.gathered is not None and (self.arranged is not None or not level.is_offered)


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
        f"answer {blob} NOT NULL, PRIMARY KEY (level, number)) {ending}",
        "CREATE INDEX unscrubbed ON releases (state) WHERE state < 2",
        f"CREATE TABLE {BODIES} (level INTEGER, number BIGINT, {body}, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE {NOISE} (level INTEGER PRIMARY KEY, number BIGINT NOT NULL, {body}) "
        f"{ending}",
        f"CREATE TABLE {OFFERS} (number BIGINT PRIMARY KEY, own BIGINT NOT NULL, "
        f"since BIGINT NOT NULL, places {blob} NOT NULL, {body}) {ending}",
        *(
            f"CREATE TABLE {table_of(level)} ({piece}, PRIMARY KEY (number, key)) {ending}"
            for level in levels
        ),
        *(
            one
            for table in (BODIES, NOISE, OFFERS, *map(table_of, levels))
            for one in dialect.storage_statements(table)
        ),
    ]


def table_of(level: int) -> str:
    """The table of a level's messages."""
    return f"messages_{level}"


def describe(formats: Formats) -> str:
    """Everything that a store is made for, in one line."""
    levels = [asdict(level) for level in formats.levels]
    return json.dumps({"document": formats.digest.hex(), "levels": levels})


class StoreTables:
    """The tables inside one transaction.

    Those who admit take marks first, in their order, then `progress`; those who offer or freeze
    batches of which services make the noise take the row of `noise`, and nothing of the others'.
    """

    def __init__(self, transaction: Transaction, keys: BatchKeys) -> None:
        self._transaction = transaction
        self._rows, self._change = transaction.rows, transaction.change
        self._keys = keys
        self._level = keys.levels[0]

    def lock(self) -> int:
        """How many reports arrived; none can until this transaction ends."""
        return int(self._transaction.lock_rows("SELECT arrived FROM progress")[0][0])

    def remember(self, marks: Collection[bytes]) -> set[bytes]:
        """Keep these marks; those that were not kept before."""
        return self._transaction.insert_new("seen", "mark", marks)

    def begin(self, plan: str) -> None:
        statement = "INSERT INTO progress (plan, keys, arrived) VALUES (?, ?, 0)"
        self._change(statement, plan, self._keys.name)

    def count_arrived(self) -> int:
        return int(self._rows("SELECT arrived FROM progress")[0][0])

    def advance(self, arrived: int) -> None:
        self._change("UPDATE progress SET arrived = ?", arrived)

    def touch(self, open_batches: Callable[[int], Iterable[Batch]]) -> None:
        """Write what is there, if the keys of all batches that are open then are there as well."""
        arrived = self.lock()  # nobody fills and freezes them meanwhile
        for batch in open_batches(arrived):
            self._keys.seal(batch, 0, b"")
        self.advance(arrived)

    def forget(self, marks: Iterable[bytes]) -> None:
        statement = "DELETE FROM seen WHERE mark = ?"
        self._transaction.change_many(statement, [(mark,) for mark in sorted(marks)])

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
                        batch.number,
                        secrets.token_bytes(KEY_BYTES),
                        own,
                        self._keys.seal(batch, own, body),
                    )
                    for batch, own, body in group
                ],
            )

    def pieces(self, batch: Batch) -> Iterator[Piece]:
        """All of a batch, a few of them in memory at a time."""
        table, last = table_of(batch.level), b""
        while found := self._rows(
            f"SELECT key, own, body FROM {table} WHERE number = ? AND key > ? "
            f"ORDER BY key LIMIT {_PIECES_AT_ONCE}",
            *(batch.number, last),
        ):
            last = found[-1][0]
            for _, own, sealed in found:
                yield Piece(batch, own, self._keys.open(batch, own, sealed))

    def numbers(self, level: int) -> set[int]:
        """The batches of a level of which there are pieces: those that are not frozen."""
        found = self._rows(f"SELECT DISTINCT number FROM {table_of(level)}")
        return {number for (number,) in found}

    # Of the one level whose noise the service makes.

    def noise(self) -> tuple[int, bytes]:
        """The number of the next batch to be frozen, and the sealed state if it is there."""
        found = self._rows(f"SELECT body FROM {NOISE}")
        return self.next_number(), found[0][0] if found else b""

    def next_number(self) -> int:
        """Of the next batch to be frozen."""
        found = self._rows(f"SELECT number FROM {NOISE}")
        return int(found[0][0]) if found else self._after_frozen()

    def hold_noise(self) -> int:
        """The same number; nobody else offers or freezes batches until this transaction ends."""
        self.start_noise()
        return int(self._transaction.lock_rows(f"SELECT number FROM {NOISE}")[0][0])

    def start_noise(self) -> None:
        """A row without a state, if there is none."""
        self._change(
            f"INSERT INTO {NOISE} (level, number, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            *(self._level, self._after_frozen(), b""),
        )

    def _after_frozen(self) -> int:
        return self.after_last(f"releases WHERE level = {self._level}")

    def after_last(self, rows: str) -> int:
        """The number of the batch after all those in some rows."""
        ((last,),) = self._rows(f"SELECT max(number) FROM {rows}")
        return 0 if last is None else 1 + int(last)

    def unanswered(self, until: float) -> set[int]:
        """Batches that were offered by then and are not frozen."""
        found = self._rows(f"SELECT number FROM {OFFERS} WHERE since <= ?", int(until))
        return {number for (number,) in found}

    def add_offers(self, blocks: Iterable[Block], since: float) -> None:
        """Of batches that were neither offered nor frozen; one that is damaged has no order."""
        first = self.hold_noise()
        rows = []
        for batch, _, arranged in blocks:
            row: tuple[int, bytes, bytes] = 0, b"", b""
            if arranged is not None:
                (_, own, body), places = arranged
                row = own, self._keys.seal(batch, own, places), body
            if batch.number >= first:
                rows.append((batch.number, int(since), *row))
        self._transaction.change_many(
            f"INSERT INTO {OFFERS} (number, since, own, places, body) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            rows,
        )

    def offer(self, batch: Batch) -> Arranged | None:
        """What was offered of a batch, if it was and is not damaged."""
        statement = f"SELECT own, places, body FROM {OFFERS} WHERE number = ?"
        for own, sealed, body in self._rows(statement, batch.number):
            places = _unless_damaged(partial(self._keys.open, batch, own, sealed))
            return None if places is None else Arranged(Offer(batch, own, body), places)
        return None

    def freeze_next(
        self, first: int, state: bytes, frozen: Sequence[tuple[Batch, Outgoing | None]]
    ) -> bool:
        """What is sent of the next batches, and the state after them, unless somebody was faster.

        Of a batch that is damaged nothing is sent.
        """
        number = first + len(frozen)
        sealed = self._keys.seal(Batch(self._level, number), STATE, state)
        self.start_noise()
        statement = f"UPDATE {NOISE} SET number = ?, body = ? WHERE number = ?"
        is_first = self._change(statement, number, sealed, first)
        if is_first:
            for batch, outgoing in frozen:
                self.freeze(batch, outgoing)
                self._change(f"DELETE FROM {OFFERS} WHERE number = ?", batch.number)
        return bool(is_first)

    # Of all levels.

    def record(self, batch: Batch) -> Record | None:
        found = self._rows(
            "SELECT digest, own, repeats, answer FROM releases WHERE level = ? AND number = ?",
            *batch,
        )
        return Record(*found[0]) if found else None

    def freeze_all(self, releases: Iterable[Release]) -> bool:
        """Whether all of them are new; those that are not stay as they were."""
        return all([self.freeze(release.batch, release) for release in releases])

    def freeze(self, batch: Batch, outgoing: Outgoing | None) -> bool:
        """What is sent instead of pieces, unless somebody was faster; nothing, if it is lost."""
        record = Record(b"", 0, 0, b"")
        if isinstance(outgoing, Release):
            record = Record(outgoing.digest, outgoing.own, outgoing.repeats, b"")
        elif outgoing is not None:
            record = Record(outgoing.digest, outgoing.own, 0, outgoing.answer)
        first = self._change(
            "INSERT INTO releases (level, number, digest, own, repeats, answer, state) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            *(*batch, *record, int(State.SCRUBBED if outgoing is None else State.FROZEN)),
        )
        if first:
            self.drop_pieces(batch)
            if outgoing is not None:
                statement = f"INSERT INTO {BODIES} (level, number, body) VALUES (?, ?, ?)"
                self._change(statement, *batch, outgoing.body)
        return bool(first)

    def body(self, batch: Batch) -> bytes | None:
        """The body of what is sent, if it is still there."""
        found = self._rows(f"SELECT body FROM {BODIES} WHERE level = ? AND number = ?", *batch)
        return found[0][0] if found else None

    def drop_pieces(self, batch: Batch) -> None:
        self._change(f"DELETE FROM {table_of(batch.level)} WHERE number = ?", batch.number)

    def drop_body(self, batch: Batch) -> None:
        self._change(f"DELETE FROM {BODIES} WHERE level = ? AND number = ?", *batch)

    def in_state(self, state: State) -> list[Batch]:
        """Batches whose release got so far."""
        found = self._rows(f"SELECT level, number FROM releases WHERE state = {int(state)}")
        return sorted(Batch(*row) for row in found)

    def count_frozen(self) -> dict[int, int]:
        """By level, how many batches the server does not have yet."""
        return dict(
            self._rows("SELECT level, count(*) FROM releases WHERE state = 0 GROUP BY level")
        )

    def acknowledge(self, digests: Mapping[Batch, bytes]) -> None:
        for batch, digest in digests.items():
            record = self.record(batch)
            if record is None:
                raise ProtocolViolation(f"{batch} was acknowledged before it was frozen")
            if record.digest != digest:
                raise ProtocolViolation(
                    f"{batch} has the digest {record.digest.hex()}, {digest.hex()} was acknowledged"
                )
            self._move(batch, State.FROZEN, State.ACKNOWLEDGED)

    def end(self, batches: Iterable[Batch]) -> int:
        """Acknowledged batches are scrubbed now; how many were not before."""
        return sum(self._move(batch, State.ACKNOWLEDGED, State.SCRUBBED) for batch in batches)

    def _move(self, batch: Batch, before: State, after: State) -> int:
        """Take a release one state further, unless somebody did."""
        statement = "UPDATE releases SET state = ? WHERE level = ? AND number = ? AND state = ?"
        return self._change(statement, int(after), *batch, int(before))


def _unless_damaged(read: Callable[[], T]) -> T | None:
    """What can be read of a batch; None if it is damaged. A key that is gone is no damage."""
    try:
        return read()
    except KeyGone:
        raise
    except ProtocolViolation:
        return None


class Store:
    """The reports of one document, in a SQLite file or a PostgreSQL database of their own.

    Many threads and, if the database allows it, many processes may use stores of the same document
    at the same time, and run any step again. It closes after the last whole batch: later reports
    could never be released.

    Nothing in it keeps the order or the time of arrival: rows have random keys. Both databases
    write a log that shows the order of commit groups, SQLite until the next checkpoint; PostgreSQL
    appends rows, so its files show it too. The order of a release does not come from them, and what
    the groups hold is sealed under the keys of the file `keys`, which is made together with the
    store, by default next to a SQLite file. Keep it out of every backup: a database from before a
    batch was frozen is refused, because its key is gone. What a later copy lacks is in no release.

    `noise` is what the service adds to batches if services make the noise. `alarms` counts what
    should never have happened since the store was opened.
    """

    def __init__(
        self,
        address: str | Path,
        formats: Formats,
        keys: Path | None = None,
        noise: OwnNoise | None = None,
    ) -> None:
        self._keys_path = keys_of(address, keys, "store")
        self._levels = {level.level: level for level in formats.levels}
        self._formats, self._lowest = formats, lowest_of(formats)
        self._horizon = self._lowest.size * self._lowest.batches
        self._origin = describe(formats)
        self._noise, self.alarms = noise, Counter[Alarm]()
        if (noise is None) != self._lowest.is_filled:
            raise InvalidValue(
                "noise= is for plans of which services make it, and for all of these"
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
            BatchKeys.create(self._keys_path, list(self._levels), self._formats.digest)
        keys = BatchKeys.for_new_store(self._keys_path, self._formats.digest, "store", _ADVICE)
        for statement in schema(self._levels, dialect):
            transaction.change(statement)
        tables = StoreTables(transaction, keys)
        tables.begin(self._origin)
        if not self._lowest.is_filled:
            tables.start_noise()

    def _check(self, transaction: Transaction) -> None:
        """Refuse a store that was made for another plan or with other keys, or is out of date."""
        found = transaction.rows("SELECT plan, keys FROM progress")
        if not found:
            raise InvalidValue("the database is not a store: its table progress is empty")
        ((made_for, keys),) = found
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

    def _needed_batches(self, tables: StoreTables) -> dict[int, Collection[int]]:
        """By level, the batches that are not frozen, and the one that is open or to come."""
        opened = self._open_batches(tables.count_arrived())
        if not self._lowest.is_filled:
            return {level: range(tables.next_number(), number + 1) for level, number in opened}
        return {level: {*tables.numbers(level), number} for level, number in opened}

    def _open_batches(self, arrived: int) -> list[Batch]:
        """One of each level; after the last report, one that will never be."""
        is_over = arrived == self._horizon
        return [
            Batch(level, -(-arrived // shape.size) if is_over else arrived // shape.size)
            for level, shape in self._levels.items()
        ]

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
            arrival.check(self._formats.levels)
        return self._write(lambda tables: self._admit(tables, arrivals)) if arrivals else []

    def _admit(self, tables: StoreTables, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Marks before the lock, so that processes wait for each other only to be counted."""
        marks = [arrival.marks(self._keys) for arrival in arrivals]
        fresh = tables.remember(set(chain.from_iterable(marks)))
        arrived = tables.lock()
        outcomes, unused = judge(arrivals, marks, fresh, arrived, self._horizon, self._lowest.size)
        tables.forget(unused)
        judged = zip(arrivals, outcomes, strict=True)
        if admitted := [one for one, outcome in judged if outcome is Outcome.ADMITTED]:
            tables.add(batching.pieces(self._formats.levels, admitted, arrived))
            tables.advance(arrived + len(admitted))
        return outcomes

    def check_usable(self) -> None:
        """Raise what would keep a report from being admitted now, and change nothing."""
        self._write(lambda tables: tables.touch(self._open_batches))

    def leave_empty(self, number: int) -> int:
        """Close this late batch: nobody takes the rest of its places any more.

        Where services make the noise, which does not depend on how many users there are. Returns
        how many places stay empty; none if the batch is not the open one, or if nobody is in it: a
        batch is for somebody.
        """
        if self._lowest.is_filled:
            raise InvalidValue(
                "vacant places of this plan must be filled with reports: it needs noise"
            )
        return self._write(lambda tables: self._leave_empty(tables, number))

    def _leave_empty(self, tables: StoreTables, number: int) -> int:
        arrived = tables.lock()
        if not may_be_late(number, arrived, self._lowest.size):
            return 0
        missing = self._lowest.size - arrived % self._lowest.size
        tables.add([Piece(Batch(self._lowest.level, number), missing, b"")])
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
        if not self._lowest.is_filled:
            numbers = range(tables.next_number(), arrived // self._lowest.size)
            return [Batch(self._lowest.level, number) for number in numbers]
        return [
            Batch(level, number)
            for level, shape in self._levels.items()
            for number in sorted(tables.numbers(level))
            if number < arrived // shape.size
        ]

    def frozen(self) -> list[Batch]:
        """Batches that are frozen and not acknowledged, lowest level and number first."""
        return self._read(lambda tables: tables.in_state(State.FROZEN))

    @property
    def waiting_bytes(self) -> int:
        """How much of full batches waits for the server."""
        return self._read(self._waiting_bytes)

    def _waiting_bytes(self, tables: StoreTables) -> int:
        """Where users make the noise, batches that are full wait for nobody and are frozen."""
        levels, frozen = self._levels, tables.count_frozen()
        waiting = sum(number * levels[level].batch_bytes() for level, number in frozen.items())
        if not self._lowest.is_filled:
            size = self._lowest.size
            full = tables.count_arrived() // size - tables.next_number()
            waiting += full * size * self._lowest.part_bytes
        return waiting

    def outgoing(self, batches: Sequence[Batch]) -> list[Outgoing]:
        """What is sent of those batches that are frozen, and were not scrubbed.

        Their keys go before, whoever froze them, and whatever came between then and now.
        """
        if any(map(self._keys.has, batches)):
            self.destroy_keys()
        found = self._read(lambda tables: [self._outgoing(tables, batch) for batch in batches])
        return [one for one in found if one is not None]

    def _outgoing(self, tables: StoreTables, batch: Batch) -> Outgoing | None:
        record, body = tables.record(batch), tables.body(batch)
        if record is None or body is None:
            return None
        kept: Outgoing = Release(batch, record.own, body, record.repeats)
        if record.answer:
            kept = MaskedSum(batch, record.own, record.answer, body)
        if kept.digest != record.digest:
            raise ProtocolViolation(f"what is sent of {batch} is not what was stored")
        return kept

    def freeze_all(self, batches: Sequence[Batch]) -> list[Outgoing]:
        """Freeze full batches in one step: made once, the same bytes ever after, keys destroyed.

        The order, and what the service adds, are drawn from OS randomness, while others admit
        reports: a full batch never changes. One that is not full raises `ProtocolViolation`, and
        there is no way around it; those that were scrubbed are left out. Of equal messages one
        stays, and the others become bytes that nobody can open. If services make the noise they
        must be the next ones, and one that is damaged is lost. If batches are offered, no answer
        to these counts any more.
        """
        if self._lowest.is_filled:
            self._retry_gone(lambda: self._freeze_any(batches))
        else:
            self.offer_all(batches)
            self._freeze_next(batches, {})
        return self.outgoing(batches)

    def _freeze_any(self, batches: Sequence[Batch]) -> None:
        """Of levels whose noise users make: in any order."""

        def look(tables: StoreTables) -> list[Gathered]:
            return [
                Gathered.of(batch, self._level(batch), tables.pieces(batch))
                for batch in self._unfrozen_of(tables, batches)
            ]

        while found := self._read(look):
            releases = [build_release(self._level(one.batch), one) for one in found]
            if self._write(lambda tables: tables.freeze_all(releases)):  # noqa: B023
                break  # or somebody was faster with one of them

    def _unfrozen_of(self, tables: StoreTables, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Those of full batches that are not frozen; one that is not full: `ProtocolViolation`."""
        for batch in batches:
            level = self._level(batch)
            arrived = min(level.size, max(0, tables.count_arrived() - batch.number * level.size))
            if arrived < level.size:
                raise ProtocolViolation(
                    f"{batch} cannot be frozen at {arrived} of {level.size} reports"
                )
            if tables.record(batch) is None:
                yield batch

    def _retry_gone(self, work: Callable[[], T]) -> T:
        """A key may go while its batch is read: frozen since then, as another reading shows."""
        with suppress(KeyGone):
            return work()
        try:
            return work()
        except KeyGone as error:
            raise ProtocolViolation(
                f"{error}, and it is not frozen: the database is older than its keys in "
                f"{self._keys_path}"
            ) from error

    # Batches of which services make the noise: one after the other.

    def unoffered(self) -> list[Batch]:
        """Batches that are full and were not offered yet, lowest number first."""
        if not self._lowest.is_offered:
            return []
        found = self._read(lambda tables: (self._unfrozen(tables), tables.after_last(OFFERS)))
        return [batch for batch in found[0] if batch.number >= found[1]]

    def unanswered(self, seconds: float) -> list[Batch]:
        """The next batches to be frozen that were offered so long ago, lowest number first."""
        if not self._lowest.is_offered:
            return []
        until = time.time() - seconds
        due = self._read(lambda tables: (self._unfrozen(tables), tables.unanswered(until)))
        return list(takewhile(lambda batch: batch.number in due[1], due[0]))

    def offer_all(self, batches: Sequence[Batch]) -> list[Offer]:
        """The offers of full batches: an order drawn once, the same bytes ever after.

        Those that are frozen, or damaged, are left out.
        """
        if not self._lowest.is_offered:
            return []
        found = self._retry_gone(lambda: self._offers(batches))
        missing = [batch for batch, one in found.items() if one is None]
        if missing and (fresh := self._retry_gone(lambda: self._arrange(missing))):
            since = time.time()
            self._write(lambda tables: tables.add_offers(fresh, since))
            found = self._retry_gone(lambda: self._offers(batches))
        return [one.offer for one in found.values() if one is not None]

    def _offers(self, batches: Sequence[Batch]) -> dict[Batch, Arranged | None]:
        return self._read(
            lambda tables: {one: tables.offer(one) for one in self._unfrozen_of(tables, batches)}
        )

    def _arrange(self, batches: Sequence[Batch]) -> list[Block]:
        """Offers of batches that have none, in an order drawn now; of damaged ones nothing."""
        found = self._read(
            lambda tables: [self._block(tables, one) for one in self._unfrozen_of(tables, batches)]
        )
        return [
            Block(batch, gathered, gathered and Arranged.of(self._lowest, gathered))
            for batch, gathered, _ in found
        ]

    def _block(self, tables: StoreTables, batch: Batch) -> Block:
        found = _unless_damaged(lambda: Gathered.of(batch, self._lowest, tables.pieces(batch)))
        return Block(batch, found, found and tables.offer(batch))

    def answer_all(self, answers: Mapping[Batch, bytes]) -> list[Outgoing]:
        """Freeze those that are next of the batches with these answers of the server's.

        Only the first answer counts, and only of a batch that is not frozen: another one is an
        alarm. One that is no answer to the batch's offer raises `InvalidValue`, and none counts.
        """
        batches = sorted(answers)
        self._freeze_next(batches, answers)
        outgoing = self.outgoing(batches)
        for batch, record in self._read(lambda t: {one: t.record(one) for one in batches}).items():
            if record is not None and record.answer != hashlib.sha256(answers[batch]).digest():
                self._raise_alarm(Alarm.ANSWER, batch)
        return outgoing

    def _freeze_next(self, batches: Sequence[Batch], answers: Mapping[Batch, bytes]) -> None:
        """Freeze what is next of these, with noise that is drawn once; some have an answer."""
        while not self._retry_gone(lambda: self._try_to_freeze(batches, answers)):
            pass

    def _try_to_freeze(self, batches: Sequence[Batch], answers: Mapping[Batch, bytes]) -> bool:
        """Whether nobody else was faster.

        All is made outside of the transaction that keeps it: what was not kept is thrown away, and
        nobody has seen it.
        """
        assert self._noise is not None
        first, sealed, blocks = self._read(lambda t: self._look(t, batches, bool(answers)))
        if not blocks:
            return True
        refused = {  # before noise is drawn: nothing that comes after may undo it
            batch: self._formats.unpack_answer(self._formats.pack(arranged.offer), answer)
            for batch, _, arranged in blocks
            if arranged is not None and (answer := answers.get(batch)) is not None
        }
        state, is_lost = self._open_state(first, sealed)
        whole = sum(block.is_whole(self._lowest) for block in blocks)
        added, after = self._noise.draw(state, whole) if whole else ([], state)
        noise = iter(added)
        frozen = [
            (block.batch, self._freeze_block(block, answers, refused, noise)) for block in blocks
        ]
        is_first = self._write(lambda tables: tables.freeze_next(first, after, frozen))
        if is_first:
            if is_lost:
                self._raise_alarm(Alarm.NOISE, blocks[0].batch)
            for batch, outgoing in frozen:
                if outgoing is None:
                    self._raise_alarm(Alarm.DAMAGED, batch)
        return is_first

    def _look(
        self, tables: StoreTables, batches: Sequence[Batch], is_answered: bool
    ) -> tuple[int, bytes, list[Block]]:
        """The next batch to be frozen and the sealed state before it; those of these from it on."""
        number, state = tables.noise()
        blocks: list[Block] = []
        for batch in self._unfrozen_of(tables, sorted(batches)):
            if batch.number != number + len(blocks):
                if is_answered:
                    break
                raise ProtocolViolation(f"{batch} cannot be frozen before those before it")
            blocks.append(block := self._block(tables, batch))
            if is_answered and block.gathered is not None and block.arranged is None:
                raise ProtocolViolation(f"{batch} was not offered")
        return number, state, blocks

    def _open_state(self, number: int, sealed: bytes) -> tuple[bytes, bool]:
        """The state of the noise before a batch, and whether it was lost."""
        assert self._noise is not None
        if sealed:
            batch = Batch(self._lowest.level, number)
            state = _unless_damaged(partial(self._keys.open, batch, STATE, sealed))
            if state is not None:
                return state, False
        return self._noise.start(), number > 0

    def _freeze_block(
        self, block: Block, answers: Mapping[Batch, bytes],
        refused: Mapping[Batch, NDArray[np.int64]], noise: Iterator[Added],
    ) -> Outgoing | None:  # fmt: skip
        """What is sent of a batch: None if it is damaged."""
        level, (batch, gathered, arranged) = self._lowest, block
        if gathered is None:
            return None
        if not level.is_offered:
            return build_release(level, gathered, next(noise))
        if arranged is None:
            return None
        if batch not in answers:
            return release_offer(level, gathered, arranged.offer, next(noise))
        return mask_sum(
            level, gathered, arranged.places, answers[batch], refused[batch], next(noise)
        )

    def _raise_alarm(self, alarm: Alarm, batch: Batch) -> None:
        self.alarms[alarm] += 1
        level, number = batch
        log(alarm.value, level=logging.ERROR, batch_level=level, number=number)

    def destroy_keys(self) -> None:
        """Destroy the keys of frozen batches, here and in the file, whoever froze them."""
        self._keys.keep_only(self._read(self._needed_batches))

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
            self._database.sweep(dropped | {BODIES, OFFERS, NOISE})
        return self._write(lambda tables: tables.end(acknowledged)) if dropped else 0

    def _drop(self, tables: StoreTables) -> tuple[list[Batch], list[Batch]]:
        """Batches that the server has, and those that will never be full."""
        arrived = tables.count_arrived()
        unfinished = [
            Batch(level, arrived // shape.size)
            for level, shape in self._levels.items()
            if arrived == self._horizon and arrived // shape.size in tables.numbers(level)
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
