"""Services as they are deployed, alone or behind a proxy, and what an attacker sends them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from support.killed_processes import SECONDS, free_port, until

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
HONEST = "127.0.0.2"
"""The address of whoever is to be served while others attack."""


def needed(program: str) -> str:
    """Where a program is; without it a test is skipped, but fails where everything should run."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{program} is not installed")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def family(pid: int) -> list[int]:
    """A process and its children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, listed)]


def memory(pid: int) -> float:
    """Of a process and its children, resident, in MB."""
    total = 0
    for each in family(pid):
        status = Path(f"/proc/{each}/status").read_text()
        total += int(status.split("VmRSS:")[1].split()[0])
    return total / 1000


@dataclass
class Service:
    """A service, as its operator sees it; attackers may only reach the proxy in front."""

    role: str
    process: subprocess.Popen[bytes]
    log: Path
    own_port: int
    metrics_port: int
    proxy: subprocess.Popen[bytes] | None = None
    port: int = 0
    trust: ssl.SSLContext | None = None
    most: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{'https' if self.trust else 'http'}://127.0.0.1:{self.port}"

    def memories(self) -> dict[str, float]:
        found = {"service": memory(self.process.pid)}
        return found if self.proxy is None else found | {"proxy": memory(self.proxy.pid)}

    def note(self) -> None:
        """Remember how large things were at most."""
        for name, size in self.memories().items():
            self.most[name] = max(size, self.most.get(name, 0.0))

    def computed(self) -> float:
        """Seconds of processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        lines = httpx.get(url, timeout=SECONDS).text.splitlines()
        pairs = (one.rsplit(maxsplit=1) for one in lines if not one.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.read_text().splitlines()]

    def web(self, address: str = HONEST) -> httpx.Client:
        way = httpx.HTTPTransport(verify=self.trust or False, local_address=address)
        return httpx.Client(base_url=self.url, transport=way, timeout=SECONDS)

    def is_up(self) -> bool:
        with suppress(httpx.HTTPError), self.web() as web:
            return bool(self.metrics()) and web.get("/healthz").status_code == 200
        return False


@contextmanager
def running(
    role: str, made: Path, home: Path, *options: str, files: int | None = None
) -> Iterator[Service]:
    """A service alone, from its first answer to its orderly end."""
    port, metrics_port = free_port(), free_port()
    words = [role, "--document", made / "document.json", "--port", port]
    words += ["--metrics-port", metrics_port, *options]
    if role == "shuffler":
        words += ["--server", "http://127.0.0.1:9", "--token", made / "token", "--tick", "3600"]
    else:
        words += ["--key", made / "server.key", "--token-hash", made / "token.sha256"]
        words += ["--workers", 1]

    def fewer() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    log = home / f"{role}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "overhand", *map(str, words)],
            cwd=home,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=out,
            stdout=out,
            preexec_fn=fewer,
        )
    service = Service(role, process, log, port, metrics_port, port=port)
    if "--certificate" in options:
        service.trust = ssl.create_default_context(cafile=home / "ca.pem")
    try:
        until("it is up", service.is_up)
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()


@contextmanager
def behind(service: Service, made: Path, home: Path, name: str = "nginx.conf") -> Iterator[Service]:
    """The same service behind a proxy, with the file that operators are given."""
    port = free_port()
    config = adapted(name, service, port, made, home)
    (home / name).write_text(config)
    commands = {
        "nginx.conf": [needed("nginx"), "-p", home, "-c", home / name, "-g", "daemon off;"],
        "haproxy.cfg": [needed("haproxy"), "-db", "-f", home / name],
    }
    with (home / "proxy.log").open("wb") as out:
        proxy = subprocess.Popen(list(map(str, commands[name])), stderr=out, stdout=out)
    try:
        service.proxy, service.port = proxy, port
        service.trust = ssl.create_default_context(cafile=made / "ca.pem")
        until("the proxy is up", service.is_up)
        yield service
    finally:
        proxy.terminate()
        proxy.wait(SECONDS)


def adapted(name: str, service: Service, port: int, made: Path, home: Path) -> str:
    """The operators' file with addresses and paths of this test, and of one half alone."""
    text = (OPERATIONS / name).read_text(encoding="utf-8")
    mark = "# --- the "
    start, *halves = text.split(mark)
    (half,) = (
        one for one in halves if one.startswith(("shuffling", "server")[service.role == "server"])
    )
    text = start + mark + half
    if name == "nginx.conf" and service.role == "shuffler":
        text += "}\n"  # the other half has the end
    (made / "both.pem").write_bytes(
        (made / "some.pem").read_bytes() + (made / "some.key").read_bytes()
    )
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "bind :443": f"bind 127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{service.own_port}",
        "127.0.0.1:8001": f"127.0.0.1:{service.own_port}",
        "pid /run/": f"pid {home}/",
        "http {\n": f"http {{\nclient_body_temp_path {home}/in;\nproxy_temp_path {home}/out;\n",
    }.items():
        text = text.replace(old, new)
    for site in ("shuffle", "sums"):
        text = text.replace(f"ssl crt /etc/ssl/overhand/{site}.pem", f"ssl crt {made}/both.pem")
        text = text.replace(f"/etc/ssl/overhand/{site}", f"{made}/some")
    return text.replace("user www-data;", "user root;" if os.geteuid() == 0 else "")


# --- attackers ------------------------------------------------------------------------------------


def sources(count: int) -> list[str]:
    """Addresses of this machine, few connections each: no limit per address stops them."""
    return [f"127.0.{3 + place % 200}.1" for place in range(count)]


def connected(service: Service, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), SECONDS, (source, 0))


def refused_requests(service: Service, count: int, at_once: int, length: int) -> Counter[str]:
    """So many requests that are refused, each with a body of this length; what was answered.

    In turns: one without a token, one of the wrong type, one in chunks.
    """
    body, answers = os.urandom(length), Counter[str]()
    path = b"POST /v1/reports" if service.role == "shuffler" else b"PUT /v1/releases/1/0"
    head = path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: "
    announced = b"content-length: %d\r\n\r\n" % length + body
    chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % length + body + b"\r\n0\r\n\r\n"
    binary = b"application/octet-stream\r\n"
    requests = [
        head + binary + announced,
        head + b"text/plain\r\n" + announced,
        head + binary + chunked,
    ]

    async def one(request: bytes, source: str, gate: asyncio.Semaphore) -> None:
        async with gate:
            options: Any = {"ssl": service.trust} if service.trust else {}
            said = b""
            with suppress(OSError, TimeoutError):  # it may be cut off
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", service.port, local_addr=(source, 0), **options
                )
                writer.write(request)
                with suppress(OSError, TimeoutError):
                    said = await asyncio.wait_for(reader.read(1 << 12), SECONDS)
                writer.transport.abort()
            answers[said[9:12].decode() or "cut"] += 1

    async def main() -> None:
        gate, tasks = asyncio.Semaphore(at_once), list[asyncio.Task[None]]()
        for place, source in enumerate(sources(count)):
            tasks.append(asyncio.create_task(one(requests[place % 3], source, gate)))
        pending: set[asyncio.Task[None]] = set(tasks)
        while pending:
            service.note()
            _, pending = await asyncio.wait(pending, timeout=0.1)
        await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    return answers
