"""What a body may cost a service: its time, its bytes, and what becomes of it once refused."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from overhand.deploy.http import application, listening
from overhand.deploy.http.listening import Endpoint, Site, serve
from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.server import app as server_app
from support.certificates import make_certificates
from support.loopback_system import System
from support.raw_connections import BINARY, CHUNKED, HEALTH, Line, Port, Role, plan

CLIENT = "c" * 43


@pytest.fixture(params=["shuffler", "server"])
def role(request: pytest.FixtureRequest, tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), request.param == "shuffler")


@pytest.fixture
def shuffler(tmp_path: Path) -> Role:
    return Role(System(tmp_path, plan()), is_shuffler=True)


def foreign_report(role: Role) -> bytes:
    """As long as a report, and of another plan: it is refused without being stored."""
    return b"OVH3" + bytes(role.system.document.formats.report_length - 4)


def head(role: Role, length: int) -> bytes:
    return role.upload + f"content-length: {length}\r\n\r\n".encode()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


def is_free(role: Role) -> bool:
    """Whether nothing of any body is held."""
    return not role.app.limits.bytes and not role.app.limits.coming


# --- time -----------------------------------------------------------------------------------------


def test_a_body_may_take_as_long_as_the_slowest_line_does(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer. Fails if the time does not depend on the announced length."""
    body = foreign_report(role)
    monkeypatch.setattr(application, "PATIENCE", 0.1)

    async def say(line: Line, parts: int, longer: float) -> int:
        """Parts of ten, each after a while: beyond the fixed time, so many seconds are given."""
        monkeypatch.setattr(application, "SLOWEST_LINE", len(body) / longer)
        line.say(head(role, len(body)))
        for part in range(parts):
            line.say(body[part * len(body) // 10 : (part + 1) * len(body) // 10])
            await asyncio.sleep(0.02)
        return (await line.answer())[0]

    async def test(port: Port) -> None:
        async with port.line() as slow:
            assert await say(slow, 10, longer=30) == (409 if role.is_shuffler else 400)
        async with port.line() as slower:
            assert await say(slower, 9, longer=0.5) == 408
            assert slower.headers["connection"] == "close"
        await until(lambda: is_free(role))

    role.serve(test)


def test_a_body_without_a_length_has_the_fixed_time(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PATIENCE", 0.1)
    monkeypatch.setattr(application, "_LINGER", 0.1)

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, CHUNKED, b"5\r\nOV")
            words = "the body did not arrive within 0.1 seconds"
            assert await line.answer() == (408, {"error": words})
            assert await line.rest() == b""
        assert is_free(role)

    role.serve(test)


@pytest.mark.parametrize("path", [b"/healthz", b"/nothing"])
def test_who_was_answered_does_not_send_a_body_for_ever(
    role: Role, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_LINGER", 0.1)

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(b"POST ", path, b" HTTP/1.1\r\ncontent-length: 99999999999999\r\n\r\n")
            assert (await line.end(drip=b"x")).count(b"HTTP/1.1") == 1
        await port.is_left()
        assert is_free(role)

    role.serve(test)


def test_whoever_listens_may_say_something_and_listen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a body that nobody reads is given up after its time: it ended the events."""
    role = Role(System(tmp_path, plan()), is_shuffler=False)
    monkeypatch.setattr(server_app, "_HEARTBEAT", 0.05)
    monkeypatch.setattr(application, "PATIENCE", 0.1)

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(b"GET /v1/events HTTP/1.1\r\ncontent-length: 100\r\n\r\nx")
            for _ in range(6):
                await asyncio.wait_for(line.reader.readuntil(b": still here\n\n"), 60)
            assert is_free(role)

    role.serve(test)


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shuffler", [True, False], ids=["shuffler", "server"])
def test_a_stranger_is_told_so_before_its_body(
    tmp_path: Path, is_shuffler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the head was sent when the answer comes; and who goes on hears it all the same."""
    monkeypatch.setattr(application, "_LINGER", 60.0)  # however busy the machine is
    role = Role(System(tmp_path, plan(), frozenset([hash_token(CLIENT)])), is_shuffler)
    ask = b"POST /v1/reports" if is_shuffler else b"PUT /v1/releases/1/0"

    def asked(length: int, token: str) -> bytes:
        authorization = f"authorization: {token}\r\n" if token else ""
        lines = f" HTTP/1.1\r\n{authorization}content-length: {length}\r\n"
        return ask + lines.encode() + BINARY + b"\r\n"

    async def test(port: Port) -> None:
        for token in ("", "Bearer " + "x" * 43, "Basic " + CLIENT):
            async with port.line() as line:
                line.say(asked(role.system.document.formats.report_length, token))
                assert (await line.answer())[0] == 401
                assert line.headers["connection"] == "close"
        async with port.line() as line:
            line.say(asked(1 << 20, ""), bytes(1 << 19))
            await asyncio.sleep(0.02)
            line.say(bytes(1 << 19))
            assert (await line.answer())[0] == 401
            assert await line.rest() == b""
        await port.is_left()
        assert is_free(role)

    role.serve(test)


def test_who_waits_to_be_asked_for_the_body_is_asked_or_refused(role: Role) -> None:
    body, expect = foreign_report(role), b"expect: 100-continue\r\n"

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, expect, f"content-length: {len(body)}\r\n\r\n".encode())
            assert await line.status() == 100
            line.say(body)
            assert (await line.answer())[0] == (409 if role.is_shuffler else 400)
        async with port.line() as line:
            line.say(role.upload.replace(BINARY, b""), expect, b"content-length: 9\r\n\r\n")
            assert (await line.answer())[0] == 415, "without being asked for a body"
            line.say(b"123456789")
            assert await line.rest() == b""

    role.serve(test)


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_who_has_been_sending_for_longest_makes_room(shuffler: Role, is_chunked: bool) -> None:
    body = foreign_report(shuffler)
    start, rest = head(shuffler, len(body)), body[-1:]
    if is_chunked:
        start = shuffler.upload + CHUNKED + f"{len(body):x}\r\n".encode()
        rest += b"\r\n0\r\n\r\n"

    async def test(port: Port) -> None:
        held = shuffler.app.limits
        held.most_bytes = 4 * len(body)
        refused = shuffler.system.metrics.refused.labels(503)._value.get
        async with AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(port.line()) for _ in range(12)]
            for number, line in enumerate(slow, start=1):
                line.say(start, body[:-1])
                sent = min(number, 4) * (len(body) - 1)
                await until(lambda n=number, s=sent: (held.bytes, refused()) == (s, max(0, n - 4)))  # type: ignore[misc]
            for line in slow[:8]:
                assert await line.answer() == (503, {"error": "too much is under way"})
                assert int(line.headers["retry-after"]) > 0
                assert line.headers["connection"] == "close"
            other = await stack.enter_async_context(port.line())
            for _ in range(10):
                other.say(head(shuffler, len(body)), body)
                assert (await other.answer())[0] == 409
            slow[-1].say(rest)
            assert (await slow[-1].answer())[0] == 409
        await until(lambda: is_free(shuffler))

    shuffler.serve(test)


def test_what_waits_to_be_stored_counts_and_is_not_dropped(shuffler: Role) -> None:
    """Nobody commits here. Fails if a whole report is no longer counted, or is dropped."""
    body = shuffler.system.report()

    async def test(port: Port) -> None:
        held = shuffler.app.limits
        held.most_bytes = 3 * len(body)
        async with AsyncExitStack() as stack:
            lines = [await stack.enter_async_context(port.line()) for _ in range(4)]
            for line in lines[:3]:
                line.say(head(shuffler, len(body)), shuffler.system.report())
            await until(lambda: held.bytes == 3 * len(body))
            lines[3].say(head(shuffler, len(body)), body)
            assert (await lines[3].answer())[0] == 503
            for line in lines:
                line.writer.transport.abort()
        await port.is_left()
        assert held.bytes == 3 * len(body)
        committing = asyncio.create_task(shuffler.system.admission.run())
        await until(lambda: held.bytes == 0)
        assert shuffler.system.store.arrived == 3
        shuffler.system.admission.close()
        await committing

    shuffler.serve(test)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_a_body_that_is_too_long_is_not_kept(role: Role, is_chunked: bool) -> None:
    most = role.system.document.formats.most_release_bytes
    if role.is_shuffler:
        most = role.system.document.formats.report_length
    start = CHUNKED + b"fffffff\r\n" if is_chunked else b"content-length: 9999999\r\n\r\n"

    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, start, bytes(most + 1))
            assert await line.answer() == (413, {"error": f"a body has at most {most} bytes"})
            assert line.headers["connection"] == "close"
            assert is_free(role)

    role.serve(test)


def test_who_does_not_wait_for_an_answer_gets_all_of_them_in_turn(role: Role) -> None:
    """Also behind a body that is refused, and in the same packet."""
    body, wrong = foreign_report(role), 409 if role.is_shuffler else 400
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"

    async def test(port: Port) -> None:
        async with port.line() as hasty:
            hasty.say(head(role, len(body)), body, HEALTH, b"\r\n", role.upload, CHUNKED, chunked)
            hasty.say(b"GET /nothing HTTP/1.1\r\n\r\n", head(role, len(body)), body)
            answers = [(await hasty.answer())[0] for _ in range(5)]
            assert answers == [wrong, 200, wrong, 404, wrong]
        assert is_free(role)

    role.serve(test)


def test_who_goes_away_in_the_middle_is_no_fault(
    role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(role.upload, CHUNKED, b"5\r\nOV")
            await until(lambda: bool(role.app.limits.bytes))
        await port.is_left()
        await until(lambda: is_free(role))
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    role.serve(test)


# --- connections and files ------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so(role: Role) -> None:
    async def test(port: Port) -> None:
        async with port.line() as line:
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200
            async with port.line() as another:
                another.say(HEALTH, b"\r\n")
                assert await another.status() == 503
            await until(lambda: len(port.server.server_state.connections) == 1)
            line.say(HEALTH, b"\r\n")
            assert (await line.answer())[0] == 200

    role.serve(test, connections=2)


def test_listeners_leave_room_for_others(tmp_path: Path) -> None:
    server = Role(System(tmp_path, plan()), is_shuffler=False)
    ask = b"GET /v1/events HTTP/1.1\r\n\r\n"

    async def test(port: Port) -> None:
        server.app.most_connections = 8  # a quarter may listen
        async with port.line() as other:
            async with port.line() as one, port.line() as two:
                for endpoint in (one, two):
                    endpoint.say(ask)
                    assert await endpoint.status() == 200
                other.say(ask)
                assert await other.answer() == (503, {"error": "too many listeners"})
                assert int(other.headers["retry-after"]) > 0
                other.say(HEALTH, b"\r\n")
                assert (await other.answer())[0] == 200
            await until(lambda: not server.system.server.events.listeners)
            other.say(ask)
            assert await other.status() == 200

    server.serve(test)


def test_what_connections_leave_in_cycles_is_given_back_while_all_is_quiet() -> None:
    """Fails if that waits for the collector: new objects set it off, and there are none."""

    class Connection:
        def __init__(self) -> None:
            self.itself = self

    async def test() -> None:
        left = weakref.ref(Connection())
        assert left() is not None
        listening._return_memory(asyncio.get_running_loop())
        assert left() is None

    gc.disable()
    try:
        asyncio.run(test())
    finally:
        gc.enable()


PLENTY, NO_LIMIT = 1 << 20, resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("allowed", "raised", "connections"),
    [
        ((256, 1024), 1024, 864),
        ((1024, 1024), 1024, 864),
        ((1024, PLENTY), 4256, 4096),
        ((1024, NO_LIMIT), 4256, 4096),
        ((PLENTY, PLENTY), None, 4096),
        ((NO_LIMIT, NO_LIMIT), None, 4096),
    ],
)
def test_connections_fit_the_files_that_may_be_open(
    allowed: tuple[int, int],
    raised: int | None,
    connections: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: allowed)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: changes.append(limit))
    assert listening._fit_to_files() == connections
    assert changes == ([] if raised is None else [(raised, allowed[1])])


def test_too_few_files_are_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    with pytest.raises(
        listening.CannotListen, match="128 open files leave no room for 16 connections"
    ):
        listening._fit_to_files()


# --- certificates, and who listens ----------------------------------------------------------------


def test_a_new_certificate_is_for_new_connections_and_a_damaged_one_changes_nothing(
    shuffler: Role, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make_certificates(tmp_path)
    certificate, key = tmp_path / "some.pem", tmp_path / "some.key"
    endpoint = Endpoint("127.0.0.1", 0, certificate, key)

    async def is_served(port: Port, trust: ssl.SSLContext) -> bool:
        try:
            async with port.line(ssl=trust) as line:
                line.say(HEALTH, b"\r\n")
                return (await line.answer())[0] == 200
        except ssl.SSLCertVerificationError:
            return False

    async def test(port: Port) -> None:
        first = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        make_certificates(tmp_path)
        second = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        async with port.line(ssl=first) as kept:
            assert not await is_served(port, second)
            listening._reload_certificate(port.server.config.ssl, endpoint)
            assert (await is_served(port, first), await is_served(port, second)) == (False, True)
            kept.say(HEALTH, b"\r\n")
            assert (await kept.answer())[0] == 200, "it was there before"
        make_certificates(tmp_path)
        key.write_bytes(b"damaged")
        listening._reload_certificate(port.server.config.ssl, endpoint)
        assert await is_served(port, second)
        assert [
            record.getMessage() for record in caplog.records if "certificate" in record.msg
        ] == [
            "the certificate was read again",
            "the certificate cannot be read: the old one stays",
        ]

    shuffler.serve(test, endpoint=endpoint)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("sums.example", False)],
)
def test_a_listener_knows_whether_others_reach_it(host: str, is_local: bool) -> None:
    assert Endpoint(host).is_local == is_local


@pytest.mark.parametrize("is_local", [True, False])
def test_a_service_that_faces_the_network_alone_says_so_once(
    shuffler: Role,
    is_local: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Endpoint, "is_local", is_local)
    caplog.set_level(logging.INFO)
    sites = [Site(shuffler.app, Endpoint(port=0)), Site(shuffler.app, Endpoint(port=0))]
    asyncio.run(serve(*sites, on_start=lambda: os.kill(os.getpid(), signal.SIGTERM)))
    said = [record.getMessage() for record in caplog.records]
    assert len([words for words in said if "without a proxy" in words]) == (0 if is_local else 1)
