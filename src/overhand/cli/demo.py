"""`overhand demo`: the whole system on this machine, with a crowd of clients."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.request import urlopen

import numpy as np
import typer
from rich.markup import escape

from overhand.cli import options
from overhand.cli.crowd import gathered
from overhand.cli.options import DEFAULT_DELTA, DEFAULT_EPSILON
from overhand.cli.output import (
    console,
    messages,
    new_table,
    number,
    print_json,
    progress_bar,
    working,
)
from overhand.cli.services import prepare
from overhand.cli.settings import without_settings
from overhand.errors import InvalidValue, OverhandError, whole
from overhand.errors import number as checked_number
from overhand.model import Rows
from overhand.plan import Plan
from overhand.randomness import secure_random
from overhand.values import BITS, Values, values_of

_NOT_SAFE = (
    "nobody is protected from that operator: this shows how it works, not that it is safe. "
    "See docs/trust.md."
)
TRUST = {
    "users": f"One operator runs both services here, so {_NOT_SAFE}",
    "services": f"One operator runs both services here and makes the noise of both, so {_NOT_SAFE}",
}
MOST_MESSAGES = 12
LEAST_USERS = 100
_START = 60.0
_SETTLE = 120.0
_MOST_BARS = 10
_ROUNDINGS = 8


def demo(
    users: Annotated[
        int, options.Whole(help="How many clients report, rounded up to whole batches.")
    ] = 20_000,
    rate: Annotated[
        float | None,
        typer.Option(help="Reports a second at most; as fast as it goes if not given."),
    ] = None,
    shufflers: Annotated[int, options.Whole(help="How many shufflers work at once.")] = 3,
    epsilon: Annotated[float, typer.Option(help="The guarantee's epsilon.")] = DEFAULT_EPSILON,
    delta: options.Delta = DEFAULT_DELTA,
    noise: options.NoiseOption = "users",
    max_messages: Annotated[
        int | None,
        options.Whole(
            help="The most that a client may send.",
            show_default=f"{MOST_MESSAGES} if users make the noise",
        ),
    ] = None,
    values: options.ValuesOption = "bit",
    mechanism: options.MechanismOption = None,
    horizon: Annotated[
        int | None,
        options.Whole(help="How many users the plan serves; those that report if not given."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The dashboard's port; any that is free if not given.", show_default=False
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Keep all files here; a temporary place if not given.")
    ] = None,
    keep_running: Annotated[
        bool | None,
        typer.Option(
            "--keep-running/--stop",
            help="Leave the services and the page up until Ctrl-C, or stop when all are counted.",
            show_default="keep running on a terminal",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Shuffling service, server and dashboard as processes, and a crowd that reports to them.

    Real HTTP, real encryption, two databases. One operator runs both services: a demonstration.
    """
    if rate is not None:
        checked_number("rate", rate, above=0)
    whole("users", users, least=LEAST_USERS)
    if max_messages is None and noise == "users":
        max_messages = MOST_MESSAGES
    wanted = partial(
        Plan.best,
        shufflers=shufflers,
        privacy=options.guarantee(epsilon, delta),
        values=values_of(values),
        max_messages=max_messages,
        mechanism=mechanism,
        noise=cast(Any, noise),
    )
    with working("planning"):
        plan, reporting = _planned(wanted, users, horizon)
    held = _held(plan.values, reporting)
    with _stopped_by_signals(), contextlib.ExitStack() as stack:
        home = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = stack.enter_context(_running(plan, home, port))
        if not as_json:
            console.print(TRUST[plan.noise_by], style="yellow")
            console.print(f"dashboard: [bold]{services.server}[/]")
        with working("clients fetch the plan and check its guarantee"):
            digest = hashlib.sha256((home / "document.json").read_bytes()).hexdigest()
            crowd = stack.enter_context(gathered(services.shuffler, digest, held, rate))
        started = time.perf_counter()
        with progress_bar(f"{reporting:,} clients report", reporting) as advance:
            crowd.report(advance)
        with working("waiting for the last batch"):
            estimate = _settled(services.server, reporting)
        seconds = time.perf_counter() - started
        result = _result(plan.values.total(held), reporting, estimate, seconds)
        result["names"] = plan.values.coordinate_names
        _show(result, plan.horizon, as_json)
        is_watched = console.is_terminal and not as_json
        if is_watched if keep_running is None else keep_running:
            messages.print(f"{services.server} stays up; Ctrl-C ends it")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


def _planned(wanted: Callable[..., Plan], users: int, horizon: int | None) -> tuple[Plan, int]:
    """The plan, and how many users report: whole batches of them, so that all are counted."""
    if horizon is not None:
        plan = wanted(whole("horizon", horizon, least=users))
        return plan, min(users + -users % plan.tree.lowest, horizon - horizon % plan.tree.lowest)
    served, plan = users, wanted(users)
    for _ in range(_ROUNDINGS):
        if served % plan.tree.lowest == 0:
            break
        served += -served % plan.tree.lowest
        plan = wanted(served)
    return plan, served - served % plan.tree.lowest


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
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


@contextlib.contextmanager
def _running(plan: Plan, home: Path, port: int | None) -> Iterator[Services]:
    """Both services as processes, until the end of the block."""
    home.mkdir(parents=True, exist_ok=True)
    plan.save(home / "plan.json")
    with contextlib.redirect_stdout(None):
        prepare(home / "plan.json", home, as_json=True)
    ports = _free_ports(0, 0 if port is None else whole("port", port, least=1, most=65535))
    services = Services(*(f"http://127.0.0.1:{port}" for port in ports))
    shuffling = ["shuffler", "--server", services.server, "--port", str(ports[0]), "--tick", "0.2"]
    processes = []
    try:
        processes = [
            _started(home, "server", ["server", "--port", str(ports[1])]),
            _started(home, "shuffler", shuffling),
        ]
        for url, process in zip((services.server, services.shuffler), processes, strict=True):
            _wait_for(url, process, home)
        yield services
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


def _free_ports(*wanted: int) -> list[int]:
    """These ports, if they are free, and for 0 any."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in wanted]
        for one, port in zip(sockets, wanted, strict=True):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as services do
            try:
                one.bind(("127.0.0.1", port))
            except OSError as error:
                raise InvalidValue(f"--port {port}: {error.strerror}") from error
        return [one.getsockname()[1] for one in sockets]


def _wait_for(url: str, process: subprocess.Popen[bytes], home: Path) -> None:
    """Until a service answers; what it said last if it does not."""
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            _fetched(f"{url}/readyz")
            return
        time.sleep(0.1)
    logs = [path.read_text(errors="replace").splitlines()[-1:] for path in home.glob("*.log")]
    raise OverhandError(f"{url} did not start: {' '.join(line for log in logs for line in log)}")


def _fetched(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _settled(url: str, users: int) -> dict[str, Any]:
    """The estimate once it covers everybody, and all of its batches have come."""
    deadline = time.monotonic() + _SETTLE
    while time.monotonic() < deadline:
        estimate: dict[str, Any] | None = _fetched(f"{url}/v1/status")["estimate"]
        if estimate is not None and estimate["t"] == users and not estimate["fallback"]:
            return estimate
        time.sleep(0.2)
    raise OverhandError(f"the server did not publish the sum of {users} users")


def _held(values: Values, users: int) -> Rows:
    """What the users of the crowd hold."""
    if values == BITS:
        return (np.random.default_rng().random(users) < 0.3).astype(np.uint8)
    return values.uniform(secure_random(), users)


def _result(truth: Any, users: int, estimate: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Of a sum with many coordinates the rms error, and how many of them are within their bands."""
    value, low, high = (np.asarray(estimate[name]) for name in ("value", "low", "high"))
    errors, inside = value - truth, (low <= truth) & (truth <= high)
    return {
        "users": users,
        "truth": np.asarray(truth).tolist(),
        "estimate": estimate["value"],
        "std": estimate["std"],
        "low": estimate["low"],
        "high": estimate["high"],
        "error": float(np.sqrt(np.mean(errors**2)) if errors.shape else errors),
        "within_band": float(np.mean(inside)) if errors.shape else bool(inside),
        "users_per_second": users / seconds,
        "seconds": seconds,
    }


def _bars(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The largest coordinates that have names, and their bands."""
    if result["names"] is None:
        return []
    columns = (result[name] for name in ("names", "estimate", "low", "high"))
    return sorted(zip(*columns, strict=True), key=lambda bar: -bar[1])[:_MOST_BARS]


def _show(result: dict[str, Any], horizon: int, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    users = result["users"]
    is_all = "complete: " if users == horizon else ""
    table = new_table("", f"{is_all}{users:,} of {horizon:,} users")
    if isinstance(result["estimate"], list):
        table.add_row("coordinates of the sum", f"{len(result['estimate']):,}")
        table.add_row("rms error", number(result["error"]))
        table.add_row("standard deviation", number(result["std"]))
        table.add_row("within their 95 % bands", f"{100 * result['within_band']:.3g} %")
        for name, *band in _bars(result):
            table.add_row(escape(name), "{}, {} to {}".format(*map(number, band)))
    else:
        table.add_row("true sum (only the demo knows it)", f"{result['truth']:,.12g}")
        table.add_row("estimate", number(result["estimate"]))
        table.add_row("95 % band", f"{number(result['low'])} to {number(result['high'])}")
        table.add_row("error", number(result["error"]))
    table.add_row("users per second", f"{result['users_per_second']:,.0f}")
    console.print(table)
