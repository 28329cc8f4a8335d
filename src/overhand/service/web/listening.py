"""How a service listens, and how it stops: every accepted request is answered."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from overhand.errors import InvalidValue
from overhand.service.web.application import Application
from overhand.service.web.handshakes import Door
from overhand.service.web.limits import Impatient
from overhand.service.web.load import CannotListen, Load, fit_to_files
from overhand.service.web.logs import log

_BACKLOG = 2048
_FEW = 32
"""Connections to what is only for the operator."""


@dataclass(frozen=True)
class Listener:
    """An address, and how connections to it are secured."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    certificate_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.certificate_key is None):
            raise InvalidValue("a certificate and its key must be given together")
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
                f"{certificate} and {self.certificate_key} are not a certificate and its key "
                f"in PEM without a password: {error}"
            ) from error

    def bound(self) -> socket.socket:
        """A socket at this address, taken before anything else is begun."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise CannotListen(f"cannot listen on {self.host}:{self.port}: {error}") from error


async def pause(until: asyncio.Event, seconds: float) -> None:
    """Wait for so long, or until something has happened."""
    with suppress(TimeoutError):
        await asyncio.wait_for(until.wait(), seconds)


def loopback(port: int | None) -> Listener | None:
    """A listener that only this machine reaches, if there is a port for it."""
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


@dataclass(frozen=True)
class Site:
    """An application, where it listens if anywhere, and what reads its requests."""

    app: Any
    listener: Listener | None
    protocol: type[Impatient] = Impatient

    @property
    def load(self) -> Load:
        """Of an application as it says; whatever else there is has few visitors."""
        is_public = isinstance(self.app, Application)
        return self.app.load if is_public else Load(most_connections=_FEW)


async def serve(
    *sites: Site,
    on_start: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Listen at all sites, the public one first, until SIGTERM or SIGINT.

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
        public, *private = (server.load for server, _ in servers)
        files = fit_to_files(public, *private)
        log("limits", connections=public.most_connections, open_files=files)
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
    """Leaves signals to the process: one may stop several listeners. Handshakes count."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site, self.load = site, site.load

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers: list[Any] = [await self._opened(at) for at in sockets or ()]
        self.started = True

    async def _opened(self, at: socket.socket) -> asyncio.Server | Door:
        context = self.config.ssl
        if context is not None:
            return Door(at, self.load, context, self._read)
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._read, sock=at, backlog=_BACKLOG)

    def _read(self) -> Impatient:
        return self._site.protocol(self.config, self.server_state, {}, load=self.load)


def _server(site: Site) -> _Server:
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
    return _Server(config, site)
