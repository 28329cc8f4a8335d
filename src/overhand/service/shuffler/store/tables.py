"""The tables of a store, and the statements on them.

progress      one row: what the store is made for, its keys' name, and how many reports arrived
seen          marks of the ids and tokens of admitted reports, kept until the plan ends
messages_<l>  level l: the pieces of its batches, sealed, in no order; one row once it is frozen
releases      a row per frozen batch: its digest, and how far it got
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from overhand.service.databases import Dialect, Transaction
from overhand.service.protocol import Batch, Release
from overhand.service.shuffler.store.batch_keys import BatchKeys
from overhand.service.shuffler.store.batching import Piece

KEY_BYTES = 16


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
    piece = f"number BIGINT, key {blob}, own BIGINT NOT NULL, {dialect.padding}body {blob} NOT NULL"
    return [
        "CREATE TABLE progress (plan TEXT PRIMARY KEY, keys TEXT NOT NULL, "
        f"arrived BIGINT NOT NULL) {ending}",
        f"CREATE TABLE seen (mark {blob} PRIMARY KEY) {ending}",
        f"CREATE TABLE releases ({key}, repeats BIGINT NOT NULL, state INTEGER NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        "CREATE INDEX unscrubbed ON releases (state) WHERE state < 2",
        *(
            f"CREATE TABLE {table_of(level)} ({piece}, PRIMARY KEY (number, key)) {ending}"
            for level in levels
        ),
        *(one for level in levels for one in dialect.uncompressed(table_of(level))),
    ]


def table_of(level: int) -> str:
    """The table of a level's messages."""
    return f"messages_{level}"


def origin(transaction: Transaction) -> tuple[str, str] | None:
    """The plan that a store was made for, and its keys' name, if it is a store."""
    found = transaction.rows("SELECT plan, keys FROM progress")
    return next(((str(plan), str(keys)) for plan, keys in found), None)


class StoreTables:
    """The tables inside one transaction. All take marks first, in their order, then `progress`."""

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

    def forget(self, marks: Iterable[bytes]) -> None:
        self._transaction.change_many(
            "DELETE FROM seen WHERE mark = ?", [(mark,) for mark in sorted(marks)]
        )

    def add(self, pieces: Iterable[Piece]) -> None:
        """Put pieces, lowest level first, into their batches."""
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

    def pieces(self, batch: Batch) -> list[Piece]:
        found = self._transaction.rows(
            f"SELECT own, body FROM {table_of(batch.level)} WHERE number = ?", batch.number
        )
        return [Piece(batch, own, self._keys.open(batch, own, sealed)) for own, sealed in found]

    def _sealed(self, piece: Piece) -> bytes:
        return self._keys.seal(piece.batch, piece.own, piece.body)

    def numbers(self, level: int) -> set[int]:
        """The batches of a level of which there is anything."""
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

    def freeze(self, release: Release) -> bool:
        """One row instead of many, unless somebody was faster."""
        first = self._transaction.change(
            "INSERT INTO releases (level, number, digest, own, repeats, state) "
            "VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
            *release.batch,
            release.digest,
            release.own,
            release.repeats,
        )
        if first:
            self.drop(release.batch)
            self.add([Piece(release.batch, release.own, release.body)])
        return bool(first)

    def drop(self, batch: Batch) -> None:
        self._transaction.change(
            f"DELETE FROM {table_of(batch.level)} WHERE number = ?", batch.number
        )

    def waiting(self, level: int, below: int) -> list[Batch]:
        """Batches of a level with messages, and a number below this, that nobody acknowledged."""
        table = table_of(level)
        found = self._transaction.rows(
            f"SELECT DISTINCT number FROM {table} WHERE number < ? AND NOT EXISTS ("
            f"SELECT 1 FROM releases WHERE releases.level = ? "
            f"AND releases.number = {table}.number AND state > 0) ORDER BY number",
            below,
            level,
        )
        return [Batch(level, number) for (number,) in found]

    def acknowledged(self) -> list[Batch]:
        """Batches that are to be scrubbed."""
        found = self._transaction.rows("SELECT level, number FROM releases WHERE state = 1")
        return sorted(Batch(*row) for row in found)

    def move(self, batch: Batch, before: State, after: State) -> bool:
        """Take a release one state further, unless somebody did."""
        statement = "UPDATE releases SET state = ? WHERE level = ? AND number = ? AND state = ?"
        return bool(self._transaction.change(statement, int(after), *batch, int(before)))
