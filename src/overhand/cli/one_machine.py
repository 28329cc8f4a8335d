"""Both services as processes of this machine, for demonstrations."""

from __future__ import annotations

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from overhand.cli.output import console, messages
from overhand.cli.services import prepare
from overhand.cli.settings import without_settings
from overhand.errors import InvalidValue, OverhandError, whole
from overhand.plan import Plan

_NOT_SAFE = (
    "nobody is protected from that operator: this shows how it works, not that it is safe. "
    "See docs/trust.md."
)
TRUST = {
    "users": f"One operator runs both services here, so {_NOT_SAFE}",
    "services": f"One operator runs both services here and makes the noise of both, so {_NOT_SAFE}",
}
TICK = "0.2"
"""Seconds between checks for full batches, and for new rules."""

_START = 120.0
_SETTLE = 120.0


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """What ends this process by a signal ends its services, too, and removes their keys."""

    def leave(signum: int, _: object) -> None:
        sys.exit(128 + signum)

    before = {one: signal.signal(one, leave) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


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
        """Both services, until the end of the block, or until nobody wants to look any more."""
        with stopped_by_signals(), contextlib.ExitStack() as stack:
            home = self.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            services = stack.enter_context(running(plan, home, self.port, **learning))
            if not self.as_json:
                console.print(TRUST[plan.noise_by], style="yellow")
                console.print(f"dashboard: [bold]{services.server}[/]")
            yield services
            is_watched = console.is_terminal and not self.as_json
            if is_watched if self.keep_running is None else self.keep_running:
                messages.print(f"{services.server} stays up; Ctrl-C ends it")
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()


@contextlib.contextmanager
def running(plan: Plan, home: Path, port: int | None, **learning: Any) -> Iterator[Services]:
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
                _started(home, "server", ["server", "--port", str(ports[1])]),
                _started(home, "shuffler", ["shuffler", "--port", str(ports[0]), *sending]),
            ]
            for url, process in zip((server, shuffler), processes, strict=True):
                _wait_for(url, process, home)
        yield Services(shuffler, server, digest)
    finally:
        for process in processes[::-1]:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def _started(home: Path, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    with (home / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "overhand", *arguments],
            cwd=home,
            env=without_settings(os.environ),
            stdout=log,
            stderr=log,
        )


@contextlib.contextmanager
def _free_ports(*wanted: int) -> Iterator[list[int]]:
    """These ports, if they are free, and for 0 any, which nobody else is given in the block.

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
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            fetched(f"{url}/readyz")
            return
        time.sleep(0.1)
    logs = [path.read_text(errors="replace").splitlines()[-1:] for path in home.glob("*.log")]
    raise OverhandError(f"{url} did not start: {' '.join(line for log in logs for line in log)}")


def fetched(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def settled(url: str, users: int) -> dict[str, Any]:
    """The estimate once it covers everybody, and all of its batches have come."""
    deadline = time.monotonic() + _SETTLE
    while time.monotonic() < deadline:
        estimate: dict[str, Any] | None = fetched(f"{url}/v1/status")["estimate"]
        if estimate is not None and estimate["t"] == users and not estimate["fallback"]:
            return estimate
        time.sleep(0.2)
    raise OverhandError(f"the server did not publish the sum of {users} users")
