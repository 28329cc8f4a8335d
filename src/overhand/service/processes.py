"""How a service listens, and how it stops: every request that was taken is answered."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop


@dataclass(frozen=True)
class Listener:
    """An address, and how connections to it are secured."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    certificate_key: Path | None = None


class _Server(uvicorn.Server):
    """Leaves signals to the process: one may stop several listeners."""

    def capture_signals(self) -> Any:
        return nullcontext()


def run(service: Coroutine[Any, Any, None]) -> None:
    """Run a service in a fast event loop of its own, as the whole of this process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(service)


async def serve(*pairs: tuple[Any, Listener]) -> None:
    """Listen with every application at its listener, until SIGTERM or SIGINT.

    Then no new connection is taken, and requests under way are finished.
    """
    servers = [_server(app, listener) for app, listener in pairs]

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    with _on_signals(stop):
        await asyncio.gather(*(server.serve() for server in servers))


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


def _server(app: Any, listener: Listener) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        host=listener.host,
        port=listener.port,
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
