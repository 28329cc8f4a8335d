"""How a service listens, and how it stops: every request that was taken is answered."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from overhand.errors import InvalidValue, OverhandError
from overhand.service.web import http
from overhand.service.web.http import Refused, Reply, too_slow

_MOST_CONNECTIONS = 4096
_MOST_SAID = 1 << 16
_BACKLOG = 2048


class CannotListen(OverhandError):
    """An address that is taken, or not ours."""


@dataclass(frozen=True)
class Listener:
    """An address, and how connections to it are secured."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    certificate_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.certificate_key is None):
            raise InvalidValue("a certificate and its key go together")
        for path in (self.certificate, self.certificate_key):
            if path is not None and not path.is_file():
                raise InvalidValue(f"there is no file {path}")
        if self.certificate is not None:
            self._check_certificate(self.certificate)

    def _check_certificate(self, certificate: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(certificate, self.certificate_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidValue(
                f"{certificate} and {self.certificate_key} are not a certificate and its key, "
                f"in PEM and without a password: {error}"
            ) from error

    def bound(self) -> socket.socket:
        """A socket at this address, taken before anything else is begun."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise CannotListen(f"cannot listen at {self.host}:{self.port}: {error}") from error


def loopback(port: int | None) -> Listener | None:
    """A listener that nobody outside this machine reaches, if there is a port for it."""
    return None if port is None else Listener("127.0.0.1", port)


def run(service: Coroutine[Any, Any, None]) -> None:
    """Run a service in a fast event loop of its own, as the whole of this process.

    If any part of it fails the whole ends, with that part's error.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(service)
    except ExceptionGroup as group:
        raise _first(group) from group


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def _full(scope: http.Scope, receive: http.Receive, send: http.Send) -> None:
    """What a request is told that came over one connection too many."""
    busy = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", retry=True)
    await Reply.to(busy).closing.send(send)


class _Tunnel(Exception):
    """A CONNECT: we are nobody's proxy."""


class Impatient(HttpToolsProtocol):
    """Reads requests, and lets nobody keep a connection for nothing.

    From its first byte, or the connection's beginning, a message has `http.PATIENCE` seconds to be
    whole, whether or not it was answered meanwhile, and few bytes besides its body; so long may
    what we write wait to be taken. An answer may go on for as long as it is read. Who offers to
    upgrade to another protocol is answered as if it had not.
    """

    _watch: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_in_body = False
    _said = 0  # bytes of the message that are not of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(1, 0)  # all that waits is watched; TLS stops at high=0
        self._start_watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        self._stop_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._said += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP request"))
        if self._said > _MOST_SAID:
            words = f"a request has at most {_MOST_SAID} bytes besides its body"
            self._refuse(Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words))

    def _parse(self, data: memoryview) -> None:
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:  # with where the head ends
                data = data[upgrade.args[0] :]
                self._hear_again()

    def _hear_again(self) -> None:
        """Hear a head once more, without the offer that kept the parser from reading its body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # as the one before: httptools before 0.6.3 is so anyway
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._start_watch()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Tunnel
            return
        self._unset_keepalive_if_required()  # set since, if the one before was just answered
        self._begin()
        self._is_in_body = True

    def _begin(self) -> None:
        """Have the request answered, of which there may be more to come."""
        self.app = _full if self._is_full() else self.config.loaded_app
        super().on_headers_complete()

    def _is_full(self) -> bool:
        return max(len(self.connections), len(self.tasks)) >= _MOST_CONNECTIONS

    def on_body(self, body: bytes) -> None:
        self._said -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._stop_watch()
        self._is_in_body = False
        self._said = 0
        self._end()

    def _end(self) -> None:
        """There is no more of the request."""
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(http.PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall()

    def _start_watch(self) -> None:
        self._stop_watch()
        self._watch = self.loop.call_later(http.PATIENCE, self._give_up)

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self) -> None:
        if self._is_in_body and not self.transport.is_closing():
            self._refuse(too_slow())
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refused) -> None:
        """Hang up on a message that is not whole, and say why if it is its turn to be answered."""
        if self.transport.is_closing():
            return
        if not self._is_next():
            self.transport.abort()
            return
        if self._is_in_body and self.cycle is not None:  # the application need not wait for more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(self._reply(refusal).closing.raw)
        self.transport.close()

    def _reply(self, refusal: Refused) -> Reply:
        return Reply.to(refusal)

    def _is_next(self) -> bool:
        """Whether all before the message was answered, and of its own answer nothing is said."""
        if self._is_in_body:
            return not self.pipeline and not self.cycle.response_started
        return self.cycle is None or self.cycle.response_complete


@dataclass(frozen=True)
class Site:
    """An application, where it listens if anywhere, and what reads its requests."""

    app: Any
    listener: Listener | None
    protocol: type[Impatient] = Impatient


async def serve(
    *sites: Site,
    on_start: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Listen at all sites, until SIGTERM or SIGINT.

    `on_start` is called when all addresses are taken. In the end no new connection is taken,
    `on_stop` is called, and requests under way are finished.
    """
    servers = [(_server(site), site.listener) for site in sites if site.listener is not None]

    def stop() -> None:
        on_stop()
        for server, _ in servers:
            server.should_exit = True

    _forgo_collecting()
    with _on_signals(stop):  # before anybody can connect
        bound = [(server, listener.bound()) for server, listener in servers]
        on_start()
        await asyncio.gather(*(server.serve([at]) for server, at in bound))


def _forgo_collecting() -> None:
    """Look for cycles seldom, and never among what is there for good: it cost a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls a function on the signals that ask a process to stop."""
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    try:
        yield
    finally:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)


class _Server(uvicorn.Server):
    """Leaves signals to the process: one may stop several listeners."""

    def capture_signals(self) -> Any:
        return nullcontext()


def _server(site: Site) -> uvicorn.Server:
    listener = site.listener or Listener()
    config = uvicorn.Config(
        site.app,
        http=site.protocol,
        ssl_certfile=listener.certificate,
        ssl_keyfile=listener.certificate_key,
        access_log=False,  # it prints addresses
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=30,
        lifespan="off",
        ws="none",
    )
    return _Server(config)
