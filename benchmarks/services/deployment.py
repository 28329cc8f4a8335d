"""The processes of a deployment, started as its operator would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks.measure import ROOT, Failed
from benchmarks.services import processor
from overhand.deploy.protocol.document import Document

_START = 60.0
_QUIET = 2.0  # seconds: longer than a shuffler's ticks are apart
_LONGEST = 180.0
PLANS = {
    "coins": ("--horizon", "1000000", "--shufflers", "5", "--tree", "regular"),
    "pairs": ("--horizon", "1000000", "--mechanism", "pairs"),
    "ballots": ("--horizon", "1000000", "--mechanism", "ballots"),
}
"""Options of `overhand plan`."""
_COMMITS = "overhand_commits_total "
_RELEASES = "overhand_releases_total{"


@dataclass(frozen=True)
class Home:
    """The files of one deployment, and where releases go."""

    folder: Path
    document: Document
    sink: str


@dataclass(frozen=True)
class Shuffler:
    """A shuffling service that runs."""

    process: int
    port: int
    metrics_port: int

    @property
    def commits(self) -> float:
        """How many groups of reports it has committed."""
        return self._metric(_COMMITS)

    @property
    def releases(self) -> float:
        """How many batches it has sent."""
        return self._metric(_RELEASES)

    def _metric(self, name: str) -> float:
        try:
            with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as error:
            raise Failed(f"a shuffling service ended, or does not answer: {error}") from error
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextmanager
def prepared(*plan: str) -> Iterator[Home]:
    """A plan, of five levels unless told otherwise, its document, and a sink for releases."""
    with tempfile.TemporaryDirectory(prefix="overhand-services-") as name, ExitStack() as stack:
        folder = Path(name)
        overhand(folder, "plan", *(plan or PLANS["coins"]), "--save", "plan.json")
        overhand(folder, "prepare", "--plan", "plan.json")
        document = Document.from_json((folder / "document.json").read_text(encoding="utf-8"))
        yield Home(folder, document, stack.enter_context(_sink()))


def overhand(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "overhand", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"overhand {arguments[0]}: {done.stderr.strip()[-200:]}")


@contextmanager
def _sink() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.services.sink"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def shuffling(
    home: Home, store: str, *options: str, program: str = "overhand"
) -> Iterator[Shuffler]:
    """A shuffling service on a store, from its first answer to its orderly end."""
    port, metrics_port = _free_ports(2)
    numbers = ["--port", str(port), "--metrics-port", str(metrics_port)]
    command = [sys.executable, "-m", program, "shuffler", "--server", home.sink]
    with (home.folder / f"shuffler-{port}.log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "--store", store, *numbers, *options],
            cwd=home.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=log,
        )
        try:
            if not _answers(port, process):
                log.seek(0)
                raise Failed(f"the shuffling service did not start: {log.read()[-200:]}")
            yield Shuffler(process.pid, port, metrics_port)
        finally:
            process.terminate()
            process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
            return True
        time.sleep(0.1)
    return False


def settle(shufflers: Sequence[Shuffler]) -> None:
    """Wait until services have nothing left to do: all full batches are sent and scrubbed."""
    processes = [shuffler.process for shuffler in shufflers]
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        before = sum(map(processor.with_children, processes))
        time.sleep(_QUIET)
        used = sum(map(processor.with_children, processes)) - before
        if used <= 0.03 * _QUIET * len(processes):
            return
    raise Failed(f"the shuffling service was busy {_LONGEST:g} s after the last report")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
