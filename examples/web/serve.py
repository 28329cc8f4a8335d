"""A poll in a web page, and everything behind it: `make web`.

The page (on its own address, with the document's digest in it) reports to a real shuffling service,
which releases batches to a real server; simulated voters fill them. One operator runs both services
here, so users have no protection from that operator: this shows how it works, not that it is safe.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.deploy.client import AsyncClient, NotCounted
from overhand.errors import OverhandError
from overhand.values import values_of

HERE = Path(__file__).parent
CLIENT = HERE.parent.parent / "clients" / "javascript"
CHOICES = ("love", "like", "wow", "sad", "angry")
SHARES = np.array([[0.40, 0.28, 0.14, 0.10, 0.08], [0.24, 0.22, 0.30, 0.10, 0.14]])
"""What the first voters choose, and the last: opinions move."""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
START = 60.0  # seconds


@dataclass(frozen=True)
class Deployment:
    """Where the services listen, and the digest that everybody pins."""

    shuffler: str
    server: str
    digest: str


def poll_plan(horizon: int) -> oh.Plan:
    """The services make the noise: a vote is one message."""
    values = values_of(f"histogram:{','.join(CHOICES)}")
    privacy = oh.Privacy(1.0, 1e-6)
    return oh.Plan.best(horizon, privacy=privacy, values=values, mechanism="services")


@contextlib.contextmanager
def deployed(
    plan: oh.Plan, home: Path, page_port: int, ports: Sequence[int]
) -> Iterator[Deployment]:
    """Both services as processes, until the end of the block. Only this page may report."""
    plan.save(home / "plan.json")
    run = [sys.executable, "-m", "overhand"]
    prepare = [*run, "prepare", "--plan", "plan.json", "--json"]
    prepared = subprocess.run(prepare, cwd=home, stdout=subprocess.PIPE, check=True)
    shuffler, server = (f"http://127.0.0.1:{port}" for port in ports)
    origins = [f"--origin=http://{host}:{page_port}" for host in ("127.0.0.1", "localhost")]
    commands = {
        server: ["server", "--port", str(ports[1])],
        shuffler: ["shuffler", "--server", server, "--port", str(ports[0]), "--tick=0.2", *origins],
    }
    with contextlib.ExitStack() as stack:
        for url, command in commands.items():
            log = stack.enter_context((home / f"{command[0]}.log").open("wb"))
            process = stack.enter_context(
                subprocess.Popen([*run, *command], cwd=home, stdout=log, stderr=log)
            )
            stack.callback(process.terminate)
            wait_for(url, process, Path(log.name))
        yield Deployment(shuffler, server, json.loads(prepared.stdout)["digest"])


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a service answers; what it said if it does not."""
    deadline = time.monotonic() + START
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urlopen(f"{url}/readyz", timeout=5):
            return
        time.sleep(0.1)
    raise OverhandError(f"{url} did not start: {log.read_text(errors='replace')[-500:]}")


def free_ports(count: int) -> list[int]:
    """All different: none is let go before the last is found."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


def votes(count: int) -> list[str]:
    """What so many simulated voters choose, one after the other."""
    random = np.random.default_rng()
    places: NDArray[np.float64] = np.linspace(0.0, 1.0, count)[:, np.newaxis]
    shares = (1 - places) * SHARES[0] + places * SHARES[1]
    drawn = (random.random((count, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    return [CHOICES[min(choice, len(CHOICES) - 1)] for choice in drawn]


async def vote(deployment: Deployment, choices: list[str], rate: float) -> None:
    """Report these choices, each as another person's, so many a second."""
    async with AsyncClient(deployment.shuffler, digest=deployment.digest) as client:
        await client.document()
        started = time.monotonic()
        for place, choice in enumerate(choices):
            await asyncio.sleep(max(0.0, started + place / rate - time.monotonic()))
            await client.report(choice)


def vote_until_closed(deployment: Deployment, choices: list[str], rate: float) -> None:
    """In a thread of its own: visitors may have taken the last places."""
    try:
        asyncio.run(vote(deployment, choices, rate))
    except NotCounted as error:
        print(f"the simulated voters stop: {error}", flush=True)


class Page(BaseHTTPRequestHandler):
    """The page and the client that it loads, and the results, which are public."""

    def __init__(self, deployment: Deployment, *connection: object) -> None:
        self.deployment = deployment
        super().__init__(*connection)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/deployment.json":
            told = {"shuffler": self.deployment.shuffler, "digest": self.deployment.digest}
            told["dashboard"] = self.deployment.server
            self.answer(json.dumps(told).encode(), "application/json")
        elif path == "/results":
            with urlopen(f"{self.deployment.server}/v1/status", timeout=10) as said:
                self.answer(said.read(), "application/json")
        elif (file := file_of(path)) is not None:
            self.answer(file.read_bytes(), f"{TYPES[file.suffix]}; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def answer(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.send_header("cache-control", "no-store")
        self.send_header("content-security-policy", policy(self.deployment.shuffler))
        self.send_header("referrer-policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody needs to know who looked."""


def file_of(path: str) -> Path | None:
    """The file of an address: the page's own, or one that the client is made of."""
    roots = {"client": CLIENT / "src", "modules": CLIENT / "node_modules"}
    first, _, rest = path.lstrip("/").partition("/")
    root, name = (roots[first], rest) if first in roots else (HERE, path.lstrip("/"))
    file = (root / (name or "index.html")).resolve()
    is_served = file.is_relative_to(root.resolve()) and file.suffix in TYPES and file.is_file()
    return file if is_served else None


def policy(shuffler: str) -> str:
    """Scripts of this page alone, and requests to the shuffling service alone."""
    page = (HERE / "index.html").read_text("utf-8")
    (inline,) = re.findall(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' 'sha256-{digest}'",
            "style-src 'self'",
            "img-src data:",
            f"connect-src 'self' {shuffler}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--port", type=int, default=8500, help="of the page; 0 for any")
    options.add_argument("--voters", type=int, default=2000, help="simulated ones")
    options.add_argument("--rate", type=float, default=25.0, help="of their votes, a second")
    options.add_argument("--horizon", type=int, default=5000, help="how many are expected to vote")
    chosen = options.parse_args()
    if not (CLIENT / "node_modules").is_dir():
        sys.exit(f"the client's packages are not there: run npm ci in {CLIENT}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan, (free, *ports) = poll_plan(chosen.horizon), free_ports(3)
    port = chosen.port or free
    with (
        tempfile.TemporaryDirectory() as home,
        deployed(plan, Path(home), port, ports) as deployment,
        ThreadingHTTPServer(("127.0.0.1", port), partial(Page, deployment)) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        told = (deployment, votes(chosen.voters), chosen.rate)
        threading.Thread(target=vote_until_closed, args=told, daemon=True).start()
        print(f"poll: http://127.0.0.1:{port}  dashboard: {deployment.server}", flush=True)
        print(
            "One operator runs both services here: see docs/trust.md. Ctrl-C ends it.", flush=True
        )
        server.serve_forever()


if __name__ == "__main__":
    main()
