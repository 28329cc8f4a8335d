"""`python -m benchmarks soak`: real processes, killed again and again, and nothing lost or double.

A crowd reports as fast as it goes, some of it twice at the same time. During the first part of it
the processes of the shuffling service and of the server are killed every few seconds and started
again; the rest is one life, in which memory is measured. A relay between the two services keeps all
that was sent and answered. In the end every ciphertext of every report that was acknowledged must
be in exactly one release or offer of its level or in a batch that is still open, every sum in the
database must be that of its users, nothing else may be anywhere, and the server has raised no alarm
(`soak_judge`).

Of ballots and pairs each service adds its noise to a block, once: of no block two releases, sums,
offers or answers may ever be sent, and no sum that was once in the server's database may change or
go. With `--noiseless` the services' noise is nothing, and sums are exact. With a short
`--answer-within` blocks of pairs are frozen without an answer while the server is down. With
`--store postgres` two processes of the shuffling service share a store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measure import ROOT
from benchmarks.soak_crowd import crowd
from benchmarks.soak_judge import Sums, judge, sums_of, tables
from benchmarks.soak_relay import Relay
from overhand.deploy.protocol.document import Document
from overhand.model import Privacy
from overhand.planning import Plan
from overhand.randomness import seeded_random
from overhand.values import BITS, Histogram

MORE = 1000  # users that never come: when a plan is over, what no batch can hold is destroyed
MECHANISMS = ("coins", "ballots", "pairs")
CALM = 0.5
"""The last part of the reports, in which nobody is killed."""
SETTLED = 3.0
"""Seconds after a start in which memory is not looked at."""
_PATIENCE = 300.0
_HELD: list[socket.socket] = []


def planned(reports: int, mechanism: str) -> Plan:
    """A plan for so many reports and a few more."""
    if mechanism == "coins":
        return Plan.best(reports + MORE, 2, Privacy(4.0, 1e-6), max_messages=6)
    values = Histogram(8) if mechanism == "pairs" else BITS
    return Plan.best(reports + MORE, epsilon=1.0, values=values, mechanism=mechanism)


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
    name: str
    folder: Path
    arguments: tuple[str, ...]
    port: int
    program: str = "overhand"
    lives: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        command = [sys.executable, "-m", self.program, self.role, *self.arguments]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
                stdout=log,
                stderr=log,
            )
        self.lives += 1
        self._since = time.monotonic()

    @property
    def is_up(self) -> bool:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
            return True
        return False

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.is_up:
                return
            time.sleep(0.1)
        raise SystemExit(f"the {self.name} does not answer: {self.log}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(60)

    def sample(self, counted: int) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"the {self.name} ended: {self.log}")
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        mebibytes = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        age = time.monotonic() - self._since
        self.samples.append(Sample(self.lives, age, counted, mebibytes))

    def last_life(self) -> list[Sample]:
        found = [one for one in self.samples if one.life == self.lives and one.age > SETTLED]
        return found or self.samples[-1:]


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Run:
    """A deployment in a folder, and what happened to it."""

    folder: Path
    reports: int
    seed: int
    mechanism: str = "coins"
    noiseless: bool = False
    answer_within: float = 3600.0
    store: str = "shuffler.db"
    shufflers: int = 1
    pause: float = 10.0
    """Seconds between kills, on average."""
    counted: int = 0
    kills: int = 0
    seconds: float = 0.0
    ends: tuple[int, ...] = ()
    sums: list[Sums] = field(default_factory=list)
    """What was in the database whenever the server was killed."""

    def __post_init__(self) -> None:
        planned(self.reports, self.mechanism).save(self.folder / "plan.json")
        overhand(self.folder, "prepare", "--plan", "plan.json")
        self.document = Document.from_json((self.folder / "document.json").read_text())
        server, relay, *shufflers = free_ports(2 + self.shufflers)
        self.relay = Relay(relay, server)
        place = ("--store", self.store, "--store-keys", str(self.keys))
        patience = ("--answer-within", str(self.answer_within))
        arguments = ("--server", f"http://127.0.0.1:{relay}", "--tick", "0.2", *patience, *place)
        program = "benchmarks.noiseless" if self.noiseless else "overhand"
        self.server = Service("server", "server", self.folder, (), server, program)
        self._shufflers = [
            Service("shuffler", f"shuffler {number}", self.folder, arguments, port, program)
            for number, port in enumerate(shufflers, start=1)
        ]
        self.services = (*self._shufflers, self.server)
        self._random = random.Random(self.seed)

    @property
    def keys(self) -> Path:
        """The keys of the store."""
        return self.folder / "store.keys"

    def go(self, screen: Console) -> None:
        threading.Thread(target=self.relay.run, daemon=True).start()
        for service in self.services:
            service.start()
        for service in self.services:
            service.wait_until_up()
        try:
            started = time.monotonic()
            rows = self.document.plan.values.uniform(seeded_random(self.seed), self.reports)
            urls = [f"http://127.0.0.1:{shuffler.port}" for shuffler in self._shufflers]
            reporting = crowd(urls, self.document.digest, self.folder, rows)
            with reporting as pipes, bar(screen, self.reports) as advance:
                self._follow(pipes, advance)
            self.seconds = time.monotonic() - started
            with screen.status("the server opens what is left"):
                for service in self.services:  # one that was killed last may still be starting
                    service.wait_until_up()
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
                self._kill_one()
                kill_at = self._next_kill()
            if time.monotonic() > look_at:
                look_at = time.monotonic() + 0.5
                for service in self.services:
                    service.sample(self.counted)

    def _kill_one(self) -> None:
        """One that works: who is killed again and again before that holds up everybody."""
        service = self._random.choice(self.services)
        if service.is_up:
            service.kill()
            if service is self.server:
                self.sums.append(sums_of(self))
            service.start()
            self.kills += 1

    def _next_kill(self) -> float:
        return time.monotonic() + self.pause * self._random.uniform(0.5, 1.5)

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
    """Ports that nobody else is given: they stay bound here, where nobody listens at them."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    _HELD.extend(held)
    return [one.getsockname()[1] for one in held]


@contextmanager
def store_of(kind: str) -> Iterator[tuple[str, int]]:
    """The address of a new store, and how many processes have it."""
    if kind == "sqlite":
        yield "shuffler.db", 1
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from support.postgres import running_postgres

    with running_postgres() as server:
        yield server.new_schema(), 2


def soak(options: argparse.Namespace, screen: Console, folder: Path) -> bool:
    """Whether nothing was lost, double, strange or wrong, and all services ended in order."""
    with store_of(options.store) as (store, shufflers):
        kind = options.mechanism, options.noiseless, options.answer_within
        run = Run(folder, options.reports, options.seed, *kind, store, shufflers, options.pause)
        run.go(Console(stderr=True))
        verdicts = [judge(run, level) for level in run.document.formats.levels]
    for table in tables(run, verdicts):
        screen.print(table)
    screen.print(
        f"{run.counted / run.seconds:,.0f} reports/s in {run.seconds:.0f} s, ends {run.ends}"
    )
    is_clean = not any(verdict.is_wrong for verdict in verdicts)
    return is_clean and run.counted == options.reports and not any(run.ends)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--reports", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mechanism", choices=MECHANISMS, default="coins")
    parser.add_argument("--noiseless", action="store_true", help="services whose noise is nothing")
    parser.add_argument(
        "--answer-within", type=float, default=3600.0, help="seconds for the server to answer"
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds between kills")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and with it all that it started
    with tempfile.TemporaryDirectory(prefix="overhand-soak-") as name:
        is_clean = soak(options, Console(), Path(name))
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
