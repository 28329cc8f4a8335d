"""How a service listens, to whom, and how it stops: every accepted request is answered."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from overhand.deploy.http.application import MOST_CONNECTIONS, Application, pause
from overhand.deploy.http.telemetry import log
from overhand.deploy.protocol.keys import UnsafeSecret, load_hashes
from overhand.deploy.transport import is_this_machine
from overhand.errors import InvalidValue, ServiceError

_FEWEST_CONNECTIONS = 16
_OTHER_FILES = 160
"""For the database, the other service, the operator, and whatever a library opens."""
_BACKLOG = 2048
_LOOK = 1.0  # seconds between looks at the file of tokens
_TIDY = 5.0  # seconds
_UNREAD_BYTES = 1 << 14
"""What the system keeps of a connection until it is read: all of that is read, and copied, before
a request can be refused. With the usual buffers, 1,500 strangers at a time took 300 MB."""
_ALONE = (
    "this service faces the network without a proxy: nothing limits how many connect, how slowly "
    "they send a request's head, or how often one address asks (docs/operations)"
)


class CannotListen(ServiceError):
    """An address that is in use, or not ours, or there is no room to answer anybody."""


@dataclass(frozen=True)
class Endpoint:
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
        self.secure(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))

    def secure(self, context: ssl.SSLContext) -> None:
        """Give the certificate to a context, if there is one, as its file is now."""
        if self.certificate is None:
            return
        try:
            context.load_cert_chain(self.certificate, self.certificate_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidValue(
                f"{self.certificate} and {self.certificate_key} are not a certificate and its key "
                f"in PEM without a password: {error}"
            ) from error

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_this_machine(f"[{self.host}]" if ":" in self.host else self.host)

    def bind(self) -> socket.socket:
        """A socket at this address, taken before anything else is begun."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            at = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
            at.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
            return at
        except (OSError, OverflowError) as error:
            raise CannotListen(f"cannot listen on {self.host}:{self.port}: {error}") from error


def run(service: Coroutine[Any, Any, None]) -> None:
    """Run a service in a fast event loop of its own, as the whole of this process.

    If any part of it fails the whole ends, with that part's error.
    """
    try:
        uvloop.run(service)
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from group


@dataclass(frozen=True)
class Site:
    """An application, and where it listens."""

    app: ASGIApp
    endpoint: Endpoint


async def serve(
    *sites: Site,
    on_start: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Listen at all sites, the public one first, until SIGTERM or SIGINT.

    `on_start` is called when all addresses are taken. In the end no new connection is taken,
    `on_stop` is called, and requests under way are finished. SIGHUP reads certificates again.
    """
    loop, connections = asyncio.get_running_loop(), _fit_to_files()
    servers = [server_of(site, connections) for site in sites]
    for site in sites:
        if isinstance(site.app, Application):
            site.app.most_connections = connections

    def stop() -> None:
        on_stop()
        for server in servers:
            server.should_exit = True

    def reload() -> None:
        for server, site in zip(servers, sites, strict=True):
            if server.started:
                _reload_certificate(server.config.ssl, site.endpoint)

    gc.collect()
    gc.freeze()  # what is there for good is never looked through again
    actions = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    for name, action in actions.items():  # before anybody can connect
        loop.add_signal_handler(name, action)
    _return_memory(loop)
    bound = [site.endpoint.bind() for site in sites]
    log("limits", connections=connections)
    if not all(site.endpoint.is_local for site in sites):
        log(_ALONE, level=logging.WARNING)
    on_start()
    await asyncio.gather(*(one.serve([at]) for one, at in zip(servers, bound, strict=True)))


def _return_memory(loop: asyncio.AbstractEventLoop) -> None:
    """Now and then, give back what a flood of refused requests leaves behind.

    Connections that are over are in cycles, each with the last bytes it read, and a service that
    is quiet again would not collect them for hours. The C library keeps what was freed in small
    pieces. Both take milliseconds, because nothing that is there for good is looked through.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)
    loop.call_later(_TIDY, _return_memory, loop)


def _fit_to_files() -> int:
    """How many connections there may be, once the limit of open files is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_CONNECTIONS
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if files - _OTHER_FILES < _FEWEST_CONNECTIONS:
        raise CannotListen(
            f"{files} open files leave no room for {_FEWEST_CONNECTIONS} connections: raise the "
            "limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files - _OTHER_FILES


def _reload_certificate(context: ssl.SSLContext | None, endpoint: Endpoint) -> None:
    """A new certificate is for new connections; a file that is damaged changes nothing."""
    if context is None:
        return
    try:
        endpoint.secure(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))  # try it elsewhere
        endpoint.secure(context)
    except InvalidValue:
        log("the certificate cannot be read: the old one stays", level=logging.ERROR)
    else:
        log("the certificate was read again")


class _Server(uvicorn.Server):
    """Leaves signals to the process: one may stop several listeners."""

    def capture_signals(self) -> Any:
        return nullcontext()


def server_of(site: Site, connections: int = MOST_CONNECTIONS) -> uvicorn.Server:
    """What serves a site; one connection too many is told to try again later."""
    return _Server(
        uvicorn.Config(
            site.app,
            http="httptools",
            ssl_certfile=site.endpoint.certificate,
            ssl_keyfile=site.endpoint.certificate_key,
            access_log=False,  # it prints addresses
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=connections,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=30,
            lifespan="off",
            ws="none",
        )
    )


class TokenFile(Collection[bytes]):
    """The hashes of tokens in the file `path`, which must be good when a service starts.

    `follow` reads it again when it has changed. A missing or damaged file changes nothing, and is
    logged once: nobody is let in, or locked out, by half a file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _state(path)
        self._hashes = load_hashes(path)
        self._is_bad = False

    def __contains__(self, hashed: object) -> bool:
        return hashed in self._hashes

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    async def follow(self, stopping: asyncio.Event) -> None:
        """Look at the file every second."""
        while not stopping.is_set():
            await asyncio.to_thread(self.look)
            await pause(stopping, _LOOK)

    def look(self) -> None:
        """Read the file if it is not what it was, or was bad when it was last read."""
        state = _state(self._path)  # before it is read: what is written meanwhile is seen next time
        if state == self._seen and not self._is_bad:
            return
        try:
            hashes = load_hashes(self._path)
        except UnsafeSecret:
            if not self._is_bad:
                log("tokens cannot be read: the old ones stay valid", level=logging.ERROR)
            self._is_bad = True
            return
        if hashes != self._hashes or self._is_bad:
            added, revoked = len(hashes - self._hashes), len(self._hashes - hashes)
            log("tokens were read", added=added, revoked=revoked)
        self._seen, self._hashes, self._is_bad = state, hashes, False


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file; nothing if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
