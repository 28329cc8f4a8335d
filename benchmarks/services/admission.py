"""Durable admission over HTTP, beside the bare store in groups of the same size.

`python -m benchmarks.services.admission sqlite|postgres REPORTS ROUNDS [pairs|ballots]`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from benchmarks.measure import ROOT, Failed
from benchmarks.services import processor
from benchmarks.services.deployment import (
    PLANS,
    Home,
    Shuffler,
    prepared,
    settle,
    shuffling,
)
from benchmarks.services.load import Load, Sent, random_reports
from benchmarks.services.rows import Row, answer
from overhand.deploy.protocol.document import Document
from overhand.deploy.shuffler.batching import Arrival, OwnNoise
from overhand.deploy.shuffler.store import Store

CONNECTIONS = 128
_WARM = 2_000  # reports before the first round
_LONGEST = 180.0


class Round(NamedTuple):
    """One load on one deployment: rates, and microseconds of processor time per report."""

    rate: float
    sent_rate: float
    """Until all full batches were sent: what it can go on with for good."""
    slowest: float
    """Milliseconds that a report waited for its answer, at most."""
    admission: float
    """Of the services, until the last report was answered."""
    whole: float
    """Of the services, until all full batches were sent and scrubbed."""
    workers: float
    """Of processes that the services started, until then."""
    database: float
    load: float
    group: float
    """Reports of a commit."""

    @property
    def cost(self) -> float:
        """Of services and database, while reports came."""
        return self.admission + self.database


class Bench:
    """Services that share a store, and what they and its database use."""

    def __init__(
        self,
        shufflers: Sequence[Shuffler],
        document: Document,
        database: int | None,
        *,
        is_sending: bool = True,
    ) -> None:
        self.shufflers = shufflers
        self._is_sending, self._counted = is_sending, 0
        self._processes = [shuffler.process for shuffler in shufflers]
        self._database = database
        self._formats = document.formats
        self._send(_WARM)
        settle(shufflers)

    def round(self, reports: int) -> Round:
        commits, used, stored = self._commits(), self._used(), self._stored()
        workers, started = self._workers(), time.perf_counter()
        sent = self._send(reports)
        admission, database = self._used() - used, self._stored() - stored
        groups = self._commits() - commits
        if self._is_sending:
            self._until_sent()
        seconds = time.perf_counter() - started
        settle(self.shufflers)
        micro = 1e6 / sent.counted
        return Round(
            sent.counted / sent.seconds,
            sent.counted / seconds,
            1e3 * sent.slowest,
            admission * micro,
            (self._used() - used) * micro,
            (self._workers() - workers) * micro,
            database * micro,
            sent.processor * micro,
            sent.counted / groups,
        )

    def _send(self, reports: int) -> Sent:
        """Over new connections: a service hangs up on those that were silent between rounds."""
        ports = [shuffler.port for shuffler in self.shufflers]
        with closing(Load(ports, CONNECTIONS * len(ports), self._formats)) as load:
            sent = load.send(reports)
        self._counted += sent.counted
        return sent

    def _until_sent(self) -> None:
        """Wait for all batches that are full: what is still to be frozen is no admission done."""
        expected = sum(self._counted // level.size for level in self._formats.levels)
        deadline = time.monotonic() + _LONGEST
        while sum(shuffler.releases for shuffler in self.shufflers) < expected:
            if time.monotonic() > deadline:
                raise Failed(f"{expected} batches were not sent within {_LONGEST:g} s")
            time.sleep(0.05)

    def _workers(self) -> float:
        return sum(map(processor.with_children, self._processes)) - self._used()

    def _used(self) -> float:
        return processor.alone(self._processes)

    def _stored(self) -> float:
        return _used_by(self._database)

    def _commits(self) -> float:
        return sum(shuffler.commits for shuffler in self.shufflers)


class Bare(NamedTuple):
    """The store alone: a rate, and microseconds of processor time per report."""

    rate: float
    store: float
    database: float

    @property
    def cost(self) -> float:
        return self.store + self.database


def bare_store(
    home: Home, place: str, group: float, reports: int, database: int | None = None
) -> Bare:
    """Groups of reports into a store, without a service around it."""
    formats = home.document.formats
    arrivals = [Arrival.of(formats, body) for body in random_reports(formats, reports)]
    size = round(group)
    groups = [arrivals[start : start + size] for start in range(0, reports, size)]
    keys, noise = home.folder / "bare.keys", OwnNoise.of(home.document)
    with closing(Store(place, formats, keys, noise)) as store:
        store.admit(groups.pop())
        count = sum(map(len, groups))
        started, used, stored = time.perf_counter(), time.process_time(), _used_by(database)
        for some in groups:
            store.admit(some)
        seconds, micro = time.perf_counter() - started, 1e6 / count
        used, stored = time.process_time() - used, _used_by(database) - stored
        return Bare(count / seconds, used * micro, stored * micro)


def _used_by(database: int | None) -> float:
    """Seconds of a database that has processes of its own."""
    return 0.0 if database is None else processor.with_children(database)


def sqlite(home: Home, reports: int, rounds: int) -> Iterator[Row]:
    """With batches sent meanwhile, and, beside the bare store, admission alone."""
    with (
        shuffling(home, "shuffler.db") as shuffler,
        shuffling(home, "admitting.db", "--tick", "3600") as admitting,
    ):
        bench = Bench([shuffler], home.document, None)
        alone = Bench([admitting], home.document, None, is_sending=False)
        services, admissions, bares = [], [], []
        place = str(home.folder / "bare.db")  # the same in all rounds: as full as the service's
        for _ in range(rounds):
            services.append(bench.round(reports))
            admissions.append(alone.round(reports))
            bares.append(bare_store(home, place, admissions[-1].group, reports))
        resident = processor.stat(shuffler.process).resident
    adds = any(level.added_messages for level in home.document.formats.levels)
    yield from _service_rows("SQLite", services, least=None if adds else 3_000)
    rate = max(one.sent_rate for one in services)
    yield Row("SQLite, until all is sent", rate, "reports/s", least=1_500 if adds else None)
    yield Row("SQLite, nothing sent", max(map(_rate, admissions)), "reports/s", least=3_000)
    yield Row("SQLite, nothing sent, slowest answer", max(map(_slowest, admissions)), "ms")
    cost = median(one.admission for one in admissions)
    yield Row("SQLite, shuffler, nothing sent", cost, "µs of processor per report")
    # Of one message a level the bare store has little to do: the target is for what weighs more.
    most = 2.5 if home.document.formats.levels[0].messages > 1 else None
    yield from _bare_rows("SQLite, nothing sent", admissions, bares, most=most)
    yield Row("SQLite, shuffler's memory at the end", resident / 2**20, "MiB resident")


def postgres(home: Home, reports: int, rounds: int) -> Iterator[Row]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.postgres import running_postgres

    with running_postgres() as server, ExitStack() as stack:

        def bench(processes: int, place: str) -> Bench:
            keys = ("--store-keys", f"{processes}.keys")
            services = [
                stack.enter_context(shuffling(home, place, *keys)) for _ in range(processes)
            ]
            return Bench(services, home.document, database)

        database = int((server.folder / "postmaster.pid").read_text().split()[0])
        one, two = bench(1, server.new_schema()), bench(2, server.new_schema())
        ones, twos, bares = [], [], []
        place = server.new_schema()  # the same in all rounds: as full as the services'
        for _ in range(rounds):
            ones.append(one.round(reports))
            twos.append(two.round(reports))
            bares.append(bare_store(home, place, ones[-1].group, reports, database))
    yield from _service_rows("PostgreSQL, one shuffler", ones)
    yield from _bare_rows("PostgreSQL, one shuffler", ones, bares)
    yield from _service_rows("PostgreSQL, two shufflers", twos)
    yield _ratio("PostgreSQL, two shufflers : one, reports/s", twos, ones, _rate, least=1.5)
    yield _ratio("PostgreSQL, two shufflers : one, processor time", twos, ones, _cost)


def _rate(found: Round) -> float:
    return found.rate


def _slowest(found: Round) -> float:
    return found.slowest


def _cost(found: Round) -> float:
    return found.cost


def _service_rows(name: str, found: Sequence[Round], least: float | None = None) -> Iterator[Row]:
    unit = "µs of processor per report"
    yield Row(f"{name}, {CONNECTIONS} connections each", max(map(_rate, found)), "reports/s", least)
    yield Row(f"{name}, shuffler", median(one.admission for one in found), unit)
    yield Row(f"{name}, shuffler until all is sent", median(one.whole for one in found), unit)
    if any(one.workers for one in found):
        yield Row(f"{name}, workers", median(one.workers for one in found), unit)
    yield Row(f"{name}, slowest answer", max(map(_slowest, found)), "ms")
    if any(one.database for one in found):
        yield Row(f"{name}, database", median(one.database for one in found), unit)
    yield Row(f"{name}, load generator", median(one.load for one in found), unit)
    yield Row(f"{name}, commit group", median(one.group for one in found), "reports")


def _bare_rows(
    name: str, services: Sequence[Round], bares: Sequence[Bare], most: float | None = None
) -> Iterator[Row]:
    ratios = [service.cost / bare.cost for service, bare in zip(services, bares, strict=True)]
    yield Row(f"{name}, bare store", max(bare.rate for bare in bares), "reports/s")
    cost = median(bare.store for bare in bares)
    yield Row(f"{name}, bare store", cost, "µs of processor per report")
    yield Row(f"{name}, all : bare store", median(ratios), "x processor time", most=most)


def _ratio(
    name: str,
    above: Sequence[Round],
    below: Sequence[Round],
    of: Callable[[Round], float],
    least: float | None = None,
) -> Row:
    ratios = [of(upper) / of(lower) for upper, lower in zip(above, below, strict=True)]
    return Row(name, median(ratios), "x", least)


def main() -> None:
    stages = {"sqlite": sqlite, "postgres": postgres}
    mechanism = sys.argv[4] if sys.argv[4:] else "coins"
    with prepared(*PLANS[mechanism]) as home:
        rows = stages[sys.argv[1]](home, int(sys.argv[2]), int(sys.argv[3]))
        answer(replace(row, name=f"{mechanism}, {row.name}") for row in rows)


if __name__ == "__main__":
    main()
