"""Services that are attacked, alone and behind the proxies that operators are given."""

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
from pathlib import Path
from typing import Any

import httpx
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair, hash_token, new_token
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.batching import Arrival, OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import HttpTransport
from support.certificates import make_certificates
from support.killed_processes import SECONDS, until
from support.proxies import (
    HONEST,
    Service,
    behind,
    connected,
    refused_requests,
    running,
    sources,
)
from support.small_document import encode_report
from support.small_plans import coin_plan
from support.store_processes import freeze

pytestmark = pytest.mark.slow

TYPE = {"content-type": "application/octet-stream"}
PAGE = "https://poll.example"
ROLES = pytest.mark.parametrize("role", ["shuffler", "server"])
PROXIES = pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with reports of 118 kB and releases of 10.6 MB, and what is prepared for it."""
    folder = tmp_path_factory.mktemp("made")
    coin_plan(oh.RegularTree(1800, (60, 3)), noise_bits=1200).save(folder / "plan.json")
    for words in (["prepare", "--plan", "plan.json"], ["tokens", "--count", "1"]):
        command = [sys.executable, "-m", "overhand", *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    make_certificates(folder)
    return folder


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """The connections of these tests are files of their own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8000:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def report(made: Path) -> bytes:
    document = Document.from_json((made / "document.json").read_text())
    return encode_report(document, 1, oh.secure_random())


def count_one(service: Service, made: Path) -> float:
    """Have an honest report counted, over a new connection; the seconds that took."""
    body, started = report(made), time.monotonic()
    with service.web() as web:
        assert web.post("/v1/reports", content=body, headers=TYPE).status_code == 200
    return time.monotonic() - started


def check_memory(service: Service, before: dict[str, float], most: float) -> None:
    """The service grew by at most so many MB, and is back at what it was.

    Every connection costs nginx some 40 kB of TLS, which it keeps for the next ones.
    """
    grown = {name: round(service.most[name] - size) for name, size in before.items()}
    print(f"MB before {before}, grown by {grown}")
    until("memory is back", lambda: service.memories()["service"] < 1.2 * before["service"])
    assert grown["service"] <= most
    assert grown.get("proxy", 0) <= 400


# --- requests that are refused --------------------------------------------------------------------


@ROLES
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "nginx"])
def test_refused_requests_do_not_fill_memory(
    role: str, is_alone: bool, made: Path, tmp_path: Path
) -> None:
    """Fails if bodies are kept by connections that are over: then it grows with their number."""
    options = ["--tokens", str(made / "client-tokens.sha256")] if role == "shuffler" else []
    with running(role, made, tmp_path, *options) as service:
        if is_alone:
            refuse_many(service, most=128)
        else:
            with behind(service, made, tmp_path):
                refuse_many(service, most=64)
        until("nothing is held", lambda: service.metrics()["overhand_bytes_under_way"] == 0)


def refuse_many(service: Service, most: float) -> None:
    count = int(os.environ.get("OVERHAND_REFUSED", "4500"))
    alone = refused_requests(service, 3, at_once=1, length=230_000)
    assert set(alone) <= {"401", "413"}, "of the many, a busy machine may answer none"
    before = service.memories()
    answers = refused_requests(service, count, at_once=1500, length=230_000)
    print(alone, answers)
    assert set(answers) <= {"401", "429", "413", "503", "502", "cut"}
    with service.web() as web:
        assert web.get("/healthz").status_code == 200
    check_memory(service, before, most)


# --- slow bodies, idle handshakes, many connections, through nginx --------------------------------


@contextmanager
def attacked(
    service: Service, made: Path, count: int, say: bytes, *, is_secured: bool = True
) -> Iterator[list[float]]:
    """So many connections from many addresses that say this; meanwhile, others are served."""
    before, seconds, ends = service.memories(), list[float](), list[socket.socket]()
    for place, source in enumerate(sources(count)):
        with suppress(OSError):
            ends.append(connected(service, source))
            if is_secured and service.trust is not None:
                ends.append(service.trust.wrap_socket(ends.pop(), server_hostname="127.0.0.1"))
            ends[-1].sendall(say)
        if place % (count // 5) == count // 5 - 1:
            service.note()
            seconds.append(count_one(service, made))
    try:
        yield seconds
    finally:
        for end in ends:
            end.close()
    print(f"{len(ends)} connections; others were served within {max(seconds):.2f} s")
    check_memory(service, before, most=64)


def test_thousands_of_slow_bodies_hold_nobody_up(made: Path, tmp_path: Path) -> None:
    length = len(report(made))
    head = f"POST /v1/reports HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n".encode()
    head += b"content-type: application/octet-stream\r\n\r\n"
    with running("shuffler", made, tmp_path) as service, behind(service, made, tmp_path):
        with attacked(service, made, 3500, head + bytes(length - 1)) as seconds:
            assert len(seconds) == 5
        assert service.metrics()["overhand_bytes_under_way"] == 0, "nothing of them got through"


@pytest.mark.parametrize("is_begun", [False, True], ids=["silent", "begun"])
def test_thousands_of_idle_handshakes_hold_nobody_up(
    made: Path, tmp_path: Path, is_begun: bool
) -> None:
    hello = _hello() if is_begun else b""
    with (
        running("shuffler", made, tmp_path) as service,
        behind(service, made, tmp_path),
        attacked(service, made, 6000, hello, is_secured=False) as seconds,
    ):
        assert len(seconds) == 5


def _hello() -> bytes:
    """How a handshake begins."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    one = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        one.do_handshake()
    return out.read()


def test_more_connections_than_files_hold_nobody_up(made: Path, tmp_path: Path) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    with (
        running("shuffler", made, tmp_path, files=1024) as service,
        behind(service, made, tmp_path),
    ):
        with attacked(service, made, 1100, head) as seconds:
            assert len(seconds) == 5
            assert service.metrics()["overhand_store_is_up"] == 1
        assert json.loads(service.log.read_text().splitlines()[0])["connections"] == 864


# --- what a proxy passes on, and what it does not -------------------------------------------------


@PROXIES
def test_pages_and_reports_pass_and_addresses_do_not(made: Path, tmp_path: Path, name: str) -> None:
    with (
        running("shuffler", made, tmp_path, "--origin", PAGE) as service,
        behind(service, made, tmp_path, name),
        service.web() as web,
    ):
        count_one(service, made)
        asked = {"origin": PAGE, "access-control-request-method": "POST"}
        told = web.options("/v1/reports", headers=asked)
        assert (told.status_code, told.headers["access-control-allow-origin"]) == (200, PAGE)
        wrong = web.post("/v1/reports", content=b"x", headers=TYPE | {"origin": PAGE})
        assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, PAGE)
        assert web.get("/nothing").json() == {"error": "no such page"}
        long = {f"x-{place}": "a" * 1000 for place in range(60)}
        assert web.get("/healthz", headers=long).status_code in (400, 431)
        assert web.post("/v1/reports", content=bytes(300_000), headers=TYPE).status_code == 413
        web.get("/healthz", headers={"x-forwarded-for": "203.0.113.7"})
    kept = [
        path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".db")
    ]
    text = b"".join(path.read_bytes() for path in kept if path.name != name)
    assert HONEST.encode() not in text
    assert b"203.0.113.7" not in text


def test_slow_heads_are_cut_off_by_nginx(made: Path, tmp_path: Path) -> None:
    with (
        running("server", made, tmp_path) as service,
        behind(service, made, tmp_path),
        connected(service, HONEST) as end,
        service.trust.wrap_socket(end, server_hostname="127.0.0.1") as line,  # type: ignore[union-attr]
    ):
        line.settimeout(SECONDS)
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        with suppress(ConnectionError):
            assert line.recv(1 << 12)[9:12] in (b"", b"408")


def test_a_foreign_token_for_a_long_release_is_told_through_nginx(
    made: Path, tmp_path: Path
) -> None:
    """10 MB are on their way when the server says no: its operator must hear why."""
    foreign = {"authorization": f"Bearer {new_token()}"} | TYPE
    with running("server", made, tmp_path) as service, behind(service, made, tmp_path):
        for _ in range(5):
            with service.web() as web:
                answer = web.put("/v1/releases/2/0", content=bytes(10_000_000), headers=foreign)
            assert answer.status_code == 401


# --- without a proxy ------------------------------------------------------------------------------


def test_a_hangup_has_the_certificate_read_again(made: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    options = ["--certificate", str(tmp_path / "some.pem")]
    options += ["--certificate-key", str(tmp_path / "some.key")]
    with running("server", made, tmp_path, *options) as service:
        make_certificates(tmp_path)
        service.process.send_signal(signal.SIGHUP)
        service.trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        until("the new certificate is used", service.is_up)
        assert service.events()[-1] == "the certificate was read again"


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


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "nginx"])
def test_a_long_release_arrives_over_a_slow_line(
    made: Path, tmp_path: Path, is_alone: bool
) -> None:
    """10.6 MB at 400 kB/s, at the first attempt: longer than any request has without a length."""
    document = Document.from_json((made / "document.json").read_text())
    level = document.formats.level(2)
    body = document.formats.pack(Release(Batch(2, 0), 0, os.urandom(level.batch_bytes())))

    async def put(port: int, service: Service) -> int:
        url = service.url.replace(str(service.port), str(port))
        token, ca = (made / "token").read_text().strip(), made / "ca.pem"
        transport = HttpTransport(url, token=token, authorities=ca if service.trust else None)
        try:
            return (await transport.request("PUT", "/v1/releases/2/0", body)).status
        finally:
            await transport.close()

    def send(service: Service) -> None:
        started = time.monotonic()
        with slow_line(service.port, 400_000) as port:
            assert asyncio.run(put(port, service)) == 200
        assert time.monotonic() - started > 22

    assert len(body) > 10_500_000
    with running("server", made, tmp_path) as service:
        if is_alone:
            send(service)
        else:
            with behind(service, made, tmp_path):
                send(service)


# --- listeners ------------------------------------------------------------------------------------


def releases(folder: Path) -> list[tuple[str, bytes]]:
    """All of a plan for histograms of 200 buckets, whose files are put here."""
    privacy = oh.Privacy(4.0, 1e-4)
    plan = oh.Plan.best(600, privacy=privacy, values=oh.Histogram(200), mechanism="pairs")
    KeyPair.generate().save(folder / "server.key")
    document = Document(plan, KeyPair.load(folder / "server.key").public_key)
    ServerStore.make_keys(document, folder / "server.db.keys")
    (folder / "document.json").write_text(document.to_json())
    (folder / "token").write_text(token := new_token())
    (folder / "token.sha256").write_text(hash_token(token).hex() + "\n")
    values = plan.values.rows(list(range(200)) * 3)
    bodies = encode_reports(document, values, oh.secure_random())
    noise = OwnNoise.of(document)
    with closing(Store(folder / "store.db", document.formats, noise=noise)) as store:
        store.admit([Arrival.of(document.formats, body) for body in bodies])
        found = [freeze(store, batch) for batch in store.full()]
    return [
        (f"/v1/releases/{level}/{number}", document.formats.pack(one))
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
        counts = dict.fromkeys((connected(server, HONEST) for _ in range(1000)), 0)
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
