"""`python -m benchmarks.stores`: reports a second, durable, of each store beside a bare insert.

The bare insert puts the same bytes, one row per report and level, into a plain table in commit
groups of the same size, with the same durability: no repeats are dropped, nothing is counted or
permuted. Ours does all of that. Processor time is that of the client's process; a PostgreSQL server
spends its own beside it.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import psycopg
from rich.table import Table

from benchmarks.tables import console
from overhand.deploy.databases.batch_keys import MARK_BYTES
from overhand.deploy.protocol.wire import ID_BYTES, Formats, LevelFormat
from overhand.deploy.shuffler.batching import Arrival
from overhand.deploy.shuffler.store import Store

MESSAGES = (24, 12, 12, 12, 12)
SIZES = (50, 500, 5_000, 20_000, 100_000)
HORIZON = 10**9
FORMATS = Formats(
    bytes(32),
    tuple(
        LevelFormat(level, size, HORIZON // size, messages, message_bits=1)
        for level, (size, messages) in enumerate(zip(SIZES, MESSAGES, strict=True), start=1)
    ),
)
RUNS = 3
Insert = Callable[[Sequence[Arrival]], object]


@dataclass(frozen=True)
class Figure:
    """What one way of storing reports took."""

    name: str
    group: int
    per_second: float
    processor: float
    """Microseconds of the client's processor per report."""


def report() -> Arrival:
    parts = tuple(os.urandom(level.part_bytes) for level in FORMATS.levels)
    return Arrival(os.urandom(ID_BYTES), parts)


@contextmanager
def sqlite_ours(place: str) -> Iterator[Insert]:
    with closing(Store(place, FORMATS)) as store:
        yield store.admit


@contextmanager
def sqlite_bare(place: str) -> Iterator[Insert]:
    with closing(sqlite3.connect(place + ".bare", isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        connection.execute("CREATE TABLE IF NOT EXISTS bare (level INTEGER, body BLOB)")

        def insert(arrivals: Sequence[Arrival]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO bare VALUES (?, ?)", rows(arrivals))
            connection.execute("COMMIT")

        yield insert


@contextmanager
def postgres_ours(place: str) -> Iterator[Insert]:
    from support.postgres import keys_of

    with closing(Store(place, FORMATS, keys_of(place))) as store:
        yield store.admit


@contextmanager
def postgres_bare(place: str) -> Iterator[Insert]:
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (level SMALLINT, body BYTEA)")
        statement = "INSERT INTO bare SELECT unnest(%b::smallint[]), unnest(%b::bytea[])"

        def insert(arrivals: Sequence[Arrival]) -> None:
            levels, bodies = zip(*rows(arrivals), strict=True)
            connection.execute(statement, (list(levels), list(bodies)))

        yield insert


WAYS = {way.__name__: way for way in (sqlite_bare, sqlite_ours, postgres_bare, postgres_ours)}


def rows(arrivals: Sequence[Arrival]) -> Iterator[tuple[int, bytes]]:
    for arrival in arrivals:
        yield from enumerate(arrival.parts, start=1)


def fill(way: str, place: str, group: int, reports: int) -> tuple[float, float, float]:
    """When it began, when it ended, and processor seconds."""
    groups = [[report() for _ in range(group)] for _ in range(reports // group)]
    with WAYS[way](place) as insert:
        insert([report()])
        begun, processor = time.time(), time.process_time()
        for arrivals in groups:
            insert(arrivals)
        return begun, time.time(), time.process_time() - processor


def measure(way: str, place: str, group: int, reports: int, processes: int = 1) -> Figure:
    """The best of a few runs: the machine has other work."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = [timed(pool, way, place, group, reports, processes) for _ in range(RUNS)]
    return max(runs, key=lambda run: run.per_second)


def timed(
    pool: ProcessPoolExecutor, way: str, place: str, group: int, reports: int, processes: int
) -> Figure:
    filling = [pool.submit(fill, way, place, group, reports) for _ in range(processes)]
    begun, ended, processor = zip(*(one.result() for one in filling), strict=True)
    stored = processes * (reports // group) * group
    name = way.replace("_", ", ") + (f", {processes} processes" if processes > 1 else "")
    return Figure(name, group, stored / (max(ended) - min(begun)), 1e6 * sum(processor) / stored)


def know(place: str, reports: int) -> None:
    """A store that has seen so many reports already: their marks fill the lookup table."""
    with closing(Store(place, FORMATS)):
        pass
    with closing(sqlite3.connect(place)) as connection:
        marks = sorted(os.urandom(MARK_BYTES) for _ in range(reports))
        connection.executemany("INSERT INTO seen VALUES (?)", ((mark,) for mark in marks))
        connection.commit()


def table(figures: Sequence[Figure]) -> Table:
    result = Table(title="Reports of 5 levels and 3,528 bytes, durable")
    for heading in ("store", "group", "reports/s", "processor µs/report", "rate : bare"):
        result.add_column(heading, justify="left" if heading == "store" else "right")
    bare: dict[tuple[str, int], float] = {}
    for figure in figures:
        database = figure.name.split(",")[0]
        base = bare.setdefault((database, figure.group), figure.per_second)
        result.add_row(
            figure.name,
            str(figure.group),
            f"{figure.per_second:,.0f}",
            f"{figure.processor:.0f}",
            f"{figure.per_second / base:.2f}",
        )
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--reports", type=int, default=10_000)
    options.add_argument("--known", type=int, default=0, help="reports that SQLite saw before")
    chosen = options.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from support.postgres import running_postgres

    figures = []
    with tempfile.TemporaryDirectory() as folder, running_postgres() as server:
        for group in (50, 500):
            place = str(Path(folder) / f"store{group}.db")
            if chosen.known:
                know(place, chosen.known)
            for way in ("sqlite_bare", "sqlite_ours"):
                figures.append(measure(way, place, group, chosen.reports))
            for way, processes in (
                ("postgres_bare", 1),
                ("postgres_ours", 1),
                ("postgres_ours", 2),
            ):
                dsn = server.new_schema()
                figures.append(measure(way, dsn, group, chosen.reports, processes))
    console().print(table(figures))


if __name__ == "__main__":
    main()
