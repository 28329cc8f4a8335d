"""What a connection may cost: no endless heads, none that is kept for nothing, clear ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from starlette.responses import Response

from overhand.service.server import events
from overhand.service.web import (
    Receive,
    Reply,
    Scope,
    Send,
    bodies,
    body_of,
)
from support.lines import BINARY, CHUNKED, HEALTH, Port, Role, plan, serve
from support.system import System

UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
LIMIT = 1 << 16


@pytest.fixture(params=["shuffler", "server"])
def role(request: pytest.FixtureRequest, tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), request.param == "shuffler")


@pytest.fixture
def server(tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), is_shuffler=False)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(bodies, "PATIENCE", 0.2)
    return 0.2


LARGE = {"/large": 1 << 24, "/larger than a window": 60_000}


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers that take their time, or come in pieces, or are large."""
    if scope["path"] == "/late":
        await asyncio.sleep(0.1)
    elif scope["path"] in LARGE:
        return await Response(bytes(LARGE[scope["path"]]))(scope, receive, send)
    elif scope["path"] == "/body":
        length = len(await body_of(scope, receive, 1 << 30))
        return await Reply(200, {"length": length})(scope, receive, send)
    elif scope["path"] == "/pieces":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(12):
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})
            await asyncio.sleep(0.125)
        return await send({"type": "http.response.body", "body": b"end"})
    await Reply(200, {})(scope, receive, send)


ENDLESS = {
    "target": (b"GET /", b"a"),
    "name": (HEALTH, b"a"),
    "value": (HEALTH + b"x: ", b"a"),
    "headers": (HEALTH, b"a: b\r\n"),
    "lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_head_without_end_is_refused(role: Role, kind: str) -> None:
    async def test(port: Port) -> None:
        start, more = ENDLESS[kind]
        async with port.line() as line:
            line.say((start + more * LIMIT)[: LIMIT + 1])
            words = f"a request has at most {LIMIT} bytes besides its body, in 100 headers"
            assert await line.answer() == (431, {"error": words})
            assert line.headers["connection"] == "close"
            assert await line.rest() == b""

    role.serve(test)


def test_what_follows_a_body_without_end_is_refused(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line, port.line() as answered:
            line.say(role.upload, CHUNKED, b"1\r\nx\r\n0\r\n", b"a: b\r\n" * (LIMIT // 6))
            assert (await line.answer())[0] == 431
            assert await line.rest() == b""
            answered.say(HEALTH, CHUNKED, b"0\r\n")
            assert (await answered.answer())[0] == 200
            answered.say(b"a: b\r\n" * (LIMIT // 6))
            assert await answered.rest() == b"", "it had its answer"

    role.serve(test)


def test_long_heads_and_longer_bodies_are_taken() -> None:
    async def test(port: Port) -> None:
        piece = b"4000\r\n" + bytes(0x4000) + b"\r\n"
        async with port.line() as line:
            for _ in range(3):
                line.say(HEALTH, b"x: ", b"a" * (LIMIT - 200), b"\r\n\r\n")
                assert (await line.answer())[0] == 200
                line.say(
                    b"PUT /body HTTP/1.1\r\n", BINARY, CHUNKED, piece * 64, b"0\r\nend: yes\r\n\r\n"
                )
                assert await line.answer() == (200, {"length": 1 << 20})

    serve(slow, test)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("path", [b"/healthz", b"/nothing", b"/v1/events"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_who_was_answered_does_not_say_a_body_for_ever(
    role: Role, path: bytes, method: bytes
) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(method, b" ", path, b" HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
            assert (await line.end(drip=b"x")).count(b"HTTP/1.1") == 1
        await port.is_left()

    role.serve(test)


@pytest.mark.usefixtures("patience")
def test_a_body_that_is_late_is_told_so(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, b"content-length: 100\r\n\r\n")
            said = await line.end(drip=b"x")
            assert said.startswith(b"HTTP/1.1 408 ")
            assert said.count(b"HTTP/1.1") == 1
        await port.is_left()

    role.serve(test)


@pytest.mark.usefixtures("patience")
def test_empty_lines_keep_no_connection(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as fresh, port.line() as answered:
            answered.say(HEALTH, b"\r\n")
            assert (await answered.answer())[0] == 200
            ends = await asyncio.gather(*(each.end(b"\r\n") for each in (fresh, answered)))
            assert ends == [b"", b""]

    role.serve(test, keep_alive=0.2)


def test_an_idle_connection_is_kept_for_longer_than_a_message(patience: float) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            for _ in range(2):
                line.say(HEALTH, b"\r\n")
                assert (await line.answer())[0] == 200
                await asyncio.sleep(2 * patience)
        port.server.config.timeout_keep_alive = 0.1
        async with port.line() as line:
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200
            assert await line.rest() == b""

    serve(slow, test, keep_alive=60.0)


def test_a_request_that_has_begun_is_not_idle() -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(HEALTH, b"\r\n", HEALTH)
            assert (await line.answer())[0] == 200
            await asyncio.sleep(0.1)
            line.say(b"\r\n")
            assert (await line.answer())[0] == 200
            await asyncio.sleep(0.02)  # idle, for far less than it may be
            line.say(HEALTH)
            await asyncio.sleep(2.1)
            line.say(b"\r\n")
            assert (await line.answer())[0] == 200

    serve(slow, test, keep_alive=2.0)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("path", LARGE)
@pytest.mark.parametrize("how", ["keep-alive", "close"])
def test_who_does_not_read_is_given_up(path: str, how: str) -> None:
    async def test(port: Port) -> None:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port.number))
        with deaf:
            target = path.replace(" ", "%20")
            deaf.sendall(f"GET {target} HTTP/1.1\r\nconnection: {how}\r\n\r\n".encode())
            async with asyncio.timeout(10):
                while not port.server.server_state.connections:
                    await asyncio.sleep(0.01)
            await port.is_left()

    serve(slow, test, keep_alive=60.0)


def test_an_answer_may_go_on_for_as_long_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 1.0)

    async def test(port: Port) -> None:
        async with port.line() as line, port.line() as second:
            line.say(b"GET /pieces HTTP/1.1\r\nconnection: close\r\n\r\n")
            second.say(b"GET /late HTTP/1.1\r\n\r\nGET /pie")  # the next is begun before its answer
            assert (await second.answer())[0] == 200
            second.say(b"ces HTTP/1.1\r\nconnection: close\r\n\r\n")
            for said in await asyncio.gather(line.rest(), second.rest()):
                assert said.count(b"piece") == 12
                assert said.endswith(b"end\r\n0\r\n\r\n")

    serve(slow, test, keep_alive=1.0)


@pytest.mark.usefixtures("patience")
def test_whoever_listens_may_listen_on(server: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT", 0.05)

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(b"GET /v1/events HTTP/1.1\r\n\r\n")
            for _ in range(12):
                await asyncio.wait_for(line.reader.readuntil(b": still here\n\n"), 10)

    server.serve(test, keep_alive=0.2)


def test_an_offer_to_upgrade_is_passed_over(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            for _ in range(2):
                line.say(HEALTH, UPGRADE, b"\r\n")
                assert (await line.answer())[0] == 200
            line.say((HEALTH + UPGRADE + b"\r\n") * 3)
            assert [(await line.answer())[0] for _ in range(3)] == [200] * 3
            line.say(HEALTH, UPGRADE.replace(b"Upgrade,", b"Upgrade, close,"), b"\r\n")
            assert (await line.answer())[0] == 200
            assert await line.rest() == b""

    role.serve(test)


@pytest.mark.parametrize("start", [b"", b"GET /late HTTP/1.1\r\n\r\n"], ids=["alone", "after"])
def test_bodies_are_read_as_if_nothing_had_been_offered(start: bytes) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(start)
            for _ in range(2):
                line.say(b"PUT /body HTTP/1.1\r\ncontent-length: 9\r\n", BINARY, UPGRADE)
                line.say(b"\r\nfour ")
                await asyncio.sleep(0.02)
                line.say(b"more", HEALTH, b"\r\n")
            answers = [await line.answer() for _ in range(5 if start else 4)]
            assert [said for _, said in answers if said] == [{"length": 9}] * 2

    serve(slow, test)


@pytest.mark.parametrize(
    "said",
    [
        bytes(range(256)),
        HEALTH + b"content-length: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\n\r\n",
        b"CONNECT /healthz HTTP/1.1\r\n\r\n",
        HEALTH + CHUNKED.replace(b"chunked", b"chunked, chunked"),
    ],
    ids=["bytes", "length", "connect", "connect to a path", "coding"],
)
def test_what_is_no_request_is_told_so_and_left(role: Role, said: bytes) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(said)
            assert await line.answer() == (400, {"error": "this is not an HTTP request"})
            assert line.headers["connection"] == "close"
            assert await line.rest() == b""

    role.serve(test)


def test_nothing_is_said_into_an_answer_or_in_place_of_another() -> None:
    nonsense, begun, going_on = b"\0nonsense\r\n\r\n", asyncio.Event(), asyncio.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            begun.set()
            await going_on.wait()
        await slow(scope, receive, send)

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(b"GET /pieces HTTP/1.1\r\n\r\n")
            await line.reader.readuntil(b"piece")
            line.say(nonsense)
            assert b"400" not in await line.rest()
        async with port.line() as line:
            line.say(b"GET /held HTTP/1.1\r\n\r\n")
            await begun.wait()
            line.say(nonsense)
            await port.is_left()
            going_on.set()
            assert await line.rest() == b""

    serve(held, test)


def test_one_connection_too_many_is_told_to_come_back(role: Role) -> None:
    body = role.system.report()
    report = role.upload + f"content-length: {len(body)}\r\n\r\n".encode() + body

    async def test(port: Port) -> None:
        port.server.load.most_connections = 1
        async with port.line() as line:
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200
            async with port.line() as another:
                another.say(report if role.is_shuffler else HEALTH + b"\r\n")
                assert await another.answer() == (503, {"error": "too many connections"})
                assert int(another.headers["retry-after"]) > 0
                assert another.headers["connection"] == "close"
                assert await another.rest() == b""
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200

    role.serve(test)


def test_listeners_leave_room_for_others(server: Role) -> None:
    ask = b"GET /v1/events HTTP/1.1\r\n\r\n"

    async def test(port: Port) -> None:
        port.server.load.most_connections = 8  # a quarter may listen
        async with port.line() as other:
            async with port.line() as one, port.line() as two:
                for listener in (one, two):
                    listener.say(ask)
                    assert await listener.status() == 200
                other.say(ask)
                assert await other.answer() == (503, {"error": "too many listeners"})
                assert int(other.headers["retry-after"]) > 0
                other.say(HEALTH, b"\r\n")
                assert (await other.answer())[0] == 200
            async with asyncio.timeout(10):
                while server.system.server.news.listeners:
                    await asyncio.sleep(0.01)
            other.say(ask)
            assert await other.status() == 200

    server.serve(test)


def test_who_goes_away_in_the_middle_is_no_fault(
    role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, CHUNKED, b"5\r\nOV")
            await asyncio.sleep(0.05)
        await port.is_left()
        await asyncio.sleep(0.02)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    role.serve(test)
