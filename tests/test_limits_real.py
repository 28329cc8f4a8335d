"""The limits of services as they are deployed, against as many as are said to be harmless."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import overhand as oh
from overhand.service.protocol import (
    Batch,
    Document,
    KeyPair,
    Release,
    encode_report,
    encode_reports,
    hashed,
    new_token,
)
from overhand.service.shuffler.store import Arrival, Store
from overhand.service.web import HttpTransport
from support.certificates import make_certificates
from support.forked import SECONDS, free_port, until
from support.plans import coin_plan

pytestmark = pytest.mark.slow

BUSY = b"HTTP/1.1 503 "
TYPE = {"content-type": "application/octet-stream"}
BINARY = b"content-type: application/octet-stream\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with reports of 118 kB and releases of 10.6 MB, and what is prepared for it."""
    folder = tmp_path_factory.mktemp("made")
    coin_plan(oh.RegularTree(1800, (60, 3)), noise_bits=1200).save(folder / "plan.json")
    command = [sys.executable, "-m", "overhand", "prepare", "--plan", "plan.json"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    make_certificates(folder)
    return folder


@dataclass
class Service:
    """A service that runs, as its operator sees it."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int
    metrics_port: int

    def memory(self) -> float:
        """Resident, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def computed(self) -> float:
        """Seconds of a processor that it has had: a busy machine does not make them more."""
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        user, system = status.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        lines = httpx.get(url, timeout=SECONDS).text.splitlines()
        pairs = (one.rsplit(maxsplit=1) for one in lines if not one.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def is_up(self) -> bool:
        with suppress(httpx.HTTPError):
            return bool(self.metrics())
        return False

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)


@contextmanager
def running(
    role: str, made: Path, home: Path, *options: str, files: int | None = None
) -> Iterator[Service]:
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
    service = Service(process, log, port, metrics_port)
    try:
        until("it is up", service.is_up)
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """The connections of these tests are files of their own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8000:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def secured(made: Path, is_secured: bool) -> list[str]:
    names = ("--certificate", made / "some.pem", "--certificate-key", made / "some.key")
    return list(map(str, names)) if is_secured else []


# --- a slow line ----------------------------------------------------------------------------------


@contextmanager
def slow_line(port: int, rate: float) -> Iterator[int]:
    """A port from which bytes get on at this rate, at most."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while some := await reader.read(1 << 13):
                writer.write(some)
                await writer.drain()
                await asyncio.sleep(len(some) / rate)
            writer.write_eof()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(carry(reader, back), carry(there, writer))
        finally:
            writer.close()
            back.close()

    ready, ends = threading.Event(), list[Any]()

    async def serve() -> None:
        server = await asyncio.start_server(begin, "127.0.0.1", 0, limit=1 << 13)
        stop = asyncio.Event()
        ends.extend([server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop])
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield ends[0]
    finally:
        ends[1].call_soon_threadsafe(ends[2].set)
        thread.join(SECONDS)


def put(url: str, made: Path, path: str, body: bytes, ca: Path | None) -> tuple[int, float]:
    async def main() -> tuple[int, float]:
        transport = HttpTransport(url, token=(made / "token").read_text().strip(), authorities=ca)
        started = time.monotonic()
        try:
            answer = await transport.request("PUT", path, body)
        finally:
            await transport.close()
        return answer.status, time.monotonic() - started

    return asyncio.run(main())


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
def test_a_long_release_arrives_over_a_slow_line(
    made: Path, tmp_path: Path, is_secured: bool
) -> None:
    """10.6 MB at 400 kB/s, at the first attempt: longer than any request has without a length."""
    document = Document.from_json((made / "document.json").read_text())
    level = document.formats.level(2)
    release = Release(Batch(2, 0), 0, os.urandom(level.batch_bytes()))
    body = document.formats.pack_release(release)
    with (
        running("server", made, tmp_path, *secured(made, is_secured)) as server,
        slow_line(server.port, 400_000) as port,
    ):
        url = f"{'https' if is_secured else 'http'}://127.0.0.1:{port}"
        ca = made / "ca.pem" if is_secured else None
        status, seconds = put(url, made, "/v1/releases/2/0", body, ca)
    print(f"{len(body)} bytes in {seconds:.1f} s")
    assert (len(body) > 10_500_000, status) == (True, 200)
    assert seconds > 22


# --- bytes ----------------------------------------------------------------------------------------


def report(made: Path) -> bytes:
    document = Document.from_json((made / "document.json").read_text())
    return encode_report(document, 1, oh.secure_random())


def counted(service: Service, body: bytes) -> int:
    url = f"http://127.0.0.1:{service.port}/v1/reports"
    return httpx.post(url, content=body, headers=TYPE, timeout=SECONDS).status_code


def test_thousands_that_are_one_byte_short_do_not_fill_memory(made: Path, tmp_path: Path) -> None:
    bodies = [report(made) for _ in range(12)]
    length = len(bodies[0])
    head = b"POST /v1/reports HTTP/1.1\r\nhost: x\r\n" + BINARY
    head += f"content-length: {length}\r\n\r\n".encode()
    with running("shuffler", made, tmp_path) as service:
        assert counted(service, bodies.pop()) == 200
        before, most = service.memory(), 0.0
        ends, seconds = list[socket.socket](), list[float]()
        for number in range(3500):
            ends.append(service.connected())
            ends[-1].sendall(head + bytes(length - 1))
            if number % 350 == 349:
                started = time.monotonic()
                assert counted(service, bodies.pop()) == 200
                seconds.append(time.monotonic() - started)
                most = max(most, service.memory())
        held = service.metrics()["overhand_bytes_under_way"]
        told = sum(_said(end).startswith(BUSY) for end in ends[:3000])
        for end in ends:
            end.close()
        print(
            f"{before:.0f} MB, at most {most:.0f}; {held / 1e6:.1f} MB held; {told} of 3000 told; "
            f"others within {max(seconds):.2f} s"
        )
        assert most - before < 64
        assert held <= 3 << 23
        assert told == 3000
        until("all are gone", lambda: service.metrics()["overhand_connections"] == 0)


def _said(end: socket.socket) -> bytes:
    with suppress(ConnectionError, TimeoutError):
        return end.recv(1 << 12)
    return b""


# --- files ----------------------------------------------------------------------------------------


def test_with_few_files_those_beyond_are_told_and_metrics_answer(
    made: Path, tmp_path: Path
) -> None:
    with running("shuffler", made, tmp_path, files=1024) as service:
        (limits,) = [one for one in service.said() if one["event"] == "limits"]
        ends = [service.connected() for _ in range(1100)]
        assert service.metrics()["overhand_store_is_up"] == 1
        for end in ends:
            with suppress(ConnectionError):  # it was told before it asked
                end.sendall(HEALTH)
        answers = [_said(end)[9:12] for end in ends]
        service.metrics()
        for end in ends:
            end.close()
        served, told = answers.count(b"200"), answers.count(b"503")
        print(f"{limits}; {served} served, {told} told, {1100 - served - told} heard nothing")
        assert limits["open_files"] == 1024
        assert (served, served + told) == (limits["connections"], 1100)
        lines = [one for one in service.said() if one["event"] == "too many connections"]
        assert len(lines) == 1
        until("all are gone", lambda: service.metrics()["overhand_connections"] == 0)
        assert (
            httpx.get(f"http://127.0.0.1:{service.port}/healthz", timeout=SECONDS).status_code
            == 200
        )
    assert [one["event"] for one in service.said()] == [
        "limits",
        "shuffling service started",
        "too many connections",
        "shuffling service stopped",
    ]


# --- handshakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_begun", [False, True], ids=["silent", "begun"])
def test_idle_handshakes_are_gone_in_time(made: Path, tmp_path: Path, is_begun: bool) -> None:
    hello = _hello() if is_begun else b""
    with running("shuffler", made, tmp_path, *secured(made, True)) as service:
        trust = ssl.create_default_context(cafile=made / "ca.pem")
        url = f"https://127.0.0.1:{service.port}/healthz"
        assert httpx.get(url, verify=trust, timeout=SECONDS).status_code == 200
        before, most, under_way = service.memory(), 0.0, 0.0
        ends = list[socket.socket]()
        for number in range(6000):
            ends.append(service.connected())
            with suppress(ConnectionError):
                ends[-1].sendall(hello)
            if number % 1000 == 999:
                most = max(most, service.memory())
                under_way = max(under_way, service.metrics()["overhand_handshakes"])
                assert httpx.get(url, verify=trust, timeout=SECONDS).status_code == 200
        started = time.monotonic()
        until("all are gone", lambda: service.metrics()["overhand_connections"] <= 1, 40)
        seconds = time.monotonic() - started
        until("memory is back", lambda: service.memory() < 1.2 * before)
        after = service.memory()
        for end in ends:
            end.close()
        print(
            f"{under_way:.0f} under way; gone after {seconds:.1f} s; {before:.0f} MB, at most "
            f"{most:.0f}, {after:.0f} in the end"
        )
        assert 0 < under_way <= 1024


def _hello() -> bytes:
    """How a handshake begins."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    one = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        one.do_handshake()
    return out.read()


# --- listeners ------------------------------------------------------------------------------------


def releases(folder: Path) -> list[tuple[str, bytes]]:
    """All of a plan for histograms of 200 buckets, whose files are put here."""
    plan = oh.Plan.best(
        600, 2, oh.Privacy(4.0, 1e-4), values=oh.Histogram(200), mechanism="pairs", tree="regular"
    )
    KeyPair.generate().save(folder / "server.key")
    document = Document(plan, KeyPair.load(folder / "server.key").public_key)
    (folder / "document.json").write_text(document.to_json())
    (folder / "token").write_text(token := new_token())
    (folder / "token.sha256").write_text(hashed(token).hex() + "\n")
    values = plan.values.rows(list(range(200)) * 3)
    bodies = encode_reports(document, values, oh.secure_random())
    with closing(Store(folder / "store.db", document.formats)) as store:
        store.admit([Arrival.of(document.formats, body) for body in bodies])
        found = store.freeze_all(store.full())
    return [
        (f"/v1/releases/{level}/{number}", document.formats.pack_release(one))
        for one in found
        for level, number in [one.batch]
    ]


def hear(counts: dict[socket.socket, int], stopping: threading.Event) -> None:
    """Count the events that each of these is told, until then."""
    event, ends = b"event: estimate", dict.fromkeys(counts, b"")
    with selectors.DefaultSelector() as looking:
        for end in counts:
            end.setblocking(False)
            looking.register(end, selectors.EVENT_READ)
        while not stopping.is_set():
            for key, _ in looking.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                said = ends[key.fileobj] + key.fileobj.recv(1 << 20)
                counts[key.fileobj] += said.count(event)
                ends[key.fileobj] = said[1 - len(event) :]  # it may be the beginning of one


def test_a_thousand_listeners_hold_nobody_up(tmp_path: Path) -> None:
    """While all are told, others are answered after little work, except when it sums."""
    made = releases(tmp_path)
    token = {"authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
    stopping, longest = threading.Event(), list[float]()
    with (
        running("server", tmp_path, tmp_path) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=SECONDS) as web,
        ThreadPoolExecutor(1) as threads,
    ):
        counts = dict.fromkeys((server.connected() for _ in range(1000)), 0)
        for end in counts:
            end.sendall(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
        hearing = threads.submit(hear, counts, stopping)

        def are_told(before: int) -> bool:
            """Whether all were told once more; meanwhile, somebody else asks again and again."""
            until_then = time.monotonic() + 0.3
            while time.monotonic() < until_then:
                started = server.computed()
                assert web.get("/healthz").status_code == 200
                longest[-1] = max(longest[-1], server.computed() - started)
            return min(counts.values()) > before

        for path, body in made[:15]:
            before = min(counts.values())
            longest.append(0.0)
            assert web.put(path, content=body, headers=token | TYPE).status_code == 200
            until("all are told", lambda before=before: are_told(before))  # type: ignore[misc]
        last = web.get("/v1/status").json()["estimate"]
        stopping.set()
        hearing.result(SECONDS)
        for end in counts:
            end.close()
    longest.sort()
    print(
        f"{min(counts.values())} to {max(counts.values())} estimates of {len(json.dumps(last))} "
        f"bytes each; /healthz waited for {longest[len(longest) // 2]:.2f} to {longest[-1]:.2f} s"
    )
    assert longest[len(longest) // 2] < 0.1
