"""What the server keeps: releases until they are opened, sums and published estimates for ever.

server_store  one row: which document it belongs to, what an earlier plan ended with (or nothing),
              the name of its keys (if it has some), how many sums and estimates there are, and
              after how many of the sums estimates were made
offers        a row per batch that was offered: how many places of it are empty, the answer, and
              how many messages do not count by it
releases      a row per batch that came: the digest of its release or sum, as it was sent
stored        marks of all messages that ever came, if the services make the noise: a row for each
              release or offer
masks         of batches whose offer was answered: the sums of the masks that count; sealed
unopened      ciphertexts of releases that wait to be opened, or sums of masked numbers; sealed,
              if the store has keys
noise         where the server makes noise, one row: how many batches have some; its state, sealed
sums          what came of a batch, numbered from 1 in the order in which noise was drawn
published     estimates, numbered in the same order; a sum that changes nothing publishes none
policies      of a recommender: what was made of the estimate of the same number, as it was signed
levels        what came of the batches of a level, counted
alarms        what somebody should look at
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.databases.batch_keys import KeyGone
from overhand.deploy.databases.database import (
    Contents,
    Dialect,
    Transaction,
    keys_of,
    open_database,
)
from overhand.deploy.http.telemetry import log
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, MaskedSum, Offer, Release
from overhand.deploy.server.replay import NotOffered, ReplayProtection
from overhand.errors import InvalidValue, ProtocolViolation, finite_number, whole
from overhand.estimates import Estimate
from overhand.model import Counts
from overhand.values import Values

_FLOAT = np.dtype("<f8")
_MASKS = np.dtype("<u8")
_AT_ONCE = 256  # releases whose marks are read together
_LOOKED_AT = 64  # batches that wait, of which some are taken
_TOGETHER = 16  # batches whose noise is drawn in one transaction
_MOST_BYTES = 1 << 22  # of batches that are taken together

SCHEMA = 5
"""Whoever changes the tables adds to `Contents.migrations` what makes the next schema of this."""
T = TypeVar("T")
_APPLICATION = 0x4F564842  # "OVHB"
_COUNTS = "SELECT sums, estimates, told FROM server_store"
_ENDS = ("value", "low", "high")
_NUMBERS = ("std", "kurtosis", "unit")
_LEAST = -math.ulp(0.0)  # so that 0 is above it


@dataclass(frozen=True)
class BatchSum:
    """What came of a batch: its sum, by coordinate, or None if it was lost."""

    batch: Batch
    own: int
    garbage: int
    """Messages that could not be opened, or came before."""
    bias_bound: float
    value: tuple[float, ...] | None
    refused: int = 0
    """Users who do not count because their messages are garbage; in the sum are all others."""

    @property
    def absent(self) -> int:
        """Places that count as nothing: nobody's, or the shuffling service's own."""
        return self.own + self.refused


@dataclass(frozen=True)
class BatchTotal:
    """What a batch came to before the server's noise: nothing here depends on that."""

    known: BatchSum
    """All but its value."""
    add: Callable[[Counts | None], Any] | None = None
    """What makes that, given a row of the server's noise if that makes any; None if it is lost."""

    def sum(self, noise: Counts | None) -> BatchSum:
        if self.add is None:
            return self.known
        return replace(self.known, value=by_coordinate(self.add(noise)))


@dataclass(frozen=True)
class AnsweredSum:
    """What the shuffling service added up after the answer to its offer, and the masks of it."""

    batch: Batch
    own: int
    refused: int
    body: bytes
    masks: NDArray[np.uint64]


@dataclass(frozen=True)
class Published:
    """An estimate of the first `t` users, by coordinate."""

    t: int
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    std: float
    is_fallback: bool
    lost_users: int = 0
    """Users who count as the middle of their range: all batches that held them are lost."""


class Coordinate(NamedTuple):
    """One coordinate of a published estimate."""

    t: int
    value: float
    low: float
    high: float


class Length(NamedTuple):
    """How many sums and estimates there are, and of how many sums estimates were made."""

    sums: int = 0
    estimates: int = 0
    told: int = 0


class Offered(NamedTuple):
    """An offer that was answered."""

    own: int
    refused: int
    answer: bytes


class LevelTally(NamedTuple):
    """What came of the batches of a level."""

    received: int = 0
    published: int = 0
    lost: int = 0
    own: int = 0
    garbage: int = 0
    repeats: int = 0


def schema(dialect: Dialect) -> list[str]:
    """What makes the tables."""
    blob, ending = dialect.blob, dialect.ending
    batch = "level INTEGER NOT NULL, number BIGINT NOT NULL, own BIGINT NOT NULL"
    counts = ", ".join(f"{name} BIGINT NOT NULL" for name in LevelTally._fields)
    return [
        "CREATE TABLE server_store (document TEXT PRIMARY KEY, settled TEXT NOT NULL, "
        "keys TEXT NOT NULL, sums BIGINT NOT NULL, estimates BIGINT NOT NULL, "
        f"told BIGINT NOT NULL) {ending}",
        f"CREATE TABLE offers ({batch}, refused BIGINT NOT NULL, answer {blob} NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE releases ({batch}, digest {blob} NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE stored (place {dialect.counter} PRIMARY KEY, body {blob} NOT NULL)",
        *(
            f"CREATE TABLE {table} (place {dialect.counter} PRIMARY KEY, {batch}, "
            f"body {blob} NOT NULL, UNIQUE (level, number))"
            for table in ("masks", "unopened")
        ),
        f"CREATE TABLE noise (batches BIGINT PRIMARY KEY, body {blob} NOT NULL)",
        *(
            one
            for table in ("stored", "masks", "unopened", "noise")
            for one in dialect.storage_statements(table)
        ),
        f"CREATE TABLE sums (place BIGINT PRIMARY KEY, {batch}, garbage BIGINT NOT NULL, "
        f"refused BIGINT NOT NULL, bias_bound DOUBLE PRECISION NOT NULL, value {blob}, "
        f"UNIQUE (level, number)) {ending}",
        f"CREATE TABLE published (number BIGINT PRIMARY KEY, t BIGINT NOT NULL, "
        f"value {blob} NOT NULL, low {blob} NOT NULL, high {blob} NOT NULL, "
        f"std DOUBLE PRECISION NOT NULL, fallback INTEGER NOT NULL, lost BIGINT NOT NULL) {ending}",
        f"CREATE TABLE policies (number BIGINT PRIMARY KEY, body TEXT NOT NULL) {ending}",
        f"CREATE TABLE levels (level INTEGER PRIMARY KEY, {counts}) {ending}",
        f"CREATE TABLE alarms (place {dialect.counter} PRIMARY KEY, words TEXT NOT NULL UNIQUE)",
    ]


class ServerTables:
    """The tables inside one transaction. Who takes `server_store` and `levels` takes them so."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def _insert(self, table: str, ending: str = "", /, **row: Any) -> bool:
        """Whether there is a row more: always, unless the `ending` says what else to do."""
        names, places = ", ".join(row), ", ".join("?" * len(row))
        statement = f"INSERT INTO {table} ({names}) VALUES ({places}) {ending}"
        return bool(self._transaction.change(statement, *row.values()))

    def _first(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        return next(iter(self._transaction.rows(statement, *values)), None)

    def begin(self, document: str, settled: str, keys: str) -> None:
        origin = {"document": document, "settled": settled, "keys": keys}
        self._insert("server_store", **origin, **Length()._asdict())

    def origin(self) -> tuple[str, str, str] | None:
        """What the store belongs to, what it goes on from, and its keys' name, if it is one."""
        return self._first("SELECT document, settled, keys FROM server_store")

    def length(self) -> Length:
        (counts,) = self._transaction.rows(_COUNTS)
        return Length(*counts)

    def lock(self) -> Length:
        """The same; nobody else publishes, or adds marks, until this transaction ends."""
        (counts,) = self._transaction.lock_rows(_COUNTS)
        return Length(*counts)

    def advance(self, length: Length) -> None:
        self._transaction.change(
            "UPDATE server_store SET sums = ?, estimates = ?, told = ?", *length
        )

    def offer(self, batch: Batch) -> Offered | None:
        """What was answered to the offer of a batch, if it was offered."""
        found = self._first(
            "SELECT own, refused, answer FROM offers WHERE level = ? AND number = ?", *batch
        )
        return None if found is None else Offered(*found)

    def add_offer(self, batch: Batch, offered: Offered, masks: bytes) -> None:
        self._insert("offers", **batch._asdict(), **offered._asdict())
        self._insert("masks", **batch._asdict(), own=offered.own, body=masks)

    def forget_masks(self, batch: Batch) -> None:
        self._transaction.change("DELETE FROM masks WHERE level = ? AND number = ?", *batch)

    def register(self, came: Release | MaskedSum) -> bool:
        """Whether this is the first release or sum of its batch."""
        row = {**came.batch._asdict(), "own": came.own, "digest": came.digest}
        return self._insert("releases", "ON CONFLICT DO NOTHING", **row)

    def registered(self, batch: Batch) -> tuple[int, bytes] | None:
        """Which it was, by its own places and its digest."""
        return self._first(
            "SELECT own, digest FROM releases WHERE level = ? AND number = ?", *batch
        )

    def marks_after(self, place: int) -> list[tuple[int, bytes]]:
        """The marks of some releases after this place, and their places."""
        found = self._transaction.rows(
            f"SELECT place, body FROM stored WHERE place > ? ORDER BY place LIMIT {_AT_ONCE}", place
        )
        return [(int(place), body) for place, body in found]

    def add_marks(self, place: int, marks: bytes) -> None:
        self._insert("stored", place=place, body=marks)

    def keep(self, batch: Batch, own: int, body: bytes) -> None:
        """A release that is to be opened, or a sum."""
        self._insert("unopened", **batch._asdict(), own=own, body=body)

    def waiting(self, order: str) -> dict[Batch, int]:
        """The first batches that wait, and their places, in order of `place` or of `number`."""
        found = self._transaction.rows(
            f"SELECT level, number, place FROM unopened ORDER BY {order} LIMIT {_LOOKED_AT}"
        )
        return {Batch(level, number): int(place) for level, number, place in found}

    def read_unopened(self, place: int) -> tuple[Any, ...] | None:
        """Level, number, own places and body of what waits; of a sum how many users do not count,
        and the masks of the others, which nothing else has.
        """
        return self._first(
            "SELECT level, number, unopened.own, unopened.body, refused, masks.body FROM unopened "
            "LEFT JOIN masks USING (level, number) LEFT JOIN offers USING (level, number) "
            "WHERE unopened.place = ?",
            place,
        )

    def forget(self, batch: Batch) -> bool:
        """Drop what waits of a batch; whether there was anything."""
        self.forget_masks(batch)
        statement = "DELETE FROM unopened WHERE level = ? AND number = ?"
        return bool(self._transaction.change(statement, *batch))

    def noise(self) -> tuple[int, bytes] | None:
        """How many batches have the server's noise, and its state, if there is one."""
        return self._first("SELECT batches, body FROM noise")

    def keep_noise(self, batches: int, state: bytes) -> None:
        self._transaction.change("DELETE FROM noise")
        self._insert("noise", batches=batches, body=state)

    def count_values(self) -> int:
        """How many batches have a sum that is not lost."""
        ((count,),) = self._transaction.rows("SELECT count(*) FROM sums WHERE value IS NOT NULL")
        return int(count)

    def find_waiting(self, seen: int) -> set[Batch]:
        """The batches that came, but not by the first `seen` sums."""
        rows = self._transaction.rows(
            "SELECT level, number FROM unopened "
            "UNION ALL SELECT level, number FROM sums WHERE place > ?",
            seen,
        )
        return {Batch(*row) for row in rows}

    def add_sum(self, place: int, one: BatchSum) -> None:
        row = {"own": one.own, "garbage": one.garbage, "refused": one.refused}
        bias, value = float(one.bias_bound), None if one.value is None else _bytes(one.value)
        self._insert(
            "sums", place=place, **one.batch._asdict(), **row, bias_bound=bias, value=value
        )

    def sums(self, after: int, most: int) -> list[BatchSum]:
        rows = self._transaction.rows(
            "SELECT level, number, own, garbage, bias_bound, value, refused FROM sums "
            "WHERE place > ? AND place <= ? ORDER BY place",
            *(after, after + most),
        )
        return [
            BatchSum(Batch(level, number), own, garbage, bias, value and _floats(value), refused)
            for level, number, own, garbage, bias, value, refused in rows
        ]

    def sums_of(self, coordinate: int, most: int) -> list[tuple[Any, ...]]:
        """Level, number, absent, bias bound and one coordinate of the first sums: None if lost."""
        rows = self._transaction.rows(
            f"SELECT level, number, own + refused, bias_bound, {_cut('value', coordinate)} "
            "FROM sums WHERE place <= ?",
            most,
        )
        return [(*rest, value and _floats(value)[0]) for *rest, value in rows]

    def add_estimate(self, number: int, estimate: Published) -> None:
        ends = {name: _bytes(getattr(estimate, name)) for name in _ENDS}
        rest = {"fallback": int(estimate.is_fallback), "lost": estimate.lost_users}
        std = float(estimate.std)
        self._insert("published", number=number, t=estimate.t, **ends, std=std, **rest)

    def add_policy(self, number: int, body: str) -> None:
        self._insert("policies", number=number, body=body)

    def policy(self, number: int) -> str | None:
        """That of an estimate, as it was signed; or the last before it."""
        found = self._first(
            "SELECT body FROM policies WHERE number <= ? ORDER BY number DESC LIMIT 1", number
        )
        return None if found is None else str(found[0])

    def estimate(self, number: int) -> Published | None:
        found = self._first(
            "SELECT t, value, low, high, std, fallback, lost FROM published WHERE number = ?",
            number,
        )
        if found is None:
            return None
        t, value, low, high, std, fallback, lost = found
        ends = _floats(value), _floats(low), _floats(high)
        return Published(t, *ends, std, bool(fallback), lost)

    def coordinates(self, numbers: Sequence[int], coordinate: int) -> list[Coordinate]:
        """One coordinate of these estimates: the others are not read."""
        cuts, places = (_cut(end, coordinate) for end in _ENDS), ", ".join("?" * len(numbers))
        rows = self._transaction.rows(
            f"SELECT t, {', '.join(cuts)} FROM published WHERE number IN ({places}) "
            "ORDER BY number",
            *numbers,
        )
        return [Coordinate(t, *(_floats(cut)[0] for cut in parts)) for t, *parts in rows]

    def count(self, level: int, more: LevelTally) -> None:
        """Add to what was counted of a level."""
        names, places = ", ".join(LevelTally._fields), ", ".join("?" * len(more))
        sums = ", ".join(f"{name} = levels.{name} + excluded.{name}" for name in LevelTally._fields)
        self._transaction.change(
            f"INSERT INTO levels (level, {names}) VALUES (?, {places}) "
            f"ON CONFLICT (level) DO UPDATE SET {sums}",
            *(level, *more),
        )

    def tallies(self) -> dict[int, LevelTally]:
        rows = self._transaction.rows(f"SELECT level, {', '.join(LevelTally._fields)} FROM levels")
        return {level: LevelTally(*counts) for level, *counts in rows}

    def alarm(self, words: str) -> bool:
        """Keep an alarm; whether it is new."""
        return self._insert("alarms", "ON CONFLICT DO NOTHING", words=words)

    def alarms(self) -> list[str]:
        found = self._transaction.rows("SELECT words FROM alarms ORDER BY place")
        return [words for (words,) in found]


def _cut(column: str, coordinate: int) -> str:
    """One number of a column that has many."""
    return f"substr({column}, {1 + coordinate * _FLOAT.itemsize}, {_FLOAT.itemsize})"


def by_coordinate(value: Any) -> tuple[float, ...]:
    """A sum as it is kept, whatever its values are."""
    return tuple(np.atleast_1d(np.asarray(value, np.float64)).tolist())


def sum_of(values: Values, coordinates: Sequence[float]) -> Any:
    """The sum of these values that has these coordinates."""
    return coordinates[0] if values.is_scalar else np.array(coordinates)


def _bytes(values: Sequence[float]) -> bytes:
    """Exactly these numbers, each in its place, so that a database can cut out one."""
    return np.array(values, _FLOAT).tobytes()


def _floats(written: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(written, _FLOAT).tolist())


@dataclass(frozen=True)
class Settled:
    """The final sum of an earlier plan: the running sum continues with a new plan and key.

    The last estimate of a plan for these values; as public as everything that was published.
    """

    values: str
    t: int
    value: tuple[float, ...]
    std: float
    bias_bound: tuple[float, ...]
    """By coordinate, or once for all of them."""
    kurtosis: float
    unit: float
    constant: float | None = None
    """The constant feature of a recommender, by which all features and rewards are scaled."""

    @classmethod
    def of(cls, document: Document, estimate: Estimate) -> Settled:
        rest = {name: float(getattr(estimate, name)) for name in _NUMBERS}
        value, bias_bound = map(by_coordinate, (estimate.value, estimate.bias_bound))
        spec = document.plan.values.spec
        return cls(
            spec, estimate.t, value, bias_bound=bias_bound, **rest, constant=document.constant
        )

    def check(self, document: Document) -> None:
        """Refuse a document whose sum this cannot be a part of."""
        self.estimate(document.plan.values)
        if self.constant != document.constant:
            raise InvalidValue(
                f"a sum of features with constant={self.constant} cannot continue as one with "
                f"constant={document.constant}"
            )

    def estimate(self, values: Values) -> Estimate:
        """The same as a sum of these values, if it is one."""
        if values.spec != self.values or len(self.value) != values.dimension:
            raise InvalidValue(f"a sum of {self.values} cannot continue as one of {values.spec}")
        if len(self.bias_bound) not in (1, values.dimension):
            raise InvalidValue(f"a bias_bound of {len(self.bias_bound)} numbers for {values.spec}")
        value = sum_of(values, self.value)
        bias_bound = self.bias_bound[0] if len(self.bias_bound) == 1 else np.array(self.bias_bound)
        return Estimate(self.t, value, self.std, bias_bound, 0, self.kurtosis, self.unit, values)

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Settled:
        """What `to_json` wrote, or `InvalidValue`."""
        try:
            saved = json.loads(text)
            return cls(
                str(saved["values"]),
                whole("t", saved["t"], least=0),
                tuple(finite_number("value", one, above=-math.inf) for one in saved["value"]),
                bias_bound=tuple(
                    finite_number("bias_bound", one, above=_LEAST) for one in saved["bias_bound"]
                ),
                **{name: finite_number(name, saved[name], above=_LEAST) for name in _NUMBERS},
                constant=saved.get("constant"),
            )
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidValue(f"this is not the final sum of a plan: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Settled:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue(f"cannot read {path}: {error}") from error
        return cls.from_json(text)


class StoreStatus(NamedTuple):
    """How far the store is, the last estimate, and counts by level."""

    length: Length
    estimate: Published | None
    levels: dict[int, LevelTally]


class ServerStore:
    """A SQLite file or a PostgreSQL database. Every step is one transaction.

    What was published is never changed, and follows from the sums in their order: a restart, or
    another process that has the same store, comes to the same estimates. The digest is that of the
    document; a store of another is refused. What an earlier plan ended with goes into a new store,
    and stays there: it need not be given again.

    Where the services make the noise, a store has replay protection. Without it such a store can
    only be read. `begins` is whether a store is begun where there is none.
    """

    def __init__(
        self,
        address: str | Path,
        digest: str,
        settled: Settled | None = None,
        protection: ReplayProtection | None = None,
        *,
        begins: bool = True,
    ) -> None:
        self._digest = digest
        self.settled = settled
        self.protection = protection
        self._begins = begins
        contents = Contents(
            "database", _APPLICATION, "server_store", self._create, self._check, SCHEMA
        )
        self._database = open_database(address, contents)
        with self._database.close_on_error():
            if protection is not None:
                protection.keys.claim()

    @classmethod
    def of(
        cls,
        document: Document,
        address: str | Path,
        settled: Settled | None = None,
        keys: Path | None = None,
    ) -> ServerStore:
        """The store of a document, with the replay protection that it needs.

        Its keys are in a file of their own, by default next to a SQLite file, which `make_keys`
        made. Keep it out of every backup.
        """
        if settled is not None:
            settled.check(document)
        if document.plan.noise_by == "users":
            if keys is not None:
                raise InvalidValue("users make the noise of this plan: its database has no keys")
            return cls(address, document.digest, settled)
        protection = ReplayProtection(document, keys_of(address, keys, "database"))
        return cls(address, document.digest, settled, protection)

    @staticmethod
    def make_keys(document: Document, path: Path) -> None:
        """Make the keys of the only store that a new document will have, if that needs any."""
        if document.plan.noise_by == "services":
            ReplayProtection(document, path).make_keys()

    def _create(self, transaction: Transaction, dialect: Dialect) -> None:
        if not self._begins:
            raise InvalidValue(
                "there is no database of a server here. If it is a copy of a SQLite file "
                "that a server had open, it lacks what was in the -wal file: copy it with "
                "sqlite3's .backup"
            )
        for statement in schema(dialect):
            transaction.change(statement)
        settled = "" if self.settled is None else self.settled.to_json()
        keys = "" if self.protection is None else self.protection.begin()
        ServerTables(transaction).begin(self._digest, settled, keys)

    def _check(self, transaction: Transaction) -> None:
        found = ServerTables(transaction).origin()
        if found is None:
            raise InvalidValue("the database is not a server's: its table server_store is empty")
        document, text, keys = found
        if document != self._digest:
            raise InvalidValue(
                f"the database belongs to the document {document[:12]}, not {self._digest[:12]}"
            )
        settled = Settled.from_json(text) if text else None
        if self.settled not in (None, settled):
            raise InvalidValue(
                "the database was begun without this: the final sum of an earlier plan is only for "
                "a new database"
            )
        self.settled = settled
        if self.protection is not None:
            if not keys:
                raise InvalidValue(
                    "the database was begun without keys: a message might count twice. Start a new "
                    "plan with a new database"
                )
            self.protection.find(keys)
        self._is_readable_only = self.protection is None and bool(keys)

    def read(self, work: Callable[[ServerTables], T]) -> T:
        """What somebody finds in one state of the store."""
        return self._database.read(lambda transaction: work(ServerTables(transaction)))

    def _write(self, work: Callable[[ServerTables], T]) -> T:
        return self._database.write(lambda transaction: work(ServerTables(transaction)))

    def receive(self, came: Release | MaskedSum) -> bool:
        """Store a release or a sum, durable when this returns; returns whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise
        `ProtocolViolation`, and leave an alarm. Messages of a release that came before in another
        batch leave one as well, and are struck out. Where an offer of the batch was answered, they
        must be those of it, in its order; a sum must be of that answer.
        """

        def work(tables: ServerTables) -> bool | None:
            if isinstance(came, MaskedSum):
                offered = tables.offer(came.batch)
                told = offered and (offered.own, hashlib.sha256(offered.answer).digest())
                if told != (came.own, came.answer):
                    return None
            elif self.protection is not None:
                tables.lock()  # or an answer to its offer, on its way, has marked its messages
            if not tables.register(came):
                is_same = tables.registered(came.batch) == (came.own, came.digest)
                return False if is_same else None
            body, repeats = self._strike_out(tables, came)
            if self.protection is not None:
                body = self.protection.keys.seal(came.batch, came.own, body)
            tables.keep(came.batch, came.own, body)
            tables.count(came.batch.level, LevelTally(received=1, repeats=repeats))
            return True

        words = f"another release of {came.batch}"
        if isinstance(came, MaskedSum):
            words = f"another sum of {came.batch}, or one for another answer"
        return self._take_in(came.batch, work, words)

    def _strike_out(self, tables: ServerTables, came: Release | MaskedSum) -> tuple[bytes, int]:
        """What came without messages that do not count, and how many came before unnoticed."""
        if self.protection is None or isinstance(came, MaskedSum):
            return came.body, 0
        offered = tables.offer(came.batch)
        if offered is not None:
            tables.forget_masks(came.batch)
            return self.protection.strike_refused(came, offered.answer), 0
        body, repeats = self.protection.strike_repeats(came, tables)
        _warn_of_repeats(tables, came.batch, repeats)
        return body, repeats

    def answer(
        self,
        offer: Offer,
        messages: NDArray[np.uint8],
        opened: NDArray[np.bool_],
        masks_of: Callable[[NDArray[np.bool_]], NDArray[np.uint64]],
    ) -> bytes:
        """The answer to an offer, durable when this returns: with it, its messages came.

        One of the `messages` counts if it was `opened` and none with its mark came before.
        `masks_of` says what the masks of those that count add up to. The same offer again has the
        same answer, at any time; another one for the same batch raises `ProtocolViolation`, and
        leaves an alarm.
        """

        def work(tables: ServerTables) -> bytes | None:
            assert self.protection is not None
            tables.lock()
            if (known := tables.offer(offer.batch)) is not None:
                return known.answer if self.protection.is_answer(known.answer, offer) else None
            if tables.registered(offer.batch):  # it was offered in vain, and released in one step
                return None
            is_repeat = self.protection.mark(messages, tables)
            counts = opened & ~is_repeat
            offered = Offered(
                offer.own, int((~counts).sum()), self.protection.answer(offer, counts)
            )
            masks = np.asarray(masks_of(counts), _MASKS).tobytes()
            sealed = self.protection.keys.seal(offer.batch, offer.own, masks)
            tables.add_offer(offer.batch, offered, sealed)
            repeats = int(is_repeat.sum())
            tables.count(offer.batch.level, LevelTally(repeats=repeats))
            _warn_of_repeats(tables, offer.batch, repeats)
            return offered.answer

        return self._take_in(offer.batch, work, f"another offer of {offer.batch}")

    def find_answer(self, offer: Offer) -> bytes | None:
        """What was answered to this offer before."""
        known = self.read(lambda tables: tables.offer(offer.batch))
        if known is None or self.protection is None:
            return None
        return known.answer if self.protection.is_answer(known.answer, offer) else None

    def _take_in(self, batch: Batch, work: Callable[[ServerTables], T | None], words: str) -> T:
        """What came to the store, or an alarm in these words if it comes to nothing."""
        if self._is_readable_only:
            raise InvalidValue(
                "the database has keys but was opened without them: it can only be read"
            )
        try:
            found = self._write(work)
        except KeyGone:  # it had a sum in a newer copy of this store
            assert self.protection is not None
            found, words = None, f"{batch} came again: {self.protection.too_old}"
        except NotOffered as error:
            found, words = None, str(error)
        if found is None:
            self.alarm(words)
            raise ProtocolViolation(words)
        return found

    def check_usable(self) -> None:
        """Raise what would keep a sum from being published now, and change nothing."""
        self._write(lambda tables: tables.advance(tables.lock()))

    def alarm(self, words: str) -> None:
        """Raise an alarm, which stays; the same words again are the same alarm."""
        self._write(lambda tables: _alarm(tables, words))

    def alarms(self) -> list[str]:
        """All alarms, in the order in which they were first raised."""
        return self.read(lambda tables: tables.alarms())

    @contextmanager
    def claim_releases(
        self, select: Callable[[list[Batch]], Iterable[Batch]] = lambda waiting: waiting
    ) -> Iterator[list[Release | AnsweredSum]]:
        """What is to be opened now, and nobody has in hand: one batch, or the first few in order.

        `select` says which of those that wait may be, and in which order. Claims only save work:
        even if two processes open a release, one sum of it is published.
        """
        is_in_order = self.protection is not None
        order, most = ("number", _TOGETHER) if is_in_order else ("place", 1)
        places = self.read(lambda tables: tables.waiting(order))
        claimed, found = list[int](), list[Release | AnsweredSum]()
        try:
            for batch in select(list(places)):
                if not self._database.claim("unopened", places[batch]):
                    if is_in_order:
                        break
                    continue
                claimed.append(places[batch])
                # Read after the claim: its former holder may have published it.
                release = self._read_claimed(places[batch])
                found += [] if release is None else [release]
                if len(found) == most or sum(len(one.body) for one in found) >= _MOST_BYTES:
                    break
            yield found
        finally:
            for place in claimed:
                self._database.unclaim("unopened", place)

    def _read_claimed(self, place: int) -> Release | AnsweredSum | None:
        found = self.read(lambda tables: tables.read_unopened(place))
        if found is None:
            return None
        level, number, own, body, refused, masks = found
        batch = Batch(level, number)
        if self.protection is None:
            return Release(batch, own, body)
        try:
            opened = self.protection.keys.open(batch, own, body)
            if masks is None:
                return Release(batch, own, opened)
            kept = np.frombuffer(self.protection.keys.open(batch, own, masks), _MASKS)
            return AnsweredSum(batch, own, refused, opened, kept.astype(np.uint64))
        except KeyGone as error:
            if self.read(lambda tables: tables.read_unopened(place)) is None:
                return None  # published since it was read
            raise ProtocolViolation(self.protection.too_old) from error

    def add_sums(self, totals: Sequence[BatchTotal]) -> None:
        """Batches were opened: draw the server's noise, keep their sums, forget what they sent.

        Nothing that depends on the noise happens in this transaction: what has gone wrong with a
        sum may not undo a draw. Those whose sum is there already are left as they are.
        """

        def work(tables: ServerTables) -> None:
            length = tables.lock()
            fresh = [one for one in totals if tables.forget(one.known.batch)]
            rows: Iterator[Counts | None] = repeat(None)
            if self.protection is not None:
                needed = sum(one.add is not None for one in fresh)
                rows = iter(self.protection.draw_noise(tables, needed)[:, np.newaxis])
            for place, total in enumerate(fresh, start=length.sums + 1):
                tables.add_sum(place, total.sum(None if total.add is None else next(rows)))
            tables.advance(length._replace(sums=length.sums + len(fresh)))

        self._write(work)

    def publish(
        self,
        seen: int,
        estimates_of: Callable[[list[BatchSum], int], Sequence[Published | None]],
        policy_of: Callable[[int, int], str] | None = None,
    ) -> bool:
        """Publish an estimate after each sum that has none; returns whether there was such a sum.

        `estimates_of` is given all sums after the first `seen`, and of how many of these estimates
        were made; it may be asked again. `policy_of` is given the number of an estimate, and after
        which of the sums it is: what a recommender makes of it is published, too.
        """

        def work(tables: ServerTables) -> bool:
            length = tables.lock()
            sums, estimates, told = length
            if told == sums:
                return False
            unseen = tables.sums(seen, sums - seen)
            made = estimates_of(unseen, told - seen)
            for summed in unseen[told - seen :]:
                is_lost = summed.value is None
                tally = LevelTally(0, int(not is_lost), int(is_lost), summed.own, summed.garbage)
                tables.count(summed.batch.level, tally)
            last = tables.estimate(estimates)
            for place, estimate in enumerate(made):
                # One that equals the last reaches no further, and no closer.
                if estimate is None or estimate == last:
                    continue
                estimates, last = estimates + 1, estimate
                tables.add_estimate(estimates, estimate)
                if policy_of is not None:
                    tables.add_policy(estimates, policy_of(estimates, place))
            tables.advance(Length(sums, estimates, sums))
            return True

        return self._write(work)

    def sums(self, after: int, most: int) -> list[BatchSum]:
        """Up to this many sums after the first ones, in the order of publication."""
        return self.read(lambda tables: tables.sums(after, most))

    def status(self) -> StoreStatus:
        """How far the store is now."""

        def work(tables: ServerTables) -> StoreStatus:
            length = tables.length()
            return StoreStatus(length, tables.estimate(length.estimates), tables.tallies())

        return self.read(work)

    def close(self) -> None:
        self._database.close()


def _alarm(tables: ServerTables, words: str) -> None:
    if tables.alarm(words):
        log("an alarm was raised", level=logging.ERROR, alarm=words)


def _warn_of_repeats(tables: ServerTables, batch: Batch, repeats: int) -> None:
    if repeats:
        _alarm(tables, f"{repeats} messages of {batch} came before and do not count")
