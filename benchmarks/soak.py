"""`python -m benchmarks soak`: real processes, killed again and again, and nothing lost or double.

A crowd reports as fast as it goes. During the first part of it the shuffling service and the server
are killed every few seconds and started again; the rest is one life, in which memory is measured. A
relay between the two services keeps all releases. In the end every ciphertext of every report that
was acknowledged must be in exactly one release of its level or in a batch that is still open, every
sum in the book must be that of the known messages of its batch, and nothing else may be anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
from aiohttp import ClientError, ClientSession, web
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.soak_crowd import crowd, heads_of, known_of
from overhand.model import Shuffled
from overhand.service.protocol import Batch, Document
from overhand.service.server import Book
from overhand.service.shuffler.store.batch_keys import BatchKeys

MORE = 1000  # users that never come: when a plan is over, what no batch can hold is destroyed
PLAN = ("--shufflers", "2", "--tree", "regular", "--max-messages", "6", "--epsilon", "4")
CALM = 0.5
"""The last part of the reports, in which nobody is killed."""
PAUSES = 5.0, 15.0
"""Seconds between kills."""
SETTLED = 3.0
"""Seconds after a start in which memory is not looked at."""
FLAT = 0.05
"""Memory is flat if the median of its last quarter is by less than this above that of its first."""
_PATIENCE = 300.0


# --- the services ---------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The memory of a process, when so many reports were counted."""

    life: int
    age: float
    counted: int
    mebibytes: float


@dataclass
class Service:
    """A process that is started again whenever it was killed."""

    role: str
    folder: Path
    arguments: tuple[str, ...]
    port: int
    lives: int = 0
    samples: list[Sample] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-m", "overhand", self.role, *self.arguments]
        with (self.folder / f"{self.role}.log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)], cwd=self.folder, stdout=log, stderr=log
            )
        self.lives += 1
        self._since = time.monotonic()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5):
                return
            time.sleep(0.1)
        raise SystemExit(f"the {self.role} does not answer: {self.folder / self.role}.log")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(60)

    def sample(self, counted: int) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"the {self.role} ended: {self.folder / self.role}.log")
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        mebibytes = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        age = time.monotonic() - self._since
        self.samples.append(Sample(self.lives, age, counted, mebibytes))

    def last_life(self) -> list[Sample]:
        found = [one for one in self.samples if one.life == self.lives and one.age > SETTLED]
        return found or self.samples[-1:]


class Relay:
    """Hands releases on to the server, and keeps those that it took."""

    def __init__(self, port: int, server_port: int) -> None:
        self._port, self._server = port, f"http://127.0.0.1:{server_port}"
        self.kept: dict[tuple[int, int], bytes] = {}
        self.others = 0
        """Releases of which another version was taken."""

    def run(self) -> None:
        """In a thread of its own, for as long as the process lives."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_put("/v1/releases/{level}/{number}", self._put)
        async with ClientSession() as self._session:
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            await asyncio.Event().wait()

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {"authorization": request.headers["authorization"]}
        try:
            async with self._session.put(
                self._server + request.path, data=body, headers=headers
            ) as answer:
                content = await answer.read()
        except (ClientError, OSError):
            return web.Response(status=502)
        if answer.status == 200:
            name = int(request.match_info["level"]), int(request.match_info["number"])
            self.others += self.kept.setdefault(name, body) != body
        return web.Response(status=answer.status, body=content)


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Run:
    """A deployment in a folder, and what happened to it."""

    folder: Path
    reports: int
    seed: int
    counted: int = 0
    kills: int = 0
    seconds: float = 0.0
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        horizon = str(self.reports + MORE)
        overhand(self.folder, "plan", "--horizon", horizon, *PLAN, "--save", "plan.json")
        overhand(self.folder, "prepare", "--plan", "plan.json")
        self.document = Document.from_json((self.folder / "document.json").read_text())
        server, shuffler, relay = free_ports(3)
        self.relay = Relay(relay, server)
        self.server = Service("server", self.folder, (), server)
        arguments = ("--server", f"http://127.0.0.1:{relay}", "--tick", "0.2")
        self.shuffler = Service("shuffler", self.folder, arguments, shuffler)
        self.services = (self.shuffler, self.server)
        self._random = random.Random(self.seed)

    def go(self, screen: Console) -> None:
        threading.Thread(target=self.relay.run, daemon=True).start()
        for service in self.services:
            service.start()
        for service in self.services:
            service.wait_until_up()
        try:
            started = time.monotonic()
            values = self.document.plan.values.rows(np.arange(self.reports) % 3 % 2)
            url = f"http://127.0.0.1:{self.shuffler.port}"
            with crowd(url, self.folder, values) as pipes, bar(screen, self.reports) as advance:
                self._follow(pipes, advance)
            self.seconds = time.monotonic() - started
            with screen.status("the server opens what is left"):
                self._until_published()
            self.ends = tuple(service.stop() for service in self.services)
        finally:
            for service in self.services:
                service.kill()

    def _follow(self, pipes: Sequence[Connection], advance: Any) -> None:
        """Until all are counted: kill, start again, look at memory."""
        reporting, kill_at, look_at = set(pipes), self._next_kill(), 0.0
        while reporting:
            for pipe in wait(reporting, timeout=0.1):
                assert isinstance(pipe, Connection)
                while pipe in reporting and pipe.poll():
                    if pipe.recv() == 0:
                        reporting.remove(pipe)
                    else:
                        self.counted += 1
            advance(self.counted)
            if time.monotonic() > kill_at and self.counted < (1 - CALM) * self.reports:
                service = self._random.choice(self.services)
                service.kill()
                service.start()
                self.kills, kill_at = self.kills + 1, self._next_kill()
            if time.monotonic() > look_at:
                look_at = time.monotonic() + 0.5
                for service in self.services:
                    service.sample(self.counted)

    def _next_kill(self) -> float:
        return time.monotonic() + self._random.uniform(*PAUSES)

    def _until_published(self) -> None:
        expected = {
            level.level: self.reports // level.size for level in self.document.formats.levels
        }
        deadline = time.monotonic() + _PATIENCE
        while self.published() != expected:
            if time.monotonic() > deadline:
                raise SystemExit(f"published {self.published()}, expected {expected}")
            time.sleep(0.5)

    def published(self) -> dict[int, int]:
        with urlopen(f"http://127.0.0.1:{self.server.port}/v1/status", timeout=60) as answer:
            levels = json.loads(answer.read())["levels"]
        return {level["level"]: level["published"] for level in levels}


@contextmanager
def bar(screen: Console, total: int) -> Iterator[Any]:
    columns = (TextColumn("reports"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


def overhand(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "overhand", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


# --- what became of it ----------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What is wrong at one level: all of it must be 0."""

    level: int
    lost: int
    double: int
    strange: int
    wrong_sums: int


def judge(run: Run, level: int) -> Verdict:
    """Compare all releases and the open batch of a level with what the clients know."""
    shape, known = run.document.formats.level(level), known_of(run.folder, level)
    released = {
        number: heads_of(run.document.formats.unpack_release(body).body, shape)
        for (at, number), body in run.relay.kept.items()
        if at == level
    }
    keys = BatchKeys(run.folder / "shuffler.db.keys")
    with closing(sqlite3.connect(run.folder / "shuffler.db")) as store:
        rows = store.execute(f"SELECT number, own, body FROM messages_{level}").fetchall()
        frozen = store.execute(
            "SELECT number, body FROM bodies WHERE level = ?", (level,)
        ).fetchall()
    still = [
        heads_of(keys.open(Batch(level, number), own, sealed), shape)
        for number, own, sealed in rows
    ]
    still += [heads_of(body, shape) for number, body in frozen if number not in released]
    found, counts = np.unique(
        np.concatenate([known.heads[:0], *released.values(), *still]), return_counts=True
    )
    sums = sums_of(run, level)
    mechanism = run.document.plan.mechanisms[level - 1]
    order, nothing = np.argsort(known.heads), np.empty((1, 0), np.uint64)
    wrong = 0
    for number, heads in released.items():
        places = order[np.searchsorted(known.heads[order], heads) % len(order)]
        total = mechanism.sum_of(Shuffled(known.messages[places][np.newaxis], nothing))
        wrong += sums.pop(number, None) != total
    lost = len(np.setdiff1d(known.heads, found))
    strange = len(np.setdiff1d(found, known.heads))
    return Verdict(level, lost, int((counts - 1).sum()), strange, wrong + len(sums))


def sums_of(run: Run, level: int) -> dict[int, float | None]:
    """The batch sums in the server's book, by number."""
    with closing(Book(run.folder / "server.db", run.document.digest)) as book:
        return {
            summed.batch.number: None if summed.value is None else summed.value[0]
            for summed in book.sums(0, 10**9)
            if summed.batch.level == level
        }


def memory(service: Service) -> tuple[float, float, float, bool]:
    """First and last quarter of the last life, the slope per 10,000 reports, whether it is flat."""
    samples = service.last_life()
    quarter = max(1, len(samples) // 4)
    first, last = (
        statistics.median(one.mebibytes for one in some)
        for some in (samples[:quarter], samples[-quarter:])
    )
    counted = [one.counted / 10_000 for one in samples]
    slope = 0.0
    if len(set(counted)) > 1:
        slope = statistics.linear_regression(counted, [one.mebibytes for one in samples]).slope
    return first, last, slope, last <= (1 + FLAT) * first


def tables(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Table]:
    found = Table(title=f"{run.counted:,} reports, {run.kills} kills", box=None)
    for heading in Verdict._fields:
        found.add_column(heading.replace("_", " "), justify="right")
    for verdict in verdicts:
        found.add_row(*map(str, verdict))
    yield found
    sizes = Table(title="Memory of the last life", box=None)
    for heading in ("", "lives", "first quarter MiB", "last quarter MiB", "MiB/10,000 reports", ""):
        sizes.add_column(heading, justify="right")
    for service in run.services:
        first, last, slope, is_flat = memory(service)
        numbers = f"{first:.1f}", f"{last:.1f}", f"{slope:+.2f}"
        sizes.add_row(service.role, str(service.lives), *numbers, "flat" if is_flat else "grows")
    yield sizes


def soak(reports: int, seed: int, screen: Console, folder: Path) -> bool:
    """Whether nothing was lost, double, strange or wrong, and both services ended in order."""
    run = Run(folder, reports, seed)
    run.go(Console(stderr=True))
    verdicts = [judge(run, level.level) for level in run.document.formats.levels]
    for table in tables(run, verdicts):
        screen.print(table)
    screen.print(
        f"{run.counted / run.seconds:,.0f} reports/s in {run.seconds:.0f} s, ends {run.ends}"
    )
    is_clean = not any(any(verdict[1:]) for verdict in verdicts) and not run.relay.others
    return is_clean and run.counted == reports and not any(run.ends)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--reports", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="overhand-soak-") as name:
        is_clean = soak(options.reports, options.seed, Console(), Path(name))
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
