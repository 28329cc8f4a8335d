"""What the server keeps: releases until they are opened, sums and published estimates for ever.

server_store  one row: which document it belongs to, what an earlier plan ended with (or nothing),
              the name of its keys (if it has some), and how many sums and estimates there are
releases      a row per batch that came: the digest of its release, as it was sent
stored        marks of all messages that ever came, if the services make the noise: a row a release
unopened      ciphertexts of releases that wait to be opened; sealed, if the store has keys
sums          what came of a release, numbered from 1 in the order of publication
published     estimates, numbered in the same order; a sum that changes nothing publishes none
policies      of a recommender: what was made of the estimate of the same number, as it was signed
levels        what came of the batches of a level, counted
alarms        what somebody should look at
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

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
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.replay import ReplayProtection
from overhand.errors import InvalidValue, ProtocolViolation, finite_number, whole
from overhand.estimates import Estimate
from overhand.values import Values

_FLOAT = np.dtype("<f8")
_AT_ONCE = 256  # releases whose marks are read together

SCHEMA = 4
"""Whoever changes the tables adds to `Contents.migrations` what makes the next schema of this."""
T = TypeVar("T")
_APPLICATION = 0x4F564842  # "OVHB"
_NUMBERS = ("std", "kurtosis", "unit")
_LEAST = -math.ulp(0.0)  # so that 0 is above it


@dataclass(frozen=True)
class BatchSum:
    """What came of a release: the batch's sum, by coordinate, or None if it was lost."""

    batch: Batch
    own: int
    garbage: int
    bias_bound: float
    value: tuple[float, ...] | None


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

    def coordinate(self, coordinate: int) -> Coordinate:
        return Coordinate(self.t, *(ends[coordinate] for ends in (self.value, self.low, self.high)))


class Coordinate(NamedTuple):
    """One coordinate of a published estimate."""

    t: int
    value: float
    low: float
    high: float


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
        f"keys TEXT NOT NULL, sums BIGINT NOT NULL, estimates BIGINT NOT NULL) {ending}",
        f"CREATE TABLE releases ({batch}, digest {blob} NOT NULL, "
        f"PRIMARY KEY (level, number)) {ending}",
        f"CREATE TABLE stored (place {dialect.counter} PRIMARY KEY, body {blob} NOT NULL)",
        f"CREATE TABLE unopened (place {dialect.counter} PRIMARY KEY, {batch}, "
        f"body {blob} NOT NULL, UNIQUE (level, number))",
        *(one for table in ("stored", "unopened") for one in dialect.storage_statements(table)),
        f"CREATE TABLE sums (place BIGINT PRIMARY KEY, {batch}, garbage BIGINT NOT NULL, "
        f"bias_bound DOUBLE PRECISION NOT NULL, value {blob}, UNIQUE (level, number)) {ending}",
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

    def begin(self, document: str, settled: str, keys: str) -> None:
        self._transaction.change(
            "INSERT INTO server_store (document, settled, keys, sums, estimates) "
            "VALUES (?, ?, ?, 0, 0)",
            *(document, settled, keys),
        )

    def origin(self) -> tuple[str, str, str] | None:
        """What the store belongs to, what it goes on from, and its keys' name, if it is one."""
        found = self._transaction.rows("SELECT document, settled, keys FROM server_store")
        return next(((str(one), str(two), str(three)) for one, two, three in found), None)

    def length(self) -> tuple[int, int]:
        """How many sums and how many estimates there are."""
        ((sums, estimates),) = self._transaction.rows("SELECT sums, estimates FROM server_store")
        return sums, estimates

    def lock(self) -> tuple[int, int]:
        """The same; nobody else publishes, or adds marks, until this transaction ends."""
        ((sums, estimates),) = self._transaction.lock_rows(
            "SELECT sums, estimates FROM server_store"
        )
        return sums, estimates

    def advance(self, sums: int, estimates: int) -> None:
        self._transaction.change("UPDATE server_store SET sums = ?, estimates = ?", sums, estimates)

    def register(self, release: Release) -> bool:
        """Whether this is the first release of its batch."""
        return bool(
            self._transaction.change(
                "INSERT INTO releases (level, number, own, digest) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                *(*release.batch, release.own, release.digest),
            )
        )

    def is_registered(self, release: Release) -> bool:
        """Whether it was this release."""
        found = self._transaction.rows(
            "SELECT own, digest FROM releases WHERE level = ? AND number = ?", *release.batch
        )
        return found == [(release.own, release.digest)]

    def marks_after(self, place: int) -> list[tuple[int, bytes]]:
        """The marks of some releases after this place, and their places."""
        found = self._transaction.rows(
            f"SELECT place, body FROM stored WHERE place > ? ORDER BY place LIMIT {_AT_ONCE}", place
        )
        return [(int(place), body) for place, body in found]

    def add_marks(self, place: int, marks: bytes) -> None:
        self._transaction.change("INSERT INTO stored (place, body) VALUES (?, ?)", place, marks)

    def keep(self, release: Release) -> None:
        """A release that is to be opened."""
        self._transaction.change(
            "INSERT INTO unopened (level, number, own, body) VALUES (?, ?, ?, ?)",
            *(*release.batch, release.own, release.body),
        )

    def next_unopened(self, place: int) -> tuple[int, Batch] | None:
        """The place of the next release that waits, and its batch, if there is one."""
        found = self._transaction.rows(
            "SELECT place, level, number FROM unopened WHERE place > ? ORDER BY place LIMIT 1",
            place,
        )
        return next(((int(place), Batch(level, number)) for place, level, number in found), None)

    def read_unopened(self, place: int) -> Release | None:
        found = self._transaction.rows(
            "SELECT level, number, own, body FROM unopened WHERE place = ?", place
        )
        releases = (Release(Batch(level, number), own, body) for level, number, own, body in found)
        return next(releases, None)

    def forget(self, batch: Batch) -> bool:
        """Drop the ciphertexts of a release; whether there were any."""
        statement = "DELETE FROM unopened WHERE level = ? AND number = ?"
        return bool(self._transaction.change(statement, *batch))

    def find_waiting(self, seen: int) -> set[Batch]:
        rows = self._transaction.rows(
            "SELECT level, number FROM unopened "
            "UNION ALL SELECT level, number FROM sums WHERE place > ?",
            seen,
        )
        return {Batch(*row) for row in rows}

    def add_sum(self, place: int, one: BatchSum) -> None:
        value = None if one.value is None else _bytes(one.value)
        self._transaction.change(
            "INSERT INTO sums (place, level, number, own, garbage, bias_bound, value) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(place, *one.batch, one.own, one.garbage, float(one.bias_bound), value),
        )

    def sums(self, after: int, most: int) -> list[BatchSum]:
        rows = self._transaction.rows(
            "SELECT level, number, own, garbage, bias_bound, value FROM sums "
            "WHERE place > ? AND place <= ? ORDER BY place",
            *(after, after + most),
        )
        return [
            BatchSum(
                Batch(*batch), own, garbage, bias_bound, None if value is None else _floats(value)
            )
            for *batch, own, garbage, bias_bound, value in rows
        ]

    def sums_of(self, coordinate: int, most: int) -> list[tuple[Any, ...]]:
        """Level, number, own, bias bound and one coordinate of the first sums: None if lost."""
        cut = f"substr(value, {1 + coordinate * _FLOAT.itemsize}, {_FLOAT.itemsize})"
        rows = self._transaction.rows(
            f"SELECT level, number, own, bias_bound, {cut} FROM sums WHERE place <= ?", most
        )
        return [(*rest, None if value is None else _floats(value)[0]) for *rest, value in rows]

    def add_estimate(self, number: int, estimate: Published) -> None:
        self._transaction.change(
            "INSERT INTO published (number, t, value, low, high, std, fallback, lost) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(number, estimate.t),
            *map(_bytes, (estimate.value, estimate.low, estimate.high)),
            *(float(estimate.std), int(estimate.is_fallback), estimate.lost_users),
        )

    def add_policy(self, number: int, body: str) -> None:
        self._transaction.change("INSERT INTO policies (number, body) VALUES (?, ?)", number, body)

    def policy(self, number: int) -> str | None:
        """That of this number, or the last before it."""
        found = self._transaction.rows(
            "SELECT body FROM policies WHERE number <= ? ORDER BY number DESC LIMIT 1", number
        )
        return next((str(body) for (body,) in found), None)

    def estimate(self, number: int) -> Published | None:
        columns = "t, value, low, high, std, fallback, lost"
        found = self._transaction.rows(f"SELECT {columns} FROM published WHERE number = ?", number)
        for t, value, low, high, std, fallback, lost in found:
            curves = _floats(value), _floats(low), _floats(high)
            return Published(t, *curves, std, bool(fallback), lost)
        return None

    def coordinates(self, numbers: Sequence[int], coordinate: int) -> list[Coordinate]:
        """One coordinate of these estimates: the others are not read."""
        start, length = 1 + coordinate * _FLOAT.itemsize, _FLOAT.itemsize
        cuts = ", ".join(f"substr({name}, {start}, {length})" for name in ("value", "low", "high"))
        places = ", ".join("?" * len(numbers))
        rows = self._transaction.rows(
            f"SELECT t, {cuts} FROM published WHERE number IN ({places}) ORDER BY number", *numbers
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
        statement = "INSERT INTO alarms (words) VALUES (?) ON CONFLICT DO NOTHING"
        return bool(self._transaction.change(statement, words))

    def alarms(self) -> list[str]:
        found = self._transaction.rows("SELECT words FROM alarms ORDER BY place")
        return [words for (words,) in found]


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


@dataclass(frozen=True)
class StoreStatus:
    """How far the store is: how many sums and estimates, the last of these, counts by level."""

    sums: int
    estimates: int
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
        protection = ReplayProtection(document.formats, keys_of(address, keys, "database"))
        return cls(address, document.digest, settled, protection)

    @staticmethod
    def make_keys(document: Document, path: Path) -> None:
        """Make the keys of the only store that a new document will have, if that needs any."""
        if document.plan.noise_by == "services":
            ReplayProtection(document.formats, path).make_keys()

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

    def _read(self, work: Callable[[ServerTables], T]) -> T:
        return self._database.read(lambda transaction: work(ServerTables(transaction)))

    def _write(self, work: Callable[[ServerTables], T]) -> T:
        return self._database.write(lambda transaction: work(ServerTables(transaction)))

    def receive(self, release: Release) -> bool:
        """Store a release, durable when this returns; returns whether it is new.

        The same bytes again are fine, at any time; others for the same batch raise
        `ProtocolViolation`, and leave an alarm. Messages that came before in another release leave
        one as well, and are struck out.
        """
        if self._is_readable_only:
            raise InvalidValue(
                "the database has keys but was opened without them: it can only be read"
            )

        def work(tables: ServerTables) -> bool | None:
            if tables.register(release):
                repeats = self._keep(tables, release)
                tables.count(release.batch.level, LevelTally(received=1, repeats=repeats))
                return True
            return False if tables.is_registered(release) else None

        try:
            is_new, words = self._write(work), f"another release of {release.batch}"
        except KeyGone:  # it had a sum in a newer copy of this store
            assert self.protection is not None
            is_new, words = None, f"{release.batch} came again: {self.protection.too_old}"
        if is_new is None:
            self.alarm(words)
            raise ProtocolViolation(words)
        return is_new

    def check_usable(self) -> None:
        """Raise what would keep a sum from being published now, and change nothing."""
        self._write(lambda tables: tables.advance(*tables.lock()))

    def _keep(self, tables: ServerTables, release: Release) -> int:
        """A release that is to be opened; how many of its messages came before."""
        if self.protection is None:
            tables.keep(release)
            return 0
        kept, repeats = self.protection.strike_repeats(release, tables)
        tables.keep(self.protection.seal(kept))
        if repeats:
            _alarm(tables, f"{repeats} messages of {release.batch} came before and do not count")
        return repeats

    def alarm(self, words: str) -> None:
        """Raise an alarm, which stays; the same words again are the same alarm."""
        self._write(lambda tables: _alarm(tables, words))

    def alarms(self) -> list[str]:
        """All alarms, in the order in which they were first raised."""
        return self._read(lambda tables: tables.alarms())

    @contextmanager
    def claim_release(
        self, is_due: Callable[[Batch], bool] = lambda batch: True
    ) -> Iterator[Release | None]:
        """A release to open: the one that has waited longest and that nobody has in hand.

        Only of those that are ready. Claims only save work: even if two processes open a release,
        one sum of it is published.
        """
        place = 0
        while (after := self._after(place)) is not None:
            place, batch = after
            if not is_due(batch) or not self._database.claim("unopened", place):
                continue
            try:  # read after the claim: its former holder may have published it
                release = self._read_claimed(place)
                if release is not None:
                    yield release
                    return
            finally:
                self._database.unclaim("unopened", place)
        yield None

    def _read_claimed(self, place: int) -> Release | None:
        release = self._read(lambda tables: tables.read_unopened(place))
        if self.protection is None or release is None:
            return release
        try:
            return self.protection.open(release)
        except KeyGone as error:
            if self._read(lambda tables: tables.read_unopened(place)) is None:
                return None  # published since it was read
            raise ProtocolViolation(self.protection.too_old) from error

    def _after(self, place: int) -> tuple[int, Batch] | None:
        return self._read(lambda tables: tables.next_unopened(place))

    def publish(
        self,
        summed: BatchSum,
        seen: int,
        estimate_of: Callable[[list[BatchSum]], Published | None],
        policy_of: Callable[[int], str] | None = None,
    ) -> bool:
        """A release was opened: keep its sum, publish the estimate, forget its ciphertexts.

        `estimate_of` is given all sums after the first `seen`, this one last, and may be asked
        again. `policy_of` is then given the number of the estimate: what a recommender makes of it
        is published, too. If the batch's sum is there already, nothing happens: whether it was not.
        """

        def work(tables: ServerTables) -> bool:
            sums, estimates = tables.lock()
            if not tables.forget(summed.batch):
                return False
            estimate = estimate_of([*tables.sums(seen, sums - seen), summed])
            tables.add_sum(sums + 1, summed)
            is_lost = summed.value is None
            tally = LevelTally(0, int(not is_lost), int(is_lost), summed.own, summed.garbage)
            tables.count(summed.batch.level, tally)
            # One that equals the last reaches no further, and no closer.
            if estimate is not None and estimate != tables.estimate(estimates):
                estimates += 1
                tables.add_estimate(estimates, estimate)
                if policy_of is not None:
                    tables.add_policy(estimates, policy_of(estimates))
            tables.advance(sums + 1, estimates)
            return True

        return self._write(work)

    def sums(self, after: int, most: int) -> list[BatchSum]:
        """Up to this many sums after the first ones, in the order of publication."""
        return self._read(lambda tables: tables.sums(after, most))

    def sums_of(self, coordinate: int, most: int) -> list[tuple[Any, ...]]:
        """Level, number, own, bias bound and one coordinate of the first sums: None if lost."""
        return self._read(lambda tables: tables.sums_of(coordinate, most))

    def status(self) -> StoreStatus:
        """How far the store is now."""

        def work(tables: ServerTables) -> StoreStatus:
            sums, estimates = tables.length()
            return StoreStatus(sums, estimates, tables.estimate(estimates), tables.tallies())

        return self._read(work)

    def find_waiting(self, seen: int) -> set[Batch]:
        """The batches that came, but not by the first `seen` sums."""
        return self._read(lambda tables: tables.find_waiting(seen))

    def policy(self, number: int) -> str | None:
        """The policy that was made of an estimate, as it was signed; or the last before it."""
        return self._read(lambda tables: tables.policy(number))

    def thin(self, coordinate: int, estimates: int, most: int) -> list[Coordinate]:
        """Of the first estimates those at even steps, as many as are allowed, the last included."""
        numbers = range(estimates, 0, -max(1, -(-estimates // most)))
        if not numbers:
            return []
        return self._read(lambda tables: tables.coordinates(numbers, coordinate))

    def close(self) -> None:
        self._database.close()


def _alarm(tables: ServerTables, words: str) -> None:
    if tables.alarm(words):
        log("an alarm was raised", level=logging.ERROR, alarm=words)
