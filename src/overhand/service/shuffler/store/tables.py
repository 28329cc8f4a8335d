"""The tables of a store, and the statements on them.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.service.databases import SEALED_BYTES, BatchKeys, Dialect, Migration, Transaction
from overhand.service.protocol import Batch, Formats, Release
from overhand.service.shuffler.store.batching import Piece

KEY_BYTES = 16
LEVELS, BODIES = "levels", "bodies"
_PIECES_AT_ONCE = 16


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
        *(one for table in (BODIES, *map(table_of, levels)) for one in dialect.uncompressed(table)),
    ]


def table_of(level: int) -> str:
    """The table of a level's messages."""
    return f"messages_{level}"


def origin(transaction: Transaction) -> tuple[str, str] | None:
    """The plan that a store was made for, and its keys' name, if it is a store."""
    found = transaction.rows("SELECT plan, keys FROM progress")
    return next(((str(plan), str(keys)) for plan, keys in found), None)


def described(formats: Formats) -> str:
    """Everything that a store is made for, in one line."""
    levels = [asdict(level) for level in formats.levels]
    return json.dumps({"document": formats.digest.hex(), "levels": levels})


def difference_of(found: str, expected: str) -> str:
    """What the store was made for, and what not, in few words."""
    before, now = json.loads(found), json.loads(expected)
    if before["document"] != now["document"]:
        return f"the document {before['document'][:12]}, not {now['document'][:12]}"
    return f"{before['levels']}, not {now['levels']}"


def _take_out_format(transaction: Transaction, dialect: Dialect) -> None:
    """Schema 2: the database says its version, no longer what the store is made for."""
    found = origin(transaction)
    made_for = json.loads(found[0]) if found is not None else {}
    if made_for.pop("format", None) != 2:
        raise InvalidValue("the store is older than schema 1: start a new plan with a new database")
    transaction.change("UPDATE progress SET plan = ?", json.dumps(made_for))


MIGRATIONS: tuple[Migration, ...] = (_take_out_format,)


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
        return int(self._transaction.locked("SELECT arrived FROM progress")[0][0])

    def remember(self, marks: Collection[bytes]) -> set[bytes]:
        """Keep these marks; those that were not kept before."""
        return self._transaction.insert_new("seen", "mark", marks)

    def begin(self, plan: str) -> None:
        self._transaction.change(
            "INSERT INTO progress (plan, keys, arrived) VALUES (?, ?, 0)", plan, self._keys.name
        )

    def arrived(self) -> int:
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
                        self._sealed(piece),
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
            self._transaction.locked(f"SELECT level FROM {LEVELS} WHERE level = ?", level)

    def fold(self, piece: Piece, keys: Iterable[bytes]) -> None:
        """Put a piece in the place of those with these keys, or raise `Overtaken`."""
        level, number = piece.batch
        self.hold([level])
        statement = f"DELETE FROM {table_of(level)} WHERE number = ? AND key = ?"
        for key in keys:
            if not self._transaction.change(statement, number, key):
                raise Overtaken
        self.add([piece])

    def _sealed(self, piece: Piece) -> bytes:
        return self._keys.seal(piece.batch, piece.own, piece.body)

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
