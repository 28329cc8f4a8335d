"""Requests over HTTP: whatever the other side says, and however slowly, there is an end to it."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NoReturn

import aiohttp
import pytest

from overhand.deploy import transport
from overhand.deploy.client import (
    AsyncClient,
    AsyncRecommenderClient,
    Client,
    Outdated,
    RecommenderClient,
)
from overhand.deploy.transport import Answer, HttpTransport, Unreachable
from overhand.errors import InvalidValue
from support.scripted_shuffler import COUNTED

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_EMPTY = b"Content-Length: 0\r\n\r\n"


def asked(serve: Conversation, body: bytes = b"x") -> Answer:
    """What the transport makes of a server, which is given far longer than it should take."""

    async def main() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        one = HttpTransport(f"http://127.0.0.1:{port}")
        try:
            return await asyncio.wait_for(one.request("PUT", "/v1/releases/1/0", body), 10)
        finally:
            await one.close()
            server.close()

    return asyncio.run(main())


def saying(answer: bytes) -> Conversation:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return serve


def dripping(start: bytes, drop: bytes) -> Conversation:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        try:
            while not writer.is_closing():
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            pass  # nobody listens any more
        finally:
            writer.close()

    return serve


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0", 0.0),
        ("007", 7.0),
        ("9" * 400, transport._LONGEST_RETRY),
        ("9" * 5000, transport._LONGEST_RETRY),
        ("²", 0.0),
        ("٣", 0.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("1e9", 0.0),
        ("inf", 0.0),
        ("", 0.0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 0.0),
    ],
)
def test_a_wait_is_a_number_of_seconds_or_none(said: str, seconds: float) -> None:
    head = f"HTTP/1.1 503 later\r\nRetry-After: {said}\r\n".encode()
    assert asked(saying(head + _EMPTY)) == Answer(503, b"", seconds)


def test_an_answer_may_be_odd() -> None:
    assert asked(saying(b"HTTP/1.1 999 x\r\n" + _EMPTY)).status == 999
    assert asked(saying(b"HTTP/1.1 307 x\r\nLocation: http://[\r\n" + _EMPTY)).status == 307


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 x\r\n" + _EMPTY,
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n" + _EMPTY,
    ],
    ids=["nothing", "noise", "status", "length", "cut", "chunks", "gzip", "header"],
)
def test_what_is_no_answer_is_none(answer: bytes) -> None:
    with pytest.raises(Unreachable, match=r"from http://127\.0\.0\.1"):
        asked(saying(answer))


def test_an_answer_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(*_: object, **__: object) -> NoReturn:
        raise ValueError("a header of another sort than I thought")

    monkeypatch.setattr(aiohttp.ClientSession, "request", trip)
    with pytest.raises(Unreachable, match="ValueError"):
        asked(saying(b""))


def test_an_answer_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_MOST_ANSWER_BYTES", 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    assert len(asked(saying(head % 1000 + bytes(1000))).body) == 1000
    with pytest.raises(Unreachable, match="more than 1000 bytes"):
        asked(saying(head % 1001 + bytes(1001)))


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["head", "body", "continue"],
)
def test_an_answer_that_drips_is_given_up(
    monkeypatch: pytest.MonkeyPatch, start: bytes, drop: bytes
) -> None:
    monkeypatch.setattr(transport, "_PATIENCE", 0.2)
    with pytest.raises(Unreachable, match="Timeout"):
        asked(dripping(start, drop))


def test_a_long_body_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 1 << 19

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(length)
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\n" + _EMPTY)
        writer.close()

    monkeypatch.setattr(transport, "_PATIENCE", 0.1)
    monkeypatch.setattr(transport, "SLOWEST_LINE", length // 8)
    assert asked(slow, bytes(length)).status == 200


def test_a_host_that_is_not_there_is_said_to_be_none() -> None:
    async def main() -> Answer:
        one = HttpTransport("https://nowhere.invalid")
        try:
            return await one.request("GET", "/v1/document")
        finally:
            await one.close()

    with pytest.raises(Unreachable, match="there is no host nowhere.invalid"):
        asyncio.run(main())


OTHER_MACHINES = (
    "sums.example",
    "sums.example:8001/behind",
    "server",
    "192.168.0.7",
    "10.127.0.1",
    "128.0.0.1",
    "0.0.0.0",
    "127.0.0.1.evil.example",
    "127.evil.example",
    "127.0.0.999",  # a name, for want of an address
    "localhost.evil.example",
    "evil.example/localhost",
    "notlocalhost",
    "evil.example\\.localhost",
    "evil.example%2f.localhost",
    "[::2]",
    "[fe80::1]",
    "[::ffff:10.0.0.1]",
    "[2001:db8::7f00:1]",
    # These may be this machine, and parsers differ about them.
    "127.1",
    "0x7f.1",
    "2130706433",
    "127.0.0.1.",
    "127.0.0.01",
    "localhost.",
    ".localhost",
    "sums.localhost",  # some systems ask the network for it
    "\N{CIRCLED LATIN SMALL LETTER L}ocalhost",
    "[::1%25lo]",
)
THIS_MACHINE = (
    "localhost",
    "LocalHost:8001/behind/",
    "127.0.0.1",
    "127.255.3.4:8001",
    "[::1]:8001",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::FFFF:7f00:1]",
)


@pytest.mark.parametrize("host", OTHER_MACHINES)
def test_http_to_another_machine_is_refused_unless_it_is_insecure(host: str) -> None:
    words = rf"{re.escape(repr(f'http://{host}'))} is another machine.* https://.*insecure=True"
    with pytest.raises(InvalidValue, match=words):
        HttpTransport(f"http://{host}")
    HttpTransport(f"http://{host}", insecure=True)
    HttpTransport(f"https://{host}")


@pytest.mark.parametrize("host", THIS_MACHINE)
def test_http_on_this_machine_is_not_refused(host: str) -> None:
    HttpTransport(f"http://{host}")


def test_what_only_begins_as_this_machine_is_no_address_at_all() -> None:
    for host in (
        "127.0.0.1@evil.example",
        "localhost:80@evil.example",
        "localhost:80:evil.example",
    ):
        with pytest.raises(InvalidValue, match="is not an address"):
            HttpTransport(f"http://{host}", insecure=True)
    for host in ("[::1]evil.example", "x[::1]"):  # which some versions of Python take for one
        with pytest.raises(InvalidValue):
            HttpTransport(f"http://{host}")


@pytest.mark.parametrize("made", [AsyncClient, Client, AsyncRecommenderClient, RecommenderClient])
def test_no_client_sends_anything_in_the_clear_unless_it_is_insecure(
    made: Callable[..., object], looked_up: list[str]
) -> None:
    with pytest.raises(InvalidValue, match="is another machine"):
        made("http://sums.example", token="t" * 43)
    assert looked_up == []
    made("http://sums.example", token="t" * 43, insecure=True)


class OneRequest(BaseHTTPRequestHandler):
    """Says that the line stays open, and closes it once that was heard."""

    protocol_version = "HTTP/1.1"
    statuses: ClassVar[list[int]] = []
    is_heard: ClassVar[threading.Event]
    is_closed: ClassVar[threading.Event]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.statuses.pop(0))
        self.send_header("content-length", str(len(COUNTED.body)))
        self.end_headers()
        self.wfile.write(COUNTED.body)
        self.wfile.flush()
        self.is_heard.wait(20)
        self.close_connection = True

    def finish(self) -> None:
        super().finish()
        self.request.shutdown(socket.SHUT_RDWR)
        self.is_closed.set()

    def log_message(self, *_: object) -> None:
        pass


def test_a_line_that_was_closed_between_calls_is_not_used() -> None:
    """Or a refusal would not be certain: the report might have been counted before."""
    OneRequest.statuses = [200, 409]
    OneRequest.is_heard, OneRequest.is_closed = threading.Event(), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), OneRequest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            client.send(b"first")
            OneRequest.is_heard.set()
            assert OneRequest.is_closed.wait(20)  # the line ends while nobody looks
            with pytest.raises(Outdated):
                client.send(b"second")
        server.shutdown()


class Heard(BaseHTTPRequestHandler):
    """Remembers the headers of every request."""

    headers_of: ClassVar[dict[str, set[str]]] = {}

    def do_GET(self) -> None:
        self.headers_of[self.command] = {name.lower() for name in self.headers}
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_a_token_goes_with_bodies_alone() -> None:
    async def main(port: int) -> None:
        line = HttpTransport(f"http://127.0.0.1:{port}", token="t" * 43)
        await line.request("GET", "/v1/document")
        await line.request("POST", "/v1/reports", b"a report")
        await line.close()

    with ThreadingHTTPServer(("127.0.0.1", 0), Heard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asyncio.run(main(server.server_port))
        server.shutdown()
    assert {"authorization", "content-type"} <= Heard.headers_of["POST"]
    assert not {"authorization", "content-type"} & Heard.headers_of["GET"]
