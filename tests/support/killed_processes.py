"""A service as a process of its own that dies, or stops for a while, at a step that a test names.

Processes are forked from one that has imported the package and done nothing else, which is twenty
times quicker than to start an interpreter; apart from that it is `python -m overhand`.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Literal

import httpx

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch

PRELOADED = [
    "overhand.__main__",
    "overhand.cli.services",
    "overhand.deploy.client",
    "overhand.deploy.databases.postgres",
    "overhand.deploy.http.telemetry",
    "overhand.deploy.server.running",
    "overhand.deploy.shuffler.running",
    "uvicorn.protocols.http.httptools_impl",
]
SECONDS = 300.0  # for what takes one or two, however much else the machine does
WEB = httpx.Client(timeout=SECONDS, verify=False)
atexit.register(WEB.close)
_MOST_HELD = 100  # ports, far more than one test uses
_held: deque[socket.socket] = deque()
_LITTLE = 8192  # enough for a log of a test, and less than any commit


@dataclass(frozen=True)
class Kill:
    """`kill -9` before or after the n-th call of a function, `package.module:Class.function`."""

    at: str
    when: Literal["before", "after"] = "before"
    call: int = 1
    since: str | None = None
    """A function before whose first call nothing is counted."""

    def install(self) -> None:
        armed = threading.Event()
        if self.since is None:
            armed.set()
        else:
            owner, name = _found(self.since)
            setattr(owner, name, _telling(getattr(owner, name), armed))
        owner, name = _found(self.at)
        setattr(owner, name, self._around(getattr(owner, name), armed))

    def _around(self, function: Callable[..., Any], armed: threading.Event) -> Callable[..., Any]:
        numbers = itertools.count(1)  # next is one step of the interpreter: threads may share it
        calls = iter(lambda: next(numbers) if armed.is_set() else 0, None)

        def strike(call: int, when: str) -> None:
            if (call, when) == (self.call, self.when):
                self.strike()

        @functools.wraps(function)
        def struck(*args: Any, **options: Any) -> Any:
            call = next(calls)
            strike(call, "before")
            result = function(*args, **options)
            strike(call, "after")
            return result

        @functools.wraps(function)
        async def struck_later(*args: Any, **options: Any) -> Any:
            call = next(calls)
            strike(call, "before")
            result = await function(*args, **options)
            strike(call, "after")
            return result

        return struck_later if inspect.iscoroutinefunction(function) else struck

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Pause(Kill):
    """Stop there instead, until `go_on`; `is_reached` says that it has stopped."""

    file: Path = Path()

    def strike(self) -> None:
        self.file.touch()
        while self.file.exists():
            time.sleep(0.01)

    def is_reached(self) -> bool:
        return self.file.exists()

    def go_on(self) -> None:
        self.file.unlink()


@dataclass(frozen=True)
class Setting:
    """A number of the program that is too patient for tests."""

    at: str
    value: Any

    def install(self) -> None:
        setattr(*_found(self.at), self.value)


Change = Kill | Setting


class OpensHere(Opener):
    """Opens messages without processes of its own, where a test is about something else."""

    def __init__(self, key: KeyPair, digest: bytes, workers: int) -> None:
        super().__init__(key, digest)

    def warm_up(self) -> None:
        """There is nobody to begin."""

    def close(self) -> None:
        """There is nobody to end."""


WITHOUT_WORKERS = Setting("overhand.deploy.server.running:OpenerPool", OpensHere)


def _as_it_is(keys: BatchKeys, name: Batch, own: int, body: bytes) -> bytes:
    return body


_KEYS = "overhand.deploy.databases.batch_keys:BatchKeys"
UNSEALED = (Setting(f"{_KEYS}.seal", _as_it_is), Setting(f"{_KEYS}.open", _as_it_is))
"""A store whose files can be searched for messages, where a test is about what is left in them."""


def fill_disk(pid: int) -> None:
    """A process can write no more than the first bytes of its files: as if its disk were full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_LITTLE, resource.RLIM_INFINITY))


def more_disk(pid: int) -> None:
    """Its files may grow again."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fork(arguments: Sequence[str], folder: Path, log: Path, changes: Sequence[Change]) -> Any:
    """`overhand` with these arguments, in a folder, with changes; what it says goes to `log`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(list(arguments), folder, log, list(changes)))
    process.start()
    return process


def _run(arguments: list[str], folder: Path, log: Path, changes: list[Change]) -> None:
    os.chdir(folder)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Semaphores of a process that is killed are its own tracker's to clean up, not the tests'.
    tracker = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # type: ignore[attr-defined]
    program = importlib.import_module("overhand.__main__")
    sys.modules["__main__"] = program  # what the processes that it spawns take for their program
    sys.argv = ["overhand", *arguments]
    for change in changes:
        change.install()
    program.main()


def _telling(function: Callable[..., Any], called: threading.Event) -> Callable[..., Any]:
    @functools.wraps(function)
    def telling(*args: Any, **options: Any) -> Any:
        called.set()
        return function(*args, **options)

    return telling


def _found(place: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def free_port() -> int:
    """One that nobody else is given: it stays bound here, where nobody listens at it.

    Whoever reuses addresses, as all servers do, may listen there, and again after a crash.
    """
    held = socket.socket()
    atexit.register(held.close)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    if len(_held) > _MOST_HELD:
        _held.popleft().close()
    return int(held.getsockname()[1])


def until(what: str, true: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds:g} seconds: {what}"
        time.sleep(0.05)
    return found


def runs(pid: int) -> bool:
    """Whether a process is there, and not only waiting for somebody to look at how it ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@dataclass
class Service:
    """A process, the log that it writes, and the address that it listens at."""

    process: Any
    log: Path
    url: str

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def get(self, path: str) -> httpx.Response:
        return WEB.get(self.url + path)

    def is_up(self) -> bool:
        assert self.process.is_alive(), f"it ended with {self.process.exitcode}: {self.said()}"
        with closing(socket.socket()) as attempt:
            return not attempt.connect_ex(("127.0.0.1", int(self.url.rpartition(":")[2])))

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def ended(self, seconds: float = SECONDS) -> int:
        """How it ended, by itself."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"it runs on: {self.said()}"
        return int(self.process.exitcode)

    def was_killed(self) -> bool:
        return self.ended() == -signal.SIGKILL

    def tell(self, number: int) -> None:
        os.kill(self.pid, number)

    def stopped(self, number: int = signal.SIGTERM, seconds: float = SECONDS) -> int:
        """How it ends when it is asked to."""
        self.tell(number)
        return self.ended(seconds)

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
