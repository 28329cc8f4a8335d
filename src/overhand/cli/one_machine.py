"""Both services and a crowd of clients as processes of this machine, for demonstrations."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import joblib
import numpy as np

from overhand.cli import options
from overhand.cli.output import console, messages
from overhand.cli.services import prepare
from overhand.cli.settings import without_settings
from overhand.errors import InvalidValue, OverhandError, whole
from overhand.model import Counts, Floats, Rows
from overhand.planning import Plan

if TYPE_CHECKING:
    from overhand.deploy.client import AsyncRecommenderClient

_TRUST = (
    "One operator runs both services here{}, so that operator could learn every value: this shows "
    "how it works, not that it is safe. See docs/trust.md."
)
TICK = "0.2"  # seconds between checks for full batches, and for new policies
MAX_AGE = 0.1  # seconds for which a policy is used: these people come faster than others

_START = 120.0
_SETTLE = 120.0
_AT_ONCE = 64
_TOLD_EVERY = 0.1  # seconds
_GROUP = 32  # people who choose by the same policy
_LEARNT = 0.75  # of the people before a group: from so many its policy has learnt,
_MISSING = 3  # or from all but so many batches


# --- services -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Services:
    """Where the two services listen."""

    shuffler: str
    server: str
    digest: str
    """Of their document."""


@dataclass(frozen=True)
class Stage:
    """Where a demonstration takes place, and whether its page stays up in the end."""

    port: int | None
    directory: Path | None
    keep_running: bool | None
    as_json: bool

    @contextlib.contextmanager
    def set_up(self, plan: Plan, **learning: Any) -> Iterator[Services]:
        """Both services, until the end of the block, or until Ctrl-C if the page stays up."""
        with _exit_on_signals(), contextlib.ExitStack() as stack:
            home = self.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            services = stack.enter_context(run_services(plan, home, self.port, **learning))
            if not self.as_json:
                console.print(options.describe_trust(plan), highlight=False)
                own = " and makes the noise of both" if plan.noise_by == "services" else ""
                console.print(_TRUST.format(own), style="yellow")
                console.print(f"dashboard: [bold]{services.server}[/]")
            yield services
            is_watched = console.is_terminal and not self.as_json
            if is_watched if self.keep_running is None else self.keep_running:
                messages.print(f"{services.server} stays up; Ctrl-C ends it")
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """What ends this process by a signal ends its services, too, and removes their keys."""

    def leave(signum: int, _: object) -> None:
        sys.exit(128 + signum)

    with contextlib.ExitStack() as stack:
        for one in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, one, signal.signal(one, leave))
        yield


@contextlib.contextmanager
def run_services(plan: Plan, home: Path, port: int | None, **learning: Any) -> Iterator[Services]:
    """Both services as processes, until the end of the block.

    `learning` is what `prepare` is told of a recommender.
    """
    home.mkdir(parents=True, exist_ok=True)
    plan.save(home / "plan.json")
    with contextlib.redirect_stdout(None):
        prepare(plan_file=home / "plan.json", directory=home, **learning, as_json=True)
    digest = hashlib.sha256((home / "document.json").read_bytes()).hexdigest()
    wanted = 0 if port is None else whole("port", port, least=1, most=65535)
    processes = []
    try:
        with _free_ports(0, wanted) as ports:
            shuffler, server = (f"http://127.0.0.1:{port}" for port in ports)
            sending = ["--server", server, "--tick", TICK]
            processes = [
                _start(home, "server", "--port", str(ports[1])),
                _start(home, "shuffler", "--port", str(ports[0]), *sending),
            ]
            for url, process in zip((server, shuffler), processes, strict=True):
                _wait_for(url, process, home)
        yield Services(shuffler, server, digest)
    finally:
        for process in processes[::-1]:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def _start(home: Path, service: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (home / f"{service}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "overhand", service, *arguments],
            cwd=home,
            env=without_settings(os.environ),
            stdout=log,
            stderr=log,
        )


@contextlib.contextmanager
def _free_ports(*wanted: int) -> Iterator[list[int]]:
    """These ports, if they are free, and for 0 any: no other program gets them in the block.

    A socket that does not listen keeps a port for the services, and only on Linux not from them.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in wanted]
        for one, port in zip(sockets, wanted, strict=True):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as services do
            try:
                one.bind(("127.0.0.1", port))
            except OSError as error:
                raise InvalidValue(f"--port {port}: {error.strerror}") from error
        ports = [one.getsockname()[1] for one in sockets]
        if sys.platform != "linux":
            stack.close()
        yield ports


def _wait_for(url: str, process: subprocess.Popen[bytes], home: Path) -> None:
    """Until a service answers; what it said last if it does not."""
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            fetch(f"{url}/readyz")
            return
        time.sleep(0.1)
    logs = [path.read_text(errors="replace").splitlines()[-1:] for path in home.glob("*.log")]
    raise OverhandError(f"{url} did not start: {' '.join(line for log in logs for line in log)}")


def fetch(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def await_estimate(url: str, users: int) -> dict[str, Any]:
    """The estimate once it covers everybody, and all of its batches have come."""
    deadline = time.monotonic() + _SETTLE
    while time.monotonic() < deadline:
        estimate: dict[str, Any] | None = fetch(f"{url}/v1/status")["estimate"]
        if estimate is not None and estimate["t"] == users and not estimate["fallback"]:
            return estimate
        time.sleep(0.2)
    raise OverhandError(f"the server did not publish the sum of {users} users")


# --- clients --------------------------------------------------------------------------------------

Member = Callable[[Connection], Coroutine[Any, Any, None]]
"""What a process of clients does, with a pipe to the crowd.

It sends None when it is ready, waits for a word, sends its progress, and None again.
"""


@contextlib.contextmanager
def gather(members: Sequence[Member]) -> Iterator[Callable[[Callable[[Any], object]], None]]:
    """Processes of clients that have fetched and checked the document.

    Yields what lets them do what they came for; it is told where to send their progress.
    """
    context, pipes = get_context("spawn"), list[Connection]()

    def go(hear: Callable[[Any], object]) -> None:
        for pipe in pipes:
            pipe.send("go")
        at_work = set(pipes)
        while at_work:
            for pipe in at_work.intersection(wait(at_work)):
                if (progress := _receive(pipe)) is None:
                    at_work.remove(pipe)
                else:
                    hear(progress)

    with contextlib.ExitStack() as stack:
        for member in members:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_member, args=(member, theirs), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.terminate)
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe)
        yield go


def _receive(pipe: Connection) -> Any:
    """A process's progress; None at the beginning and at the end."""
    try:
        progress = pipe.recv()
    except EOFError:
        raise OverhandError("a process of clients died") from None
    if isinstance(progress, str):
        raise OverhandError(f"a client failed: {progress}")
    return progress


def _run_member(member: Member, pipe: Connection) -> None:
    """One process of clients; what goes wrong it sends in words."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(member(pipe))
        except OverhandError as error:
            pipe.send(str(error))


def reporters(url: str, digest: str, rows: Rows, rate: float | None) -> list[Member]:
    """Clients that hold one value each, and report it once; they send how many are counted.

    They know the document's digest before, and take no other.
    """
    processes = max(1, min(joblib.cpu_count(), len(rows)))
    each = None if rate is None else rate / processes
    return [partial(_report, url, digest, some, each) for some in np.array_split(rows, processes)]


async def _report(url: str, digest: str, rows: Rows, rate: float | None, pipe: Connection) -> None:
    from overhand.deploy.client import AsyncClient

    waiting, told = 0, time.monotonic()

    def add(counted: int, *, is_last: bool = False) -> None:
        nonlocal waiting, told
        waiting += counted
        if waiting and (is_last or time.monotonic() - told >= _TOLD_EVERY):
            pipe.send(waiting)
            waiting, told = 0, time.monotonic()

    async with AsyncClient(url, digest=digest) as client:
        await client.document()
        pipe.send(None)
        pipe.recv()
        started = time.monotonic()
        step = len(rows) if rate is None else max(1, round(rate / 4))
        for start in range(0, len(rows), step):
            due = started if rate is None else started + start / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await client.report_rows(rows[start : start + step], at_once=_AT_ONCE, advance=add)
        add(0, is_last=True)
        pipe.send(None)


def visitors(
    url: str, digest: str, features: Floats, means: Floats, uniforms: Floats
) -> list[Member]:
    """People who come in this order, are offered arms of these features, and report once each.

    A reward is 1 if a person's uniform is below the mean of the arm that was chosen. They send who
    came, and which arms they took.
    """
    processes = max(1, min(joblib.cpu_count(), len(features)))
    everybody = np.arange(len(features))
    return [
        partial(_visit, url, digest, processes, some, features[some], means[some], uniforms[some])
        for some in (everybody[first::processes] for first in range(processes))
    ]


async def _visit(
    url: str,
    digest: str,
    processes: int,
    people: Counts,
    features: Floats,
    means: Floats,
    uniforms: Floats,
    pipe: Connection,
) -> None:
    """A few at a time, by a policy that has learnt from most of those before them.

    They would come faster than policies do, and how fast depends on the machine: so they wait.
    """
    from overhand.deploy.client import AsyncRecommenderClient

    async with AsyncRecommenderClient(url, digest=digest, max_age=MAX_AGE) as client:
        block = min((await client.document()).plan.tree.sizes)
        pipe.send(None)
        pipe.recv()
        for start in range(0, len(people), _GROUP):
            before, group = processes * start, slice(start, start + _GROUP)
            await _await_policy(client, min(_LEARNT * before, before - _MISSING * block))
            arms = await client.choose_many(features[group])
            chosen = means[group][np.arange(len(arms)), arms]
            await client.report_many(uniforms[group] < chosen, at_once=_GROUP)
            pipe.send((people[group], arms))
        pipe.send(None)


async def _await_policy(client: AsyncRecommenderClient, users: float) -> None:
    """Wait for a policy that has learnt from so many users."""
    deadline = time.monotonic() + _SETTLE
    while users > 0 and ((signed := await client.policy()) is None or signed.policy.t < users):
        if time.monotonic() > deadline:
            raise OverhandError(f"the server published no policy of {users:,.0f} users")
        await asyncio.sleep(MAX_AGE)
