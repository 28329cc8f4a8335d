"""Limits that hold: on time, bytes, heads, files, connections and handshakes."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from overhand.service.protocol import hashed
from overhand.service.web import (
    CannotListen,
    Listener,
    Load,
    bodies,
    handshakes,
    limits,
    load,
)
from support.certificates import make_certificates
from support.lines import BINARY, HEALTH, Line, Port, Role, plan
from support.system import System

CLIENT = "c" * 43
SECURED = pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])


@pytest.fixture(params=["shuffler", "server"])
def role(request: pytest.FixtureRequest, tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), request.param == "shuffler")


@pytest.fixture
def shuffler(tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), is_shuffler=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_certificates(folder := tmp_path_factory.mktemp("certificates"))
    return folder


def secured(folder: Path) -> Listener:
    return Listener("127.0.0.1", 0, folder / "some.pem", folder / "some.key")


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "ca.pem")


def foreign_report(role: Role) -> bytes:
    """As long as a report, and of another plan: it is refused without being stored."""
    return b"OVH2" + bytes(role.system.document.formats.report_length - 4)


def head(role: Role, length: int) -> bytes:
    return role.upload + f"content-length: {length}\r\n\r\n".encode()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


# --- time -----------------------------------------------------------------------------------------


@SECURED
def test_a_body_may_take_as_long_as_the_slowest_line_does(
    role: Role, is_secured: bool, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer: fails if either of the two watches goes by the fixed time alone."""
    body = foreign_report(role)
    options = {"ssl": trusting(certificates)} if is_secured else {}

    async def say(line: Line, parts: int, longer: float) -> tuple[int, float]:
        """Parts of ten, each after a while: beyond the fixed time, so many seconds are given."""
        with monkeypatch.context() as patch:  # who connects has the usual time to begin
            patch.setattr(bodies, "PATIENCE", 0.1)
            patch.setattr(bodies, "SLOWEST_LINE", len(body) / longer)
            line.say(head(role, len(body)))
            started = time.monotonic()
            for part in range(parts):
                line.say(body[part * len(body) // 10 : (part + 1) * len(body) // 10])
                await asyncio.sleep(0.02)
            return (await line.answer())[0], time.monotonic() - started

    async def test(port: Port) -> None:
        async with port.line(**options) as slow:
            assert (await say(slow, 10, longer=30))[0] == (409 if role.is_shuffler else 400)
        async with port.line(**options) as slower:
            late, seconds = await say(slower, 9, longer=1)
            assert late == 408
            assert seconds > 1.0

    role.serve(test, listener=secured(certificates) if is_secured else None)


def test_no_length_that_nobody_takes_is_waited_for(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever announces an endless body would keep a connection for ever."""
    monkeypatch.setattr(bodies, "PATIENCE", 0.1)

    async def test(port: Port) -> None:
        async with port.line() as line, asyncio.timeout(30):
            line.say(b"GET /v1/events HTTP/1.1\r\ncontent-length: 99999999999999\r\n\r\n")
            await line.end(drip=b"x")
            assert port.server.load.bytes == 0

    role.serve(test)


# --- tokens ---------------------------------------------------------------------------------------


@SECURED
@pytest.mark.parametrize("is_shuffler", [True, False], ids=["shuffler", "server"])
def test_a_stranger_is_told_so_before_its_body(
    tmp_path: Path, is_shuffler: bool, is_secured: bool, certificates: Path
) -> None:
    """Only the head was sent when the answer comes; and who goes on hears it all the same."""
    role = Role(System(tmp_path, plan(), frozenset([hashed(CLIENT)])), is_shuffler)
    ask = b"POST /v1/reports" if is_shuffler else b"PUT /v1/releases/1/0"
    options = {"ssl": trusting(certificates)} if is_secured else {}

    def asked(length: int, token: str) -> bytes:
        authorization = f"authorization: {token}\r\n" if token else ""
        lines = f" HTTP/1.1\r\n{authorization}content-length: {length}\r\n"
        return ask + lines.encode() + BINARY + b"\r\n"

    async def test(port: Port) -> None:
        for token in ("", "Bearer " + "x" * 43, "Basic " + CLIENT):
            async with port.line(**options) as line:
                line.say(asked(role.system.document.formats.report_length, token))
                assert (await line.answer())[0] == 401
                assert line.headers["connection"] == "close"
                assert await line.rest() == b""
        async with port.line(**options) as line:
            line.say(asked(1 << 20, ""), bytes(1 << 19))
            await asyncio.sleep(0.02)
            line.say(bytes(1 << 19))
            assert (await line.answer())[0] == 401
        await until(lambda: port.server.load.connections == 0)
        assert port.server.load.bytes == 0

    role.serve(test, listener=secured(certificates) if is_secured else None)


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [False, True], ids=["the short way", "the ordinary way"])
def test_who_has_been_sending_for_longest_makes_room(shuffler: Role, is_chunked: bool) -> None:
    body = foreign_report(shuffler)
    length = f"{len(body):x}\r\n" if is_chunked else ""
    start = (
        shuffler.upload + b"transfer-encoding: chunked\r\n\r\n" + length.encode()
        if is_chunked
        else head(shuffler, len(body))
    )

    async def test(port: Port) -> None:
        held = port.server.load
        held.most_bytes = 4 * (len(start) + len(body))
        refused = shuffler.system.metrics.refused.labels(503)._value.get
        async with AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(port.line()) for _ in range(12)]
            for number, line in enumerate(slow, start=1):
                line.say(start, body[:-1])
                await until(lambda number=number: len(held.coming) + refused() == number)  # type: ignore[misc]
            assert 0 < held.bytes <= held.most_bytes
            for line in slow[:8]:
                assert await line.answer() == (503, {"error": "too much is under way"})
                assert int(line.headers["retry-after"]) > 0
                assert await line.rest() == b""
            other = await stack.enter_async_context(port.line())
            for _ in range(10):
                other.say(head(shuffler, len(body)), body)
                assert (await other.answer())[0] == 409
            slow[-1].say(body[-1:], b"\r\n0\r\n\r\n" if is_chunked else b"")
            assert (await slow[-1].answer())[0] == 409
        await until(lambda: held.connections == 0)
        assert (held.bytes, held.coming) == (0, {})

    shuffler.serve(test)


def test_what_waits_to_be_stored_counts_and_is_not_dropped(shuffler: Role) -> None:
    """Nobody commits here. Fails if a whole report is no longer counted, or is dropped."""
    body = shuffler.system.report()

    async def test(port: Port) -> None:
        held = port.server.load
        held.most_bytes = 3 * len(body) + len(head(shuffler, len(body)))
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(port.line()) for _ in range(4)]
            for line in lines[:3]:
                line.say(head(shuffler, len(body)), body)
            await until(lambda: held.bytes == 3 * len(body))
            lines[3].say(head(shuffler, len(body)), body)
            assert (await lines[3].answer())[0] == 503
            for line in lines:
                line.writer.transport.abort()
        await until(lambda: held.connections == 0)
        assert held.bytes == 3 * len(body)
        committing = asyncio.create_task(shuffler.system.admission.run())
        await until(lambda: held.bytes == 0)
        shuffler.system.admission.close()
        await committing

    shuffler.serve(test)


def test_what_comes_behind_an_answered_request_counts(shuffler: Role) -> None:
    """In the same packet: fails if the end of a request gives back more than was of it."""
    body = foreign_report(shuffler)
    whole = head(shuffler, len(body)) + body

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(whole, whole[:-1])
            assert (await line.answer())[0] == 409
            assert port.server.load.bytes >= len(whole) - 1
            line.say(whole[-1:])
            assert (await line.answer())[0] == 409
            assert port.server.load.bytes == 0
            line.say(HEALTH, b"\r\n", HEALTH, b"x: ", bytes(30_000).replace(b"\0", b"a"))
            assert (await line.answer())[0] == 200
            assert port.server.load.bytes >= 30_000
            line.say(b"\r\n\r\n")
            assert (await line.answer())[0] == 200
            await until(lambda: port.server.load.bytes == 0)

    shuffler.serve(test)


def test_nobody_says_more_than_a_request_without_a_pause(shuffler: Role) -> None:
    async def test(port: Port) -> None:
        most = port.server.load.most_held
        async with port.line() as line:
            line.say(b"GET /nothing HTTP/1.1\r\ncontent-length: 9999999\r\n\r\n")
            assert (await line.answer())[0] == 404
            line.say(bytes(2 * most))
            assert await line.rest() == b""
            assert port.server.load.bytes == 0

    shuffler.serve(test)


# --- heads ----------------------------------------------------------------------------------------


def test_a_long_head_in_one_packet_is_refused(role: Role) -> None:
    async def test(port: Port) -> None:
        for more in (b"x: " + b"a" * 70_000, b"\r\n".join([b"a: b"] * 101)):
            async with port.line() as line:
                line.say(HEALTH, more, b"\r\n\r\n")
                assert (await line.answer())[0] == 431
                assert await line.rest() == b""
        async with port.line() as line:
            line.say(HEALTH, b"transfer-encoding: chunked\r\n\r\n0\r\n")
            line.say(b"x: " + b"a" * 70_000 + b"\r\n\r\n")
            assert (await line.rest()).count(b"HTTP/1.1") == 1, "of what follows the body, too"
        async with port.line() as line:
            line.say(HEALTH, b"\r\n".join([b"a: b"] * 98), b"\r\n\r\n")
            assert (await line.answer())[0] == 200

    role.serve(test)


def test_a_head_is_answered_by_both(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            for _ in range(2):
                line.say(HEALTH.replace(b"GET", b"HEAD"), b"\r\n")
                assert await line.status() == 200

    role.serve(test)


# --- connections and files ------------------------------------------------------------------------


def test_a_crowd_is_told_and_said_once(
    role: Role, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_TELLING", 60.0)
    caplog.set_level(logging.INFO)
    busy = (503, {"error": "too many connections"})

    async def test(port: Port) -> None:
        held = port.server.load
        held.most_connections = 8  # and two more that are told
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(port.line()) for _ in range(20)]
            for unasked in lines[10:]:
                assert await unasked.answer() == busy
                assert await unasked.rest() == b""
            assert held.connections == 10
            lines[8].say(HEALTH, b"\r\n")
            assert await lines[8].answer() == busy
            assert await lines[8].rest() == b""
            for served in lines[:8]:
                served.say(HEALTH, b"\r\n")
                assert (await served.answer())[0] == 200
        await until(lambda: held.connections == 0)
        said = [record.getMessage() for record in caplog.records]
        assert said.count("too many connections") == 1
        monkeypatch.setattr(limits, "_TELLING", 0.1)
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(port.line()) for _ in range(9)]
            assert await lines[8].answer() == busy, "also who says nothing"
            assert await lines[8].rest() == b""

    role.serve(test)


FILES = resource.RLIMIT_NOFILE
PLENTY, NO_LIMIT = 1 << 20, resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("allowed", "is_raised", "connections"),
    [
        ((256, 1024), True, 0.8 * (1024 - 50 - 96 - 40)),
        ((1024, 1024), False, 0.8 * (1024 - 50 - 96 - 40)),
        ((1024, PLENTY), True, 4096),
        ((1024, NO_LIMIT), True, 4096),
        ((PLENTY, PLENTY), False, 4096),
        ((NO_LIMIT, NO_LIMIT), False, 4096),
    ],
)
def test_connections_fit_the_files_that_may_be_open(
    allowed: tuple[int, int],
    is_raised: bool,
    connections: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = list[tuple[int, int]]()
    monkeypatch.setattr(load, "_open_files", lambda: 50)
    monkeypatch.setattr(resource, "getrlimit", lambda _: allowed)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: raised.append(limit))
    public, private = Load(), Load(most_connections=32)
    files = load.fit_to_files(public, private)
    assert public.most_connections == int(connections)
    assert private.most_connections == 32
    assert 50 + public.most_open + private.most_open + 96 <= files
    assert raised == ([(files, allowed[1])] if is_raised else [])


def test_too_few_files_are_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    with pytest.raises(CannotListen, match="fewer than 16: raise the limit of open files"):
        load.fit_to_files(Load())


# --- handshakes -----------------------------------------------------------------------------------


def test_handshakes_count_and_end(
    role: Role, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "PATIENCE", 60.0)
    monkeypatch.setattr(load, "_MOST_HANDSHAKES", 4)

    async def test(port: Port) -> None:
        held = port.server.load
        async with AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(port.line()) for _ in range(3)]
            await until(lambda: len(held.handshakes) == held.connections == 3)
            idle += [await stack.enter_async_context(port.line()) for _ in range(3)]
            for oldest in idle[:2]:
                assert await oldest.rest() == b"", "it makes room, long before its time"
            assert len(held.handshakes) == 4
            line = await stack.enter_async_context(port.line(ssl=trusting(certificates)))
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200
            monkeypatch.setattr(handshakes, "PATIENCE", 0.1)
            late = await stack.enter_async_context(port.line())
            assert await late.rest() == b"", "its time is over"
            for one in idle:
                one.writer.transport.abort()
            await until(lambda: not held.handshakes and held.connections == 1)
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200
        await until(lambda: held.connections == 0)

    role.serve(test, listener=secured(certificates))


def test_no_handshake_is_begun_that_there_is_no_room_for(role: Role, certificates: Path) -> None:
    async def test(port: Port) -> None:
        held = port.server.load
        held.most_connections = 1  # and one that is told
        trust = trusting(certificates)
        async with port.line(ssl=trust) as one, port.line(ssl=trust) as two, port.line() as three:
            assert await three.rest() == b""
            two.say(HEALTH, b"\r\n")
            assert (await two.answer())[0] == 503
            one.say(HEALTH, b"\r\n")
            assert (await one.answer())[0] == 200
        await until(lambda: held.connections == 0)

    role.serve(test, listener=secured(certificates))


def test_a_handshake_does_not_keep_a_service_from_stopping(
    shuffler: Role, certificates: Path
) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            await until(lambda: len(port.server.load.handshakes) == 1)
            port.server.should_exit = True
            assert await line.rest() == b""

    shuffler.serve(test, listener=secured(certificates))
